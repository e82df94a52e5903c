//! Guests of libvirt's domains: libvirt keeps the guest agent's socket to itself, and puts the threads of a
//! domain into cpusets that refuse CPUs outside their pins, so a domain is asked, told and pinned through
//! libvirt's API (5.8 and newer), live only.
//!
//! Problem: libvirt may be absent, hang, or restart; a call may wait for the guest, for another job of the
//! domain's, or for libvirt's own limits (5 requests at a time for a connection).
//!
//! Approach: libvirt's libraries are opened when a domain is first met ([`api`]). One thread has a connection
//! for the running domains and their events ([`Domains`]); the threads of each domain have connections of
//! their own ([`Domain`]), so that no domain waits for another. A connection that broke is made anew with the
//! next question. Only these threads call libvirt.
//!
//! Guests are told through `virDomainQemuAgentCommand` with `guest-set-vcpus`, not through
//! `virDomainSetGuestVcpus`: the latter waits for an answer without a bound unless the domain's agent timeout
//! is changed, which would change it for all clients (libvirt 12).

mod api;
mod connection;
mod domain;
mod domains;

pub use domain::Domain;
pub use domains::{Domains, Found};

/// The URI of libvirt unless the environment says otherwise: QEMU of the system.
const URI: &str = "qemu:///system";

/// The URI of libvirt: libvirt itself reads it from the environment variable `LIBVIRT_DEFAULT_URI`.
pub fn uri() -> String {
    let said = std::env::var("LIBVIRT_DEFAULT_URI").ok();
    said.filter(|it| !it.is_empty())
        .unwrap_or_else(|| URI.to_string())
}

/// Whether a text is a UUID as libvirt writes it.
pub fn is_uuid(text: &str) -> bool {
    let dash = |at: usize| matches!(at, 8 | 13 | 18 | 23);
    let right = |(at, byte): (usize, u8)| match dash(at) {
        true => byte == b'-',
        false => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    };
    text.len() == 36 && text.bytes().enumerate().all(right)
}

#[cfg(test)]
mod tests;
