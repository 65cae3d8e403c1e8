//! Configuration changes, one voter at a time (dissertation §4.1; Kudu paper §3.4).
//!
//! A change is accepted only when no other is pending and when this leader has committed an operation of its own term.
//! Without the latter, two leaders of successive terms could each change the same configuration by one voter, and their
//! majorities need not meet (the bug of 2015 in single-server changes).

use super::interface::{RaftEffects, RaftReply};
use super::{
    ConfigChange, ConfigChangePart, MemberKind, Peer, PeerHealth, Raft, RaftConfig, RoleState, StepContext,
    kind,
};
use crate::error::{Error, Result};
use crate::ids::PeerId;
use crate::note::raft::RaftAction;
use crate::time::ClockReading;

impl RaftConfig {
    /// Ids of voters and of learners.
    pub(super) fn split_ids(&self) -> (Vec<PeerId>, Vec<PeerId>) {
        let (voters, learners): (Vec<_>, Vec<_>) = self.peers.iter().partition(|peer| peer.is_voter());
        let ids = |peers: Vec<&super::Peer>| peers.into_iter().map(|peer| peer.id).collect();
        (ids(voters), ids(learners))
    }
}

impl Raft {
    /// Starts a configuration change; the reply follows when it is committed.
    pub(super) fn change_config(&mut self, ticket: u64, change: &ConfigChange, ctx: &mut StepContext<'_>) {
        match self.next_config(change, ctx) {
            Ok(config) => {
                // The specification calls the initial one 0.
                let cas = change.cas_opid_index.map(|index| u64::try_from(index).unwrap_or(0));
                let index = self.append_config(config, cas, ctx);
                if let RoleState::Leader(leader) = &mut self.state {
                    leader.tickets.push((index, ticket));
                }
                self.advance_commit(ctx);
            }
            Err(error) => self.reply(ticket, RaftReply::Config(Err(error)), ctx.out),
        }
    }

    fn next_config(&self, change: &ConfigChange, ctx: &mut StepContext<'_>) -> Result<RaftConfig> {
        self.check_change().inspect_err(|_| self.mark_refused_change(ctx.out))?;
        let changed = self.present_config().changed(change, self.me);
        let next = changed.inspect_err(|_| ctx.out.mark("config change: rejected, invalid"))?;
        let promoted = self.check_promoted(&next);
        promoted.inspect_err(|_| ctx.out.mark("config change: rejected, a new voter lags"))?;
        let evicts = change.parts.iter().any(|part| {
            let demotes = matches!(part, ConfigChangePart::Modify { member: Some(MemberKind::NonVoter), .. });
            (demotes || matches!(part, ConfigChangePart::Remove(_)))
                && self.meta.committed.is_voter(part.peer())
        });
        if evicts {
            let has_live_majority = self.check_majority_lives(&next, ctx.now);
            has_live_majority
                .inspect_err(|_| ctx.out.mark("config change: rejected, too few live voters"))?;
        }
        Ok(next)
    }

    /// The committed configuration, on which the next one is based. New members call this replica by the address in it.
    fn present_config(&self) -> RaftConfig {
        let mut config = self.meta.committed.clone();
        config.readdress_only_voter(self.me, self.address.as_ref());
        config
    }

    /// Fails unless a configuration change may start now.
    fn check_change(&self) -> Result<()> {
        self.check_leader()?;
        if let Some((index, config)) = self.pending_configs.back() {
            return Err(Error::not_ready(format!(
                "RaftConfig change currently pending. Only one is allowed at a time: operation {index} makes {config}"
            )));
        }
        if !self.is_caught_up_leader() {
            return Err(Error::not_ready(format!(
                "Leader has not yet committed an operation in its own term {}; retry",
                self.meta.term
            )));
        }
        Ok(())
    }

    /// Records a coverage mark for the reason of the rejection.
    fn mark_refused_change(&self, out: &mut RaftEffects) {
        out.mark(match self.pending_configs.back() {
            _ if !matches!(self.state, RoleState::Leader(_)) => "config change: rejected, not the leader",
            Some(_) => "config change: rejected, another is pending",
            None => "config change: rejected, no commit in this term",
        });
    }

    /// Rejects the promotion of a lagging learner: the group could depend on it before it has caught up.
    fn check_promoted(&self, next: &RaftConfig) -> Result<()> {
        let RoleState::Leader(leader) = &self.state else { return Ok(()) };
        let committed = &self.meta.committed;
        let promoted = |id: &PeerId| next.is_voter(*id) && committed.peer(*id).is_some_and(|p| !p.is_voter());
        for (id, progress) in leader.peers.iter().filter(|(id, _)| promoted(id)) {
            if !progress.is_caught_up(self.committed.index, &self.log, &self.options) {
                let matched = progress.matched;
                return Err(Error::not_ready(format!(
                    "peer {id} has operations up to {matched} of {}: too few to become a voter; retry later",
                    self.committed.index
                )));
            }
        }
        Ok(())
    }

    /// Rejects the eviction of a voter if too few live voters would remain to commit it.
    fn check_majority_lives(&self, next: &RaftConfig, now: ClockReading) -> Result<()> {
        let healths = self.healths(now.mono);
        let is_live = |id: PeerId| id == self.me || healths.contains(&(id, PeerHealth::Healthy));
        let living = next.voters().filter(|peer| is_live(peer.id)).count();
        if living >= next.majority() {
            return Ok(());
        }
        Err(Error::not_ready(format!(
            "the change would leave {} voters, of which {living} are alive: fewer than a majority",
            next.voter_count()
        )))
    }

    /// Puts a configuration in force. Returns the index of its entry.
    fn append_config(&mut self, config: RaftConfig, cas: Option<u64>, ctx: &mut StepContext<'_>) -> u64 {
        let index = self.log.last().index + 1;
        let config = RaftConfig { opid_index: Some(index), ..config };
        let (voters, learners) = config.split_ids();
        let entry = self.append_own(kind::CONFIG, config.encode(), ctx.clock, ctx.out);
        self.pending_configs.push_back((index, config));
        self.sync_peers();
        self.note(ctx, RaftAction::ConfigAppend { op: entry.op, voters, learners, cas });
        ctx.out.status_changed = true;
        index
    }

    /// Promotes a learner that is marked for it and has caught up.
    pub(super) fn promote(&mut self, id: PeerId, ctx: &mut StepContext<'_>) {
        let RoleState::Leader(leader) = &self.state else { return };
        let Some(progress) = leader.peers.get(&id).filter(|progress| progress.wants_promotion()) else {
            return;
        };
        if !progress.is_caught_up(self.committed.index, &self.log, &self.options)
            || self.check_change().is_err()
        {
            return;
        }
        let part = ConfigChangePart::Modify {
            id,
            member: Some(MemberKind::Voter),
            promote: Some(false),
            replace: None,
        };
        let change =
            ConfigChange { parts: vec![part], cas_opid_index: Some(self.meta.committed.kudu_index()) };
        if let Ok(config) = self.present_config().changed(&change, self.me) {
            let cas = self.meta.committed.opid_index.unwrap_or(0);
            self.append_config(config, Some(cas), ctx);
        }
    }

    /// Forces a configuration on behalf of an operator, for a majority that is lost.
    ///
    /// The replica opens a separate term for the configuration, so that its entry is newer than any entry the lost
    /// majority could have. Then it starts an election in the next term.
    pub(super) fn unsafe_config(
        &mut self,
        ticket: u64,
        voters: &[PeerId],
        caller: &str,
        ctx: &mut StepContext<'_>,
    ) {
        let config = self.retained_members(voters, caller);
        let reply = config.as_ref().map(drop).map_err(Clone::clone);
        if let Ok(config) = config {
            let term = self.meta.term + 1;
            self.see_term(term, ctx);
            self.meta.voted_for = Some(self.me);
            self.append_config(config, None, ctx);
            self.start_election(true, ctx);
        }
        self.reply(ticket, RaftReply::Config(reply), ctx.out);
    }

    /// Returns the configuration of the members that an operator keeps. The operator names ids alone: this replica
    /// knows the addresses, and a server unknown here has no data of this tablet.
    fn retained_members(&self, voters: &[PeerId], caller: &str) -> Result<RaftConfig> {
        let (me, active, committed) = (self.me, self.active_config(), &self.meta.committed);
        if !voters.contains(&me) {
            return Err(Error::invalid(format!(
                "server {me} must be a voter of the configuration that {caller} forces on it"
            )));
        }
        let keep = |id: &PeerId| match active.peer(*id).or_else(|| committed.peer(*id)) {
            Some(peer) => {
                Ok(Peer { member: MemberKind::Voter, promote: false, replace: false, ..peer.clone() })
            }
            None => Err(Error::invalid(format!(
                "server {id} is not in this replica's configuration, {active}; only its members can be kept"
            ))),
        };
        let config = RaftConfig::initial(voters.iter().map(keep).collect::<Result<_>>()?);
        config.check()?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{OpId, TabletId, Uuid};
    use crate::raft::interface::{UpdateErrorKind, UpdateResponse};
    use crate::raft::{BootState, ConsensusMeta, RaftEvent, RaftMessage, RaftOptions, TimestampSource};
    use crate::time::Timestamp;
    use crate::wal::ReplicateEntry;

    fn config(opid_index: Option<u64>, peers: &[u8]) -> RaftConfig {
        let peers = peers.iter().map(|peer| Peer::voter(Uuid([*peer; 16]), "a", 1)).collect();
        RaftConfig { opid_index, peers }
    }

    /// Boots a replica whose log ends with an uncommitted configuration of three voters at index 5.
    fn boot(committed: RaftConfig) -> Raft {
        let op = OpId { term: 2, index: 5 };
        let payload = config(None, &[1, 2, 3]).encode();
        let entry = ReplicateEntry { op, timestamp: Timestamp::MIN, kind: kind::CONFIG, payload };
        let boot = BootState {
            me: Uuid([1; 16]),
            address: None,
            meta: ConsensusMeta { term: 3, ..ConsensusMeta::new(TabletId::ZERO, committed) },
            meta_stored: true,
            elected: None,
            fresh: false,
            committed: OpId { term: 2, index: 4 },
            committed_at: Timestamp::MIN,
            pending: vec![entry],
            seed: 1,
        };
        Raft::new(RaftOptions::default(), boot)
    }

    #[test]
    fn a_configuration_in_the_log_before_the_committed_one_is_out_of_force() {
        assert_eq!(boot(config(None, &[1, 2])).active_config().voter_count(), 3);
        assert_eq!(boot(config(Some(5), &[1, 2, 3])).active_config().voter_count(), 3);
        let rewritten = boot(config(Some(6), &[1]));
        assert_eq!(rewritten.active_config(), &config(Some(6), &[1]));
        assert_eq!(rewritten.config_index(), 6);
    }

    /// Gives all operations one timestamp.
    struct SameTimestamp;

    impl TimestampSource for SameTimestamp {
        fn begin(&mut self) -> Timestamp {
            Timestamp::MIN
        }

        fn take(&mut self) -> Timestamp {
            Timestamp::MIN
        }

        fn pass(&mut self, _seen: Timestamp) {}
    }

    /// Processes an event at the time 0 and returns the effects.
    fn step(raft: &mut Raft, event: RaftEvent) -> RaftEffects {
        let mut out = RaftEffects::default();
        raft.step(ClockReading::default(), event, &mut SameTimestamp, &mut out);
        out
    }

    /// Starts the first of these voters on another address, and commits its no-op if it leads from the start.
    fn start_elsewhere(voters: &[u8]) -> Raft {
        let mut meta = ConsensusMeta::new(TabletId::ZERO, config(Some(4), voters));
        let elected = meta.elect_only_voter(Uuid([1; 16]), 2);
        let boot = BootState {
            me: Uuid([1; 16]),
            address: Some(("elsewhere".to_string(), 2)),
            meta,
            meta_stored: true,
            elected,
            fresh: false,
            committed: OpId { term: 2, index: 4 },
            committed_at: Timestamp::MIN,
            pending: Vec::new(),
            seed: 1,
        };
        let mut raft = Raft::new(RaftOptions::default(), boot);
        raft.start(ClockReading::default(), &mut SameTimestamp, &mut RaftEffects::default());
        let last = raft.last();
        step(&mut raft, RaftEvent::Persisted(last));
        raft
    }

    #[test]
    fn an_only_voter_that_has_moved_is_copied_from_its_present_address() {
        let mut raft = start_elsewhere(&[1]);
        let new = Peer { member: MemberKind::NonVoter, promote: true, ..Peer::voter(Uuid([2; 16]), "b", 1) };
        let part = ConfigChangePart::Add(new.clone());
        let change = ConfigChange { parts: vec![part], cas_opid_index: Some(4) };
        let out = step(&mut raft, RaftEvent::ChangeConfig { ticket: 1, change });
        let own = Peer::voter(Uuid([1; 16]), "elsewhere", 2);
        assert_eq!(raft.active_config().peers, [own.clone(), new]);
        assert_eq!(raft.active_config().voters_changed(&config(None, &[1])), 0);
        assert_eq!(raft.meta().committed, config(Some(4), &[1]), "the next one is not committed yet");
        let sent = out.messages.iter().find_map(|(_, message)| match message {
            RaftMessage::Update(request) | RaftMessage::Heartbeat(request) => Some(request.sent),
            _ => None,
        });
        let (peer, kind) = (Uuid([2; 16]), UpdateErrorKind::TabletNotFound);
        let result = Ok(UpdateResponse::refusal(peer, raft.term(), kind, String::new()));
        let out = step(&mut raft, RaftEvent::Updated { peer, sent: sent.expect("a heartbeat"), result });
        let source = out.messages.into_iter().find_map(|(_, message)| match message {
            RaftMessage::StartCopy { source, .. } => Some(source),
            _ => None,
        });
        assert_eq!(source, Some(own));
    }

    #[test]
    fn one_of_several_voters_keeps_the_address_that_the_others_know() {
        let raft = start_elsewhere(&[1, 2]);
        assert_eq!(raft.present_config(), config(Some(4), &[1, 2]));
    }
}
