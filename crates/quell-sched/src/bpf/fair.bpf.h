/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Fair shares: keeps what ../policy/fair.h computes with.
 *
 * Problem: virtual times need a clock that all CPUs of a domain agree on, and weights depend on how many threads of a cgroup are ready.
 * How:     a domain's clock and its load are sums that a thread enters when it becomes ready and leaves when it sleeps; the clock is
 *          moved on by what threads ran when that is counted: at the end of a turn. A group's members, which are
 *          threads and groups, share its weight by theirs, as far as something of them is ready; groups
 *          and threads of the root compete with their own weights.
 * Limits:  a thread's weight is what it was when it last woke, ended a turn or began to run, and its group's what it was
 *          up to GROUP_STEP before. The clock lacks what is being run.
 */
#ifndef QUELL_FAIR_BPF_H
#define QUELL_FAIR_BPF_H

#include "share.bpf.h"

#define GROUP_STEP (500 * NS_PER_US)

/* The clock of the CPU that a thread is bound to; NULL: the thread may use several. */
static __always_inline struct pinned_clock *pinned_clock_of(struct thread *t)
{
	u32 cpu = t->only_cpu;

	return cpu && cpu <= MAX_CPUS ? &pinned_clocks[bounded(cpu - 1, MAX_CPUS)] : NULL;
}

/* The clock that counts for a thread. */
static __always_inline u64 clock_for(struct thread *t)
{
	struct domain *d = domain_at(t->domain);
	struct pinned_clock *bound = pinned_clock_of(t);

	if (!d)
		return 0;
	u64 clock = *(volatile u64 *)&d->clock;
	return bound ? (*(volatile u64 *)&bound->seen ?: clock) - bound->behind : clock;
}

/* A thread begins to run on a CPU, or goes on there. */
static __always_inline void begin_bound(struct thread *t, struct domain *d, u32 cpu)
{
	if (!options.share)
		pinned_clocks[bounded(cpu, MAX_CPUS)].seen = t->only_cpu ? d->clock : 0;
}

/* Whoever ran there leaves. */
static __always_inline void end_bound(u32 cpu)
{
	if (!options.share)
		pinned_clocks[bounded(cpu, MAX_CPUS)].seen = 0;
}

/* A thread's lag. */
static __always_inline s64 lag_of(struct thread *t, u64 now)
{
	return options.share ? (s64)(FAIR_CLOCK_START + now - t->virtual) : (s64)(clock_for(t) - t->virtual);
}

/* The weight that the members of a group share. */
static __noinline u64 group_share(struct group *group, u64 now)
{
	struct group *g = group;
	u64 share;

	if (!group)
		return WEIGHT_ONE;
	if (group->at && now < group->at + GROUP_STEP)
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

/* What its domain's load becomes. */
static __always_inline u64 change_load(struct thread *t, struct domain *d, u64 by)
{
	struct pinned_clock *bound = pinned_clock_of(t);

	if (bound)
		__sync_fetch_and_add(&bound->load, by);
	return __sync_fetch_and_add(&d->load, by) + by;
}

/* A thread brings lag along, or leaves some. */
static __always_inline void bring(struct domain *d, s64 owed)
{
	if (owed)
		__sync_fetch_and_add(&d->owed, owed);
}

/* The mean of the virtual times of those that are bound to a CPU, as one of a weight has moved by so much. */
static __always_inline void move_mean(struct pinned_clock *bound, s64 by, s64 weight, u64 load)
{
	if (load)
		__sync_fetch_and_add(&bound->mean, fair_mean(by, weight, load));
}

/* A thread that is counted moves on in virtual time. */
static __always_inline void move_virtual(struct thread *t, s64 by)
{
	struct pinned_clock *bound = pinned_clock_of(t);

	t->virtual += by;
	if (bound)
		move_mean(bound, by, t->load, bound->load);
}

/* A thread is counted by so much more among those that are bound to a CPU. Before it is. */
static __always_inline void change_mean(struct thread *t, s64 by)
{
	struct pinned_clock *bound = pinned_clock_of(t);

	if (!bound)
		return;
	s64 load = bound->load + by;
	if (load <= 0 || load <= by)
		bound->mean = t->virtual;
	else
		move_mean(bound, t->virtual - bound->mean, by, load);
}

/* What threads ran advances the clock. */
static __always_inline void advance(struct domain *d, u64 by, u64 load)
{
	s64 paid = fair_paid(d->owed, load, by);

	bring(d, -paid * (s64)load);
	__sync_fetch_and_add(&d->clock, by - (paid << 10));
}

/* A thread is not one of those that compete any more. */
static __always_inline void leave_load(struct thread *t)
{
	u64 counted = t->load ? __sync_lock_test_and_set(&t->load, 0) : 0;
	struct domain *d = domain_at(t->domain);

	if (!counted || !d)
		return;
	if (options.share) {
		/* Its place is its own while it is counted. */
		end_share(t);
	} else {
		bring(d, -fair_left(fair_bounded(clock_for(t) - t->virtual, counted), counted));
		change_mean(t, -(s64)counted);
	}
	u64 rest = change_load(t, d, -counted);
	if (!rest)
		d->owed = 0;
}

/* It becomes one of them, with its lag; woken: it was asleep. */
static __always_inline void enter_load(struct thread *t, struct task_struct *p, u32 index, u32 cpu, bool woken, u64 now)
{
	u32 only_cpu = p->nr_cpus_allowed == 1 ? cpu + 1 : 0;
	struct domain *d = domain_at(index);

	if (!d)
		return;
	s64 lag = t->domain == NO_DOMAIN ? t->lag : clock_for(t) - t->virtual;
	t->domain = index;
	t->only_cpu = only_cpu;
	u64 weight = t->weight, counted = __sync_lock_test_and_set(&t->load, (u32)weight);
	if (options.share) {
		change_load(t, d, weight - counted);
		begin_share(t, p, now);
		return;
	}
	t->lag = lag = woken ? fair_woken(lag, weight) : fair_bounded(lag, weight);
	t->virtual = clock_for(t) - lag;
	HOLDS(lag_of(t, now) == fair_bounded(lag, weight));
	change_mean(t, (s64)weight - (s64)counted);
	change_load(t, d, weight - counted);
	if (!counted)
		bring(d, fair_left(lag, weight));
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
	enter_load(t, p, t->domain, cpu, false, now);
}

/* What a thread's process spent, and usually spends on a request. */
static __always_inline void count_spent(struct thread *t, struct task_struct *p, u64 ran)
{
	struct thread *first = options.requests ? first_of(t, p) : NULL;

	if (!first)
		return;
	t->request = first->request;
	if (ran)
		__sync_fetch_and_add(&first->spent, ran);
}

/* What a thread ran moves its virtual time, and the clock. Global, so that the verifier looks at it once. */
__noinline int charge_ran(struct thread *t, u64 ran)
{
	struct domain *d = t ? domain_at(t->domain) : NULL;

	if (!t || !d)
		return 0;
	struct pinned_clock *bound = pinned_clock_of(t);
	u64 weight = t->weight, load = d->load;
	s64 lag = clock_for(t) - t->virtual;
	t->virtual += fair_virtual(ran, weight);
	if (load < weight)
		load = weight;
	advance(d, fair_virtual(ran, load), load);
	__sync_fetch_and_add(&d->clock, -fair_pull(lag, ran));
	if (bound) {
		u64 all = bound->load, clock = d->clock, seen = bound->seen;
		if (all < weight)
			all = weight;
		__sync_fetch_and_add(&bound->mean, fair_virtual(ran, all) - fair_pull(bound->mean - t->virtual, ran));
		if (seen) {
			/* Where there are no others nobody takes anything from them. */
			u64 behind = all < load ? fair_behind(clock - bound->behind - bound->mean, clock - seen, ran, all) : 0;
			bound->seen = clock;
			bound->behind += behind;
			/* What their CPU could not give is due to none of them. */
			bring(d, -fair_left(behind, all));
		}
	}
	lag = clock_for(t) - t->virtual;
	move_virtual(t, lag - fair_bounded(lag, weight));
	HOLDS(lag_of(t, 0) == fair_bounded(lag, weight));
	return 0;
}

/* A thread ran, and perhaps leaves its CPU. */
static __always_inline void spend(struct thread *t, struct task_struct *p, bool leaves, u64 now)
{
	u64 ran = now > t->ran_at ? now - t->ran_at : 0;

	t->ran_at += ran;
	t->present += ran;
	t->busy = order_busy(t->busy, ran);
	draw_ran(t, p, leaves, now);
	count_spent(t, p, ran);
	/* What is promised is no part of what is shared. */
	if (options.criticality && t->paid)
		share_paid(t, p, ran);
	else if (options.share)
		share_ran(t, p, ran, now);
	else
		charge_ran(t, ran);
}

/* A thread that came to a CPU of another domain: its lag and its load come along. */
static __always_inline bool change_domain(struct thread *t, struct task_struct *p, u32 index, u32 cpu, u64 now)
{
	if (!t->load || t->domain == index || !domain_at(index))
		return false;
	leave_load(t);
	enter_load(t, p, index, cpu, false, now);
	return true;
}

/* The lag that a new task begins with; its parent gives away what it was due. Global, as charge_ran() is. */
__noinline s64 hand_down(struct thread *parent, u64 now)
{
	struct domain *d = parent ? domain_at(parent->domain) : NULL;

	if (!parent || !d || !parent->load)
		return 0;
	s64 lag = fair_woken(lag_of(parent, now), parent->weight);
	if (lag <= 0)
		return lag;
	if (options.share)
		return 0;
	move_virtual(parent, lag);
	bring(d, -fair_left(lag, parent->load));
	return lag;
}

/*
 * A task that waited for its child, which ends, goes on with the child's lag: what it had itself it gave the child. Both are ready, and up to
 * date. Global, as charge_ran() is.
 */
__noinline int take_over(struct thread *t, struct thread *child, u64 now)
{
	struct domain *d = t ? domain_at(t->domain) : NULL;

	if (!t || !child || !d || !child->load)
		return 0;
	if (options.share) {
		bill(child, now);
		locate(child, now);
		locate(t, now);
	}
	s64 lag = options.share ? lag_of(child, now) : fair_woken(lag_of(child, now), t->load);
	s64 less = lag_of(t, now) - lag;
	if (options.share) {
		if (less <= 0)
			return 0;
		struct sharer *s = sharer_of(t);
		if (s)
			__sync_fetch_and_add(&s->served, less);
		return 0;
	}
	move_virtual(t, less);
	t->lag -= less;
	bring(d, -fair_left(less, t->load));
	HOLDS(lag_of(t, now) == lag);
	return 0;
}

/* How many times as long as its lag a thread has to wait for it. */
static __always_inline u64 times_of(struct thread *t, struct domain *d)
{
	u64 load = d->load, cpus = d->online;
	struct pinned_clock *bound = pinned_clock_of(t);

	/* Who may run on one CPU only shares that, if that is less. */
	if (bound && bound->load * cpus > load) {
		load = bound->load;
		cpus = 1;
	}
	return order_times(load, cpus);
}

/* The deadline of a thread that is up to date, see ../policy/deadline.h. Global, as charge_ran() is. */
__noinline int update_deadline(struct thread *t, u64 now)
{
	struct domain *d = t ? domain_at(t->domain) : NULL;

	if (!t || !d)
		return 0;
	if (options.share)
		locate(t, now);
	s64 lag = lag_of(t, now);
	u64 times = options.share ? order_times(0, 1) : times_of(t, d);
	/* With shares where it stands is by the middle of its turn. */
	u64 share = options.share ? order_share(lag, SHARE_AFTER, times, now) :
				    order_share(lag - order_turn(t->weight), ORDER_SHARE, times, now);
	u64 deadline = share;
	/* Nobody is urgent of whom nothing is known. */
	if (options.asymmetry && !t->idle && t->known && !(options.share && is_unknown(t))) {
		u64 work = urgency_work(t->latency, t->usual, t->request, options.stretch);
		u64 from = options.share ? t->woke_at : order_from(t->woke_at, lag, work, times, now);
		bool endless = order_endless(t->busy, work);
		if (!options.share || share_is_urgent(lag, d->online))
			deadline = order_request(deadline, from, work, t->age, t->present, t->usual, endless);
		bool messages = options.share ? share_messages(t->usual, t->present) : order_messages(t->usual, t->present);
		if (endless && messages)
			deadline = order_first(deadline, order_message(t->woke_at, lag, times, now));
		else if (t->light && t->present < FAIR_TURN)
			deadline = order_light(t->woke_at);
	}
	/* Bound (1). */
	HOLDS(t->light || !order_earlier(deadline, ORDER_START + t->woke_at - ORDER_EARLIEST));
	HOLDS(!order_earlier(share, deadline));
	t->deadline = deadline;
	t->by_share = deadline == share;
	if (!t->by_share)
		t->pace = 1 << ORDER_PACE_SHIFT;
	else
		t->pace = options.share ? share_pace(rate_of(t, sharer_of(t))) : order_pace(t->weight, times);
	return 0;
}

#endif
