//! `nyala debug master …`: the only master of a cluster is lost, and its catalog is rebuilt from the tablet servers.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test observes the program from outside"
)]

#[path = "common/credentials.rs"]
mod credentials;

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use credentials::{jwt, write_files};
use engine::ids::ColumnId;
use engine::schema::key::encode_cell;
use engine::schema::partition::HashDimension;
use engine::schema::partition_range::PartitionRange;
use engine::schema::{ColumnSchema, DataType, PhysicalType, Schema};
use node::cli::{self, ExitError};
use node::dirs::ServerKind;
use node::server::cluster::{Cluster, ClusterConfig};
use node::server::flags::Flags;
use node::server::startup::{self, RunningServer};
use nyala_client::tables::CreateTable;
use nyala_client::{Client, ClientConfig, Table};
use nyala_common::env::Env;
use nyala_common::env::os::{OsEnv, OsOptions};

async fn run(env: &Env, args: &[&str]) -> Result<(), ExitError> {
    let all = ["nyala"].into_iter().chain(args.iter().copied());
    let matches = cli::command().try_get_matches_from(all.map(OsString::from)).expect("legal arguments");
    let read_file = |path: &str| std::fs::read(path);
    let invocation = cli::parse(&matches, &read_file)?;
    invocation.run(env.clone(), Box::pin(std::future::pending()), &|_| {}).await
}

/// Everything about a table that its clients see.
fn describe(table: &Table) -> String {
    let (schema, partition) = (table.schema(), table.partition_schema());
    format!(
        "{} {} {} {:?} {}\n{schema:?}\n{partition:?}",
        table.id(),
        table.name(),
        table.owner(),
        table.comment(),
        table.num_replicas()
    )
}

fn key(value: i32) -> Vec<u8> {
    let mut encoded = Vec::new();
    encode_cell(PhysicalType::Int32, &value.to_le_bytes(), true, &mut encoded);
    encoded
}

/// A table of two ranges; the second one has hash buckets of its own.
fn ranged() -> CreateTable {
    let columns =
        vec![ColumnSchema::new(0, "k", DataType::Int32), ColumnSchema::new(1, "v", DataType::Int32)];
    let schema = Schema::new(columns, 1).expect("a schema");
    let create = CreateTable::new("ranged", schema).hash(&["k"], 2).and_then(|create| create.range(&["k"]));
    let mut create = create.expect("a partitioning");
    let range = |low, high| PartitionRange::new(key(low), key(high)).expect("a range");
    create.ranges = vec![range(0, 100), range(100, 200)];
    let hash = vec![HashDimension { columns: vec![ColumnId(0)], buckets: 3, seed: 7 }];
    create.partition.set_custom(&create.ranges[1], hash);
    (create.replicas, create.owner, create.comment) = (Some(3), Some("ann".into()), Some("a note".into()));
    create
}

/// A table whose server numbers the rows.
fn numbered() -> CreateTable {
    let mut id = ColumnSchema::new(1, "auto_incrementing_id", DataType::Int64);
    id.auto_incrementing = true;
    let columns = vec![ColumnSchema::new(0, "k", DataType::Int32), id];
    CreateTable {
        replicas: Some(1),
        ..CreateTable::new("numbered", Schema::new(columns, 2).expect("a schema"))
    }
}

/// Runs `nyala table …` against the cluster of this master.
async fn table(env: &Env, master: &str, args: &[&str]) {
    let args: Vec<&str> = ["table"].iter().chain(args).copied().chain(["--masters", master]).collect();
    run(env, &args).await.expect("the cluster runs");
}

/// Alters the tables and writes rows.
async fn fill(env: &Env, master: &str) {
    let table = async |args: &[&str]| table(env, master, args).await;
    table(&["insert", "ranged", "k=1", "v=1"]).await;
    table(&["alter", "ranged", "--add-column", "extra int32 null", "--add-range", "200..300"]).await;
    table(&["alter", "ranged", "--add-column", "gone int32 null", "--drop-column", "v", "--yes"]).await;
    table(&["alter", "ranged", "--drop-column", "gone", "--yes"]).await;
    for row in ["k=2", "k=150", "k=250"] {
        table(&["insert", "ranged", row, "extra=5"]).await;
    }
    table(&["rename", "ranged", "renamed"]).await;
    for _ in 0..2 {
        table(&["insert", "numbered", "k=1"]).await;
    }
}

/// Starts a server with these settings and the data of its directories.
async fn start(env: &Env, kind: ServerKind, flags: &Flags, settings: &[(&str, &str)]) -> RunningServer {
    let flags = flags.fork();
    for (name, value) in [("webserver_port", "0")].iter().chain(settings) {
        flags.set(name, value).expect("a flag");
    }
    let server = startup::start(env, kind, Arc::new(flags)).await.expect("its directories");
    server.until_ready().await.expect("a sound catalog");
    server
}

/// Starts a master with the directory `new`, and the tablet servers of the stopped cluster in `dir`.
async fn restart(
    env: &Env,
    dir: &str,
    flags: &Flags,
    (master, tablet_servers): (&str, &str),
    new: &str,
) -> Vec<RunningServer> {
    let settings = [("rpc_bind_addresses", master), ("fs_wal_dir", new)];
    let mut servers = vec![start(env, ServerKind::Master, flags, &settings).await];
    for (number, addr) in (1..).zip(tablet_servers.split(',')) {
        let [wal, data] = ["wal", "data"].map(|part| format!("{dir}/tserver-{number}/{part}"));
        let settings = [
            ("rpc_bind_addresses", addr),
            ("tserver_master_addrs", master),
            ("fs_wal_dir", &wal),
            ("fs_data_dirs", &data),
        ];
        servers.push(start(env, ServerKind::TabletServer, flags, &settings).await);
    }
    servers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_catalog_is_rebuilt_from_the_tablet_servers() {
    let env: Env = OsEnv::new(&OsOptions::default()).expect("this machine");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_string();
    let flags = Flags::new();
    flags.set("log_sync", "false").expect("a flag");
    let config = ClusterConfig::on_loopback(path("cluster"), 3, flags.fork());
    let mut cluster = Cluster::start(&env, &config).await.expect("free ports and a fresh directory");
    let master = cluster.master_addresses().remove(0);
    let client =
        Client::connect(env.clone(), ClientConfig::new(vec![master.clone()])).await.expect("it runs");
    for create in [ranged(), numbered()] {
        client.create_table(&create).await.expect("a new table");
    }
    fill(&env, &master).await;
    let mut before = Vec::new();
    for name in ["renamed", "numbered"] {
        before.push(describe(&client.open_table(name).await.expect("a table")));
    }
    drop(client);
    cluster.masters()[0].shutdown().await;

    let old = path("cluster/master-1/wal");
    run(&env, &["debug", "master", "fsck", "--fs-wal-dir", &old]).await.expect("its catalog is sound");
    let servers: Vec<String> =
        cluster.tablet_servers().iter().map(|server| server.rpc_addr().to_string()).collect();
    let (addrs, new) = (servers.join(","), path("new"));
    let rebuild = ["debug", "master", "rebuild", "--from-tservers", &addrs, "--rpc-address", &master];
    let rebuild: Vec<&str> = rebuild.into_iter().chain(["--fs-wal-dir", &new]).collect();
    run(&env, &rebuild).await.expect("all tablets are there");
    assert!(!dir.path().join("new").exists(), "nothing is written without --write");
    let write: Vec<&str> = rebuild.iter().copied().chain(["--write"]).collect();
    run(&env, &write).await.expect("an empty directory");
    let refused = run(&env, &write).await.expect_err("the directory has a catalog");
    assert_eq!(refused.code, 4, "{refused}");
    run(&env, &["debug", "master", "fsck", "--fs-wal-dir", &new]).await.expect("the new catalog is sound");

    // Tablet servers trust the CA of the lost master until they start again.
    cluster.shutdown().await;
    let servers = restart(&env, &path("cluster"), &flags, (&master, &addrs), &new).await;
    let client =
        Client::connect(env.clone(), ClientConfig::new(vec![master.clone()])).await.expect("it runs");
    let mut after = Vec::new();
    for name in ["renamed", "numbered"] {
        after.push(describe(&client.open_table(name).await.expect("a table")));
    }
    assert_eq!(before, after);
    while client.tablet_servers().await.expect("the master runs") < 3 {
        env.sleep(Duration::from_millis(20)).await;
    }
    let count = async |name: &str| {
        let table = client.open_table(name).await.expect("a table");
        table.count(Vec::new()).await.expect("all rows can be read")
    };
    assert_eq!((count("renamed").await, count("numbered").await), (4, 2));
    table(&env, &master, &["insert", "numbered", "k=1"]).await;
    assert_eq!(count("numbered").await, 3, "the next number is a new one");
    table(&env, &master, &["alter", "renamed", "--add-column", "later int32 null"]).await;
    let altered = client.open_table("renamed").await.expect("a table");
    let later = altered.schema().columns().last().expect("the new column").id;
    assert_eq!(later, ColumnId(4), "ids of dropped columns are not given again");
    for server in servers {
        server.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_catalog_is_rebuilt_from_tablet_servers_that_demand_a_proof() {
    let env: Env = OsEnv::new(&OsOptions::default()).expect("this machine");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_string();
    let key = write_files(dir.path());
    std::fs::write(path("ann.jwt"), jwt(&key, "ann").expose()).expect("the test owns the directory");
    let flags = Flags::new();
    for (name, value) in [
        ("log_sync", "false"),
        ("rpc_authentication", "required"),
        ("rpc_encryption", "required"),
        ("rpc_encrypt_loopback_connections", "true"),
        ("rpc_certificate_file", &path("cert.pem")),
        ("rpc_private_key_file", &path("key.pem")),
        ("rpc_ca_certificate_file", &path("ca.pem")),
        ("enable_jwt_token_auth", "true"),
        ("jwks_file_path", &path("jwks.json")),
        ("user_acl", "ann"),
    ] {
        flags.set(name, value).expect(name);
    }
    let config = ClusterConfig::on_loopback(path("cluster"), 1, flags);
    let mut cluster = Cluster::start(&env, &config).await.expect("free ports and a fresh directory");
    let master = cluster.master_addresses().remove(0);
    let (ca, token) = (path("ca.pem"), path("ann.jwt"));
    let proof = ["--ca-cert", &ca, "--jwt-file", &token, "--require-encryption"];
    let create = ["table", "create", "t", "--column", "k int32", "--replicas", "1", "--masters", &master];
    run(&env, &[&create[..], &proof].concat()).await.expect("the cluster runs");
    cluster.masters()[0].shutdown().await;

    let (addr, new) = (cluster.tablet_servers()[0].rpc_addr().to_string(), path("new"));
    let rebuild = ["debug", "master", "rebuild", "--from-tservers", &addr, "--rpc-address", &master];
    let rebuild = [&rebuild[..], &["--fs-wal-dir", &new, "--write"]].concat();
    let refused = run(&env, &rebuild).await.expect_err("a name is no proof").message;
    assert!(refused.starts_with(&format!("tablet server {addr}: ")), "{refused}");
    assert!(refused.contains("Not authorized"), "{refused}");
    assert!(!dir.path().join("new").exists(), "nothing is written");
    run(&env, &[&rebuild[..], &proof].concat()).await.expect("a token");
    run(&env, &["debug", "master", "fsck", "--fs-wal-dir", &new]).await.expect("the new catalog is sound");
    cluster.shutdown().await;
}
