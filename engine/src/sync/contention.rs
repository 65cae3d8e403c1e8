//! Contention by site: how often a lock or turn was taken, how often it was busy, times of waits and holds.
//!
//! ```text
//!   measured.rs ──▶ Visit ──▶ counts of this thread, by Site ──▶ take(): sums over all threads since the last one
//! ```
//!
//! - The engine has no clock: nothing is measured before [`begin`] gives one.
//! - A thread writes counts that no other thread writes, so that measuring adds no contention of its own.
//! - A hold of at least [`LONG_NS`] is counted apart: the thread lost its core, or waited for a disk, meanwhile.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Holds from this time on say nothing about the work under the lock.
pub const LONG_NS: u64 = 500_000;

/// Kind of a section, by its holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SectionKind {
    /// By one thread; others block theirs.
    Exclusive,
    /// By readers, any number of them.
    Shared,
    /// By one task; others leave their work to it and continue.
    Turn,
}

/// Place in the sources that takes a lock or a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    /// Type of the guarded value.
    pub guarded: &'static str,
    pub kind: SectionKind,
    pub file: &'static str,
    pub line: u32,
}

impl Site {
    #[track_caller]
    pub(super) fn of<T>(kind: SectionKind) -> Site {
        let caller = Location::caller();
        Site { guarded: std::any::type_name::<T>(), kind, file: caller.file(), line: caller.line() }
    }
}

/// Counts of a site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteCounts {
    pub acquisitions: u64,
    /// Acquisitions that found it held.
    pub contended: u64,
    pub wait_ns: u64,
    /// Time of the holds that are not long.
    pub hold_ns: u64,
    pub long_holds: u64,
    pub long_hold_ns: u64,
    /// Part of `hold_ns`, of all sites, of the one lock that was held longest.
    pub busiest_ns: u64,
}

impl SiteCounts {
    fn add(&mut self, other: &SiteCounts) {
        self.acquisitions += other.acquisitions;
        self.contended += other.contended;
        self.wait_ns += other.wait_ns;
        self.hold_ns += other.hold_ns;
        self.long_holds += other.long_holds;
        self.long_hold_ns += other.long_hold_ns;
        self.busiest_ns = self.busiest_ns.max(other.busiest_ns);
    }
}

static CLOCK: OnceLock<fn() -> u64> = OnceLock::new();
static IS_ON: AtomicBool = AtomicBool::new(false);
/// Number of the measurement: [`take`] begins the next one.
static ROUND: AtomicU64 = AtomicU64::new(0);
static THREADS: Mutex<Vec<Arc<ThreadCounts>>> = Mutex::new(Vec::new());

/// Counts of a thread in a round. Only [`take`] locks them from another thread.
struct ThreadCounts {
    round: u64,
    sites: Mutex<BTreeMap<Site, SiteCounts>>,
}

thread_local! {
    static OWN: RefCell<Option<Arc<ThreadCounts>>> = const { RefCell::new(None) };
}

/// Begins to measure. `clock` returns nanoseconds since a fixed point; the first one stays.
pub fn begin(clock: fn() -> u64) {
    let _first = CLOCK.get_or_init(|| clock);
    IS_ON.store(true, Ordering::Relaxed);
}

/// Ends a measurement until the next [`begin`].
pub fn pause() {
    IS_ON.store(false, Ordering::Relaxed);
}

/// Returns what was measured since the last call. A hold that has not ended counts for the next one.
pub fn take() -> BTreeMap<Site, SiteCounts> {
    ROUND.fetch_add(1, Ordering::Relaxed);
    let threads = std::mem::take(&mut *THREADS.lock().unwrap_or_else(PoisonError::into_inner));
    let mut sums: BTreeMap<Site, SiteCounts> = BTreeMap::new();
    for thread in threads {
        for (site, counts) in &*thread.sites.lock().unwrap_or_else(PoisonError::into_inner) {
            sums.entry(*site).or_default().add(counts);
        }
    }
    sums
}

/// Returns the clock's reading, or `None` while nothing is measured.
pub(super) fn now() -> Option<u64> {
    if !IS_ON.load(Ordering::Relaxed) {
        return None;
    }
    CLOCK.get().map(|clock| clock())
}

/// Time for which one lock or turn was held in a round, by all its holders.
#[derive(Debug, Default)]
pub(super) struct Busy {
    round: AtomicU64,
    held_ns: AtomicU64,
}

impl Busy {
    pub(super) const fn new() -> Busy {
        Busy { round: AtomicU64::new(0), held_ns: AtomicU64::new(0) }
    }

    /// Adds a hold and returns the sum of the round.
    fn add(&self, round: u64, hold_ns: u64) -> u64 {
        if self.round.swap(round, Ordering::Relaxed) != round {
            self.held_ns.store(0, Ordering::Relaxed);
        }
        self.held_ns.fetch_add(hold_ns, Ordering::Relaxed) + hold_ns
    }
}

/// One use of a site, counted by [`Visit::record`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Visit {
    site: Site,
    /// Readings before the wait, if there was one, and at the acquisition.
    waited_from: Option<u64>,
    acquired: u64,
    released: u64,
}

impl Visit {
    pub(super) fn new(site: Site, waited_from: Option<u64>, acquired: u64) -> Visit {
        Visit { site, waited_from, acquired, released: acquired }
    }

    pub(super) fn end(&mut self) {
        self.released = now().unwrap_or(self.acquired);
    }

    /// Counts the visit for this thread, and its hold for the lock.
    pub(super) fn record(&self, busy: &Busy) {
        let hold_ns = self.released.saturating_sub(self.acquired);
        let mut counts = SiteCounts {
            acquisitions: 1,
            contended: u64::from(self.waited_from.is_some()),
            wait_ns: self.waited_from.map_or(0, |from| self.acquired.saturating_sub(from)),
            ..SiteCounts::default()
        };
        let round = ROUND.load(Ordering::Relaxed);
        if hold_ns < LONG_NS {
            counts.hold_ns = hold_ns;
            counts.busiest_ns = busy.add(round, hold_ns);
        } else {
            counts.long_holds = 1;
            counts.long_hold_ns = hold_ns;
        }
        count(self.site, round, &counts);
    }
}

/// Counts an attempt that found a turn taken and left its work there.
pub(super) fn count_miss(site: Site) {
    let counts = SiteCounts { acquisitions: 1, contended: 1, ..SiteCounts::default() };
    count(site, ROUND.load(Ordering::Relaxed), &counts);
}

/// Adds to the counts of this thread; a thread that ends counts nothing more.
fn count(site: Site, round: u64, counts: &SiteCounts) {
    let add = |own: &RefCell<Option<Arc<ThreadCounts>>>| {
        let Ok(mut own) = own.try_borrow_mut() else { return };
        if own.as_ref().is_none_or(|own| own.round != round) {
            let fresh = Arc::new(ThreadCounts { round, sites: Mutex::default() });
            THREADS.lock().unwrap_or_else(PoisonError::into_inner).push(fresh.clone());
            *own = Some(fresh);
        }
        if let Some(own) = &*own {
            own.sites.lock().unwrap_or_else(PoisonError::into_inner).entry(site).or_default().add(counts);
        }
    };
    let _ended = OWN.try_with(add);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{Mutex, RwLock};
    use crate::turn_slot::TurnSlot;

    static NOW: AtomicU64 = AtomicU64::new(0);

    fn pass(nanos: u64) {
        NOW.fetch_add(nanos, Ordering::Relaxed);
    }

    struct First;
    struct Second;
    struct Third;

    /// Returns the counts of a guarded type in what [`take`] returned.
    fn of<T>(taken: &BTreeMap<Site, SiteCounts>, kind: SectionKind) -> SiteCounts {
        let name = std::any::type_name::<T>();
        let found = taken.iter().find(|(site, _)| site.guarded == name && site.kind == kind);
        *found.expect("it was counted").1
    }

    #[test]
    fn holds_are_counted_by_site_and_the_busiest_lock_is_known() {
        begin(|| NOW.load(Ordering::Relaxed));
        take();
        let locks = [Mutex::new(First), Mutex::new(First)];
        for (index, nanos) in [(0, 10), (1, 30), (1, 5), (0, LONG_NS)] {
            let guard = locks[index].lock();
            pass(nanos);
            drop(guard);
        }
        let shared = RwLock::new(Second);
        let (one, two) = (shared.read(), shared.read());
        pass(7);
        drop((one, two));
        let slot = TurnSlot::default();
        slot.put(Third, false);
        let visit = slot.visit().expect("nobody has it");
        assert!(slot.visit().is_none());
        pass(3);
        visit.end(false);
        let taken = take();
        let first = of::<First>(&taken, SectionKind::Exclusive);
        let expected = SiteCounts {
            acquisitions: 4,
            hold_ns: 45,
            long_holds: 1,
            long_hold_ns: LONG_NS,
            busiest_ns: 35,
            ..SiteCounts::default()
        };
        assert_eq!(first, expected);
        assert_eq!(of::<Second>(&taken, SectionKind::Shared).hold_ns, 14);
        let name = std::any::type_name::<Third>();
        let turns = taken.iter().filter(|(site, _)| site.guarded == name).map(|(_, counts)| counts);
        let sum = turns.fold((0, 0, 0), |sum, turn| {
            (sum.0 + turn.acquisitions, sum.1 + turn.contended, sum.2 + turn.hold_ns)
        });
        assert_eq!(sum, (2, 1, 3));
        assert!(!take().keys().any(|site| site.guarded == std::any::type_name::<First>()));
    }
}
