/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Share: every tenant gets its share of the whole host.
 *
 * Problem: who shares each CPU by weight serves a tenant wrongly as a whole: where one of its threads sleeps a
 *          lot, or may run on one CPU only, nobody makes up for that elsewhere (Ishiguro et al., Toward
 *          Accurate Group Scheduling in Multi-core Environments). And no CPU can tell from what it sees what would be right.
 * How:     the loader solves, every 50 ms (shares.rs), for what is due to each thread: weighted max-min fairness over the whole host, by what
 *          each wanted and where it may run (quell_policy::share). It gives each a rate, of a CPU while it wants one, and moves the time
 *          up to which it has been *served*, so that it lacks what it had less than was due. From there on a thread that runs is served by
 *          its CPU time over its rate, and one that sleeps as time passes; who has been served up to the earliest time, by the middle of its
 *          next turn, goes first, on every CPU. So the order of who waits stays what it is, and nobody needs to know of others.
 *          Who is further ahead of the time than share_ahead() is not entitled to go first for its urgency (fair.h); who wakes and is overdue is.
 *          A thread's own credit also gets what it earned while it ran, once it sleeps: else who needs d of a CPU and is due d
 *          of it would run out of credit (fair.h) unless it is due d/(1-d), and wait like those that always run. Not so where its tenant
 *          is due more by its weight than others, who want less: it has that by their leave, and latency is theirs first.
 *          Until the loader knows a thread, its rate is what the domain's clock (fair.h) says by its weight.
 * Bounds:  being behind counts for SHARE_BEHIND_MOST at most, being ahead for SHARE_AHEAD_MOST: where a loader has stopped, rates
 *          go on as they are, and nobody is owed or owes more than that.
 * Units:   ns; rates in 1/SHARE_RATE_ONE of a CPU.
 */
#ifndef QUELL_POLICY_SHARE_H
#define QUELL_POLICY_SHARE_H

#include "fair.h"

/* CPU time that a thread uses before it is charged. */
#define SHARE_STEP (500 * NS_PER_US)

#define SHARE_RATE_SHIFT 16
#define SHARE_RATE_ONE (1U << SHARE_RATE_SHIFT)
#define SHARE_RATE_LEAST (SHARE_RATE_ONE / 4096)

/* For each of the CPUs that it shares, of so many at most. */
#define SHARE_AHEAD (50 * NS_PER_MS)
#define SHARE_CPUS_MOST 8
/* Who has run for so long since it woke is no more urgent than others that run on and on: of these the one behind goes first. */
#define SHARE_BURST (100 * NS_PER_MS)
#define SHARE_AHEAD_MOST (4 * NS_PER_S)
#define SHARE_BEHIND_MOST (1 * NS_PER_S)

/* Half of a turn counts for no longer than that: of a crowd that is due little, who comes would have nothing for seconds, all of it. */
#define SHARE_HALF_MOST (150 * NS_PER_MS)

/* A turn while others wait, or so much for each of the CPUs that it shares, of SHARE_CPUS_MOST at most: 12 ms are as small a part of eight as 6 of four. */
#define SHARE_SLICE (6 * NS_PER_MS)
#define SHARE_SLICE_CPU (1500 * NS_PER_US)

/* A rate that is none, or too small to divide by, is the least. */
static inline u64 share_rate_of(u32 rate)
{
	return rate < SHARE_RATE_LEAST ? SHARE_RATE_LEAST : rate;
}

/* For how long so much CPU time serves a thread of a rate. */
static inline u64 share_time(u64 ns, u32 rate)
{
	if (ns > NS_PER_S)
		ns = NS_PER_S;
	return (ns << SHARE_RATE_SHIFT) / share_rate_of(rate);
}

/* The CPU time that a thread of a rate is due in so much time. */
static inline s64 share_cpu_time(s64 time, u32 rate)
{
	s64 most = SHARE_AHEAD_MOST;

	time = time > most ? most : time < -most ? -most : time;
	return time * (s64)share_rate_of(rate) >> SHARE_RATE_SHIFT;
}

/* The rate of a thread of a weight that nobody has solved for, as fast as the clock goes. */
static inline u32 share_rate(u64 weight, u64 clock_rate)
{
	u64 rate = (weight * clock_rate / WEIGHT_ONE) >> (FAIR_RATE_SHIFT - SHARE_RATE_SHIFT);

	return rate > SHARE_RATE_ONE ? SHARE_RATE_ONE : share_rate_of(rate);
}

/* What is to be added to the time up to which somebody has been served, to keep it within its bounds. */
static inline s64 share_bounding(u64 served, u64 now)
{
	s64 ahead = served - now;

	if (ahead > (s64)SHARE_AHEAD_MOST)
		return (s64)SHARE_AHEAD_MOST - ahead;
	if (ahead < -(s64)SHARE_BEHIND_MOST)
		return -(s64)SHARE_BEHIND_MOST - ahead;
	return 0;
}

/* For how long half of a turn serves a thread of a rate. */
static inline u64 share_half(u32 rate)
{
	u64 time = share_time(FAIR_SLICE_LEAST / 2, rate);

	return time < SHARE_HALF_MOST ? time : SHARE_HALF_MOST;
}

/*
 * The order of who has been served so far: the least goes first, whenever it was computed; above fair_starved_order(). By the middle of its next
 * turn: else who is served for long by a turn would be ahead on average, and who is for moments behind.
 */
static inline u64 share_order(u64 served, u32 rate)
{
	return FAIR_CLOCK_START + served + share_half(rate);
}

/* How long ago that is. */
static inline s64 share_lag(u64 order, u64 now)
{
	return FAIR_CLOCK_START + now - order;
}

/*
 * Whether one that is so far behind, by the middle of its next turn, goes before entitled ones: by more than half of a turn as well. Where many
 * share a CPU, all that wait are further behind than fair.h allows.
 */
static inline bool share_overdue(s64 lag, u32 rate)
{
	return fair_overdue(lag) && lag >= (s64)share_half(rate);
}

/* Whether a thread is due a CPU of its own, nearly: it could hardly make up for what others take of that. */
static inline bool share_is_whole(u32 rate)
{
	return rate >= SHARE_RATE_ONE / 10 * 9;
}

/* Of so many CPUs that somebody shares those that count. */
static inline u64 share_cpus(u64 cpus)
{
	return cpus < 1 ? 1 : cpus > SHARE_CPUS_MOST ? SHARE_CPUS_MOST : cpus;
}

/* A depleted thread's turn, given what fair.h says, who shares so many CPUs. */
static inline u64 share_slice(u64 slice, u64 cpus)
{
	u64 most = SHARE_SLICE_CPU * share_cpus(cpus);

	if (most < SHARE_SLICE)
		most = SHARE_SLICE;
	return slice > most ? most : slice;
}

/* How far ahead of the time somebody may be, and go first for its urgency, who shares so many CPUs. */
static inline s64 share_ahead(u64 cpus)
{
	return SHARE_AHEAD * share_cpus(cpus);
}

/* The turn of an entitled one, which is ahead of the time by so much and shares so many CPUs: until it would be too far ahead. */
static inline u64 share_entitled_slice(s64 ahead, u64 cpus, u32 rate)
{
	s64 left = share_cpu_time(share_ahead(cpus) - ahead, rate);

	return left < (s64)FAIR_SLICE_LEAST ? FAIR_SLICE_LEAST : share_slice(left, cpus);
}

#endif
