/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Asymmetry: threads that must not wait, do not.
 *
 * Problem: a tenant's latency is that of its critical path; serving all threads in turn delays it for
 *          work that nobody waits for. But each preemption costs two switches, and most waits are short.
 * How:     each activation of a thread has a deadline (../policy/urgency.h). Where no CPU is idle, a thread that
 *          wakes takes the CPU of a depleted thread at once: the one furthest ahead of its share. Threads that are within
 *          their share it leaves alone for as long as its own rescheduling latency; if it still waits
 *          then, a timer preempts the running thread with the latest deadline, if that is later by the margin.
 *          At once means straight to that CPU's local queue, so that one interrupt is all it costs. Timers are
 *          one for each domain, run only while somebody waits, and look at the threads that are to go first: of the
 *          domain, and of each CPU that has threads of its own.
 * Bounds:  only threads within their share preempt. A deadline holds until the thread sleeps, so two threads cannot
 *          preempt each other in turns.
 * Limits:  the search looks at the CPUs of one domain, the one the thread ran in.
 */
#ifndef QUELL_ASYMMETRY_BPF_H
#define QUELL_ASYMMETRY_BPF_H

#include "state.bpf.h"

static __always_inline u64 latency_of(struct thread *t)
{
	return urgency_latency(t->latency, t->usual, t->present, options.stretch);
}

static __always_inline void update_deadline(struct thread *t)
{
	t->deadline = t->since;
	if (options.asymmetry)
		t->deadline += urgency_allowance(t->request, options.stretch) + latency_of(t);
}

/* The urgency of what runs there as of now: one that runs longer than usual becomes less urgent. */
static __always_inline u64 urgency_now(const struct cpu_slot *slot, u64 now)
{
	u64 urgency = slot->urgency, since = slot->since, grace = slot->grace;

	if (urgency == URGENCY_NONE || !options.stretch)
		return urgency;
	if (now > since && now - since > grace)
		urgency += (now - since - grace) * options.stretch / 16;
	return urgency;
}

/*
 * The CPU to preempt for a thread with that deadline: the most preemptible one of what is less urgent than
 * least; claimed; negative if there is none. Global, so that the verifier looks at it once.
 */
__noinline s32 preemptible_cpu(struct task_struct *p __arg_trusted, u64 deadline, u64 least, u32 index, u64 now)
{
	struct domain *d = domain_at(index);
	bool anywhere = p->nr_cpus_allowed >= options.cpus;
	u64 latest = least;
	s32 best = -1;

	if (!d || !options.asymmetry)
		return -1;
	/* As a function of its own it may, to the verifier, be called where threads' masks are not protected. */
	bpf_rcu_read_lock();
	for (u32 i = 0; i < DOMAIN_CPUS && i < options.cpus && i < d->size; i++) {
		u32 cpu = d->cpu[i];
		struct cpu_slot *slot = cpu_at(cpu);

		if (!slot)
			break;
		u64 urgency = urgency_now(slot, now);
		if (urgency <= latest)
			continue;
		if (!anywhere && !may_use(p, cpu))
			continue;
		latest = urgency;
		best = cpu;
	}
	bpf_rcu_read_unlock();
	struct cpu_slot *slot = cpu_at(best);
	if (best < 0 || !slot)
		return -1;
	u64 present = slot->urgency;
	if (urgency_now(slot, now) <= least ||
	    __sync_val_compare_and_swap(&slot->urgency, present, deadline) != present)
		return -1;
	slot->since = now;
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

/* An entitled thread has to wait. */
static __always_inline void be_patient(struct thread *t, u64 now)
{
	struct domain *d = domain_at(t->domain);
	u64 latency = latency_of(t);

	if (!options.asymmetry || !d)
		return;
	u64 at = d->look_at;
	/* Looking a little late is better than starting the timer anew for each thread. */
	if (!at || now + latency + PATIENCE_LEAST < at)
		start_patience(d, t->domain, latency, now);
}

/* Of a thread that is to go first: for how long it still waits before somebody is preempted for it; 0: no longer. */
static __always_inline u64 patience_of(struct thread *t, u64 now)
{
	if (!t || t->depleted || !t->queue)
		return PATIENCE_LEAST;
	u64 due = t->ready_at + latency_of(t);

	return now < due ? due - now : 0;
}

/* It waited long enough, and that CPU is to be its. */
static __always_inline void preempt_late(s32 cpu)
{
	struct cpu_slot *slot = cpu_at(cpu);

	if (!slot)
		return;
	__sync_fetch_and_add(&slot->late, 1);
	scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
}

/* A thread is to go first in its domain: preempts for it if it has waited long enough, returns when to look again, in ns. */
static __always_inline u64 look_at_first(struct task_struct *p, u32 index, u64 now)
{
	struct thread *t = thread_of(p);
	u64 wait = patience_of(t, now);

	if (wait || !t)
		return wait;
	s32 cpu = preemptible_cpu(p, t->deadline, t->deadline + options.margin_ns, index, now);
	if (cpu >= 0)
		preempt_late(cpu);
	return latency_of(t);
}

/* The same on the only CPU that it may use. */
static __always_inline u64 look_at_own_first(struct task_struct *p, u32 cpu, u64 now)
{
	struct cpu_slot *slot = cpu_at(cpu);
	struct thread *t = thread_of(p);
	u64 wait = patience_of(t, now);

	if (wait || !t || !slot)
		return wait;
	if (urgency_now(slot, now) > t->deadline + options.margin_ns)
		preempt_late(cpu);
	return latency_of(t);
}

/* The same for the first of a domain's queue; 0: nobody waits. */
static __always_inline u64 look_at_domain(u32 index, u64 now)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	u64 next = 0;

	if (can_peek()) {
		p = scx_bpf_dsq_peek(entitled_queue(index));
		return p ? look_at_first(p, index, now) : 0;
	}
	if (!bpf_iter_scx_dsq_new(&it, entitled_queue(index), 0)) {
		p = bpf_iter_scx_dsq_next(&it);
		if (p)
			next = look_at_first(p, index, now);
	}
	bpf_iter_scx_dsq_destroy(&it);
	return next;
}

/* The same for that of one of a CPU's own; noted in that CPU's turn, where the verifier does not follow it. Global, as preemptible_cpu() is. */
__noinline int look_at_own(u64 dsq, u32 cpu, u64 now)
{
	struct turn *turn = &turns[bounded(cpu, MAX_CPUS)];
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	u64 next = 0;

	if (can_peek()) {
		bpf_rcu_read_lock();
		p = scx_bpf_dsq_peek(dsq);
		if (p)
			next = look_at_own_first(p, cpu, now);
		bpf_rcu_read_unlock();
	} else {
		if (!bpf_iter_scx_dsq_new(&it, dsq, 0)) {
			p = bpf_iter_scx_dsq_next(&it);
			if (p)
				next = look_at_own_first(p, cpu, now);
		}
		bpf_iter_scx_dsq_destroy(&it);
	}
	if (next && (!turn->look || next < turn->look))
		turn->look = next;
	return 0;
}

/* The same for all of these. Global, as preemptible_cpu() is. */
__noinline u64 look_at_all_own(u32 cpu, u64 now)
{
	struct turn *turn = &turns[bounded(cpu, MAX_CPUS)];

	turn->look = 0;
	for (u32 at = 0; at < OWN_QUEUES; at++) {
		u64 queue = own_queue(cpu, at);
		if (queue)
			look_at_own(queue, cpu, now);
	}
	return turn->look;
}

static int on_patience(void *map, u32 *key, struct timer *value)
{
	u32 index = *key;
	struct domain *d = domain_at(index);
	u64 now = time_ns();

	if (!d)
		return 0;
	d->look_at = 0;
	u64 next = look_at_domain(index, now);
	for (u32 i = 0; i < DOMAIN_CPUS && i < options.cpus && i < d->size; i++) {
		u32 cpu = d->cpu[i];
		struct cpu_slot *slot = cpu_at(cpu);
		if (!slot || !slot->pinned)
			continue;
		u64 again = look_at_all_own(cpu, now);
		if (again && (!next || again < next))
			next = again;
	}
	if (next)
		start_patience(d, index, next, now);
	return 0;
}

#endif
