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
//! or never. A search looks for a history that explains all replies: first without such writes, then with the fewest,
//! at the latest place. When there is none, the reply that no history gets past contradicts the earlier ones.
//!
//! The last read of a row, after the faults, shows if an acknowledged write was lost: see [`super::durability`].

use std::collections::{BTreeMap, VecDeque};

use super::row_history::{RowEvent, RowEventKind, RowKey};
use super::row_semantics;
use super::{OracleReport, Violation};
use crate::history::{HybridStamp, RowOutcome};
use crate::rows::RowState;

const NAME: &str = "versions";

/// With more unknown writes than this, a row counts as undecided.
const UNKNOWN_MAX: usize = 128;
/// Most hypotheses of a row that are tried. A row that needs more counts as undecided.
const HYPOTHESES_MAX: usize = 200_000;

/// Checks every row.
pub fn check(rows: &BTreeMap<RowKey, Vec<RowEvent>>, report: &mut OracleReport) {
    for (key, row_events) in rows {
        let timeline = Timeline::new(row_events);
        if timeline.unknown.len() > UNKNOWN_MAX {
            report.undecided += 1;
            continue;
        }
        match Search::of(&timeline).run() {
            Verdict::Explained => report.checked += timeline.replies(),
            Verdict::Undecided => report.undecided += 1,
            Verdict::Contradicted(row_event) => {
                let what = "this answer contradicts the row's versions at its timestamp";
                report.add(Violation::of_row(NAME, *key, what, row_events, row_event.operation));
            }
        }
    }
}

/// One possible history of a row so far.
#[derive(Debug, Clone)]
struct VersionHypothesis {
    state: RowState,
    /// The unknown writes that have happened, a bit each.
    used: u128,
    /// The last change was not before this: 0 or the beginning of a diff scan's window.
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

/// The events of one timestamp.
struct Step<'a> {
    at: HybridStamp,
    events: Vec<Event<'a>>,
}

struct Timeline<'a> {
    steps: Vec<Step<'a>>,
    unknown: Vec<&'a RowEvent<'a>>,
    marks: BTreeMap<HybridStamp, u32>,
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
        let mut steps: Vec<Step> = Vec::new();
        for (at, _, _, event) in events {
            match steps.last_mut().filter(|step| step.at == at) {
                Some(step) => step.events.push(event),
                None => steps.push(Step { at, events: vec![event] }),
            }
        }
        let unknown = row_events.iter().filter(|row_event| row_event.what.is_unknown_write()).collect();
        Timeline { steps, unknown, marks }
    }

    /// Returns the number of replies.
    fn replies(&self) -> u64 {
        let events = self.steps.iter().flat_map(|step| &step.events);
        events.filter(|event| !matches!(event, Event::Mark(_))).count() as u64
    }

    /// Returns the last beginning of a diff scan's window up to a change: when it came since then makes no difference.
    fn window_of(&self, changed: HybridStamp) -> HybridStamp {
        self.marks.range(..=changed).next_back().map_or(0, |(from, _)| *from)
    }

    /// Returns the hypothesis after an event, if the event has the reply there that it had.
    fn after(
        &self,
        mut hypothesis: VersionHypothesis,
        event: &Event,
        at: HybridStamp,
    ) -> Option<VersionHypothesis> {
        let is_right = match event {
            Event::Mark(number) => {
                hypothesis.mark(*number);
                true
            }
            Event::Read(row_event) => self.gives(&hypothesis, row_event),
            Event::Write(row_event) => hypothesis.write(row_event, self.window_of(at)),
        };
        is_right.then_some(hypothesis)
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

    /// Applies an acknowledged write of the window that begins at `window`; returns true if it has the outcome here
    /// that it had.
    fn write(&mut self, row_event: &RowEvent, window: HybridStamp) -> bool {
        let RowEventKind::Write { row, answer: Some((_, outcome)) } = &row_event.what else { return true };
        let effect = row_semantics::apply(&self.state, row);
        if let Some(state) = effect.change {
            (self.state, self.changed) = (state, window);
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

/// Hypotheses that were tried at one place. One with the same state whose unknown writes are among those of another
/// implies it: whatever may follow the other may follow it.
#[derive(Default)]
struct TriedHypotheses(BTreeMap<(RowState, HybridStamp, u64), Vec<u128>>);

impl TriedHypotheses {
    /// Adds a hypothesis; returns false if one that was tried implies it.
    fn insert(&mut self, added: &VersionHypothesis) -> bool {
        let sets = self.0.entry((added.state.clone(), added.changed, added.there)).or_default();
        if sets.iter().any(|used| used & added.used == *used) {
            return false;
        }
        sets.retain(|used| used & added.used != added.used);
        sets.push(added.used);
        true
    }
}

enum Verdict<'a> {
    Explained,
    /// There were too many hypotheses.
    Undecided,
    /// The last reply that a history reached, and none got past.
    Contradicted(&'a RowEvent<'a>),
}

/// The place before a step, at which unknown writes may have happened.
struct Place {
    /// Hypotheses yet to be tried, those with the fewest unknown writes first.
    fresh: VecDeque<VersionHypothesis>,
    /// Hypotheses that were tried; those with one more unknown write come next.
    tried: VecDeque<VersionHypothesis>,
}

impl Place {
    fn of(hypothesis: VersionHypothesis) -> Place {
        Place { fresh: VecDeque::from([hypothesis]), tried: VecDeque::new() }
    }
}

/// A search for a history that explains all replies of a row, depth first.
struct Search<'t, 'a> {
    timeline: &'t Timeline<'a>,
    /// By step, hypotheses before it. Whatever is found here again has failed.
    tried: Vec<TriedHypotheses>,
    /// Hypotheses that may still be tried.
    left: usize,
    /// The furthest step and event that a hypothesis failed at.
    failed: (usize, usize),
}

impl<'t, 'a> Search<'t, 'a> {
    fn of(timeline: &'t Timeline<'a>) -> Search<'t, 'a> {
        let tried = std::iter::repeat_with(TriedHypotheses::default).take(timeline.steps.len()).collect();
        Search { timeline, tried, left: HYPOTHESES_MAX, failed: (0, 0) }
    }

    fn run(mut self) -> Verdict<'a> {
        let timeline = self.timeline;
        let start = VersionHypothesis { state: None, used: 0, changed: 0, there: 0 };
        let mut places = vec![Place::of(start)];
        while let Some(mut place) = places.pop() {
            let number = places.len();
            let Some(step) = timeline.steps.get(number) else { return Verdict::Explained };
            if self.left == 0 {
                return Verdict::Undecided;
            }
            let Some(hypothesis) = self.next(&mut place, number) else { continue };
            places.push(place);
            if let Some(after) = self.replay(hypothesis, number, step) {
                places.push(Place::of(after));
            }
        }
        let (step, event) = self.failed;
        match timeline.steps[step].events[event] {
            Event::Read(row_event) | Event::Write(row_event) => Verdict::Contradicted(row_event),
            Event::Mark(_) => Verdict::Undecided,
        }
    }

    /// Returns the next hypothesis to try before a step.
    fn next(&mut self, place: &mut Place, number: usize) -> Option<VersionHypothesis> {
        while place.fresh.is_empty() {
            let tried = place.tried.pop_front()?;
            self.branch_on_unknown(&tried, number, &mut place.fresh);
        }
        let hypothesis = place.fresh.pop_front()?;
        if !self.timeline.unknown.is_empty() {
            place.tried.push_back(hypothesis.clone());
        }
        Some(hypothesis)
    }

    /// Returns the hypothesis after the events of a step, unless it fails there or would fail later.
    fn replay(
        &mut self,
        mut hypothesis: VersionHypothesis,
        number: usize,
        step: &Step<'a>,
    ) -> Option<VersionHypothesis> {
        for (event_number, event) in step.events.iter().enumerate() {
            let Some(after) = self.timeline.after(hypothesis, event, step.at) else {
                self.failed = self.failed.max((number, event_number));
                return None;
            };
            hypothesis = after;
        }
        let is_new = self.tried.get_mut(number + 1).is_none_or(|tried| tried.insert(&hypothesis));
        is_new.then_some(hypothesis)
    }

    /// Adds the hypotheses in which one more unknown write happens before a step, except those whose client had already
    /// seen more.
    fn branch_on_unknown(
        &mut self,
        hypothesis: &VersionHypothesis,
        number: usize,
        fresh: &mut VecDeque<VersionHypothesis>,
    ) {
        let timeline = self.timeline;
        let from = number.checked_sub(1).map_or(0, |before| timeline.steps[before].at);
        for (bit, row_event) in timeline.unknown.iter().enumerate() {
            // Its timestamp is above what its client had seen, and below that of the step.
            let is_later = row_event.after.saturating_add(1) >= timeline.steps[number].at;
            if hypothesis.used & (1 << bit) != 0 || is_later {
                continue;
            }
            let RowEventKind::Write { row, .. } = &row_event.what else { continue };
            let Some(state) = row_semantics::apply(&hypothesis.state, row).change else { continue };
            let next = VersionHypothesis {
                state,
                used: hypothesis.used | 1 << bit,
                changed: timeline.window_of(from.max(row_event.after + 1)),
                there: hypothesis.there,
            };
            if self.left > 0 && self.tried[number].insert(&next) {
                self.left -= 1;
                fresh.push_back(next);
            }
        }
    }
}
