//! The operator's tablets, of one replica each.

use std::time::Duration;

use engine::ids::TabletId;
use nyala_common::wire::schema::{id_bytes, schema_to_pb};
use nyala_proto::kudu::consensus::RaftConfigPb;
use nyala_proto::kudu::consensus::raft_peer_pb::MemberType;
use nyala_proto::kudu::tablet::TabletDataState;
use nyala_proto::kudu::tserver::{
    CreateTabletRequestPb, CreateTabletResponsePb, DeleteTabletRequestPb, DeleteTabletResponsePb,
    WriteRequestPb, WriteResponsePb,
};
use nyala_proto::kudu::{PartitionPb, PartitionSchemaPb};

use super::model::{TabletModel, tablet_of};
use super::{DIRS, DirectoriesTrial};
use crate::trials::rows::TrialRows;
use crate::trials::{draw, shape};
use crate::wire::client::{ADMIN, TSERVER, text_of};
use crate::wire::schema;

/// Time until a tablet of one replica is led.
const LED: Duration = Duration::from_millis(1_500);
/// Most rows of a write.
const ROWS: u64 = 6;
/// Most tablets of a trial, deleted ones included.
const TABLETS_MAX: usize = 12;

impl DirectoriesTrial {
    pub(super) fn create_tablet(&mut self) {
        if self.next >= TABLETS_MAX {
            return;
        }
        let id = tablet_of(self.next);
        self.next += 1;
        let members = RaftConfigPb {
            opid_index: Some(-1),
            peers: vec![self.fleet.peer(0, MemberType::Voter)],
            ..Default::default()
        };
        let request = CreateTabletRequestPb {
            dest_uuid: Some(id_bytes(&self.fleet.ids[0])),
            table_id: id_bytes(&id),
            tablet_id: id_bytes(&id),
            partition: Some(PartitionPb::default()),
            table_name: "trial".to_string(),
            schema: schema_to_pb(&self.schema),
            partition_schema: Some(PartitionSchemaPb::default()),
            config: members,
            ..Default::default()
        };
        let created: Result<CreateTabletResponsePb, _> = self.fleet.call(0, (ADMIN, "CreateTablet"), request);
        let refused = created.map(|reply| reply.error.map(|error| text_of(&error.status)));
        self.fleet.pass(LED);
        let path = self.fleet.entry(0, id).map(|entry| entry.data_dir.path.clone());
        let dir = DIRS.iter().copied().find(|dir| path.as_deref() == Some(*dir));
        let Some(dir) = dir.filter(|_| matches!(refused, Ok(None))) else {
            return self.fleet.report(format!("a tablet is not created: {refused:?}, in {path:?}"));
        };
        let last = self.last_index(id).unwrap_or_default();
        self.tablets.push(TabletModel { id, dir, last, is_lost: false });
    }

    /// Returns the index of the last operation of a tablet as of its last election, if it runs.
    pub(super) fn last_index(&self, id: TabletId) -> Option<u64> {
        let entry = self.fleet.replica(0, id)?;
        Some(entry.status().last.index)
    }

    /// Writes to all tablets that have their directory.
    pub(super) fn write_all(&mut self) {
        for at in 0..self.tablets.len() {
            if !self.tablets[at].is_lost && self.fleet.found.is_none() {
                self.write(at);
            }
        }
    }

    /// Writes rows to a tablet, which must succeed.
    pub(super) fn write(&mut self, at: usize) {
        let count = self.random.between(1, ROWS);
        let rows = draw::rows(&mut self.random, &self.table, &TrialRows::default(), count);
        let request = WriteRequestPb {
            tablet_id: id_bytes(&self.tablets[at].id),
            schema: Some(schema::columns(&self.table.columns, self.table.key_columns().len())),
            row_operations: Some(shape::encoded(&self.table, &rows)),
            ..Default::default()
        };
        let written: Result<WriteResponsePb, _> = self.fleet.call(0, (TSERVER, "Write"), request);
        let refused = written.map(|reply| reply.error.map(|error| text_of(&error.status)));
        if !matches!(refused, Ok(None)) {
            return self.fleet.report(format!("{:?} takes no rows: {refused:?}", self.tablets[at]));
        }
        self.tablets[at].last += 1;
    }

    /// Deletes one of the tablets.
    pub(super) fn delete_some(&mut self) {
        if self.tablets.is_empty() {
            return;
        }
        let lost: Vec<usize> = (0..self.tablets.len()).filter(|at| self.tablets[*at].is_lost).collect();
        let all = self.tablets.len() as u64;
        let at = if lost.is_empty() { self.random.below(all) as usize } else { self.random.pick(&lost) };
        self.delete(at);
    }

    pub(super) fn delete(&mut self, at: usize) {
        let id = self.tablets[at].id;
        let request = DeleteTabletRequestPb {
            dest_uuid: Some(id_bytes(&self.fleet.ids[0])),
            tablet_id: id_bytes(&id),
            reason: Some("trial".to_string()),
            delete_type: Some(TabletDataState::TabletDataDeleted as i32),
            ..Default::default()
        };
        let deleted: Result<DeleteTabletResponsePb, _> = self.fleet.call(0, (ADMIN, "DeleteTablet"), request);
        let refused = deleted.map(|reply| reply.error.map(|error| text_of(&error.status)));
        self.check_deleted(at, &format!("{refused:?}"));
    }

    pub(super) fn delete_all(&mut self) {
        while self.fleet.found.is_none() && !self.tablets.is_empty() {
            self.delete(self.tablets.len() - 1);
        }
    }
}
