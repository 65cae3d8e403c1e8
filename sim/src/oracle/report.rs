//! Violations, and the report that oracles add them to.

use super::row_history::{RowEvent, RowKey};

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

    /// Adds the last lines of a story.
    #[must_use]
    pub fn with_end_of(mut self, mut story: Vec<String>, lines: usize) -> Violation {
        self.story = story.split_off(story.len().saturating_sub(lines));
        self
    }

    /// Creates a violation about a row, with the row's events around the operation that revealed it.
    pub(super) fn of_row(
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
