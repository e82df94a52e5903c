/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The policy headers as a native library, for tests: one function for each of theirs. The same source that the
 * kernel runs.
 */
#include "fair.h"
#include "limit.h"
#include "share.h"
#include "urgency.h"

u64 quell_fair_rate(u64 cpus, u64 load) { return fair_rate(cpus, load); }
u64 quell_fair_advance(u64 ns, u64 rate) { return fair_advance(ns, rate); }
s64 quell_fair_earned(u64 advance, u64 ns, u64 weight) { return fair_earned(advance, ns, weight); }
s64 quell_fair_spent(u64 ns) { return fair_spent(ns); }
s64 quell_fair_bounded(s64 credit) { return fair_bounded(credit); }
s64 quell_fair_bounded_pool(s64 credit, u64 threads) { return fair_bounded_pool(credit, threads); }
bool quell_fair_depleted(s64 pool, bool was) { return fair_depleted(pool, was); }
s64 quell_fair_lag(s64 credit, u64 weight) { return fair_lag(credit, weight); }
u64 quell_fair_position(u64 clock, s64 lag) { return fair_position(clock, lag); }
bool quell_fair_overdue(s64 lag) { return fair_overdue(lag); }
u64 quell_fair_starved_order(u64 ready) { return fair_starved_order(ready); }
bool quell_fair_starved(u64 order, u64 now) { return fair_starved(order, now); }
u64 quell_fair_slice(u64 cpus, u64 load, u64 weight) { return fair_slice(cpus, load, weight); }
u64 quell_fair_entitled_slice(s64 pool) { return fair_entitled_slice(pool); }
u64 quell_fair_weight(u64 group, u64 own, u64 active) { return fair_weight(group, own, active); }
u64 quell_share_time(u64 ns, u32 rate) { return share_time(ns, rate); }
s64 quell_share_cpu_time(s64 time, u32 rate) { return share_cpu_time(time, rate); }
u32 quell_share_rate(u64 weight, u64 clock_rate) { return share_rate(weight, clock_rate); }
s64 quell_share_bounding(u64 served, u64 now) { return share_bounding(served, now); }
u64 quell_share_half(u32 rate) { return share_half(rate); }
bool quell_share_overdue(s64 lag, u32 rate) { return share_overdue(lag, rate); }
u64 quell_share_order(u64 served, u32 rate) { return share_order(served, rate); }
s64 quell_share_lag(u64 order, u64 now) { return share_lag(order, now); }
u64 quell_share_slice(u64 slice, u64 cpus) { return share_slice(slice, cpus); }
s64 quell_share_ahead(u64 cpus) { return share_ahead(cpus); }
u64 quell_share_entitled_slice(s64 ahead, u64 cpus, u32 rate) { return share_entitled_slice(ahead, cpus, rate); }
u64 quell_limit_periods(u64 began, u64 period, u64 now) { return limit_periods(began, period, now); }
s64 quell_limit_added(s64 left, u64 periods, u64 quota, u64 burst)
{
	return limit_added(left, periods, quota, burst);
}
u64 quell_limit_until(s64 left, u64 began, u64 period, u64 quota)
{
	return limit_until(left, began, period, quota);
}
u64 quell_limit_step(s64 left, u64 quota, u32 running) { return limit_step(left, quota, running); }
u32 quell_limit_pace(u32 pace, u64 ran, u64 had) { return limit_pace(pace, ran, had); }
u64 quell_limit_ran(u32 pace, u64 had) { return limit_ran(pace, had); }
u64 quell_urgency_since(u64 age, u64 ready) { return urgency_since(age, ready); }
u64 quell_urgency_age(u64 since, u64 ran, u64 now) { return urgency_age(since, ran, now); }
u64 quell_urgency_latency(u64 set, u64 usual, u64 present, u64 stretch)
{
	return urgency_latency(set, usual, present, stretch);
}
u64 quell_urgency_allowance(u64 request, u64 stretch) { return urgency_allowance(request, stretch); }
u64 quell_urgency_request(u64 request, u64 spent, u64 seen)
{
	return urgency_request(request, spent, seen);
}
u64 quell_urgency_usual(u64 usual, u64 ran) { return urgency_usual(usual, ran); }
bool quell_urgency_preempts(u64 deadline, u64 running, u64 margin)
{
	return urgency_preempts(deadline, running, margin);
}
