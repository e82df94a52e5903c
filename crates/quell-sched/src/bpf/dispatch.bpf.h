/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The dispatch decision: which task a CPU runs next.
 *
 * Problem: Promised budgets, shares by weight, urgent deadlines, starved tasks, the queues of other LLCs and
 *          prev, the task that has run, all have a claim to a CPU that looks for work.
 * How:     dispatch_task() first brings prev and the DSQs up to date: it collects starved tasks, charges prev
 *          and throttles tasks whose groups have no runtime. Then it tries these rules in order. The first
 *          rule that finds a task decides; if none does, the CPU idles.
 *
 *           1. should_run_server()       first task of the server that the CPU picks
 *           2. should_keep_served()      prev, if the picked server serves it
 *           3. should_balance_llc()      without shares: first task of another LLC with more load per CPU
 *           4. should_run_starved()      starved task that has waited longest
 *           5. should_steal_lagging()    with shares: first task of another LLC, if it is furthest behind
 *           6. should_run_pinned()       first task of the CPU's own DSQs, if it precedes prev and the LLC's
 *           7. should_run_llc()          first task of the LLC's DSQ, if it precedes prev
 *           8. has_pinned()              as rule 6, if another CPU has taken the LLC's first task meanwhile
 *           9. should_keep_running()     prev
 *          10. has_queued()              any task of the LLC's DSQs that may run on the CPU
 *          11. has_queued()              any task of another LLC's DSQs that may run on the CPU
 *          12. should_run_best_server()  first task of the best server, although best effort precedes it
 *          13. server_pays_task()        prev, although best effort precedes its server
 *
 *          In rules 4 to 8 prev competes by its deadline, unless another CPU can run it at once
 *          (should_migrate(), should_displace()): then prev makes way.
 * Bounds:  No CPU idles while a task waits that may run on it and that no bandwidth limit throttles. Rules 3
 *          and 5 look at one other LLC, found among the next LLC_VISITS_MAX; rules 5 to 7 at DSQ_SCAN_MAX
 *          tasks of a DSQ, and at RESORT_MAX once in RESORT_PERIOD.
 * Source:  Deadlines and lag are EEVDF's (Stoica and Abdel-Wahab, 1995), servers are constant-bandwidth
 *          servers (Abeni and Buttazzo, 1998). The order of the rules is ours.
 */
#ifndef QUELL_DISPATCH_BPF_H
#define QUELL_DISPATCH_BPF_H

#include "starvation.bpf.h"
#include "server.bpf.h"
#include "migrate.bpf.h"
#include "throttle.bpf.h"

/* Rules 10 and 11. True if a task waits in the LLC's DSQs. */
static __always_inline bool has_queued(struct llc_ctx *llc)
{
	return llc && llc->nr_queued;
}

/* Dispatches any task of the LLC's DSQs that may run on the CPU. True if there was one. */
static __always_inline bool steal_from_llc(u32 llc_id)
{
	struct llc_ctx *llc = lookup_llc(llc_id);

	if (!has_queued(llc))
		return false;
	throttle_llc_dsqs(llc, llc_id);
	return dsq_move_to_local(llc_dsq(llc_id)) || dsq_move_to_local(starved_dsq(llc_id));
}

/* The number of other LLCs that a dispatch looks at, in turn, for one with queued tasks. */
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

/* Rule 3. True if the load per CPU of the other LLC is higher than that of this CPU's LLC. */
static __always_inline bool should_balance_llc(struct llc_ctx *llc, u32 llc_id, u32 other)
{
	struct llc_ctx *remote = !options.share && other != llc_id ? lookup_llc(other) : NULL;

	if (!remote || remote->nr_queued <= remote->nr_starved)
		return false;
	/* Higher by more than the weight of one of its tasks, on average. */
	u64 one = remote->weight_sum / (remote->nr_queued + remote->nr_online);
	return remote->weight_sum * llc->nr_online > (llc->weight_sum + one) * remote->nr_online;
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
 * Rule 5. With shares the task that is furthest behind runs first, whichever LLC it is in. True if the other
 * LLC's first task (its deadline; 0: there is none) precedes the first task here (0: there is none) by
 * SHARE_STEAL_LAG_MIN.
 */
static __always_inline bool should_steal_lagging(u64 deadline, u64 first_here)
{
	return deadline && (!first_here || deadline_before(deadline + SHARE_STEAL_LAG_MIN, first_here));
}

/*
 * Applies rule 5 to the first task of another LLC. curr_deadline: the deadline of prev; 0: prev does not
 * compete. Call only from ops.dispatch().
 */
__global_subprog int steal_lagging(struct dispatch_candidates *cands, u32 other, u64 curr_deadline)
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
	if (!should_steal_lagging(cand.deadline, curr_deadline))
		return 0;
	return dsq_move_to_local(llc_dsq(other));
}

/* Renews the slice of the CPU's task: rules 2, 9 and 13. */
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

/*
 * Charges prev and brings its deadline up to date. Returns its context; NULL: prev is not runnable, or is
 * throttled and goes to the throttled DSQ in ops.enqueue().
 */
static __always_inline struct task_ctx *charge_prev(struct task_struct *prev, u64 *deadline, u64 now)
{
	struct task_ctx *t;

	if (!prev || !(prev->scx.flags & SCX_TASK_QUEUED))
		return NULL;
	t = lookup_task_ctx(prev);
	if (!t)
		return NULL;
	charge_task(t, prev, false, now);
	update_deadline(t, now);
	*deadline = t->deadline;
	return throttled_until(t, now) ? NULL : t;
}

/* The server that the CPU is to run now; 0: best effort. t: prev's context, or NULL. */
static __always_inline u32 pick_server_to_run(struct server_rq *srq, struct task_ctx *t, u32 cpu)
{
	srq->nr_kicks = 0;
	if (srq->rescan_pinned)
		move_to_servers(cpu);
	return pick_server(cpu, (t && !t->on_server) || best_effort_waits(cpu));
}

/* True if the running task precedes the first task in its server's DSQ. */
static __always_inline bool precedes_server_dsq(struct task_ctx *t, u32 server)
{
	u64 first = dsq_first_vtime(server_dsq(server));

	return !first || !deadline_before(first, t->deadline);
}

/* Rule 2. t: prev's context, or NULL; server: the picked server, 0: best effort. */
static __always_inline bool should_keep_served(struct task_ctx *t, u32 server)
{
	return server && t && t->on_server == server;
}

/* Rule 1. False if the server serves prev, and prev precedes the first task in the server's DSQ. */
static __always_inline bool should_run_server(struct task_ctx *t, u32 server)
{
	return server && !(should_keep_served(t, server) && precedes_server_dsq(t, server));
}

/*
 * The earliest deadline of the candidates and of prev; 0: there is none. t: prev's context; NULL: prev does
 * not compete.
 */
static __always_inline u64 earliest_deadline(const struct dispatch_candidates *cands, struct task_ctx *t,
					     u64 prev_deadline)
{
	u64 earliest = cands->pinned_deadline && cands->llc_deadline ?
			       deadline_min(cands->pinned_deadline, cands->llc_deadline) :
			       cands->pinned_deadline ?: cands->llc_deadline;

	if (t && (!earliest || deadline_before(prev_deadline, earliest)))
		earliest = prev_deadline;
	return earliest;
}

/* True if there is a candidate, but prev precedes it. t: prev's context; NULL: prev does not compete. */
static __always_inline bool prev_precedes(struct task_ctx *t, u64 prev_deadline, u64 deadline)
{
	return t && deadline && !deadline_before(deadline, prev_deadline);
}

/* Rule 8, of candidates that prev does not precede. */
static __always_inline bool has_pinned(const struct dispatch_candidates *cands)
{
	return cands->pinned_deadline;
}

/* Rule 7, of candidates that prev does not precede. */
static __always_inline bool should_run_llc(const struct dispatch_candidates *cands)
{
	return cands->llc_deadline;
}

/* Rule 6, of candidates that prev does not precede. */
static __always_inline bool should_run_pinned(const struct dispatch_candidates *cands)
{
	return has_pinned(cands) &&
	       !(should_run_llc(cands) && deadline_before(cands->llc_deadline, cands->pinned_deadline));
}

/* Rule 9. A task that made way for a two-hop migration goes on elsewhere. */
static __always_inline bool should_keep_running(struct task_ctx *t, struct cpu_ctx *cpuc, bool makes_way)
{
	return t && !(makes_way && cpuc->migrate_state == MIGRATE_PENDING);
}

/* Dispatches any task of another LLC's DSQs that may run on the CPU. True if there was one. */
static __always_inline bool steal_from_other_llcs(u32 llc_id)
{
	for (u32 i = 1; i < MAX_LLCS && i < options.nr_llcs; i++) {
		u32 other = llc_id + i;
		if (other >= options.nr_llcs)
			other -= options.nr_llcs;
		if (steal_from_llc(other))
			return true;
	}
	return false;
}

/* Rule 12. The best server is ready and has budget. */
static __always_inline bool should_run_best_server(struct server_rq *srq)
{
	return srq && srq->nr_servers && srq->best_server;
}

/* Dispatches a task to a CPU's local DSQ, or renews the slice of prev, by the rules above. */
static __always_inline void dispatch_task(s32 cpu, struct task_struct *prev)
{
	struct cpu_ctx *cpuc = lookup_cpu_ctx(cpu);
	u32 llc_id = cpu_llc_id(cpu);
	struct llc_ctx *llc = lookup_llc(llc_id);
	u64 now = time_ns(), prev_deadline = 0;

	if (!cpuc || !llc)
		return;
	cpu_dispatch_states[bounded(cpu, MAX_CPUS)].picked_when_idle = !prev;
	scan_starved(llc, llc_id, now);
	struct task_ctx *t = charge_prev(prev, &prev_deadline, now), *paid = NULL;
	if (cpuc->nr_pinned && bandwidth.nr_groups)
		throttle_cpu_dsqs(cpu, llc_id);
	throttle_llc_dsqs(llc, llc_id);

	struct server_rq *srq = options.criticality ? lookup_server_rq(cpu) : NULL;
	if (srq && srq->nr_servers) {
		u32 server = pick_server_to_run(srq, t, cpu);
		/* Rule 1. */
		if (should_run_server(t, server) && dsq_move_to_local(server_dsq(server)))
			return;
		/* Rule 2. */
		if (should_keep_served(t, server)) {
			renew_slice(t, prev, cpu, now);
			return;
		}
		/* The picked server has no task in its DSQ: its task is just being enqueued. */
		if (server)
			srq->picked_server = 0;
		/* From here on best effort is served. */
		if (t && server_pays_task(t, srq)) {
			paid = t;
			t = NULL;
		}
	}

	bool makes_way = options.share && t && should_migrate(prev, cpu, llc, llc_id);
	struct task_ctx *keep = should_keep_running(t, cpuc, makes_way) ? t : NULL;
	/* From here on t is prev's context while prev competes. */
	if (makes_way)
		t = NULL;
	u32 other = next_busy_llc(cpuc, llc_id);
	/* Rule 3. */
	if (should_balance_llc(llc, llc_id, other) && steal_from_llc(other))
		return;
	struct dispatch_candidates cands = { .cpu = cpu };
	find_candidates(&cands, llc_id, now);
	/* Rule 4. */
	if (should_run_starved(llc, earliest_deadline(&cands, t, prev_deadline), now) &&
	    dispatch_starved(llc, llc_id, now))
		return;
	/* Rule 5. */
	if (options.share && other != llc_id && steal_lagging(&cands, other, t ? prev_deadline : 0))
		return;
	if (options.share && t && cands.restricted_deadline &&
	    should_displace(prev, t, cands.restricted_deadline, llc_id, now))
		t = NULL;
	if (prev_precedes(t, prev_deadline, cands.pinned_deadline))
		cands.pinned_deadline = 0;
	if (prev_precedes(t, prev_deadline, cands.llc_deadline))
		cands.llc_deadline = 0;
	/* Rule 6. */
	if (should_run_pinned(&cands) && dsq_move_to_local(cands.pinned_dsq))
		return;
	/* Rule 7. */
	if (should_run_llc(&cands) && dsq_move_to_local(llc_dsq(llc_id)))
		return;
	/* Rule 8. */
	if (has_pinned(&cands) && dsq_move_to_local(cands.pinned_dsq))
		return;
	/* Rule 9. */
	if (keep) {
		keep->claimed_cpu_plus1 = 0;
		renew_slice(keep, prev, cpu, now);
		return;
	}
	/* Rules 10 and 11. */
	if (steal_from_llc(llc_id) || steal_from_other_llcs(llc_id))
		return;
	/* Rule 12. */
	if (should_run_best_server(srq) && dsq_move_to_local(server_dsq(srq->best_server)))
		return;
	/* Rule 13. */
	if (paid)
		renew_slice(paid, prev, cpu, now);
}

#endif
