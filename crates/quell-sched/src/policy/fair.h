/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Fair: how much CPU time each task is due, by weight.
 *
 * Problem: Tasks of different weights share the CPUs of an LLC, sleep, wake, begin and exit. What a task is
 *          due must follow from what the task does, not from what the tasks around it do.
 * How:     A task has a virtual time (vtime), which advances with what it runs, the faster the less it
 *          weighs. The virtual clock (vclock) of an LLC is the average of the vtimes of its runnable tasks,
 *          by weight: the V of EEVDF (Stoica and Abdel-Wahab, 1995; Linux since 6.6). The lag of a task is
 *          the vclock less the task's vtime: what the task is due and did not get, in virtual time. So the
 *          weighted lags of all runnable tasks add up to 0. A task that becomes runnable with lag, or leaves
 *          with lag, makes the vclock slower or faster until that holds again, by half or twice at most: no
 *          task's lag jumps.
 *          A sleeping task keeps its vtime, and the vclock goes on. A task wakes with FAIR_WAKEUP_LAG_MAX of
 *          lag at most. A new task begins with its parent's lag: positive lag the parent gives to the child,
 *          debts both have. A parent that waited for a child goes on with the child's lag. So a parent that
 *          starts tasks one after another, and waits for each, has the share of one task together with them.
 *          With shares (share.h) a new task has its parent's debts only, and the rate solver counts it as a
 *          task of its own.
 *          Pinned tasks can be due more than their CPU has. Their CPU's clock then falls behind the LLC's
 *          vclock (fair_pinned_behind) by what no CPU could have given them, once their average lag is beyond
 *          FAIR_PINNED_LAG_MAX. While one of them runs, their clock moves only when that task is charged: the
 *          slices of other CPUs move the vclock in steps, and a task that wakes between two steps would be
 *          ahead after the second one.
 * Bounds:  A lag is at most FAIR_LAG_MAX, and at least minus FAIR_LAG_MAX minus what FAIR_DEBT_MAX of CPU
 *          time is worth in virtual time.
 * Units:   ns. Virtual time goes as fast as time for a running task of weight WEIGHT_ONE. Weights are in
 *          1/1024 of cgroup v2's (1 to 10000, 100 by default), so that a group's many tasks can share its
 *          weight.
 */
#ifndef QUELL_POLICY_FAIR_H
#define QUELL_POLICY_FAIR_H

#include "types.h"

#define WEIGHT_SHIFT 10
#define WEIGHT_ONE (100ULL << WEIGHT_SHIFT)
#define WEIGHT_MIN 1ULL
/* Weight of a cgroup with cpu.idle: 3 where the default is 1024, as under the kernel's own scheduler. */
#define WEIGHT_IDLE (3 * WEIGHT_ONE / 1024)
#define WEIGHT_MAX (10000ULL << WEIGHT_SHIFT)

/* Virtual clocks begin here. They may wrap: times of one clock are compared by their distance. */
#define VCLOCK_START (1ULL << 44)

/* Slice of a task while other tasks wait. */
#define FAIR_SLICE (2 * NS_PER_MS)
/* Slice given to the core: a task is dispatched anew after this time in any case. */
#define FAIR_SLICE_MAX (4 * NS_PER_MS)

/* Lag that a task keeps when it wakes, at most. */
#define FAIR_WAKEUP_LAG_MAX (4 * NS_PER_MS)
/* Lag with which a waking task is light: it used less than its share. */
#define FAIR_LIGHT_LAG (2 * NS_PER_MS)
/* Lag of a runnable task, at most. */
#define FAIR_LAG_MAX (300 * NS_PER_MS)
/* Average lag of the tasks pinned to a CPU, beyond which their clock falls behind. */
#define FAIR_PINNED_LAG_MAX (32 * NS_PER_MS)
/* CPU time that a task ran beyond its share and still owes, at most. */
#define FAIR_DEBT_MAX (300 * NS_PER_MS)

/*
 * The virtual time that CPU time is worth to a task of a weight, or to all runnable tasks of an LLC by their
 * weight sum.
 */
static inline u64 fair_vtime(u64 ns, u64 weight)
{
	/* After a jump of the clock (suspend) the value need not be exact, only free of overflow. */
	if (ns > NS_PER_S)
		ns = NS_PER_S;
	return ns * WEIGHT_ONE / (weight ?: WEIGHT_ONE);
}

/* Clamps a lag to its bounds. */
static inline s64 fair_clamp_lag(s64 lag, u64 weight)
{
	s64 min = -(s64)(FAIR_LAG_MAX + fair_vtime(FAIR_DEBT_MAX, weight));

	if (lag > (s64)FAIR_LAG_MAX)
		return FAIR_LAG_MAX;
	return lag < min ? min : lag;
}

/*
 * The lag with which a task wakes, by its lag at the vclock of now; and of a new task, by its parent's lag.
 */
static inline s64 fair_wakeup_lag(s64 lag, u64 weight)
{
	return lag > (s64)FAIR_WAKEUP_LAG_MAX ? (s64)FAIR_WAKEUP_LAG_MAX : fair_clamp_lag(lag, weight);
}

/*
 * Weighted lag (us x weight) that a leaving task of a clamped lag leaves to the remaining tasks; a task that
 * enters brings its weighted lag.
 */
static inline s64 fair_weighted_lag(s64 lag, u64 weight)
{
	return (lag >> 10) * (s64)weight;
}

/*
 * By how much less the vclock advances than by advance, to repay weighted lag that tasks brought (owed), so
 * that it goes at least half as fast and at most twice. load: weight sum of the runnable tasks. In units of
 * 1024 ns.
 */
static inline s64 fair_lag_repaid(s64 owed, u64 load, u64 advance)
{
	/* Divides as unsigned: BPF has no signed division before its fourth instruction set. */
	u64 by = load ? (u64)(owed < 0 ? -owed : owed) / load : 0;
	u64 max = (owed < 0 ? advance : advance / 2) >> 10;

	if (by > max)
		by = max;
	return owed < 0 ? -(s64)by : (s64)by;
}

/*
 * By how much the vclock is moved back after a task of a lag ran for ran. Charges on several CPUs at the
 * same time are not exact, and nothing else keeps the sum of weighted lags from drifting away from 0.
 */
static inline s64 fair_vclock_pull(s64 lag, u64 ran)
{
	s64 ms = ran >> 20;

	return (lag >> 10) * (ms < 1000 ? ms : 1000);
}

/*
 * By how much more the clock of a CPU falls behind the LLC's vclock, after a task pinned to the CPU ran and
 * the vclock advanced by vclock_advance. lag: average lag of the tasks pinned to the CPU. It falls by what
 * the CPU could not give them, and in 0.1 s by half of their lag beyond FAIR_PINNED_LAG_MAX.
 */
static inline u64 fair_pinned_behind(s64 lag, s64 vclock_advance, u64 ran, u64 load)
{
	s64 beyond = lag - (s64)FAIR_PINNED_LAG_MAX,
	    undelivered = vclock_advance - (s64)fair_vtime(ran, load);

	if (beyond <= 0 || undelivered <= 0)
		return 0;
	u64 behind = undelivered + (((u64)beyond >> 10) * (ran >> 17));
	return behind < (u64)beyond ? behind : (u64)beyond;
}

/* By how much a weighted average moves, where a part of a weight moves by shift. */
static inline s64 fair_avg_shift(s64 shift, s64 weight, u64 load)
{
	bool negative = (shift < 0) != (weight < 0);
	u64 part = (u64)(shift < 0 ? -shift : shift) >> 10;

	if (part > NS_PER_S)
		part = NS_PER_S;
	part = part * (u64)(weight < 0 ? -weight : weight) / (load ?: 1) << 10;
	return negative ? -(s64)part : (s64)part;
}

/* A task that has waited for this time is starved. Our choice: less than half of timeout_ms (20 s). */
#define FAIR_STARVED_WAIT (7 * NS_PER_S)

/* Slice of a starved task: a thousand of them together hardly disturb other tasks. */
#define FAIR_STARVED_SLICE (500 * NS_PER_US)

/* The effective weight of a member of a group. active: the sum of the weights of the runnable members. */
static inline u64 fair_member_weight(u64 group_weight, u64 member, u64 active)
{
	u64 weight = active > member ? group_weight * member / active : group_weight;

	if (weight < WEIGHT_MIN)
		return WEIGHT_MIN;
	return weight > WEIGHT_MAX ? WEIGHT_MAX : weight;
}

#endif
