//! What the threads of a player wait for each other with.
//!
//! Problem: programs wait in several ways (lock, reader-writer lock, semaphore, event, barrier, queue,
//! helping, join), each of which may spin before it blocks. Approach: one monitor, a mutex and a condition
//! variable, on which each way is a few lines. A waiter spins by trying the mutex, then blocks on the
//! condition variable.

use quell_scenario::QUEUE_CAPACITY;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A value that threads wait on.
struct Monitor<T> {
    value: Mutex<T>,
    changed: Condvar,
}

impl<T> Monitor<T> {
    fn new(value: T) -> Monitor<T> {
        Monitor {
            value: Mutex::new(value),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        // A panic in a player thread ends the process, so a poisoned value is never used.
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `take` yields something: spins for `spin`, then blocks.
    fn wait<R>(&self, spin: Duration, mut take: impl FnMut(&mut T) -> Option<R>) -> R {
        if !spin.is_zero() {
            let end = Instant::now() + spin;
            loop {
                if let Ok(mut value) = self.value.try_lock() {
                    if let Some(taken) = take(&mut value) {
                        return taken;
                    }
                }
                if Instant::now() >= end {
                    break;
                }
                std::hint::spin_loop();
            }
        }
        let mut value = self.lock();
        loop {
            if let Some(taken) = take(&mut value) {
                return taken;
            }
            value = self
                .changed
                .wait(value)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A lock that a thread holds from one step of its program to another, not in a scope.
pub struct Lock(Monitor<bool>);

impl Lock {
    /// A free lock.
    pub fn new() -> Lock {
        Lock(Monitor::new(false))
    }

    /// Takes the lock; a waiter spins for `spin`, then blocks.
    pub fn acquire(&self, spin: Duration) {
        self.0
            .wait(spin, |held| (!std::mem::replace(held, true)).then_some(()));
    }

    /// Releases the lock.
    pub fn release(&self) {
        *self.0.lock() = false;
        self.0.changed.notify_one();
    }
}

/// A reader-writer lock; a writer that waits keeps new readers out.
pub struct RwLock(Monitor<Access>);

#[derive(Default)]
struct Access {
    readers: u32,
    writing: bool,
    writers_waiting: u32,
}

impl RwLock {
    /// A free lock.
    pub fn new() -> RwLock {
        RwLock(Monitor::new(Access::default()))
    }

    /// Takes the lock for reading.
    pub fn read(&self, spin: Duration) {
        self.0.wait(spin, |it| {
            let free = !it.writing && it.writers_waiting == 0;
            it.readers += u32::from(free);
            free.then_some(())
        });
    }

    /// Releases the lock after reading.
    pub fn read_done(&self) {
        self.0.lock().readers -= 1;
        self.0.changed.notify_all();
    }

    /// Takes the lock for writing.
    pub fn write(&self, spin: Duration) {
        self.0.lock().writers_waiting += 1;
        self.0.wait(spin, |it| {
            let free = !it.writing && it.readers == 0;
            if free {
                it.writing = true;
                it.writers_waiting -= 1;
            }
            free.then_some(())
        });
    }

    /// Releases the lock after writing.
    pub fn write_done(&self) {
        self.0.lock().writing = false;
        self.0.changed.notify_all();
    }
}

/// A counting semaphore.
pub struct Semaphore(Monitor<u64>);

impl Semaphore {
    /// A semaphore that can be taken `initial` times.
    pub fn new(initial: u32) -> Semaphore {
        Semaphore(Monitor::new(initial.into()))
    }

    /// Takes one unit, and waits where there is none.
    pub fn acquire(&self, spin: Duration) {
        self.0.wait(spin, |count| {
            *count = count.checked_sub(1)?;
            Some(())
        });
    }

    /// Adds one unit.
    pub fn release(&self) {
        *self.0.lock() += 1;
        self.0.changed.notify_one();
    }
}

/// An event. A signal is for a thread that already waits, so waiting threads stand in a line, each in a place
/// of its own.
pub struct Happening(Mutex<Line>);

#[derive(Default)]
struct Line {
    /// Signals that no thread has taken, as no other thread waited, by the thread that gave them: they are
    /// for other threads.
    signals: BTreeMap<u64, u64>,
    /// The number of broadcasts so far.
    broadcasts: u64,
    /// The waiting threads, the longest wait first.
    places: VecDeque<Arc<Place>>,
}

/// A thread that waits for an event.
pub struct Place {
    /// The number of broadcasts that the thread has seen when it goes on.
    seen: AtomicU64,
    /// Whether the thread may go on.
    past: AtomicBool,
    changed: Condvar,
}

impl Place {
    /// Lets the thread go on; called with the line's mutex held.
    fn let_past(&self) {
        self.past.store(true, Ordering::Release);
        self.changed.notify_one();
    }
}

impl Happening {
    /// An event that has not happened.
    pub fn new() -> Happening {
        Happening(Mutex::default())
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        // As in `Monitor::lock`: a panic ends the process, so a poisoned value is never used.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Thread `me` waits for another thread's signal, or for a broadcast after the `seen` ones; gives the
    /// number of broadcasts that it has then seen.
    pub fn wait(&self, me: u64, seen: u64, spin: Duration) -> u64 {
        let mut line = self.line();
        if line.broadcasts != seen {
            return line.broadcasts;
        }
        if line.take_signal(me) {
            return seen;
        }
        let place = line.stand(seen);
        drop(line);
        self.wait_at(&place, spin)
    }

    /// Takes a place in the line: a signal or broadcast from now on can be for this thread.
    pub fn stand(&self) -> Arc<Place> {
        self.line().stand(0)
    }

    /// Waits until the thread is let past; gives the number of broadcasts that it has then seen.
    pub fn wait_at(&self, place: &Place, spin: Duration) -> u64 {
        let past = || place.past.load(Ordering::Acquire);
        if !spin.is_zero() {
            let end = Instant::now() + spin;
            while !past() && Instant::now() < end {
                std::hint::spin_loop();
            }
        }
        if !past() {
            let line = self.line();
            let waits = |_: &mut Line| !past();
            let line = place.changed.wait_while(line, waits);
            drop(line);
        }
        place.seen.load(Ordering::Relaxed)
    }

    /// Thread `me` lets one thread past: the first in the line, or if none waits the next other thread that
    /// does.
    pub fn signal(&self, me: u64) {
        let mut line = self.line();
        match line.places.pop_front() {
            Some(first) => first.let_past(),
            None => *line.signals.entry(me).or_default() += 1,
        }
    }

    /// Lets every thread past, once.
    pub fn broadcast(&self) {
        let mut line = self.line();
        line.broadcasts += 1;
        let seen = line.broadcasts;
        for place in line.places.drain(..) {
            place.seen.store(seen, Ordering::Relaxed);
            place.let_past();
        }
    }
}

impl Line {
    fn take_signal(&mut self, me: u64) -> bool {
        let Some((&by, count)) = self.signals.iter_mut().find(|it| *it.0 != me) else {
            return false;
        };
        *count -= 1;
        if *count == 0 {
            self.signals.remove(&by);
        }
        true
    }

    fn stand(&mut self, seen: u64) -> Arc<Place> {
        let place = Arc::new(Place {
            seen: AtomicU64::new(seen),
            past: AtomicBool::new(false),
            changed: Condvar::new(),
        });
        self.places.push_back(Arc::clone(&place));
        place
    }
}

/// A barrier for a fixed number of threads, used again and again.
pub struct Barrier {
    threads: u32,
    /// The number of threads that have come in this round, and of rounds so far.
    state: Monitor<(u32, u64)>,
}

impl Barrier {
    /// A barrier for this many threads.
    pub fn new(threads: u32) -> Barrier {
        Barrier {
            threads,
            state: Monitor::new((0, 0)),
        }
    }

    /// Waits until all threads have come.
    pub fn wait(&self, spin: Duration) {
        let mut state = self.state.lock();
        state.0 += 1;
        let round = state.1;
        if state.0 == self.threads {
            *state = (0, round + 1);
            drop(state);
            self.state.changed.notify_all();
            return;
        }
        drop(state);
        self.state
            .wait(spin, |state| (state.1 != round).then_some(()));
    }
}

/// A bounded first-in-first-out queue.
pub struct Queue<T> {
    items: Monitor<VecDeque<T>>,
    /// What senders wait on while the queue is full, with the mutex of `items`.
    room: Condvar,
}

impl<T> Queue<T> {
    /// An empty queue.
    pub fn new() -> Queue<T> {
        Queue {
            items: Monitor::new(VecDeque::new()),
            room: Condvar::new(),
        }
    }

    /// Puts an item in, waiting while the queue is full.
    pub fn send(&self, item: T) {
        let mut items = self.items.lock();
        while items.len() >= QUEUE_CAPACITY {
            items = self
                .room
                .wait(items)
                .unwrap_or_else(PoisonError::into_inner);
        }
        items.push_back(item);
        drop(items);
        self.items.changed.notify_one();
    }

    /// Takes the oldest item, waiting for one.
    pub fn receive(&self, spin: Duration) -> T {
        let (item, was_full) = self.items.wait(spin, |items| {
            let was_full = items.len() >= QUEUE_CAPACITY;
            items.pop_front().map(|item| (item, was_full))
        });
        if was_full {
            // All senders are woken: several receivers may have made room before the first sender woke.
            self.room.notify_all();
        }
        item
    }
}

/// The parts of a fork-join that are still to be done.
pub struct Join(Monitor<u32>);

impl Join {
    /// A join that waits for this many parts.
    pub fn new(parts: u32) -> Join {
        Join(Monitor::new(parts))
    }

    /// One part is done.
    pub fn part_done(&self) {
        let mut left = self.0.lock();
        *left -= 1;
        if *left == 0 {
            drop(left);
            self.0.changed.notify_one();
        }
    }

    /// Waits until all parts are done.
    pub fn wait(&self, spin: Duration) {
        self.0.wait(spin, |left| (*left == 0).then_some(()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;
    use std::thread;

    /// A counter that only a lock protects.
    struct Unprotected(UnsafeCell<u64>);
    // SAFETY: the test accesses it with the lock under test held; if that lock is wrong, the count
    // comes out wrong, which is what the test looks for.
    unsafe impl Sync for Unprotected {}

    #[test]
    fn a_lock_excludes_with_and_without_spinning() {
        for spin in [Duration::ZERO, Duration::from_micros(20)] {
            let shared = Arc::new((Lock::new(), Unprotected(UnsafeCell::new(0))));
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || {
                        for _ in 0..2000 {
                            shared.0.acquire(spin);
                            // SAFETY: the lock is held.
                            unsafe { *shared.1.0.get() += 1 };
                            shared.0.release();
                        }
                    })
                })
                .collect();
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
            shared.0.acquire(spin);
            // SAFETY: every other thread has ended.
            assert_eq!(unsafe { *shared.1.0.get() }, 8000);
        }
    }

    #[test]
    fn a_writer_is_alone_and_not_starved_by_readers() {
        let (lock, inside) = (RwLock::new(), Mutex::new((0u32, 0u32)));
        let spin = Duration::from_micros(5);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        lock.read(Duration::ZERO);
                        inside.lock().unwrap().0 += 1;
                        assert_eq!(inside.lock().unwrap().1, 0);
                        inside.lock().unwrap().0 -= 1;
                        lock.read_done();
                    }
                });
            }
            for _ in 0..200 {
                lock.write(spin);
                let mut it = inside.lock().unwrap();
                assert_eq!(*it, (0, 0));
                it.1 += 1;
                drop(it);
                inside.lock().unwrap().1 -= 1;
                lock.write_done();
            }
        });
    }

    #[test]
    fn semaphores_and_events_lose_nothing() {
        let (semaphore, event) = (Semaphore::new(3), Happening::new());
        thread::scope(|scope| {
            scope.spawn(|| (0..1997).for_each(|_| semaphore.release()));
            for _ in 0..2 {
                scope.spawn(|| (0..1000).for_each(|_| semaphore.acquire(Duration::ZERO)));
            }
        });
        // The signal and the broadcast come before any thread waits: the signal is for one thread, the
        // broadcast for each thread once.
        event.signal(0);
        event.broadcast();
        let seen = event.wait(1, 0, Duration::ZERO);
        assert_eq!(seen, 1);
        assert_eq!(event.wait(1, seen, Duration::ZERO), 1);
        thread::scope(|scope| {
            scope.spawn(|| event.wait(1, 1, Duration::ZERO));
            event.signal(0);
        });
    }

    #[test]
    fn a_signal_is_for_who_waits_and_not_for_who_comes_next() {
        for spin in [Duration::ZERO, Duration::from_micros(20)] {
            let event = Happening::new();
            thread::scope(|scope| {
                for _ in 0..500 {
                    let place = event.stand();
                    let other = scope.spawn(|| event.wait(1, 0, spin));
                    while event.line().places.len() < 2 {
                        thread::yield_now();
                    }
                    event.signal(0);
                    // The thread that stood first has the signal, however late it comes; a thread that
                    // signals does not take its own signal.
                    event.wait_at(&place, spin);
                    let line = event.line();
                    assert_eq!((line.places.len(), line.signals.len()), (1, 0));
                    drop(line);
                    event.signal(0);
                    other.join().unwrap();
                }
            });
            event.broadcast();
            assert_eq!((event.wait(1, 0, spin), event.line().places.len()), (1, 0));
            event.signal(0);
            let place = event.stand();
            assert!(!place.past.load(Ordering::Relaxed));
            event.broadcast();
            assert_eq!(event.wait_at(&place, spin), 2);
        }
    }

    #[test]
    fn nobody_passes_a_barrier_a_round_ahead() {
        let barrier = Barrier::new(3);
        let rounds: [Mutex<u32>; 3] = Default::default();
        thread::scope(|scope| {
            for me in 0..3 {
                let (barrier, rounds) = (&barrier, &rounds);
                scope.spawn(move || {
                    for round in 1..=200 {
                        *rounds[me].lock().unwrap() = round;
                        barrier.wait(Duration::from_micros(if me == 0 { 10 } else { 0 }));
                        for other in rounds {
                            let other = *other.lock().unwrap();
                            assert!(other == round || other == round + 1, "{other} in {round}");
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn a_full_queue_makes_senders_wait_and_loses_nothing() {
        let queue = Queue::new();
        let total = 4 * QUEUE_CAPACITY as u64;
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..total).for_each(|n| queue.send(n)));
            }
            let receivers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        (0..total)
                            .map(|_| queue.receive(Duration::ZERO))
                            .sum::<u64>()
                    })
                })
                .collect();
            let sum: u64 = receivers
                .into_iter()
                .map(|receiver| receiver.join().unwrap())
                .sum();
            assert_eq!(sum, total * (total - 1));
        });
    }
}
