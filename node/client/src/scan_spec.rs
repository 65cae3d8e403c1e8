//! Description of a scan: what it reads, and how consistently.

use engine::schema::partition_range::PartitionRange;
use engine::schema::predicate::Predicate;

use super::aggregation::AggregationSpec;

/// Consistency of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadMode {
    /// The latest state of each tablet at the time the tablet is read.
    Latest,
    /// The state before this timestamp, in all tablets; `None`: the first tablet's server chooses the current time.
    AtSnapshot(Option<u64>),
    /// A recent state that includes all writes of this client. A fault-tolerant scan reads the current one.
    YourWrites,
}

/// Description of a scan.
#[derive(Debug, Clone)]
pub struct ScanSpec {
    /// Names of the projected columns, in order; `None` for all. An empty list returns batches with a row count only.
    pub columns: Option<Vec<String>>,
    /// Aggregation whose results are returned instead of rows; it names its columns itself.
    pub aggregation: Option<AggregationSpec>,
    /// Predicates; a row must satisfy all.
    pub predicates: Vec<Predicate>,
    /// Bounds on encoded primary keys.
    pub keys: PartitionRange,
    /// Bounds on partition keys. They select tablets: one that has some of the keys is read as a whole.
    pub partitions: PartitionRange,
    pub read_mode: ReadMode,
    /// Start timestamp of a diff scan: only rows changed since then, with an additional last column that marks deleted
    /// rows. Requires a snapshot timestamp and `fault_tolerant`.
    pub diff_from: Option<u64>,
    /// True for a scan in key order within each tablet that can resume at another replica. Reads a snapshot: the
    /// current state, unless `read_mode` names one.
    pub fault_tolerant: bool,
    /// Maximum number of rows.
    pub limit: Option<u64>,
    /// Target size of a response in bytes.
    pub batch_bytes: u32,
    /// True if the scan may read from followers.
    pub any_replica: bool,
}

impl Default for ScanSpec {
    fn default() -> ScanSpec {
        ScanSpec {
            columns: None,
            aggregation: None,
            predicates: Vec::new(),
            keys: PartitionRange::default(),
            partitions: PartitionRange::default(),
            read_mode: ReadMode::Latest,
            diff_from: None,
            fault_tolerant: false,
            limit: None,
            batch_bytes: 1 << 20,
            any_replica: false,
        }
    }
}

impl ScanSpec {
    /// Returns the read mode to ask servers for. They read in key order from a snapshot only. One that a server chooses
    /// now follows all writes of this client, whose timestamp each request propagates.
    pub(super) fn requested_mode(&self) -> ReadMode {
        match self.read_mode {
            ReadMode::Latest | ReadMode::YourWrites if self.fault_tolerant => ReadMode::AtSnapshot(None),
            mode => mode,
        }
    }
}
