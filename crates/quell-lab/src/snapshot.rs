//! Snapshots of booted guests, to start from: a boot on the virtual clock takes some 20 s, to go on from a
//! snapshot takes one.
//!
//! A guest stops itself where it would begin its command, at an instruction and not at a moment of this
//! machine's clock, so runs that go on from one snapshot are the same to the byte. Texts that differ between
//! runs of the same programs (the command, a scenario) are not in the snapshot: the guest reads them from the
//! firmware's configuration device once it goes on.
//!
//! The folder holds `KEY`, QEMU's migration stream, whole or not there; and `KEY.new`, locked by the process
//! that makes it. The key is a digest of all that a boot depends on. The most recently used snapshots stay,
//! up to [`MOST_BYTES`].

use crate::error::LabError;
use crate::image::Image;
use crate::kernel::Kernel;
use crate::machine::{self, Accelerator, GRACE, Guest, POLL, run_folder};
use crate::options::Boot;
use crate::qemu::Qemu;
use crate::qmp::Qmp;
use crate::report::{Report, Tail};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// To be changed with the way in which a guest is brought to where it stops.
const FORMAT: &str = "quell-lab 2\n";

/// How long QEMU may take to save or to load.
const TRANSFER: Duration = Duration::from_secs(120);

/// The most that the folder may hold. The snapshot of a guest with Quell is 200 to 400 MiB.
const MOST_BYTES: u64 = 3 << 30;

/// A file that has been incomplete for this long is left over from a process that ended.
const LEFT_OVER: Duration = Duration::from_secs(3600);

/// Tells `lab/init` to stop, and to take the run's own texts when it goes on.
const WORD: &str = " quell.snapshot";

/// The device whose register stops the guest.
const STOPS: [&str; 2] = ["-device", "pvpanic-pci"];

/// The snapshot's name in QEMU's folder: a link, so that no path has to be quoted for a shell.
const MEMORY: &str = "memory";

/// Everything that a guest starts from.
pub(crate) struct Source<'a> {
    pub(crate) qemu: &'a Qemu,
    pub(crate) kernel: &'a Kernel,
    pub(crate) image: &'a Image,
    pub(crate) options: &'a Boot,
    pub(crate) interrupt: &'a AtomicBool,
}

impl Source<'_> {
    /// Starts a guest that goes on from a snapshot, which is taken now if there is none. `None` where no
    /// snapshot can be taken or used: the guest is to boot.
    pub(crate) fn start(
        &self,
        dir: &Path,
        folder: &Path,
    ) -> Result<Option<(Guest, Qmp)>, LabError> {
        let snapshot = match self.snapshot(dir) {
            Ok(snapshot) => snapshot,
            Err(e) => return boots(e),
        };
        self.resume(&snapshot, folder).map(Some).or_else(|e| {
            // A damaged snapshot is of no use to the next run either.
            let _ = fs::remove_file(&snapshot);
            boots(e)
        })
    }

    fn snapshot(&self, dir: &Path) -> Result<PathBuf, LabError> {
        fs::create_dir_all(dir).map_err(LabError::io(dir))?;
        let folder = run_folder()?;
        let archive = folder.path().join("image.cpio");
        self.image.write_common(&archive)?;
        let path = dir.join(self.key(&archive)?);
        if touch(&path) {
            return Ok(path);
        }
        let new = path.with_extension("new");
        let file = self.lock(&new)?;
        // Another process may have made it meanwhile.
        if touch(&path) {
            let _ = fs::remove_file(&new);
            return Ok(path);
        }
        if let Err(e) = self.take(folder.path(), &archive, &new) {
            // A process that waits for the lock has this file open, and goes on with it.
            let _ = file.set_len(0);
            return Err(e);
        }
        file.sync_all().map_err(LabError::io(&new))?;
        fs::rename(&new, &path).map_err(LabError::io(&path))?;
        prune(dir, MOST_BYTES);
        Ok(path)
    }

    /// Waits until no other process makes this file.
    fn lock(&self, path: &Path) -> Result<Flock<File>, LabError> {
        loop {
            let file = File::options().append(true).create(true).open(path);
            let file = file.map_err(LabError::io(path))?;
            let mut lock = Err((file, Errno::EAGAIN));
            while let Err((file, Errno::EAGAIN)) = lock {
                if self.interrupt.load(Ordering::Relaxed) {
                    return Err(LabError::Interrupted);
                }
                lock = Flock::lock(file, FlockArg::LockExclusiveNonblock);
                if lock.is_err() {
                    std::thread::sleep(POLL);
                }
            }
            let file = lock.map_err(|(_, errno)| LabError::io(path)(errno.into()))?;
            // The locked file may have another name by now, or none.
            let named = fs::metadata(path).ok().zip(file.metadata().ok());
            if named.is_some_and(|(there, this)| there.ino() == this.ino()) {
                let _ = file.set_modified(SystemTime::now());
                return Ok(file);
            }
        }
    }

    /// Names the boot by all that it depends on.
    fn key(&self, archive: &Path) -> Result<String, LabError> {
        let mut digest = Sha256::new();
        digest.update(FORMAT);
        let program = &self.qemu.program;
        let metadata = fs::metadata(program).map_err(LabError::io(program))?;
        let changed = (metadata.len(), metadata.mtime(), metadata.mtime_nsec());
        digest.update(format!("{} {changed:?}\n", program.display()));
        let mut words = machine::machine(self.options);
        words.extend(machine::channels(Path::new("")));
        words.extend(STOPS.map(str::to_string));
        words.push(machine::command_line(self.options, self.kernel));
        digest.update(words.join("\n"));
        for file in [&self.kernel.image, archive] {
            let mut opened = File::open(file).map_err(LabError::io(file))?;
            io::copy(&mut opened, &mut digest).map_err(LabError::io(file))?;
        }
        let digest = digest.finalize();
        Ok(digest[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect())
    }

    /// Boots the guest and saves it where it stops.
    fn take(&self, folder: &Path, archive: &Path, to: &Path) -> Result<(), LabError> {
        let mut command = self.command(folder, to)?;
        command.args(["-action", "panic=pause"]);
        command.args(["-fw_cfg", "name=opt/quell/given,string=none"]);
        let line = machine::command_line(self.options, self.kernel) + WORD;
        machine::kernel(&mut command, self.kernel, archive, &line);
        let mut qmp = Qmp::to(&mut command, POLL)?;
        let mut guest = Guest::spawn(command, folder)?;
        // The status port says when the guest stops, not the control channel: QEMU's work for that channel
        // could come between the guest's steps while the guest runs.
        let mut status = Tail::new(&folder.join("status"));
        let mut report = Report::default();
        let deadline = Instant::now() + self.options.boot_limit;
        while !report.stops {
            let trouble = guest.trouble(folder)?;
            report.read(&status.new_bytes()?);
            if let Some(trouble) = trouble {
                return Err(trouble);
            }
            if self.interrupt.load(Ordering::Relaxed) {
                return Err(LabError::Interrupted);
            }
            if Instant::now() > deadline {
                return Err(self.options.not_booted(self.kernel, folder, 1));
            }
            std::thread::sleep(POLL);
        }
        if let Err(e) = qmp.begin() {
            return Err(guest.blame(folder, e)?);
        }
        self.until(|| {
            let state = qmp.execute("query-status", json!({}))?;
            Ok(state["status"] != "running")
        })?;
        // Without a limit of its speed: the guest is stopped.
        qmp.execute(
            "migrate-set-parameters",
            json!({"max-bandwidth": 1_u64 << 40}),
        )?;
        // QEMU does not check that the whole stream could be written.
        let uri = format!("exec:cat >{MEMORY} && : >whole");
        qmp.execute("migrate", json!({"uri": uri}))?;
        self.until(|| {
            let state = qmp.execute("query-migrate", json!({}))?;
            match state["status"].as_str() {
                Some("completed") => Ok(true),
                Some("failed" | "cancelled") => {
                    Err(LabError::Snapshot(format!("QEMU cannot save it: {state}")))
                }
                _ => Ok(false),
            }
        })?;
        qmp.execute("quit", json!({}))?;
        guest.wait(GRACE)?;
        if !folder.join("whole").exists() {
            let problem = format!("{} could not be written", to.display());
            return Err(LabError::Snapshot(problem));
        }
        Ok(())
    }

    /// Asks again and again, until the answer is yes.
    fn until(&self, mut so: impl FnMut() -> Result<bool, LabError>) -> Result<(), LabError> {
        let deadline = Instant::now() + TRANSFER;
        while !so()? {
            if self.interrupt.load(Ordering::Relaxed) {
                return Err(LabError::Interrupted);
            }
            if Instant::now() > deadline {
                let seconds = TRANSFER.as_secs();
                return Err(LabError::Snapshot(format!("not done within {seconds} s")));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Starts a guest that goes on from a snapshot, and gives the channel that controls it.
    pub(crate) fn resume(&self, snapshot: &Path, folder: &Path) -> Result<(Guest, Qmp), LabError> {
        let given = folder.join("given");
        fs::write(&given, self.image.given()?).map_err(LabError::io(&given))?;
        let mut command = self.command(folder, snapshot)?;
        command.args(["-fw_cfg", "name=opt/quell/given,file=given"]);
        // The guest waits for `cont`.
        command.args(["-S", "-incoming", "defer"]);
        let mut qmp = Qmp::to(&mut command, POLL)?;
        let mut guest = Guest::spawn(command, folder)?;
        match qmp.begin().and_then(|()| self.load(&mut qmp)) {
            Ok(()) => Ok((guest, qmp)),
            Err(e) => Err(guest.blame(folder, e)?),
        }
    }

    fn load(&self, qmp: &mut Qmp) -> Result<(), LabError> {
        // Else QEMU announces the guest to networks for a second or two by this machine's clock, and ends the
        // CPUs' turns early where an announcement is near.
        qmp.execute("migrate-set-parameters", json!({"announce-rounds": 0}))?;
        let uri = format!("exec:cat <{MEMORY}");
        qmp.execute("migrate-incoming", json!({"uri": uri}))?;
        self.until(|| {
            let state = qmp.execute("query-status", json!({}))?;
            Ok(state["status"] != "inmigrate")
        })?;
        qmp.execute("cont", json!({})).map(drop)
    }

    /// QEMU with the machine of a guest that boots or goes on, and with a snapshot's file.
    fn command(&self, folder: &Path, snapshot: &Path) -> Result<Command, LabError> {
        let link = folder.join(MEMORY);
        symlink(snapshot, &link).map_err(LabError::io(&link))?;
        let mut command = machine::command(self.qemu, Accelerator::Counting);
        command.current_dir(folder);
        command.args(machine::machine(self.options));
        command.args(machine::channels(folder)).args(STOPS);
        Ok(command)
    }
}

/// Marks a snapshot as used now; `false` where there is none.
fn touch(path: &Path) -> bool {
    let file = File::options().append(true).open(path);
    file.and_then(|file| file.set_modified(SystemTime::now()))
        .is_ok()
}

/// Lets the guest boot after a failure to go on from a snapshot, unless a boot would fail for the same
/// reason.
fn boots<T>(e: LabError) -> Result<Option<T>, LabError> {
    match e {
        LabError::Interrupted | LabError::NotBooted { .. } | LabError::Panicked { .. } => Err(e),
        e => {
            tracing::warn!("the guest boots instead of going on from a snapshot: {e}");
            Ok(None)
        }
    }
}

/// Removes the least recently used snapshots, until the rest is small enough. A file that cannot be removed
/// stays.
fn prune(dir: &Path, most: u64) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    let mut found: Vec<(SystemTime, u64, PathBuf)> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let metadata = entry.metadata().ok()?;
            Some((metadata.modified().ok()?, metadata.len(), entry.path()))
        })
        .collect();
    found.sort();
    let mut kept = 0;
    let newest = found.iter().rev().find(|it| it.2.extension().is_none());
    let newest = newest.map(|it| it.2.clone());
    for (used, bytes, path) in found.into_iter().rev() {
        if path.extension().is_some() {
            let age = used.elapsed().unwrap_or_default();
            let file = File::open(&path).ok().filter(|_| age > LEFT_OVER);
            let free = |file| Flock::lock(file, FlockArg::LockExclusiveNonblock).is_ok();
            if file.is_some_and(free) {
                let _ = fs::remove_file(path);
            }
            continue;
        }
        kept += bytes;
        if kept > most && newest.as_ref() != Some(&path) {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_were_used_last_stay() {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        for (name, age_s) in [
            ("old", 300),
            ("used", 20),
            ("newest", 10),
            ("a.new", 5),
            ("b.new", 7200),
        ] {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_len(100).unwrap();
            file.set_modified(now - Duration::from_secs(age_s)).unwrap();
        }
        prune(folder.path(), 250);
        let mut left: Vec<String> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["a.new", "newest", "used"]);
    }
}
