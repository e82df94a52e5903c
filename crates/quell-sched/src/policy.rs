//! The scheduler's arithmetic, natively: the functions of `policy/*.h`, from the same source that the
//! kernel runs. Their headers say what they mean; units are nanoseconds.

use std::ffi::{c_longlong, c_ulonglong};

/// The weight of a thread or group that nobody gave one.
pub const WEIGHT_ONE: u64 = 100;
/// Credit that a sleeper can save, and debt that a runner can make.
pub const FAIR_BURST: i64 = 100_000_000;
/// Where the virtual clock starts.
pub const FAIR_CLOCK_START: u64 = 1 << 44;
/// No chain counts as older than this.
pub const URGENCY_AGE_MOST: u64 = 1_000_000_000;
/// The longest rescheduling latency.
pub const URGENCY_LATENCY_MOST: u64 = 100_000_000;

unsafe extern "C" {
    fn quell_fair_rate(cpus: c_ulonglong, load: c_ulonglong) -> c_ulonglong;
    fn quell_fair_advance(ns: c_ulonglong, rate: c_ulonglong) -> c_ulonglong;
    fn quell_fair_earned(advance: c_ulonglong, ns: c_ulonglong, weight: c_ulonglong) -> c_longlong;
    fn quell_fair_spent(ns: c_ulonglong) -> c_longlong;
    fn quell_fair_bounded(credit: c_longlong) -> c_longlong;
    fn quell_fair_bounded_pool(credit: c_longlong, threads: c_ulonglong) -> c_longlong;
    fn quell_fair_depleted(
        own: c_longlong,
        pool: c_longlong,
        present: c_ulonglong,
        was: bool,
    ) -> bool;
    fn quell_fair_position(
        clock: c_ulonglong,
        credit: c_longlong,
        weight: c_ulonglong,
    ) -> c_ulonglong;
    fn quell_fair_slice(cpus: c_ulonglong, load: c_ulonglong, weight: c_ulonglong) -> c_ulonglong;
    fn quell_fair_entitled_slice(own: c_longlong, pool: c_longlong) -> c_ulonglong;
    fn quell_fair_weight(group: c_ulonglong, own: c_ulonglong, active: c_ulonglong) -> c_ulonglong;
    fn quell_urgency_since(chain: c_ulonglong, ready: c_ulonglong) -> c_ulonglong;
    fn quell_urgency_latency(
        set: c_ulonglong,
        usual: c_ulonglong,
        present: c_ulonglong,
        stretch: c_ulonglong,
    ) -> c_ulonglong;
    fn quell_urgency_usual(usual: c_ulonglong, ran: c_ulonglong) -> c_ulonglong;
    fn quell_urgency_preempts(
        deadline: c_ulonglong,
        running: c_ulonglong,
        margin: c_ulonglong,
    ) -> bool;
}

macro_rules! native {
    ($($(#[$doc:meta])* $name:ident = $c:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $($(#[$doc])*
        pub fn $name($($arg: $type),*) -> $result {
            // SAFETY: a C function of integers that reads and writes no memory.
            unsafe { $c($($arg),*) }
        })*
    };
}

native! {
    /// How fast the virtual clock goes, in 1/65536 of real time.
    fair_rate = quell_fair_rate(cpus: u64, load: u64) -> u64;
    /// Its advance.
    fair_advance = quell_fair_advance(ns: u64, rate: u64) -> u64;
    /// What not running earns.
    fair_earned = quell_fair_earned(advance: u64, ns: u64, weight: u64) -> i64;
    /// What running costs.
    fair_spent = quell_fair_spent(ns: u64) -> i64;
    /// A thread's credit within its bounds.
    fair_bounded = quell_fair_bounded(credit: i64) -> i64;
    /// A process's common credit within its bounds.
    fair_bounded_pool = quell_fair_bounded_pool(credit: i64, threads: u64) -> i64;
    /// Whether a thread is depleted.
    fair_depleted = quell_fair_depleted(own: i64, pool: i64, present: u64, was: bool) -> bool;
    /// The virtual time up to which a thread was served. The weight must not be 0.
    fair_position = quell_fair_position(clock: u64, credit: i64, weight: u64) -> u64;
    /// A depleted thread's turn.
    fair_slice = quell_fair_slice(cpus: u64, load: u64, weight: u64) -> u64;
    /// An entitled thread's turn.
    fair_entitled_slice = quell_fair_entitled_slice(own: i64, pool: i64) -> u64;
    /// A thread's weight within its group.
    fair_weight = quell_fair_weight(group: u64, own: u64, active: u64) -> u64;
    /// Since when a thread's work waits.
    urgency_since = quell_urgency_since(chain: u64, ready: u64) -> u64;
    /// A thread's rescheduling latency.
    urgency_latency = quell_urgency_latency(set: u64, usual: u64, present: u64, stretch: u64) -> u64;
    /// How long a thread usually runs.
    urgency_usual = quell_urgency_usual(usual: u64, ran: u64) -> u64;
    /// Whether a ready thread preempts.
    urgency_preempts = quell_urgency_preempts(deadline: u64, running: u64, margin: u64) -> bool;
}
