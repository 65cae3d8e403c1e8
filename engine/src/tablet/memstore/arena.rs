//! Arena: a list that only grows and whose elements never move.
//!
//! ```text
//!   chunks   0: 4 │ 1: 8 │ 2: 16 │ … │ n │ n │ n …      allocated with the first of their elements
//! ```
//!
//! Each chunk is twice as long as the previous one, up to [`CHUNK_BYTES_MAX`]. Small lists waste little. Large ones
//! grow in small steps, so the next allocation is known and small ([`Arena::next_bytes`]).
//!
//! Elements are default-constructed in advance, so `T` consists of atomics or cells that are set once. The writer fills
//! the next element and then increments the length. A reader that got an element's number through a store with release
//! order sees the element filled.

use std::sync::OnceLock;

use crate::sync::{AtomicUsize, Ordering};

/// Most bytes of a chunk, unless a single element is larger.
pub(crate) const CHUNK_BYTES_MAX: usize = 256 << 10;

/// Chunks that are found without another indirection.
const NEAR: usize = if cfg!(loom) { 2 } else { 8 };
/// Entries of the first block of the other chunks; each block has twice as many as the previous one.
const FAR_FIRST: usize = if cfg!(loom) { 2 } else { 32 };
/// Number of blocks: together they have entries for more chunks than 2^32 elements need.
const FAR: usize = 20;

type Block<C> = Box<[OnceLock<C>]>;

/// Directory of chunks by number; each is created once.
pub(crate) struct ChunkDirectory<C> {
    near: [OnceLock<C>; NEAR],
    far: OnceLock<Box<[OnceLock<Block<C>>; FAR]>>,
    /// Bytes of `far` and its blocks.
    bytes: AtomicUsize,
}

impl<C> Default for ChunkDirectory<C> {
    fn default() -> ChunkDirectory<C> {
        ChunkDirectory {
            near: std::array::from_fn(|_| OnceLock::new()),
            far: OnceLock::new(),
            bytes: AtomicUsize::new(0),
        }
    }
}

impl<C> ChunkDirectory<C> {
    #[inline]
    pub(crate) fn get(&self, chunk: usize) -> Option<&C> {
        match self.near.get(chunk) {
            Some(near) => near.get(),
            None => {
                let (block, at) = doubling::<FAR_FIRST>(chunk - NEAR);
                self.far.get()?[block].get()?[at].get()
            }
        }
    }

    /// Returns the chunk, creating it if needed. Only the writer calls this.
    pub(crate) fn get_or_create(&self, chunk: usize, create: impl FnOnce() -> C) -> &C {
        let slot = match self.near.get(chunk) {
            Some(near) => near,
            None => {
                let (block, at) = doubling::<FAR_FIRST>(chunk - NEAR);
                self.bytes.fetch_add(self.bytes_for(chunk), Ordering::Relaxed);
                let blocks = self.far.get_or_init(|| Box::new(std::array::from_fn(|_| OnceLock::new())));
                let create = || (0..FAR_FIRST << block).map(|_| OnceLock::new()).collect();
                let slots: &Block<C> = blocks[block].get_or_init(create);
                &slots[at]
            }
        };
        slot.get_or_init(create)
    }

    /// Returns the bytes allocated, without the chunks.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes that creating this chunk, the next one, allocates in addition to the chunk.
    pub(crate) fn bytes_for(&self, chunk: usize) -> usize {
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

/// A growing list of `T`s with one writer and any number of readers. The first chunk has `FIRST` elements, a power of
/// two.
pub(crate) struct Arena<T, const FIRST: usize = 4> {
    chunks: ChunkDirectory<Box<[T]>>,
    len: AtomicUsize,
    /// Elements that fit into the allocated chunks.
    capacity: AtomicUsize,
}

impl<T, const FIRST: usize> Default for Arena<T, FIRST> {
    fn default() -> Arena<T, FIRST> {
        Arena { chunks: ChunkDirectory::default(), len: AtomicUsize::new(0), capacity: AtomicUsize::new(0) }
    }
}

impl<T: Default, const FIRST: usize> Arena<T, FIRST> {
    /// Number of times that chunks double until they have the largest size.
    const DOUBLINGS: usize = match CHUNK_BYTES_MAX / (FIRST * size_of::<T>()) {
        _ if cfg!(loom) => 1,
        0 => 0,
        times => times.ilog2() as usize,
    };
    /// Elements of all chunks before the first of the largest size.
    const DOUBLED: usize = (FIRST << Self::DOUBLINGS) - FIRST;

    /// Appends an element that `fill` completes, and returns its number. Only the writer may call this: two calls at
    /// once would fill the same element.
    pub(crate) fn push(&self, fill: impl FnOnce(&T)) -> u32 {
        let index = self.len();
        let number = u32::try_from(index).expect("a store has fewer than 2^32 elements");
        let (chunk, at) = Self::locate(index);
        let elements = self.chunks.get_or_create(chunk, || {
            let elements: Box<[T]> = (0..Self::chunk_len(chunk)).map(|_| T::default()).collect();
            self.capacity.fetch_add(elements.len(), Ordering::Relaxed);
            elements
        });
        fill(&elements[at]);
        self.len.store(index + 1, Ordering::Release);
        number
    }

    /// Returns an element by the number that [`Arena::push`] returned.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> &T {
        let (chunk, at) = Self::locate(number as usize);
        &self.chunks.get(chunk).expect("the number is of an added element")[at]
    }

    /// Returns the number of complete elements.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Returns the bytes allocated, without those that elements own elsewhere.
    pub(crate) fn bytes(&self) -> usize {
        self.capacity.load(Ordering::Relaxed) * size_of::<T>() + self.chunks.bytes()
    }

    /// Returns the bytes of the next allocation.
    pub(crate) fn next_bytes(&self) -> usize {
        let (chunk, _) = Self::locate(self.capacity.load(Ordering::Relaxed));
        Self::chunk_len(chunk) * size_of::<T>() + self.chunks.bytes_for(chunk)
    }

    fn chunk_len(chunk: usize) -> usize {
        FIRST << chunk.min(Self::DOUBLINGS)
    }

    /// Returns the chunk of an element, and its index in the chunk.
    #[inline]
    fn locate(index: usize) -> (usize, usize) {
        match index.checked_sub(Self::DOUBLED) {
            None => doubling::<FIRST>(index),
            Some(rest) => {
                let len = FIRST << Self::DOUBLINGS;
                (Self::DOUBLINGS + rest / len, rest % len)
            }
        }
    }
}

/// Returns the part that has element `index`, and the index in it. The parts have `FIRST` elements, twice as many, four
/// times as many, and so on.
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
    fn elements_never_move() {
        let arena = Numbers::default();
        assert_eq!((arena.len(), arena.bytes()), (0, 0));
        let first = |arena: &Numbers| std::ptr::from_ref(arena.get(0));
        arena.push(|it| it.set(0).expect("the element is new"));
        let before = first(&arena);
        for i in 1..1000 {
            assert_eq!(arena.push(|it| it.set(i).expect("the element is new")), i as u32);
        }
        assert_eq!(first(&arena), before);
        assert!((0..1000).all(|i| arena.get(i).get() == Some(&(i as usize))));
        assert_eq!(arena.bytes(), (16 + 32 + 64 + 128 + 256 + 512) * size_of::<OnceLock<usize>>());
    }

    /// Pure arithmetic with many iterations: too slow for Miri, and useless there.
    #[cfg(not(miri))]
    #[test]
    fn locations_are_dense() {
        let mut expected = (0, 0);
        for index in 0..200_000 {
            assert_eq!(Numbers::locate(index), expected, "{index}");
            expected.1 += 1;
            if expected.1 == Numbers::chunk_len(expected.0) {
                expected = (expected.0 + 1, 0);
            }
        }
        assert!(expected.0 > 12, "the last chunks are of one size");
        let last = Arena::<[[u64; 16]; 2], 1>::locate(u32::MAX as usize).0;
        assert!(doubling::<FAR_FIRST>(last - NEAR).0 < FAR);
    }

    #[test]
    fn next_bytes_is_the_exact_growth() {
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
