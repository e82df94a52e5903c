/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Fair shares: keeps what ../policy/fair.h computes with.
 *
 * Problem: Virtual times need a clock that all CPUs of an LLC agree on, and a task's weight depends on how
 *          many tasks of its cgroup are runnable.
 * How:     The vclock and the weight sum of an LLC are sums that a task enters when it becomes runnable and
 *          leaves when it sleeps. At the end of a slice the vclock advances by what the task ran. The members
 *          of a group, tasks and groups, share the group's weight by their own weights, as far as they have
 *          runnable tasks; groups and tasks of the root compete with their own weights.
 * Limits:  A task's weight is as of its last wakeup, end of slice or begin of a run, and its group's weight
 *          up to GROUP_SHARE_TTL older. The vclock lacks what running tasks have not been charged for.
 */
#ifndef QUELL_FAIR_BPF_H
#define QUELL_FAIR_BPF_H

#include "share.bpf.h"

#define GROUP_SHARE_TTL (500 * NS_PER_US)

/* The vclock of the CPU that the task is pinned to; NULL: the task may use several CPUs. */
static __always_inline struct pinned_vclock *pinned_vclock_of(struct task_ctx *t)
{
	u32 cpu = t->pinned_cpu_plus1;

	return cpu && cpu <= MAX_CPUS ? &pinned_vclocks[bounded(cpu - 1, MAX_CPUS)] : NULL;
}

/* The vclock that the task's lag is measured by. */
static __always_inline u64 task_vclock(struct task_ctx *t)
{
	struct llc_ctx *llc = lookup_llc(t->llc);
	struct pinned_vclock *pinned = pinned_vclock_of(t);

	if (!llc)
		return 0;
	u64 clock = *(volatile u64 *)&llc->vclock;
	return pinned ? (*(volatile u64 *)&pinned->llc_vclock_frozen ?: clock) - pinned->behind : clock;
}

/*
 * A task begins to run on a CPU, or goes on there. While a pinned task runs, its vclock stands still between
 * charges.
 */
static __always_inline void freeze_pinned_vclock(struct task_ctx *t, struct llc_ctx *llc, u32 cpu)
{
	if (!options.share)
		pinned_vclocks[bounded(cpu, MAX_CPUS)].llc_vclock_frozen = t->pinned_cpu_plus1 ? llc->vclock
											       : 0;
}

/* The task that ran on the CPU stops. */
static __always_inline void thaw_pinned_vclock(u32 cpu)
{
	if (!options.share)
		pinned_vclocks[bounded(cpu, MAX_CPUS)].llc_vclock_frozen = 0;
}

/* The lag of a task: how far its vtime is behind its vclock. */
static __always_inline s64 task_lag(struct task_ctx *t, u64 now)
{
	return options.share ? (s64)(VCLOCK_START + now - t->vtime) : (s64)(task_vclock(t) - t->vtime);
}

/* The weight that the members of a group share: the group's part of its ancestors' weights. */
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

/* Moves a task to the group that it is to compete in. */
__global_subprog int move_to_group(struct task_ctx *t)
{
	if (!t)
		return 0;
	dequeue_group(t);
	t->group_id = target_group(t);
	return 0;
}

/* Computes the present weight of a runnable task, and makes its group count it. */
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

/* Changes the weight sum of the task's LLC; returns the new sum. */
static __always_inline u64 add_weight_sum(struct task_ctx *t, struct llc_ctx *llc, u64 delta)
{
	struct pinned_vclock *pinned = pinned_vclock_of(t);

	if (pinned)
		__sync_fetch_and_add(&pinned->weight_sum, delta);
	return __sync_fetch_and_add(&llc->weight_sum, delta) + delta;
}

/* A task brings weighted lag to the LLC, or takes some away (negative). */
static __always_inline void add_lag_owed(struct llc_ctx *llc, s64 owed)
{
	if (owed)
		__sync_fetch_and_add(&llc->lag_owed, owed);
}

/* Updates the average vtime of the tasks pinned to a CPU after a task of that weight has moved by shift. */
static __always_inline void shift_pinned_avg(struct pinned_vclock *pinned, s64 shift, s64 weight,
					     u64 weight_sum)
{
	if (weight_sum)
		__sync_fetch_and_add(&pinned->vtime_avg, fair_avg_shift(shift, weight, weight_sum));
}

/* Moves the vtime of an enqueued task. */
static __always_inline void shift_vtime(struct task_ctx *t, s64 shift)
{
	struct pinned_vclock *pinned = pinned_vclock_of(t);

	t->vtime += shift;
	if (pinned)
		shift_pinned_avg(pinned, shift, t->counted_weight, pinned->weight_sum);
}

/*
 * Updates the average vtime of the tasks pinned to a CPU before a task's weight among them changes by delta.
 */
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

/* Advances the vclock for what a task ran, and repays lag that tasks brought or took away. */
static __always_inline void advance_vclock(struct llc_ctx *llc, u64 by, u64 load)
{
	s64 paid = fair_lag_repaid(llc->lag_owed, load, by);

	add_lag_owed(llc, -paid * (s64)load);
	__sync_fetch_and_add(&llc->vclock, by - (paid << 10));
}

/* A task is no longer one of those that compete for its LLC. */
static __always_inline void dequeue_weight(struct task_ctx *t)
{
	u64 counted = t->counted_weight ? __sync_lock_test_and_set(&t->counted_weight, 0) : 0;
	struct llc_ctx *llc = lookup_llc(t->llc);

	if (!counted || !llc)
		return;
	if (options.share) {
		/* First: the task owns its share slot only while it is counted. */
		share_dequeue(t);
	} else {
		add_lag_owed(llc,
			     -fair_weighted_lag(fair_clamp_lag(task_vclock(t) - t->vtime, counted), counted));
		update_pinned_avg(t, -(s64)counted);
	}
	u64 weight_left = add_weight_sum(t, llc, -counted);
	if (!weight_left)
		llc->lag_owed = 0;
}

/* A task begins to compete for an LLC, with its lag. woken: the task slept before. */
static __always_inline void enqueue_weight(struct task_ctx *t, struct task_struct *p, u32 llc_id, u32 cpu,
					   bool woken, u64 now)
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

/* Updates the weight and the affinity of an enqueued task that has been charged up to now. */
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

/* Counts what the task ran for the present request of its process, and copies the process's average. */
static __always_inline void count_request_time(struct task_ctx *t, struct task_struct *p, u64 ran)
{
	struct task_ctx *first = options.requests ? leader_ctx(t, p) : NULL;

	if (!first)
		return;
	t->request_avg_ns = first->request_avg_ns;
	if (ran)
		__sync_fetch_and_add(&first->request_spent_ns, ran);
}

/* Advances the vtime of a task, and the vclock of its LLC, by what the task ran. */
__global_subprog int charge_vtime(struct task_ctx *t, u64 ran)
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
		__sync_fetch_and_add(&pinned->vtime_avg,
				     fair_vtime(ran, weight_sum) -
					     fair_vclock_pull(pinned->vtime_avg - t->vtime, ran));
		if (seen) {
			/*
			 * Where the CPU's pinned tasks are alone in the LLC, no other task takes anything
			 * from them.
			 */
			u64 behind = weight_sum < load
					     ? fair_pinned_behind(clock - pinned->behind - pinned->vtime_avg,
								  clock - seen, ran, weight_sum)
					     : 0;
			pinned->llc_vclock_frozen = clock;
			pinned->behind += behind;
			/* No task is due what the CPU could not give. */
			add_lag_owed(llc, -fair_weighted_lag(behind, weight_sum));
		}
	}
	lag = task_vclock(t) - t->vtime;
	shift_vtime(t, lag - fair_clamp_lag(lag, weight));
	ASSERT_INVARIANT(task_lag(t, 0) == fair_clamp_lag(lag, weight));
	return 0;
}

/* Charges a task for what it ran since it was last charged. stops: the task leaves its CPU. */
static __always_inline void charge_task(struct task_ctx *t, struct task_struct *p, bool stops, u64 now)
{
	u64 ran = now > t->charged_until_ns ? now - t->charged_until_ns : 0;

	t->charged_until_ns += ran;
	t->burst_ns += ran;
	t->chain_busy_ns = deadline_chain_ran(t->chain_busy_ns, ran);
	charge_bandwidth(t, p, stops, now);
	count_request_time(t, p, ran);
	/* CPU time that a server pays for is not part of what is shared. */
	if (options.criticality && t->server_pays)
		share_account_server(t, p, ran);
	else if (options.share)
		share_account_exec(t, p, ran, now);
	else
		charge_vtime(t, ran);
}

/* A task has come to a CPU of another LLC: its lag and its weight move with it. True if it has. */
static __always_inline bool change_llc(struct task_ctx *t, struct task_struct *p, u32 llc_id, u32 cpu,
				       u64 now)
{
	if (!t->counted_weight || t->llc == llc_id || !lookup_llc(llc_id))
		return false;
	dequeue_weight(t);
	enqueue_weight(t, p, llc_id, cpu, false, now);
	return true;
}

/* The lag that a new task begins with. A parent with positive lag gives that lag to the child. */
__global_subprog s64 inherit_lag(struct task_ctx *parent, u64 now)
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
 * A task has waited for a child that exits: it goes on with the child's lag, since it gave its own lag to the
 * child. Both tasks are enqueued and charged up to now.
 */
__global_subprog int inherit_child_lag(struct task_ctx *t, struct task_ctx *child, u64 now)
{
	struct llc_ctx *llc = t ? lookup_llc(t->llc) : NULL;

	if (!t || !child || !llc || !child->counted_weight)
		return 0;
	if (options.share) {
		share_charge(child, now);
		update_vtime(child, now);
		update_vtime(t, now);
	}
	s64 lag = options.share ? task_lag(child, now)
				: fair_wakeup_lag(task_lag(child, now), t->counted_weight);
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

/* How much longer than its lag a task has to wait to make up for the lag, see deadline_lag_scale(). */
static __always_inline u64 task_lag_scale(struct task_ctx *t, struct llc_ctx *llc)
{
	u64 weight_sum = llc->weight_sum, nr_cpus = llc->nr_online;
	struct pinned_vclock *pinned = pinned_vclock_of(t);

	/* A pinned task shares one CPU, where that is the smaller part. */
	if (pinned && pinned->weight_sum * nr_cpus > weight_sum) {
		weight_sum = pinned->weight_sum;
		nr_cpus = 1;
	}
	return deadline_lag_scale(weight_sum, nr_cpus);
}

/* Computes the deadline of a task that has been charged up to now, see ../policy/deadline.h. */
__global_subprog int update_deadline(struct task_ctx *t, u64 now)
{
	struct llc_ctx *llc = t ? lookup_llc(t->llc) : NULL;

	if (!t || !llc)
		return 0;
	if (options.share)
		update_vtime(t, now);
	s64 lag = task_lag(t, now);
	u64 scale = options.share ? deadline_lag_scale(0, 1) : task_lag_scale(t, llc);
	/* With shares the vtime is already taken at the middle of the next slice, see share_vtime(). */
	u64 share = options.share ? deadline_share(lag, SHARE_DEADLINE_DELAY, scale, now)
				  : deadline_share(lag - deadline_slice_lag(t->weight), DEADLINE_SHARE_DELAY,
						   scale, now);
	u64 deadline = share;
	/*
	 * A task that has not slept yet, or that the rate solver does not know yet, has no request deadline.
	 */
	if (options.asymmetry && !t->sched_idle && t->has_slept && !(options.share && rate_is_unknown(t))) {
		u64 work = urgency_work(t->latency_ns, t->burst_avg_ns, t->request_avg_ns, options.stretch);
		u64 start = options.share ? t->woke_at_ns
					  : deadline_request_start(t->woke_at_ns, lag, work, scale, now);
		bool endless = deadline_chain_endless(t->chain_busy_ns, work);
		if (!options.share || share_is_urgent(lag, llc->nr_online))
			deadline = deadline_request(deadline, start, work, t->chain_age_ns, t->burst_ns,
						    t->burst_avg_ns, endless);
		bool messages = options.share ? share_passes_messages(t->burst_avg_ns, t->burst_ns)
					      : deadline_passes_messages(t->burst_avg_ns, t->burst_ns);
		if (endless && messages)
			deadline = deadline_min(deadline, deadline_message(t->woke_at_ns, lag, scale, now));
		else if (t->burst_ns < t->light_run_ns)
			deadline = deadline_light(t->woke_at_ns, t->burst_avg_ns);
	}
	/* Bound (1) of deadline.h. */
	ASSERT_INVARIANT(t->light_run_ns ||
			 !deadline_before(deadline, DEADLINE_BASE + t->woke_at_ns - DEADLINE_LEAD_MAX));
	ASSERT_INVARIANT(!deadline_before(share, deadline));
	t->deadline = deadline;
	t->deadline_is_share = deadline == share;
	if (!t->deadline_is_share)
		t->deadline_pace = 1 << DEADLINE_PACE_SHIFT;
	else
		t->deadline_pace = options.share ? share_deadline_pace(task_rate(t, share_slot_of(t)))
						 : deadline_pace(t->weight, scale);
	return 0;
}

#endif
