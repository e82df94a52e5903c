//! Figures of Akita: A CPU scheduler for virtualized Clouds, as data. Numbers are those in the paper's text;
//! its bars are not read off.

use super::{Claim, Figure, Quantity, Sweep, number, once};
use quell_bench::result::{Metric, Substrate};

const ON: &[Substrate] = &[Substrate::Sim];
const ON_KERNELS: &[Substrate] = &[Substrate::Vm, Substrate::Host];

/// The paper's two baselines, their successors, and Quell.
const SIDES: &str = "cfs,eevdf,credit,credit2,akita,quell";

const VMS: &str = "VMs of one vCPU on a simulated machine; guests have EEVDF of Linux 6.12 (docs/design/simulator.md). CFS is that of Linux 6.1, the paper's of 3.6; \
    `akita` is the paper's mechanism in Quell's sched_ext scheduler, with what docs/design/criticality.md says is ours.";
/// The kernel's own scheduler, the paper's mechanism alone, and Quell.
const SIDES_REALLY: &str = "default,akita,quell";

const PROCESSES: &str = "Processes, not VMs: threads of a virtual CPU and of anything else are served alike. `default` is the kernel's EEVDF; `akita` is the paper's \
    mechanism in Quell's sched_ext scheduler, with what docs/design/criticality.md says is ours.";
const REQUESTS: &str =
    "Requests are as long as the paper's rates and CPU use tell, and arrive without a network.";
const WEIGHTED: &str = "What no promise covers is shared by weight, also with those whose budget is spent: the paper serves these one after the other.";

/// How many times as high a tenant's metric is at one point as at another.
const fn rise(
    scenario: &'static str,
    tenant: &'static str,
    metric: Metric,
    set: &'static [&'static str],
    than: &'static [&'static str],
) -> Quantity {
    Quantity::Rise {
        scenario,
        tenant,
        metric,
        set,
        than,
    }
}

const fn value(
    scenario: &'static str,
    tenant: &'static str,
    metric: Metric,
    set: &'static [&'static str],
) -> Quantity {
    Quantity::Value {
        scenario,
        tenant,
        metric,
        set,
    }
}

// Figures 1 and 5: beside VMs that compute.

const HOGS: &str = "akita/beside-hogs";
const BESIDE: &[&str] = &[
    "tenant.cache.emulator_cpus=[1]",
    "tenant.hog.emulator_cpus=[1]",
];
const ALONE: &[&str] = &[
    "tenant.cache.emulator_cpus=[1]",
    "tenant.hog.emulator_cpus=[1]",
    "tenant.hog.load.rate=0.001",
];
// Processes have no emulator threads; and QEMU emulates several CPUs in turns, which hide latencies, so there
// is one CPU.
const BESIDE_REALLY: &[&str] = &[
    "host.cpus=1",
    "tenant.cache.kind=process",
    "tenant.hog.kind=process",
];
const ALONE_REALLY: &[&str] = &[
    "host.cpus=1",
    "tenant.cache.kind=process",
    "tenant.hog.kind=process",
    "tenant.hog.load.rate=0.001",
];

// Figure 6: several VMs of high criticality.

const SEVERAL: &str = "akita/several";
const PAPER_6: &str = "memcached in a Type2 VM and in one to three Type1 VMs, on one core.";
const RATE_6: &str = "How many requests a second: eight threads with 600 each for every VM.";

/// The settings of each number of VMs, and of as many processes.
macro_rules! several {
    ($($set:ident, $processes:ident, $setting:literal;)+) => {
        $(
            const $set: &[&str] = &["tenant.low.emulator_cpus=[1]", "tenant.high.emulator_cpus=[1]", $setting];
            const $processes: &[&str] =
                &["host.cpus=1", "tenant.low.kind=process", "tenant.high.kind=process", $setting];
        )+
        const TOGETHER: &[Sweep] = &[$(once(SEVERAL, $set),)+];
        const TOGETHER_REALLY: &[Sweep] = &[$(once(SEVERAL, $processes),)+];
    };
}

several! {
    WITH_NONE, WITH_NONE_REALLY, "tenant.high.load.rate=0.001";
    WITH_ONE, WITH_ONE_REALLY, "tenant.high.count=1";
    WITH_TWO, WITH_TWO_REALLY, "tenant.high.count=2";
    WITH_THREE, WITH_THREE_REALLY, "tenant.high.count=3";
}

// Figure 7: utilisation.

const UTILISATION: &str = "akita/utilisation";

/// The steps, as VMs and as processes: CPU time of all four.
macro_rules! utilisation {
    ($($set:ident, $processes:ident, $setting:literal, $of:literal: $high:literal, $low:literal;)+) => {
        $(
            const $set: &[&str] = &[$setting];
            const $processes: &[&str] = &["tenant.high.kind=process", "tenant.low.kind=process", $setting];
        )+
        const STEPS: &[Sweep] = &[$(once(UTILISATION, $set),)+];
        const STEPS_REALLY: &[Sweep] = &[$(once(UTILISATION, $processes),)+];
        const USED: &[Claim] = &[$(
            number("VM1", $of, $high, value(UTILISATION, "high", Metric::CpuShare, $set)),
            number("VM2", $of, $low, value(UTILISATION, "low-0", Metric::CpuShare, $set)),
            number("VM3", $of, $low, value(UTILISATION, "low-1", Metric::CpuShare, $set)),
            number("VM4", $of, $low, value(UTILISATION, "low-2", Metric::CpuShare, $set)),
        )+];
        const USED_REALLY: &[Claim] = &[$(
            number("VM1", $of, $high, value(UTILISATION, "high", Metric::CpuShare, $processes)),
            number("VM2", $of, $low, value(UTILISATION, "low-0", Metric::CpuShare, $processes)),
            number("VM3", $of, $low, value(UTILISATION, "low-1", Metric::CpuShare, $processes)),
            number("VM4", $of, $low, value(UTILISATION, "low-2", Metric::CpuShare, $processes)),
        )+];
    };
}

utilisation! {
    NEEDS_0, NEEDS_0_REALLY, "tenant.high.load.rate=0.001", "needs nothing": "0", "25";
    NEEDS_10, NEEDS_10_REALLY, "tenant.high.thread.busy.program=[\"request\", { run_us = 10000 }, \"respond\"]", "needs 10 %": "", "";
    NEEDS_30, NEEDS_30_REALLY, "tenant.high.thread.busy.program=[\"request\", { run_us = 30000 }, \"respond\"]", "needs 30 %": "", "";
    NEEDS_50, NEEDS_50_REALLY, "tenant.high.thread.busy.program=[\"request\", { run_us = 50000 }, \"respond\"]", "needs 50 %": "50", "13";
}

// Figures 8 and 9: more and more VMs on 12 CPUs.

const RPC: &str = "akita/rpc";
const RPC_ALONE: &[&str] = &["tenant.hog.count=5", "tenant.hog.load.rate=0.001"];

/// The settings of each number of VMs, and of as many processes.
macro_rules! crowds {
    ($($set:ident, $processes:ident, $count:literal: $p99:literal;)+) => {
        $(
            const $set: &[&str] = &[concat!("tenant.hog.count=", $count)];
            const $processes: &[&str] =
                &["tenant.rpc.kind=process", "tenant.hog.kind=process", concat!("tenant.hog.count=", $count)];
        )+
        const CROWDS: &[Sweep] = &[once(RPC, RPC_ALONE), $(once(RPC, $set),)+];
        const CROWDS_REALLY: &[Sweep] = &[$(once(RPC, $processes),)+];
        const LATENCIES: &[Claim] = &[
            number("alone", "99th percentile", "", value(RPC, "rpc", Metric::P99Us, RPC_ALONE)),
            $(number(concat!("times that, beside ", $count), "99th percentile", $p99, rise(RPC, "rpc", Metric::P99Us, $set, RPC_ALONE)),)+
        ];
        const IDLE: &[Claim] = &[
            $(number(concat!("beside ", $count), "idle CPUs", "", Quantity::IdleCpus { scenario: RPC, set: $set }),)+
        ];
        const IDLE_REALLY: &[Claim] = &[
            $(number(concat!("beside ", $count), "idle CPUs", "", Quantity::IdleCpus { scenario: RPC, set: $processes }),)+
        ];
    };
}

crowds! {
    FIVE, FIVE_REALLY, "5": "about 1";
    TEN, TEN_REALLY, "10": "";
    FIFTEEN, FIFTEEN_REALLY, "15": "";
    TWENTY, TWENTY_REALLY, "20": "";
    TWENTY_FOUR, TWENTY_FOUR_REALLY, "24": "Akita about 1, Xen 10, KVM 5";
}

// Figure 8 on a real kernel: QEMU emulates several CPUs in turns of up to 2 ms, which hide latencies; so
// there is one of the 12 CPUs, with the VMs on it.
const NEIGHBOURS: &[Sweep] = &[
    once(RPC, NEIGHBOURS_IDLE),
    once(RPC, TWO_NEIGHBOURS),
    once(RPC, THREE_NEIGHBOURS),
];
const NEIGHBOURS_IDLE: &[&str] = &[
    "host.cpus=1",
    "tenant.rpc.kind=process",
    "tenant.hog.kind=process",
    "tenant.hog.count=3",
    "tenant.hog.load.rate=0.001",
];
const TWO_NEIGHBOURS: &[&str] = &[
    "host.cpus=1",
    "tenant.rpc.kind=process",
    "tenant.hog.kind=process",
    "tenant.hog.count=2",
];
const THREE_NEIGHBOURS: &[&str] = &[
    "host.cpus=1",
    "tenant.rpc.kind=process",
    "tenant.hog.kind=process",
    "tenant.hog.count=3",
];
const ONE_OF_12: &str = "One of the 12 CPUs: with 24 of them beside it there are two on each by even balance, and three by first fit.";

const PAPER_8: &str = "an RPC server in a Type1 VM beside 5 to 24 Type2 VMs with Lookbusy at 25 %; Xen's Credit, KVM with CFS, Akita.";
const PAPER_9: &str = "the machine of Fig. 8; most CPUs idle under Akita.";
const IDLES: &str = "An idle CPU is one that was busy for at most 2 % of the window.";
const CROWDED: &str = "The paper gives two of its 12 cores to Xen's driver domain, and does not say how many clients call: here three, and all 12 CPUs are the VMs'.";

const PAPER_5: &str = "memcached in a Type1 VM with 35,000 requests a second, beside three Type2 VMs with Lookbusy at 25 %, on one core; Xen's Credit, KVM \
    with CFS, Akita.";
const PAPER_7: &str = "VM1 (Type6) at 0 to 50 % beside three of Type2 with Lookbusy at 25 %, on one core; percent of a CPU.";

/// Claims on latencies alone and beside three tenants, and on what one of these gets.
macro_rules! beside {
    ($alone:ident, $beside:ident) => {
        &[
            number(
                "mean",
                "alone",
                "",
                value(HOGS, "cache", Metric::MeanUs, $alone),
            ),
            number(
                "99.9th percentile",
                "alone",
                "rarely above 5 ms",
                value(HOGS, "cache", Metric::P999Us, $alone),
            ),
            number(
                "mean",
                "beside three, times that",
                "",
                rise(HOGS, "cache", Metric::MeanUs, $beside, $alone),
            ),
            number(
                "99th percentile",
                "beside three, times that",
                "",
                rise(HOGS, "cache", Metric::P99Us, $beside, $alone),
            ),
            number(
                "99.9th percentile",
                "beside three, times that",
                "Akita 1, Xen 1.96, KVM 1.93",
                rise(HOGS, "cache", Metric::P999Us, $beside, $alone),
            ),
            number(
                "one that computes",
                "CPU time",
                "25",
                value(HOGS, "hog-0", Metric::CpuShare, $beside),
            ),
        ]
    };
}

/// Claims on the tenant of low criticality beside none to three of high criticality, and on the first of
/// these.
macro_rules! latencies_of_several {
    ($none:ident, $one:ident, $two:ident, $three:ident) => {
        &[
            number(
                "low, alone",
                "99.9th percentile",
                "",
                value(SEVERAL, "low", Metric::P999Us, $none),
            ),
            number(
                "low, beside one",
                "99.9th percentile",
                "slightly more",
                value(SEVERAL, "low", Metric::P999Us, $one),
            ),
            number(
                "low, beside two",
                "99.9th percentile",
                "",
                value(SEVERAL, "low", Metric::P999Us, $two),
            ),
            number(
                "low, beside three",
                "99.9th percentile",
                "more, no deadline missed",
                value(SEVERAL, "low", Metric::P999Us, $three),
            ),
            number(
                "high, one",
                "99.9th percentile",
                "",
                value(SEVERAL, "high", Metric::P999Us, $one),
            ),
            number(
                "high, first of two",
                "99.9th percentile",
                "",
                value(SEVERAL, "high-0", Metric::P999Us, $two),
            ),
            number(
                "high, first of three",
                "99.9th percentile",
                "as one",
                value(SEVERAL, "high-0", Metric::P999Us, $three),
            ),
        ]
    };
}

/// Every figure.
pub const FIGURES: &[Figure] = &[
    Figure {
        name: "akita-fig4",
        on: ON,
        scheduling: false,
        title: "Akita, Fig. 4: CPU time by budget, latency by period",
        paper: "one VM each of Type2 and Type3, which compute, and of Type4 and Type5, which answer calls, on one core.",
        differs: &[
            "The paper has execution times; CPU time in percent of a CPU is the same, upside down.",
            "How many clients call is not told: one here.",
            REQUESTS,
            VMS,
            WEIGHTED,
        ],
        sides: SIDES,
        sweeps: &[once("akita/types", &[])],
        claims: &[
            number(
                "Type2 (25 of 100 ms)",
                "CPU time",
                "least",
                value("akita/types", "type2", Metric::CpuShare, &[]),
            ),
            number(
                "Type3 (50 of 100 ms)",
                "CPU time",
                "most",
                value("akita/types", "type3", Metric::CpuShare, &[]),
            ),
            number(
                "Type4 (5 of 50 ms)",
                "mean latency",
                "least",
                value("akita/types", "type4", Metric::MeanUs, &[]),
            ),
            number(
                "Type5 (10 of 100 ms)",
                "mean latency",
                "most",
                value("akita/types", "type5", Metric::MeanUs, &[]),
            ),
        ],
    },
    Figure {
        name: "akita-fig5",
        on: ON,
        scheduling: false,
        title: "Akita, Fig. 1 and 5: latency of a VM of high criticality alone and beside three that compute",
        paper: PAPER_5,
        differs: &[REQUESTS, VMS],
        sides: SIDES,
        sweeps: &[once(HOGS, ALONE), once(HOGS, BESIDE)],
        claims: beside!(ALONE, BESIDE),
    },
    Figure {
        name: "akita-fig5",
        on: ON_KERNELS,
        scheduling: false,
        title: "Akita, Fig. 1 and 5: latency of a process of high criticality alone and beside three that compute, on a real kernel",
        paper: PAPER_5,
        differs: &[REQUESTS, PROCESSES],
        sides: SIDES_REALLY,
        sweeps: &[once(HOGS, ALONE_REALLY), once(HOGS, BESIDE_REALLY)],
        claims: beside!(ALONE_REALLY, BESIDE_REALLY),
    },
    Figure {
        name: "akita-fig6",
        on: ON,
        scheduling: false,
        title: "Akita, Fig. 6: a VM of low criticality beside one to three of high, all with short requests",
        paper: PAPER_6,
        differs: &[RATE_6, REQUESTS, VMS],
        sides: SIDES,
        sweeps: TOGETHER,
        claims: latencies_of_several!(WITH_NONE, WITH_ONE, WITH_TWO, WITH_THREE),
    },
    Figure {
        name: "akita-fig6",
        on: ON_KERNELS,
        scheduling: false,
        title: "Akita, Fig. 6: a process of low criticality beside one to three of high, all with short requests, on a real kernel",
        paper: PAPER_6,
        differs: &[RATE_6, REQUESTS, PROCESSES],
        sides: SIDES_REALLY,
        sweeps: TOGETHER_REALLY,
        claims: latencies_of_several!(
            WITH_NONE_REALLY,
            WITH_ONE_REALLY,
            WITH_TWO_REALLY,
            WITH_THREE_REALLY
        ),
    },
    Figure {
        name: "akita-fig7",
        on: ON,
        scheduling: false,
        title: "Akita, Fig. 7 and section 4.4: CPU time of a VM of high criticality that needs more and more, and of three beside it",
        paper: PAPER_7,
        differs: &[
            "Each step is a run of its own.",
            "The paper's 50 % and three times 13 % leave 11 % of the core to nobody it names; here what VM1 leaves is divided by three, less 2 us for each switch.",
            VMS,
        ],
        sides: SIDES,
        sweeps: STEPS,
        claims: USED,
    },
    Figure {
        name: "akita-fig7",
        on: ON_KERNELS,
        scheduling: false,
        title: "Akita, Fig. 7 and section 4.4: CPU time of a process of high criticality that needs more and more, and of three beside it, on a real kernel",
        paper: PAPER_7,
        differs: &["Each step is a run of its own.", PROCESSES],
        sides: SIDES_REALLY,
        sweeps: STEPS_REALLY,
        claims: USED_REALLY,
    },
    Figure {
        name: "akita-fig8",
        on: ON,
        scheduling: false,
        title: "Akita, Fig. 8: tail latency of calls to a VM of high criticality beside 5 to 24 that compute, on 12 CPUs",
        paper: PAPER_8,
        differs: &[CROWDED, REQUESTS, VMS],
        sides: SIDES,
        sweeps: CROWDS,
        claims: LATENCIES,
    },
    Figure {
        name: "akita-fig8",
        on: ON_KERNELS,
        scheduling: false,
        title: "Akita, Fig. 8: tail latency of calls to a process of high criticality beside two and three that compute, on one CPU, on a real kernel",
        paper: PAPER_8,
        differs: &[ONE_OF_12, REQUESTS, PROCESSES],
        sides: SIDES_REALLY,
        sweeps: NEIGHBOURS,
        claims: &[
            number(
                "alone",
                "99th percentile",
                "",
                value(RPC, "rpc", Metric::P99Us, NEIGHBOURS_IDLE),
            ),
            number(
                "times that, beside two",
                "99th percentile",
                "",
                rise(RPC, "rpc", Metric::P99Us, TWO_NEIGHBOURS, NEIGHBOURS_IDLE),
            ),
            number(
                "times that, beside three",
                "99th percentile",
                "Akita about 1, Xen 10, KVM 5",
                rise(RPC, "rpc", Metric::P99Us, THREE_NEIGHBOURS, NEIGHBOURS_IDLE),
            ),
        ],
    },
    Figure {
        name: "akita-fig9",
        on: ON,
        scheduling: false,
        title: "Akita, Fig. 9: idle CPUs beside 5 to 24 VMs that compute, on 12 CPUs",
        paper: PAPER_9,
        differs: &[IDLES, CROWDED, VMS],
        sides: SIDES,
        sweeps: CROWDS,
        claims: IDLE,
    },
    Figure {
        name: "akita-fig9",
        on: ON_KERNELS,
        scheduling: false,
        title: "Akita, Fig. 9: idle CPUs beside 5 to 24 processes that compute, on 12 CPUs, on a real kernel",
        paper: PAPER_9,
        differs: &[IDLES, PROCESSES],
        sides: SIDES_REALLY,
        sweeps: CROWDS_REALLY,
        claims: IDLE_REALLY,
    },
];
