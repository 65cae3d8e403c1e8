//! Result tracking for requests whose operations arrived through the log, not from their client: a retry must not run
//! twice.
//!
//! ```text
//!   old leader   R in its log, replicated, then the leader dies; R's client retries at the new leader
//!   new leader   R pending?  the retry waits for it        R applied?  the retry gets its reply
//! ```
//!
//! The node keeps replies longer (see its result tracker) and learns of these from `ReplicaEffects::completed`. The
//! tracker here covers the time in between: a retry in flight when the node learned.

use std::collections::{BTreeMap, VecDeque};

use super::interface::{OpResult, RequestId};
use crate::error::Result;
use crate::ids::OpId;
use crate::time::Timestamp;

/// Result of an applied operation.
#[derive(Debug, Clone)]
pub(super) struct CachedResult {
    pub op: OpId,
    pub timestamp: Timestamp,
    pub result: Result<OpResult>,
}

/// Client and sequence number of a request.
type Key = (Vec<u8>, i64);

/// Largest number of cached replies; more than clients have in flight to one tablet.
const REPLIES_MAX: usize = 512;

/// Tracker of pending and applied requests.
#[derive(Debug, Default)]
pub(super) struct RequestTracker {
    /// Index of the pending operation.
    pending: BTreeMap<Key, u64>,
    replies: BTreeMap<Key, CachedResult>,
    /// Oldest first.
    order: VecDeque<Key>,
}

/// State of a request that arrived before.
pub(super) enum RequestState {
    Pending(u64),
    Answered(CachedResult),
}

impl RequestTracker {
    /// Records the request of an operation of a leader or the log.
    pub(super) fn on_appended(&mut self, request: &RequestId, index: u64) {
        self.pending.insert(key(request), index);
    }

    /// Records the result of an applied operation.
    pub(super) fn applied(&mut self, request: &RequestId, reply: CachedResult) {
        let key = key(request);
        self.pending.remove(&key);
        if self.replies.insert(key.clone(), reply).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > REPLIES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.replies.remove(&oldest);
        }
    }

    /// Drops the requests of operations truncated after this index.
    pub(super) fn truncated(&mut self, after: u64) {
        self.pending.retain(|_, index| *index <= after);
    }

    pub(super) fn find(&self, request: &RequestId) -> Option<RequestState> {
        if self.pending.is_empty() && self.replies.is_empty() {
            return None;
        }
        let key = key(request);
        let pending = self.pending.get(&key).map(|index| RequestState::Pending(*index));
        pending.or_else(|| self.replies.get(&key).cloned().map(RequestState::Answered))
    }
}

fn key(request: &RequestId) -> Key {
    (request.client.clone(), request.seq)
}
