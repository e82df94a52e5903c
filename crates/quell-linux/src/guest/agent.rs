//! The QEMU guest agent's protocol (qemu-ga 2.0 and newer, `docs/interop/qemu-ga-ref`), as far as it is needed: one JSON object a line, over the
//! socket that QEMU connects to the guest's virtio-serial port `org.qemu.guest_agent.0`.
//!
//! Problem: what answers is in the guest's hands; it may be slow, dead, restarted, or malicious.
//! Approach: each question has a deadline, an answer a greatest size. Where one does not come as it should the connection is given up, and
//! the next one begins with `guest-sync-delimited`, which skips what is left of old answers. (Libraries for this protocol read lines
//! without end and wait without end; all else here is four questions.)

use super::stat::GuestStat;
use super::{Guest, GuestError, Online};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use quell_model::{CpuId, CpuSet, Pid};
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// No answer is longer, in bytes.
const ANSWER_MOST: usize = 256 << 10;
/// So much of a file is asked for at once, which is a third more in base64.
const READ_AT_ONCE: u64 = 48 << 10;
/// And so often: a host of 256 CPUs writes 100 KiB into `/proc/stat`.
const READS_MOST: usize = 16;
/// More virtual CPUs than any guest has.
const VCPUS_MOST: usize = 8192;
/// A virtual CPU needs up to so much longer to come or go: 0.1 s, in a loaded nested guest 1.6 s (measured).
const PER_VCPU: Duration = Duration::from_secs(2);
/// What a guest says of itself is shortened to so many characters.
const WORDS_MOST: usize = 200;
/// What precedes an answer to `guest-sync-delimited`.
const DELIMITER: u8 = 0xff;

/// A guest agent at a socket.
#[derive(Debug)]
pub struct AgentSocket {
    path: PathBuf,
    /// Who has to listen there.
    process: Option<Pid>,
    within: Duration,
    connection: Option<Connection>,
    /// The next one's number.
    number: u64,
}

#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    /// What came after the last answer.
    rest: Vec<u8>,
    /// `/proc/stat`, opened by the agent.
    stat: Option<i64>,
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

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Vcpu {
    logical_id: u64,
    online: bool,
    #[serde(default)]
    can_offline: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Part {
    buf_b64: String,
    eof: bool,
}

impl AgentSocket {
    /// One that is given so long for each answer. It is connected to when it is asked.
    pub fn new(path: impl Into<PathBuf>, within: Duration) -> AgentSocket {
        AgentSocket {
            path: path.into(),
            process: None,
            within,
            connection: None,
            number: 0,
        }
    }

    /// The same where nobody but that process is spoken to: a command line that says where it listens may lie.
    pub fn of(process: Pid, path: impl Into<PathBuf>, within: Duration) -> AgentSocket {
        AgentSocket {
            process: Some(process),
            ..AgentSocket::new(path, within)
        }
    }

    /// Asks; gives the connection up unless the answer came as it should.
    fn ask<T: for<'a> Deserialize<'a>>(
        &mut self,
        command: &'static str,
        arguments: &Value,
        within: Duration,
    ) -> Result<T, GuestError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let asked = connection.ask(command, arguments, within);
        if matches!(asked, Ok(_) | Err(GuestError::Refused { .. })) {
            self.connection = Some(connection);
        }
        let returned = asked?;
        serde_json::from_value(returned).map_err(|error| nonsense(command, &error.to_string()))
    }

    fn connect(&mut self) -> Result<Connection, GuestError> {
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
            stat: None,
        };
        self.number += 1;
        connection.sync(self.number, self.within)?;
        Ok(connection)
    }

    /// What `/proc/stat` has.
    fn read_stat(&mut self) -> Result<String, GuestError> {
        let known = self.connection.as_ref().and_then(|it| it.stat);
        let handle: i64 = match known {
            Some(handle) => {
                let start = json!({ "handle": handle, "offset": 0, "whence": 0 });
                let _: Value = self.ask("guest-file-seek", &start, self.within)?;
                handle
            }
            None => {
                let file = json!({ "path": "/proc/stat", "mode": "r" });
                self.ask("guest-file-open", &file, self.within)?
            }
        };
        if let Some(connection) = self.connection.as_mut() {
            connection.stat = Some(handle);
        }
        let mut text = Vec::new();
        for _ in 0..READS_MOST {
            let read = json!({ "handle": handle, "count": READ_AT_ONCE });
            let part: Part = self.ask("guest-file-read", &read, self.within)?;
            let bytes = BASE64.decode(part.buf_b64);
            text.extend(bytes.map_err(|error| nonsense("guest-file-read", &error.to_string()))?);
            if part.eof {
                break;
            }
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn vcpus(&mut self) -> Result<Vec<Vcpu>, GuestError> {
        let command = "guest-get-vcpus";
        let mut vcpus: Vec<Vcpu> = self.ask(command, &json!({}), self.within)?;
        if vcpus.is_empty() || vcpus.len() > VCPUS_MOST {
            return Err(nonsense(command, &format!("{} CPUs", vcpus.len())));
        }
        vcpus.sort_by_key(|it| it.logical_id);
        Ok(vcpus)
    }
}

impl Guest for AgentSocket {
    fn stat(&mut self) -> Result<GuestStat, GuestError> {
        let text = match self.read_stat() {
            // An agent that was started anew knows nothing of what the old one had opened.
            Err(GuestError::Refused { .. }) => {
                self.connection = None;
                self.read_stat()?
            }
            other => other?,
        };
        GuestStat::parse(&text).ok_or_else(|| nonsense("guest-file-read", "not a /proc/stat"))
    }

    fn set_online(&mut self, wanted: &Online) -> Result<CpuSet, GuestError> {
        let changes = changes(&self.vcpus()?, wanted);
        if !changes.is_empty() {
            let set = |(id, online): &(u64, bool)| json!({ "logical-id": id, "online": online });
            let vcpus: Vec<Value> = changes.iter().map(set).collect();
            let within = self.within + PER_VCPU * changes.len() as u32;
            let _: Value = self.ask("guest-set-vcpus", &json!({ "vcpus": vcpus }), within)?;
        }
        // What it says it did is not what counts.
        let vcpus = self.vcpus()?;
        let online = vcpus.iter().filter(|it| it.online);
        Ok(online.filter_map(Vcpu::cpu).collect())
    }
}

impl Vcpu {
    fn cpu(&self) -> Option<CpuId> {
        u32::try_from(self.logical_id).ok().map(CpuId)
    }
}

/// Who has to come and go so that those are online, if possible: some cannot go, and there may be fewer.
fn changes(vcpus: &[Vcpu], online: &Online) -> Vec<(u64, bool)> {
    let fixed = vcpus.iter().filter(|it| it.online && !it.can_offline);
    let mut more = match online {
        Online::First(count) => (*count as usize).saturating_sub(fixed.count()),
        Online::Exactly(_) => 0,
    };
    let mut changes = Vec::new();
    for vcpu in vcpus.iter().filter(|it| !it.online || it.can_offline) {
        let wanted = match online {
            Online::First(_) => more > 0,
            Online::Exactly(cpus) => vcpu.cpu().is_some_and(|cpu| cpus.contains(cpu)),
        };
        more = more.saturating_sub(1);
        if vcpu.online != wanted {
            changes.push((vcpu.logical_id, wanted));
        }
    }
    changes
}

impl Connection {
    /// Skips whatever was to be said on an earlier connection.
    fn sync(&mut self, number: u64, within: Duration) -> Result<(), GuestError> {
        let command = "guest-sync-delimited";
        let deadline = Instant::now() + within;
        let mut question = vec![DELIMITER];
        question.extend(line(command, &json!({ "id": number })));
        self.send(&question, within)?;
        loop {
            self.read_to(DELIMITER, deadline, within)?;
            let answer = self.read_to(b'\n', deadline, within)?;
            // Another one's, or nonsense: this one's is still to come.
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

    /// What comes up to that byte, without it.
    fn read_to(
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
            if looked_at > ANSWER_MOST {
                let error = format!("an answer of more than {ANSWER_MOST} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, error).into());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(silent(within));
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut some = [0; 8192];
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

fn nonsense(command: &'static str, why: &str) -> GuestError {
    GuestError::Nonsense {
        command,
        why: shortened(why),
    }
}

/// What a guest says, fit for a log.
fn shortened(text: &str) -> String {
    let printable = text
        .chars()
        .map(|it| if it.is_control() { ' ' } else { it });
    printable.take(WORDS_MOST).collect()
}

#[cfg(test)]
mod tests;
