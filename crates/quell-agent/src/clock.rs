//! When the loop wakes: at absolute deadlines, or for a signal.
//!
//! Problem: a control period must begin at `start + n * period` however long the work takes, and a
//! period that is not over when the next should begin must not make periods pile up.
//! Approach: one periodic timerfd, whose read returns how many deadlines passed since the last
//! read (more than one: the rest are missed, counted and never made up for), and one signalfd, so
//! that signals are events of the loop and need no handlers.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::unistd::read;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// Why the loop woke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// A deadline passed, and `missed` more before it.
    Period {
        /// Deadlines for which there was no period.
        missed: u64,
    },
    /// SIGHUP arrived: the configuration is to be read anew.
    Reload,
    /// The signal that ends the agent.
    Stop(&'static str),
}

/// Wakes the loop.
pub trait Clock {
    /// Waits for the next event.
    ///
    /// # Errors
    /// When the system's timer or signals cannot be read: the loop must end.
    fn wait(&mut self) -> io::Result<Wake>;
    /// Deadlines are `period` apart from now on.
    ///
    /// # Errors
    /// When the system's timer cannot be set.
    fn set_period(&mut self, period: Duration) -> io::Result<()>;
}

/// The signals the loop takes as events.
const SIGNALS: [Signal; 4] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGHUP,
];

/// The system's clock and signals.
#[derive(Debug)]
pub struct SystemClock {
    timer: TimerFd,
    signals: SignalFd,
    mask_before: SigSet,
}

impl SystemClock {
    /// Blocks SIGTERM, SIGINT, SIGQUIT and SIGHUP for this thread and those it starts from now
    /// on, so that only [`Clock::wait`] sees them; create it before any other thread. No deadline
    /// passes before the first [`Clock::set_period`].
    ///
    /// # Errors
    /// When the system has no more file descriptors.
    pub fn new() -> io::Result<SystemClock> {
        let mask_before = SigSet::thread_get_mask()?;
        let signals: SigSet = SIGNALS.into_iter().collect();
        signals.thread_block()?;
        Ok(SystemClock {
            timer: TimerFd::new(
                ClockId::CLOCK_MONOTONIC,
                TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK,
            )?,
            signals: SignalFd::with_flags(
                &signals,
                SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK,
            )?,
            mask_before,
        })
    }
}

impl Drop for SystemClock {
    fn drop(&mut self) {
        // Only fails for an invalid mask, which this is not.
        let _ = self.mask_before.thread_set_mask();
    }
}

impl Clock for SystemClock {
    fn wait(&mut self) -> io::Result<Wake> {
        loop {
            // Signals first: a loop that is always late must still be stoppable.
            if let Some(info) = self.signals.read_signal()? {
                return Ok(match Signal::try_from(info.ssi_signo as i32) {
                    Ok(Signal::SIGHUP) => Wake::Reload,
                    Ok(signal) => Wake::Stop(signal.as_str()),
                    Err(_) => continue,
                });
            }
            let mut passed = [0; 8];
            match read(&self.timer, &mut passed) {
                Ok(8) => {
                    let missed = u64::from_ne_bytes(passed).saturating_sub(1);
                    return Ok(Wake::Period { missed });
                }
                Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
            let mut events = [
                PollFd::new(self.timer.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut events, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn set_period(&mut self, period: Duration) -> io::Result<()> {
        let period = TimeSpec::from_duration(period);
        self.timer.set(
            Expiration::IntervalDelayed(period, period),
            TimerSetTimeFlags::empty(),
        )?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn deadlines_are_absolute_and_missed_ones_are_counted_once() {
        let mut clock = SystemClock::new().unwrap();
        let start = Instant::now();
        clock.set_period(Duration::from_millis(20)).unwrap();
        let mut deadlines = 0;
        for work_ms in [0, 0, 110, 0, 50] {
            let Wake::Period { missed } = clock.wait().unwrap() else {
                panic!("nobody sent a signal")
            };
            deadlines += 1 + missed;
            // Whatever was missed, as many deadlines were counted as time has passed.
            let passed = start.elapsed().as_millis() as u64 / 20;
            assert!(deadlines <= passed, "{deadlines} of {passed}");
            assert!(
                deadlines + 1 + 500 / 20 >= passed,
                "{deadlines} of {passed}"
            );
            std::thread::sleep(Duration::from_millis(work_ms));
        }
        assert!(
            deadlines >= 9,
            "110 ms and 50 ms of work miss deadlines 20 ms apart: {deadlines}"
        );
    }

    #[test]
    fn signals_are_events() {
        let mut clock = SystemClock::new().unwrap();
        // To this thread alone, which has them blocked.
        nix::sys::signal::raise(Signal::SIGHUP).unwrap();
        assert_eq!(clock.wait().unwrap(), Wake::Reload);
        nix::sys::signal::raise(Signal::SIGTERM).unwrap();
        assert_eq!(clock.wait().unwrap(), Wake::Stop("SIGTERM"));
    }
}
