//! Timeouts and size limits of a group.

use std::time::Duration;

use crate::time::Instant;

/// Timeouts and size limits of the protocol.
#[derive(Debug, Clone, PartialEq)]
pub struct RaftOptions {
    /// Interval between a leader's heartbeats to each peer (`raft_heartbeat_interval_ms`).
    pub heartbeat_interval: Duration,
    /// Number of times per interval at which the heartbeats of all groups of a server are sent together. They leave
    /// early rather than singly, as the cost of a heartbeat is mostly wake-ups and calls. Zero: each when it is due.
    pub heartbeat_slots: u32,
    /// Missed heartbeats after which a leader counts as failed (`leader_failure_max_missed_heartbeat_periods`).
    pub missed_heartbeats_max: f64,
    /// Longest backoff after failed elections, and towards an unreachable peer.
    pub backoff_max: Duration,
    /// Silence after which a peer counts as failed (`follower_unavailable_considered_failed_sec`).
    pub follower_failed_after: Duration,
    /// Payload bytes in one update (`consensus_max_batch_size_bytes`); one entry may be larger.
    pub batch_bytes_max: usize,
    /// Updates in flight to one peer.
    pub inflight_max: usize,
    /// Bytes of entries cached in memory for lagging peers. Uncommitted entries are kept beyond this limit.
    pub cache_bytes_max: usize,
}

impl Default for RaftOptions {
    fn default() -> RaftOptions {
        RaftOptions {
            heartbeat_interval: Duration::from_millis(500),
            heartbeat_slots: 2,
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
    /// Options for servers close to each other: a failed leader is replaced within 300 ms.
    pub fn fast() -> RaftOptions {
        RaftOptions {
            heartbeat_interval: Duration::from_millis(30),
            backoff_max: Duration::from_secs(2),
            ..RaftOptions::default()
        }
    }

    /// Options that reach every limit within a few entries.
    pub fn tiny() -> RaftOptions {
        RaftOptions {
            heartbeat_interval: Duration::from_millis(10),
            heartbeat_slots: 0,
            backoff_max: Duration::from_millis(200),
            follower_failed_after: Duration::from_secs(1),
            batch_bytes_max: 24,
            inflight_max: 2,
            cache_bytes_max: 64,
            ..RaftOptions::default()
        }
    }

    /// Returns the time of the next heartbeat to a peer whose last update left at `sent`.
    pub fn heartbeat_after(&self, sent: Instant) -> Instant {
        let slot = self.heartbeat_interval.checked_div(self.heartbeat_slots).unwrap_or_default();
        sent.round_down(slot).after(self.heartbeat_interval)
    }

    /// The shortest silence after which a leader counts as failed.
    pub fn election_timeout(&self) -> Duration {
        self.heartbeat_interval.mul_f64(self.missed_heartbeats_max.max(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeats_of_all_groups_are_batched_and_none_is_late() {
        let at = |ms: u64| Instant(ms * 1_000_000);
        let options = RaftOptions::default();
        let next = |ms: u64| options.heartbeat_after(at(ms)).0 / 1_000_000;
        assert_eq!([1000, 1001, 1249, 1250, 1499].map(next), [1500, 1500, 1500, 1750, 1750]);
        let alone = RaftOptions { heartbeat_slots: 0, ..options };
        assert_eq!(alone.heartbeat_after(at(1249)), at(1749));
    }
}
