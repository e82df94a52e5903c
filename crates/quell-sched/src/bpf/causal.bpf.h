/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Causal age: which work has waited longest.
 *
 * Problem: A request is served by several tasks that wake each other. Each of them would go to the end of the
 *          queue when it becomes runnable, although the request has waited long.
 * How:     An event from outside begins a causal chain: a task woken by an interrupt, a timer, a kernel
 *          thread or a real-time task begins a chain of age 0. A task woken by another task continues the
 *          waker's chain. A chain ages while its tasks wait, not while they run: a task gains nothing by
 *          making work. A woken task's work counts as having waited for the age of its chain (urgency.h). A
 *          chain is also busy, for what its tasks ran, along the way by which they woke each other, less what
 *          they slept meanwhile. That tells endless work from requests, however small the bursts.
 * Bounds:  Age makes a deadline earlier by a few times the task's work at most (urgency.h), and only while
 *          the task is within its share (deadline.h). A chain that has been busy for many times its tasks'
 *          work is no request.
 * Limits:  A server process that finds its next request waiting goes on without sleeping, and keeps the age
 *          of the request before. A wakeup in softirq begins a chain even if a local task caused it.
 */
#ifndef QUELL_CAUSAL_BPF_H
#define QUELL_CAUSAL_BPF_H

#include "task.bpf.h"

/* The task whose work causes the present wakeup; NULL: the event comes from outside. */
static __always_inline struct task_struct *waker(void)
{
	struct task_struct *current = bpf_get_current_task_btf();

	if (!current->pid || current->flags & PF_KTHREAD || current->prio < MAX_RT_PRIO ||
	    in_interrupt(current))
		return NULL;
	return current;
}

/* A task is woken: it continues the chain of its waker, or begins a chain if waker is NULL. */
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
