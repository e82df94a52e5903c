//! Requests over TCP to a server that answers each connection's requests in order.
//!
//! A request is sent at once on the connection with the fewest unanswered requests. A wrong answer or a lost
//! connection fails all requests outstanding on that connection, which is then opened anew: after a wrong
//! answer nothing tells where the next answer begins.

use super::{Completion, Connect, Target};
use anyhow::Context;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// How long opening a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes read at a time.
const READ_BYTES: usize = 256 << 10;

/// An application's requests and answers.
pub trait Protocol: Send + Sync + 'static {
    /// What is needed to tell whether an answer is right.
    type Expected: Send;

    /// Appends a request, drawn from `rng`, and says what to expect.
    fn request(&self, rng: &mut ChaCha8Rng, out: &mut Vec<u8>) -> Self::Expected;

    /// Looks for the answer at the start of `bytes`.
    fn answer(&self, expected: &Self::Expected, bytes: &[u8]) -> Answer;

    /// Opens the connections, in blocking mode. A protocol that must spread them over a server's processes
    /// does so here.
    ///
    /// # Errors
    /// Where a connection cannot be opened.
    fn open(&self, address: SocketAddr, connections: u32) -> anyhow::Result<Vec<TcpStream>> {
        (0..connections).map(|_| open(address)).collect()
    }
}

/// What [`Protocol::answer`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// More bytes are needed.
    Partial,
    /// The right answer, with its length in bytes.
    Right(usize),
    /// Any other answer.
    Wrong,
}

/// Opens one connection, in blocking mode.
///
/// # Errors
/// Where the address takes no connection within 2 s, or TCP_NODELAY cannot be set.
pub fn open(address: SocketAddr) -> anyhow::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)
        .with_context(|| format!("cannot connect to {address}"))?;
    stream.set_nodelay(true).context("cannot set TCP_NODELAY")?;
    Ok(stream)
}

/// A server at an address.
pub struct StreamServer<P> {
    address: SocketAddr,
    protocol: Arc<P>,
}

impl<P: Protocol> StreamServer<P> {
    /// The server at this address, which speaks this protocol.
    pub fn new(address: SocketAddr, protocol: P) -> StreamServer<P> {
        StreamServer {
            address,
            protocol: Arc::new(protocol),
        }
    }
}

impl<P: Protocol> Connect for StreamServer<P> {
    fn connect(&self, connections: u32) -> anyhow::Result<Box<dyn Target>> {
        let streams = self.protocol.open(self.address, connections)?;
        let mut opened = Vec::new();
        for stream in streams {
            stream
                .set_nonblocking(true)
                .context("cannot make a connection non-blocking")?;
            opened.push(Connection {
                stream: Some(stream),
                ..Connection::default()
            });
        }
        Ok(Box::new(StreamTarget {
            address: self.address,
            protocol: Arc::clone(&self.protocol),
            connections: opened,
            next: 0,
            buffer: vec![0; READ_BYTES],
        }))
    }
}

struct StreamTarget<P: Protocol> {
    address: SocketAddr,
    protocol: Arc<P>,
    connections: Vec<Connection<P::Expected>>,
    /// The connection from which the search for the next request's connection starts.
    next: usize,
    buffer: Vec<u8>,
}

struct Connection<E> {
    /// `None` after the connection was lost and could not be opened again.
    stream: Option<TcpStream>,
    /// Bytes not sent yet.
    out: Vec<u8>,
    /// Bytes received and not parsed yet.
    input: Vec<u8>,
    /// Requests not answered yet, oldest first.
    waiting: VecDeque<(u64, E)>,
}

impl<E> Default for Connection<E> {
    fn default() -> Self {
        Connection {
            stream: None,
            out: Vec::new(),
            input: Vec::new(),
            waiting: VecDeque::new(),
        }
    }
}

impl<E> Connection<E> {
    /// Fails the outstanding requests and opens the connection anew.
    fn lose(&mut self, address: SocketAddr, done: &mut Vec<Completion>) {
        done.extend(
            self.waiting
                .drain(..)
                .map(|(id, _)| Completion { id, ok: false }),
        );
        self.out.clear();
        self.input.clear();
        self.stream = open(address)
            .ok()
            .and_then(|stream| stream.set_nonblocking(true).ok().map(|()| stream));
    }

    /// Sends as many bytes as the socket takes. False: the connection is lost.
    fn flush(&mut self) -> bool {
        let Some(stream) = &mut self.stream else {
            return false;
        };
        let mut sent = 0;
        while sent < self.out.len() {
            match stream.write(&self.out[sent..]) {
                Ok(0) => return false,
                Ok(n) => sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        self.out.drain(..sent);
        true
    }

    /// Receives the bytes that are there and completes the requests that they answer. False: the connection
    /// is lost.
    fn receive<P: Protocol<Expected = E>>(
        &mut self,
        protocol: &P,
        buffer: &mut [u8],
        done: &mut Vec<Completion>,
    ) -> bool {
        let Some(stream) = &mut self.stream else {
            return false;
        };
        loop {
            match stream.read(buffer) {
                Ok(0) => return false,
                Ok(n) => {
                    self.input.extend_from_slice(&buffer[..n]);
                    if n < buffer.len() {
                        break;
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        let mut start = 0;
        while let Some((id, expected)) = self.waiting.front() {
            match protocol.answer(expected, &self.input[start..]) {
                Answer::Partial => break,
                Answer::Right(length) => {
                    done.push(Completion { id: *id, ok: true });
                    self.waiting.pop_front();
                    start += length;
                }
                Answer::Wrong => return false,
            }
        }
        self.input.drain(..start);
        // Bytes that no request asked for mean that the connection is lost.
        !self.waiting.is_empty() || self.input.is_empty()
    }
}

impl<P: Protocol> Target for StreamTarget<P> {
    fn send(&mut self, id: u64, seed: u64, done: &mut Vec<Completion>) {
        let count = self.connections.len();
        let least = (0..count)
            .map(|step| (self.next + step) % count)
            .min_by_key(|&index| {
                let connection = &self.connections[index];
                (connection.stream.is_none(), connection.waiting.len())
            });
        let Some(index) = least else {
            return done.push(Completion { id, ok: false });
        };
        self.next = (index + 1) % count;
        let connection = &mut self.connections[index];
        if connection.stream.is_none() {
            connection.lose(self.address, done);
        }
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let expected = self.protocol.request(&mut rng, &mut connection.out);
        connection.waiting.push_back((id, expected));
        if !connection.flush() {
            connection.lose(self.address, done);
        }
    }

    fn connections(&self) -> Vec<(usize, BorrowedFd<'_>, bool)> {
        let numbered = self.connections.iter().enumerate();
        let open = numbered.filter_map(|(index, connection)| {
            let stream = connection.stream.as_ref()?;
            Some((index, stream.as_fd(), !connection.out.is_empty()))
        });
        open.collect()
    }

    fn ready(&mut self, index: usize, done: &mut Vec<Completion>) {
        let Some(connection) = self.connections.get_mut(index) else {
            return;
        };
        if connection.stream.is_none() {
            return;
        }
        if !(connection.flush() && connection.receive(&*self.protocol, &mut self.buffer, done)) {
            connection.lose(self.address, done);
        }
    }
}
