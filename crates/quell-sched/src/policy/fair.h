/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Fair: how much CPU time each task is due, by weight.
 *
 * Problem: tasks of different weights share the CPUs of a domain, sleep, wake, begin and end; and what each of them
 *          is due must follow from what it does, not from what others do around it.
 * How:     a task has a virtual time, which advances by what it runs, the faster the less it weighs. A domain's clock is the
 *          average, by weight, of the virtual times of its tasks that are ready or run: the V of EEVDF (Stoica and
 *          Abdel-Wahab, 1995; Linux since 6.6). A task's lag is the clock less its virtual time: what it is due and
 *          did not get, in virtual time. So the lags of all ready tasks, by weight, add up to 0, whoever comes and goes:
 *          what a task that becomes ready has of lag, or one that leaves, makes the clock slower or faster until that is so again, never
 *          by more than half or twice: lags do not jump.
 *          A task that sleeps keeps its virtual time, and the clock goes on. It wakes with no more than FAIR_WAKEUP_LAG_MAX of lag.
 *          A new task begins with its parent's lag. What the parent was due it gives to the child; what it owes both owe. A parent that waited for
 *          a child goes on with the child's lag. So a parent that starts tasks one after another, and waits for each, has the share
 *          of one task together with them. With shares (share.h) a new task has its parent's debts only, and the loader counts it as a task of its own.
 *          Tasks bound to one CPU can be due more than that CPU has. Their CPU's clock then falls behind the domain's
 *          (fair_behind) by what nobody could have given them, once they lack FAIR_PINNED_LAG_MAX on average. It goes by the average and not by who lacks
 *          most; and while one of them runs it moves only when that is counted: other CPUs' turns move the domain's in steps, and a task that wakes
 *          between two of them would be ahead after the next.
 * Bounds:  a lag is at most FAIR_LAG_MAX, and at least that less than what FAIR_DEBT_MAX of CPU time is worth.
 * Units:   ns; virtual time goes as fast as time for a task of weight WEIGHT_ONE that runs. Weights in 1/1024 of cgroup
 *          v2's (1 to 10000, 100 by default), so that a group's many tasks can share its weight.
 */
#ifndef QUELL_POLICY_FAIR_H
#define QUELL_POLICY_FAIR_H

#include "types.h"

#define WEIGHT_SHIFT 10
#define WEIGHT_ONE (100ULL << WEIGHT_SHIFT)
#define WEIGHT_MIN 1ULL
/* A cgroup's with cpu.idle: 3 where the usual one is 1024, as under the kernel's own scheduler. */
#define WEIGHT_IDLE (3 * WEIGHT_ONE / 1024)
#define WEIGHT_MAX (10000ULL << WEIGHT_SHIFT)

/* Clocks begin here. They may wrap: times of one clock are compared by their distance. */
#define VCLOCK_START (1ULL << 44)

/* A turn, while others wait. */
#define FAIR_SLICE (2 * NS_PER_MS)
/* Until a task is looked at in any case. */
#define FAIR_SLICE_MAX (4 * NS_PER_MS)

/* Lag that a task keeps when it wakes. */
#define FAIR_WAKEUP_LAG_MAX (4 * NS_PER_MS)
/* Of that, what makes it light: it used less than its share. */
#define FAIR_LIGHT_LAG (2 * NS_PER_MS)
/* Lag of a task that waits or runs. */
#define FAIR_LAG_MAX (300 * NS_PER_MS)
/* That of tasks bound to one CPU on average. */
#define FAIR_PINNED_LAG_MAX (50 * NS_PER_MS)
/* CPU time that a task had beyond its share and still owes. */
#define FAIR_DEBT_MAX (300 * NS_PER_MS)

/* The virtual time that so much CPU time is worth to a task of a weight, or to all ready tasks of a load. */
static inline u64 fair_vtime(u64 ns, u64 weight)
{
	/* A jump (suspend) need not be exact, only free of overflow. */
	if (ns > NS_PER_S)
		ns = NS_PER_S;
	return ns * WEIGHT_ONE / (weight ?: WEIGHT_ONE);
}

/* A lag within its bounds. */
static inline s64 fair_clamp_lag(s64 lag, u64 weight)
{
	s64 min = -(s64)(FAIR_LAG_MAX + fair_vtime(FAIR_DEBT_MAX, weight));

	if (lag > (s64)FAIR_LAG_MAX)
		return FAIR_LAG_MAX;
	return lag < min ? min : lag;
}

/* The lag of a task that wakes, by the lag that it would have; and of a new task, by its parent's. */
static inline s64 fair_wakeup_lag(s64 lag, u64 weight)
{
	return lag > (s64)FAIR_WAKEUP_LAG_MAX ? (s64)FAIR_WAKEUP_LAG_MAX : fair_clamp_lag(lag, weight);
}

/* What a task of that (bounded) lag and weight leaves to the others, or, negative, brings along: us x weight. */
static inline s64 fair_weighted_lag(s64 lag, u64 weight)
{
	return (lag >> 10) * (s64)weight;
}

/*
 * By how much less the clock advances than by so much, with ready tasks of a load, for what tasks brought along (owed); it goes
 * at least half as fast and at most twice. In us, of which 1024 are a ms and some.
 */
static inline s64 fair_lag_repaid(s64 owed, u64 load, u64 advance)
{
	/* Divided as unsigned: BPF has no signed division before its fourth instruction set. */
	u64 by = load ? (u64)(owed < 0 ? -owed : owed) / load : 0;
	u64 max = (owed < 0 ? advance : advance / 2) >> 10;

	if (by > max)
		by = max;
	return owed < 0 ? -(s64)by : (s64)by;
}

/*
 * By how much the clock is brought back where a task of such a lag ran so long. What is counted at the same time on several CPUs
 * is not exact, and nothing else would keep the sum of lags from drifting away from 0.
 */
static inline s64 fair_vclock_pull(s64 lag, u64 ran)
{
	s64 ms = ran >> 20;

	return (lag >> 10) * (ms < 1000 ? ms : 1000);
}

/*
 * By how much more a CPU's clock falls behind, where tasks bound to it have such a lag on average, and one of them ran so long while the domain's clock
 * moved on by due: by what it could not give them, and half in 0.1 s of what they lack beyond FAIR_PINNED_LAG_MAX.
 */
static inline u64 fair_pinned_behind(s64 lag, s64 vclock_advance, u64 ran, u64 load)
{
	s64 beyond = lag - (s64)FAIR_PINNED_LAG_MAX, undelivered = vclock_advance - (s64)fair_vtime(ran, load);

	if (beyond <= 0 || undelivered <= 0)
		return 0;
	u64 behind = undelivered + (((u64)beyond >> 10) * (ran >> 17));
	return behind < (u64)beyond ? behind : (u64)beyond;
}

/* What a mean moves by, where part of it does, by weight. */
static inline s64 fair_avg_shift(s64 shift, s64 weight, u64 load)
{
	bool negative = (shift < 0) != (weight < 0);
	u64 part = (u64)(shift < 0 ? -shift : shift) >> 10;

	if (part > NS_PER_S)
		part = NS_PER_S;
	part = part * (u64)(weight < 0 ? -weight : weight) / (load ?: 1) << 10;
	return negative ? -(s64)part : (s64)part;
}

/* Who waited for so long is served soon. Our choice: less than half of the kernel's patience, which is 20 s here (timeout_ms). */
#define FAIR_STARVED_WAIT (7 * NS_PER_S)

/* The turn of one that waited so long: a thousand of them together hardly disturb others. */
#define FAIR_STARVED_SLICE (500 * NS_PER_US)

/* A thread's weight where its group of the given weight has ready threads of weights summing up to active. */
static inline u64 fair_member_weight(u64 group_weight, u64 member, u64 active)
{
	u64 weight = active > member ? group_weight * member / active : group_weight;

	if (weight < WEIGHT_MIN)
		return WEIGHT_MIN;
	return weight > WEIGHT_MAX ? WEIGHT_MAX : weight;
}

#endif
