//! The sweep of a tablet: for each key, writes and snapshot reads by timestamp over the states that the row may have.
//!
//! A write of unknown outcome may take effect at any time after its call, or never. A state of the sweep is a row, the
//! unknown writes that took effect, and the rows that open diff scans began with.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::answers::{columns_of, key_of, within};
use super::history::{ReadCall, ReadOutcome, TableCall, TableEvent, WriteOutcome};
use super::reads::{self, Meaning};
use super::{NAME, numbering, of_call, show_version};
use crate::history::HybridStamp;
use crate::model::rows::{self, show_state};
use crate::model::{Incarnation, ModelRow, RowAnswer, RowWrite, TableVersion};
use crate::oracle::{OracleReport, Violation};
use crate::wire::keys;
use crate::wire::scan::ScanRow;

/// Most states of a row that are followed. Of more, those in which the fewest unknown writes took effect stay: if one
/// of them explains all calls, the row is correct, and if none does, the row is left undecided.
const STATES_MAX: usize = 2_000;
const STATES_LEFT: usize = 400;
/// Most unknown writes of a row.
const UNKNOWN_MAX: usize = 120;
/// Lines of a story on each side of the violation.
const STORY_LINES: usize = 10;
/// Versions of the table that a story shows, from the one before the version that the client knew.
const STORY_VERSIONS: usize = 6;

/// A call and its index in the history.
pub(super) type Call<'a> = (usize, &'a TableEvent);

/// An event of a key at a timestamp.
#[derive(Debug, Clone, Copy)]
enum KeyEvent<'a> {
    /// An acknowledged write, as each version of the table that may have been in force takes it.
    Write {
        call: usize,
        row: &'a RowWrite,
        answer: RowAnswer,
    },
    /// A snapshot: all before the timestamp.
    Read {
        call: usize,
    },
    DiffBegins {
        call: usize,
    },
}

/// An unknown write: it takes effect at or after a timestamp.
struct Unknown<'a> {
    call: usize,
    row: &'a RowWrite,
    earliest: HybridStamp,
}

/// A state that a row may have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct CandidateState {
    row: ModelRow,
    applied: u128,
    /// Diff scans that have begun: their call, the row then, and whether it was written since.
    open: Vec<(usize, ModelRow, bool)>,
}

/// A scan, and what it means in the table's own columns.
struct Read<'a> {
    call: &'a ReadCall,
    at: Option<HybridStamp>,
    rows: BTreeMap<Vec<u8>, &'a ScanRow>,
    count: u64,
    meaning: Meaning,
    /// Sums over all keys of a scan for the number of rows: the least and the most that it may give.
    least: u64,
    most: u64,
}

struct Sweep<'a, 'r> {
    table: &'a Incarnation,
    calls: &'a [Call<'a>],
    reads: BTreeMap<usize, Read<'a>>,
    report: &'r mut OracleReport,
    /// True once states of the key were left out, as there were too many.
    is_incomplete: bool,
}

/// Checks the calls on one tablet.
pub(super) fn check(table: &Incarnation, calls: &[Call], report: &mut OracleReport) {
    let mut reads = BTreeMap::new();
    for (at, (_, event)) in calls.iter().enumerate() {
        if let TableCall::Read { call, outcome: ReadOutcome::Rows { at: stamp, rows, count } } = &event.call
            && let Some(meaning) = meaning(table, event, call)
        {
            let rows = rows.iter().map(|row| (key_of(table, call, row), row)).collect();
            let rows = if call.columns.is_empty() { BTreeMap::new() } else { rows };
            let stamp = match call.time {
                crate::wire::scan::ScanTime::Named(stamp) => Some(stamp),
                _ => *stamp,
            };
            let read = Read { call, at: stamp, rows, count: *count, meaning, least: 0, most: 0 };
            reads.insert(at, read);
        }
    }
    let mut sweep = Sweep { table, calls, reads, report, is_incomplete: false };
    for key in sweep.keys() {
        sweep.check_key(&key);
    }
    sweep.check_counts();
}

/// Returns what a scan's columns mean; `None` if they may mean different ones.
fn meaning(table: &Incarnation, event: &TableEvent, call: &ReadCall) -> Option<Meaning> {
    let columns = columns_of(call, &table.versions[event.view].table.columns);
    // A condition names its column without a type: a column of the same name that was added later may be taken for it.
    let untyped = columns.iter().filter(|column| !call.columns.contains(&column.number));
    let others = |version: &TableVersion| untyped.clone().any(|column| version.has_other(column));
    if table.possible(event.span()).any(others) {
        return None;
    }
    let mut found = table.possible(event.span()).filter_map(|version| version.resolve(&columns));
    let first = found.next()?;
    found.all(|other| other == first).then_some(first)
}

impl<'a> Sweep<'a, '_> {
    fn key(&self, row: &RowWrite) -> Vec<u8> {
        let cell = |number: u8| row.cells.get(&number).cloned().unwrap_or(sim_plan::tables::Value::Null);
        keys::primary_key(&self.table.versions[0].table, &cell)
    }

    /// Returns all keys that were written or read.
    fn keys(&self) -> BTreeSet<Vec<u8>> {
        let mut found: BTreeSet<Vec<u8>> =
            self.reads.values().flat_map(|read| read.rows.keys().cloned()).collect();
        for (_, event) in self.calls {
            if let TableCall::Write { rows, .. } = &event.call {
                found.extend(rows.iter().map(|row| self.key(row)));
            }
        }
        found
    }

    fn check_key(&mut self, key: &[u8]) {
        let (key_events, unknown) = self.key_events(key);
        self.is_incomplete = false;
        if unknown.len() > UNKNOWN_MAX {
            return self.give_up(key);
        }
        let mut candidates = BTreeSet::from([CandidateState { row: None, applied: 0, open: Vec::new() }]);
        let mut ever: BTreeSet<ModelRow> = BTreeSet::from([None]);
        for (stamp, key_event) in &key_events {
            self.let_unknown_take_effect(&mut candidates, &unknown, *stamp, &mut ever);
            let next = self.step(key, &candidates, key_event);
            ever.extend(next.iter().map(|candidate| candidate.row.clone()));
            if next.is_empty() && self.is_incomplete {
                return self.give_up(key);
            }
            if next.is_empty() {
                self.leave_out(key);
                return self.object(key, key_event, &candidates);
            }
            candidates = next;
            self.limit(&mut candidates);
        }
        // Only reads without a snapshot ask for what happened after the last event.
        if !self.reads.values().any(|read| read.at.is_none() && read.rows.contains_key(key)) {
            return;
        }
        self.let_unknown_take_effect(&mut candidates, &unknown, HybridStamp::MAX, &mut ever);
        if !self.is_incomplete {
            self.check_stale_reads(key, &ever);
        }
    }

    /// Leaves out states if there are too many; returns true if so.
    fn limit(&mut self, candidates: &mut BTreeSet<CandidateState>) -> bool {
        if candidates.len() <= STATES_MAX {
            return false;
        }
        self.is_incomplete = true;
        let mut left: Vec<CandidateState> = std::mem::take(candidates).into_iter().collect();
        left.sort_by_key(|candidate| candidate.applied.count_ones());
        left.truncate(STATES_LEFT);
        candidates.extend(left);
        true
    }

    /// Leaves a key undecided: it may be in any count.
    fn give_up(&mut self, key: &[u8]) {
        self.report.undecided += 1;
        self.leave_out(key);
    }

    /// Lets each count have a key or not.
    fn leave_out(&mut self, key: &[u8]) {
        for read in self.reads.values_mut().filter(|read| within(read.call, key)) {
            read.most += 1;
        }
    }

    /// Returns what happens to a key, in order, and its unknown writes.
    fn key_events(&self, key: &[u8]) -> (Vec<(HybridStamp, KeyEvent<'a>)>, Vec<Unknown<'a>>) {
        let (mut key_events, mut unknown) = (Vec::new(), Vec::new());
        for (call, (_, event)) in self.calls.iter().enumerate() {
            let TableCall::Write { rows, outcome } = &event.call else { continue };
            for (at, row) in rows.iter().enumerate().filter(|(_, row)| self.key(row) == key) {
                match outcome {
                    WriteOutcome::Applied { at: stamp, answers } => {
                        key_events.push((*stamp, KeyEvent::Write { call, row, answer: answers[at] }));
                    }
                    WriteOutcome::Unknown(_) => {
                        unknown.push(Unknown { call, row, earliest: event.after + 1 })
                    }
                    WriteOutcome::Refused { .. } => {}
                }
            }
        }
        // What had returned before an unknown write was called is before it in its tablet.
        for write in &mut unknown {
            let invoked = self.calls[write.call].1.invoked;
            let before = key_events.iter().filter(|(_, key_event)| match key_event {
                KeyEvent::Write { call, .. } => self.calls[*call].1.returned < invoked,
                _ => false,
            });
            let newest = before.map(|(stamp, _)| stamp + 1).max().unwrap_or_default();
            write.earliest = write.earliest.max(newest);
        }
        for (call, read) in self.reads.iter().filter(|(_, read)| within(read.call, key)) {
            let Some(at) = read.at else { continue };
            key_events.extend(read.call.since.map(|since| (since, KeyEvent::DiffBegins { call: *call })));
            key_events.push((at, KeyEvent::Read { call: *call }));
        }
        // A snapshot has all before its timestamp; of two at one timestamp a diff scan begins first.
        let order = |key_event: &KeyEvent| match key_event {
            KeyEvent::DiffBegins { .. } => 0,
            KeyEvent::Read { .. } => 1,
            KeyEvent::Write { .. } => 2,
        };
        key_events.sort_by_key(|(stamp, key_event)| (*stamp, order(key_event)));
        (key_events, unknown)
    }

    /// Adds the candidates in which unknown writes took effect before a timestamp.
    fn let_unknown_take_effect(
        &mut self,
        candidates: &mut BTreeSet<CandidateState>,
        unknown: &[Unknown],
        before: HybridStamp,
        ever: &mut BTreeSet<ModelRow>,
    ) {
        let mut new: VecDeque<CandidateState> = candidates.iter().cloned().collect();
        while let Some(candidate) = new.pop_front() {
            for (at, write) in unknown.iter().enumerate() {
                if candidate.applied & (1 << at) != 0 || write.earliest >= before {
                    continue;
                }
                let event = self.calls[write.call].1;
                for version in self.table.possible(event.invoked..=u64::MAX) {
                    let Some((effect, _)) = self.effect(version, event, write.row, &candidate.row) else {
                        continue;
                    };
                    let next = CandidateState {
                        applied: candidate.applied | 1 << at,
                        ..written(&candidate, effect)
                    };
                    if candidates.insert(next.clone()) {
                        ever.insert(next.row.clone());
                        new.push_back(next);
                    }
                }
                if self.limit(candidates) {
                    return;
                }
            }
        }
    }

    /// Returns what a write does to a row under a version, and its answers.
    fn effect(
        &self,
        version: &TableVersion,
        event: &TableEvent,
        row: &RowWrite,
        state: &ModelRow,
    ) -> Option<((ModelRow, bool), Vec<RowAnswer>)> {
        let view = &self.table.versions[event.view].table.columns;
        let write = self.table.translate(version, event.invoked, view, row)?;
        let effect = rows::apply(&version.table.columns, self.table.key_count(), &write, state);
        Some(((effect.after, effect.changed), effect.answers))
    }

    fn step(
        &mut self,
        key: &[u8],
        candidates: &BTreeSet<CandidateState>,
        key_event: &KeyEvent<'a>,
    ) -> BTreeSet<CandidateState> {
        match key_event {
            KeyEvent::Write { call, row, answer } => {
                let event = self.calls[*call].1;
                let possible: Vec<&TableVersion> = self.table.possible(event.span()).collect();
                let mut next = BTreeSet::new();
                for (candidate, version) in
                    candidates.iter().flat_map(|candidate| possible.iter().map(move |of| (candidate, of)))
                {
                    let Some((effect, answers)) = self.effect(version, event, row, &candidate.row) else {
                        continue;
                    };
                    if answers.iter().any(|expected| expected.is_told_by(*answer)) {
                        next.insert(written(candidate, effect));
                    }
                }
                next
            }
            KeyEvent::DiffBegins { call } => {
                let begun = |candidate: &CandidateState| {
                    let mut candidate = candidate.clone();
                    candidate.open.push((*call, candidate.row.clone(), false));
                    candidate
                };
                candidates.iter().map(begun).collect()
            }
            KeyEvent::Read { call } => self.read(key, candidates, *call),
        }
    }

    fn read(
        &mut self,
        key: &[u8],
        candidates: &BTreeSet<CandidateState>,
        call: usize,
    ) -> BTreeSet<CandidateState> {
        let Some(read) = self.reads.get_mut(&call) else { return candidates.clone() };
        let observed = read.rows.get(key).copied();
        let (mut next, mut sums) = (BTreeSet::new(), (u64::MAX, 0));
        for candidate in candidates {
            let mut after = candidate.clone();
            let began = after.open.iter().position(|(of, ..)| *of == call).map(|at| after.open.remove(at));
            let hides = numbering::hides(self.table, read.call, &candidate.row);
            if read.call.columns.is_empty() {
                let (least, most) = match hides {
                    true => (0, 1),
                    false => reads::counted(self.table, read.call, &read.meaning, &candidate.row),
                };
                sums = (sums.0.min(least), sums.1.max(most));
                next.insert(after);
                continue;
            }
            let complete = is_complete(read, key) && !hides;
            let fits = match &began {
                None => reads::fits(self.table, read.call, &read.meaning, &candidate.row, observed, complete),
                Some(_) if (read.call.partial || hides) && observed.is_none() => true,
                Some((_, before, touched)) => {
                    let change = (before, &candidate.row, *touched);
                    reads::fits_diff(self.table, read.call, &read.meaning, change, observed)
                }
            };
            if fits {
                next.insert(after);
            }
        }
        if read.call.columns.is_empty() {
            // A state that was left out may count otherwise.
            let sums = if self.is_incomplete { (0, 1) } else { sums };
            let sums = if read.call.partial { (0, sums.1) } else { sums };
            (read.least, read.most) = (read.least + sums.0, read.most + sums.1);
        }
        next
    }

    /// Checks reads without a snapshot: each row is one that the key had at some time.
    fn check_stale_reads(&mut self, key: &[u8], ever: &BTreeSet<ModelRow>) {
        let mut found = Vec::new();
        for (call, read) in self.reads.iter().filter(|(_, read)| read.at.is_none()) {
            let Some(row) = read.rows.get(key).copied() else { continue };
            let fits =
                |state: &ModelRow| reads::fits(self.table, read.call, &read.meaning, state, Some(row), false);
            if !ever.iter().any(fits) {
                found.push(*call);
            }
        }
        for call in found {
            let (at, event) = self.calls[call];
            let key = self.show(key);
            self.report.add(of_call(at, event, &format!("the row of key {key} never had these values")));
        }
    }

    fn check_counts(&mut self) {
        let unnumbered = self.unnumbered();
        for (call, read) in &self.reads {
            let limit = read.call.limit.map_or(u64::MAX, u64::from);
            let is_bounded = read.call.lower.is_some() || read.call.upper.is_some();
            let most = read.most + if is_bounded { unnumbered } else { 0 };
            let (least, most) = (read.least.min(limit), most.min(limit));
            let counts = read.call.columns.is_empty() && read.at.is_some() && read.call.since.is_none();
            if counts && !(least..=most).contains(&read.count) {
                let (at, event) = self.calls[*call];
                let what = format!("{} rows instead of {least} to {most}", read.count);
                self.report.add(of_call(at, event, &what));
            }
        }
    }

    /// Returns the number of inserts whose number is not known: they may be within any bounds.
    fn unnumbered(&self) -> u64 {
        let rows = self.calls.iter().filter_map(|(_, event)| match &event.call {
            TableCall::Write { rows, .. } => Some(rows),
            _ => None,
        });
        rows.flatten().filter(|row| numbering::is_unnumbered(self.table, &row.cells)).count() as u64
    }

    fn show(&self, key: &[u8]) -> String {
        key.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reports that no state of the row explains what happened.
    fn object(&mut self, key: &[u8], culprit: &KeyEvent, candidates: &BTreeSet<CandidateState>) {
        let call_of = |key_event: &KeyEvent| match key_event {
            KeyEvent::Write { call, .. } | KeyEvent::Read { call } | KeyEvent::DiffBegins { call } => *call,
        };
        let culprit = call_of(culprit);
        let (key_events, unknown) = self.key_events(key);
        let mut lines: Vec<(HybridStamp, usize)> =
            key_events.iter().map(|(stamp, key_event)| (*stamp, call_of(key_event))).collect();
        lines.extend(unknown.iter().map(|write| (write.earliest, write.call)));
        lines.sort_unstable();
        lines.dedup();
        let at = lines.iter().position(|(_, call)| *call == culprit).unwrap_or_default();
        let around = at.saturating_sub(STORY_LINES)..lines.len().min(at + STORY_LINES / 2);
        let mut story: Vec<String> =
            lines[around].iter().map(|(_, call)| self.line(key, *call, culprit)).collect();
        let states: BTreeSet<String> =
            candidates.iter().map(|candidate| show_state(&candidate.row)).collect();
        story.extend(states.iter().take(4).map(|state| format!("   it may have been {state}")));
        let (index, event) = self.calls[culprit];
        let versions = self.table.versions.iter().enumerate().skip(event.view.saturating_sub(1));
        story.extend(versions.take(STORY_VERSIONS).map(|(at, version)| show_version(at, version)));
        let message = format!(
            "table {} key {}: call {index} fits no state of the row",
            self.table.number,
            self.show(key)
        );
        self.report.add(Violation { oracle: NAME, message, story });
    }

    /// Returns a line of a story: a call, and what it says of the key.
    fn line(&self, key: &[u8], call: usize, culprit: usize) -> String {
        let (index, event) = self.calls[call];
        let mark = if call == culprit { "=>" } else { "  " };
        let row = self.reads.get(&call).map(|read| match read.rows.get(key) {
            Some(row) => format!(", {}the row {:?}", if row.deleted { "gone: " } else { "" }, row.values),
            None => ", not the row".to_string(),
        });
        format!("{mark} call {index} {event}{}", row.unwrap_or_default())
    }
}

/// Returns a candidate after a write.
fn written(candidate: &CandidateState, (row, changed): (ModelRow, bool)) -> CandidateState {
    let mut after = candidate.clone();
    after.row = row;
    after.open.iter_mut().for_each(|(.., touched)| *touched |= changed);
    after
}

/// Returns true if a scan would have given the row of this key.
fn is_complete(read: &Read, key: &[u8]) -> bool {
    if read.call.partial {
        return false;
    }
    let Some(limit) = read.call.limit else { return true };
    let full = read.count >= u64::from(limit);
    !full || read.call.ordered && read.rows.keys().next_back().is_some_and(|last| key <= last.as_slice())
}
