//! Tablet copy between servers.
//!
//! ```text
//!   leader ── StartTabletCopy ─▶ sink.rs ── Begin, FetchData … ─▶ service.rs ─▶ sessions.rs     (at the source)
//!                                   │                                └─▶ throttle.rs
//!                                   └─▶ files in place ─▶ READY ─▶ the replica is opened and runs
//! ```
//!
//! *Not here:* what a copy consists of and when it may take the place of what is there (`engine::replica::copy`).

use std::time::Duration;

mod remote;
pub mod service;
mod sessions;
mod sink;
mod throttle;

pub use service::CopyService;
pub use sink::{Copies, Order, Target, copy, start};

/// Limits and times of copies. Names of Kudu's flags where it has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyConfig {
    /// Sessions that others may have here at once: each pins files.
    pub sessions_max: usize,
    /// A session that is not used for so long is over (`tablet_copy_idle_timeout_sec`).
    pub idle_timeout: Duration,
    /// How often that is looked at (`tablet_copy_timeout_poll_period_ms`).
    pub expiry_interval: Duration,
    /// Bytes in one reply (`tablet_copy_transfer_chunk_size_bytes`).
    pub chunk_bytes: usize,
    /// Bytes that all sessions together may fetch from here in a second; 0: no bound.
    pub bytes_per_second: u64,
    /// Tablets copied onto this server at once (`num_tablets_to_copy_simultaneously`).
    pub copies_max: usize,
    /// How long the source has to answer one call.
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
