//! Random tenants with promises, as many as fit on a host.

use super::COSTS_NOTHING;
use quell_bench::run::simulated::random;
use quell_model::config::{Criticality, CriticalitySettings, Server};
use quell_model::{CpuId, TenantName};
use quell_policy::admission::Host;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fmt::Write;

/// A host is full when this many tenants in a row were refused.
const REFUSED: u32 = 6;
/// The number of steps of a program before it begins again.
const STEPS: usize = 24;
const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

/// A host's promises, each with the CPU that has room for it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Drawn {
    pub(super) cpus: u32,
    pub(super) settings: CriticalitySettings,
    /// The servers, by the number that is in their names.
    pub(super) servers: Vec<(CpuId, Server)>,
    /// What each server needs, as steps of a thread program.
    needs: Vec<String>,
}

/// The name of a server's tenant, and of its thread. Names are in the order in which servers are placed.
pub(super) fn name(number: usize) -> String {
    format!("s{number:04}")
}

/// The number in a thread's name.
pub(super) fn number(name: &str) -> Option<usize> {
    name.strip_prefix('s')?.parse().ok()
}

impl Drawn {
    /// A host of `cpus` CPUs, with no period shorter than `least_period_ns`, whose tenants want CPU time from
    /// `quiet_s` until `end_s`.
    pub(super) fn random(
        seed: u64,
        cpus: u32,
        least_period_ns: u64,
        quiet_s: f64,
        end_s: f64,
    ) -> Drawn {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let settings = CriticalitySettings {
            reserve_percent: [1.0, 2.0, 5.0][rng.random_range(0..3)],
            // The audit assumes temperature 0, too.
            temperature: 0,
            ..CriticalitySettings::default()
        };
        let mut host = Host::new((0..cpus).map(CpuId), settings);
        let mut drawn = Drawn {
            cpus,
            settings,
            servers: Vec::new(),
            needs: Vec::new(),
        };
        let mut refused = 0;
        while refused < REFUSED {
            let server = random::server(&mut rng, least_period_ns);
            let tenant = TenantName::from(name(drawn.servers.len()).as_str());
            match host.admit(&tenant, &server, 1) {
                Ok(on) => {
                    drawn.servers.push((on[0], server));
                    drawn.needs.push(needs(&mut rng, &server, quiet_s, end_s));
                    refused = 0;
                }
                Err(_) => refused += 1,
            }
        }
        drawn
    }

    /// The host's scenario: each server has a thread, which wants CPU time at awkward times, beside threads
    /// that always do.
    pub(super) fn scenario(&self, warmup_s: f64, seconds: f64) -> String {
        let CriticalitySettings {
            reserve_percent,
            overhead_us,
            temperature,
            ..
        } = self.settings;
        let cpus = self.cpus;
        let mut text = format!(
            "name = \"promises\"\nseconds = {seconds}\nwarmup_seconds = {warmup_s}\npairs = 1\n[host]\ncpus = {cpus}\n{COSTS_NOTHING}\n\
             [criticality]\nreserve_percent = {reserve_percent}\noverhead_us = {overhead_us}\ntemperature = {temperature}\n"
        );
        for (number, ((_, server), needs)) in self.servers.iter().zip(&self.needs).enumerate() {
            let name = name(number);
            let ms = |ns: u64| ns as f64 / 1e6;
            let (period, budget) = (ms(server.period_ns), ms(server.budget_ns));
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "[[tenant]]\nname = \"{name}\"\nperiod_ms = {period}\nbudget_ms = {budget}\n"
            );
            text += &match server.criticality {
                Criticality::High => format!(
                    "criticality = \"high\"\npessimistic_budget_ms = {}\n",
                    ms(server.pessimistic_ns)
                ),
                Criticality::Low => "criticality = \"low\"\n".to_string(),
            };
            // Each tenant gets one request, at the beginning.
            let _ = write!(
                text,
                "load = {{ rate = 0.001, arrival = \"fixed\", timeout_ms = 1 }}\n[[tenant.thread]]\nname = \"{name}\"\n\
                 program = [\"request\", {needs}, \"respond\"]\n"
            );
        }
        for number in 0..2 {
            let _ = write!(
                text,
                "[[tenant]]\nname = \"busy{number}\"\nclass = \"batch\"\n[[tenant.thread]]\nname = \"busy\"\ncount = {cpus}\n\
                 program = [{{ run_us = 100000 }}]\n"
            );
        }
        text
    }
}

/// The steps of a server's thread: it wakes at any time within a period, and needs what it may need, or more.
fn needs(rng: &mut ChaCha8Rng, server: &Server, quiet_s: f64, end_s: f64) -> String {
    let us = |ns: u64| ns as f64 / 1e3;
    let first = (quiet_s * 1e9) as u64 + rng.random_range(0..server.period_ns);
    let greed = rng.random_range(0..4);
    let mut text = format!("{{ sleep_us = {} }}, ", us(first));
    if greed == 0 {
        return text + &format!("{{ run_us = {} }}", (end_s * 1e6).min(60e6));
    }
    let (mut steps, mut length) = (Vec::new(), 0);
    for _ in 0..STEPS {
        let budget = if rng.random_bool(0.3) {
            server.pessimistic_ns
        } else {
            server.budget_ns
        };
        let run = match greed {
            1 => rng.random_range(1000..=server.period_ns),
            2 => rng.random_range(1000..=budget),
            _ => rng.random_range(1000..=budget / 4),
        };
        let sleep = match rng.random_range(0..3) {
            0 => rng.random_range(1..1000),
            1 => rng.random_range(1..=server.period_ns / 8),
            _ => rng.random_range(1..=server.period_ns * 2),
        };
        steps.push(format!(
            "{{ run_us = {} }}, {{ sleep_us = {} }}",
            us(run),
            us(sleep)
        ));
        length += run + sleep;
    }
    let times = ((end_s * 1e9) as u64).max(S) / length + 1;
    text += &format!(
        "{{ repeat = {{ times = {times}, program = [{}] }} }}",
        steps.join(", ")
    );
    text
}
