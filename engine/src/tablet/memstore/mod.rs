//! What the stores in memory are made of: one writer adds, any number of readers look, and none of them waits.
//!
//! ```text
//!   tree ──► row ──► mutation ──► mutation        the tree orders rows by key; each row has a chain, oldest first
//!     │       │         │
//!   nodes   rows     mutations, changes           all in arenas: what is there never moves and never goes away
//! ```
//!
//! Everything readers follow is published by one atomic store after it is complete, and is not changed any more. So a
//! reader sees a store as it was at some moment between two steps of the writer, or newer; which rows and mutations
//! belong to its snapshot their timestamps say.
//!
//! Not here: what rows and changes mean (`memrowset`, `deltamemstore`).

pub mod arena;
pub mod bytes;
pub mod chain;
#[cfg(all(test, loom))]
mod loom;
pub mod node;
pub mod tree;

/// No row, no mutation, no node.
pub const NONE: u32 = u32::MAX;

/// Bytes that a processor fetches at once.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LINE: usize = 64;

/// Asks the processor to have this at hand soon. Nothing but the time that reading it takes depends on that.
#[inline]
pub fn prefetch<T>(place: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for at in (0..size_of::<T>()).step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program gets to see, and every x86-64 has it; `at` is within
        // `place`.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).byte_add(at).cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = place;
}

/// Miri takes a thousand times as long, and has no files to keep regressions in.
#[cfg(all(test, not(loom)))]
pub fn testing() -> proptest::prelude::ProptestConfig {
    let failure_persistence = match cfg!(miri) {
        true => None,
        false => proptest::prelude::ProptestConfig::default().failure_persistence,
    };
    let cases = if cfg!(miri) { 4 } else { 256 };
    proptest::prelude::ProptestConfig { cases, failure_persistence, ..Default::default() }
}
