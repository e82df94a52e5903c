//! Figures redone on real kernels with 8 CPUs, as data. Percentages are those in the paper's text; its bars
//! are not read off.

use super::{
    Axis, BATCH, Claim, EVERY_RATIO, Figure, Quantity, Sweep, Tenants, change, change_of, growth,
};
use quell_bench::result::{Metric, Substrate};

/// Numbers of tenants with four threads on 8 CPUs: ratios 0.5, 1, 1.5, 2, 2.5, 3 and 4.
const TENANTS: &[u32] = &[1, 2, 3, 4, 5, 6, 8];

/// The key that sweeps of these scenarios vary.
const COUNT: &str = "tenant.svc.count";

const LOW: (f64, f64) = (0.0, 1.0);
const HIGHEST: (f64, f64) = (3.0, 4.0);

/// What holds for all figures.
const MACHINE: &str = "8 CPUs and tenants of 4 threads, where the paper has 80 CPUs and VMs of 16 vCPUs; 8 CPUs allow the ratios \
    0.5, 1, 1.5, 2, 2.5, 3 and 4 instead of 0.4 to 3.2. Tenants are processes, without a hypervisor between.";
const KERNEL: &str = "The baseline is this kernel's scheduler (EEVDF since 6.6), where the paper's is Linux 5.3's CFS. EEVDF takes a \
    part of what the paper gains: it lets short waits end sooner by itself.";
const SCHEDULER: &str = "`sched` is Quell's sched_ext scheduler, not the paper's patched CFS: it adds causal age, which the paper does \
    not have. `--policy default,dasec` measures the paper's mechanism on the stock kernel.";
const LOAD: &str = "Each service asks for 80 % of a CPU, so the CPUs are 10 % busy at ratio 0.5, 60 % at 3, 80 % at 4; the paper's \
    were 21 to 56 % busy at high ratios. The load is open: it does not slow down with the service, so throughput says less here.";

/// In the kernel lab, or on this machine.
const ON: &[Substrate] = &[Substrate::Vm, Substrate::Host];

/// Every figure.
pub const FIGURES: &[Figure] = &[
    Figure {
        name: "dasec-fig1",
        on: ON,
        scheduling: false,
        title: "DASEC, Fig. 1 and 2: latency of Masstree-like and Img-dnn-like services over the consolidation ratio",
        paper: "Masstree and Img-dnn (TailBench) in 2 to 16 VMs of 16 vCPUs on 80 cores, Linux 5.3 with KVM.",
        differs: &[
            "Masstree is a service of four threads with a contended lock; Img-dnn one that computes in layers.",
            MACHINE,
            KERNEL,
            SCHEDULER,
            LOAD,
        ],
        sides: "default,sched",
        sweeps: &[
            Sweep {
                scenario: "key-value-sweep",
                set: &[],
                over: &[Axis {
                    key: COUNT,
                    values: TENANTS,
                }],
                sides: None,
            },
            Sweep {
                scenario: "image-sweep",
                set: &[],
                over: &[Axis {
                    key: COUNT,
                    values: TENANTS,
                }],
                sides: None,
            },
        ],
        claims: &[
            growth(
                "Masstree: growth of the mean from the lowest ratio to 1.5 (paper: 1.6)",
                "+19 % under Linux",
                Metric::MeanUs,
                &["key-value-sweep"],
                (0.5, 1.5),
            ),
            growth(
                "Masstree: growth of the mean from the lowest ratio to 3 (paper: 3.2)",
                "+70 % under Linux, about none under DASEC",
                Metric::MeanUs,
                &["key-value-sweep"],
                (0.5, 3.0),
            ),
            growth(
                "Masstree: growth of the p99 from the lowest ratio to 3 (paper: 3.2)",
                "x 5 under Linux, +97 % under DASEC",
                Metric::P99Us,
                &["key-value-sweep"],
                (0.5, 3.0),
            ),
            growth(
                "Img-dnn: growth of the mean from ratio 1 (paper: 0.8) to 1.5 (1.6)",
                "+59 % under Linux",
                Metric::MeanUs,
                &["image-sweep"],
                (1.0, 1.5),
            ),
            change(
                "Img-dnn: mean at ratio 1.5 (paper: 1.6)",
                "−15 %",
                Metric::MeanUs,
                &["image-sweep"],
                (1.5, 1.5),
            ),
            change(
                "Img-dnn: p99 at ratio 1.5 (paper: 1.6)",
                "−19 %",
                Metric::P99Us,
                &["image-sweep"],
                (1.5, 1.5),
            ),
            change(
                "mean at ratios 3 and 4",
                "(bars only)",
                Metric::MeanUs,
                &[],
                HIGHEST,
            ),
            change(
                "mean up to ratio 1: the mechanism's overhead",
                "+2 %, at most +6 %",
                Metric::MeanUs,
                &[],
                LOW,
            ),
        ],
    },
    Figure {
        name: "dasec-fig7",
        on: ON,
        scheduling: false,
        title: "DASEC, Fig. 7 and 8: latency of services alike over the consolidation ratio",
        paper: "Memcached and Silo in 2 to 16 VMs of 16 vCPUs on 80 cores, Linux 5.3 with KVM.",
        differs: &[
            "In place of Memcached and Silo: services that fork and join, and services in three stages. Real memcacheds and nginxes run in \
             memcached-sweep and nginx-sweep (`quell bench`): on the virtual clock all CPUs share one stream of instructions, so a real \
             program's latency there is not a machine's.",
            MACHINE,
            KERNEL,
            SCHEDULER,
            LOAD,
        ],
        sides: "default,sched",
        sweeps: &[
            Sweep {
                scenario: "fork-join-sweep",
                set: &[],
                over: &[Axis {
                    key: COUNT,
                    values: TENANTS,
                }],
                sides: None,
            },
            Sweep {
                scenario: "pipeline-sweep",
                set: &[],
                over: &[Axis {
                    key: COUNT,
                    values: TENANTS,
                }],
                sides: None,
            },
        ],
        claims: &[
            change(
                "mean, over all ratios",
                "−17 %",
                Metric::MeanUs,
                &[],
                EVERY_RATIO,
            ),
            change(
                "p99, over all ratios",
                "−19 %",
                Metric::P99Us,
                &[],
                EVERY_RATIO,
            ),
            change(
                "mean at ratios 3 and 4 (paper: 3.2, beyond its gain at 0.4)",
                "−35 %",
                Metric::MeanUs,
                &[],
                HIGHEST,
            ),
            change(
                "p99 at ratios 3 and 4 (paper: 3.2, beyond its gain at 0.4)",
                "−42 %",
                Metric::P99Us,
                &[],
                HIGHEST,
            ),
            change(
                "mean up to ratio 1: the mechanism's overhead",
                "+2 %, at most +6 %",
                Metric::MeanUs,
                &[],
                LOW,
            ),
            change(
                "requests per second, over all ratios",
                "+42 %, at most +204 %",
                Metric::RequestsPerS,
                &[],
                EVERY_RATIO,
            ),
        ],
    },
    Figure {
        name: "dasec-fig9",
        on: ON,
        scheduling: false,
        title: "DASEC, Fig. 9 and 10: different workloads together",
        paper: "One VM with AI inference (GluonCV) beside seven with one latency-sensitive workload, ratio 1.6; mean latencies only.",
        differs: &[
            "The inference is CPU work alone, without a GPU; the others are services with a contended lock. The last point, which the paper \
             does not have, is two services of each of the four kinds of the sweeps.",
            MACHINE,
            KERNEL,
            SCHEDULER,
            LOAD,
        ],
        sides: "default,sched",
        sweeps: &[
            Sweep {
                scenario: "image-beside-key-value",
                set: &[],
                over: &[Axis {
                    key: "tenant.kv.count",
                    values: &[2, 5, 7],
                }],
                sides: None,
            },
            Sweep {
                scenario: "mixed",
                set: &[],
                over: &[],
                sides: None,
            },
        ],
        claims: &[
            change_of(
                Tenants::Named("image"),
                "AI inference: mean",
                "−40 %, at most −56 %",
                Metric::MeanUs,
                &["image-beside-key-value"],
                EVERY_RATIO,
            ),
            change_of(
                Tenants::Named("kv"),
                "the others: mean",
                "−39 %",
                Metric::MeanUs,
                &["image-beside-key-value"],
                EVERY_RATIO,
            ),
            change(
                "all four kinds together: mean",
                "(not measured)",
                Metric::MeanUs,
                &["mixed"],
                EVERY_RATIO,
            ),
            change(
                "all four kinds together: p99",
                "(not measured)",
                Metric::P99Us,
                &["mixed"],
                EVERY_RATIO,
            ),
        ],
    },
    Figure {
        name: "dasec-fig13",
        on: ON,
        scheduling: false,
        title: "DASEC, Fig. 13: what each part of the mechanism contributes",
        paper: "Service rate with a part of DASEC alone over that with all of it, ratio 1.6: time-slice allocator (TSA) and \
                rescheduling-latency adjuster (RLA) 40 % together, resource-conflict resolver (RCR) the rest.",
        differs: &[
            "`dasec` is the paper's mechanism on Quell's scheduler; the sides `dasec-no-...` lack the allocator or the adjuster. `quell` is what is \
             installed, without its feedback; `sched` is the scheduler without the agent; `no-causal` is that without causal age, `no-requests` without telling short \
             requests from long ones, `none` without either and without latencies. \
             Shown is how much of the gain in mean latency is lost. Parts that stand in for each other lose less alone than together.",
            "At ratio 4, as there is little to gain at 1.5 with this load; services alike, and two of each of four kinds together.",
            MACHINE,
            KERNEL,
            LOAD,
        ],
        sides: "default,dasec,dasec-no-tsa,dasec-no-rla,quell,sched,no-causal=quell sched --no-causal,\
                no-requests=quell sched --no-requests,none=quell sched --no-asymmetry --no-causal",
        sweeps: &[
            Sweep {
                scenario: "fork-join-sweep",
                set: &[],
                over: &[Axis {
                    key: COUNT,
                    values: &[8],
                }],
                sides: None,
            },
            Sweep {
                scenario: "key-value-sweep",
                set: &[],
                over: &[Axis {
                    key: COUNT,
                    values: &[8],
                }],
                sides: None,
            },
            Sweep {
                scenario: "mixed",
                set: &[],
                over: &[],
                sides: None,
            },
        ],
        claims: &[
            change(
                "mean, over all three",
                "(bars only)",
                Metric::MeanUs,
                &[],
                EVERY_RATIO,
            ),
            change(
                "p99, over all three",
                "(bars only)",
                Metric::P99Us,
                &[],
                EVERY_RATIO,
            ),
            Claim {
                what: "part of the gain in the mean that is lost",
                of: None,
                paper: "TSA and RLA 40 %, RCR 60 %",
                quantity: Quantity::PartLost,
            },
        ],
    },
    Figure {
        name: "dasec-fig16",
        on: ON,
        scheduling: false,
        title: "DASEC, Fig. 16: latency-critical services beside a batch tenant",
        paper: "Four Masstree VMs of 32 vCPUs (ratio 1.6) beside MatrixMul on 80 cores.",
        differs: &[
            "Masstree is a service of four threads with a contended lock, MatrixMul a batch tenant whose main thread hands out parts and waits.",
            MACHINE,
            KERNEL,
            SCHEDULER,
        ],
        sides: "default,sched",
        sweeps: &[Sweep {
            scenario: "matrix-beside-key-value",
            set: &[],
            over: &[],
            sides: None,
        }],
        claims: &[
            change(
                "latency-critical services: mean",
                "−26 %",
                Metric::MeanUs,
                &[],
                EVERY_RATIO,
            ),
            change(
                "latency-critical services: p99",
                "(not given)",
                Metric::P99Us,
                &[],
                EVERY_RATIO,
            ),
            change_of(
                BATCH,
                "batch tenant: work done",
                "+13 %",
                Metric::WorkPerS,
                &[],
                EVERY_RATIO,
            ),
        ],
    },
];
