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
 *          one for each CPU, run only while somebody waits, and look at the thread that is to go first.
 * Bounds:  only threads within their share preempt. A deadline holds until the thread sleeps, so two threads cannot
 *          preempt each other in turns.
 * Limits:  the search looks at the CPUs of one domain, the one the thread ran in.
 */
#ifndef QUELL_ASYMMETRY_BPF_H
#define QUELL_ASYMMETRY_BPF_H

#include "state.bpf.h"

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
 * least; claimed; negative if there is none.
 */
static __always_inline s32 preemptible_cpu(struct task_struct *p, u64 deadline, u64 least, u32 index,
					   u64 now)
{
	struct domain *d = domain_at(index);
	bool anywhere = p->nr_cpus_allowed >= options.cpus;
	u64 latest = least;
	s32 best = -1;

	if (!d || !options.asymmetry)
		return -1;
	for (u32 i = 0; i < DOMAIN_CPUS && i < d->size; i++) {
		u32 cpu = d->cpu[i];
		struct cpu_slot *slot = slot_of(cpu);

		if (!slot)
			break;
		u64 urgency = urgency_now(slot, now);
		if (urgency <= latest)
			continue;
		if (!anywhere && !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		latest = urgency;
		best = cpu;
	}
	struct cpu_slot *slot = slot_of(best);
	if (best < 0 || !slot)
		return -1;
	u64 present = slot->urgency;
	if (urgency_now(slot, now) <= least ||
	    __sync_val_compare_and_swap(&slot->urgency, present, deadline) != present)
		return -1;
	slot->since = now;
	return best;
}

struct patience {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct patience);
} patience SEC(".maps");

/* No more often than so, so that a crowd of waiting threads costs little. */
#define PATIENCE_LEAST (100 * NS_PER_US)

static __always_inline void start_patience(struct cpu_slot *slot, u32 cpu, u64 ns)
{
	struct patience *p = bpf_map_lookup_elem(&patience, &cpu);

	if (!p)
		return;
	slot->armed = 1;
	if (bpf_timer_start(&p->timer, ns < PATIENCE_LEAST ? PATIENCE_LEAST : ns, 0))
		slot->armed = 0;
}

/* A thread has to wait, as far as this CPU knows. */
static __always_inline void be_patient(struct cpu_slot *slot, struct thread *t)
{
	if (options.asymmetry && !slot->armed)
		start_patience(slot, bpf_get_smp_processor_id(), t->deadline - t->since);
}

/*
 * The thread that is to go first waits: preempts for it if it has waited long enough, returns when to look again,
 * in ns.
 */
static __always_inline u64 look_at_first(struct task_struct *p, struct cpu_slot *slot, u32 index,
					 u64 now)
{
	struct thread *t = thread_of(p);

	if (!t || t->queue != QUEUE_ENTITLED)
		return PATIENCE_LEAST;
	u64 latency = t->deadline - t->since, due = t->ready_at + latency;
	if (now < due)
		return due - now;
	s32 cpu = preemptible_cpu(p, t->deadline, t->deadline + options.margin_ns, index, now);
	if (cpu >= 0) {
		slot->late++;
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	}
	return latency;
}

static int on_patience(void *map, u32 *key, struct patience *value)
{
	u32 cpu = *key, index = domain_index(cpu);
	struct cpu_slot *slot = slot_of(cpu);
	u64 now = time_ns(), next = 0;
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;

	if (!slot)
		return 0;
	slot->armed = 0;
	if (bpf_ksym_exists(scx_bpf_dsq_peek) && bpf_ksym_exists(scx_bpf_dsq_move_to_local___v2___q)) {
		p = scx_bpf_dsq_peek(entitled_queue(index));
		if (p)
			next = look_at_first(p, slot, index, now);
	} else {
		if (!bpf_iter_scx_dsq_new(&it, entitled_queue(index), 0)) {
			p = bpf_iter_scx_dsq_next(&it);
			if (p)
				next = look_at_first(p, slot, index, now);
		}
		bpf_iter_scx_dsq_destroy(&it);
	}
	if (next)
		start_patience(slot, cpu, next);
	return 0;
}

static __always_inline s32 init_patience(u32 cpu)
{
	struct patience *p = bpf_map_lookup_elem(&patience, &cpu);

	if (!p)
		return -22; /* EINVAL */
	s32 error = bpf_timer_init(&p->timer, &patience, CLOCK_MONOTONIC);
	return error ?: bpf_timer_set_callback(&p->timer, on_patience);
}

#endif
