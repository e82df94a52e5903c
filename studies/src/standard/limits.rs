//! How much worse than the baseline a side may be.

use super::figures::VictimFigures;

/// By how many µs a mean or a 99th percentile may be later in any case.
const LATER_US: f64 = 200.0;

/// How many times as late the worst may be.
const WORST_TIMES: f64 = 2.0;

/// By how many µs the worst may be later in any case: a slice.
const SLICE_US: f64 = 3000.0;

/// The part of the wakeups that must be served.
const SERVED: f64 = 0.98;

/// The part of the baseline's work that a load must do.
pub(super) const THROUGHPUT: f64 = 0.97;

/// With this many wakeups, the 99th percentile is not the worst.
const HAVE_P99: f64 = 100.0;

/// The names of the figures that are judged, in their order: mean, 99th percentile, worst.
const LATE: [&str; 3] = ["late_mean_us", "late_p99_us", "late_worst_us"];

/// The names of the figures that are judged where a victim has no lateness.
const RESPONSE: [&str; 3] = ["response_mean_us", "response_p99_us", "response_worst_us"];

/// The limits of a side.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Limits {
    /// How many times as late a mean or a 99th percentile may be.
    pub(super) times: f64,
}

/// Whether a victim is judged by its 99th percentile: with too few wakeups that is the worst.
pub(super) fn has_p99(side: &VictimFigures, base: &VictimFigures) -> bool {
    side.served.min(base.served) >= HAVE_P99
}

impl Limits {
    /// The limits of a side, by its label: a scheduler that shares the host exactly by weight may do a little
    /// worse.
    pub(super) fn of(label: &str) -> Limits {
        let times = if label.contains("share") { 1.25 } else { 1.1 };
        Limits { times }
    }

    /// The figures of a victim that break a limit, by their names. With few wakeups one may be missing, and
    /// the 99th percentile is the worst, which has its own limit. A victim without lateness is judged by its
    /// response.
    pub(super) fn victim(&self, side: &VictimFigures, base: &VictimFigures) -> Vec<String> {
        let late = |it: &VictimFigures| [it.late_mean_us, it.late_p99_us, it.late_worst_us];
        let response = |it: &VictimFigures| {
            [
                it.response_mean_us,
                it.response_p99_us,
                it.response_worst_us,
            ]
        };
        let (names, of_side, of_base) = match base.late_mean_us {
            Some(_) => (LATE, late(side), late(base)),
            None => (RESPONSE, response(side), response(base)),
        };
        let allowed = [
            (self.times, LATER_US),
            match has_p99(side, base) {
                true => (self.times, LATER_US),
                false => (f64::INFINITY, 0.0),
            },
            (WORST_TIMES, SLICE_US),
        ];
        let mut broken = Vec::new();
        if side.served < (base.served * SERVED).min(base.served - 1.0) {
            broken.push("served".to_string());
        }
        for (at, name) in names.iter().enumerate() {
            let (times, by_us) = allowed[at];
            let breaks = match (of_side[at], of_base[at]) {
                (Some(side), Some(base)) => side > (base * times).max(base + by_us),
                // No wakeup was served at all.
                (None, Some(_)) => true,
                (_, None) => false,
            };
            if breaks {
                broken.push(name.to_string());
            }
        }
        broken
    }
}

/// Whether a load did too little work.
pub(super) fn load_fails(side: Option<f64>, base: Option<f64>) -> bool {
    match (side, base) {
        (Some(side), Some(base)) => side < base * THROUGHPUT,
        (None, Some(_)) => true,
        (_, None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(served: f64, mean: f64, p99: f64, worst: f64) -> VictimFigures {
        VictimFigures {
            served,
            late_mean_us: Some(mean),
            late_p99_us: Some(p99),
            late_worst_us: Some(worst),
            ..VictimFigures::default()
        }
    }

    #[test]
    fn limits_are_the_greater_of_a_part_and_a_time() {
        let sched = Limits::of("sched");
        let base = figures(1000.0, 50.0, 4000.0, 9000.0);
        let check =
            |served, mean, p99, worst| sched.victim(&figures(served, mean, p99, worst), &base);
        assert_eq!(check(980.0, 250.0, 4400.0, 18_000.0), [""; 0]);
        assert_eq!(check(979.0, 250.0, 4400.0, 18_000.0), ["served"]);
        assert_eq!(check(1000.0, 251.0, 4400.0, 18_000.0), ["late_mean_us"]);
        assert_eq!(
            check(1000.0, 50.0, 4401.0, 18_001.0),
            ["late_p99_us", "late_worst_us"]
        );
        let share = Limits::of("share");
        assert_eq!(
            share.victim(&figures(1000.0, 50.0, 5000.0, 12_000.0), &base),
            [""; 0]
        );
        assert_eq!(
            share.victim(&figures(1000.0, 50.0, 5001.0, 1.0), &base),
            ["late_p99_us"]
        );
    }

    #[test]
    fn few_wakeups_are_judged_by_their_worst_and_may_be_one_less() {
        let sched = Limits::of("sched");
        let base = figures(27.0, 50.0, 100.0, 100.0);
        assert_eq!(
            sched.victim(&figures(26.0, 50.0, 3000.0, 3000.0), &base),
            [""; 0]
        );
        assert_eq!(
            sched.victim(&figures(25.0, 50.0, 3000.0, 3000.0), &base),
            ["served"]
        );
        let none = VictimFigures::default();
        assert_eq!(
            sched.victim(&none, &base),
            ["served", "late_mean_us", "late_p99_us", "late_worst_us"]
        );
        assert_eq!(sched.victim(&base, &none), [""; 0]);
    }

    #[test]
    fn who_tells_no_lateness_is_judged_by_its_response() {
        let answers = |mean| VictimFigures {
            served: 1000.0,
            response_mean_us: Some(mean),
            ..VictimFigures::default()
        };
        let sched = Limits::of("sched");
        assert_eq!(sched.victim(&answers(1100.0), &answers(900.0)), [""; 0]);
        assert_eq!(
            sched.victim(&answers(1101.0), &answers(900.0)),
            ["response_mean_us"]
        );
    }

    #[test]
    fn a_load_is_to_do_nearly_as_much() {
        assert!(!load_fails(Some(97.0), Some(100.0)));
        assert!(load_fails(Some(96.9), Some(100.0)));
        assert!(load_fails(None, Some(100.0)));
        assert!(!load_fails(None, None));
    }
}
