//! A disaster at the end of a group trial: two of three voters are lost permanently, and an operator forces a
//! configuration on a replica that is left, as `kudu remote_replica unsafe_change_config` does. The group must become
//! whole from there. It had settled before, so that nothing that is committed may be missing.

use engine::ids::PeerId;
use engine::raft::{ConfigChangePart, MemberKind, Peer, RaftEvent};

use super::ids::{id_of, peer_of};
use super::{GroupTrial, MEMBERS};

/// Percentage of trials with a disaster, and of those in which a learner may survive.
const DISASTER_PERCENT: u64 = 40;
const LEARNER_PERCENT: u64 = 50;
/// Rounds until which a learner is copied.
const COPY_ROUNDS: u32 = 200;

impl GroupTrial {
    /// Loses servers permanently in some trials, and forces a configuration on a survivor. Returns true if it has.
    pub(super) fn meet_disaster(&mut self) -> bool {
        let is_rotten = self.servers.iter().any(|server| server.rotten);
        if is_rotten || !self.random.percent(DISASTER_PERCENT) {
            return false;
        }
        if self.random.percent(LEARNER_PERCENT) {
            self.add_learner();
        }
        let Some(config) = self.ledger.newest_config().cloned() else { return false };
        let mut voters: Vec<usize> =
            self.members().filter(|server| config.is_voter(id_of(*server))).collect();
        if voters.len() != MEMBERS || self.found.is_some() {
            return false;
        }
        voters.remove(self.random.below(MEMBERS as u64) as usize);
        for server in &voters {
            self.crash(*server, true);
            self.servers[*server].is_lost = true;
        }
        self.force_config();
        true
    }

    fn members(&self) -> impl Iterator<Item = usize> + '_ {
        let config = self.ledger.newest_config();
        (0..self.servers.len())
            .filter(move |server| config.is_some_and(|config| config.peer(id_of(*server)).is_some()))
    }

    /// Adds a learner that is not to become a voter, and waits until it has everything.
    pub(super) fn add_learner(&mut self) {
        let spare: Vec<usize> =
            (0..self.servers.len()).filter(|at| self.members().all(|member| member != *at)).collect();
        let (Some(leader), false) = (self.leader(), spare.is_empty()) else { return };
        let server = self.random.pick(&spare);
        self.staying = Some(server);
        let learner = Peer { member: MemberKind::NonVoter, ..peer_of(server) };
        self.order(leader, ConfigChangePart::Add(learner), None);
        for _ in 0..COPY_ROUNDS {
            self.round();
            let last = self.ledger.last();
            if self.servers[server].running().is_some_and(|replica| replica.last_applied() == last) {
                return;
            }
        }
        let group = self.show_group();
        self.report(Some(format!("learner {server} does not get what the group has: {group}")));
    }

    /// Forces a configuration of survivors on one of them.
    fn force_config(&mut self) {
        let survivors: Vec<usize> = self.members().filter(|server| !self.servers[*server].is_lost).collect();
        let target = self.random.pick(&survivors);
        let random = &mut self.random;
        let kept = survivors.into_iter().filter(|server| *server == target || random.percent(50));
        let voters: Vec<PeerId> = kept.map(id_of).collect();
        self.note(format!("a disaster: {voters:?} are forced on {target}"));
        self.membership.force(&voters);
        self.staying = None;
        self.step(target, RaftEvent::UnsafeConfig { ticket: 0, voters, caller: "trial".to_string() });
    }
}
