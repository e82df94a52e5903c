/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Waits: what had the CPU while a thread was ready.
 *
 * Problem: "This thread waited for 3 ms" is no help without the tenant that had the CPU meanwhile. Recording
 *          every switch, for user space to work that out, costs more than the answer is worth.
 * How:     Each CPU keeps a short log of its time's owners (enum cause): a tenant, the rest of the host, or
 *          no task. Runs of one tenant in a row are one segment. When a wait on the CPU ends, or moves to
 *          another CPU, the log is walked back over the wait, and each overlap is added to the waiting
 *          tenant's row. Time stolen by the hypervisor, and time for which a bandwidth limit throttled the
 *          thread, come from the kernel's own counters; they are taken off the other causes in proportion. A
 *          row's sum is exactly the time for which the tenant's threads were ready or throttled, as far as
 *          charged.
 * Limits:  What lies further back than LOG_SEGMENTS changes is "unknown". The kernel updates steal time at
 *          its tick or when a run queue's clock is read, so a short wait may see all or none of a stretch of
 *          steal. After a waiting thread changed CPU, neither steal nor throttled time is known for the rest
 *          of the wait, which is charged to what ran.
 */
#ifndef QUELL_WAITS_BPF_H
#define QUELL_WAITS_BPF_H

#define NOT_KNOWN (~0ULL)

/*
 * For how long bandwidth limits throttled a task, or its run queue: only differences count. A scheduler that
 * enforces limits itself defines its own.
 */
#ifndef QUELL_LIMITED_OF
static __always_inline u64 limited_of(struct task_struct *task)
{
	return throttled_of(task);
}
#endif

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* possible CPUs, set by the loader */
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct cpu_log);
} cpu_logs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_TENANTS); /* or less, set by the loader */
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct wait_row);
} wait_rows SEC(".maps");

/* Ends the present segment, of owner who, at now; next owns the CPU from then on. */
static __always_inline void log_switch(struct cpu_log *log, u32 who, u32 next, u64 steal,
					u64 now)
{
	u32 head = log->head;
	u32 last = (head - 1) & (LOG_SEGMENTS - 1);

	if (head && log->segments[last].who == who) {
		log->segments[last].end_ns = now;
	} else {
		u32 slot = head & (LOG_SEGMENTS - 1);
		log->segments[slot].end_ns = now;
		log->segments[slot].who = who;
		log->head = head + 1;
	}
	store_release(&log->seq, log->seq + 1);
	if (!log->first_ns)
		log->first_ns = now;
	else if (who == CAUSE_IDLE)
		log->idle_ns += now - log->last_ns;
	log->last_ns = now;
	log->steal_ns = steal;
	log->running = next;
	store_release(&log->seq, log->seq + 1);
}

/* A thread is ready on this CPU from now on. */
static __always_inline void wait_on(struct thread_slot *slot, struct task_struct *task, u32 cpu)
{
	slot->cpu = cpu;
	slot->steal_ns = steal_of(task);
	slot->throttled_ns = limited_of(task);
}

/* A thread is ready on a CPU whose run queue the task is not on yet. */
static __always_inline void wait_elsewhere(struct thread_slot *slot, u32 cpu)
{
	slot->cpu = cpu;
	slot->steal_ns = NOT_KNOWN;
	slot->throttled_ns = NOT_KNOWN;
}

/* By how much a kernel counter advanced since the wait began, at most limit. */
static __always_inline u64 counter_delta(u64 before, u64 after, u64 limit)
{
	if (before == NOT_KNOWN || after <= before)
		return 0;
	return after - before < limit ? after - before : limit;
}

/* Adds a part of a wait, in ns, to a tenant's row. */
static __always_inline void charge_part(struct wait_row *row, u64 who, u64 ns)
{
	if (!ns || who >= CAUSES)
		return;
	u64 bit = 1ULL << (who % CAUSE_BITS);
	u64 *changed = &row->changed[who / CAUSE_BITS];
	/*
	 * The time before the bit: a reader that clears a bit that was set already reads a time with this
	 * part.
	 */
	__sync_fetch_and_add(&row->ns[who], ns);
	if (!(*(volatile u64 *)changed & bit))
		__sync_fetch_and_or(changed, bit);
}

/* Ratios are in 1/2^RATIO_BITS: without overflow for waits of up to some hours. */
#define RATIO_BITS 20

/* Charges the part of the uncharged wait that lies after start to owner who. False if nothing is left. */
static __always_inline bool charge_segment(struct thread_slot *slot, struct wait_row *row,
					   u64 start, u64 who)
{
	u64 from = *(volatile u64 *)&slot->walk.from;
	u64 upper = *(volatile u64 *)&slot->walk.upper;
	u64 rest = *(volatile u64 *)&slot->walk.rest;
	u64 ratio = *(volatile u64 *)&slot->walk.ratio;
	u64 lower = start > from ? start : from;

	if (lower >= upper)
		return upper > from;
	u64 part = ((upper - lower) * ratio) >> RATIO_BITS;
	if (part > rest)
		part = rest;
	charge_part(row, who, part);
	*(volatile u64 *)&slot->walk.rest = rest - part;
	*(volatile u64 *)&slot->walk.upper = lower;
	return start > from;
}

/* The part of charge() that does not need the task; from and now are in the slot's walk. */
__global_subprog int charge_wait(struct thread_slot *slot, u32 cpu, u64 steal_ns, u64 throttled_ns)
{
	if (!slot)
		return 0;
	u32 tenant = slot->tenant;
	u64 from = slot->walk.from, now = slot->walk.upper;
	struct wait_row *row = bpf_map_lookup_elem(&wait_rows, &tenant);
	struct cpu_log *log = bpf_map_lookup_elem(&cpu_logs, &cpu);
	u64 total, rest, stolen, throttled, ratio = 1ULL << RATIO_BITS;

	if (!row || now <= from)
		return 0;
	total = rest = now - from;
	throttled = counter_delta(slot->throttled_ns, throttled_ns, rest);
	rest -= throttled;
	slot->ready_ns += rest;
	slot->limited_ns += throttled;
	if (!log) {
		charge_part(row, CAUSE_BANDWIDTH, throttled);
		charge_part(row, CAUSE_UNKNOWN, rest);
		return 0;
	}

	stolen = counter_delta(slot->steal_ns, steal_ns, rest);
	rest -= stolen;
	if (stolen | throttled) {
		charge_part(row, CAUSE_STEAL, stolen);
		charge_part(row, CAUSE_BANDWIDTH, throttled);
		ratio = (rest << RATIO_BITS) / total;
	}

	/*
	 * What is left of the wait, to be charged from its end to its start. In the slot and not in
	 * variables: the verifier would follow the values of variables through every iteration of the loop
	 * along every path, which is more than it accepts.
	 */
	slot->walk.rest = rest;
	slot->walk.ratio = ratio;
	/* The segment that has not ended comes first (none at a switch: it was ended just now). */
	charge_segment(slot, row, log->last_ns, log->running);
	u32 head = log->head;
	for (u32 i = 1; i < LOG_SEGMENTS; i++) {
		u32 at = (head - i) & (LOG_SEGMENTS - 1);
		u64 start = log->segments[(at - 1) & (LOG_SEGMENTS - 1)].end_ns;
		if (!start) /* the first ever */
			break;
		if (!charge_segment(slot, row, start, log->segments[at].who))
			break;
	}
	charge_part(row, CAUSE_UNKNOWN, *(volatile u64 *)&slot->walk.rest);
	return 0;
}

/*
 * Adds a wait on cpu, from until now, to the thread's ready and limited time, and charges the wait to what
 * ran on that CPU. The CPU's run queue is locked, so its log stands still.
 */
static __always_inline void charge(struct thread_slot *slot, struct task_struct *task, u32 cpu,
				   u64 from, u64 now)
{
	slot->walk.from = from;
	slot->walk.upper = now;
	charge_wait(slot, cpu, steal_of(task), limited_of(task));
}

#endif
