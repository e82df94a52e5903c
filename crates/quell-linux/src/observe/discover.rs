//! The processes of the host, and the tenant that each process belongs to.
//!
//! Everything is seen from the initial pid namespace, so containers need no special case. All
//! processes are kept, not only those of tenants: whether a process descends from a selected pid
//! is known only from its ancestors, even after the ancestors have ended.
//!
//! A first scan reads all of `/proc`. Later changes come from the monitor's events
//! ([`Discovery::forked`], [`Discovery::look_again`], [`Discovery::exited`]) or, without it, from
//! listing `/proc` ([`Discovery::relist`]). A process that forks has the same executable, command
//! line and cgroup in its child, so the child joins the same tenant without being examined; after
//! exec, and in another cgroup, a process is examined anew. Events may get lost, and a thread that moves
//! without its process raises none, so [`Discovery::step`] also examines a slice of all processes again each
//! period.

use super::ObserveError;
use super::cgroup::Paths;
use super::container_names::ContainerNames;
use super::kvm;
use super::proc::{self, NumberWalk, Reader, Stat};
use super::qemu;
use super::roster::Roster;
use super::selector::{Facts, Owner, Selectors, TenantIndex};
use super::sources;
use quell_model::ThreadRole;
use quell_sys::clock;
use std::collections::{BTreeMap, BTreeSet};

/// The most processes examined again in a period, for the background pass and for events each. Processes
/// beyond it wait for the next period.
const STEP_LIMIT: usize = 16;
const PENDING_LIMIT: usize = 64;

/// Periods in which the background pass examines every process once, if [`STEP_LIMIT`] allows: 10 s of
/// 80 ms periods.
const PERIODS_PER_PASS: usize = 125;

/// Periods after which KVM is asked again for the threads of virtual CPUs, where QEMU does not name them: a
/// second of 80 ms periods.
const PERIODS_PER_ASKING: u32 = 12;

/// A process of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    /// Start time, as in [`quell_model::ThreadId`]; `None` of a forked process that was not examined yet.
    start_ticks: Option<u64>,
    pub(crate) tenant: Option<TenantIndex>,
    pub(crate) kind: Kind,
    /// Whether the process is a QEMU that does not name its threads, as far as its command line tells.
    nameless: bool,
    /// Whether it has ended and only waits to be reaped.
    ended: bool,
    parent: u32,
    /// The first tenant whose `pid` selector names this process or an ancestor.
    lineage: Option<TenantIndex>,
    /// The background pass that saw the process last.
    pass: u32,
}

/// The kind of a process, as far as the roles of its threads depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Ordinary,
    Qemu,
    /// A kernel thread; it belongs to a tenant only if it is one of the tenant's vhost workers.
    Kernel,
}

pub(crate) struct Discovery {
    root: String,
    selectors: Selectors,
    roster: Roster,
    names: ContainerNames,
    processes: BTreeMap<u32, Process>,
    /// For each place of the roster, the tenant's processes.
    members: Vec<BTreeSet<u32>>,
    /// Start times of the processes that `pid` selectors took: a later process with the same id is
    /// another process.
    taken: BTreeMap<u32, u64>,
    /// For each table's tenant, a process that it would have if the process did not belong to an earlier
    /// tenant; looked for where the tenant has no process.
    elsewhere: Vec<Option<u32>>,
    /// Processes still to be examined.
    pending: BTreeSet<u32>,
    /// The position of the background pass, and the number of passes so far.
    walk: NumberWalk,
    pass: u32,
    /// The number of processes that the background pass should have examined, times [`PERIODS_PER_PASS`].
    owed: usize,
    /// Tenants that gained or lost a process since [`Discovery::take_changed`].
    changed: BTreeSet<TenantIndex>,
    /// Counts changes of the [`Kind`] of a process, and of `vcpus`.
    kinds_epoch: u64,
    /// KVM's part of debugfs, the virtual CPUs that it told of nameless QEMUs, the periods since it was
    /// asked, and whether it once refused.
    kvm: String,
    vcpus: BTreeMap<u32, u32>,
    asked: u32,
    refused: bool,
    stat: Reader,
    cgroup: Reader,
    cmdline: Reader,
}

impl Discovery {
    /// Scans all processes below `root` (`/proc`); `kvm` is KVM's part of debugfs.
    pub(crate) fn new(
        root: &str,
        kvm: &str,
        selectors: Selectors,
        roster: Roster,
        names: ContainerNames,
    ) -> Result<Discovery, ObserveError> {
        let mut discovery = Discovery {
            root: root.to_string(),
            processes: BTreeMap::new(),
            members: vec![BTreeSet::new(); roster.places()],
            taken: BTreeMap::new(),
            elsewhere: vec![None; selectors.tables()],
            selectors,
            roster,
            names,
            pending: BTreeSet::new(),
            walk: NumberWalk::open(root)?,
            pass: 0,
            owed: 0,
            changed: BTreeSet::new(),
            kinds_epoch: 0,
            kvm: kvm.to_string(),
            vcpus: BTreeMap::new(),
            asked: 0,
            refused: false,
            stat: Reader::default(),
            cgroup: Reader::default(),
            cmdline: Reader::default(),
        };
        discovery.relist()?;
        discovery.ask_kvm();
        Ok(discovery)
    }

    /// The tenants, by place.
    pub(crate) fn roster(&self) -> &Roster {
        &self.roster
    }

    /// The places that got another tenant since the last call.
    pub(crate) fn take_reused(&mut self) -> Vec<TenantIndex> {
        self.roster.take_reused()
    }

    /// Lets the tenants go that rules found and that have no process any more: those of these places.
    /// Returns the places that were left.
    pub(crate) fn dismiss(&mut self, places: Vec<TenantIndex>) -> Vec<TenantIndex> {
        let (members, roster) = (&self.members, &mut self.roster);
        let gone = places.into_iter().filter(|&it| members[it].is_empty());
        gone.filter(|&it| roster.leave(it)).collect()
    }

    /// The processes of a tenant, ascending.
    pub(crate) fn members(&self, tenant: TenantIndex) -> &BTreeSet<u32> {
        &self.members[tenant]
    }

    /// The earlier tenant that has the processes which a table's tenant without processes would have.
    pub(crate) fn taken_by(&self, tenant: TenantIndex) -> Option<TenantIndex> {
        let elsewhere = self.elsewhere.get(tenant).copied().flatten()?;
        let process = self.processes.get(&elsewhere)?;
        let by = process.tenant.filter(|&by| by < tenant);
        by.filter(|_| self.members[tenant].is_empty())
    }

    /// All processes, ascending by id.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (u32, &Process)> {
        self.processes.iter().map(|(&pid, process)| (pid, process))
    }

    pub(crate) fn process(&self, pid: u32) -> Option<&Process> {
        self.processes.get(&pid)
    }

    /// The role of a thread of this name.
    pub(crate) fn role(&self, process: u32, tid: u32, name: &str) -> ThreadRole {
        match self.process(process).map_or(Kind::Ordinary, |it| it.kind) {
            Kind::Ordinary => ThreadRole::Ordinary,
            Kind::Kernel => ThreadRole::Io,
            Kind::Qemu => {
                let number = self.vcpus.get(&tid).copied();
                number.map_or_else(|| qemu::role(name), ThreadRole::Vcpu)
            }
        }
    }

    /// A counter that changes whenever the result of [`Discovery::role`] may change.
    pub(crate) fn kinds_epoch(&self) -> u64 {
        self.kinds_epoch
    }

    /// The tenants that gained or lost a process since the last call.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<TenantIndex> {
        std::mem::take(&mut self.changed)
    }

    /// Lists `/proc`: forgets the processes that are gone and examines the new ones.
    pub(crate) fn relist(&mut self) -> Result<(), ObserveError> {
        let listed = proc::numbers_in(&self.root)?.ok_or_else(|| {
            ObserveError::read(&self.root, std::io::Error::from_raw_os_error(libc::ENOENT))
        })?;
        let gone: Vec<u32> = self
            .processes
            .keys()
            .copied()
            .filter(|p| listed.binary_search(p).is_err())
            .collect();
        gone.into_iter().for_each(|pid| self.exited(pid));
        let new: Vec<u32> = listed
            .into_iter()
            .filter(|pid| !self.processes.contains_key(pid))
            .collect();
        // All processes enter the table first, so that a child finds its parent whatever their ids.
        for &pid in &new {
            self.enter(pid)?;
        }
        // Kernel threads last: a vhost worker belongs to its owner's tenant.
        let (kernel, user): (Vec<u32>, Vec<u32>) = new.into_iter().partition(|pid| {
            self.processes
                .get(pid)
                .is_some_and(|p| p.kind == Kind::Kernel)
        });
        for pid in user.into_iter().chain(kernel) {
            self.look(pid)?;
        }
        Ok(())
    }

    /// Takes the event that a process was created by another.
    pub(crate) fn forked(&mut self, parent: u32, child: u32) {
        self.exited(child); // an earlier process of this id, whose exit was not seen
        let Some(origin) = self.processes.get(&parent) else {
            self.pending.insert(child);
            return;
        };
        let process = Process {
            start_ticks: None,
            parent,
            pass: self.pass,
            ..origin.clone()
        };
        let tenant = process.tenant;
        self.processes.insert(child, process);
        self.join(child, tenant);
        if self.selectors.by_pid(child).is_some() {
            self.pending.insert(child);
        }
    }

    /// Takes the event that a process runs another program now, or is in another cgroup.
    pub(crate) fn look_again(&mut self, pid: u32) {
        self.pending.insert(pid);
    }

    /// Takes the event that a process is gone.
    pub(crate) fn exited(&mut self, pid: u32) {
        self.pending.remove(&pid);
        self.join(pid, None);
        self.processes.remove(&pid);
    }

    /// Asks KVM which threads run virtual CPUs, for QEMUs that do not name their threads.
    fn ask_kvm(&mut self) {
        self.asked = 0;
        let nameless = |process: u32| self.process(process).is_some_and(|it| it.nameless);
        let some = self.processes.values().any(|it| it.nameless);
        let vcpus = match some {
            true => kvm::vcpus(&self.kvm, nameless),
            false => Ok(BTreeMap::new()),
        };
        let vcpus = vcpus.unwrap_or_else(|error| {
            if !self.refused {
                let path = &self.kvm;
                tracing::warn!(%error, path, "KVM does not tell which threads of QEMUs without debug-threads=on run virtual CPUs");
            }
            self.refused = true;
            BTreeMap::new()
        });
        if vcpus != self.vcpus {
            self.vcpus = vcpus;
            self.kinds_epoch += 1;
        }
    }

    /// Examines the processes that had events, and the next slice of all processes.
    pub(crate) fn step(&mut self) -> Result<(), ObserveError> {
        self.roster.goes_on(clock::monotonic_ns());
        self.asked += 1;
        if self.asked == PERIODS_PER_ASKING {
            self.ask_kvm();
        }
        for _ in 0..PENDING_LIMIT {
            let Some(pid) = self.pending.pop_first() else {
                break;
            };
            self.enter(pid)?;
            self.look(pid)?;
        }
        // What is left of a period's share counts in the next period, so that small hosts pay little.
        self.owed = (self.owed + self.processes.len() + 1).min(STEP_LIMIT * PERIODS_PER_PASS);
        for _ in 0..self.owed / PERIODS_PER_PASS {
            match self.walk.next()? {
                Some(pid) => {
                    self.enter(pid)?;
                    self.look(pid)?;
                }
                None => self.end_pass(),
            }
        }
        self.owed %= PERIODS_PER_PASS;
        Ok(())
    }

    /// Forgets the processes that the pass that just ended did not see.
    fn end_pass(&mut self) {
        let pass = self.pass;
        let gone: Vec<u32> = self
            .processes
            .iter()
            .filter(|(_, p)| p.pass != pass)
            .map(|(&pid, _)| pid)
            .collect();
        gone.into_iter().for_each(|pid| self.exited(pid));
        self.pass = pass.wrapping_add(1);
    }

    /// Puts a process into the table, or refreshes what its `stat` file says. Removes it if it is gone.
    fn enter(&mut self, pid: u32) -> Result<(), ObserveError> {
        let text = self.stat.read(format_args!("{}/{pid}/stat", self.root))?;
        let Some(stat) = text.and_then(Stat::parse) else {
            self.exited(pid);
            return Ok(());
        };
        let (start_ticks, parent) = (Some(stat.starttime), stat.ppid);
        let (kernel, pass) = (stat.kernel_thread, self.pass);
        // The first thread may end before the others.
        let ended = matches!(stat.state, b'Z' | b'X') && stat.threads <= 1;
        if let Some(process) = self.processes.get_mut(&pid) {
            if process.start_ticks.is_none() || process.start_ticks == start_ticks {
                *process = Process {
                    start_ticks,
                    parent,
                    pass,
                    ended,
                    ..process.clone()
                };
                return Ok(());
            }
        }
        self.exited(pid);
        let kind = if kernel { Kind::Kernel } else { Kind::Ordinary };
        let process = Process {
            start_ticks,
            tenant: None,
            kind,
            nameless: false,
            ended,
            parent,
            lineage: None,
            pass,
        };
        self.processes.insert(pid, process);
        Ok(())
    }

    /// Finds the tenant of a process of the table, by everything that can be read about the process.
    fn look(&mut self, pid: u32) -> Result<(), ObserveError> {
        let Some(process) = self.processes.get(&pid) else {
            return Ok(());
        };
        if pid == std::process::id() {
            return Ok(()); // to slow or move Quell itself would slow or stop the observation
        }
        if process.ended {
            self.join(pid, None);
            return Ok(());
        }
        if process.kind == Kind::Kernel {
            let text = self.stat.read(format_args!("{}/{pid}/stat", self.root))?;
            let owner = text
                .and_then(Stat::parse)
                .and_then(|stat| qemu::vhost_owner(stat.comm));
            let tenant = owner.and_then(|owner| self.processes.get(&owner)?.tenant);
            self.join(pid, tenant);
            return Ok(());
        }
        let lineage = self.lineage(pid);
        let root = &self.root;
        let needs = self.selectors.needs;
        let cgroup = match needs.cgroup {
            true => self
                .cgroup
                .read(format_args!("{root}/{pid}/cgroup"))?
                .unwrap_or_default(),
            false => &[],
        };
        let cgroups: Vec<&str> = Paths::parse(cgroup).all().collect();
        let mut exe = if needs.exe {
            executable(root, pid)?
        } else {
            None
        };
        let vmm = exe.as_deref();
        let vmm = vmm.filter(|exe| needs.vms && sources::is_vmm(exe));
        let leader = match vmm {
            Some(exe) => leader(&self.processes, root, pid, exe)?,
            None => pid,
        };
        let mut cmdline: &[u8] = &[];
        let reads_arguments = needs.cmdline || vmm.is_some();
        if reads_arguments {
            let text = self.cmdline.read(format_args!("{root}/{pid}/cmdline"))?;
            cmdline = text.unwrap_or_default();
        }
        let facts = Facts {
            leader,
            lineage,
            cgroups: &cgroups,
            exe: exe.as_deref(),
            cmdline,
        };
        let owner = self.selectors.classify(&facts, &mut self.names);
        let (mut kind, mut nameless) = (Kind::Ordinary, false);
        let before = self.elsewhere.iter_mut().filter(|it| **it == Some(pid));
        before.for_each(|it| *it = None);
        let members = &self.members;
        let first = match owner {
            Some(Owner::Table(table)) => table + 1,
            Some(Owner::Found { .. }) | None => self.selectors.tables(),
        };
        let mut later = first..self.selectors.tables();
        while let Some(other) = self
            .selectors
            .first(&facts, later.by_ref().filter(|&it| members[it].is_empty()))
        {
            self.elsewhere[other] = Some(pid);
        }
        if owner.is_some() {
            if !needs.exe {
                exe = executable(root, pid)?;
            }
            if exe.as_deref().is_some_and(qemu::is_qemu) {
                if !reads_arguments {
                    let text = self.cmdline.read(format_args!("{root}/{pid}/cmdline"))?;
                    cmdline = text.unwrap_or_default();
                }
                kind = Kind::Qemu;
                nameless = qemu::has_machine(cmdline) && !qemu::names_threads(cmdline);
            }
        }
        let tenant = owner.and_then(|owner| self.place_of(owner));
        if let Some(process) = self.processes.get_mut(&pid) {
            process.lineage = lineage;
            self.kinds_epoch += u64::from(process.kind != kind);
            process.kind = kind;
            process.nameless = nameless;
        }
        self.join(pid, tenant);
        Ok(())
    }

    /// The place of a process's tenant. A thing that no process belonged to before gets one.
    fn place_of(&mut self, owner: Owner) -> Option<TenantIndex> {
        let (rule, name, thing) = match owner {
            Owner::Table(table) => return Some(table),
            Owner::Found { rule, name, thing } => (rule, name, thing),
        };
        if let Some(place) = self.roster.found(rule, &thing.id) {
            return Some(place);
        }
        let labels = thing.labels.iter();
        let labels = labels.map(|(&label, value)| (label.to_string(), value.clone()));
        let selectors = &self.selectors;
        let source = (
            "source".to_string(),
            selectors.source(rule).as_str().to_string(),
        );
        let labels = labels.chain([source]).collect();
        let place = self.roster.enter(rule, &thing.id, &name, labels, |name| {
            selectors.spec_of(rule, name, &thing)
        })?;
        if self.members.len() <= place {
            self.members.resize_with(place + 1, BTreeSet::new);
        }
        Some(place)
    }

    /// The first tenant whose `pid` selector named this process or an ancestor. A tenant once found
    /// stays: a process remains a descendant when its parent ends and init adopts it.
    fn lineage(&mut self, pid: u32) -> Option<TenantIndex> {
        let mut found = None;
        let mut current = pid;
        // Parents form a tree; the limit only guards against a table that changed half-way.
        for _ in 0..1024 {
            let Some(process) = self.processes.get(&current) else {
                break;
            };
            let by_pid = self.selectors.by_pid(current).filter(|_| {
                let start = process.start_ticks;
                start.is_some_and(|start| *self.taken.entry(current).or_insert(start) == start)
            });
            found = [found, process.lineage, by_pid].into_iter().flatten().min();
            current = process.parent;
        }
        found
    }

    /// Moves a process from the tenant it was in to `tenant`.
    fn join(&mut self, pid: u32, tenant: Option<TenantIndex>) {
        let Some(process) = self.processes.get_mut(&pid) else {
            return;
        };
        let before = std::mem::replace(&mut process.tenant, tenant);
        if before != tenant {
            if let Some(before) = before {
                self.members[before].remove(&pid);
                self.changed.insert(before);
            }
        }
        if let Some(tenant) = tenant {
            if self.members[tenant].insert(pid) {
                self.changed.insert(tenant);
            }
        }
    }
}

/// The first of the processes that run a virtual machine with this one: its nearest ancestors that run the
/// same program.
fn leader(
    processes: &BTreeMap<u32, Process>,
    root: &str,
    pid: u32,
    exe: &[u8],
) -> Result<u32, ObserveError> {
    let mut leader = pid;
    // Parents form a tree; the limit only guards against a table that changed half-way.
    for _ in 0..64 {
        let Some(parent) = processes.get(&leader).map(|it| it.parent) else {
            break;
        };
        if executable(root, parent)?.as_deref() != Some(exe) {
            break;
        }
        leader = parent;
    }
    Ok(leader)
}

/// The path of a process's executable, without the mark of a file that was replaced meanwhile.
fn executable(root: &str, pid: u32) -> Result<Option<Vec<u8>>, ObserveError> {
    let path = format!("{root}/{pid}/exe");
    let target = proc::present(&path, std::fs::read_link(&path))?;
    Ok(target.map(|target| {
        let mut bytes = target.into_os_string().into_encoded_bytes();
        if bytes.ends_with(b" (deleted)") {
            bytes.truncate(bytes.len() - b" (deleted)".len());
        }
        bytes
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_model::TenantName;
    use quell_model::config::{self, AgentTenant, Each, TenantClass, TenantRule};
    use std::fs;
    use std::path::Path;

    /// A process of a made-up `/proc`.
    struct Fake<'a> {
        pid: u32,
        parent: u32,
        start: u64,
        comm: &'a str,
        kernel: bool,
        exe: &'a str,
        cmdline: &'a str,
        cgroup: &'a str,
    }

    const ORDINARY: Fake<'_> = Fake {
        pid: 0,
        parent: 1,
        start: 100,
        comm: "x",
        kernel: false,
        exe: "/bin/x",
        cmdline: "x",
        cgroup: "0::/\n",
    };

    fn write(root: &Path, fake: &Fake<'_>) {
        let dir = root.join(fake.pid.to_string());
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        let Fake {
            pid,
            parent,
            start,
            comm,
            ..
        } = fake;
        let flags = if fake.kernel { PF_KTHREAD } else { 0 };
        let line = format!(
            "{pid} ({comm}) S {parent} 0 0 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0 0 0 0 0 0 0 \
             0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
        );
        fs::write(dir.join("stat"), line).unwrap();
        if !fake.kernel {
            std::os::unix::fs::symlink(fake.exe, dir.join("exe")).unwrap();
            fs::write(dir.join("cmdline"), fake.cmdline.replace(' ', "\0")).unwrap();
        }
        fs::write(dir.join("cgroup"), fake.cgroup).unwrap();
    }

    const PF_KTHREAD: u64 = 0x0020_0000;

    fn named(name: &str, change: impl Fn(&mut config::Selectors)) -> AgentTenant {
        let mut tenant = AgentTenant::named(name);
        change(&mut tenant.selectors);
        tenant
    }

    fn discover(root: &Path, specs: &[AgentTenant]) -> Discovery {
        discover_by(root, specs, &[])
    }

    fn discover_by(root: &Path, specs: &[AgentTenant], rules: &[TenantRule]) -> Discovery {
        let selectors = Selectors::new(specs, rules).unwrap();
        let roster = Roster::of(specs, 256);
        let kvm = root.join("kvm");
        let (root, kvm) = (root.to_str().unwrap(), kvm.to_str().unwrap());
        Discovery::new(root, kvm, selectors, roster, ContainerNames::none()).unwrap()
    }

    fn members(discovery: &Discovery, tenant: usize) -> Vec<u32> {
        discovery.members(tenant).iter().copied().collect()
    }

    #[test]
    fn descendants_of_a_pid_stay_when_their_parent_ends_and_when_they_exec() {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            &Fake {
                pid: 1,
                parent: 0,
                ..ORDINARY
            },
        );
        write(
            dir.path(),
            &Fake {
                pid: 50,
                ..ORDINARY
            },
        );
        // The child's id is below its parent's: ids wrap around.
        write(
            dir.path(),
            &Fake {
                pid: 7,
                parent: 50,
                ..ORDINARY
            },
        );
        write(
            dir.path(),
            &Fake {
                pid: 8,
                parent: 7,
                ..ORDINARY
            },
        );
        write(dir.path(), &Fake { pid: 9, ..ORDINARY });
        let mut discovery = discover(dir.path(), &[named("a", |s| s.pid = vec![50])]);
        assert_eq!(members(&discovery, 0), [7, 8, 50]);

        fs::remove_dir_all(dir.path().join("50")).unwrap();
        write(
            dir.path(),
            &Fake {
                pid: 7,
                parent: 1,
                exe: "/bin/other",
                ..ORDINARY
            },
        );
        discovery.relist().unwrap();
        discovery.look_again(7);
        discovery.step().unwrap();
        assert_eq!(members(&discovery, 0), [7, 8]);

        // Another process gets the selected id: not the process that was meant.
        write(
            dir.path(),
            &Fake {
                pid: 50,
                start: 900,
                ..ORDINARY
            },
        );
        discovery.relist().unwrap();
        assert_eq!(members(&discovery, 0), [7, 8]);
    }

    #[test]
    fn a_child_follows_its_parent_until_it_execs() {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            &Fake {
                pid: 10,
                exe: "/usr/bin/app",
                ..ORDINARY
            },
        );
        let mut discovery = discover(dir.path(), &[named("a", |s| s.exe = Some("app".into()))]);
        discovery.forked(10, 11);
        assert_eq!(members(&discovery, 0), [10, 11]);

        write(
            dir.path(),
            &Fake {
                pid: 11,
                parent: 10,
                start: 200,
                exe: "/bin/sh",
                ..ORDINARY
            },
        );
        discovery.look_again(11);
        discovery.step().unwrap();
        assert_eq!(members(&discovery, 0), [10]);

        discovery.exited(10);
        assert!(members(&discovery, 0).is_empty());
        assert_eq!(discovery.take_changed().len(), 1);
    }

    #[test]
    fn who_has_what_a_later_tenant_without_processes_would_have() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let sleeper = Fake {
            pid: 30,
            cmdline: "sleep 30",
            ..ORDINARY
        };
        write(root, &sleeper);
        let specs = [
            named("none", |it| it.cmdline = Some("nothing".to_string())),
            named("first", |it| it.cmdline = Some("sleep".to_string())),
            named("second", |it| it.pid = vec![30]),
            named("third", |it| it.cmdline = Some("30".to_string())),
        ];
        let mut discovery = discover(root, &specs);
        let taken = |discovery: &Discovery| [0, 1, 2, 3].map(|it| discovery.taken_by(it));
        assert_eq!(taken(&discovery), [None, None, Some(1), Some(1)]);
        discovery.exited(30);
        assert_eq!(taken(&discovery), [None; 4]);
    }

    #[test]
    fn a_reused_id_is_another_process() {
        let dir = tempfile::tempdir().unwrap();
        let specs = [named("a", |s| s.exe = Some("app".into()))];
        write(
            dir.path(),
            &Fake {
                pid: 10,
                exe: "/usr/bin/app",
                ..ORDINARY
            },
        );
        let mut discovery = discover(dir.path(), &specs);
        write(
            dir.path(),
            &Fake {
                pid: 10,
                start: 300,
                exe: "/bin/sh",
                ..ORDINARY
            },
        );
        for _ in 0..=PERIODS_PER_PASS {
            discovery.step().unwrap();
        }
        assert!(members(&discovery, 0).is_empty());
        assert_eq!(discovery.process(10).unwrap().start_ticks, Some(300));
    }

    #[test]
    fn the_background_notices_a_move_to_another_cgroup() {
        let dir = tempfile::tempdir().unwrap();
        for pid in 1..300 {
            write(dir.path(), &Fake { pid, ..ORDINARY });
        }
        let spec = named("a", |s| s.unit = Some("app".into()));
        let mut discovery = discover(dir.path(), &[spec]);
        assert!(members(&discovery, 0).is_empty());
        write(
            dir.path(),
            &Fake {
                pid: 137,
                cgroup: "0::/system.slice/app.service\n",
                ..ORDINARY
            },
        );
        for _ in 0..=PERIODS_PER_PASS {
            discovery.step().unwrap();
        }
        assert_eq!(members(&discovery, 0), [137], "within one pass");
    }

    #[test]
    fn virtual_machines_and_their_vhost_workers() {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            &Fake {
                pid: 20,
                kernel: true,
                comm: "vhost-30",
                ..ORDINARY
            },
        );
        write(
            dir.path(),
            &Fake {
                pid: 21,
                kernel: true,
                comm: "kworker/0:1",
                ..ORDINARY
            },
        );
        write(
            dir.path(),
            &Fake {
                pid: 30,
                exe: "/usr/bin/qemu-system-x86_64 (deleted)",
                cmdline: "qemu -name guest=web-1,debug-threads=on -S",
                ..ORDINARY
            },
        );
        let specs = [
            named("web", |s| s.libvirt = Some("web-*".into())),
            named("all", |s| s.cgroup = Some("**".into())),
        ];
        let discovery = discover(dir.path(), &specs);
        assert_eq!(members(&discovery, 0), [20, 30]);
        assert!(
            members(&discovery, 1).is_empty(),
            "kernel threads are no tenant's"
        );
        assert_eq!(discovery.process(30).unwrap().kind, Kind::Qemu);
    }

    #[test]
    fn virtual_cpus_of_a_qemu_that_does_not_name_its_threads() {
        let dir = tempfile::tempdir().unwrap();
        let qemu = |pid, cmdline| Fake {
            pid,
            exe: "/usr/bin/qemu-system-x86_64",
            cmdline,
            ..ORDINARY
        };
        write(dir.path(), &qemu(30, "qemu -name web -S"));
        write(dir.path(), &qemu(40, "qemu -name db,debug-threads=on -S"));
        let vcpu = |process: u32, number: u32, thread: u32| {
            let folder = dir.path().join(format!("kvm/{process}-9/vcpu{number}"));
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("pid"), format!("{thread}\n")).unwrap();
        };
        vcpu(30, 0, 32);
        vcpu(30, 1, 0);
        vcpu(40, 0, 41);
        let mut discovery = discover(dir.path(), &[named("vms", |s| s.pid = vec![30, 40])]);
        let name = "qemu-system-x86";
        assert_eq!(discovery.role(30, 32, name), ThreadRole::Vcpu(0));
        assert_eq!(discovery.role(30, 33, name), ThreadRole::Emulator);
        assert_eq!(discovery.role(40, 41, name), ThreadRole::Emulator);
        assert_eq!(discovery.role(40, 41, "CPU 7/KVM"), ThreadRole::Vcpu(7));

        // The second virtual CPU runs for the first time.
        vcpu(30, 1, 33);
        let epoch = discovery.kinds_epoch();
        for _ in 0..PERIODS_PER_ASKING {
            discovery.step().unwrap();
        }
        assert_eq!(discovery.role(30, 33, name), ThreadRole::Vcpu(1));
        assert_ne!(discovery.kinds_epoch(), epoch);

        // The virtual machine ends.
        fs::remove_dir_all(dir.path().join("kvm/30-9")).unwrap();
        for _ in 0..PERIODS_PER_ASKING {
            discovery.step().unwrap();
        }
        assert_eq!(discovery.role(30, 33, name), ThreadRole::Emulator);
    }

    fn service(pid: u32, unit: &str) -> (u32, String) {
        (pid, format!("0::/system.slice/{unit}.service\n"))
    }

    fn write_in(root: &Path, (pid, cgroup): (u32, String)) {
        write(
            root,
            &Fake {
                pid,
                cgroup: &cgroup,
                ..ORDINARY
            },
        );
    }

    /// The tenants that there are, with their processes.
    fn tenants(discovery: &Discovery) -> Vec<(String, Vec<u32>)> {
        let roster = discovery.roster();
        let places = roster.by_name();
        let all = places.map(|it| {
            let name = roster.name(it).unwrap().to_string();
            (name, members(discovery, it))
        });
        all.collect()
    }

    #[test]
    fn tenants_that_rules_find_come_and_go() {
        let dir = tempfile::tempdir().unwrap();
        write_in(dir.path(), service(10, "a"));
        write_in(dir.path(), service(11, "a"));
        write_in(dir.path(), service(20, "b"));
        let table = named("db", |s| s.unit = Some("db".into()));
        let mut rule = TenantRule::all(Each::Unit);
        rule.spec.class = TenantClass::Batch;
        rule.says_class = true;
        let mut discovery = discover_by(dir.path(), &[table], &[rule]);
        let seen = |discovery: &Discovery| {
            let all = tenants(discovery).into_iter();
            all.map(|(name, pids)| format!("{name} {pids:?}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            seen(&discovery),
            ["a.service [10, 11]", "b.service [20]", "db []"]
        );
        let a = discovery
            .roster()
            .place_of(&TenantName::from("a.service"))
            .unwrap();
        let tenant = discovery.roster().tenant(a).unwrap();
        assert_eq!(tenant.spec.class, TenantClass::Batch);
        assert_eq!(tenant.labels["slice"], "system.slice");
        assert_eq!(tenant.labels["source"], "unit");

        // One process moves to a service that is new, one to a table's, one ends.
        write_in(dir.path(), service(10, "c"));
        write_in(dir.path(), service(20, "db"));
        discovery.look_again(10);
        discovery.look_again(20);
        discovery.exited(11);
        discovery.step().unwrap();
        assert_eq!(
            seen(&discovery),
            ["a.service []", "b.service []", "c.service [10]", "db [20]"]
        );
        let all: Vec<usize> = discovery.roster().by_name().collect();
        assert_eq!(
            discovery.dismiss(all).len(),
            2,
            "those of rules without a process"
        );
        assert_eq!(seen(&discovery), ["c.service [10]", "db [20]"]);
    }

    #[test]
    fn a_process_that_waits_to_be_reaped_holds_no_tenant() {
        let dir = tempfile::tempdir().unwrap();
        write_in(dir.path(), service(10, "a"));
        let mut discovery = discover_by(dir.path(), &[], &[TenantRule::all(Each::Unit)]);
        assert_eq!(tenants(&discovery).len(), 1);
        let stat = dir.path().join("10/stat");
        let text = fs::read_to_string(&stat).unwrap();
        fs::write(&stat, text.replace(") S ", ") Z ")).unwrap();
        discovery.look_again(10);
        discovery.step().unwrap();
        assert_eq!(tenants(&discovery), [("a.service".to_string(), vec![])]);
    }

    #[test]
    fn the_processes_of_a_virtual_machine_are_one_tenant() {
        let dir = tempfile::tempdir().unwrap();
        let crosvm = |pid, parent| Fake {
            pid,
            parent,
            exe: "/usr/bin/crosvm",
            cmdline: "crosvm run",
            ..ORDINARY
        };
        for (pid, parent) in [(30, 1), (31, 30), (32, 31), (40, 1)] {
            write(dir.path(), &crosvm(pid, parent));
        }
        let mut discovery = discover_by(dir.path(), &[], &[TenantRule::all(Each::Vm)]);
        for pid in [31, 32] {
            discovery.look_again(pid);
        }
        discovery.step().unwrap();
        let expected = [("crosvm-30", vec![30, 31, 32]), ("crosvm-40", vec![40])];
        assert_eq!(
            tenants(&discovery),
            expected.map(|it| (it.0.to_string(), it.1))
        );
    }

    #[test]
    fn a_child_in_a_cgroup_of_its_own_is_found_when_it_execs() {
        let dir = tempfile::tempdir().unwrap();
        write_in(dir.path(), service(10, "a"));
        let mut discovery = discover_by(dir.path(), &[], &[TenantRule::all(Each::Unit)]);
        discovery.forked(10, 11);
        write_in(dir.path(), service(11, "b"));
        discovery.look_again(11);
        discovery.step().unwrap();
        let expected = [
            ("a.service".to_string(), vec![10]),
            ("b.service".to_string(), vec![11]),
        ];
        assert_eq!(tenants(&discovery), expected);
    }

    #[test]
    fn many_events_are_worked_off_over_periods() {
        let dir = tempfile::tempdir().unwrap();
        let mut discovery = discover(dir.path(), &[named("a", |s| s.exe = Some("app".into()))]);
        // Beyond the kernel's PID_MAX_LIMIT, so that no process is this test's own, which is left out.
        const FIRST: u32 = 1 << 22;
        for pid in FIRST..FIRST + 200 {
            write(
                dir.path(),
                &Fake {
                    pid,
                    exe: "/bin/app",
                    ..ORDINARY
                },
            );
            discovery.forked(999, pid); // a parent that was never seen
        }
        discovery.step().unwrap();
        let found = members(&discovery, 0).len();
        assert!(
            (PENDING_LIMIT..=PENDING_LIMIT + STEP_LIMIT).contains(&found),
            "{found}"
        );
        for _ in 0..3 {
            discovery.step().unwrap();
        }
        assert_eq!(members(&discovery, 0).len(), 200);
    }
}
