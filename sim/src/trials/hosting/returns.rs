//! Members that leave a calm group and come back, while the order to delete their former replicas arrives.
//!
//! ```text
//!   leader    ── AddPeer ──► update that does not fit ──► update with the newer configuration
//!   replica                  │ turn ─────────────────│    │ turn ─────────────────│ stop: the configuration is known
//!   operator                       order to delete ───────► checked by the older configuration
//! ```

use std::time::Duration;

use nyala_common::wire::schema::id_bytes;
use nyala_proto::kudu::consensus::{ChangeConfigType, RaftPeerPb};

use super::HostingTrial;
use super::late_order::LateOrder;
use super::operator::Meeting;

/// Members that leave and come back.
const RETURNS: usize = 4;
/// Factor by which the replica's server is slower: a turn takes 40 ms. The order follows the addition within two turns.
const SLOW_CPU: u64 = 20_000;
const LATER_MILLIS: u64 = 90;

impl HostingTrial {
    /// Lets one member after the other leave and come back.
    pub(super) fn return_members(&mut self) {
        for _ in 0..RETURNS {
            let Some((leader, order)) = self.remove_follower() else { return };
            let delay = Duration::from_millis(self.random.below(LATER_MILLIS));
            let meeting = Meeting { cpu: SLOW_CPU, disks: 1, delay, pauses: Vec::new() };
            let learner = self.marked_learner(order.server);
            self.meet_deletion(leader, learner, order, meeting);
            if !self.await_whole() {
                return;
            }
        }
    }

    /// Removes a follower of a calm group; returns the leader and the order to delete the replica.
    fn remove_follower(&mut self) -> Option<(usize, LateOrder)> {
        let (leader, status) = self.calm_group()?;
        let followers = self.followers(leader, &status);
        if followers.is_empty() {
            return None;
        }
        let server = self.random.pick(&followers);
        let id = self.fleet.ids[server];
        let peer = RaftPeerPb { permanent_uuid: Some(id_bytes(&id)), ..Default::default() };
        if !self.change(leader, ChangeConfigType::RemovePeer, peer) {
            return None;
        }
        let status = self.status(leader).filter(|status| status.committed_config.peer(id).is_none())?;
        self.replica(server)?;
        Some((leader, LateOrder { server, cas: status.committed_position }))
    }
}
