//! Copies over failed replicas that break off, and the votes of what they leave.
//!
//! A failed replica does not know the end of its log. What a broken copy leaves in its place must not vote as if it
//! ended with its last flush: a candidate without acknowledged operations would win.

use std::time::Duration;

use engine::tablet::superblock::DataState;
use nyala_common::wire::schema::id_bytes;
use nyala_proto::kudu::consensus::{LeaderStepDownRequestPb, LeaderStepDownResponsePb};

use super::calls::tablet_id;
use super::{HostingTrial, SERVERS};
use crate::trials::fleet::host;
use crate::wire::client::CONSENSUS;

/// Most time of a copy before it breaks off, in microseconds.
const COPY_MICROS: u64 = 25_000;
/// Time within which another leader is elected.
const ELECTION: Duration = Duration::from_millis(1_500);

impl HostingTrial {
    /// Orders a copy over a failed replica, breaks it off, and asks what it leaves for a vote.
    pub(super) fn break_copy_over_failed(&mut self) {
        let failed = |trial: &HostingTrial| (0..SERVERS).find(|at| trial.has_failed(*at));
        if failed(self).is_none() {
            self.write();
            self.rot();
        }
        let (Some(server), Some(leader)) = (failed(self), self.leader()) else { return };
        let is_ready = |state: Option<DataState>| state == Some(DataState::Ready);
        if leader == server || !is_ready(self.stored_state(server)) {
            return;
        }
        self.end_disk_faults(server);
        // Nothing else copies to it, and no leader tells it of a term.
        for other in (0..SERVERS).filter(|other| *other != server && *other != leader) {
            self.fleet.cut_links(server, Some(other));
        }
        let source = self.fleet.ids[leader];
        self.order_copy(server, (source, &host(leader).name()), None);
        let micros = self.random.below(COPY_MICROS);
        self.fleet.pass(Duration::from_micros(micros));
        self.break_off(server);
        self.fleet.cut_links(server, Some(leader));
        self.step_down(leader);
        self.fleet.restart(server);
        self.ask_in_newest_term(server);
    }

    /// Lets another leader be elected in a term in which a server that is cut off has not voted.
    fn step_down(&mut self, leader: usize) {
        let request = LeaderStepDownRequestPb {
            dest_uuid: Some(id_bytes(&self.fleet.ids[leader])),
            tablet_id: tablet_id(),
            ..Default::default()
        };
        let _: Result<LeaderStepDownResponsePb, _> =
            self.fleet.call(leader, (CONSENSUS, "LeaderStepDown"), request);
        self.fleet.pass(ELECTION);
    }

    fn break_off(&mut self, server: usize) {
        match self.random.below(3) {
            0 => self.fleet.kill(server),
            1 => self.fleet.cut_power(server),
            _ => {
                self.fail_disk(server);
                self.fleet.pass(Duration::from_millis(200));
                self.end_disk_faults(server);
            }
        }
    }
}
