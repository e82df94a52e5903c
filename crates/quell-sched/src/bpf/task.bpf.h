/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * State of the scheduler: options, tasks, CPUs, LLCs and dispatch queues (DSQs).
 * An LLC is the set of CPUs that share a last-level cache, LLC_CPUS at most: a larger cache is split into
 * several LLCs.
 *
 *   DSQ                holds                                        ordered by
 *   llc_dsq(llc)       tasks that may run on several CPUs           deadline (deadline.h)
 *   pinned_dsq(cpu)    tasks that may run on this CPU only          deadline
 *   server_dsq(number) pinned tasks that a server serves            deadline
 *   starved_dsq(llc)   tasks that have waited for too long          start of the wait
 *   throttled_dsq(llc) tasks of throttled groups                    time of unthrottling
 *   SCX_DSQ_LOCAL      the task that the CPU runs next              -
 *
 * Locking: The context of a task is written under the lock of the task's run queue, or before the task is
 *          queued (pi_lock). Throttling and unthrottling happen without either lock; so what a task adds to a
 *          counter elsewhere is kept in the context and taken back by an atomic exchange, by exactly one CPU.
 *          Other fields are written by atomics. The counters of a CPU are written under its run queue's lock.
 */
#ifndef QUELL_TASK_BPF_H
#define QUELL_TASK_BPF_H

#include "sched_ext.bpf.h"
#include "../policy/deadline.h"
#include "../policy/share.h"
#include "layout.h"

#define NO_LLC 0x7fff

/* An invariant. The native build checks it in every simulation; the kernel build leaves it out. */
#ifndef ASSERT_INVARIANT
#define ASSERT_INVARIANT(condition)
#endif

char _license[] SEC("license") = "Dual BSD/GPL";

/* The native build has one instance for each simulation, see ../native. */
#ifndef PER_SCHEDULER
#define PER_SCHEDULER
#define ARRAY_PER_SCHEDULER(type, name, count) type name[count]
#define SET_BY_LOADER const volatile
#endif

/* Constants to the verifier, which removes the code of features that are off. */
SET_BY_LOADER struct options options SEC(".rodata.options") = {};

/* The kernel keeps 15 bytes of a map's name, so the loader would not find a longer section. */
PER_SCHEDULER struct exit_record exit_record SEC(".bss.exit");
ARRAY_PER_SCHEDULER(struct cpu_ctx, cpu_ctxs, MAX_CPUS) SEC(".bss.cpus");

ARRAY_PER_SCHEDULER(struct server_ctx, servers, MAX_SERVERS) SEC(".bss.servers");
ARRAY_PER_SCHEDULER(struct server_rq, server_rqs, MAX_CPUS) SEC(".bss.server_rqs");

ARRAY_PER_SCHEDULER(struct llc_ctx, llcs, MAX_LLCS) SEC(".bss.llcs");
/* Clock of the tasks that are pinned to the CPU. */
ARRAY_PER_SCHEDULER(struct pinned_vclock, pinned_vclocks, MAX_CPUS);

/* Bandwidth limits of cgroups, see bandwidth.bpf.h. */
PER_SCHEDULER struct bandwidth_state {
	u32 nr_groups; /* groups that have a limit */
	u32 generation; /* how often a group got or lost a limit */
} bandwidth;

/* Dispatch state of a CPU. Written on that CPU, or under its run queue's lock. */
struct cpu_dispatch {
	u64 charge_at_ns; /* when the bandwidth of the running task is charged next; 0: not limited */
	/*
	 * deadline of the task that a higher scheduling class interrupted and that goes on; DEADLINE_NONE:
	 * none
	 */
	u64 resumed_deadline;
	u64 resorted_at_ns; /* when the CPU's own DSQs were last put in order, see share.bpf.h */
	/* bool: the CPU ran no task at its last dispatch, and no task has begun to run since */
	u64 picked_when_idle;
} __attribute__((aligned(64)));
ARRAY_PER_SCHEDULER(struct cpu_dispatch, cpu_dispatch_states, MAX_CPUS);

/* Share slots, with --share. */
PER_SCHEDULER struct share_slot_hints share_slot_hints SEC(".bss.slot_hints");
ARRAY_PER_SCHEDULER(struct share_slot, share_slots, MAX_SHARE_SLOTS) SEC(".bss.slots");

enum dsq_kind {
	DSQ_KIND_NONE,
	DSQ_KIND_LLC,
	DSQ_KIND_STARVED,
	DSQ_KIND_PINNED,
	DSQ_KIND_THROTTLED,
	DSQ_KIND_SERVER,
};

/* State of a task. */
struct task_ctx {
	/* group that the task competes in, see groups.bpf.h; 0: the root, whose tasks compete one by one */
	u64 group_id;
	u64 cgroup_id; /* id of the task's cgroup; 0: the root */
	u64 vtime; /* virtual time, see fair.h; with shares as of the last update_vtime() */
	s64 vlag; /* lag with which the task was enqueued, or is to be */
	/* in the thread group leader: CPU time of the process since its last request came in */
	u64 request_spent_ns;
	u64 nr_requests; /* in the thread group leader: requests that came in */
	u64 request_avg_ns; /* average CPU time of a request; of other tasks a copy of their leader's */
	u64 charged_until_ns; /* up to when the task's CPU time is charged */
	u64 chain_age_ns; /* age of the task's chain when the task woke, see causal.bpf.h */
	u64 woke_at_ns; /* when the task woke */
	u64 wait_since_ns; /* when the task's present wait began, or its last wait */
	u64 deadline; /* see ../policy/deadline.h */
	/* how fast the deadline becomes later while the task runs, see deadline_pace() */
	u64 deadline_pace;
	u64 burst_ns; /* CPU time since the task woke */
	u64 burst_avg_ns; /* average of burst_ns over the times at which the task blocks */
	u64 light_run_ns; /* the task is light up to this burst_ns, see deadline_light_run(); 0: it is not */
	u64 chain_busy_ns; /* for how long the task's chain has been busy, see ../policy/deadline.h */
	u64 latency_ns; /* rescheduling latency set by the agent; 0: none */
	u64 wait_max_ns; /* the longest wait of the task */
	u64 nr_runs; /* how often the task began to run */
	u64 exec_accounted_ns; /* sum_exec_runtime up to which share_account_exec() counted */
	u64 uncharged_ns; /* CPU time counted and not charged yet */
	u64 bw_group_id; /* the nearest group that has a bandwidth limit; 0: none */
	u64 bw_exec_start_ns; /* sum_exec_runtime when bandwidth charging began */
	u64 bw_charged_ns; /* bandwidth charged since then */
	u64 bw_since_ns; /* when bandwidth charging began */
	u64 bw_charged_until_ns; /* up to when bandwidth is charged */
	u64 throttled_since_ns; /* when the task was throttled; 0: it is not throttled */
	u64 throttled_ns; /* time for which the task was throttled before that */
	/* slice left when a higher scheduling class took the CPU; 0: a new slice is due */
	u64 slice_left_ns;
	u64 migrated_at_ns; /* when the task last looked for another CPU, see migrate.bpf.h */
	u32 tenant; /* tenant set by the agent; 0: none */
	u32 server; /* server set by the agent; 0: none */
	u32 on_server; /* server that counts the task as ready; 0: none */
	u32 nice_weight; /* weight by nice */
	u32 agent_weight; /* weight set by the agent; 0: none */
	u32 dsq_key; /* enum dsq_kind << 16 | CPU, LLC or server */
	u32 weight; /* effective weight, in units of fair.h */
	/* weight that the LLC's sum, and a CPU's, include for the task; 0: not enqueued */
	u32 counted_weight;
	/* weight that the group's active_weight includes for the task; 0: none */
	u32 group_counted_weight;
	u32 bw_exec_ratio; /* see bw_exec_ratio() */
	u32 bw_generation; /* bandwidth.generation that bw_group_id is of */
	u32 share_slot_plus1; /* index of the task's share slot, plus one; 0: none */
	u16 llc; /* LLC that the task competes for; NO_LLC: none */
	u16 pinned_cpu_plus1; /* the only CPU that the task may use, plus one; 0: it may use several */
	u16 claimed_cpu_plus1; /* CPU that the task claimed, plus one; see migrate.bpf.h */
	u8 sched_idle; /* bool: SCHED_IDLE */
	u8 woken_by_task; /* bool: another task woke the task */
	u8 has_slept; /* bool: the task has slept since it began, or existed before the scheduler */
	u8 deadline_is_share; /* bool: the deadline is the share deadline */
	u8 running; /* bool: the task runs */
	u8 bw_charging; /* bool: limited groups count the task as running */
	u8 server_pays; /* bool: a server pays for what the task runs */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_ctx);
} task_ctxs SEC(".maps");

static __always_inline struct task_ctx *lookup_task_ctx(struct task_struct *p)
{
	return bpf_task_storage_get(&task_ctxs, p, 0, 0);
}

/* The context of the thread group leader, which keeps what the tasks of a process have in common. */
static __always_inline struct task_ctx *leader_ctx(struct task_ctx *t, struct task_struct *p)
{
	struct task_struct *leader = p->group_leader;

	return leader == p ? t : leader ? lookup_task_ctx(leader) : NULL;
}

/*
 * Index of an array element, bounded for the verifier. The compiler may compute the element's address before
 * it compares the index, which the verifier refuses; so barrier_var() hides the index after the comparison,
 * and a mask bounds it.
 */
static __always_inline u32 bounded(u32 index, u32 size)
{
	barrier_var(index);
	return index & (size - 1);
}

static __always_inline struct cpu_ctx *lookup_cpu_ctx(u32 cpu)
{
	return cpu < MAX_CPUS ? &cpu_ctxs[bounded(cpu, MAX_CPUS)] : NULL;
}

static __always_inline struct llc_ctx *lookup_llc(u32 llc_id)
{
	return llc_id < MAX_LLCS ? &llcs[bounded(llc_id, MAX_LLCS)] : NULL;
}

static __always_inline struct server_ctx *lookup_server(u32 number)
{
	return number && number < MAX_SERVERS ? &servers[bounded(number, MAX_SERVERS)] : NULL;
}

static __always_inline struct server_rq *lookup_server_rq(u32 cpu)
{
	return cpu < MAX_CPUS ? &server_rqs[bounded(cpu, MAX_CPUS)] : NULL;
}

static __always_inline u32 cpu_llc_id(u32 cpu)
{
	return cpu < MAX_CPUS ? options.llc_of[bounded(cpu, MAX_CPUS)] & ~OFFLINE : NO_LLC;
}

static __always_inline u64 llc_dsq(u32 llc_id)
{
	return (u64)llc_id << 3 | DSQ_KIND_LLC;
}

static __always_inline u64 starved_dsq(u32 llc_id)
{
	return (u64)llc_id << 3 | DSQ_KIND_STARVED;
}

static __always_inline u64 throttled_dsq(u32 llc_id)
{
	return (u64)llc_id << 3 | DSQ_KIND_THROTTLED;
}

static __always_inline u64 pinned_dsq(u32 cpu)
{
	return (u64)cpu << 3 | DSQ_KIND_PINNED;
}

static __always_inline u64 server_dsq(u32 number)
{
	return (u64)number << 3 | DSQ_KIND_SERVER;
}

/* DSQs of a CPU: 0 is the pinned DSQ, the others are the DSQs of the CPU's servers. */
#define CPU_DSQS (options.criticality ? CPU_SERVERS_MAX + 1 : 1)

/* The nth DSQ of a CPU; 0: the CPU has no server at nth - 1. */
static __always_inline u64 cpu_dsq(u32 cpu, u32 nth)
{
	struct server_rq *srq = nth ? lookup_server_rq(cpu) : NULL;

	if (!nth)
		return pinned_dsq(cpu);
	u32 server = srq && srq->nr_servers ? srq->servers[bounded(nth - 1, CPU_SERVERS_MAX)] : 0;
	return server ? server_dsq(server) : 0;
}

/* Adds to the number of tasks in a DSQ. number: CPU, LLC or server, by the DSQ's kind. */
static __always_inline void count_dsq(u32 kind, u32 number, u32 by)
{
	struct llc_ctx *llc;
	struct cpu_ctx *cpuc;
	struct server_ctx *s;

	if (kind == DSQ_KIND_SERVER) {
		s = lookup_server(number);
		number = s ? s->cpu : MAX_CPUS;
		kind = DSQ_KIND_PINNED;
	}
	if (kind == DSQ_KIND_PINNED) {
		if ((cpuc = lookup_cpu_ctx(number)))
			__sync_fetch_and_add(&cpuc->nr_pinned, by);
		if (options.share && (llc = lookup_llc(cpu_llc_id(number))))
			__sync_fetch_and_add(&llc->nr_pinned, by);
	} else if (kind == DSQ_KIND_THROTTLED && (llc = lookup_llc(number))) {
		__sync_fetch_and_add(&llc->nr_throttled, by);
	} else if ((kind == DSQ_KIND_LLC || kind == DSQ_KIND_STARVED) && (llc = lookup_llc(number))) {
		__sync_fetch_and_add(&llc->nr_queued, by);
		if (kind == DSQ_KIND_STARVED)
			__sync_fetch_and_add(&llc->nr_starved, by);
	}
}

/*
 * Records the DSQ that a task is about to enter, and counts the tasks of each DSQ, so that no CPU has to look
 * into DSQs that are mostly empty. The count goes up before the task is in the DSQ: a CPU that reads 0 misses
 * no task.
 */
static __always_inline void set_task_dsq(struct task_ctx *t, u32 kind, u32 number)
{
	u32 before = __sync_lock_test_and_set(&t->dsq_key, kind << 16 | number);

	count_dsq(before >> 16, before & 0xffff, -1);
	count_dsq(kind, number, 1);
}

#endif
