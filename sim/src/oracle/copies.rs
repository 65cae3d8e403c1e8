//! Tablet copies that nothing disturbs end well. A copy that is given up costs its tablet a replica for some time, and
//! leaders order it again, so clients and the last checks do not notice.
//!
//! ```text
//! source   CopyOpen ├── no CopyStart of a new sink ──┤ CopyOpen       given up before it began
//! sink     CopyStart ├──────────────────────────────┤ CopyAbort       given up
//! source   CopyOpen ├─────── its replica ends ──────┤                 excused
//! either        ├─ disturbance ─┤── settle ──┤                        excused
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::ids::{PeerId, TabletId};
use engine::note::raft::RaftAction;

use super::Violation;
use crate::injector::disturbances::Disturbance;
use sim_plan::{FaultKind, Host};

/// Name of this oracle.
pub const NAME: &str = "copies";

/// Time within which a source may open one session several times: its log may lose segments meanwhile.
const OPENING: Duration = Duration::from_millis(300);

/// A copy that was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AbortedCopy {
    tablet: TabletId,
    sink: PeerId,
    source: PeerId,
    from: Duration,
    to: Duration,
}

/// The copies of a run, by the notes of all servers.
#[derive(Debug, Default)]
pub struct CopyLog {
    /// Source and time of each session whose copy has not begun, by sink.
    opened: BTreeMap<(TabletId, PeerId), (PeerId, Duration)>,
    /// Servers that have had a replica. They may refuse a source whose log is shorter than theirs was.
    had_replica: BTreeSet<(TabletId, PeerId)>,
    /// Source of each copy in progress, and the time at which its session was opened.
    open: BTreeMap<(TabletId, PeerId), (PeerId, Duration)>,
    aborted: Vec<AbortedCopy>,
    /// Replicas that were deleted, failed or restarted, and when.
    ended: Vec<(TabletId, PeerId, Duration)>,
}

impl CopyLog {
    pub fn note(&mut self, server: PeerId, tablet: TabletId, action: &RaftAction, now: Duration) {
        use RaftAction::{
            CopyAbort, CopyFinish, CopyOpen, CopyStart, Delete, Fail, FailOpen, Restart, Tombstone,
        };
        self.had_replica.insert((tablet, server));
        match action {
            CopyOpen { sink, .. } => self.session_opened(tablet, server, *sink, now),
            CopyStart { source, .. } => {
                let session = self.opened.remove(&(tablet, server)).filter(|(of, _)| of == source);
                self.open.insert((tablet, server), (*source, session.map_or(now, |(_, opened)| opened)));
            }
            CopyFinish => drop(self.open.remove(&(tablet, server))),
            CopyAbort => {
                if let Some((source, from)) = self.open.remove(&(tablet, server)) {
                    self.aborted.push(AbortedCopy { tablet, sink: server, source, from, to: now });
                }
            }
            Delete | Fail | FailOpen { .. } | Restart { .. } | Tombstone { .. } => {
                self.open.remove(&(tablet, server));
                self.ended.push((tablet, server, now));
            }
            _ => {}
        }
    }

    /// Records a session; a former one of the same sink whose copy never began was given up.
    fn session_opened(&mut self, tablet: TabletId, source: PeerId, sink: PeerId, now: Duration) {
        let may_refuse = self.had_replica.contains(&(tablet, sink));
        match self.opened.insert((tablet, sink), (source, now)) {
            Some((former, from)) if !may_refuse && former == source && now > from + OPENING => {
                self.aborted.push(AbortedCopy { tablet, sink, source, from, to: now });
            }
            _ => {}
        }
    }

    /// Reports copies that were given up without a cause. `settle`: time within which the cluster recovers from any
    /// disturbance.
    pub fn check(
        &self,
        hosts: &BTreeMap<PeerId, Host>,
        disturbances: &[Disturbance],
        settle: Duration,
    ) -> Vec<Violation> {
        // A wiped server stays disturbed until faults end, but what it copies then is as good as any other copy.
        let disturbances = || disturbances.iter().filter(|one| one.kind != FaultKind::Wipe.word());
        let is_excused = |copy: &&AbortedCopy| {
            let ends = |(tablet, server, at): &(TabletId, PeerId, Duration)| {
                *tablet == copy.tablet && *server == copy.source && (copy.from..=copy.to).contains(at)
            };
            let of_copy = [copy.sink, copy.source].map(|server| hosts.get(&server));
            let disturbs = |one: &Disturbance| {
                let until = one.to.map_or(Duration::MAX, |to| to.saturating_add(settle));
                let meets = one.from <= copy.to && copy.from <= until;
                meets && of_copy.into_iter().flatten().any(|host| one.hosts.contains(host))
            };
            self.ended.iter().any(ends) || disturbances().any(disturbs)
        };
        self.aborted.iter().filter(|copy| !is_excused(copy)).map(violation).collect()
    }
}

fn violation(copy: &AbortedCopy) -> Violation {
    let AbortedCopy { tablet, sink, source, from, to } = copy;
    let message = format!(
        "{sink} gave up its copy of tablet {tablet} from {source}, begun at {from:?}, at {to:?}, and nothing disturbed \
         either of them"
    );
    Violation::new(NAME, message)
}

#[cfg(test)]
mod tests {
    use engine::ids::{OpId, Uuid};

    use super::*;

    const TABLET: TabletId = Uuid([7; 16]);
    const SETTLE: Duration = Duration::from_secs(5);

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn server(number: u8) -> PeerId {
        Uuid([number; 16])
    }

    /// A copy from server 1 to server 2 between seconds 10 and 12, with other actions before its end.
    fn found(ending: RaftAction, others: &[(u8, RaftAction)], disturbances: &[Disturbance]) -> usize {
        let mut log = CopyLog::default();
        log.note(server(2), TABLET, &RaftAction::CopyStart { source: server(1), term: 3 }, at(10));
        for (number, action) in others {
            log.note(server(*number), TABLET, action, at(11));
        }
        log.note(server(2), TABLET, &ending, at(12));
        let hosts = (1..=3).map(|number| (server(number), Host::Tserver(number))).collect();
        log.check(&hosts, disturbances, SETTLE).len()
    }

    fn disturbance(number: u8, kind: &'static str, from: u64, to: Option<u64>) -> Disturbance {
        Disturbance { hosts: vec![Host::Tserver(number)], kind, from: at(from), to: to.map(at) }
    }

    #[test]
    fn only_an_undisturbed_copy_that_is_given_up_is_reported() {
        assert_eq!(found(RaftAction::CopyFinish, &[], &[]), 0);
        assert_eq!(found(RaftAction::CopyAbort, &[], &[]), 1);
        for excuse in [disturbance(1, "down", 11, Some(20)), disturbance(2, "link", 1, Some(6))] {
            assert_eq!(found(RaftAction::CopyAbort, &[], std::slice::from_ref(&excuse)), 0, "{excuse}");
        }
        let others = [
            disturbance(3, "down", 11, Some(20)),
            disturbance(2, "link", 1, Some(4)),
            disturbance(2, "down", 13, None),
            disturbance(2, "wipe", 1, None),
        ];
        assert_eq!(found(RaftAction::CopyAbort, &[], &others), 1);
    }

    /// A source opens a session for server 2 at some times, in milliseconds, which begins its copy after the first
    /// `begun` of them.
    fn found_opening(times: &[u64], begun: usize) -> usize {
        let mut log = CopyLog::default();
        for (number, time) in times.iter().enumerate() {
            let open = RaftAction::CopyOpen { sink: server(2), upto: OpId { term: 1, index: 1 } };
            log.note(server(1), TABLET, &open, Duration::from_millis(*time));
            if number < begun {
                let start = RaftAction::CopyStart { source: server(1), term: 3 };
                log.note(server(2), TABLET, &start, Duration::from_millis(*time + 1));
            }
        }
        let hosts = (1..=3).map(|number| (server(number), Host::Tserver(number))).collect();
        log.check(&hosts, &[], SETTLE).len()
    }

    #[test]
    fn a_session_that_is_opened_again_before_its_copy_begins_is_reported() {
        assert_eq!(found_opening(&[1_000, 2_000], 0), 1);
        assert_eq!(found_opening(&[1_000, 1_200], 0), 0, "the source looked again");
        assert_eq!(found_opening(&[1_000, 2_000], 1), 0, "the first one began");
    }

    #[test]
    fn a_source_whose_replica_ends_after_it_opened_the_session_is_an_excuse() {
        let mut log = CopyLog::default();
        let open = RaftAction::CopyOpen { sink: server(2), upto: OpId { term: 1, index: 1 } };
        log.note(server(1), TABLET, &open, at(9));
        log.note(server(1), TABLET, &RaftAction::Delete, at(10));
        log.note(server(2), TABLET, &RaftAction::CopyStart { source: server(1), term: 3 }, at(11));
        log.note(server(2), TABLET, &RaftAction::CopyAbort, at(12));
        let hosts = (1..=3).map(|number| (server(number), Host::Tserver(number))).collect();
        assert_eq!(log.check(&hosts, &[], SETTLE).len(), 0);
    }

    #[test]
    fn a_source_whose_replica_ends_is_an_excuse() {
        let restart = || RaftAction::Restart { vote: None };
        assert_eq!(found(RaftAction::CopyAbort, &[(1, RaftAction::Delete)], &[]), 0);
        assert_eq!(found(RaftAction::CopyAbort, &[(1, restart())], &[]), 0);
        assert_eq!(found(RaftAction::CopyAbort, &[(3, restart())], &[]), 1);
    }
}
