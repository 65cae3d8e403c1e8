//! The simulators' side: worlds in which the node's own code runs over simulated time, network and disks.
//!
//! A run is decided by its seed: the same seed gives the same events, which [`trace::EventLog`] hashes. A
//! [`machine::Machine`] is what outlives a crash of the node on it.

pub mod aftermath;
pub mod chaos;
pub mod cli;
pub mod cluster;
pub mod draw;
pub mod fuse;
pub mod history;
pub mod invariants;
pub mod machine;
pub mod marks;
pub mod net;
pub mod observer;
pub mod oracle;
pub mod plan;
pub mod run;
pub mod study;
pub mod trace;
pub mod view;
pub mod workload;
pub mod world;
