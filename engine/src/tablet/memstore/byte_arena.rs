//! Byte arena: runs of bytes stored one after the other, which readers can borrow.
//!
//! ```text
//!   chunk  │ run │ run │ run ┊ …        below `end`: written once, immutable      above: only the writer's
//!                            end
//! ```
//!
//! A run is within one chunk; the end of a chunk that is too small for it stays unused. A chunk is twice as large as
//! the previous one, up to a bound, or as large as its first run. A position is the chunk's number and an offset in it,
//! so positions ascend even where bytes stay unused.

use std::cell::UnsafeCell;

use super::arena::{CHUNK_BYTES_MAX, ChunkDirectory};
#[cfg(loom)]
use crate::sync::AccessCheck;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Bytes of the first chunk.
const FIRST: usize = if cfg!(loom) { 4 } else { 64 };
/// Number of times that chunks double until they have the largest size.
const DOUBLINGS: usize = if cfg!(loom) { 1 } else { (CHUNK_BYTES_MAX / FIRST).ilog2() as usize };

/// Runs of bytes, with one writer and any number of readers.
pub(crate) struct ByteArena {
    chunks: ChunkDirectory<Chunk>,
    /// Position below which all bytes are complete.
    end: AtomicU64,
    /// True while a thread is in [`ByteArena::push`].
    writing: AtomicBool,
    bytes: AtomicUsize,
}

struct Chunk {
    bytes: Box<[UnsafeCell<u8>]>,
    /// One access check per byte.
    #[cfg(loom)]
    accesses: Box<[AccessCheck]>,
}

// SAFETY: `ByteArena` lets threads write to and read from the same chunk, but never to the same byte without order.
// Bytes are written only in `push`, which one thread at a time is in, and only at or above `end`. They are lent only
// below `end`, which passes them with release order after they are written.
unsafe impl Sync for Chunk {}

impl Default for ByteArena {
    fn default() -> ByteArena {
        ByteArena {
            chunks: ChunkDirectory::default(),
            end: AtomicU64::new(0),
            writing: AtomicBool::new(false),
            bytes: AtomicUsize::new(0),
        }
    }
}

impl ByteArena {
    /// Appends a run and returns its position. Panics if two threads push at once, because there is only one writer.
    pub(crate) fn push(&self, run: &[u8]) -> u64 {
        assert!(!self.writing.swap(true, Ordering::Acquire), "a store has one writer");
        let (number, at, stored) = self.next_location(run.len());
        let target = stored.range(at, run.len(), true).as_ptr();
        // SAFETY: `target` points at `run.len()` bytes in cells, so they may be written through a shared reference.
        // They are at or above `end`, so none of them is lent. No other thread is writing, because this thread set
        // `writing`. `run` cannot overlap bytes that were never lent.
        unsafe { std::ptr::copy_nonoverlapping(run.as_ptr(), target.cast::<u8>().cast_mut(), run.len()) };
        let position = position(number, at);
        self.end.store(position + run.len() as u64, Ordering::Release);
        self.writing.store(false, Ordering::Release);
        position
    }

    /// Returns the `len` bytes from `position` on. Panics unless they are within one chunk and were pushed.
    #[inline]
    pub(crate) fn get(&self, position: u64, len: usize) -> &[u8] {
        if len == 0 {
            return &[];
        }
        assert!(self.end.load(Ordering::Acquire) >= position + len as u64, "these bytes were never pushed");
        let (chunk, at) = locate(position);
        let stored = self.chunks.get(chunk).expect("these bytes were never pushed");
        let run = stored.range(at, len, false);
        // SAFETY: `run` is within one allocation, whose bytes are initialized. They are below `end`, and its load with
        // acquire order is after their last write; no `push` writes below `end`. They live as long as the arena, which
        // drops no chunk.
        unsafe { std::slice::from_raw_parts(run.as_ptr().cast::<u8>(), len) }
    }

    /// Returns the bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed) + self.chunks.bytes()
    }

    /// Returns the bytes of the next allocation, unless the run is longer.
    pub(crate) fn next_bytes(&self) -> usize {
        let (chunk, at) = locate(self.end.load(Ordering::Relaxed));
        let next = if at == 0 && self.chunks.get(chunk).is_none() { chunk } else { chunk + 1 };
        usual_len(next) + self.chunks.bytes_for(next)
    }

    /// Returns the place for the next run, in the chunk of `end` or the one after it. Only the writer calls this.
    #[inline]
    fn next_location(&self, len: usize) -> (usize, usize, &Chunk) {
        let (number, at) = locate(self.end.load(Ordering::Relaxed));
        match self.chunks.get(number) {
            Some(stored) if len <= stored.bytes.len() - at => (number, at, stored),
            Some(_) => (number + 1, 0, self.chunk(number + 1, len)),
            None => (number, at, self.chunk(number, len)),
        }
    }

    /// Returns the chunk, creating it with at least `len` bytes if needed. Only the writer calls this.
    fn chunk(&self, chunk: usize, len: usize) -> &Chunk {
        self.chunks.get_or_create(chunk, || {
            let len = len.max(usual_len(chunk));
            self.bytes.fetch_add(len, Ordering::Relaxed);
            let bytes = Box::<[UnsafeCell<u8>]>::new_zeroed_slice(len);
            // SAFETY: zero is a valid value of a byte.
            let bytes = unsafe { bytes.assume_init() };
            Chunk {
                bytes,
                #[cfg(loom)]
                accesses: (0..len).map(|_| AccessCheck::default()).collect(),
            }
        })
    }
}

impl Chunk {
    /// Returns bytes for a read or a write; only loom's checks need to know which.
    #[inline]
    fn range(&self, at: usize, len: usize, _writes: bool) -> &[UnsafeCell<u8>] {
        #[cfg(loom)]
        self.accesses[at..at + len].iter().for_each(|access| access.mark(_writes));
        &self.bytes[at..at + len]
    }
}

fn usual_len(chunk: usize) -> usize {
    FIRST << chunk.min(DOUBLINGS)
}

#[inline]
fn position(chunk: usize, at: usize) -> u64 {
    (chunk as u64) << 32 | at as u64
}

#[inline]
fn locate(position: u64) -> (usize, usize) {
    ((position >> 32) as usize, position as u32 as usize)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    #[should_panic(expected = "never pushed")]
    fn get_panics_on_bytes_that_were_not_pushed() {
        let arena = ByteArena::default();
        let position = arena.push(b"four");
        arena.get(position, 5);
    }

    #[test]
    fn a_large_run_starts_a_new_chunk() {
        let arena = ByteArena::default();
        let (small, next) = (arena.push(b"small"), arena.next_bytes());
        let large = arena.push(&[7; 600]);
        assert_eq!((locate(small), locate(large), next), ((0, 0), (1, 0), 128));
        assert_eq!((arena.get(small, 5), arena.get(large, 600)), (&b"small"[..], &[7; 600][..]));
        assert_eq!((arena.bytes(), arena.next_bytes()), (64 + 600, 256));
        assert_eq!(arena.get(arena.push(b""), 0), b"");
    }

    #[test]
    fn chunks_grow_to_their_bound() {
        let (arena, mut grown) = (ByteArena::default(), 0);
        for _ in 0..if cfg!(miri) { 30 } else { 3_000 } {
            let (before, next) = (arena.bytes(), arena.next_bytes());
            arena.push(&[1; 700]);
            grown = grown.max(arena.bytes() - before);
            assert!(arena.bytes() - before <= next.max(700));
        }
        assert!(grown <= CHUNK_BYTES_MAX + 64 * 32 && arena.next_bytes() >= 1024);
    }

    /// Runs per case. Generating bytes takes Miri longer than storing them.
    const RUNS: usize = if cfg!(miri) { 8 } else { 60 };

    proptest! {
        #![proptest_config(super::super::testing())]

        #[test]
        fn runs_never_change(runs in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..90), 0..RUNS)) {
            let arena = ByteArena::default();
            let lent: Vec<&[u8]> = runs.iter().map(|run| arena.get(arena.push(run), run.len())).collect();
            prop_assert_eq!(lent, runs);
        }
    }
}
