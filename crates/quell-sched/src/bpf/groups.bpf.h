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
struct bandwidth {
	u64 quota_ns; /* 0: it has no limit */
	u64 period_ns;
	u64 burst_ns;
	u64 period_start_ns; /* the period */
	s64 runtime_ns;  /* what its pool holds */
	u64 next_group_id; /* the next group that has one; 0: none */
	u32 generation;  /* as of so many changes */
	s32 nr_running; /* about how many draw from it */
};

struct group {
	u64 parent_id; /* its id; 0: the root */
	u32 weight;  /* as set */
	u32 counted_weight; /* what its parent's active counts for it */
	u64 active_weight;  /* sum of its members' own weights, as far as they have something ready */
	u64 share_weight;   /* weight that its members share */
	u64 share_weight_at_ns;	     /* as of then */
	struct bandwidth bw;
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
static __always_inline u64 target_group(struct task_ctx *t)
{
	u32 tenant = t->tenant;

	return tenant ? TENANT_GROUP | tenant : t->cgroup_id;
}

/* A thread's weight among its siblings. */
static __always_inline u64 task_weight(struct task_ctx *t)
{
	return (u64)(t->agent_weight ?: t->nice_weight ?: WEIGHT_ONE >> WEIGHT_SHIFT) << WEIGHT_SHIFT;
}

/* Makes a group's parent count it for what is due; the parent, if that began or ended to be ready, else 0. Global, so that the verifier looks at it once. */
__noinline u64 propagate_weight_once(u64 id)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);
	bool toggled = false;

	if (!g)
		return 0;
	u64 parent_id = g->parent_id;
	struct group *parent = parent_id ? bpf_map_lookup_elem(&groups, &parent_id) : NULL;
	/* The root counts nothing. */
	if (!parent)
		return 0;
	for (int attempt = 0; attempt < 8; attempt++) {
		u32 target = g->active_weight ? g->weight : 0;
		u32 counted = __sync_lock_test_and_set(&g->counted_weight, target);
		if (counted != target) {
			u64 by = (u64)target - counted;
			u64 before = __sync_fetch_and_add(&parent->active_weight, by);
			if (!before || !(before + by))
				toggled = true;
		}
		if (target == (g->active_weight ? g->weight : 0))
			break;
	}
	return toggled ? parent_id : 0;
}

/*
 * Makes the ancestors count the group for what is due: its weight while it has something ready. Whoever
 * makes it ready or not calls this, perhaps at once with others: the last to leave sees what holds. Global, as settle_one() is.
 */
__noinline int propagate_weight(u64 id)
{
	for (int level = 0; level < GROUP_DEPTH && id; level++)
		id = propagate_weight_once(id);
	return 0;
}

static __always_inline void dequeue_group(struct task_ctx *t)
{
	u64 id = t->group_id, own = t->group_counted_weight ? __sync_lock_test_and_set(&t->group_counted_weight, 0) : 0;

	if (!own)
		return;
	struct group *g = bpf_map_lookup_elem(&groups, &id);
	if (g && __sync_fetch_and_add(&g->active_weight, -own) == own)
		propagate_weight(id);
}

/* A group that is no more; its threads are, or have left. */
static __always_inline void delete_group(u64 id)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);

	if (g) {
		g->active_weight = 0;
		propagate_weight(id);
	}
	bpf_map_delete_elem(&groups, &id);
}

static __always_inline void set_group_weight(u64 id, u32 weight)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);

	if (g) {
		g->weight = weight;
		propagate_weight(id);
	}
}

#endif
