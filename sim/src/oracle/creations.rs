//! Creations: masters find enough tablet servers for a new table. Servers send heartbeats to every master, so a new
//! leader knows them all at once. Only a master that has just started does not, and a server that has been silent for a
//! minute does not count.
//!
//! ```text
//! a master starts ├── registration ──┤ disturbances in it ├── registration ──┤    may refuse
//! a master becomes leader                                                         must not refuse
//! ```

use std::time::Duration;

use engine::error::ErrorKind;

use super::{OracleReport, Violation};
use crate::history::{CallError, ClientRequest, HistoryOp, Nanos};
use crate::injector::disturbances::{DOWN, Disturbance};
use sim_plan::Host;

const NAME: &str = "creations";
/// Part of a master's message that too few servers are alive for the replicas of a table.
pub const TOO_FEW: &str = "not enough live tablet servers";
/// Time without a heartbeat after which masters take a server for lost.
const SILENCE: Duration = Duration::from_secs(60);

/// Conditions under which a master may know too few servers.
pub struct CreationConditions<'a> {
    pub disturbances: &'a [Disturbance],
    /// The clients' monotonic clock when the run began.
    pub began: Nanos,
    /// Time within which the masters of a new cluster know all servers.
    pub boot: Duration,
    /// Time within which a master that starts later knows all servers that it reaches.
    pub registration: Duration,
    /// Time of one attempt: the last one was refused.
    pub attempt: Duration,
}

/// Reports creations that were refused though enough servers were known.
pub fn check(operations: &[HistoryOp], conditions: &CreationConditions<'_>, report: &mut OracleReport) {
    let excuses = conditions.excuses();
    for operation in operations.iter().filter(|operation| is_creation(operation)) {
        report.checked += 1;
        let Some((from, to)) = conditions.last_attempt(operation).filter(|_| is_refused(operation)) else {
            continue;
        };
        if !excuses.iter().any(|excuse| excuse.0 <= to && from <= excuse.1) {
            let message = format!("no master had just started, and too few servers were known: {operation}");
            report.add(Violation::new(NAME, message));
        }
    }
}

/// Returns true for an operation that makes a table.
pub(super) fn is_creation(operation: &HistoryOp) -> bool {
    matches!(&operation.request, ClientRequest::Other(text) if text.starts_with("make "))
}

fn is_refused(operation: &HistoryOp) -> bool {
    let refuses =
        |error: &CallError| error.kind == Some(ErrorKind::Invalid) && error.message.contains(TOO_FEW);
    operation.outcome.error().is_some_and(refuses)
}

impl CreationConditions<'_> {
    fn last_attempt(&self, operation: &HistoryOp) -> Option<(Duration, Duration)> {
        let to = Duration::from_nanos(operation.returned?.saturating_sub(self.began));
        Some((to.saturating_sub(self.attempt), to))
    }

    /// Returns the times at which a master may know too few servers.
    fn excuses(&self) -> Vec<(Duration, Duration)> {
        let is_start = |one: &&Disturbance| one.kind == DOWN && matches!(one.hosts[..], [Host::Master(_)]);
        let starts = self.disturbances.iter().filter(is_start).filter_map(|one| one.to);
        let mut excuses: Vec<_> =
            starts.map(|at| (at, self.last_effect(at, at + self.registration))).collect();
        excuses.push((Duration::ZERO, self.last_effect(Duration::ZERO, self.boot)));
        excuses.extend(self.of_servers().filter_map(|one| {
            let end = self.last_effect(one.from, one.from);
            (end.saturating_sub(one.from) >= SILENCE).then_some((one.from, end))
        }));
        excuses
    }

    /// Returns the end of disturbances that follow each other from a time on: meanwhile a server may reach no master.
    fn last_effect(&self, from: Duration, mut end: Duration) -> Duration {
        loop {
            let met = self.of_servers().filter(|one| one.from <= end && self.effect_end(one) >= from);
            match met.map(|one| self.effect_end(one)).max() {
                Some(later) if later > end => end = later,
                _ => return end,
            }
        }
    }

    fn effect_end(&self, one: &Disturbance) -> Duration {
        one.to.unwrap_or(Duration::MAX).saturating_add(self.registration)
    }

    fn of_servers(&self) -> impl Iterator<Item = &Disturbance> {
        let is_server = |host: &Host| !matches!(host, Host::Client(_));
        self.disturbances.iter().filter(move |one| one.hosts.iter().any(is_server))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::CallOutcome;
    use engine::error::Error;

    const SECOND: Nanos = 1_000_000_000;
    const BEGAN: Nanos = 100 * SECOND;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn of(host: Host, kind: &'static str, from: u64, to: u64) -> Disturbance {
        Disturbance { hosts: vec![host], kind, from: at(from), to: Some(at(to)) }
    }

    /// Returns the number of violations if a creation is refused at a second of the run.
    fn refused_at(second: u64, disturbances: &[Disturbance]) -> usize {
        let error = Error::invalid("not enough live tablet servers to create a table: 2 are alive");
        let operation = HistoryOp {
            client: 1,
            invoked: BEGAN + (second - 1) * SECOND,
            returned: Some(BEGAN + second * SECOND),
            after: 0,
            request: ClientRequest::Other("make table short-1".to_string()),
            outcome: CallOutcome::Unknown(error.into()),
        };
        let (began, boot, registration, attempt) = (BEGAN, at(2), at(5), at(1));
        let conditions = CreationConditions { disturbances, began, boot, registration, attempt };
        let mut report = OracleReport::default();
        check(&[operation], &conditions, &mut report);
        report.violations.len()
    }

    #[test]
    fn a_new_leader_knows_all_servers_and_a_new_process_does_not() {
        assert_eq!((refused_at(2, &[]), refused_at(10, &[])), (0, 1));
        let killed = [of(Host::Master(0), DOWN, 20, 30)];
        assert_eq!(refused_at(25, &killed), 1, "another master leads, and has run all along");
        assert_eq!(refused_at(33, &killed), 0, "it has just started");
        assert_eq!(refused_at(40, &killed), 1);
        let paused = [of(Host::Master(0), "pause", 20, 30)];
        assert_eq!(refused_at(32, &paused), 1);
    }

    #[test]
    fn a_server_that_reaches_no_master_is_not_known() {
        let down = of(Host::Tserver(1), DOWN, 32, 60);
        let start = of(Host::Master(0), DOWN, 20, 30);
        assert_eq!(refused_at(50, &[start.clone(), down.clone()]), 0);
        assert_eq!(refused_at(50, std::slice::from_ref(&down)), 1, "its last heartbeat is recent");
        assert_eq!(refused_at(70, &[start, down]), 1);
        let lost = [of(Host::Tserver(1), DOWN, 20, 90)];
        assert_eq!(refused_at(85, &lost), 0);
    }
}
