//! Runs of bytes kept one behind the other, where readers can borrow them.
//!
//! ```text
//!   chunk  │ run │ run │ run ┊ …        below `end`: written once, never again      above: the writer's alone
//!                            end
//! ```
//!
//! A run lies in one chunk; what is too small for it at a chunk's end is left out. A chunk is twice as large as the one
//! before, up to a bound, or as large as the run that it is made for. A position is the chunk's number and a place in
//! it, so that positions ascend whatever is left out.

use std::cell::UnsafeCell;

use super::arena::{CHUNK_BYTES_MAX, Directory};
use super::prefetch;
#[cfg(loom)]
use crate::sync::Access;
use crate::sync::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Bytes of the first chunk.
const FIRST: usize = if cfg!(loom) { 4 } else { 64 };
/// How often chunks double before they are as large as they may be.
const DOUBLINGS: usize = if cfg!(loom) { 1 } else { (CHUNK_BYTES_MAX / FIRST).ilog2() as usize };

/// Runs of bytes, with one writer and any number of readers.
pub struct ByteArena {
    chunks: Directory<Chunk>,
    /// The position below which all is complete.
    end: AtomicU64,
    /// Whether someone is within [`ByteArena::push`].
    writing: AtomicBool,
    bytes: AtomicUsize,
}

struct Chunk {
    bytes: Box<[UnsafeCell<u8>]>,
    /// One for each byte.
    #[cfg(loom)]
    accesses: Box<[Access]>,
}

// SAFETY: `ByteArena` lets threads write to and read from the same chunk, but never the same byte without order: bytes
// are written only in `push`, which one thread at a time is within, and only at or above `end`; they are lent out only
// below `end`, which moves over them, with release order, after they were written.
unsafe impl Sync for Chunk {}

impl Default for ByteArena {
    fn default() -> ByteArena {
        ByteArena {
            chunks: Directory::default(),
            end: AtomicU64::new(0),
            writing: AtomicBool::new(false),
            bytes: AtomicUsize::new(0),
        }
    }
}

impl ByteArena {
    /// Keeps a run and gives its position. Panics if two threads do so at once: there is one writer.
    pub fn push(&self, run: &[u8]) -> u64 {
        assert!(!self.writing.swap(true, Ordering::Acquire), "a store has one writer");
        let (number, at, kept) = self.room(run.len());
        let place = kept.range(at, run.len(), true).as_ptr();
        // SAFETY: `place` points at as many bytes as `run` has, in cells, so they may be written through a shared
        // reference. They lie at or above `end`, so nobody was lent any, and nobody else is writing: `writing` was ours
        // to set. `run` cannot overlap with what was never lent.
        unsafe { std::ptr::copy_nonoverlapping(run.as_ptr(), place.cast::<u8>().cast_mut(), run.len()) };
        let position = position(number, at);
        self.end.store(position + run.len() as u64, Ordering::Release);
        self.writing.store(false, Ordering::Release);
        position
    }

    /// The `len` bytes from `position` on. Panics unless they are within a chunk and were pushed.
    #[inline]
    pub fn get(&self, position: u64, len: usize) -> &[u8] {
        if len == 0 {
            return &[];
        }
        assert!(self.end.load(Ordering::Acquire) >= position + len as u64, "these bytes were never pushed");
        let (chunk, at) = place(position);
        let kept = self.chunks.get(chunk).expect("these bytes were never pushed");
        let run = kept.range(at, len, false);
        // SAFETY: `run` is within one allocation, of bytes that have a value since it was made. They lie below `end`,
        // and its load with acquire order puts their last write before this; no `push` writes below `end`. They live
        // as long as the arena, which drops no chunk.
        unsafe { std::slice::from_raw_parts(run.as_ptr().cast::<u8>(), len) }
    }

    /// The byte at this position is read soon.
    #[inline]
    pub fn prefetch(&self, position: u64) {
        let (chunk, at) = place(position);
        if let Some(byte) = self.chunks.get(chunk).and_then(|kept| kept.bytes.get(at)) {
            prefetch(byte);
        }
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed) + self.chunks.bytes()
    }

    /// Bytes that are allocated next, but for a run that is longer.
    pub fn next_bytes(&self) -> usize {
        let (chunk, at) = place(self.end.load(Ordering::Relaxed));
        let next = if at == 0 && self.chunks.get(chunk).is_none() { chunk } else { chunk + 1 };
        usual_len(next) + self.chunks.bytes_for(next)
    }

    /// For the writer: where a run fits next, in the chunk of `end` or the one after it.
    #[inline]
    fn room(&self, len: usize) -> (usize, usize, &Chunk) {
        let (number, at) = place(self.end.load(Ordering::Relaxed));
        match self.chunks.get(number) {
            Some(kept) if len <= kept.bytes.len() - at => (number, at, kept),
            Some(_) => (number + 1, 0, self.chunk(number + 1, len)),
            None => (number, at, self.chunk(number, len)),
        }
    }

    /// For the writer: the chunk, made now if it is not there, with room for `len` bytes.
    fn chunk(&self, chunk: usize, len: usize) -> &Chunk {
        self.chunks.get_or_make(chunk, || {
            let len = len.max(usual_len(chunk));
            self.bytes.fetch_add(len, Ordering::Relaxed);
            let bytes = Box::<[UnsafeCell<u8>]>::new_zeroed_slice(len);
            // SAFETY: bytes of zero are bytes.
            let bytes = unsafe { bytes.assume_init() };
            Chunk {
                bytes,
                #[cfg(loom)]
                accesses: (0..len).map(|_| Access::default()).collect(),
            }
        })
    }
}

impl Chunk {
    /// Bytes to be read, or written. Only loom wants to know which.
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
fn place(position: u64) -> (usize, usize) {
    ((position >> 32) as usize, position as u32 as usize)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    #[should_panic(expected = "never pushed")]
    fn bytes_that_were_not_pushed_are_not_lent() {
        let arena = ByteArena::default();
        let position = arena.push(b"four");
        arena.get(position, 5);
    }

    #[test]
    fn a_large_run_leaves_out_what_is_too_small() {
        let arena = ByteArena::default();
        let (small, next) = (arena.push(b"small"), arena.next_bytes());
        let large = arena.push(&[7; 600]);
        assert_eq!((place(small), place(large), next), ((0, 0), (1, 0), 128));
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

    /// Making up bytes takes Miri longer than keeping them.
    const RUNS: usize = if cfg!(miri) { 8 } else { 60 };

    proptest! {
        #![proptest_config(super::super::testing())]

        #[test]
        fn runs_stay_what_they_were(runs in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..90), 0..RUNS)) {
            let arena = ByteArena::default();
            let lent: Vec<&[u8]> = runs.iter().map(|run| arena.get(arena.push(run), run.len())).collect();
            prop_assert_eq!(lent, runs);
        }
    }
}
