/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Kernel types, as far as Quell's BPF programs use them.
 *
 * Problem: The fields that the programs read lie elsewhere in every kernel, and some were renamed.
 * How:     Only the fields that are used are declared; preserve_access_index makes libbpf look up where they
 *          are in the running kernel's BTF. A type with a ___suffix is the same kernel type as it was at
 *          another version; its use is guarded by bpf_core_field_exists.
 * Limits:  Linux 5.15 to 7.x. The layouts here are not the kernel's: never take sizeof of these types.
 */
#ifndef QUELL_KERNEL_BPF_H
#define QUELL_KERNEL_BPF_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed int __s32;
typedef signed long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;
#define bool _Bool
#define true 1
#define false 0
#define NULL ((void *)0)

/* A BPF global function: the verifier checks it once, with unknown arguments, and not at each call. */
#define __global_subprog __noinline

/* include/uapi/asm-generic/errno-base.h */
#define ESRCH 3
#define ENOMEM 12
#define EBUSY 16
#define EEXIST 17
#define EINVAL 22
#define ENOSPC 28

/* include/uapi/linux/bpf.h */
#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_ARRAY_OF_MAPS 12
#define BPF_MAP_TYPE_QUEUE 22
#define BPF_MAP_TYPE_STACK 23
#define BPF_MAP_TYPE_RINGBUF 27
#define BPF_F_MMAPABLE (1U << 10)
#define BPF_ANY 0
#define BPF_RB_NO_WAKEUP 1

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

/* Defined by the BPF interface itself: a fixed layout. */
struct bpf_spin_lock {
	__u32 val;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct cpumask {
	unsigned long bits[1];
};

struct rq {
	u64 clock;
	u64 prev_steal_time;	/* as of the last tick, in ns; with paravirtual time */
	u64 prev_steal_time_rq; /* as of the run queue's last clock update, where counted */
};

struct cfs_rq {
	struct rq *rq;
	u64 throttled_clock_self_time; /* since 6.7 */
	u64 throttled_clock_pelt_time; /* since 5.19; slower than time on a CPU below full speed */
};

struct cfs_rq___v5_15 {
	u64 throttled_clock_task_time; /* before 5.19 */
};

struct sched_entity {
	struct cfs_rq *cfs_rq;
	u64 sum_exec_runtime;
	u64 slice;		     /* since 6.6 */
	unsigned char sched_delayed; /* since 6.12 */
	unsigned char custom_slice;  /* since 6.12 */
};

struct atomic_counter {
	int counter;
};

struct signal_struct {
	struct atomic_counter live;
	int nr_threads;
};

struct sched_info {
	unsigned long long last_arrival; /* when the task was last given a CPU, by that run queue's clock */
	unsigned long long last_queued; /* since when the task waits on that run queue; 0: it does not */
};

struct sched_ext_entity { /* since 6.12 */
	u64 slice;
	u64 dsq_vtime;
	u32 weight;
	u32 flags;
};

struct thread_info {
	u32 cpu; /* since 5.16 */
};

struct thread_info___arm64 {
	u64 preempt_count;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int __state;
	unsigned int flags;
	unsigned int on_cpu; /* u8 in newer kernels: libbpf adjusts unsigned loads only */
	unsigned int on_rq;
	int prio;
	int static_prio;
	struct sched_info sched_info;
	struct sched_entity se;
	struct sched_ext_entity scx;
	unsigned int policy;
	int nr_cpus_allowed;
	const struct cpumask *cpus_ptr;
	struct cpumask cpus_mask;
	unsigned short migration_disabled;
	int pid;
	int tgid;
	u64 start_boottime;
	int exit_state;
	char comm[16];
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	struct signal_struct *signal;
	unsigned frozen : 1; /* by cgroup v2's freezer, since 5.2 */
};

struct task_struct___v5_15 {
	u32 cpu;
};

struct task_struct___arm64 {
	struct thread_info___arm64 thread_info;
};

/* x86 from 6.2 to 6.14 */
struct pcpu_hot___v6_2 {
	int preempt_count;
};

#pragma clang attribute pop

/* The context of a task iterator: a fixed layout. */
struct bpf_iter__task {
	void *meta;
	struct task_struct *task;
};

/*
 * A store that becomes visible after everything before it. x86 keeps stores in order; elsewhere BPF's
 * only ordered store is an exchange.
 */
#ifdef __TARGET_ARCH_x86
#define store_release(p, v)                                                                        \
	do {                                                                                       \
		asm volatile("" ::: "memory");                                                     \
		*(volatile typeof(*(p)) *)(p) = (v);                                               \
		asm volatile("" ::: "memory");                                                     \
	} while (0)
#else
#define store_release(p, v) ((void)__sync_lock_test_and_set(p, v))
#endif

#define PF_EXITING 0x4

/*
 * Where the per-CPU preempt count lies, in bytes after the CPU's run queue (x86; set by the loader
 * from the BTF's list of per-CPU variables). Its address would be a plain __ksym, but kernels
 * without CONFIG_KALLSYMS_ALL refuse programs that use one.
 */
const volatile struct preempt_count_at {
	u32 known;
	u32 in_pcpu_hot; /* 6.2 to 6.14 */
	s64 offset;
} preempt_count_at SEC(".rodata.preempt") = {};

/*
 * True if the current code is an interrupt: then the current task has nothing to do with what the code does.
 * Softirqs count as interrupts; a softirq at the end of a task's own system call (the receiving side of a
 * loopback connection) cannot be told from others.
 */
static __always_inline bool in_interrupt(struct task_struct *current)
{
	/* softirq being served, hardirq, NMI: include/linux/preempt.h */
	const u32 mask = 0x00ff0100;
	struct task_struct___arm64 *arm = (void *)current;

	if (bpf_core_field_exists(arm->thread_info.preempt_count))
		return arm->thread_info.preempt_count & mask;
	if (preempt_count_at.known && bpf_core_field_exists(current->se.cfs_rq)) {
		u64 address = 0;
		u32 count = 0;
		struct cfs_rq *rq = current->se.cfs_rq;

		if (rq && !bpf_core_read(&address, sizeof(address), &rq->rq)) {
			address += preempt_count_at.offset;
			if (preempt_count_at.in_pcpu_hot)
				address += bpf_core_field_offset(struct pcpu_hot___v6_2,
								 preempt_count);
			if (!bpf_probe_read_kernel(&count, sizeof(count), (void *)address))
				return count & mask;
		}
	}
	/* The preempt count cannot be read here. The idle task, at least, wakes no task itself. */
	return current->pid == 0;
}

/* The CPU that a task is on or queued on. */
static __always_inline u32 cpu_of(struct task_struct *task)
{
	struct task_struct___v5_15 *old = (void *)task;

	if (bpf_core_field_exists(task->thread_info.cpu))
		return task->thread_info.cpu;
	if (bpf_core_field_exists(old->cpu))
		return old->cpu;
	return bpf_get_smp_processor_id();
}

/* Since when a task that leaves its CPU now has been on it, as the kernel counts it; at least first. */
static __always_inline u64 arrived_at(struct task_struct *task, u64 first, u64 now)
{
	if (!bpf_core_field_exists(task->se.cfs_rq) || !bpf_core_field_exists(task->sched_info.last_arrival))
		return now;
	struct cfs_rq *queue = task->se.cfs_rq;
	struct rq *rq = queue ? queue->rq : NULL;
	u64 arrived = task->sched_info.last_arrival;
	if (!rq || !arrived)
		return now;
	u64 clock = rq->clock, ran = clock > arrived ? clock - arrived : 0;
	return ran < now - first ? now - ran : first;
}

/*
 * Since when a task that is given a CPU now has waited on that run queue, as the kernel counts it; at least
 * first. now: the task has not waited.
 */
static __always_inline u64 queued_at(struct task_struct *task, u64 first, u64 now)
{
	if (!bpf_core_field_exists(task->se.cfs_rq) || !bpf_core_field_exists(task->sched_info.last_queued))
		return now;
	struct cfs_rq *queue = task->se.cfs_rq;
	struct rq *rq = queue ? queue->rq : NULL;
	u64 queued = task->sched_info.last_queued;
	if (!rq || !queued || first >= now)
		return now;
	u64 clock = rq->clock, waited = clock > queued ? clock - queued : 0;
	return waited < now - first ? now - waited : first;
}

/*
 * Time the hypervisor took from the CPU that a task is on or queued on, since boot, in ns; 0 where
 * the kernel does not count it. Both counters follow the hypervisor's clock, a little late.
 */
static __always_inline u64 steal_of(struct task_struct *task)
{
	u64 tick = 0, update = 0;

	if (!bpf_core_field_exists(task->se.cfs_rq))
		return 0;
	struct cfs_rq *queue = task->se.cfs_rq;
	struct rq *rq = queue ? queue->rq : NULL;
	if (!rq)
		return 0;
	if (bpf_core_field_exists(rq->prev_steal_time))
		tick = rq->prev_steal_time;
	if (bpf_core_field_exists(rq->prev_steal_time_rq))
		update = rq->prev_steal_time_rq;
	return tick > update ? tick : update;
}

/*
 * Time for which bandwidth limits, of the task's cgroup or of one above it, throttled the run queue that the
 * task is on, in ns: what cpu.stat.local tells, or in older kernels what load tracking leaves out.
 */
static __always_inline u64 throttled_of(struct task_struct *task)
{
	if (!bpf_core_field_exists(task->se.cfs_rq))
		return 0;
	struct cfs_rq *rq = task->se.cfs_rq;
	struct cfs_rq___v5_15 *old = (void *)rq;
	if (!rq)
		return 0;
	if (bpf_core_field_exists(rq->throttled_clock_self_time))
		return rq->throttled_clock_self_time;
	if (bpf_core_field_exists(rq->throttled_clock_pelt_time))
		return rq->throttled_clock_pelt_time;
	if (bpf_core_field_exists(old->throttled_clock_task_time))
		return old->throttled_clock_task_time;
	return 0;
}

#endif
