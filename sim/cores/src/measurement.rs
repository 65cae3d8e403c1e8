//! Measured demands of operations, as `cargo ci profile contention` writes them.

use serde::{Deserialize, Serialize};

/// All runs of a profile.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measurement {
    /// Machine, date and load, as the page states them.
    pub machine: String,
    pub tablets: u32,
    pub runs: Vec<MeasuredRun>,
}

/// One operation, again and again by all clients, on some of the machine's cores, which the clients share.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MeasuredRun {
    pub operation: String,
    pub cores: u32,
    pub clients: u32,
    pub operations: u64,
    pub seconds: f64,
    pub p50_us: f64,
    /// CPU for each operation.
    pub server_cpu_us: f64,
    pub client_cpu_us: f64,
    /// Cores that other processes took from these.
    pub other_cores: f64,
    pub sections: Vec<Section>,
    pub sites: Vec<SiteResult>,
    pub queues: Vec<QueueResult>,
}

impl MeasuredRun {
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds
    }
}

/// Work of an operation that runs alone: under a lock, or in a turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// Type of the guarded value.
    pub name: String,
    pub wait: SectionWait,
    /// Uses for each operation.
    pub visits: f64,
    /// Time for each operation, of all uses together.
    pub held_us: f64,
    /// Share of that time that the most used lock of this type had.
    pub busiest_share: f64,
}

impl Section {
    /// Returns the number of locks, if all were as busy as the busiest.
    pub fn locks(&self) -> u32 {
        (1.0 / self.busiest_share.clamp(1e-6, 1.0)).round() as u32
    }

    /// Returns the operations per second at which the busiest lock is always held.
    pub fn limit(&self) -> f64 {
        1e6 / (self.held_us / f64::from(self.locks()))
    }
}

/// Core of an operation that finds a section busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SectionWait {
    /// Kept: the thread waits for the lock.
    OnCore,
    /// Left: the operation waits in a queue for the task that has the turn.
    InQueue,
}

/// Results of a place that takes a lock or a turn, for each operation.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SiteResult {
    pub section: String,
    pub place: String,
    pub visits: f64,
    /// Share of the visits that found it held, in percent.
    pub contended_percent: f64,
    pub wait_us: f64,
    pub held_us: f64,
    /// Time of holds of at least half a millisecond, which are in no other result.
    pub long_us: f64,
}

/// Results of a queue or of a step that operations pass.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct QueueResult {
    /// Metric of its time.
    pub metric: String,
    /// Entries for each operation.
    pub entries: f64,
    /// Time for each entry.
    pub mean_us: f64,
}
