//! Settings of servers and the layout of timestamps that checks depend on.

use std::time::Duration;

/// Idle time after which a session of a tablet copy ends.
pub(super) const COPY_IDLE: Duration = Duration::from_secs(2);
/// Bytes of writes that may wait at a replica: one write, and a part of another.
pub(super) const PENDING_BYTES: usize = 64;
/// Time to live of unused scanners, and the interval of searches for expired ones.
pub(super) const SCANNER_TTL: Duration = Duration::from_secs(1);
pub(super) const SCANNER_CHECK: Duration = Duration::from_millis(200);
/// Logical bits of a timestamp, below its microseconds.
pub(super) const LOGICAL_BITS: u32 = 12;
