//! Vote decision: a pure function of durable state, so that a tombstone can use it too.

use super::consensus_meta::ConsensusMeta;
use super::interface::{VoteError, VoteErrorKind, VoteRequest, VoteResponse};
use crate::ids::{OpId, PeerId};

/// Decision about a [`VoteRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoteDecision {
    /// The metadata after the request, if it changes: stored before the response is sent.
    pub meta: Option<ConsensusMeta>,
    /// Reason for denying the vote; `None` grants it.
    pub error: Option<VoteError>,
}

impl VoteDecision {
    /// The response, to be sent once [`VoteDecision::meta`] is durable.
    pub fn response(&self, responder: PeerId, before: &ConsensusMeta) -> VoteResponse {
        let term = self.meta.as_ref().unwrap_or(before).term;
        VoteResponse { responder, term, granted: self.error.is_none(), error: self.error.clone() }
    }
}

/// Decides about a vote request by Raft §5.4.1 with Kudu's additions.
///
/// - `last_logged`: the last entry the replica has, or had when it became a tombstone. A replica that does not know it
///   never votes: it may have acknowledged any operation.
/// - `leader_alive`: an update of a leader arrived within the election timeout. Then the vote is denied and the term
///   not adopted (dissertation §4.2.3), unless that leader itself transfers its leadership.
///
/// A pre-vote changes nothing. Otherwise a newer term is entered even when the vote is denied.
pub fn decide_vote(
    meta: &ConsensusMeta,
    last_logged: Option<OpId>,
    request: &VoteRequest,
    leader_alive: bool,
) -> VoteDecision {
    let deny = |kind, message: String| Some(VoteError { kind, message });
    let VoteRequest { candidate, term, last_op, .. } = request;
    if *term < meta.term {
        let message = format!("candidate {candidate} asks for term {term}, but this is term {}", meta.term);
        return VoteDecision { meta: None, error: deny(VoteErrorKind::InvalidTerm, message) };
    }
    if leader_alive && !request.ignore_live_leader {
        let message = format!("a leader of term {} is alive", meta.term);
        return VoteDecision { meta: None, error: deny(VoteErrorKind::LeaderIsAlive, message) };
    }
    let mut next = meta.clone();
    next.see_term(*term);
    let error = match (next.voted_for, last_logged) {
        (_, None) => deny(
            VoteErrorKind::LastOpIdUnknown,
            "the last operation of this replica's log is not known, so it must not vote".to_string(),
        ),
        (Some(other), _) if other != *candidate => {
            deny(VoteErrorKind::AlreadyVoted, format!("already voted for {other} in term {term}"))
        }
        (_, Some(mine)) if *last_op < mine => deny(
            VoteErrorKind::LastOpIdTooOld,
            format!("the candidate's log ends with {last_op}, before {mine}"),
        ),
        _ => None,
    };
    if error.is_none() {
        next.voted_for = Some(*candidate);
    }
    let changed = !request.is_pre_vote && next != *meta;
    VoteDecision { meta: changed.then_some(next), error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Term, Uuid};
    use crate::raft::RaftConfig;

    const A: PeerId = Uuid([0xa; 16]);
    const B: PeerId = Uuid([0xb; 16]);

    fn meta(term: Term, voted_for: Option<PeerId>) -> ConsensusMeta {
        ConsensusMeta { tablet: Uuid::ZERO, term, voted_for, committed: RaftConfig::default() }
    }

    fn request(term: Term, last_op: OpId) -> VoteRequest {
        VoteRequest {
            tablet: Uuid::ZERO,
            candidate: A,
            dest: B,
            term,
            last_op,
            is_pre_vote: false,
            ignore_live_leader: false,
        }
    }

    fn op(term: Term, index: u64) -> OpId {
        OpId { term, index }
    }

    #[test]
    fn one_vote_per_term_and_only_for_an_up_to_date_log() {
        use VoteErrorKind::*;
        let mine = Some(op(2, 7));
        for (meta_before, term, last, expected, after) in [
            (meta(3, None), 3, op(2, 7), None, Some(meta(3, Some(A)))),
            (meta(3, None), 3, op(3, 1), None, Some(meta(3, Some(A)))),
            (meta(3, Some(A)), 3, op(2, 7), None, None),
            (meta(3, Some(B)), 3, op(2, 7), Some(AlreadyVoted), None),
            (meta(3, Some(B)), 4, op(2, 7), None, Some(meta(4, Some(A)))),
            (meta(3, None), 2, op(2, 7), Some(InvalidTerm), None),
            (meta(3, Some(B)), 4, op(2, 6), Some(LastOpIdTooOld), Some(meta(4, None))),
            (meta(3, None), 4, op(1, 9), Some(LastOpIdTooOld), Some(meta(4, None))),
        ] {
            let decision = decide_vote(&meta_before, mine, &request(term, last), false);
            assert_eq!((decision.error.map(|e| e.kind), decision.meta), (expected, after), "{term} {last}");
        }
    }

    #[test]
    fn a_pre_vote_and_a_live_leader_change_nothing() {
        let pre = VoteRequest { is_pre_vote: true, ..request(9, op(9, 9)) };
        let decision = decide_vote(&meta(3, Some(B)), Some(OpId::MIN), &pre, false);
        assert_eq!(decision, VoteDecision { meta: None, error: None });
        let decision = decide_vote(&meta(3, None), Some(OpId::MIN), &request(9, op(9, 9)), true);
        assert_eq!((decision.meta, decision.error.unwrap().kind), (None, VoteErrorKind::LeaderIsAlive));
        let asked = VoteRequest { ignore_live_leader: true, ..request(9, op(9, 9)) };
        assert_eq!(decide_vote(&meta(3, None), Some(OpId::MIN), &asked, true).error, None);
    }

    #[test]
    fn a_replica_that_does_not_know_its_last_entry_does_not_vote() {
        let decision = decide_vote(&meta(3, None), None, &request(9, op(9, 9)), false);
        assert_eq!(decision.error.unwrap().kind, VoteErrorKind::LastOpIdUnknown);
        assert_eq!(decision.meta, Some(meta(9, None)));
    }
}
