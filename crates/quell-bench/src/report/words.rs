//! Numbers and findings in words, equal in every report.

use crate::result::{ALL, BenchResult, Comparison, Figures, Host, Metric};
use quell_model::config::TenantClass;
use quell_model::shown::shown;

/// Makes text safe inside elements and quoted attributes, and writes out characters that turn or hide other
/// text. Line breaks stay.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (number, line) in text.split('\n').enumerate() {
        if number > 0 {
            out.push('\n');
        }
        for c in shown(line).chars() {
            match c {
                '&' => out.push_str("&amp;"),
                '<' => out.push_str("&lt;"),
                '>' => out.push_str("&gt;"),
                '"' => out.push_str("&quot;"),
                '\'' => out.push_str("&#39;"),
                c => out.push(c),
            }
        }
    }
    out
}

/// A latency with a fitting unit, to about three digits.
pub fn latency(us: f64) -> String {
    let (value, unit) = match us {
        us if us < 999.5 => (us, "µs"),
        us if us < 999_500.0 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    format!("{} {unit}", three_digits(value))
}

/// About three significant digits, without an exponent.
pub fn three_digits(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 => thousands(value),
        v if v >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A whole number, its thousands set apart by commas.
fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 {
        format!("-{text}")
    } else {
        text
    }
}

/// A tenant's throughput: batch work, else requests, per second.
pub fn throughput(figures: &Figures) -> Option<String> {
    if let Some(work) = figures.work_per_s {
        return Some(match figures.work_unit.as_deref() {
            Some("bytes") => format!("{} MB/s", three_digits(work / 1e6)),
            unit => format!("{} {}/s", three_digits(work), unit.unwrap_or("units")),
        });
    }
    figures
        .requests_per_s
        .map(|rate| format!("{} req/s", three_digits(rate)))
}

/// The name of a tenant, or of all tenants of a class.
pub fn tenant(name: &str, class: TenantClass) -> &str {
    match (name, class) {
        (ALL, TenantClass::Latency) => "all latency",
        (ALL, TenantClass::Batch) => "all batch",
        (name, _) => name,
    }
}

/// A ratio as a signed change: `-41 %`, `+2.3 %`, `x 4.2`.
pub fn change(ratio: f64) -> String {
    if ratio >= 3.0 {
        return format!("x {}", three_digits(ratio));
    }
    let percent = (ratio - 1.0) * 100.0;
    let digits = usize::from(percent.abs() < 9.95);
    let text = format!("{percent:+.digits$}");
    // Rounding may leave a signed zero.
    let text = if text.trim_start_matches(['+', '-']) == "0.0" {
        "0.0"
    } else {
        &text
    };
    format!("{} %", text.replace('-', "−"))
}

/// An interval of ratios as `-45 to -37 %`.
pub fn interval(low: f64, high: f64) -> String {
    format!("{} to {}", change(low).trim_end_matches(" %"), change(high))
}

/// A comparison as `-41 %` and `-45 to -37 %`; the latter empty without an interval.
pub fn change_and_interval(comparison: &Comparison) -> (String, String) {
    let interval = comparison
        .ci_low
        .zip(comparison.ci_high)
        .map_or(String::new(), |(low, high)| interval(low, high));
    (change(comparison.ratio), interval)
}

/// The findings that matter most, a sentence each, for every side against each baseline.
pub fn findings(result: &BenchResult) -> Vec<String> {
    let mut sentences = Vec::new();
    let sides = &result.options.sides;
    let against = |at: usize| {
        let others = sides.iter().skip(at + 1);
        others.map(move |side| (&sides[at], side))
    };
    // The second baseline comes first: it is nearer to the sides after it than the first baseline is.
    for (baseline, side) in against(1).chain(against(0)) {
        for (class, metric, what, less, more) in [
            (
                TenantClass::Latency,
                Metric::MeanUs,
                "Mean latency of the latency-critical tenants",
                "lower",
                "higher",
            ),
            (
                TenantClass::Latency,
                Metric::P99Us,
                "Their 99th percentile",
                "lower",
                "higher",
            ),
            (
                TenantClass::Batch,
                Metric::WorkPerS,
                "Work done by the batch tenants",
                "less",
                "more",
            ),
        ] {
            let found = result.comparisons.iter().find(|c| {
                let who = (c.tenant.as_str(), c.class, c.metric);
                who == (ALL, class, metric) && (&c.baseline, &c.side) == (baseline, side)
            });
            if let Some(comparison) = found {
                sentences.push(format!("{what}: {}.", sentence(comparison, less, more)));
            }
        }
    }
    sentences
}

fn sentence(comparison: &Comparison, less: &str, more: &str) -> String {
    let Comparison { side, baseline, .. } = comparison;
    let signed = |ratio: f64| {
        format!(
            "{} {}",
            magnitude(ratio),
            if ratio <= 1.0 { less } else { more }
        )
    };
    let estimate = signed(comparison.ratio);
    let versus = format!("under {side} than under {baseline}");
    let Some((low, high)) = comparison.ci_low.zip(comparison.ci_high) else {
        return format!("{estimate} {versus} (one pair, so no interval)");
    };
    match comparison.significant() {
        Some(true) if high < 1.0 => {
            let (near, far) = (magnitude(high), magnitude(low));
            format!(
                "{estimate} {versus} (95 % interval {} to {far})",
                near.trim_end_matches(" %")
            )
        }
        Some(true) => {
            let (near, far) = (magnitude(low), magnitude(high));
            format!(
                "{estimate} {versus} (95 % interval {} to {far})",
                near.trim_end_matches(" %")
            )
        }
        _ => format!(
            "no difference shown; {estimate} {versus}, but the 95 % interval goes from {} to {}",
            signed(low),
            signed(high)
        ),
    }
}

/// The distance of a ratio from 1: `41 %`.
fn magnitude(ratio: f64) -> String {
    change(ratio).trim_start_matches(['+', '−']).to_string()
}

/// How the result was measured, in a sentence.
pub fn method(result: &BenchResult) -> String {
    let options = &result.options;
    let set = match &options.set[..] {
        [] => String::new(),
        set => format!("; {}", set.join(", ")),
    };
    let rounds = match options.sides.len() {
        1 => "round",
        2 => "interleaved pair",
        _ => "interleaved round",
    };
    let plural = if options.pairs == 1 { "" } else { "s" };
    format!(
        "{} {rounds}{plural} of {} s each after {} s of warm-up; seed {}{set}",
        options.pairs, options.seconds, options.warmup_seconds, options.seed
    )
}

/// The machine, in a sentence.
pub fn host(host: &Host) -> String {
    let virtualized = if host.virtualized {
        ", a virtual machine"
    } else {
        ""
    };
    format!(
        "{} CPUs ({}), Linux {}{virtualized}",
        host.cpus, host.model, host.kernel
    )
}

/// The agent's cost, in a sentence.
pub fn agent(result: &BenchResult) -> Option<String> {
    let agent = result.agent?;
    Some(format!(
        "The agent itself used {:.2} % of one CPU and at most {:.1} MiB of memory.",
        agent.cpu_percent,
        agent.rss_bytes as f64 / f64::from(1 << 20)
    ))
}

/// Seconds since 1970 as date and time of day (UTC).
pub fn date(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    // Days since 1 March of year 0: years that begin in March put the leap day last (Gregorian
    // eras of 400 years have 146 097 days).
    let day = days + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = (era * 400 + year + month / 10, (month + 2) % 12 + 1);
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// How busy the CPUs were, in a sentence.
pub fn busy(result: &BenchResult) -> String {
    let busy: Vec<String> = result
        .sides
        .iter()
        .map(|s| format!("{:.0} % under {}", s.busy_percent, s.side))
        .collect();
    let steal = result
        .sides
        .iter()
        .map(|s| s.steal_percent)
        .fold(0.0, f64::max);
    format!(
        "CPUs busy: {}; taken by the hypervisor: at most {steal:.1} %.",
        busy.join(", ")
    )
}

/// The pauses of the machine below, in a sentence; `None` if there were none.
pub fn pauses(result: &BenchResult) -> Option<String> {
    let of_side = |side: &str| {
        let runs = result.runs.iter().filter(|run| run.side == side);
        runs.filter_map(|run| run.pauses)
            .fold((0, 0.0, 0), |(count, ms, left_out), p| {
                let left_out = left_out + p.requests_left_out;
                (count + p.count, ms + p.total_ms, left_out)
            })
    };
    let sides: Vec<_> = result
        .sides
        .iter()
        .map(|s| (&s.side, of_side(&s.side)))
        .collect();
    let left_out: u64 = sides.iter().map(|(_, (_, _, n))| n).sum();
    if left_out == 0 {
        return None;
    }
    let times: Vec<String> = sides
        .iter()
        .map(|(side, (count, ms, _))| format!("{count} times ({ms:.0} ms) under {side}"))
        .collect();
    Some(format!(
        "The machine below stopped all CPUs at once {}; latencies leave out the {left_out} requests due within 100 ms of that.",
        times.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_get_fitting_units() {
        let latencies = [0.4, 87.23, 999.4, 999.6, 12_345.0, 1_234_567.0].map(latency);
        assert_eq!(
            latencies,
            [
                "0.40 µs", "87.2 µs", "999 µs", "1.00 ms", "12.3 ms", "1.23 s"
            ]
        );
        assert_eq!(three_digits(1_234_567.0), "1,234,567");
        let changes = [0.59, 0.977, 1.0, 1.0001, 1.023, 2.5, 4.2].map(change);
        assert_eq!(
            changes,
            [
                "−41 %", "−2.3 %", "0.0 %", "0.0 %", "+2.3 %", "+150 %", "x 4.20"
            ]
        );
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let dates = [0, 951_782_399, 951_782_400, 1_709_251_199, 1_780_000_000].map(date);
        assert_eq!(
            dates,
            [
                "1970-01-01 00:00 UTC",
                "2000-02-28 23:59 UTC",
                "2000-02-29 00:00 UTC",
                "2024-02-29 23:59 UTC",
                "2026-05-28 20:26 UTC"
            ]
        );
    }

    #[test]
    fn sentences_say_when_nothing_is_shown() {
        let comparison = |ratio, interval: Option<(f64, f64)>| Comparison {
            tenant: ALL.into(),
            class: TenantClass::Latency,
            metric: Metric::MeanUs,
            baseline: "default".into(),
            side: "quell".into(),
            ratio,
            ci_low: interval.map(|i| i.0),
            ci_high: interval.map(|i| i.1),
            pairs: 5,
        };
        let say = |ratio, interval| sentence(&comparison(ratio, interval), "lower", "higher");
        assert_eq!(
            say(0.59, Some((0.55, 0.63))),
            "41 % lower under quell than under default (95 % interval 37 to 45 %)"
        );
        assert_eq!(
            say(1.2, Some((1.1, 1.3))),
            "20 % higher under quell than under default (95 % interval 10 to 30 %)"
        );
        assert_eq!(
            say(0.97, Some((0.92, 1.02))),
            "no difference shown; 3.0 % lower under quell than under default, but the 95 % interval \
             goes from 8.0 % lower to 2.0 % higher"
        );
        assert!(say(0.5, None).contains("one pair"));
    }
}
