//! Turns of a tablet's replicas: elections, replication, commits, promotions, copies.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::catalog::ReportedHealth;
use engine::error::Error;
use engine::ids::{PeerId, TabletId};

use super::CatalogTrial;
use super::agenda::Occasion;
use super::group::{Member, Pending, Replica, ReplicaMode, short};
use super::server::TrialServer;

/// Time between two turns of a tablet's replicas.
const TURN: Duration = Duration::from_millis(350);
/// Silence after which a leader reports a member as failed.
pub(super) const SILENT: Duration = Duration::from_secs(3);

impl CatalogTrial {
    /// Returns true if a replica leads its group now.
    pub(super) fn leads(&self, server: PeerId, tablet: TabletId) -> bool {
        let leads = self.groups.get(&tablet).is_some_and(|group| group.leader == Some(server));
        leads && self.running(server, tablet).is_some()
    }

    /// Returns true if a majority of these voters has running replicas on servers that are up.
    pub(super) fn has_majority(&self, tablet: TabletId, members: &[Member]) -> bool {
        let voters = || members.iter().filter(|member| member.voter);
        let living = voters().filter(|member| self.running(member.server, tablet).is_some()).count();
        living > voters().count() / 2
    }

    /// Returns true if the group's leader can commit an entry.
    pub(super) fn can_commit(&self, tablet: TabletId) -> bool {
        let Some(group) = self.groups.get(&tablet) else { return false };
        let led = group.leader.is_some_and(|leader| self.leads(leader, tablet));
        led && self.has_majority(tablet, group.active()) && self.has_majority(tablet, group.members())
    }

    /// Lets the leader and enough voters have all committed entries.
    pub(super) fn acknowledge(&mut self, tablet: TabletId) {
        let group = &self.groups[&tablet];
        let (len, leader) = (group.len, group.leader);
        let voters: Vec<PeerId> =
            group.active().iter().filter(|member| member.voter).map(|member| member.server).collect();
        let majority = voters.len() / 2 + 1;
        let mut acknowledged = 0;
        let leader_first = leader.into_iter().chain(voters.iter().copied().filter(|id| Some(*id) != leader));
        for server in leader_first.collect::<Vec<_>>() {
            let needed = acknowledged < majority || Some(server) == leader;
            if self.running(server, tablet).is_some() && (needed || self.random.percent(60)) {
                acknowledged += usize::from(voters.contains(&server));
                self.teach(server, tablet, len);
            }
        }
    }

    /// Lets a replica have entries and know the leader.
    fn teach(&mut self, server: PeerId, tablet: TabletId, len: usize) {
        let (term, leader) = (self.groups[&tablet].term, self.groups[&tablet].leader);
        let at = self.servers.get_mut(&server).and_then(|server| server.replicas.get_mut(&tablet));
        let Some(replica) = at else { return };
        let next = Replica { mode: replica.mode, has: len, term, leader };
        if (replica.has, replica.term, replica.leader) != (next.has, next.term, next.leader) {
            *replica = next;
            self.mark_changed(server, tablet);
        }
    }

    /// Lets the replicas of a tablet work a little.
    pub(super) fn group_turn(&mut self, tablet: TabletId) {
        let has_replica = self.servers.values().any(|server| server.replicas.contains_key(&tablet));
        if !has_replica && self.model.ended.contains(&tablet) {
            self.agenda.add(self.now + TURN * 20, Occasion::GroupTurn(tablet));
            return;
        }
        let leader = self.groups[&tablet].leader.filter(|leader| self.leads(*leader, tablet));
        match leader {
            Some(leader) => self.lead(leader, tablet),
            None => {
                self.give_back_copies(tablet);
                if !self.faults || self.random.percent(40) {
                    self.elect(tablet);
                }
            }
        }
        self.agenda.add(self.now + TURN, Occasion::GroupTurn(tablet));
    }

    /// Elects a voter that has all committed entries, if a majority can vote.
    pub(super) fn elect(&mut self, tablet: TabletId) {
        let group = &self.groups[&tablet];
        let is_fit = |member: &&Member| {
            let replica = self.running(member.server, tablet);
            member.voter && replica.is_some_and(|replica| replica.has == group.len)
        };
        let fit: Vec<PeerId> = group.members().iter().filter(is_fit).map(|member| member.server).collect();
        let accepted = group.pending.as_ref().map(|pending| pending.members.clone());
        if fit.is_empty() || !self.has_majority(tablet, group.members()) {
            return;
        }
        let next = self.random.pick(&fit);
        // The next leader may have the accepted configuration too, which is committed then.
        let keeps = accepted.is_some_and(|members| {
            self.has_majority(tablet, &members)
                && members.iter().any(|member| member.server == next && member.voter)
        });
        let keeps = keeps && self.random.percent(30);
        if keeps {
            self.refuse_asker(tablet);
        }
        self.elect_server(tablet, next, keeps);
    }

    fn elect_server(&mut self, tablet: TabletId, next: PeerId, keeps: bool) {
        self.end_pending(tablet, keeps);
        if let Some(group) = self.groups.get_mut(&tablet) {
            group.elect(next);
            let term = group.term;
            self.note(format!("{next} leads {} in term {term}", short(&tablet)));
        }
        self.update_health(next, tablet);
        self.acknowledge(tablet);
    }

    /// Transfers leadership to a voter.
    pub(super) fn transfer(&mut self, tablet: TabletId, next: PeerId) -> Result<(), Error> {
        let group = &self.groups[&tablet];
        let has_all = self.running(next, tablet).is_some_and(|replica| replica.has == group.len);
        if !has_all || !group.is_voter(next) || group.pending.is_some() || !self.can_commit(tablet) {
            return Err(Error::not_ready("leadership cannot be transferred now"));
        }
        self.elect_server(tablet, next, false);
        Ok(())
    }

    fn lead(&mut self, leader: PeerId, tablet: TabletId) {
        let group = &self.groups[&tablet];
        let (len, members) = (group.len, group.active().to_vec());
        for member in &members {
            if self.running(member.server, tablet).is_some() && (!self.faults || self.random.percent(70)) {
                self.teach(member.server, tablet, len);
            }
        }
        if self.groups[&tablet].pending.is_some() {
            if self.can_commit(tablet) && (!self.faults || self.random.percent(60)) {
                self.end_pending(tablet, true);
            }
        } else {
            self.promote(tablet);
        }
        self.end_copies(tablet);
        self.copy_to_members(tablet, &members);
        self.update_health(leader, tablet);
    }

    /// Lets the leader promote a learner that has caught up.
    fn promote(&mut self, tablet: TabletId) {
        let group = &self.groups[&tablet];
        let is_ready = |member: &Member| {
            let replica = self.running(member.server, tablet);
            !member.voter && member.promote && replica.is_some_and(|replica| replica.has == group.len)
        };
        let Some(at) = group.members().iter().position(is_ready) else { return };
        let mut members = group.members().to_vec();
        (members[at].voter, members[at].promote) = (true, false);
        self.begin_pending(tablet, Pending { members, asked: None });
    }

    /// Ends copies, also those to servers that are no members any more: they have what there was when they began.
    fn end_copies(&mut self, tablet: TabletId) {
        let copying = |server: &&TrialServer| {
            let mode = server.replicas.get(&tablet).map(|replica| replica.mode);
            server.up && matches!(mode, Some(ReplicaMode::Copying(_)))
        };
        let copying: Vec<PeerId> = self.servers.values().filter(copying).map(|server| server.id).collect();
        for id in copying {
            if !self.faults || self.random.percent(50) {
                let replica = self.servers.get_mut(&id).and_then(|server| server.replicas.get_mut(&tablet));
                replica.into_iter().for_each(|replica| replica.mode = ReplicaMode::Running);
                self.mark_changed(id, tablet);
            }
        }
    }

    /// Begins copies to members without a replica.
    fn copy_to_members(&mut self, tablet: TabletId, members: &[Member]) {
        let len = self.groups[&tablet].len;
        for member in members {
            let Some(server) = self.servers.get_mut(&member.server).filter(|server| server.up) else {
                continue;
            };
            let mode = server.replicas.get(&tablet).map(|replica| replica.mode);
            match mode {
                None if server.deleted.contains(&tablet) => continue,
                None => {
                    let copying = Replica { has: len, ..Replica::new(ReplicaMode::Copying(false)) };
                    server.replicas.insert(tablet, copying);
                }
                Some(ReplicaMode::Tombstone) => {
                    let replica = server.replicas.get_mut(&tablet);
                    let copying = Replica { has: len, ..Replica::new(ReplicaMode::Copying(true)) };
                    replica.into_iter().for_each(|replica| *replica = copying.clone());
                }
                _ => continue,
            }
            self.mark_changed(member.server, tablet);
        }
    }

    /// Ends copies whose leader is gone.
    fn give_back_copies(&mut self, tablet: TabletId) {
        let ids: Vec<PeerId> = self.servers.keys().copied().collect();
        for id in ids {
            let Some(server) = self.servers.get_mut(&id).filter(|server| server.up) else { continue };
            match server.replicas.get_mut(&tablet) {
                Some(replica) if replica.mode == ReplicaMode::Copying(true) => {
                    replica.mode = ReplicaMode::Tombstone;
                }
                Some(replica) if replica.mode == ReplicaMode::Copying(false) => {
                    server.replicas.remove(&tablet);
                }
                _ => continue,
            }
            self.mark_changed(id, tablet);
        }
    }

    fn update_health(&mut self, leader: PeerId, tablet: TabletId) {
        let health = self.health_seen_by(leader, tablet);
        let Some(group) = self.groups.get_mut(&tablet) else { return };
        if group.health != health {
            group.health = health;
            self.mark_changed(leader, tablet);
        }
    }

    /// Returns the health of the members, as their leader sees it now.
    fn health_seen_by(&self, leader: PeerId, tablet: TabletId) -> BTreeMap<PeerId, ReportedHealth> {
        let Some(group) = self.groups.get(&tablet) else { return BTreeMap::new() };
        let has = self.servers.get(&leader).and_then(|server| server.replicas.get(&tablet));
        let (_, members) = group.config_at(has.map_or(0, |replica| replica.has));
        let health = |member: &Member| {
            if member.server == leader {
                return (leader, ReportedHealth::Healthy);
            }
            (member.server, self.health_of(member.server, tablet))
        };
        members.iter().map(health).collect()
    }

    fn health_of(&self, server: PeerId, tablet: TabletId) -> ReportedHealth {
        let last = self.groups[&tablet].health.get(&server).copied();
        let Some(server) = self.servers.get(&server) else { return ReportedHealth::Failed };
        if !server.up {
            let silent = self.now - server.down_since >= SILENT;
            return if silent { ReportedHealth::Failed } else { last.unwrap_or(ReportedHealth::Healthy) };
        }
        match server.replicas.get(&tablet).map(|replica| replica.mode) {
            Some(ReplicaMode::Running) => ReportedHealth::Healthy,
            Some(ReplicaMode::Failed) => ReportedHealth::FailedUnrecoverable,
            _ => ReportedHealth::Unknown,
        }
    }
}
