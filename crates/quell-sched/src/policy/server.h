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
 * Units:   ns. Periods are at most SERVER_PERIOD_MOST, so that the product of two times fits into 64 bits.
 */
#ifndef QUELL_POLICY_SERVER_H
#define QUELL_POLICY_SERVER_H

#include "types.h"

#define SERVER_PERIOD_MOST (4 * NS_PER_S)

/* What a server is promised. */
struct server_terms {
	u64 period;
	u64 optimistic;	 /* budget in LO mode */
	u64 pessimistic; /* in HI mode; of low criticality: the same */
	u64 shortened;	 /* from a period's beginning to the virtual deadline; of low criticality: the period */
	u64 part;	 /* of the optimistic budget: what has a virtual deadline of its own; 0: all of it */
	u32 high;	 /* its criticality */
	u32 temperature; /* for how many periods its CPU stays in HI mode after it needed that */
};

struct server {
	struct server_terms terms;
	u64 began;	/* its present period; of the rest: see rest_ran() */
	u64 usual_at;	/* the last one that began with an optimistic budget: since then it is used */
	u64 deadline;	/* when that ends */
	u64 virtual_deadline;
	u64 allowed;	/* what it may use at most until then */
	u64 used;	/* CPU time since usual_at */
	u64 carried;	/* of that, what it had used when its present period began */
	u64 hot_until;	/* its CPU stays in HI mode */
};

/* A period begins. */
static inline void server_begin(struct server *s, u64 now)
{
	s->began = s->usual_at = now;
	s->deadline = now + s->terms.period;
	s->virtual_deadline = now + s->terms.shortened;
	s->allowed = s->terms.pessimistic;
	s->used = s->carried = 0;
}

/* The period is over, and it goes on wanting CPU time. A period begins where the last one ended, unless that is long ago. */
static inline void server_renew(struct server *s, u64 now)
{
	server_begin(s, now - s->deadline < s->terms.period ? s->deadline : now);
}

/* It wants CPU time again. */
static inline void server_wake(struct server *s, u64 now)
{
	const struct server_terms *terms = &s->terms;
	bool ended = now >= s->deadline;
	/* Whether it used less than its part. Products only of what is no more than a period. */
	bool usual = now - s->usual_at >= terms->period ||
		     (s->used < terms->optimistic && s->used * terms->period < terms->optimistic * (now - s->usual_at));
	bool most = !ended && (s->used - s->carried) * terms->period < terms->pessimistic * (now - s->began);

	if (ended || (usual && most)) {
		server_begin(s, now);
		return;
	}
	if (most) {
		s->began = now;
		s->deadline = now + terms->period;
		s->carried = s->used;
		s->allowed = s->used + terms->pessimistic;
	} else {
		u64 allowed = s->used + terms->pessimistic * (s->deadline - now) / (terms->period ?: 1);
		if (s->allowed > allowed)
			s->allowed = allowed;
	}
	if (s->used < terms->optimistic) {
		u64 due = now + (terms->optimistic - s->used) * terms->shortened / (terms->optimistic ?: 1);
		/* In parts not sooner than before: those that it had ahead of their time would count twice. */
		if (!terms->part || due > s->virtual_deadline)
			s->virtual_deadline = due;
		/* By terms that changed since it began, either may be later. */
		if (s->virtual_deadline > s->deadline)
			s->virtual_deadline = s->deadline;
	}
}

/* CPU time that it may have yet in its period. */
static inline u64 server_left(const struct server *s)
{
	return s->used < s->allowed ? s->allowed - s->used : 0;
}

/* Whether it has a budget; critical: its CPU is in HI mode. */
static inline bool server_active(const struct server *s, bool critical)
{
	return s->used < s->allowed && (s->terms.high || !critical);
}

/* Whether it, wanting CPU time, needs HI mode. */
static inline bool server_overruns(const struct server *s)
{
	return s->terms.high && s->terms.optimistic < s->terms.pessimistic && s->used >= s->terms.optimistic &&
	       s->used < s->allowed;
}

/* It needs HI mode. */
static inline void server_heat(struct server *s, u64 now)
{
	s->hot_until = now + s->terms.temperature * s->terms.period;
}

/* What comes after the present part of its optimistic budget, of which something is left. */
static inline u64 server_later(const struct server *s)
{
	u64 left = s->terms.optimistic - s->used;

	return s->terms.part ? (left - 1) / s->terms.part * s->terms.part : 0;
}

/* Among active ones the least goes first. */
static inline u64 server_order(const struct server *s, bool critical)
{
	u64 later;

	if (critical || s->used >= s->terms.optimistic)
		return s->deadline;
	later = server_later(s) * s->terms.shortened / (s->terms.optimistic ?: 1);
	return later < s->virtual_deadline ? s->virtual_deadline - later : 0;
}

/* If it runs from now on: when it has to be looked at again. */
static inline u64 server_until(const struct server *s, bool critical, u64 now)
{
	u64 budget = s->terms.high && !critical && s->used < s->terms.optimistic ? s->terms.optimistic - server_later(s) : s->allowed;
	u64 until = now + (s->used < budget ? budget - s->used : 0);

	return until < s->deadline ? until : s->deadline;
}

/*
 * All to whom nothing is promised, taken together (the rest): a server whose work comes only when it is owed. Owed is its part of the time for
 * which it wants the CPU, less what it got, be it by the way, while nobody else wanted that. Once a whole budget is owed, a
 * period begins. So they keep nobody waiting whom something is promised to before they would go short; and periods begin no sooner
 * after one another than tests provide for.
 */

/* It ran. began: since when its part of the time is owed. */
static inline void rest_ran(struct server *rest, u64 ran, u64 now)
{
	u64 paid = ran * rest->terms.period / (rest->terms.pessimistic ?: 1);

	rest->used += ran;
	rest->began = now - rest->began > paid ? rest->began + paid : now;
}

/* Brings it up to date. wanted: it has wanted the CPU since that was done last. */
static inline void rest_owe(struct server *rest, bool wanted, u64 now)
{
	u64 period = rest->terms.period;

	if (!wanted) {
		rest->began = now;
		rest->allowed = 0;
	} else if (!server_active(rest, true) && now - rest->began >= period) {
		server_begin(rest, now);
		rest->began = now - period;
	}
}

/* When a period begins if it goes on wanting the CPU and does not get it. */
static inline u64 rest_begins(const struct server *rest)
{
	return rest->began + rest->terms.period;
}

#endif
