/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Urgency: how soon a task's work is to be done.
 *
 * Problem: a task on the critical path delays its whole request when it waits; others do not. And the
 *          same wait harms a short request more than a long one.
 * How:     a task's work is how long its present activation may take: its rescheduling latency, plus what its process usually
 *          spends on a client's request. The latency is what the agent set for this task (DASEC's private rescheduling latency).
 *          Where it set none, it follows from the task itself: as long as it usually runs before it sleeps.
 *          The work has an age: how long it had waited already before the task became ready (causal.bpf.h).
 * Bounds:  work is at most 2 x URGENCY_MOST. An age counts for at most URGENCY_AGE_MOST, and URGENCY_AGE times the work: tasks whose
 *          work is short gain nothing by being woken by others.
 * Source:  latencies are the DASEC paper's; age and what clients' requests usually take are ours.
 */
#ifndef QUELL_POLICY_URGENCY_H
#define QUELL_POLICY_URGENCY_H

#include "types.h"

/* A longer latency, or a longer request of a client's, counts as this. */
#define URGENCY_MOST (50 * NS_PER_MS)
#define URGENCY_LEAST (50 * NS_PER_US)
#define URGENCY_AGE_MOST (200 * NS_PER_MS)
#define URGENCY_AGE 4
/* Requests that an average is over. */
#define URGENCY_REQUESTS 128

/* How long work has waited since then, when the task that does it has run for so long of the time. */
static inline u64 urgency_age(u64 since, u64 ran, u64 now)
{
	return now > since + ran ? now - since - ran : 0;
}

/* What counts of the age of so much work. */
static inline u64 urgency_counted(u64 age, u64 work)
{
	u64 most = URGENCY_AGE * work;

	if (most > URGENCY_AGE_MOST)
		most = URGENCY_AGE_MOST;
	return age < most ? age : most;
}

/*
 * A task's work: the latency that is set, or as long as it usually runs, and what its process usually spends on a client's request;
 * stretch in 1/16.
 */
static inline u64 urgency_work(u64 set, u64 usual, u64 request, u64 stretch)
{
	u64 latency = set ? set : usual, most = URGENCY_MOST;

	latency = (latency < most ? latency : most) * (set ? 16 : stretch) / 16;
	if (latency < URGENCY_LEAST)
		latency = URGENCY_LEAST;
	if (latency > most)
		latency = most;
	request = (request < most ? request : most) * stretch / 16;
	return latency + (request < most ? request : most);
}

/*
 * CPU time that a process usually spends on a client's request, when one comes in and so much was spent since the one
 * before; seen: how many came in until then. Slow, since requests overlap, so that some of this is for others, and since
 * processes that serve the like should be treated alike.
 */
static inline u64 urgency_spent(u64 usual, u64 spent, u64 seen)
{
	u64 parts = seen < URGENCY_REQUESTS ? seen + 1 : URGENCY_REQUESTS;

	return usual - usual / parts + spent / parts;
}

/* How long a task usually runs before it sleeps, after it did so for this long. */
static inline u64 urgency_usual(u64 usual, u64 ran)
{
	return usual - usual / 4 + ran / 4;
}

#endif
