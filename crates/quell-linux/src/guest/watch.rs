//! A guest that is asked on a thread of its own, so that its caller does not wait for it.

use super::stat::GuestStat;
use super::{Guest, GuestError, Online, Pins};
use quell_model::CpuSet;
use std::cell::Cell;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// The number of questions that can wait: a reading and a change.
const WAITING_MAX: usize = 2;

/// A question to a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Question {
    /// Asks for [`Guest::stat`].
    Stat,
    /// Asks for [`Guest::set_online`].
    SetOnline(Online),
    /// Asks for [`Guest::pins`].
    Pins,
    /// Asks for [`Guest::pin`].
    Pin {
        /// The pins that parts must have before.
        expected: Vec<Pins>,
        /// The pins that parts are to have.
        wanted: Pins,
    },
}

/// The answer of a guest.
#[derive(Debug)]
pub enum Answer {
    /// The answer to [`Question::Stat`].
    Stat(Result<GuestStat, GuestError>),
    /// The answer to [`Question::SetOnline`]: the virtual CPUs that are online.
    Online(Result<CpuSet, GuestError>),
    /// The answer to [`Question::Pins`]: the pins of its parts.
    Pins(Result<Pins, GuestError>),
    /// The answer to [`Question::Pin`]: the pins of its parts afterwards.
    Pinned(Result<Pins, GuestError>),
}

/// A guest and its thread, which ends once this is dropped and the present question is answered or has timed
/// out.
#[derive(Debug)]
pub struct Watched {
    questions: SyncSender<Question>,
    answers: Receiver<(Instant, Answer)>,
    /// The number of questions that the guest has not answered, as far as its answers were taken.
    asked: Cell<usize>,
    thread: JoinHandle<()>,
}

impl Watched {
    /// Starts the thread.
    ///
    /// # Errors
    /// The call fails if the system cannot start another thread.
    pub fn new(mut guest: Box<dyn Guest>) -> io::Result<Watched> {
        let (questions, asked) = sync_channel(WAITING_MAX);
        let (say, answers) = channel();
        let thread = thread::Builder::new()
            .name("quell-guest".into())
            .spawn(move || {
                for question in asked {
                    let said = match question {
                        Question::Stat => Answer::Stat(guest.stat()),
                        Question::SetOnline(wanted) => Answer::Online(guest.set_online(&wanted)),
                        Question::Pins => Answer::Pins(guest.pins()),
                        Question::Pin { expected, wanted } => {
                            Answer::Pinned(guest.pin(&expected, &wanted))
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

    /// Puts a question to the guest. Returns false if earlier questions are still waiting, and this question
    /// is not asked.
    pub fn ask(&self, question: Question) -> bool {
        let asked = self.questions.try_send(question).is_ok();
        self.asked.set(self.asked.get() + usize::from(asked));
        asked
    }

    /// The answers since the last call, and their times.
    pub fn answers(&self) -> impl Iterator<Item = (Instant, Answer)> + '_ {
        let count = |_: &(Instant, Answer)| self.asked.set(self.asked.get().saturating_sub(1));
        self.answers.try_iter().inspect(count)
    }

    /// Asks no more: the thread ends as when this is dropped, and its end can be observed.
    pub fn leave(self) -> JoinHandle<()> {
        self.thread
    }

    /// Whether the guest has answered all questions, and the answers were taken.
    pub fn is_idle(&self) -> bool {
        self.asked.get() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    /// A guest that answers once it is released.
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
        // The question being answered, and those that can wait; however often it is asked.
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
            assert!(matches!(said, Answer::Stat(Ok(_))), "{said:?}");
        }
        assert!(watched.ask(Question::SetOnline(Online::First(4))));
        let (_, said) = watched
            .answers
            .recv_timeout(Duration::from_secs(60))
            .unwrap();
        assert!(
            matches!(&said, Answer::Online(Ok(cpus)) if cpus.len() == 4),
            "{said:?}"
        );
    }
}
