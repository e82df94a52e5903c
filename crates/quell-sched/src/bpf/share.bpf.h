/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Shares: keeps what ../policy/share.h computes with.
 *
 * Problem: a tenant's usage is one number, while its threads run on all CPUs and wait in several queues.
 * How:     a thread is charged, with all that it is in, for every SHARE_STEP of CPU time: so often, and no more, others' memory
 *          is written. A queue is ordered by what held when threads were queued; since their orders only go on,
 *          who is first there is looked at again before it is taken, and put back if others are before it by now.
 *          Where those stand that compete is told by who is first in a queue, for its domain, or its CPU; within a group it is
 *          where its members stand on average.
 * Limits:  who is too far ahead is only seen to be so when it wakes or ends a turn. A queue's first LOOKED_AT
 *          threads are looked at, those included that may not run where somebody looks.
 */
#ifndef QUELL_SHARE_BPF_H
#define QUELL_SHARE_BPF_H

#include "limit.bpf.h"

/* Whose order differs by less is left where it is. */
#define ORDER_NOTICED (1 << (SHARE_ORDER_SHIFT - 12))

/* Of a level: somebody waited once, who may not have waited since. */
#define UNCERTAIN (-1ULL)

/* Where those stand that compete; where nobody waited of late, nobody does: what is given. */
static __always_inline u64 level_of(struct level *level, u64 otherwise, u64 now)
{
	u64 at = level->at;

	u64 usage = level->usage;

	if (share_stale(at, now) || usage == UNCERTAIN)
		return otherwise;
	return left_of(usage, level->past, now);
}

/* One that had used so much waits for its turn. */
static __always_inline void note_level(struct level *level, u64 usage, u64 now)
{
	u64 at = level->at;

	if (now < at + SHARE_STEP || __sync_val_compare_and_swap(&level->at, at, now) != at)
		return;
	/* Who waits for a moment now and then is nobody to compete with. */
	if (share_stale(at, now))
		level->usage = UNCERTAIN;
	else if (level->usage == UNCERTAIN)
		level->usage = usage;
	else
		level->usage = share_near(left_of(level->usage, level->past, now), usage, now - at);
	level->past = past_at(now);
}

/* Those that compete for what the thread may use. */
static __always_inline struct level *rivals_of(struct thread *t)
{
	u32 domain = t->domain;

	return &shared_clock(t, &domains[bounded(domain < MAX_DOMAINS ? domain : 0, MAX_DOMAINS)])->level;
}

/* On how many CPUs. */
static __always_inline u64 rivals_cpus(struct thread *t)
{
	struct domain *d = t->only_cpu ? NULL : domain_at(t->domain);

	return d ? d->online : 1;
}

/*
 * Where those stand that it competes with: on a CPU's own threads' CPU, with those that may run there as well. One that may run on
 * several, where nobody waited of late who may too, with those of the CPU where they stand lowest.
 */
static __always_inline u64 level_for(struct thread *t, u64 otherwise, u64 now)
{
	struct domain *d = domain_at(t->domain);
	u64 level = level_of(rivals_of(t), -1, now);

	if (d && t->only_cpu) {
		u64 anywhere = level_of(&d->clock.level, -1, now);
		if (anywhere < level && !(options.cpus > 1 && share_passed(d->clock.level.at, now, SHARE_FRESH)))
			level = anywhere;
	} else if (d && level == -1ULL) {
		level = level_of(&d->lowest, -1, now);
	}
	return level == -1ULL ? otherwise : level;
}

/*
 * Where a group's other members stand that want CPUs, on average; 0: there are none. usage, counted: the member's, and what the group counts for
 * it. Global, so that the verifier looks at it once.
 */
__noinline u64 others_within(struct group *g, u64 usage, u64 counted, u64 now)
{
	if (!g)
		return 0;
	u64 active = g->active, cost = usage_of(&g->members, now), own = share_cost(usage, counted);

	return active > counted && cost > own ? share_mean(cost - own, active - counted) : 0;
}

/* The lowest level of late; about as low is the same one. */
static __always_inline void note_lowest(struct level *noted, u64 level, u64 now)
{
	u64 lowest = level_of(noted, -1ULL >> 1, now);

	if (level < lowest + (lowest >> 2)) {
		noted->usage = level;
		noted->at = now;
		noted->past = past_at(now);
	}
}

/* On the way from a thread up through all that it is in. */
struct walk {
	u64 id;	    /* the next group; 0: the root */
	u64 usage;  /* of what was there last */
	u64 weight; /* and its weight */
	s64 above;  /* see share_member() */
};

static __always_inline struct walk walk_from(struct thread *t, u64 now)
{
	struct walk walk = { .id = t->group, .usage = usage_of(&t->usage, now), .weight = own_weight(t) };

	return walk;
}

/* The next group; the one above comes after it. */
static __always_inline struct group *next_of(struct walk *walk)
{
	u64 id = walk ? walk->id : 0;
	struct group *g = bpf_map_lookup_elem(&groups, &id);

	if (walk)
		walk->id = g ? g->parent : 0;
	return g;
}

/* Goes through a group. level: at which the thread competes. Global, so that the verifier looks at it once. */
__noinline int locate_group(struct walk *walk, u64 level, u64 now)
{
	struct group *g = next_of(walk);

	if (!walk || !g)
		return 0;
	if (!g->parent)
		note_lowest(&g->lowest, level, now);
	u64 usage = usage_of(&g->usage, now), active = g->active;
	u64 mean = active ? share_mean(usage_of(&g->members, now), active) : walk->usage;
	s64 above = walk->above + (s64)(walk->usage - mean);
	walk->above = share_member(above, usage, active, g->weight);
	walk->usage = usage;
	walk->weight = g->weight;
	return 0;
}

/* Where a thread stands by what it and all that it is in have used. Global, as that is. */
__noinline int locate(struct thread *t, u64 now)
{
	if (!t)
		return 0;
	struct walk walk = walk_from(t, now);
	u64 level = level_of(rivals_of(t), -1, now);

	for (int depth = 0; depth < GROUP_DEPTH && walk.id; depth++)
		locate_group(&walk, level, now);
	t->ahead = share_cpu_time(walk.usage - level_for(t, walk.usage, now), walk.weight);
	t->order = share_order(walk.usage + walk.above, past_at(now));
	return 0;
}

/* Goes through a group to tell of it. wants: it wants more than it gets. Global, as locate_group() is. */
__noinline int tell_group(struct walk *walk, bool wants, u64 now)
{
	struct group *g = next_of(walk);

	if (!walk || !g)
		return 0;
	if (wants)
		g->wanted_at = now;
	walk->usage = usage_of(&g->usage, now);
	return 0;
}

/* A thread tells where those stand that it competes with, and its groups with others. */
__noinline int tell(struct thread *t, bool wants, u64 now)
{
	if (!t)
		return 0;
	struct walk walk = walk_from(t, now);

	for (int depth = 0; depth < GROUP_DEPTH && walk.id; depth++)
		tell_group(&walk, wants, now);
	note_level(rivals_of(t), walk.usage, now);
	struct domain *d = t->only_cpu ? domain_at(t->domain) : NULL;
	if (d)
		note_lowest(&d->lowest, level_of(rivals_of(t), -1, now), now);
	return 0;
}

/* Charges a group for what one of its threads used; returns its parent. Global, as locate_group() is. */
__noinline u64 bill_group(u64 id, u64 ns, u64 now)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);

	if (!g)
		return 0;
	add_usage(&g->usage, share_virtual(ns, g->weight), now);
	add_usage(&g->members, ns, now);
	return g->parent;
}

/* The demand changed. */
static __always_inline void demand_changed(u64 now)
{
	past.until = now + SHARE_FORGETS;
}

static __always_inline void forget(u64 now)
{
	u64 at = past.at;

	if (options.cpus > 1 && share_skips(at, past.until, now) && __sync_val_compare_and_swap(&past.at, at, now) == at)
		__sync_fetch_and_add(&past.skipped, SHARE_SKIPS);
}

/* Charges a thread, and what it is in, for what it used. Global, as locate() is. */
__noinline int bill(struct thread *t, u64 now)
{
	if (!t)
		return 0;
	u64 id = t->group, ns = t->unbilled;
	struct domain *d = domain_at(t->domain);
	struct cpu_slot *slot = cpu_at(bpf_get_smp_processor_id());

	t->unbilled = 0;
	if (t->demand == NEW && t->present >= SHARE_CHANGE) {
		t->demand = NOTED;
		demand_changed(now);
	}
	forget(now);
	/* Else who waits does; but where a CPU's own thread is served before all that wait, it is whom others must compete with. */
	if ((t->only_cpu && t->ahead < -(s64)SHARE_AHEAD) || (!(d && d->queued) && !(slot && slot->pinned)))
		tell(t, false, now);
	add_usage(&t->usage, share_virtual(ns, own_weight(t)), now);
	for (int depth = 0; depth < GROUP_DEPTH && id; depth++)
		id = bill_group(id, ns, now);
	return 0;
}

/* A thread ran. */
static __always_inline void share_ran(struct thread *t, u64 ran, u64 now)
{
	t->unbilled += ran;
	if (t->unbilled >= SHARE_STEP)
		bill(t, now);
}

/* How far ahead it may be and go first for its urgency. */
static __always_inline s64 ahead_of(struct thread *t, u64 now)
{
	return share_ahead(rivals_cpus(t), options.cpus, options.cpus > 1 && now < past.until);
}

/* Whether a thread is within its tenant's share no more; of its own credit and its process's the better one counts. */
static __always_inline bool share_depleted(struct thread *t, u64 now)
{
	s64 credit = t->common > t->credit ? t->common : t->credit;

	locate(t, now);
	return t->ahead > ahead_of(t, now) || fair_depleted(credit, false);
}

/* How far an order is behind those that compete. */
static __always_inline s64 lag_behind(struct level *level, u64 order)
{
	return share_lag(share_order(level->usage, level->past), order);
}

/* A thread of a group begins to want CPUs, and perhaps the group; returns its parent. */
__noinline u64 begin_group(u64 id, u64 near, u32 began, bool new, u64 now)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);

	if (!g)
		return 0;
	u64 above = g->parent;
	/* Of threads that wake at once one does it: each would add what is lacking. */
	if ((began || (new && share_passed(g->wanted_at, now, SHARE_WANTED))) &&
	    !__sync_lock_test_and_set(&g->beginning, 1)) {
		struct group *parent = above ? bpf_map_lookup_elem(&groups, &above) : NULL;
		u64 usage = usage_of(&g->usage, now), added = usage_of(&g->added, now);
		u64 lowest = level_of(&g->lowest, near, now);
		if (lowest < near)
			near = lowest;
		u64 rivals = parent ? others_within(parent, usage, g->counted, now) : near;
		u64 from = share_begin(usage, added, rivals, g->weight, new);
		if (from != usage) {
			add_usage(&g->usage, from - usage, now);
			add_usage(&g->added, from - usage, now);
			if (parent)
				move_member(parent, g->counted, usage, from, now);
		}
		__sync_lock_test_and_set(&g->beginning, 0);
	}
	return above;
}

/* A thread begins to want CPUs, and perhaps what it is in. */
__noinline int begin_share(struct thread *t, u64 now)
{
	if (!t)
		return 0;
	u64 id = t->group, usage = usage_of(&t->usage, now);
	u64 near = level_for(t, 0, now);
	struct group *g = id ? bpf_map_lookup_elem(&groups, &id) : NULL;

	u64 rivals = g ? others_within(g, usage, t->active, now) : near;
	t->usage.used = share_begin(usage, 0, rivals, own_weight(t), false);
	t->usage.at = past_at(now);
	if (g)
		move_member(g, t->active, usage, t->usage.used, now);
	bool new = share_passed(t->ran_at, now, SHARE_WANTED);
	t->demand = new ? NEW : KNOWN;
	for (int level = 0; level < GROUP_DEPTH && id; level++)
		id = begin_group(id, near, t->began & 1 << level, new, now);
	return 0;
}

/* A thread came to another group: what it owes stays with the old one, and it stands among the new one's members where they do. */
static __always_inline void change_parent(struct thread *t, u64 now)
{
	u64 id = t->group;
	struct group *g = id ? bpf_map_lookup_elem(&groups, &id) : NULL;

	t->usage.used = g ? others_within(g, 0, 0, now) : level_for(t, 0, now);
	t->usage.at = past_at(now);
}

/*
 * Whose turn it is of a queue's threads. What changes as they are gone through is here as well, where the verifier does not follow it: so it
 * goes through them once, not once for each number of them.
 */
struct next {
	u64 order;  /* 0: nobody's */
	u64 stands; /* its place by share, entitled or not */
	u64 passed; /* the first one's that may not run there; 0: there was none before */
	s32 cpu;    /* where it is to run */
	u32 bound;  /* it may not run on all CPUs */
	u32 looked_at;
	u32 unused;
};

static __always_inline bool may_run_on(struct task_struct *p, s32 cpu)
{
	return p->nr_cpus_allowed >= options.cpus || may_use(p, cpu);
}

/*
 * Whose turn it is on a CPU of a queue's threads, once depleted ones are where they belong by now. base:
 * what is added to their orders there. Where none of those that are looked at may run there, it is as if the first one might. Within
 * dispatch only. Global, as bill() is.
 */
__noinline int first_in_turn(u64 dsq, u64 base, struct next *next)
{
	struct bpf_iter_scx_dsq it;
	struct thread *foremost = NULL;
	struct task_struct *p;
	u64 now = time_ns();

	if (!next)
		return 0;
	if (bpf_iter_scx_dsq_new(&it, dsq, 0)) {
		bpf_iter_scx_dsq_destroy(&it);
		return 0;
	}
	while (next->looked_at++ < LOOKED_AT && (p = bpf_iter_scx_dsq_next(&it))) {
		u64 order = p->scx.dsq_vtime, due = order;
		if (!may_run_on(p, next->cpu)) {
			next->passed = next->passed ?: order;
			continue;
		}
		struct thread *t = thread_of(p);
		u64 stands = t ? t->order : 0;
		/* Where one stands that goes first for having waited says nothing of others. */
		if (order < base || fair_starved(order))
			t = NULL;
		if (t) {
			locate(t, now);
			due = base + t->order;
		}
		bool moves = due > order + ORDER_NOTICED;
		if (!moves)
			due = order;
		if (!next->order || due < next->order) {
			next->order = due;
			next->stands = stands;
			next->bound = p->nr_cpus_allowed < options.cpus;
			foremost = t;
		}
		if (!moves)
			break;
		/* It is not met again, even where it stays first. */
		move_ordered(&it, p, dsq, due);
	}
	bpf_iter_scx_dsq_destroy(&it);
	if (foremost && !next->passed)
		tell(foremost, now > foremost->ready_at + SHARE_BACK, now);
	next->order = next->order ?: next->passed;
	return 0;
}

/* How often entitled threads that wait are looked at: before what they told is stale. */
#define ENTITLED_EVERY (50 * NS_PER_MS)

/*
 * Of a queue of entitled threads the one that has used least tells where those stand that compete. They go by urgency: who is urgent
 * and always ready would be compared with itself only, and go first for ever. Global, as bill() is.
 */
__noinline int tell_least(u64 dsq, u64 now)
{
	struct bpf_iter_scx_dsq it;
	struct thread *least = NULL;
	struct task_struct *p;

	if (bpf_iter_scx_dsq_new(&it, dsq, 0)) {
		bpf_iter_scx_dsq_destroy(&it);
		return 0;
	}
	for (int i = 0; i < LOOKED_AT && (p = bpf_iter_scx_dsq_next(&it)); i++) {
		struct thread *t = thread_of(p);
		/* In a CPU's own queue depleted ones come after. */
		if (!t || t->depleted)
			continue;
		locate(t, now);
		if (!least || t->order < least->order)
			least = t;
	}
	bpf_iter_scx_dsq_destroy(&it);
	if (least)
		tell(least, false, now);
	return 0;
}

/* The same of those that a CPU may take. Global, as bill() is. */
__noinline int look_at_entitled(u32 cpu, u64 now)
{
	u32 index = domain_index(cpu);
	struct domain *d = domain_at(index);
	struct cpu_slot *slot = cpu_at(cpu);
	struct turn *turn = &turns[bounded(cpu, MAX_CPUS)];

	if (!d || !slot)
		return 0;
	u64 at = d->told_at;
	if (d->queued > d->depleted && now > at + ENTITLED_EVERY && __sync_val_compare_and_swap(&d->told_at, at, now) == at)
		tell_least(entitled_queue(index), now);
	if (!slot->pinned || now <= turn->told_at + ENTITLED_EVERY)
		return 0;
	turn->told_at = now;
	for (u32 own = 0; own < OWN_QUEUES; own++) {
		u64 queue = own_queue(cpu, own);
		if (queue)
			tell_least(queue, now);
	}
	return 0;
}

#endif
