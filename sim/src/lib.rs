//! The simulators' side: worlds in which the node's own code runs over simulated time, network and disks.
//!
//! A run is decided by its seed: the same seed gives the same events, which [`trace::EventLog`] hashes. A
//! [`machine::Machine`] is what outlives a crash of the node on it.

pub mod machine;
pub mod trace;
pub mod world;
