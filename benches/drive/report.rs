//! Result of a run, with samples of the server over time.

use serde::{Deserialize, Serialize};

/// Result of a run. Latencies are of an operation or of a batch; zero where none were measured.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub operations: u64,
    pub failed: u64,
    pub seconds: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub samples: Vec<Sample>,
}

/// Sample of clients and server; counts are since the previous sample.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Time since the start.
    pub seconds: f64,
    /// Time since the previous sample.
    pub over_seconds: f64,
    pub operations: u64,
    pub p99_ms: f64,
    /// Writes rejected because of memory pressure.
    pub refused: f64,
    /// Bytes that the server wrote to devices.
    pub written_bytes: u64,
    /// Resident memory of the server.
    pub resident_bytes: u64,
    /// Lookups of the keys of writes: in Bloom filters, in key indexes.
    pub bloom_lookups: f64,
    pub key_lookups: f64,
}
