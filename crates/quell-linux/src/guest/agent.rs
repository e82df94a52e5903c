//! The QEMU guest agent's protocol (qemu-ga 2.0 and newer, `docs/interop/qemu-ga-ref`), as far as it is
//! needed: four questions, over the [`Channel`] that leads to the agent: the socket that QEMU connects to the
//! guest's virtio-serial port `org.qemu.guest_agent.0` ([`socket`]), or libvirt, which keeps that socket to
//! itself ([`super::libvirt`]).
//!
//! The program that answers is in the guest's hands; it may be slow, dead, restarted, or malicious. A channel
//! bounds the time and the size of an answer; this module bounds how often the agent is asked, and decides
//! which answers are believed.

pub mod socket;

use super::stat::GuestStat;
use super::{GuestError, Online};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use quell_model::{CpuId, CpuSet};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// The bytes of a file that are asked for at once; in base64 they take a third more.
const READ_AT_ONCE: u64 = 48 << 10;
/// The most such reads of a file: a host of 256 CPUs writes 100 KiB into `/proc/stat`.
const READS_MAX: usize = 16;
/// A number of virtual CPUs above that of any guest.
const VCPUS_MAX: usize = 8192;
/// The additional time that one virtual CPU may need to come or go: 0.1 s, in a loaded nested guest 1.6 s
/// (measured).
const PER_VCPU: Duration = Duration::from_secs(2);
/// The number of characters to which a text from a guest is shortened.
const TEXT_MAX: usize = 200;

/// The connection that leads to a guest agent.
pub trait Channel {
    /// Asks the agent one question, and returns what it returned.
    ///
    /// # Errors
    /// The call fails if there is no connection to the agent, or the agent did not answer in time, refused,
    /// or sent an answer that means nothing.
    fn ask(
        &mut self,
        command: &'static str,
        arguments: &Value,
        within: Duration,
    ) -> Result<Value, GuestError>;

    /// A number that changes with the agent, or the connection to it, that is spoken to: a new one knows
    /// nothing of the files that the one before had opened.
    fn agent(&self) -> u64;

    /// Gives up the present agent: the next question goes to a new one.
    fn give_up(&mut self);
}

/// A guest agent that can be asked and told.
#[derive(Debug)]
pub struct Agent<C: Channel> {
    channel: C,
    within: Duration,
    /// The handle of `/proc/stat`, and the agent number that opened it.
    stat: Option<(u64, i64)>,
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

impl<C: Channel> Agent<C> {
    /// An agent that has `within` for each answer.
    pub fn new(channel: C, within: Duration) -> Agent<C> {
        Agent {
            channel,
            within,
            stat: None,
        }
    }

    /// The channel that leads to the agent.
    pub(super) fn channel(&mut self) -> &mut C {
        &mut self.channel
    }

    fn ask<T: for<'a> Deserialize<'a>>(
        &mut self,
        command: &'static str,
        arguments: &Value,
        within: Duration,
    ) -> Result<T, GuestError> {
        let returned = self.channel.ask(command, arguments, within)?;
        serde_json::from_value(returned).map_err(|error| nonsense(command, &error.to_string()))
    }

    /// The text of the guest's `/proc/stat`.
    fn read_stat(&mut self) -> Result<String, GuestError> {
        let known = self.stat.filter(|(of, _)| *of == self.channel.agent());
        let handle: i64 = match known {
            Some((_, handle)) => {
                let start = json!({ "handle": handle, "offset": 0, "whence": 0 });
                let _: Value = self.ask("guest-file-seek", &start, self.within)?;
                handle
            }
            None => {
                let file = json!({ "path": "/proc/stat", "mode": "r" });
                self.ask("guest-file-open", &file, self.within)?
            }
        };
        self.stat = Some((self.channel.agent(), handle));
        let mut text = Vec::new();
        for _ in 0..READS_MAX {
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
        if vcpus.is_empty() || vcpus.len() > VCPUS_MAX {
            return Err(nonsense(command, &format!("{} CPUs", vcpus.len())));
        }
        vcpus.sort_by_key(|it| it.logical_id);
        Ok(vcpus)
    }

    /// The guest's figures, as [`super::Guest::stat`].
    ///
    /// # Errors
    /// The call fails if the agent does not answer in time, or not as it should.
    pub fn stat(&mut self) -> Result<GuestStat, GuestError> {
        let text = match self.read_stat() {
            // An agent that was started anew does not know the files that the old agent had opened.
            Err(GuestError::Refused { .. }) => {
                self.channel.give_up();
                self.stat = None;
                self.read_stat()?
            }
            other => other?,
        };
        GuestStat::parse(&text).ok_or_else(|| nonsense("guest-file-read", "not a /proc/stat"))
    }

    /// Sets the guest's online virtual CPUs, as [`super::Guest::set_online`].
    ///
    /// # Errors
    /// The call fails if the agent does not answer in time, or refuses.
    pub fn set_online(&mut self, wanted: &Online) -> Result<CpuSet, GuestError> {
        let changes = changes(&self.vcpus()?, wanted);
        if !changes.is_empty() {
            let set = |(id, online): &(u64, bool)| json!({ "logical-id": id, "online": online });
            let vcpus: Vec<Value> = changes.iter().map(set).collect();
            let within = self.within + PER_VCPU * changes.len() as u32;
            let _: Value = self.ask("guest-set-vcpus", &json!({ "vcpus": vcpus }), within)?;
        }
        // The state that the guest reports afterwards counts, not its answer to the change.
        let vcpus = self.vcpus()?;
        let online = vcpus.iter().filter(|it| it.online);
        Ok(online.filter_map(Vcpu::cpu).collect())
    }
}

impl<C: Channel> Drop for Agent<C> {
    /// Closes the file that the agent had opened for this process, if the agent still exists.
    fn drop(&mut self) {
        if let Some((_, handle)) = self.stat.filter(|(of, _)| *of == self.channel.agent()) {
            let close = json!({ "handle": handle });
            let _ = self.channel.ask("guest-file-close", &close, self.within);
        }
    }
}

impl Vcpu {
    fn cpu(&self) -> Option<CpuId> {
        u32::try_from(self.logical_id).ok().map(CpuId)
    }
}

/// The virtual CPUs that have to come and go so that those of `online` are online, if possible: some cannot
/// go offline, and there may be fewer.
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

pub(super) fn nonsense(command: &'static str, why: &str) -> GuestError {
    GuestError::Nonsense {
        command,
        why: shortened(why),
    }
}

/// A text from a guest, made fit for a log.
pub(super) fn shortened(text: &str) -> String {
    let printable = text
        .chars()
        .map(|it| if it.is_control() { ' ' } else { it });
    printable.take(TEXT_MAX).collect()
}

#[cfg(test)]
mod tests;
