//! Figures of Ishiguro et al., Toward Accurate Group Scheduling in Multi-core Environments, as data. Numbers
//! are those in the paper's text; numbers that follow from them are marked as such; the paper's bars are not
//! read off.

use super::{Claim, Figure, Quantity, Sweep, number, once};
use quell_bench::result::Substrate;

/// The simulator's fair classes, and Quell's scheduler, with shares of the whole host as well.
const SIDES: &str = "cfs,eevdf-6.12,eevdf,sched,share=quell sched --share";
/// The kernel's own scheduler, and Quell's with and without shares of the whole host.
const SIDES_REALLY: &str = "default,sched,share=quell sched --share";

// Figure 3: four threads on two CPUs.

/// The configurations; the first also shows how the collapse that the paper describes comes about.
const CONFIGURATIONS: &[Sweep] = &[
    once("groups/group", &[]),
    once("groups/group", SHORT),
    once("groups/group", SHORT_AND_LIGHT),
    once("groups/individual", &[]),
    once("groups/dedicated", &[]),
    once("groups/nested", &[]),
    once("groups/none", &[]),
];

/// T3 in short cycles.
const SHORT: &[&str] = &[T3_SHORT];
/// T3 in short cycles, and groups of half the weight.
const SHORT_AND_LIGHT: &[&str] = &[T3_SHORT, "tenant.p0.weight=50", "tenant.p1.weight=50"];
const T3_SHORT: &str = "tenant.p1.thread.t3.program=[{ run_us = 12 }, { sleep_us = 28 }]";

/// The paper's Fig. 3, in percent of a CPU: T0 to T3, T0 and T1 (its G0), T2 and T3 (G1).
macro_rules! shares {
    ($($name:literal, $set:expr, $of:literal:
       $t0:literal, $t1:literal, $t2:literal, $t3:literal, $g0:literal, $g1:literal;)+) => {
        &[$(
            share(concat!("groups/", $name), $set, $of, "T0", &["t0"], $t0),
            share(concat!("groups/", $name), $set, $of, "T1", &["t1"], $t1),
            share(concat!("groups/", $name), $set, $of, "T2", &["t2"], $t2),
            share(concat!("groups/", $name), $set, $of, "T3", &["t3"], $t3),
            share(concat!("groups/", $name), $set, $of, "T0 and T1", &["t0", "t1"], $g0),
            share(concat!("groups/", $name), $set, $of, "T2 and T3", &["t2", "t3"], $g1),
        )+]
    };
}

const fn share(
    scenario: &'static str,
    set: &'static [&'static str],
    of: &'static str,
    what: &'static str,
    programs: &'static [&'static str],
    paper: &'static str,
) -> Claim {
    let quantity = Quantity::Share {
        scenario,
        set,
        programs,
    };
    number(what, of, paper, quantity)
}

/// Numbers that the paper does not have are empty. That T1 gets what T3 leaves of their CPU, and T0 and T2
/// half of theirs, follows from the paper.
const SHARES: &[Claim] = shares! {
    "group", &[], "group": "50.0", "99.7", "50.0", "0.3", "149.7", "50.3";
    "group", SHORT, "group, short cycles": "50.0", "99.7", "50.0", "0.3", "149.7", "50.3";
    "group", SHORT_AND_LIGHT, "group, short cycles, weight 50": "50.0", "99.7", "50.0", "0.3", "149.7", "50.3";
    "individual", &[], "individual": "", "", "", "", "120", "80";
    "dedicated", &[], "dedicated": "", "", "", "", "100", "100";
    "nested", &[], "nested": "", "", "", "", "", "";
    "none", &[], "none": "", "", "", "", "", "";
};

const PAPER_3: &str = "two processes of two threads on two CPU cores, Linux 5.15's CFS; T0, T1 and T2 are busy, T3 runs for 30 % of the time \
    at most; percent of a CPU.";
const WHERE: &str = "T0 and T2 are on one CPU, T1 and T3 on the other; under `dedicated` T0 and T1, T2 and T3. T3 runs for 3 ms and sleeps \
    for 7. The paper does not say where the threads of `group` and `individual` may run, nor how long T3 sleeps; its text says that T1 takes \
    what T3 lacks, so these two share a CPU.";
const COLLAPSE: &str = "On the simulator the paper's 0.3 % comes back under CFS where a wakeup never preempts: T3 then waits for a tick whenever it wakes, and runs for 12 us of \
    every 4 ms. CFS lets who wakes preempt if it is behind by a granularity times 1024 over its weight, and who slept is behind by three times the \
    granularity at most, so where the weight is below 341 none does. On each of two CPUs a cgroup of weight 100 weighs 512, of weight 50 256. The \
    granularity grows with the number of CPUs, but both sides of this do. The paper tells neither weights nor T3's cycle.";
const IDEAL: &str = "The ideal is weighted max-min fairness over all CPUs at once, level by level, as the configuration says it; where each \
    thread has a cgroup or none has, that is 120 : 80 too, as nothing says whose they are.";

// The four threads with other cycles of T3, with a heavier first process, and where threads may run on both
// CPUs.

/// Settings where the threads T0 to T3 belong to these tenants: T3's cycle, a weight, and where threads may
/// run; the scenarios have them pinned.
macro_rules! set {
    (pinned, ($t0:literal, $t1:literal, $t2:literal, $t3:literal), $weight:literal, $run:literal, $sleep:literal $(, $more:expr)*) => {
        &[
            concat!("tenant.", $t3, ".thread.t3.program=[{ run_us = ", $run, " }, { sleep_us = ", $sleep, " }]"),
            $weight,
            $($more,)*
        ]
    };
    (anywhere, ($t0:literal, $t1:literal, $t2:literal, $t3:literal), $weight:literal, $run:literal, $sleep:literal) => {
        set!(
            pinned, ($t0, $t1, $t2, $t3), $weight, $run, $sleep,
            concat!("tenant.", $t0, ".thread.t0.cpus=[0, 1]"),
            concat!("tenant.", $t1, ".thread.t1.cpus=[0, 1]"),
            concat!("tenant.", $t2, ".thread.t2.cpus=[0, 1]"),
            concat!("tenant.", $t3, ".thread.t3.cpus=[0, 1]")
        )
    };
}

macro_rules! cycles {
    ($($at:ident $cycle:literal: $run:literal, $sleep:literal;)+) => {
        $(
            mod $at {
                pub(super) const EQUAL_PINNED: &[&str] = set!(pinned, ("p0", "p0", "p1", "p1"), "tenant.p0.weight=100", $run, $sleep);
                pub(super) const DOUBLE_PINNED: &[&str] = set!(pinned, ("p0", "p0", "p1", "p1"), "tenant.p0.weight=200", $run, $sleep);
                pub(super) const TEN_PINNED: &[&str] = set!(pinned, ("p0", "p0", "p1", "p1"), "tenant.p0.weight=1000", $run, $sleep);
                pub(super) const HUNDRED_PINNED: &[&str] = set!(pinned, ("p0", "p0", "p1", "p1"), "tenant.p0.weight=10000", $run, $sleep);
                pub(super) const EQUAL_ANYWHERE: &[&str] = set!(anywhere, ("p0", "p0", "p1", "p1"), "tenant.p0.weight=100", $run, $sleep);
                pub(super) const DOUBLE_ANYWHERE: &[&str] = set!(anywhere, ("p0", "p0", "p1", "p1"), "tenant.p0.weight=200", $run, $sleep);
                pub(super) const TEN_ANYWHERE: &[&str] = set!(anywhere, ("p0", "p0", "p1", "p1"), "tenant.p0.weight=1000", $run, $sleep);
                pub(super) const HUNDRED_ANYWHERE: &[&str] = set!(anywhere, ("p0", "p0", "p1", "p1"), "tenant.p0.weight=10000", $run, $sleep);
                pub(super) const INDIVIDUAL_PINNED: &[&str] = set!(pinned, ("t0", "t1", "t2", "t3"), "tenant.t0.weight=100", $run, $sleep);
                pub(super) const INDIVIDUAL_ANYWHERE: &[&str] = set!(anywhere, ("t0", "t1", "t2", "t3"), "tenant.t0.weight=100", $run, $sleep);
                pub(super) const DEDICATED: &[&str] = set!(pinned, ("p0", "p0", "p1", "p1"), "tenant.p0.weight=100", $run, $sleep);
                pub(super) const NESTED_PINNED: &[&str] = set!(pinned, ("t0", "t1", "t2", "t3"), "tenant.t0.weight=100", $run, $sleep);
                pub(super) const NESTED_ANYWHERE: &[&str] = set!(anywhere, ("t0", "t1", "t2", "t3"), "tenant.t0.weight=100", $run, $sleep);
            }
        )+
        const CYCLES: &[Sweep] = &[$(
            once("groups/group", $at::EQUAL_PINNED),
            once("groups/group", $at::DOUBLE_PINNED),
            once("groups/group", $at::TEN_PINNED),
            once("groups/group", $at::HUNDRED_PINNED),
            once("groups/group", $at::EQUAL_ANYWHERE),
            once("groups/group", $at::DOUBLE_ANYWHERE),
            once("groups/group", $at::TEN_ANYWHERE),
            once("groups/group", $at::HUNDRED_ANYWHERE),
            once("groups/individual", $at::INDIVIDUAL_PINNED),
            once("groups/individual", $at::INDIVIDUAL_ANYWHERE),
            once("groups/dedicated", $at::DEDICATED),
            once("groups/nested", $at::NESTED_PINNED),
            once("groups/nested", $at::NESTED_ANYWHERE),
        )+];
        const AT_CYCLES: &[Claim] = &[$(
            share("groups/group", $at::EQUAL_PINNED, concat!($cycle, ", group 1:1, pinned"), "T0 and T1", &["t0", "t1"], ""),
            share("groups/group", $at::EQUAL_PINNED, concat!($cycle, ", group 1:1, pinned"), "T3", &["t3"], ""),
            share("groups/group", $at::DOUBLE_PINNED, concat!($cycle, ", group 2:1, pinned"), "T0 and T1", &["t0", "t1"], ""),
            share("groups/group", $at::DOUBLE_PINNED, concat!($cycle, ", group 2:1, pinned"), "T3", &["t3"], ""),
            share("groups/group", $at::TEN_PINNED, concat!($cycle, ", group 10:1, pinned"), "T0 and T1", &["t0", "t1"], ""),
            share("groups/group", $at::TEN_PINNED, concat!($cycle, ", group 10:1, pinned"), "T3", &["t3"], ""),
            share("groups/group", $at::HUNDRED_PINNED, concat!($cycle, ", group 100:1, pinned"), "T0 and T1", &["t0", "t1"], ""),
            share("groups/group", $at::HUNDRED_PINNED, concat!($cycle, ", group 100:1, pinned"), "T3", &["t3"], ""),
            share("groups/group", $at::EQUAL_ANYWHERE, concat!($cycle, ", group 1:1, anywhere"), "T0 and T1", &["t0", "t1"], ""),
            share("groups/group", $at::EQUAL_ANYWHERE, concat!($cycle, ", group 1:1, anywhere"), "T3", &["t3"], ""),
            share("groups/group", $at::DOUBLE_ANYWHERE, concat!($cycle, ", group 2:1, anywhere"), "T0 and T1", &["t0", "t1"], ""),
            share("groups/group", $at::DOUBLE_ANYWHERE, concat!($cycle, ", group 2:1, anywhere"), "T3", &["t3"], ""),
            share("groups/group", $at::TEN_ANYWHERE, concat!($cycle, ", group 10:1, anywhere"), "T0 and T1", &["t0", "t1"], ""),
            share("groups/group", $at::TEN_ANYWHERE, concat!($cycle, ", group 10:1, anywhere"), "T3", &["t3"], ""),
            share("groups/group", $at::HUNDRED_ANYWHERE, concat!($cycle, ", group 100:1, anywhere"), "T0 and T1", &["t0", "t1"], ""),
            share("groups/group", $at::HUNDRED_ANYWHERE, concat!($cycle, ", group 100:1, anywhere"), "T3", &["t3"], ""),
            share("groups/individual", $at::INDIVIDUAL_PINNED, concat!($cycle, ", individual, pinned"), "T0", &["t0"], ""),
            share("groups/individual", $at::INDIVIDUAL_PINNED, concat!($cycle, ", individual, pinned"), "T1", &["t1"], ""),
            share("groups/individual", $at::INDIVIDUAL_PINNED, concat!($cycle, ", individual, pinned"), "T2", &["t2"], ""),
            share("groups/individual", $at::INDIVIDUAL_PINNED, concat!($cycle, ", individual, pinned"), "T3", &["t3"], ""),
            share("groups/individual", $at::INDIVIDUAL_ANYWHERE, concat!($cycle, ", individual, anywhere"), "T0", &["t0"], ""),
            share("groups/individual", $at::INDIVIDUAL_ANYWHERE, concat!($cycle, ", individual, anywhere"), "T1", &["t1"], ""),
            share("groups/individual", $at::INDIVIDUAL_ANYWHERE, concat!($cycle, ", individual, anywhere"), "T2", &["t2"], ""),
            share("groups/individual", $at::INDIVIDUAL_ANYWHERE, concat!($cycle, ", individual, anywhere"), "T3", &["t3"], ""),
            share("groups/dedicated", $at::DEDICATED, concat!($cycle, ", dedicated"), "T0", &["t0"], ""),
            share("groups/dedicated", $at::DEDICATED, concat!($cycle, ", dedicated"), "T1", &["t1"], ""),
            share("groups/dedicated", $at::DEDICATED, concat!($cycle, ", dedicated"), "T2", &["t2"], ""),
            share("groups/dedicated", $at::DEDICATED, concat!($cycle, ", dedicated"), "T3", &["t3"], ""),
            share("groups/nested", $at::NESTED_PINNED, concat!($cycle, ", nested, pinned"), "T0 and T1", &["t0", "t1"], ""),
            share("groups/nested", $at::NESTED_ANYWHERE, concat!($cycle, ", nested, anywhere"), "T0 and T1", &["t0", "t1"], ""),
        )+];
    };
}

cycles! {
    at_100_us "0.1 ms": 30, 70;
    at_1_ms "1 ms": 300, 700;
    at_10_ms "10 ms": 3000, 7000;
    at_100_ms "100 ms": 30000, 70000;
}

const PAPER_CYCLES: &str = "Four equal groups of a thread each get 120 : 80 of percent of a CPU there, and the paper calls 100 : 100 right, as it counts by process; \
    nothing tells a scheduler whose they are, so 120 : 80 is what is due to them. Nested in one for each process it is 100 : 100.";

// Figure 1: programs beside one that computes.

/// The setting with which the co-runner sleeps.
const ALONE: &str = "tenant.beside.thread.worker.program=[{ sleep_us = 60000000 }]";
const PRIMARY_PROCESS: &str = "tenant.primary.kind=process";
const BESIDE_PROCESS: &str = "tenant.beside.kind=process";
const PRIMARY_VM: &str = "tenant.primary.kind=vm";
const BESIDE_VM: &str = "tenant.beside.kind=vm";
const PRIMARY_VCPUS: &str = "tenant.primary.vcpus=8";
const BESIDE_VCPUS: &str = "tenant.beside.vcpus=8";
const PRIMARY_ROOT: &str = "tenant.primary.own_cgroup=false";
const BESIDE_ROOT: &str = "tenant.beside.own_cgroup=false";

/// Settings of containers or VMs, with groups or without, beside the co-runner or alone.
const GROUPS: &[&str] = &[];
const GROUPS_ALONE: &[&str] = &[ALONE];
const NONE: &[&str] = &[PRIMARY_PROCESS, BESIDE_PROCESS];
const NONE_ALONE: &[&str] = &[PRIMARY_PROCESS, BESIDE_PROCESS, ALONE];
const VMS: &[&str] = &[PRIMARY_VM, BESIDE_VM, PRIMARY_VCPUS, BESIDE_VCPUS];
const VMS_ALONE: &[&str] = &[PRIMARY_VM, BESIDE_VM, PRIMARY_VCPUS, BESIDE_VCPUS, ALONE];
const VMS_NONE: &[&str] = &[
    PRIMARY_VM,
    BESIDE_VM,
    PRIMARY_VCPUS,
    BESIDE_VCPUS,
    PRIMARY_ROOT,
    BESIDE_ROOT,
];
const VMS_NONE_ALONE: &[&str] = &[
    PRIMARY_VM,
    BESIDE_VM,
    PRIMARY_VCPUS,
    BESIDE_VCPUS,
    PRIMARY_ROOT,
    BESIDE_ROOT,
    ALONE,
];

const fn slow_down(
    scenario: &'static str,
    of: &'static str,
    what: &'static str,
    paper: &'static str,
    set: &'static [&'static str],
    than: &'static [&'static str],
) -> Claim {
    let quantity = Quantity::SlowDown {
        scenario,
        tenant: "primary",
        set,
        than,
    };
    number(what, of, paper, quantity)
}

/// Every program's points, and its slow-downs: of VMs and containers, and of containers only; the paper's
/// numbers are beside the co-runner, without groups and with groups.
macro_rules! programs {
    ($($name:literal: $without:literal, $with:literal;)+) => {
        const PROGRAMS: &[Sweep] = &[$(
            once(concat!("groups/", $name), NONE_ALONE),
            once(concat!("groups/", $name), GROUPS_ALONE),
            once(concat!("groups/", $name), NONE),
            once(concat!("groups/", $name), GROUPS),
            once(concat!("groups/", $name), VMS_NONE_ALONE),
            once(concat!("groups/", $name), VMS_ALONE),
            once(concat!("groups/", $name), VMS_NONE),
            once(concat!("groups/", $name), VMS),
        )+];
        const SLOW_DOWNS: &[Claim] = &[$(
            slow_down(concat!("groups/", $name), concat!($name, ", VMs"), "alone, groups", "", VMS_ALONE, VMS_NONE_ALONE),
            slow_down(concat!("groups/", $name), concat!($name, ", VMs"), "no groups", $without, VMS_NONE, VMS_NONE_ALONE),
            slow_down(concat!("groups/", $name), concat!($name, ", VMs"), "groups", $with, VMS, VMS_NONE_ALONE),
            slow_down(concat!("groups/", $name), concat!($name, ", containers"), "alone, groups", "", GROUPS_ALONE, NONE_ALONE),
            slow_down(concat!("groups/", $name), concat!($name, ", containers"), "no groups", "", NONE, NONE_ALONE),
            slow_down(concat!("groups/", $name), concat!($name, ", containers"), "groups", "", GROUPS, NONE_ALONE),
        )+];
        const CONTAINERS: &[Sweep] = &[$(
            once(concat!("groups/", $name), NONE_ALONE),
            once(concat!("groups/", $name), NONE),
            once(concat!("groups/", $name), GROUPS),
        )+];
        const CONTAINERS_SLOW_DOWNS: &[Claim] = &[$(
            slow_down(concat!("groups/", $name), $name, "no groups", $without, NONE, NONE_ALONE),
            slow_down(concat!("groups/", $name), $name, "groups", $with, GROUPS, NONE_ALONE),
        )+];
    };
}

programs! {
    "barriers": "2.8", "6";
    "locks": "", "";
    "stages": "", "";
    "independent": "", "";
}

const PAPER_1: &str = "PARSEC programs in a VM with 8 virtual CPUs on 8 CPUs (Xeon E-2378G, Linux 5.15 with KVM), alone and beside a VM alike that runs \
    swaptions; times as long as alone.";
const PROGRAMS_ALIKE: &str = "Thread programs of the same structure stand for PARSEC's: barriers for streamcluster, stages for ferret and dedup, independent for \
    swaptions itself. They are repeated for ever, so a slow-down is the work for each second alone, without groups, over the work \
    here; where threads work on their own, the slowest would take longer than that.";
const BETWEEN_BARRIERS: &str = "The paper gives numbers for streamcluster only. How long streamcluster computes between two barriers, it does not say; here it is \
    500 us in the mean, at which CFS with groups slows down as the paper's. Shorter phases are slowed down more.";
const HALF: &str = "The ideal gives each half of the CPUs. A program that waits a lot uses less than all of them alone, so half is more than half as fast.";

/// Every figure.
pub const FIGURES: &[Figure] = &[
    Figure {
        name: "groups-fig1",
        on: &[Substrate::Sim],
        scheduling: false,
        title: "Accurate Group Scheduling, Fig. 1: how much slower programs are beside one that computes, with and without groups",
        paper: PAPER_1,
        differs: &[
            PROGRAMS_ALIKE,
            BETWEEN_BARRIERS,
            HALF,
            "VMs without groups are simulated with virtual CPUs in the root's cgroup. CFS is that of Linux 6.1, guests have EEVDF of 6.12.",
        ],
        sides: SIDES,
        sweeps: PROGRAMS,
        claims: SLOW_DOWNS,
    },
    Figure {
        name: "groups-fig1",
        on: &[Substrate::Vm, Substrate::Host],
        scheduling: false,
        title: "Accurate Group Scheduling, Fig. 1: how much slower programs are beside one that computes, with and without groups, on a real kernel",
        paper: PAPER_1,
        differs: &[
            PROGRAMS_ALIKE,
            BETWEEN_BARRIERS,
            HALF,
            "Containers, not VMs: their threads are the kernel's to schedule as virtual CPUs are, without a second scheduler inside.",
        ],
        sides: SIDES_REALLY,
        sweeps: CONTAINERS,
        claims: CONTAINERS_SLOW_DOWNS,
    },
    Figure {
        name: "groups-fig3",
        on: &[Substrate::Sim],
        scheduling: false,
        title: "Accurate Group Scheduling, Fig. 2 and 3: the CPU time of four threads in groups",
        paper: PAPER_3,
        differs: &[
            WHERE,
            COLLAPSE,
            IDEAL,
            "`nested` (a cgroup for each thread in one for each process) and `none` are not in the paper.",
        ],
        sides: SIDES,
        sweeps: CONFIGURATIONS,
        claims: SHARES,
    },
    Figure {
        name: "groups-fig3",
        on: &[Substrate::Vm, Substrate::Host],
        scheduling: false,
        title: "Accurate Group Scheduling, Fig. 2 and 3: the CPU time of four threads in groups, on a real kernel",
        paper: PAPER_3,
        differs: &[
            WHERE,
            "The kernel is of today, so its scheduler is EEVDF; `--kernel 6.1 --policy default,default` measures CFS.",
            COLLAPSE,
            IDEAL,
            "`nested` (a cgroup for each thread in one for each process) and `none` are not in the paper.",
        ],
        sides: SIDES_REALLY,
        sweeps: CONFIGURATIONS,
        claims: SHARES,
    },
    Figure {
        name: "groups-cycles",
        on: &[Substrate::Sim],
        scheduling: false,
        title: "Accurate Group Scheduling, Fig. 2 in other cycles and weights: the CPU time of four threads in groups",
        paper: PAPER_3,
        differs: &[PAPER_CYCLES],
        sides: "eevdf,share=quell sched --share",
        sweeps: CYCLES,
        claims: AT_CYCLES,
    },
    Figure {
        name: "groups-cycles",
        on: &[Substrate::Vm, Substrate::Host],
        scheduling: false,
        title: "Accurate Group Scheduling, Fig. 2 in other cycles and weights: the CPU time of four threads in groups, on a real kernel",
        paper: PAPER_3,
        differs: &[PAPER_CYCLES],
        sides: "default,share=quell sched --share",
        sweeps: CYCLES,
        claims: AT_CYCLES,
    },
];
