//! Heartbeats of tablet servers and their tablet reports, and the servers that sent them.

use std::collections::BTreeMap;

use super::membership::ReportedHealth;
use super::record::{ConsensusState, HostPort};
use crate::error::Error;
use crate::format_level::{FormatLevel, LevelRange};
use crate::ids::{PeerId, TabletId, Uuid};
use crate::time::Instant;

/// Addresses and properties of a tablet server, as it registered them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TserverRegistration {
    pub rpc: Vec<HostPort>,
    pub http: Vec<HostPort>,
    pub software_version: String,
    pub https_enabled: bool,
    /// Seconds since 1970.
    pub start_time: Option<i64>,
    /// Format levels of its program; `None` for a program whose formats are not nyala's.
    pub levels: Option<LevelRange>,
}

/// A replica's state as its server reports it; the numbers are Kudu's `TabletStatePB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(i32)]
pub enum ReplicaState {
    Bootstrapping = 0,
    Running = 1,
    Failed = 2,
    Stopping = 3,
    Shutdown = 4,
    Initialized = 5,
    NotInitialized = 6,
    Stopped = 7,
    #[default]
    Unknown = 999,
}

/// Reported state of a replica's data; the numbers are Kudu's `TabletDataState`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(i32)]
pub enum ReportedDataState {
    Copying = 0,
    Ready = 1,
    Deleted = 2,
    Tombstoned = 3,
    #[default]
    Unknown = 999,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplicaStats {
    pub disk_bytes: u64,
    /// Absent while the replica does not know.
    pub live_rows: Option<u64>,
}

/// One replica in a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedTablet {
    pub tablet: TabletId,
    pub state: ReplicaState,
    pub data: ReportedDataState,
    pub consensus: Option<ConsensusState>,
    /// Term of the operation of its configuration, if the replica knows it.
    pub config_term: Option<i64>,
    /// Reason for its failure.
    pub error: Option<String>,
    pub schema_version: Option<u32>,
    /// Sent by leaders.
    pub stats: Option<ReplicaStats>,
    /// Health of the members of its configuration, sent by a leader.
    pub health: BTreeMap<PeerId, ReportedHealth>,
}

impl ReportedTablet {
    /// Returns a running replica of a table that was never altered, which has this view of its group.
    pub fn running(tablet: TabletId, consensus: ConsensusState) -> ReportedTablet {
        ReportedTablet {
            tablet,
            state: ReplicaState::Running,
            data: ReportedDataState::Ready,
            consensus: Some(consensus),
            config_term: None,
            error: None,
            schema_version: Some(0),
            stats: None,
            health: BTreeMap::new(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TabletReport {
    /// True if only changes since the last acknowledged report are included; otherwise the report is full.
    pub incremental: bool,
    /// Number of the report in this run of the server, if it counts them.
    pub number: Option<i32>,
    pub updated: Vec<ReportedTablet>,
    pub removed: Vec<TabletId>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    pub server: PeerId,
    /// Grows with each start of the server.
    pub instance: i64,
    /// Sent in the first heartbeat, and on request.
    pub registration: Option<TserverRegistration>,
    /// Location of the server, `/` and a path of names; sent with a registration.
    pub location: Option<String>,
    /// Cluster that the server has joined, if it has joined one.
    pub cluster: Option<Uuid>,
    /// False if the server can take no replicas now: it is short of space, or its clock is wrong.
    pub takes_replicas: bool,
    pub report: Option<TabletReport>,
}

impl Heartbeat {
    /// Returns a heartbeat that says nothing but that the server lives.
    pub fn of(server: PeerId, instance: i64) -> Heartbeat {
        Heartbeat {
            server,
            instance,
            registration: None,
            location: None,
            cluster: None,
            takes_replicas: true,
            report: None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeartbeatReply {
    pub needs_registration: bool,
    pub needs_full_report: bool,
    /// True if the server belongs to another cluster; then its registration was forgotten, if it had one.
    pub foreign: bool,
    /// Error for a server whose program does not support the cluster's format level; then the heartbeat had no effect.
    pub unsupported: Option<Error>,
    /// This cluster; absent from a master that does not lead.
    pub cluster: Option<Uuid>,
    /// Format level of this cluster; absent from a master that does not lead.
    pub level: Option<FormatLevel>,
    /// Tablets of the processed report.
    pub tablets: Vec<TabletId>,
}

/// A tablet server as known to a master that does not lead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TserverContact {
    pub id: PeerId,
    pub instance: i64,
    pub registration: TserverRegistration,
    pub location: Option<String>,
    /// Cluster that the server has joined, if it has joined one.
    pub cluster: Option<Uuid>,
    pub last_heartbeat: Instant,
    /// Number of the last report of this run that this master received.
    pub last_report: Option<i32>,
}

/// A tablet server that has registered with this master since it started.
#[derive(Debug)]
pub(super) struct Tserver {
    pub(super) instance: i64,
    pub(super) registration: TserverRegistration,
    pub(super) location: Option<String>,
    pub(super) last_heartbeat: Instant,
    pub(super) takes_replicas: bool,
    /// True if a full report has been processed since the registration.
    pub(super) reported: bool,
    /// Number of the last report of this run.
    pub(super) last_report: Option<i32>,
}
