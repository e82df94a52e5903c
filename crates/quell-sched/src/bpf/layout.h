/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Layouts that the scheduler and its loader share, asserted here and in src/layout.rs.
 */
#ifndef QUELL_SCHED_LAYOUT_H
#define QUELL_SCHED_LAYOUT_H

#include "../policy/server.h"

#define MAX_CPUS 1024
#define MAX_LLCS 256
#define LLC_CPUS 64
#define OFFLINE 0x8000
#define MAX_SERVERS 1024
#define CPU_SERVERS_MAX 32
#define MAX_SHARE_SLOTS 16384
#define REASON_BYTES 128
#define MESSAGE_BYTES 1024

struct options {
	u64 margin_ns;		 /* by how much an earlier deadline preempts */
	u32 stretch;		 /* see urgency_latency() */
	u32 causal;		 /* causal age: on or off */
	u32 asymmetry;		 /* latencies and preemption: on or off */
	u32 share;		 /* tenants' shares of the host: on or off */
	u32 nr_llcs;		 /* how many there are */
	u32 nr_cpus;		 /* possible CPUs */
	u32 observe;		 /* counts for the agent's monitor */
	u32 requests;		 /* tell short requests from long ones: on or off */
	u32 criticality;	 /* budgets of servers: on or off */
	u32 unused;
	u16 llc_of[MAX_CPUS]; /* of each possible CPU, with OFFLINE if it is at loading; others 0x7fff */
};

/* What a CPU does, and counters since loading. */
struct cpu_ctx {
	u64 curr_deadline; /* of what runs, see deadline.h */
	u64 deadline_fixed_until_ns;    /* when it begins to become later */
	u64 deadline_pace;     /* how fast */
	u64 curr_since_ns;    /* when what runs got the CPU, or another turn */
	u32 nr_pinned;  /* threads in its pinned queue and its servers' */
	u8 offline;
	u8 curr_mobility; /* what runs there, see migrate.bpf.h */
	u8 migrate_state;   /* it goes on elsewhere, see there */
	u8 llc_visited; /* the domain that it looked at last */
	u64 runs;	   /* times a thread got this CPU */
	u64 wakeups_idle;  /* wakeups placed on an idle CPU, by this CPU */
	u64 wakeups_preempting; /* wakeups that preempted at once */
	u64 wakeups_queued;
	u64 kept;     /* turns renewed, because nobody else was ready */
	u64 wait_ns;  /* ready time of the threads that got this CPU */
	u64 worst_wait_ns;
	u32 worst_wait_tid;
	u32 curr_tid; /* who runs there, or did last */
	u64 late; /* turns that were ended for a thread that waited */
	u64 rescued; /* times it was about to idle beside a thread that had just been queued */
	u64 unused;
} __attribute__((aligned(128)));

/*
 * A thread that wants CPUs, or did of late: what it used, and what the loader says it is due (see share.h). The loader frees it once the
 * thread has ended, or has wanted none for long.
 */
struct share_slot {
	u32 tid;    /* whose; 0: nobody's */
	u32 weight; /* among its siblings, as cgroup v2's */
	u64 group_id;  /* that it competes as part of; 0: the root */
	u64 used_ns;   /* CPU time */
	u64 wanted_ns; /* time in which it was ready or ran, up to since if it is */
	u64 since_ns;  /* since when it is, or is not */
	u64 served_until_ns; /* up to which time it has been served, as of since where it is not */
	u32 rate;   /* of a CPU, while it wants one; by the loader */
	u32 wants;  /* SHARE_SLOT_ENDED: it has ended, and wants none ever */
	u16 nr_cpus_allowed; /* how many CPUs it may use */
	u16 pinned_cpu_plus1;    /* the only CPU that it may use, plus one; 0: it may use several */
	u32 is_new;   /* the thread began when it took the place */
} __attribute__((aligned(64)));

#define SHARE_SLOT_ENDED 2

/* Which of these are taken: about. The loader sets both anew each time that it looks. */
struct share_slot_hints {
	u32 used_end;  /* none is from here on */
	u32 next_free; /* where to look for one that is free */
};

/* Of the threads that may run on one CPU only, see fair.h. */
struct pinned_vclock {
	u64 behind; /* their domain's clock */
	u64 weight_sum;   /* sum of the weights of those that are ready or run; part of their domain's as well */
	u64 vtime_avg;   /* of their virtual times, by weight */
	u64 llc_vclock_frozen;   /* their domain's clock, when what the one that runs there ran was counted last; 0: none of them runs there */
};

/* CPUs that share a last-level cache. */
struct llc_ctx {
	u64 vclock;	 /* virtual time, see fair.h */
	s64 lag_owed;	 /* what threads brought along, less what they left */
	u64 weight_sum;	 /* sum of the weights of the ready and running threads */
	u64 starved_dispatched_at_ns;	 /* when one that had waited for too long got a CPU last */
	u64 migrate_scan_at_ns;	 /* when room was last looked for */
	u64 migrate_timer_armed;	 /* whether its timer runs */
	u64 preempt_timer_at_ns;	 /* when its timer goes off; 0: it does not run */
	u64 unthrottle_timer_at_ns;	 /* the same of the one for parked threads */
	u64 starved_scan_at_ns;	 /* when threads that waited for too long were last looked for */
	u64 resorted_at_ns;	 /* when those of its queue were put in order, see share.bpf.h */
	u32 nr_queued;	 /* threads in its queues */
	u32 nr_starved;	 /* of these, in the one of those that waited for too long */
	u32 nr_pinned;	 /* threads in its CPUs' pinned queues */
	u32 nr_throttled;	 /* threads whose cgroups have used up their limits */
	u32 nr_online;	 /* its CPUs that are online */
	u32 nr_cpus;
	u16 cpus[LLC_CPUS];
} __attribute__((aligned(64)));

struct exit_record {
	s64 code;
	u32 kind; /* enum scx_exit_kind; 0: not exited */
	u32 unused;
	char reason[REASON_BYTES];
	char message[MESSAGE_BYTES];
};

/* Argument of the program that sets or clears what the agent wants of a thread. */
struct thread_setting {
	u32 tid;
	u32 tenant;	/* that it competes as part of; 0: it does as part of its cgroup */
	u32 weight;	/* 1 to 10000; 0: by nice */
	u32 server;	/* that serves it while it may run on that one's CPU only; 0: none */
	u64 latency_ns; /* 0: from the thread's own behaviour */
};

/* Argument of the program that makes, changes or ends a server. */
struct server_setting {
	u32 server; /* from 1; 0: what a CPU keeps for all that no server serves */
	u32 cpu;
	struct server_terms terms; /* a period of 0: it ends */
};

/* A server of a CPU. */
struct server_ctx {
	struct server cur;
	struct server_terms next_terms; /* from its next period on */
	u64 missed;  /* periods that ended before it had what it was promised */
	u32 terms_seq; /* of the terms that are next; odd: they are being written */
	u32 terms_seq_applied; /* of those that hold */
	u32 cpu;
	u32 nr_ready;   /* its threads that are ready or run */
	u32 wakeup_pending;    /* that some are was not looked at yet */
	u32 ended;
} __attribute__((aligned(64)));

/* What a CPU has promised. */
struct server_rq {
	struct server best_effort; /* all that no server serves */
	u64 charged_until_ns;	    /* up to when what runs is charged */
	u64 curr_since_ns;	    /* since when it runs */
	u64 next_event_ns;	    /* when it looks again, whoever runs; found with chosen */
	u64 timer_at_ns;	    /* when its timer goes off; 0: it does not run */
	u64 hi_until_ns;	    /* of all of its servers */
	u64 best_deadline_ns;	    /* of best */
	u64 nr_hi_switches;	    /* to HI mode */
	u32 charged_server;	    /* the server whose budget pays for what runs; 0: the rest's */
	u32 picked_server;	    /* whose turn it is; 0: the rest's */
	u32 best_server;	    /* whose it is among servers; 0: none has a budget and wants it */
	u32 nr_servers;	    /* its servers */
	u8 curr_runs;	    /* something runs */
	u8 curr_leaving;	    /* and is charged until the next one runs */
	u8 hi_mode;	    /* HI mode */
	u8 hi_wanted;	    /* one of high criticality has a budget and wants it */
	u8 exhausted_waits;	    /* one wants CPU time and has no budget */
	u8 lo_resumes;	    /* LO mode begins */
	u8 best_effort_wants;
	u8 rescan_pinned;	    /* who waits in the pinned queue may be served by now */
	u8 nr_kicks;	    /* for budgets, so many times since it looked for work, 2 at most */
	u16 servers[CPU_SERVERS_MAX];
} __attribute__((aligned(64)));

/* Argument of the program that makes or ends a tenant's group. */
struct tenant_setting {
	u32 tenant;
	u32 weight; /* 1 to 10000; 0: it ends */
};

_Static_assert(sizeof(struct options) == 48 + 2 * MAX_CPUS, "loader's layout");
_Static_assert(sizeof(struct cpu_ctx) == 128, "loader's layout");
_Static_assert(MAX_LLCS <= 256, "what was visited is in 8 bits");
_Static_assert(sizeof(struct share_slot_hints) == 8, "loader's layout");
_Static_assert(sizeof(struct share_slot) == 64, "loader's layout");
_Static_assert(sizeof(struct llc_ctx) == 256, "loader's layout");
_Static_assert(sizeof(struct exit_record) == 1168, "loader's layout");
_Static_assert(sizeof(struct thread_setting) == 24, "loader's layout");
_Static_assert(sizeof(struct server_setting) == 56, "loader's layout");
_Static_assert(sizeof(struct server_ctx) == 192, "loader's layout");
_Static_assert(sizeof(struct server_rq) == 320, "loader's layout");
_Static_assert(sizeof(struct tenant_setting) == 8, "loader's layout");

#endif
