//! Load of forked processes that call nothing but the kernel, and the scheduler under test.

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork};
use quell_bench::workload::player::do_nothing;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const STATE: &str = "/sys/kernel/sched_ext/state";

pub fn sleep_ms(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

pub fn state() -> String {
    fs::read_to_string(STATE).unwrap().trim().to_string()
}

/// A running `quell sched`.
pub struct Sched {
    pub child: Child,
    log: PathBuf,
}

impl Sched {
    pub fn start(options: &[&str]) -> Sched {
        assert_eq!(state(), "disabled");
        let log = PathBuf::from("/tmp/sched.jsonl");
        let child = Command::new("quell")
            .args(["sched", "--json", "--interval", "0.1"])
            .args(options)
            .stdout(File::create(&log).unwrap())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut sched = Sched { child, log };
        let began = Instant::now();
        while state() != "enabled" {
            assert!(sched.child.try_wait().unwrap().is_none(), "it ended");
            assert!(began.elapsed() < Duration::from_secs(300), "{}", state());
            sleep_ms(5);
        }
        println!("loaded in {} ms", began.elapsed().as_millis());
        sched
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// The scheduler's statistics, at most 100 ms old.
    pub fn stats(&self) -> serde_json::Value {
        let text = fs::read_to_string(&self.log).unwrap();
        // The last line may be half written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole
            .lines()
            .last()
            .map_or(serde_json::Value::Null, |line| {
                serde_json::from_str(line).unwrap()
            })
    }

    /// Ends the scheduler in order, which must have been in charge until now; gives its last statistics.
    pub fn stop(mut self) -> serde_json::Value {
        assert_eq!(state(), "enabled", "thrown out: {}", self.stats());
        kill(self.pid(), Signal::SIGINT).unwrap();
        assert!(self.child.wait().unwrap().success());
        let stats = self.stats();
        assert!(stats["exit"].is_null(), "{stats}");
        wait_until("the kernel is in charge again", || state() == "disabled");
        stats
    }
}

impl Drop for Sched {
    fn drop(&mut self) {
        // The process has ended already unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(30), "not: {what}");
        sleep_ms(10);
    }
}

/// A process that runs on and on, or now and then.
pub struct Load {
    pub pid: Pid,
}

/// Processes that were killed and are to be waited for: each needs a CPU to exit, so all are killed first.
static KILLED: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

impl Drop for Load {
    fn drop(&mut self) {
        // The process is not reaped yet, so the id is its own.
        let _ = kill(self.pid, Signal::SIGKILL);
        if let Ok(mut killed) = KILLED.lock() {
            killed.push(self.pid);
        }
    }
}

/// Waits until all loads that were dropped are gone.
pub fn reap() {
    for pid in KILLED.lock().unwrap().drain(..) {
        waitpid(pid, None).unwrap();
    }
}

/// The scheduling settings of a load's thread.
#[derive(Debug, Clone, Default)]
pub struct How {
    pub nice: i32,
    /// The CPUs of its affinity, as bits; 0: any CPU.
    pub cpus: u64,
    pub idle: bool,
    pub fifo: bool,
    pub cgroup: Option<PathBuf>,
}

impl How {
    pub fn nice(nice: i32) -> How {
        How {
            nice,
            ..How::default()
        }
    }

    pub fn on(cpus: u64) -> How {
        How {
            cpus,
            ..How::default()
        }
    }

    pub fn within(cgroup: &Path) -> How {
        How {
            cgroup: Some(cgroup.to_path_buf()),
            ..How::default()
        }
    }
}

pub fn set_affinity(tid: i32, cpus: u64) {
    // SAFETY: the mask is eight readable bytes, as the second argument says.
    let result = unsafe { libc::sched_setaffinity(tid, 8, std::ptr::from_ref(&cpus).cast()) };
    assert_eq!(result, 0, "{cpus:x}: {}", std::io::Error::last_os_error());
}

pub fn set_nice(tid: i32, nice: i32) {
    // SAFETY: takes integers only.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, tid as u32, nice) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Sets a thread's policy; `tid` 0 is the calling thread.
pub fn set_policy(tid: i32, policy: i32) {
    let parameter = libc::sched_param {
        sched_priority: i32::from(policy == libc::SCHED_FIFO),
    };
    // SAFETY: the parameter outlives the call.
    let result = unsafe { libc::sched_setscheduler(tid, policy, &parameter) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Forks a process that calls `work` for ever.
pub fn start(how: &How, mut work: impl FnMut()) -> Load {
    let (gate, open) = nix::unistd::pipe().unwrap();
    // SAFETY: the child only reads, runs `work`, which allocates nothing, and never returns.
    let pid = match unsafe { fork() }.unwrap() {
        ForkResult::Parent { child } => child,
        ForkResult::Child => {
            drop(open);
            // SAFETY: takes integers only.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            let mut byte = [0];
            let _ = nix::unistd::read(&gate, &mut byte);
            loop {
                work();
            }
        }
    };
    let load = Load { pid };
    let raw = pid.as_raw();
    if let Some(cgroup) = &how.cgroup {
        fs::write(cgroup.join("cgroup.procs"), raw.to_string()).unwrap();
    }
    if how.cpus != 0 {
        set_affinity(raw, how.cpus);
    }
    if how.nice != 0 {
        set_nice(raw, how.nice);
    }
    if how.idle || how.fifo {
        set_policy(
            raw,
            if how.idle {
                libc::SCHED_IDLE
            } else {
                libc::SCHED_FIFO
            },
        );
    }
    drop(open);
    load
}

pub fn spin(how: &How) -> Load {
    start(how, do_nothing)
}

/// A process that maps `pages` pages and exits on a sign, so that its exit is work for the kernel.
pub fn exits(how: &How, pages: usize, sign: &'static AtomicU64) -> Load {
    const PAGE: usize = 4096;
    let mut mapped = false;
    start(how, move || {
        if sign.load(Ordering::Relaxed) > 0 {
            // SAFETY: ends this process; nothing of it is needed any more.
            unsafe { libc::_exit(0) };
        }
        if !mapped {
            let (size, access) = (pages * PAGE, libc::PROT_READ | libc::PROT_WRITE);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a fresh mapping of this size; its pages are written before any other use.
            unsafe {
                let at = libc::mmap(std::ptr::null_mut(), size, access, flags, -1, 0);
                libc::madvise(at, size, libc::MADV_NOHUGEPAGE);
                for page in 0..pages {
                    at.cast::<u8>().add(page * PAGE).write_volatile(1);
                }
            }
            mapped = true;
        }
        nap(10_000_000);
    })
}

/// Whether a process has exited and is not reaped yet.
pub fn has_exited(pid: Pid) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    text.rsplit(") ").next().unwrap().starts_with('Z')
}

pub fn spinners(count: usize, how: &How) -> Vec<Load> {
    (0..count).map(|_| spin(how)).collect()
}

pub fn now_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the time outlives the call.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Runs for this much CPU time.
pub fn burn(ns: u64) {
    let until = now_ns(libc::CLOCK_THREAD_CPUTIME_ID) + ns;
    while let left @ 1.. = until.saturating_sub(now_ns(libc::CLOCK_THREAD_CPUTIME_ID)) {
        // Half of the time that is left, and at most 10 us, before the clock is read again.
        (0..(left / 1000).clamp(1, 20)).for_each(|_| do_nothing());
    }
}

pub fn nap(ns: u64) {
    let time = libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    };
    // SAFETY: the time outlives the call, and no remaining time is asked for.
    unsafe { libc::nanosleep(&time, std::ptr::null_mut()) };
}

/// Memory that forked processes share with their parent.
pub fn shared() -> &'static [AtomicU64; 64] {
    // SAFETY: a fresh mapping of zeroes, large enough, aligned, and never unmapped.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        &*at.cast()
    }
}

/// A process that runs for `run_ns` and sleeps for `sleep_ns`, again and again; it counts its turns, and
/// notes by how much the longest turn was too long.
pub fn periodic(
    how: &How,
    run_ns: u64,
    sleep_ns: u64,
    turns: &'static AtomicU64,
    worst: &'static AtomicU64,
) -> Load {
    start(how, move || {
        nap(sleep_ns);
        let began = now_ns(libc::CLOCK_MONOTONIC);
        burn(run_ns);
        let took = now_ns(libc::CLOCK_MONOTONIC) - began;
        worst.fetch_max(took.saturating_sub(run_ns), Ordering::Relaxed);
        turns.fetch_add(1, Ordering::Relaxed);
    })
}

/// CPU time of a process's first thread, and the time that it waited for a CPU, in ns.
pub fn times(pid: Pid) -> (u64, u64) {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
    let mut numbers = text.split_whitespace().map(|word| word.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// The CPUs' worth of time that each load gets within `ms`.
pub fn each(loads: &[&Load], ms: u64) -> Vec<f64> {
    let read = || -> Vec<u64> { loads.iter().map(|load| times(load.pid).0).collect() };
    let (began, before) = (now_ns(libc::CLOCK_MONOTONIC), read());
    sleep_ms(ms);
    let (took, after) = (now_ns(libc::CLOCK_MONOTONIC) - began, read());
    after
        .iter()
        .zip(before)
        .map(|(a, b)| (a - b) as f64 / took as f64)
        .collect()
}

/// The CPUs' worth of time that each group of loads gets within `ms`.
pub fn sums(groups: &[&[Load]], ms: u64) -> Vec<f64> {
    let all: Vec<&Load> = groups.iter().flat_map(|group| group.iter()).collect();
    let mut shares = each(&all, ms).into_iter();
    groups
        .iter()
        .map(|group| shares.by_ref().take(group.len()).sum())
        .collect()
}

/// Time that all CPUs were idle since boot, in units of 10 ms.
pub fn idle_ticks() -> u64 {
    let text = fs::read_to_string("/proc/stat").unwrap();
    text.lines()
        .next()
        .unwrap()
        .split_whitespace()
        .nth(4)
        .unwrap()
        .parse()
        .unwrap()
}

/// A cgroup with the cpu controller, removed when dropped.
pub struct Cgroup(pub PathBuf);

impl Cgroup {
    pub fn new(path: &str, weight: u32) -> Cgroup {
        let root = Path::new("/sys/fs/cgroup");
        let at = root.join(path);
        fs::write(
            at.parent().unwrap().join("cgroup.subtree_control"),
            "+cpu +pids",
        )
        .unwrap();
        fs::create_dir(&at).unwrap();
        let cgroup = Cgroup(at);
        cgroup.weight(weight);
        cgroup
    }

    /// Sets the bandwidth limit; all times in us of CPU time.
    pub fn limit(&self, quota: u64, period: u64, burst: u64) {
        // A burst may not be longer than the quota that is set.
        fs::write(self.0.join("cpu.max.burst"), "0").unwrap();
        fs::write(self.0.join("cpu.max"), format!("{quota} {period}")).unwrap();
        fs::write(self.0.join("cpu.max.burst"), burst.to_string()).unwrap();
    }

    /// The CPU time of the cgroup's threads so far, in us.
    pub fn used_us(&self) -> u64 {
        let text = fs::read_to_string(self.0.join("cpu.stat")).unwrap();
        let used = text
            .lines()
            .find_map(|line| line.strip_prefix("usage_usec "));
        used.unwrap().parse().unwrap()
    }

    pub fn weight(&self, weight: u32) {
        fs::write(self.0.join("cpu.weight"), weight.to_string()).unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        reap();
        // A process leaves its cgroup a moment after it was reaped.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            sleep_ms(10);
        }
        eprintln!("{} stays", self.0.display());
    }
}
