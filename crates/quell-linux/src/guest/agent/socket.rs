//! A guest agent at a socket of QEMU's: one JSON object per line.
//!
//! Problem: the program that answers is in the guest's hands.
//!
//! Approach: each question has a deadline, an answer a greatest size. Where an answer does not come as it
//! should the connection is given up, and the next connection begins with `guest-sync-delimited`, which skips
//! what is left of old answers. (Libraries for this protocol read lines without a bound and wait without a
//! bound; everything else here is four questions.)

use super::{Agent, Channel, nonsense, shortened};
use crate::guest::stat::GuestStat;
use crate::guest::{Guest, GuestError, Online};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use quell_model::{CpuSet, Pid};
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The greatest size of an answer, in bytes.
const ANSWER_MAX: usize = 256 << 10;
/// The bytes of an answer that are read at once: the buffer is on the stack of each guest's thread.
const READ_AT_ONCE: usize = 2 << 10;
/// The byte that precedes an answer to `guest-sync-delimited`.
pub(super) const DELIMITER: u8 = 0xff;

/// A guest whose agent is at a socket. No manager of virtual machines pins its threads.
pub type AgentSocket = Agent<Socket>;

/// The connection to an agent at a socket, made when the agent is asked.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    /// The process that has to listen there, if one is required.
    process: Option<Pid>,
    pub(super) connection: Option<Connection>,
    /// The number of connections so far.
    number: u64,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: UnixStream,
    /// Bytes that came after the last answer.
    pub(super) rest: Vec<u8>,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "return")]
    returned: Option<Value>,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Refusal {
    desc: String,
}

impl Socket {
    /// A socket at which any process may listen.
    pub fn at(path: impl Into<PathBuf>) -> Socket {
        Socket {
            path: path.into(),
            process: None,
            connection: None,
            number: 0,
        }
    }

    /// A socket at which only `process` is spoken to: a command line that names the socket may lie.
    pub fn of(process: Pid, path: impl Into<PathBuf>) -> Socket {
        Socket {
            process: Some(process),
            ..Socket::at(path)
        }
    }

    fn connect(&mut self, within: Duration) -> Result<Connection, GuestError> {
        let stream = UnixStream::connect(&self.path)?;
        if let Some(process) = self.process {
            let peer = getsockopt(&stream, PeerCredentials).map_err(io::Error::from)?;
            if u32::try_from(peer.pid()) != Ok(process.0) {
                let error = format!(
                    "process {} listens at {}, not the VM's {process}",
                    peer.pid(),
                    self.path.display()
                );
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, error).into());
            }
        }
        let mut connection = Connection {
            stream,
            rest: Vec::new(),
        };
        self.number += 1;
        connection.sync(self.number, within)?;
        Ok(connection)
    }
}

impl Channel for Socket {
    /// Asks one question, and gives the connection up unless the answer came as it should.
    fn ask(
        &mut self,
        command: &'static str,
        arguments: &Value,
        within: Duration,
    ) -> Result<Value, GuestError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect(within)?,
        };
        let asked = connection.ask(command, arguments, within);
        if matches!(asked, Ok(_) | Err(GuestError::Refused { .. })) {
            self.connection = Some(connection);
        }
        asked
    }

    fn agent(&self) -> u64 {
        // Without a connection the next connection is a new one.
        self.number + u64::from(self.connection.is_none())
    }

    fn give_up(&mut self) {
        self.connection = None;
    }
}

impl Guest for AgentSocket {
    fn stat(&mut self) -> Result<GuestStat, GuestError> {
        Agent::stat(self)
    }

    fn set_online(&mut self, wanted: &Online) -> Result<CpuSet, GuestError> {
        Agent::set_online(self, wanted)
    }
}

impl Connection {
    /// Skips all answers that were due on an earlier connection.
    pub(super) fn sync(&mut self, number: u64, within: Duration) -> Result<(), GuestError> {
        let command = "guest-sync-delimited";
        let deadline = Instant::now() + within;
        let mut question = vec![DELIMITER];
        question.extend(line(command, &json!({ "id": number })));
        self.send(&question, within)?;
        loop {
            self.read_to(DELIMITER, deadline, within)?;
            let answer = self.read_to(b'\n', deadline, within)?;
            // An answer of another connection, or nonsense: the answer of this one is still to come.
            let answer = serde_json::from_slice::<Answer>(&answer).ok();
            if answer.and_then(|it| it.returned).and_then(|it| it.as_u64()) == Some(number) {
                return Ok(());
            }
        }
    }

    fn ask(
        &mut self,
        command: &'static str,
        arguments: &Value,
        within: Duration,
    ) -> Result<Value, GuestError> {
        let deadline = Instant::now() + within;
        self.send(&line(command, arguments), within)?;
        let answer = self.read_to(b'\n', deadline, within)?;
        let answer: Answer = serde_json::from_slice(&answer)
            .map_err(|error| nonsense(command, &error.to_string()))?;
        match (answer.returned, answer.error) {
            (_, Some(refusal)) => Err(GuestError::Refused {
                command,
                why: shortened(&refusal.desc),
            }),
            (Some(returned), None) => Ok(returned),
            (None, None) => Err(nonsense(command, "neither a result nor an error")),
        }
    }

    fn send(&mut self, bytes: &[u8], within: Duration) -> Result<(), GuestError> {
        self.stream.set_write_timeout(Some(within))?;
        let sent = self.stream.write_all(bytes);
        sent.map_err(|error| late_or_away(error, within))
    }

    /// The bytes up to the byte `end`, without it.
    pub(super) fn read_to(
        &mut self,
        end: u8,
        deadline: Instant,
        within: Duration,
    ) -> Result<Vec<u8>, GuestError> {
        let mut looked_at = 0;
        loop {
            let found = self.rest[looked_at..].iter().position(|it| *it == end);
            if let Some(at) = found.map(|at| looked_at + at) {
                let mut line: Vec<u8> = self.rest.drain(..=at).collect();
                line.pop();
                return Ok(line);
            }
            looked_at = self.rest.len();
            if looked_at > ANSWER_MAX {
                let error = format!("an answer of more than {ANSWER_MAX} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, error).into());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(silent(within));
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut some = [0; READ_AT_ONCE];
            match self.stream.read(&mut some) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(count) => self.rest.extend(&some[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(late_or_away(error, within)),
            }
        }
    }
}

fn line(command: &str, arguments: &Value) -> Vec<u8> {
    let question = json!({ "execute": command, "arguments": arguments });
    format!("{question}\n").into_bytes()
}

fn silent(within: Duration) -> GuestError {
    GuestError::Silent {
        within_ms: within.as_millis() as u64,
    }
}

fn late_or_away(error: io::Error, within: Duration) -> GuestError {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => silent(within),
        _ => error.into(),
    }
}
