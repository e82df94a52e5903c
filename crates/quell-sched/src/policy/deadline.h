/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Deadlines: which of the runnable tasks runs first.
 *
 * Problem: Tasks must have their shares. Requests should be served whole, the oldest first. A task that needs
 *          little must not wait for tasks that need much. All this must hold whatever other tasks there are:
 *          how many, how short-lived, and whichever task wakes which.
 * Rule:    A runnable task has a deadline, and the earliest deadline goes first. A deadline is a point of
 *          time, found when the task is queued. It is the earliest of these:
 *          share    DEADLINE_SHARE_DELAY after the task's lag will be as large as its slice, were the task
 *                   not served until then (fair.h, share.h).
 *          request  When the task's work should be done (urgency.h): its wakeup, plus its work, plus what it
 *                   ran longer than usual, less the age of the work. A task that is ahead of its share by
 *                   more than deadline_ahead_max() has a request deadline from when it will no longer be. A
 *                   task has none once it has run for DEADLINE_BURST_MAX, or if its chain is endless: busy
 *                   for DEADLINE_BUSY_RATIO times the task's work.
 *          message  DEADLINE_MESSAGE_DELAY after the task's wakeup, or after its lag reaches FAIR_LIGHT_LAG:
 *                   for a task of an endless chain that usually runs for DEADLINE_MESSAGE_BURST at most and
 *                   has not run for DEADLINE_BURST_MAX.
 *          light    DEADLINE_LIGHT_LEAD before the task's wakeup, plus DEADLINE_LIGHT_RATIO times what the
 *                   task usually runs: for a task that woke with a lag of FAIR_LIGHT_LAG, usually runs for a
 *                   slice at most or for what that lag is worth (deadline_light_run()), has not run for
 *                   longer since, and whose chain is not endless.
 *          So light tasks precede all others, and the older and the shorter ones each other; requests precede
 *          endless work, the older and the shorter ones first; and a task that lacks its share precedes all
 *          but light tasks. A task that has not slept yet has a share deadline only.
 * Bound:   Let a task wait with deadline d, on M CPUs that serve nothing else, with runnable tasks of weights
 *          that add up to W.
 *          (1) Which tasks precede it: those with earlier deadlines. A task that becomes runnable at t has no
 *              deadline before t - DEADLINE_LEAD_MAX until it sleeps, unless it is light. So after d +
 *              DEADLINE_LEAD_MAX only light tasks precede it that were not runnable by then.
 *          (2) For how long those precede it. The request deadline of a task that is ahead of its share by
 *              deadline_ahead_max() is put off as its share deadline is, by W / (M x WEIGHT_ONE) for each ns
 *              that it gets further ahead; a task that has run for DEADLINE_BURST_MAX has a share deadline
 *              only. So each task that was runnable before gets deadline_ahead_max() beyond its share, and a
 *              slice, at most.
 *          (3) In any time light tasks get no more than their shares of it, and a slice each: what a task
 *              runs as a light one is a slice, for which it needs a lag of FAIR_LIGHT_LAG, or what its lag is
 *              worth; and a lag only grows with what other tasks are served (fair.h).
 *          A light task waits only for light tasks that were runnable before it, or woke within
 *          DEADLINE_LIGHT_RATIO x DEADLINE_LIGHT_RUN_MAX after it and are shorter, for DEADLINE_LIGHT_RUN_MAX
 *          of each: where there are n of these it runs after n x DEADLINE_LIGHT_RUN_MAX / M at most, since a
 *          running task that is not light is preempted at once, or after WAKEUP_MIN_RUN.
 *          Any other task waits until d = DEADLINE_SHARE_DELAY + (its slice's lag - its lag) x W / (M x
 *          WEIGHT_ONE) from now at most, then for DEADLINE_LEAD_MAX, and for what (2) and (3) allow. Nothing
 *          in this depends on how tasks came to be, or which task woke which.
 * Units:   ns of CLOCK_MONOTONIC, from DEADLINE_BASE.
 */
#ifndef QUELL_POLICY_DEADLINE_H
#define QUELL_POLICY_DEADLINE_H

#include "fair.h"
#include "urgency.h"

/* Deadline of a CPU that runs no task, or none that may be preempted. */
#define DEADLINE_NONE 0ULL
#define DEADLINE_BASE (1ULL << 60)

/* A deadline is earlier than the task's enqueueing by this at most, except for light tasks. */
#define DEADLINE_LEAD_MAX (2 * URGENCY_AGE_MAX)
/*
 * A light task runs for this long at most: a slice and a little, for tasks that usually run for a slice. With
 * 4 ms, longer requests waited for tasks of 2 to 4 ms.
 */
#define DEADLINE_LIGHT_RUN_MAX (2500 * NS_PER_US)
/* A light task precedes longer ones that woke before it by this many times the difference of their bursts. */
#define DEADLINE_LIGHT_RATIO 4
/* Longer than any wait. */
#define DEADLINE_LIGHT_LEAD (1000 * NS_PER_S)

/* A share deadline is this long after the task's lag will be as large as its slice. */
#define DEADLINE_SHARE_DELAY (100 * NS_PER_MS)
/* A task that has run for this long since it woke has no request deadline. */
#define DEADLINE_BURST_MAX (100 * NS_PER_MS)
/* A task whose chain has been busy for this many times the task's work has no request deadline either. */
#define DEADLINE_BUSY_RATIO 16
/* Bound of the busy time of a chain: that of the greatest work. */
#define DEADLINE_BUSY_MAX (2 * DEADLINE_BUSY_RATIO * URGENCY_WORK_MAX)
/* A task of an endless chain that usually runs for no longer than this passes messages. */
#define DEADLINE_MESSAGE_BURST (10 * NS_PER_MS)
/* The deadline of such a task is this long after its wakeup: endless messages do not precede requests. */
#define DEADLINE_MESSAGE_DELAY (30 * NS_PER_MS)

/*
 * A task that another task woke does not preempt a task that has run for less than this: a sender of many
 * messages sends them before they are read, and a sender of one that then sleeps leaves its CPU to the
 * reader.
 */
#define WAKEUP_MIN_RUN (500 * NS_PER_US)

/* How far a task may be ahead of its share and still have a request deadline, plus twice its work. */
#define DEADLINE_AHEAD_MIN (3 * NS_PER_MS)

/* True if deadline a is earlier than b. */
static inline bool deadline_before(u64 a, u64 b)
{
	return (s64)(a - b) < 0;
}

/* By how much deadline a is earlier than b; negative: later. */
static inline s64 deadline_lead(u64 a, u64 b)
{
	return b - a;
}

static inline u64 deadline_min(u64 a, u64 b)
{
	return deadline_before(b, a) ? b : a;
}

/*
 * How much longer than a lag it takes to serve that lag, where runnable tasks of weight sum load share the
 * CPUs; in 1/64, and free of overflow.
 */
static inline u64 deadline_lag_scale(u64 load, u64 cpus)
{
	u64 capacity = cpus * WEIGHT_ONE;
	u64 scale = load > capacity && capacity ? (load << 6) / capacity : 64;

	return scale > 64 * 65536 ? 64 * 65536 : scale;
}

/* The lag that a task's slice is worth: a task does not lack its share before its lag is that large. */
static inline s64 deadline_slice_lag(u64 weight)
{
	u64 turn = fair_vtime(FAIR_SLICE, weight);

	return turn < FAIR_LAG_MAX ? turn : FAIR_LAG_MAX;
}

/*
 * The share deadline of a task, by its lag less its slice's: delay after the lag will be positive. scale:
 * deadline_lag_scale().
 */
static inline u64 deadline_share(s64 lag, u64 delay, u64 scale, u64 now)
{
	s64 ahead = delay;

	ahead -= lag < 0 ? -(s64)((u64)-lag * scale >> 6) : (s64)((u64)lag * scale >> 6);
	/* As bound (1) requires. */
	if (ahead < -(s64)DEADLINE_LEAD_MAX)
		ahead = -(s64)DEADLINE_LEAD_MAX;
	return DEADLINE_BASE + now + ahead;
}

/*
 * The busy time of a chain of tasks that woke each other: what its tasks ran, less what they slept meanwhile.
 * deadline_chain_ran() adds what a task ran, deadline_chain_slept() takes off what a task slept.
 */
static inline u64 deadline_chain_ran(u64 busy, u64 ran)
{
	busy += ran < DEADLINE_BUSY_MAX ? ran : DEADLINE_BUSY_MAX;
	return busy < DEADLINE_BUSY_MAX ? busy : DEADLINE_BUSY_MAX;
}

static inline u64 deadline_chain_slept(u64 busy, u64 slept)
{
	return busy > slept ? busy - slept : 0;
}

/* How far a task may be ahead of its share and still have a request deadline, by the task's work. */
static inline s64 deadline_ahead_max(u64 work)
{
	return DEADLINE_AHEAD_MIN + 2 * work;
}

/*
 * When a task's request begins to count: when the task woke, unless the task is ahead of its share by more
 * than it may be; then when it will no longer be. scale: deadline_lag_scale().
 */
static inline u64 deadline_request_start(u64 woke_at, s64 lag, u64 work, u64 scale, u64 now)
{
	s64 ahead = -lag - deadline_ahead_max(work);

	return ahead > 0 ? now + ((u64)ahead * scale >> 6) : woke_at;
}

/* True if a task's chain is endless, by the task's work. */
static inline bool deadline_chain_endless(u64 busy, u64 work)
{
	return busy > DEADLINE_BUSY_RATIO * work;
}

/*
 * The request deadline of a task whose request counts from start, if it is earlier than the given deadline
 * (otherwise). A task that has run for DEADLINE_BURST_MAX, or of an endless chain, has none.
 */
static inline u64 deadline_request(u64 otherwise, u64 start, u64 work, u64 age, u64 ran, u64 burst_avg,
				   bool endless)
{
	u64 overrun = ran > burst_avg ? ran - burst_avg : 0;

	if (ran >= DEADLINE_BURST_MAX || endless)
		return otherwise;
	return deadline_min(otherwise,
			    DEADLINE_BASE + start + work + overrun - urgency_age_credit(age, work));
}

/*
 * For how long a task that wakes is light, by its lag and its average burst: what its lag is worth to its
 * weight, but a slice at least and DEADLINE_LIGHT_RUN_MAX at most. 0: the task is not light, since it usually
 * runs for longer or used more than its share.
 */
static inline u64 deadline_light_run(s64 lag, u64 weight, u64 burst_avg)
{
	if (lag < (s64)FAIR_LIGHT_LAG)
		return 0;
	u64 run = (u64)lag * weight / WEIGHT_ONE;
	if (run < FAIR_SLICE)
		run = FAIR_SLICE;
	if (run > DEADLINE_LIGHT_RUN_MAX)
		run = DEADLINE_LIGHT_RUN_MAX;
	return burst_avg <= run ? run : 0;
}

/* The deadline of a light task that woke at woke_at, by its average burst. */
static inline u64 deadline_light(u64 woke_at, u64 burst_avg)
{
	u64 burst = burst_avg < DEADLINE_LIGHT_RUN_MAX ? burst_avg : DEADLINE_LIGHT_RUN_MAX;

	return DEADLINE_BASE - DEADLINE_LIGHT_LEAD + woke_at + DEADLINE_LIGHT_RATIO * burst;
}

/*
 * True if a task of an endless chain passes messages, by its average burst (0: it has not slept yet) and its
 * present one.
 */
static inline bool deadline_passes_messages(u64 burst_avg, u64 ran)
{
	return burst_avg && burst_avg <= DEADLINE_MESSAGE_BURST && ran < DEADLINE_BURST_MAX;
}

/*
 * The message deadline: counts from the wakeup, or from when the task's lag reaches FAIR_LIGHT_LAG. scale:
 * deadline_lag_scale().
 */
static inline u64 deadline_message(u64 woke_at, s64 lag, u64 scale, u64 now)
{
	s64 missing = (s64)FAIR_LIGHT_LAG - lag;

	return DEADLINE_BASE + DEADLINE_MESSAGE_DELAY +
	       (missing > 0 ? now + ((u64)missing * scale >> 6) : woke_at);
}

/*
 * By how much the share deadline of a task becomes later for each ns that it runs, in 1/1024. scale:
 * deadline_lag_scale().
 */
#define DEADLINE_PACE_SHIFT 10
static inline u64 deadline_pace(u64 weight, u64 scale)
{
	u64 pace = (WEIGHT_ONE << (DEADLINE_PACE_SHIFT - 6)) * scale / (weight ?: WEIGHT_ONE);

	return pace < 1ULL << 32 ? pace : 1ULL << 32;
}

/* The deadline of a running task as of now: from the time until on, the deadline becomes later at a pace. */
static inline u64 deadline_running(u64 deadline, u64 until, u64 pace, u64 now)
{
	u64 ran = now > until ? now - until : 0;

	if (!ran)
		return deadline;
	/* A light task that has run until then is no longer light. */
	if (deadline_before(deadline, DEADLINE_BASE + now - DEADLINE_LIGHT_LEAD / 2))
		deadline += DEADLINE_LIGHT_LEAD;
	if (ran > NS_PER_S)
		ran = NS_PER_S;
	return deadline + (ran * pace >> DEADLINE_PACE_SHIFT);
}

#endif
