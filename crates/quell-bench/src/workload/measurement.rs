//! What is measured of one tenant in one window.

use hdrhistogram::Histogram;
use quell_model::config::TenantClass;
use quell_model::{Occasions, TenantName};
use quell_trace::{Delays, ProcessStats};
use std::collections::BTreeMap;

/// The shortest latency that the histogram tells apart, in ns.
const LEAST_NS: u64 = 1_000;
/// The longest latency, in ns; longer latencies count as this.
const GREATEST_NS: u64 = 60_000_000_000;

/// An empty latency histogram: ns, 1 µs to 60 s, three significant digits.
pub fn latency_histogram() -> Histogram<u64> {
    // `new_with_bounds` fails only for bounds that contradict each other; these do not.
    #[expect(clippy::expect_used)]
    Histogram::new_with_bounds(LEAST_NS, GREATEST_NS, 3).expect("sound bounds")
}

/// What was measured of one tenant in one window. A request belongs to the window in which it was *intended*,
/// whenever it was answered.
#[derive(Debug, Clone)]
pub struct Measurement {
    /// The tenant.
    pub tenant: TenantName,
    /// Its class.
    pub class: TenantClass,
    /// Time from the intended start to the answer, in ns, one value for each request of the window; failed
    /// requests are included and requests due near a pause are left out. Empty for a tenant without load.
    pub latency: Histogram<u64>,
    /// Requests intended in the window.
    pub requests: u64,
    /// How many of the requests failed: wrong answer, connection lost, or no answer in time.
    pub errors: u64,
    /// Work done in the window by a tenant without load.
    pub work: Option<f64>,
    /// The unit of `work`: `bytes` (xz) or `rounds` (turns of thread programs); else empty.
    pub work_unit: &'static str,
    /// The CPU time that the tenant's processes used in the window, in ns.
    pub cpu_ns: u64,
    /// The CPU time by thread program, in ns, for tenants of thread programs; what threads in a VM's guest
    /// used is not known.
    pub programs_ns: BTreeMap<String, u64>,
    /// The length of the window for `work` and `cpu_ns`, in ns.
    pub length_ns: u64,
    /// How well the load generator kept its times; `None` without load.
    pub generator: Option<GeneratorReport>,
    /// What the scheduler did to the tenant's threads; `None` unless that was recorded.
    pub scheduling: Option<Scheduling>,
    /// Seconds of the window in which the 99th percentile of the requests due in that second missed the
    /// objective; `None` where that was not looked at.
    pub late_seconds: Option<u64>,
    /// What the guest of a VM did, on the simulator.
    pub guest: Option<GuestCounts>,
}

/// What a VM's guest and the VM's threads on the host did in a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GuestCounts {
    /// Switches of the guest's scheduler, to and from idling too.
    pub switches: u64,
    /// CPU time of the vCPUs as the guest counts it, in ns: without idling, polling and steal.
    pub used_ns: u64,
    /// VM exits.
    pub exits: u64,
    /// Switches of the host to the vCPUs.
    pub loads: u64,
    /// How long the guest's threads were ready before vCPUs ran them, in ns, summed over threads; a wait
    /// together with the vCPU does not count.
    pub waited_ns: u64,
    /// How long the vCPUs were ready before the host ran them, in ns, summed over vCPUs.
    pub steal_ns: u64,
    /// CPU time of the vCPUs' threads and of the emulator threads on the host, in ns.
    pub vcpus_ns: u64,
    /// CPU time of the emulator threads alone, in ns.
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

    /// The counts since `before`.
    pub fn since(mut self, before: &GuestCounts) -> GuestCounts {
        self.each(before, u64::saturating_sub);
        self
    }

    /// Adds the counts of other VMs, or of another window.
    pub fn add(&mut self, other: &GuestCounts) {
        self.each(other, u64::saturating_add);
    }
}

/// What the scheduler did to threads in a window.
#[derive(Debug, Clone, Default)]
pub struct Scheduling {
    /// How long threads were ready before they ran.
    pub delays: Delays,
    /// How often a thread got a CPU.
    pub switches: u64,
    /// How often a thread left a CPU while it was ready.
    pub preemptions: u64,
    /// How often a thread got another CPU than the time before.
    pub migrations: u64,
    /// How often a thread was woken.
    pub wakeups: u64,
    /// How long threads were ready while other threads of their process were blocked, and the processes' busy
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

    /// Adds what was done to other threads, or in another window.
    pub fn add(&mut self, other: &Scheduling) {
        self.delays.merge(&other.delays);
        self.switches += other.switches;
        self.preemptions += other.preemptions;
        self.migrations += other.migrations;
        self.wakeups += other.wakeups;
        self.occasions.add(&other.occasions);
    }
}

/// How well the load generator kept its times, on which latencies depend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GeneratorReport {
    /// Why the generator's thread could not run at real-time priority, if it could not: then it may itself
    /// have waited for the tenants it loads.
    pub not_realtime: Option<String>,
    /// 99th percentile of how late requests were sent, in ns; that is part of their latency.
    pub late_p99_ns: u64,
    /// How late the latest request was sent, in ns.
    pub late_max_ns: u64,
    /// CPU time that the generator's thread used in the window and in waiting for the last answers, in ns.
    pub cpu_ns: u64,
}
