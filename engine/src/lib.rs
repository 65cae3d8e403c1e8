//! The storage engine and replication core of nyala: one Raft-replicated tablet in Kudu's architecture.
//!
//! ```text
//!                  replica            one tablet's state machine: step(event) → effects
//!         ┌───────────┼───────────────┐
//!       raft         wal            tablet           MemRowSet, DiskRowSet,           catalog
//!         │           │          ┌─────┴─────┐       MVCC, compaction                    │  the masters' tables
//!         │           │        cfile       schema ◄──────────────────────────────────────┘
//!         └─────┬─────┴──────────┴── disk            arrows point down only: `cargo ci arrows`
//!    base: ids time codec note error config observer sync memory
//! ```
//!
//! Write path: a client's rows are decoded once ([`tablet::prepared_batch`]), get a timestamp ([`tablet::mvcc`]) and
//! become a log entry ([`replica`]). The leader replicates it ([`raft`]) and every replica appends it to its [`wal`].
//! Committed entries are applied in log order ([`tablet::apply`]): inserts to the MemRowSet, deltas to the
//! DeltaMemStore of the row's DiskRowSet. Flushes and compactions run as maintenance jobs (`replica/job.rs`).
//!
//! Scan path: [`tablet::scan`] takes a snapshot and the current [`tablet::TabletComponents`]. Key bounds and zone maps
//! exclude rowsets and pages ([`cfile`]). Each rowset's scan reads predicate columns first, applies deltas up to the
//! snapshot, and reads the other columns of the selected rows only. The result is a sequence of row blocks.
//!
//! Rules:
//! - No clock: time is an argument ([`time::ClockReading`]). No randomness but from seeds that the caller passes.
//! - No threads, no network, no logging: inputs are events, outputs are effects and notes ([`note`]). Readers may share
//!   a tablet with its one writer; [`sync`] has the types for that.
//! - [`disk::Disk`] is the only trait to the world. So equal inputs give equal outputs, and a simulator can run and
//!   crash the engine at every disk operation.
//!
//! Not here: RPC, servers, clients (crate `node`), the simulator (crate `sim`).

pub mod catalog;
pub mod cfile;
pub mod codec;
pub mod config;
pub mod disk;
pub mod error;
pub mod format_level;
pub mod ids;
pub mod memory;
pub mod note;
pub mod observer;
pub mod raft;
pub mod replica;
pub mod schema;
pub mod sync;
pub mod tablet;
pub mod time;
pub mod turn_slot;
pub mod wal;
