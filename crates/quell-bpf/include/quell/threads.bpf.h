/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Threads: a slot of counters for each thread of each tenant.
 *
 * Problem: User space must read a thousand threads' counters within microseconds, and threads outside every
 *          tenant must cost next to nothing at each switch.
 * How:     Slots lie in one mapped array. A table indexed by thread id says which slot a thread has (0:
 *          none), so a lookup is two loads. The id is checked against the task's start time, because a dying
 *          task keeps its id for a moment after another task got the id.
 *          A thread gets a slot when it is created, when its process comes under the monitor, or when it
 *          executes a program under another thread's id; it leaves the slot when it exits. The slot keeps its
 *          final counters until user space has read them and puts the slot on the stack of free slots. Each
 *          use of a slot has a new generation number.
 *          The kernel serialises state changes (the run queue's lock, or the CPU that the thread is on); the
 *          stamp (see observe.h) keeps user space's reading, and its unassigning of processes, consistent
 *          with them.
 * Limits:  With every slot in use, new threads are counted as unmonitored and otherwise ignored. A thread
 *          that comes under the monitor in the middle of a context switch may show the state it just left
 *          until its next switch.
 */
#ifndef QUELL_THREADS_BPF_H
#define QUELL_THREADS_BPF_H

/* The slots of TIDS_PER_PAGE thread ids in a row. */
struct tid_page {
	u16 slot[TIDS_PER_PAGE]; /* index of the thread's slot; 0: none */
};

struct publish_lock {
	struct bpf_spin_lock lock;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2); /* slots, and slot 0 which is none; set by the loader */
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct thread_slot);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* for every possible thread id, set by the loader */
	__type(key, u32);
	__type(value, struct tid_page);
} tid_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_STACK);
	__uint(max_entries, 1); /* slots, set by the loader */
	__type(value, u32);
} free_slots SEC(".maps");

/* Taken while an entry of tid_slots changes from none to a slot. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct publish_lock);
} publish SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, u32);
	__type(value, struct monitor_stats);
} stats SEC(".maps");

static __always_inline struct monitor_stats *monitor_stats(void)
{
	u32 zero = 0;
	return bpf_map_lookup_elem(&stats, &zero);
}

/* Start in hundredths of a second, as /proc tells it, and thread id: quell_model::ThreadId. */
static __always_inline u64 thread_id(u64 start_ns, u32 tid)
{
	return (start_ns / 10000000) << 22 | tid;
}

static __always_inline u64 id_of_task(struct task_struct *task)
{
	return thread_id(task->start_boottime, task->pid);
}

/* The entry of tid_slots for a thread id; NULL: the table is too short for it. */
static __always_inline u16 *tid_entry(u32 tid)
{
	u32 page = tid / TIDS_PER_PAGE;
	struct tid_page *p = bpf_map_lookup_elem(&tid_slots, &page);
	return p ? &p->slot[tid & (TIDS_PER_PAGE - 1)] : NULL;
}

/* The slot of a thread; NULL: it has none. */
static __always_inline struct thread_slot *slot_of(struct task_struct *task)
{
	u32 tid = task->pid;
	u16 *entry = tid_entry(tid);
	u32 index = entry ? *entry : 0;

	if (!index)
		return NULL;
	struct thread_slot *slot = bpf_map_lookup_elem(&threads, &index);
	if (!slot || slot->tid != tid || slot->start_ns != task->start_boottime)
		return NULL;
	return slot;
}

/* Claims the right to change a slot's state. False if the slot has ended or another CPU holds it. */
static __always_inline bool change_begin(struct thread_slot *slot, u64 *stamp)
{
	u64 old = *(volatile u64 *)&slot->stamp;

	if ((old & STATE_MASK) <= STATE_ENDED)
		return false;
	if (__sync_val_compare_and_swap(&slot->stamp, old, (old & ~(u64)STATE_MASK) | STATE_FLUX) !=
	    old)
		return false;
	*stamp = old;
	return true;
}

/* Ends what change_begin() began: the slot is in a state since a time. old: the stamp before. */
static __always_inline void change_end(struct thread_slot *slot, u64 old, u32 state, u64 since,
				       u64 now)
{
	u32 tenant = slot->tenant;

	store_release(&slot->stamp, since << STATE_BITS | state);
	occasion_change(tenant, old & STATE_MASK, state, now);
}

/* The time from a stamp until now, in ns. */
static __always_inline u64 since(u64 stamp, u64 now)
{
	u64 start = stamp >> STATE_BITS;
	return now > start ? now - start : 0;
}

/* The entry of a histogram for a time: its binary logarithm. */
static __always_inline u32 log2_bucket(u64 ns)
{
	u32 v, bucket = 0;

	if (ns >> WAIT_BUCKETS)
		return WAIT_BUCKETS - 1;
	v = ns;
	if (v >> 16) { v >>= 16; bucket += 16; }
	if (v >> 8) { v >>= 8; bucket += 8; }
	if (v >> 4) { v >>= 4; bucket += 4; }
	if (v >> 2) { v >>= 2; bucket += 2; }
	if (v >> 1) bucket += 1;
	return bucket & (WAIT_BUCKETS - 1);
}

/* Stopped and traced; frozen by cgroup v1's freezer, since 6.1 (include/linux/sched.h). */
#define STATE_INTERRUPTIBLE 0x0001
#define STATES_STOPPED 0x000c
#define STATE_FROZEN 0x8000

/* The reason for which a thread is halted, if it is blocked and waits for nothing. */
static __always_inline u8 halt_of(struct task_struct *task)
{
	u32 state = task->__state;

	if (state & STATES_STOPPED)
		return HALT_STOPPED;
	if (state & STATE_FROZEN)
		return HALT_FROZEN;
	/* A thread that waits for a vfork()ed child has frozen set as well, but sleeps until it is killed. */
	if (!(state & STATE_INTERRUPTIBLE) || !bpf_core_field_exists(task->frozen))
		return HALT_NONE;
	return BPF_CORE_READ_BITFIELD(task, frozen) ? HALT_FROZEN : HALT_NONE;
}

/* Copies what the thread's owner, or Quell, has set. Read at switches, where the task is in the cache. */
static __always_inline void refresh_settings(struct thread_slot *slot, struct task_struct *task)
{
	slot->static_prio = task->static_prio;
	slot->policy = task->policy;
	slot->allowed_cpus = task->nr_cpus_allowed;
	slot->affinity_word = task->cpus_mask.bits[0];
	if (bpf_core_field_exists(task->se.custom_slice))
		slot->slice_ns = task->se.slice;
	slot->comm[0] = *(u64 *)&task->comm[0];
	slot->comm[1] = *(u64 *)&task->comm[8];
}

/* A thread's wait for the CPU ends. stamp: the thread's, while it waited. */
static __always_inline void wait_ended(struct thread_slot *slot, struct task_struct *task, u32 cpu,
				       u64 stamp, u64 now)
{
	u64 waited = now > slot->wait_began_ns ? now - slot->wait_began_ns : 0;
	u64 limited = slot->limited_ns;

	charge(slot, task, cpu, stamp >> STATE_BITS, now);
	slot->waits++;
	limited = slot->limited_ns - limited;
	slot->wait_histogram[log2_bucket(waited > limited ? waited - limited : 0)]++;
}

/*
 * The thread was on a CPU until now. If its last known state is ready, the switch to it was missed (see
 * switch_missed()): the thread waited until it arrived on the CPU.
 */
static __always_inline void ran_until(struct thread_slot *slot, struct task_struct *task, u32 cpu,
				      u64 stamp, u64 arrived, u64 now)
{
	if ((stamp & STATE_MASK) == STATE_RUNNING) {
		slot->run_ns += since(stamp, now);
	} else if ((stamp & STATE_MASK) == STATE_READY) {
		u64 from = stamp >> STATE_BITS;

		if (arrived < from)
			arrived = from;
		wait_ended(slot, task, cpu, stamp, arrived);
		slot->run_ns += now > arrived ? now - arrived : 0;
		slot->switches++;
	}
}

/* Ends the use of a slot; its counters stay. exits: the thread is on a CPU, exiting. */
static __always_inline bool end_slot(struct thread_slot *slot, struct task_struct *task, bool exits,
				     u64 now)
{
	u64 old;

	if (!change_begin(slot, &old))
		return false;
	if (exits || (old & STATE_MASK) == STATE_RUNNING)
		ran_until(slot, task, slot->cpu, old, now, now);
	else if ((old & STATE_MASK) == STATE_READY)
		charge(slot, task, slot->cpu, old >> STATE_BITS, now);
	change_end(slot, old, STATE_ENDED, now, now);
	return true;
}

/* A thread id has no slot from now on. */
static __always_inline void forget_tid(u32 tid)
{
	u16 *entry = tid_entry(tid);
	if (entry)
		*entry = 0;
}

/* Gives a thread a slot. NULL if no slot is free, or another CPU gave the thread one meanwhile. */
static __always_inline struct thread_slot *follow(struct task_struct *task, u32 tenant, u64 creator,
						  u64 now)
{
	u32 zero = 0, index = 0, tid = task->pid;
	struct monitor_stats *counts = monitor_stats();
	struct publish_lock *lock = bpf_map_lookup_elem(&publish, &zero);
	u16 *entry = tid_entry(tid);

	if (!counts || !lock)
		return NULL;
	if (!entry) { /* kernel.pid_max was raised after loading */
		__sync_fetch_and_add(&counts->unmonitored, 1);
		return NULL;
	}
	u16 before = *entry;
	if (bpf_map_pop_elem(&free_slots, &index))
		index = __sync_fetch_and_add(&counts->used_slots, 1) + 1;
	struct thread_slot *slot = bpf_map_lookup_elem(&threads, &index);
	if (!slot) {
		__sync_fetch_and_add(&counts->used_slots, -1);
		__sync_fetch_and_add(&counts->unmonitored, 1);
		return NULL;
	}

	__sync_lock_test_and_set(&slot->stamp, STATE_FLUX);
	u32 generation = slot->generation + 1;
	__builtin_memset(&slot->run_ns, 0, sizeof(*slot) - sizeof(slot->stamp));
	slot->generation = generation;
	slot->tid = tid;
	slot->start_ns = task->start_boottime;
	slot->id = thread_id(slot->start_ns, tid);
	slot->creator = creator;
	slot->tgid = task->tgid;
	slot->tenant = tenant;
	slot->cpu = cpu_of(task);
	refresh_settings(slot, task);
	store_release(&slot->stamp, now << STATE_BITS | STATE_UNSEEN);

	bpf_spin_lock(&lock->lock);
	bool first = *entry == before;
	if (first)
		*entry = index;
	bpf_spin_unlock(&lock->lock);
	if (!first) {
		store_release(&slot->stamp, STATE_FREE);
		bpf_map_push_elem(&free_slots, &index, BPF_ANY);
		return NULL;
	}
	if (before) {
		/*
		 * The slot's thread took another thread's id by executing a program, and the new thread got
		 * its old id.
		 */
		u32 stale = before;
		struct thread_slot *old = bpf_map_lookup_elem(&threads, &stale);
		if (old && old->tid == tid)
			end_slot(old, task, false, now);
	}
	return slot;
}

/*
 * A thread leaves its CPU. ready: the thread still wants to run. arrived: since when the thread has been on
 * the CPU, if the switch to it was missed.
 */
static __always_inline void switch_out(struct thread_slot *slot, struct task_struct *task,
				       bool ready, u32 cpu, u64 arrived, u64 now)
{
	u64 old;

	if (!change_begin(slot, &old))
		return;
	ran_until(slot, task, cpu, old, arrived, now);
	refresh_settings(slot, task);
	u32 state = STATE_BLOCKED;
	if (ready) {
		state = STATE_READY;
		slot->preemptions++;
		slot->wait_began_ns = now;
		wait_on(slot, task, cpu);
	} else {
		slot->halted = halt_of(task);
	}
	change_end(slot, old, state, now, now);
}

/*
 * A thread begins to run that was not known to be ready: its wakeup, or the switch away from it, was missed.
 * The thread has waited since the kernel queued it; but no time before read_until counts, so that no counter
 * goes back.
 */
static __always_inline void wait_missed(struct thread_slot *slot, struct task_struct *task, u32 cpu,
					u64 since, u64 read_until, u64 now)
{
	u64 from = queued_at(task, since > read_until ? since : read_until, now);

	if (from >= now)
		return;
	slot->wait_began_ns = from;
	slot->steal_ns = slot->throttled_ns = -1;
	wait_ended(slot, task, cpu, from << STATE_BITS, now);
}

/* A thread begins to run on a CPU. read_until: the time up to which all counters have been read. */
static __always_inline void switch_in(struct thread_slot *slot, struct task_struct *task, u32 cpu,
				      u64 read_until, u64 now)
{
	u64 old;

	if (!change_begin(slot, &old))
		return;
	if ((old & STATE_MASK) == STATE_READY)
		wait_ended(slot, task, cpu, old, now);
	else if ((old & STATE_MASK) == STATE_RUNNING)
		slot->run_ns += since(old, now); /* came under the monitor during a switch */
	else
		wait_missed(slot, task, cpu, old >> STATE_BITS, read_until, now);
	slot->switches++;
	slot->cpu = cpu;
	change_end(slot, old, STATE_RUNNING, now, now);
}

/*
 * The switch away from a thread, which ran since then, was missed: seen on Linux 6.18 in a virtual machine,
 * once in some hundred switches, without the kernel counting a miss. What the thread does now is unknown
 * until its next event. now: when the thread arrived that is known to have had the CPU next, but no time that
 * has been read already, so that no counter goes back.
 */
static __always_inline void switch_missed(u32 tid, u64 then, u64 now)
{
	u16 *entry = tid_entry(tid);
	u32 index = entry ? *entry : 0;
	u64 running = then << STATE_BITS | STATE_RUNNING, old;

	if (!index)
		return;
	struct thread_slot *slot = bpf_map_lookup_elem(&threads, &index);
	if (!slot || *(volatile u64 *)&slot->stamp != running || !change_begin(slot, &old))
		return;
	if (old != running) {
		store_release(&slot->stamp, old);
		return;
	}
	slot->run_ns += since(old, now);
	change_end(slot, old, STATE_UNSEEN, now, now);
}

/* A blocked or new thread becomes ready. */
static __always_inline void thread_woken(struct thread_slot *slot, struct task_struct *task, bool is_new)
{
	u64 old, start = slot->waking_ns;

	if (!change_begin(slot, &old))
		return;
	u32 state = old & STATE_MASK;
	if (state != STATE_BLOCKED && state != STATE_UNSEEN) {
		/* The thread was about to sleep, and now does not. */
		store_release(&slot->stamp, old);
		return;
	}
	/*
	 * The wait begins with the waker's call: an idle CPU may learn of the wakeup much later. A call from
	 * before the thread fell asleep does not count.
	 */
	if (start < old >> STATE_BITS || !start)
		start = bpf_ktime_get_ns();
	if (!is_new)
		slot->wakeups++;
	slot->wait_began_ns = start;
	wait_on(slot, task, cpu_of(task));
	change_end(slot, old, STATE_READY, start, start);
}

/* A ready thread moves to another CPU's run queue: its wait so far was on its old CPU. */
static __always_inline void thread_migrated(struct thread_slot *slot, struct task_struct *task, u32 to,
					    u64 now)
{
	u64 old;

	slot->migrations++;
	if ((*(volatile u64 *)&slot->stamp & STATE_MASK) != STATE_READY || !change_begin(slot, &old))
		return;
	if ((old & STATE_MASK) != STATE_READY) {
		store_release(&slot->stamp, old);
		return;
	}
	u64 from = old >> STATE_BITS;
	if (now < from)
		now = from;
	charge(slot, task, slot->cpu, from, now);
	wait_elsewhere(slot, to);
	store_release(&slot->stamp, now << STATE_BITS | STATE_READY);
}

#endif
