//! Options of a study, the setups of its points, and their results.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

#[derive(Args)]
pub struct StudyArgs {
    pub(super) study: Study,
    /// CPU of a server for each received message, in ns
    #[arg(long, default_value_t = 16_700)]
    pub(super) message_ns: u64,
    /// CPU of a server for each KiB of messages, in ns
    #[arg(long, default_value_t = 4_850)]
    pub(super) kib_ns: u64,
    /// Cores of a server
    #[arg(long, default_value_t = 2)]
    pub(super) cores: usize,
    /// CPU of a real server for a row of 1 KB loaded in batches, in us, as `cargo ci versus ycsb` measured it
    #[arg(long, default_value_t = 6.0)]
    pub(super) measured_us: f64,
    /// Number of points to run, the smallest first: checks that the study runs and that the model agrees with its input
    #[arg(long, conflicts_with = "out", value_parser = crate::cli::arguments::count)]
    pub(super) points: Option<usize>,
    /// Demands that `cargo ci profile contention` measured, for `cores`
    #[arg(long, value_name = "FILE", default_value = "sim/cores/demands.json")]
    pub(super) demands: PathBuf,
    /// File of the page; its charts go to a folder of that name
    #[arg(long)]
    pub(super) out: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Study {
    /// Rows loaded per second by servers and tablets
    Scale,
    /// Operations by key on disks and links of several kinds
    Devices,
    /// Operations by key on servers with more cores, from measured demands
    Cores,
}

/// A modelled server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct MachineModel {
    pub cores: usize,
    pub message_ns: u64,
    pub kib_ns: u64,
    pub wal: DiskModel,
    pub data: DiskModel,
}

/// Returns the page's description of the servers.
pub(super) fn machines(args: &StudyArgs) -> String {
    format!(
        "Modelled servers: {} cores, {:.1} us per message and {:.2} us per KiB, as measured on real servers for \
         operations by key and for batches (VERSUS-LATENCY.md, VERSUS-YCSB.md). Clients are never the bottleneck. \
         Node and engine are the real code; time, disks and links are simulated.",
        args.cores,
        args.message_ns as f64 / 1e3,
        args.kib_ns as f64 / 1e3
    )
}

/// A disk: nanoseconds for each KiB that is written, and for a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DiskModel {
    pub kib_ns: u64,
    pub sync_ns: u64,
}

/// A link between machines: latency in nanoseconds, and bytes in a millisecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LinkModel {
    pub latency_ns: u64,
    pub bytes_per_ms: u32,
}

/// A cluster of one master and some tablet servers, and a table on it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StudySetup {
    pub servers: u8,
    pub replicas: u8,
    pub tablets: u32,
    pub log_sync: bool,
    pub machine: MachineModel,
    pub link: LinkModel,
    pub work: StudyWorkload,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum StudyOp {
    Insert,
    Update,
    Read,
}

/// The clients' operations, one after the other, each for `ms` milliseconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StudyWorkload {
    pub operations: Vec<StudyOp>,
    pub clients: usize,
    /// Rows that a client writes before it waits for them.
    pub batch: u64,
    pub warm_ms: u64,
    pub ms: u64,
}

/// A setup and its results.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StudyPoint {
    pub setup: StudySetup,
    /// In the order of [`StudyWorkload::operations`].
    pub measured: Vec<StudyResult>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StudyResult {
    pub operation: StudyOp,
    pub rows: u64,
    pub rows_per_second: f64,
    /// Latency of a batch.
    pub p50_us: f64,
    pub p99_us: f64,
    /// Busy share of all servers' cores and links.
    pub cores_busy: f64,
    pub link_busy: f64,
}
