//! One server's round of a comparison, and its options.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};

use super::report::{Cell, Metric, Sample};
use crate::command::Output;
use crate::interop::cluster::{Cluster, ClusterPlan};
use crate::interop::daemon::ServerKind;
use crate::interop::kdc::Kdc;
use crate::interop::packages::Packages;

#[derive(Parser, Clone)]
pub(crate) struct VersusOptions {
    /// The parts to measure, each with a separate report; all of them if none is named
    pub(super) parts: Vec<Part>,
    /// Rounds of each server per setting
    #[arg(long, default_value_t = 3)]
    pub(super) rounds: usize,
    /// Path of a built nyala program
    #[arg(long, value_name = "PROGRAM")]
    pub(super) nyala: Option<PathBuf>,
    /// Path of a built program of benches/drive
    #[arg(long, value_name = "PROGRAM")]
    pub(super) drive: Option<PathBuf>,
    /// With loadgen, ycsb, flush and security: rows to load
    #[arg(long)]
    pub(super) rows: Option<u64>,
    /// With ycsb, latency, security and floor: duration of each workload, in seconds
    #[arg(long, default_value_t = 4.0)]
    pub(super) seconds: f64,
    /// With ycsb: memory budget of the tablet server, in MiB
    #[arg(long, default_value_t = 1024)]
    pub(super) memory_mib: u64,
    /// With latency: a folder for the WAL, on another device than the target folder
    #[arg(long, default_value = "/dev/shm")]
    pub(super) wal_dir: PathBuf,
    /// Path of a built program of benches/tpch
    #[arg(long, value_name = "PROGRAM")]
    pub(super) tpch: Option<PathBuf>,
    /// With tpch: Python with the module duckdb
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    pub(super) duckdb: PathBuf,
    /// With lineitem and tpch: TPC-H's scale factor; 1 is 6 million rows
    #[arg(long, default_value_t = 0.1)]
    pub(super) scale: f64,
    /// A note for the reports
    #[arg(long, default_value = "")]
    pub(super) note: String,
    /// Print the tables only, leave the reports alone
    #[arg(long)]
    pub(super) dry: bool,
    /// With floor, security or tpch alone: one round of a few seconds that only prints its table
    #[arg(long, conflicts_with = "charts")]
    pub(super) smoke: bool,
    /// Draw the charts from the reports that are there, without measuring
    #[arg(long, conflicts_with_all = ["parts", "dry"])]
    pub(super) charts: bool,
}

/// Duration of each workload of a short run.
const SMOKE_SECONDS: f64 = 0.5;
/// Rows that it loads.
const SMOKE_ROWS: u64 = 20_000;

/// Scale factor of TPC-H in a short run; answers at this scale are kept.
pub(super) const TPCH_SMOKE_SCALE: f64 = 0.01;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Part {
    /// One replica
    Single,
    /// Three replicas
    Replicated,
    /// More loads with one replica and three
    Loadgen,
    /// YCSB
    Ycsb,
    /// Flushes in the background
    Flush,
    /// Latency of operations by key
    Latency,
    /// TPC-H's lineitem
    Lineitem,
    /// Encryption and authentication required
    Security,
    /// TPC-H's 22 queries, beside Parquet files and DuckDB
    Tpch,
    /// Redis, bare servers and a file beside nyala, without Kudu
    Floor,
}

impl VersusOptions {
    pub(super) fn wants(&self, part: Part) -> bool {
        self.parts.is_empty() || self.parts.contains(&part)
    }

    /// Returns the options with what `--smoke` sets.
    pub(super) fn settled(&self) -> Result<VersusOptions> {
        if !self.smoke {
            return Ok(self.clone());
        }
        if self.parts == [Part::Tpch] {
            let scale = TPCH_SMOKE_SCALE;
            return Ok(VersusOptions { rounds: 1, scale, dry: true, ..self.clone() });
        }
        ensure!(
            self.parts == [Part::Floor] || self.parts == [Part::Security],
            "--smoke: only floor, security and tpch have short runs; name one of them alone"
        );
        let rows = self.rows.or(Some(SMOKE_ROWS));
        Ok(VersusOptions { rounds: 1, seconds: SMOKE_SECONDS, rows, dry: true, ..self.clone() })
    }
}

pub(super) struct Prepared {
    pub(super) nyala: ServerKind,
    /// Absent if no part needs it.
    pub(super) kudu: Option<PreparedKudu>,
    /// The program of `benches/drive`; absent if no part needs it.
    pub(super) drive: PathBuf,
    /// The program of `benches/tpch`; absent if no part needs it.
    pub(super) tpch: Option<PathBuf>,
    pub(super) target: PathBuf,
}

pub(super) struct PreparedKudu {
    pub(super) packages: Packages,
    pub(super) server: ServerKind,
}

/// One server's round.
pub(super) struct Turn<'a> {
    /// Absent in rounds without Kudu.
    pub(super) packages: Option<&'a Packages>,
    pub(super) drive: &'a Path,
    pub(super) options: &'a VersusOptions,
    pub(super) server: &'a ServerKind,
    pub(super) log_sync: bool,
    pub(super) target: &'a Path,
    /// Realm of clusters that require encryption and tickets.
    pub(super) kdc: Option<&'a Arc<Kdc>>,
}

impl Turn<'_> {
    /// Starts a fresh cluster; returns it with its folder. The tablet servers get these flags too.
    pub(super) fn cluster(
        &self,
        masters: usize,
        tablet_servers: usize,
        flags: &[String],
    ) -> Result<(Cluster, tempfile::TempDir)> {
        let dir = tempfile::tempdir_in(self.target)?;
        let sync = match self.server {
            ServerKind::Nyala(_) => format!("--log_sync={}", self.log_sync),
            ServerKind::Kudu(..) => format!("--log_force_fsync_all={}", self.log_sync),
        };
        let tserver_gflags = [&[sync], flags].concat();
        let plan = ClusterPlan { masters, tablet_servers, tserver_gflags, ..ClusterPlan::default() };
        let mut cluster = Cluster::new(self.server.clone(), dir.path(), &plan)?;
        if let Some(kdc) = self.kdc {
            cluster.require_security(kdc)?;
        }
        cluster.start()?;
        Ok((cluster, dir))
    }

    /// Runs a command of the tool, which must succeed.
    pub(super) fn kudu(&self, words: &[&str]) -> Result<String> {
        let packages = self.packages.context("the tool is for rounds with Kudu")?;
        let Output { success, stdout, stderr } = packages.kudu_tool().args(words).output()?;
        ensure!(success, "kudu {}: {stderr}", words.join(" "));
        Ok(stdout)
    }

    pub(super) fn sample(&self, workload: &str, measure: Metric, value: f64) -> Sample {
        let (log_sync, server) = (self.log_sync, self.server.name());
        let cell = Cell { workload: workload.to_string(), log_sync, measure, server };
        Sample { cell, value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_run_is_of_one_part_alone_and_writes_nothing() {
        let parsed = |words: &[&str]| VersusOptions::parse_from([&["versus"], words].concat()).settled();
        let short = parsed(&["floor", "--smoke", "--rounds", "9"]).unwrap();
        assert!(short.dry && short.rounds == 1 && short.seconds < 1.0);
        assert!(parsed(&["tpch", "--smoke", "--scale", "1"]).unwrap().scale < 0.1);
        assert_eq!(parsed(&["security", "--smoke"]).unwrap().rows, Some(SMOKE_ROWS));
        assert!(parsed(&["--smoke"]).is_err() && parsed(&["floor", "ycsb", "--smoke"]).is_err());
        let whole = parsed(&["floor", "--rounds", "9"]).unwrap();
        assert!(!whole.dry && whole.rounds == 9);
    }
}
