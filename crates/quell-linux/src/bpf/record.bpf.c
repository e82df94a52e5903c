/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The recorder: reports every switch, wakeup, new thread and new name to user space, one by one.
 *
 * Problem: A trace needs all events in their order, and the scheduler that makes them must not wait for the
 *          reader.
 * How:     A ring buffer for each CPU, so that CPUs never wait for each other. User space polls the buffers;
 *          no event wakes it. Names and processes come with the thread that an event is about, so that user
 *          space also learns of a thread that began before the record.
 * Limits:  An event that finds no room is lost; the next event of its CPU says how many were. A switch that
 *          the kernel does not report to BPF programs (see threads.bpf.h) is not in the trace.
 */
#include <quell/kernel.bpf.h>

enum record_kind {
	RECORD_SWITCH = 1, /* other leaves the CPU as state, the thread runs with priority value */
	RECORD_WAKEUP = 2, /* other wakes the thread, which was on CPU value */
	RECORD_NEW = 3,	   /* other made the thread */
	RECORD_NAME = 4,   /* the thread has this name now */
};

struct record_event {
	u64 at_ns; /* CLOCK_BOOTTIME */
	u32 lost;  /* events of this CPU lost since the last one that found room */
	u8 kind;
	u8 interrupt; /* bool: an interrupt did it, not other */
	u16 state;    /* as the kernel's own trace point reports it */
	u32 tid;
	u32 tgid;
	u32 other;
	u32 value;
	char comm[16];
};

struct record_counts {
	u64 events;
	u64 lost;
	u64 told; /* lost events that were reported */
	u64 timed; /* events that were timed, one in 64 */
	u64 timed_ns;
	u64 unused[3]; /* a cache line for each CPU */
};

_Static_assert(sizeof(struct record_event) == 48, "reader's layout");
_Static_assert(__builtin_offsetof(struct record_event, tid) == 16, "reader's layout");
_Static_assert(__builtin_offsetof(struct record_event, comm) == 32, "reader's layout");
_Static_assert(sizeof(struct record_counts) == 64, "reader's layout");

struct record_ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1); /* CPUs, set by the loader, which puts the rings in */
	__type(key, u32);
	__array(values, struct record_ring);
} rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* CPUs, set by the loader */
	__type(key, u32);
	__type(value, struct record_counts);
} counts SEC(".maps");

static __always_inline struct record_counts *counts_here(void)
{
	u32 cpu = bpf_get_smp_processor_id();
	return bpf_map_lookup_elem(&counts, &cpu);
}

/* Reserves room for an event about a task; NULL: there is none. */
static __always_inline struct record_event *begin(u8 kind, struct task_struct *task, u64 now)
{
	u32 cpu = bpf_get_smp_processor_id();
	void *ring = bpf_map_lookup_elem(&rings, &cpu);
	struct record_counts *c = counts_here();

	if (!ring || !c)
		return NULL;
	struct record_event *event = bpf_ringbuf_reserve(ring, sizeof(*event), 0);
	if (!event) {
		c->lost++;
		return NULL;
	}
	u64 *comm = (u64 *)event->comm;
	event->at_ns = now;
	event->lost = c->lost - c->told;
	c->told = c->lost;
	event->kind = kind;
	event->interrupt = 0;
	event->state = 0;
	event->tid = task->pid;
	event->tgid = task->tgid;
	event->other = 0;
	event->value = 0;
	comm[0] = *(u64 *)&task->comm[0];
	comm[1] = *(u64 *)&task->comm[8];
	return event;
}

static __always_inline void end(struct record_event *event)
{
	u64 began = event->at_ns;
	struct record_counts *c = counts_here();

	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	if (c && !(c->events++ & 63)) {
		c->timed++;
		c->timed_ns += bpf_ktime_get_boot_ns() - began;
	}
}

/* What the kernel's own trace point prints: the highest of the reported bits. */
static __always_inline u16 reported_state(bool preempt, struct task_struct *task)
{
	u32 state = task->__state, bits = (state | task->exit_state) & 0x7f;

	if (preempt)
		return 0x100;
	if ((state & 0x402) == 0x402) /* TASK_IDLE */
		return 0x80;
	if (!bits && state) /* TASK_RTLOCK_WAIT, TASK_FROZEN; else a wakeup has begun: it slept */
		return state & 0x9000 ? 2 : 1;
	if (bits & 0x40)
		return 0x40;
	if (bits & 0x20)
		return 0x20;
	if (bits & 0x10)
		return 0x10;
	if (bits & 8)
		return 8;
	if (bits & 4)
		return 4;
	return bits & 2 ? 2 : bits;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct record_event *event = begin(RECORD_SWITCH, next, bpf_ktime_get_boot_ns());

	if (!event)
		return 0;
	event->other = prev->pid;
	event->state = reported_state(preempt, prev);
	event->value = next->prio;
	end(event);
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(on_waking, struct task_struct *task)
{
	struct task_struct *waker = bpf_get_current_task_btf();
	struct record_event *event = begin(RECORD_WAKEUP, task, bpf_ktime_get_boot_ns());

	if (!event)
		return 0;
	event->other = waker->pid;
	event->interrupt = in_interrupt(waker);
	event->value = cpu_of(task);
	end(event);
	return 0;
}

/*
 * Also of threads without a fork: the fork trace point misses the threads that the kernel adds to a process.
 */
SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_new, struct task_struct *task)
{
	struct task_struct *creator = bpf_get_current_task_btf();
	struct record_event *event = begin(RECORD_NEW, task, bpf_ktime_get_boot_ns());

	if (!event)
		return 0;
	event->other = creator->pid;
	end(event);
	return 0;
}

/* Before the name is set. An executed program reports its own name. */
SEC("tp_btf/task_rename")
int BPF_PROG(on_rename, struct task_struct *task, const char *name)
{
	struct record_event *event = begin(RECORD_NAME, task, bpf_ktime_get_boot_ns());

	if (!event)
		return 0;
	bpf_probe_read_kernel_str(event->comm, sizeof(event->comm), name);
	end(event);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
