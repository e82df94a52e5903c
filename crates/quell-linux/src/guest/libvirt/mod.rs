//! Guests of libvirt's domains: libvirt keeps the guest agent's socket to itself, and puts a domain's threads into cpusets that refuse what is
//! outside their pins, so a domain is asked, told and pinned through libvirt's API (5.8 and newer), live only.
//!
//! Problem: libvirt may not be there, hang, restart; a call may wait for the guest, for another job of the domain's, or for libvirt's own limits (5
//! requests at a time for a connection).
//! Approach: libvirt's libraries are opened when a domain is first met ([`api`]). One thread has a connection for what libvirt runs and what happens
//! to it ([`Domains`]); each domain's threads have connections of their own ([`Domain`]), so that nobody waits for another. A connection that broke
//! is made anew with the next question. Nobody but these threads calls libvirt.
//!
//! Guests are told through `virDomainQemuAgentCommand` with `guest-set-vcpus`, not through `virDomainSetGuestVcpus`: that one waits for an answer without
//! end unless the domain's agent timeout is changed, which would be everybody's (libvirt 12).

mod api;
mod connection;
mod domain;
mod domains;

pub use domain::Domain;
pub use domains::{Domains, Found};

/// Where libvirt is unless the environment says otherwise: its system's QEMU.
const URI: &str = "qemu:///system";

/// Where libvirt is: the environment variable `LIBVIRT_DEFAULT_URI` is libvirt's own way to say that.
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
