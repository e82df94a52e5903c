/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Starvation: a task of little weight does not wait without bound.
 *
 * Problem: A task's deadline is found when the task is queued. Tasks that are due much more overtake it from
 *          then on, for minutes if its weight is small. The kernel's watchdog ends a scheduler under which a
 *          runnable task waits for timeout_ms, 20 s here.
 * How:     Once in STARVED_SCAN_PERIOD a dispatching CPU goes through the DSQs of its LLC and moves tasks
 *          that have waited for FAIR_STARVED_WAIT to the starved DSQ, the longest wait first. Starved tasks
 *          precede all tasks whose deadlines have not passed, and one of them in STARVED_DISPATCH_PERIOD
 *          precedes all others.
 * Bounds:  A wait of FAIR_STARVED_WAIT + STARVED_SCAN_PERIOD, and STARVED_DISPATCH_PERIOD for each other
 *          starved task.
 */
#ifndef QUELL_STARVATION_BPF_H
#define QUELL_STARVATION_BPF_H

#include "task.bpf.h"

#define STARVED_SCAN_PERIOD (500 * NS_PER_MS)

/* A twentieth of a CPU. */
#define STARVED_DISPATCH_PERIOD (20 * FAIR_STARVED_SLICE)

/* Moves the starved tasks of a DSQ to the LLC's starved DSQ. */
__global_subprog int collect_starved_dsq(u64 dsq, u32 llc_id, u64 now)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;

	if (bpf_iter_scx_dsq_new(&it, dsq, 0)) {
		bpf_iter_scx_dsq_destroy(&it);
		return 0;
	}
	while ((p = bpf_iter_scx_dsq_next(&it))) {
		struct task_ctx *t = lookup_task_ctx(p);
		u64 wait_since = t ? t->wait_since_ns : now;
		if (now <= wait_since || now - wait_since <= FAIR_STARVED_WAIT)
			continue;
		if (dsq_move_vtime_slice(&it, p, starved_dsq(llc_id), FAIR_STARVED_SLICE, wait_since))
			set_task_dsq(t, DSQ_KIND_STARVED, llc_id);
	}
	bpf_iter_scx_dsq_destroy(&it);
	return 0;
}

/* collect_starved_dsq() for each of the CPU's own DSQs. */
__global_subprog int collect_starved_cpu(u32 cpu, u32 llc_id, u64 now)
{
	for (u32 nth = 0; nth < CPU_DSQS; nth++) {
		u64 dsq = cpu_dsq(cpu, nth);
		if (dsq)
			collect_starved_dsq(dsq, llc_id, now);
	}
	return 0;
}

/* Collects the starved tasks of an LLC. Call only from ops.dispatch(). */
__global_subprog int collect_starved(u32 llc_id, u64 now)
{
	struct llc_ctx *llc = lookup_llc(llc_id);

	if (!llc)
		return 0;
	if (llc->nr_queued > llc->nr_starved)
		collect_starved_dsq(llc_dsq(llc_id), llc_id, now);
	for (u32 i = 0; i < LLC_CPUS && i < options.nr_cpus && i < llc->nr_cpus; i++) {
		u32 cpu = llc->cpus[i];
		struct cpu_ctx *cpuc = lookup_cpu_ctx(cpu);
		if (cpuc && cpuc->nr_pinned)
			collect_starved_cpu(cpu, llc_id, now);
	}
	return 0;
}

/* Collects starved tasks, if STARVED_SCAN_PERIOD has passed. */
static __always_inline void scan_starved(struct llc_ctx *llc, u32 llc_id, u64 now)
{
	u64 at = llc->starved_scan_at_ns;

	if (now > at + STARVED_SCAN_PERIOD &&
	    __sync_val_compare_and_swap(&llc->starved_scan_at_ns, at, now) == at)
		collect_starved(llc_id, now);
}

/*
 * True if a starved task is to run now: no deadline has passed (first: the earliest; 0: there is none), or
 * STARVED_DISPATCH_PERIOD has since a starved task ran.
 */
static __always_inline bool should_run_starved(struct llc_ctx *llc, u64 first, u64 now)
{
	return llc->nr_starved && (!first || !deadline_before(first, DEADLINE_BASE + now) ||
				   now - llc->starved_dispatched_at_ns > STARVED_DISPATCH_PERIOD);
}

/*
 * Dispatches the starved task that has waited longest, of those that may run on the CPU. True if there was
 * one. Call only from ops.dispatch().
 */
static __always_inline bool dispatch_starved(struct llc_ctx *llc, u32 llc_id, u64 now)
{
	/* All starved tasks may be pinned to other CPUs, which then dispatch them. */
	if (!dsq_move_to_local(starved_dsq(llc_id)))
		return false;
	llc->starved_dispatched_at_ns = now;
	return true;
}

#endif
