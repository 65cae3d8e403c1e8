//! Result tracking for requests whose operations arrived through the log, not from their client: a retry must not run
//! twice.
//!
//! ```text
//!   old leader   R in its log, replicated, then the leader dies; R's client retries at the new leader
//!   new leader   R pending?  the retry waits for it        R applied?  the retry gets its reply
//! ```
//!
//! The node keeps replies longer (see its result tracker) and learns of these from `ReplicaEffects::completed`. The
//! tracker here covers the time in between: a retry in flight when the node learned. So the memory for replies is
//! bounded:
//!
//! - A client declares its first incomplete request with each request. Replies below it are dropped, and a late attempt
//!   of such a request is stale.
//! - Results are dropped above `TabletConfig::tracked_result_bytes_max`, oldest first. Their requests stay known: a
//!   retry is told to come again, and gets the result from the node.

use std::collections::BTreeMap;

use super::interface::{OpResult, RequestId};
use crate::config::TabletConfig;
use crate::error::Result;
use crate::ids::OpId;
use crate::memory::TrackedBytes;
use crate::schema::row_ops::RowError;
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

/// Approximate bytes of a reply without its result: entries of maps and their allocations.
const REPLY_BYTES: usize = 256;

/// Tracker of pending and applied requests.
pub(super) struct RequestTracker {
    /// Largest number of stored replies, and most bytes of their results.
    replies_max: usize,
    result_bytes_max: usize,
    /// Index of the pending operation.
    pending: BTreeMap<Key, u64>,
    /// Clients with replies.
    clients: BTreeMap<Vec<u8>, ClientReplies>,
    /// Requests of the replies by the index of their operation, so oldest first.
    order: BTreeMap<u64, Key>,
    result_bytes: usize,
    tracked: TrackedBytes,
}

/// Replies to one client.
struct ClientReplies {
    /// Requests below it are complete.
    first_incomplete: i64,
    replies: BTreeMap<i64, StoredReply>,
}

struct StoredReply {
    op: OpId,
    timestamp: Timestamp,
    /// `None` if it was dropped.
    result: Option<Result<OpResult>>,
}

/// State of a request that arrived before.
pub(super) enum RequestState {
    Pending(u64),
    Answered(CachedResult),
    /// The operation was applied; the node has its result.
    ResultDropped(OpId),
    /// The client has declared the request complete.
    Stale,
}

impl StoredReply {
    fn state(&self) -> RequestState {
        let StoredReply { op, timestamp, result } = self;
        match result.clone() {
            Some(result) => RequestState::Answered(CachedResult { op: *op, timestamp: *timestamp, result }),
            None => RequestState::ResultDropped(*op),
        }
    }

    /// Drops the result; returns its bytes. An error of the whole operation stays: the node does not know it, and it is
    /// short.
    fn drop_result(&mut self) -> usize {
        self.result.take_if(|result| result.is_ok()).map_or(0, |result| result_bytes(&result))
    }
}

impl RequestTracker {
    /// Creates a tracker whose replies count as `tracked`.
    pub(super) fn new(config: &TabletConfig, tracked: TrackedBytes) -> RequestTracker {
        RequestTracker {
            replies_max: config.tracked_replies_max,
            result_bytes_max: config.tracked_result_bytes_max,
            pending: BTreeMap::new(),
            clients: BTreeMap::new(),
            order: BTreeMap::new(),
            result_bytes: 0,
            tracked,
        }
    }

    /// Records the request of an operation of a leader or the log.
    pub(super) fn on_appended(&mut self, request: &RequestId, index: u64) {
        self.pending.insert(key(request), index);
    }

    /// Records the result of an applied operation.
    pub(super) fn applied(
        &mut self,
        request: &RequestId,
        (op, timestamp): (OpId, Timestamp),
        result: &Result<OpResult>,
    ) {
        let key = key(request);
        self.pending.remove(&key);
        let bytes = result_bytes(result);
        let result = (bytes <= self.result_bytes_max).then(|| result.clone());
        self.result_bytes += if result.is_some() { bytes } else { 0 };
        self.order.insert(op.index, key);
        let new = || ClientReplies { first_incomplete: i64::MIN, replies: BTreeMap::new() };
        let client = self.clients.entry(request.client.clone()).or_insert_with(new);
        let replaced = client.replies.insert(request.seq, StoredReply { op, timestamp, result });
        client.first_incomplete = client.first_incomplete.max(request.first_incomplete);
        let incomplete = client.replies.split_off(&client.first_incomplete);
        let complete = std::mem::replace(&mut client.replies, incomplete);
        if client.replies.is_empty() {
            self.clients.remove(&request.client);
        }
        for mut reply in complete.into_values().chain(replaced) {
            self.order.remove(&reply.op.index);
            self.result_bytes -= reply.drop_result();
        }
        self.drop_oldest();
        self.tracked.set((self.result_bytes + REPLY_BYTES * self.order.len()) as u64, 0);
    }

    /// Drops the oldest replies, and the oldest results of the others, until they are within the limits.
    fn drop_oldest(&mut self) {
        while self.order.len() > self.replies_max
            && let Some((_, (client, seq))) = self.order.pop_first()
            && let Some(replies) = self.clients.get_mut(&client).map(|client| &mut client.replies)
        {
            self.result_bytes -= replies.remove(&seq).map_or(0, |mut reply| reply.drop_result());
            if replies.is_empty() {
                self.clients.remove(&client);
            }
        }
        for (client, seq) in self.order.values() {
            if self.result_bytes <= self.result_bytes_max {
                break;
            }
            let reply = self.clients.get_mut(client).and_then(|client| client.replies.get_mut(seq));
            self.result_bytes -= reply.map_or(0, StoredReply::drop_result);
        }
    }

    /// Drops the requests of operations truncated after this index.
    pub(super) fn truncated(&mut self, after: u64) {
        self.pending.retain(|_, index| *index <= after);
    }

    pub(super) fn find(&self, request: &RequestId) -> Option<RequestState> {
        if self.pending.is_empty() && self.clients.is_empty() {
            return None;
        }
        if let Some(index) = self.pending.get(&key(request)) {
            return Some(RequestState::Pending(*index));
        }
        let client = self.clients.get(&request.client)?;
        match client.replies.get(&request.seq) {
            Some(reply) => Some(reply.state()),
            None => (request.seq < client.first_incomplete).then_some(RequestState::Stale),
        }
    }
}

fn key(request: &RequestId) -> Key {
    (request.client.clone(), request.seq)
}

/// Returns the approximate bytes of memory of a result.
fn result_bytes(result: &Result<OpResult>) -> usize {
    let row_bytes = |(_, error): &(u32, RowError)| size_of::<(u32, RowError)>() + error.message.len();
    match result {
        Ok(OpResult::Write { errors, .. }) => errors.iter().map(row_bytes).sum(),
        Ok(OpResult::Altered { .. } | OpResult::NoOp) => 0,
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemTracker;
    use crate::tablet::apply::WriteCounts;

    const RESULT_BYTES_MAX: usize = 4 << 20;

    /// Returns a tracker with the limits of servers.
    fn tracker(tracked: TrackedBytes) -> RequestTracker {
        RequestTracker::new(&TabletConfig::default(), tracked)
    }

    fn request(client: &str, seq: i64, first_incomplete: i64) -> RequestId {
        RequestId { client: client.as_bytes().to_vec(), seq, first_incomplete, attempt: 1 }
    }

    /// Returns the result of a write, with an error of this many bytes.
    fn result(bytes: usize) -> Result<OpResult> {
        let errors = vec![(0, RowError::invalid("x".repeat(bytes)))];
        Ok(OpResult::Write { errors, counts: WriteCounts::default() })
    }

    impl RequestTracker {
        /// Applies operation `seq` of a client.
        fn apply(&mut self, (client, seq, first_incomplete): (&str, i64, i64), bytes: usize) {
            let op = OpId { term: 1, index: self.order.keys().last().map_or(1, |last| last + 1) };
            let applied = (op, Timestamp(op.index));
            self.applied(&request(client, seq, first_incomplete), applied, &result(bytes));
        }

        fn show(&self, client: &str, seq: i64) -> String {
            match self.find(&request(client, seq, 0)) {
                None => "unknown".to_string(),
                Some(RequestState::Pending(index)) => format!("pending {index}"),
                Some(RequestState::Answered(CachedResult { op, .. })) => format!("answered {op}"),
                Some(RequestState::ResultDropped(op)) => format!("without result {op}"),
                Some(RequestState::Stale) => "stale".to_string(),
            }
        }
    }

    #[test]
    fn replies_to_complete_requests_are_dropped_and_their_late_attempts_are_stale() {
        let mut tracker = tracker(TrackedBytes::default());
        (1..4).for_each(|seq| tracker.apply(("ann", seq, 1), 10));
        tracker.apply(("bob", 1, 1), 10);
        assert_eq!(
            [1, 2, 3, 4].map(|seq| tracker.show("ann", seq)),
            ["answered 1.1", "answered 1.2", "answered 1.3", "unknown"]
        );
        // The second request is still open: its reply may not have arrived.
        tracker.apply(("ann", 4, 2), 10);
        tracker.on_appended(&request("ann", 5, 4), 9);
        assert_eq!([1, 2, 5].map(|seq| tracker.show("ann", seq)), ["stale", "answered 1.2", "pending 9"]);
        tracker.apply(("ann", 6, 6), 10);
        assert_eq!(
            [2, 4, 5, 6].map(|seq| tracker.show("ann", seq)),
            ["stale", "stale", "pending 9", "answered 1.6"]
        );
        assert_eq!((tracker.show("bob", 1).as_str(), tracker.order.len()), ("answered 1.4", 2));
        tracker.apply(("eve", 1, 9), 10);
        assert_eq!(
            (tracker.clients.len(), tracker.order.len()),
            (2, 2),
            "a client without replies is forgotten"
        );
    }

    #[test]
    fn results_are_dropped_above_the_limit_of_bytes_and_their_requests_stay_known() {
        let root = MemTracker::root("server", None);
        let mut tracker = tracker(TrackedBytes::new(&root.child("results")));
        (1..7).for_each(|seq| tracker.apply(("ann", seq, 1), 1_000_000));
        let expected = [
            "without result 1.1",
            "without result 1.2",
            "answered 1.3",
            "answered 1.4",
            "answered 1.5",
            "answered 1.6",
        ];
        assert_eq!([1, 2, 3, 4, 5, 6].map(|seq| tracker.show("ann", seq)), expected);
        assert!((4_000_000..RESULT_BYTES_MAX + 6 * REPLY_BYTES).contains(&(root.bytes() as usize)));
        tracker.apply(("ann", 7, 1), RESULT_BYTES_MAX);
        assert_eq!([6, 7].map(|seq| tracker.show("ann", seq)), ["answered 1.6", "without result 1.7"]);
        tracker.apply(("ann", 8, 8), 0);
        assert_eq!((tracker.show("ann", 8).as_str(), tracker.order.len()), ("answered 1.8", 1));
        assert!(root.bytes() < 1_000, "{} bytes", root.bytes());
    }

    #[test]
    fn the_number_of_replies_is_limited() {
        let mut tracker = tracker(TrackedBytes::default());
        tracker.apply(("bob", 1, 1), 10);
        (1..513).for_each(|seq| tracker.apply(("ann", seq, 1), 10));
        assert_eq!((tracker.order.len(), tracker.clients.len()), (512, 1));
        assert_eq!(
            (tracker.show("bob", 1).as_str(), tracker.show("ann", 1).as_str()),
            ("unknown", "answered 1.2")
        );
    }

    #[test]
    fn limits_are_those_of_the_configuration() {
        let config = TabletConfig {
            tracked_replies_max: 3,
            tracked_result_bytes_max: 1_000,
            ..TabletConfig::default()
        };
        let mut tracker = RequestTracker::new(&config, TrackedBytes::default());
        (1..6).for_each(|seq| tracker.apply(("ann", seq, 1), 400));
        let expected = ["unknown", "unknown", "without result 1.3", "answered 1.4", "answered 1.5"];
        assert_eq!([1, 2, 3, 4, 5].map(|seq| tracker.show("ann", seq)), expected);
    }
}
