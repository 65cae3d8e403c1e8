//! A cluster with a client and a directory of backups.
#![allow(dead_code, reason = "each program uses a part")]

use std::fs;
use std::path::{Path, PathBuf};

use node::cli::ExitError;
use nyala_client::{Client, ClientConfig};
use nyala_common::env::{BoxFuture, Env};

use super::embedded::{EmbeddedCluster, run_until};

pub(crate) struct World {
    /// Environment of the commands and of the client.
    pub(crate) env: Env,
    pub(crate) embedded: EmbeddedCluster,
    pub(crate) client: Client,
    files: std::cell::Cell<u32>,
}

impl World {
    pub(crate) async fn new() -> World {
        World::with(1, &[]).await
    }

    pub(crate) async fn with(tablet_servers: usize, settings: &[(&str, &str)]) -> World {
        let embedded = EmbeddedCluster::with(tablet_servers, settings).await;
        let env = embedded.env.clone();
        let user = env.disks.process_user().expect("a user");
        let config = ClientConfig { user, ..ClientConfig::new(embedded.cluster.master_addresses()) };
        let client = Client::connect(env.clone(), config).await.expect("a running cluster");
        World { env, embedded, client, files: 0.into() }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.embedded.path(name)
    }

    pub(crate) async fn try_run(&self, line: &[&str]) -> Result<(), ExitError> {
        self.run_until(line, Box::pin(std::future::pending())).await
    }

    /// Runs a command that is interrupted once `stop` is ready.
    pub(crate) async fn run_until(
        &self,
        line: &[&str],
        stop: BoxFuture<'static, ()>,
    ) -> Result<(), ExitError> {
        let masters = self.embedded.masters();
        let online = line[0] != "backup" || line[1] == "create";
        let masters = if online { vec!["--masters", &masters] } else { Vec::new() };
        run_until(&self.env, &[line, &masters].concat(), stop).await
    }

    pub(crate) async fn run(&self, line: &[&str]) {
        self.try_run(line).await.unwrap_or_else(|error| panic!("{line:?}: {error}"));
    }

    /// Returns the message of a command that fails.
    pub(crate) async fn refused(&self, line: &[&str]) -> String {
        self.try_run(line).await.expect_err(&line.join(" ")).message
    }

    /// Returns a table's rows in the order of its tablets and keys.
    pub(crate) async fn rows(&self, table: &str) -> String {
        self.files.set(self.files.get() + 1);
        let file = self.path(&format!("rows-{}.csv", self.files.get()));
        self.run(&["table", "export", table, &file, "--parallel", "1"]).await;
        fs::read_to_string(&file).expect("just written")
    }

    /// Returns the files below the backups whose names end so, oldest backup first.
    pub(crate) fn files(&self, backups: &str, ending: &str) -> Vec<PathBuf> {
        let list =
            |dir: &Path| fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("a name").path());
        let runs = list(Path::new(backups)).filter(|table| table.is_dir());
        let runs = runs.flat_map(|table| list(&table).collect::<Vec<_>>());
        let files = runs.flat_map(|run| list(&run).collect::<Vec<_>>());
        let mut files: Vec<PathBuf> = files.filter(|file| file.to_string_lossy().ends_with(ending)).collect();
        files.sort_by_key(|file| {
            (file.parent().and_then(Path::file_name).map(|run| run.to_owned()), file.clone())
        });
        files
    }
}
