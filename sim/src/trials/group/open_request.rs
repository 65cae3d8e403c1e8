//! A request of a client that has no reply yet.

use engine::replica::Op;

/// A request without a reply.
pub(super) struct OpenRequest {
    pub number: i64,
    pub op: Op,
    /// Server, its life and the ticket there of each attempt without a reply.
    pub attempts: Vec<(usize, u64, u64)>,
}
