/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What the scheduler knows: options, and the state of threads, CPUs, domains and queues.
 *
 * A domain is the CPUs that share a last-level cache (at most LLC_CPUS; larger caches are split).
 *
 *   queue             holds                                    ordered by
 *   ready(domain)     threads that may run on several CPUs     deadline (deadline.h)
 *   pinned(cpu)       threads that may run on this CPU only    the same
 *   server(number)    those of them that a server serves       the same
 *   starved(domain)   threads that have waited for too long    since when they wait
 *   parked(domain)    threads of groups that have used up      when these may run again
 *                     their limits
 *   the kernel's      the thread chosen to run there next      -
 *   local queue
 *
 * Locking: a thread's state is written under its run queue's lock, or before it is queued (pi_lock); but threads are parked
 * and made ready again without. So what is counted for a thread elsewhere is exchanged: whoever does it takes back what was counted, once.
 * The rest is written by atomics. Counters of a CPU are written by whoever holds its run queue's lock.
 */
#ifndef QUELL_TASK_BPF_H
#define QUELL_TASK_BPF_H

#include "sched_ext.bpf.h"
#include "../policy/deadline.h"
#include "../policy/share.h"
#include "layout.h"

#define NO_LLC 0x7fff

/* What always holds. The native build looks, in every simulation; the kernel's does not. */
#ifndef ASSERT_INVARIANT
#define ASSERT_INVARIANT(condition)
#endif

char _license[] SEC("license") = "Dual BSD/GPL";

/* The native build has one of each for each simulation (../native). */
#ifndef PER_SCHEDULER
#define PER_SCHEDULER
#define ARRAY_PER_SCHEDULER(type, name, count) type name[count]
#define SET_BY_LOADER const volatile
#endif

/* The verifier removes what is off. */
SET_BY_LOADER struct options options SEC(".rodata.options") = {};

PER_SCHEDULER struct exit_record exit_record SEC(".bss.exit");
ARRAY_PER_SCHEDULER(struct cpu_ctx, cpu_ctxs, MAX_CPUS) SEC(".bss.cpus");

ARRAY_PER_SCHEDULER(struct server_ctx, servers, MAX_SERVERS) SEC(".bss.servers");
ARRAY_PER_SCHEDULER(struct server_rq, server_rqs, MAX_CPUS) SEC(".bss.server_rqs");

ARRAY_PER_SCHEDULER(struct llc_ctx, llcs, MAX_LLCS) SEC(".bss.llcs");
/* Of the threads that may run on this CPU only. */
ARRAY_PER_SCHEDULER(struct pinned_vclock, pinned_vclocks, MAX_CPUS);

/* Cgroups' limits, see bandwidth.bpf.h. */
PER_SCHEDULER struct bandwidth_state {
	u32 nr_groups;  /* how many have one */
	u32 generation; /* how often one began or ceased to have one */
} bandwidth;

/* Written by the CPU, or under its run queue's lock. */
struct cpu_dispatch {
	u64 charge_at_ns;    /* when the thread that it runs is looked at; 0: not */
	u64 resumed_deadline; /* the deadline of who goes on there once a higher scheduling class has left; DEADLINE_NONE: nobody does */
	u64 resorted_at_ns; /* when its own threads that wait were put in order, see share.bpf.h */
	u64 picked_when_idle;  /* whether nobody ran there when it looked for work last, and nobody has begun since */
} __attribute__((aligned(64)));
ARRAY_PER_SCHEDULER(struct cpu_dispatch, cpu_dispatch_states, MAX_CPUS);

/* Threads that share. */
PER_SCHEDULER struct share_slot_hints share_slot_hints SEC(".bss.share_hints");
ARRAY_PER_SCHEDULER(struct share_slot, share_slots, MAX_SHARE_SLOTS) SEC(".bss.share_slots");

enum dsq_kind {
	DSQ_KIND_NONE,
	DSQ_KIND_LLC,
	DSQ_KIND_STARVED,
	DSQ_KIND_PINNED,
	DSQ_KIND_THROTTLED,
	DSQ_KIND_SERVER,
};

struct task_ctx {
	u64 group_id;	/* what it competes as part of, see groups.bpf.h; 0: the root, whose threads compete one by one */
	u64 cgroup_id;	/* its cgroup's id; 0: the root */
	u64 vtime;	/* its virtual time, see fair.h; with shares as last located */
	s64 vlag;	/* with which it became one of those that compete, or is to */
	u64 request_spent_ns;	/* in a process's first thread: its CPU time since a request came in */
	u64 nr_requests;	/* how many came in */
	u64 request_avg_ns;	/* what it usually spends on one, there and as last seen */
	u64 charged_until_ns;	/* up to when what it ran is counted */
	u64 chain_age_ns;	/* of its work when it woke, see causal.bpf.h */
	u64 woke_at_ns;	/* when that was */
	u64 wait_since_ns;
	u64 deadline;	/* see ../policy/deadline.h */
	u64 deadline_pace;	/* how fast it becomes later while the thread runs */
	u64 burst_ns;	/* CPU time since it woke */
	u64 burst_avg_ns;	/* and on average */
	u64 chain_busy_ns;	/* for how long its chain is, see ../policy/deadline.h */
	u64 latency_ns;	/* set by the agent; 0: not */
	u64 wait_max_ns;
	u64 nr_runs;
	u64 exec_accounted_ns;	/* its CPU time, as the kernel has it, up to which it is charged for its share, or unbilled */
	u64 uncharged_ns;	/* CPU time that is not charged yet */
	u64 bw_group_id;	/* the nearest group that has one; 0: none */
	u64 bw_exec_start_ns;	/* CPU time that it had when it began to draw from these */
	u64 bw_charged_ns;	/* what it drew since then */
	u64 bw_since_ns;	/* since when */
	u64 bw_charged_until_ns;	/* up to when */
	u64 throttled_since_ns;	/* since when it waits for its limit; 0: it does not */
	u64 throttled_ns;	/* for how long it did in all, before that */
	u64 slice_left_ns;	/* of its turn, when a higher scheduling class took its CPU; 0: a new turn is to come */
	u64 migrated_at_ns;	/* when it looked for another CPU last, see migrate.bpf.h */
	u32 tenant;	/* set by the agent; 0: none */
	u32 server;	/* the same */
	u32 on_server;	/* the server that counts it as ready; 0: none */
	u32 nice_weight;	/* by nice */
	u32 agent_weight;	/* by the agent; 0: not */
	u32 dsq_key;	/* enum queue_kind << 16 | CPU, domain or server */
	u32 weight;	/* effective */
	u32 counted_weight;	/* what its domain, and perhaps a CPU, counts for it; 0: nothing */
	u32 group_counted_weight;	/* what its group counts for it; 0: nothing */
	u32 bw_exec_ratio;	/* see bandwidth.h */
	u32 bw_generation;	/* limit is as of so many changes */
	u32 share_slot_plus1;	/* its number there, plus one; 0: none */
	u16 llc;
	u16 pinned_cpu_plus1;	/* the only one that it may use, plus one; 0: it may use several */
	u16 claimed_cpu_plus1;	/* a CPU that it claimed, plus one; see migrate.bpf.h */
	u8 light;	/* see ../policy/deadline.h */
	u8 sched_idle;	/* SCHED_IDLE */
	u8 woken_by_task;	/* a task woke it */
	u8 has_slept;	/* it has slept since it began, or was there before the scheduler */
	u8 deadline_is_share;	/* its deadline is its share's */
	u8 running;
	u8 bw_charging;	/* its groups' limits count it as running */
	u8 server_pays;	/* a server pays for what it runs */
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

/* That of the process's first thread, which keeps what its threads have in common. */
static __always_inline struct task_ctx *leader_ctx(struct task_ctx *t, struct task_struct *p)
{
	struct task_struct *leader = p->group_leader;

	return leader == p ? t : leader ? lookup_task_ctx(leader) : NULL;
}

/*
 * Elements by index. The compiler may compute the address before it compares, which the verifier refuses;
 * so the index is hidden from it after the comparison, and bounded by a mask for the verifier.
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

/* A CPU's own queues are numbered: that of bound threads, then its servers'. */
#define CPU_DSQS (options.criticality ? CPU_SERVERS_MAX + 1 : 1)

/* One of them; 0: there is none of that number. */
static __always_inline u64 cpu_dsq(u32 cpu, u32 nth)
{
	struct server_rq *srq = nth ? lookup_server_rq(cpu) : NULL;

	if (!nth)
		return pinned_dsq(cpu);
	u32 server = srq && srq->nr_servers ? srq->servers[bounded(nth - 1, CPU_SERVERS_MAX)] : 0;
	return server ? server_dsq(server) : 0;
}

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
 * Notes in which queue a thread is, before it is there: who counts none later will not miss it. Counts,
 * so that nobody need look into queues that are mostly empty.
 */
static __always_inline void set_task_dsq(struct task_ctx *t, u32 kind, u32 number)
{
	u32 before = __sync_lock_test_and_set(&t->dsq_key, kind << 16 | number);

	count_dsq(before >> 16, before & 0xffff, -1);
	count_dsq(kind, number, 1);
}

#endif
