/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Causal age: which work is oldest.
 *
 * Problem: a request is served by several threads that wake each other. Each time one becomes ready it
 *          would go to the end of the queue, although its request has waited long.
 * How:     an event from outside begins a chain: a thread woken by an interrupt, a timer, a kernel
 *          thread or a real-time thread starts one now; a thread woken by another one continues the
 *          waker's. The thread's work counts as waiting since its chain began (urgency.h).
 * Bounds:  a chain counts as at most URGENCY_AGE_MOST old. A depleted thread has no chain, neither for
 *          itself nor for those it wakes: who hogs a CPU gains nothing by having begun early. Age only orders
 *          threads that are within their share, so an endless chain cannot take more than its threads' shares.
 * Limits:  a server that finds its next request waiting goes on without sleeping, and so under the
 *          old chain. Wakeups in softirq begin a chain even where a local sender caused them.
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

/* The chain that a thread woken by it serves. */
static __always_inline u64 chain_of(struct task_struct *waker, u64 now)
{
	struct cpu_slot *slot = cpu_at(bpf_get_smp_processor_id());

	return waker && slot && slot->chain ? slot->chain : now;
}

#endif
