//! The tablets of the double: ranges of keys that come and go, and the client's knowledge of them.

use super::limits::SERVERS;
use crate::wire::keys;
use sim_plan::RandomStream;

/// Bounds of a range without bounds.
pub(super) const OPEN: (i64, i64) = (i64::MIN, i64::MAX);
/// Keys that clients write: those below this one, from 0 on.
pub(super) const KEYS: i64 = 200;
/// Bounds of ranges are multiples of this.
const GRID: i64 = 10;
/// Replicas of a tablet.
const REPLICAS: usize = 3;

/// A tablet, live or dropped.
#[derive(Debug, Clone)]
pub(super) struct Tablet {
    pub lower: i64,
    pub upper: i64,
    pub is_live: bool,
    pub leader: Option<usize>,
    pub replicas: Vec<usize>,
    /// Time at which masters last told the client of it, or will.
    pub told: Option<u64>,
    /// Time at which the client learned that its own alteration had dropped the tablet.
    pub dropped_by_client: Option<u64>,
}

/// A range that came or went: when, by the world's clock and as a timestamp.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChangedRange {
    pub at: u64,
    pub stamp: u64,
    lower: i64,
    upper: i64,
}

/// A reply's word on a range of keys.
struct Told {
    at: u64,
    lower: i64,
    upper: i64,
    tablet: Option<usize>,
}

#[derive(Default)]
pub(super) struct Tablets {
    pub all: Vec<Tablet>,
    told: Vec<Told>,
    pub changes: Vec<ChangedRange>,
}

/// A change of ranges: a tablet to drop, and the range to add in the space that it leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RangeChange {
    pub drop: usize,
    pub add: Option<(i64, i64)>,
}

impl Tablets {
    pub(super) fn add(&mut self, random: &mut RandomStream, (lower, upper): (i64, i64)) {
        let first = random.below(SERVERS as u64) as usize;
        let replicas: Vec<usize> = (0..REPLICAS).map(|number| (first + number) % SERVERS).collect();
        let leader = Some(random.pick(&replicas));
        let tablet =
            Tablet { lower, upper, is_live: true, leader, replicas, told: None, dropped_by_client: None };
        self.all.push(tablet);
    }

    pub(super) fn live(&self) -> impl Iterator<Item = (usize, &Tablet)> {
        self.all.iter().enumerate().filter(|(_, tablet)| tablet.is_live)
    }

    /// Returns the tablet of an id.
    pub(super) fn find(&self, id: &[u8]) -> Option<usize> {
        let number = std::str::from_utf8(id).ok()?.strip_prefix("tablet-")?.parse().ok()?;
        (number < self.all.len()).then_some(number)
    }

    /// Draws a change: a live tablet goes, and a range with other bounds mostly comes.
    pub(super) fn draw_change(&self, random: &mut RandomStream) -> Option<RangeChange> {
        let live: Vec<usize> = self.live().map(|(number, _)| number).collect();
        let drop = *live.get(random.below(live.len() as u64) as usize)?;
        let (lower, upper) = self.space_without(drop);
        let (from, to) = (lower.max(0) / GRID, upper.min(KEYS) / GRID);
        let mut grid = || random.between(from as u64, to as u64) as i64 * GRID;
        let (one, other) = (grid(), grid());
        let mut add = (one.min(other), one.max(other));
        // Open ends where there is nothing else.
        if add.0 == 0 && lower == OPEN.0 && random.percent(50) {
            add.0 = OPEN.0;
        }
        if add.1 == KEYS && upper == OPEN.1 && random.percent(50) {
            add.1 = OPEN.1;
        }
        Some(RangeChange {
            drop,
            add: Some(add).filter(|(lower, upper)| lower < upper && random.percent(85)),
        })
    }

    /// Returns the space around a tablet that no other one has.
    fn space_without(&self, dropped: usize) -> (i64, i64) {
        let Tablet { lower, upper, .. } = self.all[dropped];
        let others = || self.live().filter(|(number, _)| *number != dropped).map(|(_, tablet)| tablet);
        let below = others().map(|other| other.upper).filter(|end| *end <= lower).max();
        let above = others().map(|other| other.lower).filter(|start| *start >= upper).min();
        (below.unwrap_or(OPEN.0), above.unwrap_or(OPEN.1))
    }

    /// Returns true if a change can still be made.
    pub(super) fn fits(&self, change: RangeChange) -> bool {
        let free = |(lower, upper): (i64, i64)| {
            let space = self.space_without(change.drop);
            space.0 <= lower && upper <= space.1
        };
        self.all[change.drop].is_live && change.add.is_none_or(free)
    }

    /// Makes a change; returns the range that has lost its rows.
    pub(super) fn change(
        &mut self,
        random: &mut RandomStream,
        change: RangeChange,
        (stamp, at): (u64, u64),
    ) -> (i64, i64) {
        let dropped = &mut self.all[change.drop];
        dropped.is_live = false;
        let range = (dropped.lower, dropped.upper);
        self.changes.push(ChangedRange { at, stamp, lower: range.0, upper: range.1 });
        if let Some(added) = change.add {
            self.changes.push(ChangedRange { at, stamp, lower: added.0, upper: added.1 });
            self.add(random, added);
        }
        range
    }

    /// Returns the tablets from a partition key on, and the end of their knowledge: a reply to a lookup.
    pub(super) fn from(&self, key: i64) -> Vec<usize> {
        let mut found: Vec<usize> =
            self.live().filter(|(_, tablet)| tablet.upper > key).map(|(number, _)| number).collect();
        found.sort_by_key(|number| self.all[*number].lower);
        found
    }

    /// Records that a reply told the client of these tablets, and of gaps between them. `sure`: it has arrived in time.
    pub(super) fn tell(&mut self, from: i64, tablets: &[usize], at: u64, sure: bool) {
        let mut next = from;
        for number in tablets {
            let tablet = &mut self.all[*number];
            tablet.told = tablet.told.max(Some(at));
            let (lower, upper) = (tablet.lower, tablet.upper);
            if sure {
                self.told.push(Told { at, lower: next, upper: lower, tablet: None });
                self.told.push(Told { at, lower, upper, tablet: Some(*number) });
            }
            next = upper;
        }
        if sure {
            self.told.push(Told { at, lower: next, upper: OPEN.1, tablet: None });
        }
    }

    /// Returns what is wrong with a call to a tablet, of an operation that began then, if the client knew better.
    pub(super) fn objection(&self, number: usize, began: u64, ttl: u64, slack: u64) -> Option<String> {
        let tablet = &self.all[number];
        let known = began.saturating_sub(slack);
        if tablet.told.is_none_or(|told| began > told + ttl + slack) {
            return Some(format!("tablet {number} is asked by a location that has expired: {tablet:?}"));
        }
        if tablet.dropped_by_client.is_some_and(|at| at < known) {
            return Some(format!(
                "tablet {number} is asked, which the client itself has dropped: {tablet:?}"
            ));
        }
        let overlaps = |told: &&Told| told.lower < tablet.upper && tablet.lower < told.upper;
        let newer = |told: &&Told| told.at < known && Some(told.at) > tablet.told && told.lower < told.upper;
        let other =
            self.told.iter().find(|told| overlaps(told) && newer(told) && told.tablet != Some(number));
        other.map(|told| {
            let (by, at) = (told.tablet, told.at);
            format!(
                "tablet {number} is asked, which the client knew at {at} to be replaced by {by:?}: {tablet:?}"
            )
        })
    }

    /// Returns the changes of the ranges around a key.
    pub(super) fn changes_of(&self, key: i64) -> impl Iterator<Item = &ChangedRange> {
        self.changes.iter().filter(move |change| (change.lower..change.upper).contains(&key))
    }

    /// Returns true if the ranges around a key have changed since then.
    pub(super) fn changed(&self, key: i64, since: u64) -> bool {
        self.changes_of(key).any(|change| change.at >= since)
    }
}

impl Tablet {
    /// Returns the bounds as partition keys.
    pub(super) fn partition_keys(&self) -> (Vec<u8>, Vec<u8>) {
        let bound = |key, open| if key == open { Vec::new() } else { keys::int64_key(key) };
        (bound(self.lower, OPEN.0), bound(self.upper, OPEN.1))
    }
}

/// Returns a tablet's id.
pub(super) fn tablet_id(number: usize) -> String {
    format!("tablet-{number}")
}
