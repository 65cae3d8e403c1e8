//! Requests about a trial's tablets, as masters, clients and a candidate send them.

use engine::ids::{OpId, PeerId, TableId, TabletId, Uuid};
use engine::raft::interface::VoteRequest;
use engine::schema::Schema;
use nyala_common::wire::consensus::vote_to_pb;
use nyala_common::wire::schema::{id_bytes, schema_to_pb};
use nyala_proto::kudu::consensus::{RaftConfigPb, RaftPeerPb, VoteRequestPb};
use nyala_proto::kudu::tablet::TabletDataState;
use nyala_proto::kudu::tserver::{CreateTabletRequestPb, DeleteTabletRequestPb, WriteRequestPb};
use nyala_proto::kudu::{PartitionPb, PartitionSchemaPb};
use sim_plan::tables::ModelTable;

use super::shape;
use crate::model::RowWrite;
use crate::wire::schema;

/// A candidate that is none of the servers.
const CANDIDATE: PeerId = Uuid([0x77; 16]);

/// Returns the order to a server to create a replica of a table's only tablet.
pub(super) fn create_tablet(
    server: PeerId,
    (table, tablet): (TableId, TabletId),
    of: &Schema,
    peers: Vec<RaftPeerPb>,
) -> CreateTabletRequestPb {
    CreateTabletRequestPb {
        dest_uuid: Some(id_bytes(&server)),
        table_id: id_bytes(&table),
        tablet_id: id_bytes(&tablet),
        partition: Some(PartitionPb::default()),
        table_name: "trial".to_string(),
        schema: schema_to_pb(of),
        partition_schema: Some(PartitionSchemaPb::default()),
        config: RaftConfigPb { opid_index: Some(-1), peers, ..Default::default() },
        ..Default::default()
    }
}

/// Returns the order to a server to delete its replica, whatever its configuration.
pub(super) fn delete_tablet(server: PeerId, tablet: TabletId, to: TabletDataState) -> DeleteTabletRequestPb {
    DeleteTabletRequestPb {
        dest_uuid: Some(id_bytes(&server)),
        tablet_id: id_bytes(&tablet),
        reason: Some("trial".to_string()),
        delete_type: Some(to as i32),
        ..Default::default()
    }
}

/// Returns a client's write of rows to a tablet.
pub(super) fn write(tablet: TabletId, table: &ModelTable, rows: &[RowWrite]) -> WriteRequestPb {
    WriteRequestPb {
        tablet_id: id_bytes(&tablet),
        schema: Some(schema::columns(&table.columns, table.key_columns().len())),
        row_operations: Some(shape::encoded(table, rows)),
        ..Default::default()
    }
}

/// Returns the vote request of a candidate that has operations up to `last_op`, and disregards a live leader.
pub(super) fn vote(server: PeerId, tablet: TabletId, term: u64, last_op: OpId) -> VoteRequestPb {
    vote_to_pb(&VoteRequest {
        tablet,
        candidate: CANDIDATE,
        dest: server,
        term,
        last_op,
        is_pre_vote: false,
        ignore_live_leader: true,
    })
}
