//! Settings of servers that checks depend on.

use std::time::Duration;

/// Idle time after which a session of a tablet copy ends.
pub(super) const COPY_IDLE: Duration = Duration::from_secs(2);
