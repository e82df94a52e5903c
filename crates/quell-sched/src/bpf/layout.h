/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Structures that the BPF programs share with their loader. The build script writes the Rust side of them.
 */
#ifndef QUELL_SCHED_LAYOUT_H
#define QUELL_SCHED_LAYOUT_H

#include "../policy/server.h"

#define MAX_CPUS 1024 /* possible CPUs */
#define MAX_LLCS 256
#define LLC_CPUS 64 /* CPUs of an LLC */
#define OFFLINE 0x8000 /* flag of an LLC's number in options.llc_of */
#define MAX_SERVERS 1024
#define CPU_SERVERS_MAX 32 /* servers of a CPU */
#define MAX_SHARE_SLOTS 16384
#define REASON_BYTES 128
#define MESSAGE_BYTES 1024

/* Options of the scheduler, set before it is loaded. */
struct options {
	u64 margin_ns; /* a waking task preempts a task whose deadline is later by at least this */
	u32 stretch; /* see urgency_work(), in 1/16 */
	u32 causal; /* bool: age of causal chains */
	u32 asymmetry; /* bool: request deadlines and wakeup preemption */
	u32 share; /* bool: tenants' shares of the whole host */
	u32 nr_llcs; /* number of LLCs */
	u32 nr_cpus; /* number of possible CPUs */
	u32 observe; /* bool: count for the agent's monitor */
	u32 requests; /* bool: tell short requests from long ones */
	u32 criticality; /* bool: constant-bandwidth servers */
	u32 unused;
	/* LLC of each possible CPU, with OFFLINE set if the CPU is offline at load; NO_LLC for other CPUs */
	u16 llc_of[MAX_CPUS];
};

/* State of a CPU, and its counters since the scheduler was loaded. curr is the task that runs on the CPU. */
struct cpu_ctx {
	u64 curr_deadline; /* deadline of curr, see deadline.h; DEADLINE_NONE: none, or not preemptible */
	u64 deadline_fixed_until_ns; /* until then curr_deadline holds, then curr becomes later */
	u64 deadline_pace; /* how fast curr_deadline becomes later, see deadline_pace() */
	u64 curr_since_ns; /* when curr's slice began */
	u32 nr_pinned; /* tasks queued in the CPU's pinned DSQ and in its servers' DSQs */
	u8 offline; /* bool: the CPU is offline */
	u8 curr_mobility; /* enum mobility of curr, see preempt.bpf.h */
	u8 migrate_state; /* enum migrate_state of curr, see migrate.bpf.h */
	u8 llc_visited; /* the remote LLC that the CPU looked at last */
	u64 runs; /* tasks that began to run on this CPU */
	u64 wakeups_idle; /* wakeups done on this CPU that found an idle CPU */
	u64 wakeups_preempting; /* wakeups done on this CPU that preempted a task */
	u64 wakeups_queued; /* wakeups done on this CPU that queued the task */
	u64 kept; /* slices renewed, since no queued task preceded curr */
	u64 wait_ns; /* time that tasks waited before they got this CPU */
	u64 worst_wait_ns; /* the longest of these waits */
	u32 worst_wait_tid; /* the task with the longest wait */
	u32 curr_tid; /* the task that runs on this CPU, or ran last */
	u64 late; /* slices that the preemption timer ended */
	u64 rescued; /* times the CPU was about to idle while a task had just been queued */
	u64 unused;
} __attribute__((aligned(128)));

/*
 * Share slot of a task that wants CPU time, or did lately: what the task used, and what the rate solver of
 * the loader found it is due (share.h). The loader frees the slot once the task has exited, or has wanted no
 * CPU time for long.
 */
struct share_slot {
	u32 tid; /* owner; 0: the slot is free */
	u32 weight; /* the task's weight among its siblings, 1 to 10000 as in cgroup v2 */
	u64 group_id; /* group that the task competes in; 0: the root */
	u64 used_ns; /* CPU time that the task used */
	u64 wanted_ns; /* time for which the task was runnable; if it is runnable now, up to since_ns */
	u64 since_ns; /* when the task last became runnable or blocked; 0: the slot is being allocated */
	/* the time up to which the task has been served, as of since_ns while it sleeps */
	u64 served_until_ns;
	u32 rate; /* CPU share while the task is runnable, in 1/SHARE_RATE_ONE; written by the loader */
	u32 wants; /* 0: the task sleeps; 1: it is runnable; SHARE_SLOT_ENDED: it has exited */
	u16 nr_cpus_allowed; /* size of the task's affinity mask */
	u16 pinned_cpu_plus1; /* the only CPU that the task may use, plus one; 0: it may use several */
	u32 is_new; /* bool: the task began when the slot was allocated */
} __attribute__((aligned(64)));

#define SHARE_SLOT_ENDED 2

/*
 * Hints at the share slots that are in use. The loader sets both values in every step of the rate solver.
 */
struct share_slot_hints {
	u32 used_end; /* no slot from here on is in use */
	u32 next_free; /* where the search for a free slot begins */
};

/* Virtual clock of the tasks that are pinned to a CPU, see fair.h. */
struct pinned_vclock {
	u64 behind; /* by how much this clock is behind the LLC's */
	u64 weight_sum; /* weights of the pinned tasks that are runnable; the LLC's sum includes them */
	u64 vtime_avg; /* average vtime of the pinned tasks, by weight */
	/* the LLC's vclock when the running pinned task was charged last; 0: no pinned task runs */
	u64 llc_vclock_frozen;
};

/* CPUs that share a last-level cache. */
struct llc_ctx {
	u64 vclock; /* virtual clock, see fair.h */
	s64 lag_owed; /* weighted lag that tasks brought to the LLC, less what they took away */
	u64 weight_sum; /* weights of the runnable tasks */
	u64 starved_dispatched_at_ns; /* when a starved task got a CPU last */
	u64 migrate_scan_at_ns; /* when migrate_scan() was last due */
	u64 migrate_timer_armed; /* bool: the migration timer is armed */
	u64 preempt_timer_at_ns; /* expiry of the preemption timer; 0: not armed */
	u64 unthrottle_timer_at_ns; /* expiry of the unthrottle timer; 0: not armed */
	u64 starved_scan_at_ns; /* when starved tasks were last looked for */
	u64 resorted_at_ns; /* when the LLC's DSQ was last put in order, see share.bpf.h */
	u32 nr_queued; /* tasks in the LLC's DSQ and in its starved DSQ */
	u32 nr_starved; /* tasks in the LLC's starved DSQ */
	u32 nr_pinned; /* tasks in the pinned DSQs of the LLC's CPUs */
	u32 nr_throttled; /* tasks in the throttled DSQ */
	u32 nr_online; /* online CPUs of the LLC */
	u32 nr_cpus; /* possible CPUs of the LLC */
	u16 cpus[LLC_CPUS]; /* numbers of these CPUs */
} __attribute__((aligned(64)));

/* How the scheduler exited. */
struct exit_record {
	s64 code; /* exit code, for exits on request */
	u32 kind; /* enum scx_exit_kind; 0: the scheduler has not exited */
	u32 unused;
	char reason[REASON_BYTES]; /* the kind in the kernel's words */
	char message[MESSAGE_BYTES]; /* what happened */
};

/* Argument of quell_set_thread(), which sets or clears what the agent wants of a task. */
struct thread_setting {
	u32 tid; /* the task */
	u32 tenant; /* tenant that the task competes in; 0: it competes in its cgroup */
	u32 weight; /* 1 to 10000; 0: by nice */
	/* server that serves the task while the task is pinned to the server's CPU; 0: none */
	u32 server;
	u64 latency_ns; /* rescheduling latency; 0: from the task's own bursts */
};

/* Argument of quell_set_server(), which makes, changes or ends a server. */
struct server_setting {
	u32 server; /* number of the server, from 1; 0: the best-effort server of the CPU */
	u32 cpu; /* CPU of the server */
	struct server_terms terms; /* a period of 0 ends the server */
};

/* A constant-bandwidth server of a CPU. */
struct server_ctx {
	struct server cur; /* state and present terms */
	struct server_terms next_terms; /* terms that hold from the next period on */
	u64 missed; /* periods that ended before the server had its budget */
	u32 terms_seq; /* sequence count of next_terms; odd: the agent is writing them */
	u32 terms_seq_applied; /* sequence count of the terms in cur */
	u32 cpu; /* CPU of the server */
	u32 nr_ready; /* runnable tasks of the server */
	/* bool: the server has become ready, and pick_server() has not seen that yet */
	u32 wakeup_pending;
	u32 ended; /* bool: the server has ended, and may still have runnable tasks */
} __attribute__((aligned(64)));

/* The servers of a CPU, and which of them the CPU serves. curr is the task that runs on the CPU. */
struct server_rq {
	struct server best_effort; /* server of all tasks that no other server serves */
	u64 charged_until_ns; /* up to when curr is charged */
	u64 curr_since_ns; /* when curr began to run */
	/* when the CPU has to pick again, whichever task runs; set with picked_server */
	u64 next_event_ns;
	u64 timer_at_ns; /* expiry of the budget timer; 0: not armed */
	u64 hi_until_ns; /* HI mode lasts until then, by all servers of the CPU */
	u64 best_deadline_ns; /* deadline of best_server */
	u64 nr_hi_switches; /* switches to HI mode */
	u32 charged_server; /* server that pays for curr; 0: best effort */
	u32 picked_server; /* server that the CPU serves; 0: best effort */
	/* first server by deadline that is ready and has budget; 0: there is none */
	u32 best_server;
	u32 nr_servers; /* servers of this CPU */
	u8 curr_runs; /* bool: a task runs */
	u8 curr_leaving; /* bool: curr has stopped, and pays until the next task runs */
	u8 hi_mode; /* bool: HI mode */
	u8 hi_wanted; /* bool: a server of high criticality is ready and has budget */
	u8 exhausted_waits; /* bool: a server is ready and has no budget */
	u8 lo_resumes; /* bool: LO mode begins with this pick */
	u8 best_effort_wants; /* bool: best-effort tasks want the CPU */
	u8 rescan_pinned; /* bool: tasks in the pinned DSQ may have got a server */
	u8 nr_kicks; /* preemptions for budgets since the CPU last dispatched, 2 at most */
	u16 servers[CPU_SERVERS_MAX]; /* numbers of the servers; 0: a free entry */
} __attribute__((aligned(64)));

/* Argument of quell_set_tenant(), which makes or ends the group of a tenant. */
struct tenant_setting {
	u32 tenant; /* number of the tenant */
	u32 weight; /* 1 to 10000; 0 ends the group */
};

_Static_assert(MAX_LLCS <= 256, "what was visited is in 8 bits");
_Static_assert(sizeof(struct cpu_ctx) == 128, "CPUs share no cache line");
_Static_assert(sizeof(struct share_slot) == 64, "a task writes one cache line");

#endif
