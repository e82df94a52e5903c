//! Reading and parsing `/proc`: plain byte parsers that no content can make panic, and reads into a
//! reused buffer. A process that cannot be examined, mostly because it vanished, is `None` and never
//! an error.

use super::ObserveError;
use quell_sys::file::read_entries;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;
use std::sync::Once;

/// Nanoseconds of one unit of `utime`, `stime`, `starttime` and `/proc/stat`: user space sees
/// hundredths of a second (USER_HZ) on every architecture Quell builds for.
pub(crate) const TICK_NS: u64 = 10_000_000;

/// The most bytes read of a file: command lines can be megabytes long.
const LONGEST: usize = 64 * 1024;

/// Set in `flags` for kernel threads (include/linux/sched.h).
const PF_KTHREAD: u64 = 0x0020_0000;

/// The fields of `/proc/PID/stat` that are used. Names are proc(5)'s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat<'a> {
    pub(crate) comm: &'a [u8],
    pub(crate) state: u8,
    pub(crate) ppid: u32,
    pub(crate) kernel_thread: bool,
    pub(crate) utime: u64,
    pub(crate) stime: u64,
    pub(crate) nice: i32,
    /// How many threads the process has; of a zombie those that have not ended, and itself.
    pub(crate) threads: u32,
    pub(crate) starttime: u64,
    pub(crate) processor: u32,
    pub(crate) policy: u32,
}

impl<'a> Stat<'a> {
    /// Parses a stat line. `comm` may hold blanks, parentheses and newlines; no later field does,
    /// so it ends at the last parenthesis.
    pub(crate) fn parse(line: &'a [u8]) -> Option<Stat<'a>> {
        let open = line.iter().position(|&b| b == b'(')?;
        let close = line.iter().rposition(|&b| b == b')')?;
        let comm = line.get(open + 1..close)?;
        let mut fields = words(&line[close + 1..]);
        let state = *fields.next()?.first()?;
        // `nth` skips: counted from the field after the one taken last; numbers as in proc(5).
        let ppid = number(fields.next()?)?; // 4
        let flags = number::<u64>(fields.nth(4)?)?; // 9
        let utime = number(fields.nth(4)?)?; // 14
        let stime = number(fields.next()?)?; // 15
        let nice = signed(fields.nth(3)?)?; // 19
        let threads = number(fields.next()?)?; // 20
        let starttime = number(fields.nth(1)?)?; // 22
        let processor = number(fields.nth(16)?)?; // 39
        let policy = number(fields.nth(1)?)?; // 41
        let kernel_thread = flags & PF_KTHREAD != 0;
        Some(Stat {
            comm,
            state,
            ppid,
            kernel_thread,
            utime,
            stime,
            nice,
            threads,
            starttime,
            processor,
            policy,
        })
    }
}

/// `/proc/PID/schedstat`: `(run ns, wait ns, times switched in)`.
pub(crate) fn parse_schedstat(text: &[u8]) -> Option<(u64, u64, u64)> {
    let mut fields = words(text);
    Some((
        number(fields.next()?)?,
        number(fields.next()?)?,
        number(fields.next()?)?,
    ))
}

/// The value of a `Key:` line of `/proc/PID/status`, if it is a number.
pub(crate) fn status_number(status: &[u8], key: &str) -> Option<u64> {
    let line = status
        .split(|&b| b == b'\n')
        .find(|l| l.starts_with(key.as_bytes()))?;
    number(words(line.strip_prefix(key.as_bytes())?.strip_prefix(b":")?).next()?)
}

/// The CPU lines of `/proc/stat`: `(cpu, busy ticks, steal ticks)` for each online CPU. Busy is
/// user, nice, system, irq and softirq time; waiting for I/O is idle time.
pub(crate) fn parse_cpu_times(text: &[u8]) -> Vec<(u32, u64, u64)> {
    let mut list = Vec::new();
    for line in text.split(|&b| b == b'\n') {
        let Some(rest) = line.strip_prefix(b"cpu") else {
            continue;
        };
        let mut fields = words(rest);
        if !rest.first().is_some_and(u8::is_ascii_digit) {
            continue; // the sum over all CPUs
        }
        let Some(cpu) = fields.next().and_then(number) else {
            continue;
        };
        let times: Vec<u64> = fields.map_while(number).collect();
        let time = |i: usize| times.get(i).copied().unwrap_or(0);
        let busy = [0, 1, 2, 5, 6]
            .into_iter()
            .map(time)
            .fold(0, u64::saturating_add);
        list.push((cpu, busy, time(7)));
    }
    list
}

/// Text fields separated by blanks or newlines.
fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|b| b.is_ascii_whitespace())
        .filter(|w| !w.is_empty())
}

/// A decimal number, digits only.
pub(crate) fn number<T: TryFrom<u64>>(digits: &[u8]) -> Option<T> {
    if digits.is_empty() {
        return None;
    }
    let mut value = 0u64;
    for &b in digits {
        if !b.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(b - b'0'))?;
    }
    T::try_from(value).ok()
}

fn signed(digits: &[u8]) -> Option<i32> {
    match digits.strip_prefix(b"-") {
        Some(rest) => number::<i32>(rest).map(|n| -n),
        None => number(digits),
    }
}

/// Turns failures to read about one process or thread into `None`: the process is gone, Quell may not
/// look at it, or it made itself unreadable (as by an executable whose path is longer than the kernel
/// tells), which must not end the observation of all other processes. Only a lack of file descriptors
/// or memory is an error.
pub(crate) fn present<T>(
    what: impl Display,
    result: io::Result<T>,
) -> Result<Option<T>, ObserveError> {
    let error = match result {
        Ok(value) => return Ok(Some(value)),
        Err(error) => error,
    };
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM) => {
            return Err(ObserveError::read(what.to_string(), error));
        }
        Some(libc::ENOENT | libc::ESRCH | libc::EACCES | libc::EPERM) => {}
        // Logged once: the read may go on failing in every period.
        _ => LOGGED.call_once(|| tracing::debug!(%what, %error, "skipped, as will be its like")),
    }
    Ok(None)
}

static LOGGED: Once = Once::new();

/// A reused buffer for files and paths, so that a period's reads allocate nothing.
#[derive(Default)]
pub(crate) struct Reader {
    bytes: Vec<u8>,
    path: String,
}

impl Reader {
    /// Reads the file at `path` (built with `format_args!`), up to 64 KiB of it.
    pub(crate) fn read(
        &mut self,
        path: std::fmt::Arguments<'_>,
    ) -> Result<Option<&[u8]>, ObserveError> {
        use std::fmt::Write;
        self.path.clear();
        let _ = self.path.write_fmt(path); // writing to a String cannot fail
        self.bytes.resize(LONGEST, 0);
        let result = read_some(Path::new(&self.path), &mut self.bytes);
        Ok(present(&self.path, result)?.map(|length| &self.bytes[..length]))
    }
}

/// Fills the buffer from the file; kernel files are read in as few calls as they allow.
fn read_some(path: &Path, buffer: &mut [u8]) -> io::Result<usize> {
    let mut file = File::open(path)?;
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(n) => length += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(length)
}

/// The numeric names in a directory (`/proc`, `/proc/PID/task`), ascending. `None`: the directory is gone.
pub(crate) fn numbers_in(path: &str) -> Result<Option<Vec<u32>>, ObserveError> {
    let Some(entries) = present(path, std::fs::read_dir(path))? else {
        return Ok(None);
    };
    let mut list: Vec<u32> = entries
        .map_while(Result::ok) // the directory of a process that ends meanwhile fails to go on
        .filter_map(|entry| number(entry.file_name().as_encoded_bytes()))
        .collect();
    list.sort_unstable();
    Ok(Some(list))
}

/// Walks the numeric names of a directory a few at a time, over and over: listing all of `/proc`
/// at once takes milliseconds on a host with thousands of processes.
pub(crate) struct NumberWalk {
    path: String,
    directory: File,
    buffer: Vec<u8>,
    /// Names read and not yet handed out, last first.
    ready: Vec<u32>,
}

/// Room for some 20 names, which is the most that one refill costs.
const WALK_BUFFER: usize = 512;

impl NumberWalk {
    pub(crate) fn open(path: &str) -> Result<NumberWalk, ObserveError> {
        let directory = File::open(path).map_err(|e| ObserveError::read(path, e))?;
        let path = path.to_string();
        Ok(NumberWalk {
            path,
            directory,
            buffer: vec![0; WALK_BUFFER],
            ready: Vec::new(),
        })
    }

    /// The next number; `None` once at the end of the directory, after which the walk starts again.
    pub(crate) fn next(&mut self) -> Result<Option<u32>, ObserveError> {
        while self.ready.is_empty() {
            let filled = read_entries(&self.directory, &mut self.buffer)
                .map_err(|e| ObserveError::read(&self.path, e))?;
            if filled == 0 {
                self.directory
                    .rewind()
                    .map_err(|e| ObserveError::read(&self.path, e))?;
                return Ok(None);
            }
            self.ready = entry_names(&self.buffer[..filled])
                .filter_map(number)
                .collect();
            self.ready.reverse();
        }
        Ok(self.ready.pop())
    }
}

/// The names in the bytes that getdents64(2) returned: records of inode (8 bytes), offset (8), length of
/// the record (2), type (1) and the NUL-terminated name.
fn entry_names(mut records: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes([*records.get(16)?, *records.get(17)?]));
        let name = records.get(19..length)?;
        records = &records[length..];
        name.split(|&b| b == 0).next()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A stat line as this machine's kernel writes it, with the given name.
    fn line(comm: &str) -> String {
        format!(
            "42 ({comm}) S 7 42 42 0 -1 4194304 99 0 0 0 11 22 0 0 20 -5 1 0 133892 3133440 412 \
             18446744073709551615 1 1 1 0 0 0 0 0 0 0 0 0 17 3 0 5 0 0 0 1 1 1 1 1 1 1 0\n"
        )
    }

    #[test]
    fn stat_lines_with_awkward_names() {
        for comm in [
            "cat",
            "a b",
            "(sd-pam)",
            "x) R 1 1",
            "\n",
            "",
            "))((",
            "tab\there",
        ] {
            let line = line(comm);
            let expected = Stat {
                comm: comm.as_bytes(),
                state: b'S',
                ppid: 7,
                kernel_thread: false,
                utime: 11,
                stime: 22,
                nice: -5,
                threads: 1,
                starttime: 133_892,
                processor: 3,
                policy: 5,
            };
            assert_eq!(Stat::parse(line.as_bytes()), Some(expected), "{comm:?}");
        }
        assert_eq!(Stat::parse(b"42 (cat) S 7"), None);
        assert_eq!(Stat::parse(b""), None);
        assert_eq!(Stat::parse(b")("), None);
    }

    #[test]
    fn own_stat_agrees_with_the_system() {
        let mut reader = Reader::default();
        let text = reader
            .read(format_args!("/proc/self/stat"))
            .unwrap()
            .unwrap();
        let stat = Stat::parse(text).unwrap();
        assert_eq!(stat.ppid, std::os::unix::process::parent_id());
        assert!(stat.starttime > 0 && !stat.kernel_thread);
    }

    #[test]
    fn other_files() {
        assert_eq!(
            parse_schedstat(b"664931 123671 2\n"),
            Some((664_931, 123_671, 2))
        );
        assert_eq!(parse_schedstat(b"1 2\n"), None);
        let status = b"Name:\tx\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n";
        assert_eq!(
            status_number(status, "nonvoluntary_ctxt_switches"),
            Some(545)
        );
        assert_eq!(status_number(status, "voluntary_ctxt_switches"), Some(150));
        assert_eq!(status_number(status, "Name"), None);
        assert_eq!(status_number(status, "Nam"), None);
        let stat = b"cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 10 1 20 900 5 2 3 7 4 0\ncpu12 1 0\nintr 5\n";
        assert_eq!(parse_cpu_times(stat), vec![(0, 36, 7), (12, 1, 0)]);
    }

    #[test]
    fn what_is_gone_is_none() {
        let mut reader = Reader::default();
        assert!(
            reader
                .read(format_args!("/proc/4294967295/stat"))
                .unwrap()
                .is_none()
        );
        assert_eq!(numbers_in("/proc/4294967295/task").unwrap(), None);
        assert!(
            numbers_in("/proc/self/task")
                .unwrap()
                .unwrap()
                .contains(&std::process::id())
        );
    }

    #[test]
    fn only_being_out_of_files_or_memory_ends_a_sample() {
        let result = |code| present("x", Err::<(), _>(io::Error::from_raw_os_error(code)));
        for code in [
            libc::ENOENT,
            libc::ESRCH,
            libc::EACCES,
            libc::ENAMETOOLONG,
            libc::EIO,
        ] {
            assert!(result(code).unwrap().is_none(), "{code}");
        }
        for code in [libc::EMFILE, libc::ENFILE, libc::ENOMEM] {
            assert!(result(code).is_err(), "{code}");
        }
    }

    #[test]
    fn a_walk_sees_every_name_once_in_a_pass() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..300 {
            std::fs::create_dir(dir.path().join(n.to_string())).unwrap();
        }
        std::fs::create_dir(dir.path().join("self")).unwrap();
        let mut walk = NumberWalk::open(dir.path().to_str().unwrap()).unwrap();
        for _ in 0..2 {
            let mut seen: Vec<u32> = std::iter::from_fn(|| walk.next().unwrap()).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..300).collect::<Vec<_>>());
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>, key in "[a-z]{0,3}") {
            let _ = Stat::parse(&bytes);
            let _ = parse_schedstat(&bytes);
            let _ = status_number(&bytes, &key);
            let _ = parse_cpu_times(&bytes);
            let _ = number::<u32>(&bytes);
            let _ = entry_names(&bytes).count();
        }

        #[test]
        fn a_name_never_changes_the_other_fields(comm in "[^\0]{0,15}") {
            let with_name = line(&comm);
            let plain = line("cat");
            let expected = Stat { comm: comm.as_bytes(), ..Stat::parse(plain.as_bytes()).unwrap() };
            prop_assert_eq!(Stat::parse(with_name.as_bytes()), Some(expected));
        }
    }
}
