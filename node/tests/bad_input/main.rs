//! Malformed input and failing disks, against an embedded cluster over real sockets. Each fault gets its error, and a
//! second connected client is not affected.
//!
//! *Not here:* faults that end the program (a directory of another server, an address in use); see `program.rs`.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test observes the cluster from outside"
)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use engine::schema::row_ops::{ClientCell, RowOpKind, RowOpsWriter};
use engine::schema::{ColumnSchema, DataType, Schema};
use node::server::cluster::{Cluster, ClusterConfig};
use node::server::flags::Flags;
use nyala_client::{Client, ClientConfig, CreateTable, Table};
use nyala_common::env::os::{OsEnv, OsOptions};
use nyala_common::env::{Env, Stream};
use nyala_common::rpc::client::{CallOptions, ClientConnection, RpcResponse};
use nyala_common::rpc::frame::{self, FrameReader};
use nyala_common::rpc::negotiate::{ClientNegotiation, NegotiationStep};
use nyala_common::wire::schema;
use nyala_proto::kudu::RowOperationsPb;
use nyala_proto::kudu::app_status_pb::ErrorCode;
use nyala_proto::kudu::master::{GetTableLocationsRequestPb, GetTableLocationsResponsePb, TableIdentifierPb};
use nyala_proto::kudu::rpc::{ErrorStatusPb, RemoteMethodPb, RequestHeader, ResponseHeader};
use nyala_proto::kudu::tserver::tablet_server_error_pb::Code;
use nyala_proto::kudu::tserver::{
    NewScanRequestPb, ScanRequestPb, ScanResponsePb, TabletServerErrorPb, WriteRequestPb, WriteResponsePb,
};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

mod connections;
mod requests;
mod storage;

const TABLETS: &str = "kudu.tserver.TabletServerService";
const MASTER: &str = "kudu.master.MasterService";

/// A cluster with one table of one tablet, and a well-behaved client.
struct World {
    env: Env,
    config: ClusterConfig,
    cluster: Cluster,
    client: Client,
    table: Table,
    tablet: Bytes,
    /// Connection of the well-behaved client to the tablet server.
    bystander: Arc<ClientConnection>,
    /// Number of rows written by the bystander, with keys 0, 1, 2, ...
    rows: AtomicI32,
    _dir: tempfile::TempDir,
}

impl World {
    async fn start(settings: &[(&str, &str)]) -> World {
        World::in_env(OsEnv::new(&OsOptions::default()).unwrap(), settings).await
    }

    async fn in_env(env: Env, settings: &[(&str, &str)]) -> World {
        let dir = tempfile::tempdir().unwrap();
        let flags = Flags::new();
        // The test is no server of the cluster and calls what only servers call, with bad input.
        flags.set("superuser_acl", "*").unwrap();
        for (name, value) in settings {
            flags.set(name, value).unwrap();
        }
        let config = ClusterConfig::on_loopback(dir.path().to_str().unwrap(), 1, flags);
        let cluster = Cluster::start(&env, &config).await.unwrap();
        let client =
            Client::connect(env.clone(), ClientConfig::new(cluster.master_addresses())).await.unwrap();
        let table = create(&client, "t", schema()).await;
        let tablet = only_tablet(&env, &cluster, &table).await;
        let bystander = connect(&env, tserver(&cluster)).await;
        let rows = AtomicI32::new(0);
        World { env, config, cluster, client, table, tablet, bystander, rows, _dir: dir }
    }

    fn tserver(&self) -> SocketAddr {
        tserver(&self.cluster)
    }

    fn master(&self) -> SocketAddr {
        self.cluster.masters()[0].rpc_addr()
    }

    /// Calls the tablet server over the bystander's connection.
    async fn call<Req: Message, Resp: Message + Default>(
        &self,
        method: &str,
        request: &Req,
    ) -> RpcResponse<Resp> {
        let options = CallOptions::default();
        self.bystander.call(TABLETS, method, request, soon(&self.env), &options).await.unwrap()
    }

    async fn write(&self, request: &WriteRequestPb) -> WriteResponsePb {
        self.call("Write", request).await.message
    }

    /// Writes another row as the bystander, and reads all its rows.
    async fn still_served(&self) {
        let (key, n) = (self.rows.fetch_add(1, Ordering::Relaxed).to_le_bytes(), 7i64.to_le_bytes());
        let row = [ClientCell::Value(&key), ClientCell::Null, ClientCell::Value(&n)];
        let written = self.write(&insert(&self.tablet, self.table.schema(), &[&row])).await;
        assert_eq!((written.error, written.per_row_errors), (None, vec![]));
        assert_eq!(self.count().await, self.rows.load(Ordering::Relaxed));
    }

    async fn count(&self) -> i32 {
        let scanned: ScanResponsePb = self.call("Scan", &open(new_scan(&self.tablet, &[]))).await.message;
        assert_eq!((&scanned.error, scanned.has_more_results()), (&None, false));
        scanned.data.unwrap().num_rows()
    }

    async fn stop(mut self) {
        self.cluster.shutdown().await;
    }

    /// Stops the cluster and starts it on the same directories.
    async fn restart(&mut self) {
        self.cluster.shutdown().await;
        self.cluster = Cluster::start(&self.env, &self.config).await.unwrap();
        let masters = ClientConfig::new(self.cluster.master_addresses());
        self.client = Client::connect(self.env.clone(), masters).await.unwrap();
        self.table = self.client.open_table("t").await.unwrap();
        self.table.count(vec![]).await.unwrap();
        self.bystander = connect(&self.env, self.tserver()).await;
    }
}

fn tserver(cluster: &Cluster) -> SocketAddr {
    cluster.tablet_servers()[0].rpc_addr()
}

fn soon(env: &Env) -> engine::time::Instant {
    env.now().mono.after(Duration::from_secs(20))
}

async fn connect(env: &Env, addr: SocketAddr) -> Arc<ClientConnection> {
    ClientConnection::connect(env, addr, "ann", soon(env)).await.unwrap()
}

/// `k INT32, v STRING NULL, n INT64`
fn schema() -> Schema {
    let columns = vec![
        ColumnSchema::new(0, "k", DataType::Int32),
        ColumnSchema::new(1, "v", DataType::String).nullable(),
        ColumnSchema::new(2, "n", DataType::Int64),
    ];
    Schema::new(columns, 1).unwrap()
}

async fn create(client: &Client, name: &str, schema: Schema) -> Table {
    let mut create = CreateTable::new(name, schema).range(&["k"]).unwrap();
    create.replicas = Some(1);
    client.create_table(&create).await.unwrap()
}

/// Returns the id of a table's only tablet.
async fn only_tablet(env: &Env, cluster: &Cluster, table: &Table) -> Bytes {
    let connection = connect(env, cluster.masters()[0].rpc_addr()).await;
    let table_id = Some(Bytes::copy_from_slice(table.id().as_bytes()));
    let table = TableIdentifierPb { table_id, table_name: None };
    let request = GetTableLocationsRequestPb { table, ..Default::default() };
    let options = CallOptions::default();
    let found: RpcResponse<GetTableLocationsResponsePb> =
        connection.call(MASTER, "GetTableLocations", &request, soon(env), &options).await.unwrap();
    let [location] = found.message.tablet_locations.as_slice() else { panic!("one tablet: {found:?}") };
    location.tablet_id.clone()
}

fn insert(tablet: &Bytes, schema: &Schema, rows: &[&[ClientCell<'_>]]) -> WriteRequestPb {
    let mut writer = RowOpsWriter::new(schema);
    rows.iter().for_each(|row| writer.push(RowOpKind::Insert, row));
    let (rows, indirect) = writer.finish();
    WriteRequestPb {
        tablet_id: tablet.clone(),
        schema: Some(schema::schema_to_client_pb(schema)),
        row_operations: Some(RowOperationsPb {
            rows: Some(rows.into()),
            indirect_data: Some(indirect.into()),
        }),
        ..Default::default()
    }
}

/// Builds a scan of the named columns of [`schema`].
fn new_scan(tablet: &Bytes, names: &[&str]) -> NewScanRequestPb {
    let mut projected_columns = schema::schema_to_client_pb(&schema()).columns;
    projected_columns.retain(|column| names.contains(&column.name.as_str()));
    NewScanRequestPb { tablet_id: tablet.clone(), projected_columns, ..Default::default() }
}

fn open(new: NewScanRequestPb) -> ScanRequestPb {
    ScanRequestPb { new_scan_request: Some(new), call_seq_id: Some(0), ..Default::default() }
}

/// Returns code, status and message of a tablet server's error.
fn describe_error(error: &Option<TabletServerErrorPb>) -> String {
    let error = error.as_ref().expect("an error");
    let code = Code::try_from(error.code).unwrap().as_str_name();
    let status = ErrorCode::try_from(error.status.code).unwrap().as_str_name();
    format!("{code} + {status}: {}", error.status.message.as_deref().unwrap_or_default())
}

/// A raw connection.
struct Raw {
    stream: Stream,
    reader: FrameReader,
    calls: i32,
}

impl Raw {
    /// Connects without sending a byte.
    async fn silent(env: &Env, addr: SocketAddr) -> Raw {
        let stream = env.net.connect(addr, soon(env)).await.unwrap();
        Raw { stream, reader: FrameReader::new(64 << 20), calls: 0 }
    }

    /// Connects and negotiates.
    async fn negotiated(env: &Env, addr: SocketAddr) -> Raw {
        let mut raw = Raw::silent(env, addr).await;
        // Heartbeats are taken from the user of the servers only.
        let user = env.disks.process_user().unwrap();
        let mut negotiation = ClientNegotiation::new(&user);
        let mut send = negotiation.hello();
        loop {
            raw.write(&send).await;
            let frame = raw.frame().await.expect("the server negotiates");
            match negotiation.on_frame(&frame) {
                NegotiationStep::Continue(bytes) => send = bytes,
                NegotiationStep::Done { send, .. } => {
                    raw.write(&send).await;
                    return raw;
                }
                NegotiationStep::StartTls { .. } => panic!("this client has no TLS"),
                NegotiationStep::Failed { message, .. } => panic!("{message}"),
            }
        }
    }

    /// Writes bytes. Errors are ignored: the server may have closed the connection, which the next read shows.
    async fn write(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
        let _ = self.stream.flush().await;
    }

    /// Shuts down the sending half.
    async fn finish(&mut self) {
        let _ = self.stream.shutdown().await;
    }

    /// Reads the next frame; `None` at the end of the stream.
    async fn frame(&mut self) -> Option<frame::Frame> {
        loop {
            if let Some(frame) = self.reader.next_frame().expect("the server sends frames") {
                return Some(frame);
            }
            if self.stream.read_buf(self.reader.space()).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    /// Reads the next reply as text; `None` at the end of the stream.
    async fn reply(&mut self) -> Option<String> {
        let frame = self.frame().await?;
        let header = ResponseHeader::decode(frame.header).unwrap();
        if !header.is_error() {
            return Some("ok".to_string());
        }
        let status = ErrorStatusPb::decode(frame.body).unwrap();
        let unsupported = match status.unsupported_feature_flags.as_slice() {
            [] => String::new(),
            flags => format!(" {flags:?}"),
        };
        Some(format!("{}: {}{unsupported}", status.code().as_str_name(), status.message))
    }

    /// Calls a method with an arbitrary body. The connection must survive.
    async fn call(&mut self, service: &str, method: &str, features: &[u32], body: &[u8]) -> String {
        self.calls += 1;
        self.write(&call_bytes(self.calls, service, method, features, body)).await;
        self.reply().await.unwrap_or_else(|| panic!("{method} ended the connection: {body:02x?}"))
    }
}

fn call_bytes(call_id: i32, service: &str, method: &str, features: &[u32], body: &[u8]) -> Bytes {
    let remote_method =
        Some(RemoteMethodPb { service_name: service.to_string(), method_name: method.to_string() });
    let required_feature_flags = features.to_vec();
    let header = RequestHeader { call_id, remote_method, required_feature_flags, ..Default::default() };
    let mut out = BytesMut::new();
    frame::put_head(&header, body.len(), &mut out);
    out.extend_from_slice(body);
    out.freeze()
}
