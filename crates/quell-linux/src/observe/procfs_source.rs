//! Threads seen by sampling `/proc`, for hosts where the BPF monitor cannot load.
//!
//! `schedstat` tells how long a thread ran, how long it waited and how often it got a CPU, exactly
//! (a running thread's own figure is up to one scheduler tick old). `status` tells how often it
//! lost its CPU while it still wanted to run; it is read only for threads that ran. Wakeups,
//! wakers, migrations and the causes of waits are not seen, and neither are the lengths of single
//! waits. On kernels without CONFIG_SCHED_INFO only the run time is seen, in steps of 10 ms.
//!
//! Two things `/proc` does not tell are inferred:
//! - State `R` is both running and ready. Of the tenants' `R` threads last seen on a CPU, the thread
//!   that ran longest in the period counts as running, if it ran at all; the others count as ready.
//! - `schedstat` counts a wait when it ends. A thread that was `R` at both ends of a period and got
//!   no CPU in it has waited all of the period, which is counted at once and subtracted from the length of
//!   the wait when `schedstat` counts it. The part of an unfinished wait before its first whole period is
//!   counted when the wait ends; the part that does not fit beside the run time of that period is counted
//!   in the periods after it while the thread goes on wanting a CPU.

use super::ObserveError;
use super::discover::Discovery;
use super::proc::{self, Reader, Stat, TICK_NS};
use super::selector::TenantIndex;
use super::settings::SettingsReader;
use quell_model::{CpuId, Pid, ReadyTime, ThreadId, ThreadRole, ThreadSample, ThreadState, Tid};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) struct ProcfsSource {
    threads: BTreeMap<ThreadId, Thread>,
    /// Whether the kernel keeps `schedstat`.
    schedstat: bool,
    settings: SettingsReader,
    reader: Reader,
    round: u64,
}

/// The state of a thread that is kept from one period to the next.
struct Thread {
    name: Arc<str>,
    counters: Counters,
    wanted_cpu: bool,
    /// Waiting time counted before `schedstat` counts it; below 0, time that it counted and that fitted into
    /// no period yet.
    ahead_ns: i64,
    /// The round that saw the thread last.
    round: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counters {
    run_ns: u64,
    wait_ns: u64,
    switches: u64,
    preemptions: Option<u64>,
}

/// The bounds of a period.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Period {
    /// The length of the period, in ns.
    pub(crate) length_ns: u64,
    /// CLOCK_BOOTTIME at the start of the period, in ns: the clock of thread start times.
    pub(crate) start_boottime_ns: u64,
}

impl ProcfsSource {
    pub(crate) fn new() -> Result<ProcfsSource, ObserveError> {
        let mut reader = Reader::default();
        let own = reader.read(format_args!("/proc/thread-self/schedstat"))?;
        // The caller was given a CPU at least once, so 0 means that the kernel does not count.
        let schedstat = own
            .and_then(proc::parse_schedstat)
            .is_some_and(|(_, _, switches)| switches > 0);
        let (threads, settings) = (BTreeMap::new(), SettingsReader::default());
        Ok(ProcfsSource {
            threads,
            schedstat,
            settings,
            reader,
            round: 0,
        })
    }

    /// Samples all threads of all tenants, by tenant and ascending. A process whose name changed is reported
    /// to `discovery` as having run another program.
    pub(crate) fn sample(
        &mut self,
        discovery: &mut Discovery,
        period: Period,
    ) -> Result<Vec<Vec<ThreadSample>>, ObserveError> {
        self.round += 1;
        let tenants = discovery.roster().places();
        let mut lists = Vec::with_capacity(tenants);
        let mut wanting = Wanting::default();
        for tenant in 0..tenants {
            let mut list = Vec::new();
            let mut renamed = Vec::new();
            for &pid in discovery.members(tenant) {
                let Some(tids) = proc::numbers_in(&format!("/proc/{pid}/task"))? else {
                    continue;
                };
                for tid in tids {
                    let Some(seen) =
                        self.thread(pid, tid, period, |name| discovery.role(pid, tid, name))?
                    else {
                        continue;
                    };
                    if seen.renamed && tid == pid {
                        renamed.push(pid);
                    }
                    if seen.wants_cpu {
                        wanting.add(&seen.sample, (tenant, seen.sample.id));
                    }
                    list.push(seen.sample);
                }
            }
            renamed
                .into_iter()
                .for_each(|pid| discovery.look_again(pid));
            list.sort_unstable_by_key(|thread| thread.id);
            lists.push(list);
        }
        for (tenant, id) in wanting.running() {
            let list: &mut Vec<ThreadSample> = &mut lists[tenant];
            if let Ok(at) = list.binary_search_by_key(&id, |thread| thread.id) {
                list[at].state = ThreadState::Running;
            }
        }
        let round = self.round;
        self.threads.retain(|_, thread| thread.round == round);
        Ok(lists)
    }

    /// Samples one thread; `None` when it is gone.
    fn thread(
        &mut self,
        pid: u32,
        tid: u32,
        period: Period,
        role: impl Fn(&str) -> ThreadRole,
    ) -> Result<Option<Seen>, ObserveError> {
        let counted = counters(&mut self.reader, self.schedstat, pid, tid)?;
        let Some((mut now, stat)) = counted else {
            return Ok(None);
        };
        let id = ThreadId {
            tid: Tid(tid),
            start_ticks: stat.starttime,
        };
        let state = match stat.state {
            b'R' => ThreadState::Ready,
            b'T' | b't' => ThreadState::Stopped,
            _ => ThreadState::Blocked,
        };
        let wants_cpu = state == ThreadState::Ready;
        let cpu = CpuId(stat.processor);
        let known = self.threads.get(&id);
        let same_name = known.filter(|t| t.name.as_bytes() == stat.comm);
        let name = match same_name {
            Some(thread) => Arc::clone(&thread.name),
            None => Arc::from(String::from_utf8_lossy(stat.comm)),
        };
        let renamed = known.is_some() && same_name.is_none();
        let Some(settings) = self.settings.read(tid)? else {
            return Ok(None);
        };

        now.preemptions = known.and_then(|thread| thread.counters.preemptions);
        let idle = known.is_some_and(|thread| thread.counters == now);
        if !idle {
            let text = self
                .reader
                .read(format_args!("/proc/{pid}/task/{tid}/status"))?;
            let status = text.unwrap_or_default();
            now.preemptions = proc::status_number(status, "nonvoluntary_ctxt_switches");
        }

        let figures = Figures::new(known, id, now, wants_cpu, period);
        let seen = |value: u64| self.schedstat.then_some(value);
        let ready = seen(figures.ready_ns).map(|sum_ns| ReadyTime {
            sum_ns,
            count: Some(figures.switches),
            histogram: None,
        });
        let sample = ThreadSample {
            id,
            process: Pid(pid),
            role: role(&name),
            name: Arc::clone(&name),
            forked_by: None,
            state,
            cpu,
            run_ns: figures.run_ns,
            ready,
            throttled_ns: None,
            preemptions: figures.preemptions,
            wakeups: None,
            wakers: None,
            switches: seen(figures.switches),
            migrations: None,
            settings,
        };
        self.threads.insert(
            id,
            Thread {
                name,
                counters: now,
                wanted_cpu: wants_cpu,
                ahead_ns: figures.ahead_ns,
                round: self.round,
            },
        );
        Ok(Some(Seen {
            sample,
            wants_cpu,
            renamed,
        }))
    }
}

/// Reads a thread's counters, except preemptions, and its state; `None` when the thread is gone.
fn counters(
    reader: &mut Reader,
    schedstat: bool,
    pid: u32,
    tid: u32,
) -> Result<Option<(Counters, Stat<'_>)>, ObserveError> {
    let mut now = Counters::default();
    if schedstat {
        let text = reader.read(format_args!("/proc/{pid}/task/{tid}/schedstat"))?;
        let Some((run, wait, switches)) = text.and_then(proc::parse_schedstat) else {
            return Ok(None);
        };
        now = Counters {
            run_ns: run,
            wait_ns: wait,
            switches,
            preemptions: None,
        };
    }
    let text = reader.read(format_args!("/proc/{pid}/task/{tid}/stat"))?;
    let Some(stat) = text.and_then(Stat::parse) else {
        return Ok(None);
    };
    if matches!(stat.state, b'Z' | b'X' | b'x') {
        return Ok(None); // exited, and its parent has not reaped it yet
    }
    if !schedstat {
        now.run_ns = stat
            .utime
            .saturating_add(stat.stime)
            .saturating_mul(TICK_NS);
    }
    Ok(Some((now, stat)))
}

/// A thread's figures of a period.
struct Figures {
    run_ns: u64,
    ready_ns: u64,
    switches: u64,
    preemptions: Option<u64>,
    /// [`Thread::ahead_ns`] after the period.
    ahead_ns: i64,
}

impl Figures {
    /// The figures by the counters `now`. `known`: the thread as it was kept after the period before.
    fn new(
        known: Option<&Thread>,
        id: ThreadId,
        now: Counters,
        wants_cpu: bool,
        period: Period,
    ) -> Figures {
        let born_in_period = id.start_ticks.saturating_mul(TICK_NS) >= period.start_boottime_ns;
        let before = match known {
            Some(thread) => thread.counters,
            // All that the thread did was in this period.
            None if born_in_period => Counters {
                preemptions: Some(0),
                ..Counters::default()
            },
            // The thread existed before; its earlier counts do not belong to this period.
            None => now,
        };
        let wanted_cpu = known.is_some_and(|thread| thread.wanted_cpu);
        let run_ns = now
            .run_ns
            .saturating_sub(before.run_ns)
            .min(period.length_ns);
        let switches = now.switches.saturating_sub(before.switches);
        let waited = Waited {
            counted_ns: now.wait_ns.saturating_sub(before.wait_ns),
            ahead_ns: known.map_or(0, |thread| thread.ahead_ns),
            wants_cpu,
        };
        let nothing_else = wanted_cpu && wants_cpu && run_ns == 0 && switches == 0;
        let (ready_ns, ahead_ns) = match nothing_else {
            true => waited.all_of(period.length_ns),
            false => waited.within(period.length_ns - run_ns, period.length_ns),
        };
        let preemptions = now.preemptions.zip(before.preemptions);
        Figures {
            run_ns,
            ready_ns,
            switches,
            preemptions: preemptions.map(|(now, before)| now.saturating_sub(before)),
            ahead_ns,
        }
    }
}

/// The waiting of a thread in a period, as far as it is known.
struct Waited {
    /// The increase of `schedstat`'s waiting time.
    counted_ns: u64,
    /// Time that earlier periods counted ahead of `schedstat`; below 0, time that they had no room for.
    ahead_ns: i64,
    /// Whether the thread waits at the end of the period.
    wants_cpu: bool,
}

impl Waited {
    /// `(ready time, counted ahead from now on)` of a thread that waited the whole period.
    fn all_of(&self, period_ns: u64) -> (u64, i64) {
        (period_ns, self.ahead_after(period_ns, period_ns))
    }

    /// `(ready time, counted ahead from now on)` of any other thread, which waited at most `limit_ns` of a
    /// period of `period_ns`.
    fn within(&self, limit_ns: u64, period_ns: u64) -> (u64, i64) {
        let due_ns = i64::try_from(self.counted_ns).unwrap_or(i64::MAX);
        let due_ns = due_ns.saturating_sub(self.ahead_ns).max(0) as u64;
        let ready_ns = due_ns.min(limit_ns);
        let left_ns = if self.wants_cpu {
            self.ahead_after(ready_ns, period_ns)
        } else {
            0
        };
        (ready_ns, left_ns)
    }

    /// The time counted ahead after `ready_ns` are counted; never more than a period behind, which is the
    /// most that one wait can miss.
    fn ahead_after(&self, ready_ns: u64, period_ns: u64) -> i64 {
        let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
        let ahead_ns = self.ahead_ns.saturating_add(signed(ready_ns));
        let ahead_ns = ahead_ns.saturating_sub(signed(self.counted_ns));
        ahead_ns.max(-signed(period_ns))
    }
}

struct Seen {
    sample: ThreadSample,
    wants_cpu: bool,
    renamed: bool,
}

/// Per CPU, the thread in state `R` that ran longest.
#[derive(Default)]
struct Wanting(BTreeMap<CpuId, (u64, (TenantIndex, ThreadId))>);

impl Wanting {
    fn add(&mut self, sample: &ThreadSample, thread: (TenantIndex, ThreadId)) {
        let best = self.0.entry(sample.cpu).or_insert((0, thread));
        if sample.run_ns > best.0 {
            *best = (sample.run_ns, thread);
        }
    }

    fn running(self) -> impl Iterator<Item = (TenantIndex, ThreadId)> {
        self.0
            .into_values()
            .filter(|(run_ns, _)| *run_ns > 0)
            .map(|(_, thread)| thread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_wait_over_several_periods_is_counted_once() {
        // The thread becomes ready 10 before the first period's end, waits two periods of 80 and gets a CPU
        // 15 into the fourth, when schedstat counts all 185 at once.
        let first = Waited {
            counted_ns: 0,
            ahead_ns: 0,
            wants_cpu: true,
        }
        .within(80, 80);
        assert_eq!(first, (0, 0));
        let second = Waited {
            counted_ns: 0,
            ahead_ns: first.1,
            wants_cpu: true,
        }
        .all_of(80);
        assert_eq!(second, (80, 80));
        let third = Waited {
            counted_ns: 0,
            ahead_ns: second.1,
            wants_cpu: true,
        }
        .all_of(80);
        assert_eq!(third, (80, 160));
        let fourth = Waited {
            counted_ns: 185,
            ahead_ns: third.1,
            wants_cpu: false,
        }
        .within(80, 80);
        assert_eq!(fourth, (25, 0));
    }

    #[test]
    fn who_never_sleeps_ran_or_waited_all_the_time() {
        // The thread runs 70 and waits 30, over and over, in periods of 110.
        let (mut at, mut ahead_ns, mut sum) = (0, 0, 0);
        for _ in 0..100 {
            let (mut run_ns, mut counted_ns) = (0, 0);
            for now in at..at + 110 {
                run_ns += u64::from(now % 100 < 70);
                counted_ns += if now % 100 == 99 { 30 } else { 0 };
            }
            at += 110;
            let waited = Waited {
                counted_ns,
                ahead_ns,
                wants_cpu: true,
            };
            let (ready_ns, ahead) = waited.within(110 - run_ns, 110);
            ahead_ns = ahead;
            sum += run_ns + ready_ns;
        }
        assert!((at - 30..=at).contains(&sum), "{sum} of {at}");
    }

    #[test]
    fn of_the_threads_that_want_a_cpu_the_one_that_ran_longest_has_it() {
        let mut source = ProcfsSource::new().unwrap();
        let period = Period {
            length_ns: 1_000_000_000,
            start_boottime_ns: 0,
        };
        let pid = std::process::id();
        // The calling thread is running while it looks at itself; its run time shows from the next
        // scheduler tick on.
        let start = std::time::Instant::now();
        while start.elapsed() < std::time::Duration::from_millis(50) {}
        let own = nix::unistd::gettid().as_raw() as u32;
        let seen = source
            .thread(pid, own, period, |_| ThreadRole::Ordinary)
            .unwrap()
            .unwrap();
        assert!(seen.wants_cpu && seen.sample.run_ns > 0);
        let mut wanting = Wanting::default();
        let other = ThreadSample {
            run_ns: seen.sample.run_ns - 1,
            ..seen.sample.clone()
        };
        wanting.add(&other, (0, other.id));
        wanting.add(&seen.sample, (1, seen.sample.id));
        assert_eq!(wanting.running().collect::<Vec<_>>(), [(1, seen.sample.id)]);

        let starved = ThreadSample {
            run_ns: 0,
            ..seen.sample
        };
        let mut wanting = Wanting::default();
        wanting.add(&starved, (0, starved.id));
        assert_eq!(
            wanting.running().count(),
            0,
            "it got no CPU, so it has none"
        );
    }

    proptest! {
        /// The time counted ahead and the time counted by the kernel never add up to more than was waited.
        #[test]
        fn never_twice(whole in 0usize..20, first in 0u64..80, last in 0u64..80) {
            let (mut sum, mut ahead_ns) = (0, 0);
            for _ in 0..whole {
                let (ns, ahead) = Waited { counted_ns: 0, ahead_ns, wants_cpu: true }.all_of(80);
                (sum, ahead_ns) = (sum + ns, ahead);
            }
            let counted_ns = first + 80 * whole as u64 + last;
            let (ns, left) = Waited { counted_ns, ahead_ns, wants_cpu: false }.within(80, 80);
            prop_assert!(sum + ns <= counted_ns);
            prop_assert!(sum + ns >= counted_ns.saturating_sub(80));
            prop_assert_eq!(left, 0);
        }
    }
}
