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

    /// On stderr, for work that takes `total` altogether; zero where nobody can know.
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

    /// A new step begins, `done` into the whole.
    pub fn step(&self, done: Duration, text: &str) {
        match &self.kind {
            Kind::Silent => {}
            Kind::Lines if self.total.is_zero() => eprintln!("{text}"),
            Kind::Lines => eprintln!("{text} (about {} s left)", self.left(done)),
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
        if self.total.is_zero() {
            // A spinner turns by this.
            bar.tick();
            bar.set_message(text.to_string());
        } else {
            bar.set_message(format!("{text}, about {} s left", self.left(done)));
        }
    }

    /// In seconds.
    fn left(&self, done: Duration) -> u64 {
        self.total.saturating_sub(done).as_secs()
    }
}
