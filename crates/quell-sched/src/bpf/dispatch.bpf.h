/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The dispatch decision: which task a CPU runs next. */
#ifndef QUELL_DISPATCH_BPF_H
#define QUELL_DISPATCH_BPF_H

#include "starvation.bpf.h"
#include "server.bpf.h"
#include "migrate.bpf.h"
#include "throttle.bpf.h"

/* Dispatches a task of another LLC. True if there was one. */
static __always_inline bool steal_from_llc(u32 llc_id)
{
	struct llc_ctx *llc = lookup_llc(llc_id);

	if (!llc || !llc->nr_queued)
		return false;
	throttle_llc_dsqs(llc, llc_id);
	return dsq_move_to_local(llc_dsq(llc_id)) || dsq_move_to_local(starved_dsq(llc_id));
}

/* How many other LLCs a dispatch looks at, in turn, for one with queued tasks. */
#define LLC_VISITS_MAX 8

/* The next other LLC with queued tasks, in turn; the CPU's own LLC: none of those looked at has any. */
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

/* Dispatches a task of another LLC whose load per CPU is higher than that of this CPU's LLC. */
static __always_inline bool balance_llc(struct llc_ctx *llc, u32 other)
{
	struct llc_ctx *remote = lookup_llc(other);

	if (!remote || remote->nr_queued <= remote->nr_starved)
		return false;
	/* Higher by more than the weight of one of its tasks, on average. */
	u64 one = remote->weight_sum / (remote->nr_queued + remote->nr_online);
	if (remote->weight_sum * llc->nr_online <= (llc->weight_sum + one) * remote->nr_online)
		return false;
	return steal_from_llc(other);
}

/* True if a DSQ is due to be put in order; exactly one caller gets true, and does it. */
static __always_inline bool resort_due(u64 *resorted_at, u64 now)
{
	u64 last = *resorted_at;

	return options.share && now > last + RESORT_PERIOD &&
	       __sync_val_compare_and_swap(resorted_at, last, now) == last;
}

/* The first task of a DSQ that may run on the CPU. */
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

/* The first tasks that wait for a CPU, by deadline; 0: no task. */
struct dispatch_candidates {
	u64 pinned_deadline; /* of the CPU's own DSQs */
	u64 pinned_dsq; /* the DSQ that pinned_deadline is from */
	u64 llc_deadline; /* of the LLC's DSQ, among tasks that may run on the CPU */
	u64 restricted_deadline; /* of a task that waits for this CPU and may not run on all CPUs */
	s32 cpu;
	u32 resort; /* bool: put the CPU's own DSQs in order */
};

/*
 * Looks at the nth of the CPU's own DSQs. Skips the DSQ of a server with budget: pick_server() has decided on
 * those before.
 */
__global_subprog int find_pinned_candidate(struct dispatch_candidates *cands, u32 nth)
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

/* Finds the first tasks that wait for a CPU in its own DSQs and in its LLC's. */
__global_subprog int find_candidates(struct dispatch_candidates *cands, u32 llc_id, u64 now)
{
	struct llc_ctx *llc = lookup_llc(llc_id);
	struct cpu_ctx *cpuc = cands ? lookup_cpu_ctx(cands->cpu) : NULL;

	if (!cands || !llc || !cpuc)
		return 0;
	s32 cpu = cands->cpu;
	struct dsq_candidate cand = {};
	cands->pinned_deadline = 0;
	cands->resort = cpuc->nr_pinned &&
			resort_due(&cpu_dispatch_states[bounded(cpu, MAX_CPUS)].resorted_at_ns, now);
	for (u32 nth = 0; cpuc->nr_pinned && nth < CPU_DSQS; nth++)
		find_pinned_candidate(cands, nth);
	if (llc->nr_queued > llc->nr_starved)
		cand = first_candidate(llc_dsq(llc_id), cpu, resort_due(&llc->resorted_at_ns, now));
	cands->llc_deadline = cand.deadline;
	cands->restricted_deadline = cands->pinned_deadline ?: cand.restricted ? cand.deadline : 0;
	return 0;
}

/*
 * Dispatches a task of another LLC whose deadline is earlier by SHARE_STEAL_LAG_MIN than those of all tasks
 * that wait here and of the running task (curr_deadline; 0: none): with shares the task that is furthest
 * behind runs first, whichever LLC it is in. Call only from ops.dispatch().
 */
__global_subprog int steal_lagging(struct dispatch_candidates *cands, u32 other, u64 curr_deadline, u64 now)
{
	struct llc_ctx *remote = lookup_llc(other);

	if (!cands || !remote || remote->nr_queued <= remote->nr_starved)
		return 0;
	if (cands->pinned_deadline &&
	    (!curr_deadline || deadline_before(cands->pinned_deadline, curr_deadline)))
		curr_deadline = cands->pinned_deadline;
	if (cands->llc_deadline && (!curr_deadline || deadline_before(cands->llc_deadline, curr_deadline)))
		curr_deadline = cands->llc_deadline;
	throttle_llc_dsqs(remote, other);
	struct dsq_candidate cand = first_candidate(llc_dsq(other), cands->cpu, 0);
	if (!cand.deadline ||
	    (curr_deadline && !deadline_before(cand.deadline + SHARE_STEAL_LAG_MIN, curr_deadline)))
		return 0;
	return dsq_move_to_local(llc_dsq(other));
}

/* Renews the slice of the CPU's task. */
__global_subprog int renew_slice(struct task_ctx *t, struct task_struct *p __arg_trusted, u32 cpu, u64 now)
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

/* True if the running task precedes the first task in its server's DSQ. */
static __always_inline bool precedes_server_dsq(struct task_ctx *t, u32 server)
{
	u64 first = dsq_first_vtime(server_dsq(server));

	return !first || !deadline_before(first, t->deadline);
}

/* Dispatches a task to a CPU's local DSQ, or renews the slice of prev, the task that runs on the CPU. */
static __always_inline void dispatch_task(s32 cpu, struct task_struct *prev)
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
	/* The task goes to the throttled DSQ in ops.enqueue(). */
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
			if (!(keep && precedes_server_dsq(t, server)) &&
			    dsq_move_to_local(server_dsq(server)))
				return;
			if (keep) {
				renew_slice(t, prev, cpu, now);
				return;
			}
			/* The picked server has no task in its DSQ: its task is just being enqueued. */
			srq->picked_server = 0;
		}
		/* From here on best effort is served. */
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
	u64 earliest = cands.pinned_deadline && cands.llc_deadline ?
			       deadline_min(cands.pinned_deadline, cands.llc_deadline) :
			       cands.pinned_deadline ?: cands.llc_deadline;
	if (t && (!earliest || deadline_before(prev_deadline, earliest)))
		earliest = prev_deadline;
	if (dispatch_starved(llc, llc_id, earliest, now))
		return;
	if (options.share && other != llc_id && steal_lagging(&cands, other, t ? prev_deadline : 0, now))
		return;
	if (options.share && t && cands.restricted_deadline &&
	    should_displace(prev, t, cands.restricted_deadline, llc_id, now))
		t = NULL;
	if (t && cands.pinned_deadline && !deadline_before(cands.pinned_deadline, prev_deadline))
		cands.pinned_deadline = 0;
	if (t && cands.llc_deadline && !deadline_before(cands.llc_deadline, prev_deadline))
		cands.llc_deadline = 0;
	bool pinned_first = cands.pinned_deadline &&
			    !(cands.llc_deadline &&
			      deadline_before(cands.llc_deadline, cands.pinned_deadline));
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
		/* Tasks that the scan did not reach, behind tasks that may not run on this CPU. */
		if (llc->nr_queued && steal_from_llc(llc_id))
			return;
		for (u32 i = 1; i < MAX_LLCS && i < options.nr_llcs; i++) {
			u32 other = llc_id + i;
			if (other >= options.nr_llcs)
				other -= options.nr_llcs;
			if (steal_from_llc(other))
				return;
		}
		/* No best-effort task that waits may run here: serves the best server after all. */
		if (srq && srq->nr_servers && srq->best_server &&
		    dsq_move_to_local(server_dsq(srq->best_server)))
			return;
		t = served_prev;
	}
	/* No other task precedes prev: prev gets another slice. */
	if (t)
		renew_slice(t, prev, cpu, now);
}

#endif
