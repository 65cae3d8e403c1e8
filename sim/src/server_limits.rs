//! Limits of a plan's servers that oracles know as well: caches and Raft's times.

use std::time::Duration;

use engine::raft::RaftOptions;
use sim_plan::Plan;

/// Error above which servers do not trust their clock: below the larger errors of `clock-error`.
pub const CLOCK_ERROR_MAX_MICROS: u64 = 500_000;
/// Page cache of a server in bytes: small, so that disks are read.
pub const PAGE_CACHE_BYTES: usize = 256 << 10;
const RAFT_CACHE_BYTES: usize = 16 << 10;
/// Longest backoff after failed elections: clusters must recover within a stated time.
pub const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Returns the Raft options of the plan's tablets.
pub fn raft(plan: &Plan) -> RaftOptions {
    RaftOptions {
        heartbeat_interval: plan.cluster.raft_heartbeat,
        follower_failed_after: plan.cluster.follower_failed,
        backoff_max: BACKOFF_MAX,
        // Small, so that missing entries are read from the log.
        cache_bytes_max: RAFT_CACHE_BYTES,
        batch_bytes_max: plan.sending.batch as usize,
        inflight_max: usize::from(plan.sending.inflight),
        ..RaftOptions::default()
    }
}
