//! What Quell's measured effect is, in a line for operators: for logs, status and explain.

use quell_model::{Effect, EffectInterval, Finding, Lever, TenantName};
use std::fmt::Write as _;

/// A lever's name for operators.
pub fn name(lever: Lever) -> &'static str {
    match lever {
        Lever::Scheduler => "Quell's scheduler",
        Lever::Feedback => "the feedback of [asymmetry]",
        Lever::All => "all that Quell does",
    }
}

/// What a lever does, and what is known of its effect: on all tenants, or on `tenant`. `now_ns` is
/// CLOCK_MONOTONIC.
pub fn line(effect: &Effect, tenant: Option<&TenantName>, now_ns: u64) -> String {
    let mut text = format!("{}: ", name(effect.lever));
    let known = match tenant {
        None => effect.responses,
        Some(tenant) => {
            let mut tenants = effect.tenants.iter();
            tenants.find(|it| it.0 == *tenant).map(|it| it.1)
        }
    };
    let ago = duration(now_ns.saturating_sub(effect.since_ns));
    let found = match (effect.finding, effect.acts) {
        (Finding::Helps, _) => format!("acts, as it was shown to help {ago} ago"),
        (Finding::Untried, true) => "acts, not judged yet".to_string(),
        (Finding::NothingShown, true) => format!("acts, no effect shown {ago} ago"),
        (Finding::Harms, true) => {
            format!("acts as configured, though it was shown to harm {ago} ago")
        }
        (Finding::Harms, false) => format!("off, as it was shown to harm {ago} ago"),
        (Finding::NothingShown, false) => format!("off, as no effect was shown {ago} ago"),
        (Finding::Untried, false) => "off until it is shown to help".to_string(),
    };
    text.push_str(&found);
    let pairs = match effect.pairs {
        0 => "no pairs of blocks yet".to_string(),
        1 => "1 pair of blocks".to_string(),
        many => format!("{many} pairs of blocks"),
    };
    // Writing to a string does not fail.
    let _ = match known {
        Some(known) => write!(text, "; responses {} in {pairs}", percent(known)),
        None => write!(text, "; {pairs}, too few to say what it does to responses"),
    };
    if !effect.acts {
        let next = effect.next_ns.saturating_sub(now_ns);
        let _ = match next {
            0 => write!(text, "; tried while the host is busy"),
            next => write!(text, "; next trial in {}", duration(next)),
        };
    }
    text
}

/// As `-31 % (-35 to -27)`.
pub fn percent(interval: EffectInterval) -> String {
    let percent = |ratio: f64| format!("{:+.0}", zero((ratio - 1.0) * 100.0));
    format!(
        "{} % ({} to {})",
        percent(interval.ratio),
        percent(interval.low),
        percent(interval.high)
    )
}

/// No sign where rounding leaves nothing.
fn zero(percent: f64) -> f64 {
    if percent.abs() < 0.5 { 0.0 } else { percent }
}

fn duration(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn effect(acts: bool, finding: Finding, ratio: Option<f64>) -> Effect {
        let interval = |ratio: f64| EffectInterval {
            ratio,
            low: ratio - 0.04,
            high: ratio + 0.04,
        };
        Effect {
            lever: Lever::Feedback,
            acts,
            finding,
            since_ns: 100 * SECOND,
            next_ns: 2000 * SECOND,
            pairs: 14,
            void: 0,
            responses: ratio.map(interval),
            tenants: vec![("web".into(), interval(0.5))],
        }
    }

    #[test]
    fn lines_say_what_acts_why_and_since_when() {
        let line_of = |effect: &Effect, tenant: Option<&str>| {
            let tenant = tenant.map(TenantName::from);
            line(effect, tenant.as_ref(), 400 * SECOND)
        };
        let cases = [
            (
                effect(true, Finding::Helps, Some(0.69)),
                "acts, as it was shown to help 5 min ago; responses -31 % (-35 to -27) in 14 pairs of blocks",
            ),
            (
                effect(false, Finding::Harms, Some(1.3)),
                "off, as it was shown to harm 5 min ago; responses +30 % (+26 to +34) in 14 pairs of blocks; next trial in 26 min",
            ),
            (
                effect(false, Finding::NothingShown, Some(1.001)),
                "off, as no effect was shown 5 min ago; responses +0 % (-4 to +4) in 14 pairs of blocks; next trial in 26 min",
            ),
            (
                effect(true, Finding::Untried, None),
                "acts, not judged yet; 14 pairs of blocks, too few to say what it does to responses",
            ),
        ];
        for (effect, expected) in cases {
            let expected = format!("the feedback of [asymmetry]: {expected}");
            assert_eq!(line_of(&effect, None), expected);
        }
        let effect = effect(true, Finding::Helps, Some(0.69));
        assert!(line_of(&effect, Some("web")).contains("responses -50 % (-54 to -46)"));
        assert!(line_of(&effect, Some("db")).contains("too few to say"));
    }
}
