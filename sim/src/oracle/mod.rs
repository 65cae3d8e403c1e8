//! Oracles: checkers of a run, independent of the code they check.
//!
//! They read the clients' history ([`crate::history`]) and the world's measurements, and know the documented behaviour
//! only. Nothing here is taken from the engine but plain types.
//!
//! An oracle must be able to fail: each has tests with histories that it must reject.

use std::collections::BTreeMap;

use crate::history::{HistoryOp, Nanos};
use row_history::{RowEvent, RowEventKind, RowKey};

pub mod answers;
pub mod auto_increment;
pub mod availability;
pub mod balance;
pub mod bank;
pub mod config_cas;
pub mod durability;
pub mod exactly_once;
pub mod history_gc;
pub mod hybrid_time;
pub mod idle_traffic;
pub mod linearizability;
pub mod lists;
pub mod log_retention;
pub mod memory_limit;
pub mod orphans;
pub mod provenance;
pub mod query_consistency;
pub mod quiescing;
pub mod replica_checksums;
pub mod resources;
pub mod row_history;
pub mod row_semantics;
pub mod row_versions;
pub mod uncaused_failures;

/// A violation reported by an oracle or invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Name of the oracle.
    pub oracle: &'static str,
    pub message: String,
    /// The events that show it, oldest first.
    pub story: Vec<String>,
}

/// The results of all oracles.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OracleReport {
    pub violations: Vec<Violation>,
    /// Number of facts checked.
    pub checked: u64,
    /// Rows left unchecked because too much about them is unknown.
    pub undecided: u64,
}

/// Violations retained per oracle: the first ones show the cause.
const VIOLATIONS_MAX: usize = 20;
/// Oracles of client-visible behaviour that stay valid after acknowledged data was lost.
const VALID_AFTER_LOSS: [&str; 2] = ["liveness", "rows"];
/// Lines of a story on each side of the violation.
const STORY_LINES: usize = 12;

impl OracleReport {
    pub fn add(&mut self, violation: Violation) {
        let same = self.violations.iter().filter(|other| other.oracle == violation.oracle).count();
        if same < VIOLATIONS_MAX {
            self.violations.push(violation);
        }
    }

    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }
}

impl Violation {
    pub fn new(oracle: &'static str, message: impl Into<String>) -> Violation {
        Violation { oracle, message: message.into(), story: Vec::new() }
    }

    /// Creates a violation about a row, with the row's events around the operation that revealed it.
    fn of_row(
        oracle: &'static str,
        key: RowKey,
        what: &str,
        row_events: &[RowEvent],
        culprit: usize,
    ) -> Violation {
        let at = row_events.iter().position(|row_event| row_event.operation == culprit).unwrap_or_default();
        let lines = at.saturating_sub(STORY_LINES)..row_events.len().min(at + STORY_LINES + 1);
        let line = |row_event: &RowEvent| {
            let mark = if row_event.operation == culprit { "=> " } else { "   " };
            format!("{mark}{row_event}")
        };
        let message = format!("table {} row {}: {what}", key.0, key.1);
        Violation { oracle, message, story: row_events[lines].iter().map(line).collect() }
    }
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.oracle, self.message)?;
        self.story.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

impl std::fmt::Display for RowEvent<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let micros = |nanos: u64| nanos / 1_000;
        let settled = self.settled.map_or("never".to_string(), |at| format!("{} us", micros(at)));
        write!(f, "op {} {} us to {settled}: ", self.operation, micros(self.invoked))?;
        match &self.what {
            RowEventKind::Write { row, answer: Some((at, outcome)) } => {
                write!(f, "{row} -> {outcome:?} at {at}")
            }
            RowEventKind::Write { row, answer: None } => write!(f, "{row} -> unknown (after {})", self.after),
            RowEventKind::Read { mode, at, state, view } => {
                let at = at.map_or(String::new(), |at| format!(" at {at}"));
                let filter = view.filter.map_or(String::new(), |filter| format!(" where {filter:?}"));
                write!(f, "read {mode:?}{at}{filter} -> {}", row_semantics::show(state))
            }
            RowEventKind::Diff { from, at, seen } => {
                let seen = seen.map_or("not reported".to_string(), row_semantics::show);
                write!(f, "diff {from} to {at} -> {seen}")
            }
        }
    }
}

/// Checks everything that needs the history alone. `apart`: the largest difference of two servers' clocks.
pub fn check_history(operations: &[HistoryOp], apart: Nanos) -> OracleReport {
    let mut report = OracleReport::default();
    let rows: BTreeMap<RowKey, Vec<RowEvent<'_>>> = row_history::by_row(operations, apart);
    linearizability::check(&rows, &mut report);
    row_versions::check(&rows, &mut report);
    durability::check(&rows, &mut report);
    exactly_once::check(&rows, &mut report);
    exactly_once::check_scans(operations, &mut report);
    hybrid_time::check(operations, &rows, &mut report);
    hybrid_time::check_snapshots(operations, &mut report);
    bank::check(operations, &mut report);
    lists::check(operations, &mut report);
    crate::invariants::repeatable_snapshot::check(operations, &mut report);
    report
}

/// Checks what still holds of the history where power cuts take acknowledged data; `said`: violations of other oracles.
pub fn check_history_after_loss(operations: &[HistoryOp], reported: &[Violation]) -> OracleReport {
    let mut report = OracleReport::default();
    provenance::check(&row_history::by_row(operations, 0), &mut report);
    exactly_once::check_scans(operations, &mut report);
    let stands = |violation: &&Violation| VALID_AFTER_LOSS.contains(&violation.oracle);
    reported.iter().filter(stands).for_each(|violation| report.add(violation.clone()));
    report
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
