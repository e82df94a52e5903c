/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Urgency: how soon a task's work is to be done.
 *
 * Problem: A task on the critical path delays its whole request when it waits; other tasks do not. And the
 *          same wait harms a short request more than a long one.
 * How:     A task's work is how long its present activation may take: its rescheduling latency, plus what its
 *          process usually spends on a client's request. The latency is what the agent set for the task
 *          (DASEC's private rescheduling latency); if none is set, it is the task's average burst. The age of
 *          the work is how long the work had waited before the task became runnable (causal.bpf.h).
 * Bounds:  Work is at most 2 x URGENCY_WORK_MAX. Age counts for URGENCY_AGE_MAX at most, and for
 *          URGENCY_AGE_RATIO times the work: tasks of short work gain nothing by being woken by others.
 * Source:  Latencies are the DASEC paper's; age and the average of clients' requests are ours.
 */
#ifndef QUELL_POLICY_URGENCY_H
#define QUELL_POLICY_URGENCY_H

#include "types.h"

/* Bounds of a latency, and upper bound of a client's request. */
#define URGENCY_WORK_MAX (50 * NS_PER_MS)
#define URGENCY_WORK_MIN (50 * NS_PER_US)
#define URGENCY_AGE_MAX (200 * NS_PER_MS)
#define URGENCY_AGE_RATIO 4
/* The number of requests that the average is over. */
#define URGENCY_AVG_REQUESTS 128

/* For how long work has waited since a time, if the work's task has run for ran since then. */
static inline u64 urgency_age(u64 since, u64 ran, u64 now)
{
	return now > since + ran ? now - since - ran : 0;
}

/* The part of an age that counts for a task's work. */
static inline u64 urgency_age_credit(u64 age, u64 work)
{
	u64 max = URGENCY_AGE_RATIO * work;

	if (max > URGENCY_AGE_MAX)
		max = URGENCY_AGE_MAX;
	return age < max ? age : max;
}

/*
 * A task's work: the latency that is set, or the task's average burst; plus the CPU time that the task's
 * process usually spends on a client's request. stretch is in 1/16.
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
 * The average CPU time of a process's requests, when a request comes in. spent: CPU time of the process since
 * the request before; nr_seen: number of requests before. A slow average, since requests overlap, so
 * that some of the time is for other requests, and since processes that serve alike should be treated alike.
 */
static inline u64 urgency_request_avg(u64 avg, u64 spent, u64 nr_seen)
{
	u64 n = nr_seen < URGENCY_AVG_REQUESTS ? nr_seen + 1 : URGENCY_AVG_REQUESTS;

	return avg - avg / n + spent / n;
}

/* The average burst of a task after a burst of ran. */
static inline u64 urgency_burst_avg(u64 avg, u64 ran)
{
	return avg - avg / 4 + ran / 4;
}

#endif
