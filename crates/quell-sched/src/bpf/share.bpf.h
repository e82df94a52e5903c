/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Shares: keeps what ../policy/share.h computes with.
 *
 * Problem: a tenant's usage is one number, while its threads run on all CPUs and wait in several queues.
 * How:     a thread is charged, with all that it is in, for every SHARE_STEP of CPU time: so often, and no more, others' memory
 *          is written. A queue is ordered by what held when threads were queued; since their orders only go on,
 *          who is first there is looked at again before it is taken, and put back if others are before it by now.
 *          What rivals have used is told for each domain, and for each CPU that has threads of its own, by whoever is
 *          served there in its turn.
 * Limits:  who is further ahead than SHARE_AHEAD is only seen to be so when it wakes or ends a turn. A queue's first LOOKED_AT
 *          threads are looked at.
 */
#ifndef QUELL_SHARE_BPF_H
#define QUELL_SHARE_BPF_H

#include "groups.bpf.h"

#define LOOKED_AT 16

/* Whose order differs by less is left where it is. */
#define ORDER_NOTICED (1 << (SHARE_ORDER_SHIFT - 12))

static __always_inline u64 usage_of(struct usage *it, u64 now)
{
	u64 at = it->at;

	return share_decayed(it->used, now > at ? now - at : 0);
}

static __always_inline void add_usage(struct usage *it, u64 time, u64 now)
{
	u64 at = it->at;

	/* Who moves it on subtracts what decayed: what others add meanwhile is not lost. */
	if (now > at && __sync_val_compare_and_swap(&it->at, at, now) == at) {
		u64 used = it->used;
		time -= used - share_decayed(used, now - at);
	}
	__sync_fetch_and_add(&it->used, time);
}

/* What of a group's usage is due to each of its members. */
static __always_inline u64 due_of(struct group *g, u64 now)
{
	return share_due(usage_of(&g->usage, now), g->weight, g->active);
}

/* Those that compete for what the thread may use. */
static __always_inline struct clock *rivals_of(struct thread *t)
{
	u32 domain = t->domain, cpu = t->only_cpu;

	if (cpu && cpu <= MAX_CPUS)
		return &pinned_clocks[bounded(cpu - 1, MAX_CPUS)];
	return &domains[bounded(domain < MAX_DOMAINS ? domain : 0, MAX_DOMAINS)].clock;
}

/* What they have used; where nobody was served of late, nobody is there: what is given. */
static __always_inline u64 near_of(struct clock *rivals, u64 otherwise, u64 now)
{
	u64 at = rivals->near_at;

	if (share_stale(at, now))
		return otherwise;
	return share_decayed(rivals->near, now > at ? now - at : 0);
}

/* A tenant that had used so much was served in its turn. */
static __always_inline void note_near(struct clock *rivals, u64 usage, u64 ns, u64 now)
{
	rivals->near = share_near(near_of(rivals, usage, now), usage, ns);
	rivals->near_at = now;
}

/* Charges a group for what one of its threads used; returns its parent. Global, so that the verifier looks at it once. */
__noinline u64 bill_group(u64 id, struct thread *t, u64 ns, u32 in_turn, u64 now)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);

	if (!g || !t)
		return 0;
	if (!g->parent && in_turn)
		note_near(rivals_of(t), usage_of(&g->usage, now), ns, now);
	add_usage(&g->usage, share_virtual(ns, g->weight), now);
	return g->parent;
}

/* Charges a thread, and what it is in, for what it used. Global, as bill_group() is. */
__noinline int bill(struct thread *t, u64 now)
{
	if (!t)
		return 0;
	u64 id = t->group, ns = t->unbilled;
	struct domain *d = domain_at(t->domain);
	struct cpu_slot *slot = cpu_at(bpf_get_smp_processor_id());
	/* Who went before others for its urgency was not the one that is furthest behind. */
	bool in_turn = t->depleted || !((d && d->depleted) || (slot && slot->pinned));

	t->unbilled = 0;
	if (!id && in_turn)
		note_near(rivals_of(t), usage_of(&t->usage, now), ns, now);
	add_usage(&t->usage, share_virtual(ns, own_weight(t)), now);
	for (int level = 0; level < GROUP_DEPTH && id; level++)
		id = bill_group(id, t, ns, in_turn, now);
	return 0;
}

/* A thread ran. */
static __always_inline void share_ran(struct thread *t, u64 ran, u64 now)
{
	t->unbilled += ran;
	if (t->unbilled >= SHARE_STEP)
		bill(t, now);
}

/* Where a thread stands by what it and all that it is in have used. */
__noinline int locate(struct thread *t, u64 now)
{
	if (!t)
		return 0;
	u64 id = t->group, weight = own_weight(t);
	u64 usage = usage_of(&t->usage, now);
	s64 above = 0;

	for (int level = 0; level < GROUP_DEPTH && id; level++) {
		struct group *g = bpf_map_lookup_elem(&groups, &id);
		if (!g)
			break;
		u64 of_group = usage_of(&g->usage, now);
		weight = g->weight;
		above += usage - share_due(of_group, weight, g->active);
		above = share_member(above, of_group, g->active, weight);
		usage = of_group;
		id = g->parent;
	}
	t->ahead = share_cpu_time(usage - near_of(rivals_of(t), usage, now), weight);
	t->order = share_order(usage + above, now);
	return 0;
}

/* Whether a thread is within its tenant's share no more; of its own credit and its process's the better one counts. */
static __always_inline bool share_depleted(struct thread *t, bool was, u64 now)
{
	locate(t, now);
	return t->ahead > (s64)SHARE_AHEAD ||
	       fair_depleted(t->common > t->credit ? t->common : t->credit, was);
}

/* How far an order is behind those that a domain's threads have. */
static __always_inline s64 lag_in(struct domain *d, u64 order)
{
	return share_lag(share_order(d->clock.near, d->clock.near_at), order);
}

/* A group begins to want CPUs, if told so; returns its parent. */
__noinline u64 begin_group(u64 id, u64 near, u32 begins, u64 now)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);

	if (!g)
		return 0;
	u64 above = g->parent;
	struct group *parent = begins && above ? bpf_map_lookup_elem(&groups, &above) : NULL;
	if (begins) {
		u64 usage = usage_of(&g->usage, now);
		u64 from = share_begin(usage, parent ? due_of(parent, now) : near, g->weight);
		if (from != usage)
			add_usage(&g->usage, from - usage, now);
	}
	return above;
}

/* A thread begins to want CPUs, and perhaps what it is in. */
__noinline int begin_share(struct thread *t, u64 now)
{
	if (!t)
		return 0;
	u64 id = t->group, usage = usage_of(&t->usage, now);
	u64 near = near_of(rivals_of(t), 0, now);
	struct group *g = id ? bpf_map_lookup_elem(&groups, &id) : NULL;

	t->usage.used = share_begin(usage, g ? due_of(g, now) : near, own_weight(t));
	t->usage.at = now;
	for (int level = 0; level < GROUP_DEPTH && id && t->began >> level; level++)
		id = begin_group(id, near, t->began & 1 << level, now);
	return 0;
}

/* A thread came to another group: what it owes stays with the old one, and it stands among the new one's members where they do. */
static __always_inline void change_parent(struct thread *t, u64 now)
{
	u64 id = t->group;
	struct group *g = id ? bpf_map_lookup_elem(&groups, &id) : NULL;

	t->usage.used = g ? due_of(g, now) : near_of(rivals_of(t), 0, now);
	t->usage.at = now;
}

/*
 * The order of a queue's first thread, 0 where it is empty, once depleted threads are where they belong by now. base:
 * what is added to their orders there. Within dispatch only. Global, as bill() is.
 */
__noinline u64 first_in_turn(u64 dsq, u64 base)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	u64 first = 0, now = time_ns();

	if (bpf_iter_scx_dsq_new(&it, dsq, 0)) {
		bpf_iter_scx_dsq_destroy(&it);
		return 0;
	}
	for (int i = 0; i < LOOKED_AT; i++) {
		p = bpf_iter_scx_dsq_next(&it);
		if (!p)
			break;
		u64 order = p->scx.dsq_vtime;
		struct thread *t = thread_of(p);
		if (t && order >= base) {
			locate(t, now);
			u64 due = base + t->order;
			if (due > order + ORDER_NOTICED) {
				if (!first || due < first)
					first = due;
				move_ordered(&it, p, dsq, due);
				continue;
			}
		}
		if (!first || order < first)
			first = order;
		break;
	}
	bpf_iter_scx_dsq_destroy(&it);
	return first;
}

#endif
