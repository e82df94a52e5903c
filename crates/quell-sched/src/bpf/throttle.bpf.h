/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Parking: where threads wait whose groups have used up their limits.
 *
 * Problem: they are ready to the kernel, but must neither run nor count as what CPUs are shared among.
 * How:     each domain has a queue of them, ordered by when their groups' pools will hold something (bandwidth.bpf.h), and a timer for
 *          the first. Then they are ready again, with the lag that they had. Who was queued before its group's pool was empty is parked when it
 *          comes to the front.
 * Limits:  whose limit is changed while they wait, wait until the period ends that they are parked for, or a second.
 */
#ifndef QUELL_THROTTLE_BPF_H
#define QUELL_THROTTLE_BPF_H

#include "queue.bpf.h"

/* So many are looked at at once. */
#define UNTHROTTLE_BATCH 64

/* From being counted to being there. */
#define THROTTLE_DELAY_MAX (1 * NS_PER_MS)

TIMERS(unthrottle_timers, MAX_LLCS);

/* Global, so that the verifier looks at it once. */
__noinline int arm_unthrottle_timer(u32 llc_id, u64 at, u64 now)
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
	/* Whoever was at it at the same time may have set it to a later time. */
	before = *(volatile u64 *)&llc->unthrottle_timer_at_ns;
	if (before && before < at)
		bpf_timer_start(&timer->timer, before > now ? before - now : 1, 0);
	return 0;
}

/*
 * A thread is to be parked: it is not ready any more. It keeps its lag: what it may not have it is not owed. Global, as release_at() is.
 */
__noinline int dequeue_throttled(struct task_ctx *t, u32 llc_id, u64 until, u64 now)
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

static __always_inline void throttle_task(struct task_ctx *t, struct task_struct *p, u32 cpu, u64 until, u64 flags, u64 now)
{
	u32 llc_id = cpu_llc_id(cpu);

	dequeue_throttled(t, llc_id, until, now);
	dsq_insert_vtime(p, throttled_dsq(llc_id), FAIR_SLICE, until, flags);
}

/* Parks those at a queue's front that must not run. Within dispatch only. Global, so that the verifier looks at it once. */
__noinline int throttle_dsq_head(u64 dsq, u32 llc_id)
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
		/* It is not looked at there before all this is done. */
		if (until < now + THROTTLE_DELAY_MAX)
			until = now + THROTTLE_DELAY_MAX;
		if (dsq_move_vtime(&it, p, throttled_dsq(llc_id), until))
			dequeue_throttled(t, llc_id, until, now);
	}
	bpf_iter_scx_dsq_destroy(&it);
	return 0;
}

/* The same of a CPU's own queues. Global, as that is. */
__noinline int throttle_cpu_dsqs(u32 cpu, u32 llc_id)
{
	for (u32 nth = 0; nth < CPU_DSQS; nth++) {
		u64 dsq = cpu_dsq(cpu, nth);
		if (dsq)
			throttle_dsq_head(dsq, llc_id);
	}
	return 0;
}

/* A parked thread is ready again, and goes there. Global, as park_first() is. */
__noinline int unthrottle_task(struct task_struct *p __arg_trusted, struct task_ctx *t, struct dsq_target *target, u64 now)
{
	if (!t || !target)
		return 0;
	/* As in preemptible_cpu(). */
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

/* The domain's CPUs that idle look what there is. */
static __always_inline void kick_idle_cpus(struct llc_ctx *llc)
{
	for (u32 i = 0; i < LLC_CPUS && i < options.nr_cpus && i < llc->nr_cpus; i++) {
		u32 cpu = llc->cpus[i];
		if (claim_idle_cpu(cpu))
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	}
}

/* Makes those ready whose groups' pools hold something again. */
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
		/* Not one by one: who was parked first is not who goes first. */
		kick_idle_cpus(llc);
		start_preempt_timer(llc, llc_id, WAKEUP_MIN_RUN, now);
	}
	/* One that is counted and not there yet may have found the timer still running. */
	if (!next && llc->nr_throttled)
		next = now + THROTTLE_DELAY_MAX;
	if (next)
		arm_unthrottle_timer(llc_id, next, now);
	return 0;
}

#endif
