//! Where protobuf ends: everything on the engine's side of this module speaks the engine's types.
//!
//! ```text
//! convert.rs    schemas, partition schemas, partitions      predicates.rs  column predicates
//! status.rs     errors and row errors                       rows.rs        row blocks as reply sidecars
//! ```
//!
//! *Not here:* framing and negotiation (`rpc`), the bytes of row operations and keys (`engine::schema`).

pub mod convert;
pub mod rows;
pub mod status;
