//! The API over a real unix socket.

use super::*;
use crate::client::{Client, ClientError};
use crate::testing::{facts, plan_with_reasons, snapshot};
use crate::wire::PeriodCost;
use proptest::prelude::*;
use std::io::{Read, Write};
use std::time::Instant;

struct Running {
    dir: tempfile::TempDir,
    state: Arc<SharedState>,
    server: Option<Server>,
}

fn running(periods: u64) -> Running {
    let dir = tempfile::tempdir().unwrap();
    let state = Arc::new(SharedState::new("quell.toml".into(), facts()));
    for seq in 0..periods {
        let snapshot = snapshot(seq, &[("img", 2), ("web", 1)]);
        let plan = plan_with_reasons(&snapshot, 1);
        state.publish(snapshot, plan, None, PeriodCost::default());
    }
    let server = Server::start(&dir.path().join("agent.sock"), state.clone()).unwrap();
    Running {
        dir,
        state,
        server: Some(server),
    }
}

impl Running {
    fn socket(&self) -> PathBuf {
        self.dir.path().join("agent.sock")
    }

    fn client(&self) -> Client {
        Client::new(self.socket())
    }

    /// Sends bytes and reads all of the answer.
    fn raw(&self, request: &[u8]) -> String {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        // The server may have refused and closed before it has read everything.
        let _ = stream.write_all(request);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }
}

#[test]
fn every_resource_answers_with_what_was_published() {
    let running = running(3);
    let client = running.client();
    let status = client.status().unwrap();
    assert_eq!(
        (status.periods, status.tenants.len(), status.pid),
        (3, 2, std::process::id())
    );
    assert_eq!(client.matrix(5).unwrap().total.length_ns, 3 * 80_000_000);
    let explain = client.explain("img").unwrap();
    assert_eq!(
        (explain.seq, explain.threads.len(), explain.decisions.len()),
        (2, 2, 6)
    );
    let decisions = client.decisions(4).unwrap();
    assert_eq!(
        (decisions.decisions.len(), decisions.next, decisions.lost),
        (5, 9, 0)
    );
    let last = client.snapshot().unwrap();
    assert_eq!(*last.snapshot, snapshot(2, &[("img", 2), ("web", 1)]));
    assert_eq!(last.plan.seq, 2);
    assert!(
        client
            .text("/metrics")
            .unwrap()
            .contains("quell_periods_total 3\n")
    );
}

#[test]
fn wrong_requests_get_json_that_says_what_is_right() {
    let running = running(1);
    let client = running.client();
    for (path, status, says) in [
        ("/", 404, "/v1/status"),
        ("/v2/status", 404, "/v1/matrix"),
        ("/v1/explain/webb", 404, "`web`"),
        ("/v1/explain/%FF%FE", 400, "UTF-8"),
        ("/v1/explain/a%2F..%2Fb", 404, "no tenant `a/../b`"),
        ("/v1/matrix?window_s=0", 400, "1 to 60"),
        ("/v1/matrix?window_s=61", 400, "1 to 60"),
        ("/v1/matrix?window_s=x", 400, "invalid digit"),
        ("/v1/matrix?windows=3", 400, "window_s"),
        ("/v1/decisions?limit=0", 400, "1 to 10000"),
        ("/v1/decisions?since=-1", 400, "since"),
        ("/v1/snapshot?x=1", 400, "unknown field `x`"),
    ] {
        match client.text(path) {
            Err(ClientError::Refused { status: got, error }) => {
                assert_eq!(got, status, "{path}: {error}");
                assert!(error.contains(says), "{path}: {error}");
            }
            other => panic!("{path}: {other:?}"),
        }
    }
    let answer = running.raw(b"POST /v1/status HTTP/1.1\r\nhost: q\r\ncontent-length: 0\r\n\r\n");
    assert!(
        answer.starts_with("HTTP/1.1 405") && answer.contains("only GET"),
        "{answer}"
    );
}

#[test]
fn before_the_first_period_the_agent_says_so() {
    let running = running(0);
    let client = running.client();
    assert_eq!(client.status().unwrap().tenants, []);
    for error in [
        client.snapshot().unwrap_err(),
        client.explain("web").unwrap_err(),
    ] {
        let ClientError::Refused { error, .. } = error else {
            panic!("{error}")
        };
        assert!(error.contains("yet"), "{error}");
    }
}

#[test]
fn only_the_agents_user_may_connect() {
    let running = running(0);
    let mode = fs::metadata(running.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
}

#[test]
fn the_socket_goes_with_the_server_and_a_dead_one_is_replaced() {
    let mut running = running(0);
    let socket = running.socket();
    drop(running.server.take());
    assert!(!socket.exists());
    assert_eq!(
        fs::read_dir(running.dir.path()).unwrap().count(),
        0,
        "nothing is left behind"
    );

    drop(UnixListener::bind(&socket).unwrap());
    assert!(socket.exists());
    running.server = Some(Server::start(&socket, running.state.clone()).unwrap());
    running.client().status().unwrap();

    let error = Server::start(&socket, running.state.clone()).unwrap_err();
    assert!(
        error.to_string().contains("another agent listens"),
        "{error}"
    );
    running.client().status().unwrap();
}

#[test]
fn what_is_no_socket_is_never_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("precious");
    fs::write(&file, "data").unwrap();
    let state = Arc::new(SharedState::new("quell.toml".into(), facts()));
    let error = Server::start(&file, state.clone()).unwrap_err();
    assert!(error.to_string().contains("is no socket"), "{error}");
    assert_eq!(fs::read(&file).unwrap(), b"data");
    // A socket cannot be made where its folder cannot be made: in a file.
    assert!(Server::start(&file.join("agent.sock"), state).is_err());
}

#[test]
fn clients_that_say_nothing_neither_delay_others_nor_the_loop() {
    let running = running(1);
    let silent: Vec<_> = (0..MAX_CONNECTIONS / 2)
        .map(|_| UnixStream::connect(running.socket()).unwrap())
        .collect();
    let start = Instant::now();
    running.client().status().unwrap();
    running.state.publish(
        snapshot(1, &[("img", 1)]),
        Default::default(),
        None,
        PeriodCost::default(),
    );
    assert!(start.elapsed() < HEAD_TIME, "{:?}", start.elapsed());
    drop(silent);
}

#[test]
fn a_head_that_is_too_long_is_refused() {
    let running = running(0);
    let mut request = b"GET /v1/status HTTP/1.1\r\nhost: q\r\nx: ".to_vec();
    request.resize(request.len() + 2 * MAX_HEAD, b'a');
    request.extend(b"\r\n\r\n");
    let answer = running.raw(&request);
    assert!(
        answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
        "{answer}"
    );
    running.client().status().unwrap();
}

/// Requests of all degrees of sense: bytes, requests with odd paths, and odd parameters.
fn any_request() -> impl Strategy<Value = Vec<u8>> {
    let path = prop_oneof![
        "/[ -~]{0,40}",
        "/v1/(status|matrix|explain|decisions|snapshot)[/?&=%a-z0-9_.-]{0,30}",
        "/v1/decisions\\?since=[0-9]{0,25}&limit=[0-9-]{0,25}",
        "/v1/matrix\\?window_s=[0-9.e-]{0,12}",
        "/v1/explain/(%[0-9a-fA-F]{0,2}){0,10}",
    ];
    let request = ("(GET|POST|PUT|HEAD|[A-Z]{1,9})", path, "[ -~\r\n]{0,60}").prop_map(
        |(method, path, rest)| {
            format!("{method} {path} HTTP/1.1\r\nhost: q\r\n{rest}\r\n\r\n").into_bytes()
        },
    );
    prop_oneof![request, proptest::collection::vec(any::<u8>(), 0..200)]
}

#[test]
fn no_request_crashes_the_server_and_every_answer_is_http() {
    let running = running(2);
    let config = ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(request in any_request())| {
        let answer = running.raw(&request);
        // An empty answer is a connection closed on what was no request at all.
        if let Some((head, body)) = answer.split_once("\r\n\r\n") {
            let status = head.split(' ').nth(1).unwrap_or_default();
            let sound = ["200", "400", "404", "405", "414", "431", "501", "505"].contains(&status);
            prop_assert!(head.starts_with("HTTP/1.") && sound, "{answer}");
            if !body.is_empty() && status != "200" {
                let error: ErrorAnswer = serde_json::from_str(body).expect(&answer);
                prop_assert!(!error.error.is_empty());
            }
        } else {
            prop_assert!(answer.is_empty(), "{answer}");
        }
    });
    running.client().status().unwrap();
}
