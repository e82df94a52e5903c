//! Sums over periods: since the start, and over a window.
//!
//! Problem: operators ask about the last seconds and about since-when-it-runs, and keeping every
//! period of the last minute would cost tens of megabytes with many tenants.
//! Approach: one running sum per tenant; about once a second a copy of it is kept as a
//! checkpoint, and a window is the difference between now and the checkpoint nearest its start. Of older
//! checkpoints fewer are kept, so that there are some twenty of the last minute, each up to 75 KB with 50
//! tenants; a window is up to [`COARSE`] longer than was asked for, and has its true length. Checkpoints
//! share the sums of tenants that did nothing meanwhile. A tenant that is gone stays until no window has it.
//! The sums have an entry for each pair of tenants, so readers get them behind an `Arc` and do the
//! copying and subtracting themselves, without keeping the loop waiting.
//! All times are in ns.

use quell_model::{Ended, Snapshot, TenantName, TenantSample, WaitBreakdown, place_near};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Checkpoints are at least this far apart.
const CHECKPOINT_NS: u64 = 1_000_000_000;

/// How far apart checkpoints may be, as a part of how old they are.
const COARSE: f64 = 0.25;

/// The tenants that are listed of those that had the CPU while one waited: this many, and up to twice as many
/// in between.
const CAUSES_MOST: usize = 24;

/// The longest window, in seconds.
pub const MAX_WINDOW_S: u32 = 60;

/// Running sums of the host's tenants.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    now: Arc<Sums>,
    checkpoints: VecDeque<Arc<Sums>>,
    /// Tenants that are not there, with the length of the sums at the first checkpoint without them.
    gone: BTreeMap<TenantName, u64>,
}

/// A window that has not been calculated yet.
#[derive(Debug, Clone)]
pub struct Window {
    now: Arc<Sums>,
    from: Option<Arc<Sums>>,
}

/// Sums over a length of time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sums {
    /// That length.
    pub length_ns: u64,
    /// The tenants, ascending by name.
    pub tenants: Vec<Arc<TenantSums>>,
}

/// One tenant's sums. `None` where the source never saw any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantSums {
    /// The tenant.
    pub name: TenantName,
    /// CPU time of its threads, including threads that ended where the source sees them.
    pub run_ns: u64,
    /// The time for which its threads were ready and not served.
    pub ready_ns: Option<u64>,
    /// The time for which a bandwidth limit stopped its threads.
    pub throttled_ns: Option<u64>,
    /// Ready time and stopped time, by cause.
    pub waits: Option<WaitBreakdown>,
    /// Ended waits by length, as [`quell_model::ReadyTime::histogram`].
    pub histogram: Option<Vec<u64>>,
    /// As [`quell_model::Occasions::by_blocked_ns`].
    pub occasions: Option<Vec<u64>>,
}

impl Totals {
    /// Adds a period.
    pub fn add(&mut self, snapshot: &Snapshot) {
        let last = self.checkpoints.back().map_or(0, |c| c.length_ns);
        if self.checkpoints.is_empty() || self.now.length_ns - last >= CHECKPOINT_NS {
            self.drop_gone(snapshot);
            self.checkpoints.push_back(self.now.clone());
            self.thin();
        }
        // A copy only where a checkpoint or a reader has it.
        let now = Arc::make_mut(&mut self.now);
        now.length_ns += snapshot.period_ns;
        let mut likely = 0;
        for tenant in &snapshot.tenants {
            if !self.gone.is_empty() {
                self.gone.remove(&tenant.name);
            }
            let at = place_near(&now.tenants, likely, |it| it.name.cmp(&tenant.name));
            let at = at.unwrap_or_else(|at| {
                let none = Arc::new(TenantSums::none(tenant.name.clone()));
                now.tenants.insert(at, none);
                at
            });
            likely = at + 1;
            let sums = &mut now.tenants[at];
            if sums.knows_less_than(tenant) || !is_idle(tenant) {
                Arc::make_mut(sums).add(tenant);
            }
        }
    }

    /// Drops the tenants that no window has any more, and what they made others wait.
    fn drop_gone(&mut self, snapshot: &Snapshot) {
        let longest = u64::from(MAX_WINDOW_S) * 1_000_000_000;
        // A window may begin up to a second and a quarter of its length earlier.
        let kept = longest + longest / 4 + 2 * CHECKPOINT_NS;
        let here = self.now.length_ns;
        for tenant in &self.now.tenants {
            if snapshot.tenant(&tenant.name).is_none() {
                self.gone.entry(tenant.name.clone()).or_insert(here);
            }
        }
        let old = |since: &u64| here - since > kept;
        if !self.gone.values().any(old) {
            return;
        }
        let gone = &self.gone;
        let is_old = |name: &TenantName| gone.get(name).is_some_and(old);
        // Of the checkpoints too: a tenant that comes back begins anew.
        for sums in self.checkpoints.iter_mut().chain([&mut self.now]) {
            Arc::make_mut(sums).drop_tenants(is_old);
        }
        self.gone.retain(|_, since| !old(since));
    }

    /// Drops the checkpoints that windows of nearly the right length do not need.
    fn thin(&mut self) {
        let longest = u64::from(MAX_WINDOW_S) * 1_000_000_000;
        let age = |of: &Arc<Sums>| self.now.length_ns - of.length_ns;
        // The longest window begins at the first checkpoint, or later.
        let old = self.checkpoints.iter().filter(|it| age(it) >= longest);
        let old = old.count().saturating_sub(1);
        self.checkpoints.drain(..old);
        let mut at = 1;
        while at + 1 < self.checkpoints.len() {
            let (before, after) = (&self.checkpoints[at - 1], &self.checkpoints[at + 1]);
            let gap = after.length_ns - before.length_ns;
            // A window that began at the dropped checkpoint begins at the previous one.
            match gap as f64 <= COARSE * age(after) as f64 {
                true => drop(self.checkpoints.remove(at)),
                false => at += 1,
            }
        }
    }

    /// Sums since the start.
    pub fn total(&self) -> Arc<Sums> {
        self.now.clone()
    }

    /// Sums over about the last `window_ns`: from the checkpoint at or before its start, or the
    /// oldest one there is.
    pub fn window(&self, window_ns: u64) -> Window {
        let start = self.now.length_ns.saturating_sub(window_ns);
        let from = self.checkpoints.iter().rev().find(|c| c.length_ns <= start);
        Window {
            now: self.now.clone(),
            from: from.or(self.checkpoints.front()).cloned(),
        }
    }
}

impl Window {
    /// The window's sums.
    pub fn sums(&self) -> Sums {
        match &self.from {
            Some(from) => self.now.since(from),
            None => Sums::clone(&self.now),
        }
    }
}

impl Sums {
    /// Drops tenants, and from the other tenants' waits what these had the CPU for.
    fn drop_tenants(&mut self, is_meant: impl Fn(&TenantName) -> bool) {
        self.tenants.retain(|it| !is_meant(&it.name));
        for tenant in &mut self.tenants {
            let caused = |waits: &WaitBreakdown| waits.tenants.iter().any(|it| is_meant(&it.0));
            if tenant.waits.as_ref().is_some_and(caused) {
                if let Some(waits) = &mut Arc::make_mut(tenant).waits {
                    waits.tenants.retain(|it| !is_meant(&it.0));
                }
            }
        }
    }

    fn since(&self, from: &Sums) -> Sums {
        let none = |name: &TenantName| TenantSums::none(name.clone());
        let since = |tenant: &Arc<TenantSums>| {
            let at = from.tenants.binary_search_by(|t| t.name.cmp(&tenant.name));
            Arc::new(match at {
                Ok(at) => tenant.since(&from.tenants[at]),
                Err(_) => tenant.since(&none(&tenant.name)),
            })
        };
        Sums {
            length_ns: self.length_ns - from.length_ns,
            tenants: self.tenants.iter().map(since).collect(),
        }
    }

    /// A time, in percent of these sums' length: percent of one CPU.
    pub fn percent(&self, ns: u64) -> f64 {
        100.0 * ns as f64 / self.length_ns.max(1) as f64
    }

    /// For each tenant that had a CPU while others waited, how long they did.
    pub fn caused_ns(&self) -> BTreeMap<&TenantName, u64> {
        let mut caused = BTreeMap::new();
        let rows = self.tenants.iter().filter_map(|it| it.waits.as_ref());
        for (name, ns) in rows.flat_map(|it| &it.tenants) {
            *caused.entry(name).or_default() += ns;
        }
        caused
    }

    /// One tenant's sums.
    pub fn tenant(&self, name: &TenantName) -> Option<&TenantSums> {
        let at = self.tenants.binary_search_by(|t| t.name.cmp(name));
        at.ok().map(|at| &*self.tenants[at])
    }
}

/// Whether nothing of a tenant ran or waited.
fn is_idle(tenant: &TenantSample) -> bool {
    let waited = |it: &quell_model::ReadyTime| {
        it.sum_ns > 0 || it.histogram.as_ref().is_some_and(|it| !it.is_empty())
    };
    let explained = tenant
        .waits
        .as_ref()
        .is_none_or(|it| *it == WaitBreakdown::default())
        && tenant
            .occasions
            .as_ref()
            .is_none_or(|it| it.by_blocked_ns.is_empty())
        && tenant
            .ended
            .as_ref()
            .is_none_or(|it| *it == Ended::default());
    let mut threads = tenant.threads.iter();
    explained && threads.all(|it| it.run_ns == 0 && !it.ready.as_ref().is_some_and(waited))
}

impl TenantSums {
    fn none(name: TenantName) -> TenantSums {
        TenantSums {
            name,
            run_ns: 0,
            ready_ns: None,
            throttled_ns: None,
            waits: None,
            histogram: None,
            occasions: None,
        }
    }

    /// Whether a sample shows what was never seen before, be it zeros.
    fn knows_less_than(&self, tenant: &TenantSample) -> bool {
        let waits = tenant.waits.is_some() && self.waits.is_none();
        let occasions = tenant.occasions.is_some() && self.occasions.is_none();
        let ready = self.ready_ns.is_none() && tenant.threads.iter().any(|it| it.ready.is_some());
        waits || occasions || ready
    }

    fn add(&mut self, tenant: &TenantSample) {
        for thread in &tenant.threads {
            self.run_ns += thread.run_ns;
            if let Some(ready) = &thread.ready {
                // The breakdown, where seen, also has the threads that have exited.
                if tenant.waits.is_none() {
                    *self.ready_ns.get_or_insert(0) += ready.sum_ns;
                }
                if let Some(histogram) = &ready.histogram {
                    let counts = histogram.iter().map(|&n| u64::from(n));
                    add_each(self.histogram.get_or_insert_default(), counts);
                }
            }
        }
        if let Some(ended) = &tenant.ended {
            self.run_ns += ended.run_ns;
            if let Some(histogram) = &ended.ready.histogram {
                let counts = histogram.iter().map(|&n| u64::from(n));
                add_each(self.histogram.get_or_insert_default(), counts);
            }
        }
        if let Some(waits) = &tenant.waits {
            *self.ready_ns.get_or_insert(0) += waits.ready_ns();
            *self.throttled_ns.get_or_insert(0) += waits.bandwidth_ns;
            let sum = self.waits.get_or_insert_default();
            sum.own_ns += waits.own_ns;
            sum.host_ns += waits.host_ns;
            sum.bandwidth_ns += waits.bandwidth_ns;
            sum.steal_ns += waits.steal_ns;
            sum.unknown_ns += waits.unknown_ns;
            sum.others_ns += waits.others_ns;
            let mut likely = 0;
            for (name, ns) in &waits.tenants {
                let at = place_near(&sum.tenants, likely, |(other, _)| other.cmp(name));
                match at {
                    Ok(at) => sum.tenants[at].1 += ns,
                    Err(at) => sum.tenants.insert(at, (name.clone(), *ns)),
                }
                likely = at.unwrap_or_else(|at| at) + 1;
            }
            if sum.tenants.len() > 2 * CAUSES_MOST {
                sum.list_at_most(CAUSES_MOST);
            }
        }
        if let Some(occasions) = &tenant.occasions {
            let times = occasions.by_blocked_ns.iter().copied();
            add_each(self.occasions.get_or_insert_default(), times);
        }
    }

    /// What was added since `from`, which must be an earlier state of these sums.
    fn since(&self, from: &TenantSums) -> TenantSums {
        let list = |now: &Option<Vec<u64>>, from: &Option<Vec<u64>>| {
            let from = from.as_deref().unwrap_or_default();
            let less = |(i, ns): (usize, &u64)| ns - from.get(i).unwrap_or(&0);
            now.as_ref()
                .map(|now| now.iter().enumerate().map(less).collect())
        };
        let waits = self.waits.as_ref().map(|now| {
            let none = WaitBreakdown::default();
            let from = from.waits.as_ref().unwrap_or(&none);
            let before = |name: &TenantName| {
                let at = from.tenants.binary_search_by(|(other, _)| other.cmp(name));
                at.map_or(0, |at| from.tenants[at].1)
            };
            // A tenant that left the list and came back has less now; what is missing is the others'.
            let since =
                |(name, ns): &(TenantName, u64)| (name.clone(), ns.saturating_sub(before(name)));
            let tenants = now.tenants.iter().map(since);
            let tenants: Vec<_> = tenants.filter(|(_, ns)| *ns > 0).collect();
            let listed: u64 = tenants.iter().map(|it| it.1).sum();
            let all = now.tenants_ns().saturating_sub(from.tenants_ns());
            WaitBreakdown {
                own_ns: now.own_ns - from.own_ns,
                tenants,
                others_ns: all.saturating_sub(listed),
                host_ns: now.host_ns - from.host_ns,
                bandwidth_ns: now.bandwidth_ns - from.bandwidth_ns,
                steal_ns: now.steal_ns - from.steal_ns,
                unknown_ns: now.unknown_ns - from.unknown_ns,
            }
        });
        TenantSums {
            name: self.name.clone(),
            run_ns: self.run_ns - from.run_ns,
            ready_ns: self.ready_ns.map(|now| now - from.ready_ns.unwrap_or(0)),
            throttled_ns: (self.throttled_ns).map(|now| now - from.throttled_ns.unwrap_or(0)),
            waits,
            histogram: list(&self.histogram, &from.histogram),
            occasions: list(&self.occasions, &from.occasions),
        }
    }

    /// The wait that a share `quantile` of the ended waits did not exceed, in µs: the upper edge
    /// of its bucket. `None` without waits.
    pub fn wait_quantile_us(&self, quantile: f64) -> Option<f64> {
        let histogram = self.histogram.as_ref()?;
        let count: u64 = histogram.iter().sum();
        let rank = (count as f64 * quantile).ceil().max(1.0) as u64;
        let mut seen = 0;
        let bucket = histogram.iter().position(|n| {
            seen += n;
            seen >= rank
        })?;
        Some(2f64.powi(bucket as i32 + 1) / 1000.0)
    }
}

/// Adds entry by entry; the sum grows as needed.
fn add_each(sum: &mut Vec<u64>, more: impl ExactSizeIterator<Item = u64>) {
    if sum.len() < more.len() {
        sum.resize(more.len(), 0);
    }
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum += more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{snapshot, waits};

    /// 100 periods of 100 ms, in each of which `a` waits 1 ms for `b` and, in the last 20, 2 ms
    /// for itself.
    fn ten_seconds() -> Totals {
        let mut totals = Totals::default();
        for seq in 0..100 {
            let mut one = snapshot(seq, &[("a", 2), ("b", 1)]);
            one.period_ns = 100_000_000;
            let own = if seq >= 80 { 2_000_000 } else { 0 };
            one.tenants[0].waits = Some(waits(own, &[("b", 1_000_000)]));
            totals.add(&one);
        }
        totals
    }

    #[test]
    fn total_and_window_agree_with_the_periods_they_cover() {
        let totals = ten_seconds();
        let a = totals
            .total()
            .tenant(&"a".into())
            .unwrap()
            .waits
            .clone()
            .unwrap();
        assert_eq!(a, waits(40_000_000, &[("b", 100_000_000)]));

        let window = totals.window(2_000_000_000).sums();
        assert_eq!(window.length_ns, 2_000_000_000);
        let a = window.tenant(&"a".into()).unwrap().waits.clone().unwrap();
        assert_eq!(a, waits(40_000_000, &[("b", 20_000_000)]));
    }

    #[test]
    fn windows_are_nearly_as_long_as_was_asked_for_and_checkpoints_few() {
        let mut totals = Totals::default();
        for seq in 0..3_000 {
            let mut one = snapshot(seq, &[("a", 1)]);
            one.period_ns = 100_000_000;
            totals.add(&one);
            let seen = totals.now.length_ns;
            assert!(
                totals.checkpoints.len() <= 26,
                "{}",
                totals.checkpoints.len()
            );
            for window_s in 1..=u64::from(MAX_WINDOW_S) {
                let asked = window_s * 1_000_000_000;
                let window = totals.window(asked).sums().length_ns;
                // A checkpoint is up to a second older than the second that it is of.
                let most = asked + asked / 4 + 1_000_000_000;
                let right = window == seen || (asked..most).contains(&window);
                assert!(right, "{window_s} s: {window} ns at {seen}");
            }
        }
    }

    /// Adds a period of 100 ms in which `a` waited 1 ms for `b`, if `b` is there.
    fn add(totals: &mut Totals, seq: u64, with_b: bool) {
        let tenants: &[(&str, u32)] = if with_b {
            &[("a", 1), ("b", 1)]
        } else {
            &[("a", 1)]
        };
        let mut one = snapshot(seq, tenants);
        one.period_ns = 100_000_000;
        let by: &[(&str, u64)] = if with_b { &[("b", 1_000_000)] } else { &[] };
        one.tenants[0].waits = Some(waits(0, by));
        totals.add(&one);
    }

    #[test]
    fn a_tenant_that_is_gone_leaves_when_no_window_has_it() {
        let mut totals = Totals::default();
        (0..100).for_each(|seq| add(&mut totals, seq, true));
        let has_b = |totals: &Totals| totals.total().tenant(&"b".into()).is_some();
        let mut gone = 0;
        while has_b(&totals) && gone < 2_000 {
            add(&mut totals, 100 + gone, false);
            gone += 1;
        }
        assert!((600..1_000).contains(&gone), "{gone} periods of 100 ms");
        let a = totals.total().tenant(&"a".into()).unwrap().clone();
        assert_eq!(a.ready_ns, Some(100_000_000), "what it waited stays");
        assert_eq!(a.waits, Some(waits(0, &[])));
    }

    proptest::proptest! {
        /// However a tenant comes and goes, every window shows what its own periods had, and no more.
        #[test]
        fn windows_are_right_however_a_tenant_comes_and_goes(
            stays in proptest::collection::vec(1usize..1_200, 1..8),
        ) {
            let mut totals = Totals::default();
            let mut history: Vec<bool> = Vec::new();
            for (turn, periods) in stays.iter().enumerate() {
                for _ in 0..*periods {
                    let with_b = turn % 2 == 0;
                    add(&mut totals, history.len() as u64, with_b);
                    history.push(with_b);
                }
                for window_s in [1, 5, 20, 60] {
                    let sums = totals.window(window_s * 1_000_000_000).sums();
                    let periods = (sums.length_ns / 100_000_000) as usize;
                    let with_b = history[history.len() - periods..].iter().filter(|it| **it).count() as u64;
                    let a = sums.tenant(&"a".into()).unwrap();
                    proptest::prop_assert_eq!(a.ready_ns, Some(with_b * 1_000_000));
                    let by = a.waits.as_ref().unwrap().tenants.first().map_or(0, |it| it.1);
                    proptest::prop_assert_eq!(by, with_b * 1_000_000);
                }
            }
        }
    }

    #[test]
    fn of_very_many_tenants_those_that_had_the_cpu_longest_are_listed() {
        let mut totals = Totals::default();
        let names: Vec<String> = (0..200).map(|n| format!("t{n:03}")).collect();
        for seq in 0..300u64 {
            let mut one = snapshot(seq, &[("a", 1)]);
            one.period_ns = 100_000_000;
            // The first two always; of the others one in each period.
            let turn = names[2 + seq as usize % 198].as_str();
            let by = [("t000", 5_000), ("t001", 3_000), (turn, 1_000)];
            one.tenants[0].waits = Some(waits(0, &by));
            totals.add(&one);
        }
        let total = totals
            .total()
            .tenant(&"a".into())
            .unwrap()
            .waits
            .clone()
            .unwrap();
        assert!(total.tenants.len() <= 2 * CAUSES_MOST);
        assert_eq!(total.tenants_ns(), 300 * 9_000);
        assert_eq!(
            total.tenants[..2],
            [("t000".into(), 1_500_000), ("t001".into(), 900_000)]
        );
        let sums = totals.window(20_000_000_000).sums();
        let periods = sums.length_ns / 100_000_000;
        let within = sums.tenant(&"a".into()).unwrap().waits.clone().unwrap();
        assert_eq!(within.tenants_ns(), periods * 9_000);
        assert_eq!(within.tenants[0], ("t000".into(), periods * 5_000));
    }

    #[test]
    fn checkpoints_share_what_idle_tenants_have() {
        let mut totals = Totals::default();
        for seq in 0..50 {
            let mut one = snapshot(seq, &[("a", 1), ("b", 1)]);
            one.period_ns = 100_000_000;
            let idle = &mut one.tenants[1].threads[0];
            idle.run_ns = 0;
            idle.ready = None;
            totals.add(&one);
        }
        let last = totals.checkpoints.back().unwrap();
        let pair = |at: usize| (last.tenants[at].clone(), totals.now.tenants[at].clone());
        let (a, b) = (pair(0), pair(1));
        assert!(!Arc::ptr_eq(&a.0, &a.1));
        assert!(Arc::ptr_eq(&b.0, &b.1));
    }

    #[test]
    fn a_window_longer_than_the_past_is_the_past() {
        let totals = ten_seconds();
        assert_eq!(totals.window(3_600_000_000_000).sums(), *totals.total());
        assert_eq!(Totals::default().window(1).sums(), Sums::default());
    }

    #[test]
    fn what_was_never_seen_stays_absent() {
        let mut totals = Totals::default();
        let mut one = snapshot(0, &[("a", 1)]);
        one.tenants[0].threads[0].ready = None;
        one.tenants[0].waits = None;
        totals.add(&one);
        let total = totals.total();
        let a = total.tenant(&"a".into()).unwrap();
        assert_eq!(
            (a.ready_ns, a.waits.as_ref(), a.wait_quantile_us(0.5)),
            (None, None, None)
        );
    }

    #[test]
    fn quantiles_are_upper_edges_of_buckets() {
        let mut sums = TenantSums::none("a".into());
        sums.histogram = Some([vec![0; 10], vec![98, 1, 0, 1]].concat());
        assert_eq!(sums.wait_quantile_us(0.5), Some(2.048));
        assert_eq!(sums.wait_quantile_us(0.99), Some(4.096));
        assert_eq!(sums.wait_quantile_us(1.0), Some(16.384));
        sums.histogram = Some(vec![]);
        assert_eq!(sums.wait_quantile_us(0.5), None);
    }
}
