/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Groups: the weight of a group counts while the group has runnable tasks.
 *
 * Problem: The weight of a cgroup counts while a task is runnable in the cgroup or below it. A tenant without
 *          a cgroup has a weight as well.
 * How:     A tenant without a cgroup is a group below the root, with a number from the agent. The active
 *          weight of a group is a sum that a member, task or group, enters when it becomes runnable and
 *          leaves when it sleeps; only the first and the last runnable member of a group make the group tell
 *          its parent.
 * Limits:  Where cgroups nest deeper than GROUP_DEPTH levels, the scheduler exits with an error.
 */
#ifndef QUELL_GROUPS_BPF_H
#define QUELL_GROUPS_BPF_H

#include "task.bpf.h"

#define GROUP_DEPTH 64

/* Bandwidth limit of a group, see bandwidth.bpf.h. */
struct bandwidth {
	u64 quota_ns; /* 0: no limit */
	u64 period_ns; /* length of a period */
	u64 burst_ns; /* runtime that the pool may hold beyond the quota */
	u64 period_start_ns; /* when the present period began */
	s64 runtime_ns; /* runtime left in the pool; negative: owed */
	u64 next_group_id; /* the nearest ancestor that has a limit; 0: none */
	u32 generation; /* bandwidth.generation that next_group_id is of */
	s32 nr_running; /* running tasks that are charged to the pool, approximately */
};

/* A cgroup, or a tenant without a cgroup. */
struct group {
	u64 parent_id; /* 0: the root */
	u32 weight; /* weight set for the group */
	u32 counted_weight; /* weight that the parent's active_weight includes for the group */
	u64 active_weight; /* sum of the weights of the members that have runnable tasks */
	u64 share_weight; /* weight that the members share, by group_share_weight() */
	u64 share_weight_at_ns; /* when share_weight was computed */
	struct bandwidth bw;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u64);
	__type(value, struct group);
} groups SEC(".maps");

/* Bit of the group ids of tenants without a cgroup; no cgroup id has it. */
#define TENANT_GROUP (1ULL << 63)

/*
 * The group that the task is to compete in. The task moves there when its weight is next updated, under its
 * run queue's lock.
 */
static __always_inline u64 target_group(struct task_ctx *t)
{
	u32 tenant = t->tenant;

	return tenant ? TENANT_GROUP | tenant : t->cgroup_id;
}

/* The weight of a task among its siblings. */
static __always_inline u64 task_weight(struct task_ctx *t)
{
	return (u64)(t->agent_weight ?: t->nice_weight ?: WEIGHT_ONE >> WEIGHT_SHIFT) << WEIGHT_SHIFT;
}

/*
 * Makes the parent of a group count the weight that the group has now: its weight while it is active, else 0.
 * Returns the parent if the parent became active or inactive, else 0.
 */
__global_subprog u64 propagate_weight_once(u64 id)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);
	bool toggled = false;

	if (!g)
		return 0;
	u64 parent_id = g->parent_id;
	struct group *parent = parent_id ? bpf_map_lookup_elem(&groups, &parent_id) : NULL;
	/* The root keeps no active weight. */
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
 * Propagates the weight of a group to its ancestors, as far up as groups become active or inactive. Several
 * CPUs may do this for a group at once: the last one leaves what holds.
 */
__global_subprog int propagate_weight(u64 id)
{
	for (int level = 0; level < GROUP_DEPTH && id; level++)
		id = propagate_weight_once(id);
	return 0;
}

/* A task is no longer runnable, or leaves its group. */
static __always_inline void dequeue_group(struct task_ctx *t)
{
	u64 id = t->group_id,
	    own = t->group_counted_weight ? __sync_lock_test_and_set(&t->group_counted_weight, 0) : 0;

	if (!own)
		return;
	struct group *g = bpf_map_lookup_elem(&groups, &id);
	if (g && __sync_fetch_and_add(&g->active_weight, -own) == own)
		propagate_weight(id);
}

/* Deletes a group. Its tasks have exited or left. */
static __always_inline void delete_group(u64 id)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);

	if (g) {
		g->active_weight = 0;
		propagate_weight(id);
	}
	bpf_map_delete_elem(&groups, &id);
}

/* Sets the weight of a group, in units of fair.h. */
static __always_inline void set_group_weight(u64 id, u32 weight)
{
	struct group *g = bpf_map_lookup_elem(&groups, &id);

	if (g) {
		g->weight = weight;
		propagate_weight(id);
	}
}

#endif
