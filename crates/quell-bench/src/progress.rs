//! Tells a waiting person how far a long measurement is, on stderr: a bar on a terminal, plain lines
//! elsewhere. Reporting costs a redraw five times a second at most, so that it does not disturb.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// How far something is.
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
    /// Says nothing.
    pub fn silent() -> Progress {
        Progress {
            kind: Kind::Silent,
            total: Duration::ZERO,
        }
    }

    /// On stderr, for work that takes `total` altogether.
    pub fn stderr(total: Duration) -> Progress {
        if !std::io::stderr().is_terminal() {
            return Progress {
                kind: Kind::Lines,
                total,
            };
        }
        let target = ProgressDrawTarget::stderr_with_hz(5);
        let bar = ProgressBar::with_draw_target(Some(total.as_millis() as u64), target);
        if let Ok(style) = ProgressStyle::with_template("{bar:28} {percent:>3} %  {msg}") {
            bar.set_style(style.progress_chars("━╸─"));
        }
        Progress {
            kind: Kind::Bar(bar),
            total,
        }
    }

    /// A new step begins, `done` into the whole.
    pub fn step(&self, done: Duration, text: &str) {
        let left = self.total.saturating_sub(done).as_secs();
        match &self.kind {
            Kind::Silent => {}
            Kind::Lines => eprintln!("{text} (about {left} s left)"),
            Kind::Bar(bar) => self.show(bar, done, text),
        }
    }

    /// The step goes on; only a bar shows it.
    pub fn tick(&self, done: Duration, text: &str) {
        if let Kind::Bar(bar) = &self.kind {
            self.show(bar, done, text);
        }
    }

    /// A line that must not be overlooked.
    pub fn say(&self, text: &str) {
        match &self.kind {
            Kind::Silent => {}
            Kind::Lines => eprintln!("{text}"),
            Kind::Bar(bar) => bar.suspend(|| eprintln!("{text}")),
        }
    }

    /// All done: removes the bar.
    pub fn finish(&self) {
        if let Kind::Bar(bar) = &self.kind {
            bar.finish_and_clear();
        }
    }

    fn show(&self, bar: &ProgressBar, done: Duration, text: &str) {
        bar.set_position(done.as_millis() as u64);
        let left = self.total.saturating_sub(done).as_secs();
        bar.set_message(format!("{text}, about {left} s left"));
    }
}
