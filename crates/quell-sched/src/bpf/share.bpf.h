/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Shares: keeps what ../policy/share.h computes with.
 *
 * Problem: The rate solver of the loader has to know what each task used and wanted, and each task what it is
 *          due, without a counter that all CPUs write.
 * How:     A task that wants CPU time has a share slot, which the loader maps into its memory. The task is
 *          charged there for every SHARE_CHARGE_MIN of CPU time. A new task takes the next free slot; the
 *          loader frees slots that are no longer used. A DSQ is ordered by the deadlines that its tasks had
 *          when they were queued. The rate solver may have moved the tasks' service times since; so the first
 *          task of a DSQ gets its present deadline before it is dispatched, and is put back if another task
 *          now precedes it.
 * Limits:  A task that finds none of the next SHARE_SLOT_TRIES slots free counts as neither ahead nor behind
 *          until its next slice. Only the first DSQ_SCAN_MAX tasks of a DSQ are looked at, and those that may
 *          not run on the CPU count as well.
 */
#ifndef QUELL_SHARE_BPF_H
#define QUELL_SHARE_BPF_H

#include "bandwidth.bpf.h"

/* A task whose deadline moved by less than this stays where it is. */
#define RESORT_DIFF_MIN (1 * NS_PER_MS)

/* How often a DSQ is put in order by its tasks' present deadlines, and the number of these tasks, at most. */
#define RESORT_PERIOD (25 * NS_PER_MS)
#define RESORT_MAX 256

#define SHARE_SLOT_TRIES 16

/* The share slot of a task; NULL: the task has none. */
static __always_inline struct share_slot *share_slot_of(struct task_ctx *t)
{
	u32 number = t->share_slot_plus1;

	return number ? &share_slots[bounded(number - 1, MAX_SHARE_SLOTS)] : NULL;
}

/*
 * The rate of a task. Until the rate solver knows the task: by the task's weight, and a whole CPU if it has
 * no slot.
 */
static __always_inline u32 task_rate(struct task_ctx *t, struct share_slot *slot)
{
	struct llc_ctx *llc = lookup_llc(t->llc);

	if (!slot)
		return SHARE_RATE_ONE;
	u32 rate = slot->rate;
	return rate || !llc ? rate : share_default_rate(t->weight, llc->nr_online, llc->weight_sum);
}

/* True if the rate solver has not yet found what the task is due. */
static __always_inline bool rate_is_unknown(struct task_ctx *t)
{
	struct share_slot *slot = share_slot_of(t);

	return slot && !slot->rate;
}

/* Computes the task's vtime from the time up to which it has been served. */
static __always_inline void update_vtime(struct task_ctx *t, u64 now)
{
	struct share_slot *slot = share_slot_of(t);
	u32 rate = task_rate(t, slot);

	t->vtime = share_vtime(slot ? slot->served_until_ns : now, rate);
}

/* Keeps the time up to which a task has been served within its bounds. */
static __always_inline void clamp_served(struct share_slot *slot, u64 now)
{
	u64 served_until = slot->served_until_ns;
	s64 by = share_served_clamp(served_until, now);

	if (by)
		__sync_fetch_and_add(&slot->served_until_ns, by);
}

/* Charges a task for the CPU time that share_account_exec() counted. */
__global_subprog int share_charge(struct task_ctx *t, u64 now)
{
	struct share_slot *slot = t ? share_slot_of(t) : NULL;

	if (!t)
		return 0;
	u64 ns = t->uncharged_ns;
	t->uncharged_ns = 0;
	if (!slot)
		return 0;
	slot->used_ns += ns;
	/* Atomic: the rate solver adds to it at the same time. */
	__sync_fetch_and_add(&slot->served_until_ns, share_service_time(ns, task_rate(t, slot)));
	clamp_served(slot, now);
	return 0;
}

/* Counts the task's CPU time from here on: what the task ran before is charged to no task. */
static __always_inline void share_sync_exec(struct task_ctx *t, struct task_struct *p)
{
	t->exec_accounted_ns = p->se.sum_exec_runtime;
}

/*
 * Counts what a task ran. By sum_exec_runtime, not from the call of ops.running(): so the task also pays for
 * the switch to it, which is much of a slice of 30 us, and a task that switches often would get more than its
 * share. Interrupts are not in sum_exec_runtime, and no task pays for them: of three tasks on two CPUs beside
 * a task that wakes 10,000 times a second, two would get 1.2 points less for the interrupts that hit them.
 * But a task that is due a whole CPU pays for the interrupts that hit it: else the CPU would owe it more and
 * more.
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

/* A server paid for what the task ran: the task counts as not having wanted that time. */
static __always_inline void share_account_server(struct task_ctx *t, struct task_struct *p, u64 ran)
{
	struct share_slot *slot = share_slot_of(t);

	share_sync_exec(t, p);
	if (slot)
		slot->wanted_ns -= ran;
}

/*
 * Gives the task a free share slot, if one of the next SHARE_SLOT_TRIES is free. The task begins neither
 * ahead nor behind, but with the debts of its parent.
 */
__global_subprog int share_slot_alloc(struct task_ctx *t, u32 tid, u64 now)
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
		/* Written last: from here on the rate solver looks at the slot. */
		__sync_lock_test_and_set(&slot->since_ns, now ?: 1);
		return 0;
	}
	share_slot_hints.next_free = next + SHARE_SLOT_TRIES;
	return 0;
}

/* Tells the rate solver what it has to know of the task. */
static __always_inline void share_slot_publish(struct task_ctx *t, struct task_struct *p)
{
	struct share_slot *slot = share_slot_of(t);

	if (!slot)
		return;
	slot->group_id = t->group_id;
	slot->weight = task_weight(t) >> WEIGHT_SHIFT;
	slot->pinned_cpu_plus1 = t->pinned_cpu_plus1;
	slot->nr_cpus_allowed = p->nr_cpus_allowed;
	/*
	 * Not atomic: the loader or another task may overwrite it, which holds until this task's next slice.
	 */
	if (t->share_slot_plus1 > share_slot_hints.used_end)
		share_slot_hints.used_end = t->share_slot_plus1;
}

/*
 * A task becomes runnable. A task that slept is served as time passes: it is not behind by the time for which
 * it slept.
 */
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
	/* The loader is freeing the slot. The task takes another slot with its next slice. */
	if (slot->tid != tid)
		t->share_slot_plus1 = 0;
}

/* A task is not runnable any more. */
static __always_inline void share_dequeue(struct task_ctx *t)
{
	struct share_slot *slot = share_slot_of(t);
	u64 now = time_ns();

	if (!slot || !slot->wants)
		return;
	if (now > slot->since_ns)
		slot->wanted_ns += now - slot->since_ns;
	slot->since_ns = now;
	/* Written last: the loader may free the slot once its task has slept for long. */
	__sync_lock_test_and_set(&slot->wants, 0);
}

/* A task has exited: the loader is to free its slot. */
static __always_inline void share_slot_release(struct task_ctx *t, u32 tid)
{
	struct share_slot *slot = share_slot_of(t);

	t->share_slot_plus1 = 0;
	if (slot && slot->tid == tid)
		__sync_lock_test_and_set(&slot->wants, SHARE_SLOT_ENDED);
}

/*
 * The task that is to run first of the tasks in a DSQ. The state of the scan is in here too, in memory that
 * the verifier does not track: it then verifies the loop once and not for each number of iterations.
 */
struct dsq_candidate {
	u64 deadline; /* 0: no task */
	u64 skipped_deadline; /* deadline of the first task that may not run on the CPU; 0: there was none */
	s32 cpu; /* CPU that the task is to run on */
	u32 restricted; /* bool: the task may not run on all CPUs */
	u32 nr_scanned;
	u32 resort; /* bool: put the DSQ's tasks in order by their present deadlines */
};

static __always_inline bool task_may_run_on(struct task_struct *p, s32 cpu)
{
	return p->nr_cpus_allowed >= options.nr_cpus || task_may_use(p, cpu);
}

/*
 * The present deadline of a queued task: a share deadline moves with the task's vtime, which the rate solver
 * may have moved.
 */
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
 * Finds the task of a DSQ that is to run first on a CPU; with shares after putting the tasks that it looks at
 * where their present deadlines belong. Call only from ops.dispatch().
 */
__global_subprog int pick_from_dsq(u64 dsq, struct dsq_candidate *cand)
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
		/* The iterator does not return the task again, even where the task stays first. */
		dsq_move_vtime(&it, p, dsq, due);
	}
	bpf_iter_scx_dsq_destroy(&it);
	return 0;
}

#endif
