//! What a run did, and how the server was meanwhile.

use serde::{Deserialize, Serialize};

/// A run. Latencies are of an operation, or of a batch; zero where none were taken.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    pub operations: u64,
    pub failed: u64,
    pub seconds: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub samples: Vec<Sample>,
}

/// A look at clients and server; counts are since the look before.
#[derive(Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Since the start.
    pub seconds: f64,
    /// Since the look before.
    pub over_seconds: f64,
    pub operations: u64,
    pub p99_ms: f64,
    /// Writes refused as memory was short.
    pub refused: f64,
    /// Handed to devices by the server.
    pub written_bytes: u64,
    /// Held by the server now.
    pub resident_bytes: u64,
    /// Lookups for the keys of writes: in Bloom filters, in key indexes.
    pub bloom_lookups: f64,
    pub key_lookups: f64,
}
