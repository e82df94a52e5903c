/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Queues: where a ready thread belongs, in what order, and how long its turn is.
 */
#ifndef QUELL_QUEUE_BPF_H
#define QUELL_QUEUE_BPF_H

#include "asymmetry.bpf.h"
#include "fair.bpf.h"
#include "server.bpf.h"

static __always_inline u64 slice_of(struct thread *t)
{
	struct domain *d = domain_at(t->domain);

	if (!t->depleted && options.share) {
		struct sharer *s = sharer_of(t);
		return share_entitled_slice(t->ahead, rivals_cpus(t), rate_of(t, s));
	}
	if (!t->depleted)
		return options.fair ? fair_entitled_slice(t->common) : FAIR_SLICE_MOST;
	if (!d)
		return FAIR_SLICE_LEAST;
	u64 cpus = rivals_cpus(t), slice = fair_slice(cpus, shared_clock(t, d)->load, t->weight);
	return options.share ? share_slice(slice, cpus) : slice;
}

/* A thread that was not ready counts as ready. */
static __always_inline void join(struct thread *t, struct task_struct *p, u32 cpu, u64 now)
{
	u32 domain = domain_index(cpu);

	earn(t, p, now);
	weigh(t, now);
	leave_load(t);
	if (domain_at(domain))
		enter_load(t, p, domain, cpu, now);
	enter_server(t, p, cpu);
	t->ready_at = now;
}

struct place {
	u64 queue;
	u64 order;
	u64 slice;
};

/* Among threads that are as depleted as it: the least goes first. */
static __always_inline u64 order_of(struct thread *t)
{
	if (!t->depleted)
		return t->deadline;
	return options.share ? t->order : fair_position(t->seen, lag_of(t));
}

/* The same in a CPU's own queue. */
static __always_inline u64 own_order(struct thread *t)
{
	return order_of(t) + (t->depleted ? URGENCY_DEPLETED : 0);
}

/* It is noted that the thread is there. */
static __always_inline struct place place_of(struct thread *t, struct task_struct *p, u32 cpu)
{
	struct place place = { .order = order_of(t), .slice = slice_of(t) };

	if (p->nr_cpus_allowed == 1) {
		u32 server = options.criticality ? t->served : 0;
		note_queue(t, server ? QUEUE_SERVER : QUEUE_PINNED, server ?: cpu);
		place.queue = server ? server_queue(server) : pinned_queue(cpu);
		place.order = own_order(t);
	} else if (t->depleted) {
		note_queue(t, QUEUE_DEPLETED, t->domain);
		place.queue = depleted_queue(t->domain);
	} else {
		note_queue(t, QUEUE_ENTITLED, t->domain);
		place.queue = entitled_queue(t->domain);
	}
	return place;
}

#endif
