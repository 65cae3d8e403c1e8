//! A whole server over loopback, driven with the raw protobufs of clients.

mod admin;
mod aggregation;
mod copy;
mod directories;
mod faults;
mod group;
mod heartbeats;
mod reads_by_key;
mod restart;
mod scans;
mod scrub;
mod sizes;
mod turns;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::error::Result;
use engine::ids::Uuid;
use engine::schema::row_ops::RowOpKind;
use engine::schema::{ColumnSchema, DataType, Schema};
use prost::Message;

use super::{RunningTserver, TserverConfig};
use nyala_common::env::Env;
use nyala_common::env::os::{OsEnv, OsOptions};
use nyala_common::rpc::RequestIdPb;
use nyala_common::rpc::client::{CallOptions, Proxy, RpcError, RpcResponse};
use nyala_common::wire::schema;
use nyala_proto::kudu::consensus::{RaftConfigPb, RaftPeerPb};
use nyala_proto::kudu::tserver::tablet_server_error_pb::Code;
use nyala_proto::kudu::tserver::{
    CreateTabletRequestPb, CreateTabletResponsePb, NewScanRequestPb, ScanRequestPb, ScanResponsePb,
    TabletServerErrorPb, WriteRequestPb, WriteResponsePb,
};
use nyala_proto::kudu::{ColumnSchemaPb, PartitionPb, PartitionSchemaPb, RowOperationsPb, app_status_pb};

const CLIENT_SERVICE: &str = "kudu.tserver.TabletServerService";
const ADMIN_SERVICE: &str = "kudu.tserver.TabletServerAdminService";
const CONSENSUS_SERVICE: &str = "kudu.consensus.ConsensusService";

const TABLET: Uuid = Uuid([0xab; 16]);
const TABLE: Uuid = Uuid([0xcd; 16]);

/// A server in its own directory, and a client of it.
struct Fixture {
    env: Env,
    dir: tempfile::TempDir,
    running: RunningTserver,
    proxy: Proxy,
    change: fn(&mut TserverConfig),
}

impl Fixture {
    async fn start() -> Fixture {
        Fixture::with(|_| {}).await
    }

    async fn with(change: fn(&mut TserverConfig)) -> Fixture {
        let env = OsEnv::new(&OsOptions::default()).expect("the real world");
        Fixture::in_env(env, change).await
    }

    async fn in_env(env: Env, change: fn(&mut TserverConfig)) -> Fixture {
        let dir = tempfile::tempdir().expect("a directory");
        let running = run(&env, &dir, change).await;
        let proxy = Proxy::new(env.clone(), running.rpc_addr, "ann");
        Fixture { env, dir, running, proxy, change }
    }

    /// Restarts the server on the same directories.
    async fn restart(&mut self) {
        self.running.shutdown().await;
        self.start_again().await;
    }

    async fn start_again(&mut self) {
        let running = run(&self.env, &self.dir, self.change).await;
        self.connect(running);
        while self.running.server.tablets.get(TABLET).is_some_and(|entry| is_starting(&entry)) {
            self.env.sleep(Duration::from_millis(1)).await;
        }
    }

    /// Calls this process of the server from now on.
    fn connect(&mut self, running: RunningTserver) {
        self.proxy = Proxy::new(self.env.clone(), running.rpc_addr, "ann");
        self.running = running;
    }

    async fn call<Req: Message, Resp: Message + Default>(
        &self,
        service: &str,
        method: &str,
        request: &Req,
        options: CallOptions,
    ) -> Result<RpcResponse<Resp>, RpcError> {
        let deadline = self.env.now().mono.after(Duration::from_secs(20));
        self.proxy.call(service, method, request, deadline, options).await
    }

    async fn client<Req: Message, Resp: Message + Default>(&self, method: &str, request: &Req) -> Resp {
        let answer = self.call(CLIENT_SERVICE, method, request, CallOptions::default()).await;
        answer.expect("the call succeeds").message
    }

    async fn admin<Req: Message, Resp: Message + Default>(&self, method: &str, request: &Req) -> Resp {
        let answer = self.call(ADMIN_SERVICE, method, request, CallOptions::default()).await;
        answer.expect("the call succeeds").message
    }

    /// Creates the default tablet with [`schema`].
    async fn create_tablet(&self) {
        let created: CreateTabletResponsePb =
            self.admin("CreateTablet", &create_request(self, &schema())).await;
        assert_eq!(created.error, None);
        self.settled(TABLET).await;
    }

    /// Waits until a tablet's first operation, its leader's no-op, is applied; the tablet is idle then.
    async fn settled(&self, tablet: Uuid) {
        let entry = self.running.server.tablets.get(tablet).expect("it was made");
        let replica = entry.running().expect("it runs");
        while replica.status_now().await.expect("it runs").committed == engine::ids::OpId::MIN {
            self.env.sleep(Duration::from_millis(1)).await;
        }
    }

    async fn write(&self, ops: &[Op<'_>]) -> WriteResponsePb {
        self.client("Write", &write_request(&schema(), ops)).await
    }

    async fn scan(&self, request: &ScanRequestPb) -> RpcResponse<ScanResponsePb> {
        let answer = self.call(CLIENT_SERVICE, "Scan", request, CallOptions::default()).await;
        answer.expect("the call succeeds")
    }

    /// Returns all keys of a new scan, in the order of the replies.
    async fn keys(&self, new: NewScanRequestPb) -> Vec<i32> {
        let mut request = open(new);
        let mut keys = Vec::new();
        for seq in 1.. {
            let RpcResponse { message, sidecars } = self.scan(&request).await;
            assert_eq!(message.error, None);
            keys.extend(
                sidecars[0].chunks(4).map(|key| i32::from_le_bytes(key.try_into().expect("4 bytes"))),
            );
            if !message.has_more_results() {
                return keys;
            }
            let scanner_id = message.scanner_id.or(request.scanner_id);
            request = ScanRequestPb { scanner_id, call_seq_id: Some(seq), ..Default::default() };
        }
        unreachable!("a scan ends")
    }
}

fn is_starting(entry: &Arc<crate::hosting::tablet_entry::TabletEntry>) -> bool {
    matches!(entry.state(), crate::hosting::tablet_entry::EntryState::Bootstrapping)
}

async fn run(env: &Env, dir: &tempfile::TempDir, change: fn(&mut TserverConfig)) -> RunningTserver {
    try_run(env, dir, change).await.expect("the server starts")
}

async fn try_run(
    env: &Env,
    dir: &tempfile::TempDir,
    change: fn(&mut TserverConfig),
) -> Result<RunningTserver> {
    let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_string();
    let addr = "127.0.0.1:0".parse().expect("an address");
    let mut config = TserverConfig::new(addr, path("wal"), vec![path("data")]);
    change(&mut config);
    super::run(env.clone(), config).await
}

/// Returns `key INT32, v STRING NULL, n INT64 NULL, im INT32 NULL IMMUTABLE`.
fn schema() -> Schema {
    let mut immutable = ColumnSchema::new(3, "im", DataType::Int32).nullable();
    immutable.immutable = true;
    let columns = vec![
        ColumnSchema::new(0, "key", DataType::Int32),
        ColumnSchema::new(1, "v", DataType::String).nullable(),
        ColumnSchema::new(2, "n", DataType::Int64).nullable(),
        immutable,
    ];
    Schema::new(columns, 1).expect("a valid schema")
}

fn create_request(fixture: &Fixture, schema: &Schema) -> CreateTabletRequestPb {
    let uuid = schema::id_bytes(&fixture.running.server.uuid());
    let peer = RaftPeerPb { permanent_uuid: Some(uuid.clone()), member_type: Some(1), ..Default::default() };
    CreateTabletRequestPb {
        dest_uuid: Some(uuid),
        table_type: None,
        table_id: schema::id_bytes(&TABLE),
        tablet_id: schema::id_bytes(&TABLET),
        start_key: None,
        end_key: None,
        partition: Some(PartitionPb::default()),
        table_name: "t".to_string(),
        schema: schema::schema_to_pb(schema),
        partition_schema: Some(PartitionSchemaPb::default()),
        config: RaftConfigPb { opid_index: Some(-1), peers: vec![peer], ..Default::default() },
        extra_config: None,
        dimension_label: None,
        nyala_attributes: Default::default(),
    }
}

/// A row operation on [`schema`]. The outer `Option` is `None` for an unset column, the inner one for NULL.
#[derive(Clone)]
struct Op<'a> {
    kind: RowOpKind,
    key: i32,
    v: Option<Option<&'a str>>,
    n: Option<Option<i64>>,
    im: Option<i32>,
}

fn op(kind: RowOpKind, key: i32) -> Op<'static> {
    Op { kind, key, v: None, n: None, im: None }
}

fn insert(key: i32, v: &str) -> Op<'_> {
    Op { v: Some(Some(v)), ..op(RowOpKind::Insert, key) }
}

fn encode(ops: &[Op<'_>]) -> RowOperationsPb {
    let (mut rows, mut indirect) = (Vec::new(), Vec::new());
    for op in ops {
        let set = 1
            | u8::from(op.v.is_some()) << 1
            | u8::from(op.n.is_some()) << 2
            | u8::from(op.im.is_some()) << 3;
        let null = u8::from(op.v == Some(None)) << 1 | u8::from(op.n == Some(None)) << 2;
        rows.extend([op.kind as u8, set, null]);
        rows.extend(op.key.to_le_bytes());
        if let Some(Some(v)) = op.v {
            rows.extend((indirect.len() as u64).to_le_bytes());
            rows.extend((v.len() as u64).to_le_bytes());
            indirect.extend_from_slice(v.as_bytes());
        }
        if let Some(Some(n)) = op.n {
            rows.extend(n.to_le_bytes());
        }
        if let Some(im) = op.im {
            rows.extend(im.to_le_bytes());
        }
    }
    RowOperationsPb { rows: Some(Bytes::from(rows)), indirect_data: Some(Bytes::from(indirect)) }
}

fn write_request(schema: &Schema, ops: &[Op<'_>]) -> WriteRequestPb {
    WriteRequestPb {
        tablet_id: schema::id_bytes(&TABLET),
        schema: Some(schema::schema_to_client_pb(schema)),
        row_operations: Some(encode(ops)),
        ..Default::default()
    }
}

fn request_id(seq_no: i64) -> RequestIdPb {
    let client_id = "0123456789abcdef0123456789abcdef".to_string();
    RequestIdPb { client_id, seq_no, first_incomplete_seq_no: 0, attempt_no: 0 }
}

fn columns(names: &[&str]) -> Vec<ColumnSchemaPb> {
    let all = schema::schema_to_client_pb(&schema()).columns;
    let named = |name: &&str| all.iter().find(|column| column.name == *name).expect("a known column").clone();
    names.iter().map(named).collect()
}

fn new_scan(names: &[&str]) -> NewScanRequestPb {
    let tablet_id = schema::id_bytes(&TABLET);
    NewScanRequestPb { tablet_id, projected_columns: columns(names), ..Default::default() }
}

fn open(new: NewScanRequestPb) -> ScanRequestPb {
    ScanRequestPb { new_scan_request: Some(new), call_seq_id: Some(0), ..Default::default() }
}

/// Formats code, status and message of an error, without digits that depend on the time.
fn error_text(error: &Option<TabletServerErrorPb>) -> String {
    let error = error.as_ref().expect("an error");
    let code = Code::try_from(error.code).expect("a known code").as_str_name();
    let status = app_status_pb::ErrorCode::try_from(error.status.code).expect("a known status");
    let message = error.status.message.as_deref().unwrap_or_default();
    let is_time =
        |word: &&str| word.chars().filter(char::is_ascii_digit).count() > 12 && !word.contains(is_letter);
    let words: Vec<&str> =
        message.split(' ').map(|word| if is_time(&word) { "TIME" } else { word }).collect();
    format!("{code} + {}: {}", status.as_str_name(), words.join(" "))
}

fn is_letter(letter: char) -> bool {
    letter.is_ascii_alphabetic()
}
