/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Share: every tenant gets its share of the whole host.
 *
 * Problem: who shares each CPU by weight serves a tenant wrongly as a whole: where one of its threads sleeps a
 *          lot, or may run on one CPU only, nobody makes up for that elsewhere (Ishiguro et al., Toward
 *          Accurate Group Scheduling in Multi-core Environments).
 * How:     all that a tenant (a cgroup directly below the root, or a thread that is in none) uses, on any CPU, adds to one
 *          number, its usage, by its weight; and a CPU serves the tenant of least usage, of those that have a thread there. In the
 *          steady state this is max-min fair by weight, whatever CPUs threads may use: on each CPU those who are served have the
 *          least there. Usage decays, by half every SHARE_HALF: so nobody is owed anything without bound,
 *          and who were served apart from each other, on crowded CPUs and on others, meet as equals soon after. When the demand changes
 *          usage decays much faster for a while, for all alike: what somebody used of CPUs that nobody else wanted is no debt to those who come,
 *          and what was fair before says little of what is now.
 *          The same holds for a cgroup's members; but how far one is above where they stand on average
 *          counts for 1/2^SHARE_DEEPER only, so that tenants' shares come first, then those of their members, and so on.
 *          Who begins to want CPUs, or wanted none in SHARE_WANTED but those that it got, has saved up SHARE_BACK at most.
 *          Who is further ahead of its tenant's rivals than SHARE_AHEAD for each of the CPUs that they share is not entitled to go
 *          first for its urgency (fair.h).
 *          A thread's own credit also gets what it earned while it ran, once it sleeps: else who needs d of a CPU and is due d
 *          of it would run out of credit (fair.h) unless it is due d/(1-d), and wait like those that always run.
 *          Queues are ordered by the logarithm of usage and time together: while all decay alike, that stays what it is.
 * Units:   ns. Usage is in virtual time, which passes as CPU time does at the usual weight; what is said in CPU time counts by weight.
 */
#ifndef QUELL_POLICY_SHARE_H
#define QUELL_POLICY_SHARE_H

#include "fair.h"

/* CPU time that a thread uses before it is charged, with all that it is in. */
#define SHARE_STEP (500 * NS_PER_US)

#define SHARE_HALF (3000 * NS_PER_MS)

/* In so much CPU time, what is known of a domain's or CPU's rivals follows them; and is forgotten in so much time. */
#define SHARE_NEAR (10 * NS_PER_MS)
#define SHARE_STALE (200 * NS_PER_MS)
/*
 * What is known of a domain's counts so long for those who may run on one of its CPUs only, where it has several. Who came for a moment
 * uses nothing since, while those who go on are as high as before: after longer these would seem to be ahead.
 */
#define SHARE_FRESH (25 * NS_PER_MS)

/* CPU time; the second for each CPU. */
#define SHARE_BACK (3 * NS_PER_MS)
#define SHARE_AHEAD (15 * NS_PER_MS)

/* Whose threads did not wait for so long has CPUs for itself. */
#define SHARE_WANTED (100 * NS_PER_MS)

#define SHARE_DEEPER 7

/*
 * Whose thread did not run for SHARE_WANTED, and then uses so much at once, more than most requests need, changes the demand: as it does,
 * and as it ends. After that so much is skipped so often, as if it passed, for so long: usage decays by half in 200 ms.
 */
#define SHARE_CHANGE (30 * NS_PER_MS)
#define SHARE_FORGETS (800 * NS_PER_MS)
#define SHARE_SKIPS (140 * NS_PER_MS)
#define SHARE_SKIPS_EVERY (10 * NS_PER_MS)
#define SHARE_AHEAD_LESS 4

/* Nobody uses more: this is free of overflow. */
#define SHARE_MOST (1ULL << 50)

/* A turn while others wait: who gets the CPU is ahead by that much. */
#define SHARE_SLICE_MOST (6 * NS_PER_MS)

/* Orders count SHARE_HALF as so many bits. */
#define SHARE_ORDER_SHIFT 24

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

/* What is left of usage after so long. */
static inline u64 share_decayed(u64 usage, u64 ns)
{
	u64 halves = ns / SHARE_HALF;

	/* Below zero where two took off the same at once. */
	if (halves > 50 || (s64)usage < 0)
		return 0;
	if (usage > SHARE_MOST)
		usage = SHARE_MOST;
	usage >>= halves;
	/* 2^-f for the fraction, in 2^-24: the cubic that is exact at 0, 1/2 and 1, and in its slope at 0. */
	u64 f = ((ns - halves * SHARE_HALF) << 24) / SHARE_HALF;
	u64 left = (1 << 24) - ((f * (11629078 - ((f * (3964473 - ((f * 724004) >> 24))) >> 24))) >> 24);
	return (usage >> 24) * left + (((usage & 0xffffff) * left) >> 24);
}

/* Whether more than that passed; another CPU's clock may be ahead. */
static inline bool share_passed(u64 at, u64 now, u64 ns)
{
	return (s64)(now - at) > (s64)ns;
}

/* Whether it is time to skip some more, given when that was done last, and until when it is to be. */
static inline bool share_skips(u64 at, u64 until, u64 now)
{
	return now < until && share_passed(at, now, SHARE_SKIPS_EVERY);
}

/* Whether what is known of rivals was noted so long ago that it means nothing any more. */
static inline bool share_stale(u64 at, u64 now)
{
	return share_passed(at, now, SHARE_STALE);
}

/* log2, in 2^-SHARE_ORDER_SHIFT. */
static inline u64 share_log2(u64 value)
{
	u64 whole = 0;

	if (!value)
		return 0;
	for (u32 by = 32; by; by >>= 1)
		if (value >> by >> whole)
			whole += by;
	/* Between powers of two the cubic that is exact there and at each quarter, but for 1/10000. */
	u64 z = whole > SHARE_ORDER_SHIFT ? value >> (whole - SHARE_ORDER_SHIFT) :
					    value << (SHARE_ORDER_SHIFT - whole);
	z -= 1ULL << SHARE_ORDER_SHIFT;
	u64 bow = 28652 - ((z * 15332) >> SHARE_ORDER_SHIFT) +
		  ((((z * z) >> SHARE_ORDER_SHIFT) * 5145) >> SHARE_ORDER_SHIFT);
	u64 part = (z * ((1ULL << SHARE_ORDER_SHIFT) - z)) >> SHARE_ORDER_SHIFT;
	return (whole << SHARE_ORDER_SHIFT) + z + ((part * bow) >> 16);
}

/* The order of who has used so much by now: the least goes first, whenever it was computed; above fair_starved_order(). */
static inline u64 share_order(u64 usage, u64 now)
{
	u64 halves = now / SHARE_HALF;
	u64 rest = ((now - halves * SHARE_HALF) << SHARE_ORDER_SHIFT) / SHARE_HALF;

	return FAIR_CLOCK_START + (halves << SHARE_ORDER_SHIFT) + rest + share_log2(usage);
}

/* How far behind others an order is: about the time in which they, served on as they are, would make up for it. */
static inline s64 share_lag(u64 others, u64 order)
{
	s64 by = others - order, most = 64LL << SHARE_ORDER_SHIFT;

	by = by > most ? most : by < -most ? -most : by;
	return (by * (s64)(SHARE_HALF >> 8)) >> (SHARE_ORDER_SHIFT - 8);
}

/* CPU time that somebody's usage is. */
static inline u64 share_cost(u64 usage, u64 weight)
{
	if (usage > SHARE_MOST)
		usage = SHARE_MOST;
	return usage / WEIGHT_ONE * weight + usage % WEIGHT_ONE * weight / WEIGHT_ONE;
}

/* Where they stand on average, by weight, whose usage is so much CPU time together. */
static inline u64 share_mean(u64 cost, u64 weights)
{
	u64 mean = cost / ((weights >> 8) ?: 1);

	return mean < SHARE_MOST / (WEIGHT_ONE >> 8) ? mean * (WEIGHT_ONE >> 8) : SHARE_MOST;
}

/*
 * What it counts for a group's place that a member is so far above where its members stand: the same in the virtual time of
 * the group, less for each level, and never more than a quarter of what the group uses.
 */
static inline s64 share_member(s64 above, u64 usage, u64 active, u64 weight)
{
	u64 size = above < 0 ? -above : above;

	if (size > SHARE_MOST)
		size = SHARE_MOST;
	size = (size >> SHARE_DEEPER >> 10) * (active >> 8) / ((weight >> 8) ?: 1) << 10;
	if (size > usage >> 2)
		size = usage >> 2;
	return above < 0 ? -(s64)size : (s64)size;
}

/*
 * Usage of who begins to want CPUs, given that of those it competes with. What of its usage was added so before is taken off
 * again for a newcomer (anew), who may compete elsewhere.
 */
static inline u64 share_begin(u64 usage, u64 added, u64 rivals, u64 weight, bool anew)
{
	u64 back = share_virtual(SHARE_BACK, weight);
	u64 least = rivals > back ? rivals - back : 0;

	if (usage <= least)
		return least;
	if (!anew)
		return usage;
	return usage - least < added ? least : usage > added ? usage - added : 0;
}

/* What is known of rivals, after one that had used so much was served for so long. */
static inline u64 share_near(u64 near, u64 usage, u64 ns)
{
	u64 size = usage < near ? near - usage : usage - near;

	if (ns > SHARE_NEAR)
		ns = SHARE_NEAR;
	if (size > SHARE_MOST)
		size = SHARE_MOST;
	size = (size >> 10) * (ns >> 10) / ((ns + SHARE_NEAR) >> 10) << 10;
	return usage < near ? near - size : near + size;
}

/*
 * How far ahead of its rivals on so many CPUs, of all that the host has, somebody may be and go first for its urgency. Where there are more,
 * what is known of rivals is SHARE_NEAR behind a tenant that has a CPU for itself, and that is not to be ahead. While the demand changes
 * it is less: what one is ahead by is forgotten sooner than others could make up for it.
 */
static inline s64 share_ahead(u64 cpus, u64 all, bool changes)
{
	u64 ahead = (SHARE_AHEAD + (all > 1 ? SHARE_NEAR : 0)) * (cpus ?: 1);

	return changes ? ahead / SHARE_AHEAD_LESS : ahead;
}

/* A depleted thread's turn, given what fair.h says. */
static inline u64 share_slice(u64 slice)
{
	return slice > SHARE_SLICE_MOST ? SHARE_SLICE_MOST : slice;
}

/* An entitled one's: until it would be too far ahead. */
static inline u64 share_entitled_slice(s64 ahead, s64 most)
{
	s64 left = most - ahead;

	return left < (s64)FAIR_SLICE_LEAST ? FAIR_SLICE_LEAST : share_slice(left);
}

#endif
