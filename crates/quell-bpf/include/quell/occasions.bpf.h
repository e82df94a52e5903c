/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Occasions: how many of a tenant's threads wait behind its ready ones.
 *
 * Problem: Many threads blocked while a few are ready and not running means that interference hits the
 *          critical path. Sampling states misses short occasions.
 * How:     For each tenant the numbers of ready, running and blocked threads are kept. At every change the
 *          time since the last change goes to the bucket of the number that was blocked, if any thread was
 *          ready. One spin lock per tenant makes the numbers agree.
 *          A busy period of the tenant lasts from when one of its threads becomes ready while no other is
 *          ready or runs, until all are blocked again (queueing theory's busy period): where requests come
 *          one at a time, that is the response time as the kernel sees it. A wakeup may be reported after the
 *          tenant became quiet although it began before, where the woken thread's CPU had to be told first:
 *          it continues the busy period.
 * Limits:  Changes on several CPUs reach the lock in an order that may differ from their time stamps by as
 *          long as a CPU waits for the lock; a change that comes late counts from the last one. Every switch
 *          and wakeup of the tenant's threads takes the lock: with one tenant on very many CPUs it is a
 *          shared cache line.
 */
#ifndef QUELL_OCCASIONS_BPF_H
#define QUELL_OCCASIONS_BPF_H

/* What is kept of a tenant. */
struct tenant_occasions {
	struct bpf_spin_lock lock;
	u32 ready; /* threads that are ready */
	u32 blocked; /* threads that are blocked */
	u32 running; /* threads that run */
	u64 last_ns; /* when one of these numbers last changed */
	/* time with a ready thread, by the number of blocked threads; the last entry: that many, or more */
	u64 by_blocked_ns[OCCASION_BUCKETS];
	u64 busy_ns; /* time within busy periods */
	u64 busy_periods; /* busy periods that began */
};

/* Not mapped: the kernel maps no memory with locks in it. Read under the lock (BPF_F_LOCK). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_TENANTS); /* or less, set by the loader */
	__type(key, u32);
	__type(value, struct tenant_occasions);
} occasions SEC(".maps");

/* A thread of the tenant goes from state old to state new. */
static __always_inline void occasion_change(u32 tenant, u32 old, u32 new, u64 now)
{
	if (old == new)
		return;
	struct tenant_occasions *o = bpf_map_lookup_elem(&occasions, &tenant);
	if (!o)
		return;
	bpf_spin_lock(&o->lock);
	bool busy = o->ready || o->running;
	bool later = now > o->last_ns;
	if (now > o->last_ns) {
		if (busy)
			o->busy_ns += now - o->last_ns;
		if (o->ready) {
			u32 bucket = o->blocked;
			if (bucket >= OCCASION_BUCKETS)
				bucket = OCCASION_BUCKETS - 1;
			o->by_blocked_ns[bucket] += now - o->last_ns;
		}
		o->last_ns = now;
	}
	o->ready += (new == STATE_READY) - (old == STATE_READY);
	o->running += (new == STATE_RUNNING) - (old == STATE_RUNNING);
	o->blocked += (new == STATE_BLOCKED) - (old == STATE_BLOCKED);
	if (!busy && later && (o->ready || o->running))
		o->busy_periods++;
	bpf_spin_unlock(&o->lock);
}

#endif
