//! Votes counted: those of one term, or the responses to one pre-vote.

use std::collections::BTreeMap;

use crate::ids::{PeerId, Term};

/// The votes of one term, or the responses to one pre-vote.
pub(super) struct VoteTally {
    pub term: Term,
    pub votes: BTreeMap<PeerId, bool>,
}

impl VoteTally {
    pub(super) fn new(term: Term) -> VoteTally {
        VoteTally { term, votes: BTreeMap::new() }
    }

    /// A tally with the vote of the candidate itself.
    pub(super) fn won(term: Term, me: PeerId) -> VoteTally {
        VoteTally { term, votes: BTreeMap::from([(me, true)]) }
    }
}
