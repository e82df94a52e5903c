//! The scheduler's arithmetic, natively: the functions of `policy/*.h`, from the same source that the
//! kernel runs. Their headers say what they mean; units are nanoseconds.

use std::ffi::{c_longlong, c_ulonglong};

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
    fn quell_fair_slice(cpus: c_ulonglong, load: c_ulonglong, weight: c_ulonglong) -> c_ulonglong;
    fn quell_fair_entitled_slice(pool: c_longlong) -> c_ulonglong;
    fn quell_fair_weight(group: c_ulonglong, own: c_ulonglong, active: c_ulonglong) -> c_ulonglong;
    fn quell_share_virtual(ns: c_ulonglong, weight: c_ulonglong) -> c_ulonglong;
    fn quell_share_cpu_time(time: c_longlong, weight: c_ulonglong) -> c_longlong;
    fn quell_share_begin(
        served: c_ulonglong,
        level: c_ulonglong,
        weight: c_ulonglong,
    ) -> c_ulonglong;
    fn quell_share_level(
        level: c_ulonglong,
        served: c_ulonglong,
        ns: c_ulonglong,
        slowness: c_ulonglong,
    ) -> c_ulonglong;
    fn quell_share_rate(rate: c_ulonglong, behind: c_longlong, ns: c_ulonglong) -> c_ulonglong;
    fn quell_share_compressed(
        time: c_ulonglong,
        above: c_longlong,
        rate: c_ulonglong,
    ) -> c_ulonglong;
    fn quell_share_member(
        above: c_longlong,
        rate: c_ulonglong,
        active: c_ulonglong,
        weight: c_ulonglong,
    ) -> c_longlong;
    fn quell_share_slice(slice: c_ulonglong) -> c_ulonglong;
    fn quell_share_entitled_slice(ahead: c_longlong) -> c_ulonglong;
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
    /// A depleted thread's turn.
    fair_slice = quell_fair_slice(cpus: u64, load: u64, weight: u64) -> u64;
    /// An entitled thread's turn.
    fair_entitled_slice = quell_fair_entitled_slice(pool: i64) -> u64;
    /// A thread's weight within its group.
    fair_weight = quell_fair_weight(group: u64, own: u64, active: u64) -> u64;
    /// Virtual time that CPU time is worth.
    share_virtual = quell_share_virtual(ns: u64, weight: u64) -> u64;
    /// CPU time that virtual time is worth.
    share_cpu_time = quell_share_cpu_time(time: i64, weight: u64) -> i64;
    /// Where who begins to want CPUs begins.
    share_begin = quell_share_begin(served: u64, level: u64, weight: u64) -> u64;
    /// A level, after somebody was served.
    share_level = quell_share_level(level: u64, served: u64, ns: u64, slowness: u64) -> u64;
    /// How fast it goes then.
    share_rate = quell_share_rate(rate: u64, behind: i64, ns: u64) -> u64;
    /// What counts of virtual time for who is so far above its level.
    share_compressed = quell_share_compressed(time: u64, above: i64, rate: u64) -> u64;
    /// What it counts for a group's place that a member is so far above their level. The weight must not be 0.
    share_member = quell_share_member(above: i64, rate: u64, active: u64, weight: u64) -> i64;
    /// A depleted thread's turn.
    share_slice = quell_share_slice(slice: u64) -> u64;
    /// An entitled thread's turn.
    share_entitled_slice = quell_share_entitled_slice(ahead: i64) -> u64;
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
    fn virtual_time_is_cpu_time_by_weight() {
        // (ms, weight in percent) -> ms
        for (time, weight, counts) in [(3, 100, 3), (3, 300, 1), (3, 1, 300), (5_000, 100, 1_000)] {
            let weight = WEIGHT_ONE * weight / 100;
            assert_eq!(
                share_virtual(time * MS, weight),
                counts * MS,
                "{time} {weight}"
            );
        }
        assert_eq!(share_cpu_time(ms(300), WEIGHT_ONE / 100), ms(3));
        assert_eq!(share_cpu_time(ms(-3), 3 * WEIGHT_ONE), ms(-9));
    }

    #[test]
    fn sleeping_saves_little_and_forgives_nothing() {
        let level = FAIR_CLOCK_START;
        // (where it was in ms, from the level on; weight in percent) -> where it begins
        for (was, weight, begins) in [
            (-500, 100, -3), // what a thread saves up: 3 ms
            (-500, 300, -1), // of CPU time
            (-500, 10, -30),
            (-2, 100, -2),
            (40, 100, 40), // who is ahead stays it
        ] {
            let was = level.wrapping_add_signed(ms(was));
            let found = share_begin(was, level, WEIGHT_ONE * weight / 100);
            assert_eq!(
                found.wrapping_sub(level) as i64,
                ms(begins),
                "{was} {weight}"
            );
        }
    }

    #[test]
    fn a_level_goes_to_who_is_served_and_as_fast() {
        let at = FAIR_CLOCK_START;
        // As much as passed of the time, of that and the time together.
        let near = |found: u64, ms: i64| {
            let off = found.wrapping_sub(at) as i64 - ms * MS as i64;
            assert!(off.abs() < 20_000, "{off}");
        };
        near(share_level(at, at + 110 * MS, 10 * MS, 100 * MS), 10);
        near(share_level(at, at - 110 * MS, 10 * MS, 100 * MS), -10);
        near(share_level(at, at + 10 * MS, 0, 100 * MS), 0);
        near(share_level(at, at + 10 * MS, 900 * MS, 100 * MS), 5); // half, after long
        // 100 ms behind after 100 ms at a rate of one: half as fast again would be right, a quarter is the most.
        let most = RATE_ONE / 4 + RATE_ONE / 64;
        assert_eq!(share_rate(RATE_ONE, ms(100), 100 * MS), RATE_ONE + most);
        assert_eq!(share_rate(RATE_ONE, ms(-100), 100 * MS), RATE_ONE - most);
        let slight = share_rate(RATE_ONE, ms(10), 10 * MS) - RATE_ONE;
        assert!(
            slight.abs_diff(RATE_ONE / 200) < RATE_ONE / 2000,
            "{slight}"
        );
        assert_eq!(share_rate(1, ms(-500), 100 * MS), 1);
    }

    #[test]
    fn who_is_far_ahead_is_counted_less() {
        // At a rate of a half: (ms above the level) -> percent that count
        for (above, counts) in [(-500, 100), (150, 100), (250, 50), (450, 25), (100_000, 2)] {
            let found = share_compressed(100 * MS, ms(above), RATE_ONE / 2);
            assert_eq!((found + MS / 2) / MS, counts, "{above}");
        }
    }

    #[test]
    fn members_count_for_a_sixteenth_in_the_time_of_their_group() {
        let one = WEIGHT_ONE;
        // (ms above, weights of the members together, of their group, in percent) -> ms
        for (above, active, weight, counts) in [
            (80, 100, 100, 5),
            (-80, 100, 100, -5),
            (80, 400, 100, 20),
            (80, 100, 200, 2),
            (1_000, 100, 100, 6), // at most 100 ms at a rate of a half
        ] {
            let found = share_member(
                ms(above),
                RATE_ONE / 2,
                one * active / 100,
                one * weight / 100,
            );
            assert_eq!(found / ms(1), counts, "{above} {active} {weight}");
        }
    }

    #[test]
    fn turns_are_short_where_tenants_share() {
        assert_eq!(share_slice(20 * MS), 6 * MS);
        assert_eq!(share_slice(2 * MS), 2 * MS);
        for (ahead, slice) in [(-50, 6), (0, 6), (5, 5), (9, 2), (30, 2)] {
            assert_eq!(share_entitled_slice(ms(ahead)), slice * MS, "{ahead}");
        }
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
        fn virtual_time_does_not_overflow(ns in any_time(), weight in weight(), level in any_time()) {
            let time = share_virtual(ns, weight);
            prop_assert_eq!(time, ns.min(S) * WEIGHT_ONE / weight);
            // Back and forth, but for what small weights round.
            if weight >= 1 << 10 {
                let back = share_cpu_time(time as i64, weight);
                prop_assert!((back - ns.min(S) as i64).unsigned_abs() <= ns.min(S) / 50 + 1, "{}", back);
            }
            let begins = share_begin(level, level.wrapping_add(time), weight);
            prop_assert!(begins.wrapping_sub(level) <= time);
        }

        #[test]
        fn levels_and_their_rates_stay_between(off in -(1i64 << 60)..1 << 60, ns in 0u64..10 * S, rate in 1u64..=RATE_ONE << 9) {
            let level = 1u64 << 61;
            let served = level.wrapping_add_signed(off);
            let found = share_level(level, served, ns, 100 * MS);
            prop_assert!(found >= level.min(served) && found <= level.max(served));
            let next = share_rate(rate, off, ns);
            prop_assert!((1..=RATE_ONE << 9).contains(&next));
            prop_assert!(off == 0 || (next >= rate.min(RATE_ONE << 9)) == (off > 0) || next == rate);
        }

        #[test]
        fn what_counts_falls_with_the_distance(time in 0..=S, above in any::<i32>(), more in 0i64..1 << 40, rate in 1u64..=RATE_ONE << 9) {
            let counts = share_compressed(time, above.into(), rate);
            prop_assert!(counts <= time);
            prop_assert!(share_compressed(time, i64::from(above) + more, rate) <= counts);
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
