//! Who leads: the failure detector, pre-elections, elections (Raft §5.2, §5.4.1; dissertation §9.6).
//!
//! ```text
//!   silence ─► pre-election: "would you vote for me?" ─ majority ─► term + 1, own vote, durable ─► requests
//!                 nothing durable changes                                          majority ─► leader
//! ```
//!
//! A server cut off from the rest asks in vain and disturbs nobody when it is back. A leader that hands over skips the
//! question, as voters would say that a leader is alive.

use std::collections::BTreeMap;

use super::message::{Message, Output, Reply, VoteError, VoteErrorKind, VoteRequest, VoteResponse};
use super::vote::{VoteDecision, decide_vote};
use super::{Ctx, Raft, State};
use crate::error::Result;
use crate::ids::{OpId, PeerId, Term};
use crate::note::raft::Action;
use crate::time::Instant;

/// The votes of one term, or the answers to one pre-election.
pub(super) struct Election {
    pub term: Term,
    pub votes: BTreeMap<PeerId, bool>,
}

impl Election {
    fn new(term: Term) -> Election {
        Election { term, votes: BTreeMap::new() }
    }

    /// With the vote of the candidate itself.
    pub fn won(term: Term, me: PeerId) -> Election {
        Election { term, votes: BTreeMap::from([(me, true)]) }
    }
}

impl Raft {
    pub(super) fn tick(&mut self, ctx: &mut Ctx<'_>) {
        if let State::Leader(_) = self.state {
            return self.leader_tick(ctx);
        }
        if ctx.now.mono < self.election_due {
            return;
        }
        if !self.active_config().is_voter(self.me) {
            return self.put_off_election(ctx.now.mono);
        }
        if let State::Candidate(_) = self.state {
            self.elections_lost += 1;
        }
        self.start_pre_election(ctx);
    }

    /// Somebody wants this replica to lead.
    pub(super) fn elect(&mut self, ignore_live_leader: bool, ctx: &mut Ctx<'_>) {
        if self.is_leader() || !self.active_config().is_voter(self.me) {
            return;
        }
        if ignore_live_leader {
            self.start_election(true, ctx);
        } else {
            self.start_pre_election(ctx);
        }
    }

    /// The leader is given another election timeout, and more after elections were lost: who loses waits longer, so
    /// that somebody wins.
    pub(super) fn put_off_election(&mut self, now: Instant) {
        let timeout = self.options.election_timeout();
        let backoff = timeout.mul_f64(2f64.powi(self.elections_lost.min(16) as i32) / 3.0);
        let spread = self.random_below(backoff.min(self.options.backoff_max.max(timeout / 3)));
        self.election_due = now.after(timeout + spread);
    }

    fn start_pre_election(&mut self, ctx: &mut Ctx<'_>) {
        let term = self.meta.term + 1;
        self.put_off_election(ctx.now.mono);
        if self.leader.take().is_some() {
            ctx.out.status_changed = true;
        }
        self.note(ctx, Action::StartPreElection { term });
        self.pre_election = Some(Election::won(term, self.me));
        if self.active_config().majority() == 1 {
            return self.start_election(false, ctx);
        }
        self.ask_for_votes(term, true, false, ctx);
    }

    /// `asked`: by an operator or a leader that hands over; voters need not wait for the leader to be silent.
    pub(super) fn start_election(&mut self, asked: bool, ctx: &mut Ctx<'_>) {
        let term = self.meta.term + 1;
        self.pre_election = None;
        self.forget_leader_of_term();
        self.meta.see_term(term);
        self.meta.voted_for = Some(self.me);
        // Its own vote is counted when it is durable.
        self.state = State::Candidate(Election::new(term));
        self.put_off_election(ctx.now.mono);
        self.note(ctx, Action::StartElection { term, asked });
        self.store_meta(true, ctx.out);
        self.ask_for_votes(term, false, asked, ctx);
    }

    fn ask_for_votes(&mut self, term: Term, pre_election: bool, ignore_live_leader: bool, ctx: &mut Ctx<'_>) {
        let others: Vec<_> = self.active_config().voters().filter(|p| p.id != self.me).cloned().collect();
        for peer in others {
            let request = VoteRequest {
                tablet: self.meta.tablet,
                candidate: self.me,
                dest: peer.id,
                term,
                last_op: self.log.last(),
                pre_election,
                ignore_live_leader,
            };
            self.send(peer, Message::Vote(request), ctx.out);
        }
    }

    /// A candidate asks.
    pub(super) fn vote(&mut self, ticket: u64, request: &VoteRequest, ctx: &mut Ctx<'_>) {
        let response = match self.misdirected_vote(request) {
            Some(refusal) => refusal,
            None => self.decide(request, ctx),
        };
        self.reply(ticket, Reply::Vote(response), ctx.out);
    }

    fn decide(&mut self, request: &VoteRequest, ctx: &mut Ctx<'_>) -> VoteResponse {
        let alive = self.leader_alive(ctx.now.mono);
        let decision = decide_vote(&self.meta, Some(self.log.last()), request, alive);
        let response = decision.response(self.me, &self.meta);
        let VoteDecision { meta, error } = decision;
        if let Some(VoteError { kind, .. }) = &error {
            mark_refused(*kind, ctx.out);
            if *kind == VoteErrorKind::LastOpIdTooOld && request.last_op.index >= self.log.last().index {
                ctx.out.mark("vote: refused, the candidate's log is as long, but older");
            }
        }
        let (candidate, term) = (request.candidate, request.term);
        if let Some(meta) = meta {
            self.see_term(meta.term, ctx);
            if error.is_none() {
                self.meta.voted_for = meta.voted_for;
                self.put_off_election(ctx.now.mono);
                self.note(ctx, Action::GrantVote { candidate, term });
            }
            self.store_meta(true, ctx.out);
        } else if error.is_none() && request.pre_election {
            self.note(ctx, Action::GrantPreVote { candidate, term });
        }
        response
    }

    /// Whether a leader lives, for all this replica knows. A leader that the majority does not hear is none.
    fn leader_alive(&self, now: Instant) -> bool {
        let patience = self.options.election_timeout();
        match &self.state {
            State::Leader(leader) => leader.transfer.is_none() && self.quorum_heard(now),
            _ => self.leader.is_some() && self.heard.is_some_and(|at| now.since(at) < patience),
        }
    }

    /// A voter's answer, or the lack of one.
    pub(super) fn voted(
        &mut self,
        peer: PeerId,
        term: Term,
        pre_election: bool,
        result: Result<VoteResponse>,
        ctx: &mut Ctx<'_>,
    ) {
        let Ok(response) = result else { return };
        if response.responder != peer {
            return;
        }
        if response.term > self.meta.term && !response.granted {
            return self.adopt_term(response.term, ctx);
        }
        let election = match (&mut self.state, &mut self.pre_election) {
            (_, Some(election)) if pre_election => election,
            (State::Candidate(election), _) if !pre_election => election,
            _ => return,
        };
        if election.term != term || (!pre_election && response.term != term) {
            return;
        }
        election.votes.insert(peer, response.granted);
        if pre_election {
            self.count_pre_votes(ctx);
        } else {
            self.count_votes(ctx);
        }
    }

    fn count_pre_votes(&mut self, ctx: &mut Ctx<'_>) {
        let won = |election: &Election| self.is_majority(&election.votes);
        if self.pre_election.as_ref().is_some_and(won) {
            self.start_election(false, ctx);
        }
    }

    pub(super) fn count_votes(&mut self, ctx: &mut Ctx<'_>) {
        if let State::Candidate(election) = &self.state
            && self.is_majority(&election.votes)
        {
            self.become_leader(ctx);
        }
    }

    /// Only voters of the configuration in force count, whoever answered.
    fn is_majority(&self, votes: &BTreeMap<PeerId, bool>) -> bool {
        let config = self.active_config();
        let yes = config.voters().filter(|peer| votes.get(&peer.id) == Some(&true)).count();
        yes >= config.majority()
    }

    /// Enters a newer term that a message told of, as a follower, and has it stored.
    pub(super) fn adopt_term(&mut self, term: Term, ctx: &mut Ctx<'_>) {
        if self.see_term(term, ctx) {
            self.store_meta(true, ctx.out);
        }
    }

    /// Like [`Raft::adopt_term`]; the caller has it stored. True if the term is newer.
    pub(super) fn see_term(&mut self, term: Term, ctx: &mut Ctx<'_>) -> bool {
        if term <= self.meta.term {
            return false;
        }
        self.leave_office(ctx);
        self.forget_leader_of_term();
        self.meta.see_term(term);
        self.note(ctx, Action::SeeTerm { term });
        true
    }

    /// What was known of the leader of the term that ends here.
    fn forget_leader_of_term(&mut self) {
        self.leader = None;
        self.received = OpId::MIN;
    }

    /// Becomes a follower. Entries that are not committed stay: the next leader decides about them.
    pub(super) fn leave_office(&mut self, ctx: &mut Ctx<'_>) {
        self.pre_election = None;
        if let State::Follower = self.state {
            return;
        }
        let was = std::mem::replace(&mut self.state, State::Follower);
        if let State::Leader(leader) = was {
            self.leader_left(*leader, ctx);
        }
        self.put_off_election(ctx.now.mono);
        ctx.out.status_changed = true;
    }
}

fn mark_refused(kind: VoteErrorKind, out: &mut Output) {
    out.mark(match kind {
        VoteErrorKind::InvalidTerm => "vote: refused, the term is over",
        VoteErrorKind::LastOpIdTooOld => "vote: refused, the candidate's log lacks something",
        VoteErrorKind::AlreadyVoted => "vote: refused, it went to another",
        VoteErrorKind::LeaderIsAlive => "vote: refused, a leader is alive",
        // A replica that runs knows its log, and what is for somebody else never comes here.
        _ => return,
    });
}
