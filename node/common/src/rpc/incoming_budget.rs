//! Memory of long incomplete requests: a budget that the connections of a server share.
//!
//! ```text
//!   read buffers of frames above 1 MiB ──▶ sum ── above the limit ──▶ the connection whose buffer grew is closed
//! ```
//!
//! A peer can send the most of a long frame over each of many connections, and then wait. A connection with shorter
//! requests is never closed because of others.
//!
//! Not here: complete requests, which the queues of the services limit.

use std::sync::atomic::{AtomicU64, Ordering};

/// Size in bytes up to which a read buffer is not counted.
const SHORT_BYTES_MAX: usize = 1 << 20;

/// Bytes of the long read buffers of a server.
#[derive(Debug, Default)]
pub(super) struct IncomingBudget {
    bytes: AtomicU64,
}

/// Bytes of one connection's read buffer in the budget.
pub(super) struct IncomingShare<'a> {
    budget: &'a IncomingBudget,
    bytes: u64,
}

impl IncomingBudget {
    /// Returns the share of a connection with an empty buffer.
    pub(super) fn share(&self) -> IncomingShare<'_> {
        IncomingShare { budget: self, bytes: 0 }
    }

    /// Returns the bytes of all shares.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl IncomingShare<'_> {
    /// Sets the size of the connection's buffer. The error is the reason to close the connection: the buffer grew, and
    /// all long buffers together have more than `bytes_max`.
    pub(super) fn set(&mut self, buffer_bytes: usize, bytes_max: u64) -> Result<(), String> {
        let bytes = if buffer_bytes > SHORT_BYTES_MAX { buffer_bytes as u64 } else { 0 };
        let before = std::mem::replace(&mut self.bytes, bytes);
        if bytes <= before {
            if bytes < before {
                self.budget.bytes.fetch_sub(before - bytes, Ordering::Relaxed);
            }
            return Ok(());
        }
        let more = bytes - before;
        let sum = self.budget.bytes.fetch_add(more, Ordering::Relaxed) + more;
        if sum <= bytes_max {
            return Ok(());
        }
        Err(format!("incomplete requests have too much memory ({sum} bytes, limit {bytes_max})"))
    }
}

impl Drop for IncomingShare<'_> {
    fn drop(&mut self) {
        self.budget.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn only_a_long_buffer_that_grows_is_refused() {
        let budget = IncomingBudget::default();
        let set = |share: &mut IncomingShare<'_>, mib: usize| share.set(mib * MIB, 10 << 20);
        let (mut first, mut second, mut short) = (budget.share(), budget.share(), budget.share());
        assert_eq!((set(&mut first, 4), set(&mut second, 6)), (Ok(()), Ok(())));
        assert_eq!(set(&mut short, 1), Ok(()), "it is not counted");
        let error = set(&mut first, 8).expect_err("fourteen of ten");
        assert_eq!(error, "incomplete requests have too much memory (14680064 bytes, limit 10485760)");
        assert_eq!(set(&mut second, 6), Ok(()), "it has not grown");
        drop(first);
        assert_eq!(set(&mut second, 10), Ok(()));
        assert_eq!(set(&mut second, 0), Ok(()));
        assert_eq!(budget.bytes(), 0);
    }
}
