//! Scenarios from other tools' descriptions of load.

pub mod rt_app;
