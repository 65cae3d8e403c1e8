//! Request ids of exactly-once requests, which stay the same in all retries.

use std::collections::BTreeSet;

use nyala_common::rpc::RequestIdPb;

/// Generator of request numbers; tracks the requests without a response.
pub(super) struct RequestIds {
    client_id: String,
    next: i64,
    incomplete: BTreeSet<i64>,
}

impl RequestIds {
    pub(super) fn new(client_id: String) -> RequestIds {
        RequestIds { client_id, next: 1, incomplete: BTreeSet::new() }
    }

    /// Returns the number of a new request. It counts as incomplete until [`RequestIds::complete`].
    pub(super) fn begin(&mut self) -> i64 {
        let number = self.next;
        self.next += 1;
        self.incomplete.insert(number);
        number
    }

    /// Returns the id to send with an attempt (from 1). Servers may drop replies to requests before the first
    /// incomplete one.
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
    fn ids_carry_the_oldest_incomplete_request() {
        let mut requests = RequestIds::new("c".to_string());
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
