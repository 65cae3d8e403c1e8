//! The background-flush study: the effect of a session's buffer watermark.

use anyhow::Result;

use super::load_driver::{DrivenCluster, Latency, split_args};
use super::report::{ReportSpec, Sample};
use super::round::{Turn, VersusOptions};

pub(super) const PAGE: ReportSpec = ReportSpec {
    path: "benches/VERSUS-FLUSH.md",
    title: "Flushing in the background: nyala and Kudu 1.18.1 side by side",
    turn: "Each line is a fresh cluster of one master and one tablet server, replication 1, and a table of four \
           hash buckets. Clients, each with a connection of its own, apply rows (int64, int32, string, string, \
           int32), strings of 32 bytes and keys in sequence, to a session that is flushed in the background: a \
           buffer of 7 MiB, flushed from a half or from four fifths of it on. The client of both is the same: \
           `benches/drive`, on nyala's Rust client (`node::client`). CPU is that of master and tablet server \
           together, and of the client; memory and bytes written (`write_bytes` of `/proc`) are the tablet server's; \
           disk is what all files occupy. A smaller figure is better but for operations/s.",
    figures: &[],
};

const ROWS: u64 = 1_000_000;
const CLIENTS: [u64; 3] = [1, 2, 4];
const WATERMARKS: [u64; 2] = [50, 80];

fn rows(options: &VersusOptions) -> u64 {
    options.rows.unwrap_or(ROWS)
}

pub(super) fn settings(options: &VersusOptions) -> String {
    format!(" {} rows in each line, shared among its clients.", rows(options))
}

/// Runs one server's round.
pub(super) fn turn(turn: &Turn<'_>) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for clients in CLIENTS {
        for watermark in WATERMARKS {
            let rows = rows(turn.options);
            let load = split_args(&format!("--rows {rows} --watermark-percent {watermark}"));
            let done = DrivenCluster::start(turn, &[], None)?.run("rows", "flushed", clients, &load)?;
            let plural = if clients == 1 { "" } else { "s" };
            let name = format!("{clients} client{plural}, watermark {watermark} %");
            samples.extend(done.samples(turn, &name, Latency::None));
        }
    }
    Ok(samples)
}
