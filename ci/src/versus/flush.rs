//! The background-flush study: how much a session's watermark is worth.

use anyhow::Result;

use super::drive::{Driven, Latency, words};
use super::page::{Page, Sample};
use super::{Options, Turn};

pub const PAGE: Page = Page {
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

fn rows(options: &Options) -> u64 {
    options.rows.unwrap_or(ROWS)
}

pub fn settings(options: &Options) -> String {
    format!(" {} rows in each line, shared among its clients.", rows(options))
}

/// One server's turn.
pub fn turn(turn: &Turn<'_>) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for clients in CLIENTS {
        for watermark in WATERMARKS {
            let rows = rows(turn.options);
            let load = words(&format!("--rows {rows} --watermark-percent {watermark}"));
            let done = Driven::start(turn, &[], None)?.run("rows", "flushed", clients, &load)?;
            let plural = if clients == 1 { "" } else { "s" };
            let name = format!("{clients} client{plural}, watermark {watermark} %");
            samples.extend(done.samples(turn, &name, Latency::None));
        }
    }
    Ok(samples)
}
