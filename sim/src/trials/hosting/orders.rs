//! Orders to delete and to copy replicas, also late ones and those that cannot begin.

use std::time::Duration;

use engine::ids::Uuid;
use engine::raft::ConfigPosition;
use engine::replica::wal_dir;
use engine::tablet::flush::data_dir;
use engine::tablet::superblock::{DataState, Superblock};
use node::hosting::tablet_entry::EntryState;
use nyala_common::wire::schema::id_bytes;
use nyala_proto::kudu::HostPortPb;
use nyala_proto::kudu::consensus::{StartTabletCopyRequestPb, StartTabletCopyResponsePb};
use nyala_proto::kudu::tablet::TabletDataState;
use nyala_proto::kudu::tserver::{DeleteTabletRequestPb, DeleteTabletResponsePb};

use super::calls::tablet_id;
use super::{HostingTrial, SERVERS, TABLET};
use crate::cluster::{DATA_DIR, WAL_DIR};
use crate::trials::fleet::{OPERATOR, OneCall, host};
use crate::trials::requests;
use crate::wire::client::{ADMIN, CONSENSUS, text_of};
use crate::workload::TSERVER_PORT;
use crate::world::World;

/// A server that there is not.
const NOWHERE: Uuid = Uuid([9; 16]);
/// Percentage of orders within which a disk operation fails.
const FAIL_PERCENT: u64 = 35;
/// Time within which a copy that cannot begin has ended.
const COPY_ENDS: Duration = Duration::from_secs(5);

/// A replica's files on a server's disks.
#[derive(Debug)]
struct ReplicaFiles {
    superblock: Option<Superblock>,
    log: Vec<String>,
    rows: Vec<String>,
    /// True if there is consensus metadata. An interrupted replacement of it has another name, and stays until the
    /// next start.
    has_vote: bool,
}

impl ReplicaFiles {
    /// Returns true if nothing is lost of what there was; a failed replica may still have finished a write.
    fn has_all_of(&self, before: &ReplicaFiles) -> bool {
        let keeps = |now: &[String], names: &[String]| names.iter().all(|name| now.contains(name));
        self.superblock == before.superblock
            && keeps(&self.log, &before.log)
            && keeps(&self.rows, &before.rows)
    }
}

impl HostingTrial {
    /// Orders the deletion of a replica; returns the refusal, if any.
    pub(super) fn delete(
        &mut self,
        server: usize,
        to: TabletDataState,
        cas: Option<ConfigPosition>,
    ) -> Result<(), String> {
        let call = self.delete_call(server, to, cas);
        let reply: Result<DeleteTabletResponsePb, _> = self.fleet.send(call);
        let deleted = match reply {
            Ok(reply) => reply.error.map_or(Ok(()), |error| Err(text_of(&error.status))),
            Err(failure) => Err(failure.to_string()),
        };
        self.fleet.note(format!("deletion at {server}, cas {cas:?}: {deleted:?}"));
        if deleted.is_ok() {
            self.rotten.take_if(|rotten| *rotten == server);
        }
        deleted
    }

    pub(super) fn delete_call(
        &self,
        server: usize,
        to: TabletDataState,
        cas: Option<ConfigPosition>,
    ) -> OneCall<DeleteTabletRequestPb> {
        let request = DeleteTabletRequestPb {
            cas_config_opid_index_less_or_equal: cas.map(|cas| cas.index),
            nyala_cas_config_opid_term: cas.and_then(|cas| cas.term).map(|term| term as i64),
            ..requests::delete_tablet(self.fleet.ids[server], TABLET, to)
        };
        OneCall { server, service: ADMIN, method: "DeleteTablet", request }
    }

    /// Lets one of the orders to delete arrive, the last one or an older one, perhaps again.
    pub(super) fn delete_late(&mut self) {
        if self.late.is_empty() {
            return;
        }
        let order = self.late[self.random.below(self.late.len() as u64) as usize];
        if self.random.percent(FAIL_PERCENT) {
            self.fail_disk(order.server);
        }
        let _ = self.delete(order.server, TabletDataState::TabletDataTombstoned, Some(order.cas));
    }

    /// Orders a copy in place of a failed replica from where no server is, perhaps as a leader of long ago would. It
    /// cannot begin, so it must change nothing.
    pub(super) fn copy_from_nowhere(&mut self) {
        let Some(server) = (0..SERVERS).find(|at| self.has_failed(*at)) else { return };
        let before = self.files(server);
        // A deletion that was interrupted may be completed, and a leader copies to tombstones.
        if before.superblock.as_ref().is_none_or(|meta| meta.data_state != DataState::Ready) {
            return;
        }
        self.end_disk_faults(server);
        let term = self.random.pick(&[None, Some(0)]);
        self.order_copy(server, (NOWHERE, OPERATOR), term);
        self.fleet.pass(COPY_ENDS);
        let after = self.files(server);
        if self.fleet.up[server] && !after.has_all_of(&before) {
            self.fleet
                .report(format!("a copy to {server} that could not begin left {after:?} of {before:?}"));
        }
    }

    /// Orders a server to copy the tablet from a source, of which the id and the host are given.
    pub(super) fn order_copy(&mut self, server: usize, (id, source): (Uuid, &str), caller_term: Option<i64>) {
        let request = StartTabletCopyRequestPb {
            dest_uuid: Some(id_bytes(&self.fleet.ids[server])),
            tablet_id: tablet_id(),
            copy_peer_uuid: id_bytes(&id),
            copy_peer_addr: HostPortPb { host: source.to_string(), port: u32::from(TSERVER_PORT) },
            caller_term,
        };
        let reply: Result<StartTabletCopyResponsePb, _> =
            self.fleet.call(server, (CONSENSUS, "StartTabletCopy"), request);
        let refused = reply.map(|reply| reply.error.map(|error| text_of(&error.status)));
        self.fleet.note(format!("copy to {server} from {source}: {refused:?}"));
    }

    fn files(&mut self, server: usize) -> ReplicaFiles {
        let machine = self.fleet.world.machine(&host(server).name());
        // Of copies of the disks: reading counts as an operation.
        let (wal, data) = (machine.disk(WAL_DIR).image(), machine.disk(DATA_DIR).image());
        let names = |disk: &dyn engine::disk::Disk, dir: &str| {
            let mut names = disk.list(dir).unwrap_or_default();
            names.sort();
            names
        };
        ReplicaFiles {
            superblock: Superblock::load(&data, TABLET).ok(),
            log: names(&wal, &wal_dir(TABLET)),
            rows: names(&data, &data_dir(TABLET)),
            has_vote: names(&data, "consensus-meta").contains(&TABLET.to_string()),
        }
    }

    /// Returns the state of a server's replica by its superblock.
    pub(super) fn stored_state(&mut self, server: usize) -> Option<DataState> {
        self.files(server).superblock.map(|superblock| superblock.data_state)
    }

    /// Returns true if a server's disks have nothing of the tablet.
    pub(super) fn has_nothing(&mut self, server: usize) -> bool {
        let files = self.files(server);
        files.superblock.is_none() && files.log.is_empty() && files.rows.is_empty() && !files.has_vote
    }

    /// Returns true if a server calls its replica a tombstone and has rows or a log of it.
    pub(super) fn keeps_data_of_tombstone(&mut self, server: usize) -> bool {
        if !matches!(self.state(server), Some(EntryState::Tombstoned(_))) {
            return false;
        }
        let files = self.files(server);
        !files.log.is_empty() || !files.rows.is_empty()
    }
}
