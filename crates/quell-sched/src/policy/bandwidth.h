/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Limits: the CPU time that a cgroup's threads get together at most (cpu.max, cpu.max.burst).
 *
 * Problem: the kernel's own scheduler enforces them, and one that takes its place has to.
 * How:     a group has a pool of CPU time, to which its quota is added each period. Its threads draw from the pool as they run, on
 *          any CPU, and wait while it is empty. What they draw beyond its end is owed: the next quotas pay for it.
 * Bounds:  a pool holds a quota and the burst at most. What is owed at most is what those that run at once still run
 *          until they are looked at: a quarter of a quota divided by their number, each, or LIMIT_LEAST.
 * Units:   ns.
 */
#ifndef QUELL_POLICY_BANDWIDTH_H
#define QUELL_POLICY_BANDWIDTH_H

#include "types.h"

#define LIMIT_LEAST (20 * NS_PER_US)

/* What a pool holds, and what is asked of it, is no more: this is free of overflow. */
#define LIMIT_MOST (1LL << 60)

/* How many periods began after that one. */
static inline u64 limit_periods(u64 began, u64 period, u64 now)
{
	return now > began && period ? (now - began) / period : 0;
}

/* What so many periods add to what a pool holds. */
static inline s64 limit_added(s64 left, u64 periods, u64 quota, u64 burst)
{
	s64 most = quota + burst < (u64)LIMIT_MOST ? (s64)(quota + burst) : LIMIT_MOST;
	s64 room = left < most ? most - left : 0;

	return quota && periods <= (u64)room / quota ? (s64)(periods * quota) : room;
}

/* Until when a pool is empty, 0 if it is not: as of the period that began then. */
static inline u64 limit_until(s64 left, u64 began, u64 period, u64 quota)
{
	if (left > 0)
		return 0;
	return began + ((u64)-left / (quota ?: 1) + 1) * period;
}

/* For how long one that draws from it runs before it is looked at, while so many do: others may begin. */
static inline u64 limit_step(s64 left, u64 quota, u32 running)
{
	u64 each = left > 0 ? (u64)left / (running + 1) : 0, most = quota / 8 / (running + 1);

	if (each > most)
		each = most;

	return each < LIMIT_LEAST ? LIMIT_LEAST : each;
}

/* What part of the time that a thread has a CPU counts as run (interrupts and stolen time do not), in 1/LIMIT_PACE_ONE. */
#define LIMIT_PACE_SHIFT 10
#define LIMIT_PACE_ONE (1U << LIMIT_PACE_SHIFT)

/* As of now, after it ran so much of so long. */
static inline u32 limit_pace(u32 pace, u64 ran, u64 had)
{
	if (had < LIMIT_LEAST || had > NS_PER_S)
		return pace;
	u32 now = ran < had ? (ran << LIMIT_PACE_SHIFT) / had : LIMIT_PACE_ONE;
	return (pace * 3 + now) / 4;
}

/* What it probably ran of so long. */
static inline u64 limit_ran(u32 pace, u64 had)
{
	return had > NS_PER_S ? had : (had * pace) >> LIMIT_PACE_SHIFT;
}

#endif
