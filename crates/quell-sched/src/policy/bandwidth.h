/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Limits: the CPU time that a cgroup's threads get together at most (cpu.max, cpu.max.burst).
 *
 * Problem: the kernel's own scheduler enforces them, and one that takes its place has to.
 * How:     a group has a pool of CPU time, to which its quota is added each period. Its threads draw from the pool as they run, on
 *          any CPU, and wait while it is empty. What they draw beyond its end is owed: the next quotas pay for it.
 * Bounds:  a pool holds a quota and the burst at most. What is owed at most is what those that run at once still run
 *          until they are looked at: a quarter of a quota divided by their number, each, or BW_SLICE_MIN.
 * Units:   ns.
 */
#ifndef QUELL_POLICY_BANDWIDTH_H
#define QUELL_POLICY_BANDWIDTH_H

#include "types.h"

#define BW_SLICE_MIN (20 * NS_PER_US)

/* What a pool holds, and what is asked of it, is no more: this is free of overflow. */
#define BW_RUNTIME_MAX (1LL << 60)

/* How many periods began after that one. */
static inline u64 bw_periods(u64 period_start, u64 period, u64 now)
{
	return now > period_start && period ? (now - period_start) / period : 0;
}

/* What so many periods add to what a pool holds. */
static inline s64 bw_refill(s64 runtime, u64 periods, u64 quota, u64 burst)
{
	s64 max = quota + burst < (u64)BW_RUNTIME_MAX ? (s64)(quota + burst) : BW_RUNTIME_MAX;
	s64 space = runtime < max ? max - runtime : 0;

	return quota && periods <= (u64)space / quota ? (s64)(periods * quota) : space;
}

/* Until when a pool is empty, 0 if it is not: as of the period that began then. */
static inline u64 bw_throttled_until(s64 runtime, u64 period_start, u64 period, u64 quota)
{
	if (runtime > 0)
		return 0;
	return period_start + ((u64)-runtime / (quota ?: 1) + 1) * period;
}

/* For how long one that draws from it runs before it is looked at, while so many do: others may begin. */
static inline u64 bw_slice(s64 runtime, u64 quota, u32 nr_running)
{
	u64 each = runtime > 0 ? (u64)runtime / (nr_running + 1) : 0, max = quota / 8 / (nr_running + 1);

	if (each > max)
		each = max;

	return each < BW_SLICE_MIN ? BW_SLICE_MIN : each;
}

/* What part of the time that a thread has a CPU counts as run (interrupts and stolen time do not), in 1/BW_RATIO_ONE. */
#define BW_RATIO_SHIFT 10
#define BW_RATIO_ONE (1U << BW_RATIO_SHIFT)

/* As of now, after it ran so much of so long. */
static inline u32 bw_exec_ratio(u32 ratio, u64 ran, u64 elapsed)
{
	if (elapsed < BW_SLICE_MIN || elapsed > NS_PER_S)
		return ratio;
	u32 now = ran < elapsed ? (ran << BW_RATIO_SHIFT) / elapsed : BW_RATIO_ONE;
	return (ratio * 3 + now) / 4;
}

/* What it probably ran of so long. */
static inline u64 bw_exec_estimate(u32 ratio, u64 elapsed)
{
	return elapsed > NS_PER_S ? elapsed : (elapsed * ratio) >> BW_RATIO_SHIFT;
}

#endif
