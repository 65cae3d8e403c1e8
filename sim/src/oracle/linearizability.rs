//! O1: the history of each row is linearizable.
//!
//! ```text
//! client 0   |--upsert 5--|        |-- read: 6 --|
//! client 1        |---- upsert 6 ----|                      5, 6, read: fine
//! client 2                            |-- read: 5 --|       after the read of 6 has ended: no order explains it
//! ```
//!
//! The search of Wing and Gong with Lowe's cache of visited states, row by row: a row's operations are ordered one by
//! one, always one that no other wholly precedes; known states are not entered again. A row operation of unknown
//! outcome may take effect at any time after its call; one that never did comes last. A stale read may have happened at
//! any time before it returned. A snapshot of a server's now may have happened before its call by as much as clocks
//! differ. Operations that never change the row, such as reads and rejected writes, are ordered as soon as they fit and
//! never reconsidered: an order that has them later is valid with them here, too.
//!
//! Timestamps play no part here: the order is searched for, not trusted.

use std::collections::{BTreeMap, BTreeSet};

use super::row_history::{RowEvent, RowEventKind, RowKey};
use super::row_semantics;
use super::{OracleReport, Violation};
use crate::history::{Nanos, RowOutcome, ScanMode};
use crate::rows::RowState;

const NAME: &str = "linearizability";

/// Steps of the search after which a row counts as undecided.
const STEPS_MAX: u64 = 400_000;

/// Checks every row.
pub fn check(rows: &BTreeMap<RowKey, Vec<RowEvent>>, report: &mut OracleReport) {
    for (key, row_events) in rows {
        let mut ops: Vec<&RowEvent> = row_events
            .iter()
            .filter(|row_event| takes_part(row_event) && !row_event.what.is_unknown_write())
            .collect();
        let mut answer = search(&ops);
        let has_unknown = row_events.iter().any(|row_event| row_event.what.is_unknown_write());
        // Most writes of unknown outcome never took effect, and each one that takes part doubles the search. An order
        // of all others and of those whose values were read explains the row.
        if has_unknown && !matches!(answer, Answer::Linear) {
            let read = values_read(row_events);
            ops = row_events.iter().filter(|row_event| takes_part(row_event)).collect();
            let seen: Vec<&RowEvent> = ops.iter().copied().filter(|op| !is_unseen(op, &read)).collect();
            answer = search(&seen);
        }
        if has_unknown && !matches!(answer, Answer::Linear) {
            answer = search(&ops);
        }
        match answer {
            Answer::Linear => report.checked += ops.len() as u64,
            Answer::Undecided => report.undecided += 1,
            Answer::Broken { furthest } => {
                let what = "no order of its operations explains the history of this row";
                report.add(Violation::of_row(NAME, *key, what, row_events, ops[furthest].operation));
            }
        }
    }
}

/// Returns true if the operation takes part: reads at a time of their own choice have no place in real time, and
/// rejected calls say nothing.
fn takes_part(row_event: &RowEvent) -> bool {
    match &row_event.what {
        RowEventKind::Write { answer: Some((_, RowOutcome::Refused)), .. } | RowEventKind::Diff { .. } => {
            false
        }
        RowEventKind::Write { .. } => true,
        RowEventKind::Read { mode, .. } => *mode != ScanMode::Snapshot,
    }
}

/// Returns the values of a row that reads returned.
fn values_read(row_events: &[RowEvent]) -> BTreeSet<i64> {
    let rows = row_events.iter().filter_map(|row_event| match &row_event.what {
        RowEventKind::Read { state: Some(row), .. } => Some(row),
        _ => None,
    });
    rows.flatten().filter_map(|cell| *cell).collect()
}

/// Returns true for a write of unknown outcome none of whose values was read.
fn is_unseen(row_event: &RowEvent, read: &BTreeSet<i64>) -> bool {
    let RowEventKind::Write { row, answer: None } = &row_event.what else { return false };
    !row.cells.iter().flatten().flatten().any(|value| read.contains(value))
}

enum Answer {
    Linear,
    Undecided,
    /// The operation that could never be ordered in the longest order found.
    Broken {
        furthest: usize,
    },
}

/// A call or a return, in a list ordered by time from which operations are unlinked while they are tried.
#[derive(Clone, Copy)]
struct Event {
    op: usize,
    is_call: bool,
    before: usize,
    after: usize,
}

/// The events in order of time, doubly linked; the first and the last are sentinels.
struct EventList {
    events: Vec<Event>,
    /// Indexes of each operation's call and return.
    places: Vec<(usize, usize)>,
}

impl EventList {
    fn new(ops: &[&RowEvent]) -> EventList {
        let mut bounds: Vec<(Nanos, bool, usize)> = Vec::with_capacity(2 * ops.len());
        for (op, row_event) in ops.iter().enumerate() {
            // Calls sort before returns of the same time: operations that touch are concurrent.
            bounds.push((row_event.since, false, op));
            bounds.push((row_event.settled.unwrap_or(Nanos::MAX), true, op));
        }
        bounds.sort_unstable();
        let mut places = vec![(0, 0); ops.len()];
        let last = bounds.len() + 1;
        let mut events = vec![Event { op: usize::MAX, is_call: true, before: 0, after: 1 }];
        for (at, (_, is_return, op)) in bounds.into_iter().enumerate() {
            let at = at + 1;
            if is_return {
                places[op].1 = at
            } else {
                places[op].0 = at
            }
            events.push(Event { op, is_call: !is_return, before: at - 1, after: at + 1 });
        }
        events.push(Event { op: usize::MAX, is_call: false, before: last - 1, after: last });
        EventList { events, places }
    }

    fn first(&self) -> usize {
        self.events[0].after
    }

    fn is_empty(&self) -> bool {
        self.first() + 1 == self.events.len()
    }

    fn unlink(&mut self, at: usize) {
        let Event { before, after, .. } = self.events[at];
        self.events[before].after = after;
        self.events[after].before = before;
    }

    fn link(&mut self, at: usize) {
        let Event { before, after, .. } = self.events[at];
        self.events[before].after = at;
        self.events[after].before = at;
    }

    fn lift(&mut self, op: usize) {
        let (call, ret) = self.places[op];
        self.unlink(call);
        self.unlink(ret);
    }

    fn relink(&mut self, op: usize) {
        let (call, ret) = self.places[op];
        self.link(ret);
        self.link(call);
    }
}

/// States by number, so that they are cheap to store.
#[derive(Default)]
struct States {
    numbers: BTreeMap<RowState, u32>,
}

impl States {
    fn number(&mut self, state: &RowState) -> u32 {
        if let Some(number) = self.numbers.get(state) {
            return *number;
        }
        let number = self.numbers.len() as u32;
        self.numbers.insert(state.clone(), number);
        number
    }
}

/// Returns a random 128-bit word for each operation: the xor of a set's words stands for the set.
fn word(op: usize) -> u128 {
    let mix = |mut x: u64| {
        x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    (u128::from(mix(op as u64)) << 64) | u128::from(mix(!(op as u64)))
}

fn search(ops: &[&RowEvent]) -> Answer {
    let mut line = EventList::new(ops);
    let mut states = States::default();
    let mut met: BTreeSet<(u128, u32)> = BTreeSet::new();
    let mut state: RowState = None;
    let mut done = 0u128;
    // Ordered operations; those that changed the state keep the state before, as they were choices.
    let mut order: Vec<(usize, Option<RowState>)> = Vec::new();
    let (mut longest, mut furthest) = (0, 0);
    let mut at = line.first();
    for _ in 0..STEPS_MAX {
        if line.is_empty() {
            return Answer::Linear;
        }
        let event = line.events[at];
        if event.is_call {
            let next = step(&state, ops[event.op]);
            let idle = never_changes(ops[event.op]);
            match next {
                Some(next) if idle || met.insert((done ^ word(event.op), states.number(&next))) => {
                    let before = std::mem::replace(&mut state, next);
                    order.push((event.op, (!idle).then_some(before)));
                    done ^= word(event.op);
                    line.lift(event.op);
                    at = line.first();
                }
                _ => at = event.after,
            }
            continue;
        }
        // An operation returned before it could be ordered, so the last choice was wrong.
        if order.len() >= longest {
            (longest, furthest) = (order.len(), event.op.min(ops.len() - 1));
        }
        loop {
            let Some((op, before)) = order.pop() else { return Answer::Broken { furthest } };
            done ^= word(op);
            line.relink(op);
            if let Some(before) = before {
                state = before;
                at = line.events[line.places[op].0].after;
                break;
            }
        }
    }
    Answer::Undecided
}

/// Returns true if the operation changes no state in which it fits.
fn never_changes(row_event: &RowEvent) -> bool {
    use RowOutcome::{AlreadyPresent, NotFound};
    match &row_event.what {
        RowEventKind::Read { .. } => true,
        RowEventKind::Write { answer, .. } => matches!(answer, Some((_, AlreadyPresent | NotFound))),
        RowEventKind::Diff { .. } => false,
    }
}

/// Returns the state after an operation, if it can have happened in this one.
fn step(state: &RowState, row_event: &RowEvent) -> Option<RowState> {
    match &row_event.what {
        RowEventKind::Read { state: seen, view, .. } => view.gives(state, seen).then(|| state.clone()),
        RowEventKind::Write { row, answer } => {
            let effect = row_semantics::apply(state, row);
            let fits = answer.is_none_or(|(_, outcome)| outcome == effect.outcome);
            fits.then(|| effect.change.unwrap_or_else(|| state.clone()))
        }
        RowEventKind::Diff { .. } => Some(state.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::{row_history, testing};
    use sim_plan::RandomStream;

    /// Returns true if any order of the operations in `left` explains them; tries all.
    fn explained(left: &[&RowEvent], state: &RowState) -> bool {
        let called = |row_event: &RowEvent| match row_event.what {
            RowEventKind::Read { mode: ScanMode::Stale, .. } => 0,
            _ => row_event.invoked,
        };
        let settled = |row_event: &RowEvent| row_event.settled.unwrap_or(Nanos::MAX);
        left.is_empty()
            || (0..left.len()).any(|next| {
                let may = left.iter().all(|other| settled(other) >= called(left[next]));
                let mut rest = left.to_vec();
                let row_event = rest.remove(next);
                may && step(state, row_event).is_some_and(|after| explained(&rest, &after))
            })
    }

    fn random_operation(draw: &mut RandomStream, client: u64) -> String {
        let from = draw.between(1, 12);
        let (to, at) = (from + draw.between(0, 6), draw.between(1, 20));
        let (value, seen) = (draw.between(1, 2), draw.pick(&["1", "2", "-"]));
        match draw.below(8) {
            0 => format!("{client} {from}-{to} insert 5={value} ok @{at}"),
            1 => format!("{client} {from}-{to} insert 5={value} present @{at}"),
            2 => format!("{client} {from}-{to} delete 5=- ok @{at}"),
            3 => format!("{client} {from}-{to} upsert 5={value} ?"),
            4 => format!("{client} {from}-{to} stale 5={seen}"),
            5 => format!("{client} {from}-{to} upsert 5={value} ok @{at}"),
            _ => format!("{client} {from}-{to} fresh 5={seen}"),
        }
    }

    #[test]
    fn the_search_finds_an_order_if_there_is_one() {
        let (mut linear, mut broken) = (0, 0);
        for seed in 0..3_000 {
            let draw = &mut RandomStream::new(seed, "histories");
            let lines: Vec<String> = (0..6).map(|client| random_operation(draw, client)).collect();
            let operations = testing::history(&lines.join("\n"));
            let rows = row_history::by_row(&operations, 0);
            let mut report = OracleReport::default();
            check(&rows, &mut report);
            let mut all = rows.values();
            let ops: Vec<&RowEvent> =
                all.next().into_iter().flatten().filter(|row_event| takes_part(row_event)).collect();
            assert_eq!(report.is_clean(), explained(&ops, &None), "{lines:#?}");
            *(if report.is_clean() { &mut linear } else { &mut broken }) += 1;
        }
        assert!(linear > 300 && broken > 300, "{linear} linear, {broken} not");
    }
}
