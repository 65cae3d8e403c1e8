//! Ids of requests that must happen once, however often they are sent.

use std::collections::BTreeSet;

use crate::rpc::RequestIdPb;

/// Numbers a client's requests and knows which of them still wait for a response.
pub(super) struct RequestTracker {
    client_id: String,
    next: i64,
    incomplete: BTreeSet<i64>,
}

impl RequestTracker {
    pub(super) fn new(client_id: String) -> RequestTracker {
        RequestTracker { client_id, next: 1, incomplete: BTreeSet::new() }
    }

    /// A number for a new request. It counts as incomplete until [`RequestTracker::complete`].
    pub(super) fn begin(&mut self) -> i64 {
        let number = self.next;
        self.next += 1;
        self.incomplete.insert(number);
        number
    }

    /// The id to send with an attempt (from 1). Servers may forget requests before the first incomplete one.
    pub(super) fn id(&self, number: i64, attempt: i64) -> RequestIdPb {
        RequestIdPb {
            client_id: self.client_id.clone(),
            seq_no: number,
            first_incomplete_seq_no: self.incomplete.first().copied().unwrap_or(self.next),
            attempt_no: attempt,
        }
    }

    pub(super) fn complete(&mut self, number: i64) {
        self.incomplete.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_incomplete_request_is_named() {
        let mut requests = RequestTracker::new("c".to_string());
        let (first, second) = (requests.begin(), requests.begin());
        assert_eq!(requests.id(second, 1).first_incomplete_seq_no, first);
        requests.complete(first);
        let id = requests.id(second, 2);
        assert_eq!((id.seq_no, id.first_incomplete_seq_no, id.attempt_no), (second, second, 2));
        requests.complete(second);
        let third = requests.begin();
        assert_eq!(requests.id(third, 1).first_incomplete_seq_no, third);
    }
}
