//! Requests whose operations came here through the log, not from their client: sent again, they must not run twice.
//!
//! ```text
//!   old leader   R in its log, replicated, then the leader dies; R's client asks the new leader again
//!   new leader   R pending?  the retry waits for it        R applied?  the retry gets its answer
//! ```
//!
//! The node remembers answers for long (see its results of requests) and learns of these from `Effects::completed`.
//! What is kept here covers the time in between: a retry that was on its way when the node learned.

use std::collections::{BTreeMap, VecDeque};

use super::types::{OpResult, RequestId};
use crate::error::Result;
use crate::ids::OpId;
use crate::time::Timestamp;

/// What came of an operation that was applied.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub op: OpId,
    pub timestamp: Timestamp,
    pub result: Result<OpResult>,
}

/// A client and its number of the request.
type Key = (Vec<u8>, i64);

/// Answers kept at most; more than clients have in flight to one tablet.
const ANSWERS_MAX: usize = 512;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Index of the pending operation.
    pending: BTreeMap<Key, u64>,
    answers: BTreeMap<Key, Answer>,
    /// Oldest first.
    order: VecDeque<Key>,
}

/// Where a request stands that came here before.
pub(super) enum Known {
    Pending(u64),
    Answered(Answer),
}

impl Requests {
    /// The request of an operation that a leader or the log brought.
    pub fn appended(&mut self, request: &RequestId, index: u64) {
        self.pending.insert(key(request), index);
    }

    /// Its operation was applied.
    pub fn applied(&mut self, request: &RequestId, answer: Answer) {
        let key = key(request);
        self.pending.remove(&key);
        if self.answers.insert(key.clone(), answer).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > ANSWERS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.answers.remove(&oldest);
        }
    }

    /// Operations after this index will not happen.
    pub fn truncated(&mut self, after: u64) {
        self.pending.retain(|_, index| *index <= after);
    }

    pub fn find(&self, request: &RequestId) -> Option<Known> {
        if self.pending.is_empty() && self.answers.is_empty() {
            return None;
        }
        let key = key(request);
        let pending = self.pending.get(&key).map(|index| Known::Pending(*index));
        pending.or_else(|| self.answers.get(&key).cloned().map(Known::Answered))
    }
}

fn key(request: &RequestId) -> Key {
    (request.client.clone(), request.seq)
}
