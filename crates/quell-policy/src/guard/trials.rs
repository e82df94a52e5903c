//! Which lever acts in which block, and what becomes of it: trials in, decision out.
//!
//! One pair of blocks at a time, of one lever. Each block begins with a washout, of which nothing is counted: what the block
//! before left behind (queues, placements, caches) is to be gone. Which of the two has the lever act is chosen by chance.
//!
//! A lever that does not act is tried, pair after pair, until it is shown to help, and acts from then on; or to harm; or until
//! the trial is over without either. Then it rests for a pause that grows from trial to trial. A lever that acts is checked by a
//! pair now and then; what the pairs say of harm decides how soon the next one comes, and it is off as soon as harm is shown.

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

/// How likely each of two mistakes is in a test, however often it is looked: a lever that changes nothing is found to help, or
/// to harm.
pub const ERROR: f64 = 0.025;

/// A trial ends after so many pairs' time, those that had no figure included: in five minutes where blocks are short. That is also
/// the longest that a lever which does not help is tried, half of it acting.
const TRIAL_PAIRS: u64 = 60;
/// The pause after the first trial that showed no help; each is twice the one before.
const PAUSE_NS: u64 = 30 * MINUTE_NS;
const PAUSE_MOST_NS: u64 = 24 * 60 * MINUTE_NS;
/// Where tenants of class latency came or went a lever is tried again after so long, and twice as long after each trial that
/// showed no help.
const PAUSE_OTHERS_NS: u64 = 5 * MINUTE_NS;
/// Before each of the first checks of a lever that acts; after those, twice the one before.
const FIRST_CHECKS: usize = 6;
const CHECK_NS: u64 = MINUTE_NS;
const CHECK_MOST_NS: u64 = 10 * MINUTE_NS;
/// The next check comes at once where who bets on harm has doubled what he had.
const SUSPECTED: f64 = 2.0;
/// Another test begins, with its first checks, where who had begun to bet on harm so many pairs ago has so many times what he had:
/// what helped may have begun to harm.
const TURNED: (usize, f64) = (5, 3.0);
/// After so many checks the test begins anew, so that an effect that changes is not weighed against old pairs for ever.
const CHECKS: usize = 40;

/// A lever's blocks.
#[derive(Debug, Clone, Copy)]
struct Blocks {
    washout_ns: u64,
    measured_ns: u64,
    /// Tenants with shorter busy periods are not compared.
    least_ns: f64,
}

impl Blocks {
    /// A scheduler is loaded and unloaded for them, which takes longer to settle. It counts by itself where it runs, and sees a
    /// busy period's beginning and end some microseconds apart from where the kernel's trace points do.
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
    /// The last second or so.
    recent: Figures,
    recent_since_ns: u64,
    busy: bool,
    /// Those of class latency that are there.
    tenants: BTreeSet<TenantName>,
    effects: Arc<Vec<Effect>>,
}

/// What is known of a lever.
#[derive(Debug)]
struct Standing {
    lever: Lever,
    /// Whether it acts where no pair runs.
    acts: bool,
    finding: Finding,
    /// When the finding was found; 0: at the start.
    since_ns: u64,
    /// When the next pair may begin.
    next_ns: u64,
    /// Of the trial that goes on, or of the checks.
    evidence: Evidence,
    by_tenant: BTreeMap<TenantName, Evidence>,
    /// How long the trial that goes on has taken.
    tried_ns: u64,
    /// How many have shown no help.
    failed: u32,
    /// The pause before the next check.
    check_ns: u64,
    /// Whether the evidence is of a test that is over: the next pair begins another one.
    over: bool,
    /// What the test before showed, until the one that goes on can say something.
    before: Option<Shown>,
    /// Pairs that had no figure: the host was not busy, or too few responses were seen.
    void: u64,
}

/// What a test says of responses.
#[derive(Debug, Clone)]
struct Shown {
    pairs: u64,
    responses: EffectInterval,
    tenants: Vec<(TenantName, EffectInterval)>,
}

#[derive(Debug)]
struct Pair {
    /// Its place in the list.
    lever: usize,
    /// Whether it acts in the first block.
    acts_first: bool,
    /// Whether the second block goes on.
    second: bool,
    /// When the block began: with the first period for which its plan had been carried out, as loading a scheduler takes a
    /// while. `None`: that is not over yet.
    began_ns: Option<u64>,
    /// When the pair began.
    first_ns: u64,
    figures: [Figures; 2],
    /// A plan of it was not carried out: it says nothing.
    spoiled: bool,
}

impl Trials {
    /// Of these levers, with whether each acts until its first trial. With [`GuardMode::Report`] that stays so.
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

    /// Which levers act from now on: after the period that the snapshot describes.
    pub fn step(&mut self, snapshot: &Snapshot) {
        let now = snapshot.time_ns;
        if self.random.is_none() {
            // Chance enough for a load that does not look at it, and the same from the same snapshots.
            self.random = Some(ChaCha8Rng::seed_from_u64(now));
            self.recent_since_ns = now;
            for standing in &mut self.levers {
                standing.since_ns = now;
                standing.next_ns = match standing.acts && standing.lever != Lever::All {
                    true => now + CHECK_NS,
                    false => now,
                };
            }
            self.publish();
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

    /// The last plan was not carried out as it was meant: the pair that goes on says nothing.
    pub fn spoil(&mut self) {
        if let Some(pair) = &mut self.running {
            pair.spoiled = true;
        }
    }

    /// What is known of each lever.
    pub fn effects(&self) -> Arc<Vec<Effect>> {
        self.effects.clone()
    }

    /// Whether the host is busy, and who is there.
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

    /// Begins a pair of the lever that is due for longest, if any is.
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

    /// A pair is over.
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
    /// After a pair, which says something or not.
    fn judge(&mut self, mode: GuardMode, says: bool, now: u64) {
        let shown = 1.0 / ERROR;
        let helps = self.evidence.for_less() >= shown;
        let harms = self.evidence.for_more() >= shown;
        if self.lever == Lever::All {
            // Somebody waits for it, pair after pair, and judges himself.
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
            // What helped so far weighs nothing against what it does from now on.
            self.over = helps || self.evidence.pairs() >= CHECKS;
            // Pairs that say nothing come ever more seldom, too: there may be nobody to see.
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

    /// It does not act until another trial shows that it helps.
    fn rests(&mut self, now: u64) {
        self.next_ns = now + growing(PAUSE_NS, self.failed);
        self.failed += 1;
        (self.acts, self.over) = (false, true);
    }

    /// What the test that goes on says.
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
