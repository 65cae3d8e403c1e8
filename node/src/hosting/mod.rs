//! Hosting of replicated tablets, on tablet servers and on masters, whose system tablet is a replica too.
//!
//! ```text
//!   peers ──▶ consensus_service.rs ── ReplicaHost ──▶ the server's replicas
//!                 │
//!                 ▼
//!   callers ──▶ replica/ (event loop) ──▶ engine::replica     tablet_manager.rs: all replicas of a tablet server
//!                 ├──▶ log_writer.rs ──▶ WAL                    ├── tablet_entry.rs: one of them, and its state
//!                 └──▶ raft_transport/ ──▶ peers                ├── tombstones.rs, leftovers.rs: deletions
//!                                                               ├── deleted_tablets.rs: not to be copied again
//!                                                               └── tablet_reports.rs: what masters do not know
//!   maintenance.rs: flushes, compactions, log GC                copy/: tablet copy, both sides
//!   memory_pressure.rs: admission and reservations
//! ```
//!
//! *Not here:* the tablet server's own services (`crate::tserver`), the catalog (`crate::master`).

pub mod consensus_service;
pub mod copy;
mod deleted_tablets;
mod leftovers;
mod log_writer;
pub mod maintenance;
pub mod memory_pressure;
pub mod raft_transport;
pub mod replica;
pub mod replica_metrics;
pub mod space;
pub mod tablet_entry;
pub mod tablet_manager;
pub mod tablet_reports;
pub mod tombstones;
