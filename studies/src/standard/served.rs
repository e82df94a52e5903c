//! A server, and a client that measures it, which is run again and again.

use super::figures::{VictimFigures, median};
use super::own::OwnDone;
use super::victim::Window;
use super::{now_ns, parse, repeat, wait_answer};
use anyhow::{Context, bail, ensure};
use nix::sys::signal::Signal;
use quell_sys::process::end_with_parent;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// Starts the server, calls `ready` once it answers, and runs the client again and again until the window is
/// over.
///
/// # Errors
/// Where the server or the client cannot be started, the server ends or does not answer in time, or the
/// client reports no latencies.
pub(super) fn run(
    server: &[String],
    client: &[String],
    per_round: f64,
    ready: impl FnOnce() -> anyhow::Result<Window>,
) -> anyhow::Result<OwnDone> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        .local_addr()?
        .port();
    let with_port = |words: &[String]| -> Vec<String> {
        words
            .iter()
            .map(|word| word.replace("PORT", &port.to_string()))
            .collect()
    };
    let mut server = repeat::start(&with_port(server), Stdio::null())?;
    wait_answer(
        || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok(),
        || match server.try_wait()? {
            Some(status) => bail!("the server ended with {status}"),
            None => Ok(()),
        },
    )?;
    let window = ready()?;
    let begin = now_ns();
    let client = with_port(client);
    let (say, rounds) = channel::<anyhow::Result<(u64, VictimFigures)>>();
    // The thread ends with this process: its client may take long.
    thread::spawn(move || while say.send(round(&client, per_round)).is_ok() {});
    let mut all = Vec::new();
    let mut last = begin;
    loop {
        let left = window.until_ns.saturating_sub(now_ns());
        match rounds.recv_timeout(Duration::from_nanos(left)) {
            Ok(round) => {
                let (ended, figures) = round?;
                all.push(figures);
                last = ended;
            }
            Err(_) => break,
        }
        if left == 0 {
            break;
        }
    }
    server.kill()?;
    server.wait()?;
    let took_s = last.saturating_sub(begin) as f64 / 1e9;
    let requests = all.len() as f64 * per_round;
    let worst = all
        .iter()
        .filter_map(|it| it.response_worst_us)
        .max_by(f64::total_cmp);
    let middle = VictimFigures::median(all.iter());
    let mean =
        all.iter().filter_map(|it| it.response_mean_us).sum::<f64>() / all.len().max(1) as f64;
    Ok(OwnDone {
        per_s: (took_s > 0.0).then(|| requests / took_s),
        figures: Some(VictimFigures {
            // The number served in the window's length, to be comparable with other victims.
            served: if took_s > 0.0 {
                requests / took_s * window.seconds()
            } else {
                0.0
            },
            response_mean_us: (!all.is_empty()).then_some(mean),
            response_worst_us: worst,
            ..middle
        }),
    })
}

/// A round of the client: when it ended, and the figures that it reports.
fn round(client: &[String], per_round: f64) -> anyhow::Result<(u64, VictimFigures)> {
    let [program, arguments @ ..] = client else {
        bail!("no client");
    };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    // Without its server the client would try for ever, so it ends with the thread that starts it, that is
    // with this process.
    end_with_parent(&mut command, Signal::SIGKILL);
    let output = command.output();
    let output = output.with_context(|| format!("cannot start {program}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let rows = parse::redis_benchmark(&text);
    ensure!(
        !rows.is_empty(),
        "`{}` says nothing of latencies: {text}",
        client.join(" ")
    );
    let worst = rows.iter().map(|it| it[2]).max_by(f64::total_cmp);
    let p99 = median(rows.iter().map(|it| it[1]));
    let mean = rows.iter().map(|it| it[0]).sum::<f64>() / rows.len() as f64;
    let figures = VictimFigures {
        served: per_round,
        response_mean_us: Some(mean),
        response_p99_us: p99,
        response_worst_us: worst,
        ..VictimFigures::default()
    };
    Ok((now_ns(), figures))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_bench::workload::find_program;

    #[test]
    fn redis_is_asked_until_the_end() {
        for (name, package) in [
            ("redis-server", "redis-server"),
            ("redis-benchmark", "redis-tools"),
        ] {
            if let Err(error) = find_program(name, package) {
                quell_testkit::skip!(Apps, "{error:#}");
                return;
            }
        }
        let words =
            |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_string).collect() };
        let server = words("redis-server --port PORT --appendonly no");
        let client = words("redis-benchmark -p PORT -n 50 -c 2 -t get --csv");
        let window = || Ok(Window::after(Duration::ZERO, Duration::from_millis(1500)));
        let done = run(&server, &client, 50.0, window).unwrap();
        assert!(done.per_s.unwrap() > 50.0, "{done:?}");
        let figures = done.figures.unwrap();
        assert!(
            figures.response_worst_us >= figures.response_mean_us,
            "{done:?}"
        );
    }
}
