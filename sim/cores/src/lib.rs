//! A model of a server's cores: throughput at a number of cores, and the section that stops it, from measured demands.
//!
//! ```text
//!   cargo ci profile contention ──▶ demands.json ──▶ measurement.rs   CPU and serial sections of an operation
//!                                                      │
//!   prediction.rs   a setup for each number of cores ──┼──▶ simulation.rs   cores, locks, clients; one event a step
//!                                                      ▼
//!   page.rs         STUDY-CORES.md: the check at two cores, predictions, limits
//! ```
//!
//! *Not here:* memory bandwidth, caches and atomics that cores take from each other. They only make more cores slower.

mod measurement;
mod page;
mod prediction;
mod simulation;
#[cfg(test)]
mod tests;

pub use measurement::{MeasuredRun, Measurement, QueueResult, Section, SectionWait, SiteResult};
pub use page::page;
