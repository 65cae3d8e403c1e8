//! Limits on what leaders send, drawn from a stream of their own.

use crate::random_stream::RandomStream;
use crate::spec::RaftBatching;

/// Draws the batching of leaders. In some plans an update carries one entry, so that a follower has part of a batch.
pub(super) fn raft_batching(random: &mut RandomStream) -> RaftBatching {
    match random.weighted(&[(0, 3), (1, 1), (2, 1)]) {
        0 => RaftBatching::default(),
        1 => RaftBatching { batch: random.pick(&[1, 200, 2_000]), inflight: random.pick(&[1, 2, 4]) },
        _ => RaftBatching { batch: 1, inflight: 1 },
    }
}
