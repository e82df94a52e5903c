//! The scheduler's arithmetic, natively: the functions of `policy/*.h`, from the same source that the
//! kernel runs. Their headers say what they mean; units are nanoseconds.

use crate::layout;

/// The default weight of a task or group, in 1/1024 of cgroup v2's.
pub const WEIGHT_ONE: u64 = layout::WEIGHT_ONE;
/// The smallest weight, in the unit of [`WEIGHT_ONE`].
pub const WEIGHT_MIN: u64 = layout::WEIGHT_MIN;
/// The greatest weight, in the unit of [`WEIGHT_ONE`].
pub const WEIGHT_MAX: u64 = layout::WEIGHT_MAX;
/// The virtual time at which virtual clocks begin, in ns.
pub const VCLOCK_START: u64 = layout::VCLOCK_START;
/// A task's slice while other tasks wait, in ns.
pub const FAIR_SLICE: u64 = layout::FAIR_SLICE;
/// The lag that a task keeps when it wakes, at most, in ns.
pub const FAIR_WAKEUP_LAG_MAX: i64 = layout::FAIR_WAKEUP_LAG_MAX;
/// The lag with which a waking task is light, in ns.
pub const FAIR_LIGHT_LAG: i64 = layout::FAIR_LIGHT_LAG;
/// The lag of a runnable task, at most, in ns.
pub const FAIR_LAG_MAX: i64 = layout::FAIR_LAG_MAX;

/// The average lag of the tasks pinned to a CPU, in ns, beyond which their clock falls behind.
pub const FAIR_PINNED_LAG_MAX: i64 = layout::FAIR_PINNED_LAG_MAX;
/// The CPU time that a task ran beyond its share and still owes, at most, in ns.
pub const FAIR_DEBT_MAX: u64 = layout::FAIR_DEBT_MAX;
/// The bound of a latency, and of a client's request, in ns: what is longer counts as this.
pub const URGENCY_WORK_MAX: u64 = layout::URGENCY_WORK_MAX;
/// The bound of the age of work, in ns.
pub const URGENCY_AGE_MAX: u64 = layout::URGENCY_AGE_MAX;
/// The time 0 as a deadline, in ns.
pub const DEADLINE_BASE: u64 = layout::DEADLINE_BASE;
/// A deadline is earlier than the task's enqueueing by this at most, in ns, except for light tasks.
pub const DEADLINE_LEAD_MAX: u64 = layout::DEADLINE_LEAD_MAX;
/// A light task's deadline is earlier than its wakeup by this, in ns.
pub const DEADLINE_LIGHT_LEAD: u64 = layout::DEADLINE_LIGHT_LEAD;
/// A share deadline is this long after the task's lag will be as large as its slice, in ns.
pub const DEADLINE_SHARE_DELAY: u64 = layout::DEADLINE_SHARE_DELAY;
/// A task that has run for this time since it woke, in ns, has no request deadline.
pub const DEADLINE_BURST_MAX: u64 = layout::DEADLINE_BURST_MAX;
/// A chain that has been busy for this many times a task's work is endless.
pub const DEADLINE_BUSY_RATIO: u64 = layout::DEADLINE_BUSY_RATIO;
/// Bound of the busy time of a chain, in ns.
pub const DEADLINE_BUSY_MAX: u64 = layout::DEADLINE_BUSY_MAX;

macro_rules! native {
    ($($(#[$doc:meta])* $name:ident = $c:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        // C's unsigned long long, long long, unsigned int and _Bool.
        unsafe extern "C" {
            $(fn $c($($arg: $type),*) -> $result;)*
        }
        $($(#[$doc])*
        pub fn $name($($arg: $type),*) -> $result {
            // SAFETY: a C function of integers that reads and writes no memory.
            unsafe { $c($($arg),*) }
        })*
    };
}

native! {
    /// The virtual time that `ns` of CPU time are worth to a task of a weight, or to all runnable tasks by
    /// their weight sum.
    fair_vtime = quell_fair_vtime(ns: u64, weight: u64) -> u64;
    /// A lag within its bounds.
    fair_clamp_lag = quell_fair_clamp_lag(lag: i64, weight: u64) -> i64;
    /// The lag of a task that wakes.
    fair_wakeup_lag = quell_fair_wakeup_lag(lag: i64, weight: u64) -> i64;
    /// The weighted lag that a task leaves to the others, or brings along, in us x weight.
    fair_weighted_lag = quell_fair_weighted_lag(lag: i64, weight: u64) -> i64;
    /// By how much less the vclock advances, to repay weighted lag that tasks brought.
    fair_lag_repaid = quell_fair_lag_repaid(owed: i64, load: u64, advance: u64) -> i64;
    /// By how much the vclock is moved back after a task of a lag ran for `ran`.
    fair_vclock_pull = quell_fair_vclock_pull(lag: i64, ran: u64) -> i64;
    /// By how much more a CPU's clock falls behind its LLC's vclock.
    fair_pinned_behind = quell_fair_pinned_behind(lag: i64, vclock_advance: i64, ran: u64, load: u64) -> u64;
    /// By how much a weighted average moves, where a part of it moves by `by`.
    fair_avg_shift = quell_fair_avg_shift(by: i64, weight: i64, load: u64) -> i64;
    /// The effective weight of a member of a group.
    fair_member_weight = quell_fair_member_weight(group: u64, member: u64, active: u64) -> u64;
    /// Whether deadline `a` is earlier than `b`.
    deadline_before = quell_deadline_before(a: u64, b: u64) -> bool;
    /// A task's share deadline.
    deadline_share = quell_deadline_share(lag: i64, delay: u64, scale: u64, now: u64) -> u64;
    /// How far a task may be ahead of its share and still have a request deadline.
    deadline_ahead_max = quell_deadline_ahead_max(work: u64) -> i64;
    /// The lag that a task's slice is worth.
    deadline_slice_lag = quell_deadline_slice_lag(weight: u64) -> i64;
    /// From when on a task's request counts.
    deadline_request_start = quell_deadline_request_start(woke_at: u64, lag: i64, work: u64, scale: u64, now: u64) -> u64;
    /// A task's request deadline; `otherwise`, where the task has none or that is earlier.
    deadline_request = quell_deadline_request(
        otherwise: u64, start: u64, work: u64, age: u64, ran: u64, burst_avg: u64, endless: bool
    ) -> u64;
    /// The busy time of a chain after one of its tasks ran for `ran`.
    deadline_chain_ran = quell_deadline_chain_ran(busy: u64, ran: u64) -> u64;
    /// The busy time of a chain after one of its tasks slept for `slept`.
    deadline_chain_slept = quell_deadline_chain_slept(busy: u64, slept: u64) -> u64;
    /// Whether a task's chain is endless, by the task's work.
    deadline_chain_endless = quell_deadline_chain_endless(busy: u64, work: u64) -> bool;
    /// For how long a task that wakes is light, in ns; 0: it is not.
    deadline_light_run = quell_deadline_light_run(lag: i64, weight: u64, burst_avg: u64) -> u64;
    /// A light task's deadline.
    deadline_light = quell_deadline_light(woke_at: u64, burst_avg: u64) -> u64;
    /// The deadline of a task of an endless chain that passes messages.
    deadline_message = quell_deadline_message(woke_at: u64, lag: i64, scale: u64, now: u64) -> u64;
    /// Whether a task of an endless chain passes messages.
    deadline_passes_messages = quell_deadline_passes_messages(burst_avg: u64, ran: u64) -> bool;
    /// How much longer than a lag it takes to serve that lag, in 1/64.
    deadline_lag_scale = quell_deadline_lag_scale(load: u64, cpus: u64) -> u64;
    /// By how much a task's share deadline becomes later for each ns that the task runs, in 1/1024.
    deadline_pace = quell_deadline_pace(weight: u64, scale: u64) -> u64;
    /// The deadline of a running task as of now.
    deadline_running = quell_deadline_running(deadline: u64, until: u64, pace: u64, now: u64) -> u64;
    /// For how long CPU time serves a task of a rate, in 1/65536 of a CPU.
    share_service_time = quell_share_service_time(ns: u64, rate: u32) -> u64;
    /// The rate of a task that the rate solver does not know yet, by its weight.
    share_default_rate = quell_share_default_rate(weight: u64, cpus: u64, load: u64) -> u32;
    /// The time to add to `served_until`, up to which a task has been served, to keep it within its bounds.
    share_served_clamp = quell_share_served_clamp(served_until: u64, now: u64) -> i64;
    /// For how long half of a slice serves a task of a rate.
    share_half_slice = quell_share_half_slice(rate: u32) -> u64;
    /// The vtime of a task that has been served up to a time.
    share_vtime = quell_share_vtime(served_until: u64, rate: u32) -> u64;
    /// [`deadline_pace`] by a rate.
    share_deadline_pace = quell_share_deadline_pace(rate: u32) -> u64;
    /// Whether a task of a lag may have a request deadline. `cpus`: the number of CPUs that the task shares.
    share_is_urgent = quell_share_is_urgent(lag: i64, cpus: u64) -> bool;
    /// Whether a waking task of a rate and a lag is light.
    share_is_light = quell_share_is_light(rate: u32, lag: i64) -> bool;
    /// How many periods ended since the period that began at `period_start`.
    bw_periods = quell_bw_periods(period_start: u64, period: u64, now: u64) -> u64;
    /// The runtime that a number of ended periods adds to a pool.
    bw_refill = quell_bw_refill(runtime: i64, periods: u64, quota: u64, burst: u64) -> i64;
    /// Until when an empty pool throttles its tasks; 0: the pool holds runtime.
    bw_throttled_until = quell_bw_throttled_until(runtime: i64, period_start: u64, period: u64, quota: u64) -> u64;
    /// For how long a task may run until its group is charged next.
    bw_slice = quell_bw_slice(runtime: i64, quota: u64, nr_running: u32) -> u64;
    /// The part of the time on a CPU that counts as run, in 1/1024.
    bw_exec_ratio = quell_bw_exec_ratio(ratio: u32, ran: u64, elapsed: u64) -> u32;
    /// Estimate of what a task ran in the elapsed time.
    bw_exec_estimate = quell_bw_exec_estimate(ratio: u32, elapsed: u64) -> u64;
    /// The time for which a task's work has waited.
    urgency_age = quell_urgency_age(since: u64, ran: u64, now: u64) -> u64;
    /// The part of an age that counts for a task's work.
    urgency_age_credit = quell_urgency_age_credit(age: u64, work: u64) -> u64;
    /// A task's work: the time that its present activation may take.
    urgency_work = quell_urgency_work(latency_set: u64, burst_avg: u64, request_avg: u64, stretch: u64) -> u64;
    /// The average CPU time that a process spends on a client's request.
    urgency_request_avg = quell_urgency_request_avg(avg: u64, spent: u64, nr_seen: u64) -> u64;
    /// A task's average burst.
    urgency_burst_avg = quell_urgency_burst_avg(avg: u64, ran: u64) -> u64;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;
    const S: u64 = 1000 * MS;
    /// A CPU, as a rate.
    const CPU: u32 = 1 << 16;

    fn ms(ms: i64) -> i64 {
        ms * MS as i64
    }

    /// A deadline in ms from where deadlines begin.
    fn deadline(ms: u64) -> u64 {
        DEADLINE_BASE + ms * MS
    }

    #[test]
    fn running_moves_virtual_time_by_weight() {
        // (ran ms, weight in percent) -> ms
        for (ran, weight, moved) in [(6, 100, 6), (6, 300, 2), (6, 50, 12), (5000, 100, 1000)] {
            let found = fair_vtime(ran * MS, WEIGHT_ONE * weight / 100);
            assert_eq!(found, moved * MS, "{ran} {weight}");
        }
        assert_eq!(fair_vtime(MS, 0), MS, "a weight that is none");
    }

    #[test]
    fn a_task_wakes_with_little_lag_and_all_its_debts() {
        // (lag when it slept, plus what the clock went since, in ms) -> lag
        for (lag, woken) in [(100, 4), (4, 4), (1, 1), (0, 0), (-7, -7)] {
            assert_eq!(fair_wakeup_lag(ms(lag), WEIGHT_ONE), ms(woken), "{lag}");
        }
        // Debts end at what the bound says, which is worth more to a light weight.
        let most = |weight| fair_wakeup_lag(i64::MIN / 2, weight);
        assert_eq!(most(WEIGHT_ONE), -ms(600));
        assert_eq!(most(WEIGHT_ONE / 10), -ms(300 + 3000));
    }

    #[test]
    fn lag_that_a_task_leaves_is_repaid_by_the_clock() {
        // 1024 us of lag and of clock are counted together. (lag in them, weight and the others' load in
        // percent, the clock's advance) -> by how much less it advances
        for (lag, weight, load, advance, less) in [
            (6, 100, 300, 4, 2),
            (6, 100, 300, 3, 1), // half of it at most: the rest later
            (-6, 100, 300, 4, -2),
            (-6, 300, 100, 4, -4), // twice as fast at most
            (6, 100, 0, 4, 0),
        ] {
            let (unit, percent) = (1 << 20, WEIGHT_ONE / 100);
            let owed = fair_weighted_lag(lag * unit, weight * percent);
            let found = fair_lag_repaid(owed, load * percent, advance << 20) << 10;
            let rounded = (found + (1 << 19)) >> 20;
            assert!(
                (rounded - less).abs() <= i64::from(advance == 3),
                "{lag} {weight} {load}: {rounded}"
            );
        }
    }

    #[test]
    fn a_cpu_falls_behind_by_what_it_cannot_give() {
        // Two equal tasks are pinned to the CPU. (their lag beyond the bound, the vclock's advance while one
        // ran, what it ran; in ms) -> by how much
        for (beyond, due, ran, behind) in [
            (20, 4, 4, 2), // each had half of what was run
            (20, 4, 2, 3),
            (2, 8, 4, 2),  // until they lack no more than that
            (20, 2, 4, 0), // they catch up
            (0, 8, 4, 0),
            (-100, 8, 4, 0),
            (200, 4, 4, 8), // and half of the lag in 0.1 s
        ] {
            let load = 2 * WEIGHT_ONE;
            let lag = FAIR_PINNED_LAG_MAX + ms(beyond);
            let found = fair_pinned_behind(lag, ms(due), ran * MS, load) as f64 / MS as f64;
            assert!(
                (found - f64::from(behind)).abs() < 1.0,
                "{beyond} {due} {ran}: {found}"
            );
        }
    }

    #[test]
    fn a_mean_moves_as_its_parts_do_by_weight() {
        // (what a part moves by in 1024 us, its weight, that of all) -> the mean's.
        for (by, weight, load, mean) in [
            (6, 1, 3, 2),
            (-6, 1, 3, -2),
            (6, -1, 2, -3), // the part leaves, and was before the remaining parts
            (-6, -1, 2, 3),
            (6, 3, 3, 6),
            (6, 1, 0, 6),
        ] {
            let found = fair_avg_shift(by << 20, weight, load);
            assert_eq!(found, mean << 20, "{by} {weight} {load}");
        }
    }

    #[test]
    fn a_share_deadline_is_when_the_lag_will_be_too_much() {
        // (lag in ms, ready tasks, CPUs) -> ms from now
        for (lag, tasks, cpus, left) in [
            (0, 2, 2, 100),
            (0, 8, 2, 100), // whatever other tasks there are
            (-3, 8, 2, 112),
            (20, 8, 2, 20),
            (25, 8, 2, 0),
            (50, 8, 2, -100),
            (300, 100, 1, -400), // bounded
            (0, 1, 8, 100),
            (0, 0, 1, 100),
        ] {
            let now = 10 * S;
            let times = deadline_lag_scale(tasks * WEIGHT_ONE, cpus);
            let found = deadline_share(ms(lag), DEADLINE_SHARE_DELAY, times, now);
            let due = (deadline(10_000) as i64 + ms(left)) as u64;
            assert_eq!(found, due, "{lag} {tasks} {cpus}");
        }
        for (weight, turn) in [(100, 2), (10_000, 0), (10, 20), (1, 200)] {
            assert_eq!(deadline_slice_lag(weight * 1024) / 1_000_000, turn);
        }
        assert_eq!(deadline_slice_lag(1), FAIR_LAG_MAX);
    }

    #[test]
    fn a_request_is_due_once_its_work_should_be_done() {
        let share = deadline(10_000);
        // (lag, work, age, ran, usual; ms, since 1 s) -> ms, or its share deadline
        for (lag, work, age, ran, usual, busy, due) in [
            (0, 16, 0, 0, 16, 0, Some(1016)),
            (0, 16, 0, 16, 16, 16, Some(1016)), // as it goes on
            (0, 16, 0, 20, 16, 20, Some(1020)), // longer than usual
            (0, 16, 30, 0, 16, 0, Some(986)),
            (0, 16, 90, 0, 16, 256, Some(952)), // four times the work
            (0, 60, 230, 0, 16, 0, Some(860)),  // 200 ms at most
            (-35, 16, 0, 0, 16, 0, Some(1016)),
            (-36, 16, 0, 0, 16, 0, Some(1118)), // too far ahead: from when it is not, on half of a CPU
            (50, 16, 0, 100, 16, 0, None),      // without end
            (0, 16, 30, 0, 16, 257, None),      // of a chain without end
        ] {
            let (ran, usual, busy) = (ran * MS, usual * MS, busy * MS);
            let from = deadline_request_start(S, ms(lag), work * MS, 128, S + 100 * MS);
            let endless = deadline_chain_endless(busy, work * MS);
            let found = deadline_request(share, from, work * MS, age * MS, ran, usual, endless);
            assert_eq!(
                found,
                due.map_or(share, deadline),
                "{lag} {work} {age} {ran}"
            );
        }
        let early = deadline(900);
        assert_eq!(
            deadline_request(early, S, 16 * MS, 0, 0, 0, false),
            early,
            "its share's is earlier"
        );
    }

    #[test]
    fn a_task_is_light_for_a_slice_or_for_what_it_lacks() {
        // (its lag, its weight, what it usually runs, in ms and percent) -> for how long in ms; 0: not at all
        for (lag, weight, usual, light) in [
            (1.9, 100, 0.1, 0.0), // it used too much
            (2.0, 100, 0.1, 2.0),
            (2.0, 100, 2.1, 0.0),
            (2.2, 100, 2.1, 2.2), // its lag is worth what it runs
            (4.0, 100, 2.5, 2.5),
            (4.0, 100, 2.6, 0.0), // but never for longer than a slice and a little
            (4.0, 50, 2.1, 0.0),  // not to half of the weight
            (4.0, 50, 2.0, 2.0),
            (4.0, 10, 2.0, 2.0),
            (2.0, 200, 2.5, 2.5), // to twice the weight
            (4.0, 10_000, 2.6, 0.0),
            (300.0, 10_000, 2.5, 2.5),
        ] {
            let ns = |ms: f64| (ms * MS as f64).round();
            let found =
                deadline_light_run(ns(lag) as i64, WEIGHT_ONE * weight / 100, ns(usual) as u64);
            assert_eq!(found as f64, ns(light), "{lag} {weight} {usual}");
        }
    }

    #[test]
    fn a_light_task_goes_first_for_a_turn() {
        let light = deadline_light(S, 0);
        assert!(deadline_before(
            light,
            deadline_share(FAIR_LAG_MAX, DEADLINE_SHARE_DELAY, u64::MAX >> 40, S)
        ));
        assert!(
            deadline_before(light, deadline_light(S + 1, 0)),
            "alike: first come, first served"
        );
        // A short one precedes one of 2 ms that woke up to four times the difference before it.
        let (short, long) = (MS / 20, deadline_light(S, 2 * MS));
        assert!(deadline_before(deadline_light(S + 7 * MS, short), long));
        assert!(deadline_before(long, deadline_light(S + 8 * MS, short)));
        // Of a chain without end: from when it lacks as much, here on half of a CPU.
        for (lag, due) in [(2, 1030), (4, 1030), (0, 1035), (-10, 1055)] {
            let found = deadline_message(S, ms(lag), 128, S + MS);
            assert_eq!(found, deadline(due), "{lag}");
        }
        // (usual, ran in ms) -> whether it passes messages
        for (usual, ran, does) in [
            (1, 0, true),
            (10, 99, true),
            (11, 0, false),
            (1, 100, false),
            (0, 1, false), // it has not slept yet
        ] {
            let found = deadline_passes_messages(usual * MS, ran * MS);
            assert_eq!(found, does, "{usual}, {ran}");
        }
        // It runs until 1002 ms, and is what it was before then.
        let until = S + FAIR_SLICE;
        assert_eq!(deadline_running(light, until, 1024, until), light);
        assert_eq!(
            deadline_running(light, until, 1024, until + MS),
            deadline(1001)
        );
        assert_eq!(
            deadline_running(deadline(900), until, 2048, until + MS),
            deadline(902)
        );
    }

    #[test]
    fn a_chain_is_busy_until_it_sleeps() {
        // (ran, slept in ms), again and again for a second -> for how long it has been busy then.
        for (ran, slept, busy) in [(20, 30, 0), (30, 20, 200), (2, 0, 1000), (100, 900, 0)] {
            let mut found = 0;
            for _ in 0..1000 / (ran + slept) {
                found = deadline_chain_slept(deadline_chain_ran(found, ran * MS), slept * MS);
            }
            assert_eq!(found / MS, busy, "{ran} {slept}");
        }
        assert_eq!(
            deadline_chain_ran(DEADLINE_BUSY_MAX, u64::MAX),
            DEADLINE_BUSY_MAX
        );
    }

    #[test]
    fn work_follows_the_averages() {
        // (set, usual, request in us; stretch in 1/16) -> us
        for (set, usual, request, stretch, work) in [
            (0, 300, 0, 16, 300),
            (0, 300, 700, 16, 1000),
            (0, 300, 700, 8, 500),
            (0, 0, 0, 16, 50),
            (2000, 300, 0, 0, 2000),
            (0, 80_000, 80_000, 16, 100_000),
        ] {
            let found = urgency_work(set * 1000, usual * 1000, request * 1000, stretch);
            assert_eq!(found, work * 1000, "{set} {usual} {request} {stretch}");
        }
        assert_eq!(urgency_age(S, 2 * MS, S + 5 * MS), 3 * MS);
        assert_eq!(urgency_burst_avg(8 * MS, 4 * MS), 7 * MS);
        // The first requests count as much as later ones.
        assert_eq!(urgency_request_avg(0, 6 * MS, 0), 6 * MS);
        assert_eq!(urgency_request_avg(6 * MS, 2 * MS, 1), 4 * MS);
    }

    #[test]
    fn running_serves_a_task_by_its_rate() {
        // (ms, rate in percent of a CPU) -> ms
        for (ran, rate, serves) in [(3, 100, 3), (3, 50, 6), (3, 1, 300), (5_000, 50, 2_000)] {
            let found = share_service_time(ran * MS, CPU * rate / 100);
            assert!(
                found.abs_diff(serves * MS) < serves * MS / 100,
                "{ran} {rate} {found}"
            );
        }
        // No rate is 0.
        assert_eq!(share_service_time(MS, 0), 4096 * MS);
    }

    #[test]
    fn a_new_task_has_the_rate_that_its_weight_says() {
        // (weight in percent, CPUs, load in tasks) -> percent of a CPU
        for (weight, cpus, load, rate) in [
            (100, 2, 4, 50),
            (300, 1, 4, 75),
            (300, 2, 4, 100),
            (100, 1, 0, 100),
        ] {
            let found = share_default_rate(WEIGHT_ONE * weight / 100, cpus, load * WEIGHT_ONE);
            assert!(found.abs_diff(CPU * rate / 100) <= 1, "{weight} {found}");
        }
        assert_eq!(share_default_rate(WEIGHT_MIN, 1, WEIGHT_ONE), CPU / 4096);
    }

    #[test]
    fn being_ahead_and_behind_counts_within_bounds() {
        // (served up to, s; at 10 s) -> what is added, s
        for (served, by) in [(9.5, 0.0), (13.0, 0.0), (20.0, -6.0), (0.0, 9.0)] {
            let found = share_served_clamp((served * S as f64) as u64, 10 * S);
            assert_eq!(found, (by * S as f64) as i64, "{served}");
        }
    }

    #[test]
    fn a_task_stands_by_the_middle_of_its_next_turn() {
        let at = |ms: u64, rate| share_vtime(S + ms * MS, rate) - VCLOCK_START - S;
        assert_eq!(at(3, CPU), 4 * MS);
        assert!(at(0, CPU / 10) > at(8, CPU));
        // rate in percent -> us: 1 ms of CPU time, within 150 ms
        for (rate, us) in [
            (100, 1_000),
            (10, 10_000),
            (2, 50_000),
            (1, 100_000),
            (0, 150_000),
        ] {
            let found = share_half_slice(CPU / 100 * rate);
            assert!(found.abs_diff(us * 1000) < MS / 10, "{rate} {found}");
        }
        // (CPUs) -> how far ahead an urgent task may be, in ms
        for (cpus, most) in [(1, 50), (4, 200), (5, 250), (64, 250)] {
            assert!(share_is_urgent(-ms(most), cpus) && !share_is_urgent(-ms(most + 1), cpus));
        }
        // A task that is due all that it wants is light.
        assert!(share_is_light(CPU, 0) && share_is_light(CPU, -ms(1)));
        assert!(!share_is_light(CPU, -ms(2)) && !share_is_light(CPU / 2, ms(50)));
    }

    #[test]
    fn pools_refill_and_debts_are_repaid() {
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
            let found = bw_refill(ms(left), periods, 20 * MS, 30 * MS);
            assert_eq!(found, ms(added), "{left} {periods}");
        }
        // (left) -> until, of 20 every 100 and as of 1000
        for (left, until) in [(1, 0), (0, 1100), (-19, 1100), (-20, 1200), (-45, 1300)] {
            let found = bw_throttled_until(ms(left), 1000 * MS, 100 * MS, 20 * MS);
            assert_eq!(found, until * MS, "{left}");
        }
        assert_eq!(bw_periods(1000, 100, 1099), 0);
        assert_eq!(bw_periods(1000, 100, 1100), 1);
        assert_eq!(bw_periods(1000, 100, 900), 0);
        // (left, running) -> us, of 16 ms
        for (left, running, step) in [(16, 1, 1000), (1, 1, 500), (16, 3, 500), (0, 1, 20)] {
            let found = bw_slice(ms(left), 16 * MS, running);
            assert_eq!(found, step * 1000, "{left} {running}");
        }
        assert_eq!(bw_exec_ratio(1024, MS / 2, MS), 896);
        assert_eq!(bw_exec_estimate(512, MS), MS / 2);
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
            let found = fair_member_weight(
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
        // A crowd shares its group's hundred; its tasks do not get a weight of their own.
        let crowd = 10_000 * fair_member_weight(WEIGHT_ONE, WEIGHT_ONE, 10_000 * WEIGHT_ONE);
        assert!(
            crowd <= WEIGHT_ONE && crowd > WEIGHT_ONE * 9 / 10,
            "{crowd}"
        );
    }

    fn weight() -> impl Strategy<Value = u64> {
        prop_oneof![
            Just(WEIGHT_MIN),
            Just(WEIGHT_ONE),
            Just(WEIGHT_MAX),
            WEIGHT_MIN..=WEIGHT_MAX
        ]
    }

    fn any_time() -> impl Strategy<Value = u64> {
        prop_oneof![any::<u64>(), 0u64..10 * S, 0u64..1_000_000]
    }

    /// A lag within its bounds.
    fn lag(weight: u64) -> impl Strategy<Value = i64> {
        any::<i64>().prop_map(move |lag| fair_clamp_lag(lag, weight))
    }

    fn weight_and_lag() -> impl Strategy<Value = (u64, i64)> {
        weight().prop_flat_map(|weight| (Just(weight), lag(weight)))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn lags_are_bounded(weight in weight(), lag in any::<i64>()) {
            let bounded = fair_clamp_lag(lag, weight);
            prop_assert!(bounded <= FAIR_LAG_MAX && bounded <= lag.max(bounded));
            prop_assert_eq!(fair_clamp_lag(bounded, weight), bounded);
            let woken = fair_wakeup_lag(lag, weight);
            prop_assert!(woken <= FAIR_WAKEUP_LAG_MAX && woken <= bounded);
        }

        /// Whichever tasks come and go, the sum of weighted lags is what is owed, and the vclock repays it
        /// without ever standing still.
        #[test]
        fn lags_add_up_to_what_is_owed(
            mut tasks in prop::collection::vec((1024u64..=100 * WEIGHT_ONE, -50i64..50), 2..20), ran in 1u64..20,
        ) {
            for (_, lag) in &mut tasks { *lag *= MS as i64; }
            let mut owed: i64 = tasks.iter().map(|&(weight, lag)| fair_weighted_lag(lag, weight)).sum();
            // One task leaves, and the remaining tasks run in turn.
            let (weight, lag) = tasks.remove(0);
            owed -= fair_weighted_lag(lag, weight);
            let load: u64 = tasks.iter().map(|(w, _)| w).sum();
            for step in 0..400 {
                let of = step % tasks.len();
                let moved = fair_vtime(ran * MS, tasks[of].0) as i64;
                tasks[of].1 -= moved;
                let advance = fair_vtime(ran * MS, load);
                let paid = fair_lag_repaid(owed, load, advance);
                owed -= paid * load as i64;
                let clock = advance as i64 - (paid << 10);
                prop_assert!(clock >= advance as i64 / 2 && clock <= 2 * advance as i64);
                for (_, lag) in &mut tasks { *lag += clock; }
            }
            let sum: i128 = tasks.iter().map(|&(w, lag)| i128::from(w) * i128::from(lag)).sum();
            let off = (sum - (i128::from(owed) << 10)) / i128::from(load);
            prop_assert!(off.abs() < 2 * MS as i128, "{off}");
        }

        #[test]
        fn the_clock_does_not_overflow((weight, lag) in weight_and_lag(), load in 1u64..1 << 40, ran in any_time()) {
            let left = fair_weighted_lag(lag, weight);
            prop_assert!(left.unsigned_abs() < 1 << 53, "of a thousand tasks");
            let paid = fair_lag_repaid(left, load, ran);
            prop_assert!(paid.unsigned_abs() <= ran >> 10 && paid as i128 * left as i128 >= 0);
            prop_assert!(fair_vtime(ran, weight) <= S * WEIGHT_ONE);
            let pull = fair_vclock_pull(lag, ran);
            prop_assert!(pull.unsigned_abs() <= lag.unsigned_abs() + 1_024_000 && pull as i128 * lag as i128 >= 0);
        }

        /// deadline.h, bound (1).
        #[test]
        fn no_later_task_precedes_for_long(
            (weight, lag) in weight_and_lag(), load in any_time(), cpus in 0u64..=1024, woke in 0u64..1 << 60,
            since in 0u64..1 << 40, work in (any_time(), any_time(), any_time(), any::<u32>()), age in any_time(),
            ran in any_time(), usual in any_time(), busy in 0..=DEADLINE_BUSY_MAX,
        ) {
            let _ = weight;
            let now = woke + since;
            let work = urgency_work(work.0, work.1, work.2, u64::from(work.3 % 257));
            prop_assert!((50_000..=2 * URGENCY_WORK_MAX).contains(&work));
            let share = deadline_share(lag, DEADLINE_SHARE_DELAY, deadline_lag_scale(load, cpus), now);
            prop_assert!(!deadline_before(share, DEADLINE_BASE + now - DEADLINE_LEAD_MAX));
            let from = deadline_request_start(woke, lag, work, deadline_lag_scale(load, cpus), now);
            prop_assert!(from == woke || (from >= now && lag < -deadline_ahead_max(work)));
            let due = deadline_request(share, from, work, age, ran.min(1 << 40), usual, deadline_chain_endless(busy, work));
            prop_assert!(!deadline_before(due, DEADLINE_BASE + woke - DEADLINE_LEAD_MAX));
            prop_assert!(!deadline_before(share, due), "a request makes it no later");
            if ran >= DEADLINE_BURST_MAX {
                prop_assert_eq!(due, share, "work without end has no urgency");
            }
            // And a light task precedes all tasks that have become ready in the last minutes.
            prop_assert!(deadline_before(deadline_light(now, FAIR_SLICE), due) || since > DEADLINE_LIGHT_LEAD / 2);
        }

        #[test]
        fn a_task_of_more_lag_has_an_earlier_deadline(load in 0u64..1 << 45, cpus in 1u64..=1024, lag in -(300 * MS as i64)..=FAIR_LAG_MAX, more in 0..100 * MS as i64) {
            let share = |lag| deadline_share(lag, DEADLINE_SHARE_DELAY, deadline_lag_scale(load, cpus), 100 * S);
            prop_assert!(!deadline_before(share(lag), share((lag + more).min(FAIR_LAG_MAX))));
        }

        #[test]
        fn age_counts_within_bounds(age in any_time(), work in 50_000..=2 * URGENCY_WORK_MAX) {
            let counted = urgency_age_credit(age, work);
            prop_assert!(counted <= age && counted <= 4 * work && counted <= URGENCY_AGE_MAX);
        }

        #[test]
        fn a_running_task_becomes_later(now in 0u64..1 << 59, until in 0u64..1 << 59, more in 0u64..1 << 40, due in -(1i64 << 40)..1 << 40, weight in weight(), load in any_time()) {
            let deadline = (DEADLINE_BASE + now).wrapping_add_signed(due);
            let at = |now| deadline_running(deadline, until, deadline_pace(weight, deadline_lag_scale(load, 4)), now);
            prop_assert!(!deadline_before(at(now + more), at(now)) || now > until);
            prop_assert_eq!(at(until), deadline);
            prop_assert!(share_deadline_pace(CPU) == 1024 && deadline_pace(WEIGHT_ONE, 64) == 1024);
        }

        #[test]
        fn shares_do_not_overflow(ns in any_time(), rate in any::<u32>(), weight in weight(), cpus in 0u64..=1024, load in any_time()) {
            prop_assert!(share_service_time(ns, rate) <= S * 4096);
            prop_assert!(share_default_rate(weight, cpus, load) <= CPU);
        }

        #[test]
        fn vtimes_follow_the_service(served in 0u64..1 << 59, more in 0u64..1 << 59, rate in any::<u32>()) {
            prop_assert!(share_vtime(served, rate) <= share_vtime(served + more, rate));
            let now = served.wrapping_add(more);
            let kept = share_served_clamp(served, now);
            prop_assert!(kept >= 0 && kept as u64 <= more);
        }

        #[test]
        fn members_never_weigh_more_than_their_group(
            group in 1024..=WEIGHT_MAX, members in proptest::collection::vec(1024..=WEIGHT_MAX, 1..50)
        ) {
            let active: u64 = members.iter().sum();
            let sum: u64 = members.iter().map(|own| fair_member_weight(group, *own, active)).sum();
            prop_assert!(sum <= group + members.len() as u64);
            prop_assert!(sum + members.len() as u64 >= group);
        }

        #[test]
        fn weights_are_bounded(group in weight(), own in weight(), active in any_time()) {
            prop_assert!((WEIGHT_MIN..=WEIGHT_MAX).contains(&fair_member_weight(group, own, active)));
        }

        #[test]
        fn pools_give_no_more_than_their_quotas(
            quota in MS..100 * MS, burst in 0..100 * MS, runs in proptest::collection::vec((0..40 * MS, 0..30 * MS), 1..100)
        ) {
            let period = 100 * MS;
            let (mut now, mut began, mut left, mut used) = (S, S, quota as i64, 0);
            for (wants, rests) in runs {
                let until = bw_throttled_until(left, began, period, quota);
                prop_assert!(until == 0 || until > now);
                if until == 0 {
                    let ran = wants.min(bw_slice(left, quota, 1));
                    used += ran;
                    left -= ran as i64;
                    now += ran;
                }
                now += rests;
                let periods = bw_periods(began, period, now);
                began += periods * period;
                left += bw_refill(left, periods, quota, burst);
                prop_assert!(left <= (quota + burst) as i64);
                let due = quota * ((began - S) / period + 1);
                prop_assert!(used <= due + 20_000, "{used} {due}");
            }
        }

        #[test]
        fn bandwidth_is_free_of_overflow(
            left in any::<i64>().prop_map(|it| it >> 3), periods in any_time(), quota in 0..1u64 << 61, burst in 0..1u64 << 61,
            pace in 0u32..=1024, ran in any_time(), had in any_time()
        ) {
            let added = bw_refill(left, periods, quota, burst);
            prop_assert!(added >= 0 && (added == 0 || left + added <= (quota + burst) as i64));
            prop_assert!(bw_slice(left, quota, 1) >= 20_000);
            prop_assert!(bw_exec_ratio(pace, ran, had) <= 1024);
            prop_assert!(bw_exec_estimate(pace, had) <= had);
        }

        #[test]
        fn average_bursts_stay_between_the_bursts(usual in 0..1u64 << 60, ran in 0..1u64 << 60) {
            let next = urgency_burst_avg(usual, ran);
            prop_assert!(next <= usual.max(ran) + 1);
            prop_assert!(next + 2 >= usual.min(ran));
        }

        #[test]
        fn average_requests_stay_between_the_requests(usual in 0..1u64 << 60, spent in 0..1u64 << 60, seen in any_time()) {
            let found = urgency_request_avg(usual, spent, seen);
            prop_assert!(found <= usual.max(spent) && found + 2 >= usual.min(spent) - usual.min(spent) / 64);
        }
    }
}
