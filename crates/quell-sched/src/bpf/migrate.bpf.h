/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Room: who may run anywhere makes way for who may not.
 *
 * Problem: a thread waits for the CPUs that it may use, while others idle; and one of its own runs a thread that may
 *          use the idle ones.
 * How:     where somebody has to wait or a CPU goes idle, such a thread is looked for and preempted, whatever its deadline.
 *          Its CPU takes who waits for it; then it is queued again, and an idle CPU is told to take it.
 *          Where none idles, it displaces what is further ahead than who waits for it, on another CPU. Where the idle CPU is for
 *          a third thread only, that one moves there first.
 * Bounds:  a domain's CPUs are looked at once in MIGRATE_SCAN_PERIOD at most, by a timer if need be, and once in MIGRATE_INTERVAL_MIN for each thread
 *          that makes way.
 * Limits:  two threads move in turn, no more. Looks at the CPUs of one domain; of
 *          a queue at its first thread, and before Linux 7.1 at threads bound to one CPU only.
 */
#ifndef QUELL_MIGRATE_BPF_H
#define QUELL_MIGRATE_BPF_H

#include "preempt.bpf.h"
#include "fair.bpf.h"

/* In step with nobody: looks that fall where a thread with a period begins to run never see its CPU idle. */
#define MIGRATE_SCAN_PERIOD (973 * NS_PER_US)
/* A move costs some 10 us; and who loses its CPU again and again is to have one that it is due as often. */
#define MIGRATE_INTERVAL_MIN (400 * NS_PER_US)
#define MIGRATE_TIMER_MIN (100 * NS_PER_US)

/* So many CPUs' threads are looked at for one that makes way for another that would. */
#define TWO_HOP_TRIES 4

/* What is later by less is not worth a move. */
#define MIGRATE_GAIN_MIN (20 * NS_PER_MS)

/* Of who runs on a CPU that it leaves to one that will leave its own to one that waits. */
enum migrate_state {
	MIGRATE_NONE,
	MIGRATE_PENDING,
	MIGRATE_KICKED, /* an idle CPU was told to take it */
};

enum mobility {
	MOBILITY_PINNED,	   /* to one CPU */
	MOBILITY_RESTRICTED,   /* may run on some others */
	MOBILITY_ANY,
};

/* Who runs on a CPU now. */
static __always_inline void set_mobility(struct cpu_ctx *cpuc, struct task_struct *p)
{
	u32 allowed = p->nr_cpus_allowed;

	cpuc->curr_mobility = allowed == 1 ? MOBILITY_PINNED : allowed < options.nr_cpus ? MOBILITY_RESTRICTED : MOBILITY_ANY;
}

/* Preempts what runs there, if that can go on elsewhere. */
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

static __always_inline bool push_curr_for(struct task_struct *p, struct llc_ctx *llc)
{
	for (u32 i = 0; i < LLC_CPUS && i < options.nr_cpus && i < llc->nr_cpus; i++) {
		u32 cpu = llc->cpus[i];
		if (task_may_use(p, cpu) && push_curr(cpu))
			return true;
	}
	return false;
}

/* The first of a domain's queues, where it can be looked at. */
static __always_inline struct task_struct *llc_dsq_peek(struct llc_ctx *llc, u32 llc_id)
{
	if (!llc->nr_queued || !can_peek_dsq())
		return NULL;
	return scx_bpf_dsq_peek(llc_dsq(llc_id));
}

/*
 * Whether a thread waits for a CPU whose thread would come to this one, if that were left to it. Global, so that the verifier looks
 * at it once.
 */
__noinline int two_hop_helps(u32 llc_id, u32 cpu)
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
 * Where a CPU idles and who waits may not use it, makes a thread move there: one that runs where that could, or where one could that
 * would leave its CPU to it. Global, as that is.
 */
__noinline int migrate_scan(u32 llc_id)
{
	struct llc_ctx *llc = lookup_llc(llc_id);
	u32 nr_tried = 0;

	if (!llc || !(llc->nr_pinned || llc->nr_queued) || !has_idle_cpu(NULL))
		return 0;
	bool done = false;
	bpf_rcu_read_lock();
	for (u32 i = 0; llc->nr_pinned && !done && i < LLC_CPUS && i < options.nr_cpus && i < llc->nr_cpus; i++) {
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
	for (u32 i = 0; i < LLC_CPUS && i < options.nr_cpus && i < llc->nr_cpus && nr_tried < TWO_HOP_TRIES; i++) {
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

/* Looks for room as soon as it may, if nobody does. */
static __always_inline void arm_migrate_timer(struct llc_ctx *llc, u32 llc_id, u64 now)
{
	struct timer *timer = bpf_map_lookup_elem(&migrate_timers, &llc_id);
	u64 at = llc->migrate_scan_at_ns + MIGRATE_SCAN_PERIOD, earliest = now + MIGRATE_TIMER_MIN;

	if (timer && !llc->migrate_timer_armed && !__sync_val_compare_and_swap(&llc->migrate_timer_armed, 0, 1) &&
	    bpf_timer_start(&timer->timer, (at > earliest ? at : earliest) - now, 0))
		llc->migrate_timer_armed = 0;
}

/* A thread has to wait for CPUs that it may use. It is not in its queue yet, and whom it had to make way for does not run yet. */
static __always_inline void migrate_on_enqueue(struct task_struct *p, u32 llc_id, u64 now)
{
	struct llc_ctx *llc = lookup_llc(llc_id);

	if (llc && p->nr_cpus_allowed < options.nr_cpus)
		arm_migrate_timer(llc, llc_id, now);
}

/*
 * A CPU of the domain goes idle: those that wait may not use it, or have just been queued and will be seen. left: one made way for
 * another to come here.
 */
static __always_inline void migrate_on_idle(struct llc_ctx *llc, u32 llc_id, bool migrated_here)
{
	u64 at = llc->migrate_scan_at_ns, now = time_ns();

	if (!migrated_here && !(llc->nr_pinned || llc->nr_queued))
		return;
	if (migrated_here || (now - at > MIGRATE_SCAN_PERIOD && __sync_val_compare_and_swap(&llc->migrate_scan_at_ns, at, now) == at))
		migrate_scan(llc_id);
	else
		arm_migrate_timer(llc, llc_id, now);
}

/*
 * Whether a thread that runs here can go on elsewhere, and one that waits for this CPU, or for one whose thread would come here
 * then, cannot.
 */
static __always_inline bool should_migrate(struct task_struct *prev, u32 cpu, struct llc_ctx *llc, u32 llc_id)
{
	struct cpu_ctx *cpuc = lookup_cpu_ctx(cpu);
	struct task_struct *p;

	/* One that may not migrate now; what BPF counts for itself is one. */
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

/* Claims for a thread a CPU of the domain that runs what is later than that; it is told once the thread is queued. */
static __always_inline bool claim_later_cpu(struct task_struct *p, struct task_ctx *t, u64 later_than, u32 llc_id, u64 now)
{
	if (p->nr_cpus_allowed == 1 || p->migration_disabled > 1 || now - t->migrated_at_ns <= MIGRATE_INTERVAL_MIN)
		return false;
	t->migrated_at_ns = now;
	s32 cpu = claim_preemptible_cpu(p, t, later_than, now);
	t->claimed_cpu_plus1 = cpu + 1;
	return cpu >= 0;
}

/*
 * Whether the thread that runs here goes on elsewhere, as one waits for this CPU that may not run everywhere (limited: its deadline), and
 * another CPU runs what is later than that one by enough.
 */
static __always_inline bool should_displace(struct task_struct *prev, struct task_ctx *t, u64 restricted_deadline, u32 llc_id, u64 now)
{
	return claim_later_cpu(prev, t, restricted_deadline + MIGRATE_GAIN_MIN, llc_id, now);
}

/* A thread that had to make way is queued: elsewhere somebody may be later. */
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
