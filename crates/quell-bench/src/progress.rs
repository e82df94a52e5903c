//! Shows on stderr how far a long measurement is: a bar on a terminal, plain lines elsewhere. The bar is
//! redrawn at most five times a second, so that it does not disturb the measurement.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// The progress of one measurement.
pub struct Progress {
    kind: Kind,
    total: Duration,
}

enum Kind {
    Silent,
    Lines,
    Bar(ProgressBar),
}

impl Progress {
    /// Shows nothing.
    pub fn silent() -> Progress {
        Progress {
            kind: Kind::Silent,
            total: Duration::ZERO,
        }
    }

    /// Shows on stderr the progress of work that takes `total` altogether; zero where that is not known.
    pub fn stderr(total: Duration) -> Progress {
        if !std::io::stderr().is_terminal() {
            return Progress {
                kind: Kind::Lines,
                total,
            };
        }
        let target = ProgressDrawTarget::stderr_with_hz(5);
        let bar = ProgressBar::with_draw_target(Some(total.as_millis() as u64), target);
        let template = match total.is_zero() {
            true => "{spinner}  {msg}",
            false => "{bar:28} {percent:>3} %  {msg}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("━╸─"));
        }
        Progress {
            kind: Kind::Bar(bar),
            total,
        }
    }

    /// Says that a new step begins, at `done` of the total.
    pub fn step(&self, done: Duration, text: &str) {
        match &self.kind {
            Kind::Silent => {}
            Kind::Lines if self.total.is_zero() => eprintln!("{text}"),
            Kind::Lines => eprintln!("{text} (about {} s left)", self.left(done)),
            Kind::Bar(bar) => self.show(bar, done, text),
        }
    }

    /// Says that the step goes on, at `done` of the total; only a bar shows it.
    pub fn tick(&self, done: Duration, text: &str) {
        if let Kind::Bar(bar) = &self.kind {
            self.show(bar, done, text);
        }
    }

    /// Writes a line that must not be overlooked.
    pub fn say(&self, text: &str) {
        match &self.kind {
            Kind::Silent => {}
            Kind::Lines => eprintln!("{text}"),
            Kind::Bar(bar) => bar.suspend(|| eprintln!("{text}")),
        }
    }

    /// Removes the bar: all is done.
    pub fn finish(&self) {
        if let Kind::Bar(bar) = &self.kind {
            bar.finish_and_clear();
        }
    }

    fn show(&self, bar: &ProgressBar, done: Duration, text: &str) {
        bar.set_position(done.as_millis() as u64);
        if self.total.is_zero() {
            // A tick turns the spinner that stands for a bar here.
            bar.tick();
            bar.set_message(text.to_string());
        } else {
            bar.set_message(format!("{text}, about {} s left", self.left(done)));
        }
    }

    /// The time left, in s.
    fn left(&self, done: Duration) -> u64 {
        self.total.saturating_sub(done).as_secs()
    }
}
