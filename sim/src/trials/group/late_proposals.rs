//! Proposals that wait between a server and its replica: the server did not know the request's result when it came.
//!
//! ```text
//!   request ──► server: no result known ──► waits ──► replica: pending, answered from its few replies, or new
//!                      the log of another leader ────────┘ may bring the same request meanwhile
//! ```

use engine::replica::{Op, ReplicaEvent, RequestId};

use super::GroupTrial;
use super::variant::{FEW_REPLIES, LateProposal};

/// One proposal in this many waits, and for how many requests of clients.
const WAITING_EVERY: i64 = 3;
const WAITS_MAX: i64 = 12;

/// Returns for how many requests a proposal waits: no draw, so that all else stays as it is without.
fn wait_of(request: &RequestId) -> i64 {
    let mixed = request.seq.wrapping_mul(7).wrapping_add(request.attempt.wrapping_mul(5));
    if mixed.rem_euclid(WAITING_EVERY) == 0 { mixed.rem_euclid(WAITS_MAX) } else { 0 }
}

impl GroupTrial {
    /// Gives a proposal to a server's replica, now or later.
    pub(super) fn propose(&mut self, server: usize, (ticket, op, request): (u64, Op, RequestId)) {
        let wait = if self.faults && self.variant.few_replies { wait_of(&request) } else { 0 };
        if wait == 0 {
            return self.step(server, ReplicaEvent::Propose { ticket, op, request: Some(request) });
        }
        let own = &self.servers[server];
        let (life, closed, results) = (own.life, own.closed, own.results.len());
        self.late_proposals.push(LateProposal { server, life, closed, ticket, op, request, results, wait });
    }

    /// Gives waiting proposals to their replicas.
    pub(super) fn propose_late(&mut self) {
        for late in std::mem::take(&mut self.late_proposals) {
            if self.faults && late.wait > 1 {
                self.late_proposals.push(LateProposal { wait: late.wait - 1, ..late });
            } else if self.may_arrive(&late) {
                let LateProposal { server, ticket, op, request, .. } = late;
                self.note(format!("server {server} gets a proposal of request {} late", request.seq));
                self.step(server, ReplicaEvent::Propose { ticket, op, request: Some(request) });
            } else {
                let lost = (late.server, late.life, late.ticket);
                let attempts = self.open.iter_mut().map(|open| &mut open.attempts);
                attempts.for_each(|attempts| attempts.retain(|attempt| *attempt != lost));
            }
        }
    }

    /// Returns true if the replica is the one for which a proposal waited. It must not have applied more requests
    /// meanwhile than it keeps replies: in a server, fewer are in flight.
    fn may_arrive(&self, late: &LateProposal) -> bool {
        let own = &self.servers[late.server];
        let is_same = (own.life, own.closed) == (late.life, late.closed) && own.running().is_some();
        is_same && own.results.len() <= late.results + FEW_REPLIES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_proposals_wait() {
        let request = |seq| RequestId { client: b"trial".to_vec(), seq, first_incomplete: 0, attempt: 1 };
        let waiting = (0..99).map(|seq| wait_of(&request(seq))).filter(|wait| *wait > 0).count();
        assert!((20..40).contains(&waiting), "{waiting}");
    }
}
