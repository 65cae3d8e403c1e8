//! Availability: an operation that nothing disturbs has a reply.
//!
//! ```text
//! disturbance   from ├──────────┤ to ├── settle ──┤
//! operation                              ├────┤          excused
//! operation                                         ├────┤   must have a reply
//! operation                      ├───────────────────┼────┤   so must this: its last part alone is long enough
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

use super::history_gc::HISTORY_GONE;
use super::{OracleReport, Violation};
use crate::history::{CallError, ClientNo, ClientRequest, HistoryOp, Nanos};
use crate::injector::disturbances::{DOWN, Disturbance};
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
/// Part of the error of a backup whose base is older than the history.
const BASE_GONE: &str = "since the base";
/// Longest waits of a client in the last part of an operation: before an attempt, after it has learned that another
/// server leads, and the one for which no time is left.
const RETRY_WAITS: Duration = Duration::from_secs(6);
/// Attempts in that part: one that began before it, a lookup and another one.
const LAST_ATTEMPTS: u32 = 3;
/// Words of requests that are done by few calls. What alters or makes tables, or backs them up, waits for other things.
const SHORT_REQUESTS: [&str; 7] = ["connect", "open", "look", "put", "ask", "read", "insert"];
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
    /// True if a call has a reply within its attempt, unless something is wrong: no segment is lost or takes long.
    pub is_prompt: bool,
    /// True if a backup that holds its history in time loses none of it.
    pub holds_history: bool,
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
        let checked = if is_short(operation) { conditions.last_part(life) } else { life };
        if excuses.iter().chain(&own).any(|span| span.overlaps(checked)) {
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
        let checked = if waits_for_new_tablet(event) { life } else { conditions.last_part(life) };
        if excuses.iter().any(|span| span.overlaps(checked)) {
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

/// Returns true if a call found a tablet that does not run yet.
fn waits_for_new_tablet(event: &TableEvent) -> bool {
    match &event.call {
        TableCall::Write { outcome: WriteOutcome::Unknown(why), .. }
        | TableCall::Read { outcome: ReadOutcome::Failed(why), .. } => why.contains(NOT_RUNNING),
        TableCall::Write { .. } | TableCall::Read { .. } | TableCall::Metadata { .. } => false,
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
    use ErrorKind::*;
    let error = operation.outcome.error()?;
    match error.kind {
        Some(Invalid) if is_backup(operation) && conditions.holds_history && lost_history(error) => {
            Some(error)
        }
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

/// Returns true if a backup found its snapshot out of the history, which it was to hold.
fn lost_history(error: &CallError) -> bool {
    error.message.contains(HISTORY_GONE) && !error.message.contains(BASE_GONE)
}

/// Returns true if the last part of an operation's life is enough for it. A new tablet may not run yet.
fn is_short(operation: &HistoryOp) -> bool {
    let error = operation.outcome.error();
    let waits_for_new_tablet = error.is_some_and(|error| error.message.contains(NOT_RUNNING));
    let is_of_few_calls = match &operation.request {
        ClientRequest::Write { .. } | ClientRequest::Scan(_) => true,
        ClientRequest::Other(text) => SHORT_REQUESTS.iter().any(|word| text.starts_with(word)),
        ClientRequest::Operator(_) => false,
    };
    is_of_few_calls && !waits_for_new_tablet
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

    /// Returns the end of a life, in which an operation that has failed all along would have succeeded.
    fn last_part(&self, life: Span) -> Span {
        let enough = self.attempt * LAST_ATTEMPTS + RETRY_WAITS;
        Span { from: life.from.max(life.to.saturating_sub(enough)), to: life.to }
    }

    /// Returns true if a disturbance of a server or a link has an effect within the life of an operation.
    pub(super) fn is_disturbed(&self, operation: &HistoryOp) -> bool {
        let life = self.span_of(operation, Duration::ZERO);
        self.of_servers().flat_map(|one| self.effects(one, false)).any(|span| span.overlaps(life))
    }

    /// Returns a test of spans of the clients' clock: true if no operator and no disturbance of a server or a link has
    /// an effect then.
    pub fn calm_times(&self, operations: &[HistoryOp]) -> impl Fn(Nanos, Nanos) -> bool {
        let excuses = self.excuses(operations, false);
        move |from, to| {
            let life = self.span(from, Some(to), Duration::ZERO);
            !excuses.iter().any(|span| span.overlaps(life))
        }
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
mod tests;
