//! memcached: a request gets many keys at once.

use super::{Launch, Started, is_root, local, text};
use crate::workload::load::{Answer, Protocol, StreamServer};
use crate::workload::process::find_program;
use anyhow::Context;
use quell_model::config::Memcached;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

/// Starts memcached and stores its values.
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
        // Another user's processes would lose the signal that ends them with us.
        command.args(["-u", "root"]);
    }
    let process = launch.nursery.start(command, &launch.folder.join("log"))?;
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
    })
}

/// `get` of several keys.
struct Multiget {
    keys: u32,
    keys_per_request: u32,
    /// Every key's part of an answer, one after the other: all have the same length.
    parts: Vec<u8>,
    part_length: usize,
    value_start: usize,
}

const END: &[u8] = b"END\r\n";

impl Multiget {
    fn new(app: &Memcached) -> Multiget {
        let length = app.value_bytes as usize;
        // Values are stretches of one text, each starting elsewhere.
        let source = text(1, length + 4096);
        let mut parts = Vec::new();
        let (mut part_length, mut value_start) = (0, 0);
        for key in 0..app.keys {
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
            parts,
            part_length,
            value_start,
        }
    }

    fn part(&self, key: u32) -> &[u8] {
        &self.parts[key as usize * self.part_length..][..self.part_length]
    }

    fn value(&self, key: u32) -> &[u8] {
        let part = self.part(key);
        &part[self.value_start..part.len() - 2]
    }
}

impl Protocol for Multiget {
    type Expected = Vec<u32>;

    fn request(&self, rng: &mut ChaCha8Rng, out: &mut Vec<u8>) -> Vec<u32> {
        out.extend_from_slice(b"get");
        let mut keys = Vec::with_capacity(self.keys_per_request as usize);
        for _ in 0..self.keys_per_request {
            let key = rng.random_range(0..self.keys);
            keys.push(key);
            out.push(b' ');
            // `VALUE ` comes before the key, 9 characters long.
            out.extend_from_slice(&self.part(key)[6..15]);
        }
        out.extend_from_slice(b"\r\n");
        keys
    }

    fn answer(&self, keys: &Vec<u32>, bytes: &[u8]) -> Answer {
        let length = keys.len() * self.part_length + END.len();
        if bytes.len() < length {
            // An error, or a missing first value, is short: do not wait for what will not come.
            let first = self.part(keys[0]);
            let seen = bytes.len().min(first.len());
            return if bytes[..seen] == first[..seen] && !bytes.ends_with(END) {
                Answer::Partial
            } else {
                Answer::Wrong
            };
        }
        let parts = bytes.chunks(self.part_length).zip(keys);
        let right = parts
            .take(keys.len())
            .all(|(part, &key)| part == self.part(key));
        if right && &bytes[length - END.len()..length] == END {
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
        let keys = protocol.request(&mut ChaCha8Rng::seed_from_u64(1), &mut Vec::new());
        let mut answer: Vec<u8> = keys
            .iter()
            .flat_map(|&key| protocol.part(key).to_vec())
            .collect();
        answer.extend_from_slice(END);
        let length = answer.len();
        let check = |bytes: &[u8]| protocol.answer(&keys, bytes);
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
        let first_two = [protocol.part(keys[0]), protocol.part(keys[1]), END].concat();
        assert_eq!(check(&first_two), Answer::Wrong);
        for at in [0, 10, length / 2, length - 2] {
            let mut wrong = answer.clone();
            wrong[at] ^= 1;
            assert_eq!(check(&wrong), Answer::Wrong, "{at}");
        }
    }
}
