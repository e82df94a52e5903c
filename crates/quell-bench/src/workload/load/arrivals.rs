//! The intended times of an open loop's requests.

use anyhow::Context;
use quell_scenario::{Arrival, Load, Scenario, Trace};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Yields intended times in ns from the start, ascending, without end.
pub struct Arrivals {
    source: Source,
    rng: ChaCha8Rng,
    /// The latest time yielded, in ns.
    now: f64,
    /// How many times were yielded.
    count: u64,
}

#[derive(Clone)]
enum Source {
    Poisson(f64),
    Fixed(f64),
    Trace(Trace),
    /// The mean rate per second, its swing as a share of it, and the period in ns.
    Diurnal(f64, f64, f64),
}

impl Source {
    /// Bursts of `on_ns` with pauses of `off_ns`: a rate that steps up and down, `rate` in the mean.
    fn bursts(rate: f64, on_ns: f64, off_ns: f64) -> Source {
        let (within, end) = (rate * (on_ns + off_ns) / on_ns, (on_ns + off_ns) as u64);
        Source::Trace(Trace::Rates(vec![
            (0, within),
            (on_ns as u64, 0.0),
            (end, 0.0),
        ]))
    }
}

/// The source of arrivals, read and checked once; [`Plan::arrivals`] draws from it.
#[derive(Clone)]
pub struct Plan(Source);

impl Plan {
    /// The plan of a load on `cpus` CPUs; reads the load's trace if there is one.
    ///
    /// # Errors
    /// Where the trace cannot be read or is not valid, or the load has neither a rate nor a trace.
    pub fn new(scenario: &Scenario, load: &Load, cpus: u32) -> anyhow::Result<Plan> {
        let rate = load.rate_on(cpus);
        Ok(Plan(match (load.arrival, rate, &load.trace) {
            (Arrival::Poisson, Some(rate), _) => Source::Poisson(rate),
            (Arrival::Fixed, Some(rate), _) => Source::Fixed(rate),
            (Arrival::Bursts, Some(rate), _) => {
                let ns = |ms: Option<f64>| ms.unwrap_or(1.0) * 1e6;
                Source::bursts(rate, ns(load.on_ms), ns(load.off_ms))
            }
            (Arrival::Diurnal, Some(rate), _) => {
                let period_ns = load.period_s.unwrap_or(1.0) * 1e9;
                Source::Diurnal(rate, load.swing.unwrap_or(0.0), period_ns)
            }
            (Arrival::Steps, rate, _) => {
                let rate = rate.or(load.max_rate).unwrap_or(0.0);
                let steps = load.steps.iter().flatten();
                let step = |(s, percent): &(f64, f64)| ((s * 1e9) as u64, rate * percent / 100.0);
                Source::Trace(Trace::Rates(steps.map(step).collect()))
            }
            (_, _, Some(path)) => {
                let path = scenario.resolve(path);
                let text = std::fs::read_to_string(&path)
                    .with_context(|| format!("cannot read the trace {}", path.display()))?;
                Source::Trace(Trace::parse(&path, &text)?)
            }
            (_, _, None) => anyhow::bail!("a load has neither rate nor trace"),
        }))
    }

    /// Independent arrivals at `rate` per second in the mean: a Poisson process.
    pub fn poisson(rate: f64) -> Plan {
        Plan(Source::Poisson(rate))
    }

    /// The arrivals that this seed gives.
    pub fn arrivals(&self, seed: u64) -> Arrivals {
        let rng = ChaCha8Rng::seed_from_u64(seed);
        Arrivals {
            source: self.0.clone(),
            rng,
            now: 0.0,
            count: 0,
        }
    }
}

impl Arrivals {
    /// An exponentially distributed number with mean 1.
    fn exponential(rng: &mut ChaCha8Rng) -> f64 {
        -(1.0 - rng.random::<f64>()).ln()
    }
}

impl Iterator for Arrivals {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        match &self.source {
            Source::Poisson(rate) => self.now += Arrivals::exponential(&mut self.rng) * 1e9 / rate,
            Source::Fixed(rate) => self.now = self.count as f64 * 1e9 / rate,
            // Thinning: arrivals are drawn at the highest rate, and each stays with a probability of the
            // present rate over the highest rate.
            &Source::Diurnal(rate, swing, period) => loop {
                let highest = 1.0 + swing;
                self.now += Arrivals::exponential(&mut self.rng) * 1e9 / (rate * highest);
                let phase = (self.now / period).fract() * std::f64::consts::TAU;
                if self.rng.random::<f64>() * highest < 1.0 + swing * phase.sin() {
                    break;
                }
            },
            Source::Trace(Trace::Arrivals(times)) => {
                let turn = self.count / times.len() as u64;
                let length = times.last().copied().unwrap_or(0);
                let time = times[(self.count % times.len() as u64) as usize];
                self.now = (turn * length + time) as f64;
            }
            Source::Trace(Trace::Rates(rates)) => {
                // The next arrival is when the integral of the rate reaches the next exponential number.
                let mut due = Arrivals::exponential(&mut self.rng);
                let length = rates.last().map_or(0, |&(time, _)| time) as f64;
                loop {
                    let turn = (self.now / length).floor();
                    let within = self.now - turn * length;
                    let next = rates.partition_point(|&(from, _)| from as f64 <= within);
                    let rate = if next == 0 { 0.0 } else { rates[next - 1].1 };
                    let end = rates.get(next).map_or(length, |&(from, _)| from as f64);
                    let room = (end - within) / 1e9 * rate;
                    if room > due {
                        self.now += due / rate * 1e9;
                        break;
                    }
                    due -= room;
                    // At least 1 ns, so that rounding cannot stop time.
                    self.now = (turn * length + end).max(self.now + 1.0);
                }
            }
        }
        self.count += 1;
        Some(self.now as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;

    fn take(source: Source, seed: u64, end_ns: u64) -> Vec<u64> {
        let times: Vec<u64> = Plan(source)
            .arrivals(seed)
            .take_while(|&t| t < end_ns)
            .collect();
        assert!(times.is_sorted());
        times
    }

    #[test]
    fn steps_hold_from_one_time_to_the_next_and_start_over() {
        let text = "name = \"t\"\n[[tenant]]\nname = \"a\"\nload = { arrival = \"steps\", max_rate = 1000, steps = [[0, 50], [2, 100], [3, 0], [4, 0]] }\n\
                    [[tenant.thread]]\nname = \"w\"\nprogram = [\"request\", { run_us = 1 }, \"respond\"]\n";
        let scenario = Scenario::parse(Path::new("t.toml"), text).unwrap();
        let plan = Plan::new(&scenario, scenario.tenants[0].load.as_ref().unwrap(), 1).unwrap();
        let times: Vec<u64> = plan
            .arrivals(1)
            .take_while(|&t| t < 400_000_000_000)
            .collect();
        let within = |from: u64, to: u64| {
            let second = |t: &u64| t % 4_000_000_000 / 1_000_000_000;
            let count = times
                .iter()
                .filter(|t| (from..to).contains(&second(t)))
                .count();
            count as f64 / 100.0 / (to - from) as f64
        };
        assert!(
            (within(0, 2) / 500.0 - 1.0).abs() < 0.02,
            "{}",
            within(0, 2)
        );
        assert!(
            (within(2, 3) / 1000.0 - 1.0).abs() < 0.02,
            "{}",
            within(2, 3)
        );
        assert_eq!(within(3, 4), 0.0);
    }

    #[test]
    fn poisson_arrivals_have_their_rate_and_spread() {
        let times = take(Source::Poisson(1000.0), 1, 100_000_000_000);
        assert!(
            (times.len() as f64 / 100_000.0 - 1.0).abs() < 0.02,
            "{}",
            times.len()
        );
        let gaps: Vec<f64> = times.windows(2).map(|w| (w[1] - w[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!(
            (variance.sqrt() / mean - 1.0).abs() < 0.03,
            "{}",
            variance.sqrt() / mean
        );
        assert_eq!(times, take(Source::Poisson(1000.0), 1, 100_000_000_000));
        assert_ne!(times, take(Source::Poisson(1000.0), 2, 100_000_000_000));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn bursts_keep_the_mean_rate_and_their_pauses(
            rate in 200.0..2000.0f64, on_ms in 1u32..200, off_ms in 0u32..200, seed: u64,
        ) {
            let (on, off) = (f64::from(on_ms) * 1e6, f64::from(off_ms) * 1e6);
            // Whole periods, so that the expected mean is the source's mean.
            let turns = (50e9 / (on + off)) as u64;
            let end = turns * (on + off) as u64;
            let times = take(Source::bursts(rate, on, off), seed, end);
            let expected = rate * end as f64 / 1e9;
            // Within six standard deviations of a Poisson number.
            prop_assert!((times.len() as f64 - expected).abs() < 6.0 * expected.sqrt());
            prop_assert!(times.iter().all(|&time| time as f64 % (on + off) <= on));
            // Without the pauses, the gaps are those of a Poisson process at the higher rate.
            let busy: Vec<f64> = times.iter().map(|&time| {
                let turn = (time as f64 / (on + off)).floor();
                turn * on + time as f64 % (on + off)
            }).collect();
            let gaps: Vec<f64> = busy.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let longer = gaps.iter().filter(|&&gap| gap > mean).count() as f64 / gaps.len() as f64;
            prop_assert!((longer - (-1.0f64).exp()).abs() < 0.03, "{}", longer);
            prop_assert_eq!(&times, &take(Source::bursts(rate, on, off), seed, end));
        }

        #[test]
        fn a_diurnal_load_keeps_the_mean_rate_and_swings(
            rate in 200.0..2000.0f64, swing in 0.0..1.0f64, period_s in 1u32..10, seed: u64,
        ) {
            let period = f64::from(period_s) * 1e9;
            let end = (50e9 / period) as u64 * period as u64;
            let source = Source::Diurnal(rate, swing, period);
            let times = take(source.clone(), seed, end);
            let expected = rate * end as f64 / 1e9;
            prop_assert!((times.len() as f64 - expected).abs() < 6.0 * expected.sqrt());
            // The upper half of a sine has 2/pi more than the mean.
            let upper = times.iter().filter(|&&t| t as f64 % period < period / 2.0).count() as f64;
            let half = expected * (0.5 + swing / std::f64::consts::PI);
            prop_assert!((upper - half).abs() < 6.0 * half.sqrt(), "{} {}", upper, half);
            prop_assert_eq!(times, take(source, seed, end));
        }
    }

    #[test]
    fn fixed_arrivals_are_evenly_spaced() {
        assert_eq!(
            take(Source::Fixed(4.0), 9, 1_000_000_000),
            [0, 250_000_000, 500_000_000, 750_000_000]
        );
    }

    #[test]
    fn traces_repeat() {
        let trace = |text: &str| Source::Trace(Trace::parse(Path::new("t"), text).unwrap());
        let times = take(
            trace("0.1\n0.5\n1.0 # starts over here\n"),
            0,
            2_000_000_000,
        );
        assert_eq!(times, [100, 500, 1000, 1100, 1500].map(|ms| ms * 1_000_000));
        // 1000/s for a second, nothing for a second, and again.
        let times = take(trace("0 1000\n1 0\n2 0"), 3, 100_000_000_000);
        assert!(
            (times.len() as f64 / 50_000.0 - 1.0).abs() < 0.03,
            "{}",
            times.len()
        );
        assert!(times.iter().all(|t| t / 1_000_000_000 % 2 == 0));
    }
}
