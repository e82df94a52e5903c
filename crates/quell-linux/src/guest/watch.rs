//! A guest that is asked on a thread of its own, so that nobody waits for it.

use super::stat::GuestStat;
use super::{Guest, GuestError, Online, Pins};
use quell_model::CpuSet;
use std::cell::Cell;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// What can wait to be asked: a look and a change.
const WAITING_MOST: usize = 2;

/// What a guest is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// [`Guest::stat`].
    Stat,
    /// [`Guest::set_online`].
    SetOnline(Online),
    /// [`Guest::pins`].
    Pins,
    /// [`Guest::pin`].
    Pin {
        /// What parts are to have before.
        expected: Vec<Pins>,
        /// What they are to have.
        wanted: Pins,
    },
}

/// What it said.
#[derive(Debug)]
pub enum Said {
    /// To [`Question::Stat`].
    Stat(Result<GuestStat, GuestError>),
    /// To [`Question::SetOnline`]: which it has online.
    Online(Result<CpuSet, GuestError>),
    /// To [`Question::Pins`]: where its parts are pinned.
    Pins(Result<Pins, GuestError>),
    /// To [`Question::Pin`]: where they are then.
    Pinned(Result<Pins, GuestError>),
}

/// A guest and its thread, which ends once this is dropped and the question that it is at is answered, or is not in time.
#[derive(Debug)]
pub struct Watched {
    questions: SyncSender<Question>,
    answers: Receiver<(Instant, Said)>,
    /// How many questions it has not answered, as far as its answers were taken.
    asked: Cell<usize>,
    thread: JoinHandle<()>,
}

impl Watched {
    /// Starts the thread.
    ///
    /// # Errors
    /// There can be no more threads.
    pub fn new(mut guest: Box<dyn Guest>) -> io::Result<Watched> {
        let (questions, asked) = sync_channel(WAITING_MOST);
        let (say, answers) = channel();
        let thread = thread::Builder::new()
            .name("quell-guest".into())
            .spawn(move || {
                for question in asked {
                    let said = match question {
                        Question::Stat => Said::Stat(guest.stat()),
                        Question::SetOnline(wanted) => Said::Online(guest.set_online(&wanted)),
                        Question::Pins => Said::Pins(guest.pins()),
                        Question::Pin { expected, wanted } => {
                            Said::Pinned(guest.pin(&expected, &wanted))
                        }
                    };
                    if say.send((Instant::now(), said)).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Watched {
            questions,
            answers,
            asked: Cell::new(0),
            thread,
        })
    }

    /// Has it asked. False: it is still at earlier questions, and this one is not asked.
    pub fn ask(&self, question: Question) -> bool {
        let asked = self.questions.try_send(question).is_ok();
        self.asked.set(self.asked.get() + usize::from(asked));
        asked
    }

    /// What it said since this was called last, and when.
    pub fn answers(&self) -> impl Iterator<Item = (Instant, Said)> + '_ {
        let count = |_: &(Instant, Said)| self.asked.set(self.asked.get().saturating_sub(1));
        self.answers.try_iter().inspect(count)
    }

    /// Asks no more: the thread ends as when this is dropped, which can be seen.
    pub fn leave(self) -> JoinHandle<()> {
        self.thread
    }

    /// Whether it has answered all that it was asked, and that was taken.
    pub fn is_idle(&self) -> bool {
        self.asked.get() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    /// Answers once it is let.
    struct Slow {
        let_go: Receiver<()>,
    }

    impl Guest for Slow {
        fn stat(&mut self) -> Result<GuestStat, GuestError> {
            let _ = self.let_go.recv();
            Ok(GuestStat {
                switches: 1,
                busy_ticks: 2,
                online: CpuSet::first(3),
            })
        }

        fn set_online(&mut self, wanted: &Online) -> Result<CpuSet, GuestError> {
            match wanted {
                Online::First(count) => Ok(CpuSet::first(*count)),
                Online::Exactly(cpus) => Ok(cpus.clone()),
            }
        }
    }

    #[test]
    fn nobody_waits_for_a_guest_that_hangs() {
        let (let_go, waits) = mpsc::channel();
        let watched = Watched::new(Box::new(Slow { let_go: waits })).unwrap();
        // One that it is at, and those that can wait; however often it is asked.
        let asked = (0..1000).filter(|_| watched.ask(Question::Stat)).count();
        assert!((2..=3).contains(&asked), "{asked}");
        assert_eq!(watched.answers().count(), 0);
        for _ in 0..asked {
            let_go.send(()).unwrap();
        }
        for _ in 0..asked {
            let (_, said) = watched
                .answers
                .recv_timeout(Duration::from_secs(60))
                .unwrap();
            assert!(matches!(said, Said::Stat(Ok(_))), "{said:?}");
        }
        assert!(watched.ask(Question::SetOnline(Online::First(4))));
        let (_, said) = watched
            .answers
            .recv_timeout(Duration::from_secs(60))
            .unwrap();
        assert!(
            matches!(&said, Said::Online(Ok(cpus)) if cpus.len() == 4),
            "{said:?}"
        );
    }
}
