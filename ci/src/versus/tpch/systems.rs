//! The systems: a store, its worker, and its servers.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use std::{fs, io};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::worker::{Done, Worker};
use crate::interop::cluster::{Cluster, ClusterPlan};
use crate::interop::daemon::{Role, ServerKind};
use crate::versus::measure::{self, Cpu};

/// Names of the systems in the report.
pub(super) const EMBEDDED: &str = "nyala in process";
pub(super) const NYALA: &str = "nyala";
pub(super) const PARQUET: &str = "Parquet";
pub(super) const DUCKDB: &str = "DuckDB";
pub(super) const KUDU: &str = "Kudu";

/// Order of the systems in the report.
pub(super) const ORDER: [&str; 5] = [EMBEDDED, NYALA, PARQUET, DUCKDB, KUDU];

/// Flag that makes tablets flush rows of this age, in seconds.
const FLUSH_FLAG: (&str, &str) = ("flush_threshold_secs", "1");
/// Flags of all clusters: pages of all tables stay in memory; log sync is off for all.
const CACHE_FLAG: &str = "block_cache_capacity_mb=2048";
/// Time without a change of the data directory after which all rows are flushed.
const STANDSTILL: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(300);
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);

/// A store with its worker.
pub(super) struct System {
    pub name: &'static str,
    pub worker: Worker,
    servers: Servers,
}

/// Servers of a system, and their data.
enum Servers {
    /// Files need none.
    None,
    Cluster {
        cluster: Cluster,
        dir: TempDir,
    },
    /// They run in the worker.
    Embedded {
        dir: TempDir,
    },
}

/// Cost of a request, all processes together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Cost {
    pub seconds: f64,
    pub client_cpu: f64,
    pub server_cpu: f64,
    /// Peak memory of the client, in bytes.
    pub client_rss: f64,
}

/// Programs and folders of the comparison.
pub(super) struct Surroundings<'a> {
    pub program: &'a Path,
    /// Python with the module `duckdb`.
    pub python: &'a Path,
    pub root: &'a Path,
    pub target: &'a Path,
    pub threads: usize,
}

impl Surroundings<'_> {
    fn worker(&self, words: &[&str]) -> Result<Worker> {
        let threads = self.threads.to_string();
        Worker::start(Command::new(self.program).arg("work").args(words).args(["--threads", &threads]))
    }

    pub(super) fn parquet(&self) -> Result<System> {
        let worker = self.worker(&["parquet"])?;
        Ok(System { name: PARQUET, worker, servers: Servers::None })
    }

    pub(super) fn duckdb(&self) -> Result<System> {
        let script = self.root.join(super::queries::FOLDER).join("duckdb_worker.py");
        let mut python = Command::new(self.python);
        let worker = Worker::start(python.arg(script).arg(self.threads.to_string()))?;
        Ok(System { name: DUCKDB, worker, servers: Servers::None })
    }

    pub(super) fn embedded(&self) -> Result<System> {
        let dir = tempfile::tempdir_in(self.target)?;
        let path = dir.path().to_str().context("a folder with a plain name")?;
        let flags = ["--flag", "log_sync=false", "--flag", CACHE_FLAG, "--flag", "webserver_enabled=false"];
        let worker = self.worker(&[&["embedded", "--dir", path], &flags[..]].concat())?;
        Ok(System { name: EMBEDDED, worker, servers: Servers::Embedded { dir } })
    }

    /// Starts a cluster of one master and one tablet server.
    pub(super) fn cluster(&self, server: &ServerKind) -> Result<System> {
        let dir = tempfile::tempdir_in(self.target)?;
        let (name, sync) = match server {
            ServerKind::Nyala(_) => (NYALA, "--log_sync=false"),
            ServerKind::Kudu(..) => (KUDU, "--log_force_fsync_all=false"),
        };
        let tserver_gflags = vec![sync.to_string(), format!("--{CACHE_FLAG}")];
        let plan = ClusterPlan { masters: 1, tablet_servers: 1, tserver_gflags, ..ClusterPlan::default() };
        let cluster = Cluster::started(server.clone(), dir.path(), &plan)?;
        let worker = self.worker(&["nyala", "--masters", &cluster.master_addresses()])?;
        Ok(System { name, worker, servers: Servers::Cluster { cluster, dir } })
    }
}

impl System {
    /// Returns true if rows are loaded into servers.
    pub(super) fn is_store(&self) -> bool {
        !matches!(self.servers, Servers::None)
    }

    /// Makes a request of the worker and adds the cost of the servers.
    pub(super) fn costed(&mut self, request: impl FnOnce(&mut Worker) -> Result<Done>) -> Result<Cost> {
        let before = self.server_cpu()?;
        let done = request(&mut self.worker).with_context(|| self.name)?;
        let server_cpu = match (before, self.server_cpu()?) {
            (Some(before), Some(after)) => after.since(before),
            _ => 0.0,
        };
        Ok(Cost { seconds: done.seconds, client_cpu: done.cpu, server_cpu, client_rss: done.peak_rss })
    }

    fn server_cpu(&self) -> Result<Option<Cpu>> {
        match &self.servers {
            Servers::Cluster { cluster, .. } => Ok(Some(Cpu::of(cluster)?)),
            Servers::None | Servers::Embedded { .. } => Ok(None),
        }
    }

    /// Flushes all rows and waits until the data directory does not change; returns its bytes.
    pub(super) fn settle(&mut self) -> Result<Option<u64>> {
        let (name, value) = FLUSH_FLAG;
        match &mut self.servers {
            Servers::None => return Ok(None),
            Servers::Cluster { cluster, .. } => cluster.set_flag(Role::TabletServer, 0, name, value)?,
            Servers::Embedded { .. } => self.worker.set_flag(name, value).map(drop)?,
        }
        standstill(&self.data()?).map(Some)
    }

    /// Returns the data directory of the tablet server.
    fn data(&self) -> Result<PathBuf> {
        let below = match &self.servers {
            Servers::Cluster { dir, .. } => dir.path().join("tserver-0/data"),
            Servers::Embedded { dir } => dir.path().join("tserver-1/data"),
            Servers::None => anyhow::bail!("{} has no servers", self.name),
        };
        ensure!(below.is_dir(), "{}: no such folder", below.display());
        Ok(below)
    }

    /// Resets the peak of the tablet server's memory to its current use.
    pub(super) fn reset_server_memory(&self) -> io::Result<()> {
        match self.server_pid() {
            Some(pid) => fs::write(format!("/proc/{pid}/clear_refs"), "5"),
            None => Ok(()),
        }
    }

    /// Returns the peak memory of the tablet server, in bytes; `None` without a process of its own.
    pub(super) fn server_rss(&self) -> Result<Option<f64>> {
        match &self.servers {
            Servers::Cluster { cluster, .. } => Ok(Some(measure::peak_rss_bytes(cluster)? as f64)),
            Servers::None | Servers::Embedded { .. } => Ok(None),
        }
    }

    fn server_pid(&self) -> Option<u32> {
        match &self.servers {
            Servers::Cluster { cluster, .. } => measure::tserver_pid(cluster).ok(),
            Servers::None | Servers::Embedded { .. } => None,
        }
    }
}

/// Waits until the bytes of a folder do not change; returns them.
fn standstill(data: &Path) -> Result<u64> {
    let began = Instant::now();
    let (mut bytes, mut since) = (0, Instant::now());
    while since.elapsed() < STANDSTILL {
        let now = measure::held_bytes(data)?;
        if now != bytes {
            (bytes, since) = (now, Instant::now());
        }
        ensure!(began.elapsed() < PATIENCE, "{} changes all the time", data.display());
        thread::sleep(BETWEEN_LOOKS);
    }
    Ok(bytes)
}
