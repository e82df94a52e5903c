//! Guests that have booted, kept to start from: a boot on the virtual clock takes some 20 s, going on from a snapshot one.
//!
//! A guest stops itself where it would begin its command, at an instruction and not at a moment of this machine's: so
//! a run that goes on from a snapshot is the same to the byte, whoever took it. What differs from run to run of
//! the same programs (the command, a scenario's text) is not in the snapshot: it comes by the firmware's configuration device, which
//! the guest reads once it goes on.
//!
//! The folder holds `KEY`, QEMU's migration stream, whole or not there; and `KEY.new`, locked by who makes it. The
//! key is a digest of all that a boot depends on. The most recently used ones stay, up to [`MOST_BYTES`].

use crate::boot::{Boot, POLL};
use crate::error::LabError;
use crate::image::Image;
use crate::kernel::Kernel;
use crate::machine::{self, Accelerator, GRACE, Guest, run_folder};
use crate::qemu::Qemu;
use crate::qmp::Qmp;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{AccessFlags, access};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// How much the folder may hold. A guest with Quell is 200 to 400 MiB.
const MOST_BYTES: u64 = 3 << 30;

/// A file that nobody has made whole for so long is left over.
const LEFT_OVER: Duration = Duration::from_secs(3600);

/// Tells `lab/init` to stop and to take the rest when it goes on.
const WORD: &str = " quell.snapshot";

/// The device whose register stops the guest.
const STOPS: [&str; 2] = ["-device", "pvpanic-pci"];

/// QEMU's name for the snapshot, from its folder: a link, so that no path has to be quoted for a shell.
const MEMORY: &str = "memory";

/// All that a guest starts from.
pub(crate) struct Source<'a> {
    pub(crate) qemu: &'a Qemu,
    pub(crate) kernel: &'a Kernel,
    pub(crate) image: &'a Image,
    pub(crate) options: &'a Boot,
    pub(crate) interrupt: &'a AtomicBool,
}

impl Source<'_> {
    /// The snapshot to go on from, taken now if there is none; `None` where none can be kept.
    pub(crate) fn snapshot(&self, dir: &Path) -> Result<Option<PathBuf>, LabError> {
        if let Err(e) = fs::create_dir_all(dir)
            .and_then(|()| access(dir, AccessFlags::W_OK).map_err(io::Error::from))
        {
            tracing::warn!(
                "{}: {e}: guests boot each time instead of going on from a snapshot",
                dir.display()
            );
            return Ok(None);
        }
        let folder = run_folder()?;
        let archive = folder.path().join("image.cpio");
        self.image.write_common(&archive)?;
        let path = dir.join(self.key(&archive)?);
        if touch(&path) {
            return Ok(Some(path));
        }
        let new = path.with_extension("new");
        let file = lock(&new)?;
        // Somebody else may have been about it.
        if touch(&path) {
            let _ = fs::remove_file(&new);
            return Ok(Some(path));
        }
        if let Err(e) = self.take(folder.path(), &archive, &new) {
            // Who waits for the lock has this file, and goes on with it.
            let _ = file.set_len(0);
            return Err(e);
        }
        fs::rename(&new, &path).map_err(LabError::io(&path))?;
        prune(dir, MOST_BYTES);
        Ok(Some(path))
    }

    /// Names the boot by all that it depends on.
    fn key(&self, archive: &Path) -> Result<String, LabError> {
        let mut digest = Sha256::new();
        digest.update(format!(
            "{} {}\n",
            self.qemu.program.display(),
            self.qemu.version
        ));
        let mut words = machine::machine(self.options);
        words.extend(machine::channels(Path::new("")));
        words.extend(STOPS.map(str::to_string));
        words.push(machine::command_line(self.options));
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
        let line = machine::command_line(self.options) + WORD;
        machine::kernel(&mut command, self.kernel, archive, &line);
        let (mut guest, mut qmp) = start(command, folder)?;
        qmp.execute("cont", json!({}))?;
        let deadline = Instant::now() + self.options.boot_limit;
        loop {
            match qmp.message() {
                Ok(Some(event)) if event["event"] == "STOP" => break,
                Ok(_) => {}
                Err(e) => {
                    guest.wait(GRACE)?;
                    return Err(match guest.trouble(folder)? {
                        Some(LabError::Ended { console, .. }) => LabError::Snapshot(format!(
                            "it ended before it stopped to be saved; the end of its console:\n{console}\n"
                        )),
                        other => other.unwrap_or(e),
                    });
                }
            }
            if self.interrupt.load(Ordering::Relaxed) {
                return Err(LabError::Interrupted);
            }
            if Instant::now() > deadline {
                return Err(self.options.not_booted(self.kernel, folder));
            }
        }
        // As fast as it goes: nothing else is to be done meanwhile.
        qmp.execute(
            "migrate-set-parameters",
            json!({"max-bandwidth": 1_u64 << 40}),
        )?;
        qmp.execute("migrate", json!({"uri": format!("exec:cat >{MEMORY}")}))?;
        loop {
            let state = qmp.execute("query-migrate", json!({}))?;
            match state["status"].as_str() {
                Some("completed") => break,
                Some("failed" | "cancelled") => {
                    return Err(LabError::Snapshot(format!("QEMU cannot save it: {state}")));
                }
                _ => std::thread::sleep(POLL),
            }
        }
        qmp.execute("quit", json!({}))?;
        guest.wait(GRACE)
    }

    /// Starts a guest that goes on from a snapshot. It stays in control of the channel until that is dropped.
    pub(crate) fn resume(&self, snapshot: &Path, folder: &Path) -> Result<(Guest, Qmp), LabError> {
        let given = folder.join("given");
        fs::write(&given, self.image.given()?).map_err(LabError::io(&given))?;
        let mut command = self.command(folder, snapshot)?;
        command.args(["-fw_cfg", "name=opt/quell/given,file=given"]);
        command.args(["-incoming", &format!("exec:cat <{MEMORY}")]);
        let (mut guest, mut qmp) = start(command, folder)?;
        let mut go_on = || loop {
            let state = qmp.execute("query-status", json!({}))?;
            if state["status"] != "inmigrate" {
                return qmp.execute("cont", json!({}));
            }
            std::thread::sleep(POLL);
        };
        if let Err(e) = go_on() {
            // One that is damaged is of no use to the next run either.
            let _ = fs::remove_file(snapshot);
            guest.wait(GRACE)?;
            return Err(guest.trouble(folder)?.unwrap_or(e));
        }
        Ok((guest, qmp))
    }

    /// QEMU with the machine that boots and goes on alike, and a snapshot's file.
    fn command(&self, folder: &Path, snapshot: &Path) -> Result<Command, LabError> {
        let link = folder.join(MEMORY);
        symlink(snapshot, &link).map_err(LabError::io(&link))?;
        let mut command = machine::command(self.qemu, Accelerator::Counting);
        command.current_dir(folder);
        command.args(machine::machine(self.options));
        command.args(machine::channels(folder)).args(STOPS);
        // Not before it is told to.
        command.arg("-S");
        Ok(command)
    }
}

fn start(mut command: Command, folder: &Path) -> Result<(Guest, Qmp), LabError> {
    let mut qmp = Qmp::to(&mut command, POLL)?;
    let mut guest = Guest::spawn(command, folder)?;
    match qmp.begin() {
        Ok(()) => Ok((guest, qmp)),
        Err(e) => {
            guest.wait(GRACE)?;
            Err(guest.trouble(folder)?.unwrap_or(e))
        }
    }
}

/// Notes that a snapshot is in use; `false` where there is none.
fn touch(path: &Path) -> bool {
    let file = File::options().append(true).open(path);
    file.and_then(|file| file.set_modified(SystemTime::now()))
        .is_ok()
}

/// Waits until nobody else makes this file.
fn lock(path: &Path) -> Result<Flock<File>, LabError> {
    let file = File::options().append(true).create(true).open(path);
    let file = file.map_err(LabError::io(path))?;
    Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, errno)| LabError::io(path)(io::Error::from(errno)))
}

/// Removes what was used longest ago, until the rest is small enough. What cannot be removed stays.
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
    for (used, bytes, path) in found.into_iter().rev() {
        if path.extension().is_some() {
            let age = used.elapsed().unwrap_or_default();
            if age > LEFT_OVER {
                let _ = fs::remove_file(path);
            }
            continue;
        }
        kept += bytes;
        if kept > most {
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
