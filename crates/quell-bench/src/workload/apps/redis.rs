//! redis-server: a request is one command of a mix, on strings, lists, sorted sets or a script.

use super::{Launch, Started, local, text};
use crate::workload::load::{Answer, Protocol, StreamServer};
use crate::workload::process::find_program;
use anyhow::{Context, ensure};
use quell_scenario::{Redis, RedisCommand};
use rand::distr::weighted::WeightedIndex;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::Distribution;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

/// A loop of simple arithmetic whose result depends on every turn.
const SCRIPT: &str =
    "local s = 0 for i = 1, tonumber(ARGV[1]) do s = (s * 31 + i) % 1000003 end return s";

/// Starts redis-server and stores its data.
///
/// # Errors
/// Where redis-server is not installed, does not start or answer in time, or does not store the data.
pub fn start(app: &Redis, launch: &Launch<'_>, port: u16) -> anyhow::Result<Started> {
    let config = format!(
        "bind 127.0.0.1\nport {port}\nsave \"\"\nappendonly no\ndaemonize no\nmaxmemory {}mb\n\
         maxmemory-policy noeviction\nlogfile \"\"\n",
        app.memory_mb
    );
    let config_file = launch.folder.join("redis.conf");
    std::fs::write(&config_file, config).context("cannot write redis's configuration")?;
    let mut command = Command::new(find_program("redis-server", "redis-server")?);
    command.current_dir(&launch.folder).stdin(Stdio::null());
    // redis logs on stdout; its messages when it cannot start must reach the log.
    let output = std::fs::File::create(launch.folder.join("log.out"));
    command.stdout(Stdio::from(output.context("cannot write redis's log")?));
    // SORT ALPHA orders by locale.
    command.env("LC_ALL", "C").arg(&config_file);
    let process = launch.start(command)?;
    let stream = launch.connection(&process, port)?;

    let commands = Commands::new(app)?;
    let mut answers = BufReader::new(&stream);
    for store in commands.stores() {
        (&stream)
            .write_all(&store)
            .context("cannot store data in redis")?;
        let mut answer = String::new();
        answers
            .read_line(&mut answer)
            .context("redis does not answer")?;
        ensure!(
            !answer.starts_with('-'),
            "redis did not store its data: {}",
            answer.trim()
        );
    }
    let connect = Box::new(StreamServer::new(local(port), commands));
    Ok(Started {
        process,
        connect: Some(connect),
        work: None,
        counts: None,
    })
}

/// The mix of commands and their right answers.
struct Commands {
    keys: u32,
    mix: Vec<RedisCommand>,
    shares: WeightedIndex<f64>,
    script_turns: String,
    /// Each key's elements in the order in which lists and sorted sets hold them.
    elements: Vec<Vec<Vec<u8>>>,
    values: Vec<Vec<u8>>,
    answers: BTreeMap<(RedisCommand, u32), Vec<u8>>,
}

impl Commands {
    fn new(app: &Redis) -> anyhow::Result<Commands> {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let length = app.value_bytes as usize;
        let filler = text(4, length + 1024);
        let (mut elements, mut values) = (Vec::new(), Vec::new());
        for key in 0..app.keys {
            values.push(filler[key as usize % 1024..][..length].to_vec());
            let mut list: Vec<Vec<u8>> = (0..app.elements)
                .map(|n| {
                    let mut element = format!("e{n:06}").into_bytes();
                    element.extend_from_slice(&filler[..length - element.len()]);
                    element
                })
                .collect();
            list.shuffle(&mut rng);
            elements.push(list);
        }
        let mix: Vec<RedisCommand> = app.mix.keys().copied().collect();
        let shares = WeightedIndex::new(app.mix.values()).context("redis needs a mix")?;
        let mut answers = BTreeMap::new();
        for &command in &mix {
            for key in 0..app.keys {
                let list = &elements[key as usize];
                let answer = match command {
                    RedisCommand::Get => bulk(&values[key as usize]),
                    RedisCommand::Lrange | RedisCommand::Zrange => array(list),
                    RedisCommand::Sort => {
                        let mut sorted = list.clone();
                        sorted.sort_unstable();
                        array(&sorted)
                    }
                    RedisCommand::Eval => {
                        let turn = |s: u64, i: u64| (s * 31 + i) % 1_000_003;
                        let result = (1..=u64::from(app.script_turns)).fold(0, turn);
                        format!(":{result}\r\n").into_bytes()
                    }
                };
                answers.insert((command, key), answer);
            }
        }
        let script_turns = app.script_turns.to_string();
        Ok(Commands {
            keys: app.keys,
            mix,
            shares,
            script_turns,
            elements,
            values,
            answers,
        })
    }

    /// The commands that store the data that this mix needs.
    fn stores(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        let uses = |commands: &[RedisCommand]| commands.iter().any(|c| self.mix.contains(c));
        let strings = uses(&[RedisCommand::Get]);
        let lists = uses(&[RedisCommand::Lrange, RedisCommand::Sort]);
        let sets = uses(&[RedisCommand::Zrange]);
        (0..self.keys).flat_map(move |key| {
            let list = &self.elements[key as usize];
            let mut stores = Vec::new();
            if strings {
                let name = format!("v:{key}");
                stores.push(array(&[
                    &b"SET"[..],
                    name.as_bytes(),
                    &self.values[key as usize],
                ]));
            }
            // In portions: a command has at most a million arguments.
            for (portion, elements) in list.chunks(10_000).enumerate() {
                if lists {
                    let name = format!("l:{key}");
                    let mut words = vec![b"RPUSH".to_vec(), name.into_bytes()];
                    words.extend_from_slice(elements);
                    stores.push(array(&words));
                }
                if sets {
                    let name = format!("z:{key}");
                    let mut words = vec![b"ZADD".to_vec(), name.into_bytes()];
                    for (n, element) in elements.iter().enumerate() {
                        words.push((portion * 10_000 + n).to_string().into_bytes());
                        words.push(element.clone());
                    }
                    stores.push(array(&words));
                }
            }
            stores
        })
    }
}

/// A string as redis's protocol has it.
fn bulk(bytes: &[u8]) -> Vec<u8> {
    let mut out = format!("${}\r\n", bytes.len()).into_bytes();
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
    out
}

/// An array of strings; also how commands are sent.
fn array(items: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", items.len()).into_bytes();
    items
        .iter()
        .for_each(|item| out.extend(bulk(item.as_ref())));
    out
}

impl Protocol for Commands {
    type Expected = (RedisCommand, u32);

    fn request(&self, rng: &mut ChaCha8Rng, out: &mut Vec<u8>) -> (RedisCommand, u32) {
        let command = self.mix[self.shares.sample(rng)];
        let key = rng.random_range(0..self.keys);
        let words: Vec<&str> = match command {
            RedisCommand::Get => vec!["GET", "v:"],
            RedisCommand::Lrange => vec!["LRANGE", "l:", "0", "-1"],
            RedisCommand::Sort => vec!["SORT", "l:", "ALPHA"],
            RedisCommand::Zrange => vec!["ZRANGE", "z:", "0", "-1"],
            RedisCommand::Eval => vec!["EVAL", SCRIPT, "0", &self.script_turns],
        };
        let name = format!("{}{key}", words[1]);
        let mut words = words;
        if command != RedisCommand::Eval {
            words[1] = &name;
        }
        out.extend(array(&words));
        (command, key)
    }

    fn answer(&self, expected: &(RedisCommand, u32), bytes: &[u8]) -> Answer {
        let right = &self.answers[expected];
        let seen = bytes.len().min(right.len());
        match bytes[..seen] == right[..seen] {
            true if seen == right.len() => Answer::Right(seen),
            true => Answer::Partial,
            false => Answer::Wrong,
        }
    }
}
