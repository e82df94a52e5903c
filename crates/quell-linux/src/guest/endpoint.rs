//! Where the guest of a virtual machine is reached.

use super::agent::Agent;
use super::agent::socket::Socket;
use super::libvirt::{Domain, is_uuid};
use super::watch::Watched;
use quell_model::{Pid, ThreadId};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The time that a guest has for an answer. libvirt adds up to 5 s of its own, for its synchronization with a
/// guest agent.
const WITHIN: Duration = Duration::from_secs(2);

/// A virtual machine, and the transport that leads to its guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestEndpoint {
    /// The thread of its first virtual CPU: the guest lives as long as this thread.
    pub thread: ThreadId,
    /// The QEMU process of the virtual machine.
    pub process: Pid,
    /// The transport to the guest.
    pub transport: Transport,
}

/// The transport through which a guest is spoken to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transport {
    /// The socket at which its QEMU listens. Its threads are bound one by one.
    Socket(PathBuf),
    /// libvirt, which keeps that socket to itself and pins the parts of the virtual machine.
    Libvirt {
        /// The domain's UUID, as libvirt writes it.
        uuid: String,
        /// The URI of libvirt.
        uri: String,
    },
}

impl GuestEndpoint {
    /// Starts another thread that speaks to the guest.
    pub(super) fn watched(&self) -> io::Result<Watched> {
        Watched::new(match &self.transport {
            Transport::Socket(path) => Box::new(Agent::new(Socket::of(self.process, path), WITHIN)),
            Transport::Libvirt { uuid, uri } => {
                let domain = Domain::new(self.process, uuid, uri, WITHIN);
                Box::new(domain.with_first(self.thread.tid))
            }
        })
    }
}

impl Transport {
    /// Whether a journal can name the transport in one line.
    pub(super) fn is_a_line(&self) -> bool {
        let text = match self {
            Transport::Socket(path) => path.to_str(),
            Transport::Libvirt { uri, .. } => Some(uri.as_str()),
        };
        text.is_some_and(|it| !it.contains('\n'))
    }
}

/// Writes the transport as a journal has it: the socket's path, or `libvirt UUID URI`.
impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Transport::Socket(path) => path.display().fmt(f),
            Transport::Libvirt { uuid, uri } => write!(f, "libvirt {uuid} {uri}"),
        }
    }
}

impl FromStr for Transport {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Transport, Self::Err> {
        let domain = text
            .strip_prefix("libvirt ")
            .and_then(|it| it.split_once(' '));
        Ok(match domain.filter(|(uuid, _)| is_uuid(uuid)) {
            Some((uuid, uri)) => Transport::Libvirt {
                uuid: uuid.into(),
                uri: uri.into(),
            },
            None => Transport::Socket(text.into()),
        })
    }
}
