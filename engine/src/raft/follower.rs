//! What a follower does with a leader's update: agree on a prefix, take what is missing, acknowledge what is durable
//! (Raft §5.3).

use super::message::{
    LogChange, Reply, UpdateError, UpdateErrorKind, UpdateRequest, UpdateResponse, VoteError, VoteErrorKind,
    VoteRequest, VoteResponse,
};
use super::{Config, Ctx, Raft, State, kind};
use crate::ids::OpId;
use crate::note::raft::Action;

impl Raft {
    pub(super) fn update(&mut self, ticket: u64, request: UpdateRequest, ctx: &mut Ctx<'_>) {
        if let Err((kind, message)) = self.take_update(&request, ctx) {
            ctx.out.mark(match kind {
                UpdateErrorKind::InvalidTerm => "update: refused, the term is over",
                UpdateErrorKind::PrecedingMismatch => "update: refused, it does not join the log",
                _ => "update: refused for what it is",
            });
            let response = UpdateResponse { error: Some(UpdateError { kind, message }), ..self.standing() };
            return self.reply(ticket, Reply::Update(response), ctx.out);
        }
        let last = request.last();
        if last.index <= self.log.durable() {
            let response = self.standing();
            self.reply(ticket, Reply::Update(response), ctx.out);
        } else {
            self.unanswered.push((ticket, last));
        }
    }

    fn take_update(
        &mut self,
        request: &UpdateRequest,
        ctx: &mut Ctx<'_>,
    ) -> Result<(), (UpdateErrorKind, String)> {
        self.check_update(request)?;
        self.adopt_term(request.term, ctx);
        let new_role = self.follow(request, ctx)?;
        self.check_preceding(request)?;
        let rises = request.last().index > self.received.index;
        let appended = self.take_entries(request, ctx)?;
        if rises {
            self.received = request.last();
        }
        if appended || new_role || rises {
            let (leader, prev, upto) = (request.caller, request.preceding, request.last());
            self.note(ctx, Action::FollowerAppend { leader, prev, upto });
        }
        let committed = request.committed.min(self.received.index);
        if committed > self.committed.index {
            self.set_committed(committed, Action::FollowerCommit, ctx);
        }
        self.all_replicated = self.all_replicated.max(request.all_replicated.min(self.received.index));
        if let Some(safe) = request.safe_time {
            self.adopt_safe_time(safe, ctx);
        }
        self.evict();
        Ok(())
    }

    /// Refuses what contradicts itself or is for somebody else, before anything changes.
    fn check_update(&self, request: &UpdateRequest) -> Result<(), (UpdateErrorKind, String)> {
        let UpdateRequest { tablet, caller, dest, term, .. } = request;
        if *dest != self.me {
            let message = format!("the request is for server {dest}, but this is {}", self.me);
            return Err((UpdateErrorKind::WrongUuid, message));
        }
        if *tablet != self.meta.tablet || *caller == self.me {
            let message = format!("not a request of a peer about tablet {}", self.meta.tablet);
            return Err((UpdateErrorKind::Invalid, message));
        }
        if *term < self.meta.term {
            let message = format!("the caller leads term {term}, but this is term {}", self.meta.term);
            return Err((UpdateErrorKind::InvalidTerm, message));
        }
        let mut last = (request.preceding, None);
        for entry in &request.entries {
            let (before, at) = last;
            let follows = entry.op.index == before.index + 1 && entry.op.term >= before.term;
            if !follows || entry.op.term > *term || at.is_some_and(|at| entry.timestamp <= at) {
                let message = format!("operation {} cannot follow {before} in term {term}", entry.op);
                return Err((UpdateErrorKind::Invalid, message));
            }
            if entry.kind == kind::CONFIG {
                let config = Config::decode(&entry.payload).and_then(|config| config.check());
                let bad = |error| (UpdateErrorKind::Invalid, format!("operation {}: {error}", entry.op));
                config.map_err(bad)?;
            }
            last = (entry.op, Some(entry.timestamp));
        }
        Ok(())
    }

    /// Accepts the caller as the leader of this term. True if this replica was no follower of it before.
    fn follow(
        &mut self,
        request: &UpdateRequest,
        ctx: &mut Ctx<'_>,
    ) -> Result<bool, (UpdateErrorKind, String)> {
        let caller = request.caller;
        if let Some(other) = self.leader
            && other != caller
        {
            let message = format!("term {} is led by {other}, not by {caller}", self.meta.term);
            return Err((UpdateErrorKind::Invalid, message));
        }
        let new = self.leader.is_none();
        let was_candidate = matches!(self.state, State::Candidate(_));
        self.leave_office(ctx);
        if was_candidate {
            self.note(ctx, Action::StepDown);
        }
        self.leader = Some(caller);
        self.heard = Some(ctx.now.mono);
        self.elections_lost = 0;
        self.put_off_election(ctx.now.mono);
        ctx.out.status_changed |= new;
        Ok(was_candidate)
    }

    /// What is committed needs no comparison: every leader has it.
    fn check_preceding(&self, request: &UpdateRequest) -> Result<(), (UpdateErrorKind, String)> {
        let preceding = request.preceding;
        if preceding.index <= self.committed.index || self.log.holds(preceding) {
            return Ok(());
        }
        let message = format!("the log ends with {} and does not have {preceding}", self.log.last());
        Err((UpdateErrorKind::PrecedingMismatch, message))
    }

    /// Appends what is missing, after taking back what the leader does not have. True if anything was appended.
    fn take_entries(
        &mut self,
        request: &UpdateRequest,
        ctx: &mut Ctx<'_>,
    ) -> Result<bool, (UpdateErrorKind, String)> {
        let known = |op: OpId| match self.log.term_at(op.index) {
            Some(term) => term == op.term,
            None => op.index <= self.committed.index,
        };
        let new = request.entries.iter().position(|entry| !known(entry.op));
        let Some(new) = new else { return Ok(false) };
        let first = request.entries[new].op;
        if first.index <= self.committed.index {
            // Only an unsafe change of configuration can lead here. Nothing is taken back; the replica is of no use.
            let message = format!(
                "this replica committed operations up to {}, the leader has another operation {first}",
                self.committed
            );
            return Err((UpdateErrorKind::TabletFailed, message));
        }
        if first.index <= self.log.last().index {
            self.truncate_after(first.index - 1, request, ctx);
        }
        for entry in &request.entries[new..] {
            if entry.kind == kind::CONFIG {
                let config = Config::decode(&entry.payload).expect("it was checked before");
                self.pending_configs.push_back((entry.op.index, config));
                ctx.out.status_changed = true;
            }
            ctx.clock.pass(entry.timestamp);
            self.log.append(entry.clone());
            ctx.out.log.push(LogChange::Append { entry: entry.clone(), own: false });
        }
        Ok(true)
    }

    /// Takes back entries that no majority has, as the leader has others (Raft §5.3, §5.4.2).
    fn truncate_after(&mut self, after: u64, request: &UpdateRequest, ctx: &mut Ctx<'_>) {
        assert!(after >= self.committed.index, "a committed operation must never be taken back");
        self.log.truncate_after(after);
        while self.pending_configs.back().is_some_and(|(index, _)| *index > after) {
            self.pending_configs.pop_back();
            ctx.out.status_changed = true;
        }
        ctx.out.log.push(LogChange::Truncate { after });
        self.note(ctx, Action::AbortPending { leader: request.caller, after });
        self.answer_updates(ctx);
    }

    /// The log is durable up to here.
    pub(super) fn persisted(&mut self, op: OpId, ctx: &mut Ctx<'_>) {
        if !self.log.persisted(op) {
            return;
        }
        if self.is_leader() {
            self.note(ctx, Action::LeaderPersist { upto: op });
            self.advance_commit(ctx);
        } else {
            self.note(ctx, Action::FollowerPersist { upto: op });
        }
        // Who came to lead while its disk was slow has updates of its predecessor's to answer.
        self.answer_updates(ctx);
        self.evict();
    }

    /// Answers the updates whose last entry is durable, or gone.
    fn answer_updates(&mut self, ctx: &mut Ctx<'_>) {
        let waiting = std::mem::take(&mut self.unanswered);
        for (ticket, last) in waiting {
            if last.index > self.log.durable() && self.log.holds(last) {
                self.unanswered.push((ticket, last));
                continue;
            }
            let response = self.standing();
            self.reply(ticket, Reply::Update(response), ctx.out);
        }
    }

    /// Where this replica stands, by what is durable.
    pub(super) fn standing(&self) -> UpdateResponse {
        let durable = self.log.durable();
        let op = |index| self.log.op_at(index).unwrap_or(OpId::MIN);
        // The term of what was received may not be known here any more: after a restart the log in memory begins with
        // its last entry, and a leader may go through all before that once more.
        let received = if self.received.index <= durable { self.received } else { op(durable) };
        UpdateResponse {
            responder: self.me,
            term: self.meta.term,
            last_received: op(durable),
            last_received_current_leader: received,
            last_committed: self.committed.index,
            error: None,
        }
    }

    /// Refuses a vote that was meant for somebody else.
    pub(super) fn misdirected_vote(&self, request: &VoteRequest) -> Option<VoteResponse> {
        let kind = if request.dest != self.me {
            VoteErrorKind::WrongUuid
        } else if request.tablet != self.meta.tablet || request.candidate == self.me {
            VoteErrorKind::Invalid
        } else {
            return None;
        };
        let message = format!("not a question to server {} about tablet {}", self.me, self.meta.tablet);
        let error = Some(VoteError { kind, message });
        Some(VoteResponse { responder: self.me, term: self.meta.term, granted: false, error })
    }
}
