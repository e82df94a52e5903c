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

#define NEVER (-1ULL)
/* What a switch takes at most. Else the CPU idled, or a higher scheduling class had it. */
#define LEAVING_MOST (50 * NS_PER_US)

/*
 * A turn of who came from the CPU's local queue although the CPU was to look for work. The kernel puts who must not migrate at the moment there
 * by itself, again each time it is preempted, and looks for no work while somebody is there: two of them would take turns of nothing for ever.
 */
#define PASSING_LEAST (200 * NS_PER_US)

/* Where a CPU lists a server, or with 0 where it lists none; CPU_SERVERS: nowhere. Global, so that the verifier looks at it once. */
__noinline u32 find_server(u32 cpu, u32 number)
{
	struct reservation *r = reservation_at(cpu);

	for (u32 at = 0; r && at < CPU_SERVERS; at++) {
		if (r->server[at] == number)
			return at;
	}
	return CPU_SERVERS;
}

static __always_inline bool has_servers(u32 cpu)
{
	struct reservation *r = options.criticality ? reservation_at(cpu) : NULL;

	return r && r->count;
}

/* The server that a thread is to be served by there; 0: none. */
static __always_inline u32 server_of(struct thread *t, struct task_struct *p, u32 cpu)
{
	struct server_slot *s = p->nr_cpus_allowed == 1 ? server_at(t->server) : NULL;

	return s && s->cpu == cpu && !s->ended ? t->server : 0;
}

/* The thread is not ready any more, or served by another. */
static __always_inline void leave_server(struct thread *t)
{
	struct server_slot *s;

	if (!options.criticality || !t->served)
		return;
	s = server_at(__sync_lock_test_and_set(&t->served, 0));
	if (s)
		__sync_fetch_and_add(&s->ready, -1);
}

/* A thread is ready on a CPU. */
static __always_inline void enter_server(struct thread *t, struct task_struct *p, u32 cpu)
{
	u32 number;
	struct server_slot *s;

	if (!options.criticality)
		return;
	number = server_of(t, p, cpu);
	if (t->served == number)
		return;
	leave_server(t);
	s = server_at(number);
	if (!s)
		return;
	t->served = number;
	if (!__sync_fetch_and_add(&s->ready, 1))
		s->woke = 1;
}

/* The agent gave it a thread, which may be waiting. */
static __always_inline void join_server(u32 number)
{
	struct server_slot *s = options.criticality ? server_at(number) : NULL;
	struct reservation *r = s ? reservation_at(s->cpu) : NULL;

	if (r)
		r->joined = 1;
}

/* From now on it is promised what the agent said last, unless the agent is about to say something else. */
static __always_inline void apply_terms(struct server_slot *s)
{
	u32 version = *(volatile u32 *)&s->version;

	if (version == s->applied || version & 1)
		return;
	s->now.terms = s->next;
	if (*(volatile u32 *)&s->version == version)
		s->applied = version;
}

/* What ran since is charged, and by a server it is none of what others share. */
static __always_inline void pay(struct reservation *r, u64 now)
{
	struct server_slot *s = server_at(r->charged);
	u64 at = r->charged_at;

	if (now <= at)
		return;
	if (r->leaves && now - at > LEAVING_MOST)
		r->leaves = 0;
	if (!r->occupied && !r->leaves)
		return;
	r->charged_at = now;
	if (!s) {
		rest_ran(&r->rest, now - at, now);
		return;
	}
	s->now.used += now - at;
}

/* Brings one of a CPU's servers up to date, and the CPU's mode with it. Global, so that the verifier looks at it once. */
__noinline int update_server(u32 cpu, u32 at, u64 now)
{
	struct reservation *r = reservation_at(cpu);

	if (!r)
		return 0;
	u32 number = r->server[bounded(at, CPU_SERVERS)];
	struct server_slot *s = server_at(number);
	if (!s)
		return 0;
	/* It has ended, and its number may be another CPU's by now. */
	if (s->cpu != cpu || (s->ended && !s->ready)) {
		r->server[bounded(at, CPU_SERVERS)] = 0;
		__sync_fetch_and_add(&r->count, -1);
		return 0;
	}
	if (s->ready && s->woke) {
		s->woke = 0;
		apply_terms(s);
		server_wake(&s->now, now);
	} else if (s->ready && now >= s->now.deadline) {
		if (server_active(&s->now, r->critical))
			s->missed++;
		apply_terms(s);
		server_renew(&s->now, now);
	}
	if (s->ready && !s->ended && s->now.terms.high) {
		if (server_overruns(&s->now)) {
			server_heat(&s->now, now);
			if (!r->critical)
				r->switches++;
			r->critical = 1;
		}
		if (server_active(&s->now, true))
			r->wanted = 1;
	}
	if (s->now.hot_until > r->hot_until)
		r->hot_until = s->now.hot_until;
	return 0;
}

/* Whether it goes before those that were looked at before it. Global, as update_server() is. */
__noinline int compare_server(u32 cpu, u32 at, u64 now)
{
	struct reservation *r = reservation_at(cpu);

	if (!r)
		return 0;
	u32 number = r->server[bounded(at, CPU_SERVERS)];
	struct server_slot *s = server_at(number);
	if (!s || !s->ready)
		return 0;
	/* What was left of its budget it could not use in HI mode; were it to have that now, others would lack it. */
	if (r->resumes && !s->now.terms.high)
		server_begin(&s->now, now);
	if (s->ended) {
		r->left = 1;
	} else if (!server_active(&s->now, r->critical)) {
		r->left = 1;
		u64 deadline = s->now.deadline;
		if ((s->now.terms.high || !r->critical) && deadline < r->event_at)
			r->event_at = deadline;
	} else {
		u64 order = server_order(&s->now, r->critical);
		if (order < r->order) {
			r->order = order;
			r->best = number;
		}
	}
	return 0;
}

/* The rest wants the CPU: whether it is its turn. */
static __always_inline bool rest_goes_first(struct reservation *r, u64 now)
{
	struct server *rest = &r->rest;

	if (!rest->terms.period)
		return false;
	if (server_active(rest, true))
		return server_order(rest, r->critical) < r->order;
	if (r->best && rest_begins(rest) < r->event_at)
		r->event_at = rest_begins(rest);
	return false;
}

/*
 * Whose turn it is on a CPU: the number of a server, or 0, the rest. What runs is charged before. weighted: somebody waits there whom
 * no server serves. Under the run queue's lock. Global, as update_server() is.
 */
__noinline u32 choose(u32 cpu, bool weighted)
{
	struct reservation *r = reservation_at(cpu);
	u64 now = time_ns();

	if (!r || !r->count)
		return 0;
	pay(r, now);
	rest_owe(&r->rest, r->rest_wants, now);
	r->wanted = server_active(&r->rest, true);
	r->left = r->resumes = 0;
	r->hot_until = 0;
	r->best = 0;
	r->order = r->event_at = NEVER;
	for (u32 at = 0; at < CPU_SERVERS; at++)
		update_server(cpu, at, now);
	if (r->critical && !r->wanted) {
		if (now >= r->hot_until) {
			r->critical = 0;
			r->resumes = 1;
		} else {
			r->event_at = r->hot_until;
		}
	}
	for (u32 at = 0; at < CPU_SERVERS; at++)
		compare_server(cpu, at, now);
	u32 chosen = r->best;
	bool wants = weighted || r->left || (r->occupied && !r->charged);
	if (wants && rest_goes_first(r, now))
		chosen = 0;
	r->rest_wants = wants;
	r->chosen = chosen;
	return chosen;
}

TIMERS(budgets, MAX_CPUS);

/* Whether preempting who runs, for somebody's budget, has not made the CPU look for work. */
static __always_inline bool kicks_in_vain(struct reservation *r)
{
	return r->kicked > 1;
}

static __always_inline void kick_for_budget(struct reservation *r, u32 cpu)
{
	if (!kicks_in_vain(r))
		r->kicked++;
	scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
}

static int on_budget(void *map, u32 *key, struct timer *value)
{
	u32 cpu = *key;
	struct reservation *r = reservation_at(cpu);

	if (!r)
		return 0;
	r->timer_at = 0;
	kick_for_budget(r, cpu);
	return 0;
}

/* A CPU looks again when what runs has used its budget, or somebody gets one. Global, as update_server() is. */
__noinline int look_again(u32 cpu)
{
	struct reservation *r = reservation_at(cpu);
	u64 now = time_ns();
	struct timer *budget = bpf_map_lookup_elem(&budgets, &cpu);

	if (!r || !budget)
		return 0;
	u64 at = r->event_at;
	u64 until = NEVER;
	struct server_slot *s = server_at(r->charged);
	if (r->occupied && s)
		until = server_until(&s->now, r->critical, now);
	/* The rest need not be stopped while nobody else has a budget and wants the CPU, nor would once it has had its own. */
	else if (r->occupied && (r->best || (r->critical && server_active(&r->rest, true))))
		until = now + server_left(&r->rest);
	if (until < at)
		at = until;
	if (kicks_in_vain(r) && at < r->began_at + PASSING_LEAST)
		at = r->began_at + PASSING_LEAST;
	if (at == NEVER || at == r->timer_at)
		return 0;
	r->timer_at = at;
	bpf_timer_start(&budget->timer, at > now ? at - now : 1, 0);
	return 0;
}

/* Whether a thread's server pays for it. */
static __always_inline bool is_served(struct thread *t, struct reservation *r)
{
	struct server_slot *s = server_at(t->served);

	return s && server_active(&s->now, r->critical);
}

/* A thread runs there, or goes on. Global, as update_server() is. */
__noinline int begin_charge(struct thread *t, u32 cpu)
{
	struct reservation *r = reservation_at(cpu);
	u64 now = time_ns();

	if (!t || !r)
		return 0;
	if (!r->count) {
		t->paid = 0;
		return 0;
	}
	pay(r, now);
	r->leaves = 0;
	r->occupied = 1;
	r->charged_at = r->began_at = now;
	t->paid = is_served(t, r);
	r->charged = t->paid ? t->served : 0;
	look_again(cpu);
	return 0;
}

/* As begin_charge(). Nobody takes the CPU from who is served for being more urgent. */
static __always_inline void begin_serving(struct thread *t, u32 cpu)
{
	struct reservation *r = options.criticality ? reservation_at(cpu) : NULL;
	struct cpu_slot *slot = cpu_at(cpu);

	if (!r || !slot || !(r->count || t->paid))
		return;
	begin_charge(t, cpu);
	if (r->charged)
		slot->deadline = ORDER_NONE;
}

/* Who runs there leaves. */
static __always_inline void end_charge(u32 cpu)
{
	struct reservation *r = options.criticality ? reservation_at(cpu) : NULL;

	if (!r || !r->count)
		return;
	pay(r, time_ns());
	r->leaves = r->occupied;
	r->occupied = 0;
}

/* The CPU idles: who left it has left. */
static __always_inline void idle_charge(u32 cpu)
{
	struct reservation *r = options.criticality ? reservation_at(cpu) : NULL;

	if (!r || !r->leaves)
		return;
	pay(r, time_ns());
	r->leaves = 0;
}

/* Whether somebody waits whom no server serves. */
static __always_inline bool weighted_waits(u32 cpu)
{
	struct domain *d = domain_at(domain_index(cpu));

	return d && (d->queued || first_order(pinned_queue(cpu)));
}

#endif
