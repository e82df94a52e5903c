//! The lab's cache of fetched packages, outside the source tree.
//!
//! `$QUELL_LAB_CACHE`, else `$XDG_CACHE_HOME/quell/lab`, else `~/.cache/quell/lab`:
//!
//! ```text
//! lock, peers.lock        held while packages are fetched, while published schedulers are built
//! apt/SUITE/              apt's own files for one suite
//! store/NAME_VERSION/     unpacked packages, complete or not there at all
//! NAME -> store/...       the version in use: kernel-6.12, qemu, busybox, scx_rusty
//! peers-build/            what an unfinished build of a published scheduler goes on from
//! snapshots/              booted guests, to start from
//! kvm                     whether guests run under KVM here
//! ```
//!
//! A download is unpacked beside the store and renamed into it, so an interrupted download leaves nothing
//! that could be taken for whole.

use crate::apt::Archive;
use crate::error::LabError;
use crate::kernel::{Kernel, KernelChoice};
use crate::progress::Progress;
use crate::qemu::Qemu;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::{env, process};

/// The suite that QEMU and busybox come from.
const TOOLS_SUITE: &str = "trixie";

/// What every system has: what Debian's own smallest installation would have, without what installs.
const SYSTEM_PACKAGES: [&str; 17] = [
    "base-files",
    "bash",
    "coreutils",
    "dbus",
    "findutils",
    "gawk",
    "grep",
    "iproute2",
    "mount",
    "procps",
    "sed",
    "systemd",
    "systemd-sysv",
    "tar",
    "udev",
    "util-linux",
    "libelf1t64",
];

/// The lock of a process that fetches packages.
const FETCHING: &str = "lock";

/// The lab's cache and its content.
#[derive(Debug, Clone)]
pub struct Lab {
    dir: PathBuf,
}

impl Lab {
    /// The user's lab; nothing is fetched yet.
    ///
    /// # Errors
    /// [`LabError::Architecture`] where the machine is not x86-64; [`LabError::Io`] where the cache's folder
    /// cannot be made.
    pub fn open() -> Result<Lab, LabError> {
        let arch = env::consts::ARCH;
        if arch != "x86_64" {
            return Err(LabError::Architecture(arch.to_string()));
        }
        let set = |name| env::var_os(name).filter(|value| !value.is_empty());
        let dir = match (set("QUELL_LAB_CACHE"), set("XDG_CACHE_HOME"), set("HOME")) {
            (Some(dir), _, _) => PathBuf::from(dir),
            (None, Some(dir), _) => Path::new(&dir).join("quell/lab"),
            (None, None, Some(home)) => Path::new(&home).join(".cache/quell/lab"),
            (None, None, None) => PathBuf::from("/var/cache/quell/lab"),
        };
        Lab::at(&dir)
    }

    /// A lab in a folder of its own.
    pub(crate) fn at(dir: &Path) -> Result<Lab, LabError> {
        fs::create_dir_all(dir).map_err(LabError::io(dir))?;
        let dir = dir.canonicalize().map_err(LabError::io(dir))?;
        Ok(Lab { dir })
    }

    /// The cache's folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The folder of snapshots of booted guests, to start from.
    pub fn snapshots(&self) -> PathBuf {
        self.dir.join("snapshots")
    }

    /// A kernel; fetched where it is not in the cache.
    ///
    /// # Errors
    /// As [`Lab::cached_kernel`] and [`Lab::fetch_kernel`].
    pub fn kernel(
        &self,
        choice: &KernelChoice,
        progress: &dyn Progress,
    ) -> Result<Kernel, LabError> {
        match self.cached_kernel(choice)? {
            Some(kernel) => Ok(kernel),
            None => self.fetch_kernel(choice, progress),
        }
    }

    /// A kernel, if it is in the cache or a file; nothing is fetched.
    ///
    /// # Errors
    /// [`LabError::NotAKernel`] where the user's file is no kernel; [`LabError::Layout`] where the cache
    /// lacks one of the kernel's files; [`LabError::Io`] where a file cannot be read.
    pub fn cached_kernel(&self, choice: &KernelChoice) -> Result<Option<Kernel>, LabError> {
        match choice {
            KernelChoice::File(path) => Kernel::from_file(path).map(Some),
            KernelChoice::Debian(named) => match self.current(&kernel_item(named.0.name)) {
                Some(root) => Kernel::from_root(&root, named.0.name).map(Some),
                None => Ok(None),
            },
        }
    }

    /// Fetches a kernel's newest version, unless the cache has that version.
    ///
    /// # Errors
    /// [`LabError::NoKeyring`], [`LabError::Tool`] or [`LabError::Apt`] where it cannot be fetched;
    /// [`LabError::Layout`] where its packages lack a file; [`LabError::Io`] where the cache cannot be
    /// written. For a file as [`Lab::cached_kernel`].
    pub fn fetch_kernel(
        &self,
        choice: &KernelChoice,
        progress: &dyn Progress,
    ) -> Result<Kernel, LabError> {
        let KernelChoice::Debian(named) = choice else {
            return self.kernel(choice, progress);
        };
        let known = named.0;
        let _lock = self.lock(FETCHING)?;
        let archive = Archive::open(&self.dir, known.suite)?;
        archive.update(progress)?;
        let package = "linux-image-cloud-amd64";
        let version = archive.version(package)?;
        let fill = |root: &Path| {
            let images = archive.depends(package, |name| name.starts_with("linux-image-"))?;
            let mut packages = images.clone();
            for image in &images {
                // Newer releases split the kernel over several packages of one version.
                let parts = |name: &str| {
                    let stem = image.trim_start_matches("linux-image");
                    name.starts_with("linux-") && name.ends_with(stem)
                };
                packages.extend(archive.depends(image, parts)?);
            }
            archive.unpack(&packages, root, progress)?;
            Kernel::from_root(root, package).map(drop)
        };
        let root = self.install(&kernel_item(known.name), &version, fill)?;
        Kernel::from_root(&root, package)
    }

    /// QEMU: `$QUELL_LAB_QEMU`, else the machine's own where it is new enough, else the lab's, fetched where
    /// it is not in the cache.
    ///
    /// # Errors
    /// As [`Lab::cached_qemu`] and [`Lab::fetch_qemu`].
    pub fn qemu(&self, progress: &dyn Progress) -> Result<Qemu, LabError> {
        match self.cached_qemu()? {
            Some(qemu) => Ok(qemu),
            None => self.fetch_qemu(progress),
        }
    }

    /// QEMU, if a suitable one is on the machine or in the cache; nothing is fetched.
    ///
    /// # Errors
    /// [`LabError::QemuTooOld`], [`LabError::Tool`], [`LabError::Program`] or [`LabError::Io`] where the QEMU
    /// that `$QUELL_LAB_QEMU` names, or that in the cache, is too old, cannot be started, or prints no
    /// version.
    pub fn cached_qemu(&self) -> Result<Option<Qemu>, LabError> {
        if let Some(own) = Qemu::of_machine()? {
            return Ok(Some(own));
        }
        let root = self.current("qemu");
        root.map(|root| Qemu::in_root(&root)).transpose()
    }

    /// Fetches the newest QEMU, unless the machine has a suitable one or the cache has that version.
    ///
    /// # Errors
    /// Where QEMU cannot be fetched, as [`Lab::fetch_kernel`]; where it cannot be used, as
    /// [`Lab::cached_qemu`].
    pub fn fetch_qemu(&self, progress: &dyn Progress) -> Result<Qemu, LabError> {
        if let Some(own) = Qemu::of_machine()? {
            return Ok(own);
        }
        let _lock = self.lock(FETCHING)?;
        let archive = Archive::open(&self.dir, TOOLS_SUITE)?;
        archive.update(progress)?;
        let version = archive.version("qemu-system-x86")?;
        // With its own C library, so that QEMU runs whichever C library the machine has.
        let fill = |root: &Path| {
            archive.unpack_closure(&["qemu-system-x86"], root, progress)?;
            Qemu::in_root(root).map(drop)
        };
        let root = self.install("qemu", &version, fill)?;
        Qemu::in_root(&root)
    }

    /// A Debian system with systemd and these packages, unpacked; fetched where it is not in the cache. The
    /// packages' own scripts do not run, so nothing here needs root, and nothing of this machine is in it.
    ///
    /// # Errors
    /// Where it cannot be fetched, as [`Lab::fetch_kernel`].
    pub fn system(
        &self,
        packages: &[String],
        progress: &dyn Progress,
    ) -> Result<PathBuf, LabError> {
        let item = system_item(packages);
        if let Some(root) = self.current(&item) {
            return Ok(root);
        }
        let _lock = self.lock(FETCHING)?;
        let archive = Archive::open(&self.dir, TOOLS_SUITE)?;
        archive.update(progress)?;
        let version = archive.version("systemd")?;
        let fill = |root: &Path| {
            let more = packages.iter().map(String::as_str);
            let all: Vec<&str> = SYSTEM_PACKAGES.into_iter().chain(more).collect();
            archive.unpack_closure(&all, root, progress)?;
            // Half of what is unpacked is to be read by people; guests have it in memory.
            for part in ["doc", "info", "lintian", "locale", "man"] {
                let part = root.join("usr/share").join(part);
                match fs::remove_dir_all(&part) {
                    Err(e) if e.kind() != io::ErrorKind::NotFound => {
                        return Err(LabError::io(&part)(e));
                    }
                    _ => {}
                }
            }
            Ok(())
        };
        self.install(&item, &version, fill)
    }

    /// Whether a system with these packages is in the cache.
    pub fn has_system(&self, packages: &[String]) -> bool {
        self.current(&system_item(packages)).is_some()
    }

    /// The static busybox that is the guest's userland; fetched where it is not in the cache.
    ///
    /// # Errors
    /// Where it cannot be fetched, as [`Lab::fetch_kernel`].
    pub fn busybox(&self, progress: &dyn Progress) -> Result<PathBuf, LabError> {
        const PROGRAM: &str = "usr/bin/busybox";
        if let Some(root) = self.current("busybox") {
            return Ok(root.join(PROGRAM));
        }
        let _lock = self.lock(FETCHING)?;
        let archive = Archive::open(&self.dir, TOOLS_SUITE)?;
        archive.update(progress)?;
        let package = "busybox-static".to_string();
        let version = archive.version(&package)?;
        let fill = |root: &Path| {
            archive.unpack(std::slice::from_ref(&package), root, progress)?;
            if root.join(PROGRAM).is_file() {
                return Ok(());
            }
            Err(LabError::Layout {
                package: package.clone(),
                what: "usr/bin/busybox",
            })
        };
        Ok(self.install("busybox", &version, fill)?.join(PROGRAM))
    }

    /// Whether guests really run under KVM here; tried once for each boot of this machine.
    ///
    /// # Errors
    /// [`LabError::Io`] where QEMU could not be started, or a file of the trial not be made. A KVM that does
    /// not work is no error.
    pub fn kvm_runs(&self, qemu: &Qemu, kernel: &Kernel) -> Result<bool, LabError> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let tried = format!("{} {} {}", boot.trim(), qemu.version, kernel.release);
        let file = self.dir.join("kvm");
        let known = fs::read_to_string(&file).unwrap_or_default();
        match known.strip_prefix(&tried).map(str::trim) {
            Some("yes") => return Ok(true),
            Some("no") => return Ok(false),
            _ => {}
        }
        let runs = crate::machine::kvm_runs(qemu, kernel)?;
        let answer = if runs { "yes" } else { "no" };
        // An answer that cannot be written is found again the next time.
        let _ = fs::write(&file, format!("{tried} {answer}\n"));
        Ok(runs)
    }

    /// Whether a guest with this kernel can be booted without fetching anything.
    ///
    /// # Errors
    /// As [`Lab::cached_kernel`] and [`Lab::cached_qemu`].
    pub fn is_ready(&self, choice: &KernelChoice) -> Result<bool, LabError> {
        Ok(self.cached_kernel(choice)?.is_some()
            && self.current("busybox").is_some()
            && self.cached_qemu()?.is_some())
    }

    /// The folder of the version of an item that is in use.
    pub(crate) fn current(&self, item: &str) -> Option<PathBuf> {
        self.dir.join(item).canonicalize().ok()
    }

    /// Waits until no other process holds this lock.
    pub(crate) fn lock(&self, file: &str) -> Result<Flock<File>, LabError> {
        let path = self.dir.join(file);
        let file = File::create(&path).map_err(LabError::io(&path))?;
        Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, errno)| LabError::io(&path)(io::Error::from(errno)))
    }

    /// Puts a version of an item into use; `fill` fills its folder unless the cache has that version.
    pub(crate) fn install(
        &self,
        item: &str,
        version: &str,
        fill: impl FnOnce(&Path) -> Result<(), LabError>,
    ) -> Result<PathBuf, LabError> {
        let store = self.dir.join("store");
        fs::create_dir_all(&store).map_err(LabError::io(&store))?;
        let name = format!("{item}_{}", version.replace(['/', ':'], "_"));
        let target = store.join(&name);
        let before = self.current(item);
        if !target.is_dir() {
            let staging = tempfile::Builder::new()
                .prefix(".staging-")
                .tempdir_in(&self.dir)
                .map_err(LabError::io(&self.dir))?;
            let root = staging.path().join("root");
            fill(&root)?;
            fs::rename(&root, &target).map_err(LabError::io(&target))?;
        }
        let link = self.dir.join(format!(".{item}-{}", process::id()));
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(Path::new("store").join(&name), &link)
            .map_err(LabError::io(&link))?;
        let current = self.dir.join(item);
        fs::rename(&link, &current).map_err(LabError::io(&current))?;
        if let Some(before) = before.filter(|before| *before != target) {
            // Guests that run from the old version keep their open files. A failure costs only disk space.
            let _ = fs::remove_dir_all(before);
        }
        Ok(target)
    }
}

/// The name of a system with these packages in the cache.
fn system_item(packages: &[String]) -> String {
    let mut packages: Vec<&str> = packages.iter().map(String::as_str).collect();
    packages.sort_unstable();
    packages.dedup();
    match packages.is_empty() {
        true => "system".to_string(),
        false => format!("system-{}", packages.join("-")),
    }
}

fn kernel_item(name: &str) -> String {
    format!("kernel-{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_whole_or_not_there_and_replaces_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let lab = Lab {
            dir: folder.path().canonicalize().unwrap(),
        };
        let fail = lab.install("tool", "1", |root| {
            fs::create_dir_all(root).unwrap();
            Err(LabError::Interrupted)
        });
        assert!(matches!(fail, Err(LabError::Interrupted)));
        assert_eq!(lab.current("tool"), None);
        let fill = |text: &'static str| {
            move |root: &Path| {
                fs::create_dir_all(root).unwrap();
                fs::write(root.join("file"), text).unwrap();
                Ok(())
            }
        };
        let first = lab.install("tool", "1:1/a", fill("one")).unwrap();
        assert_eq!(lab.current("tool"), Some(first.clone()));
        // The same version is not fetched again.
        lab.install("tool", "1:1/a", |_| panic!("fetched twice"))
            .unwrap();
        let second = lab.install("tool", "2", fill("two")).unwrap();
        assert_eq!(
            fs::read_to_string(lab.dir.join("tool/file")).unwrap(),
            "two"
        );
        assert!(second.is_dir() && !first.exists());
        let leftovers = fs::read_dir(&lab.dir).unwrap();
        assert_eq!(leftovers.count(), 2, "only the store and the link");
    }
}
