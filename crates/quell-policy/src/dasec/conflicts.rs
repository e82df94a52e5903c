//! The resource-conflict resolver: which threads share a core.
//!
//! Two kinds of conflict are left when slices and rescheduling latencies are set (DASEC 4.2):
//! - *slices*: a core cannot give the threads on it the CPU time that their weights entitle them to,
//!   such as two slices of 50 ms in a period of 80 ms. Where the slice sums of the fullest and the
//!   emptiest core are further apart than 10 %, threads are swapped between the two to balance them;
//! - *latencies*: threads that must not wait are on one core. A core's conflicts are the times its
//!   low-latency threads were preempted and the waits that exceeded their rescheduling latency. Where
//!   the most exceed the fewest by 2x, half of the low-latency threads of the worst core are swapped
//!   for half of the high-latency ones of the best.
//!
//! Our choices, where the paper is silent:
//! - A core is a logical CPU. A thread counts for the CPU it was placed on or else was last seen on, if
//!   it ran or was ready in the period.
//! - A difference of slice sums is acted on only if the fuller core is over its capacity, which is
//!   how the paper defines the conflict: an imbalance that delays no thread is not worth a migration.
//! - To balance is to exchange one thread for one, or for none, as long as that brings the two sums
//!   closer, until they are within the threshold, and at most [`MAX_EXCHANGES`] times. Of all
//!   exchanges the one that leaves the smallest difference is made; of equal ones a lone move.
//! - Low latency is at or below the geometric mean of the minimum and the initial latency: threads
//!   the adjuster has lowered again and again, not those it lowered once.
//! - Half is rounded down, so a lone low-latency thread stays: it has no conflict with its like. Of
//!   the half, only as many move as bring the two cores' conflicts closer, those with the most
//!   conflicts first. The threads that come back have at most the slices of those that go, and the
//!   exchange must not make a core over capacity fuller. So both resolvers only improve the layout,
//!   and a steady input reaches a steady layout.
//! - Conflicts that are not seen are not taken for zero: without preemptions and waits from the
//!   monitor, latencies are left alone.
//! - A thread moves only if its owner lets it use the other CPU, and while it is placed it is not
//!   moved again. A placement ends after `placement_periods`: the stock kernel would otherwise keep
//!   a core idle beside a queue. The two cores then take no part for [`SETTLE_PERIODS`] periods, in
//!   which the observations still hold times from before the swap.

use super::state::{Placement, Tenant};
use super::text::Millis;
use quell_model::config::AsymmetrySettings;
use quell_model::{CpuId, Rule, Snapshot, ThreadState};
use std::collections::BTreeMap;

/// The most exchanges between two cores in a period.
pub(super) const MAX_EXCHANGES: usize = 8;

/// Periods after a swap in which its two cores are left alone.
pub(super) const SETTLE_PERIODS: u32 = 2;

/// The resolver with its state.
#[derive(Debug, Default)]
pub(super) struct Resolver {
    /// Cores swapped lately, and the number of periods for which they are still left alone.
    settling: BTreeMap<CpuId, u32>,
    /// Kept from period to period only to reuse the allocation.
    cores: Vec<Core>,
    guests: Vec<Guest>,
}

#[derive(Debug)]
struct Core {
    cpu: CpuId,
    slices_ns: u64,
    /// The conflicts on the core; `None` as soon as those of one low-latency thread are not seen.
    conflicts: Option<u64>,
    may_act: bool,
}

/// A thread that ran or was ready in the period.
#[derive(Debug, Clone, Copy)]
struct Guest {
    tenant: usize,
    thread: usize,
    /// The index of its core in `cores`.
    core: usize,
    slice_ns: u64,
    low_latency: bool,
    conflicts: u64,
}

impl Resolver {
    /// Ends placements that are over and makes new ones.
    pub fn resolve(
        &mut self,
        tenants: &mut [Tenant],
        snapshot: &Snapshot,
        settings: &AsymmetrySettings,
    ) {
        self.age();
        self.gather(tenants, snapshot, settings);
        end_placements(tenants, snapshot, &self.cores);
        if let Some(swap) = self.slice_swap(tenants, snapshot.period_ns, settings) {
            self.carry_out(swap, tenants, settings);
        }
        if !settings.latencies {
            return;
        }
        if let Some(swap) = self.latency_swap(tenants, snapshot.period_ns, settings) {
            self.carry_out(swap, tenants, settings);
        }
    }

    fn age(&mut self) {
        self.settling.retain(|_, periods| {
            *periods -= 1;
            *periods > 0
        });
    }

    /// Collects the threads on each core, and their sums.
    fn gather(&mut self, tenants: &[Tenant], snapshot: &Snapshot, settings: &AsymmetrySettings) {
        self.cores.clear();
        self.guests.clear();
        self.cores
            .extend(snapshot.host.topology.cpus.iter().map(|cpu| Core {
                cpu: cpu.id,
                slices_ns: 0,
                conflicts: Some(0),
                may_act: !self.settling.contains_key(&cpu.id),
            }));
        self.cores.sort_by_key(|core| core.cpu);
        self.cores.dedup_by_key(|core| core.cpu);
        let low_ns = low_latency_ns(settings);
        for (t, tenant) in tenants.iter().enumerate() {
            let sample = &snapshot.tenants[tenant.sample];
            for (i, thread) in tenant.threads.iter().enumerate() {
                let seen = &sample.threads[thread.sample];
                let was_ready = seen.ready.as_ref().is_some_and(|ready| ready.sum_ns > 0);
                let wants = matches!(seen.state, ThreadState::Ready | ThreadState::Running);
                if seen.run_ns == 0 && !wants && !was_ready {
                    continue;
                }
                let Some(c) = find(&self.cores, thread.core(seen)) else {
                    continue;
                };
                let core = &mut self.cores[c];
                core.slices_ns = core.slices_ns.saturating_add(thread.slice_ns);
                let low_latency = settings.latencies && thread.latency_ns <= low_ns;
                let mut conflicts = 0;
                if low_latency {
                    let waits = seen.ready.as_ref();
                    let waits = waits.and_then(|r| r.longer_than(thread.latency_before_ns));
                    match (seen.preemptions, waits) {
                        (None, None) => core.conflicts = None,
                        (some, other) => {
                            conflicts = some.unwrap_or(0).saturating_add(other.unwrap_or(0));
                            core.conflicts = core.conflicts.map(|n| n.saturating_add(conflicts));
                        }
                    }
                }
                self.guests.push(Guest {
                    tenant: t,
                    thread: i,
                    core: c,
                    slice_ns: thread.slice_ns,
                    low_latency,
                    conflicts,
                });
            }
        }
    }

    /// The threads on core `from` that may move to core `to`, largest slice first.
    fn movable(&self, tenants: &[Tenant], from: usize, to: usize) -> Vec<Guest> {
        let to = self.cores[to].cpu;
        let mut movable: Vec<Guest> = (self.guests.iter())
            .filter(|guest| guest.core == from)
            .filter(|guest| {
                let thread = &tenants[guest.tenant].threads[guest.thread];
                thread.placement.is_none() && thread.affinity.contains(to)
            })
            .copied()
            .collect();
        // A stable sort, so equal ones stay in the order of tenant and thread.
        movable.sort_by_key(|guest| std::cmp::Reverse(guest.slice_ns));
        movable
    }

    fn slice_swap(
        &self,
        tenants: &[Tenant],
        period_ns: u64,
        settings: &AsymmetrySettings,
    ) -> Option<Swap> {
        let (full, empty) = self.extremes(|core| Some(core.slices_ns))?;
        let (mut high, mut low) = (self.cores[full].slices_ns, self.cores[empty].slices_ns);
        let factor = 1.0 + settings.slice_imbalance_percent / 100.0;
        let apart = |high: u64, low: u64| high as f64 > low as f64 * factor;
        if high <= period_ns || !apart(high, low) {
            return None;
        }
        let mut going = self.movable(tenants, full, empty);
        let mut coming = self.movable(tenants, empty, full);
        let mut swap = Swap::new(Rule::SliceSwap, full, empty);
        for _ in 0..MAX_EXCHANGES {
            if !apart(high.max(low), high.min(low)) {
                break;
            }
            // The sums may change order, but only by ending closer together: then no more is to be moved.
            let Some(gap) = high.checked_sub(low) else {
                break;
            };
            let Some((out, back)) = best_exchange(&going, &coming, gap) else {
                break;
            };
            let out = going.remove(out);
            let back = back.map(|back| coming.remove(back));
            let moved = out.slice_ns - back.map_or(0, |back| back.slice_ns);
            (high, low) = (high - moved, low.saturating_add(moved));
            swap.going.push(out);
            swap.coming.extend(back);
        }
        swap.evidence = format!(
            "slices on CPU {} sum to {}, on CPU {} to {}; swapped, to {} and {}",
            self.cores[full].cpu,
            Millis(self.cores[full].slices_ns),
            self.cores[empty].cpu,
            Millis(self.cores[empty].slices_ns),
            Millis(high),
            Millis(low),
        );
        swap.some()
    }

    fn latency_swap(
        &self,
        tenants: &[Tenant],
        period_ns: u64,
        settings: &AsymmetrySettings,
    ) -> Option<Swap> {
        let (worst, best) = self.extremes(|core| core.conflicts)?;
        let (most, fewest) = (self.cores[worst].conflicts?, self.cores[best].conflicts?);
        if most < settings.conflict_min.max(1)
            || most as f64 <= fewest as f64 * settings.conflict_ratio
        {
            return None;
        }
        let count = |core: usize, low_latency: bool| {
            let on_core = self.guests.iter().filter(|guest| guest.core == core);
            on_core
                .filter(|guest| guest.low_latency == low_latency)
                .count()
        };
        let mut swap = Swap::new(Rule::LatencySwap, worst, best);

        let half = count(worst, true) / 2;
        let mut lows = self.movable(tenants, worst, best);
        lows.retain(|guest| guest.low_latency && guest.conflicts > 0);
        lows.sort_by_key(|guest| std::cmp::Reverse(guest.conflicts));
        let (gap, mut carried) = (most - fewest, 0u64);
        for guest in &lows {
            let with = carried.saturating_add(guest.conflicts);
            if swap.going.len() < half && with <= gap / 2 {
                carried = with;
                swap.going.push(*guest);
            }
        }
        if swap.going.is_empty() && half > 0 {
            // Each thread has more than half of the gap: the lightest narrows it if it has less than all
            // of it.
            let lightest = lows.last().filter(|guest| guest.conflicts < gap)?;
            carried = lightest.conflicts;
            swap.going.push(*lightest);
        }

        let out = swap
            .going
            .iter()
            .fold(0u64, |sum, guest| sum.saturating_add(guest.slice_ns));
        let (mut back, limit) = (0u64, count(best, false) / 2);
        for guest in self.movable(tenants, best, worst) {
            let with = back.saturating_add(guest.slice_ns);
            if !guest.low_latency && with <= out && swap.coming.len() < limit {
                back = with;
                swap.coming.push(guest);
            }
        }
        let (worst, best) = (&self.cores[worst], &self.cores[best]);
        let allowed = period_ns.max(worst.slices_ns).max(best.slices_ns);
        if best.slices_ns.saturating_add(out - back) > allowed {
            return None;
        }
        swap.evidence = format!(
            "low-latency threads had {most} conflicts on CPU {}, {fewest} on CPU {}; {carried} of \
             them go with the threads moved",
            worst.cpu, best.cpu,
        );
        swap.some()
    }

    /// The cores with the most and the fewest, of those that may act; of equal ones the first.
    fn extremes(&self, amount: impl Fn(&Core) -> Option<u64>) -> Option<(usize, usize)> {
        let mut most: Option<(u64, usize)> = None;
        let mut fewest: Option<(u64, usize)> = None;
        for (i, core) in self
            .cores
            .iter()
            .enumerate()
            .filter(|(_, core)| core.may_act)
        {
            let amount = amount(core)?;
            if most.is_none_or(|(most, _)| amount > most) {
                most = Some((amount, i));
            }
            if fewest.is_none_or(|(fewest, _)| amount < fewest) {
                fewest = Some((amount, i));
            }
        }
        most.zip(fewest)
            .map(|((_, most), (_, fewest))| (most, fewest))
    }

    fn carry_out(&mut self, swap: Swap, tenants: &mut [Tenant], settings: &AsymmetrySettings) {
        for (guests, from, to) in [
            (&swap.going, swap.from, swap.to),
            (&swap.coming, swap.to, swap.from),
        ] {
            let (from, to) = (self.cores[from].cpu, self.cores[to].cpu);
            for guest in guests {
                let thread = &mut tenants[guest.tenant].threads[guest.thread];
                let periods_left = settings.placement_periods.max(1);
                thread.placement = Some(Placement {
                    cpu: to,
                    periods_left,
                });
                thread.because(swap.rule, format!("CPU {from} -> {to}: {}", swap.evidence));
            }
        }
        for core in [swap.from, swap.to] {
            // The collected sums no longer hold for these cores: no second swap in this period.
            self.cores[core].may_act = false;
            self.settling
                .insert(self.cores[core].cpu, SETTLE_PERIODS + 1);
        }
    }
}

/// Threads that change places between two cores.
struct Swap {
    rule: Rule,
    from: usize,
    to: usize,
    going: Vec<Guest>,
    coming: Vec<Guest>,
    evidence: String,
}

impl Swap {
    fn new(rule: Rule, from: usize, to: usize) -> Swap {
        let evidence = String::new();
        Swap {
            rule,
            from,
            to,
            going: Vec::new(),
            coming: Vec::new(),
            evidence,
        }
    }

    fn some(self) -> Option<Swap> {
        if self.going.is_empty() {
            None
        } else {
            Some(self)
        }
    }
}

/// The exchange of one of `going` for one of `coming`, or for none, that leaves the smallest gap
/// between two cores that are `gap` apart; `None` where no exchange makes it smaller. Both lists are
/// ordered by slice, largest first.
fn best_exchange(going: &[Guest], coming: &[Guest], gap: u64) -> Option<(usize, Option<usize>)> {
    let mut best: Option<(u64, usize, Option<usize>)> = None;
    let mut offer = |left: u64, out: usize, back: Option<usize>| {
        if left < gap && best.is_none_or(|(least, _, _)| left < least) {
            best = Some((left, out, back));
        }
    };
    let left = |out: &Guest, back_ns: u64| {
        let moved = out.slice_ns.checked_sub(back_ns)?;
        Some(gap.abs_diff(moved.saturating_mul(2)))
    };
    for (i, out) in going.iter().enumerate() {
        left(out, 0)
            .into_iter()
            .for_each(|left| offer(left, i, None));
    }
    for (i, out) in going.iter().enumerate() {
        // The best partner is one of the two next to `out` less half of the gap.
        let ideal = out.slice_ns.saturating_sub(gap / 2);
        let after = coming.partition_point(|guest| guest.slice_ns > ideal);
        for j in [after.checked_sub(1), Some(after)].into_iter().flatten() {
            let Some(back) = coming.get(j) else { continue };
            left(out, back.slice_ns)
                .into_iter()
                .for_each(|left| offer(left, i, Some(j)));
        }
    }
    best.map(|(_, out, back)| (out, back))
}

/// The greatest rescheduling latency that counts as low, in ns.
fn low_latency_ns(settings: &AsymmetrySettings) -> u64 {
    let product = settings.latency_min_us as f64 * settings.latency_initial_us as f64;
    (product.sqrt() * 1000.0) as u64
}

fn find(cores: &[Core], cpu: CpuId) -> Option<usize> {
    cores.binary_search_by_key(&cpu, |core| core.cpu).ok()
}

/// Releases threads whose placement is over, whose CPU has gone, or whose owner now forbids it.
fn end_placements(tenants: &mut [Tenant], snapshot: &Snapshot, cores: &[Core]) {
    for tenant in tenants {
        let sample = &snapshot.tenants[tenant.sample];
        for thread in &mut tenant.threads {
            let Some(Placement { cpu, periods_left }) = &mut thread.placement else {
                continue;
            };
            *periods_left -= 1;
            let (cpu, over) = (*cpu, *periods_left == 0);
            let shown = &sample.threads[thread.sample].settings.affinity;
            let why = if find(cores, cpu).is_none() {
                "the CPU went offline"
            } else if !thread.affinity.contains(cpu) || !shown.contains(cpu) {
                "its owner no longer lets it use that CPU"
            } else if over {
                "its placement is over"
            } else {
                continue;
            };
            thread.placement = None;
            thread.released = Some(cpu);
            thread.because(Rule::Released, format!("may leave CPU {cpu}: {why}"));
        }
    }
}
