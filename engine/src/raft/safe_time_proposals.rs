//! Safe times that a leader proposes, and those that its followers have confirmed.

use std::collections::VecDeque;

use super::timing::RaftOptions;
use crate::time::{Instant, Timestamp};

/// Number of pending proposals. Confirming a newer one confirms the older, so a few are enough.
const PROPOSALS_MAX: usize = 8;

/// The leader's safe-time proposals.
#[derive(Default)]
pub(super) struct SafeTimeProposals {
    /// Proposals not confirmed yet, oldest first.
    pub(super) pending: VecDeque<SafeTimeProposal>,
    /// The newest confirmed one, with the last entry at the time of the proposal.
    pub(super) confirmed: Option<(Timestamp, u64)>,
    pub(super) next_at: Instant,
    /// The latest timestamp that readers wait for, and the time at which the earliest is certainly past.
    pub(super) wanted: Option<(Timestamp, Instant)>,
}

pub(super) struct SafeTimeProposal {
    pub(super) at: Timestamp,
    pub(super) last: u64,
    /// Updates with greater numbers were sent after the proposal.
    pub(super) sent: u64,
}

impl SafeTimeProposals {
    pub(super) fn confirmed(&self) -> Option<(Timestamp, u64)> {
        self.confirmed
    }

    pub(super) fn deadline(&self, _options: &RaftOptions) -> Option<Instant> {
        self.wanted.map(|(_, at)| at)
    }

    /// Returns true if no reader waits.
    pub(super) fn has_no_readers(&self) -> bool {
        self.wanted.is_none()
    }

    /// Registers a reader that waits for `at`, which is certainly past at `due`. Later readers do not delay earlier
    /// ones.
    pub(super) fn add_waiter(&mut self, at: Timestamp, due: Instant) {
        let (other, earlier) = self.wanted.unwrap_or((at, due));
        self.wanted = Some((other.max(at), earlier.min(due)));
    }

    pub(super) fn push(&mut self, proposal: SafeTimeProposal) {
        match self.pending.back_mut() {
            Some(last) if proposal.at <= last.at => return,
            // No update was sent in between, so the same responses confirm both.
            Some(last) if proposal.sent == last.sent => return *last = proposal,
            _ => {}
        }
        // Invariant: the oldest stays until it is confirmed. If newer ones replaced it, readers could keep all of them
        // from being confirmed.
        if self.pending.len() == PROPOSALS_MAX {
            self.pending.remove(1);
        }
        self.pending.push_back(proposal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposal(at: u64, sent: u64) -> SafeTimeProposal {
        SafeTimeProposal { at: Timestamp::from_micros(at), last: 1, sent }
    }

    fn retained(proposals: &SafeTimeProposals) -> Vec<(u64, u64)> {
        proposals.pending.iter().map(|proposal| (proposal.at.micros(), proposal.sent)).collect()
    }

    #[test]
    fn the_oldest_proposal_and_the_newest_are_retained() {
        let mut proposals = SafeTimeProposals::default();
        (1..=20).for_each(|at| proposals.push(proposal(at, 100 + at)));
        let newest = (14..=20).map(|at| (at, 100 + at));
        assert_eq!(retained(&proposals), std::iter::once((1, 101)).chain(newest).collect::<Vec<_>>());
        proposals.push(proposal(20, 121));
        assert_eq!(retained(&proposals).last(), Some(&(20, 120)), "it adds nothing to the last one");
        proposals.push(proposal(21, 120));
        assert_eq!(retained(&proposals)[6..], [(19, 119), (21, 120)], "no update was sent between the two");
    }
}
