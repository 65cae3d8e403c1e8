//! A list that only grows and whose elements never move.
//!
//! ```text
//!   chunks   0: 4 │ 1: 8 │ 2: 16 │ … │ n │ n │ n …      allocated when the first of its elements is
//! ```
//!
//! Each chunk is twice the one before, up to [`CHUNK_BYTES_MAX`]: small lists waste little, and large ones grow by
//! little at a time, so that what a list may take next is known and small ([`Arena::next_bytes`]).
//!
//! Elements are made in advance, so `T` is of atomics or cells that are set once: the writer fills the next one and
//! then counts it. A reader that was told an element's number by a store with release order sees it filled.

use std::sync::OnceLock;

use crate::sync::{AtomicUsize, Ordering};

/// No chunk is larger than this, but for a single element that is.
pub const CHUNK_BYTES_MAX: usize = 256 << 10;

/// Chunks that are found without a detour.
const NEAR: usize = if cfg!(loom) { 2 } else { 8 };
/// Places of the first block of the others; each block has twice as many as the one before.
const FAR_FIRST: usize = if cfg!(loom) { 2 } else { 32 };
/// All blocks together have places for more chunks than 2^32 elements need.
const FAR: usize = 20;

type Block<C> = Box<[OnceLock<C>]>;

/// Chunks by number, each made once.
pub struct Directory<C> {
    near: [OnceLock<C>; NEAR],
    far: OnceLock<Box<[OnceLock<Block<C>>; FAR]>>,
    /// Bytes of `far` and its blocks.
    bytes: AtomicUsize,
}

impl<C> Default for Directory<C> {
    fn default() -> Directory<C> {
        Directory {
            near: std::array::from_fn(|_| OnceLock::new()),
            far: OnceLock::new(),
            bytes: AtomicUsize::new(0),
        }
    }
}

impl<C> Directory<C> {
    #[inline]
    pub fn get(&self, chunk: usize) -> Option<&C> {
        match self.near.get(chunk) {
            Some(near) => near.get(),
            None => {
                let (block, at) = doubling::<FAR_FIRST>(chunk - NEAR);
                self.far.get()?[block].get()?[at].get()
            }
        }
    }

    /// The chunk, made now if it is not there. For the one writer.
    pub fn get_or_make(&self, chunk: usize, make: impl FnOnce() -> C) -> &C {
        let place = match self.near.get(chunk) {
            Some(near) => near,
            None => {
                let (block, at) = doubling::<FAR_FIRST>(chunk - NEAR);
                self.bytes.fetch_add(self.bytes_for(chunk), Ordering::Relaxed);
                let blocks = self.far.get_or_init(|| Box::new(std::array::from_fn(|_| OnceLock::new())));
                let make = || (0..FAR_FIRST << block).map(|_| OnceLock::new()).collect();
                let places: &Block<C> = blocks[block].get_or_init(make);
                &places[at]
            }
        };
        place.get_or_init(make)
    }

    /// Bytes allocated, besides the chunks.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes that making this chunk, the next one, takes besides the chunk.
    pub fn bytes_for(&self, chunk: usize) -> usize {
        let Some(far) = chunk.checked_sub(NEAR) else { return 0 };
        let (block, _) = doubling::<FAR_FIRST>(far);
        let of_block = (FAR_FIRST << block) * size_of::<OnceLock<C>>();
        match self.far.get() {
            None => size_of::<[OnceLock<Block<C>>; FAR]>() + of_block,
            Some(blocks) if blocks[block].get().is_none() => of_block,
            Some(_) => 0,
        }
    }
}

/// A growing list of `T`s with one writer and any number of readers; the first chunk has `FIRST` elements, a power of
/// two.
pub struct Arena<T, const FIRST: usize = 4> {
    chunks: Directory<Box<[T]>>,
    len: AtomicUsize,
    /// Elements there is room for.
    capacity: AtomicUsize,
}

impl<T, const FIRST: usize> Default for Arena<T, FIRST> {
    fn default() -> Arena<T, FIRST> {
        Arena { chunks: Directory::default(), len: AtomicUsize::new(0), capacity: AtomicUsize::new(0) }
    }
}

impl<T: Default, const FIRST: usize> Arena<T, FIRST> {
    /// How often chunks double before they are as large as they may be.
    const DOUBLINGS: usize = match CHUNK_BYTES_MAX / (FIRST * size_of::<T>()) {
        _ if cfg!(loom) => 1,
        0 => 0,
        times => times.ilog2() as usize,
    };
    /// Elements of all chunks before the first of the largest.
    const DOUBLED: usize = (FIRST << Self::DOUBLINGS) - FIRST;

    /// Adds an element that `fill` completes, and gives its number. For the one writer: two at once would fill
    /// the same element.
    pub fn push(&self, fill: impl FnOnce(&T)) -> u32 {
        let index = self.len();
        let number =
            u32::try_from(index).expect("2^32 elements of a store take more memory than a store may");
        let (chunk, at) = Self::place(index);
        let elements = self.chunks.get_or_make(chunk, || {
            let elements: Box<[T]> = (0..Self::chunk_len(chunk)).map(|_| T::default()).collect();
            self.capacity.fetch_add(elements.len(), Ordering::Relaxed);
            elements
        });
        fill(&elements[at]);
        self.len.store(index + 1, Ordering::Release);
        number
    }

    /// An element by the number that [`Arena::push`] gave it.
    #[inline]
    pub fn get(&self, number: u32) -> &T {
        let (chunk, at) = Self::place(number as usize);
        &self.chunks.get(chunk).expect("numbers are of elements that were added")[at]
    }

    /// How many were added, all of them complete.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Bytes allocated, besides what elements own elsewhere.
    pub fn bytes(&self) -> usize {
        self.capacity.load(Ordering::Relaxed) * size_of::<T>() + self.chunks.bytes()
    }

    /// Bytes that are allocated next.
    pub fn next_bytes(&self) -> usize {
        let (chunk, _) = Self::place(self.capacity.load(Ordering::Relaxed));
        Self::chunk_len(chunk) * size_of::<T>() + self.chunks.bytes_for(chunk)
    }

    fn chunk_len(chunk: usize) -> usize {
        FIRST << chunk.min(Self::DOUBLINGS)
    }

    /// The chunk of an element, and its place in it.
    #[inline]
    fn place(index: usize) -> (usize, usize) {
        match index.checked_sub(Self::DOUBLED) {
            None => doubling::<FIRST>(index),
            Some(rest) => {
                let len = FIRST << Self::DOUBLINGS;
                (Self::DOUBLINGS + rest / len, rest % len)
            }
        }
    }
}

/// Which of parts that have `FIRST` elements, twice as many, four times … has element `index`, and where.
#[inline]
fn doubling<const FIRST: usize>(index: usize) -> (usize, usize) {
    let part = ((index + FIRST) / FIRST).ilog2() as usize;
    (part, index + FIRST - (FIRST << part))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    type Numbers = Arena<OnceLock<usize>, 16>;

    #[test]
    fn elements_stay_where_they_are() {
        let arena = Numbers::default();
        assert_eq!((arena.len(), arena.bytes()), (0, 0));
        let first = |arena: &Numbers| std::ptr::from_ref(arena.get(0));
        arena.push(|it| it.set(0).expect("it is new"));
        let before = first(&arena);
        for i in 1..1000 {
            assert_eq!(arena.push(|it| it.set(i).expect("it is new")), i as u32);
        }
        assert_eq!(first(&arena), before);
        assert!((0..1000).all(|i| arena.get(i).get() == Some(&(i as usize))));
        assert_eq!(arena.bytes(), (16 + 32 + 64 + 128 + 256 + 512) * size_of::<OnceLock<usize>>());
    }

    /// Arithmetic alone, and much of it: nothing for Miri.
    #[cfg(not(miri))]
    #[test]
    fn places_are_dense() {
        let mut expected = (0, 0);
        for index in 0..200_000 {
            assert_eq!(Numbers::place(index), expected, "{index}");
            expected.1 += 1;
            if expected.1 == Numbers::chunk_len(expected.0) {
                expected = (expected.0 + 1, 0);
            }
        }
        assert!(expected.0 > 12, "the last chunks are of one size");
        let last = Arena::<[[u64; 16]; 2], 1>::place(u32::MAX as usize).0;
        assert!(doubling::<FAR_FIRST>(last - NEAR).0 < FAR);
    }

    #[test]
    fn growth_is_announced_to_the_byte() {
        let arena = Arena::<OnceLock<[u64; 31]>, 1>::default();
        let (mut bytes, mut next, mut most) = (arena.bytes(), arena.next_bytes(), 0);
        for _ in 0..if cfg!(miri) { 3_000 } else { 50_000 } {
            arena.push(|_| {});
            if arena.bytes() != bytes {
                assert_eq!(arena.bytes(), bytes + next);
                most = most.max(next);
            }
            (bytes, next) = (arena.bytes(), arena.next_bytes());
        }
        assert!(most > CHUNK_BYTES_MAX / 2 && most <= CHUNK_BYTES_MAX + CHUNK_BYTES_MAX / 8, "{most}");
    }
}
