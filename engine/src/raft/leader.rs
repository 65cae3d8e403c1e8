//! Leader: appends entries, tracks the match index of each peer, and commits what a majority has (Raft §5.3, §5.4.2).

use std::collections::BTreeMap;

use bytes::Bytes;

use super::config::VOTERS_MAX;
use super::interface::{
    LogChange, PeerHealth, RaftEffects, RaftReply, TimestampSource, UpdateErrorKind, UpdateResponse, kind,
};
use super::leader_state::LeaderState;
use super::peer_progress::PeerProgress;
use super::safe_time_proposals::SafeTimeProposals;
use super::{Raft, RoleState, StepContext, interface};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{OpId, PeerId};
use crate::note::raft::RaftAction;
use crate::time::{ClockReading, Instant};
use crate::wal::ReplicateEntry;

impl Raft {
    pub(super) fn become_leader(&mut self, ctx: &mut StepContext<'_>) {
        let now = ctx.now.mono;
        let leader = LeaderState {
            since: now,
            first: self.log.last().index + 1,
            peers: BTreeMap::new(),
            tickets: Vec::new(),
            transfer: None,
            proposals: SafeTimeProposals::default(),
        };
        self.state = RoleState::Leader(Box::new(leader));
        self.pre_vote = None;
        self.elections_lost = 0;
        self.leader = Some(self.me);
        self.received = OpId::MIN;
        ctx.out.status_changed = true;
        self.note(ctx, RaftAction::BecomeLeader);
        self.sync_peers();
        self.advance_past_previous_leaders(ctx);
        self.append_own(kind::NO_OP, interface::NO_OP_PAYLOAD, ctx.clock, ctx.out);
    }

    /// Aborts the waiting configuration changes: a follower does not learn whether they are committed.
    pub(super) fn on_leadership_lost(&mut self, leader: LeaderState, ctx: &mut StepContext<'_>) {
        for (index, ticket) in leader.tickets {
            let message = format!(
                "replica {} stopped leading before the configuration of operation {index} was committed; ask \
                 the new leader",
                self.me
            );
            self.reply(ticket, RaftReply::Config(Err(Error::aborted(message))), ctx.out);
        }
    }

    /// Appends an entry to this leader's log.
    pub(super) fn append_own(
        &mut self,
        kind: u8,
        payload: Bytes,
        clock: &mut dyn TimestampSource,
        out: &mut RaftEffects,
    ) -> ReplicateEntry {
        let mut op = self.log.last();
        (op.term, op.index) = (self.meta.term, op.index + 1);
        let timestamp = clock.begin();
        let entry = ReplicateEntry { op, timestamp, kind, payload };
        self.log.append(entry.clone());
        out.log.push(LogChange::Append { entry: entry.clone(), own: true });
        if kind != kind::CONFIG {
            self.note_to(out, RaftAction::ClientAppend { op, timestamp, kind });
        }
        entry
    }

    /// Sends every peer what is due now; cheap if nothing is.
    pub fn send_pending_updates(&mut self, now: ClockReading, out: &mut RaftEffects) {
        let RoleState::Leader(leader) = &mut self.state else { return };
        if leader.peers.is_empty() {
            return;
        }
        let mut messages = Vec::new();
        let all_replicated = leader.all_replicated_index(self.log.durable());
        let update_context = super::peer_progress::UpdateContext {
            now: now.mono,
            options: &self.options,
            log: &self.log,
            meta: &self.meta,
            me: self.me,
            address: self.address.as_ref(),
            committed: self.committed.index,
            all_replicated,
            safe: leader.proposals.confirmed(),
        };
        for progress in leader.peers.values_mut() {
            update_context.fill(progress, &mut self.sent, &mut messages, &mut out.read_log);
        }
        for (peer, message) in messages {
            self.send(peer, message, out);
        }
    }

    pub(super) fn leader_tick(&mut self, ctx: &mut StepContext<'_>) {
        self.check_transfer(ctx);
        let RoleState::Leader(leader) = &mut self.state else { return };
        for progress in leader.peers.values_mut() {
            let health = progress.health(ctx.now.mono, &self.options);
            if std::mem::replace(&mut progress.reported, health) != health {
                ctx.out.status_changed = true;
            }
        }
    }

    /// Handles the result of an update.
    pub(super) fn updated(
        &mut self,
        peer: PeerId,
        sent: u64,
        result: Result<UpdateResponse>,
        ctx: &mut StepContext<'_>,
    ) {
        if let Ok(response) = &result
            && response.responder == peer
            && response.term > self.meta.term
        {
            return self.adopt_term(response.term, ctx);
        }
        let RoleState::Leader(leader) = &mut self.state else { return };
        let Some(progress) = leader.peers.get_mut(&peer) else { return };
        if !progress.on_response(sent) {
            return;
        }
        match result {
            Err(_) => progress.failed(ctx.now.mono, &self.options),
            Ok(response) if response.responder != peer => progress.failed(ctx.now.mono, &self.options),
            Ok(response) => self.handle_response(sent, response, ctx),
        }
        self.after_response(peer, ctx);
    }

    fn handle_response(&mut self, sent: u64, response: UpdateResponse, ctx: &mut StepContext<'_>) {
        let RoleState::Leader(leader) = &mut self.state else { return };
        let Some(progress) = leader.peers.get_mut(&response.responder) else { return };
        let (now, options) = (ctx.now.mono, &self.options);
        let was_unrecoverable = progress.unrecoverable;
        progress.last_response = Some(now);
        let in_term = response.term == self.meta.term;
        if in_term {
            progress.confirmed = progress.confirmed.max(sent);
        }
        match response.error.as_ref().map(|error| error.kind) {
            None if in_term => progress.accepted(&response, &self.log),
            Some(UpdateErrorKind::PrecedingMismatch) if in_term => {
                progress.reset_next_index(sent, &response, &self.log)
            }
            // A response from an earlier term says nothing about this one.
            None | Some(UpdateErrorKind::PrecedingMismatch | UpdateErrorKind::InvalidTerm) => {}
            Some(UpdateErrorKind::TabletNotFound) => progress.on_replica_missing(),
            Some(UpdateErrorKind::TabletFailed) => {
                progress.broken = true;
                progress.failed(now, options);
            }
            Some(UpdateErrorKind::WrongUuid) => {
                progress.last_response = None;
                progress.failed(now, options);
            }
            Some(
                UpdateErrorKind::CannotPrepare | UpdateErrorKind::TabletNotRunning | UpdateErrorKind::Invalid,
            ) => progress.failed(now, options),
        }
        mark_needs_gced_entries(was_unrecoverable, progress, ctx);
    }

    /// Takes the steps that a response may have enabled.
    fn after_response(&mut self, peer: PeerId, ctx: &mut StepContext<'_>) {
        self.advance_commit(ctx);
        self.confirm_safe_time(ctx);
        self.promote(peer, ctx);
        self.check_transfer(ctx);
        self.evict();
    }

    /// Handles entries read from the log for a peer.
    pub(super) fn log_read(
        &mut self,
        peer: PeerId,
        from: u64,
        result: Result<Vec<ReplicateEntry>>,
        ctx: &mut StepContext<'_>,
    ) {
        let RoleState::Leader(leader) = &mut self.state else { return };
        let Some(progress) = leader.peers.get_mut(&peer) else { return };
        let was_unrecoverable = progress.unrecoverable;
        let (now, options) = (ctx.now.mono, &self.options);
        match result {
            Ok(entries) => {
                let entries = self.log.committed_part(entries, self.committed.index);
                progress.on_entries_read(from, entries, &self.log, now, options);
            }
            Err(error) if error.kind == ErrorKind::NotFound => progress.on_entries_gced(from, &self.log),
            Err(_) => progress.read_failed(from, now, options),
        }
        mark_needs_gced_entries(was_unrecoverable, progress, ctx);
    }

    /// Handles the response to a copy request.
    pub(super) fn copy_started(&mut self, peer: PeerId, result: Result<()>, ctx: &mut StepContext<'_>) {
        let RoleState::Leader(leader) = &mut self.state else { return };
        if let Some(progress) = leader.peers.get_mut(&peer) {
            progress.copy_begun(result.is_ok(), ctx.now.mono, &self.options);
        }
    }

    /// Commits the entries that a majority of the voters of the configuration in force has durably, if the last of them
    /// is of this term: an older one might still be replaced (Raft §5.4.2, figure 8).
    pub(super) fn advance_commit(&mut self, ctx: &mut StepContext<'_>) {
        let RoleState::Leader(leader) = &self.state else { return };
        let config = self.pending_configs.back().map_or(&self.meta.committed, |(_, config)| config);
        let mut acknowledged = [0u64; VOTERS_MAX];
        let mut voters = 0;
        for peer in config.voters().take(acknowledged.len()) {
            acknowledged[voters] = if peer.id == self.me {
                self.log.durable()
            } else {
                leader.peers.get(&peer.id).map_or(0, |progress| progress.matched)
            };
            voters += 1;
        }
        let sorted = &mut acknowledged[..voters];
        sorted.sort_unstable();
        // Ascending: a majority of the voters is at or above this index.
        let index = sorted[voters - config.majority()].min(self.log.last().index);
        if index > self.committed.index && self.log.term_at(index) == Some(self.meta.term) {
            self.set_committed(index, RaftAction::AdvanceCommit, ctx);
        } else if index > self.committed.index {
            ctx.out.mark("commit: a majority has an entry of an older term");
        }
    }

    /// Advances the commit index to `index`.
    pub(super) fn set_committed(&mut self, index: u64, action: RaftAction, ctx: &mut StepContext<'_>) {
        let entry = self.log.get(index).expect("uncommitted entries are in memory");
        (self.committed, self.committed_at) = (entry.op, entry.timestamp);
        self.note(ctx, action);
        let before = self.meta.committed.opid_index;
        while let Some((at, _)) = self.pending_configs.front()
            && *at <= index
        {
            let (at, config) = self.pending_configs.pop_front().expect("the front was checked");
            debug_assert_eq!(config.opid_index, Some(at));
            self.meta.committed = config;
            // Even a configuration known to be committed before a restart was reported as pending since.
            ctx.out.status_changed = true;
        }
        if self.meta.committed.opid_index != before {
            self.store_meta(false, ctx.out);
            self.config_committed(ctx);
        }
    }

    /// Replies to the callers of committed configuration changes, and steps down if this replica is no longer a voter.
    fn config_committed(&mut self, ctx: &mut StepContext<'_>) {
        let RoleState::Leader(leader) = &mut self.state else { return };
        let (committed, waiting) =
            leader.tickets.drain(..).partition(|(index, _)| *index <= self.committed.index);
        leader.tickets = waiting;
        let committed: Vec<(u64, u64)> = committed;
        for (_, ticket) in committed {
            self.reply(ticket, RaftReply::Config(Ok(())), ctx.out);
        }
        if !self.active_config().is_voter(self.me) {
            self.step_down(ctx);
        }
    }

    /// Stops leading or being a candidate within the term.
    pub(super) fn step_down(&mut self, ctx: &mut StepContext<'_>) {
        self.become_follower(ctx);
        self.leader = None;
        self.note(ctx, RaftAction::StepDown);
    }

    /// Returns true if a majority of the voters, this one counted, responded within an election timeout.
    pub(super) fn is_quorum_active(&self, now: Instant) -> bool {
        let RoleState::Leader(leader) = &self.state else { return false };
        let timeout = self.options.election_timeout();
        let config = self.active_config();
        let responded = |id: PeerId| {
            let at = leader.peers.get(&id).and_then(|progress| progress.last_response);
            id == self.me || now.since(at.unwrap_or(leader.since)) < timeout
        };
        config.voters().filter(|peer| responded(peer.id)).count() >= config.majority()
    }

    /// Updates the peers from the members of the configuration in force.
    pub(super) fn sync_peers(&mut self) {
        let config = self.pending_configs.back().map_or(&self.meta.committed, |(_, config)| config);
        let RoleState::Leader(leader) = &mut self.state else { return };
        leader.peers.retain(|id, _| config.peer(*id).is_some());
        for peer in config.peers.iter().filter(|peer| peer.id != self.me) {
            match leader.peers.get_mut(&peer.id) {
                Some(progress) => progress.peer = peer.clone(),
                None => {
                    leader.peers.insert(peer.id, PeerProgress::new(peer.clone(), self.log.last().index));
                }
            }
        }
    }

    /// Evicts entries from memory that no peer needs from there.
    pub(super) fn evict(&mut self) {
        let all_replicated = match &self.state {
            RoleState::Leader(leader) => leader.all_replicated_index(u64::MAX),
            _ => self.all_replicated,
        };
        self.log.evict(self.committed.index, all_replicated, self.options.cache_bytes_max);
    }

    pub(super) fn healths(&self, now: Instant) -> Vec<(PeerId, PeerHealth)> {
        let RoleState::Leader(leader) = &self.state else { return Vec::new() };
        let health = |p: &PeerProgress| (p.peer.id, p.health(now, &self.options));
        leader.peers.values().map(health).collect()
    }
}

/// Records a coverage mark if a peer has just been found to need entries that log GC deleted.
fn mark_needs_gced_entries(was_unrecoverable: bool, progress: &PeerProgress, ctx: &mut StepContext<'_>) {
    if progress.unrecoverable && !was_unrecoverable {
        ctx.out.mark("log: a member needs entries that log GC removed");
    }
}
