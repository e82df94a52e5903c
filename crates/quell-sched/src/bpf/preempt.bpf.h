/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Asymmetry: threads that must not wait, do not.
 *
 * Problem: a tenant's latency is that of its critical path; serving all threads in turn delays it for
 *          work that nobody waits for. But each preemption costs two switches, and most waits are short.
 * How:     each activation of a thread has a deadline (../policy/deadline.h). Where no CPU is idle, a thread that
 *          wakes takes at once the CPU of the thread with the latest deadline, if that is later than its own by the margin.
 *          At once means straight to that CPU's local queue, so that one interrupt is all it costs. But a thread that another one woke waits until who runs
 *          has run for ORDER_RUN: who sends many messages sends them before they are read, and who sends one and sleeps leaves it the CPU.
 *          Else it waits in its queue, and whoever runs has its turn, FAIR_TURN. A timer ends turns then, one for each domain, which runs only
 *          while somebody waits.
 * Limits:  the search looks at the CPUs of one domain, the one the thread ran in.
 */
#ifndef QUELL_PREEMPT_BPF_H
#define QUELL_PREEMPT_BPF_H

#include "task.bpf.h"

/* The deadline of what runs there as of now. */
static __always_inline u64 running_deadline(const struct cpu_slot *slot, u64 now)
{
	u64 deadline = slot->deadline;

	return deadline == ORDER_NONE ? ORDER_NONE : order_running(deadline, slot->until, slot->pace, now);
}

/* For how long who runs is left alone by a thread that woke. */
static __always_inline u64 least_run(struct thread *t)
{
	return t->invited ? ORDER_RUN : 0;
}

/*
 * The CPU to preempt for a thread: the one whose thread has the latest deadline, if that is later than least; claimed; negative if there is none.
 * Global, so that the verifier looks at it once.
 */
__noinline s32 preemptible_cpu(struct task_struct *p __arg_trusted, struct thread *t, u64 least, u64 now)
{
	struct domain *d = t ? domain_at(t->domain) : NULL;
	bool anywhere = p->nr_cpus_allowed >= options.cpus;
	u64 latest = least;
	s32 best = -1;

	if (!t || !d || !options.asymmetry)
		return -1;
	u64 before = now - least_run(t);
	/* As a function of its own it may, to the verifier, be called where threads' masks are not protected. */
	bpf_rcu_read_lock();
	for (u32 i = 0; i < DOMAIN_CPUS && i < options.cpus && i < d->size; i++) {
		u32 cpu = d->cpu[i];
		struct cpu_slot *slot = cpu_at(cpu);

		if (!slot)
			break;
		if (slot->began > before)
			continue;
		u64 running = running_deadline(slot, now);
		if (running == ORDER_NONE || !order_earlier(latest, running))
			continue;
		if (!anywhere && !may_use(p, cpu))
			continue;
		latest = running;
		best = cpu;
	}
	bpf_rcu_read_unlock();
	struct cpu_slot *slot = cpu_at(best);
	if (best < 0 || !slot)
		return -1;
	u64 present = slot->deadline;
	if (present == ORDER_NONE || !order_earlier(least, running_deadline(slot, now)) ||
	    __sync_val_compare_and_swap(&slot->deadline, present, t->deadline) != present)
		return -1;
	slot->until = now + FAIR_TURN;
	return best;
}

TIMERS(patience, MAX_DOMAINS);

/* No more often than so, so that a crowd of waiting threads costs little. */
#define PATIENCE_LEAST (100 * NS_PER_US)
static __always_inline void start_patience(struct domain *d, u32 index, u64 ns, u64 now)
{
	struct timer *p = bpf_map_lookup_elem(&patience, &index);

	if (!p)
		return;
	if (ns < PATIENCE_LEAST)
		ns = PATIENCE_LEAST;
	d->look_at = now + ns;
	if (bpf_timer_start(&p->timer, ns, 0))
		d->look_at = 0;
}

/* A thread has to wait. */
static __always_inline void be_patient(struct thread *t, u64 now)
{
	struct domain *d = domain_at(t->domain);
	u64 at;

	if (!d)
		return;
	at = d->look_at;
	if (!at || (!t->by_share && at > now + ORDER_RUN))
		start_patience(d, t->domain, ORDER_RUN, now);
}

/* The first deadline in a queue, where the verifier asks for protection. */
static __always_inline u64 first_protected(u64 dsq)
{
	u64 order;

	if (!can_peek())
		return first_order(dsq);
	bpf_rcu_read_lock();
	order = first_order(dsq);
	bpf_rcu_read_unlock();
	return order;
}

/* The first deadline in one of a CPU's own queues, if it is earlier. Global, as preemptible_cpu() is. */
__noinline u64 first_own(u32 cpu, u64 first)
{
	for (u32 at = 0; at < OWN_QUEUES; at++) {
		u64 queue = own_queue(cpu, at);
		u64 order = queue ? first_protected(queue) : 0;
		if (order && (!first || order_earlier(order, first)))
			first = order;
	}
	return first;
}

/* Ends the turn of who runs there, if it has had it, and first goes before it; returns when to look again, in ns; 0: nobody waits. */
static __always_inline u64 look_at_turn(u32 cpu, u64 first, u64 now)
{
	struct cpu_slot *slot = cpu_at(cpu);

	if (!slot || slot->deadline == ORDER_NONE)
		return 0;
	if (slot->pinned)
		first = first_own(cpu, first);
	if (!first)
		return 0;
	u64 had = now > slot->began ? now - slot->began : 0;
	u64 running = running_deadline(slot, now);
	u64 least = order_earlier(first + options.margin_ns, running) && options.asymmetry ? ORDER_RUN : FAIR_TURN;
	if (had < least)
		return least - had;
	if (order_earlier(first, running)) {
		__sync_fetch_and_add(&slot->late, 1);
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	}
	return FAIR_TURN;
}

static int on_patience(void *map, u32 *key, struct timer *value)
{
	u32 index = *key;
	struct domain *d = domain_at(index);
	u64 now = time_ns(), next = 0;

	if (!d)
		return 0;
	d->look_at = 0;
	u64 first = d->queued ? first_protected(ready_queue(index)) : 0;
	for (u32 i = 0; i < DOMAIN_CPUS && i < options.cpus && i < d->size; i++) {
		u64 again = look_at_turn(d->cpu[i], first, now);
		if (again && (!next || again < next))
			next = again;
	}
	if (next)
		start_patience(d, index, next, now);
	return 0;
}

#endif
