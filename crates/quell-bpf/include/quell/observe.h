/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Layouts that the observing programs and their reader share.
 *
 * Problem: User space reads these structures from mapped memory while the kernel writes them.
 * How:     Every field is a naturally aligned integer, read and written whole. The build script of the reader
 *          writes the Rust side of these structures.
 *
 *   thread_slot.stamp is both the thread's state and the lock of the fields marked S:
 *
 *     63                          3 2      0
 *     | CLOCK_MONOTONIC ns, since  | state |
 *
 * A CPU that changes these fields replaces the state by FLUX (compare and swap, so at most one CPU does),
 * writes the fields, then stores the new stamp. A reader that finds the same stamp, not FLUX, before and
 * after reading has a consistent copy. The other fields are meaningful one by one.
 */
#ifndef QUELL_OBSERVE_H
#define QUELL_OBSERVE_H

#define MAX_TENANTS 1024
#define WAIT_BUCKETS 32
#define WAKERS 6
#define OCCASION_BUCKETS 64
#define LOG_SEGMENTS 128 /* a power of two */
#define TIDS_PER_PAGE 4096

enum thread_state {
	STATE_FREE = 0,
	STATE_FLUX = 1,
	STATE_ENDED = 2,
	STATE_UNSEEN = 3, /* followed, but no event seen yet */
	STATE_RUNNING = 4,
	STATE_READY = 5,
	STATE_BLOCKED = 6,
	STATE_BITS = 3,
	STATE_MASK = 7,
};

/* Why a thread is blocked although it waits for nothing. */
enum halt {
	HALT_NONE = 0,
	HALT_STOPPED = 1,
	HALT_FROZEN = 2,
};

/* The owner of a CPU's time: a tenant's number, or one of these values. */
enum cause {
	CAUSE_HOST = MAX_TENANTS,
	CAUSE_IDLE,
	CAUSE_BANDWIDTH,
	CAUSE_STEAL,
	CAUSE_UNKNOWN,
	CAUSES,
};

#define CAUSE_BITS 64 /* causes in each word of changed causes */
#define CAUSE_WORDS ((CAUSES + CAUSE_BITS - 1) / CAUSE_BITS)

struct waker {
	__u64 id;    /* thread id: see thread_id(); 0: unused */
	__u32 count; /* wakeups since it entered the table */
	__u32 score; /* for replacement, see wakers.bpf.h */
};

struct thread_slot {
	__u64 stamp;
	__u64 run_ns;	   /* S */
	__u64 ready_ns;	   /* S, charged to causes */
	__u64 waits;	   /* S */
	__u64 switches;	   /* S */
	__u64 preemptions; /* S */
	__u64 wakeups;	   /* S */
	__u64 migrations; /* moves to another CPU's run queue */

	__u64 id; /* start in 1/100 s << 22 | thread id */
	__u64 creator; /* id of the thread that created it; 0: not known */
	__u32 tgid; /* the thread's process */
	__u32 generation; /* grows with each use of the slot */
	__u16 tenant; /* number of the thread's tenant */
	__u16 allowed_cpus; /* number of CPUs that the thread may use */
	__u32 cpu; /* S */
	__u64 comm[2]; /* the thread's name, 16 bytes */
	__u64 affinity_word; /* CPUs 0 to 63 of the affinity mask */

	__u64 slice_ns; /* 0: not known */
	__u8 static_prio;
	__u8 policy;
	__u8 halted; /* enum halt, while it is blocked */
	__u8 unused;
	__u32 tid; /* the thread's id, without its start time */
	/* Private to the monitor. */
	__u64 start_ns;	     /* the task's start_boottime */
	__u64 waking_ns;     /* when a waker last began to wake the thread */
	__u64 wait_began_ns; /* start of the present wait, on whatever CPU */
	__u64 steal_ns;	     /* steal time of the CPU when the wait on it began; all ones: not known */
	__u64 throttled_ns;  /* throttled time of the run queue when the wait began; all ones: not known */
	__u64 scored;	     /* wakeups since the wakers' scores were halved */

	struct waker wakers[WAKERS];
	__u32 wait_histogram[WAIT_BUCKETS]; /* S */
	struct {
		__u64 from, upper, rest, ratio;
	} walk; /* private to the monitor, see waits.bpf.h */
	/* S, time for which bandwidth limits throttled the thread; charged, and not in ready_ns */
	__u64 limited_ns;
};

/* The owners of a CPU's time: the last LOG_SEGMENTS changes of owner. Only that CPU writes its log. */
struct cpu_log {
	__u64 seq; /* odd while the next four change */
	__u64 first_ns; /* first switch that was seen; 0: none */
	__u64 last_ns; /* last switch */
	__u64 idle_ns; /* time for which the CPU idled, until last_ns */
	__u64 steal_ns; /* the CPU's steal time at last_ns */
	__u32 running; /* owner of the CPU since last_ns */
	__u32 head;    /* segments ever written */
	__u64 left_ns; /* with the scheduler observing: when the task that ran last stopped */
	__u32 tid;     /* the thread that has run since last_ns */
	__u32 unused;
	struct {
		__u64 end_ns; /* the segment starts where the one before ends */
		__u64 who; /* owner of the CPU in the segment */
	} segments[LOG_SEGMENTS];
};

/*
 * A tenant's ready time by cause, in ns. With many tenants most causes do not change from one reading to the
 * next: a bit says which did. The reader clears the bits before it reads the times.
 */
struct wait_row {
	__u64 changed[CAUSE_WORDS];
	__u64 ns[CAUSES];
};

struct monitor_stats {
	__u64 used_slots;  /* slots that were ever used */
	__u64 unmonitored; /* threads that found no slot */
	__u64 events_lost;
};

enum process_event_kind {
	PROCESS_CHANGED = 1, /* the process executed a program, or came to another cgroup */
	PROCESS_FORKED = 2,
	PROCESS_EXITED = 3,
};

struct process_event {
	__u32 kind;
	__u32 tgid;
	__u32 parent; /* the process that forked it; of PROCESS_FORKED only */
	__u32 tenant; /* all ones: none */
};

#endif
