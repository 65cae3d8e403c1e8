//! Who holds how much memory: a tree of trackers below one limit, and promises of what will be held soon.
//!
//! ```text
//!   server ─────────────── limit: asked whenever it matters, as it may shrink;  held + promised ≤ limit
//!     ├─ tablet 7f…
//!     │    ├─ rows         told after it was taken: Held::set, within a promise
//!     │    └─ changes
//!     ├─ page cache        taken only where there is room: Held::try_add
//!     └─ calls
//! ```
//!
//! What a group has agreed on cannot be refused any more when it is applied. So the limit is kept where work comes in:
//! a write begins with a [`Promise`] of the most that it may come to hold, anywhere below the root, and keeps it until
//! what it really took is told. A store that allocates in chunks promises its next one all the time ([`Held::set`]), as
//! nobody knows whose row will need it. Then held memory never passes the limit, unless the limit shrinks below it.
//!
//! When memory is short it is flushes that help, and they need some themselves: a share of all there is is promised to
//! nobody else ([`WORK_SHARE`]).
//!
//! Room is spoken for before it is held, and let go before it is given back: whoever is given it next may be in another
//! thread, and must not be counted beside its last owner.
//!
//! Trackers are counters: nothing here waits. Not here: what is done about memory being short (the maintenance of
//! servers), and how consumers count.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

/// What is left for flushes and merges to work with: one part in so many.
pub const WORK_SHARE: u64 = 16;

/// How many bytes may be held now.
pub type Limit = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Counts the bytes of one consumer, or of all below it.
pub struct MemTracker {
    id: String,
    parent: Option<Arc<MemTracker>>,
    held: AtomicU64,
    peak: AtomicU64,
    /// At the root only: the limit, and how much of it is held or promised.
    limit: Option<Limit>,
    spoken_for: AtomicU64,
    /// At the root only: how much of that flushes and merges hold.
    work: AtomicU64,
    children: Mutex<Vec<Weak<MemTracker>>>,
}

/// One tracker as it was when looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemUsage {
    pub id: String,
    pub parent_id: Option<String>,
    /// Bytes it may hold, if limited.
    pub limit: Option<u64>,
    pub bytes: u64,
    pub peak_bytes: u64,
    pub children: Vec<MemUsage>,
}

impl MemTracker {
    /// The tracker of a whole process or server.
    pub fn root(id: &str, limit: Option<Limit>) -> Arc<MemTracker> {
        Arc::new(MemTracker::new(id, None, limit))
    }

    fn new(id: &str, parent: Option<Arc<MemTracker>>, limit: Option<Limit>) -> MemTracker {
        MemTracker {
            id: id.to_string(),
            parent,
            held: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            limit,
            spoken_for: AtomicU64::new(0),
            work: AtomicU64::new(0),
            children: Mutex::default(),
        }
    }

    /// A consumer, or a group of them. It is on the tree for as long as somebody has it.
    pub fn child(self: &Arc<MemTracker>, id: &str) -> Arc<MemTracker> {
        let child = Arc::new(MemTracker::new(id, Some(self.clone()), None));
        let mut children = self.children();
        children.retain(|child| child.strong_count() > 0);
        children.push(Arc::downgrade(&child));
        child
    }

    fn children(&self) -> MutexGuard<'_, Vec<Weak<MemTracker>>> {
        self.children.lock().expect("nothing panics while it holds the list")
    }

    fn up(&self) -> impl Iterator<Item = &MemTracker> {
        std::iter::successors(Some(self), |tracker| tracker.parent.as_deref())
    }

    fn top(&self) -> &MemTracker {
        self.up().last().expect("it is its own first")
    }

    /// Bytes held here and below.
    pub fn bytes(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// The most that was held at once.
    pub fn peak_bytes(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Bytes held or promised anywhere on the tree.
    pub fn spoken_for(&self) -> u64 {
        self.top().spoken_for.load(Ordering::Relaxed)
    }

    /// What the whole tree may hold now.
    pub fn limit_bytes(&self) -> u64 {
        self.top().limit.as_ref().map_or(u64::MAX, |limit| limit())
    }

    /// What may be held and promised when something new begins: all but what flushes and merges may still need.
    pub fn open_bytes(&self) -> u64 {
        let limit = self.limit_bytes();
        limit - (limit / WORK_SHARE).saturating_sub(self.top().work.load(Ordering::Relaxed))
    }

    /// Promises `bytes` to somebody, if there is room.
    pub fn promise(self: &Arc<MemTracker>, bytes: u64) -> Option<Promise> {
        let promise = || Promise { tracker: self.clone(), bytes };
        self.speak_for(bytes, self.open_bytes()).then(promise)
    }

    /// Takes `bytes` of what is left below `most`; whether there were so many.
    fn speak_for(&self, bytes: u64, most: u64) -> bool {
        let more = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= most);
        self.top().spoken_for.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_ok()
    }

    /// Gives back what is held and promised to nobody any more. Who takes it sees that it is not held.
    fn give_back(&self, bytes: u64) {
        self.top().spoken_for.fetch_sub(bytes, Ordering::Release);
    }

    fn add_held(&self, bytes: u64) {
        for tracker in self.up() {
            let now = tracker.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
            tracker.peak.fetch_max(now, Ordering::Relaxed);
        }
    }

    fn sub_held(&self, bytes: u64) {
        for tracker in self.up() {
            tracker.held.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// This tracker and all below, now.
    pub fn usage(&self) -> MemUsage {
        let living: Vec<_> = self.children().iter().filter_map(Weak::upgrade).collect();
        let children: Vec<MemUsage> = living.iter().map(|child| child.usage()).collect();
        // A group shows what its parts show, although they may change while they are looked at.
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

/// Room that is kept for somebody until it is dropped.
#[must_use]
pub struct Promise {
    tracker: Arc<MemTracker>,
    bytes: u64,
}

impl Promise {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.tracker.give_back(self.bytes);
    }
}

/// What one owner holds and is promised; let go when it is dropped. Its owner alone changes it.
#[derive(Default)]
pub struct Held {
    /// Nobody counts, if there is none.
    tracker: Option<Arc<MemTracker>>,
    bytes: AtomicU64,
    promised: AtomicU64,
    /// It is what a flush or a merge works with.
    works: bool,
}

impl Held {
    /// Nothing yet, to be counted by `tracker`.
    pub fn new(tracker: &Arc<MemTracker>) -> Held {
        Held::made(tracker, false)
    }

    /// The same, of what a flush or a merge works with.
    pub fn of_work(tracker: &Arc<MemTracker>) -> Held {
        Held::made(tracker, true)
    }

    fn made(tracker: &Arc<MemTracker>, works: bool) -> Held {
        let (bytes, promised) = (AtomicU64::new(0), AtomicU64::new(0));
        Held { tracker: Some(tracker.clone()), bytes, promised, works }
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Holds so many bytes from now on, and is promised `next` more. Room for what has become more was promised.
    pub fn set(&self, bytes: u64, next: u64) {
        let Some(tracker) = &self.tracker else { return };
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        let sum_before = before + self.promised.swap(next, Ordering::Relaxed);
        let sum = bytes + next;
        if sum > sum_before {
            tracker.top().spoken_for.fetch_add(sum - sum_before, Ordering::Acquire);
        }
        if self.works {
            tracker.top().work.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
        }
        match bytes.checked_sub(before) {
            Some(0) => {}
            Some(more) => tracker.add_held(more),
            None => tracker.sub_held(before - bytes),
        }
        if sum < sum_before {
            tracker.give_back(sum_before - sum);
        }
    }

    /// Holds `more` bytes, if all that is held and promised stays within `most`; whether it does.
    pub fn try_add(&self, more: u64, most: u64) -> bool {
        let Some(tracker) = &self.tracker else { return true };
        let taken = tracker.speak_for(more, most);
        if taken {
            self.bytes.fetch_add(more, Ordering::Relaxed);
            tracker.add_held(more);
        }
        taken
    }

    /// Holds `more` bytes, if there is room below the limit; whether there was.
    pub fn try_keep(&self, more: u64) -> bool {
        let limit = self.tracker.as_ref().map_or(u64::MAX, |tracker| tracker.limit_bytes());
        self.try_add(more, limit)
    }

    /// Holds `more` bytes, for which there has to be room.
    pub fn add(&self, more: u64) {
        self.try_add(more, u64::MAX);
    }

    /// Holds `less` bytes less.
    pub fn sub(&self, less: u64) {
        let Some(tracker) = &self.tracker else { return };
        self.bytes.fetch_sub(less, Ordering::Relaxed);
        tracker.sub_held(less);
        tracker.give_back(less);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0, 0);
    }
}

/// The memory that a configuration's owner may use: the tracker that its consumers hang below.
#[derive(Clone)]
pub struct Memory(Arc<MemTracker>);

impl Memory {
    pub fn of(tracker: &Arc<MemTracker>) -> Memory {
        Memory(tracker.clone())
    }
}

impl Deref for Memory {
    type Target = Arc<MemTracker>;

    fn deref(&self) -> &Arc<MemTracker> {
        &self.0
    }
}

/// As much as there is.
impl Default for Memory {
    fn default() -> Memory {
        Memory(MemTracker::root("server", None))
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes())
    }
}

/// Who counts makes no configuration another.
impl PartialEq for Memory {
    fn eq(&self, _: &Memory) -> bool {
        true
    }
}

impl Eq for Memory {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn limited(bytes: u64) -> (Arc<MemTracker>, Arc<AtomicU64>) {
        let limit = Arc::new(AtomicU64::new(bytes));
        let asked = limit.clone();
        (MemTracker::root("server", Some(Arc::new(move || asked.load(Ordering::Relaxed)))), limit)
    }

    #[test]
    fn what_is_held_is_counted_up_to_the_root_until_it_is_dropped() {
        let root = MemTracker::root("server", None);
        let (tablet, cache) = (root.child("tablet"), root.child("cache"));
        let rows = Held::new(&tablet.child("rows"));
        let pages = Held::new(&cache);
        rows.set(100, 0);
        assert!(pages.try_add(40, u64::MAX));
        rows.set(60, 0);
        assert_eq!((tablet.bytes(), cache.bytes(), root.bytes(), root.spoken_for()), (60, 40, 100, 100));
        let usage = root.usage();
        assert_eq!((usage.bytes, usage.peak_bytes, usage.children.len()), (100, 140, 2));
        assert_eq!((usage.children[0].bytes, usage.children[0].peak_bytes), (60, 100));
        assert_eq!(usage.children[0].children[0].parent_id.as_deref(), Some("tablet"));
        drop((rows, tablet));
        pages.sub(15);
        assert_eq!((root.bytes(), root.spoken_for(), root.usage().children.len()), (25, 25, 1));
    }

    #[test]
    fn a_promise_is_kept_until_what_it_was_for_is_held() {
        // Six of them are left for flushes.
        let (root, _) = limited(106);
        let rows = Held::new(&root.child("rows"));
        rows.set(50, 10);
        assert!(root.promise(41).is_none(), "60 of 100 are spoken for");
        let promise = root.promise(40).expect("there is room for 40");
        assert!(root.promise(1).is_none());
        rows.set(90, 0);
        assert_eq!((promise.bytes(), root.bytes()), (40, 90));
        drop(promise);
        assert!(root.promise(10).is_some());
        assert!(root.promise(11).is_none());
    }

    #[test]
    fn a_limit_that_shrinks_counts_at_once() {
        let (root, limit) = limited(100);
        let rows = Held::new(&root.child("rows"));
        rows.set(50, 0);
        limit.store(40, Ordering::Relaxed);
        assert_eq!(root.limit_bytes(), 40);
        assert!(root.promise(1).is_none() && !rows.try_add(1, root.limit_bytes()));
        rows.set(30, 0);
        assert!(rows.try_add(10, root.limit_bytes()) && root.promise(1).is_none());
    }

    #[test]
    fn a_share_is_left_for_flushes() {
        let (root, _) = limited(1600);
        let (rows, work) = (Held::new(&root.child("rows")), Held::of_work(&root.child("work")));
        rows.set(1400, 0);
        assert!(root.promise(100).is_some() && root.promise(101).is_none());
        work.set(60, 0);
        assert!(root.promise(100).is_some() && root.promise(101).is_none(), "it takes of its share");
        work.set(100, 0);
        rows.set(1500, 0);
        assert_eq!((root.bytes(), root.open_bytes()), (1600, 1600), "so there is room for both");
        drop(work);
        assert_eq!((root.bytes(), root.open_bytes()), (1500, 1500));
    }

    #[test]
    fn who_is_not_counted_may_hold_all() {
        let held = Held::default();
        held.set(1 << 40, 0);
        assert!(held.try_add(1 << 40, 0));
        held.sub(1 << 40);
        assert_eq!(held.bytes(), 0);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use ::loom::thread;

    use super::*;

    fn limited(bytes: u64) -> Arc<MemTracker> {
        MemTracker::root("server", Some(Arc::new(move || bytes)))
    }

    /// One gives back what another is waiting for: never do both hold it, whichever way it was held.
    #[test]
    fn loom_what_is_given_back_is_not_held_any_more() {
        ::loom::model(|| {
            let root = limited(100);
            let (rows, pages) = (Held::new(&root), Held::new(&root));
            rows.set(60, 0);
            pages.add(40);
            let other = {
                let tracker = root.clone();
                thread::spawn(move || {
                    let taken = Held::new(&tracker);
                    let kept = (0..2).filter(|_| taken.try_keep(20)).count() as u64;
                    assert_eq!(taken.bytes(), 20 * kept);
                })
            };
            pages.sub(20);
            rows.set(40, 0);
            other.join().expect("it does not panic");
            assert_eq!((root.bytes(), root.spoken_for()), (60, 60));
            assert!(root.peak_bytes() <= 100, "{} bytes were held of 100", root.peak_bytes());
        });
    }

    /// Two ask for more than there is for both: at most one is promised it, and what it then holds was promised.
    #[test]
    fn loom_the_same_room_is_not_promised_twice() {
        ::loom::model(|| {
            // 6 of 106 are left for flushes.
            let root = limited(106);
            let write = |root: &Arc<MemTracker>| {
                let Some(promise) = root.promise(60) else { return false };
                let rows = Held::new(root);
                rows.set(60, 0);
                drop(promise);
                true
            };
            let other = {
                let root = root.clone();
                thread::spawn(move || write(&root))
            };
            let wrote = write(&root);
            let other = other.join().expect("it does not panic");
            assert!(wrote || other, "the first to ask finds room");
            assert_eq!((root.bytes(), root.spoken_for(), root.peak_bytes()), (0, 0, 60));
        });
    }

    /// A reader adds up a tree whose parts come and go: it sees a part whole or not at all.
    #[test]
    fn loom_usage_shows_whole_parts() {
        ::loom::model(|| {
            let root = limited(100);
            let kept = root.child("kept");
            let rows = Held::new(&kept);
            rows.set(10, 0);
            let writer = {
                let root = root.clone();
                thread::spawn(move || Held::new(&root.child("new")).set(20, 0))
            };
            let usage = root.usage();
            let parts: u64 = usage.children.iter().map(|part| part.bytes).sum();
            assert_eq!(usage.bytes, parts);
            assert!([10, 30].contains(&usage.bytes), "{usage:?}");
            writer.join().expect("it does not panic");
            assert_eq!((root.bytes(), root.spoken_for()), (10, 10));
        });
    }
}
