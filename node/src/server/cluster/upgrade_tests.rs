//! Upgrades of a running cluster, and the way back. The last release and this one are the same code with other ranges
//! of format levels, which only a test's configuration can have.

use std::sync::Arc;

use engine::disk;
use engine::error::{Error, ErrorKind, Result};
use engine::format_level::{FormatLevel, LevelRange};

use super::tests::{Cluster, PATIENCE, create, insert};
use crate::dirs::ServerKind;
use crate::master;
use crate::server::startup::{self, RunningServer};
use crate::tserver;
use nyala_client::{Client, ReadMode, ScanSpec, Table};

const LAST: LevelRange = LevelRange::FIRST;
const THIS: LevelRange = LevelRange::PROGRAM;
const MASTERS: usize = 3;
const TSERVERS: usize = 3;

async fn start(cluster: &Cluster, kind: ServerKind, at: usize, levels: LevelRange) -> Result<RunningServer> {
    let (env, flags) = (&cluster.env, Arc::new(cluster.config.server_flags(kind, at)?));
    match kind {
        ServerKind::Master => {
            let mut config = startup::master_config(env, &flags).await?;
            config.catalog.levels = levels;
            Ok(RunningServer::Master(Box::new(master::run(env.clone(), config).await?)))
        }
        ServerKind::TabletServer => {
            let mut config = startup::tserver_config(env, &flags).await?;
            config.levels = levels;
            Ok(RunningServer::TabletServer(Box::new(tserver::run(env.clone(), config).await?)))
        }
    }
}

/// Returns the number of rows, all those written by this client included: a scan of the latest state may meet a leader
/// that does not know its successor yet.
async fn count(table: &Table) -> Result<usize> {
    let mut scanner = table.scan(ScanSpec { read_mode: ReadMode::YourWrites, ..ScanSpec::default() })?;
    let mut rows = 0;
    while let Some(batch) = scanner.next_batch().await? {
        rows += batch.num_rows();
    }
    Ok(rows)
}

/// A cluster that is upgraded, and rows that are written meanwhile.
struct Upgrade {
    cluster: Cluster,
    client: Client,
    table: Table,
    rows: i32,
}

impl Upgrade {
    /// Starts a cluster of the last release.
    async fn begin() -> Upgrade {
        let mut cluster = Cluster::empty(MASTERS, TSERVERS);
        for at in 0..MASTERS {
            let master = start(&cluster, ServerKind::Master, at, LAST).await.expect("it starts");
            cluster.masters.push(Some(master));
        }
        for at in 0..TSERVERS {
            let server = start(&cluster, ServerKind::TabletServer, at, LAST).await.expect("it starts");
            cluster.tservers.push(Some(server));
        }
        cluster.wait("the servers meet", || cluster.met()).await;
        let client = cluster.client().await;
        let table = create(&client, "t").await.expect("a table is created");
        Upgrade { cluster, client, table, rows: 0 }
    }

    async fn stop(&mut self, kind: ServerKind, at: usize) {
        let servers = match kind {
            ServerKind::Master => &mut self.cluster.masters,
            ServerKind::TabletServer => &mut self.cluster.tservers,
        };
        servers[at].take().expect("it runs").shutdown().await;
    }

    /// Replaces the program of one server, and writes rows before and after.
    async fn replace(&mut self, kind: ServerKind, at: usize, levels: LevelRange) {
        self.stop(kind, at).await;
        self.write().await;
        let server = Some(start(&self.cluster, kind, at, levels).await.expect("it starts"));
        match kind {
            ServerKind::Master => self.cluster.masters[at] = server,
            ServerKind::TabletServer => self.cluster.tservers[at] = server,
        }
        let cluster = &self.cluster;
        cluster.wait("the servers meet", || cluster.met()).await;
        self.write().await;
    }

    async fn replace_all(&mut self, levels: LevelRange) {
        for at in 0..MASTERS {
            self.replace(ServerKind::Master, at, levels).await;
        }
        for at in 0..TSERVERS {
            self.replace(ServerKind::TabletServer, at, levels).await;
        }
    }

    async fn write(&mut self) {
        let more = self.rows..self.rows + 10;
        insert(&self.client, &self.table, more.clone()).await.expect("a majority runs");
        self.rows = more.end;
        assert_eq!(count(&self.table).await, Ok(self.rows as usize));
    }

    /// Versions of the stored `instance` files.
    fn stored(&self) -> Vec<u8> {
        let all = [("master", MASTERS), ("tserver", TSERVERS)];
        let servers = all.iter().flat_map(|(name, count)| (1..=*count).map(move |at| format!("{name}-{at}")));
        let dirs = servers.flat_map(|server| ["wal", "data"].map(|part| format!("cluster/{server}/{part}")));
        let stored = |dir: String| {
            let disk = self.cluster.env.disks.open(&dir).expect("it is in memory");
            disk::read_file(&*disk, "instance").expect("every directory has one")[4]
        };
        dirs.map(stored).collect()
    }

    async fn level(&self) -> FormatLevel {
        self.client.upgrade_status().await.expect("a master leads").level
    }

    /// Raises the level once every server has registered with the leader.
    async fn finalize(&self) {
        let end = self.cluster.env.now().mono.after(PATIENCE);
        while let Err(error) = self.client.raise_format_level().await {
            assert!(self.cluster.env.now().mono < end, "{error}");
            self.cluster.env.sleep(std::time::Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_is_upgraded_goes_back_and_is_finalized() {
    let mut upgrade = Upgrade::begin().await;
    upgrade.write().await;
    upgrade.replace_all(THIS).await;
    upgrade.replace_all(LAST).await;
    assert_eq!(upgrade.stored(), [2; 12], "nothing that the last release does not read");
    for at in 0..MASTERS {
        upgrade.replace(ServerKind::Master, at, THIS).await;
    }
    let refused = upgrade.client.raise_format_level().await.expect_err("tablet servers of the last release");
    assert!(refused.message.contains("the program of tablet server"), "{refused}");
    assert_eq!(upgrade.level().await, FormatLevel(1));
    for at in 0..TSERVERS {
        upgrade.replace(ServerKind::TabletServer, at, THIS).await;
    }
    upgrade.finalize().await;
    assert_eq!(upgrade.level().await, FormatLevel(2));
    upgrade.cluster.wait("every server stores the level", || upgrade.stored() == [3; 12]).await;
    upgrade.write().await;
    for kind in [ServerKind::Master, ServerKind::TabletServer] {
        upgrade.stop(kind, 0).await;
        let error = start(&upgrade.cluster, kind, 0, LAST).await.err().expect("the last release is refused");
        assert_eq!(error.kind, ErrorKind::Unsupported);
        assert!(error.message.contains("format level 2 is not supported by this program"), "{error}");
        let again = start(&upgrade.cluster, kind, 0, THIS).await.expect("this one is not");
        match kind {
            ServerKind::Master => upgrade.cluster.masters[0] = Some(again),
            ServerKind::TabletServer => upgrade.cluster.tservers[0] = Some(again),
        }
    }
    upgrade.write().await;
    upgrade.cluster.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_master_of_the_last_release_stops_finalization() {
    let mut upgrade = Upgrade::begin().await;
    upgrade.replace_all(THIS).await;
    let leader = upgrade.cluster.leader().expect("one leads");
    upgrade.replace(ServerKind::Master, (leader + 1) % MASTERS, LAST).await;
    let end = upgrade.cluster.env.now().mono.after(PATIENCE);
    let named = |error: &Error| error.message.contains("the program of the master 127.0.0.1:");
    // The leader may have changed, and may not know the tablet servers yet.
    while !upgrade.client.raise_format_level().await.is_err_and(|error| named(&error)) {
        assert_eq!(upgrade.level().await, FormatLevel(1));
        assert!(upgrade.cluster.env.now().mono < end, "the master is not named");
        upgrade.cluster.env.sleep(std::time::Duration::from_millis(50)).await;
    }
    upgrade.cluster.shutdown().await;
}

/// A server with empty directories learns the level from its first heartbeat only.
#[tokio::test(start_paused = true)]
async fn a_server_without_support_for_the_level_ends() {
    let mut cluster = Cluster::start(1, 1).await;
    let (kind, next) = (ServerKind::TabletServer, LevelRange::new(3, 4).expect("in order"));
    let server = start(&cluster, kind, 1, next).await.expect("its directories are new");
    let error = cluster.env.timeout(PATIENCE, server.failed()).await.expect("it ends by itself");
    assert_eq!(error.kind, ErrorKind::Unsupported);
    assert!(error.message.contains("upgrade through a release that supports both"), "{error}");
    assert_eq!(server.formats().fault(), Some(error));
    server.shutdown().await;
    cluster.tservers.truncate(1);
    cluster.shutdown().await;
}
