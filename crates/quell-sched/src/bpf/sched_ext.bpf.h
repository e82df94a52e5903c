/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The kernel's side of sched_ext, as far as the scheduler uses it.
 *
 * Problem: The functions of sched_ext were renamed more than once.
 * How:     Types as in quell/kernel.bpf.h. A function that some kernel lacks is declared weak, and calls of
 *          it are guarded by bpf_ksym_exists; the scheduler uses the wrappers below. Values that the kernel
 *          may renumber are read from its BTF (bpf_core_enum_value).
 * Limits:  Linux 6.12 to 7.2.
 */
#ifndef QUELL_SCHED_EXT_BPF_H
#define QUELL_SCHED_EXT_BPF_H

#include <quell/kernel.bpf.h>
#include "../policy/types.h"

#define BPF_MAP_TYPE_TASK_STORAGE 29
#define BPF_F_NO_PREALLOC 1
#define BPF_LOCAL_STORAGE_GET_F_CREATE 1
#define CLOCK_MONOTONIC 1

/* Fixed layouts, defined by the BPF interface itself. */
struct bpf_timer {
	__u64 opaque[2];
} __attribute__((aligned(8)));

struct bpf_iter_scx_dsq {
	u64 opaque[6];
} __attribute__((aligned(8)));

struct bpf_cpumask;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kernfs_node {
	u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
	int level;
};

struct scx_init_task_args {
	bool fork;
	struct cgroup *cgroup;
};

struct scx_exit_task_args {
	bool cancelled;
};

enum scx_cpu_preempt_reason { SCX_CPU_PREEMPT_STOP = 2 };

struct scx_cpu_release_args {
	enum scx_cpu_preempt_reason reason;
};

struct scx_cgroup_init_args {
	u32 weight;
	u64 bw_period_us; /* bw_*: since 6.17 */
	u64 bw_quota_us;
	u64 bw_burst_us;
};

enum scx_exit_kind { SCX_EXIT_NONE_ };

struct scx_exit_info {
	enum scx_exit_kind kind;
	s64 exit_code;
	const char *reason;
	char *msg;
};

struct scx_dump_ctx {
	u64 at_ns;
};

#pragma clang attribute pop


/* libbpf matches members by name: only those that the scheduler uses, in any order. */
struct sched_ext_ops {
	s32 (*select_cpu)(struct task_struct *p, s32 prev_cpu, u64 wake_flags);
	void (*enqueue)(struct task_struct *p, u64 enq_flags);
	void (*dispatch)(s32 cpu, struct task_struct *prev);
	void (*tick)(struct task_struct *p);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, bool runnable);
	void (*set_weight)(struct task_struct *p, u32 weight);
	void (*update_idle)(s32 cpu, bool idle);
	void (*cpu_release)(s32 cpu, struct scx_cpu_release_args *args);
	void (*cpu_online)(s32 cpu);
	void (*cpu_offline)(s32 cpu);
	s32 (*init_task)(struct task_struct *p, struct scx_init_task_args *args);
	void (*exit_task)(struct task_struct *p, struct scx_exit_task_args *args);
	void (*enable)(struct task_struct *p);
	void (*disable)(struct task_struct *p);
	void (*dump)(struct scx_dump_ctx *ctx);
	s32 (*cgroup_init)(struct cgroup *cgrp, struct scx_cgroup_init_args *args);
	void (*cgroup_exit)(struct cgroup *cgrp);
	void (*cgroup_move)(struct task_struct *p, struct cgroup *from, struct cgroup *to);
	void (*cgroup_set_weight)(struct cgroup *cgrp, u32 weight);
	void (*cgroup_set_idle)(struct cgroup *cgrp, bool idle);
	void (*cgroup_set_bandwidth)(struct cgroup *cgrp, u64 period_us, u64 quota_us, u64 burst_us);
	s32 (*init)(void);
	void (*exit)(struct scx_exit_info *info);
	u64 flags;
	u32 timeout_ms;
	u32 exit_dump_len;
	char name[128];
};

/* include/linux/sched.h */
#define PF_KTHREAD 0x00200000
#define MAX_RT_PRIO 100
#define SCHED_IDLE 5

/* include/linux/sched/ext.h */
#define SCX_TASK_QUEUED 1
#define SCX_DSQ_LOCAL 0x8000000000000002ULL
#define SCX_DSQ_LOCAL_ON 0xc000000000000000ULL
#define SCX_ENQ_PREEMPT (1ULL << 32)
#define SCX_KICK_IDLE 1
#define SCX_KICK_PREEMPT 2
#define SCX_OPS_KEEP_BUILTIN_IDLE 1
#define SCX_OPS_ENQ_LAST 2
#define SCX_OPS_ENQ_EXITING 4

/* Names of the core's internal flags. The values are read from the kernel's BTF, the ones here are unused. */
enum scx_enq_flags {
	SCX_ENQ_WAKEUP = 1,
	SCX_ENQ_IMMED = 2,
};
#define ENQ_WAKEUP bpf_core_enum_value(enum scx_enq_flags, SCX_ENQ_WAKEUP)
/* Since 7.1: the core enqueues the task anew if it cannot run there at once. */
#define ENQ_IMMED                                                                                  \
	(bpf_core_enum_value_exists(enum scx_enq_flags, SCX_ENQ_IMMED) ?                           \
		 bpf_core_enum_value(enum scx_enq_flags, SCX_ENQ_IMMED) :                          \
		 0)

/*
 * A bool returned by a kernel function. clang assumes that the whole register holds it; x86 code sets the
 * lowest byte only and leaves the other bytes undefined.
 */
#ifdef __bpf__
#define IS_TRUE(call)                                                                              \
	({                                                                                         \
		u64 low = call;                                                                    \
		asm volatile("%0 &= 255" : "+r"(low));                                             \
		low;                                                                               \
	})
#else
#define IS_TRUE(call) (call)
#endif

s32 scx_bpf_create_dsq(u64 dsq_id, s32 node) __ksym;
s32 scx_bpf_select_cpu_dfl(struct task_struct *p, s32 prev_cpu, u64 wake_flags, bool *is_idle) __ksym;
bool scx_bpf_test_and_clear_cpu_idle(s32 cpu) __ksym;
s32 scx_bpf_pick_idle_cpu(const struct cpumask *cpus_allowed, u64 flags) __ksym;
void scx_bpf_kick_cpu(s32 cpu, u64 flags) __ksym;
s32 scx_bpf_task_cpu(const struct task_struct *p) __ksym;
s32 scx_bpf_dsq_nr_queued(u64 dsq_id) __ksym;
u32 scx_bpf_reenqueue_local(void) __ksym __weak; /* to be removed from the kernel one day */
void scx_bpf_error_bstr(char *fmt, unsigned long long *data, u32 data__sz) __ksym;
void scx_bpf_dump_bstr(char *fmt, unsigned long long *data, u32 data__sz) __ksym __weak;
bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *cpumask) __ksym;
bool bpf_cpumask_intersects(const struct cpumask *a, const struct cpumask *b) __ksym;
bool bpf_cpumask_empty(const struct cpumask *cpumask) __ksym;
const struct cpumask *scx_bpf_get_idle_cpumask(void) __ksym;
void scx_bpf_put_idle_cpumask(const struct cpumask *idle_mask) __ksym;
struct task_struct *bpf_task_from_pid(s32 pid) __ksym;
struct cgroup *bpf_cgroup_ancestor(struct cgroup *cgrp, int level) __ksym;
void bpf_cgroup_release(struct cgroup *cgrp) __ksym;
void bpf_task_release(struct task_struct *p) __ksym;
void bpf_rcu_read_lock(void) __ksym;
void bpf_rcu_read_unlock(void) __ksym;
int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq_id, u64 flags) __ksym __weak;
struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it) __ksym __weak;
void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) __ksym __weak;

/*
 * libbpf takes a suffix ___v2 of a kernel name for a flavour of ours, unless another suffix follows.
 *
 * Insertion: scx_bpf_dispatch() in 6.12, scx_bpf_dsq_insert() since 6.13, which since 6.19 returns a bool
 * under another name in the kernel's BTF. The vtime variant takes its arguments in a struct since 6.19.
 */
struct scx_bpf_dsq_insert_vtime_args {
	u64 dsq_id;
	u64 slice;
	u64 vtime;
	u64 enq_flags;
};
bool scx_bpf_dsq_insert___v2___q(struct task_struct *p, u64 dsq_id, u64 slice, u64 flags) __ksym __weak;
void scx_bpf_dsq_insert(struct task_struct *p, u64 dsq_id, u64 slice, u64 flags) __ksym __weak;
void scx_bpf_dispatch(struct task_struct *p, u64 dsq_id, u64 slice, u64 flags) __ksym __weak;
bool __scx_bpf_dsq_insert_vtime(struct task_struct *p,
				struct scx_bpf_dsq_insert_vtime_args *args) __ksym __weak;
void scx_bpf_dsq_insert_vtime(struct task_struct *p, u64 dsq_id, u64 slice, u64 vtime,
			      u64 flags) __ksym __weak;
void scx_bpf_dispatch_vtime(struct task_struct *p, u64 dsq_id, u64 slice, u64 vtime, u64 flags) __ksym __weak;

/*
 * Moving to the local DSQ: scx_bpf_consume() in 6.12, then scx_bpf_dsq_move_to_local(), with flags since 7.1.
 */
bool scx_bpf_dsq_move_to_local___v2___q(u64 dsq_id, u64 enq_flags) __ksym __weak;
bool scx_bpf_dsq_move_to_local(u64 dsq_id) __ksym __weak;
bool scx_bpf_consume(u64 dsq_id) __ksym __weak;

/* Since 6.19; safe to call since 7.1. */
struct task_struct *scx_bpf_dsq_peek(u64 dsq_id) __ksym __weak;

/* Since 6.19; before, the scheduler writes p->scx.slice. */
bool scx_bpf_task_set_slice(struct task_struct *p, u64 slice) __ksym __weak;

/* Moving between DSQs by an iterator; in 6.12 under another name. */
bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq_id,
		      u64 flags) __ksym __weak;
bool scx_bpf_dispatch_from_dsq(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq_id,
				u64 flags) __ksym __weak;

void scx_bpf_dsq_move_set_slice(struct bpf_iter_scx_dsq *it, u64 slice) __ksym __weak;
void scx_bpf_dispatch_from_dsq_set_slice(struct bpf_iter_scx_dsq *it, u64 slice) __ksym __weak;
void scx_bpf_dsq_move_set_vtime(struct bpf_iter_scx_dsq *it, u64 vtime) __ksym __weak;
void scx_bpf_dispatch_from_dsq_set_vtime(struct bpf_iter_scx_dsq *it, u64 vtime) __ksym __weak;
bool scx_bpf_dsq_move_vtime(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq_id,
			    u64 flags) __ksym __weak;
bool scx_bpf_dispatch_vtime_from_dsq(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq_id,
				      u64 flags) __ksym __weak;

/*
 * CLOCK_MONOTONIC. Not scx_bpf_now(), which can stand still for up to a tick: a CPU that moves a task into
 * another CPU's local DSQ updates the other CPU's clock, and the other CPU reads that time until it next
 * releases its lock (seen with 7.2). During a switch scx_bpf_now() does not advance either.
 */
static __always_inline u64 time_ns(void)
{
	return bpf_ktime_get_ns();
}

static __always_inline bool task_may_use(const struct task_struct *p, u32 cpu)
{
	return IS_TRUE(bpf_cpumask_test_cpu(cpu, p->cpus_ptr));
}

/* True if a CPU idles that the task may use; NULL: any CPU. */
static __always_inline bool has_idle_cpu(struct task_struct *p)
{
	const struct cpumask *idle = scx_bpf_get_idle_cpumask();
	bool idles = p ? IS_TRUE(bpf_cpumask_intersects(p->cpus_ptr, idle))
		       : !IS_TRUE(bpf_cpumask_empty(idle));

	scx_bpf_put_idle_cpumask(idle);
	return idles;
}

/* Claims a CPU, if it is idle. True if it was. */
static __always_inline bool claim_idle_cpu(s32 cpu)
{
	return IS_TRUE(scx_bpf_test_and_clear_cpu_idle(cpu));
}

static __always_inline void dsq_insert(struct task_struct *p, u64 dsq, u64 slice, u64 flags)
{
	if (bpf_ksym_exists(scx_bpf_dsq_insert___v2___q))
		scx_bpf_dsq_insert___v2___q(p, dsq, slice, flags);
	else if (bpf_ksym_exists(scx_bpf_dsq_insert))
		scx_bpf_dsq_insert(p, dsq, slice, flags);
	else
		scx_bpf_dispatch(p, dsq, slice, flags);
}

static __always_inline void dsq_insert_vtime(struct task_struct *p, u64 dsq, u64 slice, u64 vtime,
					   u64 flags)
{
	if (bpf_ksym_exists(__scx_bpf_dsq_insert_vtime)) {
		struct scx_bpf_dsq_insert_vtime_args args = {
			.dsq_id = dsq,
			.slice = slice,
			.vtime = vtime,
			.enq_flags = flags,
		};
		__scx_bpf_dsq_insert_vtime(p, &args);
	} else if (bpf_ksym_exists(scx_bpf_dsq_insert_vtime)) {
		scx_bpf_dsq_insert_vtime(p, dsq, slice, vtime, flags);
	} else {
		scx_bpf_dispatch_vtime(p, dsq, slice, vtime, flags);
	}
}

static __always_inline bool dsq_move_to_local(u64 dsq)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move_to_local___v2___q))
		return IS_TRUE(scx_bpf_dsq_move_to_local___v2___q(dsq, 0));
	if (bpf_ksym_exists(scx_bpf_dsq_move_to_local))
		return IS_TRUE(scx_bpf_dsq_move_to_local(dsq));
	return IS_TRUE(scx_bpf_consume(dsq));
}

/*
 * Moves the task that the iterator is at to a DSQ, perhaps the same one; the iterator does not return the
 * task again. True if the task was still there. Call only from ops.dispatch() or a timer.
 */
static __always_inline bool dsq_move_vtime(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq,
					   u64 vtime)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move_vtime)) {
		scx_bpf_dsq_move_set_vtime(it, vtime);
		return IS_TRUE(scx_bpf_dsq_move_vtime(it, p, dsq, 0));
	}
	scx_bpf_dispatch_from_dsq_set_vtime(it, vtime);
	return IS_TRUE(scx_bpf_dispatch_vtime_from_dsq(it, p, dsq, 0));
}

/* dsq_move_vtime(), with another slice. */
static __always_inline bool dsq_move_vtime_slice(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq,
						 u64 slice, u64 vtime)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move_set_slice))
		scx_bpf_dsq_move_set_slice(it, slice);
	else
		scx_bpf_dispatch_from_dsq_set_slice(it, slice);
	return dsq_move_vtime(it, p, dsq, vtime);
}

/* True if scx_bpf_dsq_peek() exists in its safe version, which another change of 7.1 tells. */
static __always_inline bool can_peek_dsq(void)
{
	return bpf_ksym_exists(scx_bpf_dsq_peek) && bpf_ksym_exists(scx_bpf_dsq_move_to_local___v2___q);
}

static __always_inline void set_slice(struct task_struct *p, u64 slice)
{
	if (bpf_ksym_exists(scx_bpf_task_set_slice))
		scx_bpf_task_set_slice(p, slice);
	else
		p->scx.slice = slice;
}

/* The dsq_vtime of the first task in a DSQ; 0: the DSQ is empty (no task has 0). */
static __always_inline u64 dsq_first_vtime(u64 dsq)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	u64 vtime = 0;

	if (can_peek_dsq()) {
		p = scx_bpf_dsq_peek(dsq);
		return p ? p->scx.dsq_vtime : 0;
	}
	if (!bpf_iter_scx_dsq_new(&it, dsq, 0)) {
		p = bpf_iter_scx_dsq_next(&it);
		if (p)
			vtime = p->scx.dsq_vtime;
	}
	bpf_iter_scx_dsq_destroy(&it);
	return vtime;
}

/* An array of timers, one for each CPU or LLC. */
struct timer {
	struct bpf_timer timer;
};

#define TIMERS(name, count)                                                                        \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY);                                                  \
		__uint(max_entries, count);                                                        \
		__type(key, u32);                                                                  \
		__type(value, struct timer);                                                       \
	} name SEC(".maps")

static __always_inline s32 init_timer(void *timers, u32 index, int (*callback)(void *, u32 *, struct timer *))
{
	struct timer *it = bpf_map_lookup_elem(timers, &index);

	if (!it)
		return -EINVAL;
	s32 error = bpf_timer_init(&it->timer, timers, CLOCK_MONOTONIC);
	return error ?: bpf_timer_set_callback(&it->timer, callback);
}

/* Ends the scheduler with a message; the kernel's own scheduler takes over. */
#define fail(fmt, args...)                                                                         \
	({                                                                                         \
		static char text[] = fmt;                                                          \
		unsigned long long data[___bpf_narg(args) ?: 1] = {};                              \
		___bpf_fill(data, args);                                                           \
		scx_bpf_error_bstr(text, data, sizeof(data));                                      \
	})

#define dump_line(fmt, args...)                                                                    \
	({                                                                                         \
		static char text[] = fmt;                                                          \
		unsigned long long data[___bpf_narg(args) ?: 1] = {};                              \
		___bpf_fill(data, args);                                                           \
		scx_bpf_dump_bstr(text, data, sizeof(data));                                       \
	})

#endif
