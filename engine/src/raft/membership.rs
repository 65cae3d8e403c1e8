//! Changing who takes part, one voter at a time (dissertation §4.1; Kudu paper §3.4).
//!
//! A change is taken only when no other is pending and when this leader has committed an operation of its own term:
//! without the latter, two leaders of successive terms could each change the same configuration by one voter, and
//! their majorities need not meet (the bug of 2015 in single-server changes).

use super::message::{Output, Reply};
use super::{Change, ChangePart, Config, Ctx, Health, Member, Peer, Raft, State, kind};
use crate::error::{Error, Result};
use crate::ids::PeerId;
use crate::note::raft::Action;
use crate::time::Now;

impl Config {
    /// Voters and the others.
    pub(super) fn split_ids(&self) -> (Vec<PeerId>, Vec<PeerId>) {
        let (voters, learners): (Vec<_>, Vec<_>) = self.peers.iter().partition(|peer| peer.is_voter());
        let ids = |peers: Vec<&super::Peer>| peers.into_iter().map(|peer| peer.id).collect();
        (ids(voters), ids(learners))
    }
}

impl Raft {
    /// Somebody wants a change: the answer comes when it is committed.
    pub(super) fn change_config(&mut self, ticket: u64, change: &Change, ctx: &mut Ctx<'_>) {
        match self.next_config(change, ctx) {
            Ok(config) => {
                // The specification calls the initial one 0.
                let cas = change.cas_opid_index.map(|index| u64::try_from(index).unwrap_or(0));
                let index = self.append_config(config, cas, ctx);
                if let State::Leader(leader) = &mut self.state {
                    leader.tickets.push((index, ticket));
                }
                self.advance_commit(ctx);
            }
            Err(error) => self.reply(ticket, Reply::Config(Err(error)), ctx.out),
        }
    }

    fn next_config(&self, change: &Change, ctx: &mut Ctx<'_>) -> Result<Config> {
        self.check_change().inspect_err(|_| self.mark_unready(ctx.out))?;
        let changed = self.meta.committed.changed(change, self.me);
        let next = changed.inspect_err(|_| ctx.out.mark("members: refused for what it asks"))?;
        let promoted = self.check_promoted(&next);
        promoted.inspect_err(|_| ctx.out.mark("members: refused, a new voter lags"))?;
        let evicts = change.parts.iter().any(|part| {
            let demotes = matches!(part, ChangePart::Modify { member: Some(Member::NonVoter), .. });
            (demotes || matches!(part, ChangePart::Remove(_))) && self.meta.committed.is_voter(part.peer())
        });
        if evicts {
            let lives = self.check_majority_lives(&next, ctx.now);
            lives.inspect_err(|_| ctx.out.mark("members: refused, too few would be alive"))?;
        }
        Ok(next)
    }

    /// Whether any change may be made now.
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

    /// Why no change may be made now.
    fn mark_unready(&self, out: &mut Output) {
        out.mark(match self.pending_configs.back() {
            _ if !matches!(self.state, State::Leader(_)) => "members: refused, does not lead",
            Some(_) => "members: refused, another change is under way",
            None => "members: refused, nothing of the term is committed",
        });
    }

    /// A non-voter that lags must not become a voter: the group could need it, and it could not help.
    fn check_promoted(&self, next: &Config) -> Result<()> {
        let State::Leader(leader) = &self.state else { return Ok(()) };
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

    /// Taking away a voter is refused if those that stay could not agree to it.
    fn check_majority_lives(&self, next: &Config, now: Now) -> Result<()> {
        let healths = self.healths(now.mono);
        let lives = |id: PeerId| id == self.me || healths.contains(&(id, Health::Healthy));
        let living = next.voters().filter(|peer| lives(peer.id)).count();
        if living >= next.majority() {
            return Ok(());
        }
        Err(Error::not_ready(format!(
            "of the {} voters that would stay only {living} are alive: they could not agree to the change",
            next.voter_count()
        )))
    }

    /// Puts a configuration in force. Gives the index of its entry.
    fn append_config(&mut self, config: Config, cas: Option<u64>, ctx: &mut Ctx<'_>) -> u64 {
        let index = self.log.last().index + 1;
        let config = Config { opid_index: Some(index), ..config };
        let (voters, learners) = config.split_ids();
        let entry = self.append_own(kind::CONFIG, config.encode(), ctx.clock, ctx.out);
        self.pending_configs.push_back((index, config));
        self.sync_peers();
        self.note(ctx, Action::ConfigAppend { op: entry.op, voters, learners, cas });
        ctx.out.status_changed = true;
        index
    }

    /// Makes a voter of a non-voter that is marked for it and has caught up.
    pub(super) fn promote(&mut self, id: PeerId, ctx: &mut Ctx<'_>) {
        let State::Leader(leader) = &self.state else { return };
        let Some(progress) = leader.peers.get(&id).filter(|progress| progress.wants_promotion()) else {
            return;
        };
        if !progress.is_caught_up(self.committed.index, &self.log, &self.options)
            || self.check_change().is_err()
        {
            return;
        }
        let part =
            ChangePart::Modify { id, member: Some(Member::Voter), promote: Some(false), replace: None };
        let change = Change { parts: vec![part], cas_opid_index: Some(self.meta.committed.kudu_index()) };
        if let Ok(config) = self.meta.committed.changed(&change, self.me) {
            let cas = self.meta.committed.opid_index.unwrap_or(0);
            self.append_config(config, Some(cas), ctx);
        }
    }

    /// An operator decides for a majority that is lost.
    ///
    /// The replica opens a term of its own for the configuration, so that its entry is newer than anything the lost
    /// majority could still have, then stands for election in the next.
    pub(super) fn unsafe_config(&mut self, ticket: u64, voters: &[PeerId], caller: &str, ctx: &mut Ctx<'_>) {
        let config = self.kept(voters, caller);
        let answer = config.as_ref().map(drop).map_err(Clone::clone);
        if let Ok(config) = config {
            let term = self.meta.term + 1;
            self.see_term(term, ctx);
            self.meta.voted_for = Some(self.me);
            self.append_config(config, None, ctx);
            self.start_election(true, ctx);
        }
        self.reply(ticket, Reply::Config(answer), ctx.out);
    }

    /// The configuration of those of this replica's members that an operator keeps. He names ids alone: where they are
    /// reached is known here, and one that is not known here has nothing of this tablet.
    fn kept(&self, voters: &[PeerId], caller: &str) -> Result<Config> {
        let (me, active, committed) = (self.me, self.active_config(), &self.meta.committed);
        if !voters.contains(&me) {
            return Err(Error::invalid(format!(
                "server {me} must be a voter of the configuration that {caller} forces on it"
            )));
        }
        let keep = |id: &PeerId| match active.peer(*id).or_else(|| committed.peer(*id)) {
            Some(peer) => Ok(Peer { member: Member::Voter, promote: false, replace: false, ..peer.clone() }),
            None => Err(Error::invalid(format!(
                "server {id} is not in this replica's configuration, {active}; only its members can be kept"
            ))),
        };
        let config = Config::initial(voters.iter().map(keep).collect::<Result<_>>()?);
        config.check()?;
        Ok(config)
    }
}
