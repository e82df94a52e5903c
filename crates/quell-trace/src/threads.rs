//! The threads that exist at a position of a trace: writer and reader follow them alike, so that the writer
//! need not write what the reader knows.

use crate::event::{Event, Kind};
use quell_model::{Pid, Tid};
use std::collections::HashMap;
use std::sync::Arc;

/// The threads that have not ended, as far as the trace told.
#[derive(Debug, Default)]
pub struct Threads(HashMap<Tid, Known>);

#[derive(Debug)]
pub struct Known {
    /// The process of the thread, where the trace told it.
    pub pid: Option<Pid>,
    pub name: Arc<str>,
}

impl Threads {
    pub fn get(&self, tid: Tid) -> Option<&Known> {
        self.0.get(&tid)
    }

    /// The process that a new thread joins if `creator` creates it in its own process.
    pub fn process_of(&self, creator: Tid) -> Option<Pid> {
        self.0.get(&creator).and_then(|known| known.pid)
    }

    /// Takes the next event.
    pub fn follow(&mut self, event: &Event) {
        match &event.kind {
            Kind::New { thread, .. } | Kind::Thread(thread) => {
                let (pid, name) = (Some(thread.pid), thread.name.clone());
                self.0.insert(thread.tid, Known { pid, name });
            }
            Kind::Rename { tid, name } => match self.0.get_mut(tid) {
                Some(known) => known.name = name.clone(),
                None => {
                    let (pid, name) = (None, name.clone());
                    self.0.insert(*tid, Known { pid, name });
                }
            },
            // The thread is forgotten, so that a long trace of short processes needs no more memory than a
            // short one.
            Kind::Switch {
                prev, prev_state, ..
            } if prev_state.has_ended() => {
                self.0.remove(prev);
            }
            Kind::Switch { .. } | Kind::Wakeup { .. } | Kind::Lost => {}
        }
    }
}
