//! Options of a [`Session`](super::Session).

use std::time::Duration;

use nyala_proto::kudu::ExternalConsistencyMode;

/// Time at which a session sends applied rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushMode {
    /// At once: `apply` returns when the row is written or rejected.
    AutoSync,
    /// At the buffer watermark, or at the end of the flush interval. `apply` waits only while the buffer is full.
    AutoBackground,
    /// On [`Session::flush`](super::Session::flush) only. `apply` fails if the buffer is full.
    Manual,
}

/// Options of a session.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    pub mode: FlushMode,
    /// Maximum size in encoded bytes of rows buffered and in flight, together.
    pub buffer_bytes: usize,
    /// Percentage of `buffer_bytes` that starts a background flush. A lower value leaves more space for new rows while
    /// others are in flight. Above 100, a flush starts when the buffer is full.
    pub watermark_percent: usize,
    /// Maximum age of a buffered row before a background flush.
    pub flush_interval: Duration,
    /// Time limit of a flush: retries, and the wait for earlier batches, included.
    pub timeout: Duration,
    /// True if the result of each row is kept for [`Session::take_receipts`](super::Session::take_receipts).
    pub receipts: bool,
    /// COMMIT_WAIT delays replies to writes until their timestamp has passed on the clock of every server;
    /// CLIENT_PROPAGATED does not.
    pub consistency: ExternalConsistencyMode,
}

impl SessionConfig {
    /// Returns a configuration with a 7 MiB buffer, a watermark of 50 percent and a timeout of 60 s.
    pub fn new(mode: FlushMode) -> SessionConfig {
        SessionConfig {
            mode,
            buffer_bytes: 7 << 20,
            watermark_percent: 50,
            flush_interval: Duration::from_secs(1),
            timeout: Duration::from_secs(60),
            receipts: false,
            consistency: ExternalConsistencyMode::ClientPropagated,
        }
    }

    /// Returns the number of buffered bytes that starts a background flush.
    pub(super) fn watermark(&self) -> usize {
        self.buffer_bytes.saturating_mul(self.watermark_percent) / 100
    }
}
