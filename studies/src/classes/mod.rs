//! Schedulers that papers compare with, as classes of the simulator ([`quell_sim::Class`]). Each file says at
//! its top what the class leaves out. The sides that run on them: [`crate::sides`].

mod bvt;
mod credit;
mod credit2;
mod oldest;
mod queue;

pub use bvt::{Bvt, Warp};
pub use credit::Credit;
pub use credit2::Credit2;
pub use oldest::Oldest;
