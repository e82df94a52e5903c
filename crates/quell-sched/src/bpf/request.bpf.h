/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Requests: how much work the requests are that a process serves.
 *
 * Problem: The same wait harms a short request more than a long one, and a request that keeps many tasks busy
 *          delays many others. But the bursts of one task say little of the request that the task is part of.
 * How:     A request comes in when something outside a process wakes one of its tasks: an interrupt, a timer,
 *          another process. The CPU time that the process uses between two requests is averaged in the
 *          context of the thread group leader; the average is part of the work of each of the process's tasks
 *          (../policy/urgency.h).
 * Bounds:  The average only orders tasks within what deadline.h allows. A process that has itself woken often
 *          for nothing seems to serve short requests, but gains no CPU time.
 * Limits:  There is one average for a process, whatever it serves. A process that finds its next request
 *          waiting is not woken for it: behind such a queue requests seem longer than they are.
 */
#ifndef QUELL_REQUEST_BPF_H
#define QUELL_REQUEST_BPF_H

#include "causal.bpf.h"

/*
 * A task is woken, by a task or (NULL) from outside, see waker(). Requests that come in at once on several
 * CPUs may count as one.
 */
static __always_inline void count_request(struct task_ctx *t, struct task_struct *p, struct task_struct *by)
{
	struct task_ctx *first;

	if (!options.requests || (by && by->group_leader == p->group_leader))
		return;
	first = leader_ctx(t, p);
	if (!first)
		return;
	u64 spent = __sync_lock_test_and_set(&first->request_spent_ns, 0);
	first->request_avg_ns = t->request_avg_ns = urgency_request_avg(first->request_avg_ns, spent,
									first->nr_requests);
	first->nr_requests++;
}

#endif
