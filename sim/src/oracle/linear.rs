//! O1: what clients saw of each row is linearizable.
//!
//! ```text
//! client 0   |--upsert 5--|        |-- read: 6 --|
//! client 1        |---- upsert 6 ----|                      5, 6, read: fine
//! client 2                            |-- read: 5 --|       after the read of 6 has ended: no order explains it
//! ```
//!
//! The search of Wing and Gong with Lowe's memory of visited states, row by row: a row's operations are ordered one by
//! one, always an operation that no other one wholly precedes; states already met are not entered again. A row op
//! whose outcome nobody knows may take effect at any time after its call; one that never did stands last. A stale
//! read may have happened at any time before it returned, a snapshot of a server's now as long before its call as
//! clocks differ. What never changes anything, a read or a write that was refused for what the row is, is ordered as
//! soon as it fits, and never reconsidered: an order that has it later works with it here, too.
//!
//! Timestamps play no part here: the order is looked for, not believed.

use std::collections::{BTreeMap, BTreeSet};

use super::row::{self, State};
use super::touch::{RowKey, Touch, What};
use super::{Finding, Report};
use crate::history::{Mode, Nanos, RowOutcome};

const NAME: &str = "linearizability";

/// Steps of the search after which a row is given up and counted as undecided.
const STEPS_MAX: u64 = 400_000;

/// Checks every row.
pub fn check(rows: &BTreeMap<RowKey, Vec<Touch>>, report: &mut Report) {
    for (key, touches) in rows {
        let mut ops: Vec<&Touch> =
            touches.iter().filter(|touch| belongs(touch) && !touch.what.is_unknown_write()).collect();
        let mut answer = search(&ops);
        // Most writes of unknown outcome never mattered, and each that takes part doubles the search.
        if matches!(answer, Answer::Broken { .. })
            && touches.iter().any(|touch| touch.what.is_unknown_write())
        {
            ops = touches.iter().filter(|touch| belongs(touch)).collect();
            answer = search(&ops);
        }
        match answer {
            Answer::Linear => report.checked += ops.len() as u64,
            Answer::Undecided => report.undecided += 1,
            Answer::Broken { furthest } => {
                let what = "no order of its operations explains what clients saw of this row";
                report.add(Finding::of_row(NAME, *key, what, touches, ops[furthest].operation));
            }
        }
    }
}

/// Reads at a time of their own choosing have no place in real time, and what was refused says nothing.
fn belongs(touch: &Touch) -> bool {
    match &touch.what {
        What::Write { answer: Some((_, RowOutcome::Refused)), .. } | What::Diff { .. } => false,
        What::Write { .. } => true,
        What::Read { mode, .. } => *mode != Mode::Snapshot,
    }
}

enum Answer {
    Linear,
    Undecided,
    /// The operation that could never be ordered in the longest order found.
    Broken {
        furthest: usize,
    },
}

/// A call or a return, in a list ordered by time from which operations are lifted while they are tried.
#[derive(Clone, Copy)]
struct Event {
    op: usize,
    is_call: bool,
    before: usize,
    after: usize,
}

/// The events in order of time, doubly linked; the first and the last are sentinels.
struct Line {
    events: Vec<Event>,
    /// By operation: where its call and its return stand.
    places: Vec<(usize, usize)>,
}

impl Line {
    fn new(ops: &[&Touch]) -> Line {
        let mut moments: Vec<(Nanos, bool, usize)> = Vec::with_capacity(2 * ops.len());
        for (op, touch) in ops.iter().enumerate() {
            // Calls sort before returns of the same moment: operations that meet are concurrent.
            moments.push((touch.since, false, op));
            moments.push((touch.settled.unwrap_or(Nanos::MAX), true, op));
        }
        moments.sort_unstable();
        let mut places = vec![(0, 0); ops.len()];
        let last = moments.len() + 1;
        let mut events = vec![Event { op: usize::MAX, is_call: true, before: 0, after: 1 }];
        for (at, (_, is_return, op)) in moments.into_iter().enumerate() {
            let at = at + 1;
            if is_return {
                places[op].1 = at
            } else {
                places[op].0 = at
            }
            events.push(Event { op, is_call: !is_return, before: at - 1, after: at + 1 });
        }
        events.push(Event { op: usize::MAX, is_call: false, before: last - 1, after: last });
        Line { events, places }
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

    fn put_back(&mut self, op: usize) {
        let (call, ret) = self.places[op];
        self.link(ret);
        self.link(call);
    }
}

/// States by number, so that they are cheap to remember.
#[derive(Default)]
struct States {
    numbers: BTreeMap<State, u32>,
}

impl States {
    fn number(&mut self, state: &State) -> u32 {
        if let Some(number) = self.numbers.get(state) {
            return *number;
        }
        let number = self.numbers.len() as u32;
        self.numbers.insert(state.clone(), number);
        number
    }
}

/// A random 128-bit word for each operation: the xor of a set's words stands for the set.
fn word(op: usize) -> u128 {
    let mix = |mut x: u64| {
        x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    (u128::from(mix(op as u64)) << 64) | u128::from(mix(!(op as u64)))
}

fn search(ops: &[&Touch]) -> Answer {
    let mut line = Line::new(ops);
    let mut states = States::default();
    let mut met: BTreeSet<(u128, u32)> = BTreeSet::new();
    let mut state: State = None;
    let mut done = 0u128;
    // What was ordered, with the state before each that changed it: those were choices.
    let mut order: Vec<(usize, Option<State>)> = Vec::new();
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
            line.put_back(op);
            if let Some(before) = before {
                state = before;
                at = line.events[line.places[op].0].after;
                break;
            }
        }
    }
    Answer::Undecided
}

/// Whether it leaves every state in which it fits as it is.
fn never_changes(touch: &Touch) -> bool {
    use RowOutcome::{AlreadyPresent, NotFound};
    match &touch.what {
        What::Read { .. } => true,
        What::Write { answer, .. } => matches!(answer, Some((_, AlreadyPresent | NotFound))),
        What::Diff { .. } => false,
    }
}

/// The state after an operation, if it can have happened in this one.
fn step(state: &State, touch: &Touch) -> Option<State> {
    match &touch.what {
        What::Read { state: seen, view, .. } => view.gives(state, seen).then(|| state.clone()),
        What::Write { row, answer } => {
            let effect = row::apply(state, row);
            let fits = answer.is_none_or(|(_, outcome)| outcome == effect.outcome);
            fits.then(|| effect.change.unwrap_or_else(|| state.clone()))
        }
        What::Diff { .. } => Some(state.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::Draw;
    use crate::oracle::{testing, touch};

    /// Whether any order of those that are `left` explains them, all of them tried.
    fn explained(left: &[&Touch], state: &State) -> bool {
        let called = |touch: &Touch| match touch.what {
            What::Read { mode: Mode::Stale, .. } => 0,
            _ => touch.invoked,
        };
        let settled = |touch: &Touch| touch.settled.unwrap_or(Nanos::MAX);
        left.is_empty()
            || (0..left.len()).any(|next| {
                let may = left.iter().all(|other| settled(other) >= called(left[next]));
                let mut rest = left.to_vec();
                let touch = rest.remove(next);
                may && step(state, touch).is_some_and(|after| explained(&rest, &after))
            })
    }

    fn random_operation(draw: &mut Draw, client: u64) -> String {
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
            let draw = &mut Draw::new(seed, "histories");
            let lines: Vec<String> = (0..6).map(|client| random_operation(draw, client)).collect();
            let operations = testing::history(&lines.join("\n"));
            let rows = touch::by_row(&operations, 0);
            let mut report = Report::default();
            check(&rows, &mut report);
            let mut all = rows.values();
            let ops: Vec<&Touch> = all.next().into_iter().flatten().filter(|touch| belongs(touch)).collect();
            assert_eq!(report.is_clean(), explained(&ops, &None), "{lines:#?}");
            *(if report.is_clean() { &mut linear } else { &mut broken }) += 1;
        }
        assert!(linear > 300 && broken > 300, "{linear} linear, {broken} not");
    }
}
