/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Order: which of the ready tasks goes first.
 *
 * Problem: tasks must have their shares, requests should be served whole, the oldest first, and a task that needs little must not wait for
 *          those that need much; whatever others there are, how many, how short their lives, and whom they wake.
 * Rule:    a ready task has a deadline, and the earliest goes first. A deadline is a point of time, found when the task is queued; it is
 *          the earliest of these:
 *          share    DEADLINE_SHARE_DELAY after the task will be behind its share by its turn, were it not served until then (fair.h, share.h);
 *          request  when its work should be done (urgency.h): its activation, plus its work, plus what it ran longer than usual, less the
 *                   age of the work. A task that is ahead of its share by more than order_ahead() has it from when it will be no more. None has it
 *                   that has run for DEADLINE_BURST_MAX, or whose chain has no end: it has been busy for DEADLINE_BUSY_RATIO times its work;
 *          message  DEADLINE_MESSAGE_DELAY after its activation, or after it lacks FAIR_LIGHT_LAG: of a task of a chain without end that usually runs for no more
 *                   than DEADLINE_MESSAGE_BURST, and has not run for DEADLINE_BURST_MAX;
 *          light    DEADLINE_LIGHT_LEAD before its activation: of a task that woke behind its share by FAIR_LIGHT_LAG, usually runs for no more than a
 *                   turn, has not run for longer than that since, and whose chain has an end.
 *          So light tasks come before all others, first come, first served; requests come before work that has no end, the older and the shorter
 *          ones first; and a task that lacks its share comes before all but light tasks. A task of which nothing is known, as it has not slept
 *          yet, has its share's deadline only.
 * Bound:   let a task wait with deadline d, on M CPUs that serve nothing else, with ready tasks of weights that add up to W.
 *          (1) Which tasks go before it. Those with earlier deadlines. A task that becomes ready at t has no deadline before t - DEADLINE_LEAD_MAX
 *              until it sleeps, unless it is light. So from d + DEADLINE_LEAD_MAX on only light tasks come before it that were not ready then.
 *          (2) For how long those go on. A task ahead of its share by order_ahead() has a request deadline that is put off as its share's is, by W / (M x
 *              WEIGHT_ONE) for each ns that it gets ahead; one that has run DEADLINE_BURST_MAX has its share's only. So each task that was ready before gets at
 *              most order_ahead() beyond its share before it, and a turn.
 *          (3) Light tasks get in any time no more than their shares of it, and a turn each: each turn needs a lag of FAIR_LIGHT_LAG, in which
 *              only what others were served counts (fair.h).
 *          A light task waits for light tasks only that became ready before it, for at most a turn of each: after at most n x FAIR_SLICE / M it
 *          runs, where n of these were ready, since whoever runs and is not light is preempted, at once or after WAKEUP_MIN_RUN.
 *          Any other task waits until d = DEADLINE_SHARE_DELAY + (its turn's lag - its lag) x W / (M x WEIGHT_ONE) from now at
 *          most, then DEADLINE_LEAD_MAX, and for what (2) and (3) allow. Nothing in this depends on how tasks came to be, or who woke whom.
 * Units:   ns of CLOCK_MONOTONIC, from DEADLINE_BASE.
 */
#ifndef QUELL_POLICY_DEADLINE_H
#define QUELL_POLICY_DEADLINE_H

#include "fair.h"
#include "urgency.h"

/* A CPU that runs nothing, or nothing that may be preempted, has no deadline. */
#define DEADLINE_NONE 0ULL
#define DEADLINE_BASE (1ULL << 60)

/* No deadline but a light task's is further before the time when the task is queued. */
#define DEADLINE_LEAD_MAX (2 * URGENCY_AGE_MAX)
/* No wait is as long. */
#define DEADLINE_LIGHT_LEAD (1000 * NS_PER_S)

/* A share deadline is so long after a task will lack anything. */
#define DEADLINE_SHARE_DELAY (100 * NS_PER_MS)
/* A task that has run for so long since it woke has no request deadline. */
#define DEADLINE_BURST_MAX (100 * NS_PER_MS)
/* Nor has one whose chain has been busy for so many times its work. */
#define DEADLINE_BUSY_RATIO 16
/* No chain counts as busy for longer: the most work there is, so many times. */
#define DEADLINE_BUSY_MAX (2 * DEADLINE_BUSY_RATIO * URGENCY_WORK_MAX)
/* A task of such a chain that usually runs for no longer than this passes messages. */
#define DEADLINE_MESSAGE_BURST (10 * NS_PER_MS)
/* It has a deadline so long after it woke: messages without end do not come before requests. */
#define DEADLINE_MESSAGE_DELAY (30 * NS_PER_MS)

/*
 * A task that another task woke preempts none that has run for less: a task that sends many messages sends them before they are read, and one that
 * sends one and sleeps leaves its CPU to the reader.
 */
#define WAKEUP_MIN_RUN (500 * NS_PER_US)

/* A task may be so far ahead of its share and still have a request deadline, and further by its work. */
#define DEADLINE_AHEAD_MIN (3 * NS_PER_MS)

/* Whether one of two deadlines is earlier. */
static inline bool deadline_before(u64 a, u64 b)
{
	return (s64)(a - b) < 0;
}

/* By how much a deadline is earlier than another; negative: later. */
static inline s64 deadline_lead(u64 a, u64 b)
{
	return b - a;
}

static inline u64 deadline_min(u64 a, u64 b)
{
	return deadline_before(b, a) ? b : a;
}

/* How many times as long as a lag it takes to have it, where ready tasks of a load share so many CPUs; in 1/64, and free of overflow. */
static inline u64 deadline_lag_scale(u64 load, u64 cpus)
{
	u64 capacity = cpus * WEIGHT_ONE;
	u64 scale = load > capacity && capacity ? (load << 6) / capacity : 64;

	return scale > 64 * 65536 ? 64 * 65536 : scale;
}

/* The lag that one turn of a task makes: it lacks nothing before it has as much. */
static inline s64 deadline_slice_lag(u64 weight)
{
	u64 turn = fair_vtime(FAIR_SLICE, weight);

	return turn < FAIR_LAG_MAX ? turn : FAIR_LAG_MAX;
}

/* The share deadline of a task of such a lag, less its turn's, given order_times(): so long after it will lack anything. */
static inline u64 deadline_share(s64 lag, u64 delay, u64 scale, u64 now)
{
	s64 ahead = delay;

	ahead -= lag < 0 ? -(s64)((u64)-lag * scale >> 6) : (s64)((u64)lag * scale >> 6);
	/* As bound (1) has it. */
	if (ahead < -(s64)DEADLINE_LEAD_MAX)
		ahead = -(s64)DEADLINE_LEAD_MAX;
	return DEADLINE_BASE + now + ahead;
}

/*
 * For how long a chain of tasks that woke each other has been busy: what was run in it, less what each slept meanwhile. When so much more was run;
 * and when one has slept.
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

/* By how much a task of so much work may be ahead of its share and still have a request deadline. */
static inline s64 deadline_ahead_max(u64 work)
{
	return DEADLINE_AHEAD_MIN + 2 * work;
}

/*
 * From when on a task that woke then is to be served for its request: at once, unless it is ahead of its share by more than it may be; then from when it
 * will be no more, given order_times().
 */
static inline u64 deadline_request_start(u64 woke_at, s64 lag, u64 work, u64 scale, u64 now)
{
	s64 ahead = -lag - deadline_ahead_max(work);

	return ahead > 0 ? now + ((u64)ahead * scale >> 6) : woke_at;
}

/* Whether a task's chain has no end, by its work. */
static inline bool deadline_chain_endless(u64 busy, u64 work)
{
	return busy > DEADLINE_BUSY_RATIO * work;
}

/*
 * The request deadline of a task that is to be served from then on, ran so long since it woke, and usually does; or the one given, if that is earlier, or
 * the task has none, as where its chain is endless.
 */
static inline u64 deadline_request(u64 otherwise, u64 start, u64 work, u64 age, u64 ran, u64 burst_avg, bool endless)
{
	u64 overrun = ran > burst_avg ? ran - burst_avg : 0;

	if (ran >= DEADLINE_BURST_MAX || endless)
		return otherwise;
	return deadline_min(otherwise, DEADLINE_BASE + start + work + overrun - urgency_age_credit(age, work));
}

/* The deadline of a light task that woke then. */
static inline u64 deadline_light(u64 woke_at)
{
	return DEADLINE_BASE - DEADLINE_LIGHT_LEAD + woke_at;
}

/* Whether a task of a chain without end passes messages, by what it usually runs (0: it has not slept yet) and has run. */
static inline bool deadline_passes_messages(u64 burst_avg, u64 ran)
{
	return burst_avg && burst_avg <= DEADLINE_MESSAGE_BURST && ran < DEADLINE_BURST_MAX;
}

/* That of one that does: from when it lacks as much as a light task, given order_times(). */
static inline u64 deadline_message(u64 woke_at, s64 lag, u64 scale, u64 now)
{
	s64 missing = (s64)FAIR_LIGHT_LAG - lag;

	return DEADLINE_BASE + DEADLINE_MESSAGE_DELAY + (missing > 0 ? now + ((u64)missing * scale >> 6) : woke_at);
}

/* How much later the share deadline of a task becomes in each ns that it runs, in 1/1024, given order_times(). */
#define DEADLINE_PACE_SHIFT 10
static inline u64 deadline_pace(u64 weight, u64 scale)
{
	u64 pace = (WEIGHT_ONE << (DEADLINE_PACE_SHIFT - 6)) * scale / (weight ?: WEIGHT_ONE);

	return pace < 1ULL << 32 ? pace : 1ULL << 32;
}

/* The deadline of what runs, and from then on becomes later at a pace, as of now. */
static inline u64 deadline_running(u64 deadline, u64 until, u64 pace, u64 now)
{
	u64 ran = now > until ? now - until : 0;

	if (!ran)
		return deadline;
	/* Who was light is not any more. */
	if (deadline_before(deadline, DEADLINE_BASE + now - DEADLINE_LIGHT_LEAD / 2))
		deadline += DEADLINE_LIGHT_LEAD;
	if (ran > NS_PER_S)
		ran = NS_PER_S;
	return deadline + (ran * pace >> DEADLINE_PACE_SHIFT);
}

#endif
