//! Decoded pages kept in memory, shared by all tablets of a server.
//!
//! The budget is in bytes and split over shards, each a map and a clock: a page that was used since the hand
//! last passed is spared once. Pages of a scan enter as already passed, so that one long scan does not push out
//! the key pages that writes live on. The same calls in the same order keep the same pages.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

const SHARDS: usize = 16;
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
}

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
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Arc::new(PageCache { shards, shard_bytes: bytes / SHARDS, next_file: AtomicU64::new(1) })
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
        let bytes = bytes + OVERHEAD;
        if bytes > self.shard_bytes {
            return;
        }
        let mut shard = self.shard((file, offset));
        shard.remove((file, offset));
        while shard.bytes + bytes > self.shard_bytes {
            shard.evict_one();
        }
        shard.insert(Slot { key: (file, offset), page, bytes, used: worth == Worth::Lookup });
    }

    /// Drops all pages of a file that is closed.
    pub fn forget_file(&self, file: u64) {
        for shard in &self.shards {
            let mut shard = shard.lock().expect("no shard's holder panics");
            let keys: Vec<Key> =
                shard.places.range((file, 0)..=(file, u64::MAX)).map(|(key, _)| *key).collect();
            keys.into_iter().for_each(|key| shard.remove(key));
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

#[cfg(test)]
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
    fn a_page_larger_than_a_shard_is_not_kept() {
        let cache = PageCache::new(SHARDS * 100);
        cache.put(1, 0, Arc::new(0u8), 1000, Worth::Lookup);
        assert_eq!(cache.get::<u8>(1, 0), None);
        assert_eq!(cache.stats().bytes, 0);
    }
}
