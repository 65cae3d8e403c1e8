//! `nyala table …` against an embedded cluster: exported rows equal imported rows, and bad rows are reported.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the test observes the program from outside"
)]

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use node::cli::{self, ExitError};
use node::server::cluster::{Cluster, ClusterConfig, PortAssignment};
use node::server::flags::Flags;
use nyala_common::env::Env;
use nyala_common::env::os::{OsEnv, OsOptions};

struct World {
    env: Env,
    cluster: Cluster,
    dir: tempfile::TempDir,
}

impl World {
    async fn new() -> World {
        let env: Env = OsEnv::new(&OsOptions::default()).expect("this machine");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let flags = Flags::new();
        flags.set("log_sync", "false").expect("a flag");
        let config = ClusterConfig {
            dir: dir.path().join("data").to_str().expect("UTF-8").to_string(),
            masters: 1,
            tablet_servers: 1,
            ip: [127, 0, 0, 1].into(),
            ports: PortAssignment::Free,
            flags,
        };
        let cluster = Cluster::start(&env, &config).await.expect("free ports and a fresh directory");
        World { env, cluster, dir }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().expect("UTF-8").to_string()
    }

    async fn run(&self, args: &[&str]) -> Result<(), ExitError> {
        let masters = self.cluster.master_addresses().join(",");
        let all = ["nyala", "table"].into_iter().chain(args.iter().copied()).chain(["--masters", &masters]);
        let matches = cli::command().try_get_matches_from(all.map(OsString::from)).expect("legal arguments");
        let read_file = |path: &str| fs::read(Path::new(path));
        let invocation = cli::parse(&matches, &read_file)?;
        invocation.run(self.env.clone(), Box::pin(std::future::pending())).await
    }
}

const COLUMNS: [&str; 14] = [
    "--column",
    "id int64",
    "--column",
    "name varchar(20) null",
    "--column",
    "price decimal(9,2) null",
    "--column",
    "day date null",
    "--column",
    "at timestamp null",
    "--column",
    "raw binary null",
    "--column",
    "ok bool null",
];

const GOOD: &str = "\
id,name,price,day,at,raw,ok
1,\"a, b\",1.25,2020-01-01,2020-01-01T00:00:00.500Z,0x00ff,true
2,,,,,,
3,\"two
lines\",-0.05,0001-01-01,1969-12-31T23:59:59Z,0x,false
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exported_rows_equal_imported_rows() {
    let mut world = World::new().await;
    let (input, output, parquet) = (world.path("in.csv"), world.path("out.csv"), world.path("mid.parquet"));
    fs::write(&input, GOOD).expect("the test owns the directory");
    for table in ["one", "two"] {
        let create = [&["create", table][..], &COLUMNS].concat();
        world.run(&create).await.expect("a new table");
    }
    world.run(&["import", "one", &input]).await.expect("good rows");
    world.run(&["export", "one", &parquet]).await.expect("a new file");
    world.run(&["import", "two", &parquet]).await.expect("what was exported");
    world.run(&["export", "two", &output]).await.expect("a new file");
    let text = fs::read_to_string(&output).expect("just written");
    assert_eq!(text, GOOD);
    let taken = world.run(&["export", "two", &output]).await.expect_err("the file exists");
    assert!(taken.message.contains("--force"), "{taken}");
    world
        .run(&["export", "two", &output, "--force", "--where", "id >= 2", "--columns", "id"])
        .await
        .expect("forced");
    assert_eq!(fs::read_to_string(&output).expect("just written"), "id\n2\n3\n");
    world
        .run(&["import", "two", &input, "--mode", "insert-ignore"])
        .await
        .expect("duplicate keys are skipped");
    world.cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_rows_are_reported() {
    let mut world = World::new().await;
    let (input, rejects, output) = (world.path("in.csv"), world.path("bad.csv"), world.path("out.csv"));
    let columns = ["--column", "k int32", "--column", "v string null", "--hash", "k:2"];
    world.run(&[&["create", "t"][..], &columns].concat()).await.expect("a new table");
    fs::write(&input, "v,k\na,1\nb,x\nc,1\nd,2,3\ne,4\n").expect("the test owns the directory");
    let stopped = world.run(&["import", "t", &input]).await.expect_err("bad rows");
    let message = stopped.message.split_once(": ").expect("the file comes first").1;
    insta::assert_snapshot!(message, @r#"
    3 bad rows, 2 rows were imported
      line 3: column "k": "x" is not a INT32
      line 4: key already present
      line 5: 3 cells instead of 2
    Mend them, or give --rejects FILE to import the others and keep these apart.
    "#);
    world.run(&["import", "t", &input, "--mode", "upsert", "--rejects", &rejects]).await.expect("rejects");
    insta::assert_snapshot!(fs::read_to_string(&rejects).expect("just written"), @r#"
    line,error,v,k
    3,"column ""k"": ""x"" is not a INT32",b,x
    5,3 cells instead of 2,d,2,3
    "#);
    world.run(&["export", "t", &output, "--where", "k = 1"]).await.expect("a new file");
    assert_eq!(fs::read_to_string(&output).expect("just written"), "k,v\n1,c\n");
    fs::write(&input, "v,key\n").expect("the test owns the directory");
    let unknown = world.run(&["import", "t", &input]).await.expect_err("there is no such column");
    assert_eq!(unknown.message, "table t has no column \"key\"; did you mean \"k\"?");
    world.run(&["drop", "t"]).await.expect("it exists");
    assert_eq!(world.run(&["describe", "t"]).await.expect_err("it is gone").code, 1);
    world.cluster.shutdown().await;
}
