/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Groups: what is in them that is ready.
 *
 * Problem: a cgroup's weight counts while it has something ready, in it or below it; and so does that of a tenant without
 *          a cgroup.
 * How:     such a tenant is a group below the root as well, by a number that the agent gave it. A group's active weight is a sum that a thread or a group enters when it becomes ready and leaves when it is
 *          not any more; only the first and the last of a group tell its parent.
 * Limits:  where cgroups nest deeper than GROUP_DEPTH levels the scheduler ends and says so.
 */
#ifndef QUELL_GROUPS_BPF_H
#define QUELL_GROUPS_BPF_H

#include "task.bpf.h"

#define GROUP_DEPTH 64

/* CPU time that its threads get at most, see bandwidth.bpf.h. */
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
	struct limit limit;
};

_Static_assert(sizeof(struct group) == 96, "loader's layout");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u64);
	__type(value, struct group);
} groups SEC(".maps");

/* The group of a tenant that is no cgroup; no cgroup has such an id. */
#define TENANT_GROUP (1ULL << 63)

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

/* Makes a group's parent count it for what is due; the parent, if that began or ended to be ready, else 0. Global, so that the verifier looks at it once. */
__noinline u64 settle_one(u64 id)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);
	bool turned = false;

	if (!g)
		return 0;
	u64 above = g->parent;
	struct group *parent = above ? bpf_map_lookup_elem(&groups, &above) : NULL;
	/* The root counts nothing. */
	if (!parent)
		return 0;
	for (int attempt = 0; attempt < 8; attempt++) {
		u32 due = g->active ? g->weight : 0;
		u32 counted = __sync_lock_test_and_set(&g->counted, due);
		if (counted != due) {
			u64 by = (u64)due - counted;
			u64 before = __sync_fetch_and_add(&parent->active, by);
			if (!before || !(before + by))
				turned = true;
		}
		if (due == (g->active ? g->weight : 0))
			break;
	}
	return turned ? above : 0;
}

/*
 * Makes the ancestors count the group for what is due: its weight while it has something ready. Whoever
 * makes it ready or not calls this, perhaps at once with others: the last to leave sees what holds. Global, as settle_one() is.
 */
__noinline int settle(u64 id)
{
	for (int level = 0; level < GROUP_DEPTH && id; level++)
		id = settle_one(id);
	return 0;
}

static __always_inline void leave_group(struct thread *t)
{
	u64 id = t->group, own = t->active ? __sync_lock_test_and_set(&t->active, 0) : 0;

	if (!own)
		return;
	struct group *g = bpf_map_lookup_elem(&groups, &id);
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
