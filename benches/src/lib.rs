//! What the benchmarks share.

pub mod chart;
pub mod process;
pub mod web;
pub mod ycsb;
