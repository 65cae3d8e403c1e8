//! The state of a tablet copy at its sink.

use engine::ids::Term;
use engine::replica::copy::{CopySink, CopySource};

/// A copy at its sink.
pub(super) enum CopyState {
    /// The leader's order is accepted; nothing has changed.
    Ordered {
        source: usize,
        term: Term,
    },
    Fetching {
        source: usize,
        life: u64,
        from: Box<CopySource>,
        sink: Box<CopySink>,
    },
}
