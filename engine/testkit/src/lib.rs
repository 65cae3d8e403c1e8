//! Test support of the engine, shared by its tests, the fuzz targets, the benchmarks and `cargo ci spec`.
//!
//! ```text
//!   world                   one replica over a MemDisk, driven as a node drives it
//!     ├── model             expected rows and crash steps over a world; its steps in workloads
//!     └── cluster           several replicas with their messages and disks
//!   group                   Raft cores alone: seeded delivery, faults, invariants, transcripts, traces
//!   single_server_catalog   a catalog whose tablet server replies at once
//!   catalog_script          words of the catalog's transcripts
//!   allocations             an allocator that counts
//! ```
//!
//! Not here: simulated time, network and tasks of whole nodes, which is the crate `sim`.

pub mod allocations;
pub mod catalog_script;
pub mod cluster;
pub mod group;
pub mod model;
pub mod single_server_catalog;
pub mod workloads;
pub mod world;
