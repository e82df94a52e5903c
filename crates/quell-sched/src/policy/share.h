/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Share: every tenant gets its share of the whole host.
 *
 * Problem: who shares each CPU by weight serves a tenant wrongly as a whole: where one of its threads sleeps a
 *          lot, or may run on one CPU only, nobody makes up for that elsewhere (Ishiguro et al., Toward
 *          Accurate Group Scheduling in Multi-core Environments).
 * How:     all that a tenant (a cgroup directly below the root, or a thread that is in none) is served, on any
 *          CPU, advances one virtual time, by its weight; and a CPU serves the tenant whose virtual time is least,
 *          of those that have a thread there. In the steady state this is max-min fair by weight, whatever
 *          CPUs threads may use: on each CPU those who are served have the least there. The same holds for a cgroup's
 *          members; but how far a member is behind the others counts for 1/2^SHARE_DEEPER only, and for SHARE_MEMBER's
 *          advance at most, so that tenants' shares come first, then those of their members, and so on.
 *          Each parent has a level: the virtual time at which its members are served. It follows those that are
 *          served in their turn.
 *          What sleeps saves up SHARE_BACK and no more, and so does what has fewer threads than it could use CPUs: whoever
 *          begins to want CPUs, or waited for none in SHARE_WAITED, is put where the level is, less that.
 *          Who is far ahead of the level is on CPUs that are less crowded than others'. Of what it is served a
 *          part counts then, the smaller the further it is ahead: those of a crowd alike keep their order, none gets so far
 *          ahead that it has to wait for long when the crowd is gone.
 *          Who is further ahead of its tenant's rivals than SHARE_AHEAD is not entitled to go first for its urgency (fair.h).
 * Units:   ns. Virtual time passes as CPU time does at the usual weight; what is said in CPU time counts by weight.
 */
#ifndef QUELL_POLICY_SHARE_H
#define QUELL_POLICY_SHARE_H

#include "fair.h"

/* CPU time that a thread uses before it is charged, with all that it is in. */
#define SHARE_STEP (500 * NS_PER_US)

/* In so much time a level follows who is served; and in so much CPU time, one of a domain or CPU. */
#define SHARE_LEVEL (100 * NS_PER_MS)
#define SHARE_NEAR (10 * NS_PER_MS)

/* CPU time. */
#define SHARE_BACK (3 * NS_PER_MS)
#define SHARE_AHEAD (10 * NS_PER_MS)

#define SHARE_WAITED (50 * NS_PER_MS)

/* In time, at the pace of the level. */
#define SHARE_MEMBER (200 * NS_PER_MS)
#define SHARE_DEEPER 4

/* From this far ahead on, in time at the level's pace, less counts; so much further on, half. */
#define SHARE_APART (300 * NS_PER_MS)
#define SHARE_HALF (200 * NS_PER_MS)

/* Nobody counts as further off: this is free of overflow. */
#define SHARE_FURTHEST (1ULL << 50)

/* A level goes at most so fast. */
#define SHARE_RATE_MOST (FAIR_RATE_ONE << 9)

/* A turn while others wait: who gets the CPU is ahead by that much. */
#define SHARE_SLICE_MOST (6 * NS_PER_MS)

/* Virtual time that CPU time is worth, at a weight as in fair.h. */
static inline u64 share_virtual(u64 ns, u64 weight)
{
	if (ns > NS_PER_S)
		ns = NS_PER_S;
	return ns * WEIGHT_ONE / (weight ?: 1);
}

/* And CPU time that virtual time is worth. */
static inline s64 share_cpu_time(s64 virtual, u64 weight)
{
	u64 ns = virtual < 0 ? -virtual : virtual;

	if (ns > NS_PER_S * 1000)
		ns = NS_PER_S * 1000;
	ns = ns * (weight >> 4) / (WEIGHT_ONE >> 4);
	return virtual < 0 ? -(s64)ns : (s64)ns;
}

/* Whether where rivals stand was noted so long ago that it means nothing any more. */
static inline bool share_stale(u64 at, u64 now)
{
	return now - at > 2 * SHARE_LEVEL;
}

/* Within these bounds. */
static inline s64 share_bounded(s64 ns, s64 most)
{
	return ns > most ? most : ns < -most ? -most : ns;
}

/*
 * What it counts for a group's place that a member is so far above their level: the same in the virtual time of the
 * group, less for each level.
 */
static inline s64 share_member(s64 above, u64 rate, u64 active, u64 weight)
{
	s64 most = fair_advance(SHARE_MEMBER, rate);
	u64 size;

	above = share_bounded(above, most);
	size = above < 0 ? -above : above;
	size = (size >> SHARE_DEEPER) * (active >> 4) / ((weight >> 4) ?: 1);
	if (size > SHARE_FURTHEST)
		size = SHARE_FURTHEST;
	return above < 0 ? -(s64)size : (s64)size;
}

/*
 * How fast a level goes, given that it was so far behind who was served when it had gone on like that for so
 * long: half of what would make up for that within SHARE_LEVEL is added, as far as that has passed.
 */
static inline u64 share_rate(u64 rate, s64 behind, u64 ns)
{
	u64 size = behind < 0 ? -behind : behind, most = rate / 4 + FAIR_RATE_ONE / 64;

	if (ns > SHARE_LEVEL)
		ns = SHARE_LEVEL;
	if (size > SHARE_FURTHEST)
		size = SHARE_FURTHEST;
	u64 by = (size >> 10) * (ns >> 10) / (SHARE_LEVEL >> 10);
	by = by * (FAIR_RATE_ONE / 2) / (SHARE_LEVEL >> 10);
	if (by > most)
		by = most;
	if (behind < 0)
		return rate > by ? rate - by : 1;
	return rate + by > SHARE_RATE_MOST ? SHARE_RATE_MOST : rate + by;
}

/* Where who begins to want CPUs begins, given where it was. */
static inline u64 share_begin(u64 served, u64 level, u64 weight)
{
	u64 least = level - share_virtual(SHARE_BACK, weight);

	return (s64)(served - least) < 0 ? least : served;
}

/* A level, after so much time in which one that had been served up to then was served, and may have gone on so slowly. */
static inline u64 share_level(u64 level, u64 served, u64 ns, u64 slowness)
{
	s64 by = served - level;
	u64 size = by < 0 ? -by : by;

	if (ns > slowness)
		ns = slowness;
	if (size > SHARE_FURTHEST)
		size = SHARE_FURTHEST;
	size = (size >> 10) * (ns >> 10) / ((ns + slowness) >> 10) << 10;
	return by < 0 ? level - size : level + size;
}

/* What counts of virtual time for who is so far above its level. */
static inline u64 share_compressed(u64 virtual, s64 above, u64 rate)
{
	u64 apart = fair_advance(SHARE_APART, rate), half = fair_advance(SHARE_HALF, rate) + 1;

	if (above <= (s64)apart)
		return virtual;
	u64 beyond = above - apart;
	if (beyond > 64 * half)
		beyond = 64 * half;
	/* In 1/1024, free of overflow. */
	return virtual / (((beyond << 10) / half) + 1024) << 10;
}

/* A depleted thread's turn, given what fair.h says. */
static inline u64 share_slice(u64 slice)
{
	return slice > SHARE_SLICE_MOST ? SHARE_SLICE_MOST : slice;
}

/* An entitled one's: until it would be too far ahead. */
static inline u64 share_entitled_slice(s64 ahead)
{
	s64 left = (s64)SHARE_AHEAD - ahead;

	return left < (s64)FAIR_SLICE_LEAST ? FAIR_SLICE_LEAST : share_slice(left);
}

#endif
