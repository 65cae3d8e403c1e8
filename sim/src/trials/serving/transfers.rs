//! Transfers of leadership to a voter that the operator names.

use std::time::Duration;

use engine::raft::{PeerHealth, RaftStatus};
use nyala_common::wire::schema::id_bytes;
use nyala_proto::kudu::consensus::{LeaderStepDownMode, LeaderStepDownRequestPb, LeaderStepDownResponsePb};

use super::tablet_case::TabletCase;
use super::{SERVERS, ServingTrial};
use crate::wire::client::{CONSENSUS, text_of};

/// Time within which a voter that runs has caught up.
const CAUGHT_UP: Duration = Duration::from_secs(1);
/// Time until a transfer has succeeded, or was given up.
const MOVED: Duration = Duration::from_secs(4);
/// Time until what a cut link has held back has arrived.
const RETRANSMITTED: Duration = Duration::from_secs(5);
/// Percentage of transfers to a voter that the leader cannot reach.
const DEAF_PERCENT: u64 = 40;

impl ServingTrial {
    /// Asks the leader of a tablet to transfer leadership to another voter. It must lead then, or, if the leader
    /// cannot reach it and no segments are lost, the leader stays.
    pub(super) fn transfer(&mut self) {
        self.calm();
        let Some((at, leader)) = self.led_tablet() else { return };
        let case = self.tablets[at].clone();
        if case.members.len() < SERVERS {
            return;
        }
        let others: Vec<usize> = (0..SERVERS).filter(|server| *server != leader).collect();
        let (to, deaf) = (self.random.pick(&others), self.random.percent(DEAF_PERCENT));
        if !self.follows(leader, to, &case) {
            return;
        }
        if deaf {
            self.fleet.cut_links(leader, Some(to));
        }
        let request = self.transfer_request(&case, leader, to);
        let reply: Result<LeaderStepDownResponsePb, _> =
            self.fleet.call(leader, (CONSENSUS, "LeaderStepDown"), request);
        let refused = reply.map(|reply| reply.error.map(|error| text_of(&error.status)));
        self.pass(MOVED);
        let now = self.fleet.leader(case.id);
        self.fleet
            .note(format!("transfer of {at} from {leader} to {to}, deaf {deaf}: {refused:?}, {now:?} leads"));
        if deaf {
            // The request may still arrive.
            self.fleet.repair_links();
            self.pass(RETRANSMITTED);
        }
        let expected = if deaf { leader } else { to };
        // A voter without heartbeats grants the pre-vote of another one, if segments to that one are lost too.
        let may_move = deaf && (now == Some(to) || self.fleet.plan.network.loss_per_mille > 0);
        let is_right = now == Some(expected) || may_move;
        let status = self.fleet.status(leader, case.id);
        if status.is_some_and(|status| status.transferring) {
            self.fleet.report(format!("{leader} still transfers its leadership of {at}"));
        }
        if matches!(refused, Ok(None)) && !is_right {
            let what = format!("leadership went from {leader} to {now:?}, and the operator named {to}");
            self.fleet.report(what);
        }
    }

    pub(super) fn transfer_request(
        &self,
        case: &TabletCase,
        leader: usize,
        to: usize,
    ) -> LeaderStepDownRequestPb {
        LeaderStepDownRequestPb {
            dest_uuid: Some(id_bytes(&self.fleet.ids[leader])),
            tablet_id: id_bytes(&case.id),
            mode: Some(LeaderStepDownMode::Graceful as i32),
            new_leader_uuid: Some(id_bytes(&self.fleet.ids[to])),
        }
    }

    /// Ends all faults, and waits until nothing of them can have an effect.
    pub(super) fn calm(&mut self) {
        self.fleet.repair_links();
        // Order: a server may not start without space.
        self.free_all();
        (0..SERVERS).for_each(|server| self.fleet.restart(server));
        self.pass(RETRANSMITTED);
    }

    /// Returns true if a voter has had time to catch up with the leader, which calls it healthy.
    fn follows(&mut self, leader: usize, to: usize, case: &TabletCase) -> bool {
        self.pass(CAUGHT_UP);
        let status = self.fleet.status(leader, case.id);
        status.is_some_and(|status| self.is_healthy(to, case, &status))
    }

    /// Returns true if a voter runs, and the leader with this status calls it healthy.
    pub(super) fn is_healthy(&self, voter: usize, case: &TabletCase, of_leader: &RaftStatus) -> bool {
        let id = self.fleet.ids[voter];
        self.fleet.replica(voter, case.id).is_some()
            && of_leader.peers.iter().any(|peer| peer.id == id && peer.health == PeerHealth::Healthy)
    }
}
