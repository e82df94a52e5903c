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
static __always_inline void inherit_chain(struct task_ctx *t, struct task_struct *waker, u64 now)
{
	struct task_ctx *wakerc = options.causal && waker ? lookup_task_ctx(waker) : NULL;

	t->chain_age_ns = 0;
	t->chain_busy_ns = deadline_chain_slept(t->chain_busy_ns, now - t->charged_until_ns);
	if (!wakerc)
		return;
	u64 ran = wakerc->running && now > wakerc->charged_until_ns ? now - wakerc->charged_until_ns : 0;
	u64 busy = deadline_chain_ran(wakerc->chain_busy_ns, ran);
	if (busy > t->chain_busy_ns)
		t->chain_busy_ns = busy;
	t->chain_age_ns = urgency_age(wakerc->woke_at_ns - wakerc->chain_age_ns, wakerc->burst_ns + ran, now);
}

#endif
