//! memcached: a request gets many keys at once.

use super::{Launch, Started, is_root, local, text};
use crate::workload::load::{Answer, Protocol, StreamServer};
use crate::workload::process::find_program;
use anyhow::Context;
use quell_scenario::Memcached;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

/// Starts memcached and stores its values.
///
/// # Errors
/// Where memcached is not installed, does not start or answer in time, or does not store the values.
pub fn start(app: &Memcached, launch: &Launch<'_>, port: u16) -> anyhow::Result<Started> {
    let mut command = Command::new(find_program("memcached", "memcached")?);
    command
        .current_dir(&launch.folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let threads = app.threads.on(launch.cpus).to_string();
    let (port_text, memory) = (port.to_string(), app.memory_mb.to_string());
    // -M: an error rather than a silent eviction when the memory is full.
    command.args(["-l", "127.0.0.1", "-U", "0", "-M", "-c", "4096"]);
    command.args(["-p", &port_text, "-t", &threads, "-m", &memory]);
    if is_root() {
        // A process of another user would lose the signal that ends it with us.
        command.args(["-u", "root"]);
    }
    let process = launch.start(command)?;
    let stream = launch.connection(&process, port)?;

    let protocol = Multiget::new(app);
    let mut writer = &stream;
    let mut store = Vec::new();
    for key in 0..app.keys {
        let value = protocol.value(key);
        write!(store, "set k{key:08} 0 0 {} noreply\r\n", value.len())?;
        store.extend_from_slice(value);
        store.extend_from_slice(b"\r\n");
        if store.len() > 1 << 20 || key + 1 == app.keys {
            writer
                .write_all(&store)
                .context("cannot store values in memcached")?;
            store.clear();
        }
    }
    writer
        .write_all(b"version\r\n")
        .context("cannot store values in memcached")?;
    let mut answer = String::new();
    BufReader::new(&stream)
        .read_line(&mut answer)
        .context("memcached does not answer")?;
    anyhow::ensure!(
        answer.starts_with("VERSION "),
        "memcached stored not all: {}",
        answer.trim()
    );
    let connect = Box::new(StreamServer::new(local(port), protocol));
    Ok(Started {
        process,
        connect: Some(connect),
        work: None,
        counts: None,
    })
}

/// `get` of several consecutive keys: consecutive, so that a request and its right answer are each one
/// stretch of memory and cost the load generator little. The server hashes every key anyway.
struct Multiget {
    keys: u32,
    keys_per_request: u32,
    /// ` KEY` of every key.
    names: Vec<u8>,
    /// Every key's part of an answer.
    parts: Vec<u8>,
    part_length: usize,
    value_start: usize,
}

/// Length of ` k00000000`.
const NAME_LENGTH: usize = 10;
const END: &[u8] = b"END\r\n";

impl Multiget {
    fn new(app: &Memcached) -> Multiget {
        let length = app.value_bytes as usize;
        // Values are stretches of one text, each with another start.
        let source = text(1, length + 4096);
        let (mut names, mut parts) = (Vec::new(), Vec::new());
        let (mut part_length, mut value_start) = (0, 0);
        for key in 0..app.keys {
            names.extend_from_slice(format!(" k{key:08}").as_bytes());
            let head = format!("VALUE k{key:08} 0 {length}\r\n");
            let offset = key as usize % 4096;
            value_start = head.len();
            part_length = head.len() + length + 2;
            parts.extend_from_slice(head.as_bytes());
            parts.extend_from_slice(&source[offset..offset + length]);
            parts.extend_from_slice(b"\r\n");
        }
        let (keys, keys_per_request) = (app.keys, app.keys_per_request);
        Multiget {
            keys,
            keys_per_request,
            names,
            parts,
            part_length,
            value_start,
        }
    }

    fn parts(&self, first: u32, count: u32) -> &[u8] {
        &self.parts[first as usize * self.part_length..][..count as usize * self.part_length]
    }

    fn value(&self, key: u32) -> &[u8] {
        let part = self.parts(key, 1);
        &part[self.value_start..part.len() - 2]
    }
}

impl Protocol for Multiget {
    /// The first key.
    type Expected = u32;

    fn request(&self, rng: &mut ChaCha8Rng, out: &mut Vec<u8>) -> u32 {
        let first = rng.random_range(0..=self.keys - self.keys_per_request);
        let (start, count) = (first as usize, self.keys_per_request as usize);
        out.extend_from_slice(b"get");
        out.extend_from_slice(&self.names[start * NAME_LENGTH..][..count * NAME_LENGTH]);
        out.extend_from_slice(b"\r\n");
        first
    }

    fn answer(&self, &first: &u32, bytes: &[u8]) -> Answer {
        let parts = self.parts(first, self.keys_per_request);
        let length = parts.len() + END.len();
        if bytes.len() < length {
            // A short answer that is wrong so far is an error, or lacks a value: there is no rest to wait
            // for.
            let seen = bytes.len().min(self.part_length);
            let starts_well = bytes[..seen] == parts[..seen];
            return if starts_well && !bytes.ends_with(END) {
                Answer::Partial
            } else {
                Answer::Wrong
            };
        }
        if bytes[..parts.len()] == *parts && bytes[parts.len()..length] == *END {
            Answer::Right(length)
        } else {
            Answer::Wrong
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn only_the_right_values_in_the_right_order_are_right() {
        let app = Memcached {
            keys: 50,
            value_bytes: 20,
            keys_per_request: 3,
            ..Default::default()
        };
        let protocol = Multiget::new(&app);
        let mut request = Vec::new();
        let first = protocol.request(&mut ChaCha8Rng::seed_from_u64(1), &mut request);
        let asked = format!("get k{first:08} k{:08} k{:08}\r\n", first + 1, first + 2);
        assert_eq!(request, asked.as_bytes());
        let answer = [protocol.parts(first, 3), END].concat();
        let length = answer.len();
        let check = |bytes: &[u8]| protocol.answer(&first, bytes);
        assert_eq!(check(&answer), Answer::Right(length));
        assert_eq!(
            check(&[&answer[..], b"VALUE"].concat()),
            Answer::Right(length)
        );
        for cut in 0..length {
            assert_eq!(check(&answer[..cut]), Answer::Partial, "{cut}");
        }
        assert_eq!(check(END), Answer::Wrong);
        assert_eq!(check(b"SERVER_ERROR out of memory\r\n"), Answer::Wrong);
        let first_two = [protocol.parts(first, 2), END].concat();
        assert_eq!(check(&first_two), Answer::Wrong);
        for at in [0, 10, length / 2, length - 2] {
            let mut wrong = answer.clone();
            wrong[at] ^= 1;
            assert_eq!(check(&wrong), Answer::Wrong, "{at}");
        }
    }
}
