//! The scheduler's arithmetic, natively: the functions of `policy/*.h`, from the same source that the
//! kernel runs. Their headers say what they mean; units are nanoseconds.

use std::ffi::{c_longlong, c_uint, c_ulonglong};

/// The weight of a thread or group that nobody gave one.
pub const WEIGHT_ONE: u64 = 100 << 10;
/// The least weight.
pub const WEIGHT_LEAST: u64 = 1;
/// The greatest.
pub const WEIGHT_MOST: u64 = 10_000 << 10;
/// Credit that a sleeper can save, and debt that a runner can make.
pub const FAIR_BURST: i64 = 100_000_000;
/// Where the virtual clock starts.
pub const FAIR_CLOCK_START: u64 = 1 << 44;
/// No work counts as older than this.
pub const URGENCY_AGE_MOST: u64 = 200_000_000;
/// The most that a request's usual work adds to a deadline.
pub const URGENCY_ALLOWANCE_MOST: u64 = 50_000_000;
/// The longest rescheduling latency.
pub const URGENCY_LATENCY_MOST: u64 = 100_000_000;
/// The most by which running on puts a deadline off.
pub const URGENCY_OVERRUN_MOST: u64 = 1_000_000_000;

unsafe extern "C" {
    fn quell_fair_rate(cpus: c_ulonglong, load: c_ulonglong) -> c_ulonglong;
    fn quell_fair_advance(ns: c_ulonglong, rate: c_ulonglong) -> c_ulonglong;
    fn quell_fair_earned(advance: c_ulonglong, ns: c_ulonglong, weight: c_ulonglong) -> c_longlong;
    fn quell_fair_spent(ns: c_ulonglong) -> c_longlong;
    fn quell_fair_bounded(credit: c_longlong) -> c_longlong;
    fn quell_fair_bounded_pool(credit: c_longlong, threads: c_ulonglong) -> c_longlong;
    fn quell_fair_depleted(pool: c_longlong, was: bool) -> bool;
    fn quell_fair_lag(credit: c_longlong, weight: c_ulonglong) -> c_longlong;
    fn quell_fair_position(clock: c_ulonglong, lag: c_longlong) -> c_ulonglong;
    fn quell_fair_overdue(lag: c_longlong) -> bool;
    fn quell_fair_starved_order(ready: c_ulonglong) -> c_ulonglong;
    fn quell_fair_starved(order: c_ulonglong, now: c_ulonglong) -> bool;
    fn quell_fair_slice(cpus: c_ulonglong, load: c_ulonglong, weight: c_ulonglong) -> c_ulonglong;
    fn quell_fair_entitled_slice(pool: c_longlong) -> c_ulonglong;
    fn quell_fair_weight(group: c_ulonglong, own: c_ulonglong, active: c_ulonglong) -> c_ulonglong;
    fn quell_share_time(ns: c_ulonglong, rate: c_uint) -> c_ulonglong;
    fn quell_share_cpu_time(time: c_longlong, rate: c_uint) -> c_longlong;
    fn quell_share_rate(weight: c_ulonglong, clock_rate: c_ulonglong) -> c_uint;
    fn quell_share_bounding(served: c_ulonglong, now: c_ulonglong) -> c_longlong;
    fn quell_share_half(rate: c_uint) -> c_ulonglong;
    fn quell_share_overdue(lag: c_longlong, rate: c_uint) -> bool;
    fn quell_share_order(served: c_ulonglong, rate: c_uint) -> c_ulonglong;
    fn quell_share_lag(order: c_ulonglong, now: c_ulonglong) -> c_longlong;
    fn quell_share_slice(slice: c_ulonglong, cpus: c_ulonglong) -> c_ulonglong;
    fn quell_share_ahead(cpus: c_ulonglong) -> c_longlong;
    fn quell_share_entitled_slice(
        ahead: c_longlong,
        cpus: c_ulonglong,
        rate: c_uint,
    ) -> c_ulonglong;
    fn quell_limit_periods(
        began: c_ulonglong,
        period: c_ulonglong,
        now: c_ulonglong,
    ) -> c_ulonglong;
    fn quell_limit_added(
        left: c_longlong,
        periods: c_ulonglong,
        quota: c_ulonglong,
        burst: c_ulonglong,
    ) -> c_longlong;
    fn quell_limit_until(
        left: c_longlong,
        began: c_ulonglong,
        period: c_ulonglong,
        quota: c_ulonglong,
    ) -> c_ulonglong;
    fn quell_limit_step(left: c_longlong, quota: c_ulonglong, running: c_uint) -> c_ulonglong;
    fn quell_limit_pace(pace: c_uint, ran: c_ulonglong, had: c_ulonglong) -> c_uint;
    fn quell_limit_ran(pace: c_uint, had: c_ulonglong) -> c_ulonglong;
    fn quell_urgency_since(age: c_ulonglong, ready: c_ulonglong) -> c_ulonglong;
    fn quell_urgency_age(since: c_ulonglong, ran: c_ulonglong, now: c_ulonglong) -> c_ulonglong;
    fn quell_urgency_latency(
        set: c_ulonglong,
        usual: c_ulonglong,
        present: c_ulonglong,
        stretch: c_ulonglong,
    ) -> c_ulonglong;
    fn quell_urgency_allowance(request: c_ulonglong, stretch: c_ulonglong) -> c_ulonglong;
    fn quell_urgency_request(
        request: c_ulonglong,
        spent: c_ulonglong,
        seen: c_ulonglong,
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
    /// How fast the virtual clock goes, in 1/2^24 of real time.
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
    /// Whether a process's threads are depleted.
    fair_depleted = quell_fair_depleted(pool: i64, was: bool) -> bool;
    /// How far a thread is behind. The weight must not be 0.
    fair_lag = quell_fair_lag(credit: i64, weight: u64) -> i64;
    /// The virtual time up to which it was served.
    fair_position = quell_fair_position(clock: u64, lag: i64) -> u64;
    /// Whether a waiting depleted thread goes before entitled ones.
    fair_overdue = quell_fair_overdue(lag: i64) -> bool;
    /// The order of a thread that has waited too long, since `ready`.
    fair_starved_order = quell_fair_starved_order(ready: u64) -> u64;
    /// Whether an order of any queue is one of these.
    fair_starved = quell_fair_starved(order: u64, now: u64) -> bool;
    /// A depleted thread's turn.
    fair_slice = quell_fair_slice(cpus: u64, load: u64, weight: u64) -> u64;
    /// An entitled thread's turn.
    fair_entitled_slice = quell_fair_entitled_slice(pool: i64) -> u64;
    /// A thread's weight within its group.
    fair_weight = quell_fair_weight(group: u64, own: u64, active: u64) -> u64;
    /// For how long so much CPU time serves a thread of a rate, in 1/65536 of a CPU.
    share_time = quell_share_time(ns: u64, rate: u32) -> u64;
    /// For how long half of a turn serves it.
    share_half = quell_share_half(rate: u32) -> u64;
    /// The CPU time that it is due in so much time.
    share_cpu_time = quell_share_cpu_time(time: i64, rate: u32) -> i64;
    /// The rate of a thread of a weight that nobody has solved for.
    share_rate = quell_share_rate(weight: u64, clock_rate: u64) -> u32;
    /// What keeps the time up to which somebody has been served within its bounds.
    share_bounding = quell_share_bounding(served: u64, now: u64) -> i64;
    /// Whether one of a rate that is so far behind goes before entitled ones.
    share_overdue = quell_share_overdue(lag: i64, rate: u32) -> bool;
    /// The order of who has been served so far, by the middle of its next turn.
    share_order = quell_share_order(served: u64, rate: u32) -> u64;
    /// How long ago that is.
    share_lag = quell_share_lag(order: u64, now: u64) -> i64;
    /// A depleted thread's turn, who shares so many CPUs.
    share_slice = quell_share_slice(slice: u64, cpus: u64) -> u64;
    /// How far ahead of the time somebody may be and go first for its urgency, who shares so many CPUs.
    share_ahead = quell_share_ahead(cpus: u64) -> i64;
    /// An entitled thread's turn, which is ahead of the time by so much and shares so many CPUs.
    share_entitled_slice = quell_share_entitled_slice(ahead: i64, cpus: u64, rate: u32) -> u64;
    /// How many periods began since that one.
    limit_periods = quell_limit_periods(began: u64, period: u64, now: u64) -> u64;
    /// What so many periods add to what a pool holds.
    limit_added = quell_limit_added(left: i64, periods: u64, quota: u64, burst: u64) -> i64;
    /// Until when a pool is empty; 0: it is not.
    limit_until = quell_limit_until(left: i64, began: u64, period: u64, quota: u64) -> u64;
    /// For how long one of those that draw from it runs before it is looked at.
    limit_step = quell_limit_step(left: i64, quota: u64, running: u32) -> u64;
    /// What part of the time that a thread has a CPU counts as run, in 1/1024.
    limit_pace = quell_limit_pace(pace: u32, ran: u64, had: u64) -> u32;
    /// What it probably ran of so long.
    limit_ran = quell_limit_ran(pace: u32, had: u64) -> u64;
    /// Since when a thread's work waits.
    urgency_since = quell_urgency_since(age: u64, ready: u64) -> u64;
    /// How long it waited.
    urgency_age = quell_urgency_age(since: u64, ran: u64, now: u64) -> u64;
    /// A thread's rescheduling latency.
    urgency_latency = quell_urgency_latency(set: u64, usual: u64, present: u64, stretch: u64) -> u64;
    /// What a request's usual work adds to the deadlines of its threads.
    urgency_allowance = quell_urgency_allowance(request: u64, stretch: u64) -> u64;
    /// CPU time that a process usually spends on a request.
    urgency_request = quell_urgency_request(request: u64, spent: u64, seen: u64) -> u64;
    /// How long a thread usually runs.
    urgency_usual = quell_urgency_usual(usual: u64, ran: u64) -> u64;
    /// Whether a ready thread preempts.
    urgency_preempts = quell_urgency_preempts(deadline: u64, running: u64, margin: u64) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;
    const S: u64 = 1000 * MS;
    /// A CPU, as a rate.
    const CPU: u32 = 1 << 16;
    const RATE_ONE: u64 = 1 << 24;
    const RECOVERED: u64 = FAIR_BURST as u64 / 4;

    fn ms(ms: i64) -> i64 {
        ms * MS as i64
    }

    #[test]
    fn the_clock_goes_as_fast_as_a_thread_of_usual_weight_is_served() {
        // (CPUs, load in threads of the usual weight) -> in real time
        for (cpus, threads, rate) in [
            (8, 8, 1.0),
            (8, 16, 0.5),
            (8, 4, 2.0),
            (1, 3, 1.0 / 3.0),
            (4, 10_000, 0.0004),
            (1, 0, 16.0),  // bounded
            (64, 1, 16.0), // bounded
            (0, 5, 0.0),   // all offline
        ] {
            let found = fair_rate(cpus, threads * WEIGHT_ONE) as f64 / RATE_ONE as f64;
            assert!(
                (found - rate).abs() <= 0.001 * rate,
                "{cpus} CPUs, {threads} threads: {found}"
            );
        }
        assert_eq!(fair_advance(10 * MS, RATE_ONE / 2), 5 * MS);
        assert_eq!(fair_advance(3600 * S, RATE_ONE), S, "a jump is cut");
    }

    #[test]
    fn threads_earn_their_share_and_pay_what_they_run() {
        // (clock's advance, real ms, weight in percent) -> ms
        for (advance, real, weight, earned) in [
            (5, 10, 100, 5),
            (5, 10, 50, 2),
            (5, 10, 300, 10),     // not more than a CPU
            (500, 500, 100, 100), // not more than can be saved
            (0, 10, 100, 0),
        ] {
            let found = fair_earned(advance * MS, real * MS, WEIGHT_ONE * weight / 100);
            assert_eq!(found / ms(1), earned, "{advance} {real} {weight}");
        }
        assert_eq!(fair_spent(7 * MS), ms(7));
        assert_eq!(fair_spent(3600 * S), 2 * FAIR_BURST);
    }

    #[test]
    fn a_process_is_depleted_until_it_recovered() {
        // (common credit in ms, was) -> is
        for (pool, was, is) in [
            (1, false, false),
            (0, false, true),
            (-100, false, true),
            (24, true, true),
            (25, true, false),
            (800, true, false),
        ] {
            assert_eq!(fair_depleted(ms(pool), was), is, "{pool}, was {was}");
        }
    }

    #[test]
    fn running_serves_by_the_rate() {
        // (ms, rate in percent of a CPU) -> ms
        for (ran, rate, serves) in [(3, 100, 3), (3, 50, 6), (3, 1, 300), (5_000, 50, 2_000)] {
            let found = share_time(ran * MS, CPU * rate / 100);
            assert!(
                found.abs_diff(serves * MS) < serves * MS / 100,
                "{ran} {rate} {found}"
            );
        }
        // Nobody's is 0.
        assert_eq!(share_time(MS, 0), 4096 * MS);
        assert_eq!(share_cpu_time(ms(300), CPU / 4), ms(75));
        assert_eq!(share_cpu_time(ms(-300), CPU / 4), ms(-75));
    }

    #[test]
    fn who_is_new_has_what_its_weight_says() {
        // (weight in percent, how fast the clock goes) -> percent of a CPU
        for (weight, clock, rate) in [
            (100, 0.5, 50),
            (300, 0.25, 75),
            (300, 0.5, 100),
            (100, 16.0, 100),
        ] {
            let clock = (clock * RATE_ONE as f64) as u64;
            let found = share_rate(WEIGHT_ONE * weight / 100, clock);
            assert!(
                found.abs_diff(CPU * rate / 100) <= 1,
                "{weight} {clock} {found}"
            );
        }
        assert_eq!(share_rate(WEIGHT_LEAST, RATE_ONE), CPU / 4096);
    }

    #[test]
    fn being_ahead_and_behind_counts_within_bounds() {
        // (served up to, s; at 10 s) -> what is added, s
        for (served, by) in [(9.5, 0.0), (13.0, 0.0), (20.0, -6.0), (0.0, 9.0)] {
            let found = share_bounding((served * S as f64) as u64, 10 * S);
            assert_eq!(found, (by * S as f64) as i64, "{served}");
        }
    }

    #[test]
    fn who_waited_too_long_is_told_from_who_is_urgent_or_behind() {
        // From a second after the host's start to ten years, before and after FAIR_CLOCK_START.
        for seconds in [1, 60, 3600, 9000, 18_000, 86_400, 315_360_000] {
            let now = seconds * S;
            let order = fair_starved_order(now.saturating_sub(9 * S));
            assert!(fair_starved(order, now), "{seconds}");
            assert!(fair_starved(fair_starved_order(now), now), "{seconds}");
            assert!(order <= fair_starved_order(now), "{seconds}");
            // A deadline of one that waits for 20 s, and places by weight and by share.
            let deadline = now.saturating_sub(20 * S).max(MS);
            assert!(!fair_starved(deadline, now), "{seconds}");
            let furthest = fair_position(FAIR_CLOCK_START, fair_lag(-100 * MS as i64, 1).abs());
            assert!(!fair_starved(furthest, now), "{seconds}");
            let behind = share_order(now.saturating_sub(S), CPU);
            assert!(!fair_starved(behind, now), "{seconds}");
        }
    }

    #[test]
    fn who_was_served_least_goes_first() {
        let at = |ms: u64| share_order(S + ms * MS, CPU);
        assert!(at(3) < at(4));
        // By the middle of a turn of 2 ms.
        assert_eq!(share_lag(at(3), S + 10 * MS), ms(6));
        assert_eq!(share_lag(at(12), S + 10 * MS), ms(-3));
        // Which is worth more time to who is due less: it is served later, and longer.
        assert!(share_order(S, CPU / 10) > at(8));
        // (ms behind, rate in percent) -> whether that is more than half of a turn
        for (behind, rate, overdue) in [
            (24, 100, false),
            (25, 100, true),
            (26, 4, true),
            (49, 2, false),
            (51, 2, true),
            (149, 0, false),
            (150, 0, true),
        ] {
            let found = share_overdue(ms(behind), CPU / 100 * rate);
            assert_eq!(found, overdue, "{behind} {rate}");
        }
    }

    #[test]
    fn turns_are_short_where_tenants_share() {
        for (cpus, slice) in [(1, 6), (4, 6), (6, 9), (8, 12), (64, 12)] {
            assert_eq!(share_slice(20 * MS, cpus), slice * MS, "{cpus}");
            assert_eq!(share_slice(2 * MS, cpus), 2 * MS, "{cpus}");
        }
        // (ms ahead of the time, CPUs that it shares, rate in percent) -> ms
        for (ahead, cpus, rate, slice) in [
            (-50, 1, 100, 6),
            (0, 1, 100, 6),
            (300, 8, 100, 12),
            (45, 1, 100, 5),
            (49, 1, 100, 2),
            (90, 1, 100, 2),
            (95, 2, 100, 5),
            (195, 4, 100, 5),
            (395, 8, 100, 5),
            (395, 64, 100, 5),
            (180, 4, 25, 5),
            (0, 1, 1, 2),
        ] {
            let found = share_entitled_slice(ms(ahead), cpus, CPU / 100 * rate);
            assert!(
                found.abs_diff(slice * MS) < MS / 50,
                "{ahead} {cpus} {rate} {found}"
            );
        }
        // rate in percent -> us: 1 ms of CPU time, within 150 ms
        for (rate, us) in [
            (100, 1_000),
            (10, 10_000),
            (2, 50_000),
            (1, 100_000),
            (0, 150_000),
        ] {
            let found = share_half(CPU / 100 * rate);
            assert!(found.abs_diff(us * 1000) < MS / 10, "{rate} {found}");
        }
    }

    #[test]
    fn limits_refill_and_what_is_owed_is_paid() {
        // (left, periods) -> added, of 20 a period and a burst of 30
        for (left, periods, added) in [
            (0, 1, 20),
            (0, 2, 40),
            (0, 3, 50),
            (-5, 1, 20),
            (-65, 3, 60),
            (45, 1, 5),
            (50, 9, 0),
            (60, 1, 0),
            (7, 0, 0),
        ] {
            let found = limit_added(ms(left), periods, 20 * MS, 30 * MS);
            assert_eq!(found, ms(added), "{left} {periods}");
        }
        // (left) -> until, of 20 every 100 and as of 1000
        for (left, until) in [(1, 0), (0, 1100), (-19, 1100), (-20, 1200), (-45, 1300)] {
            let found = limit_until(ms(left), 1000 * MS, 100 * MS, 20 * MS);
            assert_eq!(found, until * MS, "{left}");
        }
        assert_eq!(limit_periods(1000, 100, 1099), 0);
        assert_eq!(limit_periods(1000, 100, 1100), 1);
        assert_eq!(limit_periods(1000, 100, 900), 0);
        // (left, running) -> us, of 16 ms
        for (left, running, step) in [(16, 1, 1000), (1, 1, 500), (16, 3, 500), (0, 1, 20)] {
            let found = limit_step(ms(left), 16 * MS, running);
            assert_eq!(found, step * 1000, "{left} {running}");
        }
        assert_eq!(limit_pace(1024, MS / 2, MS), 896);
        assert_eq!(limit_ran(512, MS), MS / 2);
    }

    #[test]
    fn turns_are_parts_of_a_period() {
        // (CPUs, load, weight) -> ms
        for (cpus, load, weight, slice) in [
            (8, 16, 1, 20),
            (8, 32, 1, 10),
            (8, 32, 2, 20),
            (8, 32, 4, 20), // most
            (1, 100, 1, 2), // least
            (4, 0, 1, 20),
        ] {
            let found = fair_slice(cpus, load * WEIGHT_ONE, weight * WEIGHT_ONE);
            assert_eq!(found, slice * MS, "{cpus} {load} {weight}");
        }
        for (pool, slice) in [(800, 50), (50, 50), (40, 40), (1, 2), (-5, 2)] {
            assert_eq!(fair_entitled_slice(ms(pool)), slice * MS, "{pool}");
        }
    }

    #[test]
    fn members_share_their_group() {
        // (group, own, active of all members), in hundredths -> in thousandths
        for (group, own, active, weight) in [
            (100, 100, 100, 1000),
            (100, 100, 400, 250),
            (300, 50, 200, 750),
            (100, 100, 0, 1000), // not counted yet
        ] {
            let found = fair_weight(
                group * WEIGHT_ONE / 100,
                own * WEIGHT_ONE / 100,
                active * WEIGHT_ONE / 100,
            );
            assert_eq!(
                (found * 1000).div_ceil(WEIGHT_ONE),
                weight,
                "{group} {own} {active}"
            );
        }
        // A crowd shares the same hundred; it does not get a weight of its own.
        let crowd = 10_000 * fair_weight(WEIGHT_ONE, WEIGHT_ONE, 10_000 * WEIGHT_ONE);
        assert!(
            crowd <= WEIGHT_ONE && crowd > WEIGHT_ONE * 9 / 10,
            "{crowd}"
        );
    }

    #[test]
    fn work_is_as_old_as_it_waited() {
        let now = 100 * S;
        assert_eq!(urgency_since(0, now), now, "from outside");
        assert_eq!(urgency_since(30 * MS, now), now - 30 * MS);
        assert_eq!(
            urgency_since(30 * S, now),
            now - URGENCY_AGE_MOST,
            "no older than that"
        );
        // One waits for 20 ms, runs for 5 and wakes another, which waits for 3 and runs.
        assert_eq!(urgency_age(now, 0, now + 20 * MS), 20 * MS);
        let woken = urgency_since(20 * MS, now + 25 * MS);
        assert_eq!(urgency_age(woken, 0, now + 28 * MS), 23 * MS);
        // It is preempted after 2 ms and waits for 4 more.
        assert_eq!(urgency_age(woken, 2 * MS, now + 34 * MS), 27 * MS);
        assert_eq!(urgency_age(now, 5, now + 4), 0, "clocks of two CPUs");
    }

    #[test]
    fn latency_follows_the_usual_run_unless_it_is_set() {
        // (set us, usual ms, present ms, stretch in sixteenths) -> us
        for (set, usual, present, stretch, latency) in [
            (0, 4, 0, 16, 4000),
            (0, 4, 9, 16, 9000), // running longer than usual
            (0, 4, 0, 8, 2000),
            (0, 4, 9, 8, 4500),
            (0, 0, 0, 16, 50),          // least
            (0, 5000, 0, 16, 100_000),  // most
            (0, 200, 300, 16, 200_000), // running on has an end only far out
            (0, 200, 9000, 16, 1_100_000),
            (700, 4, 0, 16, 700),
            (700, 4, 9, 16, 5700),
            (3_600_000_000, 4, 0, 16, 100_000),
        ] {
            let found = urgency_latency(set * 1000, usual * MS, present * MS, stretch);
            assert_eq!(found, latency * 1000, "{set} {usual} {present} {stretch}");
        }
        assert_eq!(urgency_usual(8 * MS, 0), 6 * MS);
        assert_eq!(urgency_usual(0, 8 * MS), 2 * MS);
        assert!(urgency_preempts(10, 12, 1) && !urgency_preempts(10, 11, 1));
        assert!(!urgency_preempts(12, 10, 0));
    }

    #[test]
    fn a_request_is_allowed_what_it_usually_takes() {
        // (usual request ms, stretch in sixteenths) -> ms
        for (request, stretch, allowance) in [
            (0, 16, 0),
            (40, 16, 40),
            (20, 32, 40),
            (40, 0, 0),
            (51, 16, 50), // most
            (9000, 8, 50),
            (300, 2, 37), // long ones are told apart where the stretch is small
        ] {
            let found = urgency_allowance(request * MS, stretch);
            assert_eq!(found / MS, allowance, "{request} {stretch}");
        }
        // The first ones count fully; later each a little.
        let mut request = 0;
        for (seen, average) in [(0, 30), (1, 15), (2, 10)] {
            request = urgency_request(request, if seen == 0 { 30 * MS } else { 0 }, seen);
            assert_eq!(request, average * MS);
        }
        assert_eq!(urgency_request(10 * MS, 138 * MS, 5000), 11 * MS);
        // Sixteen threads of a process are woken at once, and the next time 160 ms of work later.
        let mut seen = 0;
        for _ in 0..100 {
            for spent in std::iter::once(160 * MS).chain([0; 15]) {
                request = urgency_request(request, spent, seen);
                seen += 1;
            }
        }
        assert!((9 * MS..=11 * MS).contains(&request), "{request}");
    }

    fn weight() -> impl Strategy<Value = u64> {
        prop_oneof![
            WEIGHT_LEAST..=WEIGHT_MOST,
            WEIGHT_LEAST..200u64,
            Just(WEIGHT_ONE)
        ]
    }

    fn any_time() -> impl Strategy<Value = u64> {
        prop_oneof![any::<u64>(), 0..S]
    }

    fn credit() -> impl Strategy<Value = i64> {
        -FAIR_BURST..=8 * FAIR_BURST
    }

    proptest! {
        /// 1024 CPUs and ten million threads of the greatest weight fit: nothing overflows, which would
        /// show as a value out of bounds.
        #[test]
        fn rates_are_bounded_and_monotone(cpus in 1u64..=1024, load in 0..10_000_000 * WEIGHT_MOST, more in 0u64..1 << 40) {
            let rate = fair_rate(cpus, load);
            prop_assert!(rate <= 16 * RATE_ONE);
            prop_assert!(fair_rate(cpus, load + more) <= rate);
            prop_assert!(fair_rate(cpus + 1, load) >= rate);
            // A clock that stands still would keep depleted threads from ever recovering.
            prop_assert!(rate > 0 || load > cpus * WEIGHT_ONE * RATE_ONE);
        }

        #[test]
        fn the_clock_never_goes_back_nor_overflows(ns in any_time(), rate in 0..=16 * RATE_ONE) {
            let advance = fair_advance(ns, rate);
            prop_assert!(advance <= 16 * S);
            prop_assert!(advance <= ns.saturating_mul(16));
        }

        #[test]
        fn shares_do_not_overflow(ns in any_time(), rate in any::<u32>(), time in any::<i64>(), weight in weight(), clock in 0..=16 * RATE_ONE) {
            let rate = rate % (CPU + 1);
            let serves = share_time(ns, rate);
            prop_assert!(serves >= ns.min(S) && serves <= 4096 * S);
            prop_assert!(share_cpu_time(time, rate).unsigned_abs() <= 4 * S);
            prop_assert!((CPU / 4096..=CPU).contains(&share_rate(weight, clock)));
        }

        #[test]
        fn orders_follow_what_was_served(served in 0u64..1 << 60, more in 0u64..1 << 60, now in 0u64..1 << 60, rate in any::<u32>()) {
            let rate = rate % (CPU + 1);
            let order = share_order(served, rate);
            prop_assert!(share_order(served + more, rate) >= order);
            prop_assert!(order < 1 << 62, "below the depleted threads' mark");
            let half = share_half(rate) as i64;
            prop_assert_eq!(share_lag(order, now), now as i64 - served as i64 - half);
            let kept = served.wrapping_add(share_bounding(served, now) as u64) as i64 - now as i64;
            prop_assert!((-(S as i64)..=4 * S as i64).contains(&kept), "{}", kept);
        }

        #[test]
        fn earnings_are_bounded(advance in any_time(), ns in any_time(), weight in weight()) {
            let earned = fair_earned(advance, ns, weight);
            prop_assert!((0..=FAIR_BURST).contains(&earned));
            prop_assert!(earned as u64 <= ns);
            prop_assert!(earned as f64 <= advance as f64 * weight as f64 / WEIGHT_ONE as f64 + 1.0);
        }

        #[test]
        fn spending_is_bounded(ns in any_time()) {
            prop_assert_eq!(fair_spent(ns), ns.min(2 * FAIR_BURST as u64) as i64);
        }

        #[test]
        fn credit_is_bounded(credit in any::<i64>(), threads in any::<u64>()) {
            let own = fair_bounded(credit);
            prop_assert!((-FAIR_BURST..=FAIR_BURST).contains(&own));
            let pool = fair_bounded_pool(credit, threads);
            prop_assert!((-FAIR_BURST..=8 * FAIR_BURST).contains(&pool));
            prop_assert!(pool <= FAIR_BURST.saturating_mul(threads.clamp(1, 8) as i64));
            // Within bounds nothing is changed.
            prop_assert_eq!(fair_bounded(own), own);
            prop_assert_eq!(fair_bounded_pool(own, threads), own);
        }

        #[test]
        fn positions_are_ordered_by_credit_and_never_wrap(
            ahead in 0u64..1 << 60, a in credit(), b in credit(), weight in weight()
        ) {
            let clock = FAIR_CLOCK_START + ahead;
            let position = |credit| fair_position(clock, fair_lag(credit, weight));
            let (at_a, at_b) = (position(a), position(b));
            prop_assert!(at_a > 0 && at_a.abs_diff(clock) <= FAIR_CLOCK_START / 2);
            if a > b {
                prop_assert!(at_a <= at_b, "who has more credit goes first");
            }
            prop_assert_eq!(position(0), clock);
            prop_assert!(at_a < 1 << 62, "below the depleted threads' mark");
        }

        /// A depleted thread that waits goes before entitled ones once the clock advanced by so much:
        /// however deep its debt, and whoever else is ready.
        #[test]
        fn waiting_depleted_threads_become_overdue(
            ahead in 0u64..1 << 60, credit in credit(), weight in 1024..=WEIGHT_MOST
        ) {
            let clock = FAIR_CLOCK_START + ahead;
            let position = fair_position(clock, fair_lag(credit, weight));
            let debt = FAIR_BURST as u64 * WEIGHT_ONE / weight;
            let lag_after = |advance: u64| (clock + advance).wrapping_sub(position) as i64;
            prop_assert!(fair_overdue(lag_after(debt + RECOVERED)));
            prop_assert!(!fair_overdue(0));
        }

        /// Who gets less than its share earns, and is entitled again.
        #[test]
        fn who_waits_recovers(pool in -FAIR_BURST..0, weight in 1024..=WEIGHT_MOST) {
            let mut pool = pool;
            let needed = FAIR_BURST as u64 + RECOVERED;
            // At rate one, in steps of a millisecond, this takes so long at most.
            let steps = needed * WEIGHT_ONE / weight.min(WEIGHT_ONE) / MS + 2;
            for _ in 0..steps {
                let earned = fair_earned(MS, MS, weight);
                pool = fair_bounded_pool(pool + earned, 1);
            }
            prop_assert!(!fair_depleted(pool, true));
        }

        #[test]
        fn who_runs_on_is_depleted(pool in credit()) {
            let mut pool = pool;
            for _ in 0..90 {
                pool = fair_bounded_pool(pool - fair_spent(10 * MS), 8);
            }
            prop_assert!(fair_depleted(pool, false));
        }

        #[test]
        fn slices_are_bounded(cpus in 0u64..=1024, load in any_time(), weight in weight(), pool in credit()) {
            prop_assert!((2 * MS..=20 * MS).contains(&fair_slice(cpus, load, weight)));
            prop_assert!((2 * MS..=50 * MS).contains(&fair_entitled_slice(pool)));
        }

        /// The weights of a group's members sum up to the group's, but for rounding.
        #[test]
        fn members_never_weigh_more_than_their_group(
            group in 1024..=WEIGHT_MOST, members in proptest::collection::vec(1024..=WEIGHT_MOST, 1..50)
        ) {
            let active: u64 = members.iter().sum();
            let sum: u64 = members.iter().map(|own| fair_weight(group, *own, active)).sum();
            prop_assert!(sum <= group + members.len() as u64);
            prop_assert!(sum + members.len() as u64 >= group);
        }

        #[test]
        fn weights_are_bounded(group in weight(), own in weight(), active in any_time()) {
            prop_assert!((WEIGHT_LEAST..=WEIGHT_MOST).contains(&fair_weight(group, own, active)));
        }

        /// Nobody gets more than its quotas and a burst, however it runs, if it is not let run while its pool is empty.
        #[test]
        fn pools_give_no_more_than_their_quotas(
            quota in MS..100 * MS, burst in 0..100 * MS, runs in proptest::collection::vec((0..40 * MS, 0..30 * MS), 1..100)
        ) {
            let period = 100 * MS;
            let (mut now, mut began, mut left, mut used) = (S, S, quota as i64, 0);
            for (wants, rests) in runs {
                let until = limit_until(left, began, period, quota);
                prop_assert!(until == 0 || until > now);
                if until == 0 {
                    let ran = wants.min(limit_step(left, quota, 1));
                    used += ran;
                    left -= ran as i64;
                    now += ran;
                }
                now += rests;
                let periods = limit_periods(began, period, now);
                began += periods * period;
                left += limit_added(left, periods, quota, burst);
                prop_assert!(left <= (quota + burst) as i64);
                let due = quota * ((began - S) / period + 1);
                prop_assert!(used <= due + 20_000, "{used} {due}");
            }
        }

        #[test]
        fn limits_are_free_of_overflow(
            left in any::<i64>().prop_map(|it| it >> 3), periods in any_time(), quota in 0..1u64 << 61, burst in 0..1u64 << 61,
            pace in 0u32..=1024, ran in any_time(), had in any_time()
        ) {
            let added = limit_added(left, periods, quota, burst);
            prop_assert!(added >= 0 && (added == 0 || left + added <= (quota + burst) as i64));
            prop_assert!(limit_step(left, quota, 1) >= 20_000);
            prop_assert!(limit_pace(pace, ran, had) <= 1024);
            prop_assert!(limit_ran(pace, had) <= had);
        }

        #[test]
        fn deadlines_are_bounded(
            age in any_time(), ready in S..1 << 62, set in any_time(), usual in any_time(),
            present in any_time(), stretch in 0u64..=256
        ) {
            let since = urgency_since(age, ready);
            prop_assert!((ready - URGENCY_AGE_MOST..=ready).contains(&since));
            let latency = urgency_latency(set, usual, present, stretch);
            prop_assert!((50_000..=URGENCY_LATENCY_MOST + URGENCY_OVERRUN_MOST).contains(&latency));
        }

        /// Nothing that becomes ready later than the sum of the bounds after a waiting thread goes first.
        #[test]
        fn nobody_is_passed_for_ever(
            waiting in (any_time(), S..1 << 62, any_time(), any_time(), any_time(), any_time()),
            later in (any_time(), 0..10 * S, any_time(), any_time(), any_time(), any_time()),
            stretch in 0u64..=256,
        ) {
            let deadline = |age, ready, set, usual, present, request| {
                urgency_since(age, ready)
                    + urgency_allowance(request, stretch)
                    + urgency_latency(set, usual, present, stretch)
            };
            let first = deadline(waiting.0, waiting.1, waiting.2, waiting.3, waiting.4, waiting.5);
            let bounds = URGENCY_AGE_MOST
                + URGENCY_ALLOWANCE_MOST
                + URGENCY_LATENCY_MOST
                + URGENCY_OVERRUN_MOST;
            let ready = waiting.1 + bounds + later.1;
            prop_assert!(deadline(later.0, ready, later.2, later.3, later.4, later.5) >= first);
        }

        #[test]
        fn usual_requests_stay_between_the_requests(
            request in 0..1u64 << 60, spent in 0..1u64 << 60, seen in any_time()
        ) {
            let next = urgency_request(request, spent, seen);
            prop_assert!(next <= request.max(spent) + 1);
            prop_assert!(next + 2 >= request.min(spent));
        }

        #[test]
        fn usual_runs_stay_between_the_runs(usual in 0..1u64 << 60, ran in 0..1u64 << 60) {
            let next = urgency_usual(usual, ran);
            prop_assert!(next <= usual.max(ran) + 1);
            prop_assert!(next + 2 >= usual.min(ran));
        }

        /// Of two threads only one may preempt the other.
        #[test]
        fn preemption_has_a_direction(a in any::<u64>(), b in any::<u64>(), margin in 0..1u64 << 40) {
            prop_assert!(!(urgency_preempts(a, b, margin) && urgency_preempts(b, a, margin)));
        }
    }
}
