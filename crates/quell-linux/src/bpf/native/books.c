/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The monitor as a native library, for the test of its counters (observe/monitor/books.rs): the programs that
 * the kernel runs, compiled as they are.
 *
 * Problem: what the monitor counts is to be compared with what threads did, over histories that no kernel can
 *          be made to have, with events that the monitor does not get.
 * How:     the headers in include/bpf stand in libbpf's place. Maps are arrays; maps, clock and tasks are
 *          local to the test's thread, so that tests run side by side. The test knows a task by its number,
 *          keeps the task's fields true and calls the programs at each event.
 */
#include "../monitor.bpf.c"

/* Few enough that they run out at times. */
#define SLOTS 20
#define TENANTS 4
#define CPUS 4
#define TASKS 32 /* the first are the CPUs' idle ones */
#define GROUPS 3
#define PROCESSES 64

static _Thread_local struct books {
	struct thread_slot slots[SLOTS];
	struct cpu_log logs[CPUS];
	struct wait_row rows[TENANTS];
	struct tenant_occasions occasions[TENANTS];
	struct tid_page tids;
	struct publish_lock publish;
	struct monitor_stats stats;
	u64 told;
	u32 free[SLOTS], frees;
	struct {
		u32 used, tgid, tenant;
	} processes[PROCESSES];
	u64 now;
	u32 cpu, current;
	struct rq queues[CPUS];
	struct cfs_rq groups[GROUPS][CPUS];
	struct task_struct tasks[TASKS];
	struct signal_struct signals[TASKS];
} books;

u64 bpf_ktime_get_ns(void) { return books.now; }
u32 bpf_get_smp_processor_id(void) { return books.cpu; }
struct task_struct *bpf_get_current_task_btf(void) { return &books.tasks[books.current]; }

#define ENTRY(map_, array, count)                                                                  \
	if (map == &map_)                                                                          \
		return index < (count) ? &(array)[index] : NULL;

void *books_lookup(const void *map, const void *key)
{
	u32 index = *(const u32 *)key;

	ENTRY(threads, books.slots, SLOTS)
	ENTRY(cpu_logs, books.logs, CPUS)
	ENTRY(wait_rows, books.rows, TENANTS)
	ENTRY(occasions, books.occasions, TENANTS)
	ENTRY(tid_slots, &books.tids, 1)
	ENTRY(publish, &books.publish, 1)
	ENTRY(stats, &books.stats, 1)
	ENTRY(told, &books.told, 1)
	if (map != &processes)
		return NULL;
	for (u32 i = 0; i < PROCESSES; i++)
		if (books.processes[i].used && books.processes[i].tgid == index)
			return &books.processes[i].tenant;
	return NULL;
}

long books_update(const void *map, const void *key, const void *value)
{
	u32 *tenant = books_lookup(map, key);

	for (u32 i = 0; !tenant && i < PROCESSES; i++) {
		if (books.processes[i].used)
			continue;
		books.processes[i].used = 1;
		books.processes[i].tgid = *(const u32 *)key;
		tenant = &books.processes[i].tenant;
	}
	if (map != &processes || !tenant)
		return -1;
	*tenant = *(const u32 *)value;
	return 0;
}

long books_delete(const void *map, const void *key)
{
	for (u32 i = 0; map == &processes && i < PROCESSES; i++) {
		if (books.processes[i].used && books.processes[i].tgid == *(const u32 *)key) {
			books.processes[i].used = 0;
			return 0;
		}
	}
	return -1;
}

/* Only free slots are a queue here; the events of processes are dropped, since no test reads them. */
long books_push(const void *map, const void *value)
{
	if (map == &free_slots && books.frees < SLOTS)
		books.free[books.frees++] = *(const u32 *)value;
	return 0;
}

long books_pop(const void *map, void *value)
{
	if (map != &free_slots || !books.frees)
		return -1;
	*(u32 *)value = books.free[--books.frees];
	return 0;
}

void books_reset(void)
{
	__builtin_memset(&books, 0, sizeof(books));
	for (u32 cpu = 0; cpu < CPUS; cpu++) {
		for (u32 group = 0; group < GROUPS; group++)
			books.groups[group][cpu].rq = &books.queues[cpu];
		books.tasks[cpu].se.cfs_rq = &books.groups[0][cpu];
		books.tasks[cpu].signal = &books.signals[cpu];
		books.tasks[cpu].thread_info.cpu = cpu;
	}
}

/* The layout of `Task` in observe/monitor/books.rs. */
struct books_task {
	u64 start_ns, arrival_ns;
	u32 pid, tgid, group, cpu, state, on_cpu, on_rq, exiting, live;
};

void books_task(u32 number, const struct books_task *it)
{
	struct task_struct *task = &books.tasks[number];

	task->pid = it->pid;
	task->tgid = it->tgid;
	task->start_boottime = it->start_ns;
	task->thread_info.cpu = it->cpu;
	task->se.cfs_rq = &books.groups[it->group][it->cpu];
	task->__state = it->state;
	task->on_cpu = it->on_cpu;
	task->on_rq = it->on_rq;
	task->flags = it->exiting ? PF_EXITING : 0;
	task->sched_info.last_arrival = it->arrival_ns;
	task->static_prio = 120;
	task->signal = &books.signals[number];
	task->signal->live.counter = it->live;
}

/* What runs now, and where. */
void books_at(u64 now, u32 cpu, u32 current)
{
	books.now = now;
	books.cpu = cpu;
	books.current = current;
}

void books_queue(u32 cpu, u64 clock, u64 steal_ns)
{
	books.queues[cpu].clock = clock;
	books.queues[cpu].prev_steal_time = steal_ns;
}

void books_limited(u32 group, u32 cpu, u64 ns) { books.groups[group][cpu].throttled_clock_self_time += ns; }

void books_assign(u32 tgid, u32 tenant)
{
	if (tenant == NO_TENANT)
		books_delete(&processes, &tgid);
	else
		books_update(&processes, &tgid, &tenant);
}

void books_switch(bool preempt, u32 prev, u32 next)
{
	monitor_on_switch(preempt, &books.tasks[prev], &books.tasks[next]);
}
void books_waking(u32 number) { monitor_on_waking(&books.tasks[number]); }
void books_wakeup(u32 number) { monitor_on_wakeup(&books.tasks[number]); }
void books_new(u32 number) { monitor_on_new(&books.tasks[number]); }
void books_migrate(u32 number, u32 to) { monitor_on_migrate(&books.tasks[number], to); }
void books_exit(u32 number) { monitor_on_exit(&books.tasks[number]); }
void books_sync(u32 number)
{
	struct bpf_iter__task of = { .task = &books.tasks[number] };
	sync_task(&of);
}
void books_see_again(u32 number)
{
	struct bpf_iter__task of = { .task = &books.tasks[number] };
	see_again(&of);
}

/* User space's side. */
void books_told(u64 now) { books.told = now; }
void books_free(u32 slot) { books_push(&free_slots, &slot); }
/* 0: none. */
u32 books_slot(u32 number)
{
	struct thread_slot *slot = slot_of(&books.tasks[number]);
	return slot ? slot - books.slots : 0;
}
const struct thread_slot *books_slots(void) { return books.slots; }
const struct cpu_log *books_logs(void) { return books.logs; }
const struct wait_row *books_rows(void) { return books.rows; }
const struct tenant_occasions *books_occasions(void) { return books.occasions; }
const struct monitor_stats *books_stats(void) { return &books.stats; }
