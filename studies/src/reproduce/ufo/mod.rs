//! Figures of UFO (Peng et al., NSDI 2024), as data: its characterisation here, its evaluation in
//! [`evaluation`]. Percentages are those in the paper's text; its bars are not read off.
//!
//! Applications are thread programs (scenarios/ufo/pair.toml says where their numbers come from): Memcached
//! as the files have it, nginx and MySQL by the settings below. Loads are in percent of the most that a VM
//! answers in time by itself, as in the paper.

use super::{Axis, Claim, Doing, Figure, Loads, Of, Quantity, Sweep, number, once};
use quell_bench::result::{Metric, Substrate};

const ON: &[Substrate] = &[Substrate::Sim];

const MACHINE: &str = "A simulated machine: hosts with CFS of Linux 6.1 (the paper's: 5.10), guests with EEVDF of 6.12, exits, halt polling and \
    an emulator thread for each of 8 queues of a VM's network card (docs/design/simulator.md). `--set host.scheduler=eevdf` is the host of today.";
const APPLICATIONS: &str = "Applications are thread programs: a request's CPU time is the one at which a VM alone answers the paper's max load \
    within the paper's objective on 8 hyperthreads. MySQL's requests are transactions of 20 queries, each a message from the client, 50 us after \
    the last one's answer; the paper counts queries.";
const ELSEWHERE: &str = "Emulator threads are on hyperthreads of their own, beside the 16 (studies/scenarios/ufo/four.toml says why).";
const LOADS: &str =
    "Loads are of all VMs together, in percent of what one answers in time by itself.";

/// The points of a scenario with these settings.
const fn of(scenario: &'static str, set: &'static [&'static str]) -> Of {
    Of { scenario, set }
}

const fn loads(what: &'static str, of: &'static str, paper: &'static str, loads: Loads) -> Claim {
    number(what, of, paper, Quantity::Loads(loads))
}

const fn against(
    what: &'static str,
    of: &'static str,
    paper: &'static str,
    side: &'static str,
    quantity: &'static Quantity,
) -> Claim {
    number(what, of, paper, Quantity::Against { side, quantity })
}

/// The program that makes one of a scenario's VMs nginx or MySQL.
macro_rules! app {
    (nginx $vm:literal) => {
        concat!("tenant.", $vm, ".thread.worker.program=[\"request\", { run_us = { exponential = 32 } }, \"respond\"]")
    };
    (mysql $vm:literal) => {
        concat!(
            "tenant.", $vm, ".thread.worker.program=[\"request\", { repeat = { times = 18, program = [{ run_us = 75 }, \
             { exchange_us = 50 }] } }, { run_us = 75 }, { lock = { name = \"log\", program = [{ run_us = 10 }] } }, \
             { exchange_us = 50 }, { run_us = 75 }, { lock = { name = \"log\", program = [{ run_us = 10 }] } }, \"respond\"]"
        )
    };
}

/// The settings that make a VM one application or another, and more settings.
macro_rules! vm {
    (memcached $vm:literal $($more:expr),*) => { &[concat!("tenant.", $vm, ".load.max_rate=350000") $(, $more)*] };
    (nginx $vm:literal $($more:expr),*) => {
        &[
            concat!("tenant.", $vm, ".load.max_rate=120000"),
            concat!("tenant.", $vm, ".objective.p99_ms=2"),
            app!(nginx $vm)
            $(, $more)*
        ]
    };
    (mysql $vm:literal $($more:expr),*) => {
        &[
            concat!("tenant.", $vm, ".load.max_rate=2500"),
            concat!("tenant.", $vm, ".objective.p99_ms=15"),
            concat!("tenant.", $vm, ".thread.worker.count=256"),
            app!(mysql $vm)
            $(, $more)*
        ]
    };
}

const ALONE: &str = "ufo/alone";
const FOUR: &str = "ufo/four";
const BATCH: &str = "ufo/batch";
const PERCENT: &str = "tenant.vm.load.percent";

const fn sweep(
    scenario: &'static str,
    set: &'static [&'static str],
    over: &'static [Axis],
) -> Sweep {
    Sweep {
        scenario,
        set,
        over,
        sides: None,
    }
}

mod evaluation;

pub use evaluation::FIGURES as EVALUATION;

// Figures 2 and 3: four VMs.

const MEMCACHED: &[&str] = vm!(memcached "vm");
const NGINX: &[&str] = vm!(nginx "vm");
const MYSQL: &[&str] = vm!(mysql "vm" "seconds=4");

const MOST_MEMCACHED: Quantity = Quantity::Loads(Loads::Most(of(FOUR, MEMCACHED)));
const MOST_NGINX: Quantity = Quantity::Loads(Loads::Most(of(FOUR, NGINX)));
const MOST_MYSQL: Quantity = Quantity::Loads(Loads::Most(of(FOUR, MYSQL)));

// Figure 3: at the paper's rates.

macro_rules! at {
    ($app:ident $percent:literal) => {
        vm!($app "vm" concat!("tenant.vm.load.percent=", $percent))
    };
}

const MEMCACHED_AT: &[&str] = at!(memcached "17");
const NGINX_AT: &[&str] = at!(nginx "42");
const MYSQL_AT: &[&str] = at!(mysql "40");

const fn doing(set: &'static [&'static str], doing: Doing) -> Quantity {
    Quantity::Loads(Loads::Doing(of(FOUR, set), doing))
}

/// Claims on what hosts and guests do at a point, and on that against the default.
macro_rules! scheduling {
    ($($name:literal $set:ident;)+) => {
        &[
            $(
                number("host", concat!($name, ": switches to virtual CPUs per second"), "", doing($set, Doing::HostSwitches)),
                against("host, against default", concat!($name, ": switches to virtual CPUs per second"), "host-aware −92 %", "default", &doing($set, Doing::HostSwitches)),
                number("guest", concat!($name, ": switches per second"), "", doing($set, Doing::GuestSwitches)),
                against("guest, against default", concat!($name, ": switches per second"), "host-aware about none", "default", &doing($set, Doing::GuestSwitches)),
                number("host", concat!($name, ": virtual CPUs that wait"), "", doing($set, Doing::HostDelay)),
                against("host, against default", concat!($name, ": virtual CPUs that wait"), "host-aware −99 %", "default", &doing($set, Doing::HostDelay)),
                number("guest", concat!($name, ": threads that wait"), "", doing($set, Doing::GuestDelay)),
                number("exits", concat!($name, ": VM exits per second"), "alike", doing($set, Doing::Exits)),
            )+
        ]
    };
}

// Figures 4 and 18: one VM on 2 to 8 hyperthreads.

/// The settings of one VM on a number of CPUs, with as many vCPUs.
macro_rules! on {
    ($app:ident 2 $($more:expr),*) => { vm!($app "vm" "tenant.vm.vcpus=2", "tenant.vm.cpus=0,8" $(, $more)*) };
    ($app:ident 4 $($more:expr),*) => { vm!($app "vm" "tenant.vm.vcpus=4", "tenant.vm.cpus=0-1,8-9" $(, $more)*) };
    ($app:ident 6 $($more:expr),*) => { vm!($app "vm" "tenant.vm.vcpus=6", "tenant.vm.cpus=0-2,8-10" $(, $more)*) };
    ($app:ident 8 $($more:expr),*) => { vm!($app "vm" "tenant.vm.vcpus=8", "tenant.vm.cpus=0-3,8-11" $(, $more)*) };
}

// Loads up to where more CPUs are needed, and a little beyond.
const ON_2: &[Axis] = &[Axis {
    key: PERCENT,
    values: &[4, 8, 12, 16, 20, 22, 24, 26, 28],
}];
const ON_4: &[Axis] = &[Axis {
    key: PERCENT,
    values: &[8, 16, 20, 24, 32, 36, 40, 44, 48, 52, 56],
}];
const ON_6: &[Axis] = &[Axis {
    key: PERCENT,
    values: &[12, 24, 36, 48, 54, 60, 66, 72, 76, 80],
}];
const ON_8: &[Axis] = &[Axis {
    key: PERCENT,
    values: &[16, 32, 48, 64, 72, 80, 88, 96, 100, 104],
}];

/// An application on 2, 4, 6 and 8 hyperthreads: a module with its sweeps and claims.
macro_rules! counts {
    ($module:ident $app:ident $name:literal $seconds:literal $($most:literal)+) => {
        mod $module {
            use super::*;
            pub const TWO: &[&str] = on!($app 2 $seconds);
            pub const FOUR: &[&str] = on!($app 4 $seconds);
            pub const SIX: &[&str] = on!($app 6 $seconds);
            pub const EIGHT: &[&str] = on!($app 8 $seconds);
            pub const SWEEP_2: Sweep = sweep(ALONE, TWO, ON_2);
            pub const SWEEP_4: Sweep = sweep(ALONE, FOUR, ON_4);
            pub const SWEEP_6: Sweep = sweep(ALONE, SIX, ON_6);
            pub const SWEEP_8: Sweep = sweep(ALONE, EIGHT, ON_8);
            const MOST: &str = concat!($name, ": most load within the objective");
            const SHAPE: &str = concat!($name, ": guest's switches over its utilization, fit of a parabola");
            pub const CLAIM_2: Claim = loads("2 CPUs", MOST, most!(0 $($most)+), Loads::Most(of(ALONE, TWO)));
            pub const CLAIM_4: Claim = loads("4 CPUs", MOST, most!(1 $($most)+), Loads::Most(of(ALONE, FOUR)));
            pub const CLAIM_6: Claim = loads("6 CPUs", MOST, most!(2 $($most)+), Loads::Most(of(ALONE, SIX)));
            pub const CLAIM_8: Claim = loads("8 CPUs", MOST, "100 %", Loads::Most(of(ALONE, EIGHT)));
            pub const SHAPE_2: Claim = loads("2 CPUs", SHAPE, "concave", Loads::Concavity(of(ALONE, TWO)));
            pub const SHAPE_4: Claim = loads("4 CPUs", SHAPE, "concave", Loads::Concavity(of(ALONE, FOUR)));
            pub const SHAPE_6: Claim = loads("6 CPUs", SHAPE, "concave", Loads::Concavity(of(ALONE, SIX)));
            pub const SHAPE_8: Claim = loads("8 CPUs", SHAPE, "concave", Loads::Concavity(of(ALONE, EIGHT)));
        }
    };
}

macro_rules! most {
    (0 $a:literal $b:literal $c:literal) => {
        $a
    };
    (1 $a:literal $b:literal $c:literal) => {
        $b
    };
    (2 $a:literal $b:literal $c:literal) => {
        $c
    };
}

counts!(memcached memcached "Memcached" "seconds=1" "28 %" "51 %" "74 %");
counts!(nginx nginx "nginx" "seconds=1" "" "" "");
counts!(mysql mysql "MySQL" "seconds=4" "" "" "");

/// Switches at one load on a number of CPUs against those on the next number.
macro_rules! adjacent {
    ($what:literal $paper:literal $few:tt $many:tt $percent:literal) => {
        loads(
            $what,
            "Memcached: guest's switches against those with 2 CPUs more",
            $paper,
            Loads::Over(
                &Loads::Doing(of(ALONE, on!(memcached $few "seconds=1", concat!("tenant.vm.load.percent=", $percent))), Doing::GuestSwitches),
                &Loads::Doing(of(ALONE, on!(memcached $many "seconds=1", concat!("tenant.vm.load.percent=", $percent))), Doing::GuestSwitches),
            ),
        )
    };
}

// Figure 5: emulator threads beside vCPUs, or on CPUs of their own.

macro_rules! beside_or_apart {
    ($app:ident $beside:ident $apart:ident) => {
        const $beside: &[&str] = vm!($app "vm" "tenant.vm.cpus=0-3,8-11", "tenant.vm.emulator_cpus=0-3,8-11");
        const $apart: &[&str] = vm!($app "vm" "tenant.vm.vcpus=6", "tenant.vm.cpus=0-2,8-10", "tenant.vm.emulator_cpus=3,11");
    };
}

beside_or_apart!(memcached MEMCACHED_BESIDE MEMCACHED_APART);
beside_or_apart!(nginx NGINX_BESIDE NGINX_APART);
beside_or_apart!(mysql MYSQL_BESIDE MYSQL_APART);

const TO_100: &[u32] = &[20, 30, 40, 50, 56, 62, 68, 74, 80, 86, 92, 98];
const OVER_100: &[Axis] = &[Axis {
    key: PERCENT,
    values: TO_100,
}];

const fn apart(what: &'static str, apart: &'static Loads, beside: &'static Loads) -> Claim {
    loads(
        what,
        "most load, apart against beside",
        "+15 to +50 %",
        Loads::Over(apart, beside),
    )
}

/// Figure 20: MySQL at 60 % for intervals of these lengths.
const INTERVALS: [&[&str]; 5] = [
    vm!(mysql "vm" "tenant.vm.load.percent=60", "pairs=40", "seconds=0.1"),
    vm!(mysql "vm" "tenant.vm.load.percent=60", "pairs=40", "seconds=0.5"),
    vm!(mysql "vm" "tenant.vm.load.percent=60", "pairs=40", "seconds=1"),
    vm!(mysql "vm" "tenant.vm.load.percent=60", "pairs=40", "seconds=3"),
    vm!(mysql "vm" "tenant.vm.load.percent=60", "pairs=20", "seconds=10"),
];

const fn spread(
    what: &'static str,
    of_what: &'static str,
    set: &'static [&'static str],
    metric: Metric,
) -> Claim {
    loads(what, of_what, "", Loads::Spread(of(ALONE, set), metric))
}

/// The figures of the characterisation.
pub const FIGURES: &[Figure] = &[
    Figure {
        name: "ufo-fig2",
        on: ON,
        scheduling: false,
        title: "UFO, Fig. 2a: most load of four VMs within their objectives, 32 virtual CPUs on 16 hyperthreads",
        paper: "four VMs of 8 vCPUs on 16 hyperthreads (Xeon 8378), Memcached, nginx or MySQL in all of them; under the default, each with CPUs of \
            its own, and guests that know how many.",
        differs: &[LOADS, ELSEWHERE, APPLICATIONS, MACHINE],
        sides: "default,isolation,host-aware,eevdf",
        sweeps: &[
            sweep(
                FOUR,
                MEMCACHED,
                &[Axis {
                    key: PERCENT,
                    values: &[6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54],
                }],
            ),
            sweep(
                FOUR,
                NGINX,
                &[Axis {
                    key: PERCENT,
                    values: &[12, 20, 28, 34, 38, 42, 46, 50, 54],
                }],
            ),
            sweep(
                FOUR,
                MYSQL,
                &[Axis {
                    key: PERCENT,
                    values: &[20, 28, 34, 38, 42, 46, 50, 54, 58],
                }],
            ),
        ],
        claims: &[
            number(
                "Memcached",
                "most load of four",
                "default 69 %",
                MOST_MEMCACHED,
            ),
            number("nginx", "most load of four", "default 167 %", MOST_NGINX),
            number("MySQL", "most load of four", "default 160 %", MOST_MYSQL),
            against(
                "Memcached",
                "against default",
                "isolation +18 % on average, at most +33 %",
                "default",
                &MOST_MEMCACHED,
            ),
            against("nginx", "against default", "", "default", &MOST_NGINX),
            against("MySQL", "against default", "", "default", &MOST_MYSQL),
            against(
                "Memcached",
                "against isolation",
                "host-aware +25 to +125 %",
                "isolation",
                &MOST_MEMCACHED,
            ),
            against("nginx", "against isolation", "", "isolation", &MOST_NGINX),
            against("MySQL", "against isolation", "", "isolation", &MOST_MYSQL),
        ],
    },
    Figure {
        name: "ufo-fig2b",
        on: ON,
        scheduling: false,
        title: "UFO, Fig. 2b: four VMs that compute, 32 virtual CPUs on 16 hyperthreads",
        paper: "PARSEC and TPC-DS on Spark; time of each against the default's.",
        differs: &[
            "One program with barriers stands for PARSEC: work done in place of time.",
            MACHINE,
        ],
        sides: "default,isolation,host-aware,eevdf",
        sweeps: &[once(BATCH, &[])],
        claims: &[super::change_of(
            super::BATCH,
            "work done",
            "host-aware −0.7 % of the time, Spark −7 %",
            Metric::WorkPerS,
            &[],
            super::EVERY_RATIO,
        )],
    },
    Figure {
        name: "ufo-fig3",
        on: ON,
        scheduling: false,
        title: "UFO, Fig. 3 and 16: switches, delays and exits of hosts and guests",
        paper: "the VMs of Fig. 2 at the most load that the default sustains: 60k, 50k and 20k requests a second each.",
        differs: &[
            "At the paper's rates, which are above the most that the default sustains here (Fig. 2) for Memcached and nginx; MySQL's in queries.",
            "The paper does not say which of the host's switches it counts; here those to virtual CPUs, which it argues about.",
            ELSEWHERE,
            APPLICATIONS,
            MACHINE,
        ],
        sides: "default,isolation,host-aware",
        sweeps: &[
            once(FOUR, MEMCACHED_AT),
            once(FOUR, NGINX_AT),
            once(FOUR, MYSQL_AT),
        ],
        claims: scheduling! {
            "Memcached" MEMCACHED_AT;
            "nginx" NGINX_AT;
            "MySQL" MYSQL_AT;
        },
    },
    Figure {
        name: "ufo-fig4",
        on: ON,
        scheduling: false,
        title: "UFO, Fig. 4: latency and scheduling frequency of Memcached over load, by CPUs",
        paper: "Memcached in a VM of 8 vCPUs on 2, 4, 6 and 8 hyperthreads.",
        differs: &[LOADS, APPLICATIONS, MACHINE],
        sides: "default",
        sweeps: &[
            memcached::SWEEP_2,
            memcached::SWEEP_4,
            memcached::SWEEP_6,
            memcached::SWEEP_8,
        ],
        claims: &[
            memcached::CLAIM_2,
            memcached::CLAIM_4,
            memcached::CLAIM_6,
            memcached::CLAIM_8,
            memcached::SHAPE_2,
            memcached::SHAPE_4,
            memcached::SHAPE_6,
            memcached::SHAPE_8,
            adjacent!("2 CPUs at 20 %" "−30 %" 2 4 "20"),
            adjacent!("4 CPUs at 48 %" "−29 %" 4 6 "48"),
            adjacent!("6 CPUs at 72 %" "−27 %" 6 8 "72"),
        ],
    },
    Figure {
        name: "ufo-fig5",
        on: ON,
        scheduling: false,
        title: "UFO, Fig. 5: emulator threads beside virtual CPUs on 8 hyperthreads, or 6 and 2",
        paper: "a VM of 8 vCPUs by itself.",
        differs: &[LOADS, APPLICATIONS, MACHINE],
        sides: "default,eevdf",
        sweeps: &[
            sweep(ALONE, MEMCACHED_BESIDE, OVER_100),
            sweep(ALONE, MEMCACHED_APART, OVER_100),
            sweep(ALONE, NGINX_BESIDE, OVER_100),
            sweep(ALONE, NGINX_APART, OVER_100),
            sweep(ALONE, MYSQL_BESIDE, OVER_100),
            sweep(ALONE, MYSQL_APART, OVER_100),
        ],
        claims: &[
            loads(
                "Memcached",
                "most load, beside",
                "",
                Loads::Most(of(ALONE, MEMCACHED_BESIDE)),
            ),
            loads(
                "nginx",
                "most load, beside",
                "",
                Loads::Most(of(ALONE, NGINX_BESIDE)),
            ),
            loads(
                "MySQL",
                "most load, beside",
                "",
                Loads::Most(of(ALONE, MYSQL_BESIDE)),
            ),
            apart(
                "Memcached",
                &Loads::Most(of(ALONE, MEMCACHED_APART)),
                &Loads::Most(of(ALONE, MEMCACHED_BESIDE)),
            ),
            apart(
                "nginx",
                &Loads::Most(of(ALONE, NGINX_APART)),
                &Loads::Most(of(ALONE, NGINX_BESIDE)),
            ),
            apart(
                "MySQL",
                &Loads::Most(of(ALONE, MYSQL_APART)),
                &Loads::Most(of(ALONE, MYSQL_BESIDE)),
            ),
        ],
    },
    Figure {
        name: "ufo-fig6",
        on: ON,
        scheduling: false,
        title: "UFO, Fig. 6 and 7: switches and emulator threads of VMs that answer requests, and of ones that compute",
        paper: "LC applications switch orders of magnitude more often than BE ones; emulator threads use 15 to 50 % of what vCPUs do, of BE \
            ones less than 1 %.",
        differs: &[
            "At the loads of Fig. 3.",
            "A VM without requests has no emulator threads here.",
            APPLICATIONS,
            MACHINE,
        ],
        sides: "default,eevdf",
        sweeps: &[
            once(FOUR, MEMCACHED_AT),
            once(FOUR, NGINX_AT),
            once(FOUR, MYSQL_AT),
            once(BATCH, &[]),
        ],
        claims: &[
            number(
                "Memcached",
                "guests' switches per second",
                "",
                doing(MEMCACHED_AT, Doing::GuestSwitches),
            ),
            number(
                "nginx",
                "guests' switches per second",
                "",
                doing(NGINX_AT, Doing::GuestSwitches),
            ),
            number(
                "MySQL",
                "guests' switches per second",
                "",
                doing(MYSQL_AT, Doing::GuestSwitches),
            ),
            loads(
                "computing",
                "guests' switches per second",
                "orders of magnitude fewer",
                Loads::Doing(of(BATCH, &[]), Doing::GuestSwitches),
            ),
            number(
                "Memcached",
                "host's switches to virtual CPUs per second",
                "",
                doing(MEMCACHED_AT, Doing::HostSwitches),
            ),
            loads(
                "computing",
                "host's switches to virtual CPUs per second",
                "orders of magnitude fewer",
                Loads::Doing(of(BATCH, &[]), Doing::HostSwitches),
            ),
            number(
                "Memcached",
                "emulator threads, of virtual CPUs' time",
                "15 to 50 %",
                doing(MEMCACHED_AT, Doing::Emulators),
            ),
            number(
                "nginx",
                "emulator threads, of virtual CPUs' time",
                "15 to 50 %",
                doing(NGINX_AT, Doing::Emulators),
            ),
            number(
                "MySQL",
                "emulator threads, of virtual CPUs' time",
                "15 to 50 %",
                doing(MYSQL_AT, Doing::Emulators),
            ),
        ],
    },
    Figure {
        name: "ufo-fig18",
        on: ON,
        scheduling: false,
        title: "UFO, Fig. 18: latency and scheduling frequency of nginx and MySQL over load, by CPUs",
        paper: "nginx, MySQL and three of TailBench in a VM of 8 vCPUs; all but MySQL switch less again at high loads.",
        differs: &[
            "TailBench's three are left out: the paper tells no load of theirs.",
            LOADS,
            APPLICATIONS,
            MACHINE,
        ],
        sides: "default",
        sweeps: &[
            nginx::SWEEP_2,
            nginx::SWEEP_4,
            nginx::SWEEP_6,
            nginx::SWEEP_8,
            mysql::SWEEP_2,
            mysql::SWEEP_4,
            mysql::SWEEP_6,
            mysql::SWEEP_8,
        ],
        claims: &[
            nginx::CLAIM_2,
            nginx::CLAIM_4,
            nginx::CLAIM_6,
            nginx::CLAIM_8,
            nginx::SHAPE_2,
            nginx::SHAPE_4,
            nginx::SHAPE_6,
            nginx::SHAPE_8,
            mysql::CLAIM_2,
            mysql::CLAIM_4,
            mysql::CLAIM_6,
            mysql::CLAIM_8,
            mysql::SHAPE_2,
            mysql::SHAPE_4,
            mysql::SHAPE_6,
            mysql::SHAPE_8,
        ],
    },
    Figure {
        name: "ufo-fig20",
        on: ON,
        scheduling: false,
        title: "UFO, Fig. 20: how much load and latency of MySQL at a constant rate differ from one interval to the next",
        paper: "MySQL with 30,000 requests a second (60 % of its max load), intervals of different lengths: below a second too unstable to act on.",
        differs: &[
            "Each interval is a window of its own; the spread is the standard deviation as a part of the mean.",
            APPLICATIONS,
            MACHINE,
        ],
        sides: "default",
        sweeps: &[
            once(ALONE, INTERVALS[0]),
            once(ALONE, INTERVALS[1]),
            once(ALONE, INTERVALS[2]),
            once(ALONE, INTERVALS[3]),
            once(ALONE, INTERVALS[4]),
        ],
        claims: &[
            spread("0.1 s", "requests", INTERVALS[0], Metric::RequestsPerS),
            spread("0.5 s", "requests", INTERVALS[1], Metric::RequestsPerS),
            spread("1 s", "requests", INTERVALS[2], Metric::RequestsPerS),
            spread("3 s", "requests", INTERVALS[3], Metric::RequestsPerS),
            spread("10 s", "requests", INTERVALS[4], Metric::RequestsPerS),
            spread(
                "0.1 s",
                "99th percentile of latency",
                INTERVALS[0],
                Metric::P99Us,
            ),
            spread(
                "0.5 s",
                "99th percentile of latency",
                INTERVALS[1],
                Metric::P99Us,
            ),
            spread(
                "1 s",
                "99th percentile of latency",
                INTERVALS[2],
                Metric::P99Us,
            ),
            spread(
                "3 s",
                "99th percentile of latency",
                INTERVALS[3],
                Metric::P99Us,
            ),
            spread(
                "10 s",
                "99th percentile of latency",
                INTERVALS[4],
                Metric::P99Us,
            ),
        ],
    },
];
