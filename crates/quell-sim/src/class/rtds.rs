//! Xen's RTDS (xen/common/sched/rt.c, out of RT-Xen): global earliest deadline first among deferrable servers.
//!
//! Each vCPU, here a thread, is a server: in each period it may run for its budget. Its deadline is the period's end; then
//! it gets a full budget again. The budget is kept while it sleeps, and only running uses it up. The earliest deadlines run,
//! on any CPU; a vCPU that wakes gets an idle CPU, else the one whose vCPU has the latest deadline, if that is later than its
//! own. A vCPU without budget waits for the next period; with `extra` time (Xen's default) it goes on with another budget
//! one level lower, below all that have their own.
//!
//! Periods begin at multiples of their length, as in Xen, where a vCPU's deadlines are counted from 0 on.
//!
//! Not modelled: what replenishments and the global lock cost.
//!
//! Sources: xen/common/sched/rt.c of 2026; Xi, Wilson, Lu and Gill, "RT-Xen", EMSOFT 2011.

use super::queue::{Global, Ready};
use super::{Class, Pick};
use crate::events::Nanos;
use crate::machine::{Machine, State, ThreadId};
use quell_model::CpuId;

/// What a vCPU gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Server {
    /// How often it gets its budget.
    pub period: Nanos,
    /// For how long it may run in each period.
    pub budget: Nanos,
    /// It may also use what nobody else has a budget for.
    pub extra: bool,
}

impl Server {
    /// Xen's defaults: 4 of every 10 ms, and extra time.
    pub const XEN: Server = Server {
        period: 10_000_000,
        budget: 4_000_000,
        extra: true,
    };
}

/// Level and deadline.
type Key = (u32, Nanos);

#[derive(Debug, Clone, Default)]
struct Vcpu {
    key: Key,
    /// What is left of its budget.
    left: Nanos,
    /// Its CPU time that was taken off the budget.
    counted: Nanos,
    /// It is among the deadlines.
    listed: bool,
}

/// The class.
#[derive(Debug)]
pub struct Rtds {
    default: Server,
    /// By tenant, as far as given.
    tenants: Vec<Server>,
    vcpus: Vec<Vcpu>,
    global: Global<Key>,
    /// When those that do not sleep get their next budget; some that do sleep are still there.
    deadlines: Ready<Nanos>,
    /// Which of these the timer is set for.
    armed: Option<Nanos>,
    /// How often it was set: what it was set for before is over.
    armings: u32,
    /// Room for [`Class::timer`].
    replenished: Vec<ThreadId>,
}

impl Rtds {
    /// For a machine of so many CPUs: what the threads of each tenant get, and those of the tenants beyond.
    pub fn new(cpus: usize, tenants: Vec<Server>, default: Server) -> Rtds {
        Rtds {
            default,
            tenants,
            vcpus: Vec::new(),
            global: Global::new(cpus),
            deadlines: Ready::new(),
            armed: None,
            armings: 0,
            replenished: Vec::new(),
        }
    }

    fn server(&self, machine: &Machine, thread: ThreadId) -> Server {
        let tenant = machine.thread(thread).tenant;
        *self.tenants.get(tenant).unwrap_or(&self.default)
    }

    fn vcpu(&mut self, thread: ThreadId) -> &mut Vcpu {
        if self.vcpus.len() <= thread.index() {
            self.vcpus.resize(thread.index() + 1, Vcpu::default());
        }
        &mut self.vcpus[thread.index()]
    }

    /// Takes what it ran off its budget.
    fn burn(&mut self, machine: &Machine, thread: ThreadId) {
        let server = self.server(machine, thread);
        let ran = machine.cpu_time(thread);
        let vcpu = self.vcpu(thread);
        vcpu.left = vcpu.left.saturating_sub(ran - vcpu.counted);
        vcpu.counted = ran;
        if vcpu.left == 0 && server.extra {
            vcpu.key.0 = vcpu.key.0.saturating_add(1);
            vcpu.left = server.budget;
        }
    }

    /// The period that is now, with a full budget.
    fn replenish(&mut self, machine: &Machine, thread: ThreadId) {
        let server = self.server(machine, thread);
        let period = server.period.max(1);
        let vcpu = self.vcpu(thread);
        vcpu.key = (0, (machine.now / period + 1) * period);
        vcpu.left = server.budget;
    }

    /// Sets the timer for the first deadline.
    fn arm(&mut self, machine: &mut Machine) {
        let first = self.deadlines.iter().next().map(|(at, _)| at);
        if let Some(at) = first.filter(|_| first != self.armed) {
            self.armings = self.armings.wrapping_add(1);
            machine.set_timer(at, self.armings);
            self.armed = first;
        }
    }

    fn insert(&mut self, thread: ThreadId) {
        let it = &self.vcpus[thread.index()];
        if it.left > 0 {
            self.global.ready.insert(it.key, thread);
        }
    }

    fn tickle(&mut self, machine: &mut Machine, thread: ThreadId, except: Option<CpuId>) {
        let vcpus = &self.vcpus;
        let it = &vcpus[thread.index()];
        if it.left > 0 {
            let running = |_: &Machine, other: ThreadId| vcpus[other.index()].key;
            (self.global).tickle(machine, (it.key, thread), except, running);
        }
    }
}

impl Class for Rtds {
    fn wake(&mut self, machine: &mut Machine, thread: ThreadId) {
        if machine.now >= self.vcpu(thread).key.1 {
            self.replenish(machine, thread);
        }
        let vcpu = self.vcpu(thread);
        if !std::mem::replace(&mut vcpu.listed, true) {
            let deadline = vcpu.key.1;
            self.deadlines.insert(deadline, thread);
            self.arm(machine);
        }
        self.insert(thread);
        self.tickle(machine, thread, None);
    }

    fn set_allowed(&mut self, machine: &mut Machine, thread: ThreadId) {
        if machine.thread(thread).state == State::Ready {
            self.tickle(machine, thread, None);
        }
    }

    fn pick(&mut self, machine: &mut Machine, cpu: CpuId, ran: Option<ThreadId>) -> Option<Pick> {
        if let Some(thread) = ran {
            self.burn(machine, thread);
        }
        let of_ran = ran.map(|thread| (&self.vcpus[thread.index()], thread));
        let of_ran = of_ran.filter(|(vcpu, _)| vcpu.left > 0);
        let of_ran = of_ran.map(|(vcpu, thread)| (vcpu.key, thread));
        let next = self.global.next(machine, cpu, of_ran);
        if let Some(thread) = ran.filter(|_| ran != next) {
            self.insert(thread);
            self.tickle(machine, thread, Some(cpu));
        }
        next.map(|thread| Pick {
            thread,
            turn: Some(self.vcpus[thread.index()].left),
        })
    }

    fn block(&mut self, machine: &mut Machine, _cpu: CpuId, thread: ThreadId) {
        self.burn(machine, thread);
    }

    fn expects_timer(&self, token: u32) -> bool {
        self.armings == token
    }

    /// The first deadline is there, if it is still the one that the timer was set for.
    fn timer(&mut self, machine: &mut Machine, token: u32) {
        if !self.expects_timer(token) {
            return;
        }
        self.armed = None;
        let mut replenished = std::mem::take(&mut self.replenished);
        while self
            .deadlines
            .iter()
            .next()
            .is_some_and(|(at, _)| at <= machine.now)
        {
            replenished.extend(self.deadlines.remove(0));
        }
        // Who sleeps gets its budget when it wakes.
        replenished.retain(|&thread| {
            let blocked = machine.thread(thread).state == State::Blocked;
            self.vcpu(thread).listed = !blocked;
            !blocked
        });
        for &thread in &replenished {
            // It may have slept past that deadline and have another now.
            if machine.now >= self.vcpu(thread).key.1 {
                self.burn(machine, thread);
                self.replenish(machine, thread);
                if self.global.ready.take(thread) || machine.thread(thread).state == State::Ready {
                    self.insert(thread);
                }
            }
            let deadline = self.vcpu(thread).key.1;
            self.deadlines.insert(deadline, thread);
        }
        for thread in replenished.drain(..) {
            match machine.thread(thread).state {
                State::Ready => self.tickle(machine, thread, None),
                // Its deadline is later now, maybe later than that of one who waits.
                State::Running(_) => {
                    let first = self.global.ready.iter().next();
                    let key = self.vcpu(thread).key;
                    if let Some((_, first)) = first.filter(|&(other, _)| other < key) {
                        self.tickle(machine, first, None);
                    }
                }
                State::Blocked | State::Ended => {}
            }
        }
        self.replenished = replenished;
        self.arm(machine);
    }
}
