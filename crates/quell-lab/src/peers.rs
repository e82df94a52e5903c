//! Published sched_ext schedulers, to compare with: built from the Rust crate registry on demand.
//!
//! Problem: distributions do not carry these schedulers yet, and as dependencies they would bring their
//! licence (GPL-2.0-only) and their release schedule. Approach: `cargo install --locked`, with the user's own
//! cargo, into the lab's cache; the newest version that this Rust can build, never a pinned one. The builds
//! share a folder. It is kept while a build is unfinished, so that an interrupted build goes on where it was,
//! and removed when all schedulers that were asked for are built.

use crate::cache::Lab;
use crate::error::LabError;
use crate::progress::Progress;
use crate::qemu::find_program;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The names of the schedulers, of their crates and of their programs.
pub const PEERS: [&str; 5] = [
    "scx_bpfland",
    "scx_rusty",
    "scx_flash",
    "scx_lavd",
    "scx_layered",
];

/// The Debian packages that builds need besides Rust.
const PACKAGES: &str = "build-essential clang-19 (or newer) libelf-dev zlib1g-dev pkg-config libseccomp-dev \
                        protobuf-compiler";

/// The oldest clang that makes the BPF instructions that these schedulers use (`-mcpu=v4`).
const LEAST_CLANG: u32 = 18;

/// How many lines of a failed build's output are shown.
const TAIL: usize = 25;

/// A published scheduler that is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The scheduler's name, one of [`PEERS`].
    pub name: &'static str,
    /// The version that was built.
    pub version: String,
    /// The scheduler's program.
    pub program: PathBuf,
}

impl Lab {
    /// Those of [`PEERS`] that are named, built where they are not in the cache. Other names are ignored.
    ///
    /// # Errors
    /// [`LabError::Tool`] where cargo is not there; [`LabError::Build`] where a build failed or clang is too
    /// old; [`LabError::Layout`] where a build made no program; [`LabError::Io`] where the cache cannot be
    /// written.
    pub fn peers(&self, names: &[&str], progress: &dyn Progress) -> Result<Vec<Peer>, LabError> {
        self.make_peers(names, false, progress)
    }

    /// The newest versions of those of [`PEERS`] that are named, built where the cache has other versions.
    ///
    /// # Errors
    /// As [`Lab::peers`].
    pub fn fetch_peers(
        &self,
        names: &[&str],
        progress: &dyn Progress,
    ) -> Result<Vec<Peer>, LabError> {
        self.make_peers(names, true, progress)
    }

    fn make_peers(
        &self,
        names: &[&str],
        newest: bool,
        progress: &dyn Progress,
    ) -> Result<Vec<Peer>, LabError> {
        let mut peers = Vec::new();
        // Another process may be building the schedulers right now: the cache is looked at again once it is
        // done.
        let mut lock = None;
        for name in PEERS.into_iter().filter(|peer| names.contains(peer)) {
            if let Some(peer) = self.cached_peer(name).filter(|_| !newest) {
                peers.push(peer);
                continue;
            }
            if lock.is_none() {
                lock = Some(self.lock("peers.lock")?);
            }
            peers.push(match self.cached_peer(name).filter(|_| !newest) {
                Some(peer) => peer,
                None => self.build_peer(name, progress)?,
            });
        }
        if lock.is_some() {
            // A failure costs only disk space; the next build would go on from the folder.
            let _ = fs::remove_dir_all(self.peers_build());
        }
        Ok(peers)
    }

    fn cached_peer(&self, name: &'static str) -> Option<Peer> {
        let root = self.current(name)?;
        let folder = root.file_name()?.to_str()?;
        let version = folder.strip_prefix(name)?.strip_prefix('_')?.to_string();
        let program = root.join("bin").join(name);
        program.is_file().then_some(Peer {
            name,
            version,
            program,
        })
    }

    fn build_peer(&self, name: &'static str, progress: &dyn Progress) -> Result<Peer, LabError> {
        progress.step(&format!("looking up {name} in the Rust crate registry"));
        // In the cache's folder, where cargo finds no workspace.
        let mut info = cargo(self.dir());
        info.args(["info", "--quiet", "--color=never", name]);
        let said = self.cargo_says(name, info, progress)?;
        let version = version_of(&said).ok_or_else(|| LabError::Build {
            name,
            packages: PACKAGES,
            output: format!("`cargo info {name}` names no version:\n{said}"),
        })?;
        let clang = newest_clang();
        let fill = |root: &Path| {
            let Some(clang) = &clang else {
                return Err(LabError::Build {
                    name,
                    packages: PACKAGES,
                    output: format!("no clang of version {LEAST_CLANG} or newer is on PATH"),
                });
            };
            progress.step(&format!(
                "building {name} {version}: 5 to 15 minutes of CPU time, once; the first of several longer"
            ));
            let mut install = cargo(self.dir());
            install
                .args(["install", "--locked", "--color=never", "--version"])
                .arg(format!("={version}"))
                .arg("--root")
                .arg(root)
                .arg(name)
                .env("CARGO_TARGET_DIR", self.peers_build())
                .env("CARGO_TERM_PROGRESS_WHEN", "always")
                .env("CARGO_TERM_PROGRESS_WIDTH", "100")
                .env("BPF_CLANG", clang);
            self.cargo_says(name, install, progress)?;
            Ok(())
        };
        self.install(name, &version, fill)?;
        self.cached_peer(name).ok_or(LabError::Layout {
            package: name.to_string(),
            what: "program of its name",
        })
    }

    fn peers_build(&self) -> PathBuf {
        self.dir().join("peers-build")
    }

    /// Runs cargo and gives its standard output.
    fn cargo_says(
        &self,
        name: &'static str,
        mut command: Command,
        progress: &dyn Progress,
    ) -> Result<String, LabError> {
        let mut child = command.spawn().map_err(|source| LabError::Tool {
            program: "cargo".to_string(),
            package: "cargo, or https://rustup.rs",
            source,
        })?;
        let mut tail = VecDeque::new();
        if let Some(stderr) = child.stderr.take() {
            // Lines of cargo's progress bar end in carriage returns.
            let mut reader = BufReader::new(stderr);
            let mut line = Vec::new();
            while let Ok(byte) = read_byte(&mut reader) {
                match byte {
                    Some(byte) if byte != b'\n' && byte != b'\r' => line.push(byte),
                    end => {
                        let text = String::from_utf8_lossy(&line).trim_end().to_string();
                        line.clear();
                        match percent_of(&text) {
                            Some(percent) => progress.percent(percent),
                            None if text.is_empty() => {}
                            None => {
                                if tail.len() == TAIL {
                                    tail.pop_front();
                                }
                                tail.push_back(text);
                            }
                        }
                        if end.is_none() {
                            break;
                        }
                    }
                }
            }
        }
        let mut said = String::new();
        if let Some(mut stdout) = child.stdout.take() {
            // `cargo info` writes a page, which is less than a pipe holds; `cargo install` writes nothing.
            let _ = stdout.read_to_string(&mut said);
        }
        let status = child.wait().map_err(LabError::io(Path::new("cargo")))?;
        if status.success() {
            return Ok(said);
        }
        Err(LabError::Build {
            name,
            packages: PACKAGES,
            output: Vec::from(tail).join("\n"),
        })
    }
}

fn read_byte(reader: &mut impl BufRead) -> std::io::Result<Option<u8>> {
    let byte = reader.fill_buf()?.first().copied();
    reader.consume(usize::from(byte.is_some()));
    Ok(byte)
}

/// The user's cargo, without most settings that a workspace makes for its own build.
fn cargo(dir: &Path) -> Command {
    let mut command = Command::new("cargo");
    command
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    for variable in ["CARGO_BUILD_TARGET_DIR", "RUSTFLAGS", "RUSTC_WRAPPER"] {
        command.env_remove(variable);
    }
    command
}

/// The version in the output of `cargo info`: `version: 1.1.4` or `version: 1.1.2 (latest 1.1.4)`, where the
/// former is the newest that this Rust builds.
fn version_of(info: &str) -> Option<String> {
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("version:"))?;
    line.split_whitespace().next().map(str::to_string)
}

/// The percentage in a line of cargo's progress bar: `    Building [====>     ] 45/120: libbpf-sys`.
fn percent_of(line: &str) -> Option<f64> {
    let (_, rest) = line
        .trim_start()
        .strip_prefix("Building [")?
        .split_once(']')?;
    let count = rest.trim_start().split([':', ' ']).next()?;
    let (done, all) = count.split_once('/')?;
    let (done, all) = (done.parse::<f64>().ok()?, all.parse::<f64>().ok()?);
    (all > 0.0).then(|| 100.0 * done / all)
}

/// `$BPF_CLANG` where it is set, else the newest clang on `PATH` that is new enough.
fn newest_clang() -> Option<OsString> {
    if let Some(named) = std::env::var_os("BPF_CLANG").filter(|value| !value.is_empty()) {
        return Some(named);
    }
    let numbered = (LEAST_CLANG..LEAST_CLANG + 20)
        .rev()
        .map(|n| format!("clang-{n}"));
    let mut names = numbered.filter(|name| find_program(name).is_some());
    if let Some(name) = names.next() {
        return Some(name.into());
    }
    let output = Command::new("clang").arg("--version").output().ok()?;
    let version = clang_version(&String::from_utf8_lossy(&output.stdout))?;
    (version >= LEAST_CLANG).then(|| "clang".into())
}

/// The major version in the output of `clang --version`.
fn clang_version(text: &str) -> Option<u32> {
    let (_, rest) = text.split_once("clang version ")?;
    rest.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Quiet;

    #[test]
    fn versions_and_progress_are_read_from_what_cargo_says() {
        let info = "scx_x\nA scheduler\nversion: 1.1.2 (latest 1.1.4)\nlicense: GPL-2.0-only\n";
        assert_eq!(version_of(info).as_deref(), Some("1.1.2"));
        assert_eq!(version_of("version: 1.1.4\n").as_deref(), Some("1.1.4"));
        assert_eq!(version_of("error: not found"), None);
        let line = "    Building [=====>             ] 30/120: libbpf-sys(build)";
        assert_eq!(percent_of(line), Some(25.0));
        assert_eq!(percent_of("   Compiling libbpf-sys v1.6.1"), None);
        assert_eq!(percent_of("    Building [> ] 0/0"), None);
    }

    #[test]
    fn compilers_say_their_version() {
        assert_eq!(
            clang_version("Debian clang version 19.1.7 (3~deb12u1)\n"),
            Some(19)
        );
        assert_eq!(clang_version("clang version 14.0.6\n"), Some(14));
        assert_eq!(clang_version("gcc 12"), None);
    }

    #[test]
    fn one_that_is_there_is_not_built_again_and_says_its_version() {
        let folder = tempfile::tempdir().unwrap();
        let lab = Lab::at(folder.path()).unwrap();
        assert_eq!(lab.cached_peer("scx_rusty"), None);
        lab.install("scx_rusty", "1.1.4", |root| {
            fs::create_dir_all(root.join("bin")).unwrap();
            fs::write(root.join("bin/scx_rusty"), "").unwrap();
            Ok(())
        })
        .unwrap();
        let peers = lab.peers(&["scx_rusty", "no_peer"], &Quiet).unwrap();
        let [peer] = &peers[..] else {
            panic!("{peers:?}");
        };
        assert_eq!((peer.name, &*peer.version), ("scx_rusty", "1.1.4"));
        assert!(peer.program.is_file());
    }
}
