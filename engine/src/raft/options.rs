//! How patient a group is, and how much it sends at once.

use std::time::Duration;

/// Times and sizes of the protocol.
#[derive(Debug, Clone, PartialEq)]
pub struct RaftOptions {
    /// A leader lets each peer hear from it this often (`raft_heartbeat_interval_ms`).
    pub heartbeat_interval: Duration,
    /// A leader that was not heard for so many intervals is gone (`leader_failure_max_missed_heartbeat_periods`).
    pub missed_heartbeats_max: f64,
    /// No back-off after failed elections, and none towards a peer that cannot be reached, is longer.
    pub backoff_max: Duration,
    /// A peer silent for so long counts as failed (`follower_unavailable_considered_failed_sec`).
    pub follower_failed_after: Duration,
    /// Payload bytes in one update (`consensus_max_batch_size_bytes`); one entry may be larger.
    pub batch_bytes_max: usize,
    /// Updates on their way to one peer at once.
    pub inflight_max: usize,
    /// Bytes of entries kept in memory for peers that are behind. What is not committed yet is kept in any case.
    pub cache_bytes_max: usize,
}

impl Default for RaftOptions {
    fn default() -> RaftOptions {
        RaftOptions {
            heartbeat_interval: Duration::from_millis(500),
            missed_heartbeats_max: 3.0,
            backoff_max: Duration::from_secs(20),
            follower_failed_after: Duration::from_secs(300),
            batch_bytes_max: 1 << 20,
            inflight_max: 4,
            cache_bytes_max: 32 << 20,
        }
    }
}

impl RaftOptions {
    /// For servers close to each other: a dead leader is replaced within 300 ms.
    pub fn fast() -> RaftOptions {
        RaftOptions {
            heartbeat_interval: Duration::from_millis(30),
            backoff_max: Duration::from_secs(2),
            ..RaftOptions::default()
        }
    }

    /// Every limit is met within a few entries.
    pub fn tiny() -> RaftOptions {
        RaftOptions {
            heartbeat_interval: Duration::from_millis(10),
            backoff_max: Duration::from_millis(200),
            follower_failed_after: Duration::from_secs(1),
            batch_bytes_max: 24,
            inflight_max: 2,
            cache_bytes_max: 64,
            ..RaftOptions::default()
        }
    }

    /// The shortest silence after which a leader counts as gone.
    pub fn election_timeout(&self) -> Duration {
        self.heartbeat_interval.mul_f64(self.missed_heartbeats_max.max(1.0))
    }
}
