//! The operator's calls to servers, and the states of their replicas.

use std::sync::Arc;

use bytes::Bytes;
use engine::raft::RaftStatus;
use engine::time::Timestamp;
use node::hosting::replica::ReplicaHandle;
use node::hosting::tablet_entry::EntryState;
use nyala_common::wire::schema::id_bytes;
use nyala_proto::kudu::consensus::raft_peer_pb::MemberType;
use nyala_proto::kudu::tserver::{CreateTabletResponsePb, WriteRequestPb, WriteResponsePb};

use super::{HostingTrial, MEMBERS, TABLE, TABLET};
use crate::trials::rows::TrialRows;
use crate::trials::{draw, requests};
use crate::wire::client::{ADMIN, TSERVER, text_of};

/// Most rows of a write.
const ROWS: u64 = 8;

impl HostingTrial {
    pub(super) fn create_tablet(&mut self) {
        let peers: Vec<_> = (0..MEMBERS).map(|server| self.fleet.peer(server, MemberType::Voter)).collect();
        for server in 0..MEMBERS {
            let id = self.fleet.ids[server];
            let request = requests::create_tablet(id, (TABLE, TABLET), &self.schema, peers.clone());
            // The first ones may have had it copied there before this arrives.
            let created: Result<CreateTabletResponsePb, _> =
                self.fleet.call(server, (ADMIN, "CreateTablet"), request);
            let refused = created.map(|reply| reply.error.map(|error| text_of(&error.status)));
            self.fleet.note(format!("creation at {server}: {refused:?}"));
        }
    }

    /// Writes some rows; their answers do not matter here.
    pub(super) fn write(&mut self) {
        let Some(leader) = self.leader() else { return };
        let count = self.random.between(1, ROWS);
        let request = self.write_request(count);
        let written: Result<WriteResponsePb, _> = self.fleet.call(leader, (TSERVER, "Write"), request);
        let refused = written.map(|reply| reply.error.map(|error| text_of(&error.status)));
        self.fleet.note(format!("{count} rows at {leader}: {refused:?}"));
    }

    /// Returns a request that writes some rows.
    pub(super) fn write_request(&mut self, count: u64) -> WriteRequestPb {
        let rows = draw::rows(&mut self.random, &self.table, &TrialRows::default(), count);
        requests::write(TABLET, &self.table, &rows)
    }

    /// Returns the state of the tablet at a server; `None` if it runs without one, or not at all.
    pub(super) fn state(&self, server: usize) -> Option<EntryState> {
        self.fleet.entry(server, TABLET).map(|entry| entry.state())
    }

    /// Returns a server's replica, if it runs and has not failed.
    pub(super) fn replica(&self, server: usize) -> Option<ReplicaHandle> {
        self.fleet.replica(server, TABLET)
    }

    pub(super) fn status(&self, server: usize) -> Option<Arc<RaftStatus>> {
        self.fleet.status(server, TABLET)
    }

    /// Returns the timestamp of the last operation that a server has applied.
    pub(super) fn applied(&self, server: usize) -> Option<Timestamp> {
        self.replica(server).map(|replica| replica.tablet().mvcc().last_applied())
    }

    /// Returns the leader of the newest term, if there is one.
    pub(super) fn leader(&self) -> Option<usize> {
        self.fleet.leader(TABLET)
    }
}

/// Returns the tablet's id in a request.
pub(super) fn tablet_id() -> Bytes {
    id_bytes(&TABLET)
}
