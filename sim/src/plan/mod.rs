//! A plan: all that a run does, as data. The same plan drives every world.
//!
//! ```text
//! seed ──generate──► Plan ◄──parse/print──► sim/plans/NAME.plan
//!                     │ cluster   how many of what, limits, devices, network, clocks
//!                     │ clients   what each does, op by op            [`ops`]
//!                     │ faults    what goes wrong, when and where     [`faults`]
//! ```
//!
//! The plan leaves open what only its `seed` decides: the order in which tasks run, latencies within their
//! profile, what a crash leaves of unsynced bytes. Taking ops and faults away leaves a plan that still runs,
//! which is what shrinking does.

use std::time::Duration;

mod deposed;
mod duels;
pub mod faults;
pub mod generate;
mod heavy;
pub mod kinds;
mod laggard;
mod masters;
mod members;
mod more;
pub mod ops;
pub mod record;
mod retries;
mod slow;
mod spread;
mod text;
mod unsynced;

pub use faults::{Fault, Host, TimedFault, Way};
pub use generate::{Profile, Size};
pub use ops::{ClientProgram, Op};
use record::{records, words};

words! {
    /// How soon the engine flushes, rolls and compacts.
    pub enum Limits {
        /// Every rollover within a few rows.
        Tiny = "tiny",
        /// As soon, but logs hold all of a run: who starts again replays what is on disk, and what is gone since.
        LongLog = "long-log",
        /// As soon, but logs keep all that a member lacks, however much that is.
        Spared = "spared",
        Normal = "normal",
    }
}

records! {
    /// The cluster and its settings.
    pub struct Cluster = "cluster" {
        pub masters: u8,
        pub tservers: u8,
        /// Copies of each tablet.
        pub replicas: u8,
        /// Tables that are there from the beginning.
        pub tables: u8,
        /// Tablets of each of them.
        pub tablets: u8,
        pub limits: Limits,
        /// Whether a write is acknowledged only after it is synced.
        pub log_sync: bool,
        /// What a node may use.
        pub memory: u64,
        /// How often leaders and servers are heard of.
        pub raft_heartbeat: Duration,
        pub heartbeat: Duration,
        /// How long a follower may be silent until its leader asks for another.
        pub follower_failed: Duration,
        /// How often maintenance looks for work.
        pub maintenance: Duration,
        /// How long one attempt of a client may take, and an operation with its retries.
        pub rpc_timeout: Duration,
        pub op_timeout: Duration,
    }
}

records! {
    /// What tables hold, and how.
    pub struct Data = "data" {
        /// Encodings and compressions of columns follow from it, and the columns of keys; 0 for the usual ones.
        pub encodings: u32,
        /// Whether cells of some columns take few different values.
        pub few: bool,
        /// How long history is kept; 0 for as long as servers do by themselves.
        pub history: Duration,
    }
}

impl Default for Data {
    fn default() -> Data {
        Data { encodings: 0, few: false, history: Duration::ZERO }
    }
}

records! {
    /// How much leaders send at once.
    pub struct Sending = "sending" {
        /// Payload bytes in one update; one entry may be larger.
        pub batch: u32,
        /// Updates on their way to one peer.
        pub inflight: u8,
    }
}

impl Default for Sending {
    fn default() -> Sending {
        Sending { batch: 1 << 20, inflight: 4 }
    }
}

words! {
    /// What becomes of all servers at once when clients have ended, before the cluster is looked at.
    pub enum Ending {
        /// Nothing.
        Stay = "stay",
        /// Their processes die and start again.
        Kill = "kill",
        /// They lose their power.
        PowerCut = "power-cut",
    }
}

records! {
    /// What every device is like.
    pub struct Devices = "disk" {
        /// Each operation, each KiB, each sync.
        pub op: Duration,
        pub kib: Duration,
        pub sync: Duration,
    }
}

records! {
    /// What the network is like while nothing is wrong.
    pub struct Network = "net" {
        /// The least time a segment takes, and how much more it may.
        pub latency: Duration,
        pub jitter: Duration,
        pub bytes_per_ms: u32,
        /// Bytes that may be under way or unread in one direction of a connection.
        pub window: u32,
        /// Of segments, so many in a thousand are lost and sent again.
        pub loss_per_mille: u16,
        /// One write in so many is cut at a random length.
        pub cut_one_in: u16,
    }
}

records! {
    /// How one machine's clock errs.
    pub struct ClockError = "clock" {
        pub host: Host,
        pub offset_us: i64,
        pub drift_ppm: i64,
        /// How far off it believes it may be.
        pub error_us: u64,
    }
}

/// All that a run does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub seed: u64,
    pub cluster: Cluster,
    pub data: Data,
    pub sending: Sending,
    pub devices: Devices,
    pub network: Network,
    /// Machines whose clock errs; that of any other is right to a millisecond.
    pub clocks: Vec<ClockError>,
    pub clients: Vec<ClientProgram>,
    /// In the order of their times.
    pub faults: Vec<TimedFault>,
    pub ending: Ending,
    /// Time for the clients to end, faults included.
    pub limit: Duration,
    /// Time after that within which the cluster must be whole again.
    pub quiet: Duration,
}

impl Plan {
    /// How long servers remember history, if they do not for longer than any run and the time is the same everywhere.
    pub fn history_kept(&self) -> Option<Duration> {
        let wrong = |fault: &TimedFault| fault.kind.word().starts_with("clock");
        let agree = self.clocks.is_empty() && !self.faults.iter().any(wrong);
        (agree && !self.data.history.is_zero()).then_some(self.data.history)
    }

    /// Every machine that serves.
    pub fn servers(&self) -> Vec<Host> {
        let masters = (0..self.cluster.masters).map(Host::Master);
        masters.chain((0..self.cluster.tservers).map(Host::Tserver)).collect()
    }

    /// Every machine.
    pub fn hosts(&self) -> Vec<Host> {
        let mut hosts = self.servers();
        hosts.extend(self.clients.iter().map(|client| Host::Client(client.setup.number)));
        hosts
    }

    pub fn op_count(&self) -> usize {
        self.clients.iter().map(|client| client.ops.len()).sum()
    }

    /// Whether a power cut may take what was acknowledged: logs are not synced.
    pub fn forgets(&self) -> bool {
        !self.cluster.log_sync && self.faults.iter().any(|fault| fault.kind.cuts_power())
    }

    /// Whether an operator has replicas spread evenly.
    pub fn rebalances(&self) -> bool {
        let rebalances = |op: &Op| matches!(op, Op::Rebalance { .. });
        self.clients.iter().flat_map(|client| &client.ops).any(rebalances)
    }

    /// Whether an operator changes who the masters are.
    pub fn changes_masters(&self) -> bool {
        let changes = |op: &Op| matches!(op, Op::RemoveMaster { .. } | Op::AddMaster { .. });
        self.clients.iter().flat_map(|client| &client.ops).any(changes)
    }

    /// Whether clients keep lists.
    pub fn has_lists(&self) -> bool {
        self.clients.iter().flat_map(|client| &client.ops).any(Op::is_of_lists)
    }

    /// Whether there is a table whose rows the servers number.
    pub fn has_numbered(&self) -> bool {
        self.clients.iter().flat_map(|client| &client.ops).any(|op| matches!(op, Op::Numbered { .. }))
    }

    /// Whether a column that a write named may be gone when the write is tried again.
    pub fn loses_columns(&self) -> bool {
        let drops = |op: &Op| matches!(op, Op::DropColumn { .. });
        self.alters() || self.clients.iter().flat_map(|client| &client.ops).any(drops)
    }

    /// Whether clients take away or rename columns of their own.
    pub fn alters(&self) -> bool {
        let alters = |op: &Op| matches!(op, Op::OwnColumn { .. });
        self.clients.iter().flat_map(|client| &client.ops).any(alters)
    }

    /// When the last fault has healed.
    pub fn healed_at(&self) -> Duration {
        self.faults.iter().map(|fault| fault.at + fault.kind.span()).max().unwrap_or_default()
    }
}
