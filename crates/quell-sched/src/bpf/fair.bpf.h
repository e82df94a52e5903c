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
 *          up to GROUP_SHARE_TTL before. The clock lacks what is being run.
 */
#ifndef QUELL_FAIR_BPF_H
#define QUELL_FAIR_BPF_H

#include "share.bpf.h"

#define GROUP_SHARE_TTL (500 * NS_PER_US)

/* The clock of the CPU that a thread is bound to; NULL: the thread may use several. */
static __always_inline struct pinned_vclock *pinned_vclock_of(struct task_ctx *t)
{
	u32 cpu = t->pinned_cpu_plus1;

	return cpu && cpu <= MAX_CPUS ? &pinned_vclocks[bounded(cpu - 1, MAX_CPUS)] : NULL;
}

/* The clock that counts for a thread. */
static __always_inline u64 task_vclock(struct task_ctx *t)
{
	struct llc_ctx *llc = lookup_llc(t->llc);
	struct pinned_vclock *pinned = pinned_vclock_of(t);

	if (!llc)
		return 0;
	u64 clock = *(volatile u64 *)&llc->vclock;
	return pinned ? (*(volatile u64 *)&pinned->llc_vclock_frozen ?: clock) - pinned->behind : clock;
}

/* A thread begins to run on a CPU, or goes on there. */
static __always_inline void freeze_pinned_vclock(struct task_ctx *t, struct llc_ctx *llc, u32 cpu)
{
	if (!options.share)
		pinned_vclocks[bounded(cpu, MAX_CPUS)].llc_vclock_frozen = t->pinned_cpu_plus1 ? llc->vclock : 0;
}

/* Whoever ran there leaves. */
static __always_inline void thaw_pinned_vclock(u32 cpu)
{
	if (!options.share)
		pinned_vclocks[bounded(cpu, MAX_CPUS)].llc_vclock_frozen = 0;
}

/* A thread's lag. */
static __always_inline s64 task_lag(struct task_ctx *t, u64 now)
{
	return options.share ? (s64)(VCLOCK_START + now - t->vtime) : (s64)(task_vclock(t) - t->vtime);
}

/* The weight that the members of a group share. */
static __noinline u64 group_share_weight(struct group *group, u64 now)
{
	struct group *g = group;
	u64 weight;

	if (!group)
		return WEIGHT_ONE;
	if (group->share_weight_at_ns && now < group->share_weight_at_ns + GROUP_SHARE_TTL)
		return group->share_weight;
	weight = group->weight;
	for (int level = 0; level < GROUP_DEPTH; level++) {
		u64 parent = g->parent_id;
		g = parent ? bpf_map_lookup_elem(&groups, &parent) : NULL;
		if (!g)
			break;
		weight = fair_member_weight(g->weight, weight, g->active_weight);
	}
	group->share_weight = weight;
	group->share_weight_at_ns = now;
	return weight;
}

/* A thread comes to the group that it is to compete as part of. Global, so that the verifier looks at it once. */
__noinline int move_to_group(struct task_ctx *t)
{
	if (!t)
		return 0;
	dequeue_group(t);
	t->group_id = target_group(t);
	return 0;
}

/* The weight now of a thread that is ready; its group counts it. */
static __always_inline void update_weight(struct task_ctx *t, u64 now)
{
	if (t->group_id != target_group(t))
		move_to_group(t);
	u64 own = task_weight(t);
	u64 id = t->group_id;

	t->weight = own;
	if (!id)
		return;
	struct group *g = bpf_map_lookup_elem(&groups, &id);
	if (!g)
		return;
	if (t->group_counted_weight != own) {
		u64 counted = __sync_lock_test_and_set(&t->group_counted_weight, (u32)own);
		if (!__sync_fetch_and_add(&g->active_weight, own - counted))
			propagate_weight(id);
	}
	t->weight = fair_member_weight(group_share_weight(g, now), own, g->active_weight);
}

/* What its domain's load becomes. */
static __always_inline u64 add_weight_sum(struct task_ctx *t, struct llc_ctx *llc, u64 delta)
{
	struct pinned_vclock *pinned = pinned_vclock_of(t);

	if (pinned)
		__sync_fetch_and_add(&pinned->weight_sum, delta);
	return __sync_fetch_and_add(&llc->weight_sum, delta) + delta;
}

/* A thread brings lag along, or leaves some. */
static __always_inline void add_lag_owed(struct llc_ctx *llc, s64 owed)
{
	if (owed)
		__sync_fetch_and_add(&llc->lag_owed, owed);
}

/* The mean of the virtual times of those that are bound to a CPU, as one of a weight has moved by so much. */
static __always_inline void shift_pinned_avg(struct pinned_vclock *pinned, s64 shift, s64 weight, u64 weight_sum)
{
	if (weight_sum)
		__sync_fetch_and_add(&pinned->vtime_avg, fair_avg_shift(shift, weight, weight_sum));
}

/* A thread that is counted moves on in virtual time. */
static __always_inline void shift_vtime(struct task_ctx *t, s64 shift)
{
	struct pinned_vclock *pinned = pinned_vclock_of(t);

	t->vtime += shift;
	if (pinned)
		shift_pinned_avg(pinned, shift, t->counted_weight, pinned->weight_sum);
}

/* A thread is counted by so much more among those that are bound to a CPU. Before it is. */
static __always_inline void update_pinned_avg(struct task_ctx *t, s64 delta)
{
	struct pinned_vclock *pinned = pinned_vclock_of(t);

	if (!pinned)
		return;
	s64 weight_sum = pinned->weight_sum + delta;
	if (weight_sum <= 0 || weight_sum <= delta)
		pinned->vtime_avg = t->vtime;
	else
		shift_pinned_avg(pinned, t->vtime - pinned->vtime_avg, delta, weight_sum);
}

/* What threads ran advances the clock. */
static __always_inline void advance_vclock(struct llc_ctx *llc, u64 by, u64 load)
{
	s64 paid = fair_lag_repaid(llc->lag_owed, load, by);

	add_lag_owed(llc, -paid * (s64)load);
	__sync_fetch_and_add(&llc->vclock, by - (paid << 10));
}

/* A thread is not one of those that compete any more. */
static __always_inline void dequeue_weight(struct task_ctx *t)
{
	u64 counted = t->counted_weight ? __sync_lock_test_and_set(&t->counted_weight, 0) : 0;
	struct llc_ctx *llc = lookup_llc(t->llc);

	if (!counted || !llc)
		return;
	if (options.share) {
		/* Its place is its own while it is counted. */
		share_dequeue(t);
	} else {
		add_lag_owed(llc, -fair_weighted_lag(fair_clamp_lag(task_vclock(t) - t->vtime, counted), counted));
		update_pinned_avg(t, -(s64)counted);
	}
	u64 weight_left = add_weight_sum(t, llc, -counted);
	if (!weight_left)
		llc->lag_owed = 0;
}

/* It becomes one of them, with its lag; woken: it was asleep. */
static __always_inline void enqueue_weight(struct task_ctx *t, struct task_struct *p, u32 llc_id, u32 cpu, bool woken, u64 now)
{
	u32 only_cpu = p->nr_cpus_allowed == 1 ? cpu + 1 : 0;
	struct llc_ctx *llc = lookup_llc(llc_id);

	if (!llc)
		return;
	s64 lag = t->llc == NO_LLC ? t->vlag : task_vclock(t) - t->vtime;
	t->llc = llc_id;
	t->pinned_cpu_plus1 = only_cpu;
	u64 weight = t->weight, counted = __sync_lock_test_and_set(&t->counted_weight, (u32)weight);
	if (options.share) {
		add_weight_sum(t, llc, weight - counted);
		share_enqueue(t, p, now);
		return;
	}
	t->vlag = lag = woken ? fair_wakeup_lag(lag, weight) : fair_clamp_lag(lag, weight);
	t->vtime = task_vclock(t) - lag;
	ASSERT_INVARIANT(task_lag(t, now) == fair_clamp_lag(lag, weight));
	update_pinned_avg(t, (s64)weight - (s64)counted);
	add_weight_sum(t, llc, weight - counted);
	if (!counted)
		add_lag_owed(llc, fair_weighted_lag(lag, weight));
}

/*
 * A thread that was counted before, and is up to date: its weight, or where it may run, may have
 * changed.
 */
static __always_inline void reweight_task(struct task_ctx *t, struct task_struct *p, u32 cpu, u64 now)
{
	u32 only_cpu = p->nr_cpus_allowed == 1 ? cpu + 1 : 0;

	update_weight(t, now);
	if (t->counted_weight == t->weight && t->pinned_cpu_plus1 == only_cpu) {
		if (options.share)
			share_enqueue(t, p, now);
		return;
	}
	dequeue_weight(t);
	enqueue_weight(t, p, t->llc, cpu, false, now);
}

/* What a thread's process spent, and usually spends on a request. */
static __always_inline void count_request_time(struct task_ctx *t, struct task_struct *p, u64 ran)
{
	struct task_ctx *first = options.requests ? leader_ctx(t, p) : NULL;

	if (!first)
		return;
	t->request_avg_ns = first->request_avg_ns;
	if (ran)
		__sync_fetch_and_add(&first->request_spent_ns, ran);
}

/* What a thread ran moves its virtual time, and the clock. Global, so that the verifier looks at it once. */
__noinline int charge_vtime(struct task_ctx *t, u64 ran)
{
	struct llc_ctx *llc = t ? lookup_llc(t->llc) : NULL;

	if (!t || !llc)
		return 0;
	struct pinned_vclock *pinned = pinned_vclock_of(t);
	u64 weight = t->weight, load = llc->weight_sum;
	s64 lag = task_vclock(t) - t->vtime;
	t->vtime += fair_vtime(ran, weight);
	if (load < weight)
		load = weight;
	advance_vclock(llc, fair_vtime(ran, load), load);
	__sync_fetch_and_add(&llc->vclock, -fair_vclock_pull(lag, ran));
	if (pinned) {
		u64 weight_sum = pinned->weight_sum, clock = llc->vclock, seen = pinned->llc_vclock_frozen;
		if (weight_sum < weight)
			weight_sum = weight;
		__sync_fetch_and_add(&pinned->vtime_avg, fair_vtime(ran, weight_sum) - fair_vclock_pull(pinned->vtime_avg - t->vtime, ran));
		if (seen) {
			/* Where there are no others nobody takes anything from them. */
			u64 behind = weight_sum < load ? fair_pinned_behind(clock - pinned->behind - pinned->vtime_avg, clock - seen, ran, weight_sum) : 0;
			pinned->llc_vclock_frozen = clock;
			pinned->behind += behind;
			/* What their CPU could not give is due to none of them. */
			add_lag_owed(llc, -fair_weighted_lag(behind, weight_sum));
		}
	}
	lag = task_vclock(t) - t->vtime;
	shift_vtime(t, lag - fair_clamp_lag(lag, weight));
	ASSERT_INVARIANT(task_lag(t, 0) == fair_clamp_lag(lag, weight));
	return 0;
}

/* A thread ran, and perhaps leaves its CPU. */
static __always_inline void charge_task(struct task_ctx *t, struct task_struct *p, bool stops, u64 now)
{
	u64 ran = now > t->charged_until_ns ? now - t->charged_until_ns : 0;

	t->charged_until_ns += ran;
	t->burst_ns += ran;
	t->chain_busy_ns = deadline_chain_ran(t->chain_busy_ns, ran);
	charge_bandwidth(t, p, stops, now);
	count_request_time(t, p, ran);
	/* What is promised is no part of what is shared. */
	if (options.criticality && t->server_pays)
		share_account_server(t, p, ran);
	else if (options.share)
		share_account_exec(t, p, ran, now);
	else
		charge_vtime(t, ran);
}

/* A thread that came to a CPU of another domain: its lag and its load come along. */
static __always_inline bool change_llc(struct task_ctx *t, struct task_struct *p, u32 llc_id, u32 cpu, u64 now)
{
	if (!t->counted_weight || t->llc == llc_id || !lookup_llc(llc_id))
		return false;
	dequeue_weight(t);
	enqueue_weight(t, p, llc_id, cpu, false, now);
	return true;
}

/* The lag that a new task begins with; its parent gives away what it was due. Global, as charge_ran() is. */
__noinline s64 inherit_lag(struct task_ctx *parent, u64 now)
{
	struct llc_ctx *llc = parent ? lookup_llc(parent->llc) : NULL;

	if (!parent || !llc || !parent->counted_weight)
		return 0;
	s64 lag = fair_wakeup_lag(task_lag(parent, now), parent->weight);
	if (lag <= 0)
		return lag;
	if (options.share)
		return 0;
	shift_vtime(parent, lag);
	add_lag_owed(llc, -fair_weighted_lag(lag, parent->counted_weight));
	return lag;
}

/*
 * A task that waited for its child, which ends, goes on with the child's lag: what it had itself it gave the child. Both are ready, and up to
 * date. Global, as charge_ran() is.
 */
__noinline int inherit_child_lag(struct task_ctx *t, struct task_ctx *child, u64 now)
{
	struct llc_ctx *llc = t ? lookup_llc(t->llc) : NULL;

	if (!t || !child || !llc || !child->counted_weight)
		return 0;
	if (options.share) {
		share_charge(child, now);
		update_vtime(child, now);
		update_vtime(t, now);
	}
	s64 lag = options.share ? task_lag(child, now) : fair_wakeup_lag(task_lag(child, now), t->counted_weight);
	s64 shift = task_lag(t, now) - lag;
	if (options.share) {
		if (shift <= 0)
			return 0;
		struct share_slot *slot = share_slot_of(t);
		if (slot)
			__sync_fetch_and_add(&slot->served_until_ns, shift);
		return 0;
	}
	shift_vtime(t, shift);
	t->vlag -= shift;
	add_lag_owed(llc, -fair_weighted_lag(shift, t->counted_weight));
	ASSERT_INVARIANT(task_lag(t, now) == lag);
	return 0;
}

/* How many times as long as its lag a thread has to wait for it. */
static __always_inline u64 task_lag_scale(struct task_ctx *t, struct llc_ctx *llc)
{
	u64 weight_sum = llc->weight_sum, nr_cpus = llc->nr_online;
	struct pinned_vclock *pinned = pinned_vclock_of(t);

	/* Who may run on one CPU only shares that, if that is less. */
	if (pinned && pinned->weight_sum * nr_cpus > weight_sum) {
		weight_sum = pinned->weight_sum;
		nr_cpus = 1;
	}
	return deadline_lag_scale(weight_sum, nr_cpus);
}

/* The deadline of a thread that is up to date, see ../policy/deadline.h. Global, as charge_ran() is. */
__noinline int update_deadline(struct task_ctx *t, u64 now)
{
	struct llc_ctx *llc = t ? lookup_llc(t->llc) : NULL;

	if (!t || !llc)
		return 0;
	if (options.share)
		update_vtime(t, now);
	s64 lag = task_lag(t, now);
	u64 scale = options.share ? deadline_lag_scale(0, 1) : task_lag_scale(t, llc);
	/* With shares where it stands is by the middle of its turn. */
	u64 share = options.share ? deadline_share(lag, SHARE_DEADLINE_DELAY, scale, now) :
				    deadline_share(lag - deadline_slice_lag(t->weight), DEADLINE_SHARE_DELAY, scale, now);
	u64 deadline = share;
	/* Nobody is urgent of whom nothing is known. */
	if (options.asymmetry && !t->sched_idle && t->has_slept && !(options.share && rate_is_unknown(t))) {
		u64 work = urgency_work(t->latency_ns, t->burst_avg_ns, t->request_avg_ns, options.stretch);
		u64 start = options.share ? t->woke_at_ns : deadline_request_start(t->woke_at_ns, lag, work, scale, now);
		bool endless = deadline_chain_endless(t->chain_busy_ns, work);
		if (!options.share || share_is_urgent(lag, llc->nr_online))
			deadline = deadline_request(deadline, start, work, t->chain_age_ns, t->burst_ns, t->burst_avg_ns, endless);
		bool messages = options.share ? share_passes_messages(t->burst_avg_ns, t->burst_ns) : deadline_passes_messages(t->burst_avg_ns, t->burst_ns);
		if (endless && messages)
			deadline = deadline_min(deadline, deadline_message(t->woke_at_ns, lag, scale, now));
		else if (t->light && t->burst_ns < FAIR_SLICE)
			deadline = deadline_light(t->woke_at_ns);
	}
	/* Bound (1). */
	ASSERT_INVARIANT(t->light || !deadline_before(deadline, DEADLINE_BASE + t->woke_at_ns - DEADLINE_LEAD_MAX));
	ASSERT_INVARIANT(!deadline_before(share, deadline));
	t->deadline = deadline;
	t->deadline_is_share = deadline == share;
	if (!t->deadline_is_share)
		t->deadline_pace = 1 << DEADLINE_PACE_SHIFT;
	else
		t->deadline_pace = options.share ? share_deadline_pace(task_rate(t, share_slot_of(t))) : deadline_pace(t->weight, scale);
	return 0;
}

#endif
