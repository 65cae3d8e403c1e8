//! Violations of the model's oracle.

use super::history::TableEvent;
use crate::model::TableVersion;
use crate::oracle::Violation;
use sim_plan::line_format::LineField;
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
/// A column is its number, name and type, `?` if it is nullable, `!` if it is immutable, and its write default.
pub fn show_version(at: usize, version: &TableVersion) -> String {
    let shown = |column: &ColumnSpec| {
        let nullable = if column.nullable { "?" } else { "" };
        let immutable = if column.immutable { "!" } else { "" };
        let default = column.write.as_ref().map(|value| format!("={}", value.text())).unwrap_or_default();
        format!("{}={}:{}{nullable}{immutable}{default}", column.number, column.name, column.kind.text())
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
