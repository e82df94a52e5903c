/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Observing: counts what the agent's monitor counts, from the scheduler's own operations.
 *
 * Problem: The agent needs each tenant task's run and wait time. The monitor's trace points would run for
 *          each switch and wakeup right beside the scheduler's own operations.
 * How:     The same code (quell/threads.bpf.h) and the monitor's own maps, which the loader puts in place of
 *          the maps declared there. The monitor detaches its trace points for switches, wakeups and
 *          migrations meanwhile, and keeps those for the begin and the end of tasks and for processes.
 * Limits:  A task in an LLC's DSQ waits for no CPU in particular; its wait is charged to what ran on the CPU
 *          that it gets. Tasks of other classes (real-time) are not seen: their time is the host's. The waker
 *          of a pinned task is not known if the kernel wakes the task by an interrupt on the task's CPU.
 */
#ifndef QUELL_SCHED_OBSERVE_BPF_H
#define QUELL_SCHED_OBSERVE_BPF_H

#include "bandwidth.bpf.h"
#include <quell/observe.h>

/* The scheduler enforces bandwidth limits itself; the kernel's counters of throttled time stand still. */
#define QUELL_LIMITED_OF
static __always_inline u64 limited_of(struct task_struct *p)
{
	struct task_ctx *t = bandwidth.nr_groups ? lookup_task_ctx(p) : NULL;

	return t ? throttled_time(t) : 0;
}

#include <quell/waits.bpf.h>
#include <quell/occasions.bpf.h>
#include <quell/wakers.bpf.h>
#include <quell/threads.bpf.h>

/* The longest gap between two tasks, in ns, that counts as a switch. In a longer one another class ran. */
#define SWITCH_TIME_MAX (20 * NS_PER_US)

/* The current task, or an interrupt, wakes a task. */
static __always_inline void observe_wake(struct task_struct *p)
{
	if (!options.observe)
		return;
	struct thread_slot *slot = slot_of(p);
	struct task_struct *waker = bpf_get_current_task_btf();
	if (!slot)
		return;
	if (waker->pid != p->pid) {
		*(volatile u64 *)&slot->waking_ns = bpf_ktime_get_ns();
		if (!in_interrupt(waker))
			count_waker(slot, id_of_task(waker));
	}
	thread_woken(slot, p, false);
}

/* Logs the time since the last task stopped as the host's, if it is longer than a switch. */
static __always_inline void log_others(struct cpu_log *log, u64 now)
{
	u64 left = log->left_ns;

	log->left_ns = 0;
	if (left && now - left > SWITCH_TIME_MAX && log->first_ns)
		log_switch(log, log->running, CAUSE_HOST, log->steal_ns, left);
}

/* A task begins to run on a CPU. */
static __always_inline void observe_running(struct task_struct *p, u32 cpu)
{
	if (!options.observe)
		return;
	struct cpu_log *log = bpf_map_lookup_elem(&cpu_logs, &cpu);
	struct thread_slot *slot = slot_of(p);
	u64 now = bpf_ktime_get_ns();
	if (!log)
		return;
	log_others(log, now);
	log_switch(log, log->first_ns ? log->running : CAUSE_UNKNOWN, slot ? slot->tenant : CAUSE_HOST,
		   steal_of(p), now);
	log->tid = p->pid;
	if (!slot)
		return;
	if (slot->cpu != cpu) {
		u64 limited = slot->throttled_ns;
		slot->migrations++;
		wait_elsewhere(slot, cpu);
		slot->throttled_ns = limited; /* throttled time belongs to the task, whatever CPU it gets */
	}
	switch_in(slot, p, cpu, now, now);
}

/* A task stops running on a CPU. runnable: it still wants to run. */
static __always_inline void observe_stopping(struct task_struct *p, u32 cpu, bool runnable)
{
	if (!options.observe)
		return;
	struct cpu_log *log = bpf_map_lookup_elem(&cpu_logs, &cpu);
	struct thread_slot *slot = slot_of(p);
	u64 now = bpf_ktime_get_ns();
	if (log)
		log->left_ns = now;
	if (slot)
		switch_out(slot, p, runnable, cpu, now, now);
}

/* A CPU begins or ceases to idle. */
static __always_inline void observe_idle(u32 cpu, bool idle)
{
	if (!options.observe)
		return;
	struct cpu_log *log = bpf_map_lookup_elem(&cpu_logs, &cpu);
	u64 now = bpf_ktime_get_ns();
	if (!log)
		return;
	if (!idle) {
		log->left_ns = now;
		return;
	}
	struct task_struct *current = bpf_get_current_task_btf();
	log_others(log, now);
	if (log->first_ns && log->running != CAUSE_IDLE)
		log_switch(log, log->running, CAUSE_IDLE, steal_of(current), now);
	log->tid = 0;
}

#endif
