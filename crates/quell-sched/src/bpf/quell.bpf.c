/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Quell's scheduler: the sched_ext operations, which join the features.
 *
 *   fair.bpf.h        what a thread is due, by weight, and its deadline
 *   share.bpf.h       which thread is furthest behind what it is due of the host
 *   causal.bpf.h      since when its work waits
 *   request.bpf.h     how much work its requests are
 *   preempt.bpf.h   whom it preempts, and when turns end
 *   starvation.bpf.h  that it waits no longer than that
 *   server.bpf.h      what it is promised in every period
 *   migrate.bpf.h        that it makes way for threads bound to some CPUs
 *   bandwidth.bpf.h       what CPU time its cgroups may still use,
 *   throttle.bpf.h        and where it waits for that
 *   observe.bpf.h     what threads did, for the agent
 *
 * A thread wakes: it gets a deadline, and an idle CPU, or that of a thread with a later one, or a place in its domain's queue. One that is bound to a CPU
 * also takes it from a thread that can go on elsewhere at once. A CPU that has nothing to do takes the first of its domain's queues,
 * then of others': no CPU stays idle beside a ready thread that may use it. Who queues a thread looks for
 * an idle CPU afterwards, and a CPU that is about to idle looks at the queues afterwards, so that neither misses the other.
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
#include "observe.bpf.h"

/* Blocked to ready. Global, so that the verifier looks at it once. */
__noinline int wakeup_task(struct task_ctx *t, struct task_struct *p __arg_trusted, u32 cpu, u64 now)
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

/*
 * Puts a ready thread into the queue it belongs to, and finds who takes it from there if somebody idles; whether somebody does. Global, as
 * wake() is.
 */
__noinline int enqueue_task(struct task_ctx *t, struct task_struct *p __arg_trusted, u32 cpu, u64 now)
{
	if (!t)
		return 0;
	struct dsq_target target = select_dsq(t, p, cpu);

	dsq_insert_vtime(p, target.dsq, target.slice_ns, target.vtime, 0);
	/* On a busy host nobody idles, and to search for nobody costs several times as much as to look. */
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
 * Whether this CPU goes offline. What is put off there until interrupts are on again, as kicks and timers are, is never done, and what is left over
 * blocks all that is put off on this CPU once it is online again (seen with 7.2: four idle CPUs beside threads that waited for ever). So who
 * becomes ready there goes straight to a local queue, which takes none of this.
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
	/* Whose cgroups have used up their limits is parked when it is enqueued. */
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
	/* Where it may run anywhere, its domain's queue is right, whatever CPU this is. */
	if (p->nr_cpus_allowed >= options.nr_cpus)
		enqueue_task(t, p, 0, now);
	return prev_cpu;
}

/* A thread that can run on one CPU only becomes ready. */
static __always_inline bool wakeup_pinned(struct task_ctx *t, struct task_struct *p, s32 cpu, u64 now)
{
	struct cpu_ctx *cpuc = lookup_cpu_ctx(cpu);

	if (!cpuc)
		return false;
	if (claim_idle_cpu(cpu)) {
		dsq_insert(p, SCX_DSQ_LOCAL, FAIR_SLICE_MAX, 0);
		return true;
	}
	/* While a higher scheduling class has the CPU, what that interrupted would go on with its turn, and this would wait for its end. */
	u64 *resumed = &cpu_dispatch_states[bounded(cpu, MAX_CPUS)].resumed_deadline;
	u64 curr = curr_deadline_now(cpuc, now) ?: *resumed;
	/* A CPU's own kernel threads are part of the machine: they wait for no margin. */
	u64 margin = p->flags & PF_KTHREAD ? 0 : options.margin_ns;
	bool first = deadline_before(t->deadline + margin, curr) && (!margin || now - cpuc->curr_since_ns >= wakeup_min_run(t));
	/* Whoever can go on elsewhere at once leaves the CPU to one that cannot. */
	bool yields = cpuc->curr_mobility == MOBILITY_ANY && has_idle_cpu(NULL);
	if (curr != DEADLINE_NONE && (options.asymmetry || !margin) && (first || yields)) {
		cpuc->curr_deadline = *resumed = DEADLINE_NONE;
		dsq_insert(p, SCX_DSQ_LOCAL, FAIR_SLICE_MAX, SCX_ENQ_PREEMPT);
		return true;
	}
	return false;
}

/* A served thread woke: runs it, if its server goes before all that its CPU could run. Whether it does. */
static __always_inline bool wakeup_served(struct task_ctx *t, struct task_struct *p, u32 cpu)
{
	struct server_rq *srq = options.criticality && t->on_server ? lookup_server_rq(cpu) : NULL;
	struct cpu_ctx *cpuc = lookup_cpu_ctx(cpu);

	if (!srq || !cpuc)
		return false;
	u32 picked = pick_server(cpu, best_effort_waits(cpu));
	if (picked != t->on_server) {
		/* Its waking began HI mode, in which who runs has no budget, but the rest is owed something first. */
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
	/* Inside a server one waits for the other. */
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
	if (!t->counted_weight) { /* its first time, or it came from another scheduling class */
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
		/* Else it would take from another what it does not need, and the other would do the same, for ever. */
		if (taken)
			t->claimed_cpu_plus1 = 0;
		else
			kick_displaced_cpu(p, t, now);
	}
}

/* Parks those at the front of a domain's queues that must not run. */
static __always_inline void throttle_llc_dsqs(struct llc_ctx *llc, u32 llc_id)
{
	if (!bandwidth.nr_groups || !llc->nr_queued)
		return;
	throttle_dsq_head(llc_dsq(llc_id), llc_id);
	if (llc->nr_starved)
		throttle_dsq_head(starved_dsq(llc_id), llc_id);
}

/* Takes one from a domain that this CPU does not belong to. */
static __always_inline bool steal_from_llc(u32 llc_id)
{
	struct llc_ctx *llc = lookup_llc(llc_id);

	if (!llc || !llc->nr_queued)
		return false;
	throttle_llc_dsqs(llc, llc_id);
	return dsq_move_to_local(llc_dsq(llc_id)) || dsq_move_to_local(starved_dsq(llc_id));
}

/* Other domains that are looked at, one after the other, for one where threads wait. */
#define LLC_VISITS_MAX 8

/* Another domain where threads wait, each in turn; its own: none of those that were looked at. */
static __always_inline u32 next_busy_llc(struct cpu_ctx *cpuc, u32 llc_id)
{
	u32 other = cpuc->llc_visited;

	for (u32 i = 0; i < LLC_VISITS_MAX && i + 1 < options.nr_llcs; i++) {
		other++;
		if (other == llc_id)
			other++;
		if (other >= options.nr_llcs)
			other = llc_id ? 0 : 1;
		struct llc_ctx *remote = lookup_llc(other);
		if (remote && remote->nr_queued) {
			cpuc->llc_visited = other;
			return other;
		}
	}
	cpuc->llc_visited = other;
	return llc_id;
}

/* Where threads wait while each CPU of ours has less to do: takes one of these. */
static __always_inline bool balance_llc(struct llc_ctx *llc, u32 other)
{
	struct llc_ctx *remote = lookup_llc(other);

	if (!remote || remote->nr_queued <= remote->nr_starved)
		return false;
	/* By more than one of its threads, which all its CPUs run while some wait. */
	u64 one = remote->weight_sum / (remote->nr_queued + remote->nr_online);
	if (remote->weight_sum * llc->nr_online <= (llc->weight_sum + one) * remote->nr_online)
		return false;
	return steal_from_llc(other);
}

/* Whether a queue is to be put in order; who asks does it. */
static __always_inline bool resort_due(u64 *resorted_at, u64 now)
{
	u64 last = *resorted_at;

	return options.share && now > last + RESORT_PERIOD && __sync_val_compare_and_swap(resorted_at, last, now) == last;
}

/* Who is to go first on a CPU of a queue's threads. */
static __always_inline struct dsq_candidate first_candidate(u64 dsq, s32 cpu, u32 all)
{
	struct dsq_candidate cand = { .cpu = cpu, .resort = all };

	if (!options.share && can_peek_dsq()) {
		struct task_struct *p = scx_bpf_dsq_peek(dsq);
		if (!p)
			return cand;
		if (task_may_run_on(p, cpu)) {
			cand.deadline = p->scx.dsq_vtime;
			return cand;
		}
	}
	pick_from_dsq(dsq, &cand);
	return cand;
}

/* Who waits for a CPU: its own threads, and its domain's. Deadlines; 0: nobody. */
struct dispatch_candidates {
	u64 pinned_deadline;      /* the first of its own queues */
	u64 pinned_dsq;    /* the one that this is in */
	u64 llc_deadline;    /* the first of its domain's that may run there */
	u64 restricted_deadline;  /* of one who waits for this CPU and may not run everywhere */
	s32 cpu;
	u32 resort;      /* its own threads that wait are to be put in order */
};

/* Looks at one of the CPU's own queues. Of its servers' at those without a budget: the others' turn is found before. Global, as find_waiting() is. */
__noinline int find_pinned_candidate(struct dispatch_candidates *cands, u32 nth)
{
	struct server_rq *srq = cands && nth ? lookup_server_rq(cands->cpu) : NULL;
	struct server_ctx *s = NULL;

	if (!cands)
		return 0;
	u64 dsq = cpu_dsq(cands->cpu, nth);
	if (srq)
		s = lookup_server(srq->servers[bounded(nth - 1, CPU_SERVERS_MAX)]);
	if (!dsq || (s && srq && !s->ended && server_has_budget(&s->cur, srq->hi_mode)))
		return 0;
	struct dsq_candidate cand = first_candidate(dsq, cands->cpu, cands->resort);
	u64 deadline = cand.deadline;
	if (deadline && (!cands->pinned_deadline || deadline_before(deadline, cands->pinned_deadline))) {
		cands->pinned_deadline = deadline;
		cands->pinned_dsq = dsq;
	}
	return 0;
}

/* Global, so that the verifier looks at it once. */
__noinline int find_candidates(struct dispatch_candidates *cands, u32 llc_id, u64 now)
{
	struct llc_ctx *llc = lookup_llc(llc_id);
	struct cpu_ctx *cpuc = cands ? lookup_cpu_ctx(cands->cpu) : NULL;

	if (!cands || !llc || !cpuc)
		return 0;
	s32 cpu = cands->cpu;
	struct dsq_candidate cand = {};
	cands->pinned_deadline = 0;
	cands->resort = cpuc->nr_pinned && resort_due(&cpu_dispatch_states[bounded(cpu, MAX_CPUS)].resorted_at_ns, now);
	for (u32 nth = 0; cpuc->nr_pinned && nth < CPU_DSQS; nth++)
		find_pinned_candidate(cands, nth);
	if (llc->nr_queued > llc->nr_starved)
		cand = first_candidate(llc_dsq(llc_id), cpu, resort_due(&llc->resorted_at_ns, now));
	cands->llc_deadline = cand.deadline;
	cands->restricted_deadline = cands->pinned_deadline ?: cand.restricted ? cand.deadline : 0;
	return 0;
}

/*
 * Takes a thread that waits in another domain, and is further behind than all that wait here or run (mine; 0: nobody does): whoever is furthest
 * behind goes first on every CPU, whatever domain it happened to come to. Within dispatch only. Global, as find_waiting() is.
 */
__noinline int steal_lagging(struct dispatch_candidates *cands, u32 other, u64 curr_deadline, u64 now)
{
	struct llc_ctx *remote = lookup_llc(other);

	if (!cands || !remote || remote->nr_queued <= remote->nr_starved)
		return 0;
	if (cands->pinned_deadline && (!curr_deadline || deadline_before(cands->pinned_deadline, curr_deadline)))
		curr_deadline = cands->pinned_deadline;
	if (cands->llc_deadline && (!curr_deadline || deadline_before(cands->llc_deadline, curr_deadline)))
		curr_deadline = cands->llc_deadline;
	throttle_llc_dsqs(remote, other);
	struct dsq_candidate cand = first_candidate(llc_dsq(other), cands->cpu, 0);
	if (!cand.deadline || (curr_deadline && !deadline_before(cand.deadline + SHARE_STEAL_LAG_MIN, curr_deadline)))
		return 0;
	return dsq_move_to_local(llc_dsq(other));
}

/* Those that wait in a CPU's pinned queue and were given a server since go to that one's. Within dispatch only. Global, as overdue() is. */
__noinline int move_to_servers(u32 cpu)
{
	struct server_rq *srq = lookup_server_rq(cpu);
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;

	if (!srq)
		return 0;
	srq->rescan_pinned = 0;
	if (bpf_iter_scx_dsq_new(&it, pinned_dsq(cpu), 0)) {
		bpf_iter_scx_dsq_destroy(&it);
		return 0;
	}
	while ((p = bpf_iter_scx_dsq_next(&it))) {
		struct task_ctx *t = lookup_task_ctx(p);
		u32 server = t ? target_server(t, p, cpu) : 0;
		if (server && dsq_move_vtime(&it, p, server_dsq(server), p->scx.dsq_vtime)) {
			enqueue_server(t, p, cpu);
			set_task_dsq(t, DSQ_KIND_SERVER, server);
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	return 0;
}

/* What a CPU shows of the thread that runs there, and has just begun or got another turn. */
static __always_inline void publish_curr(struct task_ctx *t, struct cpu_ctx *cpuc, u64 now)
{
	u64 burst_left = !t->deadline_is_share && t->burst_avg_ns > t->burst_ns ? t->burst_avg_ns - t->burst_ns : 0;

	if (t->light && t->burst_ns < FAIR_SLICE)
		burst_left = FAIR_SLICE - t->burst_ns;
	cpuc->curr_deadline = t->deadline;
	cpuc->deadline_fixed_until_ns = now + (burst_left < DEADLINE_BURST_MAX ? burst_left : DEADLINE_BURST_MAX);
	cpuc->curr_since_ns = now;
	cpuc->deadline_pace = t->deadline_pace;
}

/* The same of one that has waited for too long: it runs for its short turn, whoever is light; else others would claim the CPU before it did anything. */
static __always_inline void publish_starved_curr(struct cpu_ctx *cpuc, struct llc_ctx *llc, u32 llc_id, u64 now)
{
	cpuc->curr_deadline = deadline_light(now);
	cpuc->deadline_fixed_until_ns = now + FAIR_STARVED_SLICE;
	cpuc->curr_since_ns = now + FAIR_STARVED_SLICE - FAIR_SLICE;
	start_preempt_timer(llc, llc_id, FAIR_STARVED_SLICE, now);
}

/* A thread gets another turn on its CPU. Global, as find_waiting() is. */
__noinline int renew_slice(struct task_ctx *t, struct task_struct *p __arg_trusted, u32 cpu, u64 now)
{
	struct cpu_ctx *cpuc = lookup_cpu_ctx(cpu);
	struct llc_ctx *llc = t ? lookup_llc(t->llc) : NULL;

	if (!t || !cpuc || !llc)
		return 0;
	reweight_task(t, p, cpu, now);
	freeze_pinned_vclock(t, llc, cpu);
	enqueue_server(t, p, cpu);
	cpuc->kept++;
	publish_curr(t, cpuc, now);
	set_slice(p, FAIR_SLICE_MAX);
	start_bandwidth_if_limited(t, p, cpu, now);
	server_set_curr(t, cpu);
	return 0;
}

/* Whether a thread that runs goes before the first of its server's queue. */
static __always_inline bool precedes_server_dsq(struct task_ctx *t, u32 server)
{
	u64 first = dsq_first_vtime(server_dsq(server));

	return !first || !deadline_before(first, t->deadline);
}

SEC("struct_ops/dispatch")
void BPF_PROG(quell_dispatch, s32 cpu, struct task_struct *prev)
{
	struct cpu_ctx *cpuc = lookup_cpu_ctx(cpu);
	u32 llc_id = cpu_llc_id(cpu);
	struct llc_ctx *llc = lookup_llc(llc_id);
	struct task_ctx *t = NULL;
	u64 now = time_ns(), throttled = 0, prev_deadline = 0;

	if (!cpuc || !llc)
		return;
	cpu_dispatch_states[bounded(cpu, MAX_CPUS)].picked_when_idle = !prev;
	scan_starved(llc, llc_id, now);
	if (prev && prev->scx.flags & SCX_TASK_QUEUED) {
		t = lookup_task_ctx(prev);
		if (t) {
			charge_task(t, prev, false, now);
			update_deadline(t, now);
			prev_deadline = t->deadline;
			throttled = throttled_until(t, now);
		}
	}
	/* It is parked when it is enqueued. */
	if (throttled)
		t = NULL;
	if (cpuc->nr_pinned && bandwidth.nr_groups)
		throttle_cpu_dsqs(cpu, llc_id);
	throttle_llc_dsqs(llc, llc_id);
	struct server_rq *srq = options.criticality ? lookup_server_rq(cpu) : NULL;
	struct task_ctx *served_prev = NULL;
	if (srq && srq->nr_servers) {
		srq->nr_kicks = 0;
		if (srq->rescan_pinned)
			move_to_servers(cpu);
		u32 server = pick_server(cpu, (t && !t->on_server) || best_effort_waits(cpu));
		if (server) {
			bool keep = t && t->on_server == server;
			if (!(keep && precedes_server_dsq(t, server)) && dsq_move_to_local(server_dsq(server)))
				return;
			if (keep) {
				renew_slice(t, prev, cpu, now);
				return;
			}
			/* It is on its way. */
			srq->picked_server = 0;
		}
		/* From here on it is the rest's turn. */
		if (t && server_pays_task(t, srq)) {
			served_prev = t;
			t = NULL;
		}
	}
	struct task_ctx *keep = t;
	if (options.share && t && should_migrate(prev, cpu, llc, llc_id)) {
		t = NULL;
		if (cpuc->migrate_state == MIGRATE_PENDING)
			keep = NULL;
	}
	u32 other = next_busy_llc(cpuc, llc_id);
	if (!options.share && other != llc_id && balance_llc(llc, other))
		return;
	struct dispatch_candidates cands = { .cpu = cpu };
	find_candidates(&cands, llc_id, now);
	u64 earliest = cands.pinned_deadline && cands.llc_deadline ? deadline_min(cands.pinned_deadline, cands.llc_deadline) : cands.pinned_deadline ?: cands.llc_deadline;
	if (t && (!earliest || deadline_before(prev_deadline, earliest)))
		earliest = prev_deadline;
	if (dispatch_starved(llc, llc_id, earliest, now))
		return;
	if (options.share && other != llc_id && steal_lagging(&cands, other, t ? prev_deadline : 0, now))
		return;
	if (options.share && t && cands.restricted_deadline && should_displace(prev, t, cands.restricted_deadline, llc_id, now))
		t = NULL;
	if (t && cands.pinned_deadline && !deadline_before(cands.pinned_deadline, prev_deadline))
		cands.pinned_deadline = 0;
	if (t && cands.llc_deadline && !deadline_before(cands.llc_deadline, prev_deadline))
		cands.llc_deadline = 0;
	bool pinned_first = cands.pinned_deadline && !(cands.llc_deadline && deadline_before(cands.llc_deadline, cands.pinned_deadline));
	if (pinned_first && dsq_move_to_local(cands.pinned_dsq))
		return;
	if (cands.llc_deadline && dsq_move_to_local(llc_dsq(llc_id)))
		return;
	if (cands.pinned_deadline && dsq_move_to_local(cands.pinned_dsq))
		return;
	t = keep;
	if (t)
		t->claimed_cpu_plus1 = 0;
	if (!t) {
		/* Who was not looked at, as others could not run here. */
		if (llc->nr_queued && steal_from_llc(llc_id))
			return;
		for (u32 i = 1; i < MAX_LLCS && i < options.nr_llcs; i++) {
			u32 other = llc_id + i;
			if (other >= options.nr_llcs)
				other -= options.nr_llcs;
			if (steal_from_llc(other))
				return;
		}
		/* What waits may not run here. */
		if (srq && srq->nr_servers && srq->best_server && dsq_move_to_local(server_dsq(srq->best_server)))
			return;
		t = served_prev;
	}
	/* Nobody else, or nobody before it: another turn. */
	if (t)
		renew_slice(t, prev, cpu, now);
}

/*
 * A thread begins to run that a CPU which idled took from a queue. Linux 7.2 then does not bring that CPU's clock up to date when it next chooses
 * (local_dsq_post_enq() makes known that somebody is there while the CPU is choosing already, which asks for that): what the thread ran since the last tick,
 * up to 4 ms, would be counted as the next one's, or nobody's. So it chooses once more at once, when the clock is right by itself; the thread goes on.
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
		 * It did not come by way of select_cpu or enqueue: a setting was changed while it ran, or the
		 * kernel inserted it by itself (its migration is disabled).
		 */
		t->woke_at_ns = now;
		t->chain_age_ns = 0;
		activate_task(t, p, cpu, true, now);
		update_light(t, p, now);
		update_deadline(t, now);
	} else if (change_llc(t, p, llc_id, cpu, now)) {
		update_deadline(t, now);
	} else if (t->group_id && !options.share) {
		/* If a task of its group preempted it, its weight was found while that was ready; by now that may sleep. */
		reweight_task(t, p, cpu, now);
	}
	resync_rq_clock(cpuc, cpu);
	t->running = 1;
	freeze_pinned_vclock(t, llc, cpu);
	t->charged_until_ns = now;
	t->throttled_ns = throttled_time(t);
	t->throttled_since_ns = 0;
	/* The kernel lets it go on, but with a turn of its own length. */
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
	/* It was put there before a server's thread woke. */
	struct server_rq *srq = options.criticality ? lookup_server_rq(cpu) : NULL;
	if (srq && srq->nr_servers && srq->picked_server && srq->picked_server != srq->charged_server && !kicks_ignored(srq) && !(p->flags & PF_KTHREAD))
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
	cpu_dispatch_states[bounded(cpu, MAX_CPUS)].resumed_deadline = runnable && p->scx.slice ? curr_deadline_now(cpuc, now) : DEADLINE_NONE;
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

/* Requests of the parent's that an average of the child's begins with. */
#define INHERITED_REQUESTS 8

/* What is known of requests of the process that forks; it may become another program. */
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
		return -12; /* ENOMEM */
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

/* A higher class took the CPU: what waits in its local queue can run elsewhere. */
SEC("struct_ops/cpu_release")
void BPF_PROG(quell_cpu_release, s32 cpu, struct scx_cpu_release_args *args)
{
	/* The stopper is done in no time. */
	if (args->reason != bpf_core_enum_value(enum scx_cpu_preempt_reason, SCX_CPU_PREEMPT_STOP) &&
	    bpf_ksym_exists(scx_bpf_reenqueue_local))
		scx_bpf_reenqueue_local();
}

/*
 * A CPU is marked idle (idle), or not any more. What was queued before, nobody would have woken it for. Not so one that
 * goes offline, see goes_offline().
 */
SEC("struct_ops/update_idle")
void BPF_PROG(quell_update_idle, s32 cpu, bool idle)
{
	struct cpu_ctx *cpuc = lookup_cpu_ctx(cpu);
	struct llc_ctx *llc = lookup_llc(cpu_llc_id(cpu));

	observe_idle(cpu, idle);
	if (idle)
		server_settle_idle(cpu);
	/* It would take back what another CPU was told to take. */
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
		fail("cgroup %llu lies %d levels deep: weights and limits are followed for %d", id, cgroup->level, GROUP_DEPTH);
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

/* Since Linux 6.19. A cgroup that is idle no more has the usual weight, whatever it had before: so says its cpu.weight. */
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

	/* Options are constants to the verifier: it need not go through CPUs that there are not. */
	for (u32 cpu = 0; cpu < MAX_CPUS && cpu < options.nr_cpus; cpu++) {
		u32 llc_id = cpu_llc_id(cpu);
		struct llc_ctx *llc = lookup_llc(llc_id);
		if (!llc)
			continue;
		u32 at = llc->nr_cpus;
		if (at >= LLC_CPUS)
			return -22; /* EINVAL: the loader's error */
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
	/* Last, so that whoever sees it finds the rest written. */
	__sync_lock_test_and_set(&exit_record.kind, info->kind);
}

SEC("struct_ops/dump")
void BPF_PROG(quell_dump, struct scx_dump_ctx *context)
{
	for (u32 llc_id = 0; llc_id < MAX_LLCS && llc_id < options.nr_llcs; llc_id++) {
		struct llc_ctx *llc = lookup_llc(llc_id);
		if (!llc)
			break;
		dump_line("domain %d: %d ready, %d of them for too long; load %llu on %d CPUs\n", llc_id, llc->nr_queued,
			  llc->nr_starved, llc->weight_sum, llc->nr_online);
	}
}

/* What the agent wants of a thread, or wants no more (all zero). Returns 0 or a negative error. */
SEC("syscall")
int quell_set_thread(struct thread_setting *setting)
{
	struct task_struct *p = bpf_task_from_pid(setting->tid);
	int result = -3; /* ESRCH */

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
 * A server of a CPU, or another promise for one from its next period on, or one no more: its threads have weights again. Also what a
 * CPU keeps for all others. Returns 0 or a negative error.
 */
SEC("syscall")
int quell_set_server(struct server_setting *setting)
{
	struct server_rq *srq = setting->cpu < options.nr_cpus ? lookup_server_rq(setting->cpu) : NULL;
	struct server_ctx *s = lookup_server(setting->server);

	if (!options.criticality || !srq || (setting->server && !s))
		return -22; /* EINVAL */
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
			return -16; /* EBUSY: another CPU's until those sleep or have moved */
		if (find_server(setting->cpu, 0) == CPU_SERVERS_MAX)
			return -28; /* ENOSPC */
		s32 error = scx_bpf_create_dsq(server_dsq(setting->server), -1);
		if (error && error != -17) /* EEXIST: of one that ended */
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

/* A tenant without a cgroup that the agent knows of, or one no more. Returns 0 or a negative error. */
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
