//! Memory accounting: a tree of trackers below one limit, and reservations of memory that will be used soon.
//!
//! ```text
//!   server ─────────────── limit: a function, as it may shrink;  tracked + reserved ≤ limit
//!     ├─ tablet 7f…
//!     │    ├─ rows         reported after use: TrackedBytes::set, within a reservation
//!     │    └─ deltas
//!     ├─ page cache        used only below the limit: TrackedBytes::try_add
//!     └─ calls
//! ```
//!
//! A committed operation cannot be rejected when it is applied. So the limit is enforced at admission: a write begins
//! with a [`Reservation`] of the most memory that it may use. The reservation is held until the memory really used is
//! tracked. A store that allocates in chunks always reserves its next chunk ([`TrackedBytes::set`]), because any row
//! may need it. So tracked memory never exceeds the limit, unless the limit shrinks below it.
//!
//! Under memory pressure, flushes free memory, and they need some for their own work. A share of the limit is therefore
//! not available to other reservations ([`MAINTENANCE_SHARE`]).
//!
//! Order: memory is reserved before it is tracked, and untracked before it is released. The next owner may be in
//! another thread, and must not be counted together with the previous one.
//!
//! Trackers are counters; nothing here waits. Not here: the reaction to memory pressure (maintenance of servers), and
//! the ways in which consumers measure their memory.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

/// Divisor of the limit that gives the share reserved for flushes and compactions.
pub const MAINTENANCE_SHARE: u64 = 16;

/// Returns the current limit in bytes.
pub type LimitFn = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Counter of the bytes of one consumer, or of all consumers below it.
pub struct MemTracker {
    id: String,
    parent: Option<Arc<MemTracker>>,
    tracked: AtomicU64,
    peak: AtomicU64,
    /// Root only: the limit, and the bytes tracked or reserved.
    limit: Option<LimitFn>,
    reserved: AtomicU64,
    /// Root only: tracked bytes of flushes and compactions.
    maintenance_bytes: AtomicU64,
    children: Mutex<Vec<Weak<MemTracker>>>,
}

/// State of one tracker at one point in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemUsage {
    pub id: String,
    pub parent_id: Option<String>,
    /// Limit in bytes, if there is one.
    pub limit: Option<u64>,
    pub bytes: u64,
    pub peak_bytes: u64,
    pub children: Vec<MemUsage>,
}

impl MemTracker {
    /// Creates the root tracker of a process or server.
    pub fn root(id: &str, limit: Option<LimitFn>) -> Arc<MemTracker> {
        Arc::new(MemTracker::new(id, None, limit))
    }

    fn new(id: &str, parent: Option<Arc<MemTracker>>, limit: Option<LimitFn>) -> MemTracker {
        MemTracker {
            id: id.to_string(),
            parent,
            tracked: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            limit,
            reserved: AtomicU64::new(0),
            maintenance_bytes: AtomicU64::new(0),
            children: Mutex::default(),
        }
    }

    /// Creates a tracker for a consumer or a group of them. It is part of the tree until it is dropped.
    pub fn child(self: &Arc<MemTracker>, id: &str) -> Arc<MemTracker> {
        let child = Arc::new(MemTracker::new(id, Some(self.clone()), None));
        let mut children = self.children();
        children.retain(|child| child.strong_count() > 0);
        children.push(Arc::downgrade(&child));
        child
    }

    fn children(&self) -> MutexGuard<'_, Vec<Weak<MemTracker>>> {
        self.children.lock()
    }

    fn ancestors(&self) -> impl Iterator<Item = &MemTracker> {
        std::iter::successors(Some(self), |tracker| tracker.parent.as_deref())
    }

    fn root_tracker(&self) -> &MemTracker {
        self.ancestors().last().expect("the chain starts with the tracker itself")
    }

    /// Returns the bytes tracked here and below.
    pub fn bytes(&self) -> u64 {
        self.tracked.load(Ordering::Relaxed)
    }

    /// Returns the highest value that [`MemTracker::bytes`] had.
    pub fn peak_bytes(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Returns the bytes tracked or reserved in the whole tree.
    pub fn reserved_bytes(&self) -> u64 {
        self.root_tracker().reserved.load(Ordering::Relaxed)
    }

    /// Returns the current limit of the whole tree, in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.root_tracker().limit.as_ref().map_or(u64::MAX, |limit| limit())
    }

    /// Returns the limit for new reservations: the limit minus the memory that flushes and compactions may still need.
    pub fn reservable_bytes(&self) -> u64 {
        let limit = self.limit_bytes();
        limit
            - (limit / MAINTENANCE_SHARE)
                .saturating_sub(self.root_tracker().maintenance_bytes.load(Ordering::Relaxed))
    }

    /// Reserves `bytes`, if they are available.
    pub fn try_reserve(self: &Arc<MemTracker>, bytes: u64) -> Option<Reservation> {
        let reservation = || Reservation { tracker: self.clone(), bytes };
        self.try_reserve_below(bytes, self.reservable_bytes()).then(reservation)
    }

    /// Reserves `bytes` if the total stays within `most`. Returns true if it does.
    fn try_reserve_below(&self, bytes: u64, most: u64) -> bool {
        let more = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= most);
        self.root_tracker().reserved.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_ok()
    }

    /// Releases bytes that are no longer tracked or reserved. Order: an acquiring reservation sees them untracked.
    fn release(&self, bytes: u64) {
        self.root_tracker().reserved.fetch_sub(bytes, Ordering::Release);
    }

    fn add_tracked(&self, bytes: u64) {
        for tracker in self.ancestors() {
            let now = tracker.tracked.fetch_add(bytes, Ordering::Relaxed) + bytes;
            tracker.peak.fetch_max(now, Ordering::Relaxed);
        }
    }

    fn sub_tracked(&self, bytes: u64) {
        for tracker in self.ancestors() {
            tracker.tracked.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Returns the state of this tracker and all below.
    pub fn usage(&self) -> MemUsage {
        let live: Vec<_> = self.children().iter().filter_map(Weak::upgrade).collect();
        let children: Vec<MemUsage> = live.iter().map(|child| child.usage()).collect();
        // A group's bytes are the sum of its parts as read here, although the parts may change during the walk.
        let bytes = match &children[..] {
            [] => self.bytes(),
            parts => parts.iter().map(|child| child.bytes).sum(),
        };
        MemUsage {
            id: self.id.clone(),
            parent_id: self.parent.as_ref().map(|parent| parent.id.clone()),
            limit: self.limit.as_ref().map(|limit| limit()),
            bytes,
            peak_bytes: self.peak_bytes().max(bytes),
            children,
        }
    }
}

/// Reserved memory; dropping it releases the reservation.
#[must_use]
pub struct Reservation {
    tracker: Arc<MemTracker>,
    bytes: u64,
}

impl Reservation {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.tracker.release(self.bytes);
    }
}

/// Tracked and reserved bytes of one owner, released on drop. Only the owner changes them.
#[derive(Default)]
pub struct TrackedBytes {
    /// `None` if memory is not tracked.
    tracker: Option<Arc<MemTracker>>,
    bytes: AtomicU64,
    reserved_next: AtomicU64,
    /// True if the memory is used by a flush or compaction.
    for_maintenance: bool,
}

impl TrackedBytes {
    /// Creates an empty counter below `tracker`.
    pub fn new(tracker: &Arc<MemTracker>) -> TrackedBytes {
        TrackedBytes::with_kind(tracker, false)
    }

    /// Creates an empty counter for the memory of a flush or compaction.
    pub fn for_maintenance(tracker: &Arc<MemTracker>) -> TrackedBytes {
        TrackedBytes::with_kind(tracker, true)
    }

    fn with_kind(tracker: &Arc<MemTracker>, for_maintenance: bool) -> TrackedBytes {
        let (bytes, reserved_next) = (AtomicU64::new(0), AtomicU64::new(0));
        TrackedBytes { tracker: Some(tracker.clone()), bytes, reserved_next, for_maintenance }
    }

    /// Returns the bytes tracked.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Sets the tracked bytes, and reserves `next` more. An increase must have been reserved before.
    pub fn set(&self, bytes: u64, next: u64) {
        let Some(tracker) = &self.tracker else { return };
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        let sum_before = before + self.reserved_next.swap(next, Ordering::Relaxed);
        let sum = bytes + next;
        if sum > sum_before {
            tracker.root_tracker().reserved.fetch_add(sum - sum_before, Ordering::Acquire);
        }
        if self.for_maintenance {
            tracker.root_tracker().maintenance_bytes.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
        }
        match bytes.checked_sub(before) {
            Some(0) => {}
            Some(more) => tracker.add_tracked(more),
            None => tracker.sub_tracked(before - bytes),
        }
        if sum < sum_before {
            tracker.release(sum_before - sum);
        }
    }

    /// Adds `more` bytes if all tracked and reserved bytes stay within `most`. Returns true if they do.
    pub fn try_add(&self, more: u64, most: u64) -> bool {
        let Some(tracker) = &self.tracker else { return true };
        let taken = tracker.try_reserve_below(more, most);
        if taken {
            self.bytes.fetch_add(more, Ordering::Relaxed);
            tracker.add_tracked(more);
        }
        taken
    }

    /// Adds `more` bytes if they fit below the limit. Returns true if they do.
    pub fn try_hold(&self, more: u64) -> bool {
        let limit = self.tracker.as_ref().map_or(u64::MAX, |tracker| tracker.limit_bytes());
        self.try_add(more, limit)
    }

    /// Adds `more` bytes, even above the limit.
    pub fn add(&self, more: u64) {
        self.try_add(more, u64::MAX);
    }

    /// Subtracts `less` bytes.
    pub fn sub(&self, less: u64) {
        let Some(tracker) = &self.tracker else { return };
        self.bytes.fetch_sub(less, Ordering::Relaxed);
        tracker.sub_tracked(less);
        tracker.release(less);
    }
}

impl Drop for TrackedBytes {
    fn drop(&mut self) {
        self.set(0, 0);
    }
}

/// Memory budget of a configuration's owner: the tracker that is the parent of its consumers' trackers.
#[derive(Clone)]
pub struct MemoryHandle(Arc<MemTracker>);

impl MemoryHandle {
    pub fn of(tracker: &Arc<MemTracker>) -> MemoryHandle {
        MemoryHandle(tracker.clone())
    }
}

impl Deref for MemoryHandle {
    type Target = Arc<MemTracker>;

    fn deref(&self) -> &Arc<MemTracker> {
        &self.0
    }
}

/// Unlimited memory.
impl Default for MemoryHandle {
    fn default() -> MemoryHandle {
        MemoryHandle(MemTracker::root("server", None))
    }
}

impl fmt::Debug for MemoryHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes())
    }
}

/// The tracker is not part of a configuration's identity.
impl PartialEq for MemoryHandle {
    fn eq(&self, _: &MemoryHandle) -> bool {
        true
    }
}

impl Eq for MemoryHandle {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn limited(bytes: u64) -> (Arc<MemTracker>, Arc<AtomicU64>) {
        let limit = Arc::new(AtomicU64::new(bytes));
        let shared = limit.clone();
        (MemTracker::root("server", Some(Arc::new(move || shared.load(Ordering::Relaxed)))), limit)
    }

    #[test]
    fn tracked_bytes_count_up_to_the_root_until_they_are_dropped() {
        let root = MemTracker::root("server", None);
        let (tablet, cache) = (root.child("tablet"), root.child("cache"));
        let rows = TrackedBytes::new(&tablet.child("rows"));
        let pages = TrackedBytes::new(&cache);
        rows.set(100, 0);
        assert!(pages.try_add(40, u64::MAX));
        rows.set(60, 0);
        assert_eq!((tablet.bytes(), cache.bytes(), root.bytes(), root.reserved_bytes()), (60, 40, 100, 100));
        let usage = root.usage();
        assert_eq!((usage.bytes, usage.peak_bytes, usage.children.len()), (100, 140, 2));
        assert_eq!((usage.children[0].bytes, usage.children[0].peak_bytes), (60, 100));
        assert_eq!(usage.children[0].children[0].parent_id.as_deref(), Some("tablet"));
        drop((rows, tablet));
        pages.sub(15);
        assert_eq!((root.bytes(), root.reserved_bytes(), root.usage().children.len()), (25, 25, 1));
    }

    #[test]
    fn a_reservation_lasts_until_it_is_dropped() {
        // Six of 106 bytes are reserved for flushes.
        let (root, _) = limited(106);
        let rows = TrackedBytes::new(&root.child("rows"));
        rows.set(50, 10);
        assert!(root.try_reserve(41).is_none(), "60 of 100 are reserved");
        let reservation = root.try_reserve(40).expect("40 bytes are available");
        assert!(root.try_reserve(1).is_none());
        rows.set(90, 0);
        assert_eq!((reservation.bytes(), root.bytes()), (40, 90));
        drop(reservation);
        assert!(root.try_reserve(10).is_some());
        assert!(root.try_reserve(11).is_none());
    }

    #[test]
    fn a_shrinking_limit_applies_at_once() {
        let (root, limit) = limited(100);
        let rows = TrackedBytes::new(&root.child("rows"));
        rows.set(50, 0);
        limit.store(40, Ordering::Relaxed);
        assert_eq!(root.limit_bytes(), 40);
        assert!(root.try_reserve(1).is_none() && !rows.try_add(1, root.limit_bytes()));
        rows.set(30, 0);
        assert!(rows.try_add(10, root.limit_bytes()) && root.try_reserve(1).is_none());
    }

    #[test]
    fn a_share_is_reserved_for_flushes() {
        let (root, _) = limited(1600);
        let (rows, work) =
            (TrackedBytes::new(&root.child("rows")), TrackedBytes::for_maintenance(&root.child("work")));
        rows.set(1400, 0);
        assert!(root.try_reserve(100).is_some() && root.try_reserve(101).is_none());
        work.set(60, 0);
        assert!(
            root.try_reserve(100).is_some() && root.try_reserve(101).is_none(),
            "maintenance uses its share"
        );
        work.set(100, 0);
        rows.set(1500, 0);
        assert_eq!((root.bytes(), root.reservable_bytes()), (1600, 1600), "the whole share is used");
        drop(work);
        assert_eq!((root.bytes(), root.reservable_bytes()), (1500, 1500));
    }

    #[test]
    fn without_a_tracker_there_is_no_limit() {
        let tracked = TrackedBytes::default();
        tracked.set(1 << 40, 0);
        assert!(tracked.try_add(1 << 40, 0));
        tracked.sub(1 << 40);
        assert_eq!(tracked.bytes(), 0);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use ::loom::thread;

    use super::*;

    fn limited(bytes: u64) -> Arc<MemTracker> {
        MemTracker::root("server", Some(Arc::new(move || bytes)))
    }

    /// Bytes that one thread releases and another reserves are never tracked by both.
    #[test]
    fn loom_released_bytes_are_not_tracked_any_more() {
        ::loom::model(|| {
            let root = limited(100);
            let (rows, pages) = (TrackedBytes::new(&root), TrackedBytes::new(&root));
            rows.set(60, 0);
            pages.add(40);
            let other = {
                let tracker = root.clone();
                thread::spawn(move || {
                    let taken = TrackedBytes::new(&tracker);
                    let added = (0..2).filter(|_| taken.try_hold(20)).count() as u64;
                    assert_eq!(taken.bytes(), 20 * added);
                })
            };
            pages.sub(20);
            rows.set(40, 0);
            other.join().expect("the thread does not panic");
            assert_eq!((root.bytes(), root.reserved_bytes()), (60, 60));
            assert!(root.peak_bytes() <= 100, "{} of 100 bytes were tracked", root.peak_bytes());
        });
    }

    /// Two writers ask for more than is available for both: at most one gets the reservation, and it tracks no more
    /// than that.
    #[test]
    fn loom_the_same_bytes_are_not_reserved_twice() {
        ::loom::model(|| {
            // 6 of 106 bytes are reserved for flushes.
            let root = limited(106);
            let write = |root: &Arc<MemTracker>| {
                let Some(reservation) = root.try_reserve(60) else { return false };
                let rows = TrackedBytes::new(root);
                rows.set(60, 0);
                drop(reservation);
                true
            };
            let other = {
                let root = root.clone();
                thread::spawn(move || write(&root))
            };
            let wrote = write(&root);
            let other = other.join().expect("the thread does not panic");
            assert!(wrote || other, "the first one gets its reservation");
            assert_eq!((root.bytes(), root.reserved_bytes(), root.peak_bytes()), (0, 0, 60));
        });
    }

    /// A reader sums up a tree whose parts are added and removed: it sees a part completely or not at all.
    #[test]
    fn loom_usage_shows_whole_parts() {
        ::loom::model(|| {
            let root = limited(100);
            let kept = root.child("kept");
            let rows = TrackedBytes::new(&kept);
            rows.set(10, 0);
            let writer = {
                let root = root.clone();
                thread::spawn(move || TrackedBytes::new(&root.child("new")).set(20, 0))
            };
            let usage = root.usage();
            let parts: u64 = usage.children.iter().map(|part| part.bytes).sum();
            assert_eq!(usage.bytes, parts);
            assert!([10, 30].contains(&usage.bytes), "{usage:?}");
            writer.join().expect("the thread does not panic");
            assert_eq!((root.bytes(), root.reserved_bytes()), (10, 10));
        });
    }
}
