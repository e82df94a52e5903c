//! QEMU's control channel: the QEMU Machine Protocol, JSON in lines.

use crate::error::LabError;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// How long QEMU may take to answer.
const ANSWER: Duration = Duration::from_secs(60);

/// The channel to one QEMU.
#[derive(Debug)]
pub(crate) struct Qmp {
    stream: UnixStream,
    /// Bytes that have come and are not a whole line yet.
    partial: Vec<u8>,
}

impl Qmp {
    /// A channel to the QEMU that this command is going to start. [`Qmp::message`] waits `patience` for a
    /// message.
    pub(crate) fn to(command: &mut Command, patience: Duration) -> Result<Qmp, LabError> {
        let pair = || {
            let (ours, theirs) = UnixStream::pair()?;
            ours.set_read_timeout(Some(patience))?;
            Ok((ours, OwnedFd::from(theirs)))
        };
        let (stream, theirs) = pair().map_err(broken)?;
        let number = theirs.as_raw_fd();
        command
            .arg("-chardev")
            .arg(format!("socket,id=qmp,fd={number}"));
        command.args(["-mon", "chardev=qmp,mode=control"]);
        // SAFETY: between fork and exec only fcntl is called, which is async-signal-safe. The closure owns
        // the descriptor, so the descriptor is open under this number for as long as the command exists.
        unsafe {
            command.pre_exec(move || {
                let fd: BorrowedFd<'_> = std::os::fd::AsFd::as_fd(&theirs);
                fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
                Ok(())
            });
        }
        Ok(Qmp {
            stream,
            partial: Vec::new(),
        })
    }

    /// Begins the conversation, once QEMU has been started.
    pub(crate) fn begin(&mut self) -> Result<(), LabError> {
        self.execute("qmp_capabilities", json!({})).map(drop)
    }

    /// Executes a command and gives QEMU's answer to it.
    pub(crate) fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, LabError> {
        let mut line = json!({"execute": command, "arguments": arguments}).to_string();
        line.push('\n');
        self.stream.write_all(line.as_bytes()).map_err(broken)?;
        let deadline = Instant::now() + ANSWER;
        while Instant::now() < deadline {
            let Some(mut answer) = self.message()? else {
                continue;
            };
            if let Some(error) = answer.get("error") {
                return Err(LabError::Snapshot(format!("QEMU, {command}: {error}")));
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
        let seconds = ANSWER.as_secs();
        let problem = format!("QEMU did not answer {command} within {seconds} s");
        Err(LabError::Snapshot(problem))
    }

    /// The next message, if one comes within the channel's patience.
    pub(crate) fn message(&mut self) -> Result<Option<Value>, LabError> {
        loop {
            if let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.partial.drain(..=end).collect();
                let value = serde_json::from_slice(&line);
                return value.map(Some).map_err(|e| broken(e.into()));
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(broken(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.partial.extend_from_slice(&bytes[..count]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(broken(e)),
            }
        }
    }
}

fn broken(source: io::Error) -> LabError {
    LabError::Snapshot(format!("QEMU's control channel: {source}"))
}
