//! Leaderships leave a server that is short of space, each time that it becomes so.

use std::time::Duration;

use engine::raft::RaftStatus;
use nyala_proto::kudu::consensus::LeaderStepDownResponsePb;

use super::server_space::DATA;
use super::tablet_case::TabletCase;
use super::{SERVERS, ServingTrial};
use crate::cluster::WAL_DIR;
use crate::wire::client::CONSENSUS;
use crate::world::World;

/// Time within which another voter leads.
const MOVED: Duration = Duration::from_secs(4);
/// Times that a server becomes short: less than a minute apart.
const TIMES: usize = 2;

impl ServingTrial {
    /// Returns the tablets whose leadership a server must give up when it becomes short. All servers reach each other,
    /// no segment is lost, which might elect it again, and the other voters follow and have space: between two servers
    /// without any, leadership stays after a transfer.
    pub(super) fn movable(&self, server: usize) -> Vec<usize> {
        if !self.fleet.is_connected() || self.fleet.plan.network.loss_per_mille > 0 {
            return Vec::new();
        }
        (0..self.tablets.len()).filter(|at| self.is_movable(server, &self.tablets[*at])).collect()
    }

    fn is_movable(&self, server: usize, case: &TabletCase) -> bool {
        let Some(status) = self.fleet.status(server, case.id) else { return false };
        let mut others = (0..SERVERS).filter(|other| *other != server);
        !case.is_dropped
            && case.members.len() == SERVERS
            && self.fleet.leader(case.id) == Some(server)
            && others.all(|other| self.can_lead(other, case, &status))
    }

    /// Returns true if a voter follows, by the leader's status, and waits for no space.
    fn can_lead(&self, server: usize, case: &TabletCase, of_leader: &RaftStatus) -> bool {
        let of = self.directories[server];
        let dir = self.fleet.entry(server, case.id).map(|entry| entry.data_dir.path.clone());
        let has_space = dir.is_some_and(|dir| !of.refuse_writes(&dir));
        has_space && self.is_healthy(server, case, of_leader) && !of.may_wait(self.fleet.world.now())
    }

    /// Reports tablets of `led` that a server which has become short still leads after some time.
    pub(super) fn check_moved(&mut self, server: usize, mut led: Vec<usize>) {
        led.retain(|at| self.refuses(server, *at));
        if led.is_empty() {
            return;
        }
        self.pass(MOVED);
        // A new leader may just be elected.
        if led.iter().any(|at| self.fleet.leader(self.tablets[*at].id).is_none()) {
            self.pass(MOVED);
        }
        for at in led {
            let leader = self.fleet.leader(self.tablets[at].id);
            self.fleet.note(format!("leadership of {at} leaves {server}, which is short: {leader:?} leads"));
            if self.fleet.is_connected() && leader.is_none_or(|leader| leader == server) {
                self.fleet.report(format!("{server} is short of space, and {leader:?} leads tablet {at}"));
            }
        }
    }

    /// Returns true if a server must refuse writes of a tablet.
    fn refuses(&self, server: usize, at: usize) -> bool {
        let entry = self.fleet.entry(server, self.tablets[at].id);
        entry.is_some_and(|entry| self.directories[server].refuse_writes(&entry.data_dir.path))
    }

    /// Lets the leader of a tablet run short of space, and again as soon as it leads once more.
    pub(super) fn run_short_twice(&mut self) {
        self.calm();
        let Some((at, server)) = self.led_tablet() else { return };
        let case = self.tablets[at].clone();
        if case.members.len() < SERVERS {
            return;
        }
        let entry = self.fleet.entry(server, case.id);
        let own = entry.and_then(|entry| DATA.into_iter().find(|dir| entry.data_dir.path == *dir));
        let path = own.filter(|_| self.random.percent(50)).unwrap_or(WAL_DIR);
        for time in 0..TIMES {
            if time > 0 && !self.lead_again(&case, server) {
                return;
            }
            let led = self.movable(server);
            if time > 0 && led.contains(&at) {
                self.fleet.note(format!("{server} leads {at} again, and runs short once more"));
            }
            self.fill(server, path);
            self.check_moved(server, led);
            self.free_directory(server, path);
        }
    }

    /// Has a server lead a tablet again; false if it does not.
    fn lead_again(&mut self, case: &TabletCase, server: usize) -> bool {
        // What waited for space is written first.
        self.pass(MOVED);
        let Some(leader) = self.fleet.leader(case.id).filter(|leader| *leader != server) else {
            return false;
        };
        let request = self.transfer_request(case, leader, server);
        let _asked: Result<LeaderStepDownResponsePb, _> =
            self.fleet.call(leader, (CONSENSUS, "LeaderStepDown"), request);
        self.pass(MOVED);
        self.fleet.leader(case.id) == Some(server)
    }
}
