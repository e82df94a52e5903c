//! Requests to a player process.

use super::{Completion, Target};
use crate::workload::player::Ticket;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// One end of a player's socket pair.
pub struct SeqpacketTarget {
    socket: OwnedFd,
    /// What the socket did not take yet.
    backlog: VecDeque<Ticket>,
    lost: bool,
}

impl SeqpacketTarget {
    /// Over this socket.
    pub fn new(socket: OwnedFd) -> SeqpacketTarget {
        SeqpacketTarget {
            socket,
            backlog: VecDeque::new(),
            lost: false,
        }
    }

    fn flush(&mut self, done: &mut Vec<Completion>) {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        while let Some(ticket) = self.backlog.front() {
            match send(self.socket.as_raw_fd(), &ticket.to_bytes(), flags) {
                Ok(_) => {
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
