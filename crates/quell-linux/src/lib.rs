//! Observe and act on a live Linux host.
//!
//! [`observe`] fills a [`quell_model::Snapshot`] each period; [`act`] makes a [`quell_model::Plan`] hold and
//! can undo all its changes; [`record`] reports every switch and wakeup, for traces; [`guest`] asks the
//! guests of virtual machines. System calls are in `quell-sys`.
//!
//! ```no_run
//! use quell_linux::observe::{Observer, Preference};
//!
//! // No tenants: the snapshot still has the host's CPUs.
//! let mut observer = Observer::new(&[], &[], Preference::Procfs).unwrap();
//! let snapshot = observer.sample().unwrap();
//! println!("period {}: {} tenants", snapshot.seq, snapshot.tenants.len());
//! ```

pub mod act;
pub mod guest;
pub mod observe;
pub mod record;
