//! The plan and questions about it.

use std::time::Duration;

use crate::client_ops::{ClientOp, ClientProgram};
use crate::faults::{FaultKind, TimedFault};
use crate::host::Host;
use crate::spec::{
    ClockSkew, ClusterSpec, DataSpec, DeviceSpec, FinalRestart, NetworkSpec, RaftBatching, Reseed,
    SecuritySpec,
};
use crate::tables::ModelTable;

/// Most data directories of a tablet server.
pub const DATA_DIRS_MAX: u8 = 3;

/// All that a run does. See the [crate].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub seed: u64,
    pub cluster: ClusterSpec,
    /// Data directories of each tablet server, each on a device of its own.
    pub data_dirs: u8,
    pub data: DataSpec,
    pub sending: RaftBatching,
    /// Required TLS, tickets and tokens; `None` for connections in plain text.
    pub security: Option<SecuritySpec>,
    pub devices: DeviceSpec,
    pub network: NetworkSpec,
    /// Machines whose clock errs. The clocks of all others are correct to a millisecond.
    pub clocks: Vec<ClockSkew>,
    /// Tables of any shape, besides those of `cluster`.
    pub tables: Vec<ModelTable>,
    pub clients: Vec<ClientProgram>,
    /// Ordered by time.
    pub faults: Vec<TimedFault>,
    /// Times from which the run draws from other seeds. Ordered by time.
    pub reseeds: Vec<Reseed>,
    pub ending: FinalRestart,
    /// Time within which the clients must end, faults included.
    pub limit: Duration,
    /// Length of the recovery phase, within which the cluster must recover fully.
    pub quiet: Duration,
}

impl Plan {
    /// Returns the history retention of the servers if reads of old snapshots depend on it.
    ///
    /// None if servers retain history for longer than any run, or if clocks differ between machines.
    pub fn history_kept(&self) -> Option<Duration> {
        use FaultKind::{ClockDrift, ClockError, ClockJump, ClockStep};
        let disturbs_clock =
            |fault: &TimedFault| matches!(fault.kind.kind(), ClockJump | ClockDrift | ClockError | ClockStep);
        let clocks_agree = self.clocks.is_empty() && !self.faults.iter().any(disturbs_clock);
        self.history_age().filter(|_| clocks_agree)
    }

    /// Returns the age of history that servers are told to retain, in whole seconds; `None` if it is longer than any
    /// run.
    pub fn history_age(&self) -> Option<Duration> {
        let age = Duration::from_secs(self.data.history.as_secs().max(1));
        (!self.data.history.is_zero()).then_some(age)
    }

    /// Returns all masters and tablet servers.
    pub fn servers(&self) -> Vec<Host> {
        let masters = (0..self.cluster.masters).map(Host::Master);
        masters.chain((0..self.cluster.tservers).map(Host::Tserver)).collect()
    }

    /// Returns all servers and clients.
    pub fn hosts(&self) -> Vec<Host> {
        let mut hosts = self.servers();
        hosts.extend(self.clients.iter().map(|client| Host::Client(client.setup.number)));
        hosts
    }

    /// Returns the hosts of clients that back up tables.
    pub fn backup_hosts(&self) -> Vec<Host> {
        let clients = self.clients.iter().filter(|client| client.backs_up());
        clients.map(|client| Host::Client(client.setup.number)).collect()
    }

    pub fn op_count(&self) -> usize {
        self.clients.iter().map(|client| client.ops.len()).sum()
    }

    /// Returns true if a power cut may lose acknowledged writes, because logs are not synced.
    pub fn may_lose_acknowledged(&self) -> bool {
        let of_server = |fault: &&TimedFault| !matches!(fault.target, Host::Client(_));
        let mut faults = self.faults.iter().filter(of_server);
        !self.cluster.log_sync && faults.any(|fault| fault.kind.cuts_power())
    }

    /// Returns true if an operator runs the rebalancer.
    pub fn rebalances(&self) -> bool {
        self.any_op(|op| matches!(op, ClientOp::Rebalance { .. }))
    }

    /// Returns true if an operator changes the masters' group.
    pub fn changes_masters(&self) -> bool {
        self.any_op(ClientOp::changes_masters)
    }

    /// Returns true if clients append to linked lists or read them.
    pub fn has_lists(&self) -> bool {
        self.any_op(ClientOp::is_of_lists)
    }

    /// Returns true if there is a table with an auto-increment column.
    pub fn has_numbered(&self) -> bool {
        self.any_op(|op| matches!(op, ClientOp::Numbered { .. }))
    }

    /// Returns true if clients alter model tables: they remember locations for [`crate::client_ops::LOCATIONS_TTL`].
    pub fn alters_model_tables(&self) -> bool {
        self.any_op(|op| matches!(op, ClientOp::TableAlter { .. }))
    }

    /// Returns true if scans pause: servers drop idle scanners after [`crate::client_ops::SCANNER_TTL`].
    pub fn pauses_scans(&self) -> bool {
        self.any_op(|op| matches!(op, ClientOp::TablePausedScan { .. }))
    }

    /// Returns true if a column that a write names may be dropped before the write is retried.
    pub fn loses_columns(&self) -> bool {
        self.alters() || self.any_op(|op| matches!(op, ClientOp::DropColumn { .. }))
    }

    /// Returns true if clients drop or rename columns of their own.
    pub fn alters(&self) -> bool {
        self.any_op(|op| matches!(op, ClientOp::OwnColumn { .. }))
    }

    /// Returns the time at which the last fault ends, since the workload began.
    pub fn faults_end_at(&self) -> Duration {
        self.faults.iter().map(|fault| fault.at + fault.kind.span()).max().unwrap_or_default()
    }

    /// Returns true if a client has an op of this kind.
    pub fn any_op(&self, predicate: impl Fn(&ClientOp) -> bool) -> bool {
        self.clients.iter().flat_map(|client| &client.ops).any(predicate)
    }
}
