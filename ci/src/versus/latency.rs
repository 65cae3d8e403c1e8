//! The interconnect and storage study, as far as one machine can repeat it: operations by key, with the WAL on either
//! device.

use anyhow::Result;

use super::load_driver::{DrivenCluster, Latency, split_args};
use super::report::{ReportSpec, Sample};
use super::round::{Turn, VersusOptions};

pub(super) const PAGE: ReportSpec = ReportSpec {
    path: "benches/VERSUS-LATENCY.md",
    title: "Operations by key: nyala and Kudu 1.18.1 side by side",
    turn: "A turn is two fresh clusters of one master and one tablet server, replication 1, on loopback: one \
           with WAL and data on the same disk, one with the WAL on another device. On each, one client and then \
           16 insert rows of YCSB (a string key, ten strings of 100 bytes) into a table of four tablets, update a \
           field of rows picked alike, and read rows by key, each operation waiting for the last. The client \
           of both is the same: `benches/drive`, on nyala's Rust client (`node::client`). CPU is that of \
           master and tablet server together, and of the client; memory and bytes written (`write_bytes` of \
           `/proc`, which leaves out what goes to a device in memory) are the tablet server's; disk is what all \
           files occupy; memory and disk are those of the cluster so far. A smaller figure is better but for \
           operations/s.",
    figures: &[],
};

const CLIENTS: [u64; 2] = [1, 16];
const OPERATIONS: [&str; 3] = ["insert", "update", "read"];

pub(super) fn settings(options: &VersusOptions) -> String {
    format!(" {} s each line; the other device is {}.", options.seconds, options.wal_dir.display())
}

/// Runs one server's round.
pub(super) fn turn(turn: &Turn<'_>) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for (place, wal) in [("one disk", None), ("WAL elsewhere", Some(turn.options.wal_dir.as_path()))] {
        let driven = DrivenCluster::start(turn, &[], wal)?;
        let mut rows = 0;
        for operation in OPERATIONS {
            for clients in CLIENTS {
                let seconds = turn.options.seconds;
                let work =
                    split_args(&format!("--mix {operation}:1 --rows {rows} --seconds {seconds} --uniform"));
                let done = driven.run("ycsb", "operations", clients, &work)?;
                rows += if operation == "insert" { done.operations() } else { 0 };
                let plural = if clients == 1 { "" } else { "s" };
                let name = format!("{operation}, {clients} client{plural}, {place}");
                samples.extend(done.samples(turn, &name, Latency::OfOperations));
            }
        }
    }
    Ok(samples)
}
