/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Shares: keeps what ../policy/share.h computes with.
 *
 * Problem: the loader has to know what threads used and wanted, and threads what they are due, without anything between them that all
 *          CPUs write.
 * How:     a thread that wants CPUs has a place among sharers, which the loader maps into its memory. It is charged there for every SHARE_STEP
 *          of CPU time. Who comes takes the next that is free; the loader frees those that nobody needs any more.
 *          A queue is ordered by what held when threads were queued; since the loader may have moved them since,
 *          who is first there is looked at again before it is taken, and put back if others are before it by now.
 * Limits:  a thread that finds none of the next PLACES_TRIED free counts as neither ahead nor behind until its next turn. A queue's first LOOKED_AT
 *          threads are looked at, those included that may not run where somebody looks.
 */
#ifndef QUELL_SHARE_BPF_H
#define QUELL_SHARE_BPF_H

#include "bandwidth.bpf.h"

/* Whose order differs by less is left where it is. */
#define ORDER_NOTICED (1 * NS_PER_MS)

/* A queue's threads are put in order as they are now so often, and so many of them. */
#define SORTED_EVERY (25 * NS_PER_MS)
#define SORTED_MOST 256

#define PLACES_TRIED 16

static __always_inline struct sharer *sharer_of(struct thread *t)
{
	u32 number = t->sharer;

	return number ? &sharers[bounded(number - 1, MAX_SHARERS)] : NULL;
}

/* A thread's rate; until the loader knows it what its weight says, and a whole CPU where it has no place. */
static __always_inline u32 rate_of(struct thread *t, struct sharer *s)
{
	struct domain *d = domain_at(t->domain);

	if (!s)
		return SHARE_RATE_ONE;
	u32 rate = s->rate;
	return rate || !d ? rate : share_rate(t->weight, d->online, d->load);
}

/* Whether the loader has not told yet what a thread is due. */
static __always_inline bool is_unknown(struct thread *t)
{
	struct sharer *s = sharer_of(t);

	return s && !s->rate;
}

/* Where a thread stands by what it was served. */
static __always_inline void locate(struct thread *t, u64 now)
{
	struct sharer *s = sharer_of(t);
	u32 rate = rate_of(t, s);

	t->virtual = share_virtual(s ? s->served : now, rate);
}

static __always_inline void keep_bounds(struct sharer *s, u64 now)
{
	u64 served = s->served;
	s64 by = share_bounding(served, now);

	if (by)
		__sync_fetch_and_add(&s->served, by);
}

/* Charges a thread for what it used. Global, so that the verifier looks at it once. */
__noinline int bill(struct thread *t, u64 now)
{
	struct sharer *s = t ? sharer_of(t) : NULL;

	if (!t)
		return 0;
	u64 ns = t->unbilled;
	t->unbilled = 0;
	if (!s)
		return 0;
	s->used += ns;
	/* The loader moves it as well. */
	__sync_fetch_and_add(&s->served, share_time(ns, rate_of(t, s)));
	keep_bounds(s, now);
	return 0;
}

/* What a thread ran up to now is charged to nobody. */
static __always_inline void share_runs(struct thread *t, struct task_struct *p)
{
	t->counted = p->se.sum_exec_runtime;
}

/*
 * A thread ran for so long, and by the kernel's account perhaps for longer: with what was done to get it its CPU, which is much of a turn of
 * 30 us. Who switches often would else have more than its share. Interrupts, which the kernel leaves out, are nobody's: of three threads on two CPUs
 * beside one that wakes 10,000 times a second, two would have had 1.2 points less for what interrupts took while they ran. But who is due a CPU
 * while it wants one pays for those that it had to bear: else it would be owed them, more and more.
 */
static __always_inline void share_ran(struct thread *t, struct task_struct *p, u64 ran, u64 now)
{
	u64 all = p->se.sum_exec_runtime, had = all - t->counted;
	bool bears = ran > had && rate_of(t, sharer_of(t)) >= SHARE_RATE_ONE;

	t->unbilled += bears ? ran : had;
	t->counted = all;
	if (t->unbilled >= SHARE_STEP)
		bill(t, now);
}

/* A thread ran that a server pays for: as if it had not wanted that. */
static __always_inline void share_paid(struct thread *t, struct task_struct *p, u64 ran)
{
	struct sharer *s = sharer_of(t);

	share_runs(t, p);
	if (s)
		s->wanted -= ran;
}

/* A thread takes a place, if one is free where it looks, and is neither ahead nor behind, but for its parent's debts. Global, as bill() is. */
__noinline int take_place(struct thread *t, u32 tid, u64 now)
{
	if (!t)
		return 0;
	t->sharer = 0;
	u32 next = places.next;
	for (u32 i = 0; i < PLACES_TRIED; i++) {
		u32 number = bounded(next + i, MAX_SHARERS);
		struct sharer *s = &sharers[number];
		if (s->tid || __sync_val_compare_and_swap(&s->tid, 0, tid))
			continue;
		places.next = number + 1;
		t->sharer = number + 1;
		s->wants = 0;
		s->born = !t->known;
		s->served = now - t->lag;
		t->lag = 0;
		/* Last: from here on the loader looks at it. */
		__sync_lock_test_and_set(&s->since, now ?: 1);
		return 0;
	}
	places.next = next + PLACES_TRIED;
	return 0;
}

/* What the loader is to know of a thread that shares. */
static __always_inline void describe(struct thread *t, struct task_struct *p)
{
	struct sharer *s = sharer_of(t);

	if (!s)
		return;
	s->group = t->group;
	s->weight = own_weight(t) >> WEIGHT_SHIFT;
	s->cpu = t->only_cpu;
	s->allowed = p->nr_cpus_allowed;
	/* Who does this at the same moment, or the loader, may undo it: until the thread's next turn. */
	if (t->sharer > places.end)
		places.end = t->sharer;
}

/* A thread wants CPUs. Where it begins to, the time that it wanted none is none that it is behind by. */
static __always_inline void begin_share(struct thread *t, struct task_struct *p, u64 now)
{
	struct sharer *s = sharer_of(t);
	u32 tid = p->pid;

	if (!s || s->tid != tid) {
		take_place(t, tid, now);
		s = sharer_of(t);
		if (!s)
			return;
	}
	describe(t, p);
	if (s->wants)
		return;
	__sync_fetch_and_add(&s->served, now - s->since);
	keep_bounds(s, now);
	s->since = now ?: 1;
	__sync_lock_test_and_set(&s->wants, 1);
	/* The loader frees it: another one with the next turn. */
	if (s->tid != tid)
		t->sharer = 0;
}

/* And wants none any more. */
static __always_inline void end_share(struct thread *t)
{
	struct sharer *s = sharer_of(t);
	u64 now = time_ns();

	if (!s || !s->wants)
		return;
	if (now > s->since)
		s->wanted += now - s->since;
	s->since = now;
	/* Last: the loader takes who wants none, and has not for long, for one that is not needed. */
	__sync_lock_test_and_set(&s->wants, 0);
}

/* And never will again: the loader is to forget it. */
static __always_inline void leave_place(struct thread *t, u32 tid)
{
	struct sharer *s = sharer_of(t);

	t->sharer = 0;
	if (s && s->tid == tid)
		__sync_lock_test_and_set(&s->wants, SHARER_ENDED);
}

/*
 * Who is to go first of a queue's threads. What changes as they are gone through is here as well, where the verifier does not follow it: so it
 * goes through them once, not once for each number of them.
 */
struct next {
	u64 order;  /* 0: nobody */
	u64 passed; /* the first one's that may not run there; 0: there was none before */
	s32 cpu;    /* where it is to run */
	u32 limited; /* it may not run on all CPUs */
	u32 looked_at;
	u32 all; /* they are to be put in order as they are now */
};

static __always_inline bool may_run_on(struct task_struct *p, s32 cpu)
{
	return p->nr_cpus_allowed >= options.cpus || may_use(p, cpu);
}

/* The deadline by now of a thread that waits, where that is its share's: the loader may have moved where it stands. */
static __always_inline u64 deadline_now(struct thread *t, u64 now)
{
	u64 before = t->virtual;

	locate(t, now);
	if (!t->by_share)
		return t->deadline;
	t->deadline += t->virtual - before;
	return t->deadline;
}

/*
 * Who is to go first on a CPU of a queue's threads; with shares, once they are where they belong by now. Where none of those that are looked at
 * may run there, next->passed says who is first. Within dispatch only. Global, as bill() is.
 */
__noinline int first_in_turn(u64 dsq, struct next *next)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	u64 now = options.share ? time_ns() : 0;

	if (!next)
		return 0;
	if (bpf_iter_scx_dsq_new(&it, dsq, 0)) {
		bpf_iter_scx_dsq_destroy(&it);
		return 0;
	}
	u32 most = next->all ? SORTED_MOST : LOOKED_AT;
	while (next->looked_at++ < most && (p = bpf_iter_scx_dsq_next(&it))) {
		u64 order = p->scx.dsq_vtime, due = order;
		bool may = may_run_on(p, next->cpu);
		if (!may)
			next->passed = next->passed ?: order;
		if (!may && !next->all)
			continue;
		struct thread *t = options.share ? thread_of(p) : NULL;
		if (t)
			due = deadline_now(t, now);
		s64 later = order_before(order, due);
		bool moves = later > (s64)ORDER_NOTICED || (next->all && later < -(s64)ORDER_NOTICED);
		if (!moves)
			due = order;
		if (may && (!next->order || order_earlier(due, next->order))) {
			next->order = due;
			next->limited = p->nr_cpus_allowed < options.cpus;
		}
		if (!moves && !next->all)
			break;
		if (!moves)
			continue;
		/* It is not met again, even where it stays first. */
		move_ordered(&it, p, dsq, due);
	}
	bpf_iter_scx_dsq_destroy(&it);
	return 0;
}

#endif
