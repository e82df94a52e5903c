//! UFO's evaluation: two VMs on a grid of loads, three VMs whose loads change, and one VM with parts of UFO.

use super::{ALONE, APPLICATIONS, LOADS, MACHINE, ON, PERCENT, against, loads, of, sweep};
use crate::reproduce::{Axis, Claim, Figure, Loads, Quantity, Sweep, once};

const PAIR: &str = "ufo/pair";
const DAY: &str = "ufo/day";

const DYNISO: &str = "DynIso, PARTIES and UFO are watched between two of their trials, of which each breaks objectives for half a second (UFO's: three); the default without \
    cores of their own needs the smallest host on which it keeps them.";

const fn late(tenant: &'static str, paper: &'static str) -> Claim {
    loads(
        tenant,
        "seconds in which its objective is missed",
        paper,
        Loads::Late(of(DAY, &[]), tenant),
    )
}

// Figure 15: a VM of 16 vCPUs, with parts of UFO.

/// The settings of each part on a number of CPUs, of which the last are the emulators' where these have CPUs
/// of their own.
macro_rules! parts {
    ($app:ident $module:ident $vcpus_all:literal $all:literal $vcpus_apart:literal $cpus_apart:literal $emulators:literal) => {
        mod $module {
            use super::*;
            pub const DEFAULT: &[&str] = vm!($app "vm" "tenant.vm.vcpus=16", "tenant.vm.thread.worker.count=16", concat!("tenant.vm.cpus=", $all), concat!("tenant.vm.emulator_cpus=", $all));
            pub const VCPUS: &[&str] = vm!($app "vm" concat!("tenant.vm.vcpus=", $vcpus_all), "tenant.vm.thread.worker.count=16", concat!("tenant.vm.cpus=", $all), concat!("tenant.vm.emulator_cpus=", $all));
            pub const EMULATORS: &[&str] = vm!($app "vm" "tenant.vm.vcpus=16", "tenant.vm.thread.worker.count=16", concat!("tenant.vm.cpus=", $cpus_apart), concat!("tenant.vm.emulator_cpus=", $emulators));
            pub const BOTH: &[&str] = vm!($app "vm" concat!("tenant.vm.vcpus=", $vcpus_apart), "tenant.vm.thread.worker.count=16", concat!("tenant.vm.cpus=", $cpus_apart), concat!("tenant.vm.emulator_cpus=", $emulators));
            const OVER: &[Axis] = &[Axis { key: PERCENT, values: &[10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120, 130, 140, 150] }];
            pub const SWEEP_DEFAULT: Sweep = sweep(ALONE, DEFAULT, OVER);
            pub const SWEEP_VCPUS: Sweep = sweep(ALONE, VCPUS, OVER);
            pub const SWEEP_EMULATORS: Sweep = sweep(ALONE, EMULATORS, OVER);
            pub const SWEEP_BOTH: Sweep = sweep(ALONE, BOTH, OVER);
            pub const MOST: Loads = Loads::Most(of(ALONE, DEFAULT));
            pub const WITH_VCPUS: Loads = Loads::Over(&Loads::Most(of(ALONE, VCPUS)), &MOST);
            pub const WITH_EMULATORS: Loads = Loads::Over(&Loads::Most(of(ALONE, EMULATORS)), &MOST);
            pub const WITH_BOTH: Loads = Loads::Over(&Loads::Most(of(ALONE, BOTH)), &MOST);
        }
    };
}

parts!(memcached m8 "8" "0-3,8-11" "6" "0-2,8-10" "3,11");
parts!(memcached m12 "12" "0-5,8-13" "8" "0-3,8-11" "4-5,12-13");
parts!(memcached m16 "16" "0-15" "12" "0-5,8-13" "6-7,14-15");
parts!(nginx n8 "8" "0-3,8-11" "6" "0-2,8-10" "3,11");
parts!(nginx n12 "12" "0-5,8-13" "10" "0-4,8-12" "5,13");
parts!(nginx n16 "16" "0-15" "14" "0-6,8-14" "7,15");

// Figures 12 and 13: two VMs.

/// The settings of two VMs, and more settings after them.
macro_rules! mix {
    (mm [$($first:expr)?] $($more:expr),*) => { &["tenant.one.load.max_rate=350000" $(, $first)? $(, $more)*] };
    (mn $($rest:tt)*) => { mix!(@two (120000 "2" 8 app!(nginx "two")) $($rest)*) };
    (my $($rest:tt)*) => { mix!(@two (2500 "15" 256 app!(mysql "two")) $($rest)*) };
    (nn $($rest:tt)*) => { mix!(@both (120000 "2" 8 app!(nginx "one")) (120000 "2" 8 app!(nginx "two")) $($rest)*) };
    (ny $($rest:tt)*) => { mix!(@both (120000 "2" 8 app!(nginx "one")) (2500 "15" 256 app!(mysql "two")) $($rest)*) };
    (yy $($rest:tt)*) => { mix!(@both (2500 "15" 256 app!(mysql "one")) (2500 "15" 256 app!(mysql "two")) $($rest)*) };
    (@two ($rate:literal $p99:literal $threads:literal $program:expr) [$($first:expr)?] $($more:expr),*) => {
        &[
            concat!("tenant.two.load.max_rate=", $rate),
            concat!("tenant.two.objective.p99_ms=", $p99),
            concat!("tenant.two.thread.worker.count=", $threads),
            $program
            $(, $first)?
            $(, $more)*
        ]
    };
    (@both ($rate1:literal $p1:literal $threads1:literal $program1:expr) ($rate:literal $p99:literal $threads:literal $program:expr)
     [$($first:expr)?] $($more:expr),*) => {
        &[
            concat!("tenant.one.load.max_rate=", $rate1),
            concat!("tenant.one.objective.p99_ms=", $p1),
            concat!("tenant.one.thread.worker.count=", $threads1),
            $program1,
            concat!("tenant.two.load.max_rate=", $rate),
            concat!("tenant.two.objective.p99_ms=", $p99),
            concat!("tenant.two.thread.worker.count=", $threads),
            $program
            $(, $first)?
            $(, $more)*
        ]
    };
}

const ONE: &str = "tenant.one.load.percent";
const TWO: &str = "tenant.two.load.percent";
/// The numbers of a host's cores, for a side on which no tenant has CPUs of its own.
const FEWER: Axis = Axis {
    key: "host.topology.cores",
    values: &[2, 3, 4, 5, 6, 7],
};
/// The default settles quickly. DynIso is watched between two of its trials, each of which breaks objectives
/// for half a second.
const AT_ONCE: &str = "warmup_seconds=0.5";
const BETWEEN_TRIALS: &str = "warmup_seconds=6";
/// UFO has then found how many CPUs each VM needs, and tested that by a trial.
const SETTLED: &str = "warmup_seconds=22";

/// The rows of a grid on each side: the second VM's load, the first VM's loads, and the loads among these at
/// which smaller hosts are measured, too.
macro_rules! grid {
    ($mix:ident $more:tt; $($two:literal: $ones:expr, $few:expr;)+) => {
        &[$(
            Sweep {
                scenario: PAIR,
                set: mix!($mix $more concat!("tenant.two.load.percent=", $two), AT_ONCE),
                over: &[Axis { key: ONE, values: &$ones }],
                sides: Some("default"),
            },
            Sweep {
                scenario: PAIR,
                set: mix!($mix $more concat!("tenant.two.load.percent=", $two), AT_ONCE),
                over: &[FEWER, Axis { key: ONE, values: &$few }],
                sides: Some("default"),
            },
            Sweep {
                scenario: PAIR,
                set: mix!($mix $more concat!("tenant.two.load.percent=", $two), BETWEEN_TRIALS),
                over: &[Axis { key: ONE, values: &$ones }],
                sides: Some("dyniso"),
            },
            Sweep {
                scenario: PAIR,
                set: mix!($mix $more concat!("tenant.two.load.percent=", $two)),
                over: &[Axis { key: ONE, values: &$ones }],
                sides: Some("ufo"),
            },
        )+]
    };
}

const FINE: &[Sweep] = grid! { mm [];
    10: [10, 20, 30, 40, 50, 60, 70, 80, 90, 100], [10, 20, 30, 40, 50, 60];
    20: [20, 30, 40, 50, 60, 70, 80, 90, 100], [20, 30, 40, 50];
    30: [30, 40, 50, 60, 70, 80, 90], [30, 40];
    40: [40, 50, 60, 70, 80], [];
    50: [50, 60, 70], [];
    60: [60], [];
};

const fn cpus(set: &'static [&'static str]) -> Loads {
    Loads::Cpus(of(PAIR, set), "dyniso")
}

const fn carried(set: &'static [&'static str]) -> Loads {
    Loads::Carried(of(PAIR, set), "dyniso")
}

const CELLS: &str = "cells of 100 with both objectives kept";
const FEWER_CPUS: &str = "CPUs against dyniso, at the same load";
const MORE_LOAD: &str = "most load against dyniso, on as many CPUs";

/// Figure 13's claims on each mix.
macro_rules! mixes {
    ($($name:literal $mix:ident;)+) => {
        &[
            $(loads($name, "cells with both objectives kept", "", Loads::Kept(of(PAIR, mix!($mix [])))),)+
            $(loads($name, FEWER_CPUS, "", cpus(mix!($mix []))),)+
            loads("mean", FEWER_CPUS, "ufo −22 %, at most −50 %", Loads::Mean(&[$(cpus(mix!($mix []))),+])),
            $(loads($name, MORE_LOAD, "", carried(mix!($mix []))),)+
            loads("mean", MORE_LOAD, "ufo +27 %, at most +60 %", Loads::Mean(&[$(carried(mix!($mix []))),+])),
        ]
    };
}

/// Figure 15's claims.
macro_rules! decomposed {
    ($($name:literal $module:ident;)+) => {
        &[
            $(loads($name, "most load under the default", "", $module::MOST),)+
            $(loads($name, "UFO-vCPU against the default", "", $module::WITH_VCPUS),)+
            loads("mean", "UFO-vCPU against the default", "+19.8 %", Loads::Mean(&[$($module::WITH_VCPUS),+])),
            $(loads($name, "UFO-emulator against the default", "", $module::WITH_EMULATORS),)+
            loads("mean", "UFO-emulator against the default", "sometimes less", Loads::Mean(&[$($module::WITH_EMULATORS),+])),
            $(loads($name, "both against the default", "", $module::WITH_BOTH),)+
            loads("mean", "both against the default", "+69.8 %", Loads::Mean(&[$($module::WITH_BOTH),+])),
        ]
    };
}

/// All mixes, on a coarser grid.
macro_rules! all_mixes {
    ($($mix:ident $more:tt;)+) => {
        &[$(
            Sweep {
                scenario: PAIR,
                set: mix!($mix $more AT_ONCE),
                over: &[Axis { key: TWO, values: &[25, 50, 75, 100] }, Axis { key: ONE, values: &[25, 50, 75, 100] }],
                sides: Some("default"),
            },
            Sweep {
                scenario: PAIR,
                set: mix!($mix $more AT_ONCE),
                over: &[FEWER, Axis { key: TWO, values: &[25, 50] }, Axis { key: ONE, values: &[25, 50] }],
                sides: Some("default"),
            },
            Sweep {
                scenario: PAIR,
                set: mix!($mix $more BETWEEN_TRIALS),
                over: &[Axis { key: TWO, values: &[25, 50, 75] }, Axis { key: ONE, values: &[25, 50, 75] }],
                sides: Some("dyniso,parties"),
            },
            Sweep {
                scenario: PAIR,
                set: mix!($mix $more SETTLED),
                over: &[Axis { key: TWO, values: &[25, 50, 75, 100] }, Axis { key: ONE, values: &[25, 50, 75] }],
                sides: Some("ufo"),
            },
        )+]
    };
}

const MIXES: &[Sweep] = all_mixes! {
    mm [];
    mn [];
    my ["seconds=4"];
    nn [];
    ny ["seconds=4"];
    yy ["seconds=4"];
};

/// The figures of the evaluation.
pub const FIGURES: &[Figure] = &[
    Figure {
        name: "ufo-fig12",
        on: ON,
        scheduling: false,
        title: "UFO, Fig. 12: cells of two Memcached VMs' loads in which both keep their objectives on 16 hyperthreads, and the CPUs needed",
        paper: "two VMs of 8 vCPUs, each at 10 to 100 % of its max load; the fewest of 16 hyperthreads with which both objectives are kept.",
        differs: &[
            "Of two mirrored cells one is measured and counts twice. Cells above 120 % together are left out: a request takes some 33 us of \
                hyperthreads, so that 130 % would keep 15 of 16 wholly busy.",
            DYNISO,
            APPLICATIONS,
            MACHINE,
        ],
        sides: "default,dyniso,ufo",
        sweeps: FINE,
        claims: &[
            loads(
                "both objectives kept",
                CELLS,
                "default 19, dyniso 16, ufo 64",
                Loads::Kept(of(PAIR, mix!(mm []))),
            ),
            against(
                "against default",
                CELLS,
                "ufo × 3.4",
                "default",
                &Quantity::Loads(Loads::Kept(of(PAIR, mix!(mm [])))),
            ),
            against(
                "against dyniso",
                CELLS,
                "ufo × 4",
                "dyniso",
                &Quantity::Loads(Loads::Kept(of(PAIR, mix!(mm [])))),
            ),
            loads(
                "mean",
                FEWER_CPUS,
                "ufo −22 %, at most −50 %, over six mixes",
                cpus(mix!(mm [])),
            ),
            loads(
                "mean",
                MORE_LOAD,
                "ufo +27 %, at most +60 %, over six mixes",
                carried(mix!(mm [])),
            ),
        ],
    },
    Figure {
        name: "ufo-fig13",
        on: ON,
        scheduling: false,
        title: "UFO, Fig. 13 and 21 to 25: the most load of two VMs on as many CPUs, and the CPUs needed at the same load",
        paper: "six mixes of Memcached, nginx and MySQL in two VMs of 8 vCPUs on 2 to 16 hyperthreads.",
        differs: &["Loads in steps of 25 %.", DYNISO, APPLICATIONS, MACHINE],
        sides: "default,dyniso,parties,ufo",
        sweeps: MIXES,
        claims: mixes! {
            "Memcached and Memcached" mm;
            "Memcached and nginx" mn;
            "Memcached and MySQL" my;
            "nginx and nginx" nn;
            "nginx and MySQL" ny;
            "MySQL and MySQL" yy;
        },
    },
    Figure {
        name: "ufo-fig14",
        on: ON,
        scheduling: false,
        title: "UFO, Fig. 14: three VMs whose loads change: seconds of 260 in which an objective is missed",
        paper: "nginx in steps up and down, MySQL with bursts of a second, Memcached with bursts of 5 and 15 s, in VMs of 8 vCPUs; UFO is 1 to 3 s late \
            after a step, the default and DynIso miss objectives throughout on as many CPUs.",
        differs: &[
            "The host has 22 hyperthreads on all sides, emulator threads among what runs there; in the paper each side has at each time as many as UFO.",
            APPLICATIONS,
            MACHINE,
        ],
        sides: "default,dyniso,parties,ufo",
        sweeps: &[once(DAY, &[])],
        claims: &[
            late(
                "nginx",
                "default, dyniso: throughout; ufo: 1 to 3 s after each of 4 steps up",
            ),
            late("memcached", "ufo: 4 s of each burst"),
            late("mysql", "ufo: the bursts"),
            loads(
                "CPUs held",
                "of 22, in the mean",
                "",
                Loads::Held(of(DAY, &[])),
            ),
        ],
    },
    Figure {
        name: "ufo-fig15",
        on: ON,
        scheduling: false,
        title: "UFO, Fig. 15: most load of a VM of 16 vCPUs with parts of UFO, on 8, 12 and 16 hyperthreads",
        paper: "VMs of 16 vCPUs; UFO-vCPU does not set emulator threads apart, UFO-emulator does not tell the guest.",
        differs: &[
            "The division that UFO settles on is set from the beginning: emulator threads have 2 CPUs of 8, 4 of 12 and 16 with Memcached, 2 with nginx.",
            LOADS,
            APPLICATIONS,
            MACHINE,
        ],
        sides: "default",
        sweeps: &[
            m8::SWEEP_DEFAULT,
            m8::SWEEP_VCPUS,
            m8::SWEEP_EMULATORS,
            m8::SWEEP_BOTH,
            m12::SWEEP_DEFAULT,
            m12::SWEEP_VCPUS,
            m12::SWEEP_EMULATORS,
            m12::SWEEP_BOTH,
            m16::SWEEP_DEFAULT,
            m16::SWEEP_VCPUS,
            m16::SWEEP_EMULATORS,
            m16::SWEEP_BOTH,
            n8::SWEEP_DEFAULT,
            n8::SWEEP_VCPUS,
            n8::SWEEP_EMULATORS,
            n8::SWEEP_BOTH,
            n12::SWEEP_DEFAULT,
            n12::SWEEP_VCPUS,
            n12::SWEEP_EMULATORS,
            n12::SWEEP_BOTH,
            n16::SWEEP_DEFAULT,
            n16::SWEEP_VCPUS,
            n16::SWEEP_EMULATORS,
            n16::SWEEP_BOTH,
        ],
        claims: decomposed! {
            "Memcached on 8" m8;
            "Memcached on 12" m12;
            "Memcached on 16" m16;
            "nginx on 8" n8;
            "nginx on 12" n12;
            "nginx on 16" n16;
        },
    },
];
