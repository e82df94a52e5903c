//! What the service manager is told (sd_notify): ready, status, alive, stopping.
//!
//! Without a service manager (no `NOTIFY_SOCKET`) all of it does nothing.

use sd_notify::NotifyState;
use std::time::{Duration, Instant};
use tracing::debug;

/// The least time between two status texts.
const STATUS_EVERY: Duration = Duration::from_secs(5);

/// Speaks to the service manager.
#[derive(Debug)]
pub struct Notifier {
    watchdog_every: Option<Duration>,
    last_watchdog: Option<Instant>,
    last_status: Option<Instant>,
    ready: bool,
}

impl Notifier {
    /// Finds out whether a watchdog wants to be fed.
    pub fn new() -> Notifier {
        let mut usec = 0;
        let watchdog = sd_notify::watchdog_enabled(false, &mut usec);
        Notifier {
            // A quarter of the limit, so that a late period or two do not end the agent.
            watchdog_every: watchdog.then(|| Duration::from_micros(usec / 4)),
            last_watchdog: None,
            last_status: None,
            ready: false,
        }
    }

    /// A period was completed: feeds the watchdog, and says ready after the first.
    /// `status` is only asked for when it is time for one.
    pub fn period_completed(&mut self, status: impl FnOnce() -> String) {
        if !self.ready {
            self.ready = true;
            send(&[NotifyState::Ready]);
        }
        self.alive();
        if due(self.last_status, STATUS_EVERY) {
            self.last_status = Some(Instant::now());
            send(&[NotifyState::Status(&status())]);
        }
    }

    /// The loop came round, whether or not the period was completed: feeds the watchdog.
    pub fn alive(&mut self) {
        let every = self.watchdog_every;
        if every.is_some_and(|every| due(self.last_watchdog, every)) {
            self.last_watchdog = Some(Instant::now());
            send(&[NotifyState::Watchdog]);
        }
    }

    /// The agent is about to put everything back and end.
    pub fn stopping(&self) {
        send(&[NotifyState::Stopping]);
    }
}

fn due(last: Option<Instant>, every: Duration) -> bool {
    last.is_none_or(|last| last.elapsed() >= every)
}

fn send(states: &[NotifyState]) {
    // A service manager that does not listen is no reason to stop working.
    if let Err(e) = sd_notify::notify(false, states) {
        debug!("the service manager does not listen: {e}");
    }
}
