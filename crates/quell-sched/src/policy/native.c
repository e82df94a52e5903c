/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The policy headers as a native library, for tests: one function for each of theirs, from the same source
 * that the kernel runs.
 */
#include "bandwidth.h"
#include "deadline.h"
#include "share.h"

u64 quell_fair_vtime(u64 ns, u64 weight) { return fair_vtime(ns, weight); }
s64 quell_fair_clamp_lag(s64 lag, u64 weight) { return fair_clamp_lag(lag, weight); }
s64 quell_fair_wakeup_lag(s64 lag, u64 weight) { return fair_wakeup_lag(lag, weight); }
s64 quell_fair_weighted_lag(s64 lag, u64 weight) { return fair_weighted_lag(lag, weight); }
s64 quell_fair_lag_repaid(s64 owed, u64 load, u64 advance) { return fair_lag_repaid(owed, load, advance); }
s64 quell_fair_vclock_pull(s64 lag, u64 ran) { return fair_vclock_pull(lag, ran); }
u64 quell_fair_pinned_behind(s64 lag, s64 vclock_advance, u64 ran, u64 load)
{
	return fair_pinned_behind(lag, vclock_advance, ran, load);
}
s64 quell_fair_avg_shift(s64 by, s64 weight, u64 load) { return fair_avg_shift(by, weight, load); }
u64 quell_fair_member_weight(u64 group, u64 member, u64 active)
{
	return fair_member_weight(group, member, active);
}
bool quell_deadline_before(u64 a, u64 b) { return deadline_before(a, b); }
u64 quell_deadline_share(s64 lag, u64 delay, u64 scale, u64 now)
{
	return deadline_share(lag, delay, scale, now);
}
s64 quell_deadline_ahead_max(u64 work) { return deadline_ahead_max(work); }
s64 quell_deadline_slice_lag(u64 weight) { return deadline_slice_lag(weight); }
u64 quell_deadline_request_start(u64 woke_at, s64 lag, u64 work, u64 scale, u64 now)
{
	return deadline_request_start(woke_at, lag, work, scale, now);
}
u64 quell_deadline_request(u64 otherwise, u64 start, u64 work, u64 age, u64 ran, u64 burst_avg, bool endless)
{
	return deadline_request(otherwise, start, work, age, ran, burst_avg, endless);
}
u64 quell_deadline_chain_ran(u64 busy, u64 ran) { return deadline_chain_ran(busy, ran); }
u64 quell_deadline_chain_slept(u64 busy, u64 slept) { return deadline_chain_slept(busy, slept); }
bool quell_deadline_chain_endless(u64 busy, u64 work) { return deadline_chain_endless(busy, work); }
u64 quell_deadline_light_run(s64 lag, u64 weight, u64 burst_avg)
{
	return deadline_light_run(lag, weight, burst_avg);
}
u64 quell_deadline_light(u64 woke_at, u64 burst_avg) { return deadline_light(woke_at, burst_avg); }
bool quell_deadline_passes_messages(u64 burst_avg, u64 ran)
{
	return deadline_passes_messages(burst_avg, ran);
}
u64 quell_deadline_message(u64 woke_at, s64 lag, u64 scale, u64 now)
{
	return deadline_message(woke_at, lag, scale, now);
}
u64 quell_deadline_lag_scale(u64 load, u64 cpus) { return deadline_lag_scale(load, cpus); }
u64 quell_deadline_pace(u64 weight, u64 scale) { return deadline_pace(weight, scale); }
u64 quell_deadline_running(u64 deadline, u64 until, u64 pace, u64 now)
{
	return deadline_running(deadline, until, pace, now);
}
u64 quell_share_service_time(u64 ns, u32 rate) { return share_service_time(ns, rate); }
u32 quell_share_default_rate(u64 weight, u64 cpus, u64 load)
{
	return share_default_rate(weight, cpus, load);
}
s64 quell_share_served_clamp(u64 served_until, u64 now) { return share_served_clamp(served_until, now); }
u64 quell_share_half_slice(u32 rate) { return share_half_slice(rate); }
u64 quell_share_vtime(u64 served_until, u32 rate) { return share_vtime(served_until, rate); }
u64 quell_share_deadline_pace(u32 rate) { return share_deadline_pace(rate); }
bool quell_share_is_urgent(s64 lag, u64 cpus) { return share_is_urgent(lag, cpus); }
bool quell_share_is_light(u32 rate, s64 lag) { return share_is_light(rate, lag); }
u64 quell_bw_periods(u64 period_start, u64 period, u64 now) { return bw_periods(period_start, period, now); }
s64 quell_bw_refill(s64 runtime, u64 periods, u64 quota, u64 burst)
{
	return bw_refill(runtime, periods, quota, burst);
}
u64 quell_bw_throttled_until(s64 runtime, u64 period_start, u64 period, u64 quota)
{
	return bw_throttled_until(runtime, period_start, period, quota);
}
u64 quell_bw_slice(s64 runtime, u64 quota, u32 nr_running) { return bw_slice(runtime, quota, nr_running); }
u32 quell_bw_exec_ratio(u32 ratio, u64 ran, u64 elapsed) { return bw_exec_ratio(ratio, ran, elapsed); }
u64 quell_bw_exec_estimate(u32 ratio, u64 elapsed) { return bw_exec_estimate(ratio, elapsed); }
u64 quell_urgency_age(u64 since, u64 ran, u64 now) { return urgency_age(since, ran, now); }
u64 quell_urgency_age_credit(u64 age, u64 work) { return urgency_age_credit(age, work); }
u64 quell_urgency_work(u64 latency_set, u64 burst_avg, u64 request_avg, u64 stretch)
{
	return urgency_work(latency_set, burst_avg, request_avg, stretch);
}
u64 quell_urgency_request_avg(u64 avg, u64 spent, u64 nr_seen)
{
	return urgency_request_avg(avg, spent, nr_seen);
}
u64 quell_urgency_burst_avg(u64 avg, u64 ran) { return urgency_burst_avg(avg, ran); }
