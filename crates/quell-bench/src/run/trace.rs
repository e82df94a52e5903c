//! Traces of measured runs, a file for each side and pair.

use super::sink::Sink;
use anyhow::Context;
use quell_trace::{Event, System, Writer};
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// A trace that grows in a temporary file and takes its name when it is complete.
pub(crate) struct TraceFile {
    writer: Writer<NamedTempFile>,
    place: PathBuf,
    /// Why events can no longer be written, if so.
    failed: Option<io::Error>,
}

impl TraceFile {
    /// Begins the trace of a side in a pair; in the file's name pairs count from 1.
    ///
    /// # Errors
    /// Where the file cannot be made in the folder, or the trace's head cannot be written.
    pub(crate) fn create(
        folder: &Path,
        side: &str,
        pair: u32,
        system: &System,
    ) -> anyhow::Result<TraceFile> {
        // A side of the user's may have any name.
        let fits = |c: char| c.is_alphanumeric() || "-_.".contains(c);
        let side: String = side
            .chars()
            .map(|c| if fits(c) { c } else { '_' })
            .collect();
        let place = folder.join(format!("{side}-{}.perfetto-trace", pair + 1));
        let file = tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o666)) // less the umask, as any file
            .tempfile_in(folder)
            .with_context(|| folder.display().to_string())?;
        Ok(TraceFile {
            writer: Writer::new(file, system)?,
            place,
            failed: None,
        })
    }

    /// Ends the trace: from then on the file has its name.
    ///
    /// # Errors
    /// The first error of writing the trace, or of giving the file its name.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        let place = || self.place.display().to_string();
        if let Some(error) = self.failed {
            return Err(error).with_context(place);
        }
        let file = self.writer.finish().with_context(place)?;
        file.persist(&self.place).with_context(place)?;
        Ok(())
    }
}

impl Sink for TraceFile {
    /// An error of writing is kept until [`TraceFile::finish`].
    fn add(&mut self, event: &Event) {
        if self.failed.is_none() {
            self.failed = self.writer.write(event).err();
        }
    }
}
