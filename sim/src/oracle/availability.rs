//! Availability: an operation that nothing disturbs has a reply.
//!
//! ```text
//! disturbance   from ├──────────┤ to ├── settle ──┤
//! operation                              ├────┤          excused
//! operation                                         ├────┤   must have a reply
//! ```
//!
//! The fault injector knows what is wrong with which hosts and when. After each disturbance the cluster needs some
//! time, which follows from the plan's settings: detection of failures, an election, a retransmission, a restart. What
//! operators do to leaders and members disturbs as well.
//!
//! Where tablets have three replicas and only one server stops in a run, its absence is no excuse either:
//!
//! ```text
//! stopped       from ├── settle ──┤              to ├── settle ──┤
//! operation                          ├────┤                          must have a reply
//! ```
//!
//! A reply that rejects a request is no violation here; this oracle looks at calls that ended without a reply, because
//! no server could be reached or none was ready.

use std::time::Duration;

use engine::error::ErrorKind;

use super::{OracleReport, Violation};
use crate::history::{CallError, CallOutcome, ClientNo, ClientRequest, HistoryOp, Nanos};
use crate::injector::DOWN;
use crate::injector::disturbances::Disturbance;
use crate::model::{Incarnation, TableVersion};
use crate::model_oracle::{ReadOutcome, TableCall, TableEvent, WriteOutcome};
use sim_plan::{FaultKind, Host};

/// Name of this oracle.
pub const NAME: &str = "availability";
/// Beginning of the message about a tablet that a server does not have.
const TABLET_NOT_FOUND: &str = "Tablet not found";
/// Part of a master's message about a tablet that is being created.
const NOT_RUNNING: &str = "Tablet not running";
/// Part of the error of a call on a dropped table.
const WAS_DELETED: &str = "was deleted";
/// End of the message about a connection that its peer does not know.
const RESET: &str = "connection reset";
/// End of the message about a call whose time was over before its reply came.
const NO_RESPONSE: &str = "no response in time";
/// Part of the message about a call that a server refused because it has too much to do or too little memory.
const TOO_BUSY: &str = "ERROR_SERVER_TOO_BUSY";
/// Faults of a client's machine, besides those that stop its process.
const CLIENT_KINDS: [FaultKind; 5] = [
    FaultKind::DiskStall,
    FaultKind::DiskSlow,
    FaultKind::DiskError,
    FaultKind::DiskFull,
    FaultKind::SyncError,
];
/// Disturbances that a story names.
const STORY_LINES: usize = 6;

/// Conditions that may keep operations of a run from success.
pub struct Conditions<'a> {
    pub disturbances: &'a [Disturbance],
    /// The clients' monotonic clock when the run began.
    pub began: Nanos,
    /// Time within which the cluster recovers from any disturbance.
    pub settle: Duration,
    /// True if servers may refuse requests at any time because they have little memory.
    pub throttles: bool,
    /// True if a call may end before a replica learns that its snapshot is safe: heartbeats are too rare.
    pub is_impatient: bool,
    /// True if devices are slow: an attempt may be over before a batch of a scan is read, and all of them before every
    /// tablet has changed.
    pub is_slow: bool,
    /// True if tablets have replicas enough to do without one server.
    pub is_replicated: bool,
    /// Time of one attempt. A call on a model table shares its deadline with those before it, and may have had less.
    pub attempt: Duration,
}

/// A span of time.
#[derive(Debug, Clone, Copy)]
struct Span {
    from: Duration,
    to: Duration,
}

impl Span {
    fn overlaps(self, other: Span) -> bool {
        self.from <= other.to && other.from <= self.to
    }
}

/// Checks every operation that has ended.
pub fn check(operations: &[HistoryOp], conditions: &Conditions<'_>, report: &mut OracleReport) {
    let (excuses, of_rows) = (conditions.excuses(operations, false), conditions.excuses(operations, true));
    for operation in operations.iter().filter(|operation| operation.returned.is_some()) {
        let life = conditions.span_of(operation, Duration::ZERO);
        let excuses = if is_of_rows(operation) { &of_rows } else { &excuses };
        let own = conditions.own_excuses(operation);
        if excuses.iter().chain(&own).any(|span| span.overlaps(life)) {
            continue;
        }
        report.checked += 1;
        let error = unanswered(operation, conditions).map(|error| error.to_string());
        if let Some(error) = error.filter(|error| !conditions.explains_reset(error, life)) {
            report.add(conditions.violation(life, &error, operation.to_string()));
        }
    }
}

/// Checks every call on model tables that ended without a reply.
pub fn check_tables(
    events: &[TableEvent],
    tables: &[Incarnation],
    operations: &[HistoryOp],
    conditions: &Conditions<'_>,
    report: &mut OracleReport,
) {
    let (kept, of_gone) = (conditions.excuses(operations, true), conditions.excuses(operations, false));
    for event in events {
        let life = conditions.span(event.invoked, Some(event.returned), Duration::ZERO);
        let excuses = if may_be_gone(event, &tables[event.table]) { &of_gone } else { &kept };
        if excuses.iter().any(|span| span.overlaps(life)) {
            continue;
        }
        if life.to.saturating_sub(life.from) < conditions.attempt {
            continue;
        }
        // Its table or range was dropped, or a column of its own: what the client knows is old.
        let is_dropped = |why: &str| why.contains(WAS_DELETED) && is_absent(event, &tables[event.table]);
        let is_gone =
            |why: &str| why.starts_with(TABLET_NOT_FOUND) || is_dropped(why) || is_outdated(event, tables);
        report.checked += 1;
        let why = match &event.call {
            TableCall::Write { outcome: WriteOutcome::Unknown(why), .. } => why,
            TableCall::Read { outcome: ReadOutcome::Failed(why), .. } if !conditions.is_impatient => why,
            TableCall::Write { .. } | TableCall::Read { .. } | TableCall::Metadata { .. } => continue,
        };
        if !is_gone(why) {
            report.add(conditions.violation(life, why, event.to_string()));
        }
    }
}

/// Returns true if masters may not have listed the table at some time of a call.
fn is_absent(event: &TableEvent, table: &Incarnation) -> bool {
    table.absent.iter().any(|(from, to)| *from <= event.returned && event.invoked <= *to)
}

/// Returns true if a call may be for a tablet that was dropped before. Such a tablet has no leader any more, and the
/// server that stopped may be the one that its client knows.
fn may_be_gone(event: &TableEvent, table: &Incarnation) -> bool {
    let ranges = &table.versions[event.view].table.ranges;
    let lacks_range =
        |version: &TableVersion| ranges.iter().any(|range| !version.table.ranges.contains(range));
    is_absent(event, table) || table.possible(0..=event.returned).any(lacks_range)
}

/// Returns true if a version of the table that may have been in force during a call lacks columns of the client's.
fn is_outdated(event: &TableEvent, tables: &[Incarnation]) -> bool {
    let table = &tables[event.table];
    let columns = &table.versions[event.view].table.columns;
    let mut possible = table.possible(event.invoked..=event.returned);
    possible.any(|version| version.resolve(columns).is_none())
}

/// Returns the error of an operation that ended without a reply, if it must have one.
fn unanswered<'a>(operation: &'a HistoryOp, conditions: &Conditions<'_>) -> Option<&'a CallError> {
    let error = match &operation.outcome {
        CallOutcome::Failed(error) | CallOutcome::Unknown(error) => error,
        CallOutcome::Pending | CallOutcome::Written(_) | CallOutcome::Rows { .. } | CallOutcome::Done => {
            return None;
        }
    };
    use ErrorKind::*;
    match error.kind {
        // The request was looked at.
        Some(Invalid | NotFound | AlreadyPresent | Unsupported) => None,
        // The table was altered meanwhile; `answers` asks if it can have been.
        Some(Aborted) if is_backup(operation) => None,
        Some(Throttled) if conditions.throttles => None,
        Some(TimedOut) if conditions.throttles && error.message.contains(TOO_BUSY) => None,
        Some(TimedOut) if conditions.is_slow && may_be_slow(operation, error) => None,
        Some(Throttled | NotReady | NotLeader | Aborted | Corrupt | TimedOut | NotAuthorized | Io) | None => {
            Some(error)
        }
    }
}

/// Returns the client whose machine a disturbance is of; `None` for one of servers or links.
fn client_of(one: &Disturbance) -> Option<ClientNo> {
    let of_machine = one.kind == DOWN || CLIENT_KINDS.iter().any(|kind| kind.word() == one.kind);
    match one.hosts[..] {
        [Host::Client(number)] if of_machine => Some(number.into()),
        _ => None,
    }
}

fn is_backup(operation: &HistoryOp) -> bool {
    matches!(&operation.request, ClientRequest::Other(text) if text.starts_with("backup "))
}

/// Returns true for reads of many pages, as backups are, for an alteration, which creates tablets or stores the schema
/// of each, and for what waits for these tablets.
fn may_be_slow(operation: &HistoryOp, error: &CallError) -> bool {
    let has_no_response = error.message.ends_with(NO_RESPONSE);
    let waits_for_new_tablet = error.message.contains(NOT_RUNNING);
    match &operation.request {
        ClientRequest::Scan(_) => has_no_response,
        ClientRequest::Other(text) => {
            text.starts_with("alter ")
                || is_backup(operation)
                || waits_for_new_tablet
                || (has_no_response && text.starts_with("read "))
        }
        ClientRequest::Write { .. } | ClientRequest::Operator(_) => false,
    }
}

/// Returns true for writes and reads of rows. New tables, tablets and columns may have to wait for a server.
fn is_of_rows(operation: &HistoryOp) -> bool {
    match operation.request {
        ClientRequest::Write { .. } | ClientRequest::Scan(_) => true,
        ClientRequest::Other(_) | ClientRequest::Operator(_) => false,
    }
}

/// Returns true for what an operator does to leaders, members or servers: other operations may fail meanwhile, and
/// itself it may find that there is nothing to do.
fn is_by_operator(operation: &HistoryOp) -> bool {
    matches!(operation.request, ClientRequest::Operator(_))
}

impl Conditions<'_> {
    /// Returns true if an error is that of the first call over a connection whose peer has lost its power since: the
    /// client had no reason to notice before, however long ago that was.
    fn explains_reset(&self, error: &str, life: Span) -> bool {
        let stopped = |one: &Disturbance| one.kind == DOWN && one.from <= life.from;
        error.contains(RESET) && self.disturbances.iter().any(stopped)
    }

    /// Returns an operation's life and some time after it.
    fn span_of(&self, operation: &HistoryOp, after: Duration) -> Span {
        self.span(operation.invoked, operation.returned, after)
    }

    fn span(&self, invoked: Nanos, returned: Option<Nanos>, after: Duration) -> Span {
        let since = |nanos: Nanos| Duration::from_nanos(nanos.saturating_sub(self.began));
        Span { from: since(invoked), to: returned.map_or(Duration::MAX, |returned| since(returned) + after) }
    }

    /// Returns the times at which operations may fail; `of_rows`: those on rows, which need no server in particular.
    fn excuses(&self, operations: &[HistoryOp], of_rows: bool) -> Vec<Span> {
        let by_operators = operations.iter().filter(|operation| is_by_operator(operation));
        let mut spans: Vec<Span> =
            by_operators.map(|operation| self.span_of(operation, self.settle)).collect();
        // An operator's change may leave a tablet with fewer replicas.
        let only_edges = of_rows && spans.is_empty() && self.is_one_server_stopped();
        spans.extend(self.of_servers().flat_map(|one| self.effects(one, only_edges)));
        spans
    }

    /// Returns the disturbances of servers and links. What happens to a client's own machine disturbs nothing else.
    fn of_servers(&self) -> impl Iterator<Item = &Disturbance> {
        self.disturbances.iter().filter(|one| client_of(one).is_none())
    }

    /// Returns the times at which an operation may fail because of its client's own machine.
    fn own_excuses(&self, operation: &HistoryOp) -> Vec<Span> {
        let own = self.disturbances.iter().filter(|one| client_of(one) == Some(operation.client));
        own.flat_map(|one| self.effects(one, false)).collect()
    }

    /// Returns true if nothing happens in the run but stops of one tablet server, which the other replicas survive.
    fn is_one_server_stopped(&self) -> bool {
        let mut stopped = self.of_servers().map(|one| (&one.hosts[..], one.kind));
        let Some((hosts @ [Host::Tserver(_)], _)) = stopped.next() else { return false };
        let is_stop = |kind| kind == DOWN || kind == FaultKind::Pause.word();
        let all = self.of_servers().all(|one| one.hosts == hosts && is_stop(one.kind));
        all && self.is_replicated && !self.throttles
    }

    /// Returns the times in which a disturbance may have an effect: all of it, or its beginning and its end.
    fn effects(&self, disturbance: &Disturbance, only_edges: bool) -> Vec<Span> {
        let Disturbance { from, to, .. } = *disturbance;
        let end = to.map_or(Duration::MAX, |to| to + self.settle);
        match to {
            Some(to) if only_edges => {
                vec![Span { from, to: from + self.settle }, Span { from: to, to: end }]
            }
            _ => vec![Span { from, to: end }],
        }
    }

    fn violation(&self, life: Span, error: &str, operation: String) -> Violation {
        let message = format!(
            "no reply within {:?} though nothing was wrong: {error}",
            life.to.saturating_sub(life.from)
        );
        let mut story = vec![operation];
        let before = self.disturbances.iter().filter(|one| one.from < life.from);
        let mut last: Vec<&Disturbance> = before.collect();
        last.sort_by_key(|one| one.to);
        let shown = last.iter().rev().take(STORY_LINES);
        story.extend(shown.map(|one| format!("before it: {one}, and {:?} to recover", self.settle)));
        Violation { story, ..Violation::new(NAME, message) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::error::Error;

    const SECOND: Nanos = 1_000_000_000;
    const BEGAN: Nanos = 100 * SECOND;

    /// Returns an operation from one second of the run to another.
    fn operation(request: ClientRequest, from: u64, to: u64, outcome: CallOutcome) -> HistoryOp {
        let (invoked, returned) = (BEGAN + from * SECOND, Some(BEGAN + to * SECOND));
        HistoryOp { client: 1, invoked, returned, after: 0, request, outcome }
    }

    fn timeout() -> CallOutcome {
        CallOutcome::Unknown(Error::not_ready("no leader").into())
    }

    fn write(from: u64, to: u64, outcome: CallOutcome) -> HistoryOp {
        operation(ClientRequest::Write { table: 0, rows: Vec::new() }, from, to, outcome)
    }

    const SETTLE: Duration = Duration::from_secs(5);

    /// Returns the conditions of a run in which nothing but `disturbances` keeps operations from success.
    fn conditions(disturbances: &[Disturbance]) -> Conditions<'_> {
        Conditions {
            disturbances,
            began: BEGAN,
            settle: SETTLE,
            throttles: false,
            is_impatient: false,
            is_replicated: false,
            is_slow: false,
            attempt: SETTLE,
        }
    }

    /// Returns the number of violations and of checked operations. t1 is down from second 10 to 20, and recovers within
    /// 5 seconds.
    fn judged(operations: &[HistoryOp]) -> (usize, u64) {
        judged_with(operations, false)
    }

    fn judged_with(operations: &[HistoryOp], is_slow: bool) -> (usize, u64) {
        let (from, to) = (Duration::from_secs(10), Some(Duration::from_secs(20)));
        let down = Disturbance { hosts: vec![Host::Tserver(1)], kind: "down", from, to };
        let down = [down];
        let conditions = Conditions { is_slow, ..conditions(&down) };
        let mut report = OracleReport::default();
        check(operations, &conditions, &mut report);
        (report.violations.len(), report.checked)
    }

    #[test]
    fn a_call_on_a_model_table_without_a_reply_needs_an_excuse() {
        let (from, to) = (Duration::from_secs(10), Some(Duration::from_secs(20)));
        let down = [Disturbance { hosts: vec![Host::Tserver(1)], kind: "down", from, to }];
        // A column is dropped from second 20 to 21.
        let mut table = crate::model::tests::incarnation();
        let mut shape = table.versions[0].table.clone();
        shape.columns.pop();
        let dropped = table.begin("t".to_string(), shape, BEGAN + 20 * SECOND);
        table.versions[dropped].known = Some(BEGAN + 21 * SECOND);
        table.absent.push((BEGAN + 60 * SECOND, Nanos::MAX));
        let judged_beside = |disturbances: &[Disturbance], from: u64, to: u64, view: usize, why: &str| {
            let outcome = WriteOutcome::Unknown(why.to_string());
            let event = TableEvent {
                client: 1,
                invoked: BEGAN + from * SECOND,
                returned: BEGAN + to * SECOND,
                after: 0,
                table: 0,
                tablet: "t".to_string(),
                view,
                call: TableCall::Write { rows: Vec::new(), outcome },
            };
            let conditions = Conditions {
                attempt: Duration::from_secs(2),
                is_replicated: true,
                ..conditions(disturbances)
            };
            let mut report = OracleReport::default();
            check_tables(&[event], std::slice::from_ref(&table), &[], &conditions, &mut report);
            report.violations.len()
        };
        let judged = |from, to, view, why: &str| judged_beside(&down, from, to, view, why);
        assert_eq!(judged(30, 40, dropped, "no leader"), 1);
        assert_eq!(judged(5, 12, 0, "no leader"), 0, "a server went down");
        assert_eq!(judged(30, 31, dropped, "no leader"), 0, "it had no time for an attempt");
        assert_eq!(judged(30, 40, dropped, "Tablet not found: t"), 0, "its table is gone");
        let column = "Client provided column c3 INT32 NOT NULL not present in tablet";
        assert_eq!(judged(30, 40, 0, column), 0, "the column is gone");
        assert_eq!(judged(30, 40, dropped, column), 1, "the client knows the newest columns");
        let deleted = "table t was deleted: Table deleted at 2026-01-01";
        assert_eq!(judged(30, 40, dropped, deleted), 1, "it was not dropped yet");
        assert_eq!(judged(58, 62, dropped, deleted), 0, "it was dropped meanwhile");
        let paused = [Disturbance {
            hosts: vec![Host::Tserver(1)],
            kind: "pause",
            from: Duration::from_secs(40),
            to: Some(Duration::from_secs(90)),
        }];
        let judged_paused = |from: u64, to: u64| judged_beside(&paused, from, to, dropped, "no response");
        assert_eq!(judged_paused(46, 56), 1, "its other replicas answer");
        assert_eq!(judged_paused(62, 72), 0, "its table was dropped, and its client asks the paused server");
    }

    #[test]
    fn a_timeout_is_excused_only_beside_a_disturbance() {
        assert_eq!(judged(&[write(0, 9, timeout())]), (1, 1));
        assert_eq!(judged(&[write(0, 10, timeout())]), (0, 0));
        assert_eq!(judged(&[write(24, 40, timeout())]), (0, 0));
        assert_eq!(judged(&[write(26, 40, timeout())]), (1, 1));
        assert_eq!(judged(&[write(26, 40, CallOutcome::Unknown(None.into()))]), (1, 1));
    }

    #[test]
    fn the_absence_of_one_server_of_a_replicated_cluster_is_no_excuse() {
        let stop = |host, kind, from, to| {
            let (from, to) = (Duration::from_secs(from), Some(Duration::from_secs(to)));
            Disturbance { hosts: vec![Host::Tserver(host)], kind, from, to }
        };
        let judged = |disturbances: &[Disturbance], operations: &[HistoryOp], is_replicated| {
            let conditions = Conditions { is_replicated, ..conditions(disturbances) };
            let mut report = OracleReport::default();
            check(operations, &conditions, &mut report);
            report.violations.len()
        };
        let one = [stop(1, DOWN, 10, 40), stop(1, "pause", 60, 90)];
        assert_eq!(judged(&one, &[write(16, 30, timeout())], true), 1);
        assert_eq!(judged(&one, &[write(66, 80, timeout())], true), 1);
        assert_eq!(judged(&one, &[write(16, 30, timeout())], false), 0, "tablets have one replica");
        assert_eq!(judged(&one, &[write(14, 30, timeout())], true), 0, "it began too soon");
        assert_eq!(judged(&one, &[write(16, 41, timeout())], true), 0, "the server came back");
        let two = [stop(1, DOWN, 10, 40), stop(2, DOWN, 100, 101)];
        assert_eq!(judged(&two, &[write(16, 30, timeout())], true), 0, "two servers stop");
        let slow = [stop(1, DOWN, 10, 40), stop(1, "disk-slow", 50, 51)];
        assert_eq!(judged(&slow, &[write(16, 30, timeout())], true), 0, "something else is wrong");
        let change = operation(ClientRequest::Other("alter table 0".into()), 16, 30, timeout());
        assert_eq!(judged(&one, &[change], true), 0, "a new tablet may be on that server");
        let step_down = operation(ClientRequest::Operator("a leader steps down".into()), 1, 2, timeout());
        assert_eq!(judged(&one, &[step_down, write(16, 30, timeout())], true), 0, "an operator");
    }

    #[test]
    fn servers_with_little_memory_may_refuse_all_attempts_of_a_call() {
        let judged = |message: &str, throttles: bool| {
            let outcome = CallOutcome::Unknown(Error::timed_out(message).into());
            let mut report = OracleReport::default();
            check(&[write(0, 9, outcome)], &Conditions { throttles, ..conditions(&[]) }, &mut report);
            report.violations.len()
        };
        let busy =
            "timed out after 11 attempts; last error: ERROR_SERVER_TOO_BUSY: Hard memory limit exceeded";
        assert_eq!((judged(busy, true), judged(busy, false)), (0, 1));
        assert_eq!(judged("timed out after 11 attempts; last error: no leader", true), 1);
    }

    #[test]
    fn a_scan_or_alteration_on_slow_devices_may_have_no_response_in_time() {
        let slow = CallOutcome::Failed(Error::timed_out("Scan: no response in time").into());
        let scan = operation(ClientRequest::Other("read a model table".into()), 0, 9, slow.clone());
        assert_eq!(judged_with(std::slice::from_ref(&scan), true), (0, 1));
        assert_eq!(judged_with(&[scan], false), (1, 1));
        assert_eq!(judged_with(&[write(0, 9, slow)], true), (1, 1));
        let late = CallOutcome::Failed(Error::timed_out("the tablet did not reach the timestamp").into());
        let scan = operation(ClientRequest::Other("read a model table".into()), 0, 9, late.clone());
        assert_eq!(judged_with(&[scan], true), (1, 1));
        let alter = operation(ClientRequest::Other("alter table 0".into()), 0, 9, late);
        assert_eq!(judged_with(std::slice::from_ref(&alter), true), (0, 1), "every tablet stores its schema");
        assert_eq!(judged_with(&[alter], false), (1, 1));
    }

    #[test]
    fn a_fault_of_a_clients_machine_excuses_only_its_own_operations() {
        let (from, to) = (Duration::from_secs(10), Some(Duration::from_secs(20)));
        let full = [Disturbance { hosts: vec![Host::Client(7)], kind: "disk-full", from, to }];
        let judged = |client| {
            let mut report = OracleReport::default();
            let failed = CallOutcome::Failed(Error::throttled("no space").into());
            let backup = operation(ClientRequest::Other("backup of table t0, full".into()), 12, 14, failed);
            check(&[HistoryOp { client, ..backup }], &conditions(&full), &mut report);
            report.violations.len()
        };
        assert_eq!((judged(7), judged(1)), (0, 1));
    }

    #[test]
    fn replies_and_rejections_are_no_violation() {
        let invalid = CallOutcome::Failed(Error::invalid("no such column").into());
        assert_eq!(judged(&[write(0, 9, invalid), write(30, 31, CallOutcome::Written(Vec::new()))]), (0, 2));
        let pending = HistoryOp { returned: None, ..write(0, 1, CallOutcome::Pending) };
        assert_eq!(judged(&[pending]), (0, 0));
    }

    #[test]
    fn operators_disturb_others_and_may_fail() {
        let step_down = operation(ClientRequest::Operator("a leader steps down".into()), 30, 31, timeout());
        assert_eq!(judged(&[step_down.clone(), write(35, 40, timeout())]), (0, 0));
        assert_eq!(judged(&[step_down, write(37, 40, timeout())]), (1, 1));
    }
}
