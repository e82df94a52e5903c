//! The conditions that must hold between the steps of a tenant's thread programs.
//!
//! Locks, barriers, queues and pools are not declared: they exist by being named. So a mistyped
//! name shows as an object with one side only: a queue that is filled and never emptied, an event
//! that threads wait for and no thread signals. These are errors, as is every program that would
//! deadlock, spin for ever or lose a request. What is harmless is no error: a signal that no thread
//! waits for, a lock that only one thread takes.

use crate::program::{Count, MAX_TIME_US, Step, ThreadPolicy, ThreadProgram, TimeUs};
use quell_model::config::{ConfigError, nearest};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The greatest depth of nested programs; deeper ones are mistakes (and would recurse deep in the player).
const MAX_DEPTH: usize = 8;

/// The most threads of one tenant.
const MAX_THREADS: u32 = 4096;

/// The threads that use a named object, and the step that first uses it.
#[derive(Default)]
struct Users {
    /// The key of the first step that uses the object.
    key: String,
    /// The number of threads on the first side: they take the lock, pass the barrier, send, fork.
    first: u32,
    /// The number of threads on the second side: they receive, help.
    second: u32,
    /// The index of the last program counted, for each side.
    counted: [Option<usize>; 2],
}

/// Whether a thread holds a request at some point of its program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    No,
    Yes,
    /// After `receive`: the thread holds a request if the message brought one.
    Perhaps,
}

struct Checker<'a> {
    file: &'a Path,
    /// The index of the program being checked, and how many threads run it.
    thread: usize,
    threads: u32,
    named: BTreeMap<(&'static str, String), Users>,
    /// For each lock, the locks taken while it is held, with the key where.
    lock_order: BTreeMap<String, BTreeMap<String, String>>,
    /// The initial value of each semaphore, where a step gives it.
    initial: BTreeMap<String, u32>,
    takes_requests: bool,
    /// The number of lock programs and parallel parts around the step that is being checked.
    within: u32,
}

/// Checks the thread programs of a tenant of that name; `key` is the tenant's key. Returns whether
/// the programs take requests.
pub(crate) fn check_threads(
    threads: &[ThreadProgram],
    tenant: &str,
    file: &Path,
    key: &str,
) -> Result<bool, ConfigError> {
    let mut checker = Checker {
        file,
        thread: 0,
        threads: 0,
        named: BTreeMap::new(),
        lock_order: BTreeMap::new(),
        initial: BTreeMap::new(),
        takes_requests: false,
        within: 0,
    };
    let mut names = BTreeSet::new();
    let mut total = 0u32;
    for (index, thread) in threads.iter().enumerate() {
        let key = format!("{key}.thread[{index}]");
        let error = |field: &str, message: String| {
            Err(ConfigError::at(file, format!("{key}.{field}"), message))
        };
        let sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        // The kernel keeps 15 characters of a thread's name; where there are several threads, a number
        // of up to 4 digits and its dash must fit too.
        let longest = if thread.count == Count::Fixed(1) {
            15
        } else {
            10
        };
        if thread.name.is_empty() || thread.name.len() > longest || !thread.name.chars().all(sound)
        {
            let message = format!("must be 1 to {longest} letters, digits, `.`, `_` or `-`");
            return error(
                "name",
                format!("`{}` {message}", thread.name.escape_debug()),
            );
        }
        if !names.insert(&thread.name) {
            return error(
                "name",
                format!("`{}` is the name of an earlier thread", thread.name),
            );
        }
        if !(thread.spin_us.is_finite() && (0.0..=MAX_TIME_US).contains(&thread.spin_us)) {
            return error(
                "spin_us",
                format!("{} is outside 0 to 60000000", thread.spin_us),
            );
        }
        check_scheduling(thread, tenant, file, &key)?;
        checker.thread = index;
        // One thread for each CPU counts as two threads, since nearly every host has several CPUs.
        checker.threads = thread.count.on(2);
        total = total.saturating_add(checker.threads);
        let key = format!("{key}.program");
        let held = checker.steps(&thread.program, &key, Holds::No, 0)?;
        if held == Holds::Yes {
            let message = "ends without `respond` or `send` for the request it took";
            return Err(ConfigError::at(file, key, message));
        }
    }
    if let Some(index) = spins(threads) {
        let key = format!("{key}.thread[{index}].program");
        let message =
            "would spin for ever; it needs a step that takes time or waits, such as run_us";
        return Err(ConfigError::at(file, key, message));
    }
    if total > MAX_THREADS {
        let message = format!("{total} threads in one tenant are more than {MAX_THREADS}");
        return Err(ConfigError::at(file, format!("{key}.thread"), message));
    }
    checker.both_sides()?;
    checker.no_lock_cycle()?;
    Ok(checker.takes_requests)
}

/// Checks how a program's threads are scheduled, when they begin and how often they run the program.
fn check_scheduling(
    thread: &ThreadProgram,
    tenant: &str,
    file: &Path,
    key: &str,
) -> Result<(), ConfigError> {
    let error = |field: &str, message: String| {
        let whose = format!("(thread `{}` of tenant `{tenant}`)", thread.name);
        let key = format!("{key}.{field}");
        Err(ConfigError::at(file, key, format!("{message} {whose}")))
    };
    let policy = thread.policy;
    let weighs = matches!(policy, ThreadPolicy::Other | ThreadPolicy::Batch);
    if let Some(nice) = thread.nice {
        if !(-20..=19).contains(&nice) {
            return error("nice", format!("{nice} is outside -20 to 19"));
        }
        if !weighs {
            let message = format!("does nothing under policy = \"{}\"", policy.name());
            return error("nice", message);
        }
    }
    if let Some(us) = thread.slice_us {
        if !(100.0..=100_000.0).contains(&us) {
            return error("slice_us", format!("{us} is outside 100 to 100000"));
        }
        if !weighs {
            let message = format!("does nothing under policy = \"{}\"", policy.name());
            return error("slice_us", message);
        }
    }
    match thread.priority {
        Some(priority) if !(1..=99).contains(&priority) => {
            return error("priority", format!("{priority} is outside 1 to 99"));
        }
        Some(_) if !policy.is_realtime() => {
            let message = "is for policy = \"fifo\" or \"rr\"; others have `nice`";
            return error("priority", message.to_string());
        }
        None if policy.is_realtime() => {
            let message = format!(
                "is missing; policy = \"{}\" needs it, 1 to 99",
                policy.name()
            );
            return error("priority", message);
        }
        _ => {}
    }
    if !(0.0..=3600e6).contains(&thread.delay_us) {
        return error(
            "delay_us",
            format!("{} is outside 0 to 3600000000", thread.delay_us),
        );
    }
    match thread.rounds {
        Some(rounds) if !(1..=1_000_000_000).contains(&rounds) => {
            error("rounds", format!("{rounds} is outside 1 to 1000000000"))
        }
        _ => Ok(()),
    }
}

/// The first program whose threads might repeat for ever without time passing: no step takes time,
/// and each wait is for a signal that a program of this kind may send.
fn spins(threads: &[ThreadProgram]) -> Option<usize> {
    let mut paced: Vec<bool> = threads
        .iter()
        .map(|it| it.rounds.is_some() || it.program.iter().any(takes_time))
        .collect();
    let sides: Vec<(Waited<'_>, Waited<'_>)> = threads
        .iter()
        .map(|it| {
            let mut sides = (Waited::new(), Waited::new());
            waits_and_signals(&it.program, &mut sides);
            sides
        })
        .collect();
    loop {
        let waits_for_paced = |name: &(bool, &str)| {
            let mut signallers = sides.iter().zip(&paced);
            signallers.all(|((_, signals), paced)| *paced || !signals.contains(name))
        };
        let next =
            (0..threads.len()).find(|&it| !paced[it] && sides[it].0.iter().any(waits_for_paced));
        match next {
            Some(next) => paced[next] = true,
            None => return paced.iter().position(|paced| !paced),
        }
    }
}

/// Names of semaphores (true) and events (false).
type Waited<'a> = BTreeSet<(bool, &'a str)>;

/// Collects the names that steps wait for and the names that they signal.
fn waits_and_signals<'a>(steps: &'a [Step], (waits, signals): &mut (Waited<'a>, Waited<'a>)) {
    let mut stack: Vec<&Step> = steps.iter().collect();
    while let Some(step) = stack.pop() {
        match step {
            Step::Acquire(acquire) => _ = waits.insert((true, acquire.name.as_str())),
            Step::Release(name) => _ = signals.insert((true, name)),
            Step::Wait(name) | Step::WaitNext(name) => _ = waits.insert((false, name)),
            Step::Signal(name) | Step::Broadcast(name) => _ = signals.insert((false, name)),
            Step::Lock(it) | Step::Read(it) | Step::Write(it) => stack.extend(&it.program),
            Step::Repeat(repeat) => stack.extend(&repeat.program),
            Step::ForkJoin(fork) => stack.extend(&fork.program),
            _ => {}
        }
    }
}

/// Whether a step certainly takes time or waits for something.
fn takes_time(step: &Step) -> bool {
    match step {
        Step::RunUs(time) | Step::SleepUs(time) | Step::ExchangeUs(time) => time.mean_us() > 0.0,
        Step::TimerUs(_)
        // A late timer does not sleep, but its step passes no more often than periods have gone by.
        | Step::Timer(_)
        | Step::Request
        | Step::Barrier(_)
        | Step::Help(_)
        | Step::Receive(_)
        | Step::ForkJoin(_) => true,
        Step::Lock(critical) | Step::Read(critical) | Step::Write(critical) => {
            critical.program.iter().any(takes_time)
        }
        Step::Repeat(repeat) => repeat.program.iter().any(takes_time),
        // The number of processes at a time is bounded.
        Step::Spawn(spawn) => spawn.program.iter().any(takes_time),
        // Semaphores and events may be ready each time, and among threads that do nothing else they are.
        Step::Acquire(_) | Step::Release(_) => false,
        Step::Wait(_) | Step::WaitNext(_) | Step::Signal(_) | Step::Broadcast(_) => false,
        Step::Respond | Step::Send(_) => false,
    }
}

impl Checker<'_> {
    fn error<T>(&self, key: &str, message: impl Into<String>) -> Result<T, ConfigError> {
        Err(ConfigError::at(self.file, key, message))
    }

    /// Checks steps in order. Takes and returns whether the thread holds a request, before and after them.
    fn steps(
        &mut self,
        steps: &[Step],
        key: &str,
        mut holds: Holds,
        depth: usize,
    ) -> Result<Holds, ConfigError> {
        if steps.is_empty() {
            return self.error(key, "has no steps");
        }
        if depth > MAX_DEPTH {
            return self.error(key, format!("is nested more than {MAX_DEPTH} deep"));
        }
        for (index, step) in steps.iter().enumerate() {
            let key = format!("{key}[{index}]");
            holds = self.step(step, &key, holds, depth)?;
        }
        Ok(holds)
    }

    fn step(
        &mut self,
        step: &Step,
        key: &str,
        holds: Holds,
        depth: usize,
    ) -> Result<Holds, ConfigError> {
        match step {
            Step::RunUs(time) => self.time(time, &format!("{key}.run_us"))?,
            Step::SleepUs(time) => self.time(time, &format!("{key}.sleep_us"))?,
            Step::ExchangeUs(time) => self.time(time, &format!("{key}.exchange_us"))?,
            Step::Request => {
                self.takes_requests = true;
                if holds != Holds::No {
                    return self.error(
                        key,
                        "comes before the earlier request is answered or sent on",
                    );
                }
                return Ok(Holds::Yes);
            }
            Step::Respond => {
                if holds == Holds::No {
                    return self.error(
                        key,
                        "has no request to answer; `request` or `receive` first",
                    );
                }
                return Ok(Holds::No);
            }
            Step::Send(queue) => {
                self.use_name("queue", queue, &format!("{key}.send"), 0)?;
                return Ok(Holds::No);
            }
            Step::Receive(queue) => {
                self.use_name("queue", queue, &format!("{key}.receive"), 1)?;
                if holds == Holds::Yes {
                    return self.error(
                        key,
                        "comes before the earlier request is answered or sent on",
                    );
                }
                return Ok(Holds::Perhaps);
            }
            Step::Barrier(name) => self.use_name("barrier", name, &format!("{key}.barrier"), 0)?,
            Step::Help(pool) => self.use_name("pool", pool, &format!("{key}.help"), 1)?,
            Step::TimerUs(period) => {
                if !(1.0..=MAX_TIME_US).contains(period) {
                    let message = format!("{period} is outside 1 to {MAX_TIME_US}");
                    return self.error(&format!("{key}.timer_us"), message);
                }
            }
            Step::Timer(timer) => {
                let period = timer.period_us;
                if !(1.0..=MAX_TIME_US).contains(&period) {
                    let message = format!("{period} is outside 1 to {MAX_TIME_US}");
                    return self.error(&format!("{key}.timer.period_us"), message);
                }
            }
            Step::Acquire(acquire) => {
                let key = format!("{key}.acquire");
                self.use_name("semaphore", &acquire.name, &format!("{key}.name"), 0)?;
                if let Some(initial) = acquire.initial {
                    let earlier = self.initial.insert(acquire.name.clone(), initial);
                    if earlier.is_some() {
                        let message = "is stated before; once is enough";
                        return self.error(&format!("{key}.initial"), message);
                    }
                }
            }
            Step::Release(name) => {
                self.use_name("semaphore", name, &format!("{key}.release"), 1)?;
            }
            Step::Wait(name) => self.use_name("event", name, &format!("{key}.wait"), 0)?,
            Step::WaitNext(name) => self.use_name("event", name, &format!("{key}.wait_next"), 0)?,
            Step::Signal(name) => self.use_name("event", name, &format!("{key}.signal"), 1)?,
            Step::Broadcast(name) => {
                self.use_name("event", name, &format!("{key}.broadcast"), 1)?;
            }
            Step::Lock(critical) | Step::Read(critical) | Step::Write(critical) => {
                let (word, kind, side) = match step {
                    Step::Write(_) => ("write", "rwlock", 0),
                    Step::Read(_) => ("read", "rwlock", 1),
                    _ => ("lock", "lock", 0),
                };
                let key = format!("{key}.{word}");
                self.use_name(kind, &critical.name, &format!("{key}.name"), side)?;
                let named = format!("{kind} `{}`", critical.name);
                let key = format!("{key}.program");
                self.within += 1;
                self.inner(&critical.program, &key, Some((kind, &named)), depth)?;
                self.within -= 1;
            }
            Step::ForkJoin(fork) => {
                let key = format!("{key}.fork_join");
                self.use_name("pool", &fork.pool, &format!("{key}.pool"), 0)?;
                if !(2..=1024).contains(&fork.parts) {
                    let message = format!("{} is outside 2 to 1024", fork.parts);
                    return self.error(&format!("{key}.parts"), message);
                }
                // The parts run on several threads at once, whichever thread forks them.
                let threads = std::mem::replace(&mut self.threads, fork.parts);
                self.within += 1;
                self.inner(&fork.program, &format!("{key}.program"), None, depth)?;
                self.within -= 1;
                self.threads = threads;
            }
            Step::Spawn(spawn) => {
                let key = format!("{key}.spawn");
                if !(1..=MAX_THREADS).contains(&spawn.most) {
                    let message = format!("{} is outside 1 to {MAX_THREADS}", spawn.most);
                    return self.error(&format!("{key}.most"), message);
                }
                let key = format!("{key}.program");
                self.process(&spawn.program, &key)?;
                self.steps(&spawn.program, &key, Holds::No, depth + 1)?;
            }
            Step::Repeat(repeat) => {
                let key = format!("{key}.repeat");
                if !(1..=1_000_000).contains(&repeat.times) {
                    let message = format!("{} is outside 1 to 1000000", repeat.times);
                    return self.error(&format!("{key}.times"), message);
                }
                let key = format!("{key}.program");
                let after = self.steps(&repeat.program, &key, holds, depth + 1)?;
                if after != holds && (after == Holds::Yes || holds == Holds::Yes) {
                    let message = "takes or answers a request in some turns only; do it outside, or do both inside";
                    return self.error(&key, message);
                }
                return Ok(after);
            }
        }
        Ok(holds)
    }

    /// Checks a program that runs with a lock held or as a part of a fork-join: it must not wait for
    /// other threads, except for a lock, and for an event while exactly one `lock` is held, since the
    /// wait gives that lock back.
    fn inner(
        &mut self,
        steps: &[Step],
        key: &str,
        lock: Option<(&str, &str)>,
        depth: usize,
    ) -> Result<(), ConfigError> {
        let alone = self.within == 1 && lock.is_some_and(|(kind, _)| kind == "lock");
        let mut stack: Vec<(&Step, String, bool)> = steps
            .iter()
            .enumerate()
            .map(|(i, step)| (step, format!("{key}[{i}]"), alone))
            .collect();
        while let Some((step, key, alone)) = stack.pop() {
            match step {
                Step::RunUs(_) | Step::SleepUs(_) | Step::ExchangeUs(_) => {}
                Step::TimerUs(_) | Step::Timer(_) => {}
                Step::Release(_) | Step::Signal(_) | Step::Broadcast(_) => {}
                Step::WaitNext(_) if alone => {}
                Step::Repeat(repeat) => {
                    stack.extend(repeat.program.iter().map(|it| (it, key.clone(), alone)));
                }
                Step::Lock(inner) | Step::Read(inner) | Step::Write(inner) => {
                    let (word, kind) = match step {
                        Step::Write(_) => ("write", "rwlock"),
                        Step::Read(_) => ("read", "rwlock"),
                        _ => ("lock", "lock"),
                    };
                    if let Some((_, outer)) = lock {
                        let taken = self.lock_order.entry(outer.to_string()).or_default();
                        taken
                            .entry(format!("{kind} `{}`", inner.name))
                            .or_insert(format!("{key}.{word}.name"));
                    }
                    // The steps inside are checked when that lock's own turn comes, below; here the lock
                    // counts as taken under the outer lock too.
                    stack.extend(inner.program.iter().map(|it| (it, key.clone(), false)));
                }
                _ => {
                    let place = if lock.is_some() {
                        "with a lock held"
                    } else {
                        "in a parallel part"
                    };
                    let message = format!(
                        "cannot stand {place}; run_us, sleep_us, lock, repeat and what does not wait can, \
                         and wait_next with one `lock` held"
                    );
                    return self.error(&key, message);
                }
            }
        }
        self.steps(steps, key, Holds::No, depth + 1)?;
        Ok(())
    }

    /// Checks the program of a process that a thread starts: no step may use an object of the tenant's
    /// threads, for processes share none.
    fn process(&self, steps: &[Step], key: &str) -> Result<(), ConfigError> {
        for (index, step) in steps.iter().enumerate() {
            let key = format!("{key}[{index}]");
            match step {
                Step::RunUs(_) | Step::SleepUs(_) | Step::TimerUs(_) | Step::Spawn(_) => {}
                Step::Repeat(repeat) => {
                    self.process(&repeat.program, &format!("{key}.repeat.program"))?;
                }
                _ => {
                    let message = "cannot stand in a process of its own; \
                                   run_us, sleep_us, timer_us, repeat and spawn can";
                    return self.error(&key, message);
                }
            }
        }
        if !steps.iter().any(takes_time) {
            return self.error(
                key,
                "takes no time; it needs a step that does, such as run_us",
            );
        }
        Ok(())
    }

    fn time(&self, time: &TimeUs, key: &str) -> Result<(), ConfigError> {
        let range = |name: &str, value: f64, high: f64| {
            if value.is_finite() && (0.0..=high).contains(&value) {
                return Ok(());
            }
            self.error(key, format!("{name}{value} is outside 0 to {high}"))
        };
        match *time {
            TimeUs::Constant(time) | TimeUs::Exponential(time) => range("", time, MAX_TIME_US),
            TimeUs::Uniform(low, high) => {
                range("", low, MAX_TIME_US)?;
                range("", high, MAX_TIME_US)?;
                if low > high {
                    return self.error(
                        key,
                        format!("the range from {low} to {high} is upside down"),
                    );
                }
                Ok(())
            }
            TimeUs::Lognormal { mean, sigma } => {
                range("mean ", mean, MAX_TIME_US)?;
                range("sigma ", sigma, 5.0)
            }
            TimeUs::Pareto { mean, alpha } => {
                range("mean ", mean, MAX_TIME_US)?;
                if !(1.01..=100.0).contains(&alpha) {
                    return self.error(key, format!("alpha {alpha} is outside 1.01 to 100"));
                }
                Ok(())
            }
            TimeUs::Bimodal {
                short,
                long,
                share_long,
            } => {
                range("short ", short, MAX_TIME_US)?;
                range("long ", long, MAX_TIME_US)?;
                range("share_long ", share_long, 1.0)
            }
        }
    }

    /// Records that the current program's threads use a named object on this side.
    fn use_name(
        &mut self,
        kind: &'static str,
        name: &str,
        key: &str,
        side: usize,
    ) -> Result<(), ConfigError> {
        if name.is_empty() || name.len() > 64 {
            return self.error(key, format!("a {kind}'s name has 1 to 64 characters"));
        }
        let (thread, threads) = (self.thread, self.threads);
        let users = self.named.entry((kind, name.to_string())).or_default();
        if users.key.is_empty() {
            users.key = key.to_string();
        }
        if users.counted[side].replace(thread) != Some(thread) {
            let count = if side == 0 {
                &mut users.first
            } else {
                &mut users.second
            };
            *count += threads;
        }
        Ok(())
    }

    /// Checks that every named object has threads on each side that it needs.
    fn both_sides(&self) -> Result<(), ConfigError> {
        for ((kind, name), users) in &self.named {
            let fault = match (*kind, users.first, users.second) {
                ("rwlock", 0, _) => "is never written",
                ("rwlock", _, 0) => "is never read",
                ("semaphore", _, 0) => "is never released",
                ("event", _, 0) => "is never signalled",
                ("barrier", 1, _) => "has one thread only, which waits for nobody",
                ("queue", 0, _) => "is never sent to",
                ("queue", _, 0) => "is never received from",
                ("pool", 0, _) => "is never forked to",
                ("pool", _, 0) => "has no thread that helps",
                _ => continue,
            };
            let near = self
                .named
                .keys()
                .filter(|(other_kind, other)| other_kind == kind && other != name)
                .map(|(_, other)| other.as_str());
            let hint = nearest(name, near).map(|other| format!("; did you mean `{other}`?"));
            let message = format!("{kind} `{name}` {fault}{}", hint.unwrap_or_default());
            return self.error(&users.key, message);
        }
        Ok(())
    }

    /// Checks that locks are nested in one order everywhere.
    fn no_lock_cycle(&self) -> Result<(), ConfigError> {
        for (outer, inner) in &self.lock_order {
            for (name, key) in inner {
                let mut seen = BTreeSet::new();
                let mut next = vec![name];
                while let Some(lock) = next.pop() {
                    if lock == outer {
                        let message = if name == outer {
                            format!("{name} is taken again while it is held")
                        } else {
                            format!("{outer} and {name} are nested in both orders and can deadlock")
                        };
                        return self.error(key, message);
                    }
                    if seen.insert(lock) {
                        next.extend(
                            self.lock_order
                                .get(lock)
                                .into_iter()
                                .flatten()
                                .map(|(l, _)| l),
                        );
                    }
                }
            }
        }
        Ok(())
    }
}
