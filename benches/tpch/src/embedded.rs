//! A cluster in this process, and its tablets for a client of this process.

use std::fmt;
use std::sync::Arc;

use engine::error::{Error, Result};
use engine::schema::row_block::RowBlock;
use engine::tablet::scan::{Scan, ScanSpec, SnapshotChoice};
use node::hosting::replica::ReplicaHandle;
use node::server::cluster::{Cluster, ClusterConfig};
use node::server::flags::Flags;
use node::server::startup::RunningServer;
use node::tserver::server::TabletServer;
use nyala_client::Client;
use nyala_client::local::{LocalScan, LocalTablets, has_columns};
use nyala_common::env::os::{OsEnv, OsOptions};
use nyala_common::env::{BoxFuture, Env};

use super::command::CommandResult;

/// A cluster in this process, with a client that reads its tablets without calls.
pub(crate) struct EmbeddedCluster {
    cluster: Cluster,
    pub(crate) client: Client,
}

impl EmbeddedCluster {
    /// Starts it on the data in `dir`; `flags` are `name=value`.
    pub(crate) async fn start(dir: &str, settings: &[String]) -> CommandResult<EmbeddedCluster> {
        let env = OsEnv::new(&OsOptions::default())?;
        let flags = Flags::new();
        for setting in settings {
            let (name, value) = setting.split_once('=').ok_or("a flag is NAME=VALUE")?;
            flags.set(name, value)?;
        }
        let config = ClusterConfig::on_loopback(dir, 1, flags);
        let cluster = Cluster::start(&env, &config).await?;
        let tablets = Arc::new(ProcessTablets::of(&cluster, &env));
        let client = Client::builder(cluster.master_addresses())
            // The owner of the process may change flags.
            .user(env.disks.process_user()?)
            .configure(|config| config.local_tablets = Some(tablets))
            .env(env)
            .connect()
            .await?;
        Ok(EmbeddedCluster { cluster, client })
    }

    /// Changes a flag of the tablet server.
    pub(crate) async fn set_flag(&self, name: &str, value: &str) -> CommandResult<()> {
        for server in self.cluster.tablet_servers() {
            self.client.set_flag(&server.rpc_addr().to_string(), name, value, true).await?;
        }
        Ok(())
    }

    pub(crate) async fn stop(mut self) {
        self.cluster.shutdown().await;
    }
}

/// Tablets of the tablet servers of this process.
struct ProcessTablets {
    env: Env,
    servers: Vec<Arc<TabletServer>>,
}

impl fmt::Debug for ProcessTablets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProcessTablets")
    }
}

impl ProcessTablets {
    fn of(cluster: &Cluster, env: &Env) -> ProcessTablets {
        let servers = cluster.tablet_servers().iter().filter_map(|server| match server {
            RunningServer::TabletServer(server) => Some(server.server.clone()),
            RunningServer::Master(_) => None,
        });
        ProcessTablets { env: env.clone(), servers: servers.collect() }
    }

    /// Returns the leading replica of a tablet, if it runs here.
    fn find(&self, tablet: &str) -> Option<(&TabletServer, ReplicaHandle)> {
        self.servers.iter().find_map(|server| {
            let replica = server.tablets.find(tablet.as_bytes()).ok()?.running().ok()?;
            replica.is_leader().then_some((&**server, replica))
        })
    }
}

impl LocalTablets for ProcessTablets {
    fn open<'a>(
        &'a self,
        tablet: &'a str,
        spec: ScanSpec,
    ) -> BoxFuture<'a, Result<Option<Box<dyn LocalScan>>>> {
        Box::pin(async move {
            let Some((server, replica)) = self.find(tablet) else { return Ok(None) };
            let SnapshotChoice::At(before) = spec.snapshot else {
                return Err(Error::invalid("a scan in this process needs a snapshot"));
            };
            // Order: no operation begins below the snapshot once the clock is past it.
            server.clock.update(before)?;
            let deadline = self.env.now().mono.after(server.runtime_flags.scanner_max_wait());
            replica.wait_applied_before(before, deadline).await?;
            let scan = self.env.run_brief(|| replica.tablet().scan(&spec)).await?;
            // Order: the schema is read after the scan began, so that it shows what an alteration took from the scan.
            if !has_columns(&replica.tablet().schema(), &spec) {
                return Ok(None);
            }
            Ok(Some(Box::new(ProcessScan { env: self.env.clone(), scan }) as Box<dyn LocalScan>))
        })
    }
}

struct ProcessScan {
    env: Env,
    scan: Scan,
}

impl LocalScan for ProcessScan {
    fn next_block(&mut self) -> BoxFuture<'_, Result<Option<RowBlock>>> {
        Box::pin(async move { self.env.run_brief(|| self.scan.next_block()).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use nyala_client::ReadMode;
    use nyala_client::tables::AlterStep;
    use nyala_sql::{Format, Shell};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Tablets that count the scans of this process.
    #[derive(Debug)]
    struct Counted(ProcessTablets, AtomicUsize);

    impl LocalTablets for Counted {
        fn open<'a>(
            &'a self,
            tablet: &'a str,
            spec: ScanSpec,
        ) -> BoxFuture<'a, Result<Option<Box<dyn LocalScan>>>> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.open(tablet, spec)
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn rows_are_the_same_in_process_and_by_the_wire() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().to_str().expect("UTF-8");
        let flags = ["log_sync=false".to_string(), "webserver_enabled=false".to_string()];
        let embedded = EmbeddedCluster::start(path, &flags).await.expect("a cluster");
        let script = "CREATE TABLE t (k BIGINT PRIMARY KEY, n INT, d DECIMAL(15, 2), b BOOLEAN, s VARCHAR)
                          PARTITION BY HASH (k) PARTITIONS 3 WITH (replicas = 1);
                      INSERT INTO t VALUES (1, 10, 1.50, true, 'one'), (2, NULL, NULL, NULL, NULL),
                          (3, 30, -3.25, false, 'three'), (4, 40, 4.00, true, ''), (5, 50, 5.00, false, 'five');
                      UPDATE t SET n = n + 1 WHERE k >= 3; DELETE FROM t WHERE k = 5";
        let shell = Shell::new(embedded.client.clone(), Format::Csv);
        shell.run(script, &mut |_| Ok(())).await.expect("rows");

        let tablets = ProcessTablets::of(&embedded.cluster, embedded.client.env());
        let counted = Arc::new(Counted(tablets, AtomicUsize::new(0)));
        let masters = embedded.cluster.master_addresses();
        let client = |local: Option<Arc<dyn LocalTablets>>| {
            Client::builder(masters.clone()).configure(|config| config.local_tablets = local).connect()
        };
        let here = Shell::new(client(Some(counted.clone())).await.expect("a client"), Format::Csv);
        let wire = Shell::new(client(None).await.expect("a client"), Format::Csv);
        for query in [
            "SELECT * FROM t ORDER BY k",
            "SELECT count(*), sum(d), max(s) FROM t WHERE n > 10",
            "SELECT k FROM t WHERE s IS NULL",
            "SELECT s, d FROM t WHERE k = 3",
            "SELECT k FROM t ORDER BY k LIMIT 2",
        ] {
            let text = async |shell: &Shell| {
                pretty_format_batches(&shell.query(query).await.expect("rows")).expect("text").to_string()
            };
            let (opened, mine) = (counted.1.load(Ordering::Relaxed), text(&here).await);
            assert_eq!(mine, text(&wire).await, "{query}");
            assert!(counted.1.load(Ordering::Relaxed) > opened, "{query} called the server");
        }
        embedded.stop().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_column_that_was_dropped_is_refused_as_by_the_wire() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().to_str().expect("UTF-8");
        let flags = ["log_sync=false".to_string(), "webserver_enabled=false".to_string()];
        let embedded = EmbeddedCluster::start(path, &flags).await.expect("a cluster");
        let script = "CREATE TABLE t (k BIGINT PRIMARY KEY, n INT)
                          PARTITION BY HASH (k) PARTITIONS 2 WITH (replicas = 1);
                      INSERT INTO t VALUES (1, 10), (2, 20)";
        let shell = Shell::new(embedded.client.clone(), Format::Csv);
        shell.run(script, &mut |_| Ok(())).await.expect("rows");
        let table = embedded.client.open_table("t").await.expect("a table");
        let steps = [AlterStep::DropColumn("n".to_string())];
        embedded.client.alter_table(&table, &steps, None).await.expect("a legal step");
        let read_mode = ReadMode::AtSnapshot(embedded.client.observed_timestamp());
        let spec = nyala_client::ScanSpec { read_mode, ..Default::default() };
        let refused = table.scan(spec).expect("it has the column").next_batch().await.expect_err("refused");
        let text = "Some columns are not present in the current schema: n";
        assert!(refused.message.contains(text), "{refused}");
        embedded.stop().await;
    }
}
