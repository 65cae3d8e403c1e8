//! The client against scripted servers: leaders that change, busy servers, expired scanners.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use engine::error::ErrorKind;
use engine::schema::partition_range::PartitionRange;
use engine::schema::row_ops::{ClientCell, RowOpKind};
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::sync::Mutex;
use nyala_client::tables::AlterStep;
use nyala_client::{Client, ClientConfig, FlushMode, ScanSpec, Session, SessionConfig};
use nyala_common::env::os::{OsEnv, OsOptions};
use nyala_common::env::{BoxFuture, Env, mem_net};
use nyala_common::rpc::server::{RpcHandle, RpcServer};
use nyala_common::rpc::{Call, MethodInfo, Reply, RpcConfig, RpcErrorCodePb, Service};
use nyala_common::security::acl::MethodRole;
use nyala_common::wire::schema;
use nyala_proto::kudu::consensus::raft_peer_pb::Role;
use nyala_proto::kudu::master::tablet_locations_pb::InternedReplicaPb;
use nyala_proto::kudu::master::{
    AlterTableResponsePb, ConnectToMasterResponsePb, GetTableLocationsResponsePb, GetTableSchemaResponsePb,
    MasterErrorPb, MasterFeatures, TabletLocationsPb, TsInfoPb, master_error_pb,
};
use nyala_proto::kudu::partition_schema_pb::column_identifier_pb::Identifier;
use nyala_proto::kudu::partition_schema_pb::{ColumnIdentifierPb, RangeSchemaPb};
use nyala_proto::kudu::security::SignedTokenPb;
use nyala_proto::kudu::tserver::tablet_server_error_pb::Code;
use nyala_proto::kudu::tserver::{
    ScanRequestPb, ScanResponsePb, TabletServerErrorPb, WriteRequestPb, WriteResponsePb,
};
use nyala_proto::kudu::{AppStatusPb, ColumnarRowBlockPb, HostPortPb, app_status_pb::ErrorCode};
use nyala_proto::kudu::{PartitionPb, PartitionSchemaPb};
use prost::Message;
use tokio::sync::oneshot;

const MASTER: [MethodInfo; 4] =
    [method("ConnectToMaster"), method("GetTableSchema"), method("GetTableLocations"), method("AlterTable")];
const TSERVER: [MethodInfo; 2] = [method("Write"), method("Scan")];

const fn method(name: &'static str) -> MethodInfo {
    MethodInfo { name, role: MethodRole::Client, audited: false, tracked: false, required: &[] }
}

/// Scripted responses of the servers, and a log of the requests.
#[derive(Default)]
struct Script {
    /// Addresses of the masters, then of the tablet servers.
    addrs: OnceLock<Vec<u16>>,
    /// Responses of the tablet servers, in order.
    responses: Mutex<VecDeque<Scripted>>,
    /// Number of the leader master, and of the tablet server that the masters report as the tablet's leader.
    leaders: Mutex<(usize, usize)>,
    /// Id of the tablet, and the first key after it.
    tablet: Mutex<(&'static str, Option<i32>)>,
    /// Held reply of a master.
    held: Mutex<Option<HeldReply>>,
    log: Mutex<Vec<String>>,
}

/// Next reply to a method: the server reports it, and sends it when it is released.
struct HeldReply {
    method: &'static str,
    found: oneshot::Sender<()>,
    released: oneshot::Receiver<()>,
}

enum Scripted {
    Fails(Code, ErrorCode),
    Busy,
    /// The authorization token of the call is not accepted.
    TokenRejected,
    /// NOT_THE_LEADER; server 1 becomes the leader of the tablet.
    Moved,
    Written,
    /// Number of rows, the last key, and true if more rows follow.
    Rows(i64, &'static str, bool),
}

struct Server {
    script: Arc<Script>,
    number: usize,
    is_master: bool,
}

fn schema() -> Schema {
    Schema::new(vec![ColumnSchema::new(0, "k", DataType::Int32)], 1).expect("a legal schema")
}

fn status(code: ErrorCode) -> AppStatusPb {
    AppStatusPb {
        code: code as i32,
        message: Some(format!("scripted {}", code.as_str_name())),
        posix_code: None,
    }
}

impl Script {
    fn note(&self, line: String) {
        self.log.lock().push(line);
    }

    /// Holds the next reply to `method`. Returns the report of the server, and the release.
    fn hold(&self, method: &'static str) -> (oneshot::Receiver<()>, oneshot::Sender<()>) {
        let (found, is_found) = oneshot::channel();
        let (release, released) = oneshot::channel();
        *self.held.lock() = Some(HeldReply { method, found, released });
        (is_found, release)
    }

    fn host_port(&self, at: usize) -> HostPortPb {
        let port = self.addrs.get().expect("all serve")[at];
        HostPortPb { host: "127.0.0.1".to_string(), port: port.into() }
    }

    fn locations(&self) -> GetTableLocationsResponsePb {
        let leader = self.leaders.lock().1;
        let replica = |number: usize| InternedReplicaPb {
            ts_info_idx: number as u32,
            role: if number == leader { Role::Leader } else { Role::Follower } as i32,
            dimension_label: None,
        };
        let server = |number: usize| TsInfoPb {
            permanent_uuid: Bytes::from(format!("server-{number}")),
            rpc_addresses: vec![self.host_port(2 + number)],
            location: None,
            unix_domain_socket_path: None,
        };
        let (id, end) = *self.tablet.lock();
        let partition_key_end = end.map(|key| Bytes::from((key ^ i32::MIN).to_be_bytes().to_vec()));
        GetTableLocationsResponsePb {
            tablet_locations: vec![TabletLocationsPb {
                tablet_id: Bytes::from_static(id.as_bytes()),
                partition: Some(PartitionPb { partition_key_end, ..Default::default() }),
                interned_replicas: vec![replica(0), replica(1)],
                ..Default::default()
            }],
            ts_infos: vec![server(0), server(1)],
            ttl_millis: Some(60_000),
            error: None,
        }
    }
}

/// Id of a tablet that no server has.
const GONE: &str = "gone";

/// Returns the error of a write to [`GONE`].
fn gone(call: &Call) -> Option<Reply> {
    let request = WriteRequestPb::decode(call.body.clone()).ok().filter(|_| call.method == "Write")?;
    let code = Code::TabletNotFound as i32;
    let error = Some(TabletServerErrorPb { code, status: status(ErrorCode::NotFound) });
    (request.tablet_id == GONE).then(|| Reply::message(&WriteResponsePb { error, ..Default::default() }))
}

impl Server {
    fn master(&self, call: &Call) -> Reply {
        let leads = self.script.leaders.lock().0 == self.number;
        if call.method == "ConnectToMaster" {
            let role = if leads { Role::Leader } else { Role::Follower };
            let master_addrs = (0..2).map(|at| self.script.host_port(at)).collect();
            let reply =
                ConnectToMasterResponsePb { role: Some(role as i32), master_addrs, ..Default::default() };
            return Reply::message(&reply);
        }
        self.script.note(format!("master-{} {}", self.number, call.method));
        let not_leader = MasterErrorPb {
            code: master_error_pb::Code::NotTheLeader as i32,
            status: status(ErrorCode::IllegalState),
        };
        let error = (!leads).then_some(not_leader);
        if call.method == "GetTableLocations" {
            let response = GetTableLocationsResponsePb { error, ..self.script.locations() };
            return Reply::message(&response);
        }
        if call.method == "AlterTable" {
            // As a master answers a request that it has carried out already.
            let code = master_error_pb::Code::UnknownError as i32;
            let error = Some(MasterErrorPb { code, status: status(ErrorCode::NotFound) });
            return Reply::message(&AlterTableResponsePb { error, ..Default::default() });
        }
        Reply::message(&GetTableSchemaResponsePb {
            error,
            schema: Some(schema::schema_to_pb(&schema())),
            partition_schema: Some(PartitionSchemaPb {
                range_schema: Some(RangeSchemaPb {
                    columns: vec![ColumnIdentifierPb { identifier: Some(Identifier::Name("k".to_string())) }],
                }),
                ..Default::default()
            }),
            table_id: Some(Bytes::from_static(b"table")),
            table_name: Some("t".to_string()),
            authz_token: Some(SignedTokenPb::default()),
            ..Default::default()
        })
    }

    fn tablet_server(&self, call: &Call) -> Reply {
        self.note(call);
        if let Some(gone) = gone(call) {
            return gone;
        }
        let response = self.script.responses.lock().pop_front().expect("as scripted");
        let error = match response {
            Scripted::Busy => return Reply::too_busy("scripted"),
            Scripted::TokenRejected => {
                return Reply::error(RpcErrorCodePb::ErrorInvalidAuthorizationToken, "scripted");
            }
            Scripted::Written => return Reply::message(&WriteResponsePb::default()),
            Scripted::Rows(rows, key, more) => return self.rows(rows, key, more),
            Scripted::Moved => {
                self.script.leaders.lock().1 = 1;
                (Code::NotTheLeader, ErrorCode::IllegalState)
            }
            Scripted::Fails(code, error) => (code, error),
        };
        let error = Some(TabletServerErrorPb { code: error.0 as i32, status: status(error.1) });
        match call.method {
            "Write" => Reply::message(&WriteResponsePb { error, ..Default::default() }),
            _ => Reply::message(&ScanResponsePb { error, ..Default::default() }),
        }
    }

    fn note(&self, call: &Call) {
        let description = match &call.request_id {
            Some(id) => {
                let request = WriteRequestPb::decode(call.body.clone()).expect("a Write");
                let bytes = request.row_operations.expect("rows").rows().len();
                format!("request {} attempt {}, {bytes} bytes", id.seq_no, id.attempt_no)
            }
            None => {
                let request = ScanRequestPb::decode(call.body.clone()).expect("a Scan");
                let text = |key: &Bytes| String::from_utf8_lossy(key).into_owned();
                match &request.new_scan_request {
                    Some(new) => format!(
                        "new, after {:?}, at {:?}",
                        new.last_primary_key.as_ref().map(text),
                        new.snap_timestamp
                    ),
                    None => format!("call {}", request.call_seq_id()),
                }
            }
        };
        self.script.note(format!("server-{} {}: {description}", self.number, call.method));
    }

    fn rows(&self, rows: i64, key: &'static str, more: bool) -> Reply {
        Reply::message(&ScanResponsePb {
            scanner_id: more.then(|| Bytes::from_static(b"scanner")),
            has_more_results: Some(more),
            columnar_data: Some(ColumnarRowBlockPb { columns: vec![], num_rows: Some(rows) }),
            snap_timestamp: Some(42),
            last_primary_key: Some(Bytes::from_static(key.as_bytes())),
            ..Default::default()
        })
    }
}

impl Service for Server {
    fn name(&self) -> &'static str {
        if self.is_master { "kudu.master.MasterService" } else { "kudu.tserver.TabletServerService" }
    }

    fn features(&self) -> &'static [u32] {
        &[MasterFeatures::AddDropRangePartitions as u32, MasterFeatures::GenerateAuthzToken as u32]
    }

    fn methods(&self) -> &'static [MethodInfo] {
        if self.is_master { &MASTER } else { &TSERVER }
    }

    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Reply> {
        let reply = if self.is_master { self.master(&call) } else { self.tablet_server(&call) };
        let held = self.script.held.lock().take_if(|held| held.method == call.method);
        Box::pin(async move {
            if let Some(held) = held {
                held.found.send(()).expect("the test waits");
                held.released.await.expect("the test releases it");
            }
            reply
        })
    }
}

struct World {
    script: Arc<Script>,
    client: Client,
    _handles: Vec<RpcHandle>,
}

impl World {
    /// Starts two masters, of which the second is the leader, and two tablet servers, of which the first is reported as
    /// the tablet's leader.
    async fn new(responses: impl IntoIterator<Item = Scripted>) -> World {
        World::in_env(OsEnv::new(&OsOptions::default()).expect("this machine"), responses).await
    }

    async fn in_env(env: Env, responses: impl IntoIterator<Item = Scripted>) -> World {
        let script = Arc::new(Script::default());
        *script.leaders.lock() = (1, 0);
        *script.tablet.lock() = ("tablet", None);
        script.responses.lock().extend(responses);
        let mut handles = Vec::new();
        for at in 0..4 {
            let server = Server { script: script.clone(), number: at % 2, is_master: at < 2 };
            let listener = env.net.listen(([127, 0, 0, 1], 0).into()).await.expect("a free port");
            let rpc = RpcServer::new(env.clone(), RpcConfig::default()).add(Arc::new(server));
            handles.push(rpc.serve(listener));
        }
        let ports = handles.iter().map(|handle| handle.local_addr().port()).collect();
        script.addrs.set(ports).expect("set once");
        // Only the first master is configured; it reports the second.
        let config = ClientConfig::new([handles[0].local_addr().to_string()]);
        let client = Client::connect(env, config).await.expect("a leader");
        World { script, client, _handles: handles }
    }

    fn log(&self) -> String {
        std::mem::take(&mut *self.script.log.lock()).join("\n")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_is_retried_with_its_request_id() {
    let world = World::new([
        Scripted::Moved,
        Scripted::Busy,
        Scripted::Fails(Code::UnknownError, ErrorCode::Aborted),
        Scripted::Written,
        Scripted::Written,
        Scripted::Fails(Code::MismatchedSchema, ErrorCode::InvalidArgument),
    ])
    .await;
    let table = world.client.open_table("t").await.expect("scripted");
    let session = world.client.session(SessionConfig::new(FlushMode::AutoSync));
    let key = 7i32.to_le_bytes();
    for _ in 0..2 {
        session
            .apply(&table, RowOpKind::Insert, &[ClientCell::Value(&key)], 0)
            .await
            .expect("written in the end");
    }
    let refused =
        session.apply(&table, RowOpKind::Insert, &[ClientCell::Value(&key)], 0).await.expect_err("rejected");
    assert_eq!(refused.message, "writing to table t: scripted INVALID_ARGUMENT");
    insta::assert_snapshot!(world.log(), @r"
    master-1 GetTableSchema
    master-1 GetTableLocations
    server-0 Write: request 1 attempt 1, 6 bytes
    master-1 GetTableLocations
    server-1 Write: request 1 attempt 2, 6 bytes
    server-1 Write: request 1 attempt 3, 6 bytes
    master-1 GetTableLocations
    server-0 Write: request 1 attempt 4, 6 bytes
    server-1 Write: request 2 attempt 1, 6 bytes
    server-1 Write: request 3 attempt 1, 6 bytes
    ");
}

/// Returns a session in which each row is a flush.
fn session_of_small_flushes(world: &World) -> Session {
    let config = SessionConfig::new(FlushMode::AutoBackground);
    world.client.session(SessionConfig { watermark_percent: 0, ..config })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_of_a_later_flush_waits_for_the_retries_of_an_earlier_one() {
    let world = World::new([Scripted::Busy, Scripted::Moved, Scripted::Written, Scripted::Written]).await;
    let table = world.client.open_table("t").await.expect("scripted");
    let session = session_of_small_flushes(&world);
    let key = 7i32.to_le_bytes();
    let apply = async |kind| {
        session.apply(&table, kind, &[ClientCell::Value(&key)], 0).await.expect("the buffer has space");
    };
    let (is_found, release) = world.script.hold("Write");
    apply(RowOpKind::Insert).await;
    is_found.await.expect("it is sent");
    apply(RowOpKind::Upsert).await;
    release.send(()).expect("the reply waits");
    assert_eq!(session.flush().await, []);
    // The second one is sent to the leader that the first one has found.
    insta::assert_snapshot!(world.log(), @r"
    master-1 GetTableSchema
    master-1 GetTableLocations
    server-0 Write: request 1 attempt 1, 6 bytes
    server-0 Write: request 1 attempt 2, 6 bytes
    master-1 GetTableLocations
    server-1 Write: request 1 attempt 3, 6 bytes
    server-1 Write: request 2 attempt 1, 6 bytes
    ");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inserts_of_several_flushes_are_in_flight_together() {
    let world = World::new([Scripted::Written, Scripted::Written]).await;
    let table = world.client.open_table("t").await.expect("scripted");
    let session = session_of_small_flushes(&world);
    let mut releases = Vec::new();
    for key in [1i32, 2] {
        let (is_found, release) = world.script.hold("Write");
        let key = key.to_le_bytes();
        let applied = session.apply(&table, RowOpKind::Insert, &[ClientCell::Value(&key)], 0).await;
        applied.expect("the buffer has space");
        is_found.await.expect("no reply to another row is awaited");
        releases.push(release);
    }
    releases.into_iter().for_each(|release| release.send(()).expect("the reply waits"));
    assert_eq!(session.flush().await, []);
    assert_eq!(session.written(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_a_tablet_that_begins_where_a_dropped_one_did_are_buffered_anew() {
    let world =
        World::new([Scripted::Fails(Code::TabletNotFound, ErrorCode::NotFound), Scripted::Written]).await;
    let table = world.client.open_table("t").await.expect("scripted");
    *world.script.tablet.lock() = (GONE, Some(10));
    let session = world.client.session(SessionConfig::new(FlushMode::Manual));
    let apply = async |key: i32| {
        let key = key.to_le_bytes();
        session.apply(&table, RowOpKind::Insert, &[ClientCell::Value(&key)], 0).await
    };
    apply(5).await.expect("it is buffered");
    *world.script.tablet.lock() = ("tablet", None);
    table.forget_locations();
    apply(20).await.expect("it is buffered");
    let failures = session.flush().await;
    let texts: Vec<&str> = failures.iter().map(|failure| failure.error.message.as_str()).collect();
    assert_eq!(texts, ["tablet gone of table t was dropped"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tablet_that_was_located_before_all_locations_were_dropped_gets_no_rows() {
    let world = World::new([Scripted::Written]).await;
    let table = world.client.open_table("t").await.expect("scripted");
    let session = world.client.session(SessionConfig::new(FlushMode::Manual));
    let apply = async |key: i32| {
        let key = key.to_le_bytes();
        let applied = session.apply(&table, RowOpKind::Insert, &[ClientCell::Value(&key)], 0).await;
        applied.expect("it is buffered");
    };
    let (is_found, release) = world.script.hold("GetTableLocations");
    *world.script.tablet.lock() = (GONE, Some(10));
    let replace_tablet = async {
        is_found.await.expect("the first row is looked up");
        *world.script.tablet.lock() = ("tablet", None);
        table.forget_locations();
        apply(20).await;
        release.send(()).expect("the first lookup waits");
    };
    tokio::join!(apply(5), replace_tablet);
    assert_eq!(session.flush().await, []);
    assert_eq!(session.written(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_write_does_not_wait_for_another_writes_token_beyond_its_deadline() {
    let env = mem_net::env();
    let responses = [Scripted::TokenRejected, Scripted::TokenRejected, Scripted::Written];
    let world = World::in_env(env.clone(), responses).await;
    let table = world.client.open_table("t").await.expect("scripted");
    let (is_found, release) = world.script.hold("GetTableSchema");
    let key = 7i32.to_le_bytes();
    let write = async |timeout: Duration| {
        let config = SessionConfig { timeout, ..SessionConfig::new(FlushMode::AutoSync) };
        let session = world.client.session(config);
        session.apply(&table, RowOpKind::Insert, &[ClientCell::Value(&key)], 0).await
    };
    let write_briefly = async {
        is_found.await.expect("the other write fetches a token");
        let begun = env.now().mono;
        let failed = write(Duration::from_secs(1)).await.expect_err("there is no token");
        let waited = env.now().mono.since(begun);
        release.send(()).expect("the other write waits");
        (failed, waited)
    };
    let (written, (failed, waited)) = tokio::join!(write(Duration::from_secs(60)), write_briefly);
    assert_eq!(written, Ok(()));
    assert_eq!(failed.kind, ErrorKind::TimedOut);
    let text = "table t: another call's request for an authorization token has no reply; retry";
    assert_eq!(failed.message, text);
    assert!(waited < Duration::from_secs(2), "{waited:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locations_are_forgotten_although_a_change_of_ranges_fails() {
    let world = World::new([Scripted::Written, Scripted::Written]).await;
    let table = world.client.open_table("t").await.expect("scripted");
    let session = world.client.session(SessionConfig::new(FlushMode::AutoSync));
    let key = 7i32.to_le_bytes();
    let write = async || session.apply(&table, RowOpKind::Insert, &[ClientCell::Value(&key)], 0).await;
    write().await.expect("scripted");
    let steps = [AlterStep::DropRange(PartitionRange::default())];
    let failed = world.client.alter_table(&table, &steps, None).await;
    assert_eq!(failed.map(|_| ()).map_err(|error| error.kind), Err(ErrorKind::NotFound));
    write().await.expect("scripted");
    let lookups = world.log().matches("GetTableLocations").count();
    assert_eq!(lookups, 2, "a lookup before the change, and one after it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_looks_up_a_new_leader_master() {
    let world = World::new([]).await;
    world.client.open_table("t").await.expect("scripted");
    world.script.leaders.lock().0 = 0;
    world.client.open_table("t").await.expect("the other master leads");
    insta::assert_snapshot!(world.log(), @r"
    master-1 GetTableSchema
    master-1 GetTableSchema
    master-0 GetTableSchema
    ");
}

async fn count(world: &World, fault_tolerant: bool) -> Result<usize, String> {
    let table = world.client.open_table("t").await.expect("scripted");
    let spec = ScanSpec { columns: Some(vec![]), fault_tolerant, ..ScanSpec::default() };
    let mut scanner = table.scan(spec).expect("a legal scan");
    let mut rows = 0;
    while let Some(batch) = scanner.next_batch().await.map_err(|error| error.message)? {
        rows += batch.num_rows();
    }
    world.log();
    Ok(rows)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_tolerant_scan_resumes_after_its_last_key() {
    let expired = || Scripted::Fails(Code::ScannerExpired, ErrorCode::NotFound);
    let world = World::new([
        Scripted::Rows(3, "c", true),
        Scripted::Busy,
        expired(),
        Scripted::Moved,
        Scripted::Rows(2, "e", true),
        Scripted::Rows(1, "f", false),
    ])
    .await;
    let table = world.client.open_table("t").await.expect("scripted");
    let spec = ScanSpec { columns: Some(vec![]), fault_tolerant: true, ..ScanSpec::default() };
    let mut scanner = table.scan(spec).expect("a legal scan");
    let mut rows = Vec::new();
    while let Some(batch) = scanner.next_batch().await.expect("it resumes") {
        rows.push(batch.num_rows());
    }
    assert_eq!(rows, [3, 2, 1]);
    insta::assert_snapshot!(world.log(), @r#"
    master-1 GetTableSchema
    master-1 GetTableLocations
    server-0 Scan: new, after None, at None
    server-0 Scan: call 1
    server-0 Scan: call 1
    server-0 Scan: new, after Some("c"), at Some(42)
    master-1 GetTableLocations
    server-1 Scan: new, after Some("c"), at Some(42)
    server-1 Scan: call 1
    "#);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_scans_restart_only_before_the_first_row() {
    let expired = || Scripted::Fails(Code::ScannerExpired, ErrorCode::NotFound);
    let early = World::new([Scripted::Rows(0, "", true), expired(), Scripted::Rows(2, "", false)]).await;
    assert_eq!(count(&early, false).await, Ok(2));
    let late = World::new([Scripted::Rows(1, "", true), expired()]).await;
    assert_eq!(count(&late, false).await, Err("scanning table t: scripted NOT_FOUND".to_string()));
}
