//! The CPUs of the machine: the caches and cores that they share, the domains in which they are balanced,
//! which of them are idle, and what balancing sees of each.

use crate::events::Nanos;
use quell_model::Topology;

/// The assumed cost of a look at a domain in ns, and per CPU of it.
const LOOK: Nanos = 1_000;
const LOOK_AT_CPU: Nanos = 50;

/// CPUs with one last-level cache.
#[derive(Debug, Clone, Default)]
pub struct Cache {
    /// The CPUs, by number, ascending.
    pub cpus: Vec<usize>,
    /// How many CPUs a wakeup may look at (SIS_UTIL's nr_idle_scan).
    pub scan: usize,
    /// Some core may be idle as a whole (has_idle_cores).
    pub has_idle_core: bool,
    /// The number of CPUs that are not idle.
    pub busy: usize,
}

/// The level of a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    Core,
    #[default]
    Cache,
    Socket,
    Machine,
}

/// A scheduling domain: CPUs among which load is balanced.
#[derive(Debug, Clone, Default)]
pub struct Domain {
    /// The level.
    pub kind: Kind,
    /// The CPUs of each group.
    pub groups: Vec<Vec<usize>>,
    /// The number of CPUs in all groups.
    pub cpus: usize,
    /// Threads are spread over the groups even when none is full (SD_PREFER_SIBLING), since the groups are
    /// domains themselves.
    pub spreads: bool,
    /// Of the domain of the whole machine: a CPU's group with fewer threads than this may differ from another
    /// by two threads (imb_numa_nr).
    pub tolerates: usize,
    /// The largest domain of its CPUs.
    pub is_root: bool,
    /// The index of the first group's tally in [`Map::tallies`].
    pub tallies: usize,
}

impl Domain {
    /// How many times as much load a group must have to be busier (imbalance_pct / 100).
    pub fn imbalance(&self) -> f64 {
        if self.kind == Kind::Core { 1.10 } else { 1.17 }
    }

    /// After how many failures cache-hot threads are moved (cache_nice_tries).
    pub fn tries(&self) -> u32 {
        match self.kind {
            Kind::Core => 0,
            Kind::Cache | Kind::Socket => 1,
            Kind::Machine => 2,
        }
    }

    /// The assumed cost of a look at the domain, in ns.
    pub fn look(&self) -> Nanos {
        LOOK + LOOK_AT_CPU * self.cpus as Nanos
    }
}

/// The CPUs of the machine, and what they share.
#[derive(Debug, Default)]
pub struct Map {
    /// The caches, by number.
    pub caches: Vec<Cache>,
    /// The CPUs of each core.
    pub cores: Vec<Vec<usize>>,
    /// The domains, the smallest first.
    pub domains: Vec<Domain>,
    /// Each CPU's place in caches, cores and domains.
    pub cpus: Vec<Place>,
    /// Some core has several CPUs.
    pub has_siblings: bool,
    /// Some CPU may have more than one thread (rd->overloaded).
    pub overloaded: bool,
    /// The idle CPUs: bit `c % 64` of word `c / 64`.
    pub idle: Vec<u64>,
    /// When the next idle CPU is due for balancing, in ns, as far as is known.
    pub idle_due: Nanos,
    /// A CPU has gone idle since `idle_due` was worked out.
    pub idle_news: bool,
    /// What balancing sees of each CPU.
    pub glances: Vec<Glance>,
    /// The tallies of the domains' groups, one domain's after the other's.
    pub tallies: Vec<Tally>,
    /// The state of the pseudo-random numbers.
    pub random: u64,
}

/// A CPU's place in caches, cores and domains.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// The number of the cache.
    pub cache: usize,
    /// The CPU's index in the cache.
    pub in_cache: usize,
    /// The number of the core.
    pub core: usize,
    /// The CPU went idle, and has had no tick since then.
    pub silent: bool,
    /// The CPU's domains from the core up, and the number of its group in each.
    pub levels: Vec<(usize, usize)>,
    /// The indices of these groups' tallies.
    tallies: Vec<usize>,
}

/// Splits CPUs into parts that have a number in common.
fn split(cpus: &[usize], of: impl Fn(usize) -> u32) -> Vec<Vec<usize>> {
    let mut sorted: Vec<(u32, usize)> = cpus.iter().map(|&cpu| (of(cpu), cpu)).collect();
    sorted.sort_unstable();
    let parts = sorted.chunk_by(|one, other| one.0 == other.0);
    parts
        .map(|part| part.iter().map(|&(_, cpu)| cpu).collect())
        .collect()
}

impl Map {
    /// The map of a machine, all of whose CPUs are idle.
    pub fn new(topology: &Topology) -> Map {
        let all: Vec<usize> = (0..topology.cpus.len()).collect();
        let of = |cpu: usize| &topology.cpus[cpu];
        let mut map = Map {
            cpus: vec![Place::default(); all.len()],
            idle: vec![0; all.len().div_ceil(64)],
            glances: vec![Glance::default(); all.len()],
            random: 0x9E37_79B9_7F4A_7C15,
            ..Map::default()
        };
        for (core, cpus) in split(&all, |cpu| of(cpu).core).into_iter().enumerate() {
            map.has_siblings |= cpus.len() > 1;
            for &cpu in &cpus {
                map.cpus[cpu].core = core;
            }
            map.cores.push(cpus);
        }
        for (cache, cpus) in split(&all, |cpu| of(cpu).llc).into_iter().enumerate() {
            for (at, &cpu) in cpus.iter().enumerate() {
                (map.cpus[cpu].cache, map.cpus[cpu].in_cache) = (cache, at);
            }
            let has_idle_core = true;
            map.caches.push(Cache {
                cpus,
                has_idle_core,
                ..Cache::default()
            });
        }
        let sockets = split(&all, |cpu| of(cpu).socket);
        let caches: Vec<_> = map.caches.iter().map(|cache| cache.cpus.clone()).collect();
        for core in map.cores.clone() {
            let cpus = core.iter().map(|&cpu| vec![cpu]).collect();
            map.add(Kind::Core, cpus, 0);
        }
        for cache in &caches {
            map.add(Kind::Cache, split(cache, |cpu| of(cpu).core), 0);
        }
        for socket in &sockets {
            map.add(Kind::Socket, split(socket, |cpu| of(cpu).llc), 0);
        }
        let socket = sockets.first().map_or(0, Vec::len);
        let own_caches = caches.len() / sockets.len().max(1);
        let tolerates = if own_caches > 1 {
            own_caches
        } else {
            socket / 8
        };
        map.add(Kind::Machine, sockets, tolerates.max(1));
        for cpu in 0..all.len() {
            if let Some(&(top, _)) = map.cpus[cpu].levels.last() {
                map.domains[top].is_root = true;
            }
            map.idle[cpu / 64] |= 1 << (cpu % 64);
        }
        map
    }

    /// Adds a domain; one with a single group is left out.
    fn add(&mut self, kind: Kind, groups: Vec<Vec<usize>>, tolerates: usize) {
        if groups.len() < 2 {
            return;
        }
        let number = self.domains.len();
        let tallies = self.tallies.len();
        let mut spreads = false;
        for (group, cpus) in groups.iter().enumerate() {
            for &cpu in cpus {
                spreads |= !self.cpus[cpu].levels.is_empty();
                self.cpus[cpu].levels.push((number, group));
                self.cpus[cpu].tallies.push(tallies + group);
            }
            self.tallies.push(Tally {
                threads: 0,
                idle: cpus.len(),
                crowded: 0,
            });
        }
        self.domains.push(Domain {
            kind,
            cpus: groups.iter().map(Vec::len).sum(),
            groups,
            spreads,
            tolerates,
            is_root: false,
            tallies,
        });
    }

    /// The tallies of a domain's groups.
    pub fn tallies(&self, domain: &Domain) -> &[Tally] {
        &self.tallies[domain.tallies..domain.tallies + domain.groups.len()]
    }

    /// Sets what balancing sees of a CPU from now on.
    pub fn show(&mut self, cpu: usize, glance: Glance) {
        let before = std::mem::replace(&mut self.glances[cpu], glance).threads as usize;
        let threads = glance.threads as usize;
        if threads == before {
            return;
        }
        for &tally in &self.cpus[cpu].tallies {
            let it = &mut self.tallies[tally];
            it.threads = it.threads + threads - before;
            it.idle = it.idle + usize::from(threads == 0) - usize::from(before == 0);
            it.crowded = it.crowded + usize::from(threads > 1) - usize::from(before > 1);
        }
    }

    /// The cache of a CPU.
    pub fn cache(&self, cpu: usize) -> &Cache {
        &self.caches[self.cpus[cpu].cache]
    }

    /// The cache of a CPU.
    pub fn cache_mut(&mut self, cpu: usize) -> &mut Cache {
        &mut self.caches[self.cpus[cpu].cache]
    }

    /// Whether two CPUs have the same last-level cache.
    pub fn share_cache(&self, one: usize, other: usize) -> bool {
        self.cpus[one].cache == self.cpus[other].cache
    }

    /// The CPU's index in its cache.
    pub fn place_in_cache(&self, cpu: usize) -> usize {
        self.cpus[cpu].in_cache
    }

    /// The CPUs of a CPU's core, the CPU itself among them.
    pub fn siblings(&self, cpu: usize) -> &[usize] {
        &self.cores[self.cpus[cpu].core]
    }

    fn rests_now(&self, cpu: usize) -> bool {
        self.idle[cpu / 64] >> (cpu % 64) & 1 == 1
    }

    /// The CPU goes idle.
    pub fn rests(&mut self, cpu: usize) {
        if self.rests_now(cpu) {
            return;
        }
        self.idle[cpu / 64] |= 1 << (cpu % 64);
        self.idle_news |= !std::mem::replace(&mut self.cpus[cpu].silent, true);
        let core = &self.cores[self.cpus[cpu].core];
        let whole = core.len() > 1 && core.iter().all(|&cpu| self.rests_now(cpu));
        let cache = self.cache_mut(cpu);
        cache.busy -= 1;
        cache.has_idle_core |= whole;
    }

    /// The CPU is no longer idle.
    pub fn works(&mut self, cpu: usize) {
        if self.rests_now(cpu) {
            self.idle[cpu / 64] &= !(1 << (cpu % 64));
            self.cache_mut(cpu).busy += 1;
        }
    }

    /// The first idle CPU from a number on.
    pub fn next_idle(&self, from: usize) -> Option<usize> {
        let mut at = from / 64;
        let mut word = self.idle.get(at)? & (u64::MAX << (from % 64));
        loop {
            if word != 0 {
                return Some(at * 64 + word.trailing_zeros() as usize);
            }
            at += 1;
            word = *self.idle.get(at)?;
        }
    }

    /// A pseudo-random number below 1024 (xorshift).
    pub fn roll(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) as u32 % 1024
    }
}

/// What balancing reads of a CPU: values as of the CPU's last update, in little memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct Glance {
    /// The load of the CPU's own queue.
    pub load: f64,
    /// Runnable threads, times 1024.
    pub runnable: f64,
    /// Utilisation, of 1024, estimated utilisation included.
    pub util: f64,
    /// The number of threads that run or wait.
    pub threads: u32,
}

/// The counts of a group's CPUs. They are kept up to date, because newly idle CPUs ask for them all the time.
#[derive(Debug, Clone, Copy)]
pub struct Tally {
    /// The number of threads that run or wait.
    pub threads: usize,
    /// The number of CPUs without a thread.
    pub idle: usize,
    /// The number of CPUs with more than one thread.
    pub crowded: usize,
}
