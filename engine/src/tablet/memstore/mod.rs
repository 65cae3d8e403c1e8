//! Concurrent structures of the in-memory stores: one writer adds, any number of readers read, and no reader waits.
//!
//! ```text
//!   tree ──► row ──► mutation ──► mutation        the tree orders rows by key; each row has a list, oldest first
//!     │       │         │
//!   nodes   rows     mutations, changes           all in arenas: elements never move and are never removed
//! ```
//!
//! Everything that readers follow is published by one atomic store after it is complete, and does not change
//! afterwards. So a reader sees the store as it was between two steps of the writer, or newer. Timestamps say which
//! rows and mutations belong to the reader's snapshot.
//!
//! Not here: the meaning of rows and row changes (`memrowset`, `deltamemstore`).

pub(super) mod arena;
pub(super) mod byte_arena;
#[cfg(all(test, loom))]
mod loom;
pub(super) mod mutations;
pub(super) mod node;
pub(super) mod tree;

/// No row, no mutation, no node.
pub(super) const NONE: u32 = u32::MAX;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Prefetches a value. This changes only the time of reading it.
#[inline]
pub(super) fn prefetch<T>(value: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for at in (0..size_of::<T>()).step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch has no effect that the program can observe, and every x86-64 supports it; `at` is within
        // `value`.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).byte_add(at).cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = value;
}

/// Prefetches a run of bytes. Of a long run the start is enough: the processor continues by itself.
#[inline]
pub(super) fn prefetch_run(run: &[u8]) {
    let Some(last) = run.len().checked_sub(1) else { return };
    prefetch(&run[0]);
    prefetch(&run[last.min(LINE)]);
}

/// Proptest settings. Miri is about a thousand times slower, and has no files to store regressions in.
#[cfg(all(test, not(loom)))]
pub(super) fn testing() -> proptest::prelude::ProptestConfig {
    let failure_persistence = match cfg!(miri) {
        true => None,
        false => proptest::prelude::ProptestConfig::default().failure_persistence,
    };
    let cases = if cfg!(miri) { 4 } else { 256 };
    proptest::prelude::ProptestConfig { cases, failure_persistence, ..Default::default() }
}
