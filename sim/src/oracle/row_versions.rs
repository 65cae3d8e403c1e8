//! O2: every reply with a timestamp agrees with the versions of its row.
//!
//! ```text
//! acknowledged writes, by timestamp     10: upsert 5        30: delete
//! unknown writes, anywhere after theirs            ?: upsert 6 (its client had seen 12)
//! reads at a snapshot                        20: must be 5 or 6          40: must be none or 6
//! ```
//!
//! Row by row, the acknowledged writes are replayed in the order of their timestamps, and each snapshot read, diff
//! scan and row outcome is compared at its place. A write of unknown outcome may take effect at any later place, once,
//! or never. All possible states are tracked, so that what one read has shown holds for every later one. When no state
//! is left, the last reply contradicts the earlier ones.
//!
//! The last read of a row, after the faults, shows if an acknowledged write was lost: see [`super::durability`].

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::row_history::{RowEvent, RowEventKind, RowKey};
use super::row_semantics;
use super::{OracleReport, Violation};
use crate::history::{HybridStamp, RowOutcome};
use crate::rows::RowState;

const NAME: &str = "versions";

/// With more unknown writes than this, a row counts as undecided.
const UNKNOWN_MAX: usize = 128;
/// Most hypotheses of a row that are followed. Of more, those in which the fewest unknown writes happened stay: if one
/// of them explains all replies, the row is correct, and if none does, the row counts as undecided.
const STATES_MAX: usize = 20_000;
const STATES_LEFT: usize = 2_000;

/// Checks every row.
pub fn check(rows: &BTreeMap<RowKey, Vec<RowEvent>>, report: &mut OracleReport) {
    for (key, row_events) in rows {
        let timeline = Timeline::new(row_events);
        if timeline.unknown.len() > UNKNOWN_MAX {
            report.undecided += 1;
            continue;
        }
        match timeline.replay() {
            Ok(checked) => report.checked += checked,
            Err(_) if timeline.is_incomplete.get() => report.undecided += 1,
            Err(row_event) => {
                let what = "this answer contradicts the row's versions at its timestamp";
                report.add(Violation::of_row(NAME, *key, what, row_events, row_event.operation));
            }
        }
    }
}

/// One possible history of a row so far.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct VersionHypothesis {
    state: RowState,
    /// The unknown writes that have happened, a bit each.
    used: u128,
    /// The timestamp of the last change is not below this.
    changed: HybridStamp,
    /// Presence of the row at the start of each diff scan's window, a bit each.
    there: u64,
}

/// An event with a known timestamp.
enum Event<'a> {
    /// A diff scan's window begins; its number, if there are not too many.
    Mark(Option<u32>),
    Read(&'a RowEvent<'a>),
    Write(&'a RowEvent<'a>),
}

struct Timeline<'a> {
    events: Vec<(HybridStamp, Event<'a>)>,
    unknown: Vec<&'a RowEvent<'a>>,
    marks: BTreeMap<HybridStamp, u32>,
    /// True once hypotheses were left out, as there were too many.
    is_incomplete: Cell<bool>,
}

impl<'a> Timeline<'a> {
    fn new(row_events: &'a [RowEvent<'a>]) -> Timeline<'a> {
        let mut marks = BTreeMap::new();
        let mut events: Vec<(HybridStamp, u8, (usize, usize), Event<'a>)> = Vec::new();
        for row_event in row_events {
            let order = (row_event.operation, row_event.order);
            match &row_event.what {
                RowEventKind::Write { answer: Some((_, RowOutcome::Refused)), .. } => {}
                RowEventKind::Write { answer: Some((at, _)), .. } => {
                    events.push((*at, 2, order, Event::Write(row_event)))
                }
                // A snapshot is the state before its timestamp.
                RowEventKind::Read { at: Some(at), .. } => {
                    events.push((*at, 1, order, Event::Read(row_event)));
                }
                RowEventKind::Diff { from, at, .. } => {
                    let number = marks.len() as u32;
                    marks.entry(*from).or_insert_with(|| {
                        events.push((*from, 0, order, Event::Mark((number < 64).then_some(number))));
                        number
                    });
                    events.push((*at, 1, order, Event::Read(row_event)));
                }
                RowEventKind::Write { .. } | RowEventKind::Read { .. } => {}
            }
        }
        events.sort_unstable_by_key(|(at, rank, order, _)| (*at, *rank, *order));
        let events = events.into_iter().map(|(at, _, _, event)| (at, event)).collect();
        let unknown = row_events.iter().filter(|row_event| row_event.what.is_unknown_write()).collect();
        Timeline { events, unknown, marks, is_incomplete: Cell::new(false) }
    }

    /// Replays the row; returns the number of replies checked, or the reply at which no hypothesis was left.
    fn replay(&self) -> Result<u64, &'a RowEvent<'a>> {
        let mut hypotheses = vec![VersionHypothesis { state: None, used: 0, changed: 0, there: 0 }];
        let (mut checked, mut last) = (0, 0);
        for (at, event) in &self.events {
            if *at > last {
                hypotheses = self.branch_on_unknown(hypotheses, last, *at);
                last = *at;
            }
            let row_event = match event {
                Event::Mark(number) => {
                    hypotheses.iter_mut().for_each(|hypothesis| hypothesis.mark(*number));
                    continue;
                }
                Event::Read(row_event) => {
                    hypotheses.retain(|hypothesis| self.gives(hypothesis, row_event));
                    row_event
                }
                Event::Write(row_event) => {
                    hypotheses.retain_mut(|hypothesis| hypothesis.write(row_event, *at));
                    row_event
                }
            };
            if hypotheses.is_empty() {
                return Err(row_event);
            }
            checked += 1;
        }
        Ok(checked)
    }

    /// Adds the hypotheses in which unknown writes happen before `to`, except those whose client had already seen more.
    fn branch_on_unknown(
        &self,
        hypotheses: Vec<VersionHypothesis>,
        from: HybridStamp,
        to: HybridStamp,
    ) -> Vec<VersionHypothesis> {
        if self.unknown.is_empty() {
            return hypotheses;
        }
        let mut fresh = VecDeque::from(hypotheses.clone());
        // Hypotheses that became equal are merged.
        let mut hypotheses = BTreeSet::from_iter(hypotheses);
        while let Some(hypothesis) = fresh.pop_front() {
            for (number, row_event) in self.unknown.iter().enumerate() {
                // Its timestamp is above what its client had seen, and below `to`.
                if hypothesis.used & (1 << number) != 0 || row_event.after.saturating_add(1) >= to {
                    continue;
                }
                let RowEventKind::Write { row, .. } = &row_event.what else { continue };
                let Some(state) = row_semantics::apply(&hypothesis.state, row).change else { continue };
                let used = hypothesis.used | 1 << number;
                let next = VersionHypothesis {
                    state,
                    used,
                    changed: from.max(row_event.after + 1),
                    there: hypothesis.there,
                };
                if hypotheses.insert(next.clone()) {
                    fresh.push_back(next);
                }
            }
            if hypotheses.len() > STATES_MAX {
                return self.simplest(hypotheses);
            }
        }
        hypotheses.into_iter().collect()
    }

    /// Leaves out hypotheses but those in which the fewest unknown writes happened.
    fn simplest(&self, hypotheses: BTreeSet<VersionHypothesis>) -> Vec<VersionHypothesis> {
        self.is_incomplete.set(true);
        let mut left: Vec<VersionHypothesis> = hypotheses.into_iter().collect();
        left.sort_by_key(|hypothesis| hypothesis.used.count_ones());
        left.truncate(STATES_LEFT);
        left
    }

    /// Returns true if this read would return in that hypothesis what it returned.
    fn gives(&self, hypothesis: &VersionHypothesis, row_event: &RowEvent) -> bool {
        match &row_event.what {
            RowEventKind::Read { state, view, .. } => view.gives(&hypothesis.state, state),
            RowEventKind::Diff { from, seen, .. } => {
                let number = self.marks.get(from).copied().filter(|number| *number < 64);
                let was_there = number.map(|number| hypothesis.there & (1 << number) != 0);
                hypothesis.explains_diff(*from, *seen, was_there)
            }
            RowEventKind::Write { .. } => true,
        }
    }
}

impl VersionHypothesis {
    fn mark(&mut self, number: Option<u32>) {
        if self.state.is_some() {
            self.there |= number.map_or(0, |number| 1 << number);
        }
    }

    /// Applies an acknowledged write; returns true if it has the outcome here that it had.
    fn write(&mut self, row_event: &RowEvent, at: HybridStamp) -> bool {
        let RowEventKind::Write { row, answer: Some((_, outcome)) } = &row_event.what else { return true };
        let effect = row_semantics::apply(&self.state, row);
        if let Some(state) = effect.change {
            (self.state, self.changed) = (state, at);
        }
        effect.outcome == *outcome
    }

    /// `was_there`: true if the row existed when the window began; `None` if unknown.
    fn explains_diff(&self, from: HybridStamp, seen: Option<&RowState>, was_there: Option<bool>) -> bool {
        let changed = self.changed >= from;
        match seen {
            Some(Some(row)) => changed && self.state.as_ref() == Some(row),
            Some(None) => changed && self.state.is_none(),
            // A row that came and went within the window need not be reported.
            None => !changed || (self.state.is_none() && was_there != Some(true)),
        }
    }
}
