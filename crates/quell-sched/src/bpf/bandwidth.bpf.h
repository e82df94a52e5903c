/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Bandwidth limits: keeps what ../policy/bandwidth.h computes with.
 *
 * Problem: All CPUs use a group's runtime pool at once, in steps far below a tick, and groups with limits are
 *          nested.
 * How:     A task charges what it ran to the pools of all limited groups that it is in, when it stops and
 *          when a timer of its CPU expires; the less runtime is left, the sooner the timer. In the end the
 *          charge is sum_exec_runtime, which leaves out interrupts and stolen time; the timer charges an
 *          estimate of it. A pool is refilled by the first task that looks at it in a new period.
 * Limits:  Before Linux 6.17 the kernel does not tell the scheduler of cgroups' limits.
 */
#ifndef QUELL_BANDWIDTH_BPF_H
#define QUELL_BANDWIDTH_BPF_H

#include "groups.bpf.h"
#include "../policy/bandwidth.h"

/* The number of tasks of a DSQ that one scan looks at. */
#define DSQ_SCAN_MAX 16

/*
 * A task that has been throttled for this long gets a slice, which its groups owe: else the kernel's watchdog
 * would end the scheduler.
 */
#define THROTTLED_MAX (10 * NS_PER_S)

/* The nearest group with a limit, from this group upwards; 0: none. */
__global_subprog u64 find_limited_group(u64 id)
{
	for (int level = 0; level < GROUP_DEPTH && id; level++) {
		struct group *g = bpf_map_lookup_elem(&groups, &id);
		if (!g)
			return 0;
		if (g->bw.quota_ns)
			return id;
		id = g->parent_id;
	}
	return 0;
}

/* State of a walk from a task up through the limited groups that it is in. */
struct bw_walk {
	u64 group_id; /* the next group; 0: the walk is over */
	s64 runtime_ns; /* runtime to charge; negative: to give back */
	s32 nr_delta; /* 1: the task begins to run; -1: it stops */
	u32 unused;
	u64 throttled_until_ns; /* when all pools will hold runtime; 0: all do now */
	u64 slice_ns; /* for how long the task may run until it is charged next, see bw_slice() */
};

/* Charges the walk's group, and sets the next one. */
__global_subprog int charge_group(struct bw_walk *walk, u64 now)
{
	u64 id = walk ? walk->group_id : 0;
	struct group *g = bpf_map_lookup_elem(&groups, &id);

	if (!walk)
		return 0;
	walk->group_id = 0;
	if (!g || !g->bw.quota_ns)
		return 0;
	u64 period_start = g->bw.period_start_ns, period = g->bw.period_ns;
	u64 periods = bw_periods(period_start, period, now);
	if (periods && __sync_val_compare_and_swap(&g->bw.period_start_ns, period_start,
						   period_start + periods * period) == period_start)
		__sync_fetch_and_add(&g->bw.runtime_ns,
				     bw_refill(g->bw.runtime_ns, periods, g->bw.quota_ns, g->bw.burst_ns));
	if (walk->runtime_ns)
		__sync_fetch_and_add(&g->bw.runtime_ns, -walk->runtime_ns);
	if (walk->nr_delta)
		__sync_fetch_and_add(&g->bw.nr_running, walk->nr_delta);
	s64 runtime = g->bw.runtime_ns;
	s32 nr_running = g->bw.nr_running;
	u64 until = bw_throttled_until(runtime, g->bw.period_start_ns, period, g->bw.quota_ns);
	u64 slice = bw_slice(runtime, g->bw.quota_ns, nr_running > 1 ? nr_running : 1);
	if (until > walk->throttled_until_ns)
		walk->throttled_until_ns = until;
	if (slice < walk->slice_ns)
		walk->slice_ns = slice;
	/* Cached as in limited_group_of(). */
	u32 generation = bandwidth.generation;
	if (g->bw.generation != generation) {
		g->bw.next_group_id = find_limited_group(g->parent_id);
		g->bw.generation = generation;
	}
	walk->group_id = g->bw.next_group_id;
	return 0;
}

/* The nearest group with a limit that the task is in; 0: none. */
static __always_inline u64 limited_group_of(struct task_ctx *t)
{
	u32 generation = bandwidth.generation;

	if (!bandwidth.nr_groups)
		return 0;
	if (t->bw_generation != generation) {
		t->bw_group_id = find_limited_group(t->cgroup_id);
		t->bw_generation = generation;
	}
	return t->bw_group_id;
}

/*
 * The time for which the task was throttled. The present throttling counts up to the last wakeup, which
 * unthrottling sets.
 */
static __always_inline u64 throttled_time(struct task_ctx *t)
{
	u64 parked_at = t->throttled_since_ns, woke_at = t->woke_at_ns;

	return t->throttled_ns + (parked_at && woke_at > parked_at ? woke_at - parked_at : 0);
}

/* Charges all limited groups of a task with the runtime in walk. */
__global_subprog int charge_groups(struct task_ctx *t, struct bw_walk *walk, u64 now)
{
	if (!t || !walk)
		return 0;
	walk->group_id = limited_group_of(t);
	walk->slice_ns = -1;
	for (int level = 0; level < GROUP_DEPTH && walk->group_id; level++)
		charge_group(walk, now);
	return 0;
}

/* As throttled_until(). However much is owed, the task is looked at again after a second. */
__global_subprog u64 throttled_until_slow(struct task_ctx *t, u64 now)
{
	struct bw_walk walk = {};

	if (!t)
		return 0;
	u64 parked_at = t->throttled_since_ns;
	if (parked_at && now > parked_at + THROTTLED_MAX)
		return 0;
	charge_groups(t, &walk, now);
	return walk.throttled_until_ns > now + NS_PER_S ? now + NS_PER_S : walk.throttled_until_ns;
}

/* The time until which the task is throttled; 0: the task may run. */
static __always_inline u64 throttled_until(struct task_ctx *t, u64 now)
{
	return bandwidth.nr_groups ? throttled_until_slow(t, now) : 0;
}

/*
 * Charges what the task ran by sum_exec_runtime, less what was charged already. stops: the task leaves its
 * CPU.
 */
__global_subprog int charge_exec(struct task_ctx *t, u64 exec, bool stops, u64 now)
{
	if (!t)
		return 0;
	u64 ran = exec - t->bw_exec_start_ns;
	struct bw_walk walk = { .runtime_ns = ran - t->bw_charged_ns, .nr_delta = stops ? -1 : 0 };

	t->bw_exec_ratio = bw_exec_ratio(t->bw_exec_ratio, ran, now - t->bw_since_ns);
	t->bw_charged_ns = ran;
	t->bw_charged_until_ns = now;
	if (stops)
		t->bw_charging = 0;
	charge_groups(t, &walk, now);
	return 0;
}

/* Charges a running task by sum_exec_runtime, if limited groups count it. stops: the task leaves its CPU. */
static __always_inline void charge_bandwidth(struct task_ctx *t, struct task_struct *p, bool stops, u64 now)
{
	if (t->bw_charging)
		charge_exec(t, p->se.sum_exec_runtime, stops, now);
}

/* Sets the limit of a group, in us as in cpu.max and cpu.max.burst; quota -1: no limit. */
static __always_inline void set_bandwidth(struct group *g, u64 period, u64 quota, u64 burst, u64 now)
{
	bool had = g->bw.quota_ns, has = quota != -1ULL && quota && period;

	if (!has)
		period = quota = burst = 0;
	g->bw.period_ns = period * NS_PER_US;
	g->bw.burst_ns = burst * NS_PER_US;
	g->bw.period_start_ns = now;
	g->bw.runtime_ns = quota * NS_PER_US;
	g->bw.quota_ns = quota * NS_PER_US;
	g->bw.nr_running = 0;
	if (had == has)
		return;
	__sync_fetch_and_add(&bandwidth.nr_groups, has ? 1 : -1);
	__sync_fetch_and_add(&bandwidth.generation, 1);
}

TIMERS(bandwidth_timers, MAX_CPUS);

/* Charges a running task by estimate. Returns for how long the task may go on, in ns; 0: it is throttled. */
__global_subprog u64 charge_running(struct task_ctx *t, u64 now)
{
	if (!t || !t->bw_charging)
		return 0;
	u64 at = t->bw_charged_until_ns, ran = now > at ? now - at : 0;

	t->bw_charged_until_ns = at + ran;
	ran = bw_exec_estimate(t->bw_exec_ratio, ran);
	t->bw_charged_ns += ran;
	struct bw_walk walk = { .runtime_ns = ran };
	charge_groups(t, &walk, now);
	return walk.throttled_until_ns ? 0 : walk.slice_ns;
}

/* Charges the CPU's task, and preempts it if a pool is empty. */
static int on_bandwidth_timer(void *map, u32 *key, struct timer *value)
{
	u32 cpu = *key;
	struct cpu_ctx *cpuc = lookup_cpu_ctx(cpu);
	struct cpu_dispatch *cpud = &cpu_dispatch_states[bounded(cpu, MAX_CPUS)];
	u64 charge_at = cpud->charge_at_ns, now = time_ns(), ns = 0;

	if (!charge_at || !cpuc)
		return 0;
	if (now < charge_at) {
		ns = charge_at - now;
	} else {
		struct task_struct *p = bpf_task_from_pid(cpuc->curr_tid);
		struct task_ctx *t = p ? lookup_task_ctx(p) : NULL;
		if (t)
			ns = charge_running(t, now);
		if (p)
			bpf_task_release(p);
		if (ns)
			cpud->charge_at_ns = now + ns;
	}
	if (ns)
		bpf_timer_start(&value->timer, ns, 0);
	else
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	return 0;
}

/*
 * A task begins to run, or goes on: begins to charge it and arms the CPU's timer. exec: the task's
 * sum_exec_runtime.
 */
__global_subprog int start_bandwidth(struct task_ctx *t, u64 exec, u32 cpu, u64 now)
{
	struct timer *timer = bpf_map_lookup_elem(&bandwidth_timers, &cpu);
	struct bw_walk walk = {};

	if (!t || !timer)
		return 0;
	if (!t->bw_charging) {
		t->bw_charging = 1;
		t->bw_exec_start_ns = exec;
		t->bw_charged_ns = 0;
		t->bw_charged_until_ns = t->bw_since_ns = now;
		t->bw_exec_ratio = t->bw_exec_ratio ?: BW_RATIO_ONE;
		walk.nr_delta = 1;
	}
	charge_groups(t, &walk, now);
	cpu_dispatch_states[bounded(cpu, MAX_CPUS)].charge_at_ns = now + walk.slice_ns;
	bpf_timer_start(&timer->timer, walk.slice_ns, 0);
	return 0;
}

/* As start_bandwidth(), if the task is in a limited group. */
static __always_inline void start_bandwidth_if_limited(struct task_ctx *t, struct task_struct *p, u32 cpu,
						       u64 now)
{
	struct cpu_dispatch *cpud = &cpu_dispatch_states[bounded(cpu, MAX_CPUS)];

	if (limited_group_of(t))
		start_bandwidth(t, p->se.sum_exec_runtime, cpu, now);
	else if (cpud->charge_at_ns)
		cpud->charge_at_ns = 0;
}

#endif
