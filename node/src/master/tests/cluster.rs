//! One master and one tablet server over loopback.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::tserver::{self, RunningTserver, TserverConfig};
use nyala_common::env::testing::HeldTasks;
use nyala_proto::kudu::master::alter_table_request_pb::{
    AddColumn, AddRangePartition, DropRangePartition, Step, StepType,
};

async fn start_tserver(master: &Fixture) -> RunningTserver {
    start_tserver_in(&master.env, master).await
}

async fn start_tserver_in(env: &Env, master: &Fixture) -> RunningTserver {
    let path = |name: &str| master.dir.path().join(name).to_str().expect("UTF-8").to_string();
    let addr = "127.0.0.1:0".parse().expect("an address");
    let mut config = TserverConfig::new(addr, path("ts-wal"), vec![path("ts-data")]);
    config.web_addr = Some(addr);
    config.masters = vec![master.master.rpc_addr.to_string()];
    config.heartbeat_interval_ms = 20;
    tserver::run(env.clone(), config).await.expect("the tablet server starts")
}

/// Returns the answer of a server's web port, which begins with the status.
async fn get(env: &Env, server: &RunningTserver, path: &str) -> String {
    let deadline = env.now().mono.after(Duration::from_secs(20));
    let web = server.web_addr.expect("a web port");
    let mut stream = env.net.connect(web, deadline).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("an open connection");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("UTF-8");
    answer
}

/// Asks whether a server is ready until the answer has `wanted`; gives up after one minute.
async fn readiness_with(env: &Env, server: &RunningTserver, wanted: &str) -> String {
    let asked = async {
        loop {
            let answer = get(env, server, "/readyz").await;
            if answer.contains(wanted) {
                return answer;
            }
            env.sleep(Duration::from_millis(5)).await;
        }
    };
    env.timeout(Duration::from_secs(60), asked).await.expect("it happens within a minute")
}

impl Fixture {
    /// Retries the call until `done`; gives up after one minute.
    async fn until<Req: Message, Resp: Message + Default>(
        &self,
        method: &str,
        request: &Req,
        done: impl Fn(&Resp) -> bool,
    ) -> Resp {
        let asked = async {
            loop {
                let response: Resp = self.call(method, request).await;
                if done(&response) {
                    return response;
                }
                self.env.sleep(Duration::from_millis(5)).await;
            }
        };
        self.env.timeout(Duration::from_secs(60), asked).await.expect("it happens within a minute")
    }

    async fn registered(&self) {
        let request = ListTabletServersRequestPb { include_states: None };
        self.until("ListTabletServers", &request, |listed: &ListTabletServersResponsePb| {
            !listed.servers.is_empty()
        })
        .await;
    }

    async fn created(&self, name: &str) {
        let request = IsCreateTableDoneRequestPb { table: by_name(name) };
        self.until("IsCreateTableDone", &request, IsCreateTableDoneResponsePb::done).await;
    }

    async fn altered(&self, name: &str) -> u32 {
        let request = IsAlterTableDoneRequestPb { table: by_name(name) };
        self.until("IsAlterTableDone", &request, IsAlterTableDoneResponsePb::done).await.schema_version()
    }
}

fn add_and_drop() -> AlterTableRequestPb {
    let mut c = column("c", DataType::Int64, false);
    c.read_default_value = Some(Bytes::from(7i64.to_le_bytes().to_vec()));
    let range = |lower, upper| Some(bounds(&[(lower, upper)]));
    AlterTableRequestPb {
        table: by_name("t"),
        schema: Some(table("").schema),
        alter_schema_steps: vec![
            Step {
                r#type: Some(StepType::AddColumn as i32),
                add_column: Some(AddColumn { schema: c }),
                ..Default::default()
            },
            Step {
                r#type: Some(StepType::AddRangePartition as i32),
                add_range_partition: Some(AddRangePartition {
                    range_bounds: range(30, 40),
                    ..Default::default()
                }),
                ..Default::default()
            },
            Step {
                r#type: Some(StepType::DropRangePartition as i32),
                drop_range_partition: Some(DropRangePartition { range_bounds: range(0, 10) }),
                ..Default::default()
            },
        ],
        new_table_name: Some("u".to_string()),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tables_life() {
    let mut master = Fixture::start().await;
    let server = start_tserver(&master).await;
    master.registered().await;
    master.create(&table("t")).await;
    master.created("t").await;
    assert_eq!(server.server.tablets.all().len(), 4);

    let altered: AlterTableResponsePb = master.call("AlterTable", &add_and_drop()).await;
    assert_eq!(altered.error, None);
    assert_eq!(master.altered("u").await, 1);
    let schema = master.schema("u").await.schema.expect("a schema");
    assert_eq!(schema.columns.len(), 3);
    assert_eq!(schema.columns[2].id, Some(2));
    wait_for_tablets(&master, &server, 4).await;
    for entry in server.server.tablets.all() {
        assert_eq!(entry.schema_version(), 1);
    }

    // A new leader learns of the tablets from their server's report.
    let (old, address) = (master.tablet_ids("u").await, master.master.rpc_addr);
    master.master.shutdown().await;
    let path = |name: &str| master.dir.path().join(name).to_str().expect("UTF-8").to_string();
    let config = MasterConfig::new(address, path("wal"), vec![path("data")]);
    master.master = crate::master::run(master.env.clone(), config).await.expect("the master starts again");
    master.proxy = Proxy::new(master.env.clone(), address, "ann");
    assert_eq!(master.tablet_ids("u").await, old);
    master.registered().await;
    master.created("u").await;

    let dropped: DeleteTableResponsePb =
        master.call("DeleteTable", &DeleteTableRequestPb { table: by_name("u"), ..Default::default() }).await;
    assert_eq!(dropped.error, None);
    wait_for_tablets(&master, &server, 0).await;
    server.shutdown().await;
    master.master.shutdown().await;
}

/// A rolling restart waits until a server is ready before it stops the next one.
#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_tablet_server_is_ready_once_its_logs_are_replayed() {
    let master = Fixture::start().await;
    let server = start_tserver(&master).await;
    master.registered().await;
    master.create(&table("t")).await;
    master.created("t").await;
    server.shutdown().await;

    let mut env = master.env.clone();
    let held = HeldTasks::install(&mut env, "bootstrap");
    let server = start_tserver_in(&env, &master).await;
    let starting = readiness_with(&env, &server, "\nmasters: ok: ").await;
    assert!(starting.starts_with("HTTP/1.1 503 "), "{starting}");
    assert!(
        starting.contains("\nbootstraps: failed: 4 of 4 tablets still replay their logs\n"),
        "{starting}"
    );
    assert!(get(&env, &server, "/livez").await.starts_with("HTTP/1.1 200 "), "it must not be restarted");
    held.release_one();
    let ready = readiness_with(&env, &server, "HTTP/1.1 200 ").await;
    assert!(ready.contains("\nbootstraps: ok: all 4 bootstraps of the start have ended\n"), "{ready}");
    server.shutdown().await;
    master.master.shutdown().await;
}

async fn wait_for_tablets(master: &Fixture, server: &RunningTserver, count: usize) {
    let gone = async {
        while server.server.tablets.all().len() != count {
            master.env.sleep(Duration::from_millis(5)).await;
        }
    };
    master.env.timeout(Duration::from_secs(60), gone).await.expect("it happens within a minute");
}
