//! Elections: the failure detector, pre-votes, votes (Raft §5.2, §5.4.1; dissertation §9.6).
//!
//! ```text
//!   silence ─► pre-vote: "would you vote for me?" ─ majority ─► term + 1, own vote, durable ─► vote requests
//!                 nothing durable changes                                              majority ─► leader
//! ```
//!
//! A server cut off from the rest fails its pre-votes and disturbs no leader when it returns. The target of a
//! leadership transfer skips the pre-vote, as voters would reply that a leader is alive.

use std::collections::BTreeMap;

use super::interface::{
    RaftEffects, RaftMessage, RaftReply, VoteError, VoteErrorKind, VoteRequest, VoteResponse,
};
use super::vote::{VoteDecision, decide_vote};
use super::vote_tally::VoteTally;
use super::{Raft, RoleState, StepContext};
use crate::error::Result;
use crate::ids::{OpId, PeerId, Term};
use crate::note::raft::RaftAction;
use crate::time::Instant;

impl Raft {
    pub(super) fn tick(&mut self, ctx: &mut StepContext<'_>) {
        if let RoleState::Leader(_) = self.state {
            return self.leader_tick(ctx);
        }
        if ctx.now.mono < self.election_due {
            return;
        }
        if !self.active_config().is_voter(self.me) {
            return self.reset_election_timer(ctx.now.mono);
        }
        if let RoleState::Candidate(_) = self.state {
            self.elections_lost += 1;
        }
        self.start_pre_vote(ctx);
    }

    /// Starts an election on request of an operator or a leader.
    pub(super) fn elect(&mut self, ignore_live_leader: bool, ctx: &mut StepContext<'_>) {
        if self.is_leader() || !self.active_config().is_voter(self.me) {
            return;
        }
        if ignore_live_leader {
            self.start_election(true, ctx);
        } else {
            self.start_pre_vote(ctx);
        }
    }

    /// Restarts the election timer. After lost elections the timeout is longer and more spread, so that one candidate
    /// wins.
    pub(super) fn reset_election_timer(&mut self, now: Instant) {
        let timeout = self.options.election_timeout();
        let backoff = timeout.mul_f64(2f64.powi(self.elections_lost.min(16) as i32) / 3.0);
        let spread = self.random_below(backoff.min(self.options.backoff_max.max(timeout / 3)));
        self.election_due = now.after(timeout + spread);
    }

    fn start_pre_vote(&mut self, ctx: &mut StepContext<'_>) {
        let term = self.meta.term + 1;
        self.reset_election_timer(ctx.now.mono);
        if self.leader.take().is_some() {
            ctx.out.status_changed = true;
        }
        self.note(ctx, RaftAction::StartPreElection { term });
        self.pre_vote = Some(VoteTally::won(term, self.me));
        if self.active_config().majority() == 1 {
            return self.start_election(false, ctx);
        }
        self.send_vote_requests(term, true, false, ctx);
    }

    /// `asked`: requested by an operator or by a leader that transfers its leadership; voters ignore that a leader is
    /// alive.
    pub(super) fn start_election(&mut self, asked: bool, ctx: &mut StepContext<'_>) {
        let term = self.meta.term + 1;
        self.pre_vote = None;
        self.clear_known_leader();
        self.meta.see_term(term);
        self.meta.voted_for = Some(self.me);
        // Its own vote is counted when it is durable.
        self.state = RoleState::Candidate(VoteTally::new(term));
        self.reset_election_timer(ctx.now.mono);
        self.note(ctx, RaftAction::StartElection { term, asked });
        self.store_meta(true, ctx.out);
        self.send_vote_requests(term, false, asked, ctx);
    }

    fn send_vote_requests(
        &mut self,
        term: Term,
        is_pre_vote: bool,
        ignore_live_leader: bool,
        ctx: &mut StepContext<'_>,
    ) {
        let other_voters: Vec<_> =
            self.active_config().voters().filter(|p| p.id != self.me).cloned().collect();
        for peer in other_voters {
            let request = VoteRequest {
                tablet: self.meta.tablet,
                candidate: self.me,
                dest: peer.id,
                term,
                last_op: self.log.last(),
                is_pre_vote,
                ignore_live_leader,
            };
            self.send(peer, RaftMessage::Vote(request), ctx.out);
        }
    }

    /// Handles a candidate's request.
    pub(super) fn vote(&mut self, ticket: u64, request: &VoteRequest, ctx: &mut StepContext<'_>) {
        let response = match self.reject_misdirected_vote(request) {
            Some(rejection) => rejection,
            None => self.decide(request, ctx),
        };
        self.reply(ticket, RaftReply::Vote(response), ctx.out);
    }

    fn decide(&mut self, request: &VoteRequest, ctx: &mut StepContext<'_>) -> VoteResponse {
        let alive = self.leader_alive(ctx.now.mono);
        let decision = decide_vote(&self.meta, Some(self.log.last()), request, alive);
        let response = decision.response(self.me, &self.meta);
        let VoteDecision { meta, error } = decision;
        if let Some(VoteError { kind, .. }) = &error {
            mark_rejected(*kind, ctx.out);
            if *kind == VoteErrorKind::LastOpIdTooOld && request.last_op.index >= self.log.last().index {
                ctx.out.mark("vote: denied, candidate's last term is lower");
            }
        }
        let (candidate, term) = (request.candidate, request.term);
        if let Some(meta) = meta {
            self.see_term(meta.term, ctx);
            if error.is_none() {
                self.meta.voted_for = meta.voted_for;
                self.reset_election_timer(ctx.now.mono);
                self.note(ctx, RaftAction::GrantVote { candidate, term });
            }
            self.store_meta(true, ctx.out);
        } else if error.is_none() && request.is_pre_vote {
            self.note(ctx, RaftAction::GrantPreVote { candidate, term });
        }
        response
    }

    /// Returns true if a leader lives, for all this replica knows. A leader without responses of a majority does not
    /// count.
    fn leader_alive(&self, now: Instant) -> bool {
        let timeout = self.options.election_timeout();
        match &self.state {
            RoleState::Leader(leader) => leader.transfer.is_none() && self.is_quorum_active(now),
            _ => self.leader.is_some() && self.last_received.is_some_and(|at| now.since(at) < timeout),
        }
    }

    /// Handles the result of a vote request.
    pub(super) fn voted(
        &mut self,
        peer: PeerId,
        term: Term,
        is_pre_vote: bool,
        result: Result<VoteResponse>,
        ctx: &mut StepContext<'_>,
    ) {
        let Ok(response) = result else { return };
        if response.responder != peer {
            return;
        }
        if response.term > self.meta.term && !response.granted {
            return self.adopt_term(response.term, ctx);
        }
        let election = match (&mut self.state, &mut self.pre_vote) {
            (_, Some(election)) if is_pre_vote => election,
            (RoleState::Candidate(election), _) if !is_pre_vote => election,
            _ => return,
        };
        if election.term != term || (!is_pre_vote && response.term != term) {
            return;
        }
        election.votes.insert(peer, response.granted);
        if is_pre_vote {
            self.count_pre_votes(ctx);
        } else {
            self.count_votes(ctx);
        }
    }

    fn count_pre_votes(&mut self, ctx: &mut StepContext<'_>) {
        let won = |election: &VoteTally| self.is_majority(&election.votes);
        if self.pre_vote.as_ref().is_some_and(won) {
            self.start_election(false, ctx);
        }
    }

    pub(super) fn count_votes(&mut self, ctx: &mut StepContext<'_>) {
        if let RoleState::Candidate(election) = &self.state
            && self.is_majority(&election.votes)
        {
            self.become_leader(ctx);
        }
    }

    /// Returns true if a majority of the voters of the configuration in force granted; other responses do not count.
    fn is_majority(&self, votes: &BTreeMap<PeerId, bool>) -> bool {
        let config = self.active_config();
        let yes = config.voters().filter(|peer| votes.get(&peer.id) == Some(&true)).count();
        yes >= config.majority()
    }

    /// Enters a newer term from a message, as a follower, and has it stored.
    pub(super) fn adopt_term(&mut self, term: Term, ctx: &mut StepContext<'_>) {
        if self.see_term(term, ctx) {
            self.store_meta(true, ctx.out);
        }
    }

    /// Enters a newer term as [`Raft::adopt_term`] does; the caller has it stored. Returns true if the term is newer.
    pub(super) fn see_term(&mut self, term: Term, ctx: &mut StepContext<'_>) -> bool {
        if term <= self.meta.term {
            return false;
        }
        self.become_follower(ctx);
        self.clear_known_leader();
        self.meta.see_term(term);
        self.note(ctx, RaftAction::SeeTerm { term });
        true
    }

    /// Clears what is known of the leader of the ending term.
    fn clear_known_leader(&mut self) {
        self.leader = None;
        self.received = OpId::MIN;
    }

    /// Becomes a follower. Uncommitted entries stay: the next leader commits or replaces them.
    pub(super) fn become_follower(&mut self, ctx: &mut StepContext<'_>) {
        self.pre_vote = None;
        if let RoleState::Follower = self.state {
            return;
        }
        let previous = std::mem::replace(&mut self.state, RoleState::Follower);
        if let RoleState::Leader(leader) = previous {
            self.on_leadership_lost(*leader, ctx);
        }
        self.reset_election_timer(ctx.now.mono);
        ctx.out.status_changed = true;
    }
}

fn mark_rejected(kind: VoteErrorKind, out: &mut RaftEffects) {
    out.mark(match kind {
        VoteErrorKind::InvalidTerm => "vote: denied, stale term",
        VoteErrorKind::LastOpIdTooOld => "vote: denied, candidate's log is shorter",
        VoteErrorKind::AlreadyVoted => "vote: denied, already voted",
        VoteErrorKind::LeaderIsAlive => "vote: denied, live leader",
        // A running replica knows its log, and a misdirected request is rejected earlier.
        _ => return,
    });
}
