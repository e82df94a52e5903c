//! Whether the simulator agrees with the real kernel: equal scenarios in the kernel lab and on the simulator.
//!
//! The lab's clock counts instructions, so the cost of the kernel's own work there is known from a benchmark
//! of its own (`quell-studies overhead --on vm`, docs/results/scheduler.md): the simulator gets these
//! figures, and none from the scenarios that it is checked with. By how much the two may differ was written
//! down before they were compared: [`Figure::tolerance`].

use comfy_table::{CellAlignment, Table, presets};
use quell_bench::report::words::latency;
use quell_bench::result::{
    ALL, BenchResult, Figures, LabGuest, SCHEMA, SchedulingFigures, SideResult,
};
use quell_bench::side::{Side, Simulated};
use quell_model::config::TenantClass;
use serde::{Deserialize, Serialize};

/// The scenarios that are compared unless others are asked for.
pub const SCENARIOS: [&str; 7] = [
    "fork-join-long-60",
    "fork-join-long-80",
    "fork-join-short-60",
    "fork-join-short-80",
    "spinners-short",
    "mixed",
    "matrix-beside-key-value",
];

/// A side of the lab, and its counterpart on the simulator.
pub struct Counterpart {
    /// The lab's side.
    pub real: Side,
    /// The simulator's side.
    pub simulated: Side,
    /// The cost of the machine's own work there, as settings of a scenario.
    pub costs: &'static [&'static str],
}

/// The sides that are compared, and the costs of the machine's own work on the simulator.
///
/// The costs are from the overhead benchmark, in instructions, which are ns. Half a round trip on one CPU,
/// less the pipe's own work, is a wakeup and a switch (EEVDF 5.0 µs, sched 7.4 µs); a switch at a yield takes
/// 2.8 µs, its system call included (sched's does more than a switch after a block: it queues the thread
/// again). A round trip between two CPUs beside six busy CPUs takes 0.2 ms, of which 80 µs are wakeups and
/// switches, eight times as long: 60 µs for each way. A request comes from a thread of the load generator
/// that a timer wakes: two switches, a wakeup and an interrupt; an answer wakes the generator's thread once
/// more: two switches and the pipe's work. Kernel threads and daemons preempt a busy thread for 29 µs (sched
/// 81 µs) while all eight CPUs are busy, so for an eighth of that at a time. A tick is estimated.
pub fn counterparts() -> [Counterpart; 2] {
    [
        Counterpart {
            real: Side::Default,
            simulated: Side::Simulated(Simulated::Eevdf),
            costs: &[
                "host.costs.shared_clock=true",
                "host.costs.switch_us=2.4",
                "host.costs.wake_us=2.6",
                "host.costs.kick_us=7.5",
                "host.costs.interrupt_us=2",
                "host.costs.generators=true",
                "host.costs.request_us=9.4",
                "host.costs.answer_us=6.8",
                "host.costs.tick_us=4",
                "host.costs.noise_us=3.6",
                "host.costs.noise_per_s=4.4",
            ],
        },
        Counterpart {
            real: Side::sched(),
            simulated: Side::sched(),
            costs: &[
                "host.costs.shared_clock=true",
                "host.costs.switch_us=3.7",
                "host.costs.wake_us=3.7",
                "host.costs.kick_us=7.5",
                "host.costs.interrupt_us=2",
                "host.costs.generators=true",
                "host.costs.request_us=9.4",
                "host.costs.answer_us=6.8",
                "host.costs.tick_us=4",
                "host.costs.noise_us=10.2",
                "host.costs.noise_per_s=3.5",
            ],
        },
    ]
}

/// A figure that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Mean run delay of a class's threads, in µs.
    RunDelayMean,
    /// 99th percentile of the run delay of a class's threads, in µs.
    RunDelayP99,
    /// Mean latency of all requests, in µs.
    LatencyMean,
    /// 99th percentile of the latency of all requests, in µs.
    LatencyP99,
    /// How often a thread got a CPU, per second.
    Switches,
    /// How often a thread was woken, per second.
    Wakeups,
    /// A tenant's share of the host's CPU time.
    CpuShare,
}

impl Figure {
    const ALL: [Figure; 7] = [
        Figure::RunDelayMean,
        Figure::RunDelayP99,
        Figure::LatencyMean,
        Figure::LatencyP99,
        Figure::Switches,
        Figure::Wakeups,
        Figure::CpuShare,
    ];

    /// By how much the simulator may be off: a fraction of the lab's figure, for shares of the host.
    pub fn tolerance(self) -> f64 {
        match self {
            Figure::RunDelayMean | Figure::LatencyP99 => 0.20,
            Figure::RunDelayP99 => 0.30,
            Figure::LatencyMean | Figure::Wakeups => 0.10,
            Figure::Switches => 0.25,
            Figure::CpuShare => 0.01,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Figure::RunDelayMean => "run delay, mean",
            Figure::RunDelayP99 => "run delay, p99",
            Figure::LatencyMean => "latency, mean",
            Figure::LatencyP99 => "latency, p99",
            Figure::Switches => "switches/s",
            Figure::Wakeups => "wakeups/s",
            Figure::CpuShare => "CPU share",
        }
    }

    fn of(self, figures: &Figures) -> Option<f64> {
        let scheduling =
            |of: fn(&SchedulingFigures) -> Option<f64>| of(figures.scheduling.as_ref()?);
        match self {
            Figure::RunDelayMean => scheduling(|it| it.run_delay_mean_us),
            Figure::RunDelayP99 => scheduling(|it| it.run_delay_p99_us),
            Figure::LatencyMean => figures.mean_us,
            Figure::LatencyP99 => figures.p99_us,
            Figure::Switches => scheduling(|it| Some(it.switches_per_s)),
            Figure::Wakeups => scheduling(|it| Some(it.wakeups_per_s)),
            Figure::CpuShare => Some(figures.cpu_share),
        }
    }

    fn text(self, value: f64) -> String {
        match self {
            Figure::Switches | Figure::Wakeups => format!("{value:.0}"),
            Figure::CpuShare => format!("{:.1} %", value * 100.0),
            _ => latency(value),
        }
    }
}

/// A figure in the lab and on the simulator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// The scenario.
    pub scenario: String,
    /// The lab's side.
    pub side: String,
    /// The simulator's side.
    pub simulated_side: String,
    /// The tenant; `*`: all tenants of the class.
    pub tenant: String,
    /// The tenant's class.
    pub class: TenantClass,
    /// The figure.
    pub figure: Figure,
    /// Its value in the lab.
    pub lab: f64,
    /// Its value on the simulator.
    pub simulator: f64,
    /// By how much the simulator is off: relative to the lab's value, for shares in fractions of the host.
    pub off: f64,
    /// By how much the simulator may be off.
    pub tolerance: f64,
    /// Whether it is off by no more than that.
    pub holds: bool,
}

/// All comparisons; the JSON of `quell-studies calibration --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// [`quell_bench::result::SCHEMA`].
    pub schema: u32,
    /// The version of Quell that measured.
    pub quell_version: String,
    /// The lab's guest.
    pub lab: Option<LabGuest>,
    /// The figures.
    pub checks: Vec<Check>,
}

impl Calibration {
    /// The result of these comparisons, measured in this guest.
    pub fn new(lab: Option<LabGuest>, checks: Vec<Check>) -> Calibration {
        Calibration {
            schema: SCHEMA,
            quell_version: env!("CARGO_PKG_VERSION").to_string(),
            lab,
            checks,
        }
    }
}

/// Compares a side in the two results of a scenario. Delays, latencies and counts are of all tenants of a
/// class together, shares of each tenant.
pub fn compare(lab: &BenchResult, simulator: &BenchResult, sides: &Counterpart) -> Vec<Check> {
    let of = |result: &BenchResult, side: &Side, like: &SideResult| {
        let mut rows = result.results.iter();
        let row = rows.find(|row| {
            row.side == side.as_str() && (&row.tenant, row.class) == (&like.tenant, like.class)
        });
        row.map(|row| row.figures.clone())
    };
    let mut checks = Vec::new();
    for row in lab
        .results
        .iter()
        .filter(|row| row.side == sides.real.as_str())
    {
        let Some(simulated) = of(simulator, &sides.simulated, row) else {
            continue;
        };
        for figure in Figure::ALL {
            if (row.tenant == ALL) == (figure == Figure::CpuShare) {
                continue;
            }
            let Some((lab_has, simulator_has)) = figure.of(&row.figures).zip(figure.of(&simulated))
            else {
                continue;
            };
            let off = match figure {
                Figure::CpuShare => simulator_has - lab_has,
                _ if simulator_has == lab_has => 0.0,
                _ => (simulator_has - lab_has) / lab_has,
            };
            checks.push(Check {
                scenario: lab.scenario.clone(),
                side: sides.real.to_string(),
                simulated_side: sides.simulated.to_string(),
                tenant: row.tenant.clone(),
                class: row.class,
                figure,
                lab: lab_has,
                simulator: simulator_has,
                off,
                tolerance: figure.tolerance(),
                // A value that is not a number does not hold.
                holds: off.abs() <= figure.tolerance(),
            });
        }
    }
    checks
}

/// The checks as a table: each figure of a class, and of the shares the one that is furthest off.
pub fn table(calibration: &Calibration) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "scenario",
        "side",
        "figure",
        "lab",
        "simulator",
        "off",
        "may be",
        "",
    ]);
    let mut shown: Vec<&Check> = Vec::new();
    for check in &calibration.checks {
        let key = |it: &Check| (it.scenario.clone(), it.side.clone(), it.figure);
        let worst = shown
            .iter_mut()
            .find(|it| check.figure == Figure::CpuShare && key(it) == key(check));
        match worst {
            Some(worst) if worst.off.abs() < check.off.abs() => *worst = check,
            Some(_) => {}
            None => shown.push(check),
        }
    }
    let mut before = None;
    for check in &shown {
        let group = (&check.scenario, &check.side, check.class);
        let first = before.replace(group) != Some(group);
        let percent = |share: f64, unit: &str| format!("{:+.0} {unit}", share * 100.0);
        let (off, may) = match check.figure {
            Figure::CpuShare => (
                format!("{:+.1} points", check.off * 100.0),
                format!("{:.0} point", check.tolerance * 100.0),
            ),
            _ => (
                percent(check.off, "%"),
                format!("{:.0} %", check.tolerance * 100.0),
            ),
        };
        let name = |text: &str| {
            if first {
                text.to_string()
            } else {
                String::new()
            }
        };
        let class = match check.class {
            TenantClass::Latency => "",
            TenantClass::Batch => " (batch)",
        };
        table.add_row([
            name(&check.scenario),
            name(&format!("{}{class}", check.side)),
            check.figure.name().to_string(),
            check.figure.text(check.lab),
            check.figure.text(check.simulator),
            off,
            may,
            if check.holds { "" } else { "FAILS" }.to_string(),
        ]);
    }
    for column in table.column_iter_mut().skip(3).take(4) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let failed = calibration
        .checks
        .iter()
        .filter(|check| !check.holds)
        .count();
    let all = calibration.checks.len();
    format!("{table}\n{} of {all} figures hold.\n", all - failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sample;
    use quell_scenario::set::Setting;

    /// A result in which the side has these figures for its first tenant's class.
    fn with(side: &str, mean_us: f64, delay_us: f64, share: f64) -> BenchResult {
        let mut result = sample();
        for row in result
            .results
            .iter_mut()
            .filter(|row| row.side == "default")
        {
            row.side = side.to_string();
            row.figures.cpu_share = share;
            if row.tenant == ALL && row.class == TenantClass::Latency {
                row.figures.mean_us = Some(mean_us);
                row.figures.scheduling = Some(SchedulingFigures {
                    run_delay_mean_us: Some(delay_us),
                    ..SchedulingFigures::default()
                });
            }
        }
        result
    }

    #[test]
    fn what_is_off_by_more_than_it_may_be_fails() {
        let [sides, _] = counterparts();
        let lab = with("default", 1000.0, 100.0, 0.25);
        let check = |simulator: &BenchResult, figure: Figure| {
            let checks = compare(&lab, simulator, &sides);
            let found = checks.iter().find(|it| it.figure == figure).unwrap();
            (found.holds, (found.off * 1000.0).round())
        };
        let near = with("eevdf", 1090.0, 85.0, 0.259);
        assert_eq!(check(&near, Figure::LatencyMean), (true, 90.0));
        assert_eq!(check(&near, Figure::RunDelayMean), (true, -150.0));
        assert_eq!(check(&near, Figure::CpuShare), (true, 9.0));
        assert_eq!(check(&near, Figure::Switches), (true, 0.0), "none on both");
        let far = with("eevdf", 1110.0, 121.0, 0.27);
        assert_eq!(check(&far, Figure::LatencyMean), (false, 110.0));
        assert_eq!(check(&far, Figure::RunDelayMean), (false, 210.0));
        assert_eq!(check(&far, Figure::CpuShare), (false, 20.0));

        let checks = compare(&lab, &far, &sides);
        let text = table(&Calibration::new(None, checks));
        assert!(text.contains("FAILS") && text.contains("+11 %"), "{text}");
    }

    #[test]
    fn costs_are_settings_of_a_scenario() {
        for side in counterparts() {
            for cost in side.costs {
                assert!(cost.parse::<Setting>().is_ok(), "{cost}");
            }
        }
    }
}
