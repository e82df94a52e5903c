/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Urgency: which of the entitled threads must not wait.
 *
 * Problem: a thread on the critical path delays its whole request when it waits; others do not. And the
 *          same wait harms a short request more than a long one.
 * How:     a thread has a deadline: the time since which its work waits, plus its request's allowance, plus
 *          its rescheduling latency; the earliest goes first. Work waits since the thread became ready, and before
 *          that as long as what made it ready had waited (causal.bpf.h).
 *          The allowance is the CPU time that its process usually spends on a request, times
 *          the stretch, so that waiting delays short and long requests by the same factor. A request comes
 *          in when something outside the process wakes one of its threads.
 *          The latency is what the agent set for this thread (DASEC's private rescheduling latency).
 *          Where it set none, it follows from the thread itself: as long as it usually runs before it
 *          sleeps, times the stretch. A thread that runs longer than usual loses urgency as it goes, without
 *          end: among threads that run on and on, each gets its turn.
 *          A ready thread preempts one whose deadline is later by more than the margin, which is what
 *          the switch is worth.
 * Bounds:  deadlines do not move while a thread waits and lie between ready - URGENCY_AGE_MOST and
 *          ready + URGENCY_ALLOWANCE_MOST + URGENCY_LATENCY_MOST + URGENCY_OVERRUN_MOST. So nothing that
 *          becomes ready later than the sum of the four after a waiting thread goes before it.
 * Source:  latencies are the DASEC paper's; age, allowance and overrun are ours.
 */
#ifndef QUELL_POLICY_URGENCY_H
#define QUELL_POLICY_URGENCY_H

#include "types.h"

/* No work counts as older than this. */
#define URGENCY_AGE_MOST (200 * NS_PER_MS)
/* Requests that an average is over. */
#define URGENCY_REQUESTS 128
/* Requests that take longer count alike: averages of long ones differ by chance more than a wait is worth. */
#define URGENCY_ALLOWANCE_MOST (50 * NS_PER_MS)
#define URGENCY_LATENCY_LEAST (50 * NS_PER_US)
#define URGENCY_LATENCY_MOST (100 * NS_PER_MS)
#define URGENCY_OVERRUN_MOST NS_PER_S

/* A CPU's urgency as others see it: what runs there, the most preemptible with the greatest value. */
#define URGENCY_NONE 0ULL		/* idle, or not to be preempted */
#define URGENCY_DEPLETED (1ULL << 62)	/* plus its position */

/* Since when the work waits that a thread does which is ready at that time, if it waited so long before. */
static inline u64 urgency_since(u64 age, u64 ready)
{
	return ready - (age < URGENCY_AGE_MOST ? age : URGENCY_AGE_MOST);
}

/* How long it waited when the thread gets a CPU that ran for so long of the time. */
static inline u64 urgency_age(u64 since, u64 ran, u64 now)
{
	return now > since + ran ? now - since - ran : 0;
}

/* Rescheduling latency; usual and present are CPU times per wakeup, stretch in 1/16. */
static inline u64 urgency_latency(u64 set, u64 usual, u64 present, u64 stretch)
{
	u64 most = 16 * URGENCY_OVERRUN_MOST, latency, overrun;

	/* Bounded before they are multiplied. */
	latency = set ? set : (usual < most ? usual : most) * stretch / 16;
	if (latency < URGENCY_LATENCY_LEAST)
		latency = URGENCY_LATENCY_LEAST;
	if (latency > URGENCY_LATENCY_MOST)
		latency = URGENCY_LATENCY_MOST;
	overrun = present > usual ? present - usual : 0;
	overrun = (overrun < most ? overrun : most) * stretch / 16;
	return latency + (overrun < URGENCY_OVERRUN_MOST ? overrun : URGENCY_OVERRUN_MOST);
}

/* What the usual work of a request adds to the deadlines of the threads that serve it; stretch in 1/16. */
static inline u64 urgency_allowance(u64 request, u64 stretch)
{
	u64 most = 16 * URGENCY_ALLOWANCE_MOST, allowance;

	allowance = (request < most ? request : most) * stretch / 16;
	return allowance < URGENCY_ALLOWANCE_MOST ? allowance : URGENCY_ALLOWANCE_MOST;
}

/*
 * CPU time that a process usually spends on a request, when one comes in and so much was spent since the one
 * before; seen: how many came in until then. Slow, since requests overlap, so that some of this is for others, and since
 * processes that serve the like should be treated alike.
 */
static inline u64 urgency_request(u64 request, u64 spent, u64 seen)
{
	u64 parts = seen < URGENCY_REQUESTS ? seen + 1 : URGENCY_REQUESTS;

	return request - request / parts + spent / parts;
}

/* How long a thread usually runs before it sleeps, after it did so for this long. */
static inline u64 urgency_usual(u64 usual, u64 ran)
{
	return usual - usual / 4 + ran / 4;
}

/* Whether a ready thread with that deadline preempts what runs. */
static inline bool urgency_preempts(u64 deadline, u64 running, u64 margin)
{
	return running > deadline && running - deadline > margin;
}

#endif
