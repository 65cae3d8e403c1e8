//! Violations of the model's oracle.

use super::history::TableEvent;
use crate::model::TableVersion;
use crate::oracle::Violation;
use sim_plan::tables::ColumnSpec;

/// Name of the oracle.
pub const NAME: &str = "model";

/// Returns a violation that one call shows.
pub fn of_call(at: usize, event: &TableEvent, what: &str) -> Violation {
    Violation {
        oracle: NAME,
        message: format!("call {at}: {what}"),
        story: vec![format!("=> call {at} {event}")],
    }
}

/// Describes a version of a table for a story: its columns, and the times between which it may or may not be in force.
pub fn show_version(at: usize, version: &TableVersion) -> String {
    let shown = |column: &ColumnSpec| {
        let nullable = if column.nullable { "?" } else { "" };
        format!("{}={}:{:?}{nullable}", column.number, column.name, column.kind)
    };
    let columns: Vec<String> = version.table.columns.iter().map(shown).collect();
    let columns = columns.join(" ");
    let outcome = match (version.void, version.known) {
        (true, _) => "refused".to_string(),
        (false, Some(known)) => format!("in force everywhere at {} us", known / 1_000),
        (false, None) => "outcome unknown".to_string(),
    };
    format!("   version {at} called at {} us, {outcome}: {columns}", version.called / 1_000)
}
