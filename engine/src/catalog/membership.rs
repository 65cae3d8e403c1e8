//! Members of a tablet's configuration: their health, and changes that the master requests.

use std::fmt;

use super::record::PeerRecord;
use crate::ids::PeerId;
use crate::time::Instant;

/// Health of a member as its leader sees it; the numbers are Kudu's `HealthStatus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(i32)]
pub enum ReportedHealth {
    /// Silent for longer than the leader's limit.
    Failed = 0,
    Healthy = 1,
    /// The member cannot catch up: the leader's log lacks the entries, or the member's data is lost.
    FailedUnrecoverable = 2,
    /// The leader has not received a response from it yet.
    #[default]
    Unknown = 999,
}

impl ReportedHealth {
    pub(super) fn is_failed(self) -> bool {
        matches!(self, ReportedHealth::Failed | ReportedHealth::FailedUnrecoverable)
    }
}

/// One change of a tablet's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipChange {
    /// Add this server as a learner to be promoted.
    Add(PeerRecord),
    Evict(PeerId),
    /// Transfer leadership to this voter, from a leader that is marked for replacement.
    HandOver(PeerId),
}

impl fmt::Display for MembershipChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MembershipChange::Add(peer) => write!(f, "add {}", peer.server),
            MembershipChange::Evict(server) => write!(f, "evict {server}"),
            MembershipChange::HandOver(server) => write!(f, "hand over to {server}"),
        }
    }
}

/// State of the last requested change.
#[derive(Debug, Default)]
pub(super) struct PendingRepair {
    /// The last change done, and the index of the configuration it replaced; the report of the new one has not arrived.
    pub(super) done: Option<(i64, MembershipChange)>,
    pub(super) failures: u32,
    /// Earliest time of the next attempt.
    pub(super) due: Instant,
    /// Time since which its leader is dispensable.
    pub(super) leader_dispensable_since: Option<Instant>,
    /// True if the lack of servers has been noted.
    pub(super) noted: bool,
}
