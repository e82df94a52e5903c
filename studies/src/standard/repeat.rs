//! Programs that are run again and again, or fed for ever.

use super::victim::Window;
use super::{now_ns, sleep_until};
use anyhow::{Context, bail, ensure};
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;

/// Runs a program again and again, by `loops` loops, until the window is over; gives rounds per second. A
/// round may take a good part of the window, so the time that counts is from the beginning of the first round
/// to the end of the last. `None` if no round came to its end.
///
/// # Errors
/// Where the program cannot be started or ends without success.
pub(super) fn repeat(
    command: &[String],
    loops: u32,
    window: Window,
) -> anyhow::Result<Option<f64>> {
    let begin = now_ns();
    let (rounds, last) = (AtomicU64::new(0), AtomicU64::new(begin));
    let (say, failed) = channel::<anyhow::Error>();
    // The loops end with this process: each waits for its program, which may take long.
    let (rounds, last) = (&*Box::leak(Box::new(rounds)), &*Box::leak(Box::new(last)));
    for _ in 0..loops {
        let (command, say) = (command.to_vec(), say.clone());
        thread::spawn(move || {
            while now_ns() < window.until_ns {
                if let Err(error) = round(&command) {
                    // After the window no thread receives the error any more.
                    let _ = say.send(error);
                    return;
                }
                let now = now_ns();
                if now < window.until_ns {
                    rounds.fetch_add(1, Ordering::Relaxed);
                    last.fetch_max(now, Ordering::Relaxed);
                }
            }
        });
    }
    sleep_until(window.until_ns);
    if let Ok(error) = failed.try_recv() {
        return Err(error);
    }
    let rounds = rounds.load(Ordering::Relaxed);
    let took = last.load(Ordering::Relaxed).saturating_sub(begin);
    Ok((rounds > 0).then(|| rounds as f64 / (took.max(1) as f64 / 1e9)))
}

/// Runs the program once.
fn round(command: &[String]) -> anyhow::Result<()> {
    let mut child = start(command, Stdio::null())?;
    let status = child.wait()?;
    ensure!(
        status.success(),
        "`{}` ended with {status}",
        command.join(" ")
    );
    Ok(())
}

/// Feeds copies of a program, as [`feed`] does; gives the bytes per second that they read together.
///
/// # Errors
/// Where a copy cannot be started or fails.
pub(super) fn feed_all(command: &[String], copies: u32, window: Window) -> anyhow::Result<f64> {
    thread::scope(|scope| {
        let feeders: Vec<_> = (0..copies)
            .map(|_| scope.spawn(|| feed(command, window)))
            .collect();
        let taken = feeders
            .into_iter()
            .map(|it| it.join().ok().context("a feeder panicked")?);
        taken.sum()
    })
}

/// Feeds a program with text until the window is over; gives the bytes per second that it read in the window.
fn feed(command: &[String], window: Window) -> anyhow::Result<f64> {
    let mut child = start(command, Stdio::piped())?;
    let mut pipe = child.stdin.take().context("no pipe")?;
    let block = quell_bench::workload::prose(1, 1 << 20);
    let mut took = 0u64;
    'feeding: loop {
        for part in block.chunks(16 << 10) {
            pipe.write_all(part)
                .with_context(|| format!("`{}` takes no more", command.join(" ")))?;
            let now = now_ns();
            if now >= window.until_ns {
                break 'feeding;
            }
            if now >= window.from_ns {
                took += part.len() as u64;
            }
        }
    }
    child.kill()?;
    child.wait()?;
    Ok(took as f64 / window.seconds())
}

/// Starts a program without its output. It ends with this process's group.
///
/// # Errors
/// Where the command is empty, or the program cannot be started.
pub(super) fn start(words: &[String], input: Stdio) -> anyhow::Result<Child> {
    let [program, arguments @ ..] = words else {
        bail!("no command");
    };
    let mut command = Command::new(program);
    command.args(arguments).stdin(input).stdout(Stdio::null());
    let child = command.spawn();
    child.with_context(|| format!("cannot start {program}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn soon(ms: u64) -> Window {
        Window::after(Duration::ZERO, Duration::from_millis(ms))
    }

    fn command(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| word.to_string()).collect()
    }

    #[test]
    fn rounds_are_counted_and_failures_told() {
        let per_s = repeat(&command(&["sleep", "0.05"]), 2, soon(400))
            .unwrap()
            .unwrap();
        assert!((4.0..=40.0).contains(&per_s), "{per_s}");
        assert_eq!(
            repeat(&command(&["sleep", "0.5"]), 1, soon(100)).unwrap(),
            None
        );
        let error = repeat(&command(&["false"]), 1, soon(300))
            .unwrap_err()
            .to_string();
        assert!(error.contains("`false` ended"), "{error}");
    }

    #[test]
    fn what_a_program_takes_is_counted() {
        let per_s = feed_all(&command(&["cat"]), 2, soon(200)).unwrap();
        assert!(per_s > 1e5, "{per_s}");
    }
}
