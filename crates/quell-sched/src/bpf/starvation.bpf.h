/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Starvation: however little a thread is due, it does not wait for ever.
 *
 * Problem: a thread's place in its queue is found when it is queued. Whoever is due much more passes it from then
 *          on, for as long as its weight is small: minutes. The kernel ends a scheduler under which a thread waits for
 *          its timeout_ms, 20 s here.
 * How:     once in STARVATION_EVERY a CPU that looks for work goes through its domain's queues, and puts those who
 *          waited for FAIR_STARVED into a queue of their own, the longest wait first. They go before all whose deadlines have not passed, and one of them in STARVED_EVERY
 *          before others.
 * Bounds:  a wait of FAIR_STARVED + STARVATION_EVERY, and STARVED_EVERY for each thread that waited so long as well.
 */
#ifndef QUELL_STARVATION_BPF_H
#define QUELL_STARVATION_BPF_H

#include "task.bpf.h"

#define STARVATION_EVERY (500 * NS_PER_MS)

/* A twentieth of a CPU. */
#define STARVED_EVERY (20 * FAIR_STARVED_SLICE)

/* Those of a queue go to the domain's. Global, so that the verifier looks at it once. */
__noinline int serve_starved_of(u64 dsq, u32 index, u64 now)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;

	if (bpf_iter_scx_dsq_new(&it, dsq, 0)) {
		bpf_iter_scx_dsq_destroy(&it);
		return 0;
	}
	while ((p = bpf_iter_scx_dsq_next(&it))) {
		struct thread *t = thread_of(p);
		u64 ready_at = t ? t->ready_at : now;
		if (now <= ready_at || now - ready_at <= FAIR_STARVED)
			continue;
		if (move_queued(&it, p, starved_queue(index), FAIR_STARVED_SLICE, ready_at))
			note_queue(t, QUEUE_STARVED, index);
	}
	bpf_iter_scx_dsq_destroy(&it);
	return 0;
}

/* A CPU's own. Global, as that is. */
__noinline int serve_starved_own(u32 cpu, u32 index, u64 now)
{
	for (u32 at = 0; at < OWN_QUEUES; at++) {
		u64 queue = own_queue(cpu, at);
		if (queue)
			serve_starved_of(queue, index, now);
	}
	return 0;
}

/* All of a domain. Within dispatch only. Global, as that is. */
__noinline int serve_starved(u32 index, u64 now)
{
	struct domain *d = domain_at(index);

	if (!d)
		return 0;
	if (d->queued > d->starved)
		serve_starved_of(ready_queue(index), index, now);
	for (u32 i = 0; i < DOMAIN_CPUS && i < options.cpus && i < d->size; i++) {
		u32 cpu = d->cpu[i];
		struct cpu_slot *slot = cpu_at(cpu);
		if (slot && slot->pinned)
			serve_starved_own(cpu, index, now);
	}
	return 0;
}

/* Looks for them, if it is time to. */
static __always_inline void look_for_starved(struct domain *d, u32 index, u64 now)
{
	u64 at = d->starved_at;

	if (now > at + STARVATION_EVERY && __sync_val_compare_and_swap(&d->starved_at, at, now) == at)
		serve_starved(index, now);
}

/*
 * Takes one of them, where nobody's deadline has passed (first: the earliest; 0: nobody waits), or it is time to. Within dispatch only.
 */
static __always_inline bool take_starved(struct domain *d, u32 index, u64 first, u64 now)
{
	u64 at = d->served_at;

	if (!d->starved || (first && order_earlier(first, ORDER_START + now) && now - at <= STARVED_EVERY))
		return false;
	/* They may all be bound to other CPUs, whose turn it is then. */
	if (!take_first(starved_queue(index)))
		return false;
	d->served_at = now;
	return true;
}

#endif
