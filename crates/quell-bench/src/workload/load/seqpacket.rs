//! Sends requests to a player process.

use super::generator::wait;
use super::{Completion, Target};
use crate::workload::player::Ticket;
use anyhow::ensure;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// One end of a player's socket pair.
pub struct SeqpacketTarget {
    socket: OwnedFd,
    /// Requests that the player has and has not answered, over all windows: the socket outlives a window.
    inside: Arc<AtomicU64>,
    /// Requests that the socket did not take yet.
    backlog: VecDeque<Ticket>,
    lost: bool,
}

impl SeqpacketTarget {
    /// A target over this socket. `inside` counts the requests that the player has.
    pub fn new(socket: OwnedFd, inside: Arc<AtomicU64>) -> SeqpacketTarget {
        SeqpacketTarget {
            socket,
            inside,
            backlog: VecDeque::new(),
            lost: false,
        }
    }

    /// Waits until the player has answered the requests that an earlier window left with it, so that this
    /// window does not pay for them.
    ///
    /// # Errors
    /// Where requests are still unanswered after `timeout`, or the player has closed its socket.
    pub fn settle(&mut self, timeout: Duration) -> anyhow::Result<()> {
        let give_up = Instant::now() + timeout;
        loop {
            let inside = self.inside.load(Ordering::Relaxed);
            if inside == 0 {
                return Ok(());
            }
            let left = give_up.saturating_duration_since(Instant::now());
            ensure!(
                !left.is_zero(),
                "{inside} requests of an earlier window are unanswered yet"
            );
            ensure!(!self.lost, "the player has closed its socket");
            for connection in wait(self, left.as_nanos() as u64)? {
                self.ready(connection, &mut Vec::new());
            }
        }
    }

    fn flush(&mut self, done: &mut Vec<Completion>) {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        while let Some(ticket) = self.backlog.front() {
            match send(self.socket.as_raw_fd(), &ticket.to_bytes(), flags) {
                Ok(_) => {
                    self.inside.fetch_add(1, Ordering::Relaxed);
                    self.backlog.pop_front();
                }
                Err(Errno::EAGAIN) => return,
                Err(Errno::EINTR) => {}
                Err(_) => {
                    self.lost = true;
                    done.extend(self.backlog.drain(..).map(|t| Completion {
                        id: t.id,
                        ok: false,
                    }));
                }
            }
        }
    }
}

impl Target for SeqpacketTarget {
    fn send(&mut self, id: u64, seed: u64, done: &mut Vec<Completion>) {
        self.backlog.push_back(Ticket { id, seed });
        self.flush(done);
    }

    fn connections(&self) -> Vec<(usize, BorrowedFd<'_>, bool)> {
        if self.lost {
            return Vec::new();
        }
        vec![(0, self.socket.as_fd(), !self.backlog.is_empty())]
    }

    fn ready(&mut self, _index: usize, done: &mut Vec<Completion>) {
        self.flush(done);
        let mut bytes = [0; Ticket::SIZE];
        loop {
            match recv(self.socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
                Ok(Ticket::SIZE) => {
                    self.inside.fetch_sub(1, Ordering::Relaxed);
                    done.push(Completion {
                        id: Ticket::from_bytes(bytes).id,
                        ok: true,
                    });
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return,
                _ => {
                    self.lost = true;
                    return;
                }
            }
        }
    }
}
