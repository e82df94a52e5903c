/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Room: who may run anywhere makes way for who may not.
 *
 * Problem: a thread waits for the CPUs that it may use, while others idle; and one of its own runs a thread that may
 *          use the idle ones.
 * How:     whoever has to wait, and a CPU that goes idle, looks for such a thread and preempts it; it is put on the idle CPU
 *          when it is queued again.
 * Limits:  one thread moves: that two could move in turn is not seen. Looks at the CPUs of one domain; of
 *          a queue at its first thread.
 */
#ifndef QUELL_ROOM_BPF_H
#define QUELL_ROOM_BPF_H

#include "state.bpf.h"

enum movable {
	BOUND,	   /* to one CPU */
	MOVABLE,   /* may run on some others */
	ANYWHERE,
};

/* Whether a CPU idles that the thread may use; NULL: any. */
static __always_inline bool idles_for(struct task_struct *p)
{
	const struct cpumask *idle = scx_bpf_get_idle_cpumask();
	bool idles = p ? bpf_cpumask_intersects(p->cpus_ptr, idle) : !bpf_cpumask_empty(idle);

	scx_bpf_put_idle_cpumask(idle);
	return idles;
}

/* Preempts what runs there, if that can go on elsewhere. */
static __always_inline bool clear_cpu(u32 cpu)
{
	struct cpu_slot *slot = cpu_at(cpu);
	bool clears;

	if (!slot || slot->urgency == URGENCY_NONE || slot->movable == BOUND)
		return false;
	clears = slot->movable == ANYWHERE;
	if (!clears) {
		struct task_struct *runs = bpf_task_from_pid(slot->tid);
		if (runs) {
			clears = idles_for(runs);
			bpf_task_release(runs);
		}
	}
	if (clears)
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	return clears;
}

/* A thread has to wait for CPUs that it may use. */
static __always_inline void make_room(struct task_struct *p, struct domain *d)
{
	for (u32 i = 0; i < DOMAIN_CPUS && i < options.cpus && i < d->size; i++) {
		u32 cpu = d->cpu[i];
		if (bpf_cpumask_test_cpu(cpu, p->cpus_ptr) && clear_cpu(cpu))
			return;
	}
}

/* A CPU of the domain goes idle. */
static __always_inline void use_room(struct domain *d, u32 index)
{
	struct task_struct *p = NULL;

	if (d->pinned) {
		for (u32 i = 0; i < DOMAIN_CPUS && i < options.cpus && i < d->size; i++) {
			u32 cpu = d->cpu[i];
			struct cpu_slot *slot = cpu_at(cpu);
			if (!slot)
				break;
			if (slot->pinned && clear_cpu(cpu))
				return;
		}
	}
	if (!d->queued || !can_peek())
		return;
	p = scx_bpf_dsq_peek(entitled_queue(index));
	if (!p)
		p = scx_bpf_dsq_peek(depleted_queue(index));
	if (p)
		make_room(p, d);
}

#endif
