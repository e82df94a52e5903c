/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Active migration for tasks of restricted affinity.
 *
 * Problem: A task waits for a CPU of its affinity mask while other CPUs idle, and a CPU of the mask runs a
 *          task that may use the idle ones.
 * How:     Where a task of restricted affinity has to wait, or a CPU goes idle, the scheduler looks for such
 *          a running task and preempts it, whatever its deadline. The CPU then takes the waiting task; the
 *          preempted task is queued again, and an idle CPU is told to take it. If no CPU idles, the preempted
 *          task displaces a task with a later deadline on another CPU. If the idle CPU is only of use to a
 *          third task, that task migrates there first (two-hop migration).
 * Bounds:  The CPUs of an LLC are scanned once in MIGRATE_SCAN_PERIOD at most, by a timer if need be, and
 *          once in MIGRATE_INTERVAL_MIN for each task that makes way.
 * Limits:  Chains of two migrations, no longer. Looks at the CPUs of one LLC; at the first task of a DSQ
 *          only, and before Linux 7.1 at pinned tasks only.
 */
#ifndef QUELL_MIGRATE_BPF_H
#define QUELL_MIGRATE_BPF_H

#include "preempt.bpf.h"
#include "fair.bpf.h"

/*
 * No round number: a scan in step with a periodic task would look each time when the task has just begun to
 * run, and never see its CPU idle.
 */
#define MIGRATE_SCAN_PERIOD (973 * NS_PER_US)
/*
 * A migration costs some 10 us. A task that loses its CPU over and over has to get one that it is due as
 * often.
 */
#define MIGRATE_INTERVAL_MIN (400 * NS_PER_US)
#define MIGRATE_TIMER_MIN (100 * NS_PER_US)

/* The number of CPUs that a scan tries for a two-hop migration, at most. */
#define TWO_HOP_TRIES 4

/* The displaced task's deadline must be later by at least this, for the migration to be worth its cost. */
#define MIGRATE_GAIN_MIN (20 * NS_PER_MS)

/*
 * Two-hop migration of the task that runs on a CPU: it leaves the CPU to a second task, which leaves its own
 * CPU to a waiting task.
 */
enum migrate_state {
	MIGRATE_NONE,
	MIGRATE_PENDING,
	MIGRATE_KICKED, /* an idle CPU was told to take the task */
};

/* Preempts the CPU's task, if the task can go on elsewhere at once. True if it can. */
static __always_inline bool push_curr(u32 cpu)
{
	struct cpu_ctx *cpuc = lookup_cpu_ctx(cpu);
	bool push;

	if (!cpuc || cpuc->curr_deadline == DEADLINE_NONE || cpuc->curr_mobility == MOBILITY_PINNED)
		return false;
	push = cpuc->curr_mobility == MOBILITY_ANY;
	if (!push) {
		struct task_struct *curr = bpf_task_from_pid(cpuc->curr_tid);
		if (curr) {
			push = has_idle_cpu(curr);
			bpf_task_release(curr);
		}
	}
	if (push)
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	return push;
}

/* Preempts the task of a CPU that p may use, if the task can go on elsewhere at once. True if one can. */
static __always_inline bool push_curr_for(struct task_struct *p, struct llc_ctx *llc)
{
	for (u32 i = 0; i < LLC_CPUS && i < options.nr_cpus && i < llc->nr_cpus; i++) {
		u32 cpu = llc->cpus[i];
		if (task_may_use(p, cpu) && push_curr(cpu))
			return true;
	}
	return false;
}

/* The first task of the LLC's DSQ, where the kernel has a safe peek; else NULL. */
static __always_inline struct task_struct *llc_dsq_peek(struct llc_ctx *llc, u32 llc_id)
{
	if (!llc->nr_queued || !can_peek_dsq())
		return NULL;
	return scx_bpf_dsq_peek(llc_dsq(llc_id));
}

/* True if a task waits for another CPU whose present task could migrate to this CPU, were this CPU free. */
__global_subprog int two_hop_helps(u32 llc_id, u32 cpu)
{
	struct llc_ctx *llc = lookup_llc(llc_id);
	bool found = false;

	if (!llc)
		return false;
	bpf_rcu_read_lock();
	struct task_struct *p = llc_dsq_peek(llc, llc_id);
	for (u32 i = 0; i < LLC_CPUS && i < options.nr_cpus && i < llc->nr_cpus; i++) {
		u32 other = llc->cpus[i];
		struct cpu_ctx *cpuc = lookup_cpu_ctx(other);
		if (!cpuc)
			break;
		if (cpuc->curr_deadline == DEADLINE_NONE || cpuc->curr_mobility != MOBILITY_RESTRICTED ||
		    !(cpuc->nr_pinned || (p && task_may_use(p, other))))
			continue;
		struct task_struct *curr = bpf_task_from_pid(cpuc->curr_tid);
		if (!curr)
			continue;
		found = task_may_use(curr, cpu);
		bpf_task_release(curr);
		if (found)
			break;
	}
	bpf_rcu_read_unlock();
	return found;
}

/*
 * While a CPU idles and no waiting task may use it: makes a running task migrate, either one on a CPU that a
 * waiting task may use, or one whose CPU such a task could migrate to (two hops).
 */
__global_subprog int migrate_scan(u32 llc_id)
{
	struct llc_ctx *llc = lookup_llc(llc_id);
	u32 nr_tried = 0;

	if (!llc || !(llc->nr_pinned || llc->nr_queued) || !has_idle_cpu(NULL))
		return 0;
	bool done = false;
	bpf_rcu_read_lock();
	for (u32 i = 0; llc->nr_pinned && !done && i < LLC_CPUS && i < options.nr_cpus && i < llc->nr_cpus;
	     i++) {
		u32 cpu = llc->cpus[i];
		struct cpu_ctx *cpuc = lookup_cpu_ctx(cpu);
		if (!cpuc)
			break;
		done = cpuc->nr_pinned && push_curr(cpu);
	}
	struct task_struct *p = done ? NULL : llc_dsq_peek(llc, llc_id);
	if (p)
		done = has_idle_cpu(p) || push_curr_for(p, llc);
	bpf_rcu_read_unlock();
	if (done)
		return 0;
	for (u32 i = 0; i < LLC_CPUS && i < options.nr_cpus && i < llc->nr_cpus && nr_tried < TWO_HOP_TRIES;
	     i++) {
		u32 cpu = llc->cpus[i];
		struct cpu_ctx *cpuc = lookup_cpu_ctx(cpu);
		if (!cpuc)
			break;
		if (cpuc->curr_deadline == DEADLINE_NONE || cpuc->curr_mobility != MOBILITY_ANY)
			continue;
		nr_tried++;
		if (two_hop_helps(llc_id, cpu)) {
			scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
			break;
		}
	}
	return 0;
}

TIMERS(migrate_timers, MAX_LLCS);

static int on_migrate_timer(void *map, u32 *key, struct timer *value)
{
	struct llc_ctx *llc = lookup_llc(*key);

	if (!llc)
		return 0;
	llc->migrate_timer_armed = 0;
	if (has_idle_cpu(NULL)) {
		llc->migrate_scan_at_ns = time_ns();
		migrate_scan(*key);
	}
	return 0;
}

/* Arms the migration timer for the earliest time that MIGRATE_SCAN_PERIOD allows. */
static __always_inline void arm_migrate_timer(struct llc_ctx *llc, u32 llc_id, u64 now)
{
	struct timer *timer = bpf_map_lookup_elem(&migrate_timers, &llc_id);
	u64 at = llc->migrate_scan_at_ns + MIGRATE_SCAN_PERIOD, earliest = now + MIGRATE_TIMER_MIN;

	if (timer && !llc->migrate_timer_armed &&
	    !__sync_val_compare_and_swap(&llc->migrate_timer_armed, 0, 1) &&
	    bpf_timer_start(&timer->timer, (at > earliest ? at : earliest) - now, 0))
		llc->migrate_timer_armed = 0;
}

/*
 * A task of restricted affinity is about to be queued. By timer, since the task is not in its DSQ yet, nor
 * does the task run yet that has to make way.
 */
static __always_inline void migrate_on_enqueue(struct task_struct *p, u32 llc_id, u64 now)
{
	struct llc_ctx *llc = lookup_llc(llc_id);

	if (llc && p->nr_cpus_allowed < options.nr_cpus)
		arm_migrate_timer(llc, llc_id, now);
}

/*
 * A CPU of the LLC goes idle: tasks that wait may not use it, or have just been queued and will be found.
 * migrated_here: a task made way so that another one migrates here.
 */
static __always_inline void migrate_on_idle(struct llc_ctx *llc, u32 llc_id, bool migrated_here)
{
	u64 at = llc->migrate_scan_at_ns, now = time_ns();

	if (!migrated_here && !(llc->nr_pinned || llc->nr_queued))
		return;
	if (migrated_here || (now - at > MIGRATE_SCAN_PERIOD &&
			      __sync_val_compare_and_swap(&llc->migrate_scan_at_ns, at, now) == at))
		migrate_scan(llc_id);
	else
		arm_migrate_timer(llc, llc_id, now);
}

/*
 * True if the CPU's task can go on elsewhere at once, and cannot be replaced there by the task that waits for
 * this CPU, or for a CPU whose task would migrate to this one.
 */
static __always_inline bool should_migrate(struct task_struct *prev, u32 cpu, struct llc_ctx *llc, u32 llc_id)
{
	struct cpu_ctx *cpuc = lookup_cpu_ctx(cpu);
	struct task_struct *p;

	/* Migration may be disabled; BPF's own section counts as 1. */
	if (!cpuc || prev->nr_cpus_allowed == 1 || prev->migration_disabled > 1 ||
	    !(llc->nr_pinned || llc->nr_queued) || !has_idle_cpu(prev))
		return false;
	if (cpuc->nr_pinned)
		return true;
	p = llc_dsq_peek(llc, llc_id);
	if (p && has_idle_cpu(p))
		return false;
	if (p && task_may_use(p, cpu))
		return true;
	cpuc->migrate_state = two_hop_helps(llc_id, cpu) ? MIGRATE_PENDING : MIGRATE_NONE;
	return cpuc->migrate_state == MIGRATE_PENDING;
}

/*
 * Claims for a task a CPU of the LLC whose task's deadline is later than later_than. The CPU is kicked once
 * the task is queued.
 */
static __always_inline bool claim_later_cpu(struct task_struct *p, struct task_ctx *t, u64 later_than,
					    u32 llc_id, u64 now)
{
	if (p->nr_cpus_allowed == 1 || p->migration_disabled > 1 ||
	    now - t->migrated_at_ns <= MIGRATE_INTERVAL_MIN)
		return false;
	t->migrated_at_ns = now;
	s32 cpu = claim_preemptible_cpu(p, t, later_than, now);
	t->claimed_cpu_plus1 = cpu + 1;
	return cpu >= 0;
}

/*
 * True if the CPU's task goes on on another CPU: a task of restricted affinity waits for this CPU, and the
 * other CPU's task has a deadline that is later than the waiting task's (restricted_deadline) by
 * MIGRATE_GAIN_MIN.
 */
static __always_inline bool should_displace(struct task_struct *prev, struct task_ctx *t,
					    u64 restricted_deadline, u32 llc_id, u64 now)
{
	return claim_later_cpu(prev, t, restricted_deadline + MIGRATE_GAIN_MIN, llc_id, now);
}

/*
 * A task that made way has been queued: preempts the CPU that the task claimed, or else a CPU whose task has
 * a later deadline.
 */
static __always_inline void kick_displaced_cpu(struct task_struct *p, struct task_ctx *t, u64 now)
{
	u32 llc_id = t->llc;

	if (!lookup_llc(llc_id))
		return;
	if (t->claimed_cpu_plus1 || claim_later_cpu(p, t, t->deadline + MIGRATE_GAIN_MIN, llc_id, now))
		scx_bpf_kick_cpu(t->claimed_cpu_plus1 - 1, SCX_KICK_PREEMPT);
	t->claimed_cpu_plus1 = 0;
}

#endif
