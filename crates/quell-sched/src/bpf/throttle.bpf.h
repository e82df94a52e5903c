/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Throttling: the wait of tasks whose groups have used up their runtime.
 *
 * Problem: To the kernel a throttled task is runnable, but it must neither run nor count among the tasks that
 *          share CPUs.
 * How:     Each LLC has a DSQ of throttled tasks, ordered by when their groups' pools will hold runtime
 *          (bandwidth.bpf.h), and a timer for the first of them, which unthrottles tasks with the lag that
 *          they had. A task that was queued before its group ran out of runtime is throttled when it comes to
 *          the head of its DSQ.
 * Limits:  Where a limit is changed, tasks that are throttled already stay so until the end of the period
 *          they wait for, or for a second.
 */
#ifndef QUELL_THROTTLE_BPF_H
#define QUELL_THROTTLE_BPF_H

#include "queue.bpf.h"

/* The number of tasks that one expiry of the timer unthrottles, at most. */
#define UNTHROTTLE_BATCH 64

/* The time between counting a task as throttled and having it in the throttled DSQ, at most. */
#define THROTTLE_DELAY_MAX (1 * NS_PER_MS)

TIMERS(unthrottle_timers, MAX_LLCS);

/* Arms the LLC's unthrottle timer for a time, unless the timer expires before. */
__global_subprog int arm_unthrottle_timer(u32 llc_id, u64 at, u64 now)
{
	struct timer *timer = bpf_map_lookup_elem(&unthrottle_timers, &llc_id);
	struct llc_ctx *llc = lookup_llc(llc_id);

	if (!timer || !llc)
		return 0;
	u64 before = llc->unthrottle_timer_at_ns;
	if (before && before <= at)
		return 0;
	llc->unthrottle_timer_at_ns = at;
	bpf_timer_start(&timer->timer, at > now ? at - now : 1, 0);
	/* Another CPU may have armed the timer for a later time meanwhile. */
	before = *(volatile u64 *)&llc->unthrottle_timer_at_ns;
	if (before && before < at)
		bpf_timer_start(&timer->timer, before > now ? before - now : 1, 0);
	return 0;
}

/*
 * A task becomes throttled: it leaves its LLC's sums, its server and its group. The task keeps its lag, since
 * it is not owed what its limit withholds.
 */
__global_subprog int dequeue_throttled(struct task_ctx *t, u32 llc_id, u64 until, u64 now)
{
	if (!t)
		return 0;
	if (t->counted_weight) {
		t->vlag = task_vclock(t) - t->vtime;
		dequeue_weight(t);
		t->llc = NO_LLC;
	}
	dequeue_server(t);
	dequeue_group(t);
	if (!t->throttled_since_ns)
		t->throttled_since_ns = now;
	set_task_dsq(t, DSQ_KIND_THROTTLED, llc_id);
	arm_unthrottle_timer(llc_id, until, now);
	return 0;
}

/* Puts a task that becomes runnable into the throttled DSQ until a time. flags: as of ops.enqueue(). */
static __always_inline void throttle_task(struct task_ctx *t, struct task_struct *p, u32 cpu, u64 until,
					  u64 flags, u64 now)
{
	u32 llc_id = cpu_llc_id(cpu);

	dequeue_throttled(t, llc_id, until, now);
	dsq_insert_vtime(p, throttled_dsq(llc_id), FAIR_SLICE, until, flags);
}

/* Throttles the tasks at the head of a DSQ whose groups have no runtime. Call only from ops.dispatch(). */
__global_subprog int throttle_dsq_head(u64 dsq, u32 llc_id)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	u64 now = time_ns();

	if (bpf_iter_scx_dsq_new(&it, dsq, 0)) {
		bpf_iter_scx_dsq_destroy(&it);
		return 0;
	}
	for (int i = 0; i < DSQ_SCAN_MAX; i++) {
		p = bpf_iter_scx_dsq_next(&it);
		if (!p)
			break;
		struct task_ctx *t = lookup_task_ctx(p);
		u64 until = t ? throttled_until(t, now) : 0;
		if (!until)
			break;
		/* Not sooner: the timer must not look into the throttled DSQ before the task is there. */
		if (until < now + THROTTLE_DELAY_MAX)
			until = now + THROTTLE_DELAY_MAX;
		if (dsq_move_vtime(&it, p, throttled_dsq(llc_id), until))
			dequeue_throttled(t, llc_id, until, now);
	}
	bpf_iter_scx_dsq_destroy(&it);
	return 0;
}

/* throttle_dsq_head() for each of the CPU's own DSQs. */
__global_subprog int throttle_cpu_dsqs(u32 cpu, u32 llc_id)
{
	for (u32 nth = 0; nth < CPU_DSQS; nth++) {
		u64 dsq = cpu_dsq(cpu, nth);
		if (dsq)
			throttle_dsq_head(dsq, llc_id);
	}
	return 0;
}

/*
 * Throttles the tasks at the heads of the LLC's DSQs whose groups have no runtime. Call only from
 * ops.dispatch().
 */
static __always_inline void throttle_llc_dsqs(struct llc_ctx *llc, u32 llc_id)
{
	if (!bandwidth.nr_groups || !llc->nr_queued)
		return;
	throttle_dsq_head(llc_dsq(llc_id), llc_id);
	if (llc->nr_starved)
		throttle_dsq_head(starved_dsq(llc_id), llc_id);
}

/* Makes a throttled task runnable again; target: the DSQ that the caller is to put the task into. */
__global_subprog int unthrottle_task(struct task_struct *p __arg_trusted, struct task_ctx *t,
				     struct dsq_target *target, u64 now)
{
	if (!t || !target)
		return 0;
	/* As in claim_preemptible_cpu(). */
	bpf_rcu_read_lock();
	activate_task(t, p, scx_bpf_task_cpu(p), false, now);
	update_light(t, p, now);
	t->burst_ns = t->chain_age_ns = 0;
	t->woke_at_ns = now;
	update_deadline(t, now);
	*target = select_dsq(t, p, scx_bpf_task_cpu(p));
	bpf_rcu_read_unlock();
	return 0;
}

/* Makes the idle CPUs of the LLC dispatch. */
static __always_inline void kick_idle_cpus(struct llc_ctx *llc)
{
	for (u32 i = 0; i < LLC_CPUS && i < options.nr_cpus && i < llc->nr_cpus; i++) {
		u32 cpu = llc->cpus[i];
		if (claim_idle_cpu(cpu))
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	}
}

/* Unthrottles the tasks whose groups' pools hold runtime again. */
static int on_unthrottle_timer(void *map, u32 *key, struct timer *value)
{
	struct bpf_iter_scx_dsq it;
	u32 llc_id = *key;
	struct llc_ctx *llc = lookup_llc(llc_id);
	u64 now = time_ns(), next = 0;
	bool released = false;

	if (!llc)
		return 0;
	llc->unthrottle_timer_at_ns = 0;
	if (bpf_iter_scx_dsq_new(&it, throttled_dsq(llc_id), 0)) {
		bpf_iter_scx_dsq_destroy(&it);
		return 0;
	}
	for (int i = 0; i < UNTHROTTLE_BATCH; i++) {
		struct task_struct *p = bpf_iter_scx_dsq_next(&it);
		next = p ? p->scx.dsq_vtime : 0;
		struct task_ctx *t = p ? lookup_task_ctx(p) : NULL;
		if (!t || next > now)
			break;
		u64 until = throttled_until(t, now);
		if (until) {
			dsq_move_vtime(&it, p, throttled_dsq(llc_id), until);
			continue;
		}
		struct dsq_target target = {};
		unthrottle_task(p, t, &target, now);
		dsq_move_vtime_slice(&it, p, target.dsq, target.slice_ns, target.vtime);
		released = true;
	}
	bpf_iter_scx_dsq_destroy(&it);
	if (released) {
		/*
		 * All tasks first, then the CPUs: the task that was throttled first is not the one that runs
		 * first.
		 */
		kick_idle_cpus(llc);
		start_preempt_timer(llc, llc_id, WAKEUP_MIN_RUN, now);
	}
	/* A task that is counted but not yet in the DSQ may have found the timer still armed. */
	if (!next && llc->nr_throttled)
		next = now + THROTTLE_DELAY_MAX;
	if (next)
		arm_unthrottle_timer(llc_id, next, now);
	return 0;
}

#endif
