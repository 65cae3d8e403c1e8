//! Settings of a run: cluster, data, replication, devices, network and clocks.

use std::time::Duration;

use crate::host::Host;
use crate::line_format::{records, words};

words! {
    /// Sizes at which the engine flushes, rolls and compacts.
    pub enum EngineLimits {
        /// Every rollover within a few rows.
        Tiny = "tiny",
        /// As `Tiny`, but the log keeps all operations of the run. A restarted server replays operations whose effects
        /// are on disk, and operations on tablets and columns that no longer exist.
        LongLog = "long-log",
        /// As `Tiny`, but the log keeps everything that a lagging member lacks, without a size limit.
        Spared = "spared",
        Normal = "normal",
    }
}

records! {
    /// The cluster and its settings.
    pub struct ClusterSpec = "cluster" {
        pub masters: u8,
        pub tservers: u8,
        /// Replicas of each tablet.
        pub replicas: u8,
        /// Tables that exist before the workload begins.
        pub tables: u8,
        /// Tablets of each of those tables.
        pub tablets: u8,
        pub limits: EngineLimits,
        /// True if a write is acknowledged only after the log is synced.
        pub log_sync: bool,
        /// Hard memory limit of a node in bytes.
        pub memory: u64,
        /// Interval of Raft heartbeats.
        pub raft_heartbeat: Duration,
        /// Interval of heartbeats from tablet servers to masters.
        pub heartbeat: Duration,
        /// Time after which a leader evicts an unresponsive follower.
        pub follower_failed: Duration,
        /// Interval at which maintenance looks for jobs.
        pub maintenance: Duration,
        /// Timeout of one attempt of a client.
        pub rpc_timeout: Duration,
        /// Timeout of a client's operation including retries.
        pub op_timeout: Duration,
    }
}

records! {
    /// The data of tables and its layout.
    pub struct DataSpec = "data" {
        /// Determines encodings and compressions of columns, and the key columns. 0 for the default layout.
        pub encodings: u32,
        /// True if cells of some columns take few different values.
        pub few: bool,
        /// Time that history is retained. 0 for the servers' default.
        pub history: Duration,
    }
}

impl Default for DataSpec {
    fn default() -> DataSpec {
        DataSpec { encodings: 0, few: false, history: Duration::ZERO }
    }
}

records! {
    /// Limits on what a leader sends to a peer.
    pub struct RaftBatching = "sending" {
        /// Payload bytes in one update. A single entry may be larger.
        pub batch: u32,
        /// Updates in flight to one peer.
        pub inflight: u8,
    }
}

impl Default for RaftBatching {
    fn default() -> RaftBatching {
        RaftBatching { batch: 1 << 20, inflight: 4 }
    }
}

records! {
    /// Security of all connections: TLS and proofs of identity are required. Without it connections are plain text.
    pub struct SecuritySpec = "security" {
        /// Validity of authentication tokens.
        pub authn: Duration,
        /// Validity of authorization tokens.
        pub authz: Duration,
        /// Interval at which masters make token signing keys.
        pub rotation: Duration,
    }
}

words! {
    /// Restart of all servers at once, after the clients end and before the post-run checks.
    pub enum FinalRestart {
        /// No restart.
        Stay = "stay",
        /// All processes are killed and start again.
        Kill = "kill",
        /// All machines lose power and start again.
        PowerCut = "power-cut",
    }
}

records! {
    /// Latencies of every device.
    pub struct DeviceSpec = "disk" {
        /// Time of each operation.
        pub op: Duration,
        /// Time of each KiB.
        pub kib: Duration,
        /// Time of each sync.
        pub sync: Duration,
    }
}

records! {
    /// The network without faults.
    pub struct NetworkSpec = "net" {
        /// Minimum latency of a segment.
        pub latency: Duration,
        /// Maximum that is added to the latency.
        pub jitter: Duration,
        pub bytes_per_ms: u32,
        /// Bytes that may be in flight or unread in one direction of a connection.
        pub window: u32,
        /// Segments, per mille, that are lost and retransmitted.
        pub loss_per_mille: u16,
        /// One write in this number is cut at a random length.
        pub cut_one_in: u16,
    }
}

records! {
    /// Time from which machines, network and fault injector draw from another seed. The run is the same until then.
    pub struct Reseed = "reseed" {
        /// Time since the workload began.
        pub at: Duration,
        pub seed: u64,
    }
}

records! {
    /// The error of one machine's clock.
    pub struct ClockSkew = "clock" {
        pub host: Host,
        pub offset_us: i64,
        pub drift_ppm: i64,
        /// Maximum error that the clock itself reports, in microseconds.
        pub error_us: u64,
    }
}
