//! Tablet copy between servers.
//!
//! ```text
//!   leader ── StartTabletCopy ─▶ sink.rs ── Begin, FetchData … ─▶ service.rs ─▶ sessions.rs   (at the source)
//!             (reserved_space.rs)   │  (source_client.rs)             └─▶ throttle.rs
//!                                   └─▶ files in place ─▶ READY ─▶ the replica is opened and runs
//! ```
//!
//! *Not here:* the contents of a copy and the conditions under which it may replace a replica
//! (`engine::replica::copy`).

use std::time::Duration;

mod order;
mod reserved_space;
pub mod service;
mod sessions;
mod sink;
mod source_client;
mod throttle;

pub use order::{CopyOrder, CopyTarget};
pub use reserved_space::ReservedSpace;
pub use service::CopyService;
pub use sink::copy;

/// Limits and times of tablet copies. Fields name Kudu's flags where they exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyConfig {
    /// Largest number of sessions that sinks may have at this server: each pins files.
    pub sessions_max: usize,
    /// Idle time after which a session ends (`tablet_copy_idle_timeout_sec`).
    pub idle_timeout: Duration,
    /// Interval between searches for idle sessions (`tablet_copy_timeout_poll_period_ms`).
    pub expiry_interval: Duration,
    /// Bytes in one response (`tablet_copy_transfer_chunk_size_bytes`).
    pub chunk_bytes: usize,
    /// Bytes per second that all sessions together may fetch from this server; 0: unlimited.
    pub bytes_per_second: u64,
    /// Tablets copied onto this server at once (`num_tablets_to_copy_simultaneously`).
    pub copies_max: usize,
    /// Deadline of one call to the source.
    pub call_timeout: Duration,
}

impl Default for CopyConfig {
    fn default() -> CopyConfig {
        CopyConfig {
            sessions_max: 64,
            idle_timeout: Duration::from_secs(180),
            expiry_interval: Duration::from_secs(10),
            chunk_bytes: 4 << 20,
            bytes_per_second: 0,
            copies_max: 10,
            call_timeout: Duration::from_secs(30),
        }
    }
}
