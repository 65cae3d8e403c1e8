//! Operators' calls: a server replies at once to an order that waits for no other server, also if another one leads by
//! then.
//!
//! Orders of operators excuse other operations for some time (`availability`), and may be refused themselves. A missing
//! reply needs a disturbance of servers or links.

use engine::error::ErrorKind;

use super::availability::Conditions;
use super::{OracleReport, Violation};
use crate::history::{CallError, ClientRequest, HistoryOp};

const NAME: &str = "operator calls";

/// Beginnings of the errors of calls that wait for nothing.
const PROMPT_CALLS: [&str; 3] = ["LeaderStepDown at ", "RunLeaderElection at ", "Quiesce at "];

/// Reports orders that got no reply although nothing was wrong.
pub fn check(operations: &[HistoryOp], conditions: &Conditions<'_>, report: &mut OracleReport) {
    if !conditions.is_prompt {
        return;
    }
    let is_order = |operation: &&HistoryOp| matches!(operation.request, ClientRequest::Operator(_));
    for operation in operations.iter().filter(is_order) {
        if operation.returned.is_none() || conditions.is_disturbed(operation) {
            continue;
        }
        report.checked += 1;
        if let Some(error) = missing_reply(operation) {
            let message = format!("no reply though nothing was wrong: {error}");
            let story = vec![operation.to_string()];
            report.add(Violation { story, ..Violation::new(NAME, message) });
        }
    }
}

fn missing_reply(operation: &HistoryOp) -> Option<&CallError> {
    let error = operation.outcome.error()?;
    let is_prompt = PROMPT_CALLS.iter().any(|call| error.message.starts_with(call));
    (error.kind == Some(ErrorKind::TimedOut) && is_prompt).then_some(error)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use engine::error::Error;
    use sim_plan::Host;

    use super::*;
    use crate::history::CallOutcome;
    use crate::injector::disturbances::Disturbance;

    const SECOND: u64 = 1_000_000_000;

    fn judged(from: u64, error: Error, is_prompt: bool) -> usize {
        let operation = HistoryOp {
            client: 1,
            invoked: from * SECOND,
            returned: Some((from + 1) * SECOND),
            after: 0,
            request: ClientRequest::Operator("table 0 tablet 0: the leader steps down".to_string()),
            outcome: CallOutcome::Unknown(error.into()),
        };
        let (from, to) = (Duration::from_secs(10), Some(Duration::from_secs(20)));
        let down = [Disturbance { hosts: vec![Host::Tserver(1)], kind: "down", from, to }];
        let conditions = Conditions {
            disturbances: &down,
            began: 0,
            settle: Duration::from_secs(5),
            throttles: false,
            is_impatient: false,
            is_slow: false,
            is_replicated: true,
            is_prompt,
            holds_history: true,
            attempt: Duration::from_secs(1),
        };
        let mut report = OracleReport::default();
        check(&[operation], &conditions, &mut report);
        report.violations.len()
    }

    #[test]
    fn a_prompt_call_has_a_reply_unless_a_server_is_disturbed() {
        let missing = || Error::timed_out("LeaderStepDown at t1:7050: TimedOut");
        assert_eq!((judged(3, missing(), true), judged(24, missing(), true)), (1, 0));
        assert_eq!(judged(3, missing(), false), 0, "segments get lost");
        assert_eq!(judged(3, Error::not_ready("LeaderStepDown at t1:7050: not the leader"), true), 0);
        assert_eq!(judged(3, Error::timed_out("ChangeConfig at t1:7050: TimedOut"), true), 0, "it waits");
    }
}
