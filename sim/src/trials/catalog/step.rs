//! The steps of a catalog trial.

use std::time::Duration;

use super::CatalogTrial;

/// Shortest and longest time that passes in a step.
const PASS_MIN: Duration = Duration::from_millis(2);
const PASS_MAX: Duration = Duration::from_secs(3);

/// Longest time for which masters do not reach a server.
const CUT_OFF_MAX_SECS: u64 = 30;

/// A step of a catalog trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Pass,
    Request,
    /// Reads, compared with the model.
    Query,
    FailOver,
    Kill,
    Restart,
    /// A server loses its disks and returns as another.
    ReplaceServer,
    FailReplica,
    Depose,
    MarkForReplacement,
    /// Masters do not reach a server for a while, which reaches them.
    CutOff,
    /// A server takes no more replicas, or takes some again.
    SwitchTaking,
}

const STEPS: [(Step, u32); 12] = [
    (Step::Pass, 34),
    (Step::Request, 30),
    (Step::Query, 8),
    (Step::FailOver, 2),
    (Step::Kill, 5),
    (Step::Restart, 9),
    (Step::ReplaceServer, 2),
    (Step::FailReplica, 4),
    (Step::Depose, 6),
    (Step::MarkForReplacement, 3),
    (Step::CutOff, 3),
    (Step::SwitchTaking, 2),
];

impl CatalogTrial {
    pub(super) fn take_step(&mut self) {
        let step = self.random.weighted(&STEPS);
        let server = self.any_server();
        match step {
            Step::Pass => {
                let span = self.random.span(PASS_MIN, PASS_MAX);
                self.pass(span);
            }
            Step::Request => self.request(),
            Step::Query => self.query(),
            Step::FailOver => self.fail_over("another is elected", true),
            Step::Kill => self.kill(server),
            Step::Restart => {
                let down: Vec<_> = self.servers.values().filter(|at| !at.up).map(|at| at.id).collect();
                down.first().into_iter().for_each(|id| self.restart(*id));
            }
            Step::ReplaceServer => self.replace_server(server),
            Step::FailReplica => self.fail_replica(server),
            Step::Depose => self.depose(),
            Step::MarkForReplacement => self.mark_for_replacement(),
            Step::CutOff => {
                let until = self.now + Duration::from_secs(self.random.between(5, CUT_OFF_MAX_SECS));
                self.servers.get_mut(&server).into_iter().for_each(|at| at.cut_off_until = until);
                self.note(format!("{server} is cut off until {until:?}"));
            }
            Step::SwitchTaking => {
                let at = self.servers.get_mut(&server);
                at.into_iter().for_each(|at| at.takes_replicas = !at.takes_replicas);
            }
        }
    }
}
