/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Limits: keeps what ../policy/bandwidth.h computes with.
 *
 * Problem: a group's pool is used on all CPUs at once, in steps far below a tick, and groups with limits lie in each other.
 * How:     whoever runs draws what it ran from the pools of all that it is in and that have limits, when it leaves the CPU or is
 *          looked at by a timer of that CPU, the more often the less there is. What the kernel counts as run is drawn in the end (it
 *          leaves interrupts and stolen time out); a timer draws what that probably is. Pools are filled by who looks at them.
 * Limits:  before Linux 6.17 the kernel does not tell cgroups' limits.
 */
#ifndef QUELL_BANDWIDTH_BPF_H
#define QUELL_BANDWIDTH_BPF_H

#include "groups.bpf.h"
#include "../policy/bandwidth.h"

/* Threads of a queue that are looked at at once. */
#define LOOKED_AT 16

/* A thread whose groups' pools were empty for so long gets a turn, and they owe it: else the kernel ended the scheduler. */
#define LIMIT_LONGEST (10 * NS_PER_S)

/* The nearest group that has a limit, from this one up; 0: none. Global, so that the verifier looks at it once. */
__noinline u64 limited_from(u64 id)
{
	for (int level = 0; level < GROUP_DEPTH && id; level++) {
		struct group *g = bpf_map_lookup_elem(&groups, &id);
		if (!g)
			return 0;
		if (g->limit.quota)
			return id;
		id = g->parent;
	}
	return 0;
}

/* On the way from a thread up through all that it is in and that have limits. */
struct draw {
	u64 id;	   /* the next group; 0: there is none */
	s64 ran;   /* what is drawn, or given back */
	s32 begin; /* 1: it begins to run there; -1: it ends */
	u32 unused;
	u64 until; /* when all pools will hold something; 0: they do */
	u64 step;  /* see limit_step() */
};

/* Goes through a group. Global, as limited_from() is. */
__noinline int draw_from(struct draw *draw, u64 now)
{
	u64 id = draw ? draw->id : 0;
	struct group *g = bpf_map_lookup_elem(&groups, &id);

	if (!draw)
		return 0;
	draw->id = 0;
	if (!g || !g->limit.quota)
		return 0;
	u64 began = g->limit.began, period = g->limit.period;
	u64 periods = limit_periods(began, period, now);
	if (periods && __sync_val_compare_and_swap(&g->limit.began, began, began + periods * period) == began)
		__sync_fetch_and_add(&g->limit.left, limit_added(g->limit.left, periods, g->limit.quota, g->limit.burst));
	if (draw->ran)
		__sync_fetch_and_add(&g->limit.left, -draw->ran);
	if (draw->begin)
		__sync_fetch_and_add(&g->limit.running, draw->begin);
	s64 left = g->limit.left;
	s32 running = g->limit.running;
	u64 until = limit_until(left, g->limit.began, period, g->limit.quota);
	u64 step = limit_step(left, g->limit.quota, running > 1 ? running : 1);
	if (until > draw->until)
		draw->until = until;
	if (step < draw->step)
		draw->step = step;
	/* As for limit_of(). */
	u32 changes = limits.changes;
	if (g->limit.seen != changes) {
		g->limit.above = limited_from(g->parent);
		g->limit.seen = changes;
	}
	draw->id = g->limit.above;
	return 0;
}

/* The nearest group with a limit that a thread is in; 0: none. */
static __always_inline u64 limit_of(struct thread *t)
{
	u32 changes = limits.changes;

	if (!limits.groups)
		return 0;
	if (t->limit_seen != changes) {
		t->limit = limited_from(t->cgroup);
		t->limit_seen = changes;
	}
	return t->limit;
}

/* For how long limits stopped a thread: up to when it was last ready again, which it may have been for some moments before. */
static __always_inline u64 limited_ns(struct thread *t)
{
	u64 parked_at = t->parked_at, again = t->woke_at;

	return t->limited_ns + (parked_at && again > parked_at ? again - parked_at : 0);
}

/* A thread begins or ends to run, ran, or asks. Global, as limited_from() is. */
__noinline int draw(struct thread *t, struct draw *draw, u64 now)
{
	if (!t || !draw)
		return 0;
	draw->id = limit_of(t);
	draw->step = -1;
	for (int level = 0; level < GROUP_DEPTH && draw->id; level++)
		draw_from(draw, now);
	return 0;
}

/* As limited_until(). However much is owed, it is asked again after a second. Global, as limited_from() is. */
__noinline u64 asked_until(struct thread *t, u64 now)
{
	struct draw asked = {};

	if (!t)
		return 0;
	u64 parked_at = t->parked_at;
	if (parked_at && now > parked_at + LIMIT_LONGEST)
		return 0;
	draw(t, &asked, now);
	return asked.until > now + NS_PER_S ? now + NS_PER_S : asked.until;
}

/* Until when a thread may not run; 0: it may. */
static __always_inline u64 limited_until(struct thread *t, u64 now)
{
	return limits.groups ? asked_until(t, now) : 0;
}

/* A thread ran, in all, and goes on or leaves its CPU. Global, as limited_from() is. */
__noinline int draw_rest(struct thread *t, u64 ran_in_all, bool leaves, u64 now)
{
	if (!t)
		return 0;
	u64 ran = ran_in_all - t->ran_before;
	struct draw rest = { .ran = ran - t->drawn, .begin = leaves ? -1 : 0 };

	t->limit_pace = limit_pace(t->limit_pace, ran, now - t->drawn_from);
	t->drawn = ran;
	t->drawn_at = now;
	if (leaves)
		t->drawing = 0;
	draw(t, &rest, now);
	return 0;
}

static __always_inline void draw_ran(struct thread *t, struct task_struct *p, bool leaves, u64 now)
{
	if (t->drawing)
		draw_rest(t, p->se.sum_exec_runtime, leaves, now);
}

/* What a cgroup's files say, in us; a quota of -1: it has no limit. */
static __always_inline void set_limit(struct group *g, u64 period, u64 quota, u64 burst, u64 now)
{
	bool had = g->limit.quota, has = quota != -1ULL && quota && period;

	if (!has)
		period = quota = burst = 0;
	g->limit.period = period * NS_PER_US;
	g->limit.burst = burst * NS_PER_US;
	g->limit.began = now;
	g->limit.left = quota * NS_PER_US;
	g->limit.quota = quota * NS_PER_US;
	g->limit.running = 0;
	if (had == has)
		return;
	__sync_fetch_and_add(&limits.groups, has ? 1 : -1);
	__sync_fetch_and_add(&limits.changes, 1);
}

TIMERS(steps, MAX_CPUS);

/* Looks at a thread that runs there: for how long it may go on; 0: it must leave. Global, as limited_from() is. */
__noinline u64 look_at_drawing(struct thread *t, u64 now)
{
	if (!t || !t->drawing)
		return 0;
	u64 at = t->drawn_at, ran = now > at ? now - at : 0;

	t->drawn_at = at + ran;
	ran = limit_ran(t->limit_pace, ran);
	t->drawn += ran;
	struct draw drawn = { .ran = ran };
	draw(t, &drawn, now);
	return drawn.until ? 0 : drawn.step;
}

static int on_step(void *map, u32 *key, struct timer *value)
{
	u32 cpu = *key;
	struct cpu_slot *slot = cpu_at(cpu);
	struct turn *turn = &turns[bounded(cpu, MAX_CPUS)];
	u64 ends = turn->ends, now = time_ns(), ns = 0;

	if (!ends || !slot)
		return 0;
	if (now < ends) {
		ns = ends - now;
	} else {
		struct task_struct *p = bpf_task_from_pid(slot->tid);
		struct thread *t = p ? thread_of(p) : NULL;
		if (t)
			ns = look_at_drawing(t, now);
		if (p)
			bpf_task_release(p);
		if (ns)
			turn->ends = now + ns;
	}
	if (ns)
		bpf_timer_start(&value->timer, ns, 0);
	else
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	return 0;
}

/* A thread begins to run, or goes on; it had so much in all. Global, as limited_from() is. */
__noinline int begin_draw(struct thread *t, u64 ran_in_all, u32 cpu, u64 now)
{
	struct timer *step = bpf_map_lookup_elem(&steps, &cpu);
	struct draw draws = {};

	if (!t || !step)
		return 0;
	if (!t->drawing) {
		t->drawing = 1;
		t->ran_before = ran_in_all;
		t->drawn = 0;
		t->drawn_at = t->drawn_from = now;
		t->limit_pace = t->limit_pace ?: LIMIT_PACE_ONE;
		draws.begin = 1;
	}
	draw(t, &draws, now);
	turns[bounded(cpu, MAX_CPUS)].ends = now + draws.step;
	bpf_timer_start(&step->timer, draws.step, 0);
	return 0;
}

static __always_inline void begin_drawing(struct thread *t, struct task_struct *p, u32 cpu, u64 now)
{
	struct turn *turn = &turns[bounded(cpu, MAX_CPUS)];

	if (limit_of(t))
		begin_draw(t, p->se.sum_exec_runtime, cpu, now);
	else if (turn->ends)
		turn->ends = 0;
}

#endif
