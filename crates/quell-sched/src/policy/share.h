/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Share: every tenant gets its share of the whole host.
 *
 * Problem: A scheduler that shares each CPU by weight does not share the host: where a tenant's task sleeps a
 *          lot, or is pinned, the tenant gets nothing instead on other CPUs (Ishiguro et al., Toward Accurate
 *          Group Scheduling in Multi-core Environments). And no CPU can tell from what it sees what would be
 *          right.
 * How:     Every 50 ms the rate solver of the loader (rate_solver.rs) finds what each task is due: weighted
 *          max-min fairness over the whole host, by what each task wanted and where it may run
 *          (quell_policy::share). It gives each task a rate, in CPUs while the task is runnable, and moves
 *          the time up to which the task has been *served*, so that the task lacks what it got less than it
 *          was due. From there on running serves a task by its CPU time divided by its rate, and sleeping
 *          serves it as time passes. So the vclock is time itself, on every CPU. The vtime of a task (fair.h)
 *          is the time up to which it has been served, plus half of its next slice: without that half, a task
 *          that a slice serves for long would be ahead on average, and a task that it serves for moments
 *          behind. Until the rate solver knows a task, its rate is by its weight among its LLC's runnable
 *          tasks.
 * Bounds:  Being behind counts for SHARE_BEHIND_MAX at most, being ahead for SHARE_AHEAD_MAX. If the loader
 *          has stopped, rates stay as they are, and no task is owed or owes more than that.
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

/*
 * Half of a slice counts for no longer than this: of a crowd of tasks that are due little, a new task would
 * else get nothing for seconds.
 */
#define SHARE_HALF_SLICE_MAX (150 * NS_PER_MS)
#define SHARE_HALF_SLICE (1 * NS_PER_MS)

/* DEADLINE_SHARE_DELAY with shares. */
#define SHARE_DEADLINE_DELAY (40 * NS_PER_MS)

/*
 * How far a task may be ahead for each CPU that it shares, and still have a request deadline; tasks behind by
 * SHARE_DEADLINE_DELAY precede it.
 */
#define SHARE_URGENT_AHEAD (50 * NS_PER_MS)
#define SHARE_URGENT_AHEAD_MAX (250 * NS_PER_MS)

/* A CPU takes a task of another LLC that is further behind than its own tasks by this. */
#define SHARE_STEAL_LAG_MIN (25 * NS_PER_MS)

/* The rate to divide by: an unknown or too small rate counts as SHARE_RATE_MIN. */
static inline u64 share_rate_floor(u32 rate)
{
	return rate < SHARE_RATE_MIN ? SHARE_RATE_MIN : rate;
}

/* For how long CPU time serves a task of a rate. */
static inline u64 share_service_time(u64 ns, u32 rate)
{
	if (ns > NS_PER_S)
		ns = NS_PER_S;
	return (ns << SHARE_RATE_SHIFT) / share_rate_floor(rate);
}

/*
 * The rate of a task that the rate solver does not know yet, by the task's weight among the runnable tasks,
 * of weight sum load, that share the CPUs.
 */
static inline u32 share_default_rate(u64 weight, u64 cpus, u64 load)
{
	u64 rate = load ? (weight * cpus << SHARE_RATE_SHIFT) / load : SHARE_RATE_ONE;

	return rate > SHARE_RATE_ONE ? SHARE_RATE_ONE : share_rate_floor(rate);
}

/* The time to add to served_until, up to which a task has been served, to keep it within its bounds. */
static inline s64 share_served_clamp(u64 served_until, u64 now)
{
	s64 ahead = served_until - now;

	if (ahead > (s64)SHARE_AHEAD_MAX)
		return (s64)SHARE_AHEAD_MAX - ahead;
	if (ahead < -(s64)SHARE_BEHIND_MAX)
		return -(s64)SHARE_BEHIND_MAX - ahead;
	return 0;
}

/* For how long half of a slice serves a task of a rate. */
static inline u64 share_half_slice(u32 rate)
{
	u64 time = share_service_time(SHARE_HALF_SLICE, rate);

	return time < SHARE_HALF_SLICE_MAX ? time : SHARE_HALF_SLICE_MAX;
}

/* The vtime of a task that has been served up to a time. */
static inline u64 share_vtime(u64 served_until, u32 rate)
{
	return VCLOCK_START + served_until + share_half_slice(rate);
}

/* True if a task of a lag may have a request deadline. cpus: the number of CPUs that the task shares. */
static inline bool share_is_urgent(s64 lag, u64 cpus)
{
	u64 max = cpus * SHARE_URGENT_AHEAD;

	return lag >= -(s64)(max < SHARE_URGENT_AHEAD_MAX ? max : SHARE_URGENT_AHEAD_MAX);
}

/*
 * deadline_passes_messages() for shares, for tasks of short bursts only: with a message deadline, a task of
 * longer bursts would precede tasks that are owed more.
 */
static inline bool share_passes_messages(u64 burst_avg, u64 ran)
{
	return burst_avg <= FAIR_SLICE && ran < FAIR_SLICE;
}

/* deadline_pace() by a rate. */
static inline u64 share_deadline_pace(u32 rate)
{
	return ((u64)SHARE_RATE_ONE << DEADLINE_PACE_SHIFT) / share_rate_floor(rate);
}

/*
 * True if a waking task is light (deadline.h): it is due a whole CPU while it is runnable, as tasks are that
 * want less than their share, and is ahead by half of a slice at most.
 */
static inline bool share_is_light(u32 rate, s64 lag)
{
	return rate >= SHARE_RATE_ONE / 10 * 9 && lag >= -(s64)FAIR_SLICE / 2;
}

#endif
