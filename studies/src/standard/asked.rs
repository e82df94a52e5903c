//! An application that gets requests at a fixed rate, whether it has answered earlier ones or not.
//!
//! Problem: a client that waits for each answer asks less while it is kept waiting, so it hides what other
//! clients would have seen. Approach: the open loop of scenarios' tenants ([`quell_bench::workload::load`]);
//! a request's response is from when it was due to its answer. The client stands for the other end of a
//! network, so it has real-time priority on every side.

use super::figures::VictimFigures;
use super::now_ns;
use super::own::OwnDone;
use super::victim::{Window, histogram};
use anyhow::{Context, ensure};
use quell_bench::workload::load::{self, Plan, generate};
use quell_bench::workload::{Launch, Nursery, Place, start_app};
use quell_scenario::App;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// Connections over which the requests are spread.
const CONNECTIONS: u32 = 8;

/// How long answers are waited for after the window.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Starts the application in `folder`, calls `ready` when it answers, and sends it `rate` requests per second
/// in the mean until the window is over. Requests that were due in the window count.
///
/// # Errors
/// Where the application does not start or takes no requests, or the client gets no real-time priority or
/// fails.
pub(super) fn run(
    folder: PathBuf,
    app: &App,
    (rate, seed): (f64, u64),
    ready: impl FnOnce() -> anyhow::Result<Window>,
) -> anyhow::Result<OwnDone> {
    let nursery = Nursery::new()?;
    // An interrupt ends this whole process, so the flag is never set.
    let never = AtomicBool::new(false);
    let launch = Launch {
        nursery: &nursery,
        folder,
        place: Place::default(),
        cpus: available_parallelism().map_or(1, |it| it.get() as u32),
        interrupt: &never,
    };
    let started = start_app(app, &launch)?;
    let connect = started.connect.as_ref().context("it takes no requests")?;
    let mut target = connect.connect(CONNECTIONS)?;
    let window = ready()?;
    let due = load::Window {
        start: Instant::now(),
        warmup_ns: window.from_ns.saturating_sub(now_ns()),
        length_ns: window.until_ns - window.from_ns,
        timeout_ns: TIMEOUT.as_nanos() as u64,
        seed,
        first_id: 0,
    };
    let arrivals = Plan::poisson(rate).arrivals(seed);
    let outcome = generate(&mut *target, arrivals, due, &never)?;
    let not_realtime = outcome.generator.not_realtime.unwrap_or_default();
    ensure!(not_realtime.is_empty(), "its client: {not_realtime}");
    let mut response = histogram();
    for request in &outcome.requests {
        response.saturating_record(request.latency_ns.max(1));
    }
    Ok(OwnDone {
        // The number of requests is given, so it is no merit of a side.
        per_s: None,
        figures: Some(VictimFigures {
            served: (outcome.requests.len() as u64 - outcome.errors) as f64,
            ..VictimFigures::of(None, Some(&response))
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_bench::workload::find_program;
    use quell_scenario::Memcached;

    #[test]
    fn memcached_is_asked_as_often_as_it_was_to_be() {
        if let Err(error) = find_program("memcached", "memcached") {
            quell_testkit::skip!(Apps, "{error:#}");
            return;
        }
        let window = || {
            let (warmup, length) = (Duration::from_millis(200), Duration::from_secs(1));
            Ok(Window::after(warmup, length))
        };
        let app = App::Memcached(Memcached {
            keys_per_request: 10,
            ..Memcached::default()
        });
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().to_path_buf();
        // A thread of its own, as its priority ends with it.
        let done = std::thread::spawn(move || run(own, &app, (200.0, 1), window)).join();
        let done = match done.unwrap() {
            Err(error) if error.to_string().contains("SCHED_FIFO") => {
                quell_testkit::skip!(Apps, "{error:#}");
                return;
            }
            done => done.unwrap(),
        };
        assert_eq!(done.per_s, None);
        let figures = done.figures.unwrap();
        // 200 in the mean; with this seed always equally many.
        assert!((150.0..=250.0).contains(&figures.served), "{figures:?}");
        assert!(
            figures.response_worst_us >= figures.response_mean_us,
            "{figures:?}"
        );
    }
}
