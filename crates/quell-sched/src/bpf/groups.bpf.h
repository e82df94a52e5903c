/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Groups: what is in them that is ready.
 *
 * Problem: a cgroup's weight counts while it has something ready, in it or below it; and so does that of a tenant without
 *          a cgroup.
 * How:     such a tenant is a group below the root as well, by a number that the agent gave it. A group's active weight is a sum that a thread or a group enters when it becomes ready and leaves when it is
 *          not any more; only the first and the last of a group tell its parent.
 * Limits:  groups count up to GROUP_DEPTH levels deep.
 */
#ifndef QUELL_GROUPS_BPF_H
#define QUELL_GROUPS_BPF_H

#include "state.bpf.h"

#define GROUP_DEPTH 16

/* CPU time that its threads get at most, see limit.bpf.h. */
struct limit {
	u64 quota; /* 0: it has no limit */
	u64 period;
	u64 burst;
	u64 began; /* the period */
	s64 left;  /* what its pool holds */
	u64 above; /* the next group that has one; 0: none */
	u32 seen;  /* as of so many changes */
	s32 running; /* about how many draw from it */
};

struct group {
	u64 parent; /* its id; 0: the root */
	u32 weight;  /* as set */
	u32 counted; /* what its parent's active counts for it */
	u64 active;  /* sum of its members' own weights, as far as they have something ready */
	u64 share;   /* weight that its members share */
	u64 at;	     /* as of then */
	struct usage usage;
	struct usage added; /* what of it was added when it began to want CPUs */
	struct usage members; /* CPU time that the usage is of those that active counts; as far as shares are on */
	struct level lowest; /* of those where it competes, if it is a tenant */
	u64 wanted_at; /* when one of its threads waited for its turn last */
	struct limit limit;
	u32 beginning; /* a CPU adds to its usage as it begins to want CPUs */
	u32 unused;
};

_Static_assert(sizeof(struct group) == 184, "loader's layout");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u64);
	__type(value, struct group);
} groups SEC(".maps");

/* The group of a tenant that is no cgroup; no cgroup has such an id. */
#define TENANT_GROUP (1ULL << 63)

/* Global, so that the verifier looks at it once. */
__noinline u64 usage_of(struct usage *it, u64 now)
{
	if (!it)
		return 0;
	u64 at = it->at;

	return left_of(it->used, at, now);
}

static __always_inline void add_usage(struct usage *it, u64 time, u64 now)
{
	u64 at = it->at;

	now = past_at(now);
	/* Who moves it on subtracts what decayed: what others add meanwhile is not lost. */
	if (now > at && __sync_val_compare_and_swap(&it->at, at, now) == at) {
		u64 used = it->used;
		time -= used - share_decayed(used, now - at);
	}
	__sync_fetch_and_add(&it->used, time);
}

/* A member whose usage is counted with so much weight by its group. Global, so that the verifier looks at it once. */
__noinline int weigh_member(struct group *g, u64 usage, u64 before, u64 weight, u64 now)
{
	if (g)
		add_usage(&g->members, share_cost(usage, weight) - share_cost(usage, before), now);
	return 0;
}

/* And one whose usage changes, but not by running. Global, as that is. */
__noinline int move_member(struct group *g, u64 weight, u64 before, u64 usage, u64 now)
{
	if (g)
		add_usage(&g->members, share_cost(usage, weight) - share_cost(before, weight), now);
	return 0;
}

/* What a thread is to compete as part of: from when it is next weighed, under its run queue's lock. */
static __always_inline u64 due_group(struct thread *t)
{
	u32 tenant = t->tenant;

	return tenant ? TENANT_GROUP | tenant : t->cgroup;
}

/* A thread's weight among its siblings. */
static __always_inline u64 own_weight(struct thread *t)
{
	return (u64)(t->set_weight ?: t->own_weight ?: WEIGHT_ONE >> WEIGHT_SHIFT) << WEIGHT_SHIFT;
}

enum settled {
	BEGAN = 1,  /* the group has something ready now, and had not */
	TURNED = 2, /* and so its parent began, or ended */
};

/* Makes a group's parent count it for what is due. Global, so that the verifier looks at it once. */
__noinline int settle_one(u64 id)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);
	int result = 0;

	if (!g)
		return 0;
	u64 above = g->parent;
	struct group *parent = above ? bpf_map_lookup_elem(&groups, &above) : NULL;
	if (!parent) {
		/* The root counts nothing; but shares want to know when a tenant begins. */
		u32 due = options.share && g->active ? g->weight : 0;
		return options.share && !__sync_lock_test_and_set(&g->counted, due) && due ? BEGAN : 0;
	}
	for (int attempt = 0; attempt < 8; attempt++) {
		u32 due = g->active ? g->weight : 0;
		u32 counted = __sync_lock_test_and_set(&g->counted, due);
		if (due && !counted)
			result |= BEGAN;
		if (counted != due) {
			u64 by = (u64)due - counted, now = time_ns();
			if (options.share)
				weigh_member(parent, usage_of(&g->usage, now), counted, due, now);
			u64 before = __sync_fetch_and_add(&parent->active, by);
			if (!before || !(before + by))
				result |= TURNED;
		}
		if (due == (g->active ? g->weight : 0))
			break;
	}
	return result;
}

/*
 * Makes the ancestors count the group for what is due: its weight while it has something ready. Whoever
 * makes it ready or not calls this, perhaps at once with others: the last to leave sees what holds. Returns a bit for
 * each group that began, from this one up. Global, as settle_one() is.
 */
__noinline int settle(u64 id)
{
	int began = 0;

	for (int level = 0; level < GROUP_DEPTH; level++) {
		int result = settle_one(id);
		if (result & BEGAN)
			began |= 1 << level;
		struct group *g = result & TURNED ? bpf_map_lookup_elem(&groups, &id) : NULL;
		if (!g)
			break;
		id = g->parent;
	}
	return began;
}

static __always_inline void leave_group(struct thread *t)
{
	u64 id = t->group, own = t->active ? __sync_lock_test_and_set(&t->active, 0) : 0;

	if (!own)
		return;
	struct group *g = bpf_map_lookup_elem(&groups, &id);
	if (g && options.share) {
		u64 now = time_ns();
		weigh_member(g, usage_of(&t->usage, now), own, 0, now);
	}
	if (g && __sync_fetch_and_add(&g->active, -own) == own)
		settle(id);
}

/* A group that is no more; its threads are, or have left. */
static __always_inline void end_group(u64 id)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);

	if (g) {
		g->active = 0;
		settle(id);
	}
	bpf_map_delete_elem(&groups, &id);
}

static __always_inline void set_weight(u64 id, u32 weight)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);

	if (g) {
		g->weight = weight;
		settle(id);
	}
}

#endif
