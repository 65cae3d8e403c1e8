//! Location cache: tablet locations returned by the masters, kept until they expire.
//!
//! ```text
//! partition keys  ├──── tablet ────┤├─ gap ─┤├── tablet ──┤ ? ? ?
//! ```
//!
//! A gap between two tablets of one response is covered by no tablet: rows there belong to no partition. Another client
//! may add a range there, so gaps are dropped whenever the table is opened.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use engine::schema::partition::Partition;
use engine::time::Instant;

/// Location of one replica of a tablet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaLocation {
    pub server_id: String,
    /// RPC address of the server, `host:port`.
    pub address: String,
    /// True if the replica is the leader.
    pub leader: bool,
}

/// Location of a tablet, as last reported by the masters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TabletLocation {
    pub id: String,
    pub partition: Partition,
    pub replicas: Vec<ReplicaLocation>,
}

impl TabletLocation {
    /// Returns true if the tablet has keys of this partition.
    pub(crate) fn overlaps(&self, other: &Partition) -> bool {
        before(&self.partition.start, &other.end) && before(&other.start, &self.partition.end)
    }
}

/// Result of a lookup by partition key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LocationLookup {
    /// The tablet that holds the key.
    Tablet(Arc<TabletLocation>),
    /// No tablet holds the key. The gap ends at `end` (exclusive; empty: unbounded).
    Gap { end: Vec<u8> },
    /// The cache has no entry for the key.
    Unknown,
}

#[derive(Debug, Clone)]
struct Entry {
    /// End of the key range, exclusive; empty: unbounded.
    end: Vec<u8>,
    tablet: Option<Arc<TabletLocation>>,
    expires: Instant,
}

/// Counts of the drops of a cache's entries: what was dropped must not return with a response to an earlier request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CacheGeneration {
    /// Drops of all entries.
    all: u64,
    /// Drops of the gaps.
    gaps: u64,
}

/// Cached tablets and gaps of one table, by first partition key. Invariant: entries do not overlap.
#[derive(Debug, Default)]
pub(crate) struct LocationCache {
    entries: BTreeMap<Vec<u8>, Entry>,
    generation: CacheGeneration,
    /// Time of the last response, cached or not.
    looked_up: Option<Instant>,
}

fn before(key: &[u8], end: &[u8]) -> bool {
    end.is_empty() || key < end
}

impl LocationCache {
    /// Looks up a partition key.
    pub(crate) fn get(&self, key: &[u8], now: Instant) -> LocationLookup {
        let entry = self.entries.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back();
        match entry {
            Some((_, entry)) if before(key, &entry.end) && now < entry.expires => match &entry.tablet {
                Some(tablet) => LocationLookup::Tablet(tablet.clone()),
                None => LocationLookup::Gap { end: entry.end.clone() },
            },
            _ => LocationLookup::Unknown,
        }
    }

    /// Caches a response, as [`LocationCache::learn`] does, to a request that was sent in the generation `asked`.
    pub(crate) fn learn_response(
        &mut self,
        asked: CacheGeneration,
        from: &[u8],
        tablets: Vec<TabletLocation>,
        complete: bool,
        expires: Instant,
    ) {
        if asked.all != self.generation.all {
            return;
        }
        self.learn(from, tablets, complete, expires);
        if asked.gaps != self.generation.gaps {
            self.drop_gaps();
        }
    }

    /// Caches a response that lists the tablets from the key `from` on. `complete` is true if no tablet follows.
    pub(crate) fn learn(
        &mut self,
        from: &[u8],
        mut tablets: Vec<TabletLocation>,
        complete: bool,
        expires: Instant,
    ) {
        tablets.sort_by(|a, b| a.partition.start.cmp(&b.partition.start));
        let mut at = Some(from.to_vec());
        for tablet in tablets {
            let (start, end) = (tablet.partition.start.clone(), tablet.partition.end.clone());
            if let Some(at) = at.filter(|at| *at < start) {
                self.put(at, Entry { end: start.clone(), tablet: None, expires });
            }
            at = (!end.is_empty()).then(|| end.clone());
            self.put(start, Entry { end, tablet: Some(Arc::new(tablet)), expires });
        }
        if let Some(at) = at.filter(|_| complete) {
            self.put(at, Entry { end: Vec::new(), tablet: None, expires });
        }
    }

    fn put(&mut self, start: Vec<u8>, entry: Entry) {
        // Entries do not overlap, so only the last one before `start` can overlap the new one.
        let reaches = |(at, old): (&Vec<u8>, &Entry)| before(&start, &old.end).then(|| at.clone());
        let first = self.entries.range::<Vec<u8>, _>(..&start).next_back().and_then(reaches);
        let within = self.entries.range(start.clone()..).take_while(|(at, _)| before(at, &entry.end));
        let overlapping: Vec<Vec<u8>> = first.into_iter().chain(within.map(|(at, _)| at.clone())).collect();
        for at in overlapping {
            self.entries.remove(&at);
        }
        self.entries.insert(start, entry);
    }

    /// Drops a tablet whose location proved wrong.
    pub(crate) fn forget(&mut self, tablet_id: &str) {
        self.entries.retain(|_, entry| entry.tablet.as_ref().is_none_or(|tablet| tablet.id != tablet_id));
    }

    /// Drops all entries, after ranges were added or dropped. A dropped tablet may serve for a while. Rows written to
    /// it would be lost with it, even if the range has been added again.
    pub(crate) fn forget_all(&mut self) {
        self.entries.clear();
        self.generation.all += 1;
    }

    /// Drops all gaps: another client may have added ranges there.
    pub(crate) fn forget_gaps(&mut self) {
        self.drop_gaps();
        self.generation.gaps += 1;
    }

    fn drop_gaps(&mut self) {
        self.entries.retain(|_, entry| entry.tablet.is_some());
    }

    /// Returns the current generation, for [`LocationCache::learn_response`].
    pub(crate) fn generation(&self) -> CacheGeneration {
        self.generation
    }

    /// Records that a response arrived at `now`.
    pub(crate) fn note_lookup(&mut self, now: Instant) {
        self.looked_up = self.looked_up.max(Some(now));
    }

    /// Returns the time of the last response; `None` if there was none.
    pub(crate) fn looked_up(&self) -> Option<Instant> {
        self.looked_up
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tablet(id: &str, start: &str, end: &str) -> TabletLocation {
        let (start, end) = (start.as_bytes().to_vec(), end.as_bytes().to_vec());
        let partition = Partition { hash_buckets: vec![], start, end };
        TabletLocation { id: id.to_string(), partition, replicas: vec![] }
    }

    fn show(cache: &LocationCache, key: &str, now: u64) -> String {
        match cache.get(key.as_bytes(), Instant(now)) {
            LocationLookup::Tablet(tablet) => tablet.id.clone(),
            LocationLookup::Gap { end } => format!("gap to {:?}", String::from_utf8_lossy(&end)),
            LocationLookup::Unknown => "?".to_string(),
        }
    }

    #[test]
    fn gaps_are_cached_until_they_expire() {
        let mut cache = LocationCache::default();
        cache.learn(b"a", vec![tablet("T2", "m", "p"), tablet("T1", "b", "f")], true, Instant(10));
        let keys = ["", "a", "b", "f", "m", "p", "z"];
        let known: Vec<String> = keys.iter().map(|key| show(&cache, key, 9)).collect();
        assert_eq!(known, ["?", "gap to \"b\"", "T1", "gap to \"m\"", "T2", "gap to \"\"", "gap to \"\""]);
        assert!(keys.iter().all(|key| show(&cache, key, 10) == "?"));
        cache.forget("T1");
        assert_eq!((show(&cache, "b", 9), show(&cache, "m", 9)), ("?".to_string(), "T2".to_string()));
        cache.learn(b"m", vec![tablet("T3", "m", "")], false, Instant(20));
        assert_eq!(show(&cache, "zzz", 19), "T3");
        cache.forget_all();
        assert_eq!(show(&cache, "zzz", 19), "?");
    }

    #[test]
    fn dropped_entries_do_not_return_with_late_responses() {
        let mut cache = LocationCache::default();
        let known = |cache: &LocationCache| ["a", "b", "m", "p"].map(|key| show(cache, key, 9)).join(", ");
        let response = || vec![tablet("T1", "b", "f"), tablet("T2", "m", "p")];
        let first = cache.generation();
        cache.learn_response(first, b"", response(), true, Instant(10));
        assert_eq!(known(&cache), "gap to \"b\", T1, T2, gap to \"\"");
        cache.forget_gaps();
        assert_eq!(known(&cache), "?, T1, T2, ?");
        // Its tablets are taken, and T1 is gone.
        cache.learn_response(first, b"", vec![tablet("T2", "m", "p")], true, Instant(10));
        assert_eq!(known(&cache), "?, ?, T2, ?");
        let second = cache.generation();
        cache.learn_response(second, b"", response(), true, Instant(10));
        assert_eq!(known(&cache), "gap to \"b\", T1, T2, gap to \"\"");
        cache.forget_all();
        cache.learn_response(second, b"", response(), true, Instant(10));
        assert_eq!(known(&cache), "?, ?, ?, ?");
    }

    proptest! {
        #[test]
        fn entries_never_overlap(
            responses in prop::collection::vec((0u8..8, 1u8..8, 1u8..8, any::<bool>()), 1..12),
        ) {
            let mut cache = LocationCache::default();
            for (from, skip, len, complete) in responses {
                let (start, end) = (from + skip, from + skip + len);
                let partition = Partition { hash_buckets: vec![], start: vec![start], end: vec![end] };
                let tablet = TabletLocation { id: format!("{start}-{end}"), partition, replicas: vec![] };
                cache.learn(&[from], vec![tablet.clone()], complete, Instant(1));
                let at_start = LocationLookup::Tablet(Arc::new(tablet));
                prop_assert_eq!(cache.get(&[start], Instant(0)), at_start);
                prop_assert_eq!(cache.get(&[from], Instant(0)), LocationLookup::Gap { end: vec![start] });
                let spans: Vec<_> = cache.entries.iter().map(|(start, entry)| (start, &entry.end)).collect();
                let apart = |pair: &[(&Vec<u8>, &Vec<u8>)]| !pair[0].1.is_empty() && pair[0].1 <= pair[1].0;
                prop_assert!(spans.windows(2).all(apart), "{:?}", spans);
            }
        }
    }
}
