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
#define PARKED_LOOKED_AT 64

/* From being counted to being there. */
#define PARKING_MOST (1 * NS_PER_MS)

TIMERS(releases, MAX_DOMAINS);

/* Global, so that the verifier looks at it once. */
__noinline int release_at(u32 index, u64 at, u64 now)
{
	struct timer *release = bpf_map_lookup_elem(&releases, &index);
	struct domain *d = domain_at(index);

	if (!release || !d)
		return 0;
	u64 before = d->release_at;
	if (before && before <= at)
		return 0;
	d->release_at = at;
	bpf_timer_start(&release->timer, at > now ? at - now : 1, 0);
	/* Whoever was at it at the same time may have set it to a later time. */
	before = *(volatile u64 *)&d->release_at;
	if (before && before < at)
		bpf_timer_start(&release->timer, before > now ? before - now : 1, 0);
	return 0;
}

/*
 * A thread is to be parked: it is not ready any more. It keeps its lag: what it may not have it is not owed. Global, as release_at() is.
 */
__noinline int leave_ready(struct thread *t, u32 index, u64 until, u64 now)
{
	if (!t)
		return 0;
	if (t->load) {
		t->lag = clock_for(t) - t->virtual;
		leave_load(t);
		t->domain = NO_DOMAIN;
	}
	leave_server(t);
	leave_group(t);
	if (!t->parked_at)
		t->parked_at = now;
	note_queue(t, QUEUE_PARKED, index);
	release_at(index, until, now);
	return 0;
}

static __always_inline void park(struct thread *t, struct task_struct *p, u32 cpu, u64 until, u64 flags, u64 now)
{
	u32 index = domain_index(cpu);

	leave_ready(t, index, until, now);
	insert_ordered(p, parked_queue(index), FAIR_TURN, until, flags);
}

/* Parks those at a queue's front that must not run. Within dispatch only. Global, so that the verifier looks at it once. */
__noinline int park_first(u64 dsq, u32 index)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	u64 now = time_ns();

	if (bpf_iter_scx_dsq_new(&it, dsq, 0)) {
		bpf_iter_scx_dsq_destroy(&it);
		return 0;
	}
	for (int i = 0; i < LOOKED_AT; i++) {
		p = bpf_iter_scx_dsq_next(&it);
		if (!p)
			break;
		struct thread *t = thread_of(p);
		u64 until = t ? limited_until(t, now) : 0;
		if (!until)
			break;
		/* It is not looked at there before all this is done. */
		if (until < now + PARKING_MOST)
			until = now + PARKING_MOST;
		if (move_ordered(&it, p, parked_queue(index), until))
			leave_ready(t, index, until, now);
	}
	bpf_iter_scx_dsq_destroy(&it);
	return 0;
}

/* The same of a CPU's own queues. Global, as that is. */
__noinline int park_own(u32 cpu, u32 index)
{
	for (u32 at = 0; at < OWN_QUEUES; at++) {
		u64 queue = own_queue(cpu, at);
		if (queue)
			park_first(queue, index);
	}
	return 0;
}

/* A parked thread is ready again, and goes there. Global, as park_first() is. */
__noinline int unpark(struct task_struct *p __arg_trusted, struct thread *t, struct place *place, u64 now)
{
	if (!t || !place)
		return 0;
	/* As in preemptible_cpu(). */
	bpf_rcu_read_lock();
	join(t, p, scx_bpf_task_cpu(p), false, now);
	tell_light(t, p, now);
	t->present = t->age = 0;
	t->woke_at = now;
	update_deadline(t, now);
	*place = place_of(t, p, scx_bpf_task_cpu(p));
	bpf_rcu_read_unlock();
	return 0;
}

/* The domain's CPUs that idle look what there is. */
static __always_inline void wake_idle(struct domain *d)
{
	for (u32 i = 0; i < DOMAIN_CPUS && i < options.cpus && i < d->size; i++) {
		u32 cpu = d->cpu[i];
		if (claim_idle(cpu))
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	}
}

/* Makes those ready whose groups' pools hold something again. */
static int on_release(void *map, u32 *key, struct timer *value)
{
	struct bpf_iter_scx_dsq it;
	u32 index = *key;
	struct domain *d = domain_at(index);
	u64 now = time_ns(), next = 0;
	bool released = false;

	if (!d)
		return 0;
	d->release_at = 0;
	if (bpf_iter_scx_dsq_new(&it, parked_queue(index), 0)) {
		bpf_iter_scx_dsq_destroy(&it);
		return 0;
	}
	for (int i = 0; i < PARKED_LOOKED_AT; i++) {
		struct task_struct *p = bpf_iter_scx_dsq_next(&it);
		next = p ? p->scx.dsq_vtime : 0;
		struct thread *t = p ? thread_of(p) : NULL;
		if (!t || next > now)
			break;
		u64 until = limited_until(t, now);
		if (until) {
			move_ordered(&it, p, parked_queue(index), until);
			continue;
		}
		struct place place = {};
		unpark(p, t, &place, now);
		move_queued(&it, p, place.queue, place.slice, place.order);
		released = true;
	}
	bpf_iter_scx_dsq_destroy(&it);
	if (released) {
		/* Not one by one: who was parked first is not who goes first. */
		wake_idle(d);
		start_patience(d, index, ORDER_RUN, now);
	}
	/* One that is counted and not there yet may have found the timer still running. */
	if (!next && d->parked)
		next = now + PARKING_MOST;
	if (next)
		release_at(index, next, now);
	return 0;
}

#endif
