//! Worlds: what simulates time, network and death.

pub mod turmoil;
