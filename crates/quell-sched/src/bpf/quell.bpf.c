/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Quell's scheduler: the sched_ext operations, which join the features.
 *
 *   fair.bpf.h        vtime, lag and weight of a task, and its deadline
 *   groups.bpf.h      weights of groups
 *   share.bpf.h       shares of the whole host, with rates from the loader
 *   causal.bpf.h      age of the causal chain that a task's work is part of
 *   request.bpf.h     CPU time of a process's requests
 *   queue.bpf.h       the DSQ of a runnable task
 *   preempt.bpf.h     wakeup preemption and the end of slices
 *   starvation.bpf.h  bound on the wait of tasks of little weight
 *   server.bpf.h      constant-bandwidth servers
 *   migrate.bpf.h     active migration for tasks of restricted affinity
 *   bandwidth.bpf.h   bandwidth limits of cgroups
 *   throttle.bpf.h    throttled tasks
 *   dispatch.bpf.h    which task a CPU runs next
 *   observe.bpf.h     counters for the agent's monitor
 *
 * A waking task gets a deadline. Then it gets an idle CPU, or preempts a task with a later deadline, or is
 * queued in its LLC's DSQ. A pinned task also preempts a task that can go on on an idle CPU. A CPU that
 * dispatches takes the first task of its own and its LLC's DSQs, then of other LLCs': no CPU stays idle while
 * a runnable task may use it. A CPU that queues a task looks for an idle CPU afterwards, and a CPU that is
 * about to idle looks at the DSQs afterwards, so that neither misses the other.
 */
#include "task.bpf.h"
#include "fair.bpf.h"
#include "causal.bpf.h"
#include "request.bpf.h"
#include "preempt.bpf.h"
#include "starvation.bpf.h"
#include "server.bpf.h"
#include "migrate.bpf.h"
#include "throttle.bpf.h"
#include "dispatch.bpf.h"
#include "observe.bpf.h"

/* A blocked task becomes runnable. */
__global_subprog int wakeup_task(struct task_ctx *t, struct task_struct *p __arg_trusted, u32 cpu, u64 now)
{
	struct task_struct *by = waker();

	if (!t)
		return 0;
	observe_wake(p);
	t->burst_ns = 0;
	t->woke_at_ns = now;
	t->woken_by_task = !!by;
	activate_task(t, p, cpu, true, now);
	struct task_ctx *child = exiting_child(p, by);
	if (child) {
		charge_task(child, by, false, now);
		inherit_child_lag(t, child, now);
	}
	update_light(t, p, now);
	count_request(t, p, by);
	inherit_chain(t, by, now);
	update_deadline(t, now);
	return 0;
}

/* Puts a runnable task into its DSQ, and kicks an idle CPU to take it. True if there was one. */
__global_subprog int enqueue_task(struct task_ctx *t, struct task_struct *p __arg_trusted, u32 cpu, u64 now)
{
	if (!t)
		return 0;
	struct dsq_target target = select_dsq(t, p, cpu);

	dsq_insert_vtime(p, target.dsq, target.slice_ns, target.vtime, 0);
	/*
	 * On a busy host no CPU idles, and a failing search costs several times as much as reading the mask.
	 */
	s32 idle = p->nr_cpus_allowed > 1 && has_idle_cpu(NULL) ? scx_bpf_pick_idle_cpu(p->cpus_ptr, 0) : -1;
	if (idle >= 0) {
		scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
		return 1;
	}
	arm_preempt_timer(t, now);
	if (options.share)
		migrate_on_enqueue(p, t->llc, now);
	return 0;
}

/*
 * True if this CPU is going offline. Work that this CPU defers until interrupts are enabled again, as kicks
 * and timers do, is then never done, and blocks all deferred work once the CPU is online again (seen with
 * 7.2: four idle CPUs beside tasks that waited for ever). So a task that becomes runnable on this CPU goes
 * straight to a local DSQ, which defers nothing.
 */
static __always_inline bool cpu_goes_offline(struct cpu_ctx *this_cpuc)
{
	return this_cpuc && this_cpuc->offline;
}

SEC("struct_ops/select_cpu")
s32 BPF_PROG(quell_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct cpu_ctx *this_cpuc = lookup_cpu_ctx(bpf_get_smp_processor_id());
	struct task_ctx *t = lookup_task_ctx(p);
	u64 now = time_ns();
	bool idle = false;

	if (cpu_goes_offline(this_cpuc))
		return scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);
	/* A throttled task goes to its DSQ in ops.enqueue(). */
	if (!t || !this_cpuc || throttled_until(t, now))
		return prev_cpu;
	wakeup_task(t, p, prev_cpu, now);
	if (has_idle_cpu(NULL)) {
		s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);
		if (idle) {
			this_cpuc->wakeups_idle++;
			dsq_insert(p, SCX_DSQ_LOCAL, FAIR_SLICE_MAX, ENQ_IMMED);
			return cpu;
		}
	}
	s32 victim = claim_preemptible_cpu(p, t, t->deadline + options.margin_ns, now);
	if (victim >= 0) {
		this_cpuc->wakeups_preempting++;
		dsq_insert(p, SCX_DSQ_LOCAL, FAIR_SLICE_MAX, SCX_ENQ_PREEMPT);
		return victim;
	}
	this_cpuc->wakeups_queued++;
	/* A task that may run anywhere belongs in its LLC's DSQ, whichever CPU this is. */
	if (p->nr_cpus_allowed >= options.nr_cpus)
		enqueue_task(t, p, 0, now);
	return prev_cpu;
}

/*
 * A pinned task becomes runnable: gives it its CPU at once, if the CPU idles or its task may be preempted.
 * True if so.
 */
static __always_inline bool wakeup_pinned(struct task_ctx *t, struct task_struct *p, s32 cpu, u64 now)
{
	struct cpu_ctx *cpuc = lookup_cpu_ctx(cpu);

	if (!cpuc)
		return false;
	if (claim_idle_cpu(cpu)) {
		dsq_insert(p, SCX_DSQ_LOCAL, FAIR_SLICE_MAX, 0);
		return true;
	}
	/*
	 * While a higher scheduling class has the CPU, the interrupted task would go on with its slice, and
	 * the pinned task would wait for the end of that slice.
	 */
	u64 *resumed = &cpu_dispatch_states[bounded(cpu, MAX_CPUS)].resumed_deadline;
	u64 curr = curr_deadline_now(cpuc, now) ?: *resumed;
	/* Kernel threads pinned to a CPU are part of the machine: they need no margin to preempt. */
	u64 margin = p->flags & PF_KTHREAD ? 0 : options.margin_ns;
	bool first = deadline_before(t->deadline + margin, curr) &&
		     (!margin || now - cpuc->curr_since_ns >= wakeup_min_run(t));
	/* A task that can go on elsewhere at once leaves the CPU to a task that cannot. */
	bool yields = curr_can_move(cpuc) && has_idle_cpu(NULL);
	if (curr != DEADLINE_NONE && (options.asymmetry || !margin) && (first || yields)) {
		cpuc->curr_deadline = *resumed = DEADLINE_NONE;
		dsq_insert(p, SCX_DSQ_LOCAL, FAIR_SLICE_MAX, SCX_ENQ_PREEMPT);
		return true;
	}
	return false;
}

/*
 * A pinned task with a server has woken: runs the task at once, if its server precedes all that the CPU could
 * run. True if so.
 */
static __always_inline bool wakeup_served(struct task_ctx *t, struct task_struct *p, u32 cpu)
{
	struct server_rq *srq = options.criticality && t->on_server ? lookup_server_rq(cpu) : NULL;
	struct cpu_ctx *cpuc = lookup_cpu_ctx(cpu);

	if (!srq || !cpuc)
		return false;
	u32 picked = pick_server(cpu, best_effort_waits(cpu));
	if (picked != t->on_server) {
		/*
		 * The wakeup began HI mode, in which the running task has no budget, but best effort is
		 * served first.
		 */
		if (srq->curr_runs && picked != srq->charged_server)
			kick_for_budget(srq, cpu);
		else
			arm_budget_timer(cpu);
		return false;
	}
	if (claim_idle_cpu(cpu)) {
		dsq_insert(p, SCX_DSQ_LOCAL, FAIR_SLICE_MAX, 0);
		return true;
	}
	/* Tasks of the same server do not preempt each other. */
	if (srq->curr_runs && srq->charged_server == t->on_server)
		return false;
	cpuc->curr_deadline = cpu_dispatch_states[bounded(cpu, MAX_CPUS)].resumed_deadline = DEADLINE_NONE;
	dsq_insert(p, SCX_DSQ_LOCAL, FAIR_SLICE_MAX, SCX_ENQ_PREEMPT);
	return true;
}

SEC("struct_ops/enqueue")
void BPF_PROG(quell_enqueue, struct task_struct *p, u64 flags)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct task_ctx *t = lookup_task_ctx(p);
	u64 now = time_ns();

	bool going_offline = cpu_goes_offline(lookup_cpu_ctx(bpf_get_smp_processor_id()));
	if (going_offline && flags & ENQ_WAKEUP)
		observe_wake(p);
	if (!t || going_offline) {
		dsq_insert(p, SCX_DSQ_LOCAL, FAIR_SLICE, 0);
		return;
	}
	t->slice_left_ns = 0;
	u64 throttled = throttled_until(t, now);
	if (throttled) {
		if (flags & ENQ_WAKEUP)
			observe_wake(p);
		throttle_task(t, p, cpu, throttled, flags, now);
		return;
	}
	if (p->nr_cpus_allowed == 1 && flags & ENQ_WAKEUP) {
		wakeup_task(t, p, cpu, now);
		set_task_dsq(t, DSQ_KIND_NONE, 0);
		if (wakeup_served(t, p, cpu) || wakeup_pinned(t, p, cpu, now))
			return;
		enqueue_task(t, p, cpu, now);
		return;
	}
	change_llc(t, p, cpu_llc_id(cpu), cpu, now);
	if (!t->counted_weight) { /* the task's first time, or it came from another scheduling class */
		wakeup_task(t, p, cpu, now);
	} else if (!(flags & ENQ_WAKEUP)) {
		reweight_task(t, p, cpu, now);
		enqueue_server(t, p, cpu);
		update_deadline(t, now);
	}
	bool taken = enqueue_task(t, p, cpu, now);
	if (options.share && !(flags & ENQ_WAKEUP)) {
		struct cpu_ctx *cpuc = lookup_cpu_ctx(cpu);
		if (cpuc && cpuc->migrate_state == MIGRATE_PENDING)
			cpuc->migrate_state = taken ? MIGRATE_KICKED : MIGRATE_NONE;
		/*
		 * A task that an idle CPU takes drops its claim on another CPU: else two tasks would displace
		 * each other for ever. Otherwise the claimed CPU, or another one, is preempted for the task.
		 */
		if (taken)
			t->claimed_cpu_plus1 = 0;
		else
			kick_displaced_cpu(p, t, now);
	}
}

SEC("struct_ops/dispatch")
void BPF_PROG(quell_dispatch, s32 cpu, struct task_struct *prev)
{
	dispatch_task(cpu, prev);
}

/*
 * Works around a clock that Linux 7.2 leaves stale: a CPU that idled and took a task from a DSQ does not
 * update its run queue's clock when it next picks (local_dsq_post_enq() reports a new task while the CPU is
 * picking already, which requests to skip the update). What the task ran since the last tick, up to 4 ms,
 * would be charged to the next task or to none. So the CPU is kicked to pick once more, with a correct clock;
 * the task goes on.
 */
static __always_inline void resync_rq_clock(struct cpu_ctx *cpuc, u32 cpu)
{
	u64 *picked_when_idle = &cpu_dispatch_states[bounded(cpu, MAX_CPUS)].picked_when_idle;

	if (!*picked_when_idle)
		return;
	*picked_when_idle = 0;
	if (!cpuc->offline)
		scx_bpf_kick_cpu(cpu, 0);
}

SEC("struct_ops/running")
void BPF_PROG(quell_running, struct task_struct *p)
{
	u32 cpu = scx_bpf_task_cpu(p), llc_id = cpu_llc_id(cpu);
	struct cpu_ctx *cpuc = lookup_cpu_ctx(cpu);
	struct llc_ctx *llc = lookup_llc(llc_id);
	struct task_ctx *t = lookup_task_ctx(p);
	u64 now = time_ns();

	observe_running(p, cpu);
	if (!t || !cpuc || !llc)
		return;
	if (t->dsq_key)
		set_task_dsq(t, DSQ_KIND_NONE, 0);
	if (!t->counted_weight) {
		/*
		 * The task came by neither ops.select_cpu() nor ops.enqueue(): a setting was changed while
		 * the task ran, or the core inserted it by itself (its migration is disabled).
		 */
		t->woke_at_ns = now;
		t->chain_age_ns = 0;
		activate_task(t, p, cpu, true, now);
		update_light(t, p, now);
		update_deadline(t, now);
	} else if (change_llc(t, p, llc_id, cpu, now)) {
		update_deadline(t, now);
	} else if (t->group_id && !options.share) {
		/*
		 * The task's weight may be from when the group's task that it took the CPU from was still
		 * runnable.
		 */
		reweight_task(t, p, cpu, now);
	}
	resync_rq_clock(cpuc, cpu);
	t->running = 1;
	freeze_pinned_vclock(t, llc, cpu);
	t->charged_until_ns = now;
	t->throttled_ns = throttled_time(t);
	t->throttled_since_ns = 0;
	/* The core lets the interrupted task go on, but with a new slice of its own default length. */
	if (t->slice_left_ns && t->slice_left_ns < p->scx.slice)
		set_slice(p, t->slice_left_ns);
	start_bandwidth_if_limited(t, p, cpu, now);
	if (options.share)
		share_sync_exec(t, p);
	cpuc->curr_tid = p->pid;
	t->nr_runs++;
	u64 wait = now > t->wait_since_ns ? now - t->wait_since_ns : 0;
	if (wait > t->wait_max_ns)
		t->wait_max_ns = wait;
	cpuc->runs++;
	cpuc->wait_ns += wait;
	if (wait > cpuc->worst_wait_ns) {
		cpuc->worst_wait_ns = wait;
		cpuc->worst_wait_tid = p->pid;
	}
	publish_curr(t, cpuc, now);
	if (wait > FAIR_STARVED_WAIT)
		publish_starved_curr(cpuc, llc, llc_id, now);
	set_mobility(cpuc, p);
	cpuc->migrate_state = MIGRATE_NONE;
	cpu_dispatch_states[bounded(cpu, MAX_CPUS)].resumed_deadline = DEADLINE_NONE;
	server_set_curr(t, cpu);
	/* The task was put into the local DSQ before a server's task woke. */
	struct server_rq *srq = options.criticality ? lookup_server_rq(cpu) : NULL;
	if (srq && srq->nr_servers && srq->picked_server && srq->picked_server != srq->charged_server &&
	    !kicks_ignored(srq) && !(p->flags & PF_KTHREAD))
		kick_for_budget(srq, cpu);
}

SEC("struct_ops/stopping")
void BPF_PROG(quell_stopping, struct task_struct *p, bool runnable)
{
	u32 cpu = scx_bpf_task_cpu(p);
	struct cpu_ctx *cpuc = lookup_cpu_ctx(cpu);
	struct task_ctx *t = lookup_task_ctx(p);
	u64 now = time_ns();

	observe_stopping(p, cpu, runnable);
	if (!t || !cpuc)
		return;
	server_end_curr(cpu);
	cpu_dispatch_states[bounded(cpu, MAX_CPUS)].resumed_deadline = runnable && p->scx.slice
									       ? curr_deadline_now(cpuc, now)
									       : DEADLINE_NONE;
	cpuc->curr_deadline = DEADLINE_NONE;
	if (!t->running)
		return;
	t->running = 0;
	charge_task(t, p, true, now);
	thaw_pinned_vclock(cpu);
	t->slice_left_ns = runnable ? p->scx.slice : 0;
	if (runnable) {
		t->wait_since_ns = now;
		return;
	}
	t->burst_avg_ns = urgency_burst_avg(t->burst_avg_ns, t->burst_ns);
	t->has_slept = 1;
	dequeue_weight(t);
	dequeue_server(t);
	dequeue_group(t);
}

SEC("struct_ops/set_weight")
void BPF_PROG(quell_set_weight, struct task_struct *p, u32 weight)
{
	struct task_ctx *t = lookup_task_ctx(p);

	if (t)
		t->nice_weight = weight;
}

/* Requests of the parent that the child's average begins with, at most. */
#define INHERITED_REQUESTS 8

/* A new process begins with its parent's average of requests; it may execute another program. */
static __always_inline void inherit_requests(struct task_ctx *t)
{
	struct task_struct *leader = bpf_get_current_task_btf()->group_leader;
	struct task_ctx *first = leader ? lookup_task_ctx(leader) : NULL;

	if (!first)
		return;
	t->nr_requests = first->nr_requests < INHERITED_REQUESTS ? first->nr_requests : INHERITED_REQUESTS;
	t->request_avg_ns = first->request_avg_ns;
}

SEC("struct_ops/init_task")
s32 BPF_PROG(quell_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task_ctx *t = bpf_task_storage_get(&task_ctxs, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	struct task_ctx *parent = NULL;
	struct cgroup *cgroup = args->cgroup;

	if (!t)
		return -ENOMEM;
	if (args->fork)
		parent = lookup_task_ctx(bpf_get_current_task_btf());
	t->wait_since_ns = t->charged_until_ns = time_ns();
	if (parent) {
		t->vlag = inherit_lag(parent, t->wait_since_ns);
		if (p->group_leader == p)
			inherit_requests(t);
		t->burst_avg_ns = parent->burst_avg_ns;
		t->chain_busy_ns = parent->chain_busy_ns;
		t->tenant = parent->tenant;
	} else {
		t->has_slept = 1;
	}
	t->llc = NO_LLC;
	if (cgroup && cgroup->level > 0 && cgroup->kn)
		t->cgroup_id = cgroup->kn->id;
	t->group_id = target_group(t);
	return 0;
}

SEC("struct_ops/enable")
void BPF_PROG(quell_enable, struct task_struct *p)
{
	struct task_ctx *t = lookup_task_ctx(p);

	if (t)
		t->nice_weight = p->scx.weight;
}

SEC("struct_ops/disable")
void BPF_PROG(quell_disable, struct task_struct *p)
{
	struct task_ctx *t = lookup_task_ctx(p);

	if (!t)
		return;
	set_task_dsq(t, DSQ_KIND_NONE, 0);
	dequeue_weight(t);
	if (options.share)
		share_slot_release(t, p->pid);
	dequeue_server(t);
	dequeue_group(t);
	t->running = 0;
	t->bw_charging = 0;
}

/* A higher scheduling class has taken the CPU: the tasks in the CPU's local DSQ can run elsewhere. */
SEC("struct_ops/cpu_release")
void BPF_PROG(quell_cpu_release, s32 cpu, struct scx_cpu_release_args *args)
{
	/* The stopper thread runs for a moment only. */
	if (args->reason != bpf_core_enum_value(enum scx_cpu_preempt_reason, SCX_CPU_PREEMPT_STOP) &&
	    bpf_ksym_exists(scx_bpf_reenqueue_local))
		scx_bpf_reenqueue_local();
}

/*
 * A CPU becomes idle, or busy. A task that was queued just before looked for an idle CPU and did not find
 * this one. A CPU that goes offline is left alone, see cpu_goes_offline().
 */
SEC("struct_ops/update_idle")
void BPF_PROG(quell_update_idle, s32 cpu, bool idle)
{
	struct cpu_ctx *cpuc = lookup_cpu_ctx(cpu);
	struct llc_ctx *llc = lookup_llc(cpu_llc_id(cpu));

	observe_idle(cpu, idle);
	if (idle)
		server_settle_idle(cpu);
	/* This CPU would take back the task that an idle CPU was told to take. */
	bool migrated_here = cpuc && cpuc->migrate_state == MIGRATE_KICKED;
	if (cpuc)
		cpuc->migrate_state = MIGRATE_NONE;
	if (options.share && idle && llc && cpuc && !cpuc->offline)
		migrate_on_idle(llc, cpu_llc_id(cpu), migrated_here);
	if (migrated_here && idle)
		return;
	if (!idle || !cpuc || !llc || cpuc->offline || !(llc->nr_queued || cpuc->nr_pinned))
		return;
	cpuc->rescued++;
	scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
}

SEC("struct_ops/cpu_online")
void BPF_PROG(quell_cpu_online, s32 cpu)
{
	struct cpu_ctx *cpuc = lookup_cpu_ctx(cpu);
	struct llc_ctx *llc = lookup_llc(cpu_llc_id(cpu));

	if (cpuc && cpuc->offline) {
		cpuc->offline = 0;
		if (llc)
			__sync_fetch_and_add(&llc->nr_online, 1);
	}
}

SEC("struct_ops/cpu_offline")
void BPF_PROG(quell_cpu_offline, s32 cpu)
{
	struct cpu_ctx *cpuc = lookup_cpu_ctx(cpu);
	struct llc_ctx *llc = lookup_llc(cpu_llc_id(cpu));

	if (cpuc && !cpuc->offline) {
		cpuc->offline = 1;
		cpuc->curr_deadline = DEADLINE_NONE;
		if (llc)
			__sync_fetch_and_add(&llc->nr_online, -1);
	}
}

SEC("struct_ops/cgroup_init")
s32 BPF_PROG(quell_cgroup_init, struct cgroup *cgroup, struct scx_cgroup_init_args *args)
{
	struct group group = { .weight = args->weight << WEIGHT_SHIFT };
	u64 id;

	if (cgroup->level == 0)
		return 0;
	id = cgroup->kn->id;
	if (cgroup->level > GROUP_DEPTH)
		fail("cgroup %llu lies %d levels deep: weights and limits are followed for %d", id,
		     cgroup->level, GROUP_DEPTH);
	if (cgroup->level > 1) {
		struct cgroup *parent = bpf_cgroup_ancestor(cgroup, cgroup->level - 1);
		if (parent) {
			group.parent_id = parent->kn->id;
			bpf_cgroup_release(parent);
		}
	}
	if (bpf_core_field_exists(args->bw_quota_us))
		set_bandwidth(&group, args->bw_period_us, args->bw_quota_us, args->bw_burst_us, time_ns());
	return bpf_map_update_elem(&groups, &id, &group, BPF_ANY);
}

SEC("struct_ops/cgroup_exit")
void BPF_PROG(quell_cgroup_exit, struct cgroup *cgroup)
{
	u64 id = cgroup->kn->id;
	struct group *group = bpf_map_lookup_elem(&groups, &id);

	if (group)
		set_bandwidth(group, 0, -1, 0, 0);
	delete_group(id);
}

SEC("struct_ops/cgroup_set_weight")
void BPF_PROG(quell_cgroup_set_weight, struct cgroup *cgroup, u32 weight)
{
	set_group_weight(cgroup->kn->id, weight << WEIGHT_SHIFT);
}

/*
 * Since Linux 6.19. A cgroup that stops being idle gets the default weight, whatever it had before, as its
 * cpu.weight says.
 */
SEC("struct_ops/cgroup_set_idle")
void BPF_PROG(quell_cgroup_set_idle, struct cgroup *cgroup, bool idle)
{
	set_group_weight(cgroup->kn->id, idle ? WEIGHT_IDLE : WEIGHT_ONE);
}

/* Since Linux 6.17. */
SEC("struct_ops/cgroup_set_bandwidth")
void BPF_PROG(quell_cgroup_set_bandwidth, struct cgroup *cgroup, u64 period_us, u64 quota_us, u64 burst_us)
{
	u64 id = cgroup->kn->id;
	struct group *group = bpf_map_lookup_elem(&groups, &id);

	if (group)
		set_bandwidth(group, period_us, quota_us, burst_us, time_ns());
}

SEC("struct_ops/cgroup_move")
void BPF_PROG(quell_cgroup_move, struct task_struct *p, struct cgroup *from, struct cgroup *to)
{
	struct task_ctx *t = lookup_task_ctx(p);

	if (!t)
		return;
	t->cgroup_id = to->level > 0 ? to->kn->id : 0;
	t->bw_generation = bandwidth.generation - 1;
	if (t->group_id != target_group(t))
		move_to_group(t);
}

SEC("struct_ops.s/init")
s32 BPF_PROG(quell_init)
{
	u64 now = time_ns();

	/* Options are constants to the verifier: it does not follow the loop beyond nr_cpus. */
	for (u32 cpu = 0; cpu < MAX_CPUS && cpu < options.nr_cpus; cpu++) {
		u32 llc_id = cpu_llc_id(cpu);
		struct llc_ctx *llc = lookup_llc(llc_id);
		if (!llc)
			continue;
		u32 at = llc->nr_cpus;
		if (at >= LLC_CPUS)
			return -EINVAL; /* the loader's error */
		llc->cpus[bounded(at, LLC_CPUS)] = cpu;
		llc->nr_cpus = at + 1;
		if (options.llc_of[bounded(cpu, MAX_CPUS)] & OFFLINE)
			cpu_ctxs[bounded(cpu, MAX_CPUS)].offline = 1;
		else
			llc->nr_online++;
		s32 error = scx_bpf_create_dsq(pinned_dsq(cpu), -1);
		if (!error)
			error = init_timer(&bandwidth_timers, cpu, on_bandwidth_timer);
		if (!error && options.criticality)
			error = init_timer(&budget_timers, cpu, on_budget_timer);
		if (error)
			return error;
	}
	for (u32 llc_id = 0; llc_id < MAX_LLCS && llc_id < options.nr_llcs; llc_id++) {
		struct llc_ctx *llc = lookup_llc(llc_id);
		if (!llc)
			break;
		llc->vclock = VCLOCK_START;
		llc->starved_dispatched_at_ns = now;
		s32 error = scx_bpf_create_dsq(llc_dsq(llc_id), -1);
		if (!error)
			error = scx_bpf_create_dsq(starved_dsq(llc_id), -1);
		if (!error)
			error = scx_bpf_create_dsq(throttled_dsq(llc_id), -1);
		if (!error)
			error = init_timer(&preempt_timers, llc_id, on_preempt_timer);
		if (!error)
			error = init_timer(&unthrottle_timers, llc_id, on_unthrottle_timer);
		if (!error && options.share)
			error = init_timer(&migrate_timers, llc_id, on_migrate_timer);
		if (error)
			return error;
	}
	return 0;
}

SEC("struct_ops/exit")
void BPF_PROG(quell_exit, struct scx_exit_info *info)
{
	exit_record.code = info->exit_code;
	bpf_probe_read_kernel_str(exit_record.reason, sizeof(exit_record.reason), info->reason);
	bpf_probe_read_kernel_str(exit_record.message, sizeof(exit_record.message), info->msg);
	/* Written last: a reader of kind finds the other fields written. */
	__sync_lock_test_and_set(&exit_record.kind, info->kind);
}

SEC("struct_ops/dump")
void BPF_PROG(quell_dump, struct scx_dump_ctx *context)
{
	for (u32 llc_id = 0; llc_id < MAX_LLCS && llc_id < options.nr_llcs; llc_id++) {
		struct llc_ctx *llc = lookup_llc(llc_id);
		if (!llc)
			break;
		dump_line("domain %d: %d ready, %d of them for too long; load %llu on %d CPUs\n", llc_id,
			  llc->nr_queued, llc->nr_starved, llc->weight_sum, llc->nr_online);
	}
}

/* Sets what the agent wants of a task; all zero: nothing. Returns 0 or a negative error. */
SEC("syscall")
int quell_set_thread(struct thread_setting *setting)
{
	struct task_struct *p = bpf_task_from_pid(setting->tid);
	int result = -ESRCH;

	if (!p)
		return result;
	struct task_ctx *t = lookup_task_ctx(p);
	if (t) {
		t->tenant = setting->tenant;
		t->server = setting->server;
		request_server_join(t->server);
		t->agent_weight = setting->weight;
		t->latency_ns = setting->latency_ns;
		result = 0;
	}
	bpf_task_release(p);
	return result;
}

/*
 * Makes a server, changes its terms from its next period on, or ends it: its tasks then compete by weight
 * again. Server 0 is the best-effort server of the CPU. Returns 0 or a negative error.
 */
SEC("syscall")
int quell_set_server(struct server_setting *setting)
{
	struct server_rq *srq = setting->cpu < options.nr_cpus ? lookup_server_rq(setting->cpu) : NULL;
	struct server_ctx *s = lookup_server(setting->server);

	if (!options.criticality || !srq || (setting->server && !s))
		return -EINVAL;
	if (!s) {
		srq->best_effort.terms = setting->terms;
		return 0;
	}
	bool listed = find_server(setting->cpu, setting->server) < CPU_SERVERS_MAX;
	if (!setting->terms.period_ns) {
		s->ended = listed;
		return 0;
	}
	if (!listed) {
		if (s->nr_ready)
			return -EBUSY; /* the server still has runnable tasks on another CPU */
		if (find_server(setting->cpu, 0) == CPU_SERVERS_MAX)
			return -ENOSPC;
		s32 error = scx_bpf_create_dsq(server_dsq(setting->server), -1);
		if (error && error != -EEXIST) /* the DSQ of a server that ended exists */
			return error;
		s->cpu = setting->cpu;
		s->cur = (struct server){};
	}
	s->terms_seq++;
	s->next_terms = setting->terms;
	s->terms_seq++;
	s->ended = 0;
	if (!listed) {
		srq->servers[bounded(find_server(setting->cpu, 0), CPU_SERVERS_MAX)] = setting->server;
		__sync_fetch_and_add(&srq->nr_servers, 1);
	}
	return 0;
}

/* Makes, changes or deletes the group of a tenant without a cgroup. Returns 0 or a negative error. */
SEC("syscall")
int quell_set_tenant(struct tenant_setting *setting)
{
	struct group group = { .weight = setting->weight << WEIGHT_SHIFT };
	u64 id = TENANT_GROUP | setting->tenant;

	if (!setting->weight)
		delete_group(id);
	else if (bpf_map_lookup_elem(&groups, &id))
		set_group_weight(id, group.weight);
	else
		return bpf_map_update_elem(&groups, &id, &group, BPF_ANY);
	return 0;
}

SEC(".struct_ops.link")
struct sched_ext_ops quell_ops = {
	.select_cpu = (void *)quell_select_cpu,
	.enqueue = (void *)quell_enqueue,
	.dispatch = (void *)quell_dispatch,
	.running = (void *)quell_running,
	.stopping = (void *)quell_stopping,
	.set_weight = (void *)quell_set_weight,
	.init_task = (void *)quell_init_task,
	.enable = (void *)quell_enable,
	.disable = (void *)quell_disable,
	.update_idle = (void *)quell_update_idle,
	.cpu_release = (void *)quell_cpu_release,
	.cpu_online = (void *)quell_cpu_online,
	.cpu_offline = (void *)quell_cpu_offline,
	.cgroup_init = (void *)quell_cgroup_init,
	.cgroup_exit = (void *)quell_cgroup_exit,
	.cgroup_set_weight = (void *)quell_cgroup_set_weight,
	.cgroup_set_idle = (void *)quell_cgroup_set_idle,
	.cgroup_set_bandwidth = (void *)quell_cgroup_set_bandwidth,
	.cgroup_move = (void *)quell_cgroup_move,
	.init = (void *)quell_init,
	.exit = (void *)quell_exit,
	.dump = (void *)quell_dump,
	.flags = SCX_OPS_KEEP_BUILTIN_IDLE | SCX_OPS_ENQ_LAST | SCX_OPS_ENQ_EXITING,
	.timeout_ms = 20000,
	.name = "quell",
};
