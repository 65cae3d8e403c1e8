//! O2: every answer with a timestamp agrees with the versions of its row.
//!
//! ```text
//! acknowledged writes, by timestamp     10: upsert 5        30: delete
//! unknown writes, anywhere after theirs            ?: upsert 6 (its client had seen 12)
//! reads at a snapshot                        20: must be 5 or 6          40: must be none or 6
//! ```
//!
//! Row by row, the acknowledged writes are replayed in the order of their timestamps, and each snapshot read, diff
//! scan and row outcome is compared at its place. A write of unknown outcome may come in between at any later
//! place, once, or never; all the states that this allows are carried along, so that what one read has shown holds
//! for every later one. When no state is left, the last answer contradicts the earlier ones.
//!
//! The last read of a row, after the faults, tells whether an acknowledged write was lost: see [`super::durable`].

use std::collections::{BTreeMap, BTreeSet};

use super::row::{self, State};
use super::touch::{RowKey, Touch, What};
use super::{Finding, Report};
use crate::history::{RowOutcome, Stamp};

const NAME: &str = "versions";

/// More unknown writes, or more states than this, and a row is given up and counted as undecided.
const UNKNOWN_MAX: usize = 24;
const STATES_MAX: usize = 20_000;

/// Checks every row.
pub fn check(rows: &BTreeMap<RowKey, Vec<Touch>>, report: &mut Report) {
    for (key, touches) in rows {
        let timeline = Timeline::new(touches);
        if timeline.unknown.len() > UNKNOWN_MAX {
            report.undecided += 1;
            continue;
        }
        match timeline.replay() {
            Ok(checked) => report.checked += checked,
            Err(Stop::TooMany) => report.undecided += 1,
            Err(Stop::At(touch)) => {
                let what = "this answer contradicts the row's versions at its timestamp";
                report.add(Finding::of_row(NAME, *key, what, touches, touch.operation));
            }
        }
    }
}

/// One way the row may have come to be what it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct World {
    state: State,
    /// The unknown writes that have happened, a bit each.
    used: u32,
    /// The timestamp of the last change is not below this.
    changed: Stamp,
    /// Whether the row was there when each diff scan's window began, a bit each.
    there: u64,
}

/// What is known to have happened at a timestamp.
enum Event<'a> {
    /// A diff scan's window begins; its number, if there are not too many.
    Mark(Option<u32>),
    Read(&'a Touch<'a>),
    Write(&'a Touch<'a>),
}

struct Timeline<'a> {
    events: Vec<(Stamp, Event<'a>)>,
    unknown: Vec<&'a Touch<'a>>,
    marks: BTreeMap<Stamp, u32>,
}

enum Stop<'a> {
    At(&'a Touch<'a>),
    TooMany,
}

impl<'a> Timeline<'a> {
    fn new(touches: &'a [Touch<'a>]) -> Timeline<'a> {
        let mut marks = BTreeMap::new();
        let mut events: Vec<(Stamp, u8, (usize, usize), Event<'a>)> = Vec::new();
        for touch in touches {
            let order = (touch.operation, touch.order);
            match &touch.what {
                What::Write { answer: Some((_, RowOutcome::Refused)), .. } => {}
                What::Write { answer: Some((at, _)), .. } => {
                    events.push((*at, 2, order, Event::Write(touch)))
                }
                // A snapshot is the state before its timestamp.
                What::Read { at: Some(at), .. } => {
                    events.push((*at, 1, order, Event::Read(touch)));
                }
                What::Diff { from, at, .. } => {
                    let number = marks.len() as u32;
                    marks.entry(*from).or_insert_with(|| {
                        events.push((*from, 0, order, Event::Mark((number < 64).then_some(number))));
                        number
                    });
                    events.push((*at, 1, order, Event::Read(touch)));
                }
                What::Write { .. } | What::Read { .. } => {}
            }
        }
        events.sort_unstable_by_key(|(at, rank, order, _)| (*at, *rank, *order));
        let events = events.into_iter().map(|(at, _, _, event)| (at, event)).collect();
        let unknown = touches.iter().filter(|touch| touch.what.is_unknown_write()).collect();
        Timeline { events, unknown, marks }
    }

    /// The number of answers checked, or where no world was left.
    fn replay(&self) -> Result<u64, Stop<'a>> {
        let mut worlds = vec![World { state: None, used: 0, changed: 0, there: 0 }];
        let (mut checked, mut last) = (0, 0);
        for (at, event) in &self.events {
            if *at > last {
                worlds = self.let_unknown_happen(worlds, last, *at)?;
                last = *at;
            }
            let touch = match event {
                Event::Mark(number) => {
                    worlds.iter_mut().for_each(|world| world.mark(*number));
                    continue;
                }
                Event::Read(touch) => {
                    worlds.retain(|world| self.gives(world, touch));
                    touch
                }
                Event::Write(touch) => {
                    worlds.retain_mut(|world| world.write(touch, *at));
                    touch
                }
            };
            if worlds.is_empty() {
                return Err(Stop::At(touch));
            }
            checked += 1;
        }
        Ok(checked)
    }

    /// Before `to` and not before `from`, any unknown write may happen whose client cannot have seen so far.
    fn let_unknown_happen(&self, worlds: Vec<World>, from: Stamp, to: Stamp) -> Result<Vec<World>, Stop<'a>> {
        if self.unknown.is_empty() {
            return Ok(worlds);
        }
        let mut fresh = worlds.clone();
        // Worlds that had parted and became alike again are one from here on.
        let mut worlds = BTreeSet::from_iter(worlds);
        while let Some(world) = fresh.pop() {
            for (number, touch) in self.unknown.iter().enumerate() {
                // Its timestamp is above what its client had seen, and below `to`.
                if world.used & (1 << number) != 0 || touch.after.saturating_add(1) >= to {
                    continue;
                }
                let What::Write { row, .. } = &touch.what else { continue };
                let Some(state) = row::apply(&world.state, row).change else { continue };
                let used = world.used | 1 << number;
                let next = World { state, used, changed: from.max(touch.after + 1), there: world.there };
                if worlds.insert(next.clone()) {
                    fresh.push(next);
                }
            }
            if worlds.len() > STATES_MAX {
                return Err(Stop::TooMany);
            }
        }
        Ok(worlds.into_iter().collect())
    }

    /// Whether this read would give in that world what it gave.
    fn gives(&self, world: &World, touch: &Touch) -> bool {
        match &touch.what {
            What::Read { state, view, .. } => view.gives(&world.state, state),
            What::Diff { from, seen, .. } => {
                let number = self.marks.get(from).copied().filter(|number| *number < 64);
                let was_there = number.map(|number| world.there & (1 << number) != 0);
                world.explains_diff(*from, *seen, was_there)
            }
            What::Write { .. } => true,
        }
    }
}

impl World {
    fn mark(&mut self, number: Option<u32>) {
        if self.state.is_some() {
            self.there |= number.map_or(0, |number| 1 << number);
        }
    }

    /// Goes on after an acknowledged write; whether it has the outcome here that it had.
    fn write(&mut self, touch: &Touch, at: Stamp) -> bool {
        let What::Write { row, answer: Some((_, outcome)) } = &touch.what else { return true };
        let effect = row::apply(&self.state, row);
        if let Some(state) = effect.change {
            (self.state, self.changed) = (state, at);
        }
        effect.outcome == *outcome
    }

    /// `was_there`: whether the row existed when the window began, if that is known.
    fn explains_diff(&self, from: Stamp, seen: Option<&State>, was_there: Option<bool>) -> bool {
        let changed = self.changed >= from;
        match seen {
            Some(Some(row)) => changed && self.state.as_ref() == Some(row),
            Some(None) => changed && self.state.is_none(),
            // A row that came and went within the window need not be told.
            None => !changed || (self.state.is_none() && was_there != Some(true)),
        }
    }
}
