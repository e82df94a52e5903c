//! The scheduler's options as a command line says them.

use crate::Options;
use clap::{Args, Parser};

/// The arguments of `quell sched` that say what the scheduler does.
#[derive(Debug, Clone, Args)]
pub struct Arguments {
    /// Order threads by when they became ready, not by how long the work they serve waits
    #[arg(long)]
    no_causal: bool,
    /// No private latencies and no preemption by urgent threads
    #[arg(long)]
    no_asymmetry: bool,
    /// Do not tell short requests from long ones
    #[arg(long)]
    no_requests: bool,
    /// Give every tenant (cgroup, or thread in none) its share of the whole host, by weight: within two
    /// points of the host in any two seconds, nearly always (docs/results/scheduler.md)
    #[arg(long)]
    share: bool,
    /// Rescheduling latency as a multiple of a thread's usual run, 0 to 16 [default: 1]
    #[arg(long, value_name = "FACTOR")]
    stretch: Option<f64>,
    /// How much more urgent a thread must be to preempt another, in microseconds [default: 1000]
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    margin_us: Option<u64>,
}

impl Arguments {
    /// The options that these arguments ask for.
    pub fn options(&self) -> Options {
        let defaults = Options::default();
        Options {
            causal: !self.no_causal,
            asymmetry: !self.no_asymmetry,
            requests: !self.no_requests,
            share: self.share,
            criticality: defaults.criticality,
            stretch: self.stretch.unwrap_or(defaults.stretch),
            margin_ns: self.margin_us.map_or(defaults.margin_ns, |us| us * 1000),
        }
    }
}

#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

impl Options {
    /// The options that a command line asks for, by its words; `None` if it is not one of `quell sched`.
    ///
    /// # Errors
    /// The words are of `quell sched`, and are not understood.
    pub fn of_command(words: &[String]) -> Option<Result<Options, clap::Error>> {
        let ["quell", "sched"] = [words.first()?, words.get(1)?].map(String::as_str) else {
            return None;
        };
        let line = Line::try_parse_from(&words[2..]);
        Some(line.map(|line| line.arguments.options()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<Result<Options, clap::Error>> {
        let words: Vec<String> = line.split_whitespace().map(String::from).collect();
        Options::of_command(&words)
    }

    #[test]
    fn a_command_line_is_its_options() {
        assert_eq!(of("quell sched").unwrap().unwrap(), Options::default());
        let options = of("quell sched --no-requests --margin-us 20").unwrap();
        let due = Options {
            requests: false,
            margin_ns: 20_000,
            ..Options::default()
        };
        assert_eq!(options.unwrap(), due);
        assert!(of("scx_rusty").is_none() && of("quell agent").is_none() && of("").is_none());
        let error = of("quell sched --no-request").unwrap().unwrap_err();
        assert!(error.to_string().contains("--no-requests"), "{error}");
    }
}
