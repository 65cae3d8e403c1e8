//! Every request of the services, and its conversions.

use std::fmt::Debug;

use bytes::Bytes;
use engine::ids::Uuid;
use node::master::proto as master;
use nyala_common::wire::{consensus, schema};
use nyala_proto::kudu::consensus::*;
use nyala_proto::kudu::master::*;
use nyala_proto::kudu::rpc::{RequestHeader, ResponseHeader};
use nyala_proto::kudu::server::*;
use nyala_proto::kudu::tserver::*;
use prost::Message;

/// Name of a message, and the check of its bytes.
type Kind = (&'static str, fn(&[u8]));

/// Checks a message. First byte: its number; then its bytes.
pub fn message(data: &[u8]) {
    let Some((&which, bytes)) = data.split_first() else { return };
    let (_, check) = MESSAGES[usize::from(which) % MESSAGES.len()];
    check(bytes);
}

/// Checks that decoded bytes encode to bytes that decode to the same message.
fn again<M: Message + Default + Debug>(bytes: &[u8]) -> Option<M> {
    let message = M::decode(bytes).ok()?;
    let encoded = message.encode_to_vec();
    let read = M::decode(&encoded[..]).expect("what was just encoded");
    assert_eq!(read.encode_to_vec(), encoded, "{message:?}");
    Some(message)
}

/// Checks a message that is only read field by field.
fn plain<M: Message + Default + Debug>(bytes: &[u8]) {
    again::<M>(bytes);
}

macro_rules! plain {
    ($($name:ident),*) => { &[$((stringify!($name), plain::<$name>)),*] };
}

const PLAIN: &[Kind] = plain![
    RequestHeader,
    ResponseHeader,
    WriteRequestPb,
    ScanRequestPb,
    ScannerKeepAliveRequestPb,
    ListTabletsRequestPb,
    SplitKeyRangeRequestPb,
    ChecksumRequestPb,
    BeginTabletCopySessionRequestPb,
    CheckTabletCopySessionActiveRequestPb,
    FetchDataRequestPb,
    EndTabletCopySessionRequestPb,
    DeleteTabletRequestPb,
    QuiesceTabletServerRequestPb,
    HeartbeatsRequestPb,
    RunLeaderElectionRequestPb,
    LeaderStepDownRequestPb,
    GetLastOpIdRequestPb,
    GetConsensusStateRequestPb,
    StartTabletCopyRequestPb,
    UnsafeChangeConfigRequestPb,
    GetTabletLocationsRequestPb,
    GetTableLocationsRequestPb,
    IsCreateTableDoneRequestPb,
    IsAlterTableDoneRequestPb,
    DeleteTableRequestPb,
    RecallDeletedTableRequestPb,
    ListTablesRequestPb,
    GetTableStatisticsRequestPb,
    GetTableSchemaRequestPb,
    ListTabletServersRequestPb,
    ChangeTServerStateRequestPb,
    AddMasterRequestPb,
    RemoveMasterRequestPb,
    ReplaceTabletRequestPb,
    UnregisterTServerRequestPb,
    GetFlagsRequestPb,
    SetFlagRequestPb,
    NoOpRequestPb,
    GetNodeInstanceRequestPb,
    ListInFlightTablesRequestPb,
    ConnectToMasterRequestPb,
    GetMasterRegistrationRequestPb,
    ListMastersRequestPb,
    RefreshAuthzCacheRequestPb,
    FlushCoverageRequestPb,
    CheckLeaksRequestPb,
    ServerClockRequestPb,
    GetStatusRequestPb,
    SetServerWallClockForTestsRequestPb,
    DumpMemTrackersRequestPb,
    HoldHistoryRequestPb,
    NyalaRaiseLevelRequestPb
];

/// Messages that are converted, with the check of the conversion.
const CONVERTED: &[Kind] = &[
    ("ConsensusRequestPb", update),
    ("ConsensusResponsePb", update_response),
    ("VoteRequestPb", vote),
    ("VoteResponsePb", vote_response),
    ("ChangeConfigRequestPb", change_config),
    ("BulkChangeConfigRequestPb", bulk_change_config),
    ("TsHeartbeatRequestPb", heartbeat),
    ("CreateTabletRequestPb", create_tablet),
    ("AlterSchemaRequestPb", alter_schema),
];

/// Messages by number, which inputs refer to. New ones go to the end.
pub static MESSAGES: std::sync::LazyLock<Vec<Kind>> =
    std::sync::LazyLock::new(|| [CONVERTED, PLAIN].concat());

const DEST: Uuid = Uuid([2; 16]);

fn update(bytes: &[u8]) {
    let Some(pb) = again::<ConsensusRequestPb>(bytes) else { return };
    let sidecars = [Bytes::from_static(b"a sidecar")];
    let Ok(update) = consensus::update_from_pb(pb, &sidecars) else { return };
    let (pb, sidecars) = consensus::update_to_pb(update.clone());
    let read = consensus::update_from_pb(pb, &sidecars).expect("what was just written");
    // The bytes do not contain how a message was sent.
    assert_eq!(format!("{:?}", read.entries), format!("{:?}", update.entries));
    assert_eq!(
        (read.preceding, read.committed, read.term),
        (update.preceding, update.committed, update.term)
    );
}

fn update_response(bytes: &[u8]) {
    let Some(pb) = again::<ConsensusResponsePb>(bytes) else { return };
    let Ok(response) = consensus::update_response_from_pb(&pb, DEST) else { return };
    let pb = consensus::update_response_to_pb(&response);
    let read = consensus::update_response_from_pb(&pb, DEST).expect("what was just written");
    assert_eq!(format!("{read:?}"), format!("{response:?}"));
}

fn vote(bytes: &[u8]) {
    let Some(pb) = again::<VoteRequestPb>(bytes) else { return };
    let Ok(vote) = consensus::vote_from_pb(&pb) else { return };
    let read = consensus::vote_from_pb(&consensus::vote_to_pb(&vote)).expect("what was just written");
    assert_eq!(format!("{read:?}"), format!("{vote:?}"));
}

fn vote_response(bytes: &[u8]) {
    let Some(pb) = again::<VoteResponsePb>(bytes) else { return };
    let Ok(response) = consensus::vote_response_from_pb(&pb, DEST) else { return };
    let pb = consensus::vote_response_to_pb(&response);
    let read = consensus::vote_response_from_pb(&pb, DEST).expect("what was just written");
    assert_eq!(format!("{read:?}"), format!("{response:?}"));
}

fn change_config(bytes: &[u8]) {
    let Some(pb) = again::<ChangeConfigRequestPb>(bytes) else { return };
    let _ = consensus::change([(pb.r#type, pb.server.as_ref())], pb.cas_config_opid_index);
}

fn bulk_change_config(bytes: &[u8]) {
    let Some(pb) = again::<BulkChangeConfigRequestPb>(bytes) else { return };
    let parts = pb.config_changes.iter().map(|item| (item.r#type, item.peer.as_ref()));
    let _ = consensus::change(parts, pb.cas_config_opid_index);
}

fn heartbeat(bytes: &[u8]) {
    let Some(pb) = again::<TsHeartbeatRequestPb>(bytes) else { return };
    let _ = master::heartbeat(&pb);
}

fn create_tablet(bytes: &[u8]) {
    let Some(pb) = again::<CreateTabletRequestPb>(bytes) else { return };
    let _ = consensus::config_from_pb(&pb.config);
    let Ok(schema) = schema::schema_from_pb(&pb.schema) else { return };
    if let Some(partition) = &pb.partition
        && let Ok(read) = schema::partition_from_pb(partition)
    {
        let again = schema::partition_from_pb(&schema::partition_to_pb(&read)).expect("just written");
        assert_eq!(again, read);
    }
    let Some(partition) = &pb.partition_schema else { return };
    let Ok(partition) = schema::partition_schema_from_pb(partition, &schema) else { return };
    let pb = schema::partition_schema_to_pb(&partition, &schema);
    let read = schema::partition_schema_from_pb(&pb, &schema).expect("what was just written");
    assert_eq!(read, partition);
}

fn alter_schema(bytes: &[u8]) {
    let Some(pb) = again::<AlterSchemaRequestPb>(bytes) else { return };
    let Ok(schema) = schema::schema_from_pb(&pb.schema) else { return };
    let read = schema::schema_from_pb(&schema::schema_to_pb(&schema)).expect("what was just written");
    assert_eq!(read.num_key_columns(), schema.num_key_columns());
}
