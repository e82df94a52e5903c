/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Servers: CPU time that is guaranteed on one CPU, in every period.
 *
 * Problem: A server must get its budget in every period whatever other servers and tasks do, and must not
 *          take what other servers were promised. A server needs far more in the worst case than usually.
 * How:     Mixed criticality with virtual deadlines (Akita, sections 3.2 to 3.5; EDF-VD: Baruah et al., ESA
 *          2011). In LO mode of a CPU each server has its optimistic budget, and servers of high criticality
 *          have an earlier, virtual deadline. HI mode begins when a server of high criticality used up its
 *          optimistic budget and wants more: then only servers of high criticality have budgets, the
 *          pessimistic ones, and their true deadlines hold.
 * Wakeups: The paper lets periods pass whether a server sleeps or not. A server that wakes late in its period
 *          with its whole budget would take what other servers were promised, since admission tests assume
 *          the work to be there when a period begins. Our rule is that of constant-bandwidth servers (Abeni
 *          and Buttazzo, RTSS 1998): a server that used less than its part of the period so far begins a new
 *          period when it wakes; a server that used more goes on with no more than its part of the rest. For
 *          high criticality this holds for both budgets: a server that used more than its optimistic part and
 *          less than its pessimistic part begins a new period with what is left of its optimistic budget.
 *          Else a burst late in a period would wait for the next period.
 * Parts:   In LO mode a server of high criticality that needs little of its budget would wait for all servers
 *          with deadlines earlier than that of its whole budget. So its optimistic budget comes in equal
 *          chunks, each with its part of the time to the virtual deadline: the utilization is the same, so an
 *          admitted set still fits. Ours, after Baruah et al., Proportionate Progress (Algorithmica, 1996).
 * Units:   ns. Periods are SERVER_PERIOD_MAX at most, so that the product of two times fits into 64 bits.
 */
#ifndef QUELL_POLICY_SERVER_H
#define QUELL_POLICY_SERVER_H

#include "types.h"

#define SERVER_PERIOD_MAX (4 * NS_PER_S)

/* What a server is promised. */
struct server_terms {
	u64 period_ns;
	u64 budget_lo_ns; /* optimistic budget, in LO mode */
	u64 budget_hi_ns; /* pessimistic budget, in HI mode; low criticality: budget_lo_ns */
	/* from the begin of a period to the virtual deadline; low criticality: the period */
	u64 rel_vdeadline_ns;
	u64 chunk_ns; /* part of budget_lo_ns with a virtual deadline of its own; 0: all of it */
	u32 hi_crit; /* bool: high criticality */
	u32 hi_periods; /* for how many periods the CPU stays in HI mode after the server needed it */
};

struct server {
	struct server_terms terms;
	u64 period_start_ns; /* begin of the present period; of best effort: see best_effort_charge() */
	u64 budget_lo_since_ns; /* begin of the last period that began with a whole optimistic budget */
	u64 deadline_ns; /* end of the present period */
	u64 vdeadline_ns;
	u64 runtime_max_ns; /* what used_ns may reach until then */
	u64 used_ns; /* CPU time used since budget_lo_since_ns */
	u64 carried_ns; /* used_ns when the present period began */
	u64 hi_until_ns; /* the server keeps its CPU in HI mode until then */
};

/* Begins a period with whole budgets. */
static inline void server_start_period(struct server *s, u64 now)
{
	s->period_start_ns = s->budget_lo_since_ns = now;
	s->deadline_ns = now + s->terms.period_ns;
	s->vdeadline_ns = now + s->terms.rel_vdeadline_ns;
	s->runtime_max_ns = s->terms.budget_hi_ns;
	s->used_ns = s->carried_ns = 0;
}

/*
 * The period of a server that stays ready has ended: the next one begins where it ended, unless that is long
 * ago.
 */
static inline void server_next_period(struct server *s, u64 now)
{
	server_start_period(s, now - s->deadline_ns < s->terms.period_ns ? s->deadline_ns : now);
}

/* A server becomes ready: begins a period, or goes on with what is left of the present one. */
static inline void server_wakeup(struct server *s, u64 now)
{
	const struct server_terms *terms = &s->terms;
	bool ended = now >= s->deadline_ns;
	/* Less than its part of the period so far. Products only of times within a period. */
	bool below_lo = now - s->budget_lo_since_ns >= terms->period_ns ||
			(s->used_ns < terms->budget_lo_ns &&
			 s->used_ns * terms->period_ns < terms->budget_lo_ns * (now - s->budget_lo_since_ns));
	bool below_hi = !ended && (s->used_ns - s->carried_ns) * terms->period_ns <
					  terms->budget_hi_ns * (now - s->period_start_ns);

	if (ended || (below_lo && below_hi)) {
		server_start_period(s, now);
		return;
	}
	if (below_hi) {
		s->period_start_ns = now;
		s->deadline_ns = now + terms->period_ns;
		s->carried_ns = s->used_ns;
		s->runtime_max_ns = s->used_ns + terms->budget_hi_ns;
	} else {
		u64 allowed = s->used_ns +
			      terms->budget_hi_ns * (s->deadline_ns - now) / (terms->period_ns ?: 1);
		if (s->runtime_max_ns > allowed)
			s->runtime_max_ns = allowed;
	}
	if (s->used_ns < terms->budget_lo_ns) {
		u64 vdeadline = now + (terms->budget_lo_ns - s->used_ns) * terms->rel_vdeadline_ns /
					      (terms->budget_lo_ns ?: 1);
		/*
		 * With chunks not earlier than before: chunks that the server used ahead of time would count
		 * twice.
		 */
		if (!terms->chunk_ns || vdeadline > s->vdeadline_ns)
			s->vdeadline_ns = vdeadline;
		/*
		 * The terms may have changed since the period began, which can make either deadline the later
		 * one.
		 */
		if (s->vdeadline_ns > s->deadline_ns)
			s->vdeadline_ns = s->deadline_ns;
	}
}

/* The CPU time that the server may still use in its period. */
static inline u64 server_runtime_left(const struct server *s)
{
	return s->used_ns < s->runtime_max_ns ? s->runtime_max_ns - s->used_ns : 0;
}

/* True if the server has budget. hi_mode: the CPU is in HI mode. */
static inline bool server_has_budget(const struct server *s, bool hi_mode)
{
	return s->used_ns < s->runtime_max_ns && (s->terms.hi_crit || !hi_mode);
}

/* True if the server, being ready, needs HI mode. */
static inline bool server_overruns(const struct server *s)
{
	return s->terms.hi_crit && s->terms.budget_lo_ns < s->terms.budget_hi_ns &&
	       s->used_ns >= s->terms.budget_lo_ns && s->used_ns < s->runtime_max_ns;
}

/* Extends HI mode for a server that needs it. */
static inline void server_extend_hi_mode(struct server *s, u64 now)
{
	s->hi_until_ns = now + s->terms.hi_periods * s->terms.period_ns;
}

/* The rest of the optimistic budget beyond the present chunk. Call only while there is such a rest. */
static inline u64 server_later_chunks(const struct server *s)
{
	u64 runtime_left = s->terms.budget_lo_ns - s->used_ns;

	return s->terms.chunk_ns ? (runtime_left - 1) / s->terms.chunk_ns * s->terms.chunk_ns : 0;
}

/* The deadline by which servers with budget are ordered. */
static inline u64 server_current_deadline(const struct server *s, bool hi_mode)
{
	u64 later_chunks;

	if (hi_mode || s->used_ns >= s->terms.budget_lo_ns)
		return s->deadline_ns;
	later_chunks = server_later_chunks(s) * s->terms.rel_vdeadline_ns / (s->terms.budget_lo_ns ?: 1);
	return later_chunks < s->vdeadline_ns ? s->vdeadline_ns - later_chunks : 0;
}

/* When the CPU has to look again at the server, if the server runs from now on. */
static inline u64 server_next_event(const struct server *s, bool hi_mode, u64 now)
{
	u64 budget = s->terms.hi_crit && !hi_mode && s->used_ns < s->terms.budget_lo_ns
			     ? s->terms.budget_lo_ns - server_later_chunks(s)
			     : s->runtime_max_ns;
	u64 until = now + (s->used_ns < budget ? budget - s->used_ns : 0);

	return until < s->deadline_ns ? until : s->deadline_ns;
}

/*
 * Best effort: all tasks without a reservation, taken together, as a server whose budget is due only when it
 * is owed. Owed is its part of the time for which its tasks want the CPU, less what they got, also while no
 * server wanted the CPU. Once a whole budget is owed, a period begins. So best effort keeps no server waiting
 * before its own tasks would go short, and its periods begin no sooner after one another than the admission
 * tests assume.
 */

/* Best-effort tasks ran. period_start_ns: since when their part of the time is owed. */
static inline void best_effort_charge(struct server *be, u64 ran, u64 now)
{
	u64 credit = ran * be->terms.period_ns / (be->terms.budget_hi_ns ?: 1);

	be->used_ns += ran;
	be->period_start_ns = now - be->period_start_ns > credit ? be->period_start_ns + credit : now;
}

/* Brings best effort up to date. wants: its tasks have wanted the CPU since the last call. */
static inline void best_effort_update(struct server *be, bool wants, u64 now)
{
	u64 period = be->terms.period_ns;

	if (!wants) {
		be->period_start_ns = now;
		be->runtime_max_ns = 0;
	} else if (!server_has_budget(be, true) && now - be->period_start_ns >= period) {
		server_start_period(be, now);
		be->period_start_ns = now - period;
	}
}

/* When the next period begins, if best-effort tasks want the CPU until then and do not get it. */
static inline u64 best_effort_next_period(const struct server *be)
{
	return be->period_start_ns + be->terms.period_ns;
}

#endif
