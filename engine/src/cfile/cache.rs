//! Decoded pages retained in memory, shared by all tablets of a server.
//!
//! The budget is in bytes and split over shards, each a map and a clock (CLOCK replacement). A page that was used
//! since the hand last passed is spared once. Pages of a scan enter as already passed, so that one long scan does
//! not evict the key pages that writes need. The same calls in the same order retain the same pages.
//!
//! ```text
//!   0 ──── floor ─────────────── bound: the configured bytes, at most a quarter of the server's current limit
//!            │ shrinks for rows │ grows only without memory pressure
//! ```
//!
//! The floor is what key lookups need to stay affordable under memory pressure; it is never released.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::memory::{MemTracker, TrackedBytes};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

const SHARDS: usize = if cfg!(loom) { 1 } else { 16 };
/// Bytes that a cached page costs besides its own: slot, map entry, allocation.
const OVERHEAD: usize = 128;

/// A cached value: page, page index, dictionary or filter. The reader knows the type it stored.
pub type CachedValue = Arc<dyn Any + Send + Sync>;

type Key = (u64, u64);

/// Priority of a cached page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachePriority {
    /// Used repeatedly: keys, filters, indexes.
    Lookup,
    /// Read once by a scan.
    Scan,
}

/// Counters of a [`PageCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStats {
    pub hits: u64,
    pub misses: u64,
    pub evictions: u64,
    /// Bytes cached now.
    pub bytes: u64,
}

/// A cache of decoded pages.
pub struct PageCache {
    shards: Vec<Mutex<Shard>>,
    shard_bytes: usize,
    next_file: AtomicU64,
    held: TrackedBytes,
    /// Returns the bound on tracked and reserved bytes of the whole server up to which the cache may grow.
    soft_limit: Box<dyn Fn() -> u64 + Send + Sync>,
    limit: Option<Arc<MemTracker>>,
}

/// Divisor: the share of a server's memory that pages may take at most, and the share of that which is never released.
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
    page: CachedValue,
    bytes: usize,
    used: bool,
}

impl PageCache {
    /// Creates a cache of about `bytes` bytes of decoded pages. A page larger than a shard is not cached.
    pub fn new(bytes: usize) -> Arc<PageCache> {
        Arc::new(PageCache::with(bytes, TrackedBytes::default(), Box::new(|| u64::MAX), None))
    }

    /// Like [`PageCache::new`], tracked by `memory`. The cache grows only while the reserved bytes of the server stay
    /// below `soft_limit`.
    pub fn with_tracker(
        bytes: usize,
        memory: &Arc<MemTracker>,
        soft_limit: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Arc<PageCache> {
        Arc::new(PageCache::with(
            bytes,
            TrackedBytes::new(memory),
            Box::new(soft_limit),
            Some(memory.clone()),
        ))
    }

    fn with(
        bytes: usize,
        held: TrackedBytes,
        soft_limit: Box<dyn Fn() -> u64 + Send + Sync>,
        limit: Option<Arc<MemTracker>>,
    ) -> PageCache {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let (shard_bytes, next_file) = (bytes / SHARDS, AtomicU64::new(1));
        PageCache { shards, shard_bytes, next_file, held, soft_limit, limit }
    }

    /// Bytes that a shard may hold now.
    fn shard_bound(&self) -> usize {
        let limit = self.limit.as_ref().map_or(u64::MAX, |memory| memory.limit_bytes());
        let share = limit / SHARE / SHARDS as u64;
        self.shard_bytes.min(usize::try_from(share).unwrap_or(usize::MAX))
    }

    /// Bytes that the cache may hold now: fewer than it was created for if a quarter of the memory limit is less.
    pub fn capacity_bytes(&self) -> u64 {
        self.shard_bound() as u64 * SHARDS as u64
    }

    /// Evicts up to `bytes` bytes of pages, least used first, and what exceeds the bound. The caller is under memory
    /// pressure. The floor stays.
    pub fn release_pages(&self, bytes: u64) {
        let (bound, mut remaining) = (self.shard_bound(), bytes);
        for (i, shard) in self.shards.iter().enumerate() {
            let mut shard = shard.lock();
            let (before, left) = (shard.bytes, (SHARDS - i) as u64);
            let part = usize::try_from(remaining.div_ceil(left)).unwrap_or(usize::MAX);
            let most = before.saturating_sub(part).max(bound / SHARE as usize).min(bound);
            while shard.bytes > most {
                shard.evict_one();
            }
            let freed = (before - shard.bytes) as u64;
            self.held.sub(freed);
            remaining = remaining.saturating_sub(freed);
        }
    }

    /// Returns a new number for an opened file; numbers are never reused.
    pub fn name_file(&self) -> u64 {
        self.next_file.fetch_add(1, Ordering::Relaxed)
    }

    fn shard(&self, key: Key) -> MutexGuard<'_, Shard> {
        let mixed = (key.0 ^ key.1.rotate_left(20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let shard = &self.shards[(mixed >> 60) as usize % SHARDS];
        shard.lock()
    }

    /// Returns the page of `file` at `offset`, if it is cached.
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

    /// Caches a page of `bytes` bytes, evicting others as needed.
    pub fn put(&self, file: u64, offset: u64, page: CachedValue, bytes: usize, worth: CachePriority) {
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
            // Under memory pressure a page replaces others or is not cached.
            if shard.bytes == 0 {
                return;
            }
            let before = shard.bytes;
            shard.evict_one();
            self.held.sub((before - shard.bytes) as u64);
        }
        if bytes <= bound {
            shard.insert(Slot { key: (file, offset), page, bytes, used: worth == CachePriority::Lookup });
        }
    }

    /// Drops one page, if it is cached.
    pub fn forget_page(&self, file: u64, offset: u64) {
        let mut shard = self.shard((file, offset));
        let before = shard.bytes;
        shard.remove((file, offset));
        self.held.sub((before - shard.bytes) as u64);
    }

    /// Drops all pages of a closed file.
    pub fn forget_file(&self, file: u64) {
        for shard in &self.shards {
            let mut shard = shard.lock();
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
            let shard = shard.lock();
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

    /// Advances the hand to a page that was not used since it last passed, and evicts that page.
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
    fn the_budget_is_kept_and_used_pages_stay() {
        let cache = PageCache::new(SHARDS * 10 * (1000 + OVERHEAD));
        let hot = cache.name_file();
        cache.put(hot, 0, Arc::new(7u32), 1000, CachePriority::Lookup);
        for offset in 0..1000u64 {
            cache.put(99, offset, Arc::new(offset), 1000, CachePriority::Scan);
            assert_eq!(cache.get::<u32>(hot, 0).as_deref(), Some(&7));
        }
        let stats = cache.stats();
        assert!(stats.bytes <= (SHARDS * 10 * (1000 + OVERHEAD)) as u64);
        assert!(stats.evictions > 500);
        cache.forget_file(99);
        assert_eq!(cache.stats().bytes, (1000 + OVERHEAD) as u64);
    }

    #[test]
    fn the_cache_follows_the_memory_limit() {
        let limit = Arc::new(AtomicU64::new(64 << 20));
        let current = limit.clone();
        let root = MemTracker::root("server", Some(Arc::new(move || current.load(Ordering::Relaxed))));
        let (rows, below) = (TrackedBytes::new(&root.child("rows")), root.clone());
        let cache =
            PageCache::with_tracker(1 << 30, &root.child("cache"), move || below.limit_bytes() / 5 * 4);
        assert_eq!(cache.capacity_bytes(), 16 << 20, "a quarter of the memory limit");
        let fill = || {
            (0..100_000u64).for_each(|at| cache.put(1, at, Arc::new(at), 1000, CachePriority::Scan));
            cache.stats().bytes
        };
        let full = fill();
        assert_eq!(full, root.bytes());
        assert!((15 << 20..=16 << 20).contains(&full), "a quarter of the memory: {full}");
        rows.set(47 << 20, 0);
        cache.release_pages(11 << 20);
        let retained = cache.stats().bytes;
        assert!((4 << 20..=5 << 20).contains(&retained), "and a quarter of that stays: {retained}");
        assert!(fill() <= retained + 100_000, "it does not grow under memory pressure");
        limit.store(8 << 20, Ordering::Relaxed);
        cache.release_pages(0);
        assert!(cache.stats().bytes <= 2 << 20, "the limit was lowered");
        rows.set(0, 0);
        cache.forget_file(1);
        assert_eq!((cache.stats().bytes, root.bytes(), root.reserved_bytes()), (0, 0, 0));
    }

    #[test]
    fn a_page_larger_than_a_shard_is_not_cached() {
        let cache = PageCache::new(SHARDS * 100);
        cache.put(1, 0, Arc::new(0u8), 1000, CachePriority::Lookup);
        assert_eq!(cache.get::<u8>(1, 0), None);
        assert_eq!(cache.stats().bytes, 0);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use ::loom::thread;

    use super::*;

    /// Two threads cache and read pages while the budget fits two of four. No thread gets another's page, and the
    /// tracked bytes are those of the cached pages.
    #[test]
    fn loom_a_page_is_its_own_and_bytes_are_tracked() {
        ::loom::model(|| {
            let cache = PageCache::new(2 * (100 + OVERHEAD));
            let work = |cache: &PageCache, file: u64| {
                cache.put(file, 0, Arc::new(file), 100, CachePriority::Scan);
                cache.put(file, 1, Arc::new(file), 100, CachePriority::Lookup);
                assert!(cache.get::<u64>(file, 0).is_none_or(|page| *page == file));
            };
            let other = {
                let cache = cache.clone();
                thread::spawn(move || work(&cache, 2))
            };
            work(&cache, 1);
            other.join().expect("it does not panic");
            let cached = (1..=2).flat_map(|file| [(file, 0), (file, 1)]);
            let cached = cached.filter(|(file, at)| cache.get::<u64>(*file, *at).is_some()).count();
            let stats = cache.stats();
            assert_eq!(
                (stats.bytes, stats.evictions),
                ((cached * (100 + OVERHEAD)) as u64, 4 - cached as u64)
            );
            cache.forget_file(1);
            cache.forget_file(2);
            assert_eq!(cache.stats().bytes, 0);
        });
    }
}
