//! Reads that may use memory and cached pages only, so that they never wait for a device.
//!
//! ```text
//! cached_reads::attempt(read) ──▶ read ──▶ page in the cache? ── yes ──▶ the page
//!                                             └─ no ──▶ refuse(): an error ends `read`, `attempt` returns `None`
//! ```
//!
//! Invariant: a read never changes threads, so a flag of the thread is the read's own.

use std::cell::Cell;

use crate::error::{Error, Result};

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadMode {
    /// Pages that are not cached are read from files.
    AnyPage,
    CachedPages,
    /// As `CachedPages`, and a page was refused.
    Refused,
}

thread_local! {
    static MODE: Cell<ReadMode> = const { Cell::new(ReadMode::AnyPage) };
}

/// Sets the mode back, also if the read panics.
struct ModeGuard(ReadMode);

impl Drop for ModeGuard {
    fn drop(&mut self) {
        MODE.set(self.0);
    }
}

/// Runs `read` with memory and cached pages. Returns `None` if it needs another page; it may have done a part of its
/// work by then, so the caller drops what it read into.
pub fn attempt<T>(read: impl FnOnce() -> Result<T>) -> Option<Result<T>> {
    let _guard = ModeGuard(MODE.replace(ReadMode::CachedPages));
    let result = read();
    (MODE.get() == ReadMode::CachedPages).then_some(result)
}

/// Returns an error if the page to be read from a file is not to be waited for.
pub(crate) fn refuse() -> Result<()> {
    if MODE.get() == ReadMode::AnyPage {
        return Ok(());
    }
    MODE.set(ReadMode::Refused);
    Err(Error::not_ready("a page is not cached; read it from its file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_without_files_returns_its_result() {
        assert_eq!(attempt(|| Ok(7)), Some(Ok(7)));
        assert_eq!(attempt(|| Err::<(), _>(Error::invalid("no"))), Some(Err(Error::invalid("no"))));
    }

    #[test]
    fn a_refused_page_ends_the_attempt_even_if_its_error_is_swallowed() {
        assert_eq!(attempt(|| refuse().map(|()| 7)), None);
        assert_eq!(attempt(|| Ok(refuse().is_err())), None);
        assert_eq!(refuse(), Ok(()), "files may be read again");
    }

    #[test]
    fn a_panic_leaves_the_thread_as_it_was() {
        let panicked = std::panic::catch_unwind(|| attempt(|| -> Result<()> { panic!("on purpose") }));
        assert!(panicked.is_err() && refuse().is_ok());
    }
}
