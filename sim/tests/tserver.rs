//! A tablet server in turmoil's world, used over the wire while it is killed, loses power and is cut off.

use std::time::Duration;

use bytes::Bytes;
use engine::config::TabletConfig;
use engine::ids::Uuid;
use engine::schema::{ColumnSchema, DataType, Schema};
use node::tserver::{self, TserverConfig};
use nyala_common::env::Env;
use nyala_common::rpc::RequestIdPb;
use nyala_common::rpc::client::{CallOptions, Proxy, RpcResponse};
use nyala_common::wire::schema;
use nyala_proto::kudu::consensus::{RaftConfigPb, RaftPeerPb};
use nyala_proto::kudu::server::{GetStatusRequestPb, GetStatusResponsePb};
use nyala_proto::kudu::tserver::{
    CreateTabletRequestPb, CreateTabletResponsePb, NewScanRequestPb, ScanRequestPb, ScanResponsePb,
    WriteRequestPb, WriteResponsePb,
};
use nyala_proto::kudu::{PartitionPb, PartitionSchemaPb, RowOperationsPb};
use prost::Message;
use sim::event_log::{EventLog, RunFingerprint};
use sim::world::turmoil::{TurmoilResult, TurmoilWorld};

type Failure = Box<dyn std::error::Error>;

const TABLET: Uuid = Uuid([0xab; 16]);
const TABLE: Uuid = Uuid([0xcd; 16]);
const GENERIC: &str = "kudu.server.GenericService";
const ADMIN: &str = "kudu.tserver.TabletServerAdminService";
const TSERVER: &str = "kudu.tserver.TabletServerService";

async fn serve(env: Env) -> TurmoilResult {
    let mut config = TserverConfig::new("0.0.0.0:7050".parse()?, "wal", vec!["data".to_string()]);
    config.tablet = TabletConfig::tiny();
    config.maintenance_interval_ms = 20;
    let _server = tserver::run(env, config).await?;
    std::future::pending().await
}

/// `key INT32, v STRING`
fn schema() -> Schema {
    let columns =
        vec![ColumnSchema::new(0, "key", DataType::Int32), ColumnSchema::new(1, "v", DataType::String)];
    Schema::new(columns, 1).expect("a valid schema")
}

struct Client {
    env: Env,
    proxy: Proxy,
}

impl Client {
    fn new(env: Env) -> Client {
        let proxy = Proxy::new(env.clone(), "tserver:7050", "root");
        Client { env, proxy }
    }

    /// Calls until there is a reply: the server may be dead, starting or out of reach.
    async fn call<Req: Message, Resp: Message + Default>(
        &self,
        (service, method): (&str, &str),
        request: &Req,
        request_id: Option<RequestIdPb>,
    ) -> RpcResponse<Resp> {
        loop {
            let deadline = self.env.now().mono.after(Duration::from_millis(700));
            let options = CallOptions { request_id: request_id.clone(), ..CallOptions::default() };
            if let Ok(answer) = self.proxy.call(service, method, request, deadline, options).await {
                return answer;
            }
            self.env.sleep(Duration::from_millis(20)).await;
        }
    }

    async fn create_tablet(&self) -> Result<(), Failure> {
        let status: RpcResponse<GetStatusResponsePb> =
            self.call((GENERIC, "GetStatus"), &GetStatusRequestPb {}, None).await;
        let uuid = status.message.status.node_instance.permanent_uuid;
        let peer =
            RaftPeerPb { permanent_uuid: Some(uuid.clone()), member_type: Some(1), ..Default::default() };
        let request = CreateTabletRequestPb {
            dest_uuid: Some(uuid),
            table_type: None,
            table_id: schema::id_bytes(&TABLE),
            tablet_id: schema::id_bytes(&TABLET),
            start_key: None,
            end_key: None,
            partition: Some(PartitionPb::default()),
            table_name: "t".to_string(),
            schema: schema::schema_to_pb(&schema()),
            partition_schema: Some(PartitionSchemaPb::default()),
            config: RaftConfigPb { opid_index: Some(-1), peers: vec![peer], ..Default::default() },
            extra_config: None,
            dimension_label: None,
            nyala_attributes: Default::default(),
        };
        let created: RpcResponse<CreateTabletResponsePb> =
            self.call((ADMIN, "CreateTablet"), &request, None).await;
        match created.message.error {
            None => Ok(()),
            Some(error) => Err(format!("CreateTablet: {error:?}").into()),
        }
    }

    /// Inserts one row exactly once, with retries.
    async fn insert(&self, key: i32, v: &str) -> Result<(), Failure> {
        // INSERT, both columns set; no column may be NULL, so there is no bitmap of those.
        let mut rows = vec![1, 0b11];
        rows.extend(key.to_le_bytes());
        rows.extend(0u64.to_le_bytes());
        rows.extend((v.len() as u64).to_le_bytes());
        let indirect_data = Some(Bytes::copy_from_slice(v.as_bytes()));
        let request = WriteRequestPb {
            tablet_id: schema::id_bytes(&TABLET),
            schema: Some(schema::schema_to_client_pb(&schema())),
            row_operations: Some(RowOperationsPb { rows: Some(rows.into()), indirect_data }),
            ..Default::default()
        };
        let seq_no = key.into();
        let id = RequestIdPb {
            client_id: "0123456789abcdef0123456789abcdef".to_string(),
            seq_no,
            first_incomplete_seq_no: seq_no,
            attempt_no: 0,
        };
        loop {
            let written: RpcResponse<WriteResponsePb> =
                self.call((TSERVER, "Write"), &request, Some(id.clone())).await;
            let (error, row_errors) = (written.message.error, written.message.per_row_errors);
            if error.is_some() {
                // The tablet is not there yet after a restart.
                self.env.sleep(Duration::from_millis(20)).await;
            } else if row_errors.is_empty() {
                return Ok(());
            } else {
                return Err(format!("row {key} was not inserted once: {row_errors:?}").into());
            }
        }
    }

    /// Returns all keys, in the order they come.
    async fn keys(&self) -> Result<Vec<i32>, Failure> {
        let projected_columns = schema::schema_to_client_pb(&schema()).columns.split_off(0);
        let new = NewScanRequestPb {
            tablet_id: schema::id_bytes(&TABLET),
            projected_columns: projected_columns[..1].to_vec(),
            order_mode: Some(nyala_proto::kudu::OrderMode::Ordered.into()),
            read_mode: Some(nyala_proto::kudu::ReadMode::ReadAtSnapshot.into()),
            ..Default::default()
        };
        let mut request =
            ScanRequestPb { new_scan_request: Some(new), call_seq_id: Some(0), ..Default::default() };
        let mut keys = Vec::new();
        for seq in 1.. {
            let answer: RpcResponse<ScanResponsePb> = self.call((TSERVER, "Scan"), &request, None).await;
            if let Some(error) = answer.message.error {
                return Err(format!("Scan: {error:?}").into());
            }
            let cells = answer.sidecars[0].chunks(4);
            keys.extend(cells.map(|cell| i32::from_le_bytes(cell.try_into().expect("4 bytes"))));
            if !answer.message.has_more_results() {
                break;
            }
            let scanner_id = answer.message.scanner_id.or(request.scanner_id);
            request = ScanRequestPb { scanner_id, call_seq_id: Some(seq), ..Default::default() };
        }
        Ok(keys)
    }
}

async fn write_and_read(env: Env, rows: i32) -> TurmoilResult {
    let client = Client::new(env);
    client.create_tablet().await?;
    for key in 1..=rows {
        client.insert(key, &format!("value {key}")).await?;
    }
    let keys = client.keys().await?;
    if keys.iter().copied().eq(1..=rows) {
        Ok(())
    } else {
        Err(format!("rows 1 to {rows} became {keys:?}").into())
    }
}

fn run(seed: u64, keep: bool) -> (RunFingerprint, Vec<String>) {
    let log = EventLog::new(keep);
    let mut world = TurmoilWorld::new(seed, Duration::from_secs(300), log.clone());
    world.host("tserver", serve);
    world.client("client", |env| write_and_read(env, 300));
    let mut faults = 0;
    // Not while the tablet is created: that is not retried.
    let mut ended = world.run_for(Duration::from_millis(200)).expect("no client fails");
    while !ended {
        let pause = Duration::from_millis(100 + (seed * 31 + faults * 17) % 90);
        ended = world.run_for(pause).expect("each row was inserted once and is there");
        match faults % 3 {
            0 => world.cut_power("tserver"),
            1 => world.kill("tserver"),
            _ => world.hold("tserver", "client"),
        }
        world.run_for(Duration::from_millis(300)).expect("no client fails");
        match faults % 3 {
            2 => world.release("tserver", "client"),
            _ => world.restart("tserver"),
        }
        faults += 1;
    }
    assert!(faults >= 6, "only {faults} faults");
    (world.fingerprint(), log.lines())
}

#[test]
fn rows_are_inserted_once_and_stay() {
    for seed in 0..4 {
        run(seed, false);
    }
}

#[test]
fn a_seed_repeats_itself() {
    let (first, first_lines) = run(5, true);
    let (second, second_lines) = run(5, true);
    let parting = first_lines.iter().zip(&second_lines).position(|(first, second)| first != second);
    let around = |lines: &[String]| parting.map(|at| lines[at.saturating_sub(3)..at + 1].join("\n"));
    assert_eq!(around(&first_lines), around(&second_lines));
    assert_eq!(first, second);
}
