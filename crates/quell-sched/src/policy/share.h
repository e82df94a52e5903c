/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Share: every tenant gets its share of the whole host.
 *
 * Problem: who shares each CPU by weight serves a tenant wrongly as a whole: where one of its tasks sleeps a
 *          lot, or may run on one CPU only, nobody makes up for that elsewhere (Ishiguro et al., Toward
 *          Accurate Group Scheduling in Multi-core Environments). And no CPU can tell from what it sees what would be right.
 * How:     the loader solves, every 50 ms (rate_solver.rs), for what is due to each task: weighted max-min fairness over the whole host, by what
 *          each wanted and where it may run (quell_policy::share). It gives each a rate, of a CPU while it wants one, and moves the time
 *          up to which it has been *served*, so that it lacks what it had less than was due. From there on a task that runs is served by
 *          its CPU time over its rate, and one that sleeps as time passes. So the clock is time itself, on every CPU, and a
 *          task's virtual time (fair.h) is the time up to which it has been served, by the middle of its next turn: by its beginning, a
 *          task that a turn serves for long would be ahead on average, and one that it serves for moments behind.
 *          Until the loader knows a task, its rate is what its weight among its domain's ready ones says.
 * Bounds:  being behind counts for SHARE_BEHIND_MAX at most, being ahead for SHARE_AHEAD_MAX: where a loader has stopped, rates
 *          go on as they are, and nobody is owed or owes more than that.
 * Units:   ns; rates in 1/SHARE_RATE_ONE of a CPU.
 */
#ifndef QUELL_POLICY_SHARE_H
#define QUELL_POLICY_SHARE_H

#include "deadline.h"

/* CPU time that a task uses before it is charged. */
#define SHARE_CHARGE_MIN (500 * NS_PER_US)

#define SHARE_RATE_SHIFT 16
#define SHARE_RATE_ONE (1U << SHARE_RATE_SHIFT)
#define SHARE_RATE_MIN (SHARE_RATE_ONE / 4096)

#define SHARE_AHEAD_MAX (4 * NS_PER_S)
#define SHARE_BEHIND_MAX (1 * NS_PER_S)

/* Half of a turn counts for no longer than that: of a crowd that is due little, who comes would have nothing for seconds, all of it. */
#define SHARE_HALF_SLICE_MAX (150 * NS_PER_MS)
#define SHARE_HALF_SLICE (1 * NS_PER_MS)

/* As DEADLINE_SHARE_DELAY. */
#define SHARE_DEADLINE_DELAY (40 * NS_PER_MS)

/* A task may be so far ahead for each CPU that it shares, and still be urgent; it comes after all that lack SHARE_DEADLINE_DELAY. */
#define SHARE_URGENT_AHEAD (50 * NS_PER_MS)
#define SHARE_URGENT_AHEAD_MAX (250 * NS_PER_MS)

/* A CPU takes from other domains who is further behind than its own by so much. */
#define SHARE_STEAL_LAG_MIN (25 * NS_PER_MS)

/* A rate that is none, or too small to divide by, is the least. */
static inline u64 share_rate_floor(u32 rate)
{
	return rate < SHARE_RATE_MIN ? SHARE_RATE_MIN : rate;
}

/* For how long so much CPU time serves a task of a rate. */
static inline u64 share_service_time(u64 ns, u32 rate)
{
	if (ns > NS_PER_S)
		ns = NS_PER_S;
	return (ns << SHARE_RATE_SHIFT) / share_rate_floor(rate);
}

/* The rate of a task of a weight that nobody has solved for, among ready ones of a load on so many CPUs. */
static inline u32 share_default_rate(u64 weight, u64 cpus, u64 load)
{
	u64 rate = load ? (weight * cpus << SHARE_RATE_SHIFT) / load : SHARE_RATE_ONE;

	return rate > SHARE_RATE_ONE ? SHARE_RATE_ONE : share_rate_floor(rate);
}

/* What is to be added to the time up to which somebody has been served, to keep it within its bounds. */
static inline s64 share_served_clamp(u64 served_until, u64 now)
{
	s64 ahead = served_until - now;

	if (ahead > (s64)SHARE_AHEAD_MAX)
		return (s64)SHARE_AHEAD_MAX - ahead;
	if (ahead < -(s64)SHARE_BEHIND_MAX)
		return -(s64)SHARE_BEHIND_MAX - ahead;
	return 0;
}

/* For how long half of a turn serves a task of a rate. */
static inline u64 share_half_slice(u32 rate)
{
	u64 time = share_service_time(SHARE_HALF_SLICE, rate);

	return time < SHARE_HALF_SLICE_MAX ? time : SHARE_HALF_SLICE_MAX;
}

/* The virtual time of a task that has been served up to then. */
static inline u64 share_vtime(u64 served_until, u32 rate)
{
	return VCLOCK_START + served_until + share_half_slice(rate);
}

/* Whether a task of such a lag may have a request deadline, on so many CPUs that it shares. */
static inline bool share_is_urgent(s64 lag, u64 cpus)
{
	u64 max = cpus * SHARE_URGENT_AHEAD;

	return lag >= -(s64)(max < SHARE_URGENT_AHEAD_MAX ? max : SHARE_URGENT_AHEAD_MAX);
}

/* As order_messages(), but for tasks of short runs only: with a message's deadline, one of longer runs is served before others that are owed. */
static inline bool share_passes_messages(u64 burst_avg, u64 ran)
{
	return burst_avg <= FAIR_SLICE && ran < FAIR_SLICE;
}

/* As order_pace(), at a rate. */
static inline u64 share_deadline_pace(u32 rate)
{
	return ((u64)SHARE_RATE_ONE << DEADLINE_PACE_SHIFT) / share_rate_floor(rate);
}

/*
 * Whether a task is light that wakes (deadline.h): it is due a CPU while it wants one, as those are that want less than their share, and not ahead
 * by more than half of a turn.
 */
static inline bool share_is_light(u32 rate, s64 lag)
{
	return rate >= SHARE_RATE_ONE / 10 * 9 && lag >= -(s64)FAIR_SLICE / 2;
}

#endif
