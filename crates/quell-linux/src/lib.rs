//! Observe and act on a live Linux host.
//!
//! [`observe`] fills a [`quell_model::Snapshot`] each period; [`act`] makes a
//! [`quell_model::Plan`] hold and can undo everything it did.

pub mod act;
pub mod observe;
