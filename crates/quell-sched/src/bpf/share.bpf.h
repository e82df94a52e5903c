/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Shares: keeps what ../policy/share.h computes with.
 *
 * Problem: a tenant's virtual time is one number, while its threads run on all CPUs and wait in several queues.
 * How:     a thread is charged, with all that it is in, for every SHARE_STEP of CPU time: so often, and no more, others' memory
 *          is written. A queue is ordered by what held when threads were queued; since virtual times only go on,
 *          who is first there is looked at again before it is taken, and put back if others are before it by now.
 *          Tenants' virtual times are the host's; where they stand is told for each domain, and for each CPU that has
 *          threads of its own.
 * Limits:  who is further ahead than SHARE_AHEAD is only seen to be so when it wakes or ends a turn. A queue's first LOOKED_AT
 *          threads are looked at.
 */
#ifndef QUELL_SHARE_BPF_H
#define QUELL_SHARE_BPF_H

#include "groups.bpf.h"

#define LOOKED_AT 16

/* Moves a level on: it follows who is served in its turn. */
static __always_inline void advance(struct level *level, u64 served, bool in_turn, u64 now)
{
	u64 at = level->at;

	if (now <= at + SHARE_STEP || __sync_val_compare_and_swap(&level->at, at, now) != at)
		return;
	u64 ns = now - at, rate = level->rate;
	u64 time = level->time + fair_advance(ns, rate);
	if (in_turn) {
		level->rate = share_rate(rate, served - time, ns);
		time = share_level(time, served, ns, SHARE_LEVEL);
	}
	level->time = time;
}

/* Charges one of those that a level is of. near: who competes where it was served; NULL: not told. */
static __always_inline void serve(struct served *it, struct level *level, struct clock *near, u64 weight, u64 ns,
				  bool in_turn, u64 now)
{
	u64 before = it->time, time = share_virtual(ns, weight);

	advance(level, before, in_turn, now);
	if (in_turn) {
		if (near) {
			near->near = share_stale(near->near_at, now) ?
					     before :
					     share_level(near->near, before, ns, SHARE_NEAR);
			near->near_at = now;
		}
		time = share_compressed(time, before - level->time, level->rate);
	}
	__sync_fetch_and_add(&it->time, time);
}

/* Those that compete for what the thread may use. */
static __always_inline struct clock *rivals_of(struct thread *t)
{
	u32 domain = t->domain, cpu = t->only_cpu;

	if (cpu && cpu <= MAX_CPUS)
		return &pinned_clocks[bounded(cpu - 1, MAX_CPUS)];
	return &domains[bounded(domain < MAX_DOMAINS ? domain : 0, MAX_DOMAINS)].clock;
}

/* Where they stand; where nobody was served of late, where all tenants do. */
static __always_inline u64 level_near(struct thread *t, u64 now)
{
	struct clock *rivals = rivals_of(t);

	return share_stale(rivals->near_at, now) ? root_level.time : rivals->near;
}

/* Charges a group for what one of its threads used; returns its parent. Global, so that the verifier looks at it once. */
__noinline u64 bill_group(u64 id, struct thread *t, u64 ns, bool in_turn, u64 now)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);

	if (!g || !t)
		return 0;
	u64 above = g->parent;
	struct group *parent = above ? bpf_map_lookup_elem(&groups, &above) : NULL;
	struct level *level = &root_level;
	if (parent) {
		barrier_var(parent); /* as in state.bpf.h */
		level = &parent->level;
	}
	serve(&g->served, level, parent ? NULL : rivals_of(t), g->weight, ns, in_turn, now);
	return above;
}

/* Charges a thread, and what it is in, for what it used. Global, as bill_group() is. */
__noinline int bill(struct thread *t, u64 now)
{
	if (!t)
		return 0;
	u64 id = t->group, ns = t->unbilled;
	struct group *g = id ? bpf_map_lookup_elem(&groups, &id) : NULL;
	struct domain *d = domain_at(t->domain);
	struct cpu_slot *slot = cpu_at(bpf_get_smp_processor_id());
	/* Who went before others for its urgency was not the one that is furthest behind. */
	bool in_turn = t->depleted || !((d && d->depleted) || (slot && slot->pinned));

	t->unbilled = 0;
	serve(&t->served, g ? &g->level : &root_level, g ? NULL : rivals_of(t), own_weight(t), ns, in_turn, now);
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

/* Up to where a thread is served, with all that it is in. */
__noinline int locate(struct thread *t)
{
	if (!t)
		return 0;
	u64 id = t->group, weight = own_weight(t);
	struct group *g = id ? bpf_map_lookup_elem(&groups, &id) : NULL;
	u64 served = t->served.time;
	s64 above = 0;

	for (int level = 0; level < GROUP_DEPTH && g; level++) {
		above = share_member(above + (s64)(served - g->level.time), g->level.rate, g->active, g->weight);
		served = g->served.time;
		weight = g->weight;
		id = g->parent;
		g = id ? bpf_map_lookup_elem(&groups, &id) : NULL;
	}
	t->ahead = share_cpu_time(served - level_near(t, time_ns()), weight);
	t->position = served + above;
	return 0;
}

/* Whether a thread is within its tenant's share no more; of its own credit and its process's the better one counts. */
static __always_inline bool share_depleted(struct thread *t, bool was)
{
	locate(t);
	return t->ahead > (s64)SHARE_AHEAD ||
	       fair_depleted(t->common > t->credit ? t->common : t->credit, was);
}

/* How far a thread is behind those of its domain, as last located. */
static __always_inline s64 share_lag(struct thread *t)
{
	struct domain *d = domain_at(t->domain);

	return d ? d->clock.near - t->position : 0;
}

/* A thread begins to want CPUs, and perhaps what it is in. */
__noinline int begin_share(struct thread *t, u64 now)
{
	if (!t)
		return 0;
	u64 id = t->group, near = level_near(t, now);
	struct group *g = id ? bpf_map_lookup_elem(&groups, &id) : NULL;

	t->served.time = share_begin(t->served.time, g ? g->level.time : near, own_weight(t));
	for (int level = 0; level < GROUP_DEPTH && g; level++) {
		id = g->parent;
		struct group *parent = id ? bpf_map_lookup_elem(&groups, &id) : NULL;
		if (t->began & 1 << level || now - g->waited_at > SHARE_WAITED)
			g->served.time =
				share_begin(g->served.time, parent ? parent->level.time : near, g->weight);
		g = parent;
	}
	return 0;
}

/* A thread came to another group: what it owes stays with the old one, and it stands among the new one's members where they do. */
static __always_inline void change_parent(struct thread *t, u64 now)
{
	u64 id = t->group;
	struct group *g = id ? bpf_map_lookup_elem(&groups, &id) : NULL;

	t->served.time = g ? g->level.time : level_near(t, now);
}

/* A thread got a CPU after it had waited: what it is in wants more than it gets. */
__noinline int note_waited(struct thread *t, u64 now)
{
	if (!t)
		return 0;
	u64 id = t->group;
	struct group *g = id ? bpf_map_lookup_elem(&groups, &id) : NULL;

	for (int level = 0; level < GROUP_DEPTH && g; level++) {
		if (now - g->waited_at > SHARE_STEP)
			g->waited_at = now;
		id = g->parent;
		g = id ? bpf_map_lookup_elem(&groups, &id) : NULL;
	}
	return 0;
}

/*
 * The order of a queue's first thread, 0 where it is empty, once depleted threads are where they belong by now. base:
 * what is added to their positions there. Within dispatch only. Global, as bill() is.
 */
__noinline u64 first_in_turn(u64 dsq, u64 base)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	u64 first = 0;

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
			locate(t);
			u64 due = base + t->position;
			if (due > order + SHARE_STEP / 8) {
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
