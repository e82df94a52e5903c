/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Queues: where a ready thread belongs, in what order, and how long its turn is.
 */
#ifndef QUELL_QUEUE_BPF_H
#define QUELL_QUEUE_BPF_H

#include "preempt.bpf.h"
#include "fair.bpf.h"
#include "server.bpf.h"

/* The task that wakes p, if it is a child of p's and ends; else NULL. */
static __always_inline struct thread *ending_child(struct task_struct *p, struct task_struct *by)
{
	return by && by->flags & PF_EXITING && by->real_parent == p ? thread_of(by) : NULL;
}

/* A thread that was not ready counts as ready; woken: it slept. Its deadline is to follow. */
static __always_inline void join(struct thread *t, struct task_struct *p, u32 cpu, bool woken, u64 now)
{
	weigh(t, now);
	leave_load(t);
	enter_load(t, p, domain_index(cpu), cpu, woken, now);
	enter_server(t, p, cpu);
	t->ready_at = now;
	t->idle = p->policy == SCHED_IDLE;
}

/* Whether a thread that was not ready is light. */
static __always_inline void tell_light(struct thread *t, struct task_struct *p, u64 now)
{
	if (options.share)
		locate(t, now);
	/* A CPU's own kernel threads are part of the machine: light unless they are ahead. */
	if (p->flags & PF_KTHREAD && p->nr_cpus_allowed == 1)
		t->light = lag_of(t, now) >= -(s64)FAIR_TURN;
	else if (t->usual > FAIR_TURN)
		t->light = 0;
	else if (options.share)
		t->light = share_is_light(rate_of(t, sharer_of(t)), lag_of(t, now));
	else
		t->light = t->lag >= (s64)FAIR_LIGHT;
}

struct place {
	u64 queue;
	u64 order;
	u64 slice;
};

/* It is noted that the thread is there. */
static __always_inline struct place place_of(struct thread *t, struct task_struct *p, u32 cpu)
{
	struct place place = { .order = t->deadline, .slice = FAIR_SLICE };

	if (p->nr_cpus_allowed == 1) {
		u32 server = options.criticality ? t->served : 0;
		note_queue(t, server ? QUEUE_SERVER : QUEUE_PINNED, server ?: cpu);
		place.queue = server ? server_queue(server) : pinned_queue(cpu);
	} else {
		note_queue(t, QUEUE_READY, t->domain);
		place.queue = ready_queue(t->domain);
	}
	return place;
}

#endif
