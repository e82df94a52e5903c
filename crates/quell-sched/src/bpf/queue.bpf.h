/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Enqueueing: the DSQ that a runnable task belongs in, its key there, and its slice. */
#ifndef QUELL_QUEUE_BPF_H
#define QUELL_QUEUE_BPF_H

#include "preempt.bpf.h"
#include "fair.bpf.h"
#include "server.bpf.h"

/* The task that wakes p, if it is an exiting child of p; else NULL. */
static __always_inline struct task_ctx *exiting_child(struct task_struct *p, struct task_struct *by)
{
	return by && by->flags & PF_EXITING && by->real_parent == p ? lookup_task_ctx(by) : NULL;
}

/*
 * A task becomes runnable: it enters its group, its LLC and its server. woken: the task slept before. The
 * caller updates the deadline afterwards.
 */
static __always_inline void activate_task(struct task_ctx *t, struct task_struct *p, u32 cpu, bool woken,
					  u64 now)
{
	update_weight(t, now);
	dequeue_weight(t);
	enqueue_weight(t, p, cpu_llc_id(cpu), cpu, woken, now);
	enqueue_server(t, p, cpu);
	t->wait_since_ns = now;
	t->sched_idle = p->policy == SCHED_IDLE;
}

/* Decides whether a task that becomes runnable is light, and for how long. */
static __always_inline void update_light(struct task_ctx *t, struct task_struct *p, u64 now)
{
	if (options.share)
		update_vtime(t, now);
	/*
	 * Kernel threads pinned to a CPU are part of the machine: they are light unless they are ahead of
	 * their share.
	 */
	if (p->flags & PF_KTHREAD && p->nr_cpus_allowed == 1)
		t->light_run_ns = task_lag(t, now) >= -(s64)FAIR_SLICE ? FAIR_SLICE : 0;
	else if (!options.share)
		t->light_run_ns = deadline_light_run(t->vlag, t->weight, t->burst_avg_ns);
	else
		t->light_run_ns = t->burst_avg_ns <= FAIR_SLICE &&
						  share_is_light(task_rate(t, share_slot_of(t)),
								 task_lag(t, now))
					  ? FAIR_SLICE
					  : 0;
}

/* The DSQ that a task belongs in, the task's key there, and its slice. */
struct dsq_target {
	u64 dsq;
	u64 vtime; /* a deadline */
	u64 slice_ns;
};

/* The DSQ of a runnable task. Also records it, see set_task_dsq(). */
static __always_inline struct dsq_target select_dsq(struct task_ctx *t, struct task_struct *p, u32 cpu)
{
	struct dsq_target target = { .vtime = t->deadline, .slice_ns = FAIR_SLICE_MAX };

	if (p->nr_cpus_allowed == 1) {
		u32 server = options.criticality ? t->on_server : 0;
		set_task_dsq(t, server ? DSQ_KIND_SERVER : DSQ_KIND_PINNED, server ?: cpu);
		target.dsq = server ? server_dsq(server) : pinned_dsq(cpu);
	} else {
		set_task_dsq(t, DSQ_KIND_LLC, t->llc);
		target.dsq = llc_dsq(t->llc);
	}
	return target;
}

#endif
