//! Decoded pages kept in memory, shared by all tablets of a server.
//!
//! The budget is in bytes and split over shards, each a map and a clock: a page that was used since the hand
//! last passed is spared once. Pages of a scan enter as already passed, so that one long scan does not push out
//! the key pages that writes live on. The same calls in the same order keep the same pages.
//!
//! ```text
//!   0 ──── floor ─────────────── bound: what was set, at most a quarter of the server's memory as it is now
//!            │ gives way to rows │ grows only while memory is not short
//! ```
//!
//! The floor is what keys are looked up with at a bearable cost when memory is short: it stays.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::memory::{Held, MemTracker};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

const SHARDS: usize = if cfg!(loom) { 1 } else { 16 };
/// Bytes a cached page costs besides itself: slot, map entry, allocation.
const OVERHEAD: usize = 128;

/// What is kept: pages, page indexes, dictionaries, filters. The reader knows which it put where.
pub type Cached = Arc<dyn Any + Send + Sync>;

type Key = (u64, u64);

/// How much a page is worth keeping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worth {
    /// Looked up again and again: keys, filters, indexes.
    Lookup,
    /// Read in passing.
    Scan,
}

/// Counters of a [`PageCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStats {
    pub hits: u64,
    pub misses: u64,
    pub evictions: u64,
    /// Bytes held now.
    pub bytes: u64,
}

/// A cache of decoded pages.
pub struct PageCache {
    shards: Vec<Mutex<Shard>>,
    shard_bytes: usize,
    next_file: AtomicU64,
    held: Held,
    /// What is held and promised on the whole server while pages may become more.
    soft_limit: Box<dyn Fn() -> u64 + Send + Sync>,
    limit: Option<Arc<MemTracker>>,
}

/// The share of a server's memory that pages may take at most, and the share of that which they keep.
const SHARE: u64 = 4;

#[derive(Default)]
struct Shard {
    places: BTreeMap<Key, usize>,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    hand: usize,
    bytes: usize,
    hits: u64,
    misses: u64,
    evictions: u64,
}

struct Slot {
    key: Key,
    page: Cached,
    bytes: usize,
    used: bool,
}

impl PageCache {
    /// A cache that holds about `bytes` bytes of decoded pages; pages larger than a shard are not kept.
    pub fn new(bytes: usize) -> Arc<PageCache> {
        Arc::new(PageCache::with(bytes, Held::default(), Box::new(|| u64::MAX), None))
    }

    /// The same, within the memory that `memory` counts: pages become more only while what is spoken for stays below
    /// `soft_limit`.
    pub fn within(
        bytes: usize,
        memory: &Arc<MemTracker>,
        soft_limit: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Arc<PageCache> {
        Arc::new(PageCache::with(bytes, Held::new(memory), Box::new(soft_limit), Some(memory.clone())))
    }

    fn with(
        bytes: usize,
        held: Held,
        soft_limit: Box<dyn Fn() -> u64 + Send + Sync>,
        limit: Option<Arc<MemTracker>>,
    ) -> PageCache {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let (shard_bytes, next_file) = (bytes / SHARDS, AtomicU64::new(1));
        PageCache { shards, shard_bytes, next_file, held, soft_limit, limit }
    }

    /// Bytes that a shard may have now.
    fn shard_bound(&self) -> usize {
        let limit = self.limit.as_ref().map_or(u64::MAX, |memory| memory.limit_bytes());
        let share = limit / SHARE / SHARDS as u64;
        self.shard_bytes.min(usize::try_from(share).unwrap_or(usize::MAX))
    }

    /// Lets go of up to `bytes` bytes of pages, least used first, and of what is beyond the bound: memory is short.
    /// What keys cannot do without stays.
    pub fn give_back(&self, bytes: u64) {
        let (bound, mut wanted) = (self.shard_bound(), bytes);
        for (i, shard) in self.shards.iter().enumerate() {
            let mut shard = shard.lock().expect("no shard's holder panics");
            let (before, left) = (shard.bytes, (SHARDS - i) as u64);
            let part = usize::try_from(wanted.div_ceil(left)).unwrap_or(usize::MAX);
            let most = before.saturating_sub(part).max(bound / SHARE as usize).min(bound);
            while shard.bytes > most {
                shard.evict_one();
            }
            let less = (before - shard.bytes) as u64;
            self.held.sub(less);
            wanted = wanted.saturating_sub(less);
        }
    }

    /// A number for a newly opened file, never given before.
    pub fn name_file(&self) -> u64 {
        self.next_file.fetch_add(1, Ordering::Relaxed)
    }

    fn shard(&self, key: Key) -> MutexGuard<'_, Shard> {
        let mixed = (key.0 ^ key.1.rotate_left(20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let shard = &self.shards[(mixed >> 60) as usize % SHARDS];
        shard.lock().expect("no shard's holder panics")
    }

    /// The page of `file` at `offset`, if it is kept.
    pub fn get<T: Any + Send + Sync>(&self, file: u64, offset: u64) -> Option<Arc<T>> {
        let mut shard = self.shard((file, offset));
        let Some(at) = shard.places.get(&(file, offset)).copied() else {
            shard.misses += 1;
            return None;
        };
        shard.hits += 1;
        let slot = shard.slots[at].as_mut().expect("the map names filled slots");
        slot.used = true;
        slot.page.clone().downcast().ok()
    }

    /// Keeps a page of `bytes` bytes, dropping others as needed.
    pub fn put(&self, file: u64, offset: u64, page: Cached, bytes: usize, worth: Worth) {
        let (bytes, bound) = (bytes + OVERHEAD, self.shard_bound());
        let mut shard = self.shard((file, offset));
        let before = shard.bytes;
        shard.remove((file, offset));
        if bytes <= bound {
            while shard.bytes + bytes > bound {
                shard.evict_one();
            }
        }
        self.held.sub((before - shard.bytes) as u64);
        while bytes <= bound && !self.held.try_add(bytes as u64, (self.soft_limit)()) {
            // Memory is short: a page comes in the place of others, or not at all.
            if shard.bytes == 0 {
                return;
            }
            let before = shard.bytes;
            shard.evict_one();
            self.held.sub((before - shard.bytes) as u64);
        }
        if bytes <= bound {
            shard.insert(Slot { key: (file, offset), page, bytes, used: worth == Worth::Lookup });
        }
    }

    /// Drops one page, if it is kept.
    pub fn forget_page(&self, file: u64, offset: u64) {
        let mut shard = self.shard((file, offset));
        let before = shard.bytes;
        shard.remove((file, offset));
        self.held.sub((before - shard.bytes) as u64);
    }

    /// Drops all pages of a file that is closed.
    pub fn forget_file(&self, file: u64) {
        for shard in &self.shards {
            let mut shard = shard.lock().expect("no shard's holder panics");
            let keys: Vec<Key> =
                shard.places.range((file, 0)..=(file, u64::MAX)).map(|(key, _)| *key).collect();
            let before = shard.bytes;
            keys.into_iter().for_each(|key| shard.remove(key));
            self.held.sub((before - shard.bytes) as u64);
        }
    }

    pub fn stats(&self) -> CacheStats {
        let mut sum = CacheStats::default();
        for shard in &self.shards {
            let shard = shard.lock().expect("no shard's holder panics");
            sum.hits += shard.hits;
            sum.misses += shard.misses;
            sum.evictions += shard.evictions;
            sum.bytes += shard.bytes as u64;
        }
        sum
    }
}

impl Shard {
    fn insert(&mut self, slot: Slot) {
        self.bytes += slot.bytes;
        let key = slot.key;
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[at] = Some(slot);
        self.places.insert(key, at);
    }

    fn remove(&mut self, key: Key) {
        if let Some(at) = self.places.remove(&key) {
            let slot = self.slots[at].take().expect("the map names filled slots");
            self.bytes -= slot.bytes;
            self.free.push(at);
        }
    }

    /// Moves the hand on to a page that was not used since it last passed, and drops that.
    fn evict_one(&mut self) {
        loop {
            self.hand = (self.hand + 1) % self.slots.len();
            match &mut self.slots[self.hand] {
                Some(slot) if slot.used => slot.used = false,
                Some(slot) => {
                    let key = slot.key;
                    self.remove(key);
                    self.evictions += 1;
                    return;
                }
                None => {}
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_budget_holds_and_used_pages_stay() {
        let cache = PageCache::new(SHARDS * 10 * (1000 + OVERHEAD));
        let hot = cache.name_file();
        cache.put(hot, 0, Arc::new(7u32), 1000, Worth::Lookup);
        for offset in 0..1000u64 {
            cache.put(99, offset, Arc::new(offset), 1000, Worth::Scan);
            assert_eq!(cache.get::<u32>(hot, 0).as_deref(), Some(&7));
        }
        let stats = cache.stats();
        assert!(stats.bytes <= (SHARDS * 10 * (1000 + OVERHEAD)) as u64);
        assert!(stats.evictions > 500);
        cache.forget_file(99);
        assert_eq!(cache.stats().bytes, (1000 + OVERHEAD) as u64);
    }

    #[test]
    fn pages_follow_the_memory_there_is() {
        let limit = Arc::new(AtomicU64::new(64 << 20));
        let asked = limit.clone();
        let root = MemTracker::root("server", Some(Arc::new(move || asked.load(Ordering::Relaxed))));
        let (rows, below) = (Held::new(&root.child("rows")), root.clone());
        let cache = PageCache::within(1 << 30, &root.child("cache"), move || below.limit_bytes() / 5 * 4);
        let fill = || {
            (0..100_000u64).for_each(|at| cache.put(1, at, Arc::new(at), 1000, Worth::Scan));
            cache.stats().bytes
        };
        let full = fill();
        assert_eq!(full, root.bytes());
        assert!((15 << 20..=16 << 20).contains(&full), "a quarter of the memory: {full}");
        rows.set(47 << 20, 0);
        cache.give_back(11 << 20);
        let kept = cache.stats().bytes;
        assert!((4 << 20..=5 << 20).contains(&kept), "and a quarter of that stays: {kept}");
        assert!(fill() <= kept + 100_000, "it does not grow while memory is short");
        limit.store(8 << 20, Ordering::Relaxed);
        cache.give_back(0);
        assert!(cache.stats().bytes <= 2 << 20, "memory became less");
        rows.set(0, 0);
        cache.forget_file(1);
        assert_eq!((cache.stats().bytes, root.bytes(), root.spoken_for()), (0, 0, 0));
    }

    #[test]
    fn a_page_larger_than_a_shard_is_not_kept() {
        let cache = PageCache::new(SHARDS * 100);
        cache.put(1, 0, Arc::new(0u8), 1000, Worth::Lookup);
        assert_eq!(cache.get::<u8>(1, 0), None);
        assert_eq!(cache.stats().bytes, 0);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use ::loom::thread;

    use super::*;

    /// Two threads bring pages, a third part of which has room, and read them: nobody gets another's page, and what is
    /// counted is what is kept.
    #[test]
    fn loom_a_page_is_its_own_and_bytes_are_counted() {
        ::loom::model(|| {
            let cache = PageCache::new(2 * (100 + OVERHEAD));
            let work = |cache: &PageCache, file: u64| {
                cache.put(file, 0, Arc::new(file), 100, Worth::Scan);
                cache.put(file, 1, Arc::new(file), 100, Worth::Lookup);
                assert!(cache.get::<u64>(file, 0).is_none_or(|page| *page == file));
            };
            let other = {
                let cache = cache.clone();
                thread::spawn(move || work(&cache, 2))
            };
            work(&cache, 1);
            other.join().expect("it does not panic");
            let kept = (1..=2).flat_map(|file| [(file, 0), (file, 1)]);
            let kept = kept.filter(|(file, at)| cache.get::<u64>(*file, *at).is_some()).count();
            let stats = cache.stats();
            assert_eq!((stats.bytes, stats.evictions), ((kept * (100 + OVERHEAD)) as u64, 4 - kept as u64));
            cache.forget_file(1);
            cache.forget_file(2);
            assert_eq!(cache.stats().bytes, 0);
        });
    }
}
