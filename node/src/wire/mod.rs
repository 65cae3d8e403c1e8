//! Where protobuf ends: everything on the engine's side of this module speaks the engine's types.
//!
//! ```text
//! convert.rs     schemas, ids                         predicates.rs  column predicates
//! partition.rs   partition schemas, partitions        rows.rs        row blocks as reply sidecars
//! status.rs      errors and row errors                consensus.rs   replication
//! ```
//!
//! *Not here:* framing and negotiation (`rpc`), the bytes of row operations and keys (`engine::schema`).

pub mod consensus;
pub mod convert;
pub mod partition;
pub mod predicates;
pub mod rows;
pub mod status;
