/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Wakeup preemption: urgent tasks do not wait for others.
 *
 * Problem: The latency of a tenant is that of its critical path; a round-robin over all tasks delays the
 *          critical path for work that nobody waits for. But each preemption costs two switches, and most
 *          waits are short.
 * How:     Each activation of a task has a deadline (../policy/deadline.h). Where no CPU is idle, a waking
 *          task preempts the CPU whose task has the latest deadline, if that is later than its own by
 *          options.margin_ns. The waking task goes straight to the CPU's local DSQ, which costs one
 *          interrupt. A task that another task woke does not preempt a task before that has run for
 *          WAKEUP_MIN_RUN: so a sender of many messages sends them before they are read, and a sender of one
 *          that then sleeps leaves its CPU to the reader. In all other cases the waking task is queued, and
 *          the running task keeps its slice of FAIR_SLICE. A timer ends slices; each LLC has one, armed only
 *          while tasks wait.
 * Limits:  The search looks at the CPUs of one LLC only, that of the task's previous CPU.
 */
#ifndef QUELL_PREEMPT_BPF_H
#define QUELL_PREEMPT_BPF_H

#include "task.bpf.h"

/* Where a task may run. */
enum mobility {
	MOBILITY_PINNED, /* may run on one CPU */
	MOBILITY_RESTRICTED, /* may run on some CPUs */
	MOBILITY_ANY,
};

/* Records where the task that runs on the CPU may run. */
static __always_inline void set_mobility(struct cpu_ctx *cpuc, struct task_struct *p)
{
	u32 allowed = p->nr_cpus_allowed;

	cpuc->curr_mobility = allowed == 1		  ? MOBILITY_PINNED
			      : allowed < options.nr_cpus ? MOBILITY_RESTRICTED
							  : MOBILITY_ANY;
}

/* True if the task that runs on the CPU can go on on any other CPU. */
static __always_inline bool curr_can_move(const struct cpu_ctx *cpuc)
{
	return cpuc->curr_mobility == MOBILITY_ANY;
}

/* The deadline of the task that runs on the CPU, as of now; DEADLINE_NONE: none, or not preemptible. */
static __always_inline u64 curr_deadline_now(const struct cpu_ctx *cpuc, u64 now)
{
	u64 deadline = cpuc->curr_deadline;

	return deadline == DEADLINE_NONE
		       ? DEADLINE_NONE
		       : deadline_running(deadline, cpuc->deadline_fixed_until_ns, cpuc->deadline_pace, now);
}

/* The time for which a task must have run before a waking task, of context t, may preempt it. */
static __always_inline u64 wakeup_min_run(struct task_ctx *t)
{
	return t->woken_by_task ? WAKEUP_MIN_RUN : 0;
}

/*
 * Finds a CPU for a task that wakes, and claims the CPU: one whose task can go on elsewhere at once, where
 * the waking task cannot; else the CPU whose task has the latest deadline, if that is later than later_than.
 * Returns -1 if there is no such CPU.
 */
__global_subprog s32 claim_preemptible_cpu(struct task_struct *p __arg_trusted, struct task_ctx *t,
					   u64 later_than, u64 now)
{
	struct llc_ctx *llc = t ? lookup_llc(t->llc) : NULL;
	bool any_cpu = p->nr_cpus_allowed >= options.nr_cpus;
	bool others_idle = !any_cpu && has_idle_cpu(NULL), makes_way = false;
	u64 latest = later_than;
	s32 best = -1;

	if (!t || !llc || !options.asymmetry)
		return -1;
	u64 since_before = now - wakeup_min_run(t);
	/*
	 * A global function is verified for callers outside RCU sections too, where p->cpus_ptr is not
	 * protected.
	 */
	bpf_rcu_read_lock();
	for (u32 i = 0; i < LLC_CPUS && i < options.nr_cpus && i < llc->nr_cpus; i++) {
		u32 cpu = llc->cpus[i];
		struct cpu_ctx *cpuc = lookup_cpu_ctx(cpu);

		if (!cpuc)
			break;
		u64 curr = curr_deadline_now(cpuc, now);
		if (curr == DEADLINE_NONE || (!any_cpu && !task_may_use(p, cpu)))
			continue;
		makes_way = others_idle && curr_can_move(cpuc);
		if (!makes_way && (cpuc->curr_since_ns > since_before || !deadline_before(latest, curr)))
			continue;
		latest = curr;
		best = cpu;
		if (makes_way)
			break;
	}
	bpf_rcu_read_unlock();
	struct cpu_ctx *cpuc = lookup_cpu_ctx(best);
	if (best < 0 || !cpuc)
		return -1;
	u64 expected = cpuc->curr_deadline;
	if (expected == DEADLINE_NONE ||
	    !(makes_way || deadline_before(later_than, curr_deadline_now(cpuc, now))) ||
	    __sync_val_compare_and_swap(&cpuc->curr_deadline, expected, t->deadline) != expected)
		return -1;
	cpuc->deadline_fixed_until_ns = now + FAIR_SLICE;
	return best;
}

TIMERS(preempt_timers, MAX_LLCS);

/* At least this long between two expiries, so that a crowd of waiting tasks costs little. */
#define PREEMPT_TIMER_MIN (100 * NS_PER_US)

/* Arms the LLC's preemption timer, to expire after ns. */
static __always_inline void start_preempt_timer(struct llc_ctx *llc, u32 llc_id, u64 ns, u64 now)
{
	struct timer *p = bpf_map_lookup_elem(&preempt_timers, &llc_id);

	if (!p)
		return;
	if (ns < PREEMPT_TIMER_MIN)
		ns = PREEMPT_TIMER_MIN;
	llc->preempt_timer_at_ns = now + ns;
	if (bpf_timer_start(&p->timer, ns, 0))
		llc->preempt_timer_at_ns = 0;
}

/* Publishes the deadline of the task that has begun to run on the CPU, or got another slice. */
static __always_inline void publish_curr(struct task_ctx *t, struct cpu_ctx *cpuc, u64 now)
{
	u64 burst_left = !t->deadline_is_share && t->burst_avg_ns > t->burst_ns
				 ? t->burst_avg_ns - t->burst_ns
				 : 0;

	if (t->burst_ns < t->light_run_ns)
		burst_left = t->light_run_ns - t->burst_ns;
	cpuc->curr_deadline = t->deadline;
	cpuc->deadline_fixed_until_ns = now +
					(burst_left < DEADLINE_BURST_MAX ? burst_left : DEADLINE_BURST_MAX);
	cpuc->curr_since_ns = now;
	cpuc->deadline_pace = t->deadline_pace;
}

/*
 * Publishes a light deadline for a starved task that has begun to run: the task runs for its short slice, and
 * no waking task claims the CPU before.
 */
static __always_inline void publish_starved_curr(struct cpu_ctx *cpuc, struct llc_ctx *llc, u32 llc_id,
						 u64 now)
{
	cpuc->curr_deadline = deadline_light(now, 0);
	cpuc->deadline_fixed_until_ns = now + FAIR_STARVED_SLICE;
	cpuc->curr_since_ns = now + FAIR_STARVED_SLICE - FAIR_SLICE;
	start_preempt_timer(llc, llc_id, FAIR_STARVED_SLICE, now);
}

/* A task has been queued: makes sure that the preemption timer of its LLC expires soon enough. */
static __always_inline void arm_preempt_timer(struct task_ctx *t, u64 now)
{
	struct llc_ctx *llc = lookup_llc(t->llc);
	u64 at;

	if (!llc)
		return;
	at = llc->preempt_timer_at_ns;
	if (!at || (!t->deadline_is_share && at > now + WAKEUP_MIN_RUN))
		start_preempt_timer(llc, t->llc, WAKEUP_MIN_RUN, now);
}

/* dsq_first_vtime() for a caller outside RCU sections, where the verifier asks for one. */
static __always_inline u64 dsq_first_vtime_rcu(u64 dsq)
{
	u64 vtime;

	if (!can_peek_dsq())
		return dsq_first_vtime(dsq);
	bpf_rcu_read_lock();
	vtime = dsq_first_vtime(dsq);
	bpf_rcu_read_unlock();
	return vtime;
}

/* The earliest deadline in the CPU's own DSQs, or first if that is earlier (0: none). */
__global_subprog u64 first_pinned_deadline(u32 cpu, u64 first)
{
	for (u32 nth = 0; nth < CPU_DSQS; nth++) {
		u64 dsq = cpu_dsq(cpu, nth);
		u64 vtime = dsq ? dsq_first_vtime_rcu(dsq) : 0;
		if (vtime && (!first || deadline_before(vtime, first)))
			first = vtime;
	}
	return first;
}

/*
 * Preempts the CPU's task if the task has had its slice and the first queued task (first: the earliest
 * deadline of the LLC's DSQ, 0: none) precedes it. Returns after how many ns to look again; 0: no task waits.
 */
static __always_inline u64 preempt_overdue(u32 cpu, u64 first, u64 now)
{
	struct cpu_ctx *cpuc = lookup_cpu_ctx(cpu);

	if (!cpuc || cpuc->curr_deadline == DEADLINE_NONE)
		return 0;
	if (cpuc->nr_pinned)
		first = first_pinned_deadline(cpu, first);
	if (!first)
		return 0;
	u64 ran = now > cpuc->curr_since_ns ? now - cpuc->curr_since_ns : 0;
	u64 curr = curr_deadline_now(cpuc, now);
	u64 min_run = deadline_before(first + options.margin_ns, curr) && options.asymmetry ? WAKEUP_MIN_RUN
											    : FAIR_SLICE;
	if (ran < min_run)
		return min_run - ran;
	if (deadline_before(first, curr)) {
		__sync_fetch_and_add(&cpuc->late, 1);
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	}
	return FAIR_SLICE;
}

/* Preempts the LLC's tasks that have had their slices while other tasks wait. */
static int on_preempt_timer(void *map, u32 *key, struct timer *value)
{
	u32 llc_id = *key;
	struct llc_ctx *llc = lookup_llc(llc_id);
	u64 now = time_ns(), next = 0;

	if (!llc)
		return 0;
	llc->preempt_timer_at_ns = 0;
	u64 first = llc->nr_queued ? dsq_first_vtime_rcu(llc_dsq(llc_id)) : 0;
	for (u32 i = 0; i < LLC_CPUS && i < options.nr_cpus && i < llc->nr_cpus; i++) {
		u64 again = preempt_overdue(llc->cpus[i], first, now);
		if (again && (!next || again < next))
			next = again;
	}
	if (next)
		start_preempt_timer(llc, llc_id, next, now);
	return 0;
}

#endif
