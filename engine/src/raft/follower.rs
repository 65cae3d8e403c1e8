//! Follower: matches a leader's update with its log, appends missing entries, and acknowledges durable ones (Raft
//! §5.3).

use super::interface::{
    LogChange, RaftReply, UpdateError, UpdateErrorKind, UpdateRequest, UpdateResponse, VoteError,
    VoteErrorKind, VoteRequest, VoteResponse,
};
use super::{Raft, RaftConfig, RoleState, StepContext, kind};
use crate::ids::OpId;
use crate::note::raft::RaftAction;

impl Raft {
    pub(super) fn update(&mut self, ticket: u64, request: UpdateRequest, ctx: &mut StepContext<'_>) {
        if let Err((kind, message)) = self.take_update(&request, ctx) {
            ctx.out.mark(match kind {
                UpdateErrorKind::InvalidTerm => "update: rejected, stale term",
                UpdateErrorKind::PrecedingMismatch => "update: rejected, preceding entry does not match",
                _ => "update: rejected, invalid",
            });
            let response =
                UpdateResponse { error: Some(UpdateError { kind, message }), ..self.progress_response() };
            return self.reply(ticket, RaftReply::Update(response), ctx.out);
        }
        let last = request.last();
        if last.index <= self.log.durable() {
            let response = self.progress_response();
            self.reply(ticket, RaftReply::Update(response), ctx.out);
        } else {
            self.pending_updates.push((ticket, last));
        }
    }

    fn take_update(
        &mut self,
        request: &UpdateRequest,
        ctx: &mut StepContext<'_>,
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
            self.note(ctx, RaftAction::FollowerAppend { leader, prev, upto });
        }
        let committed = request.committed.min(self.received.index);
        if committed > self.committed.index {
            self.set_committed(committed, RaftAction::FollowerCommit, ctx);
        }
        self.all_replicated = self.all_replicated.max(request.all_replicated.min(self.received.index));
        if let Some(safe) = request.safe_time {
            self.accept_safe_time(safe, ctx);
        }
        self.evict();
        Ok(())
    }

    /// Rejects a misdirected or contradictory request before anything changes.
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
                let config = RaftConfig::decode(&entry.payload).and_then(|config| config.check());
                let bad = |error| (UpdateErrorKind::Invalid, format!("operation {}: {error}", entry.op));
                config.map_err(bad)?;
            }
            last = (entry.op, Some(entry.timestamp));
        }
        Ok(())
    }

    /// Accepts the caller as the leader of this term. Returns true if this replica was a candidate before.
    fn follow(
        &mut self,
        request: &UpdateRequest,
        ctx: &mut StepContext<'_>,
    ) -> Result<bool, (UpdateErrorKind, String)> {
        let caller = request.caller;
        if let Some(other) = self.leader
            && other != caller
        {
            let message = format!("term {} is led by {other}, not by {caller}", self.meta.term);
            return Err((UpdateErrorKind::Invalid, message));
        }
        let new = self.leader.is_none();
        let was_candidate = matches!(self.state, RoleState::Candidate(_));
        self.become_follower(ctx);
        if was_candidate {
            self.note(ctx, RaftAction::StepDown);
        }
        self.leader = Some(caller);
        self.last_received = Some(ctx.now.mono);
        self.elections_lost = 0;
        self.reset_election_timer(ctx.now.mono);
        ctx.out.status_changed |= new;
        Ok(was_candidate)
    }

    /// Checks the preceding entry. A committed one needs no comparison: every leader has it.
    fn check_preceding(&self, request: &UpdateRequest) -> Result<(), (UpdateErrorKind, String)> {
        let preceding = request.preceding;
        if preceding.index <= self.committed.index || self.log.holds(preceding) {
            return Ok(());
        }
        let message = format!("the log ends with {} and does not have {preceding}", self.log.last());
        Err((UpdateErrorKind::PrecedingMismatch, message))
    }

    /// Appends missing entries, after truncating those that the leader does not have. Returns true if any was appended.
    fn take_entries(
        &mut self,
        request: &UpdateRequest,
        ctx: &mut StepContext<'_>,
    ) -> Result<bool, (UpdateErrorKind, String)> {
        let known = |op: OpId| match self.log.term_at(op.index) {
            Some(term) => term == op.term,
            None => op.index <= self.committed.index,
        };
        let new = request.entries.iter().position(|entry| !known(entry.op));
        let Some(new) = new else { return Ok(false) };
        let first = request.entries[new].op;
        if first.index <= self.committed.index {
            // Only an unsafe configuration change can lead here. Nothing is truncated; the replica cannot be used.
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
                let config = RaftConfig::decode(&entry.payload)
                    .expect("configurations are checked before they are appended");
                self.pending_configs.push_back((entry.op.index, config));
                ctx.out.status_changed = true;
            }
            ctx.clock.pass(entry.timestamp);
            self.log.append(entry.clone());
            ctx.out.log.push(LogChange::Append { entry: entry.clone(), own: false });
        }
        Ok(true)
    }

    /// Truncates uncommitted entries that the leader does not have (Raft §5.3, §5.4.2).
    fn truncate_after(&mut self, after: u64, request: &UpdateRequest, ctx: &mut StepContext<'_>) {
        assert!(after >= self.committed.index, "log: a committed operation must never be truncated");
        self.log.truncate_after(after);
        while self.pending_configs.back().is_some_and(|(index, _)| *index > after) {
            self.pending_configs.pop_back();
            ctx.out.status_changed = true;
        }
        ctx.out.log.push(LogChange::Truncate { after });
        self.note(ctx, RaftAction::AbortPending { leader: request.caller, after });
        self.reply_to_updates(ctx);
    }

    /// Handles the report that the log is durable up to `op`.
    pub(super) fn persisted(&mut self, op: OpId, ctx: &mut StepContext<'_>) {
        if !self.log.persisted(op) {
            return;
        }
        if self.is_leader() {
            self.note(ctx, RaftAction::LeaderPersist { upto: op });
            self.advance_commit(ctx);
        } else {
            self.note(ctx, RaftAction::FollowerPersist { upto: op });
        }
        // A replica that became leader while its disk was slow still owes replies to the previous leader.
        self.reply_to_updates(ctx);
        self.evict();
    }

    /// Replies to the updates whose last entry is durable or truncated.
    fn reply_to_updates(&mut self, ctx: &mut StepContext<'_>) {
        let pending = std::mem::take(&mut self.pending_updates);
        for (ticket, last) in pending {
            if last.index > self.log.durable() && self.log.holds(last) {
                self.pending_updates.push((ticket, last));
                continue;
            }
            let response = self.progress_response();
            self.reply(ticket, RaftReply::Update(response), ctx.out);
        }
    }

    /// The position of this replica, by its durable entries.
    pub(super) fn progress_response(&self) -> UpdateResponse {
        let durable = self.log.durable();
        let op = |index| self.log.op_at(index).unwrap_or(OpId::MIN);
        // The term of the received entry may not be known here: after a restart the log in memory begins with its last
        // entry, and a leader may send earlier ones again.
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

    /// Rejects a vote request that another server or tablet was meant to get.
    pub(super) fn reject_misdirected_vote(&self, request: &VoteRequest) -> Option<VoteResponse> {
        let kind = if request.dest != self.me {
            VoteErrorKind::WrongUuid
        } else if request.tablet != self.meta.tablet || request.candidate == self.me {
            VoteErrorKind::Invalid
        } else {
            return None;
        };
        let message = format!("vote request: not for server {} and tablet {}", self.me, self.meta.tablet);
        let error = Some(VoteError { kind, message });
        Some(VoteResponse { responder: self.me, term: self.meta.term, granted: false, error })
    }
}
