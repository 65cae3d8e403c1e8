//! A replicated cluster of real processes while servers fail: 3 masters, 4 tablet servers, 3 replicas.
//!
//! ```text
//!   writers  the Java client, one insert after another; the kudu tool's loadgen, repeatedly
//!   faults   kill -9, SIGSTOP, a wiped directory, replicas added and removed, a leader asked to step down,
//!            links between servers delayed in one direction, cut, and reset, a full disk
//!   checks   every acknowledged row exists once, the counts are right, `ksck --checksum_scan` finds nothing
//! ```

mod faults;
mod writers;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};

use super::cluster::{Cluster, ClusterPlan};
use super::daemon::ServerKind;
use super::java_writer::{JavaWriter, WriterProgram};
use super::kdc::{Kdc, TicketLife};
use super::ksck;
use super::packages::Packages;
use super::small_disk::SmallDisk;
use crate::command::Output;
use crate::steps::Steps;
use writers::{LOADGEN_TABLE, Loadgen};

/// Flags that make servers notice failures within seconds; Kudu has them, too.
const TSERVER_FLAGS: [&str; 3] = [
    "--heartbeat_interval_ms=300",
    "--follower_unavailable_considered_failed_sec=5",
    "--raft_heartbeat_interval_ms=200",
];
const MASTER_FLAGS: [&str; 2] =
    ["--tserver_unresponsive_timeout_ms=6000", "--raft_heartbeat_interval_ms=200"];

/// The tablet server whose disk is small.
const SMALL_DISK_TSERVER: usize = 2;

/// Context of faults and checks.
struct Arena<'a> {
    packages: &'a Packages,
    cluster: Cluster,
    masters: String,
    /// `None` where mounting is not allowed.
    disk: Option<SmallDisk>,
}

/// Faults of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NemesisFaults {
    All,
    /// Those that make connections be negotiated again: about half a minute.
    Short,
}

/// Validity of tokens and keys of a secure run, in seconds: each ends several times within it.
const SHORT_TOKENS: [&str; 3] =
    ["--authn_token_validity_seconds=15", "--authz_token_validity_seconds=5", "--tsk_rotation_seconds=10"];

/// Runs everything, as steps.
pub(super) fn run(root: &Path, target: &Path, packages: &Packages, server: &ServerKind, steps: &mut Steps) {
    steps.run("nemesis: faults under load, then everything is there", || {
        kept_if_it_fails(target, |dir| {
            let cluster = Cluster::new(server.clone(), dir, &cluster_plan(4))?;
            play(root, target, packages, cluster, NemesisFaults::All, dir)
        })
    });
}

/// Runs the faults where encryption and tickets are required, and tokens are short-lived. Clients have tickets.
pub(super) fn run_secure(
    root: &Path,
    target: &Path,
    packages: &Packages,
    server: &ServerKind,
    faults: NemesisFaults,
    steps: &mut Steps,
) {
    steps.run("nemesis: faults where encryption and tickets are required", || {
        kept_if_it_fails(target, |dir| {
            let kdc = Arc::new(Kdc::start(&dir.join("kdc"), &TicketLife::default())?);
            let tablet_servers = if faults == NemesisFaults::All { 4 } else { 3 };
            let mut plan = cluster_plan(tablet_servers);
            plan.master_gflags.extend(SHORT_TOKENS.map(str::to_owned));
            plan.tserver_gflags.push("--tserver_enforce_access_control=true".to_owned());
            let mut cluster = Cluster::new(server.clone(), dir, &plan)?;
            cluster.require_security(&kdc)?;
            play(root, target, &packages.with_tickets(&kdc.env()), cluster, faults, dir)
        })
    });
}

/// Runs `work` in a folder that stays if it fails.
fn kept_if_it_fails(target: &Path, work: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let dir = tempfile::tempdir_in(target)?;
    let result = work(dir.path());
    if result.is_err() {
        eprintln!("what the servers left is in {}", dir.keep().display());
    }
    result
}

/// Returns the plan of a cluster that notices failures within seconds, with links that can be cut.
pub(super) fn cluster_plan(tablet_servers: usize) -> ClusterPlan {
    let flags = |flags: &[&str]| flags.iter().map(|flag| flag.to_string()).collect();
    ClusterPlan {
        masters: 3,
        tablet_servers,
        master_gflags: flags(&MASTER_FLAGS),
        tserver_gflags: flags(&TSERVER_FLAGS),
        doors: true,
        ..ClusterPlan::default()
    }
}

fn play(
    root: &Path,
    target: &Path,
    packages: &Packages,
    mut cluster: Cluster,
    which: NemesisFaults,
    dir: &Path,
) -> Result<()> {
    let disk = if which == NemesisFaults::All { SmallDisk::mount(&dir.join("small"))? } else { None };
    if let Some(disk) = &disk {
        cluster.tservers[SMALL_DISK_TSERVER].spec.disk = disk.dir.clone();
    }
    cluster.start()?;
    let masters = cluster.master_addresses();
    let mut arena = Arena { packages, cluster, masters, disk };
    arena.create_table()?;
    let program = WriterProgram { class: "Nemesis", args: &[&arena.masters, "nemesis_java"] };
    let writer = JavaWriter::start(root, target, packages, &program, dir)?;
    let loadgen = Loadgen::start(packages, &arena.masters);
    let faults = match which {
        NemesisFaults::All => arena.faults(),
        NemesisFaults::Short => arena.short_faults(),
    };
    let loaded = loadgen.stop();
    let written = writer.stop();
    faults?;
    let rows = loaded?;
    println!("    {}", written?.trim_end().replace('\n', "\n    "));
    ksck::until_clean(packages, &arena.masters)?;
    arena.count(rows)
}

impl Arena<'_> {
    fn kudu(&self, words: &[&str]) -> Result<Output> {
        self.packages.kudu_tool().args(words).output()
    }

    /// Runs a command of the tool, which must succeed.
    fn done(&self, words: &[&str]) -> Result<String> {
        let output = self.kudu(words)?;
        ensure!(output.success, "kudu {}:\n{}\n{}", words.join(" "), output.stdout, output.stderr);
        Ok(output.stdout)
    }

    /// Runs a command of the tool that a fault may make fail; only the state at the end is checked.
    fn tried(&self, words: &[&str]) {
        match self.kudu(words) {
            Ok(output) if output.success => {}
            Ok(output) => println!("    kudu {}: {}", words.join(" "), output.stderr.trim()),
            Err(error) => println!("    kudu {}: {error}", words.join(" ")),
        }
    }

    fn create_table(&self) -> Result<()> {
        let json = format!(
            r#"{{"table_name": "{LOADGEN_TABLE}", "schema": {{"columns": [
                {{"column_name": "key", "column_type": "INT64", "is_nullable": false}},
                {{"column_name": "int_val", "column_type": "INT32", "is_nullable": false}},
                {{"column_name": "string_val", "column_type": "STRING", "is_nullable": true}}],
                "key_column_names": ["key"]}},
                "partition": {{"hash_partitions": [{{"columns": ["key"], "num_buckets": 4, "seed": 0}}]}},
                "num_replicas": 3}}"#
        );
        self.done(&["table", "create", &self.masters, &json]).map(drop)
    }

    fn count(&self, rows: u64) -> Result<()> {
        let said = self.done(&["perf", "table_scan", &self.masters, LOADGEN_TABLE])?;
        let wanted = format!("Total count {rows} ");
        ensure!(said.contains(&wanted), "{wanted:?} rows were loaded, but the scan says:\n{said}");
        println!("    {rows} rows loaded, all there");
        Ok(())
    }
}
