/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Servers: keeps what ../policy/server.h computes with.
 *
 * Problem: who is promised a budget on a CPU must get it before all that has a weight, to the microsecond, and no more of it; and
 *          what budgets leave is shared as if there were none.
 * How:     a thread that may run on one CPU only can be served by a server of that CPU, which has a queue of its own, in the order
 *          that the thread would have in its CPU's. A CPU that looks for work serves the server with the earliest deadline
 *          that has a budget and wants it, and else what comes next by weight: there the queues of servers without a budget
 *          count as its own. Each CPU has a timer for when a budget or a period ends.
 *          All that has a weight is itself a server (the rest), of high criticality, so that it gets something in
 *          every period whatever was promised.
 * Bounds:  a server that stays ready has its budget by its deadline, if the CPU's servers pass the test they were placed by
 *          (quell-policy's admission) and nothing but interrupts and higher scheduling classes takes the CPU.
 * Time:    who leaves a CPU pays until the next one has it, as a trace of switches tells it. So the time is asked for
 *          again where it pays: else who is switched to for next to nothing and from at some cost, as one that wakes and sleeps often, had
 *          more CPU time than it pays for.
 * Locking: a CPU's servers change under its run queue's lock only: where its threads become ready, where it looks for work, and where
 *          one begins or ceases to run. The agent writes what they are to be; that holds from their next period on.
 *          The timer only makes the CPU look, and counts that.
 */
#ifndef QUELL_SERVER_BPF_H
#define QUELL_SERVER_BPF_H

#include "task.bpf.h"

#define TIME_NEVER (-1ULL)
/* What a switch takes at most. Else the CPU idled, or a higher scheduling class had it. */
#define CURR_LEAVING_MAX (50 * NS_PER_US)

/*
 * A turn of who came from the CPU's local queue although the CPU was to look for work. The kernel puts who must not migrate at the moment there
 * by itself, again each time it is preempted, and looks for no work while somebody is there: two of them would take turns of nothing for ever.
 */
#define REINSERTED_SLICE_MIN (200 * NS_PER_US)

/* Where a CPU lists a server, or with 0 where it lists none; CPU_SERVERS_MAX: nowhere. Global, so that the verifier looks at it once. */
__noinline u32 find_server(u32 cpu, u32 number)
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

/* The server that a thread is to be served by there; 0: none. */
static __always_inline u32 target_server(struct task_ctx *t, struct task_struct *p, u32 cpu)
{
	struct server_ctx *s = p->nr_cpus_allowed == 1 ? lookup_server(t->server) : NULL;

	return s && s->cpu == cpu && !s->ended ? t->server : 0;
}

/* The thread is not ready any more, or served by another. */
static __always_inline void dequeue_server(struct task_ctx *t)
{
	struct server_ctx *s;

	if (!options.criticality || !t->on_server)
		return;
	s = lookup_server(__sync_lock_test_and_set(&t->on_server, 0));
	if (s)
		__sync_fetch_and_add(&s->nr_ready, -1);
}

/* A thread is ready on a CPU. */
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

/* The agent gave it a thread, which may be waiting. */
static __always_inline void request_server_join(u32 number)
{
	struct server_ctx *s = options.criticality ? lookup_server(number) : NULL;
	struct server_rq *srq = s ? lookup_server_rq(s->cpu) : NULL;

	if (srq)
		srq->rescan_pinned = 1;
}

/* From now on it is promised what the agent said last, unless the agent is about to say something else. */
static __always_inline void apply_terms(struct server_ctx *s)
{
	u32 version = *(volatile u32 *)&s->terms_seq;

	if (version == s->terms_seq_applied || version & 1)
		return;
	s->cur.terms = s->next_terms;
	if (*(volatile u32 *)&s->terms_seq == version)
		s->terms_seq_applied = version;
}

/* What ran since is charged, and by a server it is none of what others share. */
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

/* Brings one of a CPU's servers up to date, and the CPU's mode with it. Global, so that the verifier looks at it once. */
__noinline int update_server(u32 cpu, u32 nth, u64 now)
{
	struct server_rq *srq = lookup_server_rq(cpu);

	if (!srq)
		return 0;
	u32 number = srq->servers[bounded(nth, CPU_SERVERS_MAX)];
	struct server_ctx *s = lookup_server(number);
	if (!s)
		return 0;
	/* It has ended, and its number may be another CPU's by now. */
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

/* Whether it goes before those that were looked at before it. Global, as update_server() is. */
__noinline int consider_server(u32 cpu, u32 nth, u64 now)
{
	struct server_rq *srq = lookup_server_rq(cpu);

	if (!srq)
		return 0;
	u32 number = srq->servers[bounded(nth, CPU_SERVERS_MAX)];
	struct server_ctx *s = lookup_server(number);
	if (!s || !s->nr_ready)
		return 0;
	/* What was left of its budget it could not use in HI mode; were it to have that now, others would lack it. */
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

/* The rest wants the CPU: whether it is its turn. */
static __always_inline bool best_effort_goes_first(struct server_rq *srq, u64 now)
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
 * Whose turn it is on a CPU: the number of a server, or 0, the rest. What runs is charged before. weighted: somebody waits there whom
 * no server serves. Under the run queue's lock. Global, as update_server() is.
 */
__noinline u32 pick_server(u32 cpu, bool be_waits)
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
	if (be_wants && best_effort_goes_first(srq, now))
		picked = 0;
	srq->best_effort_wants = be_wants;
	srq->picked_server = picked;
	return picked;
}

TIMERS(budget_timers, MAX_CPUS);

/* Whether preempting who runs, for somebody's budget, has not made the CPU look for work. */
static __always_inline bool kicks_ignored(struct server_rq *srq)
{
	return srq->nr_kicks > 1;
}

static __always_inline void kick_for_budget(struct server_rq *srq, u32 cpu)
{
	if (!kicks_ignored(srq))
		srq->nr_kicks++;
	scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
}

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

/* A CPU looks again when what runs has used its budget, or somebody gets one. Global, as update_server() is. */
__noinline int arm_budget_timer(u32 cpu)
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
	/* The rest need not be stopped while nobody else has a budget and wants the CPU, nor would once it has had its own. */
	else if (srq->curr_runs && (srq->best_server || (srq->hi_mode && server_has_budget(&srq->best_effort, true))))
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

/* Whether a thread's server pays for it. */
static __always_inline bool server_pays_task(struct task_ctx *t, struct server_rq *srq)
{
	struct server_ctx *s = lookup_server(t->on_server);

	return s && server_has_budget(&s->cur, srq->hi_mode);
}

/* A thread runs there, or goes on. Global, as update_server() is. */
__noinline int server_begin_curr(struct task_ctx *t, u32 cpu)
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

/* As begin_charge(). Nobody takes the CPU from who is served for being more urgent. */
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

/* Who runs there leaves. */
static __always_inline void server_end_curr(u32 cpu)
{
	struct server_rq *srq = options.criticality ? lookup_server_rq(cpu) : NULL;

	if (!srq || !srq->nr_servers)
		return;
	charge_server(srq, time_ns());
	srq->curr_leaving = srq->curr_runs;
	srq->curr_runs = 0;
}

/* The CPU idles: who left it has left. */
static __always_inline void server_settle_idle(u32 cpu)
{
	struct server_rq *srq = options.criticality ? lookup_server_rq(cpu) : NULL;

	if (!srq || !srq->curr_leaving)
		return;
	charge_server(srq, time_ns());
	srq->curr_leaving = 0;
}

/* Whether somebody waits whom no server serves. */
static __always_inline bool best_effort_waits(u32 cpu)
{
	struct llc_ctx *llc = lookup_llc(cpu_llc_id(cpu));

	return llc && (llc->nr_queued || dsq_first_vtime(pinned_dsq(cpu)));
}

#endif
