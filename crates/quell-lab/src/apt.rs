//! Packages from any Debian suite, through apt, without touching the machine's own apt state.
//!
//! Problem: the lab needs kernels and a QEMU that the machine's release may not have, verified, and without
//! root. Approach: apt with a configuration of its own (sources, lists, cache, an empty list of installed
//! packages), `apt-get download`, `dpkg -x`. apt checks the archive's signature and every package's hash. Of
//! the machine's configuration only the way to the network is taken over: its Debian mirror, and the
//! `Acquire` settings of proxies and the archive's age.
//!
//! Versions are never named: apt is asked for the newest, because the archive keeps no older ones.

use crate::error::LabError;
use crate::progress::{Progress, Quiet};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The mirror for machines that have no Debian mirror of their own.
const DEFAULT_MIRROR: &str = "http://deb.debian.org/debian";

/// The keyring that the archive is verified with.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

const NETWORK: &str = " (is there a network, and does apt reach the Debian archive?)";

/// One suite of the Debian archive.
#[derive(Debug)]
pub struct Archive {
    suite: &'static str,
    dir: PathBuf,
}

impl Archive {
    /// Prepares a suite under the cache; `update` must follow before any package is looked up.
    ///
    /// # Errors
    /// [`LabError::NoKeyring`] where the archive cannot be verified; [`LabError::Tool`] or [`LabError::Apt`]
    /// where the machine's settings of apt cannot be read; [`LabError::Io`] where the cache cannot be
    /// written.
    pub fn open(cache: &Path, suite: &'static str) -> Result<Archive, LabError> {
        if !Path::new(KEYRING).exists() {
            return Err(LabError::NoKeyring(KEYRING));
        }
        let dir = cache.join("apt").join(suite);
        for sub in ["lists/partial", "cache/archives/partial", "etc"] {
            let sub = dir.join(sub);
            fs::create_dir_all(&sub).map_err(LabError::io(&sub))?;
        }
        let write = |name: &str, text: String| {
            let file = dir.join(name);
            fs::write(&file, text).map_err(LabError::io(&file))
        };
        let sources = format!("deb [signed-by={KEYRING}] {} {suite} main\n", mirror()?);
        write("sources.list", sources)?;
        write("status", String::new())?;
        write("apt.conf", configuration(&dir)?)?;
        Ok(Archive { suite, dir })
    }

    /// The suite's name.
    pub fn suite(&self) -> &str {
        self.suite
    }

    /// Fetches the suite's current lists of packages.
    ///
    /// # Errors
    /// [`LabError::Tool`] where apt is not there; [`LabError::Apt`] where it failed.
    pub fn update(&self, progress: &dyn Progress) -> Result<(), LabError> {
        progress.step(&format!("reading what Debian {} has now", self.suite));
        let mut command = self.apt("apt-get");
        command.args(["update", "-o", "APT::Get::List-Cleanup=true"]);
        // By default apt-get update succeeds with stale lists or none.
        command.args(["--error-on=any"]);
        run(
            command,
            &format!("fetching the package lists of Debian {}", self.suite),
            progress,
        )?;
        Ok(())
    }

    /// The names of a package's direct dependencies that match, sorted.
    ///
    /// # Errors
    /// [`LabError::Tool`] where apt is not there; [`LabError::Apt`] where the suite has no such package.
    pub fn depends(
        &self,
        package: &str,
        matching: impl Fn(&str) -> bool,
    ) -> Result<Vec<String>, LabError> {
        let mut command = self.apt("apt-cache");
        command.args(["depends", "--no-recommends", "--no-suggests"]);
        command.args(["--no-conflicts", "--no-breaks", "--no-replaces"]);
        command.args(["--no-enhances", package]);
        let what = format!("looking up {package} in Debian {}", self.suite);
        let text = run(command, &what, &Quiet)?;
        let names = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "));
        let found: BTreeSet<String> = names
            .filter(|name| matching(name))
            .map(str::to_string)
            .collect();
        Ok(found.into_iter().collect())
    }

    /// The newest version of a package.
    ///
    /// # Errors
    /// [`LabError::Tool`] where apt is not there; [`LabError::Apt`] or [`LabError::Layout`] where the suite
    /// has no such package.
    pub fn version(&self, package: &str) -> Result<String, LabError> {
        let mut command = self.apt("apt-cache");
        command.args(["show", "--no-all-versions", package]);
        let what = format!("looking up {package} in Debian {}", self.suite);
        let text = run(command, &what, &Quiet)?;
        let version = text.lines().find_map(|line| line.strip_prefix("Version: "));
        version.map(str::to_string).ok_or_else(|| LabError::Layout {
            package: package.to_string(),
            what: "version",
        })
    }

    /// Downloads packages and unpacks them into a folder.
    ///
    /// # Errors
    /// [`LabError::Tool`] where apt or dpkg is not there; [`LabError::Apt`] where it failed; [`LabError::Io`]
    /// where a folder cannot be made or read.
    pub fn unpack(
        &self,
        packages: &[String],
        root: &Path,
        progress: &dyn Progress,
    ) -> Result<(), LabError> {
        progress.step(&format!(
            "downloading from Debian {}: {}",
            self.suite,
            packages.join(", ")
        ));
        let folder = tempfile::tempdir_in(&self.dir).map_err(LabError::io(&self.dir))?;
        let mut command = self.apt("apt-get");
        command.arg("download").args(packages);
        command.current_dir(folder.path());
        run(
            command,
            &format!("downloading {}", packages.join(", ")),
            progress,
        )?;
        extract(folder.path(), root)
    }

    /// Downloads packages with all that they depend on, the C library included, and unpacks them: the
    /// folder's programs then run on any machine, by their own dynamic loader.
    ///
    /// # Errors
    /// As [`Archive::unpack`].
    pub fn unpack_closure(
        &self,
        packages: &[&str],
        root: &Path,
        progress: &dyn Progress,
    ) -> Result<(), LabError> {
        progress.step(&format!(
            "downloading from Debian {}, with libraries: {}",
            self.suite,
            packages.join(", ")
        ));
        let mut command = self.apt("apt-get");
        command.args(["install", "--download-only", "--no-install-recommends"]);
        command.arg("--yes").args(packages);
        run(
            command,
            &format!("downloading {} with libraries", packages.join(", ")),
            progress,
        )?;
        let archives = self.dir.join("cache/archives");
        extract(&archives, root)?;
        // The unpacked packages are of no further use.
        let mut clean = self.apt("apt-get");
        clean.arg("clean");
        run(clean, "cleaning the lab's apt cache", progress).map(drop)
    }

    /// One of apt's programs with this suite's configuration.
    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", self.dir.join("apt.conf"));
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("LC_ALL", "C.UTF-8");
        command
    }
}

/// Unpacks every package in a folder.
fn extract(folder: &Path, root: &Path) -> Result<(), LabError> {
    fs::create_dir_all(root).map_err(LabError::io(root))?;
    let entries = fs::read_dir(folder).map_err(LabError::io(folder))?;
    let mut debs: Vec<PathBuf> = entries
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| path.extension() == Some(OsStr::new("deb")))
        .collect();
    debs.sort();
    for deb in debs {
        let mut command = Command::new("dpkg");
        command.arg("-x").arg(&deb).arg(root);
        run(command, &format!("unpacking {}", deb.display()), &Quiet)?;
    }
    Ok(())
}

/// apt's configuration for one suite.
fn configuration(dir: &Path) -> Result<String, LabError> {
    let mut text = String::new();
    let dir = dir.display();
    // The machine's own configuration is left out, because its hooks act on the machine.
    for (key, value) in [
        ("Dir::Etc", format!("{dir}/etc")),
        ("Dir::Etc::sourcelist", format!("{dir}/sources.list")),
        ("Dir::Etc::sourceparts", "/dev/null".into()),
        ("Dir::Etc::parts", "/dev/null".into()),
        ("Dir::Etc::main", "/dev/null".into()),
        ("Dir::State", dir.to_string()),
        ("Dir::State::lists", format!("{dir}/lists")),
        ("Dir::State::status", format!("{dir}/status")),
        ("Dir::Cache", format!("{dir}/cache")),
        ("Dir::Log", format!("{dir}/log")),
        ("Acquire::Languages", "none".into()),
        ("Acquire::Retries", "3".into()),
        ("APT::Architecture", "amd64".into()),
        ("APT::Architectures", "amd64".into()),
        // Else apt drops root's rights for downloads, and may then not write into the cache.
        ("APT::Sandbox::User", "root".into()),
        ("APT::Status-Fd", "1".into()),
        ("Debug::NoLocking", "true".into()),
    ] {
        let _ = writeln!(text, "{key} \"{value}\";");
    }
    let mut dump = Command::new("apt-config");
    dump.args(["dump", "--no-empty", "Acquire"]);
    let machine = run(dump, "reading apt's configuration", &Quiet)?;
    for line in machine.lines().filter(|line| is_network_setting(line)) {
        text.push_str(line);
        text.push('\n');
    }
    Ok(text)
}

/// Whether a line of `apt-config dump Acquire` sets how to reach the archive, or how old the archive may be:
/// a mirror that is frozen on purpose has passed its date.
fn is_network_setting(line: &str) -> bool {
    let key = line.split_whitespace().next().unwrap_or_default();
    let lower = key.to_ascii_lowercase();
    let Some(rest) = lower.strip_prefix("acquire::") else {
        return false;
    };
    [
        "http::",
        "https::",
        "check-valid-until",
        "check-date",
        "max-validtime",
    ]
    .iter()
    .any(|prefix| rest.starts_with(prefix))
}

/// The machine's Debian mirror, where it has one.
fn mirror() -> Result<String, LabError> {
    let mut command = Command::new("apt-get");
    command.args([
        "indextargets",
        "--format",
        "$(REPO_URI) $(RELEASE) $(COMPONENT)",
    ]);
    command.arg("Identifier: Packages");
    let text = run(command, "reading apt's sources", &Quiet)?;
    Ok(text
        .lines()
        .find_map(debian_mirror)
        .unwrap_or(DEFAULT_MIRROR)
        .to_string())
}

/// The address in a line of `apt-get indextargets`, if it is of Debian's main archive.
fn debian_mirror(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    let (uri, release, component) = (words.next()?, words.next()?, words.next()?);
    let uri = uri.trim_end_matches('/');
    let suite = [
        "bookworm", "trixie", "forky", "duke", "sid", "stable", "testing", "unstable",
    ]
    .contains(&release);
    // Snapshots of the past and other vendors' archives lack the packages that the lab needs.
    let archive =
        uri.ends_with("/debian") && (uri.starts_with("http://") || uri.starts_with("https://"));
    (suite && archive && component == "main").then_some(uri)
}

/// Runs a command, reports apt's progress lines, and gives the other lines of its output.
fn run(mut command: Command, what: &str, progress: &dyn Progress) -> Result<String, LabError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let package = if program == "dpkg" { "dpkg" } else { "apt" };
    let mut errors = tempfile::tempfile().map_err(LabError::io(Path::new("/tmp")))?;
    let stderr = errors
        .try_clone()
        .map_err(LabError::io(Path::new("/tmp")))?;
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr);
    let mut child = command.spawn().map_err(|source| LabError::Tool {
        program: program.clone(),
        package,
        source,
    })?;
    let mut text = String::new();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            match line.strip_prefix("dlstatus:") {
                Some(status) => {
                    if let Some(percent) = status.split(':').nth(1).and_then(|p| p.parse().ok()) {
                        progress.percent(percent);
                    }
                }
                None => {
                    text.push_str(&line);
                    text.push('\n');
                }
            }
        }
    }
    let status = child.wait().map_err(LabError::io(Path::new(&program)))?;
    if status.success() {
        return Ok(text);
    }
    let mut said = String::new();
    // Errors that cannot be read back are only missing from the message.
    let _ = std::io::Seek::rewind(&mut errors);
    let _ = errors.read_to_string(&mut said);
    let all: Vec<&str> = text.lines().chain(said.lines()).collect();
    let end = all[all.len().saturating_sub(12)..].join("\n");
    Err(LabError::Apt {
        what: what.to_string(),
        hint: if package == "apt" { NETWORK } else { "" },
        output: end,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_is_the_main_archive_of_a_current_suite() {
        for (line, mirror) in [
            (
                "http://deb.debian.org/debian/ bookworm main",
                Some("http://deb.debian.org/debian"),
            ),
            (
                "https://mirror.example/debian trixie main",
                Some("https://mirror.example/debian"),
            ),
            (
                "http://deb.debian.org/debian-security/ bookworm-security main",
                None,
            ),
            ("http://deb.debian.org/debian/ bookworm contrib", None),
            (
                "http://snapshot.debian.org/archive/debian/20250520T000000Z/ bookworm main",
                None,
            ),
            ("http://archive.ubuntu.com/ubuntu/ noble main", None),
            ("file:/srv/debian bookworm main", None),
            ("", None),
        ] {
            assert_eq!(debian_mirror(line), mirror, "{line}");
        }
    }

    #[test]
    fn only_settings_of_the_network_are_taken_over() {
        assert!(is_network_setting(
            "Acquire::http::Proxy \"http://proxy:3128\";"
        ));
        assert!(is_network_setting("Acquire::HTTPS::Verify-Peer \"true\";"));
        assert!(!is_network_setting(
            "Acquire::IndexTargets::deb::DEP-11 \"\";"
        ));
        assert!(!is_network_setting("Acquire::Languages \"\";"));
        assert!(!is_network_setting(""));
    }
}
