//! Lost replies: a table that is made is there already only if the reply to an earlier attempt was lost, and not known
//! right after it only if another master leads by then. Each table has a name of its own.
//!
//! `answers` asks if the plan has faults at all; this oracle asks if one had an effect meanwhile.

use engine::error::ErrorKind;

use super::creations::is_creation;
use super::{OracleReport, Violation};
use crate::history::{HistoryOp, Nanos};

const NAME: &str = "lost replies";

/// Reports creations that met their own table, or lost it, although nothing was wrong. `is_calm`: true if no
/// disturbance has an effect between two times of the clients' clock.
pub fn check(operations: &[HistoryOp], is_calm: impl Fn(Nanos, Nanos) -> bool, report: &mut OracleReport) {
    for operation in operations.iter().filter(|operation| is_creation(operation)) {
        let Some(returned) = operation.returned else { continue };
        report.checked += 1;
        if lost_reply(operation) && is_calm(operation.invoked, returned) {
            let message = format!("no reply was lost, and no leader of the masters changed: {operation}");
            report.add(Violation::new(NAME, message));
        }
    }
}

fn lost_reply(operation: &HistoryOp) -> bool {
    let kind = operation.outcome.error().and_then(|error| error.kind);
    matches!(kind, Some(ErrorKind::AlreadyPresent | ErrorKind::NotFound))
}

#[cfg(test)]
mod tests {
    use engine::error::Error;

    use super::*;
    use crate::history::{CallOutcome, ClientRequest};

    fn judged(request: &str, error: Error, is_calm: bool) -> usize {
        let operation = HistoryOp {
            client: 1,
            invoked: 5,
            returned: Some(9),
            after: 0,
            request: ClientRequest::Other(request.to_string()),
            outcome: CallOutcome::Unknown(error.into()),
        };
        let mut report = OracleReport::default();
        check(&[operation], |from, to| is_calm && (from, to) == (5, 9), &mut report);
        report.violations.len()
    }

    #[test]
    fn a_table_that_is_there_already_needs_a_lost_reply() {
        let there = || Error::already_present("short-1 exists");
        assert_eq!(judged("make table short-1", there(), true), 1);
        assert_eq!(judged("make table short-1", there(), false), 0);
        assert_eq!(judged("make table short-1", Error::not_found("no such table"), true), 1);
        assert_eq!(judged("make table short-1", Error::timed_out("no response"), true), 0);
        assert_eq!(judged("alter table 0", there(), true), 0);
    }
}
