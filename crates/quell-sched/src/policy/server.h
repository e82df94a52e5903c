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
 *          begins a new one when it wakes; who used more goes on with no more than its part of the rest.
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
	u32 high;	 /* its criticality */
	u32 temperature; /* for how many periods its CPU stays in HI mode after it needed that */
};

struct server {
	struct server_terms terms;
	u64 began;	/* its present period */
	u64 deadline;	/* when that ends */
	u64 virtual_deadline;
	u64 allowed;	/* CPU time in it at most */
	u64 used;
	u64 hot_until;	/* its CPU stays in HI mode */
};

/* A period begins. */
static inline void server_begin(struct server *s, u64 now)
{
	s->began = now;
	s->deadline = now + s->terms.period;
	s->virtual_deadline = now + s->terms.shortened;
	s->allowed = s->terms.pessimistic;
	s->used = 0;
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

	if (now >= s->deadline || s->used * terms->period < terms->optimistic * (now - s->began)) {
		server_begin(s, now);
		return;
	}
	u64 most = s->used + terms->pessimistic * (s->deadline - now) / (terms->period ?: 1);
	if (s->allowed > most)
		s->allowed = most;
	if (s->used < terms->optimistic) {
		u64 due = now + (terms->optimistic - s->used) * terms->shortened / (terms->optimistic ?: 1);
		s->virtual_deadline = due < s->deadline ? due : s->deadline;
	}
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

/* Among active ones the least goes first. */
static inline u64 server_order(const struct server *s, bool critical)
{
	return critical || s->used >= s->terms.optimistic ? s->deadline : s->virtual_deadline;
}

/*
 * CPU time, at most, that it may want before others whose deadline is then: what is left of its budget, and what comes with the
 * periods that begin until then. ready: it wants CPU time now.
 */
static inline u64 server_claim(const struct server *s, bool ready, bool critical, u64 now, u64 until)
{
	const struct server_terms *terms = &s->terms;
	u64 budget = critical ? terms->pessimistic : terms->optimistic, from = now, claim = 0;

	/* In HI mode one of low criticality begins a period when the CPU comes back from it. */
	if (ready && (terms->high || !critical)) {
		u64 due = server_order(s, critical);
		if (due >= until)
			return 0;
		claim = s->used < budget ? budget - s->used : 0;
		from = due > now ? due : now;
	}
	if (until <= from)
		return claim;
	/* With a shorter deadline than the period it may want a budget more than its part of the time. */
	if (!critical && until - from >= terms->shortened)
		claim += budget;
	return claim + budget * (until - from) / (terms->period ?: 1);
}

/* If it runs from now on: when it has to be looked at again. */
static inline u64 server_until(const struct server *s, bool critical, u64 now)
{
	u64 budget = s->terms.high && !critical && s->used < s->terms.optimistic ? s->terms.optimistic : s->allowed;
	u64 until = now + (s->used < budget ? budget - s->used : 0);

	return until < s->deadline ? until : s->deadline;
}

#endif
