//! Messages of clients and servers.

use bytes::Bytes;
use engine::ids::{ColumnId, OpId, Uuid};
use engine::raft::interface::{
    UpdateErrorKind, UpdateRequest, UpdateResponse, VoteError, VoteErrorKind, VoteRequest, VoteResponse,
};
use engine::raft::{Peer, RaftConfig, kind};
use engine::schema::partition::{HashDimension, Partition, PartitionSchema};
use engine::schema::partition_range::PartitionRange;
use engine::schema::predicate::{Predicate, PredicateKind};
use engine::schema::predicate_bloom::PredicateBloom;
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::time::Timestamp;
use engine::wal::ReplicateEntry;
use nyala_client::predicate::to_pb;
use nyala_common::rpc::frame;
use nyala_common::rpc::negotiate::{ClientNegotiation, NegotiationStep};
use nyala_common::wire::{consensus, partition, schema};
use nyala_proto::kudu::client::{ScanTokenPb, TableMetadataPb};
use nyala_proto::kudu::consensus::bulk_change_config_request_pb::ConfigChangeItemPb;
use nyala_proto::kudu::consensus::{BulkChangeConfigRequestPb, ChangeConfigRequestPb, ChangeConfigType};
use nyala_proto::kudu::master::alter_table_request_pb::{AddColumn, AddRangePartition, DropColumn, Step};
use nyala_proto::kudu::master::{AlterTableRequestPb, CreateTableRequestPb, TableIdentifierPb};
use nyala_proto::kudu::rpc::{RemoteMethodPb, RequestHeader};
use nyala_proto::kudu::tserver::{CreateTabletRequestPb, NewScanRequestPb};
use nyala_proto::kudu::{ColumnPredicatePb, RowOperationsPb};
use prost::Message;

use super::seed::Seed;
use crate::targets::kerberos;
use crate::targets::messages::MESSAGES;
use crate::targets::table;

const ME: Uuid = Uuid([2; 16]);

pub(super) fn seeds() -> Vec<Seed> {
    [rpc(), requests(), scans(), tables()].concat()
}

fn seed(target: &'static str, name: &str, bytes: Vec<u8>) -> Seed {
    (target, name.to_string(), bytes)
}

fn rpc() -> Vec<Seed> {
    let method =
        RemoteMethodPb { service_name: "kudu.master.MasterService".into(), method_name: "Ping".into() };
    let header = RequestHeader { call_id: 3, remote_method: Some(method), ..RequestHeader::default() };
    let mut framed = bytes::BytesMut::from(&[9u8][..]);
    frame::put_frame(&header, &table_with_hash_and_range(), &mut framed);
    let hello = ClientNegotiation::new("someone").hello();
    let [from_client, from_server] = ticket();
    vec![
        seed("negotiate_ticket", "ann", from_client),
        seed("negotiate_ticket_client", "ann", from_server),
        seed("frame", "create-table", framed.to_vec()),
        seed("negotiate", "hello", hello.to_vec()),
        seed("negotiate_client", "hello", hello[7..].to_vec()),
    ]
}

/// Returns the bytes of the two sides of a negotiation with a ticket.
fn ticket() -> [Vec<u8>; 2] {
    let (mut client, mut server) = (kerberos::new_client(), kerberos::new_server());
    let mut sent = [client.hello()[7..].to_vec(), Vec::new()];
    let mut last = sent[0].clone();
    for side in [1, 0].into_iter().cycle() {
        let mut reader = frame::FrameReader::new(1 << 20);
        reader.space().extend_from_slice(&last);
        let Ok(Some(frame)) = reader.next_frame() else { panic!("each side sends whole frames") };
        let step = if side == 0 { client.on_frame(&frame) } else { server.on_frame(&frame) };
        match step {
            NegotiationStep::Continue(bytes) | NegotiationStep::Done { send: bytes, .. } => {
                last = bytes.to_vec()
            }
            other => panic!("it goes well, but {other:?}"),
        }
        if last.is_empty() {
            break;
        }
        sent[side].extend_from_slice(&last);
    }
    sent
}

/// Returns a message of the target `message`, by its number.
fn request(name: &str, pb: &impl Message) -> Seed {
    let number = MESSAGES.iter().position(|(known, _)| *known == name).expect("a message of the target");
    let mut bytes = vec![number as u8];
    pb.encode(&mut bytes).expect("room");
    seed("message", &name.trim_end_matches("Pb").to_lowercase(), bytes)
}

fn peers() -> Vec<Peer> {
    (1..=3).map(|n| Peer::voter(Uuid([n; 16]), "host", 7050)).collect()
}

fn requests() -> Vec<Seed> {
    let op = OpId { term: 3, index: 7 };
    let entry = |kind, payload| ReplicateEntry { op, timestamp: Timestamp(9 << 12), kind, payload };
    let config = RaftConfig::initial(peers());
    let update = UpdateRequest {
        tablet: Uuid([7; 16]),
        dest: ME,
        caller: Uuid([1; 16]),
        term: 3,
        preceding: OpId { term: 2, index: 6 },
        committed: 6,
        all_replicated: 5,
        safe_time: Some(Timestamp(8 << 12)),
        entries: vec![entry(kind::WRITE, Bytes::from_static(b"rows")), entry(kind::CONFIG, config.encode())],
        sent: 0,
    };
    let vote = VoteRequest {
        tablet: Uuid([7; 16]),
        dest: ME,
        candidate: Uuid([1; 16]),
        term: 4,
        last_op: op,
        is_pre_vote: true,
        ignore_live_leader: false,
    };
    let no = VoteError { kind: VoteErrorKind::TabletNotFound, message: "gone".to_string() };
    let response = VoteResponse { responder: ME, term: 4, granted: false, error: Some(no) };
    let refusal = UpdateResponse::refusal(ME, 4, UpdateErrorKind::TabletNotFound, "gone".to_string());
    let peer = consensus::peer_to_pb(&peers()[1]);
    let item =
        ConfigChangeItemPb { r#type: Some(ChangeConfigType::AddPeer as i32), peer: Some(peer.clone()) };
    let change = ChangeConfigRequestPb {
        tablet_id: Bytes::from("7".repeat(32)),
        r#type: Some(ChangeConfigType::RemovePeer as i32),
        server: Some(peer),
        ..ChangeConfigRequestPb::default()
    };
    let bulk = BulkChangeConfigRequestPb { config_changes: vec![item.clone(), item], ..Default::default() };
    vec![
        request("ConsensusRequestPb", &consensus::update_to_pb(update).0),
        request("ConsensusResponsePb", &consensus::update_response_to_pb(&refusal)),
        request("VoteRequestPb", &consensus::vote_to_pb(&vote)),
        request("VoteResponsePb", &consensus::vote_response_to_pb(&response)),
        request("ChangeConfigRequestPb", &change),
        request("BulkChangeConfigRequestPb", &bulk),
        request("CreateTabletRequestPb", &create_tablet()),
    ]
}

fn hashed() -> PartitionSchema {
    let hash = vec![HashDimension { columns: vec![ColumnId(0)], buckets: 3, seed: 1 }];
    let mut partition =
        PartitionSchema { hash, range_columns: vec![ColumnId(1)], ..PartitionSchema::default() };
    let custom = vec![HashDimension { columns: vec![ColumnId(1)], buckets: 2, seed: 0 }];
    partition.set_custom(&PartitionRange { lower: b"a".to_vec(), upper: b"c".to_vec() }, custom);
    partition
}

fn create_tablet() -> CreateTabletRequestPb {
    let part = Partition { hash_buckets: vec![1], start: vec![0, 0, 0, 1], end: vec![0, 0, 0, 2] };
    CreateTabletRequestPb {
        table_name: "t".to_string(),
        schema: schema::schema_to_pb(&table()),
        partition: Some(schema::partition_to_pb(&part)),
        partition_schema: Some(schema::partition_schema_to_pb(&hashed(), &table())),
        config: consensus::config_to_pb(&RaftConfig::initial(peers())),
        ..CreateTabletRequestPb::default()
    }
}

fn conditions() -> Vec<ColumnPredicatePb> {
    let mut filter = PredicateBloom::new(5, 3).expect("a lawful size");
    filter.insert(Some(b"x"));
    let int = |n: i32| n.to_le_bytes().to_vec();
    let double = |n: f64| n.to_le_bytes().to_vec();
    let conditions = [
        (0, PredicateKind::Range { lower: Some(int(-3)), upper: Some(int(9)) }),
        (1, PredicateKind::Equal(b"text".to_vec())),
        (2, PredicateKind::IsNull),
        (3, PredicateKind::InBloom { filters: vec![filter], lower: None, upper: Some(b"z".to_vec()) }),
        (4, PredicateKind::IsNotNull),
        (5, PredicateKind::InList(vec![double(-1.0), double(0.0), double(2.5)])),
    ];
    let pb = |(column, kind)| to_pb(&Predicate::new(ColumnId(column), kind), &table());
    conditions.into_iter().map(|condition| pb(condition).expect("a column of the table")).collect()
}

fn scans() -> Vec<Seed> {
    let columns = schema::schema_to_client_pb(&table()).columns;
    let scan = NewScanRequestPb {
        tablet_id: Bytes::from("7".repeat(32)),
        column_predicates: conditions(),
        projected_columns: columns[..2].to_vec(),
        start_primary_key: Some(Bytes::from_static(b"\x80\0\0\x01a")),
        limit: Some(10),
        ..NewScanRequestPb::default()
    };
    let snapshot = NewScanRequestPb {
        read_mode: Some(nyala_proto::kudu::ReadMode::ReadAtSnapshot as i32),
        order_mode: Some(nyala_proto::kudu::OrderMode::Ordered as i32),
        snap_timestamp: Some(9 << 12),
        snap_start_timestamp: Some(3 << 12),
        projected_columns: columns,
        ..NewScanRequestPb::default()
    };
    let metadata = TableMetadataPb {
        schema: Some(schema::schema_to_pb(&table())),
        partition_schema: Some(schema::partition_schema_to_pb(&hashed(), &table())),
        ..TableMetadataPb::default()
    };
    let token = ScanTokenPb {
        table_metadata: Some(metadata),
        projected_column_idx: vec![1, 0],
        column_predicates: conditions(),
        lower_bound_primary_key: Some(Bytes::from_static(b"\x80\0\0\x01a")),
        ..ScanTokenPb::default()
    };
    // Enough values that sorting compares them closely.
    let number = |i: i32| if i % 3 == 0 { f64::NAN } else { f64::from(i * 37 % 41) };
    let list = PredicateKind::InList((0..60).map(|i| number(i).to_le_bytes().to_vec()).collect());
    let list = to_pb(&Predicate::new(ColumnId(5), list), &table()).expect("a column of the table");
    let nans = NewScanRequestPb { column_predicates: vec![list], ..NewScanRequestPb::default() };
    vec![
        seed("scan", "list-with-nan", nans.encode_to_vec()),
        seed("scan", "conditions", scan.encode_to_vec()),
        seed("scan", "diff", snapshot.encode_to_vec()),
        seed("token", "metadata", token.encode_to_vec()),
    ]
}

/// Returns a request to create the table `t` by hash and range, with a custom hash schema for one range.
pub fn table_with_hash_and_range() -> CreateTableRequestPb {
    let mut schema = schema::schema_to_client_pb(&table());
    schema.columns[4].type_attributes =
        Some(nyala_proto::kudu::ColumnTypeAttributesPb { precision: Some(30), scale: Some(2), length: None });
    let mut partition_schema = schema::partition_schema_to_pb(&hashed(), &table());
    name_columns(&mut partition_schema);
    CreateTableRequestPb {
        name: "t".to_string(),
        schema,
        partition_schema: Some(partition_schema),
        num_replicas: Some(1),
        ..CreateTableRequestPb::default()
    }
}

/// Names columns instead of ids: clients know names only.
fn name_columns(pb: &mut nyala_proto::kudu::PartitionSchemaPb) {
    use nyala_proto::kudu::partition_schema_pb::column_identifier_pb::Identifier;
    let ranges = pb.range_schema.iter_mut().flat_map(|range| &mut range.columns);
    let custom = pb.custom_hash_schema_ranges.iter_mut().flat_map(|range| &mut range.hash_schema);
    let hashes = pb.hash_schema.iter_mut().chain(custom).flat_map(|hash| &mut hash.columns);
    for column in ranges.chain(hashes) {
        if let Some(Identifier::Id(id)) = column.identifier {
            column.identifier = Some(Identifier::Name(table().columns()[id as usize].name.clone()));
        }
    }
}

fn bounds(lower: &[u8], upper: &[u8]) -> RowOperationsPb {
    partition::range_bounds_to_pb(&hashed(), &table(), lower, upper)
}

fn tables() -> Vec<Seed> {
    let plain = Schema::new(vec![ColumnSchema::new(0, "k", DataType::Int64)], 1).expect("a lawful schema");
    let plain = CreateTableRequestPb {
        name: "plain".to_string(),
        schema: schema::schema_to_client_pb(&plain),
        ..CreateTableRequestPb::default()
    };
    let mut extra = schema::schema_to_client_pb(&table()).columns[3].clone();
    extra.name = "extra".to_string();
    let column = Step { add_column: Some(AddColumn { schema: extra }), ..Step::default() };
    let range = AddRangePartition { range_bounds: Some(bounds(b"x", b"z")), ..AddRangePartition::default() };
    let steps = vec![
        Step { r#type: Some(1), ..column },
        Step { r#type: Some(2), drop_column: Some(DropColumn { name: "b".to_string() }), ..Step::default() },
        Step { r#type: Some(5), add_range_partition: Some(range), ..Step::default() },
    ];
    let alter = AlterTableRequestPb {
        table: TableIdentifierPb { table_id: None, table_name: Some("t".to_string()) },
        alter_schema_steps: steps,
        schema: Some(schema::schema_to_client_pb(&table())),
        new_table_name: Some("u".to_string()),
        ..AlterTableRequestPb::default()
    };
    let ops = bounds(b"a", b"b");
    let (rows, indirect) = (ops.rows.unwrap_or_default(), ops.indirect_data.unwrap_or_default());
    let range_ops = [&[rows.len() as u8][..], &rows, &indirect].concat();
    vec![
        seed("create_table", "hash-and-range", table_with_hash_and_range().encode_to_vec()),
        seed("create_table", "plain", plain.encode_to_vec()),
        seed("alter_table", "steps", alter.encode_to_vec()),
        seed("range_ops", "bounds", range_ops),
    ]
}
