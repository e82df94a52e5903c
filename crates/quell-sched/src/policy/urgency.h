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
 * Bounds:  work is at most 2 x URGENCY_WORK_MAX. An age counts for at most URGENCY_AGE_MAX, and URGENCY_AGE_RATIO times the work: tasks whose
 *          work is short gain nothing by being woken by others.
 * Source:  latencies are the DASEC paper's; age and what clients' requests usually take are ours.
 */
#ifndef QUELL_POLICY_URGENCY_H
#define QUELL_POLICY_URGENCY_H

#include "types.h"

/* A longer latency, or a longer request of a client's, counts as this. */
#define URGENCY_WORK_MAX (50 * NS_PER_MS)
#define URGENCY_WORK_MIN (50 * NS_PER_US)
#define URGENCY_AGE_MAX (200 * NS_PER_MS)
#define URGENCY_AGE_RATIO 4
/* Requests that an average is over. */
#define URGENCY_AVG_REQUESTS 128

/* How long work has waited since then, when the task that does it has run for so long of the time. */
static inline u64 urgency_age(u64 since, u64 ran, u64 now)
{
	return now > since + ran ? now - since - ran : 0;
}

/* What counts of the age of so much work. */
static inline u64 urgency_age_credit(u64 age, u64 work)
{
	u64 max = URGENCY_AGE_RATIO * work;

	if (max > URGENCY_AGE_MAX)
		max = URGENCY_AGE_MAX;
	return age < max ? age : max;
}

/*
 * A task's work: the latency that is set, or as long as it usually runs, and what its process usually spends on a client's request;
 * stretch in 1/16.
 */
static inline u64 urgency_work(u64 latency_set, u64 burst_avg, u64 request_avg, u64 stretch)
{
	u64 latency = latency_set ? latency_set : burst_avg, max = URGENCY_WORK_MAX;

	latency = (latency < max ? latency : max) * (latency_set ? 16 : stretch) / 16;
	if (latency < URGENCY_WORK_MIN)
		latency = URGENCY_WORK_MIN;
	if (latency > max)
		latency = max;
	request_avg = (request_avg < max ? request_avg : max) * stretch / 16;
	return latency + (request_avg < max ? request_avg : max);
}

/*
 * CPU time that a process usually spends on a client's request, when one comes in and so much was spent since the one
 * before; seen: how many came in until then. Slow, since requests overlap, so that some of this is for others, and since
 * processes that serve the like should be treated alike.
 */
static inline u64 urgency_request_avg(u64 avg, u64 spent, u64 nr_seen)
{
	u64 n = nr_seen < URGENCY_AVG_REQUESTS ? nr_seen + 1 : URGENCY_AVG_REQUESTS;

	return avg - avg / n + spent / n;
}

/* How long a task usually runs before it sleeps, after it did so for this long. */
static inline u64 urgency_burst_avg(u64 avg, u64 ran)
{
	return avg - avg / 4 + ran / 4;
}

#endif
