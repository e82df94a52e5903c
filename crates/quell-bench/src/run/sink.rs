//! What takes the scheduling events of a run, real or simulated.

use quell_trace::{Analyser, Event};

/// Takes events in the order of their times.
pub(crate) trait Sink: 'static {
    /// Takes one event.
    fn add(&mut self, event: &Event);
}

impl Sink for Analyser {
    fn add(&mut self, event: &Event) {
        Analyser::add(self, event);
    }
}

impl<S: Sink> Sink for Option<S> {
    fn add(&mut self, event: &Event) {
        if let Some(sink) = self {
            sink.add(event);
        }
    }
}

impl<A: Sink, B: Sink> Sink for (A, B) {
    fn add(&mut self, event: &Event) {
        self.0.add(event);
        self.1.add(event);
    }
}
