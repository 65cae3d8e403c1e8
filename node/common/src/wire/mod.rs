//! Conversion between Kudu's protobuf messages and the engine's types.
//!
//! ```text
//! schema.rs      schemas, ids                         predicates.rs  column predicates
//! partition.rs   partition schemas, partitions        rows.rs        row blocks as reply sidecars
//! errors.rs      errors and row errors                consensus.rs   replication
//! aggregation.rs nyala's own aggregations of scans
//! ```
//!
//! *Not here:* framing and negotiation (`rpc`), the bytes of row operations and keys (`engine::schema`).

pub mod aggregation;
pub mod consensus;
pub mod errors;
pub mod partition;
pub mod predicates;
pub mod rows;
pub mod schema;
