/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Servers: keeps what ../policy/server.h computes with.
 *
 * Problem: A task with a reservation on a CPU must get its budget before all tasks that only have weights, to
 *          the microsecond, and no more than that; and what budgets leave is shared as if there were no
 *          servers.
 * How:     A pinned task can be served by a constant-bandwidth server of its CPU. The server has a DSQ of its
 *          own, in the order that the task would have in the pinned DSQ. A CPU that dispatches serves the
 *          ready server with budget that has the earliest deadline; if there is none, it dispatches by
 *          weight, with the DSQs of servers without budget counted as its own. A timer of the CPU expires
 *          when a budget or a period ends. All tasks without a server are served by the best-effort server,
 *          of high criticality, so that they get some of every period whatever is reserved.
 * Bounds:  A server that stays ready gets its budget by its deadline, if the CPU's servers passed the
 *          admission test of quell-policy and nothing but interrupts and higher scheduling classes takes the
 *          CPU.
 * Time:    A task that stops pays until the next one runs, as a trace of switches shows it. So the clock is
 *          read anew where a server is charged: else a task that wakes and sleeps often, cheap to switch to
 *          and costly to switch from, would get more CPU time than it pays for.
 * Locking: A CPU's servers change under its run queue's lock only: where their tasks become runnable, where
 *          the CPU dispatches, and where a task begins to run or stops. The agent writes next_terms, which
 *          hold from the server's next period on. The timer only preempts the CPU and counts that in
 *          nr_kicks.
 */
#ifndef QUELL_SERVER_BPF_H
#define QUELL_SERVER_BPF_H

#include "task.bpf.h"

#define TIME_NEVER (-1ULL)
/* The longest time that a switch takes. After that the CPU idled, or a higher scheduling class had it. */
#define CURR_LEAVING_MAX (50 * NS_PER_US)

/*
 * Slice of a task that came from SCX_DSQ_LOCAL although the CPU was to pick a server. The core itself
 * re-inserts a task whose migration is disabled after each preemption, and does not call
 * ops.dispatch() while the local DSQ has a task: without a minimum, two such tasks would preempt each other
 * for ever.
 */
#define REINSERTED_SLICE_MIN (200 * NS_PER_US)

/* The index at which a CPU lists a server, or (number 0) a free index; CPU_SERVERS_MAX: there is none. */
__global_subprog u32 find_server(u32 cpu, u32 number)
{
	struct server_rq *srq = lookup_server_rq(cpu);

	for (u32 nth = 0; srq && nth < CPU_SERVERS_MAX; nth++) {
		if (srq->servers[nth] == number)
			return nth;
	}
	return CPU_SERVERS_MAX;
}

static __always_inline bool cpu_has_servers(u32 cpu)
{
	struct server_rq *srq = options.criticality ? lookup_server_rq(cpu) : NULL;

	return srq && srq->nr_servers;
}

/* The server that is to serve the task on the CPU; 0: none. */
static __always_inline u32 target_server(struct task_ctx *t, struct task_struct *p, u32 cpu)
{
	struct server_ctx *s = p->nr_cpus_allowed == 1 ? lookup_server(t->server) : NULL;

	return s && s->cpu == cpu && !s->ended ? t->server : 0;
}

/* A task of a server is no longer runnable, or gets another server. */
static __always_inline void dequeue_server(struct task_ctx *t)
{
	struct server_ctx *s;

	if (!options.criticality || !t->on_server)
		return;
	s = lookup_server(__sync_lock_test_and_set(&t->on_server, 0));
	if (s)
		__sync_fetch_and_add(&s->nr_ready, -1);
}

/* A task is runnable on a CPU: its server counts the task. */
static __always_inline void enqueue_server(struct task_ctx *t, struct task_struct *p, u32 cpu)
{
	u32 number;
	struct server_ctx *s;

	if (!options.criticality)
		return;
	number = target_server(t, p, cpu);
	if (t->on_server == number)
		return;
	dequeue_server(t);
	s = lookup_server(number);
	if (!s)
		return;
	t->on_server = number;
	if (!__sync_fetch_and_add(&s->nr_ready, 1))
		s->wakeup_pending = 1;
}

/* The agent gave the server a task, which may be queued already. */
static __always_inline void request_server_join(u32 number)
{
	struct server_ctx *s = options.criticality ? lookup_server(number) : NULL;
	struct server_rq *srq = s ? lookup_server_rq(s->cpu) : NULL;

	if (srq)
		srq->rescan_pinned = 1;
}

/* Takes over the terms that the agent wrote last, unless the agent is writing new ones. */
static __always_inline void apply_terms(struct server_ctx *s)
{
	u32 version = *(volatile u32 *)&s->terms_seq;

	if (version == s->terms_seq_applied || version & 1)
		return;
	s->cur.terms = s->next_terms;
	if (*(volatile u32 *)&s->terms_seq == version)
		s->terms_seq_applied = version;
}

/* Charges what ran since the last charge, to a server or to best effort. */
static __always_inline void charge_server(struct server_rq *srq, u64 now)
{
	struct server_ctx *s = lookup_server(srq->charged_server);
	u64 at = srq->charged_until_ns;

	if (now <= at)
		return;
	if (srq->curr_leaving && now - at > CURR_LEAVING_MAX)
		srq->curr_leaving = 0;
	if (!srq->curr_runs && !srq->curr_leaving)
		return;
	srq->charged_until_ns = now;
	if (!s) {
		best_effort_charge(&srq->best_effort, now - at, now);
		return;
	}
	s->cur.used_ns += now - at;
}

/* Brings the nth server of a CPU up to date, and the CPU's mode. */
__global_subprog int update_server(u32 cpu, u32 nth, u64 now)
{
	struct server_rq *srq = lookup_server_rq(cpu);

	if (!srq)
		return 0;
	u32 number = srq->servers[bounded(nth, CPU_SERVERS_MAX)];
	struct server_ctx *s = lookup_server(number);
	if (!s)
		return 0;
	/* The server has ended, and its number may belong to another CPU by now. */
	if (s->cpu != cpu || (s->ended && !s->nr_ready)) {
		srq->servers[bounded(nth, CPU_SERVERS_MAX)] = 0;
		__sync_fetch_and_add(&srq->nr_servers, -1);
		return 0;
	}
	if (s->nr_ready && s->wakeup_pending) {
		s->wakeup_pending = 0;
		apply_terms(s);
		server_wakeup(&s->cur, now);
	} else if (s->nr_ready && now >= s->cur.deadline_ns) {
		if (server_has_budget(&s->cur, srq->hi_mode))
			s->missed++;
		apply_terms(s);
		server_next_period(&s->cur, now);
	}
	if (s->nr_ready && !s->ended && s->cur.terms.hi_crit) {
		if (server_overruns(&s->cur)) {
			server_extend_hi_mode(&s->cur, now);
			if (!srq->hi_mode)
				srq->nr_hi_switches++;
			srq->hi_mode = 1;
		}
		if (server_has_budget(&s->cur, true))
			srq->hi_wanted = 1;
	}
	if (s->cur.hi_until_ns > srq->hi_until_ns)
		srq->hi_until_ns = s->cur.hi_until_ns;
	return 0;
}

/* Makes the nth server the best one, if it precedes the servers before it. */
__global_subprog int consider_server(u32 cpu, u32 nth, u64 now)
{
	struct server_rq *srq = lookup_server_rq(cpu);

	if (!srq)
		return 0;
	u32 number = srq->servers[bounded(nth, CPU_SERVERS_MAX)];
	struct server_ctx *s = lookup_server(number);
	if (!s || !s->nr_ready)
		return 0;
	/*
	 * A server of low criticality could not use its budget in HI mode. If it used the rest of that budget
	 * now, other servers would lack the time; so its period begins anew.
	 */
	if (srq->lo_resumes && !s->cur.terms.hi_crit)
		server_start_period(&s->cur, now);
	if (s->ended) {
		srq->exhausted_waits = 1;
	} else if (!server_has_budget(&s->cur, srq->hi_mode)) {
		srq->exhausted_waits = 1;
		u64 next_deadline = s->cur.deadline_ns;
		if ((s->cur.terms.hi_crit || !srq->hi_mode) && next_deadline < srq->next_event_ns)
			srq->next_event_ns = next_deadline;
	} else {
		u64 deadline = server_current_deadline(&s->cur, srq->hi_mode);
		if (deadline < srq->best_deadline_ns) {
			srq->best_deadline_ns = deadline;
			srq->best_server = number;
		}
	}
	return 0;
}

/* Best-effort tasks want the CPU: true if the best-effort server precedes the best server. */
static __always_inline bool best_effort_goes_first(struct server_rq *srq)
{
	struct server *be = &srq->best_effort;

	if (!be->terms.period_ns)
		return false;
	if (server_has_budget(be, true))
		return server_current_deadline(be, srq->hi_mode) < srq->best_deadline_ns;
	if (srq->best_server && best_effort_next_period(be) < srq->next_event_ns)
		srq->next_event_ns = best_effort_next_period(be);
	return false;
}

/*
 * Picks what a CPU serves: the number of a server, or 0 for best effort. Charges what runs first. be_waits: a
 * task without a server waits. Under the run queue's lock.
 */
__global_subprog u32 pick_server(u32 cpu, bool be_waits)
{
	struct server_rq *srq = lookup_server_rq(cpu);
	u64 now = time_ns();

	if (!srq || !srq->nr_servers)
		return 0;
	charge_server(srq, now);
	best_effort_update(&srq->best_effort, srq->best_effort_wants, now);
	srq->hi_wanted = server_has_budget(&srq->best_effort, true);
	srq->exhausted_waits = srq->lo_resumes = 0;
	srq->hi_until_ns = 0;
	srq->best_server = 0;
	srq->best_deadline_ns = srq->next_event_ns = TIME_NEVER;
	for (u32 nth = 0; nth < CPU_SERVERS_MAX; nth++)
		update_server(cpu, nth, now);
	if (srq->hi_mode && !srq->hi_wanted) {
		if (now >= srq->hi_until_ns) {
			srq->hi_mode = 0;
			srq->lo_resumes = 1;
		} else {
			srq->next_event_ns = srq->hi_until_ns;
		}
	}
	for (u32 nth = 0; nth < CPU_SERVERS_MAX; nth++)
		consider_server(cpu, nth, now);
	u32 picked = srq->best_server;
	bool be_wants = be_waits || srq->exhausted_waits || (srq->curr_runs && !srq->charged_server);
	if (be_wants && best_effort_goes_first(srq))
		picked = 0;
	srq->best_effort_wants = be_wants;
	srq->picked_server = picked;
	return picked;
}

TIMERS(budget_timers, MAX_CPUS);

/* True if preempting for a budget has not made the CPU dispatch, see REINSERTED_SLICE_MIN. */
static __always_inline bool kicks_ignored(struct server_rq *srq)
{
	return srq->nr_kicks > 1;
}

/* Preempts the CPU's task, so that the CPU picks a server anew. */
static __always_inline void kick_for_budget(struct server_rq *srq, u32 cpu)
{
	if (!kicks_ignored(srq))
		srq->nr_kicks++;
	scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
}

/* A budget or a period of the CPU has ended. */
static int on_budget_timer(void *map, u32 *key, struct timer *value)
{
	u32 cpu = *key;
	struct server_rq *srq = lookup_server_rq(cpu);

	if (!srq)
		return 0;
	srq->timer_at_ns = 0;
	kick_for_budget(srq, cpu);
	return 0;
}

/* Arms the budget timer for when what runs has used its budget, or a server gets budget. */
__global_subprog int arm_budget_timer(u32 cpu)
{
	struct server_rq *srq = lookup_server_rq(cpu);
	u64 now = time_ns();
	struct timer *timer = bpf_map_lookup_elem(&budget_timers, &cpu);

	if (!srq || !timer)
		return 0;
	u64 at = srq->next_event_ns;
	u64 budget_end = TIME_NEVER;
	struct server_ctx *s = lookup_server(srq->charged_server);
	if (srq->curr_runs && s)
		budget_end = server_next_event(&s->cur, srq->hi_mode, now);
	/*
	 * Best effort need not be stopped while no other server is ready with budget, nor for its own budget
	 * then.
	 */
	else if (srq->curr_runs &&
		 (srq->best_server || (srq->hi_mode && server_has_budget(&srq->best_effort, true))))
		budget_end = now + server_runtime_left(&srq->best_effort);
	if (budget_end < at)
		at = budget_end;
	if (kicks_ignored(srq) && at < srq->curr_since_ns + REINSERTED_SLICE_MIN)
		at = srq->curr_since_ns + REINSERTED_SLICE_MIN;
	if (at == TIME_NEVER || at == srq->timer_at_ns)
		return 0;
	srq->timer_at_ns = at;
	bpf_timer_start(&timer->timer, at > now ? at - now : 1, 0);
	return 0;
}

/* True if the task's server pays for the task now. */
static __always_inline bool server_pays_task(struct task_ctx *t, struct server_rq *srq)
{
	struct server_ctx *s = lookup_server(t->on_server);

	return s && server_has_budget(&s->cur, srq->hi_mode);
}

/* A task begins to run on the CPU, or goes on. */
__global_subprog int server_begin_curr(struct task_ctx *t, u32 cpu)
{
	struct server_rq *srq = lookup_server_rq(cpu);
	u64 now = time_ns();

	if (!t || !srq)
		return 0;
	if (!srq->nr_servers) {
		t->server_pays = 0;
		return 0;
	}
	charge_server(srq, now);
	srq->curr_leaving = 0;
	srq->curr_runs = 1;
	srq->charged_until_ns = srq->curr_since_ns = now;
	t->server_pays = server_pays_task(t, srq);
	srq->charged_server = t->server_pays ? t->on_server : 0;
	arm_budget_timer(cpu);
	return 0;
}

/*
 * As server_begin_curr(), if the CPU has servers. A task that a server pays for is not preempted by a more
 * urgent one.
 */
static __always_inline void server_set_curr(struct task_ctx *t, u32 cpu)
{
	struct server_rq *srq = options.criticality ? lookup_server_rq(cpu) : NULL;
	struct cpu_ctx *cpuc = lookup_cpu_ctx(cpu);

	if (!srq || !cpuc || !(srq->nr_servers || t->server_pays))
		return;
	server_begin_curr(t, cpu);
	if (srq->charged_server)
		cpuc->curr_deadline = DEADLINE_NONE;
}

/* The CPU's task stops. */
static __always_inline void server_end_curr(u32 cpu)
{
	struct server_rq *srq = options.criticality ? lookup_server_rq(cpu) : NULL;

	if (!srq || !srq->nr_servers)
		return;
	charge_server(srq, time_ns());
	srq->curr_leaving = srq->curr_runs;
	srq->curr_runs = 0;
}

/* The CPU idles: the task that stopped does not pay any longer. */
static __always_inline void server_settle_idle(u32 cpu)
{
	struct server_rq *srq = options.criticality ? lookup_server_rq(cpu) : NULL;

	if (!srq || !srq->curr_leaving)
		return;
	charge_server(srq, time_ns());
	srq->curr_leaving = 0;
}

/* True if a task waits that no server serves. */
static __always_inline bool best_effort_waits(u32 cpu)
{
	struct llc_ctx *llc = lookup_llc(cpu_llc_id(cpu));

	return llc && (llc->nr_queued || dsq_first_vtime(pinned_dsq(cpu)));
}

/*
 * Moves tasks that wait in the CPU's pinned DSQ to the DSQs of servers that they have got since. Call only
 * from ops.dispatch().
 */
__global_subprog int move_to_servers(u32 cpu)
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

#endif
