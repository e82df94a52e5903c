/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Fair: what a thread is entitled to.
 *
 * Problem: urgent threads may go first only as long as they stay within their share; else "urgent"
 *          would be the way to take everybody's CPU.
 * How:     each domain of CPUs keeps a virtual clock. It advances as fast as a thread of weight
 *          WEIGHT_ONE would be served if all ready threads shared the CPUs exactly by weight
 *          (generalized processor sharing). Each CPU has one for the threads that can run nowhere else,
 *          which goes no faster than these could share it. While a thread does not run, it earns what the
 *          clock says it deserves; while it runs, it spends; a depleted one earns then as well. Its credit, in ns of CPU time, is bounded both ways: sleeping
 *          saves up at most FAIR_BURST, running in idle time owes at most as much.
 *          A process's threads also have a common credit, to which what each earns and spends is
 *          added: what its helpers do not use, its critical thread may. Threads are entitled while the common credit lasts,
 *          depleted when it is spent, until there is a quarter of FAIR_BURST again. Who always runs stays depleted.
 *          Entitled threads run first, in the order of urgency.h; depleted ones share the rest by
 *          weight, in the order of fair_position: the virtual time up to which a thread was served.
 *          Who waited for FAIR_STARVED goes before depleted threads, who waited for longest first: however little it is
 *          due, the kernel ends a scheduler under which somebody waits for too long.
 * Bounds:  a process whose active threads weigh w together runs entitled for at most
 *          (1 + FAIR_POOL_MOST) x FAIR_BURST + w/WEIGHT_ONE x the clock's advance. So a depleted
 *          thread gets its share less that; and one that gets less earns, and is entitled again.
 * Units:   ns; weights in 1/1024 of cgroup v2's (1 to 10000, 100 by default), so that a group's many threads
 *          can share its weight; rates in 1/FAIR_RATE_ONE.
 */
#ifndef QUELL_POLICY_FAIR_H
#define QUELL_POLICY_FAIR_H

#include "types.h"

#define WEIGHT_SHIFT 10
#define WEIGHT_ONE (100ULL << WEIGHT_SHIFT)
#define WEIGHT_LEAST 1ULL
/* A cgroup's with cpu.idle: 3 where the usual one is 1024, as under the kernel's own scheduler. */
#define WEIGHT_IDLE (3 * WEIGHT_ONE / 1024)
#define WEIGHT_MOST (10000ULL << WEIGHT_SHIFT)

#define FAIR_RATE_SHIFT 24
#define FAIR_RATE_ONE (1ULL << FAIR_RATE_SHIFT)
/* The clock goes at most so many times as fast as time. */
#define FAIR_RATE_MOST 16

/* Credit that a sleeper can save, and debt that a runner can make. */
#define FAIR_BURST (100 * NS_PER_MS)
/* Depleted threads are entitled again from here on. */
#define FAIR_RECOVERED (FAIR_BURST / 4)

/* Threads whose savings a process may use. */
#define FAIR_POOL_MOST 8

/* An entitled thread's turn is no longer, since its process may spend the same credit elsewhere. */
#define FAIR_TURN_MOST (50 * NS_PER_MS)

/* A depleted thread's turn: its part of a period in which each gets one, within these. */
#define FAIR_PERIOD (40 * NS_PER_MS)
#define FAIR_SLICE_LEAST (2 * NS_PER_MS)
#define FAIR_SLICE_MOST (20 * NS_PER_MS)

/* How fast the virtual clock goes when cpus serve ready threads whose weights sum up to load. */
static inline u64 fair_rate(u64 cpus, u64 load)
{
	u64 capacity = cpus * WEIGHT_ONE;

	if (load < capacity / FAIR_RATE_MOST)
		load = capacity / FAIR_RATE_MOST;
	return load ? (capacity << FAIR_RATE_SHIFT) / load : 0;
}

/* The virtual clock's advance within real ns at a rate. */
static inline u64 fair_advance(u64 ns, u64 rate)
{
	/* A jump (suspend) need not be exact, only free of overflow. */
	if (ns > NS_PER_S)
		ns = NS_PER_S;
	return (ns * rate) >> FAIR_RATE_SHIFT;
}

static inline s64 fair_bounded(s64 credit)
{
	if (credit > (s64)FAIR_BURST)
		return FAIR_BURST;
	if (credit < -(s64)FAIR_BURST)
		return -(s64)FAIR_BURST;
	return credit;
}

/* The same for a process's common credit: its threads may save up together. */
static inline s64 fair_bounded_pool(s64 credit, u64 threads)
{
	s64 most = FAIR_BURST * (threads < 1 ? 1 : threads > FAIR_POOL_MOST ? FAIR_POOL_MOST : threads);

	if (credit > most)
		return most;
	if (credit < -(s64)FAIR_BURST)
		return -(s64)FAIR_BURST;
	return credit;
}

/* What real ns of not running earn, in which the clock advanced by so much. */
static inline s64 fair_earned(u64 advance, u64 ns, u64 weight)
{
	u64 earned;

	/* Free of overflow; only weights below a hundredth of the least that can be set earn less for it. */
	if (advance > 10000 * FAIR_BURST)
		advance = 10000 * FAIR_BURST;
	earned = advance * weight / WEIGHT_ONE;
	/* Nobody deserves more than a whole CPU. */
	if (earned > ns)
		earned = ns;
	return earned > FAIR_BURST ? FAIR_BURST : earned;
}

/* What running costs. */
static inline s64 fair_spent(u64 ns)
{
	return ns > 2 * FAIR_BURST ? 2 * FAIR_BURST : ns;
}

/* Whether a process's threads are depleted, given whether they were. */
static inline bool fair_depleted(s64 pool, bool was)
{
	return pool < (was ? (s64)FAIR_RECOVERED : 1);
}

/*
 * Up to which virtual time a thread has been served: the least goes first. The clock starts at
 * FAIR_CLOCK_START, so this is never negative.
 */
#define FAIR_CLOCK_START (1ULL << 44)
#define FAIR_DISTANCE_MOST (FAIR_CLOCK_START / 2)

/* How far it is behind: the virtual time that its credit is worth. */
static inline s64 fair_lag(s64 credit, u64 weight)
{
	/* Divided as unsigned: BPF has no signed division before its fourth instruction set. */
	u64 distance = (u64)(credit < 0 ? -credit : credit) * WEIGHT_ONE / weight;

	if (distance > FAIR_DISTANCE_MOST)
		distance = FAIR_DISTANCE_MOST;
	return credit < 0 ? -(s64)distance : (s64)distance;
}

/* Who waited for so long is served soon. Our choice: less than half of the kernel's patience, which is 20 s here (timeout_ms). */
#define FAIR_STARVED (8 * NS_PER_S)

/* The turn of one that waited so long: a thousand of them together hardly disturb others. */
#define FAIR_STARVED_SLICE (500 * NS_PER_US)

/* Its order, given when it became ready: below all others'; those of depleted threads are at least FAIR_CLOCK_START - FAIR_DISTANCE_MOST. */
static inline u64 fair_starved_order(u64 ready)
{
	return (ready >> 21) + 1;
}

/* Whether an order, of whatever queue, is one of these: a deadline as small would be from just after the host's start. */
static inline bool fair_starved(u64 order, u64 now)
{
	return order <= fair_starved_order(now);
}

static inline u64 fair_position(u64 clock, s64 lag)
{
	return clock - (u64)lag;
}

/*
 * Whether a waiting depleted thread that is so far behind goes before entitled ones. A light thread's
 * lag is worth less, but it is not starved for that.
 */
static inline bool fair_overdue(s64 lag)
{
	return lag >= (s64)FAIR_RECOVERED;
}

/* A depleted thread's turn, with load as for fair_rate. */
static inline u64 fair_slice(u64 cpus, u64 load, u64 weight)
{
	u64 slice = load ? FAIR_PERIOD * cpus * weight / load : FAIR_SLICE_MOST;

	if (slice < FAIR_SLICE_LEAST)
		return FAIR_SLICE_LEAST;
	return slice > FAIR_SLICE_MOST ? FAIR_SLICE_MOST : slice;
}

/* An entitled thread's turn: until it would be depleted, were nobody else to run. */
static inline u64 fair_entitled_slice(s64 pool)
{
	if (pool < (s64)FAIR_SLICE_LEAST)
		return FAIR_SLICE_LEAST;
	return pool > (s64)FAIR_TURN_MOST ? FAIR_TURN_MOST : (u64)pool;
}

/* A thread's weight where its group of the given weight has ready threads of weights summing up to active. */
static inline u64 fair_weight(u64 group, u64 own, u64 active)
{
	u64 weight = active > own ? group * own / active : group;

	if (weight < WEIGHT_LEAST)
		return WEIGHT_LEAST;
	return weight > WEIGHT_MOST ? WEIGHT_MOST : weight;
}

#endif
