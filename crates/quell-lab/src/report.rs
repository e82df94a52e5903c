//! A guest's output: lines on its status port, files, its console.

use crate::error::LabError;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

/// The words of a kernel that gives up.
pub(crate) const PANIC: &str = "Kernel panic";

/// A file that another process appends to.
pub(crate) struct Tail {
    path: PathBuf,
    read: u64,
}

impl Tail {
    pub(crate) fn new(path: &Path) -> Tail {
        Tail {
            path: path.to_path_buf(),
            read: 0,
        }
    }

    pub(crate) fn new_bytes(&mut self) -> Result<Vec<u8>, LabError> {
        let mut bytes = Vec::new();
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            // QEMU has not made the file yet.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(bytes),
            Err(e) => return Err(LabError::io(&self.path)(e)),
        };
        let position = io::SeekFrom::Start(self.read);
        file.seek(position).map_err(LabError::io(&self.path))?;
        file.read_to_end(&mut bytes)
            .map_err(LabError::io(&self.path))?;
        self.read += bytes.len() as u64;
        Ok(bytes)
    }
}

/// What the guest has reported so far.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Report {
    /// The guest is about to stop, to be saved.
    pub(crate) stops: bool,
    pub(crate) ready_s: Option<f64>,
    pub(crate) exit_code: i32,
    pub(crate) end_s: f64,
    /// The size and checksum of the files that it wrote.
    files: Option<(u64, String)>,
    pub(crate) done: bool,
    /// The beginning of a line that is not whole yet.
    partial: String,
}

impl Report {
    pub(crate) fn read(&mut self, bytes: &[u8]) {
        self.partial.push_str(&String::from_utf8_lossy(bytes));
        while let Some(end) = self.partial.find('\n') {
            let line: String = self.partial.drain(..=end).collect();
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["ready", uptime] => self.ready_s = uptime.parse().ok(),
                ["exit", code, uptime] => {
                    self.exit_code = code.parse().unwrap_or(1);
                    self.end_s = uptime.parse().unwrap_or_default();
                }
                ["files", size, sum] => {
                    self.files = size.parse().ok().map(|size| (size, sum.to_string()));
                }
                ["stops"] => self.stops = true,
                ["done"] => self.done = true,
                _ => {}
            }
        }
    }

    /// Checks the archive of the guest's files and unpacks it into a folder.
    pub(crate) fn take_files(&self, archive: &Path, out: &Path) -> Result<(), LabError> {
        let Some((size, sum)) = &self.files else {
            return Ok(());
        };
        let bytes = fs::read(archive).map_err(LabError::io(archive))?;
        if bytes.len() as u64 != *size {
            let damage = format!("{} bytes instead of {size}", bytes.len());
            return Err(LabError::Damaged(damage));
        }
        let digest = Sha256::digest(&bytes);
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        if hex != *sum {
            return Err(LabError::Damaged(format!(
                "checksum {hex} instead of {sum}"
            )));
        }
        fs::create_dir_all(out).map_err(LabError::io(out))?;
        let mut archive = tar::Archive::new(&bytes[..]);
        // The guest's clock does not show this machine's time.
        archive.set_preserve_mtime(false);
        archive.set_preserve_permissions(false);
        archive.unpack(out).map_err(LabError::io(out))
    }
}

/// The last lines of the guest's console, without control characters; those around the panic, if there was
/// one.
pub(crate) fn console_tail(console: &Path) -> String {
    let bytes = fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let clean: String = text
        .chars()
        .filter(|c| *c == '\n' || !c.is_control())
        .collect();
    let lines: Vec<&str> = clean.lines().filter(|line| !line.is_empty()).collect();
    let end = lines.len().saturating_sub(25);
    match lines.iter().position(|line| line.contains(PANIC)) {
        Some(panic) => {
            let start = panic.saturating_sub(10);
            lines[start..lines.len().min(start + 25)].join("\n")
        }
        None => lines[end..].join("\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_come_in_any_pieces() {
        let text = "ready 2.31\nexit 7 12.50\nfiles 5 abc\ndone\n";
        for cut in 0..text.len() {
            let mut report = Report::default();
            report.read(&text.as_bytes()[..cut]);
            assert!(!report.done);
            report.read(&text.as_bytes()[cut..]);
            assert!(report.done);
            assert_eq!(
                (report.ready_s, report.exit_code, report.end_s),
                (Some(2.31), 7, 12.5)
            );
            assert_eq!(report.files, Some((5, "abc".into())));
        }
    }

    #[test]
    fn files_are_taken_only_whole() {
        let folder = tempfile::tempdir().unwrap();
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(2);
        header.set_mode(0o644);
        builder.append_data(&mut header, "a/b", &b"hi"[..]).unwrap();
        let bytes = builder.into_inner().unwrap();
        let archive = folder.path().join("files");
        fs::write(&archive, &bytes).unwrap();
        let sum: String = Sha256::digest(&bytes)
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        let out = folder.path().join("out");
        let take = |size: u64, sum: &str| {
            let report = Report {
                files: Some((size, sum.into())),
                ..Report::default()
            };
            report.take_files(&archive, &out)
        };
        let size = bytes.len() as u64;
        assert!(matches!(take(size + 1, &sum), Err(LabError::Damaged(_))));
        assert!(matches!(
            take(size, &sum.replace('0', "1")),
            Err(LabError::Damaged(_))
        ));
        assert!(!out.exists());
        take(size, &sum).unwrap();
        assert_eq!(fs::read(out.join("a/b")).unwrap(), b"hi");
    }

    #[test]
    fn a_console_is_shown_without_control_codes() {
        let folder = tempfile::tempdir().unwrap();
        let console = folder.path().join("console");
        fs::write(&console, "\x1bc\x1b[?7lBooting\r\n\r\nKernel panic\r\n").unwrap();
        let tail = console_tail(&console);
        assert!(tail.ends_with("Booting\nKernel panic"), "{tail:?}");
        fs::write(
            &console,
            format!("before\nKernel panic: x\n{}", "trace\n".repeat(100)),
        )
        .unwrap();
        let tail = console_tail(&console);
        assert!(
            tail.starts_with("before\nKernel panic: x\ntrace"),
            "{tail:?}"
        );
    }
}
