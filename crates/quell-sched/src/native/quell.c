/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The scheduler as a native library, for the simulator: the BPF programs, compiled as they are.
 *
 * Problem: The simulator must run what ships, and many simulations run side by side.
 * How:     The headers in include/bpf stand in for libbpf's. Global variables are thread-local, and are saved
 *          and loaded when another simulation goes on (quell_native_save, quell_native_load). Arrays lie in
 *          the simulation's memory, and thread-local pointers point to them. A thread of the simulation is a
 *          task_struct, with the objects that belong to it behind it; the simulator knows it by a number,
 *          which is its pid less one. The simulator also knows each thread's affinity: a pointer to a cpumask
 *          is a pointer to the thread.
 */
#define ASSERT_INVARIANT(condition)                                                                \
	({                                                                                         \
		if (!(condition)) {                                                                \
			__builtin_printf("%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
			__builtin_trap();                                                          \
		}                                                                                  \
	})
#include "../bpf/quell.bpf.c"

struct native_task {
	struct task_struct task;
	struct signal_struct signal;
	struct task_ctx thread;
};

/* The simulator keeps groups and timers. */
struct group *quell_native_group(u64 id);
void quell_native_add_group(u64 id, const struct group *group);
void quell_native_arm(u32 index, u64 ns);
void quell_native_failed(const char *why);

/*
 * Timers by number: preemption timers of LLCs, bandwidth timers of CPUs, unthrottle and migration timers of
 * LLCs, budget timers of CPUs.
 */
#define FIRST_BANDWIDTH_TIMER MAX_LLCS
#define FIRST_UNTHROTTLE_TIMER (MAX_LLCS + MAX_CPUS)
#define FIRST_MIGRATE_TIMER (FIRST_UNTHROTTLE_TIMER + MAX_LLCS)
#define FIRST_BUDGET_TIMER (FIRST_MIGRATE_TIMER + MAX_LLCS)
/* Only their addresses are used. */
static struct bpf_timer timers[FIRST_BUDGET_TIMER + MAX_CPUS];

void *quell_native_storage(struct task_struct *p)
{
	return &((struct native_task *)p)->thread;
}

void *quell_native_lookup(const void *map, const void *key)
{
	if (map == &groups)
		return quell_native_group(*(const u64 *)key);
	if (map == &preempt_timers)
		return &timers[*(const u32 *)key];
	if (map == &bandwidth_timers)
		return &timers[FIRST_BANDWIDTH_TIMER + *(const u32 *)key];
	if (map == &unthrottle_timers)
		return &timers[FIRST_UNTHROTTLE_TIMER + *(const u32 *)key];
	if (map == &migrate_timers)
		return &timers[FIRST_MIGRATE_TIMER + *(const u32 *)key];
	if (map == &budget_timers)
		return &timers[FIRST_BUDGET_TIMER + *(const u32 *)key];
	return NULL;
}

long quell_native_update(const void *map, const void *key, const void *value)
{
	if (map != &groups)
		return -1;
	quell_native_add_group(*(const u64 *)key, value);
	return 0;
}

long quell_native_start_timer(const void *timer, unsigned long long ns)
{
	quell_native_arm((const struct bpf_timer *)timer - timers, ns);
	return 0;
}

#define EACH_STATE(what) what(options) what(exit_record) what(bandwidth) what(share_slot_hints)
#define EACH_ARRAY(what)                                                                           \
	what(cpu_ctxs, MAX_CPUS) what(llcs, MAX_LLCS) what(pinned_vclocks, MAX_CPUS)               \
	what(cpu_dispatch_states, MAX_CPUS) what(servers, MAX_SERVERS) what(server_rqs, MAX_CPUS)  \
	what(share_slots, MAX_SHARE_SLOTS)

#define ARRAY_SIZE(array, count) +((sizeof(*array) * (count) + 127) & ~127ULL)
u64 quell_native_arrays_size(void) { return 0 EACH_ARRAY(ARRAY_SIZE); }

#define PLACE(array, count)                                                                        \
	array = (typeof(array))at;                                                                 \
	at += 0 ARRAY_SIZE(array, count);
/* at: aligned to 128 bytes. */
void quell_native_place(char *at) { EACH_ARRAY(PLACE) }

#define SIZE(state) +sizeof(state)
u64 quell_native_size(void) { return 0 EACH_STATE(SIZE); }

#define SAVE(state)                                                                                \
	__builtin_memcpy(to, (const void *)&state, sizeof(state));                                 \
	to += sizeof(state);
void quell_native_save(char *to) { EACH_STATE(SAVE) }

#define LOAD(state)                                                                                \
	__builtin_memcpy((void *)&state, from, sizeof(state));                                     \
	from += sizeof(state);
void quell_native_load(const char *from) { EACH_STATE(LOAD) }

void quell_native_set_options(const struct options *to) { options = *to; }
const struct cpu_ctx *quell_native_cpus(void) { return cpu_ctxs; }

/*
 * Iterates over a DSQ as it was at the beginning: a task that is inserted or moved meanwhile is not returned
 * (again).
 */
struct native_iterator {
	u64 dsq;
	u64 newest; /* the last insertion that counts */
	u64 place[2]; /* vtime and insertion of the last task returned */
	u64 vtime;
	u64 slice;
};
_Static_assert(sizeof(struct native_iterator) == sizeof(struct bpf_iter_scx_dsq), "libbpf's");

void quell_native_move(struct task_struct *p, u64 from, u64 to, u64 vtime);
u64 quell_native_newest(void);
struct task_struct *quell_native_next(u64 dsq, u64 newest, u64 *place);

int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq, u64 flags)
{
	*(struct native_iterator *)it = (struct native_iterator){.dsq = dsq, .newest = quell_native_newest()};
	return 0;
}
struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it)
{
	struct native_iterator *native = (struct native_iterator *)it;

	return quell_native_next(native->dsq, native->newest, native->place);
}
void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) { (void)it; }
void scx_bpf_dsq_move_set_vtime(struct bpf_iter_scx_dsq *it, u64 vtime)
{
	((struct native_iterator *)it)->vtime = vtime;
}
void scx_bpf_dsq_move_set_slice(struct bpf_iter_scx_dsq *it, u64 slice)
{
	((struct native_iterator *)it)->slice = slice;
}
bool scx_bpf_dsq_move_vtime(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq, u64 flags)
{
	struct native_iterator *native = (struct native_iterator *)it;

	quell_native_move(p, native->dsq, dsq, native->vtime);
	if (native->slice)
		scx_bpf_task_set_slice(p, native->slice);
	native->slice = 0;
	return true;
}

/* The only mask that the programs ask for is that of idle CPUs, which the simulator has. */
const struct cpumask *scx_bpf_get_idle_cpumask(void) { return NULL; }
void scx_bpf_put_idle_cpumask(const struct cpumask *mask) { (void)mask; }

/* Kernel functions that need nothing of the simulator. */
void bpf_task_release(struct task_struct *p) { (void)p; }
void bpf_rcu_read_lock(void) {}
void bpf_rcu_read_unlock(void) {}
/* A simulation has no other scheduler that could take over. */
void scx_bpf_error_bstr(char *fmt, unsigned long long *data, u32 size) { quell_native_failed(fmt); }
void scx_bpf_dump_bstr(char *fmt, unsigned long long *data, u32 size) { (void)fmt; }
u32 scx_bpf_reenqueue_local(void) { return 0; }

u64 quell_native_task_size(void) { return sizeof(struct native_task); }

/*
 * Makes a task in zeroed memory. leader: NULL for a thread group leader. No task has pid 0, which is the idle
 * thread's.
 */
struct task_struct *quell_native_task(void *zeroed, u32 pid, void *leader, u32 weight, u32 allowed)
{
	struct native_task *it = zeroed, *first = leader ?: zeroed;
	struct task_struct *p = &it->task;

	p->pid = pid;
	p->tgid = first->task.pid ?: (int)pid;
	p->prio = p->static_prio = 120;
	p->group_leader = &first->task;
	p->signal = &first->signal;
	first->signal.nr_threads++;
	p->scx.weight = weight;
	p->nr_cpus_allowed = allowed;
	p->cpus_ptr = (const struct cpumask *)p;
	return p;
}

u32 quell_native_pid(const struct task_struct *p) { return p->pid; }
void quell_native_allow(struct task_struct *p, u32 allowed) { p->nr_cpus_allowed = allowed; }
void quell_native_set_exec(struct task_struct *p, u64 ns) { p->se.sum_exec_runtime = ns; }
void quell_native_set_vtime(struct task_struct *p, u64 vtime) { p->scx.dsq_vtime = vtime; }
void quell_native_set_queued(struct task_struct *p, bool queued)
{
	p->scx.flags = queued ? SCX_TASK_QUEUED : 0;
}

s32 quell_native_init(void) { return quell_ops.init(); }

/* A task comes under the scheduler. fork: the current task forks it. */
s32 quell_native_init_task(struct task_struct *p, struct cgroup *cgroup, bool fork)
{
	struct scx_init_task_args args = { .fork = fork, .cgroup = cgroup };

	if (fork)
		p->real_parent = bpf_get_current_task_btf();
	s32 error = quell_ops.init_task(p, &args);

	if (!error)
		quell_ops.enable(p);
	return error;
}

/* A task begins to exit, and will wake a task that waits for its end. */
void quell_native_begin_exit(struct task_struct *p) { p->flags |= PF_EXITING; }

/* A task has exited, and was switched away from. The scheduler has no ops.exit_task(). */
void quell_native_exit_task(struct task_struct *p)
{
	quell_ops.disable(p);
	p->signal->nr_threads--;
}

/* A cgroup, of which only id and level are known. */
struct native_cgroup {
	struct cgroup cgroup;
	struct kernfs_node node;
	struct cgroup *parent;
};

u64 quell_native_cgroup_size(void) { return sizeof(struct native_cgroup); }

s32 quell_native_cgroup(void *zeroed, u64 id, struct cgroup *parent, u32 weight)
{
	struct native_cgroup *it = zeroed;
	struct scx_cgroup_init_args args = { .weight = weight };

	it->node.id = id;
	it->parent = parent;
	it->cgroup.kn = &it->node;
	it->cgroup.level = parent ? parent->level + 1 : 0;
	return quell_ops.cgroup_init(&it->cgroup, &args);
}

void quell_native_set_bandwidth(struct cgroup *cgroup, u64 period_us, u64 quota_us, u64 burst_us)
{
	quell_ops.cgroup_set_bandwidth(cgroup, period_us, quota_us, burst_us);
}

struct cgroup *bpf_cgroup_ancestor(struct cgroup *cgroup, int level)
{
	while (cgroup && cgroup->level > level)
		cgroup = ((struct native_cgroup *)cgroup)->parent;
	return cgroup;
}

void bpf_cgroup_release(struct cgroup *cgroup) { (void)cgroup; }

s32 quell_native_select_cpu(struct task_struct *p, s32 prev_cpu, u64 flags)
{
	return quell_ops.select_cpu(p, prev_cpu, flags);
}
void quell_native_enqueue(struct task_struct *p, bool wakes)
{
	quell_ops.enqueue(p, wakes ? SCX_ENQ_WAKEUP : 0);
}
void quell_native_dispatch(s32 cpu, struct task_struct *prev) { quell_ops.dispatch(cpu, prev); }
void quell_native_running(struct task_struct *p) { quell_ops.running(p); }
void quell_native_stopping(struct task_struct *p, bool runnable)
{
	quell_ops.stopping(p, runnable);
}
void quell_native_update_idle(s32 cpu, bool idle) { quell_ops.update_idle(cpu, idle); }
void quell_native_timer(u32 index)
{
	void *timer = &timers[index];
	u32 key = index;

	if (index < FIRST_BANDWIDTH_TIMER) {
		on_preempt_timer(&preempt_timers, &key, timer);
	} else if (index < FIRST_UNTHROTTLE_TIMER) {
		key -= FIRST_BANDWIDTH_TIMER;
		on_bandwidth_timer(&bandwidth_timers, &key, timer);
	} else if (index < FIRST_MIGRATE_TIMER) {
		key -= FIRST_UNTHROTTLE_TIMER;
		on_unthrottle_timer(&unthrottle_timers, &key, timer);
	} else if (index < FIRST_BUDGET_TIMER) {
		key -= FIRST_MIGRATE_TIMER;
		on_migrate_timer(&migrate_timers, &key, timer);
	} else {
		key -= FIRST_BUDGET_TIMER;
		on_budget_timer(&budget_timers, &key, timer);
	}
}

s32 quell_native_set_thread(struct thread_setting *setting) { return quell_set_thread(setting); }
s32 quell_native_set_server(struct server_setting *setting) { return quell_set_server(setting); }
const struct server_ctx *quell_native_servers(void) { return servers; }
struct share_slot_hints *quell_native_share_slot_hints(void) { return &share_slot_hints; }
struct share_slot *quell_native_share_slots(void) { return share_slots; }
