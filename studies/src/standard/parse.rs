//! Reads what other programs report of their work.

use super::figures::VictimFigures;
use anyhow::Context;
use serde_json::Value;

/// A stressor's work in the output of `stress-ng --metrics-brief`: bogo operations per second of real time.
pub(super) fn stress_ng(text: &str, stressor: &str) -> Option<f64> {
    // stress-ng: metrc: [PID] STRESSOR OPS REAL_S USER_S SYSTEM_S OPS_PER_REAL_S OPS_PER_CPU_S
    let rows = text
        .lines()
        .filter(|line| line.contains("metrc:") || line.contains("info:"));
    let mut rows = rows.map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.find_map(|words| {
        let at = words.iter().position(|word| *word == stressor)?;
        let numbers: Vec<f64> = words[at + 1..]
            .iter()
            .map_while(|word| word.parse().ok())
            .collect();
        match numbers[..] {
            [ops, real_s, _, _, ..] if real_s > 0.0 => Some(ops / real_s),
            _ => None,
        }
    })
}

/// The figures of all threads of cyclictest together, from the file of its `--json` with a histogram in µs.
/// Wakeups that are later than the histogram is long count as the worst.
///
/// # Errors
/// Where the text is not JSON as cyclictest writes it.
pub(super) fn cyclictest(text: &str) -> anyhow::Result<VictimFigures> {
    let json: Value = serde_json::from_str(text).context("cyclictest's JSON")?;
    let threads = json["thread"]
        .as_object()
        .context("cyclictest tells of no thread")?;
    let (mut served, mut sum, mut worst) = (0.0, 0.0, 0f64);
    let mut counts: Vec<(u64, f64)> = Vec::new();
    for thread in threads.values() {
        let number = |key: &str| {
            thread[key]
                .as_f64()
                .with_context(|| format!("cyclictest: no `{key}`"))
        };
        let cycles = number("cycles")?;
        // cyclictest counts a thread before its first wakeup, and then reports no wakeup of it.
        if cycles == 0.0 {
            continue;
        }
        served += cycles;
        sum += number("avg")? * cycles;
        worst = worst.max(number("max")?);
        for (us, count) in thread["histogram"].as_object().into_iter().flatten() {
            counts.push((us.parse()?, count.as_f64().unwrap_or(0.0)));
        }
    }
    if served == 0.0 {
        return Ok(VictimFigures::default());
    }
    counts.sort_by_key(|(us, _)| *us);
    let mut left = 0.99 * served;
    let p99 = counts.iter().find(|(_, count)| {
        left -= count;
        left <= 0.0
    });
    Ok(VictimFigures {
        served,
        late_mean_us: Some(sum / served),
        late_p99_us: Some(p99.map_or(worst, |(us, _)| *us as f64)),
        late_worst_us: Some(worst),
        ..VictimFigures::default()
    })
}

/// Each test in the output of `redis-benchmark --csv`: mean, 99th percentile and worst latency, in µs.
pub(super) fn redis_benchmark(text: &str) -> Vec<[f64; 3]> {
    let row = |line: &str| -> Vec<String> {
        line.trim()
            .split(',')
            .map(|it| it.trim_matches('"').to_string())
            .collect()
    };
    let mut lines = text.lines().filter(|line| line.starts_with('"'));
    let header = lines.next().map(row).unwrap_or_default();
    let columns = ["avg_latency_ms", "p99_latency_ms", "max_latency_ms"];
    let columns = columns.map(|name| header.iter().position(|it| it == name));
    let figures = |line: &str| {
        let row = row(line);
        let ms = columns.map(|it| row.get(it?)?.parse::<f64>().ok());
        Some([ms[0]? * 1e3, ms[1]? * 1e3, ms[2]? * 1e3])
    };
    lines.filter_map(figures).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRESS_NG: &str = "\
stress-ng: info:  [12869] dispatching hogs: 2 switch
stress-ng: metrc: [12869] stressor       bogo ops real time  usr time  sys time   bogo ops/s     bogo ops/s
stress-ng: metrc: [12869]                           (secs)    (secs)    (secs)   (real time) (usr+sys time)
stress-ng: metrc: [12869] switch           507420      2.00      0.24      1.75    507089.46      254662.69
stress-ng: metrc: [12869] miscellaneous metrics:
stress-ng: metrc: [12869] switch              3940.51 nanosecs per context switch (pipe method)
";

    #[test]
    fn a_stressors_operations_per_second_are_found() {
        assert_eq!(stress_ng(STRESS_NG, "switch"), Some(253_710.0));
        assert_eq!(stress_ng(STRESS_NG, "pipe"), None);
        assert_eq!(stress_ng("", "switch"), None);
    }

    #[test]
    fn cyclictests_threads_are_taken_together() {
        let text = r#"{ "num_threads": 2, "thread": {
            "0": { "histogram": { "10": 50, "20": 50 }, "cycles": 100, "min": 10, "max": 20, "avg": 15.0 },
            "1": { "histogram": { "10": 97 }, "cycles": 100, "min": 10, "max": 4267, "avg": 45.0 } } }"#;
        let figures = cyclictest(text).unwrap();
        assert_eq!(figures.served, 200.0);
        assert_eq!(figures.late_mean_us, Some(30.0));
        // 197 of 200 are in the histogram; the other three are the worst.
        assert_eq!(figures.late_p99_us, Some(4267.0));
        assert_eq!(figures.late_worst_us, Some(4267.0));
        let none = r#"{ "thread": { "0": { "cycles": 0, "min": 0, "max": 0, "avg": 0 } } }"#;
        assert_eq!(cyclictest(none).unwrap(), VictimFigures::default());
        assert!(cyclictest("{}").is_err());
    }

    #[test]
    fn redis_benchmarks_latencies_are_found_by_their_headings() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\
                    \"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
                    \"SET\",\"50000.00\",\"0.125\",\"0.04\",\"0.1\",\"0.2\",\"0.5\",\"2.25\"\n";
        assert_eq!(redis_benchmark(text), [[125.0, 500.0, 2250.0]]);
        assert_eq!(redis_benchmark("error"), [[0.0; 3]; 0]);
    }
}
