//! Observe and act on a live Linux host.
//!
//! [`observe`] fills a [`quell_model::Snapshot`] each period; [`act`] makes a
//! [`quell_model::Plan`] hold and can undo everything it did; [`record`] tells every switch and
//! wakeup, for traces; [`guest`] asks the guests of virtual machines; [`memory`] keeps this process small.

pub mod act;
pub mod guest;
pub mod memory;
pub mod observe;
pub mod record;
