/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What the scheduler knows: options, and the state of threads, CPUs, domains and queues.
 *
 * A domain is the CPUs that share a last-level cache (at most DOMAIN_CPUS; larger caches are split).
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

#define NO_DOMAIN 0x7fff

/* What always holds. The native build looks, in every simulation; the kernel's does not. */
#ifndef HOLDS
#define HOLDS(condition)
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
ARRAY_PER_SCHEDULER(struct cpu_slot, cpus, MAX_CPUS) SEC(".bss.cpus");

ARRAY_PER_SCHEDULER(struct server_slot, servers, MAX_SERVERS) SEC(".bss.servers");
ARRAY_PER_SCHEDULER(struct reservation, reservations, MAX_CPUS) SEC(".bss.reservations");

ARRAY_PER_SCHEDULER(struct domain, domains, MAX_DOMAINS) SEC(".bss.domains");
/* Of the threads that may run on this CPU only. */
ARRAY_PER_SCHEDULER(struct pinned_clock, pinned_clocks, MAX_CPUS);

/* Cgroups' limits, see bandwidth.bpf.h. */
PER_SCHEDULER struct limits {
	u32 groups;  /* how many have one */
	u32 changes; /* how often one began or ceased to have one */
} limits;

/* Written by the CPU, or under its run queue's lock. */
struct turn {
	u64 ends;    /* when the thread that it runs is looked at; 0: not */
	u64 resumes; /* the deadline of who goes on there once a higher scheduling class has left; ORDER_NONE: nobody does */
	u64 sorted_at; /* when its own threads that wait were put in order, see share.bpf.h */
	u64 vacant;  /* whether nobody ran there when it looked for work last, and nobody has begun since */
} __attribute__((aligned(64)));
ARRAY_PER_SCHEDULER(struct turn, turns, MAX_CPUS);

/* Threads that share. */
PER_SCHEDULER struct places places SEC(".bss.places");
ARRAY_PER_SCHEDULER(struct sharer, sharers, MAX_SHARERS) SEC(".bss.sharers");

enum queue_kind {
	QUEUE_NONE,
	QUEUE_READY,
	QUEUE_STARVED,
	QUEUE_PINNED,
	QUEUE_PARKED,
	QUEUE_SERVER,
};

struct thread {
	u64 group;	/* what it competes as part of, see groups.bpf.h; 0: the root, whose threads compete one by one */
	u64 cgroup;	/* its cgroup's id; 0: the root */
	u64 virtual;	/* its virtual time, see fair.h; with shares as last located */
	s64 lag;	/* with which it became one of those that compete, or is to */
	u64 spent;	/* in a process's first thread: its CPU time since a request came in */
	u64 requests;	/* how many came in */
	u64 request;	/* what it usually spends on one, there and as last seen */
	u64 ran_at;	/* up to when what it ran is counted */
	u64 age;	/* of its work when it woke, see causal.bpf.h */
	u64 woke_at;	/* when that was */
	u64 ready_at;
	u64 deadline;	/* see ../policy/deadline.h */
	u64 pace;	/* how fast it becomes later while the thread runs */
	u64 present;	/* CPU time since it woke */
	u64 usual;	/* and on average */
	u64 busy;	/* for how long its chain is, see ../policy/deadline.h */
	u64 latency;	/* set by the agent; 0: not */
	u64 worst_wait;
	u64 runs;
	u64 counted;	/* its CPU time, as the kernel has it, up to which it is charged for its share, or unbilled */
	u64 unbilled;	/* CPU time that is not charged yet */
	u64 limit;	/* the nearest group that has one; 0: none */
	u64 ran_before;	/* CPU time that it had when it began to draw from these */
	u64 drawn;	/* what it drew since then */
	u64 drawn_from;	/* since when */
	u64 drawn_at;	/* up to when */
	u64 parked_at;	/* since when it waits for its limit; 0: it does not */
	u64 limited_ns;	/* for how long it did in all, before that */
	u64 left;	/* of its turn, when a higher scheduling class took its CPU; 0: a new turn is to come */
	u64 moved_at;	/* when it looked for another CPU last, see migrate.bpf.h */
	u32 tenant;	/* set by the agent; 0: none */
	u32 server;	/* the same */
	u32 served;	/* the server that counts it as ready; 0: none */
	u32 own_weight;	/* by nice */
	u32 set_weight;	/* by the agent; 0: not */
	u32 queue;	/* enum queue_kind << 16 | CPU, domain or server */
	u32 weight;	/* effective */
	u32 load;	/* what its domain, and perhaps a CPU, counts for it; 0: nothing */
	u32 active;	/* what its group counts for it; 0: nothing */
	u32 limit_pace;	/* see bandwidth.h */
	u32 limit_seen;	/* limit is as of so many changes */
	u32 sharer;	/* its number there, plus one; 0: none */
	u16 domain;
	u16 only_cpu;	/* the only one that it may use, plus one; 0: it may use several */
	u16 displaces;	/* a CPU that it claimed, plus one; see migrate.bpf.h */
	u8 light;	/* see ../policy/deadline.h */
	u8 idle;	/* SCHED_IDLE */
	u8 invited;	/* a task woke it */
	u8 known;	/* it has slept since it began, or was there before the scheduler */
	u8 by_share;	/* its deadline is its share's */
	u8 running;
	u8 drawing;	/* its groups' limits count it as running */
	u8 paid;	/* a server pays for what it runs */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} thread_states SEC(".maps");

static __always_inline struct thread *thread_of(struct task_struct *p)
{
	return bpf_task_storage_get(&thread_states, p, 0, 0);
}

/* That of the process's first thread, which keeps what its threads have in common. */
static __always_inline struct thread *first_of(struct thread *t, struct task_struct *p)
{
	struct task_struct *leader = p->group_leader;

	return leader == p ? t : leader ? thread_of(leader) : NULL;
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

static __always_inline struct cpu_slot *cpu_at(u32 cpu)
{
	return cpu < MAX_CPUS ? &cpus[bounded(cpu, MAX_CPUS)] : NULL;
}

static __always_inline struct domain *domain_at(u32 index)
{
	return index < MAX_DOMAINS ? &domains[bounded(index, MAX_DOMAINS)] : NULL;
}

static __always_inline struct server_slot *server_at(u32 number)
{
	return number && number < MAX_SERVERS ? &servers[bounded(number, MAX_SERVERS)] : NULL;
}

static __always_inline struct reservation *reservation_at(u32 cpu)
{
	return cpu < MAX_CPUS ? &reservations[bounded(cpu, MAX_CPUS)] : NULL;
}

static __always_inline u32 domain_index(u32 cpu)
{
	return cpu < MAX_CPUS ? options.domain_of[bounded(cpu, MAX_CPUS)] & ~OFFLINE : NO_DOMAIN;
}

static __always_inline u64 ready_queue(u32 domain)
{
	return (u64)domain << 3 | QUEUE_READY;
}

static __always_inline u64 starved_queue(u32 domain)
{
	return (u64)domain << 3 | QUEUE_STARVED;
}

static __always_inline u64 parked_queue(u32 domain)
{
	return (u64)domain << 3 | QUEUE_PARKED;
}

static __always_inline u64 pinned_queue(u32 cpu)
{
	return (u64)cpu << 3 | QUEUE_PINNED;
}

static __always_inline u64 server_queue(u32 number)
{
	return (u64)number << 3 | QUEUE_SERVER;
}

/* A CPU's own queues are numbered: that of bound threads, then its servers'. */
#define OWN_QUEUES (options.criticality ? CPU_SERVERS + 1 : 1)

/* One of them; 0: there is none of that number. */
static __always_inline u64 own_queue(u32 cpu, u32 at)
{
	struct reservation *r = at ? reservation_at(cpu) : NULL;

	if (!at)
		return pinned_queue(cpu);
	u32 number = r && r->count ? r->server[bounded(at - 1, CPU_SERVERS)] : 0;
	return number ? server_queue(number) : 0;
}

static __always_inline void count_queued(u32 kind, u32 of, u32 by)
{
	struct domain *d;
	struct cpu_slot *slot;
	struct server_slot *s;

	if (kind == QUEUE_SERVER) {
		s = server_at(of);
		of = s ? s->cpu : MAX_CPUS;
		kind = QUEUE_PINNED;
	}
	if (kind == QUEUE_PINNED) {
		if ((slot = cpu_at(of)))
			__sync_fetch_and_add(&slot->pinned, by);
		if (options.share && (d = domain_at(domain_index(of))))
			__sync_fetch_and_add(&d->pinned, by);
	} else if (kind == QUEUE_PARKED && (d = domain_at(of))) {
		__sync_fetch_and_add(&d->parked, by);
	} else if ((kind == QUEUE_READY || kind == QUEUE_STARVED) && (d = domain_at(of))) {
		__sync_fetch_and_add(&d->queued, by);
		if (kind == QUEUE_STARVED)
			__sync_fetch_and_add(&d->starved, by);
	}
}

/*
 * Notes in which queue a thread is, before it is there: who counts none later will not miss it. Counts,
 * so that nobody need look into queues that are mostly empty.
 */
static __always_inline void note_queue(struct thread *t, u32 kind, u32 of)
{
	u32 before = __sync_lock_test_and_set(&t->queue, kind << 16 | of);

	count_queued(before >> 16, before & 0xffff, -1);
	count_queued(kind, of, 1);
}

#endif
