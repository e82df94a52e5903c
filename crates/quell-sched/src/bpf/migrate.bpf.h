/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Room: who may run anywhere makes way for who may not.
 *
 * Problem: a thread waits for the CPUs that it may use, while others idle; and one of its own runs a thread that may
 *          use the idle ones.
 * How:     where somebody has to wait or a CPU goes idle, such a thread is looked for and preempted, whatever its deadline.
 *          Its CPU takes who waits for it; then it is queued again, and an idle CPU is told to take it.
 *          Where none idles, it displaces what is further ahead than who waits for it, on another CPU. Where the idle CPU is for
 *          a third thread only, that one moves there first.
 * Bounds:  a domain's CPUs are looked at once in ROOM_EVERY at most, by a timer if need be, and once in MOVES_EVERY for each thread
 *          that makes way.
 * Limits:  two threads move in turn, no more. Looks at the CPUs of one domain; of
 *          a queue at its first thread, and before Linux 7.1 at threads bound to one CPU only.
 */
#ifndef QUELL_MIGRATE_BPF_H
#define QUELL_MIGRATE_BPF_H

#include "preempt.bpf.h"
#include "fair.bpf.h"

/* In step with nobody: looks that fall where a thread with a period begins to run never see its CPU idle. */
#define ROOM_EVERY (973 * NS_PER_US)
/* A move costs some 10 us; and who loses its CPU again and again is to have one that it is due as often. */
#define MOVES_EVERY (400 * NS_PER_US)
#define ROOM_LEAST (100 * NS_PER_US)

/* So many CPUs' threads are looked at for one that makes way for another that would. */
#define ASKED 4

/* What is later by less is not worth a move. */
#define MOVES_FOR (20 * NS_PER_MS)

/* Of who runs on a CPU that it leaves to one that will leave its own to one that waits. */
enum aside {
	STAYS,
	GOES,
	GONE, /* an idle CPU was told to take it */
};

enum movable {
	BOUND,	   /* to one CPU */
	MOVABLE,   /* may run on some others */
	ANYWHERE,
};

/* Who runs on a CPU now. */
static __always_inline void note_movable(struct cpu_slot *slot, struct task_struct *p)
{
	u32 allowed = p->nr_cpus_allowed;

	slot->movable = allowed == 1 ? BOUND : allowed < options.cpus ? MOVABLE : ANYWHERE;
}

/* Preempts what runs there, if that can go on elsewhere. */
static __always_inline bool clear_cpu(u32 cpu)
{
	struct cpu_slot *slot = cpu_at(cpu);
	bool clears;

	if (!slot || slot->deadline == ORDER_NONE || slot->movable == BOUND)
		return false;
	clears = slot->movable == ANYWHERE;
	if (!clears) {
		struct task_struct *runs = bpf_task_from_pid(slot->tid);
		if (runs) {
			clears = idles_for(runs);
			bpf_task_release(runs);
		}
	}
	if (clears)
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	return clears;
}

static __always_inline bool clear_one_of(struct task_struct *p, struct domain *d)
{
	for (u32 i = 0; i < DOMAIN_CPUS && i < options.cpus && i < d->size; i++) {
		u32 cpu = d->cpu[i];
		if (may_use(p, cpu) && clear_cpu(cpu))
			return true;
	}
	return false;
}

/* The first of a domain's queues, where it can be looked at. */
static __always_inline struct task_struct *first_waiting(struct domain *d, u32 index)
{
	if (!d->queued || !can_peek())
		return NULL;
	return scx_bpf_dsq_peek(ready_queue(index));
}

/*
 * Whether a thread waits for a CPU whose thread would come to this one, if that were left to it. Global, so that the verifier looks
 * at it once.
 */
__noinline int waits_for_two(u32 index, u32 cpu)
{
	struct domain *d = domain_at(index);
	bool found = false;

	if (!d)
		return false;
	bpf_rcu_read_lock();
	struct task_struct *p = first_waiting(d, index);
	for (u32 i = 0; i < DOMAIN_CPUS && i < options.cpus && i < d->size; i++) {
		u32 other = d->cpu[i];
		struct cpu_slot *slot = cpu_at(other);
		if (!slot)
			break;
		if (slot->deadline == ORDER_NONE || slot->movable != MOVABLE ||
		    !(slot->pinned || (p && may_use(p, other))))
			continue;
		struct task_struct *runs = bpf_task_from_pid(slot->tid);
		if (!runs)
			continue;
		found = may_use(runs, cpu);
		bpf_task_release(runs);
		if (found)
			break;
	}
	bpf_rcu_read_unlock();
	return found;
}

/*
 * Where a CPU idles and who waits may not use it, makes a thread move there: one that runs where that could, or where one could that
 * would leave its CPU to it. Global, as that is.
 */
__noinline int find_room(u32 index)
{
	struct domain *d = domain_at(index);
	u32 asked = 0;

	if (!d || !(d->pinned || d->queued) || !idles_for(NULL))
		return 0;
	bool done = false;
	bpf_rcu_read_lock();
	for (u32 i = 0; d->pinned && !done && i < DOMAIN_CPUS && i < options.cpus && i < d->size; i++) {
		u32 cpu = d->cpu[i];
		struct cpu_slot *slot = cpu_at(cpu);
		if (!slot)
			break;
		done = slot->pinned && clear_cpu(cpu);
	}
	struct task_struct *p = done ? NULL : first_waiting(d, index);
	if (p)
		done = idles_for(p) || clear_one_of(p, d);
	bpf_rcu_read_unlock();
	if (done)
		return 0;
	for (u32 i = 0; i < DOMAIN_CPUS && i < options.cpus && i < d->size && asked < ASKED; i++) {
		u32 cpu = d->cpu[i];
		struct cpu_slot *slot = cpu_at(cpu);
		if (!slot)
			break;
		if (slot->deadline == ORDER_NONE || slot->movable != ANYWHERE)
			continue;
		asked++;
		if (waits_for_two(index, cpu)) {
			scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
			break;
		}
	}
	return 0;
}

TIMERS(rooms, MAX_DOMAINS);

static int on_room(void *map, u32 *key, struct timer *value)
{
	struct domain *d = domain_at(*key);

	if (!d)
		return 0;
	d->room_due = 0;
	if (idles_for(NULL)) {
		d->room_at = time_ns();
		find_room(*key);
	}
	return 0;
}

/* Looks for room as soon as it may, if nobody does. */
static __always_inline void look_for_room(struct domain *d, u32 index, u64 now)
{
	struct timer *room = bpf_map_lookup_elem(&rooms, &index);
	u64 at = d->room_at + ROOM_EVERY, least = now + ROOM_LEAST;

	if (room && !d->room_due && !__sync_val_compare_and_swap(&d->room_due, 0, 1) &&
	    bpf_timer_start(&room->timer, (at > least ? at : least) - now, 0))
		d->room_due = 0;
}

/* A thread has to wait for CPUs that it may use. It is not in its queue yet, and whom it had to make way for does not run yet. */
static __always_inline void make_room(struct task_struct *p, u32 index, u64 now)
{
	struct domain *d = domain_at(index);

	if (d && p->nr_cpus_allowed < options.cpus)
		look_for_room(d, index, now);
}

/*
 * A CPU of the domain goes idle: those that wait may not use it, or have just been queued and will be seen. left: one made way for
 * another to come here.
 */
static __always_inline void use_room(struct domain *d, u32 index, bool left)
{
	u64 at = d->room_at, now = time_ns();

	if (!left && !(d->pinned || d->queued))
		return;
	if (left || (now - at > ROOM_EVERY && __sync_val_compare_and_swap(&d->room_at, at, now) == at))
		find_room(index);
	else
		look_for_room(d, index, now);
}

/*
 * Whether a thread that runs here can go on elsewhere, and one that waits for this CPU, or for one whose thread would come here
 * then, cannot.
 */
static __always_inline bool makes_way(struct task_struct *prev, u32 cpu, struct domain *d, u32 index)
{
	struct cpu_slot *slot = cpu_at(cpu);
	struct task_struct *p;

	/* One that may not migrate now; what BPF counts for itself is one. */
	if (!slot || prev->nr_cpus_allowed == 1 || prev->migration_disabled > 1 ||
	    !(d->pinned || d->queued) || !idles_for(prev))
		return false;
	if (slot->pinned)
		return true;
	p = first_waiting(d, index);
	if (p && idles_for(p))
		return false;
	if (p && may_use(p, cpu))
		return true;
	slot->aside = waits_for_two(index, cpu) ? GOES : STAYS;
	return slot->aside == GOES;
}

/* Claims for a thread a CPU of the domain that runs what is later than that; it is told once the thread is queued. */
static __always_inline bool displaces(struct task_struct *p, struct thread *t, u64 least, u32 index, u64 now)
{
	if (p->nr_cpus_allowed == 1 || p->migration_disabled > 1 || now - t->moved_at <= MOVES_EVERY)
		return false;
	t->moved_at = now;
	s32 cpu = preemptible_cpu(p, t, least, now);
	t->displaces = cpu + 1;
	return cpu >= 0;
}

/*
 * Whether the thread that runs here goes on elsewhere, as one waits for this CPU that may not run everywhere (limited: its deadline), and
 * another CPU runs what is later than that one by enough.
 */
static __always_inline bool moves_on(struct task_struct *prev, struct thread *t, u64 limited, u32 index, u64 now)
{
	return displaces(prev, t, limited + MOVES_FOR, index, now);
}

/* A thread that had to make way is queued: elsewhere somebody may be later. */
static __always_inline void displace(struct task_struct *p, struct thread *t, u64 now)
{
	u32 index = t->domain;

	if (!domain_at(index))
		return;
	if (t->displaces || displaces(p, t, t->deadline + MOVES_FOR, index, now))
		scx_bpf_kick_cpu(t->displaces - 1, SCX_KICK_PREEMPT);
	t->displaces = 0;
}

#endif
