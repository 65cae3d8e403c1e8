//! Judges of a run, independent of the code they judge.
//!
//! They read what clients saw ([`crate::history`]) and what the world measured, and know the documented behaviour
//! only. Nothing here is taken from the engine but plain types.
//!
//! A judge who cannot say no is worth nothing: each has tests with histories that it must reject.

use std::collections::BTreeMap;

use crate::history::{Nanos, Operation};
use touch::{RowKey, Touch, What};

pub mod ancient;
pub mod bank;
pub mod calm;
pub mod clocks;
pub mod durable;
pub mod evenness;
pub mod leftovers;
pub mod linear;
pub mod lists;
pub mod logs;
pub mod membership;
pub mod memory;
pub mod numbered;
pub mod once;
pub mod quiescing;
pub mod replicas;
pub mod row;
pub mod searches;
pub mod touch;
pub mod unprovoked;
pub mod versions;
pub mod written;

/// Something that must not have happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which judge says so, by name.
    pub oracle: &'static str,
    pub message: String,
    /// The events that show it, oldest first.
    pub story: Vec<String>,
}

/// What the judges say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    pub findings: Vec<Finding>,
    /// Facts checked.
    pub checked: u64,
    /// Rows whose check was given up because too much about them is unknown.
    pub undecided: u64,
}

/// Findings kept per judge: the first tell the story.
const FINDINGS_MAX: usize = 20;
/// Judges of what clients see whose word stands though something acknowledged is gone.
const STANDS_ALL_THE_SAME: [&str; 2] = ["liveness", "rows"];
/// Lines of a story on each side of what broke it.
const STORY_LINES: usize = 12;

impl Report {
    pub fn add(&mut self, finding: Finding) {
        let same = self.findings.iter().filter(|other| other.oracle == finding.oracle).count();
        if same < FINDINGS_MAX {
            self.findings.push(finding);
        }
    }

    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

impl Finding {
    pub fn new(oracle: &'static str, message: impl Into<String>) -> Finding {
        Finding { oracle, message: message.into(), story: Vec::new() }
    }

    /// About a row, with what happened to it around the operation that gave it away.
    fn of_row(oracle: &'static str, key: RowKey, what: &str, touches: &[Touch], culprit: usize) -> Finding {
        let at = touches.iter().position(|touch| touch.operation == culprit).unwrap_or_default();
        let lines = at.saturating_sub(STORY_LINES)..touches.len().min(at + STORY_LINES + 1);
        let line = |touch: &Touch| {
            let mark = if touch.operation == culprit { "=> " } else { "   " };
            format!("{mark}{touch}")
        };
        let message = format!("table {} row {}: {what}", key.0, key.1);
        Finding { oracle, message, story: touches[lines].iter().map(line).collect() }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.oracle, self.message)?;
        self.story.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

impl std::fmt::Display for Touch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let micros = |nanos: u64| nanos / 1_000;
        let settled = self.settled.map_or("never".to_string(), |at| format!("{} us", micros(at)));
        write!(f, "op {} {} us to {settled}: ", self.operation, micros(self.invoked))?;
        match &self.what {
            What::Write { row, answer: Some((at, outcome)) } => write!(f, "{row} -> {outcome:?} at {at}"),
            What::Write { row, answer: None } => write!(f, "{row} -> unknown (after {})", self.after),
            What::Read { mode, at, state, view } => {
                let at = at.map_or(String::new(), |at| format!(" at {at}"));
                let filter = view.filter.map_or(String::new(), |filter| format!(" where {filter:?}"));
                write!(f, "read {mode:?}{at}{filter} -> {}", row::show(state))
            }
            What::Diff { from, at, seen } => {
                let seen = seen.map_or("not reported".to_string(), row::show);
                write!(f, "diff {from} to {at} -> {seen}")
            }
        }
    }
}

/// Everything that can be judged by the history alone. `apart`: how far the clocks of two servers may differ.
pub fn judge(operations: &[Operation], apart: Nanos) -> Report {
    let mut report = Report::default();
    let rows: BTreeMap<RowKey, Vec<Touch<'_>>> = touch::by_row(operations, apart);
    linear::check(&rows, &mut report);
    versions::check(&rows, &mut report);
    durable::check(&rows, &mut report);
    once::check(&rows, &mut report);
    once::check_scans(operations, &mut report);
    clocks::check(operations, &rows, &mut report);
    clocks::check_snapshots(operations, &mut report);
    bank::check(operations, &mut report);
    lists::check(operations, &mut report);
    crate::invariants::repeatable_snapshot::check(operations, &mut report);
    report
}

/// What can be judged of the history where power cuts take what was acknowledged; `said` is what else was objected to.
pub fn judge_forgetful(operations: &[Operation], said: &[Finding]) -> Report {
    let mut report = Report::default();
    written::check(&touch::by_row(operations, 0), &mut report);
    once::check_scans(operations, &mut report);
    let stands = |finding: &&Finding| STANDS_ALL_THE_SAME.contains(&finding.oracle);
    said.iter().filter(stands).for_each(|finding| report.add(finding.clone()));
    report
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
