//! The quiet end of a hosting trial: without faults the group becomes whole, also after a last scenario
//! (`calm_end.rs`), and then each server deletes its replica.

use std::time::Duration;

use engine::disk::mem::MemDisk;
use engine::raft::interface::PeerStatus;
use engine::raft::{Peer, PeerHealth, RaftConfig};
use node::hosting::replica::ReplicaHandle;
use node::hosting::tablet_entry::EntryState;
use nyala_proto::kudu::tablet::TabletDataState;

use super::{HostingTrial, MEMBERS, SERVERS};
use crate::cluster::{COPY_IDLE, DATA_DIR, WAL_DIR};
use crate::trials::fleet::host;
use crate::world::World;

/// Rounds until which the group is whole again.
const ROUNDS: u32 = 120;
const ROUND: Duration = Duration::from_millis(500);
/// Rounds after which servers whose replicas failed are restarted if nothing can be changed: a majority may have.
const PATIENCE: u32 = 30;
/// Attempts to delete a replica.
const ATTEMPTS: u32 = 5;

impl HostingTrial {
    pub(super) fn end(&mut self) {
        self.fleet.steps.push("the quiet end".to_string());
        self.fleet.repair_links();
        for server in 0..SERVERS {
            self.end_disk_faults(server);
            self.fleet.restart(server);
        }
        if !self.await_whole() {
            return;
        }
        self.act_in_calm_group();
        if self.await_whole() {
            self.check_tombstones();
            self.check_resources();
            self.delete_all();
        }
    }

    /// Does what the group needs until it is whole; returns false if something is wrong.
    pub(super) fn await_whole(&mut self) -> bool {
        for round in 0..ROUNDS {
            self.fleet.pass(ROUND);
            if self.fleet.found.is_some() {
                return false;
            }
            if self.is_whole() {
                return true;
            }
            self.repair();
            // With a leader that commits, an operator replaces what has failed, unless a rotten member is to go first.
            if round % PATIENCE == PATIENCE - 1 && !(self.is_led() && self.has_no_rotten_member()) {
                self.restart_failed();
            }
        }
        let states = self.show_all();
        self.fleet.report(format!("the group is not whole again without faults: {states}"));
        false
    }

    pub(super) fn show_all(&self) -> String {
        let states: Vec<String> = (0..SERVERS).map(|server| self.show(server)).collect();
        states.join("; ")
    }

    /// Reports tombstones whose log or rows are still there: the next start would remove them.
    fn check_tombstones(&mut self) {
        for server in 0..SERVERS {
            if self.keeps_data_of_tombstone(server) {
                self.fleet.report(format!("server {server} has data of a tombstone"));
            }
        }
    }

    /// Reports what servers still hold after the time for which they keep what died.
    fn check_resources(&mut self) {
        self.fleet.pass(COPY_IDLE + ROUND * 20);
        if let Some(held) = self.fleet.held_resources() {
            let states = self.show_all();
            self.fleet.report(format!("{held}: {states}"));
        }
    }

    pub(super) fn disks(&mut self, server: usize) -> [MemDisk; 2] {
        let machine = self.fleet.world.machine(&host(server).name());
        [machine.disk(WAL_DIR), machine.disk(DATA_DIR)]
    }

    /// Does one of the things that the group needs.
    fn repair(&mut self) {
        let Some((leader, status)) = self.leader_at_rest() else { return };
        let config = status.committed_config.clone();
        for server in 0..SERVERS {
            let is_member = config.peer(self.fleet.ids[server]).is_some();
            if !is_member && !matches!(self.state(server), None | Some(EntryState::Tombstoned(_))) {
                let cas = Some(status.committed_position);
                let _ = self.delete(server, TabletDataState::TabletDataTombstoned, cas);
            }
        }
        let learns = config.peers.len() > config.voter_count();
        // A learner's replica is still being copied, if it has not failed.
        let is_lost = |at: usize| self.has_failed(at) || self.replica(at).is_none() && !learns;
        let is_gone = |peer: &PeerStatus| {
            peer.health == PeerHealth::FailedUnrecoverable || self.server_of(peer).is_some_and(is_lost)
        };
        let lost = status.peers.iter().find(|peer| is_gone(peer));
        // Another one must not leave the rotten one as half of a group.
        let rotten = self.rotten_member(&config).filter(|rotten| *rotten != leader);
        if let Some(server) = self.plain_learner(&config) {
            return self.remove(leader, server);
        }
        match rotten.or(lost.and_then(|peer| self.server_of(peer))) {
            Some(server) if config.peers.len() >= MEMBERS => self.remove(leader, server),
            Some(server) if !config.is_voter(self.fleet.ids[server]) => self.remove(leader, server),
            _ if config.peers.len() < MEMBERS => self.add(),
            _ if config.voter_count() > MEMBERS => self.evict(),
            _ => {}
        }
    }

    /// Returns a learner that no mark makes a voter.
    fn plain_learner(&self, config: &RaftConfig) -> Option<usize> {
        let learner = config.peers.iter().find(|peer| !peer.is_voter() && !peer.promote)?.id;
        self.fleet.ids.iter().position(|id| *id == learner)
    }

    /// Restarts servers whose replica has failed: what a disk refused once may be whole. Also those that the newest
    /// leader does not know as members: it may be a deposed one, and the replica of its successor has failed.
    fn restart_failed(&mut self) {
        for server in 0..SERVERS {
            if self.has_failed(server) {
                self.fleet.kill(server);
                self.fleet.restart(server);
            }
        }
    }

    pub(super) fn has_failed(&self, server: usize) -> bool {
        match self.state(server) {
            Some(EntryState::Running(replica)) => replica.failure().is_some(),
            state => matches!(state, Some(EntryState::Failed(_))),
        }
    }

    /// Returns true if a leader can change the members: all it has is committed, and a majority runs.
    fn is_led(&self) -> bool {
        let Some((_, status)) = self.leader_at_rest() else { return false };
        let config = &status.committed_config;
        let runs = |at: usize| config.is_voter(self.fleet.ids[at]) && self.replica(at).is_some();
        let running = (0..SERVERS).filter(|at| runs(*at)).count();
        status.committed == status.last && running > config.voter_count() / 2
    }

    /// Returns true if no member's replica is rotten.
    fn has_no_rotten_member(&self) -> bool {
        self.leader_at_rest().is_none_or(|(_, status)| self.rotten_member(&status.committed_config).is_none())
    }

    /// Deletes the tablet at every server; nothing of it may stay.
    fn delete_all(&mut self) {
        self.fill_some();
        for server in 0..SERVERS {
            let mut last = Ok(());
            for _ in 0..ATTEMPTS {
                if self.state(server).is_none() {
                    break;
                }
                last = self.delete(server, TabletDataState::TabletDataDeleted, None);
                self.fleet.pass(ROUND);
            }
            if self.state(server).is_some() {
                self.fleet.report(format!("server {server} does not delete its replica: {last:?}"));
            } else if !self.has_nothing(server) {
                self.fleet.report(format!("server {server} has files of a deleted tablet"));
            }
        }
    }

    pub(super) fn show(&self, server: usize) -> String {
        let state = match self.state(server) {
            None => "nothing".to_string(),
            Some(EntryState::Running(replica)) => self.show_replica(&replica),
            Some(EntryState::Failed(error)) => format!("failed: {error}"),
            Some(EntryState::Tombstoned(last)) => format!("a tombstone at {last:?}"),
            Some(EntryState::Copying) => "copying".to_string(),
            Some(EntryState::Bootstrapping) => "bootstrapping".to_string(),
            Some(EntryState::Stopping | EntryState::Stopped) => "stopping".to_string(),
        };
        format!("server {server}: {state}")
    }

    fn show_replica(&self, replica: &ReplicaHandle) -> String {
        let status = replica.status();
        let of_member = |peer: &Peer| {
            let number = self.fleet.ids.iter().position(|id| *id == peer.id);
            let number = number.map_or("?".to_string(), |number| number.to_string());
            format!("{number} {:?}", peer.member)
        };
        let members = |config: &RaftConfig| config.peers.iter().map(of_member).collect::<Vec<_>>().join(", ");
        let pending = status.pending_config.as_ref().map(members);
        let (role, last, committed) = (status.role, status.last, status.committed);
        let peers: Vec<_> =
            status.peers.iter().map(|peer| (self.server_of(peer), peer.health, peer.matched)).collect();
        let failure = replica.failure().map(|error| error.message);
        format!(
            "{role} of {} (pending {pending:?}), last {last}, committed {committed}, {peers:?}, {failure:?}",
            members(&status.committed_config)
        )
    }
}
