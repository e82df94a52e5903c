//! The open loop against servers that misbehave in known ways.

use super::*;
use quell_scenario::Scenario;
use rand_chacha::ChaCha8Rng;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

/// A protocol in which `?` is answered by `!`.
struct Bang;

impl Protocol for Bang {
    type Expected = ();

    fn request(&self, _rng: &mut ChaCha8Rng, out: &mut Vec<u8>) {
        out.push(b'?');
    }

    fn answer(&self, _expected: &(), bytes: &[u8]) -> Answer {
        match bytes.first() {
            None => Answer::Partial,
            Some(b'!') => Answer::Right(1),
            Some(_) => Answer::Wrong,
        }
    }
}

/// Loads a server for a second, 100 requests/s in equal gaps over one connection. `serve` gets the time since
/// the first request and returns the answer, empty for none.
fn load(timeout_ms: u64, serve: impl FnMut(Duration) -> &'static [u8] + Send + 'static) -> Outcome {
    load_from(Instant::now(), timeout_ms, serve)
}

/// Loads a server as [`load`] does, from a time that may be in the future.
fn load_from(
    start: Instant,
    timeout_ms: u64,
    mut serve: impl FnMut(Duration) -> &'static [u8] + Send + 'static,
) -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut first = None;
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut byte = [0];
            while matches!(stream.read(&mut byte), Ok(1)) {
                let answer = serve(first.get_or_insert_with(Instant::now).elapsed());
                if answer == b"close" || stream.write_all(answer).is_err() {
                    break;
                }
            }
        }
    });
    let text = "name = \"t\"\n[[tenant]]\nname = \"t\"\napp = { nginx = {} }\n\
                load = { arrival = \"fixed\", rate = 100.0 }";
    let scenario = Scenario::parse(Path::new("t"), text).unwrap();
    let plan = Plan::new(&scenario, scenario.tenants[0].load.as_ref().unwrap(), 1).unwrap();
    let mut target = StreamServer::new(address, Bang).connect(1).unwrap();
    let window = Window {
        start,
        warmup_ns: 0,
        length_ns: 1_000_000_000,
        timeout_ns: timeout_ms * 1_000_000,
        seed: 1,
        first_id: 0,
    };
    // The generator runs in a thread of its own, because it becomes a real-time thread.
    let interrupt = AtomicBool::new(false);
    thread::scope(|scope| {
        let run = || generate(&mut *target, plan.arrivals(1), window, &interrupt);
        scope.spawn(run).join().unwrap().unwrap()
    })
}

/// How many requests took at least `ms`.
fn at_least(outcome: &Outcome, ms: u64) -> u64 {
    let long = |r: &&Request| r.latency_ns >= ms * 1_000_000;
    outcome.requests.iter().filter(long).count() as u64
}

/// The first request is due at time 0 itself.
#[test]
fn nothing_is_sent_before_the_load_begins() {
    let start = Instant::now() + Duration::from_millis(300);
    let (tell, first) = std::sync::mpsc::channel();
    let outcome = load_from(start, 10_000, move |_| {
        let _ = tell.send(Instant::now());
        b"!"
    });
    assert_eq!((outcome.requests.len(), outcome.errors), (100, 0));
    assert!(first.recv().unwrap() >= start);
}

#[test]
fn a_stall_shows_in_every_request_intended_meanwhile() {
    let mut stalled = false;
    let outcome = load(10_000, move |elapsed| {
        if !stalled && elapsed > Duration::from_millis(300) {
            stalled = true;
            thread::sleep(Duration::from_millis(200));
        }
        b"!"
    });
    assert_eq!(
        (outcome.requests.len(), outcome.errors, outcome.unanswered),
        (100, 0, 0)
    );
    // The pause holds up 20 requests, each for the rest of the pause. A closed loop would see one.
    assert!(at_least(&outcome, 180) >= 1);
    assert!(at_least(&outcome, 100) >= 9, "{}", at_least(&outcome, 100));
    assert!(at_least(&outcome, 50) >= 14, "{}", at_least(&outcome, 50));
}

#[test]
fn unanswered_requests_are_errors_as_old_as_they_are() {
    let outcome = load(300, |elapsed| {
        if elapsed > Duration::from_millis(500) {
            b""
        } else {
            b"!"
        }
    });
    assert_eq!(outcome.requests.len(), 100);
    assert!(
        outcome.errors >= 40 && outcome.errors == outcome.unanswered,
        "{}",
        outcome.errors
    );
    assert!(
        at_least(&outcome, 300) >= outcome.errors,
        "{}",
        at_least(&outcome, 300)
    );
    // A request that is due after half a second is waited for until 1.3 s.
    assert!(at_least(&outcome, 700) >= 5, "{}", at_least(&outcome, 700));
}

#[test]
fn wrong_answers_and_lost_connections_are_errors_and_the_load_goes_on() {
    for bad in [&b"x"[..], b"close"] {
        let mut count = 0;
        let outcome = load(2_000, move |_| {
            count += 1;
            if count % 10 == 0 { bad } else { b"!" }
        });
        assert_eq!((outcome.requests.len(), outcome.unanswered), (100, 0));
        // Each bad answer fails its request and those outstanding with it; most other requests are answered.
        assert!((8..=90).contains(&outcome.errors), "{}", outcome.errors);
    }
}
