/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Fair shares: keeps what ../policy/fair.h computes with.
 *
 * Problem: credit needs virtual clocks, and weights depend on how many threads of a cgroup are ready.
 * How:     clocks are moved on by whoever needs them, at most once every CLOCK_STEP, and are interpolated in
 *          between. A clock's load is a sum
 *          that a thread enters when it wakes and leaves when it sleeps. A group's members, which are
 *          threads and groups, share its weight by theirs, as far as something of them is ready; groups
 *          and threads of the root compete with their own weights.
 * Limits:  a thread's weight is what it was when it last woke or ended a turn, and its group's what it was
 *          up to CLOCK_STEP before.
 */
#ifndef QUELL_FAIR_BPF_H
#define QUELL_FAIR_BPF_H

#include "share.bpf.h"

#define CLOCK_STEP (500 * NS_PER_US)

/* What servers took of so long: nobody is owed it. */
static __always_inline u64 promised_part(struct clock *c, u64 cpus, u64 ns)
{
	if (!options.criticality || !c->promised || !cpus)
		return 0;
	u64 promised = __sync_lock_test_and_set(&c->promised, 0) / cpus;

	return fair_advance(promised < ns ? promised : ns, c->rate);
}

static __always_inline u64 clock_of(struct clock *c, u64 cpus, u64 rate_most, u64 now)
{
	u64 at = c->at, time;

	if (now > at + CLOCK_STEP && __sync_val_compare_and_swap(&c->at, at, now) == at) {
		__sync_fetch_and_add(&c->time, fair_advance(now - at, c->rate) - promised_part(c, cpus, now - at));
		u64 rate = fair_rate(cpus, c->load);
		c->rate = rate < rate_most ? rate : rate_most;
	}
	/* In this order: beside another CPU's step it is late, never early. */
	time = *(volatile u64 *)&c->time;
	at = *(volatile u64 *)&c->at;
	return now > at ? time + fair_advance(now - at, c->rate) : time;
}

static __always_inline u64 domain_clock(struct domain *d, u64 now)
{
	return clock_of(&d->clock, d->online, -1, now);
}

static __always_inline u64 pinned_clock(struct domain *d, u32 cpu, u64 now)
{
	return cpu < MAX_CPUS ? clock_of(&pinned_clocks[bounded(cpu, MAX_CPUS)], 1, d->clock.rate, now) : 0;
}

/* The clock that counts for a thread. */
static __always_inline u64 clock_for(struct thread *t, u64 now)
{
	struct domain *d = domain_at(t->domain);

	if (!d)
		return 0;
	u64 time = domain_clock(d, now);
	return t->only_cpu ? pinned_clock(d, t->only_cpu - 1, now) : time;
}

/* The weight that the members of a group share. */
static __noinline u64 group_share(struct group *group, u64 now)
{
	struct group *g = group;
	u64 share;

	if (!group)
		return WEIGHT_ONE;
	if (group->at && now < group->at + CLOCK_STEP)
		return group->share;
	share = group->weight;
	for (int level = 0; level < GROUP_DEPTH; level++) {
		u64 parent = g->parent;
		g = parent ? bpf_map_lookup_elem(&groups, &parent) : NULL;
		if (!g)
			break;
		share = fair_weight(g->weight, share, g->active);
	}
	group->share = share;
	group->at = now;
	return share;
}

/* A thread comes to the group that it is to compete as part of. Global, so that the verifier looks at it once. */
__noinline int change_group(struct thread *t)
{
	if (!t)
		return 0;
	leave_group(t);
	t->group = due_group(t);
	return 0;
}

/* The weight now of a thread that is ready; its group counts it. */
static __always_inline void weigh(struct thread *t, u64 now)
{
	if (t->group != due_group(t))
		change_group(t);
	u64 own = own_weight(t);
	u64 id = t->group;

	t->weight = own;
	if (!id)
		return;
	struct group *g = bpf_map_lookup_elem(&groups, &id);
	if (!g)
		return;
	if (t->active != own) {
		u64 counted = __sync_lock_test_and_set(&t->active, (u32)own);
		if (!__sync_fetch_and_add(&g->active, own - counted))
			settle(id);
	}
	t->weight = fair_weight(group_share(g, now), own, g->active);
}

static __always_inline void change_load(struct thread *t, u64 by)
{
	struct domain *d = domain_at(t->domain);
	u32 cpu = t->only_cpu;

	if (d)
		__sync_fetch_and_add(&d->clock.load, by);
	if (cpu && cpu <= MAX_CPUS)
		__sync_fetch_and_add(&pinned_clocks[bounded(cpu - 1, MAX_CPUS)].load, by);
}

static __always_inline void leave_load(struct thread *t)
{
	u64 counted = t->load ? __sync_lock_test_and_set(&t->load, 0) : 0;

	if (!counted)
		return;
	change_load(t, -counted);
	/* Its place is its own while it is counted. */
	if (options.share)
		end_share(t);
}

static __always_inline void enter_load(struct thread *t, struct task_struct *p, u32 index, u32 cpu, u64 now)
{
	u32 only_cpu = p->nr_cpus_allowed == 1 ? cpu + 1 : 0;

	if (t->domain != index || t->only_cpu != only_cpu) {
		t->domain = index;
		t->only_cpu = only_cpu;
		/* Another clock; its credit comes along. */
		t->seen = clock_for(t, now);
		t->seen_at = now;
	}
	u64 weight = t->weight, counted = __sync_lock_test_and_set(&t->load, (u32)weight);
	change_load(t, weight - counted);
	if (options.share)
		begin_share(t, p, now);
}

/*
 * A thread that was counted before, and is up to date: its weight, or where it may run, may have
 * changed.
 */
static __always_inline void weigh_again(struct thread *t, struct task_struct *p, u32 cpu, u64 now)
{
	u32 only_cpu = p->nr_cpus_allowed == 1 ? cpu + 1 : 0;

	weigh(t, now);
	if (t->load == t->weight && t->only_cpu == only_cpu) {
		if (options.share)
			begin_share(t, p, now);
		return;
	}
	leave_load(t);
	enter_load(t, p, t->domain, cpu, now);
}

/* What a thread's credit and that of its process change by, and the CPU time that it spent. */
static __always_inline void change_credit(struct thread *t, struct task_struct *p, s64 by, u64 ran)
{
	struct thread *first = first_of(t, p);

	if (!first)
		return;
	if (options.requests) {
		t->request = first->request;
		if (ran)
			__sync_fetch_and_add(&first->spent, ran);
	}
	if (!by) {
		t->common = first->pool;
		return;
	}
	t->credit = fair_bounded(t->credit + by);
	/* Two that add at the same time may pass the bound by what one of them adds. */
	s64 pool = __sync_fetch_and_add(&first->pool, by) + by;
	s64 bounded_pool = fair_bounded_pool(pool, p->signal->nr_threads);
	if (bounded_pool != pool)
		first->pool = bounded_pool;
	t->common = bounded_pool;
}

/* What the time since deserved; brings the thread up to date. */
static __always_inline s64 deserved(struct thread *t, u64 now)
{
	u64 clock = clock_for(t, now);

	/* What is not counted now is counted next time. */
	if (clock <= t->seen || now <= t->seen_at)
		return 0;
	s64 earned = fair_earned(clock - t->seen, now - t->seen_at, t->weight);
	t->seen = clock;
	t->seen_at = now;
	return earned;
}

/* Brings the credit of a thread that does not run up to date. */
static __always_inline void earn(struct thread *t, struct task_struct *p, u64 now)
{
	change_credit(t, p, deserved(t, now), 0);
}

/* The same for one that runs, and perhaps leaves its CPU. Depleted ones earn all the while: among them the exact share counts. */
static __always_inline void spend(struct thread *t, struct task_struct *p, bool leaves, u64 now)
{
	u64 ran = now > t->ran_at ? now - t->ran_at : 0;
	s64 earned = deserved(t, now);

	t->ran_at += ran;
	t->present += ran;
	draw_ran(t, p, leaves, now);
	/* What is promised is no part of what is shared. */
	if (options.criticality && t->paid) {
		change_credit(t, p, 0, ran);
		if (options.share)
			share_paid(t, p, ran);
		return;
	}
	if (options.share)
		share_ran(t, p, ran, now);
	if (options.share && !t->depleted)
		t->due = fair_bounded(t->due + earned);
	change_credit(t, p, (t->depleted ? earned : 0) - fair_spent(ran), ran);
}

/* A thread that came to a CPU of another domain: its lag and its load come along. */
static __always_inline void change_domain(struct thread *t, struct task_struct *p, u32 index, u32 cpu,
					  u64 now)
{
	if (!t->load || t->domain == index || !domain_at(index))
		return;
	earn(t, p, now);
	leave_load(t);
	enter_load(t, p, index, cpu, now);
}

/* Whether the thread became depleted. */
static __always_inline bool judge(struct thread *t, struct task_struct *p, u64 now)
{
	bool was = t->depleted;

	if (options.share)
		locate(t, now);
	if (p->policy == SCHED_IDLE)
		t->depleted = true;
	else if (options.share)
		t->depleted = share_depleted(t);
	else if (options.fair)
		t->depleted = fair_depleted(t->common, was);
	else /* urgency alone orders, or where that is off as well, weights */
		t->depleted = !options.asymmetry && !options.causal;
	if (t->depleted != was) {
		/* What it does from here on is not what was waited for. */
		t->since = now;
	}
	return t->depleted && !was;
}

/* How far a thread that is up to date is behind; own and common credit count alike. */
static __always_inline s64 lag_of(struct thread *t)
{
	if (options.share)
		return t->lag;
	return fair_lag((t->credit + t->common) >> 1, t->weight ?: WEIGHT_ONE);
}

/* A CPU's urgency while a depleted thread runs there: how far it is ahead, whatever its clock is. */
static __always_inline u64 depleted_urgency(s64 lag)
{
	return URGENCY_DEPLETED + fair_position(FAIR_CLOCK_START, lag);
}

/* Whether a thread goes before entitled ones, were it to wait. */
static __always_inline bool goes_before_entitled(struct thread *t, s64 lag)
{
	return options.share && t->depleted && share_overdue(lag, rate_of(t, sharer_of(t)));
}

/* A CPU's urgency while a thread runs there. One that goes before entitled ones is not preempted for them. */
static __always_inline u64 urgency_of(struct thread *t, s64 lag, u64 now)
{
	if (!t->depleted)
		return t->deadline;
	return goes_before_entitled(t, lag) ? now : depleted_urgency(lag);
}

#endif
