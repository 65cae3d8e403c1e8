//! What a leader does: append, count who has what, and call committed what a majority has (Raft §5.3, §5.4.2).

use std::collections::BTreeMap;

use bytes::Bytes;

use super::config::VOTERS_MAX;
use super::message::{Clock, Health, LogChange, Output, Reply, UpdateErrorKind, UpdateResponse, kind};
use super::queue::Progress;
use super::safe_time::Picks;
use super::transfer::Transfer;
use super::{Ctx, Raft, RaftOptions, State, message};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{OpId, PeerId};
use crate::note::raft::Action;
use crate::time::{Instant, Now};
use crate::wal::Replicate;

/// What only a leader knows.
pub(super) struct Leader {
    pub since: Instant,
    /// Index of the no-op its term began with.
    pub first: u64,
    /// Every other member of the configuration in force.
    pub peers: BTreeMap<PeerId, Progress>,
    /// Who waits for the configuration that this entry makes: index, ticket.
    pub tickets: Vec<(u64, u64)>,
    pub transfer: Option<Transfer>,
    pub picks: Picks,
}

impl Leader {
    pub fn deadline(&self, options: &RaftOptions) -> Instant {
        let peers = self.peers.values().map(|progress| progress.deadline(options));
        let transfer = self.transfer.iter().map(Transfer::deadline);
        let picks = self.picks.deadline(options).filter(|_| !self.peers.is_empty());
        peers.chain(transfer).chain(picks).min().unwrap_or(Instant(u64::MAX))
    }

    /// Every member has everything up to here; `own`: what this leader's log has durably.
    pub fn all_have(&self, own: u64) -> u64 {
        self.peers.values().map(|progress| progress.matched).min().unwrap_or(own).min(own)
    }

    /// Nobody waits for anything that an answer can bring.
    pub fn is_at_rest(&self, last: OpId, options: &RaftOptions) -> bool {
        let peers_rest = self.peers.values().all(|progress| progress.is_at_rest(last, options));
        peers_rest && self.transfer.is_none() && self.tickets.is_empty() && self.picks.is_unwanted()
    }
}

impl Raft {
    pub(super) fn become_leader(&mut self, ctx: &mut Ctx<'_>) {
        let now = ctx.now.mono;
        let leader = Leader {
            since: now,
            first: self.log.last().index + 1,
            peers: BTreeMap::new(),
            tickets: Vec::new(),
            transfer: None,
            picks: Picks::default(),
        };
        self.state = State::Leader(Box::new(leader));
        self.pre_election = None;
        self.elections_lost = 0;
        self.leader = Some(self.me);
        self.received = OpId::MIN;
        ctx.out.status_changed = true;
        self.note(ctx, Action::BecomeLeader);
        self.sync_peers();
        self.pass_predecessors(ctx);
        self.append_own(kind::NO_OP, message::NO_OP_PAYLOAD, ctx.clock, ctx.out);
    }

    /// The leader became a follower: nobody will tell those who wait here whether their change was committed.
    pub(super) fn leader_left(&mut self, leader: Leader, ctx: &mut Ctx<'_>) {
        for (index, ticket) in leader.tickets {
            let message = format!(
                "replica {} stopped leading before the configuration of operation {index} was committed; look \
                 at the new leader whether it is",
                self.me
            );
            self.reply(ticket, Reply::Config(Err(Error::aborted(message))), ctx.out);
        }
    }

    /// Gives an entry its place in this leader's log.
    pub(super) fn append_own(
        &mut self,
        kind: u8,
        payload: Bytes,
        clock: &mut dyn Clock,
        out: &mut Output,
    ) -> Replicate {
        let mut op = self.log.last();
        (op.term, op.index) = (self.meta.term, op.index + 1);
        let timestamp = clock.begin();
        let entry = Replicate { op, timestamp, kind, payload };
        self.log.append(entry.clone());
        out.log.push(LogChange::Append { entry: entry.clone(), own: true });
        if kind != kind::CONFIG {
            self.note_to(out, Action::ClientAppend { op, timestamp });
        }
        entry
    }

    /// Sends every peer what it should be sent now; free if there is nothing to do.
    pub fn pump(&mut self, now: Now, out: &mut Output) {
        let State::Leader(leader) = &mut self.state else { return };
        if leader.peers.is_empty() {
            return;
        }
        let mut messages = Vec::new();
        let all_replicated = leader.all_have(self.log.durable());
        let queue = super::queue::Queue {
            now: now.mono,
            options: &self.options,
            log: &self.log,
            meta: &self.meta,
            me: self.me,
            committed: self.committed.index,
            all_replicated,
            safe: leader.picks.confirmed(),
        };
        for progress in leader.peers.values_mut() {
            queue.fill(progress, &mut self.sent, &mut messages, &mut out.read_log);
        }
        for (peer, message) in messages {
            self.send(peer, message, out);
        }
    }

    pub(super) fn leader_tick(&mut self, ctx: &mut Ctx<'_>) {
        self.check_transfer(ctx);
        let State::Leader(leader) = &mut self.state else { return };
        for progress in leader.peers.values_mut() {
            let health = progress.health(ctx.now.mono, &self.options);
            if std::mem::replace(&mut progress.reported, health) != health {
                ctx.out.status_changed = true;
            }
        }
    }

    /// A peer answered an update, or could not be asked.
    pub(super) fn updated(
        &mut self,
        peer: PeerId,
        sent: u64,
        result: Result<UpdateResponse>,
        ctx: &mut Ctx<'_>,
    ) {
        if let Ok(response) = &result
            && response.responder == peer
            && response.term > self.meta.term
        {
            return self.adopt_term(response.term, ctx);
        }
        let State::Leader(leader) = &mut self.state else { return };
        let Some(progress) = leader.peers.get_mut(&peer) else { return };
        if !progress.landed(sent) {
            return;
        }
        match result {
            Err(_) => progress.failed(ctx.now.mono, &self.options),
            Ok(response) if response.responder != peer => progress.failed(ctx.now.mono, &self.options),
            Ok(response) => self.answered(sent, response, ctx),
        }
        self.after_answer(peer, ctx);
    }

    fn answered(&mut self, sent: u64, response: UpdateResponse, ctx: &mut Ctx<'_>) {
        let State::Leader(leader) = &mut self.state else { return };
        let Some(progress) = leader.peers.get_mut(&response.responder) else { return };
        let (now, options) = (ctx.now.mono, &self.options);
        let was_lost = progress.unrecoverable;
        progress.heard = Some(now);
        let in_term = response.term == self.meta.term;
        if in_term {
            progress.confirmed = progress.confirmed.max(sent);
        }
        match response.error.as_ref().map(|error| error.kind) {
            None if in_term => progress.accepted(&response, &self.log),
            Some(UpdateErrorKind::PrecedingMismatch) if in_term => progress.jump(&response, &self.log),
            // An answer from an earlier term tells nothing about this one.
            None | Some(UpdateErrorKind::PrecedingMismatch | UpdateErrorKind::InvalidTerm) => {}
            Some(UpdateErrorKind::TabletNotFound) => progress.lost_everything(),
            Some(UpdateErrorKind::TabletFailed) => {
                progress.broken = true;
                progress.failed(now, options);
            }
            Some(UpdateErrorKind::WrongUuid) => {
                progress.heard = None;
                progress.failed(now, options);
            }
            Some(
                UpdateErrorKind::CannotPrepare | UpdateErrorKind::TabletNotRunning | UpdateErrorKind::Invalid,
            ) => progress.failed(now, options),
        }
        mark_lost(was_lost, progress, ctx);
    }

    /// What an answer may have made possible.
    fn after_answer(&mut self, peer: PeerId, ctx: &mut Ctx<'_>) {
        self.advance_commit(ctx);
        self.confirm_safe_time(ctx);
        self.promote(peer, ctx);
        self.check_transfer(ctx);
        self.evict();
    }

    /// What was read from the log for a peer.
    pub(super) fn log_read(
        &mut self,
        peer: PeerId,
        from: u64,
        result: Result<Vec<Replicate>>,
        ctx: &mut Ctx<'_>,
    ) {
        let State::Leader(leader) = &mut self.state else { return };
        let Some(progress) = leader.peers.get_mut(&peer) else { return };
        let was_lost = progress.unrecoverable;
        match result {
            Ok(entries) => progress.took(from, entries, self.committed.index, &self.log),
            Err(error) if error.kind == ErrorKind::NotFound => progress.out_of_reach(from, &self.log),
            Err(_) => progress.read_failed(from, ctx.now.mono, &self.options),
        }
        mark_lost(was_lost, progress, ctx);
    }

    /// The target of a copy said whether it has begun.
    pub(super) fn copy_started(&mut self, peer: PeerId, result: Result<()>, ctx: &mut Ctx<'_>) {
        let State::Leader(leader) = &mut self.state else { return };
        if let Some(progress) = leader.peers.get_mut(&peer) {
            progress.copy_begun(result.is_ok(), ctx.now.mono, &self.options);
        }
    }

    /// Calls committed what a majority of the voters of the configuration in force has durably, if its last entry is
    /// of this term: an older one might still be replaced (Raft §5.4.2, figure 8).
    pub(super) fn advance_commit(&mut self, ctx: &mut Ctx<'_>) {
        let State::Leader(leader) = &self.state else { return };
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
        // Ascending: as many as a majority are at or above this one.
        let index = sorted[voters - config.majority()].min(self.log.last().index);
        if index > self.committed.index && self.log.term_at(index) == Some(self.meta.term) {
            self.set_committed(index, Action::AdvanceCommit, ctx);
        } else if index > self.committed.index {
            ctx.out.mark("commit: a majority has an entry of an older term, which is not enough");
        }
    }

    /// Everything up to `index` is committed.
    pub(super) fn set_committed(&mut self, index: u64, action: Action, ctx: &mut Ctx<'_>) {
        let entry = self.log.get(index).expect("what is not committed is in memory");
        (self.committed, self.committed_at) = (entry.op, entry.timestamp);
        self.note(ctx, action);
        let before = self.meta.committed.opid_index;
        while let Some((at, _)) = self.pending_configs.front()
            && *at <= index
        {
            let (at, config) = self.pending_configs.pop_front().expect("it was just looked at");
            debug_assert_eq!(config.opid_index, Some(at));
            self.meta.committed = config;
            // Even if it was known before a restart to be committed, it was shown as pending since.
            ctx.out.status_changed = true;
        }
        if self.meta.committed.opid_index != before {
            self.store_meta(false, ctx.out);
            self.config_committed(ctx);
        }
    }

    /// Answers those who waited for a configuration, and leaves an office this replica lost by it.
    fn config_committed(&mut self, ctx: &mut Ctx<'_>) {
        let State::Leader(leader) = &mut self.state else { return };
        let (done, waiting) = leader.tickets.drain(..).partition(|(index, _)| *index <= self.committed.index);
        leader.tickets = waiting;
        let done: Vec<(u64, u64)> = done;
        for (_, ticket) in done {
            self.reply(ticket, Reply::Config(Ok(())), ctx.out);
        }
        if !self.active_config().is_voter(self.me) {
            self.step_down(ctx);
        }
    }

    /// Stops leading or standing in a term that goes on.
    pub(super) fn step_down(&mut self, ctx: &mut Ctx<'_>) {
        self.leave_office(ctx);
        self.leader = None;
        self.note(ctx, Action::StepDown);
    }

    /// Whether a majority of the voters, this one counted, was heard of within an election timeout.
    pub(super) fn quorum_heard(&self, now: Instant) -> bool {
        let State::Leader(leader) = &self.state else { return false };
        let patience = self.options.election_timeout();
        let config = self.active_config();
        let heard = |id: PeerId| {
            let at = leader.peers.get(&id).and_then(|progress| progress.heard);
            id == self.me || now.since(at.unwrap_or(leader.since)) < patience
        };
        config.voters().filter(|peer| heard(peer.id)).count() >= config.majority()
    }

    /// Members of the configuration in force are the peers to send to.
    pub(super) fn sync_peers(&mut self) {
        let config = self.pending_configs.back().map_or(&self.meta.committed, |(_, config)| config);
        let State::Leader(leader) = &mut self.state else { return };
        leader.peers.retain(|id, _| config.peer(*id).is_some());
        for peer in config.peers.iter().filter(|peer| peer.id != self.me) {
            match leader.peers.get_mut(&peer.id) {
                Some(progress) => progress.peer = peer.clone(),
                None => {
                    leader.peers.insert(peer.id, Progress::new(peer.clone(), self.log.last().index));
                }
            }
        }
    }

    /// Lets go of entries in memory that nobody needs from there.
    pub(super) fn evict(&mut self) {
        let all_have = match &self.state {
            State::Leader(leader) => leader.all_have(u64::MAX),
            _ => self.all_replicated,
        };
        self.log.evict(self.committed.index, all_have, self.options.cache_bytes_max);
    }

    pub(super) fn healths(&self, now: Instant) -> Vec<(PeerId, Health)> {
        let State::Leader(leader) = &self.state else { return Vec::new() };
        let health = |p: &Progress| (p.peer.id, p.health(now, &self.options));
        leader.peers.values().map(health).collect()
    }
}

/// Says that a peer needs what the log does not have any more, if that has just been found.
fn mark_lost(was: bool, progress: &Progress, ctx: &mut Ctx<'_>) {
    if progress.unrecoverable && !was {
        ctx.out.mark("log: a member needs what is cut off");
    }
}
