//! The masters' part of a hosting trial: members leave and join, and replicas of former members are deleted.

use std::sync::Arc;
use std::time::Duration;

use engine::raft::interface::PeerStatus;
use engine::raft::{ConfigPosition, PeerHealth, RaftConfig, RaftStatus};
use engine::replica::tombstone::may_delete;
use node::hosting::tablet_entry::EntryState;
use nyala_common::wire::schema::id_bytes;
use nyala_proto::kudu::consensus::raft_peer_pb::MemberType;
use nyala_proto::kudu::consensus::{
    ChangeConfigRequestPb, ChangeConfigResponsePb, ChangeConfigType, RaftPeerAttrsPb, RaftPeerPb,
};
use nyala_proto::kudu::tablet::TabletDataState;
use nyala_proto::kudu::tserver::DeleteTabletResponsePb;

use super::calls::tablet_id;
use super::late_order::LateOrder;
use super::{HostingTrial, MEMBERS, SERVERS};
use crate::trials::fleet::{OneCall, host};
use crate::wire::client::{CONSENSUS, text_of};
use crate::world::World;

/// Percentage of evictions whose order to delete comes late.
const LATE_PERCENT: u64 = 60;
/// Percentage of additions that overtake the order to delete the server's former replica, and by how much at most.
const OVERTAKEN_PERCENT: u64 = 60;
const OVERTAKEN_MILLIS: u64 = 250;
/// Percentage of additions of a server with a former replica that the order to delete it meets, and by how much later
/// it is sent at most.
const BESIDE_PERCENT: u64 = 60;
const BESIDE_MICROS: u64 = 6_000;
/// Factors by which that server is slower meanwhile, so that its replica stops with messages before it.
const SLOW_CPU: [u64; 4] = [1, 500, 5_000, 20_000];
const SLOW_DISKS: [u32; 3] = [1, 10, 60];
/// Percentage of those in which that server pauses, number of pauses, and the longest one in milliseconds.
const PAUSED_PERCENT: u64 = 60;
const BUNCHES: usize = 8;
const PAUSED_MILLIS: u64 = 12;

/// Addition of a server that meets the order to delete its former replica.
pub(super) struct Meeting {
    /// Factors by which the server's CPU and its devices are slower meanwhile.
    pub cpu: u64,
    pub disks: u32,
    /// Time between the two orders.
    pub delay: Duration,
    /// Pauses of the server.
    pub pauses: Vec<Duration>,
}

impl HostingTrial {
    /// Evicts a member other than the leader: the rotten one, else one that is not healthy, if there is one.
    pub(super) fn evict(&mut self) {
        let Some((leader, status)) = self.leader_at_rest() else { return };
        let config = &status.committed_config;
        let lost = status.peers.iter().find(|peer| !self.is_sound(peer));
        let at = self.random.below(status.peers.len().max(1) as u64) as usize;
        let other = lost.or(status.peers.get(at)).and_then(|peer| self.server_of(peer));
        let rotten = self.rotten_member(config);
        let Some(server) = rotten.filter(|rotten| *rotten != leader).or(other) else { return };
        // A rotten leader is not left as half of a group.
        let voters = if rotten == Some(leader) { MEMBERS + 1 } else { MEMBERS };
        if config.voter_count() >= voters || !config.is_voter(self.fleet.ids[server]) {
            self.remove(leader, server);
        }
    }

    /// Returns the server that has a damaged file, if it is a member.
    pub(super) fn rotten_member(&self, config: &RaftConfig) -> Option<usize> {
        self.rotten.filter(|server| config.peer(self.fleet.ids[*server]).is_some())
    }

    /// Removes a member, and orders the deletion of its replica now or later.
    pub(super) fn remove(&mut self, leader: usize, server: usize) {
        let peer =
            RaftPeerPb { permanent_uuid: Some(id_bytes(&self.fleet.ids[server])), ..Default::default() };
        if !self.change(leader, ChangeConfigType::RemovePeer, peer) {
            return;
        }
        let status = self.leader().and_then(|leader| self.status(leader));
        let Some(status) =
            status.filter(|status| status.committed_config.peer(self.fleet.ids[server]).is_none())
        else {
            return;
        };
        let order = LateOrder { server, cas: status.committed_position };
        self.late.push(order);
        if !self.random.percent(LATE_PERCENT) {
            let _ = self.delete(server, TabletDataState::TabletDataTombstoned, Some(order.cas));
        }
    }

    /// Adds a server as a learner that becomes a voter.
    pub(super) fn add(&mut self) {
        let Some((leader, status)) = self.leader_at_rest() else { return };
        let others = (0..SERVERS).filter(|at| status.committed_config.peer(self.fleet.ids[*at]).is_none());
        let others: Vec<usize> = others.collect();
        if others.is_empty() || status.committed_config.peers.len() > MEMBERS {
            return;
        }
        let server = self.random.pick(&others);
        let learner = self.marked_learner(server);
        let late = self.late.iter().rev().find(|order| order.server == server).copied();
        let late = late.filter(|_| self.replica(server).is_some());
        if let Some(order) = late.filter(|_| self.random.percent(BESIDE_PERCENT)) {
            return self.add_beside_deletion(leader, learner, order);
        }
        if self.change(leader, ChangeConfigType::AddPeer, learner) && self.random.percent(OVERTAKEN_PERCENT) {
            self.delete_added(server);
        }
    }

    /// Returns a server as a learner that is marked for promotion.
    pub(super) fn marked_learner(&self, server: usize) -> RaftPeerPb {
        let attrs = Some(RaftPeerAttrsPb { promote: Some(true), replace: None });
        RaftPeerPb { attrs, ..self.fleet.peer(server, MemberType::NonVoter) }
    }

    /// Adds a server that still has its former replica, while the order to delete that arrives. The server is slow, or
    /// pauses, so that its replica stops with messages before it.
    fn add_beside_deletion(&mut self, leader: usize, learner: RaftPeerPb, order: LateOrder) {
        let (cpu, disks) = (self.random.pick(&SLOW_CPU), self.random.pick(&SLOW_DISKS));
        let micros = self.random.pick(&[BESIDE_MICROS, BESIDE_MICROS * 10]);
        let delay = Duration::from_micros(self.random.below(micros));
        let paused = Duration::from_millis(self.random.between(2, PAUSED_MILLIS));
        let pauses = if self.random.percent(PAUSED_PERCENT) { vec![paused; BUNCHES] } else { Vec::new() };
        self.meet_deletion(leader, learner, order, Meeting { cpu, disks, delay, pauses });
    }

    /// Adds a server, and orders the deletion of its former replica meanwhile.
    pub(super) fn meet_deletion(
        &mut self,
        leader: usize,
        learner: RaftPeerPb,
        order: LateOrder,
        Meeting { cpu, disks, delay, pauses }: Meeting,
    ) {
        let server = order.server;
        self.fleet.world.machine(&host(server).name()).slow_cpu(cpu);
        self.fleet.slow_disks(server, disks);
        let former = self.replica(server);
        let addition = self.change_call(leader, ChangeConfigType::AddPeer, learner);
        let deletion = self.delete_call(server, TabletDataState::TabletDataTombstoned, Some(order.cas));
        let replies = self.fleet.call_both::<_, ChangeConfigResponsePb, _, DeleteTabletResponsePb>(
            addition,
            delay,
            deletion,
            |fleet| fleet.run_in_bunches(server, pauses),
        );
        self.fleet.world.machine(&host(server).name()).slow_cpu(1);
        self.fleet.slow_disks(server, 1);
        let refused = replies.map(|(added, deleted)| {
            let added = added.map(|reply| reply.error.map(|error| text_of(&error.status)));
            (added, deleted.map(|reply| reply.error.map(|error| text_of(&error.status))))
        });
        if matches!(refused, Some((_, Ok(None)))) {
            self.rotten.take_if(|rotten| *rotten == server);
        }
        let known = former.map(|replica| replica.status().active_position);
        self.fleet.note(format!(
            "addition of {server} by {leader}, deletion after {delay:?} of what knows {known:?}: {refused:?}"
        ));
        if matches!(refused, Some((_, Ok(None)))) {
            self.check_order(order, known);
        }
    }

    /// Reports a replica that was deleted although it knew a newer configuration than the order.
    fn check_order(&mut self, order: LateOrder, known: Option<ConfigPosition>) {
        let Some(known) = known else { return };
        let is_void = known.term.zip(order.cas.term).is_some_and(|(known, cas)| known < cas);
        if known.index > order.cas.index && !is_void {
            let what = format!("{order:?} has deleted a replica that knew the configuration at {known:?}");
            self.fleet.report(what);
        }
    }

    /// Lets the order to delete a server's former replica arrive right after the server was added again.
    fn delete_added(&mut self, server: usize) {
        let Some(order) = self.late.iter().rev().find(|order| order.server == server).copied() else {
            return;
        };
        let millis = self.random.below(OVERTAKEN_MILLIS);
        self.fleet.pass(Duration::from_millis(millis));
        let _ = self.delete(server, TabletDataState::TabletDataTombstoned, Some(order.cas));
    }

    pub(super) fn change(&mut self, leader: usize, kind: ChangeConfigType, peer: RaftPeerPb) -> bool {
        let call = self.change_call(leader, kind, peer.clone());
        let reply: Result<ChangeConfigResponsePb, _> = self.fleet.send(call);
        let refused = reply.map(|reply| reply.error.map(|error| text_of(&error.status)));
        let id = peer.permanent_uuid.unwrap_or_default();
        let number = self.fleet.ids.iter().position(|own| id_bytes(own) == id);
        self.fleet.note(format!("{kind:?} {number:?} by {leader}: {refused:?}"));
        matches!(refused, Ok(None))
    }

    fn change_call(
        &self,
        leader: usize,
        kind: ChangeConfigType,
        peer: RaftPeerPb,
    ) -> OneCall<ChangeConfigRequestPb> {
        let request = ChangeConfigRequestPb {
            dest_uuid: Some(id_bytes(&self.fleet.ids[leader])),
            tablet_id: tablet_id(),
            r#type: Some(kind as i32),
            server: Some(peer),
            cas_config_opid_index: None,
        };
        OneCall { server: leader, service: CONSENSUS, method: "ChangeConfig", request }
    }

    /// Returns the leader and its status, if no change of members is in progress.
    pub(super) fn leader_at_rest(&self) -> Option<(usize, Arc<RaftStatus>)> {
        let leader = self.leader()?;
        let status = self.status(leader)?;
        status.pending_config.is_none().then_some((leader, status))
    }

    /// Returns true if a member is healthy and its replica runs.
    pub(super) fn is_sound(&self, peer: &PeerStatus) -> bool {
        let runs = self.server_of(peer).is_some_and(|server| self.replica(server).is_some());
        peer.health == PeerHealth::Healthy && runs
    }

    pub(super) fn server_of(&self, peer: &PeerStatus) -> Option<usize> {
        self.fleet.ids.iter().position(|id| *id == peer.id)
    }

    /// Returns the servers of the other members that a leader knows.
    pub(super) fn followers(&self, leader: usize, status: &RaftStatus) -> Vec<usize> {
        let servers = status.peers.iter().filter_map(|peer| self.server_of(peer));
        servers.filter(|server| *server != leader).collect()
    }

    /// Returns true if the group has its members, all of them healthy voters, and no other server a replica with data.
    pub(super) fn is_whole(&self) -> bool {
        let Some((_, status)) = self.leader_at_rest() else { return false };
        let config = &status.committed_config;
        let former = (0..SERVERS).filter(|at| config.peer(self.fleet.ids[*at]).is_none());
        let gone = |at: usize| match self.state(at) {
            None | Some(EntryState::Tombstoned(_)) => true,
            // An order may not know that its newer configuration will never be committed.
            Some(EntryState::Running(replica)) => {
                !may_delete(replica.status().active_position, Some(status.committed_position))
            }
            Some(_) => false,
        };
        config.peers.len() == MEMBERS
            && config.voter_count() == MEMBERS
            && status.peers.iter().all(|peer| self.is_sound(peer))
            && former.into_iter().all(gone)
    }
}
