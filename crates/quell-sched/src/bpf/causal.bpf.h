/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Causal age: which work has waited longest.
 *
 * Problem: a request is served by several threads that wake each other. Each time one becomes ready it
 *          would go to the end of the queue, although its request has waited long.
 * How:     an event from outside begins a chain: a thread woken by an interrupt, a timer, a kernel
 *          thread or a real-time thread starts one of age 0; a thread woken by another one continues the
 *          waker's. A chain ages while its threads wait, not while they run: who makes work gains nothing by making
 *          it. The thread's work counts as waiting for that long already (urgency.h).
 *          A chain is also busy: for what was run in it, along the way by which threads woke each other, less what they slept meanwhile. So work
 *          without end is told from requests, in however small parts it is done.
 * Bounds:  age makes deadlines earlier by a few times the work at most (urgency.h), and only while threads are within their shares
 *          (deadline.h). A chain that has been busy for many times its threads' work is no request's.
 * Limits:  a server that finds its next request waiting goes on without sleeping, and so with the
 *          age of the one before. Wakeups in softirq begin a chain even where a local sender caused them.
 */
#ifndef QUELL_CAUSAL_BPF_H
#define QUELL_CAUSAL_BPF_H

#include "task.bpf.h"

/* The thread whose work makes the current code wake somebody; none where the event comes from outside. */
static __always_inline struct task_struct *waker(void)
{
	struct task_struct *current = bpf_get_current_task_btf();

	if (!current->pid || current->flags & PF_KTHREAD || current->prio < MAX_RT_PRIO ||
	    in_interrupt(current))
		return NULL;
	return current;
}

/* A thread is woken: it continues its waker's chain, or begins one. */
static __always_inline void continue_chain(struct thread *t, struct task_struct *waker, u64 now)
{
	struct thread *by = options.causal && waker ? thread_of(waker) : NULL;

	t->age = 0;
	t->busy = order_slept(t->busy, now - t->ran_at);
	if (!by)
		return;
	u64 ran = by->running && now > by->ran_at ? now - by->ran_at : 0;
	u64 busy = order_busy(by->busy, ran);
	if (busy > t->busy)
		t->busy = busy;
	t->age = urgency_age(by->woke_at - by->age, by->present + ran, now);
}

#endif
