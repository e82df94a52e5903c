//! The journal: the settings that held before Quell's first change, and those that Quell wrote last.
//!
//! A text file of one record per line, appended to, readable by people:
//!
//! ```text
//! quell-journal 1 <boot id> <ticks since boot when opened>
//! <checksum> thread 812 40211 810 nice 0 0 -3
//! <checksum> thread 812 40211 810 slice default default 1840000
//! <checksum> cgroup 91 100 100 300 /shop.slice/web
//! <checksum> guest 812 40211 810 0-3 /run/web/agent.sock
//! <checksum> parts 912 40299 910 vcpu0=0-3 vcpu0=0-3 vcpu0=2 libvirt UUID qemu:///system
//! <checksum> drop-thread 812 40211
//! ```
//!
//! A thread is named by its id, start time and process; a cgroup by inode and path. Three values
//! follow: the original, the value held before the write, and the value written. A record is appended
//! *before* its write, so after a kill at any point the setting has one of the latter two values, unless
//! another program changed it. Records that bring a new original are synced to disk first, all those
//! of one period at once. Later records are not: data handed to the kernel survives the death of the
//! process, and when the machine goes down the threads go too.
//!
//! The checksum covers the boot id, so a record of an earlier boot can never be taken for one of
//! this boot even if its thread id and start time come again and the first line is lost. A last
//! line cut short is dropped silently (its write never happened); other damage is counted, and the
//! lines that can be read are used.
//!
//! The file is rewritten with the records that still matter when it has grown to four times their size. A
//! lock file beside it, which is never removed, admits one process at a time.

use super::error::ActError;
use crate::guest::{GuestEndpoint, Pins};
use nix::fcntl::{Flock, FlockArg};
use quell_model::{CgroupPath, CpuSet, Nice, Pid, ThreadId, Tid};
use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Size below which compaction is not worth its sync.
const COMPACT_MIN_BYTES: u64 = 256 * 1024;

/// The value of a setting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Value {
    Nice(i32),
    /// A slice in ns; 0 is the kernel's own.
    Slice(u64),
    /// An affinity; the empty set stands for all CPUs that the thread's cpuset allows.
    Cpus(CpuSet),
    /// A cgroup's weight, in the unit of the cgroup's file.
    Weight(u64),
}

/// The record in one line of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Record {
    /// A thread's setting is about to become `to`.
    Thread {
        id: ThreadId,
        process: Pid,
        original: Value,
        from: Value,
        to: Value,
    },
    /// A cgroup's weight is about to become `to`.
    Cgroup {
        inode: u64,
        path: CgroupPath,
        original: u64,
        from: u64,
        to: u64,
    },
    /// The guest of a virtual machine is about to have other virtual CPUs online than `original`.
    Guest {
        endpoint: GuestEndpoint,
        original: CpuSet,
    },
    /// Parts of a virtual machine are about to be pinned to `to`, by the manager that runs it.
    Parts {
        endpoint: GuestEndpoint,
        original: Pins,
        from: Pins,
        to: Pins,
    },
    /// A thread has its originals back.
    DropThread(ThreadId),
    /// The guest whose virtual machine has that first virtual CPU has its originals back.
    DropGuest(ThreadId),
    /// The virtual machine that has that first virtual CPU has its originals back.
    DropParts(ThreadId),
    /// A cgroup has its original back.
    DropCgroup { inode: u64 },
}

/// The contents of a journal.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    pub records: Vec<Record>,
    /// The time at which the run that wrote it began, in ticks since boot; `None` if the first line is lost.
    pub opened_ticks: Option<u64>,
    /// The number of records of an earlier boot.
    pub earlier_boot: u64,
    /// The numbers of the damaged lines, from 1.
    pub damaged: Vec<usize>,
}

/// An open, locked journal.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    boot: String,
    opened_ticks: u64,
    size: u64,
    /// The size after the last rewrite, in bytes.
    base: u64,
    _lock: Flock<File>,
}

impl Journal {
    /// Locks the journal at `path` and reads its contents, creating it if it does not exist.
    ///
    /// # Errors
    /// The call fails if another process holds the lock ([`ActError::Locked`]), the file has other contents
    /// ([`ActError::NotAJournal`]), it or its folder cannot be created, read or synced
    /// ([`ActError::Journal`]), or the boot id cannot be read ([`ActError::Kernel`]).
    pub fn open(path: &Path) -> Result<(Journal, Contents), ActError> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|source| ActError::Journal {
                path: folder.to_path_buf(),
                action: "make the folder of",
                source,
            })?;
        let boot = boot_id()?;
        recognise(path, &boot)?; // before anything is made beside a file that is no journal
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let lock = lock(Path::new(&name))?;
        let error = |action| {
            move |source| ActError::Journal {
                path: path.to_path_buf(),
                action,
                source,
            }
        };
        let mut file = options().create(true).open(path).map_err(error("open"))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(error("read"))?;
        let contents = parse(&bytes, &boot);
        sync_folder(folder).map_err(error("sync the folder of"))?;
        let size = bytes.len() as u64;
        let journal = Journal {
            path: path.to_path_buf(),
            file,
            boot,
            opened_ticks: contents.opened_ticks.unwrap_or_else(now_ticks),
            size,
            base: size,
            _lock: lock,
        };
        Ok((journal, contents))
    }

    /// The text that says that the journal could not be written.
    pub fn cannot(&self, error: &io::Error) -> String {
        format!("{}: {error}", self.path().display())
    }

    /// The path of the journal.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The time at which the run began, in ticks since boot.
    pub fn opened_ticks(&self) -> u64 {
        self.opened_ticks
    }

    /// Appends records with one write, and one sync if `durable`. On an error none of them counts.
    ///
    /// # Errors
    /// The call fails if the file cannot be written or synced.
    pub fn append(&mut self, records: &[Record], durable: bool) -> io::Result<()> {
        let mut text = String::new();
        records
            .iter()
            .for_each(|record| self.line(record, &mut text));
        let result = self.file.write_all(text.as_bytes()).and_then(|()| {
            if durable {
                self.file.sync_data()
            } else {
                Ok(())
            }
        });
        match result {
            Ok(()) => self.size += text.len() as u64,
            // A part of the records may be in the file: cut it off, or at least keep it from touching the
            // next line.
            Err(_) if self.file.set_len(self.size).is_ok() => {}
            Err(_) => {
                let _ = self.file.write_all(b"\n");
            }
        }
        result
    }

    /// Whether the file has grown so much that most of it is outdated.
    pub fn wants_compaction(&self) -> bool {
        self.size > COMPACT_MIN_BYTES.max(4 * self.base)
    }

    /// Replaces all contents by `records`: the file has the old or the new contents, never a mixture.
    /// On an error the old journal is still in use.
    ///
    /// # Errors
    /// The call fails if the new file cannot be created, written, synced or moved into place, or its folder
    /// cannot be synced.
    pub fn rewrite(&mut self, records: &[Record]) -> io::Result<()> {
        let mut text = format!("quell-journal 1 {} {}\n", self.boot, self.opened_ticks);
        records
            .iter()
            .for_each(|record| self.line(record, &mut text));
        let mut new = self.path.as_os_str().to_owned();
        new.push(".new");
        let new = PathBuf::from(new);
        let result = (|| {
            match std::fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file = options().create_new(true).open(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_data()?;
            std::fs::rename(&new, &self.path)?;
            Ok(file)
        })();
        match result {
            Ok(file) => {
                self.file = file;
                self.size = text.len() as u64;
                self.base = self.size;
                self.path.parent().map_or(Ok(()), sync_folder)
            }
            Err(error) => {
                let _ = std::fs::remove_file(&new);
                self.base = self.size; // try again when it has grown, not every period
                Err(error)
            }
        }
    }

    /// Starts the journal of a new run with the records that the previous run could not undo.
    ///
    /// # Errors
    /// The call fails as [`Journal::rewrite`] does.
    pub fn start(&mut self, records: &[Record]) -> io::Result<()> {
        self.opened_ticks = now_ticks();
        self.rewrite(records)
    }

    fn line(&self, record: &Record, text: &mut String) {
        use fmt::Write;
        let body = record.to_string();
        let _ = writeln!(
            text,
            "{:016x} {body}",
            checksum(&self.boot, body.as_bytes())
        );
    }
}

/// Refuses a file that is not a journal: using it would destroy its contents.
fn recognise(path: &Path, boot: &str) -> Result<(), ActError> {
    let read = || -> io::Result<bool> {
        if !std::fs::metadata(path)?.is_file() {
            return Ok(false);
        }
        let bytes = std::fs::read(path)?;
        let head = bytes.split(|&b| b == b'\n').next().and_then(parse_head);
        Ok(bytes.is_empty() || head.is_some() || !parse(&bytes, boot).records.is_empty())
    };
    match read() {
        Ok(true) => Ok(()),
        Ok(false) => Err(ActError::NotAJournal {
            path: path.to_path_buf(),
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(ActError::Journal {
            path: path.to_path_buf(),
            action: "read",
            source,
        }),
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).append(true).mode(0o600);
    options
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    File::open(folder)?.sync_all()
}

/// Takes the lock of a lock file, or reports the process that holds it.
pub(super) fn lock(path: &Path) -> Result<Flock<File>, ActError> {
    let error = |source| ActError::Journal {
        path: path.to_path_buf(),
        action: "lock",
        source,
    };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(error)?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(mut lock) => {
            let pid = format!("{}\n", std::process::id());
            lock.set_len(0)
                .and_then(|()| lock.write_all(pid.as_bytes()))
                .map_err(error)?;
            Ok(lock)
        }
        Err((mut file, nix::errno::Errno::EWOULDBLOCK)) => {
            let mut text = String::new();
            let _ = file.read_to_string(&mut text);
            Err(ActError::Locked {
                path: path.to_path_buf(),
                pid: text.trim().parse().ok(),
            })
        }
        Err((_, errno)) => Err(error(errno.into())),
    }
}

fn boot_id() -> Result<String, ActError> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    std::fs::read_to_string(path)
        .map(|id| id.trim().to_string())
        .map_err(|source| ActError::Kernel {
            path: path.to_path_buf(),
            source,
        })
}

/// Ticks of 10 ms since boot, suspend included: the clock of thread start times.
fn now_ticks() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME);
    now.map_or(u64::MAX, |t| {
        t.tv_sec() as u64 * 100 + t.tv_nsec() as u64 / 10_000_000
    })
}

/// FNV-1a, 64 bits: it detects every change of one byte, and misses other changes once in 2^64.
fn checksum(boot: &str, body: &[u8]) -> u64 {
    boot.bytes()
        .chain([0])
        .chain(body.iter().copied())
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
}

/// Reads a journal written during boot `boot`, whatever the bytes are.
pub(super) fn parse(bytes: &[u8], boot: &str) -> Contents {
    let mut contents = Contents::default();
    let mut lines: Vec<&[u8]> = bytes.split(|&b| b == b'\n').collect();
    // The text after the last line end is empty, or a line cut short.
    lines.pop();
    let mut other_boot = false;
    for (index, line) in lines.iter().enumerate() {
        if let Some(record) = parse_line(line, boot) {
            contents.records.push(record);
        } else if let Some((written_boot, ticks)) = (index == 0).then(|| parse_head(line)).flatten()
        {
            other_boot = written_boot != boot;
            contents.opened_ticks = (!other_boot).then_some(ticks);
        } else if other_boot {
            contents.earlier_boot += 1;
        } else {
            contents.damaged.push(index + 1);
        }
    }
    contents
}

fn parse_head(line: &[u8]) -> Option<(&str, u64)> {
    let (boot, ticks) = std::str::from_utf8(line)
        .ok()?
        .strip_prefix("quell-journal 1 ")?
        .split_once(' ')?;
    Some((boot, ticks.parse().ok()?))
}

fn parse_line(line: &[u8], boot: &str) -> Option<Record> {
    let (sum, body) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    let valid =
        sum.len() == 16 && u64::from_str_radix(sum, 16).ok()? == checksum(boot, body.as_bytes());
    if !valid {
        return None;
    }
    let (kind, rest) = body.split_once(' ')?;
    if kind == "cgroup" {
        let mut fields = rest.splitn(5, ' ');
        let mut number = || fields.next()?.parse().ok();
        let (inode, original, from, to) = (number()?, number()?, number()?, number()?);
        let path = CgroupPath(fields.next()?.into());
        return Some(Record::Cgroup {
            inode,
            path,
            original,
            from,
            to,
        });
    }
    let id = |tid: &str, start: &str| {
        Some(ThreadId {
            tid: Tid(tid.parse().ok()?),
            start_ticks: start.parse().ok()?,
        })
    };
    let endpoint = |[tid, start, process, transport]: [&str; 4]| {
        Some(GuestEndpoint {
            thread: id(tid, start)?,
            process: Pid(process.parse().ok()?),
            transport: transport.parse().ok()?,
        })
    };
    if kind == "guest" {
        let fields: Vec<&str> = rest.splitn(5, ' ').collect();
        let [tid, start, process, original, transport] = fields[..] else {
            return None;
        };
        return Some(Record::Guest {
            endpoint: endpoint([tid, start, process, transport])?,
            original: original.parse().ok()?,
        });
    }
    if kind == "parts" {
        let fields: Vec<&str> = rest.splitn(7, ' ').collect();
        let [tid, start, process, original, from, to, transport] = fields[..] else {
            return None;
        };
        return Some(Record::Parts {
            endpoint: endpoint([tid, start, process, transport])?,
            original: original.parse().ok()?,
            from: from.parse().ok()?,
            to: to.parse().ok()?,
        });
    }
    let fields: Vec<&str> = rest.split(' ').collect();
    match (kind, fields.as_slice()) {
        ("thread", [tid, start, process, name, original, from, to]) => Some(Record::Thread {
            id: id(tid, start)?,
            process: Pid(process.parse().ok()?),
            original: Value::parse(name, original)?,
            from: Value::parse(name, from)?,
            to: Value::parse(name, to)?,
        }),
        ("drop-thread", [tid, start]) => Some(Record::DropThread(id(tid, start)?)),
        ("drop-guest", [tid, start]) => Some(Record::DropGuest(id(tid, start)?)),
        ("drop-parts", [tid, start]) => Some(Record::DropParts(id(tid, start)?)),
        ("drop-cgroup", [inode]) => Some(Record::DropCgroup {
            inode: inode.parse().ok()?,
        }),
        _ => None,
    }
}

impl Value {
    /// The name of the setting in the journal and in notes.
    pub fn name(&self) -> &'static str {
        match self {
            Value::Nice(_) => "nice",
            Value::Slice(_) => "slice",
            Value::Cpus(_) => "cpus",
            Value::Weight(_) => "weight",
        }
    }

    fn parse(name: &str, text: &str) -> Option<Value> {
        match (name, text) {
            ("nice", _) => Nice::new(text.parse().ok()?).map(|nice| Value::Nice(nice.get())),
            ("slice", "default") => Some(Value::Slice(0)),
            ("slice", _) => Some(Value::Slice(text.parse().ok()?)),
            ("cpus", "all") => Some(Value::Cpus(CpuSet::new())),
            ("cpus", _) => text.parse().ok().map(Value::Cpus),
            _ => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Nice(nice) => nice.fmt(f),
            Value::Slice(0) => f.write_str("default"),
            Value::Slice(ns) => ns.fmt(f),
            Value::Cpus(cpus) if cpus.is_empty() => f.write_str("all"),
            Value::Cpus(cpus) => cpus.fmt(f),
            Value::Weight(weight) => weight.fmt(f),
        }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Record::Thread {
                id,
                process,
                original,
                from,
                to,
            } => {
                let (ticks, name) = (id.start_ticks, original.name());
                write!(
                    f,
                    "thread {id} {ticks} {process} {name} {original} {from} {to}"
                )
            }
            Record::Cgroup {
                inode,
                path,
                original,
                from,
                to,
            } => {
                write!(f, "cgroup {inode} {original} {from} {to} {path}")
            }
            Record::Guest { endpoint, original } => {
                let (id, process, transport) =
                    (endpoint.thread, endpoint.process, &endpoint.transport);
                let ticks = id.start_ticks;
                write!(f, "guest {id} {ticks} {process} {original} {transport}")
            }
            Record::Parts {
                endpoint,
                original,
                from,
                to,
            } => {
                let (id, process, transport) =
                    (endpoint.thread, endpoint.process, &endpoint.transport);
                let ticks = id.start_ticks;
                write!(
                    f,
                    "parts {id} {ticks} {process} {original} {from} {to} {transport}"
                )
            }
            Record::DropParts(id) => write!(f, "drop-parts {id} {}", id.start_ticks),
            Record::DropGuest(id) => write!(f, "drop-guest {id} {}", id.start_ticks),
            Record::DropThread(id) => write!(f, "drop-thread {id} {}", id.start_ticks),
            Record::DropCgroup { inode } => write!(f, "drop-cgroup {inode}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::Transport;
    use proptest::prelude::*;

    const BOOT: &str = "0d1c";

    fn id(tid: u32) -> ThreadId {
        ThreadId {
            tid: Tid(tid),
            start_ticks: 77,
        }
    }

    fn thread(tid: u32, original: Value, from: Value, to: Value) -> Record {
        Record::Thread {
            id: id(tid),
            process: Pid(5),
            original,
            from,
            to,
        }
    }

    fn examples() -> Vec<Record> {
        let cpus = |text: &str| Value::Cpus(text.parse().unwrap());
        vec![
            thread(812, Value::Nice(0), Value::Nice(-20), Value::Nice(19)),
            thread(
                812,
                Value::Slice(0),
                Value::Slice(0),
                Value::Slice(1_840_000),
            ),
            thread(9, cpus(""), cpus("0-3"), cpus("1,3")),
            Record::Cgroup {
                inode: 91,
                path: CgroupPath("/a b/ü".into()),
                original: 100,
                from: 100,
                to: 300,
            },
            Record::Guest {
                endpoint: GuestEndpoint {
                    thread: id(44),
                    process: Pid(43),
                    transport: Transport::Socket("/run/a b/ü.sock".into()),
                },
                original: CpuSet::first(4),
            },
            Record::Parts {
                endpoint: GuestEndpoint {
                    thread: id(54),
                    process: Pid(53),
                    transport: Transport::Libvirt {
                        uuid: "6f0d3e3c-7c1a-4b43-9d6e-1f8f3a0f5c11".into(),
                        uri: "qemu+unix:///system?socket=/a b".into(),
                    },
                },
                original: "vcpu0=0-3/emulator=0-3".parse().unwrap(),
                from: "vcpu0=0-3/emulator=0-3".parse().unwrap(),
                to: "vcpu0=2/emulator=0".parse().unwrap(),
            },
            Record::DropParts(id(54)),
            Record::DropGuest(id(44)),
            Record::DropThread(id(9)),
            Record::DropCgroup { inode: 91 },
        ]
    }

    fn text(records: &[Record]) -> Vec<u8> {
        let mut text = format!("quell-journal 1 {BOOT} 4711\n");
        for record in records {
            let body = record.to_string();
            text += &format!("{:016x} {body}\n", checksum(BOOT, body.as_bytes()));
        }
        text.into_bytes()
    }

    #[test]
    fn what_is_written_is_read() {
        let contents = parse(&text(&examples()), BOOT);
        assert_eq!(contents.records, examples());
        assert_eq!(
            (contents.opened_ticks, contents.damaged.len()),
            (Some(4711), 0)
        );
        assert_eq!(parse(b"", BOOT), Contents::default());
    }

    #[test]
    fn records_of_another_boot_are_void_even_without_the_first_line() {
        let text = text(&examples());
        let contents = parse(&text, "other");
        assert_eq!((contents.records.len(), contents.earlier_boot), (0, 10));
        assert_eq!((contents.opened_ticks, contents.damaged.len()), (None, 0));
        let headless = &text[text.iter().position(|&b| b == b'\n').unwrap() + 1..];
        assert_eq!(parse(headless, "other").records, []);
        assert_eq!(parse(headless, BOOT).records, examples());
    }

    #[test]
    fn a_torn_last_line_is_dropped_silently_and_damage_is_counted() {
        let whole = text(&examples());
        for length in 0..whole.len() {
            let contents = parse(&whole[..length], BOOT);
            assert_eq!(contents.damaged, [0usize; 0], "cut at {length}");
            assert!(examples().starts_with(&contents.records));
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            let contents = parse(&damaged, BOOT);
            assert!(
                contents.records.iter().all(|r| examples().contains(r)),
                "flip at {at}"
            );
            assert!(
                contents.records.len() >= 4,
                "flip at {at}: the other lines are used"
            );
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_believe(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert_eq!(parse(&bytes, BOOT).records, []);
        }

        #[test]
        fn lines_that_look_right_need_the_checksum(lines in "([0-9a-f]{16} (thread|cgroup|drop-thread) ([0-9]{1,9} ){1,7}(nice|slice|all)?\n){0,20}") {
            prop_assert_eq!(parse(lines.as_bytes(), BOOT).records, []);
        }

        #[test]
        fn any_body_with_a_checksum_is_parsed_without_panic(body in "(thread|cgroup|guest|parts|drop-thread|drop-cgroup)( [-0-9a-z,/=]{0,12}){0,9}") {
            let line = format!("{:016x} {body}\n", checksum(BOOT, body.as_bytes()));
            for record in parse(line.as_bytes(), BOOT).records {
                let text = record.to_string();
                let line = format!("{:016x} {text}\n", checksum(BOOT, text.as_bytes()));
                prop_assert_eq!(parse(line.as_bytes(), BOOT).records, [record]);
            }
        }
    }

    #[test]
    fn a_file_that_is_no_journal_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("quell.toml");
        let beside = dir.path().join("quell.new");
        for text in ["[agent]\n", "no line end", "\n", "quell-journal 2 x 5\n"] {
            std::fs::write(&path, text).unwrap();
            let error = Journal::open(&path).unwrap_err();
            assert!(matches!(error, ActError::NotAJournal { .. }), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        let error = Journal::open(dir.path()).unwrap_err();
        assert!(matches!(error, ActError::NotAJournal { .. }), "{error}");
        std::fs::write(&beside, "another's").unwrap();
        std::fs::write(&path, "").unwrap();
        Journal::open(&path).unwrap().0.start(&[]).unwrap();
        assert_eq!(std::fs::read_to_string(&beside).unwrap(), "another's");
    }

    #[test]
    fn it_is_rewritten_when_it_has_grown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (mut journal, _) = Journal::open(&path).unwrap();
        journal.start(&[]).unwrap();
        let many: Vec<Record> = (0..6000)
            .map(|n| thread(n, Value::Nice(0), Value::Nice(0), Value::Nice(1)))
            .collect();
        journal.append(&many, false).unwrap();
        assert!(journal.wants_compaction());
        journal.rewrite(&many[..10]).unwrap();
        assert!(!journal.wants_compaction());
        journal.append(&many[10..12], true).unwrap();
        let opened = journal.opened_ticks();
        drop(journal);
        let (_, contents) = Journal::open(&path).unwrap();
        assert_eq!(contents.records, many[..12]);
        assert_eq!(contents.opened_ticks, Some(opened));
    }
}
