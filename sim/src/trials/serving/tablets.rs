//! The operator's tablets: created, written, altered and deleted.

use std::time::Duration;

use engine::disk::mem::MemDisk;
use engine::ids::TabletId;
use nyala_common::wire::schema::{id_bytes, schema_to_pb};
use nyala_proto::kudu::consensus::raft_peer_pb::MemberType;
use nyala_proto::kudu::tablet::TabletDataState;
use nyala_proto::kudu::tserver::{
    AlterSchemaRequestPb, AlterSchemaResponsePb, CreateTabletRequestPb, CreateTabletResponsePb,
    DeleteTabletResponsePb, WriteRequestPb, WriteResponsePb,
};

use super::server_space::DATA;
use super::tablet_case::TabletCase;
use super::{BEGINNING, SERVERS, ServingTrial, tablet_of};
use crate::cluster::WAL_DIR;
use crate::trials::fleet::{OneCall, host};
use crate::trials::rows::TrialRows;
use crate::trials::{draw, requests};
use crate::trigger::EIO;
use crate::wire::client::{ADMIN, CallFailure, TSERVER, text_of};
use crate::world::World;

/// Most tablets at a time.
const TABLETS_MAX: usize = 6;
/// Percentage of creations within which disk operations fail, the farthest one, and how many if not one alone: what the
/// creation leaves cannot be removed then.
const FAIL_PERCENT: u64 = 30;
const OPS_AHEAD: u64 = 16;
const OPS_IN_A_ROW: u64 = 20;
/// Most rows of a write.
const ROWS: u64 = 8;

impl ServingTrial {
    /// Creates a tablet at one server or at all of them.
    pub(super) fn create_tablet(&mut self) {
        let kept = self.tablets.iter().filter(|tablet| !tablet.is_dropped).count();
        if kept >= TABLETS_MAX {
            return;
        }
        let members = match self.random.percent(50) {
            true => (0..SERVERS).collect(),
            false => vec![self.random.below(SERVERS as u64) as usize],
        };
        let id = tablet_of(self.next);
        self.next += 1;
        self.tablets.push(TabletCase::new(id, members.clone()));
        let at = self.tablets.len() - 1;
        for server in members {
            self.create_replica(at, server);
        }
        self.pass(BEGINNING);
    }

    /// Sends the orders to create again, as masters do until each member has a replica.
    pub(super) fn create_again(&mut self) {
        for at in 0..self.tablets.len() {
            let case = self.tablets[at].clone();
            for server in case.members.iter().copied().filter(|_| !case.is_dropped) {
                if self.fleet.entry(server, case.id).is_none() {
                    self.create_replica(at, server);
                }
            }
        }
    }

    /// Orders a server to create its replica, and checks where the replica is then.
    fn create_replica(&mut self, at: usize, server: usize) {
        let case = self.tablets[at].clone();
        let (full, before) = (self.directories[server].are_full(), self.placed(server));
        let is_new = self.fleet.entry(server, case.id).is_none();
        let failing = if self.random.percent(FAIL_PERCENT) { self.fail_disk(server) } else { 0 };
        let request = self.creation(&case, server);
        let reply: Result<CreateTabletResponsePb, _> =
            self.fleet.call(server, (ADMIN, "CreateTablet"), request);
        self.disks(server).iter().for_each(MemDisk::end_faults);
        let refused = reply.map(|reply| reply.error.map(|error| text_of(&error.status)));
        self.fleet.note(format!("creation of {} at {server}: {refused:?}", case.id));
        let created = matches!(refused, Ok(None));
        if created && full {
            return self.fleet.report(format!("server {server} has created a replica without space for it"));
        }
        // A leader may have ordered a copy meanwhile.
        let is_missing = self.fleet.entry(server, case.id).is_none();
        // A server that is down or cut off executes nothing.
        let calm = failing == 0 && self.fleet.is_connected();
        if calm && !full && is_new && !created && is_missing {
            return self.fleet.report(format!("server {server} refuses a replica: {refused:?}"));
        }
        if created && is_new {
            self.check_place(server, case.id, before);
        }
        // With one failure the server has removed what it had created.
        let is_struck = matches!(&refused, Ok(Some(why)) if why.contains("Input/output error"));
        if failing == 1 && is_struck && is_missing {
            self.check_left(server, &[case.id]);
        }
    }

    pub(super) fn creation(&self, case: &TabletCase, server: usize) -> CreateTabletRequestPb {
        let peers = case.members.iter().map(|server| self.fleet.peer(*server, MemberType::Voter)).collect();
        requests::create_tablet(self.fleet.ids[server], (case.id, case.id), &self.schema, peers)
    }

    pub(super) fn disks(&mut self, server: usize) -> Vec<MemDisk> {
        let machine = self.fleet.world.machine(&host(server).name());
        [WAL_DIR].iter().chain(&DATA).map(|path| machine.disk(path)).collect()
    }

    /// Lets some of the next operations of a disk of a server fail; returns their number.
    fn fail_disk(&mut self, server: usize) -> u64 {
        let disks = self.disks(server);
        let disk = &disks[self.random.below(disks.len() as u64) as usize];
        let first = self.random.between(1, OPS_AHEAD);
        let count = if self.random.percent(30) { OPS_IN_A_ROW } else { 1 };
        (first..first + count).for_each(|op| disk.fail_op(op, EIO));
        count
    }

    /// Drops a tablet: each member is ordered to delete its replica, and again later until it has.
    pub(super) fn drop_tablet(&mut self) {
        if self.tablets.is_empty() {
            return;
        }
        let at = self.random.below(self.tablets.len() as u64) as usize;
        self.tablets[at].is_dropped = true;
        self.delete_replicas(at);
    }

    pub(super) fn delete_replicas(&mut self, at: usize) {
        let case = self.tablets[at].clone();
        for server in case.members {
            if self.fleet.entry(server, case.id).is_some() {
                self.delete_replica(case.id, server);
            }
        }
    }

    fn delete_replica(&mut self, tablet: TabletId, server: usize) {
        let deleted = TabletDataState::TabletDataDeleted;
        let request = requests::delete_tablet(self.fleet.ids[server], tablet, deleted);
        let reply: Result<DeleteTabletResponsePb, _> =
            self.fleet.call(server, (ADMIN, "DeleteTablet"), request);
        let refused = reply.map(|reply| reply.error.map(|error| text_of(&error.status)));
        self.fleet.note(format!("deletion of {tablet} at {server}: {refused:?}"));
        if matches!(refused, Ok(None)) && self.fleet.entry(server, tablet).is_some() {
            self.fleet.report(format!("server {server} still has {tablet}, which it has deleted"));
        }
    }

    /// Returns a tablet that is not dropped, and its leader.
    pub(super) fn led_tablet(&mut self) -> Option<(usize, usize)> {
        let led = |at: usize| Some((at, self.fleet.leader(self.tablets[at].id)?));
        let kept = (0..self.tablets.len()).filter(|at| !self.tablets[*at].is_dropped);
        let all: Vec<(usize, usize)> = kept.filter_map(led).collect();
        (!all.is_empty()).then(|| self.random.pick(&all))
    }

    /// Alters a tablet: another version of the schema, with other name of the table.
    pub(super) fn alter(&mut self) {
        let Some((at, leader)) = self.led_tablet() else { return };
        let case = &mut self.tablets[at];
        case.version += 1;
        let request = AlterSchemaRequestPb {
            dest_uuid: Some(id_bytes(&self.fleet.ids[leader])),
            tablet_id: id_bytes(&case.id),
            schema: schema_to_pb(&self.schema),
            schema_version: case.version,
            new_table_name: Some(format!("trial-{}", case.version)),
            ..Default::default()
        };
        let reply: Result<AlterSchemaResponsePb, _> =
            self.fleet.call(leader, (ADMIN, "AlterSchema"), request);
        self.record_timestamps(at, reply.iter().filter_map(|reply| reply.timestamp));
        let refused = reply.map(|reply| reply.error.map(|error| text_of(&error.status)));
        self.fleet.note(format!("alteration of {at} at {leader}: {refused:?}"));
    }

    /// Writes some rows of a tablet.
    pub(super) fn write(&mut self) {
        let Some((at, leader)) = self.led_tablet() else { return };
        self.write_to(at, leader);
    }

    /// Writes some rows, which a leader refuses exactly if its directories have too little space.
    pub(super) fn write_to(&mut self, at: usize, leader: usize) {
        let case = self.tablets[at].clone();
        let Some(entry) = self.fleet.entry(leader, case.id) else { return };
        let full = self.directories[leader].refuse_writes(&entry.data_dir.path);
        let request = self.rows(&case);
        let reply: Result<WriteResponsePb, _> = self.fleet.call(leader, (TSERVER, "Write"), request);
        self.record_timestamps(at, reply.iter().filter_map(|reply| reply.timestamp));
        let refused = reply.map(|reply| reply.error.map(|error| text_of(&error.status)));
        self.fleet.note(format!("rows of {at} at {leader}: {refused:?}"));
        let written = matches!(refused, Ok(None));
        // Leadership may just move, followers may have no space for entries, and a disk error of a creation may have
        // struck the log.
        let alone = case.members.len() == 1 && self.fleet.replica(leader, case.id).is_some();
        let alone = alone && !self.directories[leader].may_wait(self.fleet.world.now());
        if written && full || !written && !full && alone && self.fleet.is_connected() {
            self.fleet.report(format!("a write at {leader}, whose directory is full: {full}: {refused:?}"));
        }
    }

    /// Writes rows twice at the same time, so that the pending writes of the tablet may be too many.
    pub(super) fn write_many(&mut self) {
        let Some((at, leader)) = self.led_tablet() else { return };
        let case = self.tablets[at].clone();
        let (one, other) = (self.rows(&case), self.rows(&case));
        let call = |request| OneCall { server: leader, service: TSERVER, method: "Write", request };
        let replies = self.fleet.call_both::<_, WriteResponsePb, _, WriteResponsePb>(
            call(one),
            Duration::ZERO,
            call(other),
            |_| {},
        );
        let both = replies.iter().flat_map(|(one, other)| [one, other]).flatten();
        self.record_timestamps(at, both.filter_map(|reply| reply.timestamp));
        let shown = |reply: Result<WriteResponsePb, CallFailure>| {
            reply.map(|reply| reply.error.map(|error| text_of(&error.status)))
        };
        let refused = replies.map(|(one, other)| (shown(one), shown(other)));
        self.fleet.note(format!("two writes of {at} at {leader}: {refused:?}"));
    }

    /// Compares the timestamps of operations on a tablet with those of earlier replies, after which they began. A
    /// tablet that is not dropped keeps what it has replied to.
    pub(super) fn record_timestamps(&mut self, at: usize, timestamps: impl Iterator<Item = u64>) {
        let timestamps: Vec<u64> = timestamps.collect();
        let newest = self.tablets[at].newest;
        if let Some(old) = self.tablets[at].record(&timestamps) {
            let what = format!("an operation on tablet {at} is at {old}, and one before it at {newest}");
            self.fleet.report(what);
        }
    }

    /// Returns a write of drawn rows.
    pub(super) fn rows(&mut self, case: &TabletCase) -> WriteRequestPb {
        let count = self.random.between(1, ROWS);
        let rows = draw::rows(&mut self.random, &self.table, &TrialRows::default(), count);
        requests::write(case.id, &self.table, &rows)
    }
}
