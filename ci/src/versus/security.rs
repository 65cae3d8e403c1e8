//! Loads where encryption and authentication are required, and new connections.

use std::sync::Arc;

use anyhow::{Context, Result};

use super::load_driver::{DrivenCluster, Latency, split_args};
use super::report::{ReportSpec, Sample};
use super::round::{Turn, VersusOptions};
use super::single::measured;
use crate::interop::kdc::{Kdc, TicketLife};

pub(super) const PAGE: ReportSpec = ReportSpec {
    path: "benches/VERSUS-SECURITY.md",
    title: "Encryption and authentication required: nyala and Kudu 1.18.1 side by side",
    turn: "A turn is a fresh cluster of one master and one tablet server with one replica on loopback, with a KDC of \
           its own; log sync is off. Both systems have `--rpc_encryption=required --rpc_authentication=required \
           --rpc_encrypt_loopback_connections` and a keytab. The real `kudu` tool loads rows in the background with a \
           ticket; `benches/drive`, on nyala's Rust client, inserts rows one at a time, and opens connections to the \
           tablet server with TLS 1.3 and an authentication token, without a call on them. An operation of the last \
           is a connection. CPU is that of master and tablet server together. A smaller figure is better but for \
           rows/s and operations/s. The bar of each line of server CPU is 0.60 of Kudu's.",
    figures: &[],
};

const ROWS: u64 = 1_000_000;
const THREADS: u64 = 2;
const LOAD: &str = "loadgen, 2 threads, 8 hash buckets";
/// Clients that open connections.
const CONNECTING: u64 = 2;

pub(super) fn settings(options: &VersusOptions) -> String {
    format!(" {} rows; {} s each of the other lines.", rows(options), options.seconds)
}

fn rows(options: &VersusOptions) -> u64 {
    options.rows.unwrap_or(ROWS)
}

/// Runs one server's round.
pub(super) fn turn(turn: &Turn<'_>) -> Result<Vec<Sample>> {
    let realm = tempfile::tempdir_in(turn.target)?;
    let kdc = Arc::new(Kdc::start(realm.path(), &TicketLife::default())?);
    let packages = turn.packages.context("this part runs with Kudu")?.with_tickets(&kdc.env());
    let turn = &Turn { packages: Some(&packages), kdc: Some(&kdc), ..*turn };
    let mut samples = loaded(turn)?;
    let driven = DrivenCluster::start(turn, &[], None)?;
    let seconds = turn.options.seconds;
    let work = split_args(&format!("--mix insert:1 --rows 0 --seconds {seconds} --uniform"));
    let inserted = driven.run("ycsb", "operations", 1, &work)?;
    samples.extend(inserted.samples(turn, "synchronous insert, 1 client", Latency::OfOperations));
    let work = split_args(&format!("--address {} --seconds {seconds}", driven.tserver_address()?));
    let connected = driven.run("connections", "none", CONNECTING, &work)?;
    samples.extend(connected.samples(turn, "connection, 2 clients", Latency::OfOperations));
    Ok(samples)
}

fn loaded(turn: &Turn<'_>) -> Result<Vec<Sample>> {
    let (cluster, dir) = turn.cluster(1, 1, &[])?;
    let masters = cluster.master_addresses();
    let threads = format!("--num_threads={THREADS}");
    let rows = format!("--num_rows_per_thread={}", rows(turn.options).div_ceil(THREADS));
    let words = ["perf", "loadgen", &masters, &threads, &rows, "--table_num_hash_partitions=8"];
    Ok(measured(turn, &cluster, dir.path(), LOAD, &words)?.0)
}
