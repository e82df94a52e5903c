//! The monitor's accounting over random histories, compared with what the threads did.
//!
//! Problem: now and then a switch or a wakeup does not reach the monitor's programs. Whatever is missed, the
//! figures that user space shows must not go back, must fit into the time, and must be off by no more than
//! the missed events make unknowable.
//!
//! Approach: a model of the kernel's scheduler makes legal histories of some threads on some CPUs: wakeups,
//! switches, migrations, births, exits, limits, processes that join a tenant and leave it. It keeps each
//! thread's true times and the fields of its task, and passes each event to the programs, compiled natively
//! (`bpf/native/books.c`), or drops it. It reads the counters as [`Monitor::read`](super::Monitor::read)
//! does.
//!
//! What must hold at each reading, whether or not every event was passed on:
//!
//! - The run time and the limited time of a thread never go back, nor does the sum of its ready and limited
//!   time. (A wait that goes on counts as ready time; at its end it is known how much of it was limited
//!   time.) Where there are no limits, ready time does not go back either.
//! - Since a thread came under the monitor it ran and waited for no longer than that is ago. The same holds
//!   between two readings, with one exception: a wait begins with the waker's call, and where the first
//!   reading came after the call and before the wakeup event, the time of the wait before that reading is
//!   shown with the second reading.
//! - The causes of a tenant's waits, those of waits that go on included, sum to the waiting time of its
//!   threads, to the ns.
//! - The numbers of ready and of blocked threads of a tenant equal the numbers of threads that are shown in
//!   these states.
//! - The run time of a thread is off by at most the time for which it is unknown whether the thread runs:
//!   from a lost switch to or from it until its next switch that is seen, its exit or a pass over all tasks.
//!   Where the switch to it was seen and only the switch from it is lost, this is unknown only until the next
//!   switch on its CPU that is seen: until the thread that leaves the CPU then had arrived (on an idle CPU:
//!   until that switch), or until the last reading if that was later, because time that was shown is not
//!   taken back.
//! - The sum of its ready and limited time is off by at most the time for which it is unknown whether the
//!   thread waits: from a lost switch on as above without the exception, and from the waker's call of a lost
//!   wakeup on until the same events. Where only the call is lost, until the wakeup; and of a wait that goes
//!   on, the time between the call and a wakeup not seen yet is not shown yet.
//! - Where the thread was known to wait and only the switch to it is lost, the switch from it tells
//!   everything: neither time is off by more than the last reading had shown already. (Not if the last switch
//!   seen on its CPU was to the same thread.)
//! - Nothing becomes unknown because of other threads' events, or of a migration that is not seen. The state
//!   of a thread that was on a CPU in the middle of going to sleep when it came under the monitor, or at a
//!   pass, is unknown until its next switch.
//!
//! So where all events are seen, run and ready times are exact, and the state that is shown is the true
//! state.

use super::layout::{CpuLog, OCCASIONS_BYTES, OccasionsCopy, Stats, ThreadSlot, WaitRow, cause};
use super::reading::RawThread;
use proptest::prelude::*;
use quell_model::ThreadState;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

const CPUS: usize = 4;
const TASKS: usize = 32;
const THREADS: usize = 12;
const SLOTS: usize = 20;
const TENANTS: usize = 3;
const GROUPS: usize = 3;
const NO_TENANT: u32 = u32::MAX;

/// The task states of the kernel.
const RUNNABLE: u32 = 0;
const ASLEEP: u32 = 1;
const DEAD: u32 = 0x80;
const WAKING: u32 = 0x200;

/// The fields of a task, `struct books_task`.
#[repr(C)]
struct Task {
    start_ns: u64,
    arrival_ns: u64,
    pid: u32,
    tgid: u32,
    group: u32,
    cpu: u32,
    state: u32,
    on_cpu: u32,
    on_rq: u32,
    exiting: u32,
    live: u32,
}

/// The functions of the native build. Each works on memory of the calling thread only, and accepts any task
/// number below [`TASKS`], any CPU below [`CPUS`] and any group below [`GROUPS`].
mod native {
    use super::{CpuLog, Stats, Task, ThreadSlot, WaitRow};

    #[link(name = "quell_books", kind = "static")]
    unsafe extern "C" {
        pub safe fn books_reset();
        pub safe fn books_task(number: u32, it: &Task);
        pub safe fn books_at(now: u64, cpu: u32, current: u32);
        pub safe fn books_queue(cpu: u32, clock: u64, steal_ns: u64);
        pub safe fn books_limited(group: u32, cpu: u32, ns: u64);
        pub safe fn books_assign(tgid: u32, tenant: u32);
        pub safe fn books_switch(preempt: bool, prev: u32, next: u32);
        pub safe fn books_waking(number: u32);
        pub safe fn books_wakeup(number: u32);
        pub safe fn books_new(number: u32);
        pub safe fn books_migrate(number: u32, to: u32);
        pub safe fn books_exit(number: u32);
        pub safe fn books_sync(number: u32);
        pub safe fn books_see_again(number: u32);
        pub safe fn books_told(now: u64);
        pub safe fn books_free(slot: u32);
        pub safe fn books_slot(number: u32) -> u32;
        pub safe fn books_slots() -> *const ThreadSlot;
        pub safe fn books_logs() -> *const CpuLog;
        pub safe fn books_rows() -> *const WaitRow;
        pub safe fn books_occasions() -> *const u8;
        pub safe fn books_stats() -> *const Stats;
    }
}
use native::*;

fn slot(index: usize) -> &'static ThreadSlot {
    assert!(index < SLOTS);
    // SAFETY: the array has SLOTS elements, of the layout that both sides assert, and lives as long as this
    // thread, beyond which no reference is kept; all fields are atomics.
    unsafe { &*books_slots().add(index) }
}

fn log(cpu: u32) -> &'static CpuLog {
    assert!((cpu as usize) < CPUS);
    // SAFETY: as for `slot`.
    unsafe { &*books_logs().add(cpu as usize) }
}

fn row(tenant: usize) -> &'static WaitRow {
    assert!(tenant < TENANTS);
    // SAFETY: as for `slot`.
    unsafe { &*books_rows().add(tenant) }
}

fn stats() -> &'static Stats {
    // SAFETY: as for `slot`.
    unsafe { &*books_stats() }
}

fn occasions(tenant: usize, now: u64) -> OccasionsCopy {
    assert!(tenant < TENANTS);
    let mut bytes = [0; OCCASIONS_BYTES];
    // SAFETY: as for `slot`; integers without padding, to which nothing writes while they are copied.
    unsafe {
        let from = books_occasions().add(tenant * OCCASIONS_BYTES);
        from.copy_to_nonoverlapping(bytes.as_mut_ptr(), OCCASIONS_BYTES);
    }
    OccasionsCopy::decode(&bytes, now).unwrap()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Asleep,
    /// The waker called the thread at this time; the wakeup event has not come yet.
    Called(u64),
    Ready,
    Running,
}

struct Thread {
    task: Task,
    place: Place,
    /// The time at which the thread got its CPU last.
    arrived_ns: u64,
    /// The slot and the generation of the thread's present book.
    book: Option<(u32, u32)>,
}

/// The event that ends the time for which something about a thread is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Until {
    Wakeup,
    Switch,
}

/// The truth about one thread while it was in one slot.
#[derive(Debug)]
struct Book {
    tenant: u16,
    begun: u64,
    doing: Place,
    since: u64,
    run_ns: u64,
    ready_ns: u64,
    ended: bool,
    /// Since when it is unknown whether the thread waits, and the event that ends this.
    unknown: Option<(u64, Until)>,
    unknown_ns: u64,
    /// Since when it is unknown whether the thread runs; and the CPU on which it was known to run, if no
    /// other event of it was lost.
    run_unknown: Option<(u64, Option<usize>)>,
    run_unknown_ns: u64,
    /// The CPU of the switch to the thread, if that was its last event seen.
    arrived: Option<usize>,
    /// The CPU of the switch to the thread, if that event was lost last and the thread was known to wait.
    arrived_unseen: Option<usize>,
    /// The time of the last waker's call seen; no wakeup or switch was seen since.
    called: Option<u64>,
    /// The last reading: its time and contents, and how much the next reading may show of the time before it.
    shown: Option<(u64, RawThread, u64)>,
}

impl Book {
    fn turn(&mut self, to: Place, now: u64) {
        match self.doing {
            Place::Running => self.run_ns += now - self.since,
            Place::Ready | Place::Called(_) => self.ready_ns += now - self.since,
            Place::Asleep => {}
        }
        (self.doing, self.since) = (to, now);
    }

    /// From then on it is unknown whether the thread waits.
    fn lose(&mut self, from: u64, until: Until) {
        let from = from.max(self.begun);
        let (earlier, other) = self.unknown.unwrap_or((from, until));
        self.unknown = Some((earlier.min(from), until.max(other)));
        self.arrived_unseen = None;
    }

    /// From then on it is unknown whether the thread waits or runs.
    fn lose_all(&mut self, from: u64, runs_on: Option<usize>) {
        self.run_unknown = match self.run_unknown {
            Some((earlier, _)) => Some((earlier, None)),
            None => Some((from, runs_on)),
        };
        self.arrived = None;
        self.lose(from, Until::Switch);
    }

    fn lose_switch(&mut self, cpu: usize, to_it: bool, now: u64) {
        let waits = to_it && self.unknown.is_none();
        let runs = !to_it && self.arrived == Some(cpu);
        self.lose_all(now, runs.then_some(cpu));
        self.arrived_unseen = waits.then_some(cpu);
    }

    /// From now on the state of the thread is known again, as is what it did since `then`.
    fn learn(&mut self, then: u64) {
        if let Some((from, _)) = self.unknown.take() {
            self.unknown_ns += then.saturating_sub(from);
        }
        self.learn_run(then);
        (self.called, self.arrived, self.arrived_unseen) = (None, None, None);
    }

    fn learn_run(&mut self, then: u64) {
        if let Some((from, _)) = self.run_unknown.take() {
            self.run_unknown_ns += then.saturating_sub(from);
        }
    }

    /// The wakeup of the thread was seen.
    fn hear(&mut self, now: u64) {
        self.called = None;
        if let Some((from, Until::Wakeup)) = self.unknown {
            self.unknown_ns += now - from;
            self.unknown = None;
        }
    }

    fn end(&mut self, now: u64) {
        if let Place::Called(at) = self.doing {
            // The wakeup will belong to another book.
            self.lose(at, Until::Wakeup);
        }
        self.turn(Place::Asleep, now);
        self.learn(now);
        self.ended = true;
    }
}

/// One step of a history; the meaning of its numbers depends on the threads that exist then.
#[derive(Debug, Clone)]
struct Step {
    after_ns: u64,
    what: u8,
    a: u8,
    b: u8,
    c: u8,
    /// An event is lost if its number is at least 100 minus the history's loss in percent.
    luck: [u8; 4],
}

#[derive(Debug, Clone)]
struct History {
    cpus: usize,
    loss: u8,
    limits: bool,
    steps: Vec<Step>,
}

struct World {
    cpus: usize,
    loss: u8,
    limits: bool,
    now: u64,
    luck: [u8; 4],
    used_luck: usize,
    /// No switch and no wakeup is passed on, until a pass over all tasks.
    silent: bool,
    threads: Vec<Option<Thread>>,
    running: Vec<u32>,
    steal_ns: Vec<u64>,
    /// For each CPU, the id of the thread of the last switch passed on.
    told_last: [Option<u32>; CPUS],
    /// The time of the last reading.
    read_ns: u64,
    limited_since: [[Option<u64>; CPUS]; GROUPS],
    /// The tenant of each process.
    tenants: BTreeMap<u32, u32>,
    books: BTreeMap<(u32, u32), Book>,
    reported: [u32; SLOTS],
    to_free: Vec<u32>,
}

type Checked = Result<(), TestCaseError>;

impl World {
    fn new(history: &History) -> World {
        books_reset();
        let mut world = World {
            cpus: history.cpus,
            loss: history.loss,
            limits: history.limits,
            now: 1_000_000_000,
            luck: [0; 4],
            used_luck: 0,
            silent: false,
            threads: (0..TASKS).map(|_| None).collect(),
            running: (0..history.cpus as u32).collect(),
            steal_ns: vec![0; history.cpus],
            told_last: [None; CPUS],
            read_ns: 0,
            limited_since: [[None; CPUS]; GROUPS],
            tenants: BTreeMap::new(),
            books: BTreeMap::new(),
            reported: [0; SLOTS],
            to_free: Vec::new(),
        };
        world.at(0);
        // Some processes exist before the monitor does, the first of them in tenants.
        for pid in 1..=4 {
            let number = world.add(pid, pid, 0).unwrap();
            world.thread(number).place = Place::Asleep;
            world.thread(number).task.state = ASLEEP;
            world.keep(number);
            if pid < 4 {
                world.assign(pid, (pid - 1) % TENANTS as u32);
            }
        }
        world.sync();
        world
    }

    fn thread(&mut self, number: u32) -> &mut Thread {
        self.threads[number as usize].as_mut().unwrap()
    }

    fn numbers(&self, which: impl Fn(&Thread) -> bool) -> Vec<u32> {
        let listed = self.threads.iter().enumerate();
        listed
            .filter(|(_, it)| it.as_ref().is_some_and(&which))
            .map(|(number, _)| number as u32)
            .collect()
    }

    fn chosen(&self, by: u8, which: impl Fn(&Thread) -> bool) -> Option<u32> {
        let numbers = self.numbers(which);
        (!numbers.is_empty()).then(|| numbers[by as usize % numbers.len()])
    }

    fn book(&mut self, number: u32) -> Option<&mut Book> {
        let key = self.threads[number as usize].as_ref()?.book?;
        self.books.get_mut(&key)
    }

    /// The following events happen on this CPU.
    fn at(&mut self, cpu: usize) {
        books_at(self.now, cpu as u32, self.running[cpu]);
        // Every run queue has a clock of its own.
        let clock = self.now + 1_000 * cpu as u64;
        books_queue(cpu as u32, clock, self.steal_ns[cpu]);
    }

    fn lost(&mut self) -> bool {
        let luck = self.luck[self.used_luck % self.luck.len()];
        self.used_luck += 1;
        self.silent || luck >= 100 - self.loss
    }

    /// Writes the true fields of the task.
    fn keep(&mut self, number: u32) {
        let it = self.thread(number);
        it.task.on_cpu = (it.place == Place::Running).into();
        it.task.on_rq = matches!(it.place, Place::Ready | Place::Running).into();
        books_task(number, &it.task);
    }

    fn add(&mut self, pid: u32, tgid: u32, cpu: usize) -> Option<u32> {
        let free = (CPUS..TASKS).find(|&number| self.threads[number].is_none())?;
        let task = Task {
            start_ns: self.now,
            arrival_ns: 0,
            pid,
            tgid,
            group: tgid % GROUPS as u32,
            cpu: cpu as u32,
            state: RUNNABLE,
            on_cpu: 0,
            on_rq: 0,
            exiting: 0,
            live: 1,
        };
        self.threads[free] = Some(Thread {
            task,
            place: Place::Ready,
            arrived_ns: 0,
            book: None,
        });
        self.keep(free as u32);
        Some(free as u32)
    }

    fn turn(&mut self, number: u32, to: Place) {
        let now = self.now;
        self.thread(number).place = to;
        if let Some(book) = self.book(number) {
            book.turn(to, now);
        }
        self.keep(number);
    }

    /// Opens and closes books as slots are taken and freed.
    fn follow(&mut self) {
        let now = self.now;
        for number in self.numbers(|_| true) {
            let index = books_slot(number);
            let copy = (index != 0).then(|| slot(index as usize).copy(index, now).unwrap());
            let key = copy.map(|it| (it.slot, it.generation));
            let it = self.thread(number);
            if it.book == key {
                continue;
            }
            let (place, unsettled) = (it.place, it.task.state != RUNNABLE);
            if let Some(old) = std::mem::replace(&mut it.book, key) {
                self.books.get_mut(&old).unwrap().end(now);
            }
            let (Some(key), Some(copy)) = (key, copy) else {
                continue;
            };
            let mut book = Book {
                tenant: copy.tenant.0,
                begun: now,
                doing: place,
                since: now,
                run_ns: 0,
                ready_ns: 0,
                ended: false,
                unknown: None,
                unknown_ns: 0,
                run_unknown: None,
                run_unknown_ns: 0,
                arrived: None,
                arrived_unseen: None,
                called: None,
                shown: None,
            };
            match place {
                // The thread has announced that it will sleep, and may be in the middle of going to sleep.
                Place::Running if unsettled => book.lose_all(now, None),
                Place::Called(_) => book.lose(now, Until::Wakeup),
                _ => {}
            }
            self.books.insert(key, book);
        }
    }

    fn assign(&mut self, process: u32, tenant: u32) {
        books_assign(process, tenant);
        match tenant {
            NO_TENANT => self.tenants.remove(&process),
            _ => self.tenants.insert(process, tenant),
        };
    }

    fn sync(&mut self) {
        for number in self.numbers(|_| true) {
            books_sync(number);
        }
        self.follow();
    }

    fn see_again(&mut self) {
        let now = self.now;
        for number in self.numbers(|it| it.book.is_some()) {
            books_see_again(number);
            let it = self.thread(number);
            let (place, unsettled) = (it.place, it.task.state != RUNNABLE);
            let book = self.book(number).unwrap();
            book.learn(now);
            match place {
                Place::Running if unsettled => book.lose_all(now, None),
                Place::Called(at) => book.lose(at, Until::Wakeup),
                _ => {}
            }
        }
    }

    fn step(&mut self, step: &Step) -> Checked {
        self.now += step.after_ns;
        (self.luck, self.used_luck) = (step.luck, 0);
        let cpu = step.a as usize % self.cpus;
        self.at(cpu);
        match step.what {
            0..40 => self.switch(cpu, step.b, step.c),
            40..58 => self.call(cpu, step.b, step.c),
            58..68 => self.hear(step.b),
            68..74 => self.migrate(step.b, step.c),
            74..79 => self.bear(cpu, step.b, step.c),
            79..82 => self.exit(cpu),
            82..92 => self.read()?,
            92..94 => self.move_process(step.b, step.c),
            94..96 => self.reconsider(cpu, step.b),
            96 => self.see_again(),
            97 if self.loss > 0 => {
                self.silent = !self.silent;
                if !self.silent {
                    self.see_again();
                }
            }
            98 if self.limits => self.limit(cpu, step.b),
            _ => self.steal_ns[cpu] += step.after_ns.min(1_000 * u64::from(step.b)),
        }
        Ok(())
    }

    /// The thread on the CPU goes to sleep or is preempted, and another thread gets the CPU.
    fn switch(&mut self, cpu: usize, how: u8, whom: u8) {
        let prev = self.running[cpu];
        let idle = cpu as u32;
        let limited = self.limited_since;
        let next = self
            .chosen(whom, |it| {
                it.place == Place::Ready
                    && it.task.cpu as usize == cpu
                    && limited[it.task.group as usize][cpu].is_none()
            })
            .unwrap_or(idle);
        // Preempted although it was about to sleep; preempted or yielding; asleep.
        let (preempt, mut sleeps) = match how % 8 {
            0 => (true, false),
            1..4 => (how % 2 == 0, false),
            _ => (false, true),
        };
        if next == idle {
            // There is no other thread: the thread goes on, or sleeps.
            sleeps = true;
        }
        if prev == idle && next == idle {
            return;
        }
        let preempt = preempt && !sleeps;
        let listed = |number: u32| self.threads[number as usize].as_ref();
        let [pid_of_prev, pid_of_next] =
            [prev, next].map(|it| listed(it).map_or(0, |it| it.task.pid));
        let arrived = listed(prev).map_or(self.now, |it| it.arrived_ns);
        if prev != idle {
            let it = self.thread(prev);
            it.task.state = match () {
                () if sleeps && it.task.exiting != 0 => DEAD,
                () if sleeps || preempt && how % 16 == 0 => ASLEEP,
                // The state stays: a thread that is about to sleep and is not preempted sleeps.
                () if preempt => it.task.state,
                () => RUNNABLE,
            };
            let asleep = if sleeps { Place::Asleep } else { Place::Ready };
            self.turn(prev, asleep);
            // Tracing sees the task before it is off the CPU.
            let it = self.thread(prev);
            it.task.on_cpu = 1;
            books_task(prev, &it.task);
        }
        let (now, lost) = (self.now, self.lost());
        if !lost {
            books_switch(preempt, prev, next);
        }
        self.running[cpu] = next;
        if prev != idle {
            self.keep(prev);
        }
        if next != idle {
            self.thread(next).arrived_ns = now;
            self.thread(next).task.arrival_ns = now + 1_000 * cpu as u64;
            self.turn(next, Place::Running);
        }
        // Time that was shown before is not taken back.
        let arrived = arrived.max(self.read_ns);
        let known_to_other = self.told_last[cpu].is_some_and(|it| it != pid_of_prev);
        for (number, to_it) in [(prev, false), (next, true)] {
            let Some(book) = self.book(number) else {
                continue;
            };
            if lost {
                book.lose_switch(cpu, to_it, now);
            } else {
                // The kernel knows when the thread arrived, and the monitor sees that it missed that switch.
                let exact = !to_it && known_to_other && book.arrived_unseen == Some(cpu);
                book.learn(if exact { arrived } else { now });
                book.arrived = to_it.then_some(cpu);
            }
        }
        if !lost {
            for book in self.books.values_mut() {
                if matches!(book.run_unknown, Some((_, Some(it))) if it == cpu) {
                    book.learn_run(arrived);
                }
            }
            self.told_last[cpu] = Some(pid_of_next);
        }
        if prev != idle && sleeps && self.thread(prev).task.exiting != 0 {
            self.threads[prev as usize] = None;
        }
        self.at(cpu);
    }

    /// A running thread calls a sleeping thread, whose wakeup follows at once or later; or a thread that was
    /// about to sleep.
    fn call(&mut self, cpu: usize, whom: u8, how: u8) {
        let caller = self.running[cpu];
        let about_to = |it: &Thread| it.place != Place::Asleep && it.task.state == ASLEEP;
        if how % 8 == 0 {
            if let Some(number) = self.chosen(whom, about_to).filter(|&it| it != caller) {
                self.thread(number).task.state = RUNNABLE;
                let (calls, heard) = (!self.lost(), !self.lost());
                if calls {
                    books_waking(number);
                }
                self.keep(number);
                if heard {
                    books_wakeup(number);
                }
            }
            return;
        }
        let Some(number) = self.chosen(whom, |it| it.place == Place::Asleep) else {
            return;
        };
        let (now, lost) = (self.now, self.lost());
        if !lost {
            books_waking(number);
        }
        self.thread(number).task.state = WAKING;
        self.turn(number, Place::Called(now));
        if let Some(book) = self.book(number) {
            match lost {
                true => book.lose(now, Until::Wakeup),
                false => book.called = Some(now),
            }
        }
        if how % 3 != 0 {
            self.now += u64::from(how);
            self.at(cpu);
            self.hear_of(number, how);
        }
    }

    fn hear(&mut self, whom: u8) {
        if let Some(number) = self.chosen(whom, |it| matches!(it.place, Place::Called(_))) {
            self.hear_of(number, whom);
        }
    }

    fn hear_of(&mut self, number: u32, how: u8) {
        let to = how as usize / 4 % self.cpus;
        let it = self.thread(number);
        let Place::Called(called) = it.place else {
            return;
        };
        if it.task.cpu != to as u32 {
            if !self.lost() {
                books_migrate(number, to as u32);
            }
            self.thread(number).task.cpu = to as u32;
        }
        self.thread(number).task.state = RUNNABLE;
        self.turn(number, Place::Ready);
        let (now, lost) = (self.now, self.lost());
        if !lost {
            books_wakeup(number);
        }
        if let Some(book) = self.book(number) {
            match lost {
                true => book.lose(called, Until::Switch),
                false => book.hear(now),
            }
        }
    }

    /// A ready thread moves to another CPU's queue. Where that event is lost, none of its times becomes
    /// unknown.
    fn migrate(&mut self, whom: u8, to: u8) {
        let to = u32::from(to) % self.cpus as u32;
        let moves = |it: &Thread| it.place == Place::Ready && it.task.cpu != to;
        if let Some(number) = self.chosen(whom, moves) {
            if !self.lost() {
                books_migrate(number, to);
            }
            self.thread(number).task.cpu = to;
            self.keep(number);
        }
    }

    /// The thread on the CPU creates another thread, in its own process or a new one.
    fn bear(&mut self, cpu: usize, how: u8, to: u8) {
        let creator = self.running[cpu];
        if creator < CPUS as u32 || self.numbers(|_| true).len() >= THREADS {
            return;
        }
        let it = self.thread(creator);
        if it.task.exiting != 0 {
            return;
        }
        let parent = it.task.tgid;
        let used: Vec<u32> = (self.threads.iter().flatten())
            .flat_map(|it| [it.task.pid, it.task.tgid])
            .collect();
        let pid = (1..).find(|pid| !used.contains(pid)).unwrap();
        let tgid = if how % 2 == 0 { parent } else { pid };
        let Some(number) = self.add(pid, tgid, to as usize % self.cpus) else {
            return;
        };
        if let (true, Some(&tenant)) = (tgid == pid, self.tenants.get(&parent)) {
            self.tenants.insert(pid, tenant);
        }
        books_new(number);
        self.follow();
    }

    /// The thread on the CPU exits; it stays on the CPU until the next switch.
    fn exit(&mut self, cpu: usize) {
        let number = self.running[cpu];
        if number < CPUS as u32 || self.thread(number).task.exiting != 0 {
            return;
        }
        // Some threads stay, so that the history goes on.
        if self.numbers(|it| it.task.exiting == 0).len() <= 2 {
            return;
        }
        let tgid = self.thread(number).task.tgid;
        let others = self.numbers(|it| it.task.tgid == tgid && it.task.exiting == 0);
        let it = self.thread(number);
        (it.task.exiting, it.task.live) = (1, others.len() as u32 - 1);
        it.task.state = RUNNABLE;
        self.keep(number);
        books_exit(number);
        if others.len() == 1 {
            self.tenants.remove(&tgid);
        }
        self.follow();
    }

    /// A process moves to another tenant, or to none.
    fn move_process(&mut self, whom: u8, to: u8) {
        if let Some(number) = self.chosen(whom, |it| it.task.exiting == 0) {
            let tgid = self.thread(number).task.tgid;
            let tenant = u32::from(to) % (TENANTS as u32 + 1);
            let none = tenant == TENANTS as u32;
            self.assign(tgid, if none { NO_TENANT } else { tenant });
            self.sync();
        }
    }

    /// The thread on the CPU announces that it will sleep, and does not yet; or that it will not sleep.
    fn reconsider(&mut self, cpu: usize, how: u8) {
        let number = self.running[cpu];
        if number >= CPUS as u32 && self.thread(number).task.exiting == 0 {
            self.thread(number).task.state = if how % 2 == 0 { ASLEEP } else { RUNNABLE };
            self.keep(number);
        }
    }

    /// A limit begins or ceases to throttle the threads of a group on a CPU where none of them runs.
    fn limit(&mut self, cpu: usize, which: u8) {
        let group = u32::from(which) % GROUPS as u32;
        let runs = self.threads[self.running[cpu] as usize].as_ref();
        let since = &mut self.limited_since[group as usize][cpu];
        if let Some(begun) = since.take() {
            books_limited(group, cpu as u32, self.now - begun);
        } else if runs.is_none_or(|it| it.task.group != group) {
            *since = Some(self.now);
        }
    }

    fn read(&mut self) -> Checked {
        let now = self.now;
        for index in self.to_free.drain(..) {
            books_free(index);
        }
        books_told(now);
        self.read_ns = now;
        let used = stats().used_slots.load(Relaxed) as usize;
        for index in 1..SLOTS.min(used + 1) {
            let it = slot(index);
            if (it.ended()).is_some_and(|generation| generation == self.reported[index]) {
                continue;
            }
            let raw = it.copy(index as u32, now).unwrap();
            if raw.ended {
                self.reported[index] = raw.generation;
                self.to_free.push(raw.slot);
            }
            let Some(book) = self.books.get_mut(&(raw.slot, raw.generation)) else {
                return Err(TestCaseError::fail(format!("nobody is in {raw:?}")));
            };
            if let Some((_, earlier, _)) = &book.shown {
                let same = (earlier.run_ns, earlier.ready_ns, earlier.throttled_ns)
                    == (raw.run_ns, raw.ready_ns, raw.throttled_ns);
                prop_assert!(
                    same || !it.sleeps_on(ThreadSlot::asleep(earlier)),
                    "{raw:?} was skipped"
                );
            }
            check(book, &raw, now, self.limits)?;
        }
        let unread = |book: &&Book| match book.shown {
            Some((at, ref raw, _)) => at < now && !raw.ended,
            None => true,
        };
        let unread = self.books.values().find(unread);
        prop_assert!(unread.is_none(), "nobody read {unread:?}");
        for number in self.numbers(|it| it.task.exiting == 0) {
            let tgid = self.thread(number).task.tgid;
            let tenant = self.tenants.get(&tgid).copied();
            let tenant = tenant.map(|it| it as u16);
            match self.book(number) {
                Some(book) => prop_assert_eq!(Some(book.tenant), tenant),
                None => prop_assert!(tenant.is_none() || stats().unmonitored.load(Relaxed) > 0),
            }
        }
        (0..TENANTS).try_for_each(|tenant| self.check_tenant(tenant))
    }

    fn check_tenant(&self, tenant: usize) -> Checked {
        let now = self.now;
        let row = row(tenant);
        let mut by_cause: u64 = row.ns.iter().map(|ns| ns.load(Relaxed)).sum();
        let (mut waited, mut ready, mut blocked) = (0, 0, 0);
        for book in self.books.values() {
            let Some((_, raw, _)) = book.shown.as_ref() else {
                continue;
            };
            if usize::from(book.tenant) != tenant {
                continue;
            }
            waited += raw.ready_ns + raw.throttled_ns;
            match raw.state {
                Some(ThreadState::Ready) => {
                    ready += 1;
                    log(raw.cpu).who_had_it(raw.since_ns, now, |_, ns| by_cause += ns);
                }
                Some(ThreadState::Blocked) => blocked += 1,
                _ => {}
            }
        }
        prop_assert_eq!(by_cause, waited, "causes of tenant {}", tenant);
        if !self.limits {
            let limited = row.ns[cause::BANDWIDTH].load(Relaxed);
            prop_assert_eq!(limited, 0);
        }
        let occasions = occasions(tenant, now);
        prop_assert_eq!((occasions.ready, occasions.blocked), (ready, blocked));
        Ok(())
    }
}

/// Compares what a reading shows of a thread with the reading before and with the truth.
fn check(book: &mut Book, raw: &RawThread, now: u64, limits: bool) -> Checked {
    if !book.ended {
        book.turn(book.doing, now);
    }
    let waited = raw.ready_ns + raw.throttled_ns;
    let said = || format!("{raw:?}\n{book:?}");
    if let Some((before_ns, before, late_ns)) = &book.shown {
        prop_assert!(raw.run_ns >= before.run_ns, "run goes back: {}", said());
        prop_assert!(
            raw.throttled_ns >= before.throttled_ns,
            "limited goes back: {}",
            said()
        );
        let waited_before = before.ready_ns + before.throttled_ns;
        prop_assert!(waited >= waited_before, "ready goes back: {}", said());
        let more = raw.run_ns + waited - before.run_ns - waited_before;
        let most = now - before_ns + late_ns;
        prop_assert!(more <= most, "{more} of {most}: {}", said());
    }
    prop_assert!(limits || raw.throttled_ns == 0, "no limit: {}", said());
    prop_assert!(
        raw.run_ns + waited <= now - book.begun,
        "since it began: {}",
        said()
    );

    let open_ns = book.unknown.map_or(0, |(from, _)| now - from);
    let in_flight_ns = match book.doing {
        Place::Called(at) => now - at.max(book.begun),
        _ => 0,
    };
    let unknown_ns = book.unknown_ns + open_ns.max(in_flight_ns);
    let (run_off, ready_off) = (
        raw.run_ns.abs_diff(book.run_ns),
        waited.abs_diff(book.ready_ns),
    );
    let run_open_ns = book.run_unknown.map_or(0, |(from, _)| now - from);
    let run_unknown_ns = book.run_unknown_ns + run_open_ns;
    prop_assert!(
        run_off <= run_unknown_ns,
        "run is off by {run_off} of {run_unknown_ns}: {}",
        said()
    );
    prop_assert!(
        ready_off <= unknown_ns,
        "ready is off by {ready_off} of {unknown_ns}: {}",
        said()
    );
    prop_assert_eq!(raw.ended, book.ended);
    if !book.ended && book.unknown.is_none() {
        let state = match book.doing {
            Place::Running => ThreadState::Running,
            Place::Ready => ThreadState::Ready,
            Place::Asleep | Place::Called(_) => ThreadState::Blocked,
        };
        prop_assert_eq!(raw.state, Some(state), "{}", said());
    }
    let late_ns = book.called.filter(|_| !book.ended).map_or(0, |at| now - at);
    book.shown = Some((now, *raw, late_ns));
    Ok(())
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (
        1..2_000_000u64,
        0..100u8,
        any::<[u8; 3]>(),
        any::<[u8; 4]>(),
    );
    let step = step.prop_map(|(after_ns, what, [a, b, c], luck)| Step {
        after_ns,
        what,
        a,
        b,
        c,
        luck: luck.map(|it| it % 100),
    });
    proptest::collection::vec(step, 1..250)
}

fn histories(loss: impl Strategy<Value = u8>) -> impl Strategy<Value = History> {
    let history = (1..=CPUS, loss, any::<bool>(), steps());
    history.prop_map(|(cpus, loss, limits, steps)| History {
        cpus,
        loss,
        limits,
        steps,
    })
}

fn hold(history: &History) -> Checked {
    let mut world = World::new(history);
    for step in &history.steps {
        world.step(step)?;
    }
    world.now += 1;
    world.at(0);
    world.read()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_is_told_is_counted_exactly(history in histories(Just(0))) {
        hold(&history)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn what_is_not_told_is_off_by_no_more_than_is_unknown(history in histories(1..=20u8)) {
        hold(&history)?;
    }
}
