//! Trials: they decide which lever acts in which block, and what becomes of the lever after them.
//!
//! One pair of blocks runs at a time, of one lever. Each block begins with a washout, of which nothing
//! is counted: the effects of the block before (queues, placements, caches) should be gone. The block of
//! the two in which the lever acts is random.
//!
//! A lever that does not act is tried, pair after pair, until it is shown to help, and acts from then
//! on; or to harm; or until the trial is over without either. Then it rests for a pause that grows from
//! trial to trial. A lever that acts is checked by a pair now and then; the evidence of harm decides how
//! soon the next pair comes, and the lever is off as soon as harm is shown.

use super::evidence::Evidence;
use super::figures::{Compared, Figures, compare};
use quell_model::config::{GuardMode, TenantClass};
use quell_model::{Effect, EffectInterval, Finding, Lever, Snapshot, TenantName};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const SECOND_NS: u64 = 1_000_000_000;
const MINUTE_NS: u64 = 60 * SECOND_NS;

/// The probability of each of two errors of a test, however often it is evaluated: a lever that changes
/// nothing is found to help, or to harm.
pub const ERROR: f64 = 0.025;

/// The length of a trial in pairs, those without a figure included: five minutes where blocks are short.
/// A lever that does not help is tried for at most this long, and acts for half of that time.
const TRIAL_PAIRS: u64 = 60;
/// The pause after the first trial that showed no help; each later pause is twice the one before.
const PAUSE_NS: u64 = 30 * MINUTE_NS;
const PAUSE_MOST_NS: u64 = 24 * 60 * MINUTE_NS;
/// The pause before a lever is tried again where tenants of class latency came or went; it doubles after
/// each trial that showed no help.
const PAUSE_OTHERS_NS: u64 = 5 * MINUTE_NS;
/// The number of first checks of a lever that acts; before each later check the pause doubles.
const FIRST_CHECKS: usize = 6;
const CHECK_NS: u64 = MINUTE_NS;
const CHECK_MOST_NS: u64 = 10 * MINUTE_NS;
/// The wealth of the bet on harm, in units of its stake, from which on the next check comes at once.
const SUSPECTED: f64 = 2.0;
/// A new test begins, with its first checks, where a bet on harm that began this many pairs ago has this many
/// times its stake: a lever that helped may have begun to harm.
const TURNED: (usize, f64) = (5, 3.0);
/// The number of checks after which the test begins anew, so that an effect that changes is not weighed
/// against old pairs for ever.
const CHECKS: usize = 40;

/// The lengths of a lever's blocks.
#[derive(Debug, Clone, Copy)]
struct Blocks {
    washout_ns: u64,
    measured_ns: u64,
    /// Tenants with shorter mean busy periods are not compared.
    least_ns: f64,
}

impl Blocks {
    /// Blocks for which a scheduler is loaded and unloaded, which takes longer to settle. Quell's scheduler
    /// counts busy periods itself where it runs, and sees a period's beginning and end some microseconds
    /// apart from where the kernel's trace points do.
    const LONG: Blocks = Blocks {
        washout_ns: SECOND_NS,
        measured_ns: 9 * SECOND_NS,
        least_ns: 500_000.0,
    };
    const PROOF: Blocks = Blocks {
        washout_ns: SECOND_NS,
        measured_ns: 4 * SECOND_NS,
        least_ns: 0.0,
    };
    const SHORT: Blocks = Blocks {
        washout_ns: 400_000_000,
        measured_ns: 2 * SECOND_NS,
        least_ns: 0.0,
    };

    fn trial_ns(self) -> u64 {
        TRIAL_PAIRS * 2 * (self.washout_ns + self.measured_ns)
    }

    fn of(lever: Lever) -> Blocks {
        match lever {
            Lever::Scheduler => Blocks::LONG,
            Lever::Feedback => Blocks::SHORT,
            Lever::All => Blocks::PROOF,
        }
    }
}

/// The guard's state.
#[derive(Debug)]
pub struct Trials {
    mode: GuardMode,
    levers: Vec<Standing>,
    running: Option<Pair>,
    random: Option<ChaCha8Rng>,
    /// The CPUs' times of the last second or so.
    recent: Figures,
    recent_since_ns: u64,
    busy: bool,
    /// The tenants of class latency that have threads.
    tenants: BTreeSet<TenantName>,
    effects: Arc<Vec<Effect>>,
}

/// The state of a lever.
#[derive(Debug, Clone)]
struct Standing {
    lever: Lever,
    /// Whether the lever acts while no pair runs.
    acts: bool,
    finding: Finding,
    /// When the finding was made; the first snapshot's time where there is none yet.
    since_ns: u64,
    /// When the next pair may begin.
    next_ns: u64,
    /// The evidence of the running trial, or of the checks.
    evidence: Evidence,
    by_tenant: BTreeMap<TenantName, Evidence>,
    /// The duration of the running trial so far.
    tried_ns: u64,
    /// The number of trials that have shown no help.
    failed: u32,
    /// The pause before the next check.
    check_ns: u64,
    /// Whether the evidence is that of a test that is over: the next pair begins a new test.
    over: bool,
    /// The result of the test before, until the running one has a result.
    before: Option<Shown>,
    /// Pairs without a figure: the host was not busy, or too few responses were seen.
    void: u64,
}

/// The result of a test about responses.
#[derive(Debug, Clone)]
struct Shown {
    pairs: u64,
    responses: EffectInterval,
    tenants: Vec<(TenantName, EffectInterval)>,
}

#[derive(Debug)]
struct Pair {
    /// The lever's index in the list.
    lever: usize,
    /// Whether the lever acts in the first block.
    acts_first: bool,
    /// Whether the second block runs.
    second: bool,
    /// When the block began: with the first period for which its plan had been carried out, as loading a
    /// scheduler takes a while. `None`: the block has not begun.
    began_ns: Option<u64>,
    /// When the pair began.
    first_ns: u64,
    figures: [Figures; 2],
    /// Whether a plan of the pair was not carried out, so that the pair counts as void.
    spoiled: bool,
}

impl Trials {
    /// Trials of these levers, with whether each acts until its first trial. With [`GuardMode::Report`] that
    /// never changes.
    pub fn new(mode: GuardMode, levers: impl IntoIterator<Item = (Lever, bool)>) -> Trials {
        let standing = |(lever, acts)| Standing {
            lever,
            acts: acts || mode == GuardMode::Report,
            finding: Finding::Untried,
            since_ns: 0,
            next_ns: 0,
            evidence: Evidence::default(),
            by_tenant: BTreeMap::new(),
            tried_ns: 0,
            failed: 0,
            check_ns: CHECK_NS,
            over: false,
            before: None,
            void: 0,
        };
        let mut trials = Trials {
            mode,
            levers: levers.into_iter().map(standing).collect(),
            running: None,
            random: None,
            recent: Figures::default(),
            recent_since_ns: 0,
            busy: false,
            tenants: BTreeSet::new(),
            effects: Arc::default(),
        };
        trials.publish();
        trials
    }

    /// Goes on from earlier trials: what they found of a lever holds, and so does its evidence, where `same`
    /// says that the lever does what it did. A pair that was running counts as void. Findings of trials in
    /// another mode say nothing about which levers are to act, so nothing is taken from those.
    pub fn follow_on(&mut self, before: &Trials, same: impl Fn(Lever) -> bool) {
        if self.mode != before.mode {
            return;
        }
        for standing in self.levers.iter_mut().filter(|it| same(it.lever)) {
            let index = before
                .levers
                .iter()
                .position(|it| it.lever == standing.lever);
            let Some(index) = index else { continue };
            *standing = before.levers[index].clone();
            let ran = before.running.as_ref().is_some_and(|it| it.lever == index);
            standing.void += u64::from(ran);
        }
        self.random.clone_from(&before.random);
        self.tenants.clone_from(&before.tenants);
        self.publish();
    }

    /// Decides which levers act from now on, after the period that the snapshot describes.
    pub fn step(&mut self, snapshot: &Snapshot) {
        let now = snapshot.time_ns;
        if self.recent_since_ns == 0 {
            self.begin_all(now);
        }
        self.follow(snapshot);
        if let Some(pair) = &mut self.running {
            let blocks = Blocks::of(self.levers[pair.lever].lever);
            let counted_from = *pair.began_ns.get_or_insert(now) + blocks.washout_ns;
            if now.saturating_sub(snapshot.period_ns) >= counted_from {
                pair.figures[usize::from(pair.second)].add(snapshot);
            }
            if now >= counted_from + blocks.measured_ns {
                if !pair.second {
                    pair.second = true;
                    pair.began_ns = None;
                } else if let Some(pair) = self.running.take() {
                    self.finish(pair, now);
                }
            }
        }
        if self.running.is_none() && self.busy {
            self.begin(now);
        }
    }

    /// Begins with the first snapshot.
    fn begin_all(&mut self, now: u64) {
        self.recent_since_ns = now;
        // Random enough for a load that does not adapt to it, and equal for equal snapshots.
        self.random
            .get_or_insert_with(|| ChaCha8Rng::seed_from_u64(now));
        for standing in self.levers.iter_mut().filter(|it| it.since_ns == 0) {
            standing.since_ns = now;
            standing.next_ns = match standing.acts && standing.lever != Lever::All {
                true => now + CHECK_NS,
                false => now,
            };
        }
        self.publish();
    }

    /// Whether a lever acts now.
    pub fn acts(&self, lever: Lever) -> bool {
        let Some(index) = self.levers.iter().position(|it| it.lever == lever) else {
            return true;
        };
        match &self.running {
            Some(pair) if pair.lever == index => pair.acts_first != pair.second,
            _ => self.levers[index].acts,
        }
    }

    /// Marks the running pair as void: the last plan was not carried out as it was meant.
    pub fn spoil(&mut self) {
        if let Some(pair) = &mut self.running {
            pair.spoiled = true;
        }
    }

    /// The effect of each lever.
    pub fn effects(&self) -> Arc<Vec<Effect>> {
        self.effects.clone()
    }

    /// Follows whether the host is busy, and which tenants have threads.
    fn follow(&mut self, snapshot: &Snapshot) {
        let now = snapshot.time_ns;
        self.recent.add_cpus(snapshot);
        if now.saturating_sub(self.recent_since_ns) >= SECOND_NS {
            self.busy = self.recent.is_busy();
            self.recent = Figures::default();
            self.recent_since_ns = now;
        }
        let there = snapshot.tenants.iter();
        let there =
            there.filter(|it| !it.threads.is_empty() && it.spec.class != TenantClass::Batch);
        let same = there.clone().count() == self.tenants.len()
            && there.clone().all(|it| self.tenants.contains(&it.name));
        if !same {
            self.tenants = there.map(|it| it.name.clone()).collect();
            let mut sooner = false;
            for standing in self.levers.iter_mut().filter(|it| !it.acts) {
                let soon = now + growing(PAUSE_OTHERS_NS, standing.failed);
                sooner |= soon < standing.next_ns;
                standing.next_ns = standing.next_ns.min(soon);
            }
            if sooner {
                self.publish();
            }
        }
    }

    /// Begins a pair of the lever that has been due for longest, if a lever is due.
    fn begin(&mut self, now: u64) {
        let levers = self.levers.iter_mut().enumerate();
        let due = levers.filter(|(_, it)| it.next_ns <= now);
        let Some((lever, standing)) = due.min_by_key(|(_, it)| it.next_ns) else {
            return;
        };
        if std::mem::take(&mut standing.over) {
            standing.before = standing.shown().or(standing.before.take());
            standing.evidence = Evidence::default();
            standing.by_tenant.clear();
            standing.tried_ns = 0;
        }
        let coin = self.random.as_mut().map_or(0, |it| it.next_u32());
        self.running = Some(Pair {
            lever,
            acts_first: coin & 1 == 1,
            second: false,
            began_ns: None,
            first_ns: now,
            figures: Default::default(),
            spoiled: false,
        });
    }

    /// Ends a pair.
    fn finish(&mut self, pair: Pair, now: u64) {
        let standing = &mut self.levers[pair.lever];
        let [first, second] = &pair.figures;
        let least_ns = Blocks::of(standing.lever).least_ns;
        let compared = match (pair.spoiled, pair.acts_first) {
            (true, _) => Compared::default(),
            (false, true) => compare(first, second, least_ns),
            (false, false) => compare(second, first, least_ns),
        };
        match compared.host {
            Some(figure) => standing.evidence.add(figure),
            None => standing.void += 1,
        }
        for (name, figure) in compared.tenants {
            standing.by_tenant.entry(name).or_default().add(figure);
        }
        standing.tried_ns += now - pair.first_ns;
        standing.judge(self.mode, compared.host.is_some(), now);
        self.publish();
    }

    fn publish(&mut self) {
        self.effects = Arc::new(self.levers.iter().map(Standing::effect).collect());
    }
}

impl Standing {
    /// Judges the evidence after a pair; `says`: whether the pair had a figure.
    fn judge(&mut self, mode: GuardMode, says: bool, now: u64) {
        let shown = 1.0 / ERROR;
        let helps = self.evidence.for_less() >= shown;
        let harms = self.evidence.for_more() >= shown;
        if self.lever == Lever::All {
            // A proof runs in the foreground, pair after pair, and its caller judges.
            return;
        }
        if mode == GuardMode::Report || self.acts {
            if harms && self.finding != Finding::Harms {
                self.found(Finding::Harms, now);
                if mode == GuardMode::On {
                    return self.rests(now);
                }
            } else if helps && self.finding != Finding::Helps {
                self.found(Finding::Helps, now);
            }
            // The evidence of past help must not count against the effect from now on, so a new test begins.
            self.over = helps || self.evidence.pairs() >= CHECKS;
            // Pairs without a figure come ever more seldom, too: there may be no tenant to see.
            if !says || self.evidence.pairs() >= FIRST_CHECKS {
                self.check_ns = (2 * self.check_ns).min(CHECK_MOST_NS);
            }
            let suspected = says && self.evidence.for_more() >= SUSPECTED;
            let (pairs, times) = TURNED;
            if says && !suspected && self.evidence.last(pairs).for_more() >= times {
                (self.over, self.check_ns) = (true, CHECK_NS);
            }
            self.next_ns = match suspected && mode == GuardMode::On {
                true => now,
                false => now + self.check_ns,
            };
        } else if helps {
            self.found(Finding::Helps, now);
            (self.acts, self.over) = (true, true);
            (self.failed, self.check_ns) = (0, CHECK_NS);
            self.next_ns = now + self.check_ns;
        } else if harms {
            self.found(Finding::Harms, now);
            self.rests(now);
        } else if self.tried_ns >= Blocks::of(self.lever).trial_ns() {
            self.found(Finding::NothingShown, now);
            self.rests(now);
        } else {
            self.next_ns = now;
        }
    }

    fn found(&mut self, finding: Finding, now: u64) {
        self.finding = finding;
        self.since_ns = now;
    }

    /// Turns the lever off until another trial shows that it helps.
    fn rests(&mut self, now: u64) {
        self.next_ns = now + growing(PAUSE_NS, self.failed);
        self.failed += 1;
        (self.acts, self.over) = (false, true);
    }

    /// The result of the running test; `None`: not enough pairs.
    fn shown(&self) -> Option<Shown> {
        let tenants = self.by_tenant.iter();
        Some(Shown {
            pairs: self.evidence.pairs() as u64,
            responses: self.evidence.interval(ERROR)?,
            tenants: tenants
                .filter_map(|(name, evidence)| Some((name.clone(), evidence.interval(ERROR)?)))
                .collect(),
        })
    }

    fn effect(&self) -> Effect {
        let shown = self.shown().or(self.before.clone());
        let pairs = self.evidence.pairs() as u64;
        Effect {
            lever: self.lever,
            acts: self.acts,
            finding: self.finding,
            since_ns: self.since_ns,
            next_ns: self.next_ns,
            pairs: shown.as_ref().map_or(pairs, |it| it.pairs),
            void: self.void,
            responses: shown.as_ref().map(|it| it.responses),
            tenants: shown.map_or_else(Vec::new, |it| it.tenants),
        }
    }
}

/// A pause that doubles with each failure, up to a day.
fn growing(first_ns: u64, failed: u32) -> u64 {
    first_ns
        .saturating_mul(1 << failed.min(16))
        .min(PAUSE_MOST_NS)
}
