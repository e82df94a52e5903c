//! What one measuring window yields for one tenant.

use hdrhistogram::Histogram;
use quell_model::config::TenantClass;
use quell_model::{Occasions, TenantName};
use quell_trace::{Delays, ProcessStats};
use std::collections::BTreeMap;

/// The least latency told apart, in ns.
const LEAST_NS: u64 = 1_000;
/// The greatest; longer ones count as this.
const GREATEST_NS: u64 = 60_000_000_000;

/// An empty latency histogram: ns, 1 µs to 60 s, three significant digits.
pub fn latency_histogram() -> Histogram<u64> {
    // The only errors are bounds that contradict each other; these do not.
    #[expect(clippy::expect_used)]
    Histogram::new_with_bounds(LEAST_NS, GREATEST_NS, 3).expect("sound bounds")
}

/// What one window yielded for one tenant. Requests belong to the window in which they were
/// *intended*, whenever they were answered.
#[derive(Debug, Clone)]
pub struct Measurement {
    /// The tenant.
    pub tenant: TenantName,
    /// Its class.
    pub class: TenantClass,
    /// Time from the intended start to the answer, in ns, one value for each request of the window,
    /// failed ones included and those due near a pause left out. Empty for a tenant without load.
    pub latency: Histogram<u64>,
    /// Requests intended in the window.
    pub requests: u64,
    /// Those of them that failed: wrong answer, connection lost, or no answer in time.
    pub errors: u64,
    /// Work done in the window by a tenant without load.
    pub work: Option<f64>,
    /// What `work` counts: `bytes` (xz) or `rounds` (turns of thread programs); else empty.
    pub work_unit: &'static str,
    /// CPU time its processes used in the window, in ns.
    pub cpu_ns: u64,
    /// The same by thread program, for tenants of those; of a VM, what its guest's threads used is not known.
    pub programs_ns: BTreeMap<String, u64>,
    /// How long the window was for `work` and `cpu_ns`, in ns.
    pub length_ns: u64,
    /// How well the load generator did its own part; `None` without load.
    pub generator: Option<GeneratorReport>,
    /// What the scheduler did to its threads; `None` unless that was recorded.
    pub scheduling: Option<Scheduling>,
    /// Seconds of the window in which the 99th percentile of what was due then missed the objective; `None`
    /// where that was not looked at.
    pub late_seconds: Option<u64>,
    /// What its guest did, of a VM on the simulator.
    pub guest: Option<GuestCounts>,
}

/// What a VM's guest did in a window, and its threads on the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GuestCounts {
    /// Switches of the guest's scheduler, to and from idling too.
    pub switches: u64,
    /// CPU time of its virtual CPUs as the guest counts it, in ns: without idling, polling and steal.
    pub used_ns: u64,
    /// VM exits.
    pub exits: u64,
    /// Switches of the host to its virtual CPUs.
    pub loads: u64,
    /// How long its threads were ready before virtual CPUs ran them, all together, in ns; what they waited
    /// with their virtual CPU is none of it.
    pub waited_ns: u64,
    /// How long its virtual CPUs were ready before the host ran them, all together, in ns.
    pub steal_ns: u64,
    /// CPU time of its virtual CPUs' threads on the host, in ns, and of its emulator threads.
    pub vcpus_ns: u64,
    /// The latter.
    pub emulators_ns: u64,
}

impl GuestCounts {
    fn each(&mut self, other: &GuestCounts, with: impl Fn(u64, u64) -> u64) {
        for (own, other) in [
            (&mut self.switches, other.switches),
            (&mut self.used_ns, other.used_ns),
            (&mut self.exits, other.exits),
            (&mut self.loads, other.loads),
            (&mut self.waited_ns, other.waited_ns),
            (&mut self.steal_ns, other.steal_ns),
            (&mut self.vcpus_ns, other.vcpus_ns),
            (&mut self.emulators_ns, other.emulators_ns),
        ] {
            *own = with(*own, other);
        }
    }

    /// What was since `before`.
    pub fn since(mut self, before: &GuestCounts) -> GuestCounts {
        self.each(before, u64::saturating_sub);
        self
    }

    /// Adds other VMs, or another window.
    pub fn add(&mut self, other: &GuestCounts) {
        self.each(other, u64::saturating_add);
    }
}

/// What the scheduler did to threads in a window.
#[derive(Debug, Clone, Default)]
pub struct Scheduling {
    /// How long they were ready before they ran.
    pub delays: Delays,
    /// Times that one got a CPU.
    pub switches: u64,
    /// Times that one left a CPU though it was ready.
    pub preemptions: u64,
    /// Times that one got another CPU than the time before.
    pub migrations: u64,
    /// Times that one was woken.
    pub wakeups: u64,
    /// How long some were ready while others of their process were blocked, and their processes' busy
    /// periods.
    pub occasions: Occasions,
}

impl Scheduling {
    /// Adds a process of a trace.
    pub fn add_process(&mut self, process: &ProcessStats) {
        self.add(&Scheduling {
            delays: process.delays.clone(),
            switches: process.switches,
            preemptions: process.preemptions,
            migrations: process.migrations,
            wakeups: process.wakeups,
            occasions: process.occasions.clone(),
        });
    }

    /// Adds other threads, or another window.
    pub fn add(&mut self, other: &Scheduling) {
        self.delays.merge(&other.delays);
        self.switches += other.switches;
        self.preemptions += other.preemptions;
        self.migrations += other.migrations;
        self.wakeups += other.wakeups;
        self.occasions.add(&other.occasions);
    }
}

/// How well the load generator did its own part, on which latencies depend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GeneratorReport {
    /// Why its thread could not run at real-time priority, if it could not: then it may itself
    /// have waited for the tenants it loads.
    pub not_realtime: Option<String>,
    /// 99th percentile of how late requests were sent, in ns. Part of their latency.
    pub late_p99_ns: u64,
    /// The latest, in ns.
    pub late_max_ns: u64,
    /// CPU time its thread used in the window and its drain, in ns.
    pub cpu_ns: u64,
}
