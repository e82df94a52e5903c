/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Processes: which process belongs to which tenant, and the children of each.
 *
 * Problem: Looking through /proc for new processes is late (a short-lived process is never seen), and costs
 *          more than everything else the agent does.
 * How:     User space assigns processes. The kernel adds the children they fork, removes processes that exit,
 *          and queues one small event for each fork, exit, program execution and move to another cgroup, so
 *          that user space looks at those processes only.
 * Limits:  The queue holds PROCESS_EVENTS; while it is full, events are counted as lost and user space looks
 *          through /proc. A process that was created in another cgroup than its creator's (CLONE_INTO_CGROUP)
 *          reports that with the program that it executes.
 */
#ifndef QUELL_PROCESSES_BPF_H
#define QUELL_PROCESSES_BPF_H

#define PROCESS_EVENTS 8192
#define NO_TENANT (~0U)

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set by the loader */
	__type(key, u32);
	__type(value, u32);
} processes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, PROCESS_EVENTS);
	__type(value, struct process_event);
} process_events SEC(".maps");

/* The tenant of a process; NO_TENANT: it is in none. */
static __always_inline u32 tenant_of(u32 tgid)
{
	u32 *tenant = bpf_map_lookup_elem(&processes, &tgid);
	return tenant ? *tenant : NO_TENANT;
}

/* Queues an event for user space. */
static __always_inline void tell(u32 kind, u32 tgid, u32 parent, u32 tenant)
{
	struct process_event event = { kind, tgid, parent, tenant };
	struct monitor_stats *counts = monitor_stats();

	if (bpf_map_push_elem(&process_events, &event, BPF_ANY) && counts)
		__sync_fetch_and_add(&counts->events_lost, 1);
}

/*
 * The tenant of a task that was just created: that of its process, or for a new process that of its creator.
 */
static __always_inline u32 inherit(struct task_struct *task, struct task_struct *creator)
{
	u32 tgid = task->tgid, parent = creator->tgid;
	u32 tenant = tenant_of(tgid);

	if (tenant != NO_TENANT || (u32)task->pid != tgid)
		return tenant;
	tenant = tenant_of(parent);
	if (tenant != NO_TENANT) {
		bpf_map_update_elem(&processes, &tgid, &tenant, BPF_ANY);
		tell(PROCESS_FORKED, tgid, parent, tenant);
	}
	return tenant;
}

#endif
