/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Shares: keeps what ../policy/share.h computes with.
 *
 * Problem: the loader has to know what threads used and wanted, and threads what they are due, without anything between them that all
 *          CPUs write.
 * How:     a thread that wants CPUs has a place among sharers, which the loader maps into its memory. It is charged there for every SHARE_CHARGE_MIN
 *          of CPU time. Who comes takes the next that is free; the loader frees those that nobody needs any more.
 *          A queue is ordered by what held when threads were queued; since the loader may have moved them since,
 *          who is first there is looked at again before it is taken, and put back if others are before it by now.
 * Limits:  a thread that finds none of the next SHARE_SLOT_TRIES free counts as neither ahead nor behind until its next turn. A queue's first DSQ_SCAN_MAX
 *          threads are looked at, those included that may not run where somebody looks.
 */
#ifndef QUELL_SHARE_BPF_H
#define QUELL_SHARE_BPF_H

#include "bandwidth.bpf.h"

/* Whose order differs by less is left where it is. */
#define RESORT_DIFF_MIN (1 * NS_PER_MS)

/* A queue's threads are put in order as they are now so often, and so many of them. */
#define RESORT_PERIOD (25 * NS_PER_MS)
#define RESORT_MAX 256

#define SHARE_SLOT_TRIES 16

static __always_inline struct share_slot *share_slot_of(struct task_ctx *t)
{
	u32 number = t->share_slot_plus1;

	return number ? &share_slots[bounded(number - 1, MAX_SHARE_SLOTS)] : NULL;
}

/* A thread's rate; until the loader knows it what its weight says, and a whole CPU where it has no place. */
static __always_inline u32 task_rate(struct task_ctx *t, struct share_slot *slot)
{
	struct llc_ctx *llc = lookup_llc(t->llc);

	if (!slot)
		return SHARE_RATE_ONE;
	u32 rate = slot->rate;
	return rate || !llc ? rate : share_default_rate(t->weight, llc->nr_online, llc->weight_sum);
}

/* Whether the loader has not told yet what a thread is due. */
static __always_inline bool rate_is_unknown(struct task_ctx *t)
{
	struct share_slot *slot = share_slot_of(t);

	return slot && !slot->rate;
}

/* Where a thread stands by what it was served. */
static __always_inline void update_vtime(struct task_ctx *t, u64 now)
{
	struct share_slot *slot = share_slot_of(t);
	u32 rate = task_rate(t, slot);

	t->vtime = share_vtime(slot ? slot->served_until_ns : now, rate);
}

static __always_inline void clamp_served(struct share_slot *slot, u64 now)
{
	u64 served_until = slot->served_until_ns;
	s64 by = share_served_clamp(served_until, now);

	if (by)
		__sync_fetch_and_add(&slot->served_until_ns, by);
}

/* Charges a thread for what it used. Global, so that the verifier looks at it once. */
__noinline int share_charge(struct task_ctx *t, u64 now)
{
	struct share_slot *slot = t ? share_slot_of(t) : NULL;

	if (!t)
		return 0;
	u64 ns = t->uncharged_ns;
	t->uncharged_ns = 0;
	if (!slot)
		return 0;
	slot->used_ns += ns;
	/* The loader moves it as well. */
	__sync_fetch_and_add(&slot->served_until_ns, share_service_time(ns, task_rate(t, slot)));
	clamp_served(slot, now);
	return 0;
}

/* What a thread ran up to now is charged to nobody. */
static __always_inline void share_sync_exec(struct task_ctx *t, struct task_struct *p)
{
	t->exec_accounted_ns = p->se.sum_exec_runtime;
}

/*
 * A thread ran for so long, and by the kernel's account perhaps for longer: with what was done to get it its CPU, which is much of a turn of
 * 30 us. Who switches often would else have more than its share. Interrupts, which the kernel leaves out, are nobody's: of three threads on two CPUs
 * beside one that wakes 10,000 times a second, two would have had 1.2 points less for what interrupts took while they ran. But who is due a CPU
 * while it wants one pays for those that it had to bear: else it would be owed them, more and more.
 */
static __always_inline void share_account_exec(struct task_ctx *t, struct task_struct *p, u64 ran, u64 now)
{
	u64 exec = p->se.sum_exec_runtime, ran_exec = exec - t->exec_accounted_ns;
	bool bears_irq = ran > ran_exec && task_rate(t, share_slot_of(t)) >= SHARE_RATE_ONE;

	t->uncharged_ns += bears_irq ? ran : ran_exec;
	t->exec_accounted_ns = exec;
	if (t->uncharged_ns >= SHARE_CHARGE_MIN)
		share_charge(t, now);
}

/* A thread ran that a server pays for: as if it had not wanted that. */
static __always_inline void share_account_server(struct task_ctx *t, struct task_struct *p, u64 ran)
{
	struct share_slot *slot = share_slot_of(t);

	share_sync_exec(t, p);
	if (slot)
		slot->wanted_ns -= ran;
}

/* A thread takes a place, if one is free where it looks, and is neither ahead nor behind, but for its parent's debts. Global, as bill() is. */
__noinline int share_slot_alloc(struct task_ctx *t, u32 tid, u64 now)
{
	if (!t)
		return 0;
	t->share_slot_plus1 = 0;
	u32 next = share_slot_hints.next_free;
	for (u32 i = 0; i < SHARE_SLOT_TRIES; i++) {
		u32 number = bounded(next + i, MAX_SHARE_SLOTS);
		struct share_slot *slot = &share_slots[number];
		if (slot->tid || __sync_val_compare_and_swap(&slot->tid, 0, tid))
			continue;
		share_slot_hints.next_free = number + 1;
		t->share_slot_plus1 = number + 1;
		slot->wants = 0;
		slot->is_new = !t->has_slept;
		slot->served_until_ns = now - t->vlag;
		t->vlag = 0;
		/* Last: from here on the loader looks at it. */
		__sync_lock_test_and_set(&slot->since_ns, now ?: 1);
		return 0;
	}
	share_slot_hints.next_free = next + SHARE_SLOT_TRIES;
	return 0;
}

/* What the loader is to know of a thread that shares. */
static __always_inline void share_slot_publish(struct task_ctx *t, struct task_struct *p)
{
	struct share_slot *slot = share_slot_of(t);

	if (!slot)
		return;
	slot->group_id = t->group_id;
	slot->weight = task_weight(t) >> WEIGHT_SHIFT;
	slot->pinned_cpu_plus1 = t->pinned_cpu_plus1;
	slot->nr_cpus_allowed = p->nr_cpus_allowed;
	/* Who does this at the same moment, or the loader, may undo it: until the thread's next turn. */
	if (t->share_slot_plus1 > share_slot_hints.used_end)
		share_slot_hints.used_end = t->share_slot_plus1;
}

/* A thread wants CPUs. Where it begins to, the time that it wanted none is none that it is behind by. */
static __always_inline void share_enqueue(struct task_ctx *t, struct task_struct *p, u64 now)
{
	struct share_slot *slot = share_slot_of(t);
	u32 tid = p->pid;

	if (!slot || slot->tid != tid) {
		share_slot_alloc(t, tid, now);
		slot = share_slot_of(t);
		if (!slot)
			return;
	}
	share_slot_publish(t, p);
	if (slot->wants)
		return;
	__sync_fetch_and_add(&slot->served_until_ns, now - slot->since_ns);
	clamp_served(slot, now);
	slot->since_ns = now ?: 1;
	__sync_lock_test_and_set(&slot->wants, 1);
	/* The loader frees it: another one with the next turn. */
	if (slot->tid != tid)
		t->share_slot_plus1 = 0;
}

/* And wants none any more. */
static __always_inline void share_dequeue(struct task_ctx *t)
{
	struct share_slot *slot = share_slot_of(t);
	u64 now = time_ns();

	if (!slot || !slot->wants)
		return;
	if (now > slot->since_ns)
		slot->wanted_ns += now - slot->since_ns;
	slot->since_ns = now;
	/* Last: the loader takes who wants none, and has not for long, for one that is not needed. */
	__sync_lock_test_and_set(&slot->wants, 0);
}

/* And never will again: the loader is to forget it. */
static __always_inline void share_slot_release(struct task_ctx *t, u32 tid)
{
	struct share_slot *slot = share_slot_of(t);

	t->share_slot_plus1 = 0;
	if (slot && slot->tid == tid)
		__sync_lock_test_and_set(&slot->wants, SHARE_SLOT_ENDED);
}

/*
 * Who is to go first of a queue's threads. What changes as they are gone through is here as well, where the verifier does not follow it: so it
 * goes through them once, not once for each number of them.
 */
struct dsq_candidate {
	u64 deadline;  /* 0: nobody */
	u64 skipped_deadline; /* the first one's that may not run there; 0: there was none before */
	s32 cpu;    /* where it is to run */
	u32 restricted; /* it may not run on all CPUs */
	u32 nr_scanned;
	u32 resort; /* they are to be put in order as they are now */
};

static __always_inline bool task_may_run_on(struct task_struct *p, s32 cpu)
{
	return p->nr_cpus_allowed >= options.nr_cpus || task_may_use(p, cpu);
}

/* The deadline by now of a thread that waits, where that is its share's: the loader may have moved where it stands. */
static __always_inline u64 refresh_deadline(struct task_ctx *t, u64 now)
{
	u64 before = t->vtime;

	update_vtime(t, now);
	if (!t->deadline_is_share)
		return t->deadline;
	t->deadline += t->vtime - before;
	return t->deadline;
}

/*
 * Who is to go first on a CPU of a queue's threads; with shares, once they are where they belong by now. Where none of those that are looked at
 * may run there, next->passed says who is first. Within dispatch only. Global, as bill() is.
 */
__noinline int pick_from_dsq(u64 dsq, struct dsq_candidate *cand)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	u64 now = options.share ? time_ns() : 0;

	if (!cand)
		return 0;
	if (bpf_iter_scx_dsq_new(&it, dsq, 0)) {
		bpf_iter_scx_dsq_destroy(&it);
		return 0;
	}
	u32 max = cand->resort ? RESORT_MAX : DSQ_SCAN_MAX;
	while (cand->nr_scanned++ < max && (p = bpf_iter_scx_dsq_next(&it))) {
		u64 vtime = p->scx.dsq_vtime, due = vtime;
		bool allowed = task_may_run_on(p, cand->cpu);
		if (!allowed)
			cand->skipped_deadline = cand->skipped_deadline ?: vtime;
		if (!allowed && !cand->resort)
			continue;
		struct task_ctx *t = options.share ? lookup_task_ctx(p) : NULL;
		if (t)
			due = refresh_deadline(t, now);
		s64 diff = deadline_lead(vtime, due);
		bool moved = diff > (s64)RESORT_DIFF_MIN || (cand->resort && diff < -(s64)RESORT_DIFF_MIN);
		if (!moved)
			due = vtime;
		if (allowed && (!cand->deadline || deadline_before(due, cand->deadline))) {
			cand->deadline = due;
			cand->restricted = p->nr_cpus_allowed < options.nr_cpus;
		}
		if (!moved && !cand->resort)
			break;
		if (!moved)
			continue;
		/* It is not met again, even where it stays first. */
		dsq_move_vtime(&it, p, dsq, due);
	}
	bpf_iter_scx_dsq_destroy(&it);
	return 0;
}

#endif
