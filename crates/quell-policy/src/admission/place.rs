//! The placement of servers on CPUs, and the reasons of refusals.

use super::{Condition, Verdict, check_with, headroom};
use quell_model::config::{Criticality, CriticalitySettings, Server};
use quell_model::{CpuId, CpuSet, TenantName};
use serde::{Deserialize, Serialize};

/// The unit of proposed budgets and periods, in ns: they are multiples of it.
const STEP_NS: u64 = 10_000;

/// A server on a CPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// The server's tenant.
    pub tenant: TenantName,
    /// The number of the tenant's vCPU, from 0.
    pub vcpu: u32,
    /// The promised budget and period.
    pub server: Server,
}

/// A host's CPUs and the promises on each.
#[derive(Debug, Clone)]
pub struct Host {
    settings: CriticalitySettings,
    cpus: Vec<(CpuId, Vec<Placed>)>,
}

/// A change that would make a refused tenant fit, with all else as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// A smaller budget, in ns.
    BudgetNs(u64),
    /// A smaller pessimistic budget, in ns.
    PessimisticBudgetNs(u64),
    /// A longer period, in ns.
    PeriodNs(u64),
    /// Fewer virtual CPUs.
    Vcpus(u32),
}

/// Why a tenant does not fit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Refusal {
    /// The number of its vCPUs for which there is a CPU.
    pub placed: u32,
    /// The CPU, of those without one of its vCPUs, that comes nearest to having room for one more; `None`:
    /// there is none.
    pub nearest: Option<CpuId>,
    /// The condition that does not hold there.
    pub condition: Option<Condition>,
    /// The factor by which the budgets of all servers on that CPU would have to shrink.
    pub headroom: f64,
    /// The changes that would each make it fit, the smallest change first, relative to the present value.
    pub changes: Vec<Change>,
}

impl Host {
    /// A host without servers.
    pub fn new(cpus: impl IntoIterator<Item = CpuId>, settings: CriticalitySettings) -> Host {
        let cpus = cpus.into_iter().map(|cpu| (cpu, Vec::new()));
        Host {
            settings,
            cpus: cpus.collect(),
        }
    }

    /// A host with servers on its CPUs.
    pub fn with(cpus: Vec<(CpuId, Vec<Placed>)>, settings: CriticalitySettings) -> Host {
        Host { settings, cpus }
    }

    /// The settings of the admission test.
    pub fn settings(&self) -> &CriticalitySettings {
        &self.settings
    }

    /// The host's CPUs, each with its servers in the order of their arrival.
    pub fn cpus(&self) -> &[(CpuId, Vec<Placed>)] {
        &self.cpus
    }

    /// The test's verdict on a CPU as it is; `None`: the CPU is none of the host's.
    pub fn verdict(&self, cpu: CpuId) -> Option<Verdict> {
        let (_, placed) = self.cpus.iter().find(|(id, _)| *id == cpu)?;
        Some(check_with(&self.settings, &servers(placed, None)))
    }

    /// Places a tenant's vCPUs, each on the first CPU that has room for it and none of the tenant's other
    /// vCPUs; all of them or none. Servers that are placed already keep their CPUs.
    ///
    /// # Errors
    /// No CPU has room for one of the vCPUs; the [`Refusal`] says which condition fails, and what would help.
    pub fn admit(
        &mut self,
        tenant: &TenantName,
        server: &Server,
        vcpus: u32,
    ) -> Result<Vec<CpuId>, Refusal> {
        self.admit_on(tenant, server, &vec![None; vcpus as usize])
    }

    /// Like [`Host::admit`], for vCPUs that may each run on some CPUs only; `None`: on all.
    ///
    /// # Errors
    /// No allowed CPU has room for one of the vCPUs; the [`Refusal`] says which condition fails, and what
    /// would help.
    pub fn admit_on(
        &mut self,
        tenant: &TenantName,
        server: &Server,
        allowed: &[Option<CpuSet>],
    ) -> Result<Vec<CpuId>, Refusal> {
        let anywhere = allowed.iter().all(Option::is_none);
        let most = if anywhere { allowed.len() } else { usize::MAX };
        let room = self.room_for(server, most);
        let may = |vcpu: usize, index: usize| may_run(&allowed[vcpu], self.cpus[index].0);
        let Some(places) = matched(allowed.len(), &room, may) else {
            return Err(self.refusal(server, allowed.len() as u32, &room));
        };
        let mut on = Vec::new();
        for (&index, vcpu) in places.iter().zip(0..) {
            let (cpu, placed) = &mut self.cpus[index];
            on.push(*cpu);
            placed.push(Placed {
                tenant: tenant.clone(),
                vcpu,
                server: *server,
            });
        }
        Ok(on)
    }

    /// Replaces the terms of all of a tenant's servers, on their CPUs; of all of them or none.
    ///
    /// # Errors
    /// The terms do not fit on a CPU: that CPU, and the condition that fails there.
    pub fn replace(
        &mut self,
        tenant: &TenantName,
        server: &Server,
    ) -> Result<(), (CpuId, Condition)> {
        let mut with = self.cpus.clone();
        for (cpu, placed) in &mut with {
            let mut its = placed.iter_mut().filter(|it| it.tenant == *tenant);
            let Some(it) = its.next() else {
                continue;
            };
            it.server = *server;
            let verdict = check_with(&self.settings, &servers(placed, None));
            if !verdict.fits {
                return Err((*cpu, verdict.condition));
            }
        }
        self.cpus = with;
        Ok(())
    }

    /// Removes a tenant from the host: the promises to others hold with fewer servers beside them.
    pub fn remove(&mut self, tenant: &TenantName) {
        for (_, placed) in &mut self.cpus {
            placed.retain(|it| it.tenant != *tenant);
        }
    }

    /// Keeps only those CPUs. Returns the servers of the others, which have no promise any more.
    pub fn keep_cpus(&mut self, cpus: &CpuSet) -> Vec<Placed> {
        let all = std::mem::take(&mut self.cpus).into_iter();
        let (kept, gone): (Vec<_>, Vec<_>) = all.partition(|(cpu, _)| cpus.contains(*cpu));
        self.cpus = kept;
        let evicted = gone.into_iter().flat_map(|(_, placed)| placed).collect();
        for cpu in cpus.iter() {
            if let Err(at) = self.cpus.binary_search_by_key(&cpu, |(id, _)| *id) {
                self.cpus.insert(at, (cpu, Vec::new()));
            }
        }
        evicted
    }

    /// Puts a server on the first of the allowed CPUs that has room for it and none of its tenant's other
    /// servers; `None`: there is none.
    pub fn place(&mut self, placed: Placed, allowed: &Option<CpuSet>) -> Option<CpuId> {
        let to = *self.room_apart(&placed, allowed).first()?;
        let (cpu, on) = &mut self.cpus[to];
        on.push(placed);
        Some(*cpu)
    }

    /// Puts one of a tenant's servers on the next of the allowed CPUs that has room for it and none of its
    /// tenant's others; after the last CPU comes the first again, so the server gets around all of them.
    /// `None`: the server stays.
    pub fn relocate(
        &mut self,
        tenant: &TenantName,
        vcpu: u32,
        allowed: &Option<CpuSet>,
    ) -> Option<CpuId> {
        let it = |placed: &Placed| placed.tenant == *tenant && placed.vcpu == vcpu;
        let (from, at) = (0..self.cpus.len()).find_map(|index| {
            let at = self.cpus[index].1.iter().position(it)?;
            Some((index, at))
        })?;
        let room = self.room_apart(&self.cpus[from].1[at], allowed);
        let to = room.iter().find(|index| **index > from).or(room.first());
        let to = *to?;
        let placed = self.cpus[from].1.remove(at);
        let (cpu, on) = &mut self.cpus[to];
        on.push(placed);
        Some(*cpu)
    }

    /// The allowed CPUs that have room for such a server and none of its tenant's, by their indices.
    fn room_apart(&self, placed: &Placed, allowed: &Option<CpuSet>) -> Vec<usize> {
        let is_its = |it: &Placed| it.tenant == placed.tenant;
        let mut room = self.room_for(&placed.server, usize::MAX);
        room.retain(|index| {
            let (cpu, placed) = &self.cpus[*index];
            may_run(allowed, *cpu) && !placed.iter().any(is_its)
        });
        room
    }

    /// How many more such tenants fit, at most `most`.
    pub fn more(&self, server: &Server, vcpus: u32, most: u32) -> u32 {
        let mut with = self.clone();
        let name = TenantName::from("more");
        (0..most)
            .find(|_| with.admit(&name, server, vcpus).is_err())
            .unwrap_or(most)
    }

    /// The first CPUs that have room for one more such server, by their indices; at most `most`.
    fn room_for(&self, server: &Server, most: usize) -> Vec<usize> {
        let fits = |index: &usize| {
            check_with(&self.settings, &servers(&self.cpus[*index].1, Some(server))).fits
        };
        (0..self.cpus.len()).filter(fits).take(most).collect()
    }

    fn refusal(&self, server: &Server, vcpus: u32, room: &[usize]) -> Refusal {
        let others = (0..self.cpus.len()).filter(|index| !room.contains(index));
        let with = |index: usize| servers(&self.cpus[index].1, Some(server));
        let nearest = others
            .map(|index| (index, headroom(&self.settings, &with(index))))
            // The first of equally near ones.
            .fold(None, |best: Option<(usize, f64)>, it| match best {
                Some(best) if best.1 >= it.1 => Some(best),
                _ => Some(it),
            });
        Refusal {
            placed: room.len() as u32,
            nearest: nearest.map(|(index, _)| self.cpus[index].0),
            condition: nearest.map(|(index, _)| check_with(&self.settings, &with(index)).condition),
            headroom: nearest.map_or(0.0, |(_, headroom)| headroom),
            changes: self.changes(server, vcpus, room.len() as u32),
        }
    }

    fn changes(&self, server: &Server, vcpus: u32, placed: u32) -> Vec<Change> {
        let fits =
            |changed: &Server| self.room_for(changed, vcpus as usize).len() == vcpus as usize;
        let mut changes: Vec<(f64, Change)> = Vec::new();
        let mut propose = |change, from: u64, to: u64| {
            changes.push((from.abs_diff(to) as f64 / from as f64, change));
        };
        let high = server.criticality == Criticality::High;
        let budget = |ns: u64| Server {
            budget_ns: ns,
            // A server of low criticality has no other pessimistic budget.
            pessimistic_ns: if high { server.pessimistic_ns } else { ns },
            ..*server
        };
        let pessimistic = |ns: u64| Server {
            pessimistic_ns: ns,
            ..*server
        };
        let period = |ns: u64| Server {
            period_ns: ns,
            ..*server
        };
        if let Some(ns) = most(Server::LEAST_NS, server.budget_ns, |ns| fits(&budget(ns))) {
            propose(Change::BudgetNs(ns), server.budget_ns, ns);
        }
        if high {
            let least = server.budget_ns;
            if let Some(ns) = most(least, server.pessimistic_ns, |ns| fits(&pessimistic(ns))) {
                propose(Change::PessimisticBudgetNs(ns), server.pessimistic_ns, ns);
            }
        }
        // The search is for the shortest period, as the largest distance from the longest.
        let longer = |less: u64| Server::LONGEST_NS - less;
        let least = Server::LONGEST_NS.saturating_sub(server.period_ns);
        if let Some(less) = most(0, least, |less| fits(&period(longer(less)))) {
            propose(
                Change::PeriodNs(longer(less)),
                server.period_ns,
                longer(less),
            );
        }
        if placed > 0 {
            propose(Change::Vcpus(placed), vcpus.into(), placed.into());
        }
        changes.sort_by(|a, b| a.0.total_cmp(&b.0));
        changes.into_iter().map(|(_, change)| change).collect()
    }
}

fn may_run(allowed: &Option<CpuSet>, cpu: CpuId) -> bool {
    allowed.as_ref().is_none_or(|allowed| allowed.contains(cpu))
}

/// A matching: for each item a place of its own, of its allowed ones: the first that is free, and where
/// none is, one whose holder finds another.
fn matched(
    count: usize,
    places: &[usize],
    may: impl Fn(usize, usize) -> bool,
) -> Option<Vec<usize>> {
    /// Finds a place for one item; those in `seen` are being tried already.
    fn find(
        one: usize,
        held: &mut [Option<usize>],
        seen: &mut [bool],
        may: &dyn Fn(usize, usize) -> bool,
    ) -> bool {
        let free = (0..held.len()).find(|at| held[*at].is_none() && may(one, *at));
        if let Some(at) = free {
            held[at] = Some(one);
            return true;
        }
        for at in 0..held.len() {
            if seen[at] || !may(one, at) {
                continue;
            }
            seen[at] = true;
            let moves = held[at].is_some_and(|other| find(other, held, seen, may));
            if moves {
                held[at] = Some(one);
                return true;
            }
        }
        false
    }
    let mut held = vec![None; places.len()];
    let may = |one: usize, at: usize| may(one, places[at]);
    for one in 0..count {
        if !find(one, &mut held, &mut vec![false; places.len()], &may) {
            return None;
        }
    }
    let of = |one| held.iter().position(|it| *it == Some(one));
    (0..count).map(|one| Some(places[of(one)?])).collect()
}

/// The greatest multiple of [`STEP_NS`] from `least` on, and below `below`, that fits; `None`: not even
/// `least` fits.
fn most(least: u64, below: u64, fits: impl Fn(u64) -> bool) -> Option<u64> {
    let least = least.div_ceil(STEP_NS);
    let (mut low, mut high) = (least, below.div_ceil(STEP_NS));
    if low >= high || !fits(low * STEP_NS) {
        return None;
    }
    while high - low > 1 {
        let middle = low.midpoint(high);
        match fits(middle * STEP_NS) {
            true => low = middle,
            false => high = middle,
        }
    }
    Some(low * STEP_NS)
}

/// The servers on a CPU, and one more.
fn servers(placed: &[Placed], more: Option<&Server>) -> Vec<Server> {
    let placed = placed.iter().map(|it| it.server);
    placed.chain(more.copied()).collect()
}
