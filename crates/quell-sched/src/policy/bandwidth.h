/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Bandwidth: the CPU time that the tasks of a cgroup get together at most (cpu.max, cpu.max.burst).
 *
 * Problem: The kernel's own scheduler enforces these limits, so a scheduler in its place has to.
 * How:     A group has a runtime pool, which its quota refills each period. Its tasks charge what they run to
 *          the pool, on any CPU, and are throttled while the pool is empty. What they run beyond the end of
 *          the pool is owed: the next quotas pay for it.
 * Bounds:  A pool holds a quota and the burst at most. It owes at most what the running tasks run until they
 *          are charged next: for each a quarter of a quota divided by their number, or BW_SLICE_MIN.
 * Units:   ns.
 */
#ifndef QUELL_POLICY_BANDWIDTH_H
#define QUELL_POLICY_BANDWIDTH_H

#include "types.h"

#define BW_SLICE_MIN (20 * NS_PER_US)

/* Bound on the runtime in a pool and on what is added to it, which keeps sums free of overflow. */
#define BW_RUNTIME_MAX (1LL << 60)

/* The number of periods that have ended since period_start, when a period began. */
static inline u64 bw_periods(u64 period_start, u64 period, u64 now)
{
	return now > period_start && period ? (now - period_start) / period : 0;
}

/* The runtime that ended periods add to a pool, which then holds a quota and the burst at most. */
static inline s64 bw_refill(s64 runtime, u64 periods, u64 quota, u64 burst)
{
	s64 max = quota + burst < (u64)BW_RUNTIME_MAX ? (s64)(quota + burst) : BW_RUNTIME_MAX;
	s64 space = runtime < max ? max - runtime : 0;

	return quota && periods <= (u64)space / quota ? (s64)(periods * quota) : space;
}

/*
 * Until when an empty pool throttles tasks, in the period that began at period_start; 0: the pool holds
 * runtime.
 */
static inline u64 bw_throttled_until(s64 runtime, u64 period_start, u64 period, u64 quota)
{
	if (runtime > 0)
		return 0;
	return period_start + ((u64)-runtime / (quota ?: 1) + 1) * period;
}

/*
 * The time for which a task may run until it is charged next, while nr_running tasks share the pool; one more
 * task may begin.
 */
static inline u64 bw_slice(s64 runtime, u64 quota, u32 nr_running)
{
	u64 each = runtime > 0 ? (u64)runtime / (nr_running + 1) : 0, max = quota / 8 / (nr_running + 1);

	if (each > max)
		each = max;

	return each < BW_SLICE_MIN ? BW_SLICE_MIN : each;
}

/*
 * The part of the time on a CPU that sum_exec_runtime counts (not interrupts, nor stolen time), in
 * 1/BW_RATIO_ONE.
 */
#define BW_RATIO_SHIFT 10
#define BW_RATIO_ONE (1U << BW_RATIO_SHIFT)

/* The ratio of a task after the task ran for ran of the elapsed time. */
static inline u32 bw_exec_ratio(u32 ratio, u64 ran, u64 elapsed)
{
	if (elapsed < BW_SLICE_MIN || elapsed > NS_PER_S)
		return ratio;
	u32 now = ran < elapsed ? (ran << BW_RATIO_SHIFT) / elapsed : BW_RATIO_ONE;
	return (ratio * 3 + now) / 4;
}

/* An estimate of the CPU time of a task in the elapsed time. */
static inline u64 bw_exec_estimate(u32 ratio, u64 elapsed)
{
	return elapsed > NS_PER_S ? elapsed : (elapsed * ratio) >> BW_RATIO_SHIFT;
}

#endif
