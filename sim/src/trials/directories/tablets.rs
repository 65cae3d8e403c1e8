//! The operator's tablets, of one replica each.

use std::time::Duration;

use engine::ids::TabletId;
use nyala_proto::kudu::consensus::raft_peer_pb::MemberType;
use nyala_proto::kudu::tablet::TabletDataState;
use nyala_proto::kudu::tserver::{CreateTabletResponsePb, DeleteTabletResponsePb, WriteResponsePb};

use super::model::{TabletModel, tablet_of};
use super::{DIRS, DirectoriesTrial};
use crate::trials::rows::TrialRows;
use crate::trials::{draw, requests};
use crate::wire::client::{ADMIN, TSERVER, text_of};

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
        let peers = vec![self.fleet.peer(0, MemberType::Voter)];
        let request = requests::create_tablet(self.fleet.ids[0], (id, id), &self.schema, peers);
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
        let request = requests::write(self.tablets[at].id, &self.table, &rows);
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
        let request = requests::delete_tablet(self.fleet.ids[0], id, TabletDataState::TabletDataDeleted);
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
