/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Fair shares: keeps what ../policy/fair.h computes with.
 *
 * Problem: credit needs each domain's virtual clock, and weights depend on how many threads of a cgroup are ready.
 * How:     clocks are moved on by whoever needs them, at most once every CLOCK_STEP. A domain's load and a group's active
 *          weight are sums that a thread enters when it wakes and leaves when it sleeps.
 *          A group's weight is the product of the cpu.weight of it and its ancestors below the
 *          root, each in hundredths; its ready threads share it by their own weights.
 * Limits:  nested groups compete with all other groups and not with their siblings only, so the split between
 *          cousins follows the products of weights, not each level's competition. A thread's weight is what
 *          it was when it last woke or ended a turn.
 */
#ifndef QUELL_FAIR_BPF_H
#define QUELL_FAIR_BPF_H

#include "state.bpf.h"

#define CLOCK_STEP (500 * NS_PER_US)
#define GROUP_DEPTH 16

struct group {
	u64 parent; /* its id; 0: the root */
	u32 weight; /* as set */
	u32 effective;
	u64 generation; /* of effective */
	u64 active;	/* sum of its ready threads' own weights */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u64);
	__type(value, struct group);
} groups SEC(".maps");

/* Counts changes of any group's weight. */
u64 generation = 1;

static __always_inline u64 clock_of(struct domain *d, u64 now)
{
	u64 at = d->clock_at;

	if (now > at + CLOCK_STEP && __sync_val_compare_and_swap(&d->clock_at, at, now) == at) {
		d->clock += fair_advance(now - at, d->rate);
		d->rate = fair_rate(d->online, d->load);
	}
	return d->clock;
}

static u32 group_weight(struct group *group)
{
	u64 weight = WEIGHT_ONE, at = generation;
	struct group *g = group;

	if (group->generation == at)
		return group->effective;
	for (int level = 0; level < GROUP_DEPTH && g; level++) {
		weight = weight * g->weight / WEIGHT_ONE;
		if (!weight)
			weight = WEIGHT_LEAST;
		if (weight > WEIGHT_MOST)
			weight = WEIGHT_MOST;
		u64 parent = g->parent;
		g = parent ? bpf_map_lookup_elem(&groups, &parent) : NULL;
	}
	group->effective = weight;
	group->generation = at;
	return weight;
}

static __always_inline void leave_group(struct thread *t)
{
	u64 id = t->group;

	if (!t->active)
		return;
	struct group *g = bpf_map_lookup_elem(&groups, &id);
	if (g)
		__sync_fetch_and_add(&g->active, -(u64)t->active);
	t->active = 0;
}

/* The thread's weight now; it is ready, and its group counts it. */
static __always_inline void weigh(struct thread *t)
{
	u64 own = t->set_weight ? t->set_weight : t->own_weight, id = t->group;

	t->weight = own ? own : WEIGHT_ONE;
	if (!id)
		return;
	struct group *g = bpf_map_lookup_elem(&groups, &id);
	if (!g)
		return;
	if (t->active != own) {
		__sync_fetch_and_add(&g->active, own - t->active);
		t->active = own;
	}
	t->weight = fair_weight(group_weight(g), own, g->active);
}

static __always_inline void leave_load(struct thread *t)
{
	struct domain *d = domain_at(t->domain);

	if (t->load && d)
		__sync_fetch_and_add(&d->load, -(u64)t->load);
	t->load = 0;
}

static __always_inline void enter_load(struct thread *t, struct domain *d, u32 index)
{
	t->load = t->weight;
	t->domain = index;
	__sync_fetch_and_add(&d->load, (u64)t->load);
}

/* What a thread's credit and that of its process change by. */
static __always_inline void change_credit(struct thread *t, struct task_struct *p, s64 by)
{
	struct task_struct *leader = p->group_leader;
	struct thread *first = leader ? thread_of(leader) : NULL;

	t->credit = fair_bounded(t->credit + by);
	if (!first)
		return;
	/* Two that add at the same time may pass the bound by what one of them adds. */
	s64 pool = __sync_fetch_and_add(&first->pool, by) + by;
	s64 bounded_pool = fair_bounded_pool(pool, p->signal->nr_threads);
	if (bounded_pool != pool)
		first->pool = bounded_pool;
	t->common = bounded_pool;
}

/* Brings the credit of a thread that does not run up to date. */
static __always_inline void earn(struct thread *t, struct task_struct *p, u64 now)
{
	struct domain *d = domain_at(t->domain);

	if (!d)
		return;
	u64 clock = clock_of(d, now);
	s64 earned = 0;
	if (clock > t->seen && now > t->seen_at)
		earned = fair_earned(clock - t->seen, now - t->seen_at, t->weight);
	t->seen = clock;
	t->seen_at = now;
	change_credit(t, p, earned);
}

/* The same for one that runs. */
static __always_inline void spend(struct thread *t, struct task_struct *p, u64 now)
{
	struct domain *d = domain_at(t->domain);

	if (!d)
		return;
	if (now > t->seen_at) {
		u64 ran = now - t->seen_at;
		t->present += ran;
		change_credit(t, p, -fair_spent(ran));
	}
	t->seen = clock_of(d, now);
	t->seen_at = now;
}

/* A thread that came to a CPU of another domain: its lag and its load come along. */
static __always_inline void change_domain(struct thread *t, struct task_struct *p, u32 index,
					  u64 now)
{
	struct domain *to = domain_at(index);

	if (!to || t->domain == index)
		return;
	earn(t, p, now);
	if (t->load) {
		leave_load(t);
		enter_load(t, to, index);
	}
	t->domain = index;
	t->seen = clock_of(to, now);
}

/* Whether the thread became depleted. */
static __always_inline bool judge(struct thread *t, struct task_struct *p, u64 now)
{
	bool was = t->depleted;

	t->depleted = p->policy == SCHED_IDLE ||
		      fair_depleted(t->credit, t->common, t->present, was);
	if (t->depleted != was) {
		/* What it does from here on is not what was waited for. */
		t->chain = 0;
		t->since = now;
	}
	return t->depleted && !was;
}

/* Up to which virtual time it was served; own and common credit count alike. */
static __always_inline u64 position_of(struct thread *t, struct domain *d)
{
	return fair_position(d->clock, (t->credit + t->common) >> 1, t->weight ?: WEIGHT_ONE);
}

#endif
