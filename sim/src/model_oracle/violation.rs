//! Violations of the model's oracle.

use super::history::TableEvent;
use crate::oracle::Violation;

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
