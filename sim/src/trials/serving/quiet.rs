//! The quiet end of a serving trial: the leading master knows all at few heartbeats, deleted tablets leave nothing.

use std::time::Duration;

use engine::disk::Disk;
use engine::disk::mem::MemDisk;
use engine::ids::TabletId;
use engine::raft::Role;
use engine::replica::wal_dir;
use engine::tablet::flush::data_dir;

use super::masters::Condition;
use super::tablet_case::TabletCase;
use super::{HEARTBEAT, SERVERS, SIZES, ServingTrial};
use crate::cluster::COPY_IDLE;

/// Rounds until every tablet has all replicas and a leader.
const ROUNDS: u32 = 60;
const ROUND: Duration = Duration::from_millis(500);
/// Time until all changes are reported, and that in which heartbeats are counted.
const TOLD: Duration = Duration::from_secs(4);
const COUNTED: Duration = Duration::from_secs(5);
/// Heartbeats that may come in addition to those at intervals: full reports that masters want.
const EXTRA: u64 = 8;

impl ServingTrial {
    pub(super) fn end(&mut self) {
        self.fleet.steps.push("the quiet end".to_string());
        self.heal();
        if !(0..ROUNDS).any(|_| self.settle()) {
            let left = self.tablets.iter().filter(|case| !self.is_settled(case)).map(|case| self.show(case));
            let left: Vec<String> = left.collect();
            return self
                .fleet
                .report(format!("not all tablets have replicas and a leader: {}", left.join("; ")));
        }
        self.pass(TOLD + SIZES);
        self.check_reports();
        self.check_heartbeats();
        self.drop_all();
        self.pass(COPY_IDLE + TOLD);
        self.check_reports();
        self.check_resources();
        self.has_found();
    }

    fn heal(&mut self) {
        self.fleet.repair_links();
        self.masters.lock().conditions.fill(Condition::Fine);
        // Order: a server may not start without space.
        self.free_all();
        for server in 0..SERVERS {
            self.disks(server).iter().for_each(MemDisk::end_faults);
            self.fleet.restart(server);
        }
    }

    /// Sends orders again, and lets time pass; true if each tablet has all its replicas and a leader.
    fn settle(&mut self) -> bool {
        self.create_again();
        for at in 0..self.tablets.len() {
            if self.tablets[at].is_dropped {
                self.delete_replicas(at);
            }
        }
        self.restart_failed();
        self.pass(ROUND);
        self.has_found() || self.tablets.iter().all(|case| self.is_settled(case))
    }

    /// Restarts servers with a failed replica: what a disk refused once may be whole.
    fn restart_failed(&mut self) {
        for server in 0..SERVERS {
            let entries = self.fleet.running(server).map(|running| running.tablets.all()).unwrap_or_default();
            if entries.iter().any(|entry| entry.failure().is_some()) {
                self.fleet.kill(server);
                self.fleet.restart(server);
            }
        }
    }

    fn is_settled(&self, case: &TabletCase) -> bool {
        let has = |server: usize| self.fleet.entry(server, case.id).is_some();
        if case.is_dropped {
            return !case.members.iter().any(|server| has(*server));
        }
        let Some(leader) = self.fleet.leader(case.id) else { return false };
        let Some(of_leader) = self.fleet.status(leader, case.id) else { return false };
        case.members.iter().all(|server| {
            let status = self.fleet.status(*server, case.id);
            let follows = |role| role == Role::Follower || *server == leader;
            status.is_some_and(|status| status.term == of_leader.term && follows(status.role))
        })
    }

    fn show(&self, case: &TabletCase) -> String {
        let of = |server: usize| {
            let status = self.fleet.status(server, case.id);
            let state = self.fleet.entry(server, case.id).map(|entry| (entry.state_pb(), entry.failure()));
            let shown = status.map(|status| (status.role, status.term));
            format!("at {server} {shown:?} {state:?}")
        };
        let members: Vec<String> = case.members.iter().map(|server| of(*server)).collect();
        format!("{}, dropped {}: {}", case.id, case.is_dropped, members.join(", "))
    }

    /// Counts heartbeats while nothing changes.
    fn check_heartbeats(&mut self) {
        let before = std::mem::take(&mut self.masters.lock().heartbeats);
        self.pass(COUNTED);
        let counted = std::mem::take(&mut self.masters.lock().heartbeats);
        let most = (COUNTED.as_millis() / HEARTBEAT.as_millis()) as u64 + EXTRA;
        for pair in before.keys() {
            let count = counted.get(pair).copied().unwrap_or_default();
            if count > most || count < most / 3 {
                let (master, id) = (pair.0, String::from_utf8_lossy(&pair.1).into_owned());
                self.fleet.report(format!("{count} heartbeats in {COUNTED:?} from {id} to master {master}"));
            }
        }
    }

    /// Drops all tablets; no file of them may stay. A start removes leftovers of creations.
    fn drop_all(&mut self) {
        for at in 0..self.tablets.len() {
            self.tablets[at].is_dropped = true;
        }
        for server in 0..SERVERS {
            self.fleet.kill(server);
            self.fleet.restart(server);
        }
        if !(0..ROUNDS).any(|_| self.settle()) {
            return self.fleet.report("not all replicas can be deleted".to_string());
        }
        let ids: Vec<TabletId> = self.tablets.iter().map(|case| case.id).collect();
        (0..SERVERS).for_each(|server| self.check_left(server, &ids));
    }

    /// Reports files of tablets that a server does not have.
    pub(super) fn check_left(&mut self, server: usize, ids: &[TabletId]) {
        let left = self.left(server, ids);
        if !left.is_empty() {
            self.fleet.report(format!("server {server} has files of tablets that it has not: {left:?}"));
        }
    }

    /// Returns the files of tablets on a server's disks.
    fn left(&mut self, server: usize, ids: &[TabletId]) -> Vec<String> {
        let mut left = Vec::new();
        for disk in self.disks(server) {
            // Of a copy of the disk: reading counts as an operation.
            let image = disk.image();
            let files = |dir: String| {
                image.list(&dir).unwrap_or_default().into_iter().map(move |file| format!("{dir}/{file}"))
            };
            left.extend(ids.iter().flat_map(|id| [wal_dir(*id), data_dir(*id)]).flat_map(files));
            let metadata = image.list("tablet-meta").unwrap_or_default();
            left.extend(
                metadata.into_iter().filter(|name| ids.iter().any(|id| name.contains(&id.to_string()))),
            );
            // An interrupted replacement, with another name, stays until the next start.
            let votes = image.list("consensus-meta").unwrap_or_default();
            let is_of = |name: &String| ids.iter().any(|id| *name == id.to_string());
            left.extend(votes.into_iter().filter(is_of).map(|name| format!("consensus-meta/{name}")));
        }
        left
    }

    /// Reports what servers still hold.
    fn check_resources(&mut self) {
        let held = self.fleet.held_resources();
        held.into_iter().for_each(|held| self.fleet.report(held));
    }
}
