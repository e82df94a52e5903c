/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Servers: CPU time that is guaranteed on one CPU, in every period.
 *
 * Problem: who is promised a budget in each period must get it whatever others do, and must not take what others were promised;
 *          and what one needs at the worst is far more than what it usually needs.
 * How:     mixed criticality with virtual deadlines (Akita, sections 3.2 to 3.5; EDF-VD: Baruah et al., ESA 2011). A CPU is in LO
 *          mode, where each server has its optimistic budget and those of high criticality an earlier, virtual deadline; or in HI
 *          mode, after one of high criticality used that up and wanted more: then only these have budgets, the
 *          pessimistic ones, and their true deadlines.
 * Wakeups: the paper lets periods pass whether a server sleeps or not. One that woke late in its period with all of its
 *          budget would take what others were promised, since tests take work to be there when a period begins. Ours is the rule
 *          of constant-bandwidth servers (Abeni and Buttazzo, RTSS 1998): who used less than its part of the period so far
 *          begins a new one when it wakes; who used more goes on with no more than its part of the rest. Of high criticality, that
 *          goes for both budgets: who used more than its optimistic part and less than its pessimistic one
 *          begins a new period with what it has left of its optimistic budget. Else a burst late in a period would wait for the next.
 * Parts:   one of high criticality that needs little of its budget would wait in LO mode for all with earlier deadlines than its whole budget
 *          has. So that budget is had in equal parts, each with its part of the time to the virtual deadline: as much in as much time, so what
 *          fits by utilization still does. Ours, after Baruah et al., Proportionate Progress (Algorithmica, 1996).
 * Units:   ns. Periods are at most SERVER_PERIOD_MAX, so that the product of two times fits into 64 bits.
 */
#ifndef QUELL_POLICY_SERVER_H
#define QUELL_POLICY_SERVER_H

#include "types.h"

#define SERVER_PERIOD_MAX (4 * NS_PER_S)

/* What a server is promised. */
struct server_terms {
	u64 period_ns;
	u64 budget_lo_ns;	 /* budget in LO mode */
	u64 budget_hi_ns; /* in HI mode; of low criticality: the same */
	u64 rel_vdeadline_ns;	 /* from a period's beginning to the virtual deadline; of low criticality: the period */
	u64 chunk_ns;	 /* of the optimistic budget: what has a virtual deadline of its own; 0: all of it */
	u32 hi_crit;	 /* its criticality */
	u32 hi_periods; /* for how many periods its CPU stays in HI mode after it needed that */
};

struct server {
	struct server_terms terms;
	u64 period_start_ns;	/* its present period; of the rest: see rest_ran() */
	u64 budget_lo_since_ns;	/* the last one that began with an optimistic budget: since then it is used */
	u64 deadline_ns;	/* when that ends */
	u64 vdeadline_ns;
	u64 runtime_max_ns;	/* what it may use at most until then */
	u64 used_ns;	/* CPU time since usual_at */
	u64 carried_ns;	/* of that, what it had used when its present period began */
	u64 hi_until_ns;	/* its CPU stays in HI mode */
};

/* A period begins. */
static inline void server_start_period(struct server *s, u64 now)
{
	s->period_start_ns = s->budget_lo_since_ns = now;
	s->deadline_ns = now + s->terms.period_ns;
	s->vdeadline_ns = now + s->terms.rel_vdeadline_ns;
	s->runtime_max_ns = s->terms.budget_hi_ns;
	s->used_ns = s->carried_ns = 0;
}

/* The period is over, and it goes on wanting CPU time. A period begins where the last one ended, unless that is long ago. */
static inline void server_next_period(struct server *s, u64 now)
{
	server_start_period(s, now - s->deadline_ns < s->terms.period_ns ? s->deadline_ns : now);
}

/* It wants CPU time again. */
static inline void server_wakeup(struct server *s, u64 now)
{
	const struct server_terms *terms = &s->terms;
	bool ended = now >= s->deadline_ns;
	/* Whether it used less than its part. Products only of what is no more than a period. */
	bool below_lo = now - s->budget_lo_since_ns >= terms->period_ns ||
		     (s->used_ns < terms->budget_lo_ns && s->used_ns * terms->period_ns < terms->budget_lo_ns * (now - s->budget_lo_since_ns));
	bool below_hi = !ended && (s->used_ns - s->carried_ns) * terms->period_ns < terms->budget_hi_ns * (now - s->period_start_ns);

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
		u64 allowed = s->used_ns + terms->budget_hi_ns * (s->deadline_ns - now) / (terms->period_ns ?: 1);
		if (s->runtime_max_ns > allowed)
			s->runtime_max_ns = allowed;
	}
	if (s->used_ns < terms->budget_lo_ns) {
		u64 vdeadline = now + (terms->budget_lo_ns - s->used_ns) * terms->rel_vdeadline_ns / (terms->budget_lo_ns ?: 1);
		/* In parts not sooner than before: those that it had ahead of their time would count twice. */
		if (!terms->chunk_ns || vdeadline > s->vdeadline_ns)
			s->vdeadline_ns = vdeadline;
		/* By terms that changed since it began, either may be later. */
		if (s->vdeadline_ns > s->deadline_ns)
			s->vdeadline_ns = s->deadline_ns;
	}
}

/* CPU time that it may have yet in its period. */
static inline u64 server_runtime_left(const struct server *s)
{
	return s->used_ns < s->runtime_max_ns ? s->runtime_max_ns - s->used_ns : 0;
}

/* Whether it has a budget; critical: its CPU is in HI mode. */
static inline bool server_has_budget(const struct server *s, bool hi_mode)
{
	return s->used_ns < s->runtime_max_ns && (s->terms.hi_crit || !hi_mode);
}

/* Whether it, wanting CPU time, needs HI mode. */
static inline bool server_overruns(const struct server *s)
{
	return s->terms.hi_crit && s->terms.budget_lo_ns < s->terms.budget_hi_ns && s->used_ns >= s->terms.budget_lo_ns &&
	       s->used_ns < s->runtime_max_ns;
}

/* It needs HI mode. */
static inline void server_extend_hi_mode(struct server *s, u64 now)
{
	s->hi_until_ns = now + s->terms.hi_periods * s->terms.period_ns;
}

/* What comes after the present part of its optimistic budget, of which something is left. */
static inline u64 server_later_chunks(const struct server *s)
{
	u64 runtime_left = s->terms.budget_lo_ns - s->used_ns;

	return s->terms.chunk_ns ? (runtime_left - 1) / s->terms.chunk_ns * s->terms.chunk_ns : 0;
}

/* Among active ones the least goes first. */
static inline u64 server_current_deadline(const struct server *s, bool hi_mode)
{
	u64 later_chunks;

	if (hi_mode || s->used_ns >= s->terms.budget_lo_ns)
		return s->deadline_ns;
	later_chunks = server_later_chunks(s) * s->terms.rel_vdeadline_ns / (s->terms.budget_lo_ns ?: 1);
	return later_chunks < s->vdeadline_ns ? s->vdeadline_ns - later_chunks : 0;
}

/* If it runs from now on: when it has to be looked at again. */
static inline u64 server_next_event(const struct server *s, bool hi_mode, u64 now)
{
	u64 budget = s->terms.hi_crit && !hi_mode && s->used_ns < s->terms.budget_lo_ns ? s->terms.budget_lo_ns - server_later_chunks(s) : s->runtime_max_ns;
	u64 until = now + (s->used_ns < budget ? budget - s->used_ns : 0);

	return until < s->deadline_ns ? until : s->deadline_ns;
}

/*
 * All to whom nothing is promised, taken together (the rest): a server whose work comes only when it is owed. Owed is its part of the time for
 * which it wants the CPU, less what it got, be it by the way, while nobody else wanted that. Once a whole budget is owed, a
 * period begins. So they keep nobody waiting whom something is promised to before they would go short; and periods begin no sooner
 * after one another than tests provide for.
 */

/* It ran. began: since when its part of the time is owed. */
static inline void best_effort_charge(struct server *be, u64 ran, u64 now)
{
	u64 credit = ran * be->terms.period_ns / (be->terms.budget_hi_ns ?: 1);

	be->used_ns += ran;
	be->period_start_ns = now - be->period_start_ns > credit ? be->period_start_ns + credit : now;
}

/* Brings it up to date. wanted: it has wanted the CPU since that was done last. */
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

/* When a period begins if it goes on wanting the CPU and does not get it. */
static inline u64 best_effort_next_period(const struct server *be)
{
	return be->period_start_ns + be->terms.period_ns;
}

#endif
