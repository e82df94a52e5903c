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
 * Bounds:  a chain counts as at most URGENCY_AGE_MOST old. Depleted threads have age 0 and give no other. Age
 *          only orders threads that are within their share, so an endless chain cannot take more than its threads' shares.
 * Limits:  a server that finds its next request waiting goes on without sleeping, and so with the
 *          age of the one before. Wakeups in softirq begin a chain even where a local sender caused them.
 */
#ifndef QUELL_CAUSAL_BPF_H
#define QUELL_CAUSAL_BPF_H

#include "state.bpf.h"

/* The thread whose work makes the current code wake somebody; none where the event comes from outside. */
static __always_inline struct task_struct *waker(void)
{
	struct task_struct *current = bpf_get_current_task_btf();

	if (!current->pid || current->flags & PF_KTHREAD || current->prio < MAX_RT_PRIO ||
	    in_interrupt(current))
		return NULL;
	return current;
}

/* How long the work that it does has waited: the CPU that wakes is the one it has. */
static __always_inline u64 age_of(struct task_struct *waker)
{
	struct cpu_slot *slot = cpu_at(bpf_get_smp_processor_id());

	return waker && slot ? slot->age : 0;
}

#endif
