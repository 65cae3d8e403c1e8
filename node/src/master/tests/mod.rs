//! A whole master over loopback, driven with the raw protobufs of clients and tablet servers.

mod admission;
mod cluster;
mod ddl;
mod directories;
mod faults;
mod locations;
mod masters;
mod secrets;

use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use engine::ids::Uuid;
use prost::Message;

use super::{MasterConfig, RunningMaster};
use nyala_common::env::Env;
use nyala_common::env::os::{OsEnv, OsOptions};
use nyala_common::rpc::client::{CallOptions, Proxy, RpcError};
use nyala_proto::kudu::app_status_pb::ErrorCode;
use nyala_proto::kudu::consensus::raft_peer_pb::MemberType;
use nyala_proto::kudu::consensus::{ConsensusStatePb, RaftConfigPb, RaftPeerPb};
use nyala_proto::kudu::master::master_error_pb::Code;
use nyala_proto::kudu::master::*;
use nyala_proto::kudu::partition_schema_pb::column_identifier_pb::Identifier;
use nyala_proto::kudu::partition_schema_pb::{ColumnIdentifierPb, HashBucketSchemaPb, RangeSchemaPb};
use nyala_proto::kudu::tablet::{ReportedTabletStatsPb, TabletDataState, TabletStatePb};
use nyala_proto::kudu::{
    ColumnSchemaPb, DataType, HostPortPb, NodeInstancePb, PartitionSchemaPb, RowOperationsPb, SchemaPb,
    ServerRegistrationPb,
};

const SERVICE: &str = "kudu.master.MasterService";

/// A master in its own directory, and a client of it.
struct Fixture {
    env: Env,
    dir: tempfile::TempDir,
    master: RunningMaster,
    proxy: Proxy,
    change: fn(&mut MasterConfig),
    /// Number of the next tablet report.
    next_report: AtomicI32,
}

impl Fixture {
    async fn start() -> Fixture {
        Fixture::with(|_| {}).await
    }

    async fn with(change: fn(&mut MasterConfig)) -> Fixture {
        Fixture::in_env(OsEnv::new(&OsOptions::default()).expect("the real world"), change).await
    }

    async fn in_env(env: Env, change: fn(&mut MasterConfig)) -> Fixture {
        let dir = tempfile::tempdir().expect("a directory");
        let master = run(&env, &dir, change).await;
        let proxy = Proxy::new(env.clone(), master.rpc_addr, "ann");
        Fixture { env, dir, master, proxy, change, next_report: AtomicI32::new(0) }
    }

    /// Restarts the master on the same directories.
    async fn restart(&mut self) {
        self.master.shutdown().await;
        self.master.done().await;
        self.start_again().await;
    }

    async fn start_again(&mut self) {
        self.master = run(&self.env, &self.dir, self.change).await;
        self.proxy = Proxy::new(self.env.clone(), self.master.rpc_addr, "ann");
    }

    async fn try_call<Req: Message, Resp: Message + Default>(
        &self,
        service: &str,
        method: &str,
        request: &Req,
        features: &[u32],
    ) -> Result<Resp, RpcError> {
        let deadline = self.env.now().mono.after(Duration::from_secs(20));
        let options = CallOptions { features: features.to_vec(), ..CallOptions::default() };
        Ok(self.proxy.call(service, method, request, deadline, options).await?.message)
    }

    async fn call<Req: Message, Resp: Message + Default>(&self, method: &str, request: &Req) -> Resp {
        self.try_call(SERVICE, method, request, &[]).await.expect("the call succeeds")
    }

    /// Creates a table, which must succeed; returns its id.
    async fn create(&self, request: &CreateTableRequestPb) -> Bytes {
        let response: CreateTableResponsePb = self.call("CreateTable", request).await;
        assert_eq!(response.error, None);
        response.table_id.expect("a created table has an id")
    }

    async fn create_error(&self, request: &CreateTableRequestPb) -> String {
        let response: CreateTableResponsePb = self.call("CreateTable", request).await;
        shown(&response.error)
    }

    async fn alter_error(&self, request: &AlterTableRequestPb) -> String {
        let response: AlterTableResponsePb = self.call("AlterTable", request).await;
        shown(&response.error)
    }

    /// Sends one heartbeat of a tablet server that exists only in this test.
    async fn heartbeat(&self, server: Uuid, tablets: Vec<ReportedTabletPb>) -> TsHeartbeatResponsePb {
        self.heartbeat_in(server, tablets, None).await
    }

    /// As [`Fixture::heartbeat`], with the state that nyala's own tablet servers send.
    async fn heartbeat_in(
        &self,
        server: Uuid,
        tablets: Vec<ReportedTabletPb>,
        nyala_state: Option<NyalaServerStatePb>,
    ) -> TsHeartbeatResponsePb {
        let registration = ServerRegistrationPb {
            rpc_addresses: vec![HostPortPb { host: "127.0.0.1".to_string(), port: 1 }],
            nyala_oldest_level: Some(1),
            nyala_newest_level: Some(2),
            ..Default::default()
        };
        let request = TsHeartbeatRequestPb {
            common: TsToMasterCommonPb {
                ts_instance: NodeInstancePb { permanent_uuid: id(server), instance_seqno: 1 },
            },
            registration: Some(registration),
            tablet_report: Some(TabletReportPb {
                is_incremental: false,
                updated_tablets: tablets,
                removed_tablet_ids: Vec::new(),
                sequence_number: self.next_report.fetch_add(1, Ordering::Relaxed),
            }),
            nyala_state,
            ..Default::default()
        };
        self.call("TSHeartbeat", &request).await
    }

    /// Returns all tablet ids of a table, as ListTables lists them.
    async fn tablet_ids(&self, name: &str) -> Vec<Bytes> {
        let request = ListTablesRequestPb {
            name_filter: Some(name.to_string()),
            list_tablet_with_partition: Some(true),
            ..Default::default()
        };
        let response: ListTablesResponsePb = self.call("ListTables", &request).await;
        let tablets = response.tables[0].tablet_with_partition.iter();
        tablets.map(|tablet| Bytes::from(tablet.tablet_id.clone().expect("an id"))).collect()
    }

    async fn names(&self) -> Vec<String> {
        let response: ListTablesResponsePb = self.call("ListTables", &ListTablesRequestPb::default()).await;
        response.tables.into_iter().map(|table| table.name).collect()
    }

    async fn schema(&self, name: &str) -> GetTableSchemaResponsePb {
        self.call("GetTableSchema", &GetTableSchemaRequestPb { table: by_name(name) }).await
    }
}

async fn run(env: &Env, dir: &tempfile::TempDir, change: fn(&mut MasterConfig)) -> RunningMaster {
    try_run(env, dir, change).await.expect("the master starts")
}

async fn try_run(
    env: &Env,
    dir: &tempfile::TempDir,
    change: fn(&mut MasterConfig),
) -> engine::error::Result<RunningMaster> {
    let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_string();
    let addr = "127.0.0.1:0".parse().expect("an address");
    let mut config = MasterConfig::new(addr, path("wal"), vec![path("data")]);
    config.catalog.replicas_default = 1;
    change(&mut config);
    super::run(env.clone(), config).await
}

const SERVER: Uuid = Uuid([0x11; 16]);

fn id(uuid: Uuid) -> Bytes {
    Bytes::from(uuid.to_string())
}

/// Returns a report of a replica that runs and leads.
fn running(tablet: &Bytes, server: Uuid, version: u32) -> ReportedTabletPb {
    let peer = RaftPeerPb {
        permanent_uuid: Some(id(server)),
        member_type: Some(MemberType::Voter as i32),
        last_known_addr: Some(HostPortPb { host: "127.0.0.1".to_string(), port: 1 }),
        ..Default::default()
    };
    let committed_config = RaftConfigPb { opid_index: Some(-1), peers: vec![peer], ..Default::default() };
    ReportedTabletPb {
        tablet_id: tablet.clone(),
        state: Some(TabletStatePb::Running as i32),
        tablet_data_state: Some(TabletDataState::TabletDataReady as i32),
        consensus_state: Some(ConsensusStatePb {
            current_term: 1,
            leader_uuid: Some(server.to_string()),
            committed_config,
            pending_config: None,
        }),
        error: None,
        schema_version: Some(version),
        stats: Some(ReportedTabletStatsPb { on_disk_size: Some(100), live_row_count: Some(7) }),
    }
}

fn by_name(name: &str) -> TableIdentifierPb {
    TableIdentifierPb { table_id: None, table_name: Some(name.to_string()) }
}

fn by_id(id: &Bytes) -> TableIdentifierPb {
    TableIdentifierPb { table_id: Some(id.clone()), table_name: None }
}

fn column(name: &str, ty: DataType, is_key: bool) -> ColumnSchemaPb {
    ColumnSchemaPb { name: name.to_string(), r#type: ty as i32, is_key: Some(is_key), ..Default::default() }
}

fn identifier(name: &str) -> ColumnIdentifierPb {
    ColumnIdentifierPb { identifier: Some(Identifier::Name(name.to_string())) }
}

/// Returns a request for `k INT32 KEY, v STRING NULL`, HASH (k) 2, RANGE (k) [0, 10) and [20, 30).
fn table(name: &str) -> CreateTableRequestPb {
    let mut v = column("v", DataType::String, false);
    v.is_nullable = Some(true);
    let hash = HashBucketSchemaPb { columns: vec![identifier("k")], num_buckets: 2, ..Default::default() };
    CreateTableRequestPb {
        name: name.to_string(),
        schema: SchemaPb { columns: vec![column("k", DataType::Int32, true), v] },
        partition_schema: Some(PartitionSchemaPb {
            hash_schema: vec![hash],
            range_schema: Some(RangeSchemaPb { columns: vec![identifier("k")] }),
            custom_hash_schema_ranges: Vec::new(),
        }),
        split_rows_range_bounds: Some(bounds(&[(0, 10), (20, 30)])),
        ..Default::default()
    }
}

/// Returns inclusive lower and exclusive upper bounds of column 0 of two, one of which is nullable.
fn bounds(ranges: &[(i32, i32)]) -> RowOperationsPb {
    let mut rows = Vec::new();
    for (lower, upper) in ranges {
        for (kind, value) in [(6, lower), (7, upper)] {
            rows.extend([kind, 1, 0]);
            rows.extend(value.to_le_bytes());
        }
    }
    RowOperationsPb { rows: Some(Bytes::from(rows)), indirect_data: None }
}

/// Formats an error as `CODE + STATUS: message`, or `ok`.
fn shown(error: &Option<MasterErrorPb>) -> String {
    let Some(error) = error else { return "ok".to_string() };
    let code = Code::try_from(error.code).map_or("?", |code| code.as_str_name());
    let status = ErrorCode::try_from(error.status.code).map_or("?", |code| code.as_str_name());
    format!("{code} + {status}: {}", error.status.message.as_deref().unwrap_or_default())
}
