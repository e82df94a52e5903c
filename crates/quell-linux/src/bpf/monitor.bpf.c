/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The monitor's programs: the scheduler's trace points, and a pass over all tasks.
 *
 * Each trace point looks up the thread's slot and does what the headers describe:
 *
 *   waits.bpf.h      which tenant had each CPU, and for which tenant ready threads waited
 *   occasions.bpf.h  how many of a tenant's threads are blocked while others are ready
 *   wakers.bpf.h     which threads wake a thread
 *   threads.bpf.h    the thread's states and counters
 *   processes.bpf.h  which processes belong to which tenant
 */
#include <quell/kernel.bpf.h>
#include <quell/observe.h>
#include <quell/waits.bpf.h>
#include <quell/occasions.bpf.h>
#include <quell/wakers.bpf.h>
#include <quell/threads.bpf.h>
#include <quell/processes.bpf.h>

/*
 * Up to when user space has read all counters: what was reported of the time before does not change any more.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} told SEC(".maps");

/* Linux 5.18 added a fourth argument, the previous state: not needed, see below. */
SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	u64 now = bpf_ktime_get_ns();
	u32 cpu = bpf_get_smp_processor_id();
	struct cpu_log *log = bpf_map_lookup_elem(&cpu_logs, &cpu);
	struct thread_slot *out = slot_of(prev), *in = slot_of(next);

	if (!log)
		return 0;
	/* A thread that has exited has no slot; the log knows its tenant. */
	u32 who = out ? out->tenant : log->first_ns ? log->running : CAUSE_UNKNOWN;
	u32 then = in ? in->tenant : next->pid ? CAUSE_HOST : CAUSE_IDLE;
	u32 zero = 0;
	u64 *read = bpf_map_lookup_elem(&told, &zero);
	u64 arrived = now;
	if (log->tid != (u32)prev->pid && log->first_ns) {
		arrived = arrived_at(prev, log->last_ns, now);
		if (read && arrived < *read)
			arrived = *read < now ? *read : now;
		switch_missed(log->tid, log->last_ns, arrived);
		if (arrived > log->last_ns && arrived < now)
			log_switch(log, log->running, who, log->steal_ns, arrived);
	}
	log->tid = next->pid;
	log_switch(log, who, then, steal_of(next), now);
	/*
	 * The kernel lets a preempted task sleep only after it ran again, whatever its state says.
	 * The state is safe to read here: a wakeup on another CPU can have made it TASK_WAKING, but
	 * TASK_RUNNING only under this run queue's lock.
	 */
	if (out)
		switch_out(out, prev, preempt || !prev->__state, cpu, arrived, now);
	if (in)
		switch_in(in, next, cpu, read ? *read : now, now);
	return 0;
}

/* In the waker's context, before the woken thread is given to a CPU. */
SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *task)
{
	struct task_struct *waker = bpf_get_current_task_btf();
	struct thread_slot *slot = slot_of(task);

	if (!slot || waker->pid == task->pid)
		return 0;
	*(volatile u64 *)&slot->waking_ns = bpf_ktime_get_ns();
	if (!in_interrupt(waker))
		count_waker(slot, id_of_task(waker));
	return 0;
}

/* The run queue that the thread is on now is locked. */
SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *task)
{
	struct thread_slot *slot = slot_of(task);

	if (slot)
		thread_woken(slot, task, false);
	return 0;
}

/*
 * The first moment of a new thread, also of one without a fork: the fork trace point misses the threads that
 * the kernel adds to a process (io_uring's workers, vhost's).
 */
SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_new, struct task_struct *task)
{
	struct task_struct *creator = bpf_get_current_task_btf();
	u32 tenant = inherit(task, creator);

	if (tenant == NO_TENANT)
		return 0;
	struct thread_slot *slot = slot_of(task);
	if (!slot)
		slot = follow(task, tenant, id_of_task(creator), bpf_ktime_get_ns());
	if (slot)
		thread_woken(slot, task, true);
	return 0;
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *task, int to)
{
	struct thread_slot *slot = slot_of(task);

	if (slot)
		thread_migrated(slot, task, to, bpf_ktime_get_ns());
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *task, int old_tid)
{
	u32 tgid = task->tgid, tenant = tenant_of(tgid), former = old_tid;
	struct thread_slot *slot = slot_of(task);

	tell(PROCESS_CHANGED, tgid, 0, tenant);
	if (tenant == NO_TENANT)
		return 0;
	if (slot) {
		refresh_settings(slot, task);
		return 0;
	}
	/* A thread other than the first executed: it has taken the first one's id and start time. */
	u64 now = bpf_ktime_get_ns(), creator = 0;
	u16 *entry = tid_entry(former);
	u32 index = entry ? *entry : 0;
	struct thread_slot *old = index ? bpf_map_lookup_elem(&threads, &index) : NULL;
	if (old && old->tid == former && old->tgid == tgid) {
		creator = old->creator;
		if (end_slot(old, task, false, now))
			*entry = 0;
	}
	slot = follow(task, tenant, creator, now);
	u64 stamp;
	if (slot && change_begin(slot, &stamp))
		change_end(slot, stamp, STATE_RUNNING, now, now);
	return 0;
}

/* Once for each hierarchy, and with all its threads or only this one. */
SEC("tp_btf/cgroup_attach_task")
int BPF_PROG(on_attach, struct cgroup *to, const char *path, struct task_struct *task)
{
	u32 tgid = task->tgid;

	if ((u32)task->pid == tgid)
		tell(PROCESS_CHANGED, tgid, 0, tenant_of(tgid));
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task)
{
	u32 tgid = task->tgid;
	struct thread_slot *slot = slot_of(task);

	if (slot) {
		refresh_settings(slot, task);
		if (end_slot(slot, task, true, bpf_ktime_get_ns()))
			forget_tid(task->pid);
	}
	if (task->signal->live.counter == 0) {
		u32 tenant = tenant_of(tgid);
		if (tenant != NO_TENANT && !bpf_map_delete_elem(&processes, &tgid))
			tell(PROCESS_EXITED, tgid, 0, tenant);
	}
	return 0;
}

/* Events count from now on. If no event came since, the slot's state is what the task is doing. */
static __always_inline void see(struct thread_slot *slot, struct task_struct *task, u64 now)
{
	u64 unseen = now << STATE_BITS | STATE_UNSEEN;
	u32 state = STATE_BLOCKED, tenant = slot->tenant;

	if (task->on_cpu) {
		state = task->__state ? STATE_UNSEEN : STATE_RUNNING;
	} else if (task->on_rq) {
		state = STATE_READY;
		if (bpf_core_field_exists(task->se.sched_delayed) && task->se.sched_delayed)
			state = STATE_BLOCKED;
	} else if (!task->__state) {
		state = STATE_UNSEEN;
	}
	if (state == STATE_READY) {
		slot->wait_began_ns = now;
		wait_on(slot, task, cpu_of(task));
	}
	slot->halted = halt_of(task);
	if (state != STATE_UNSEEN &&
	    __sync_val_compare_and_swap(&slot->stamp, unseen, now << STATE_BITS | state) == unseen)
		occasion_change(tenant, STATE_UNSEEN, state, now);
}

/*
 * After a change of which processes are assigned: gives slots to their threads, and takes them from others.
 */
SEC("iter/task")
int sync_task(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;

	if (!task)
		return 0;
	u32 tenant = tenant_of(task->tgid);
	struct thread_slot *slot = slot_of(task);
	u64 now = bpf_ktime_get_ns();

	if (slot && slot->tenant != tenant) {
		for (int i = 0; i < 16; i++) {
			if (end_slot(slot, task, false, now)) {
				forget_tid(task->pid);
				break;
			}
		}
		slot = slot_of(task);
	}
	/* A new task (0x800) gets its slot at its first wakeup. */
	if (slot || tenant == NO_TENANT || task->flags & PF_EXITING || task->__state == 0x800)
		return 0;
	slot = follow(task, tenant, 0, now);
	if (!slot)
		return 0;
	see(slot, task, now);
	/* The task may have exited before it had the slot. */
	if (task->flags & PF_EXITING && end_slot(slot, task, false, now))
		forget_tid(task->pid);
	return 0;
}

/*
 * After the scheduler takes over from these trace points, or gives back: what threads were doing may be over.
 * The time since then is charged to what they did last, and waits to no tenant, so that no counter goes
 * backwards.
 */
SEC("iter/task")
int see_again(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct thread_slot *slot = task ? slot_of(task) : NULL;
	u64 old;

	if (!slot || !change_begin(slot, &old))
		return 0;
	u64 now = bpf_ktime_get_ns(), ns = since(old, now);
	if ((old & STATE_MASK) == STATE_RUNNING) {
		slot->run_ns += ns;
	} else if ((old & STATE_MASK) == STATE_READY) {
		u32 tenant = slot->tenant;
		struct wait_row *row = bpf_map_lookup_elem(&wait_rows, &tenant);
		slot->ready_ns += ns;
		if (row)
			charge_part(row, CAUSE_UNKNOWN, ns);
	}
	change_end(slot, old, STATE_UNSEEN, now, now);
	see(slot, task, now);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
