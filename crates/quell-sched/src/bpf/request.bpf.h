/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Requests: how much work those are that a process serves.
 *
 * Problem: the same wait harms a short request more than a long one, and a request that keeps many threads busy makes
 *          many others wait. But a thread's own runs say little of the request that it is part of.
 * How:     a request comes in when something outside a process wakes one of its threads: an
 *          interrupt, a timer, another process. The CPU time that the process spends from one to the next is
 *          averaged, in its first thread's state; it is part of what its threads' requests are (../policy/urgency.h).
 * Bounds:  it only orders within what deadline.h allows. Who has itself woken often for nothing seems to serve
 *          short requests, and wins no CPU time by that.
 * Limits:  the average is one for a process, whatever it serves. A server that finds its next request waiting
 *          is not woken for it: behind such a queue requests seem longer than they are.
 */
#ifndef QUELL_REQUEST_BPF_H
#define QUELL_REQUEST_BPF_H

#include "causal.bpf.h"

/* A thread is woken; by: see waker(). Requests that come in at the same time on several CPUs may count as one. */
static __always_inline void count_request(struct task_ctx *t, struct task_struct *p, struct task_struct *by)
{
	struct task_ctx *first;

	if (!options.requests || (by && by->group_leader == p->group_leader))
		return;
	first = leader_ctx(t, p);
	if (!first)
		return;
	u64 spent = __sync_lock_test_and_set(&first->request_spent_ns, 0);
	first->request_avg_ns = t->request_avg_ns = urgency_request_avg(first->request_avg_ns, spent, first->nr_requests);
	first->nr_requests++;
}

#endif
