//! Answers: each error that a service or the client reports must have an excuse in the plan.
//!
//! ```text
//! client    kind of the error, by kind of request ──► may the plan cause it?
//! service   code and status, by method            ──► may this method tell it?
//! RPC       code, by method                       ──► may a cluster that is not secured refuse the call?
//! ```
//!
//! Not here: calls without a reply (`availability`), and refusals that the model of a table decides (`model_oracle`).

use std::collections::BTreeMap;

use engine::error::ErrorKind;

use super::creations::TOO_FEW;
use super::history_gc::HISTORY_GONE;
use super::{OracleReport, Violation};
use crate::history::{CallError, CallOutcome, ClientRequest, HistoryOp, RowOutcome, RowResult};
use crate::wire::client::{RPC_ERROR, ToldError};
use sim_plan::faults::{DiskEffect, Fault};
use sim_plan::{ClientOp, Host, Plan};

/// Name of this oracle.
pub const NAME: &str = "answers";
/// Beginning of the names of counters of answers.
pub const PREFIX: &str = "answer: ";
/// Disk operations of masters and servers within which a table is created, from a long queue.
const CREATION_DISK_OPS: u32 = 1_000;
/// Letters of a message that a counter's name has.
const TEXT_MAX: usize = 40;

/// Part of the message about a column that a tablet does not have, or not yet.
const NO_COLUMN: &str = "not present in tablet";
/// Part of the message of a scanner that is not there.
const NO_SCANNER: &str = "it may have expired";
/// Part of the message about columns of a scan that the table has no more.
const NO_SUCH_COLUMNS: &str = "not present in the current schema";
/// Part of the message about a timestamp that is too far ahead, for a clock that is behind.
pub const FROM_THE_FUTURE: &str = "ahead of this server's clock";

/// A service's code, and the statuses that may come with it. No status: any, as the error may have many origins.
type CodedStatuses = (i32, &'static [i32]);

/// Codes that a method may tell plain clients.
struct ToldCodes {
    method: &'static str,
    codes: &'static [CodedStatuses],
    /// Codes that need a fault, such as a replica that failed.
    after_faults: &'static [CodedStatuses],
}

/// Statuses.
const NOT_FOUND: i32 = 1;
const CORRUPTION: i32 = 2;
const NOT_SUPPORTED: i32 = 3;
const INVALID_ARGUMENT: i32 = 4;
const IO_ERROR: i32 = 5;
const ALREADY_PRESENT: i32 = 6;
const ILLEGAL_STATE: i32 = 9;
const NOT_AUTHORIZED: i32 = 10;
const ABORTED: i32 = 11;
const SERVICE_UNAVAILABLE: i32 = 13;
const TIMED_OUT: i32 = 14;

/// Statuses of UNKNOWN_ERROR. A tablet that is unavailable or throttled makes the whole call fail as too busy, damaged
/// bytes in a write are a MISMATCHED_SCHEMA, and those that a scan reads fail the replica.
const OF_WRITES: &[i32] = &[
    NOT_FOUND,
    NOT_SUPPORTED,
    INVALID_ARGUMENT,
    IO_ERROR,
    ALREADY_PRESENT,
    ILLEGAL_STATE,
    NOT_AUTHORIZED,
    ABORTED,
    TIMED_OUT,
];
const OF_SCANS: &[i32] = &[
    NOT_FOUND,
    NOT_SUPPORTED,
    INVALID_ARGUMENT,
    ALREADY_PRESENT,
    ILLEGAL_STATE,
    NOT_AUTHORIZED,
    ABORTED,
    TIMED_OUT,
];

/// TABLET_NOT_FOUND: there is none, or a tombstone.
const NO_TABLET: CodedStatuses = (6, &[NOT_FOUND, ILLEGAL_STATE]);
/// TABLET_FAILED.
const FAILED: CodedStatuses = (20, &[ILLEGAL_STATE]);
/// SCANNER_EXPIRED.
const EXPIRED: CodedStatuses = (7, &[NOT_FOUND]);
/// Codes of masters: TABLE_NOT_FOUND, CATALOG_MANAGER_NOT_INITIALIZED, NOT_THE_LEADER, TABLET_NOT_RUNNING.
const NO_TABLE: CodedStatuses = (3, &[NOT_FOUND]);
const LOADING: CodedStatuses = (6, &[SERVICE_UNAVAILABLE]);
const NO_LEADER: CodedStatuses = (7, &[ILLEGAL_STATE]);
const NOT_UP: CodedStatuses = (9, &[SERVICE_UNAVAILABLE]);

const TOLD: [ToldCodes; 11] = [
    ToldCodes {
        method: "Write",
        codes: &[
            // UNKNOWN_ERROR: not the leader, given up, a dropped range.
            (1, OF_WRITES),
            // INVALID_SCHEMA, MISMATCHED_SCHEMA.
            (2, &[INVALID_ARGUMENT]),
            (5, &[CORRUPTION, NOT_SUPPORTED, INVALID_ARGUMENT]),
            NO_TABLET,
            // TABLET_NOT_RUNNING.
            (12, &[ILLEGAL_STATE]),
        ],
        after_faults: &[FAILED],
    },
    ToldCodes {
        method: "Scan",
        codes: &[
            // UNKNOWN_ERROR: a column is dropped as the scan begins.
            (1, OF_SCANS),
            // INVALID_SCHEMA, MISMATCHED_SCHEMA.
            (2, &[INVALID_ARGUMENT]),
            (5, &[INVALID_ARGUMENT]),
            NO_TABLET,
            // INVALID_SCAN_SPEC, TABLET_NOT_RUNNING.
            (8, &[]),
            (12, &[]),
            // INVALID_SNAPSHOT.
            (13, &[INVALID_ARGUMENT]),
        ],
        after_faults: &[EXPIRED, FAILED],
    },
    ToldCodes { method: "ScannerKeepAlive", codes: &[], after_faults: &[EXPIRED] },
    ToldCodes {
        method: "GetTableLocations",
        codes: &[NO_TABLE, LOADING, NO_LEADER, NOT_UP],
        after_faults: &[],
    },
    ToldCodes { method: "GetTableSchema", codes: &[NO_TABLE, LOADING, NO_LEADER], after_faults: &[] },
    ToldCodes { method: "GetTableStatistics", codes: &[NO_TABLE, LOADING, NO_LEADER], after_faults: &[] },
    ToldCodes { method: "IsAlterTableDone", codes: &[NO_TABLE, LOADING, NO_LEADER], after_faults: &[] },
    ToldCodes { method: "IsCreateTableDone", codes: &[NO_TABLE, LOADING, NO_LEADER], after_faults: &[] },
    ToldCodes { method: "ListTables", codes: &[LOADING, NO_LEADER], after_faults: &[] },
    ToldCodes { method: "ListTablets", codes: &[], after_faults: &[] },
    // TABLET_NOT_RUNNING.
    ToldCodes { method: "SplitKeyRange", codes: &[NO_TABLET, (12, &[])], after_faults: &[FAILED] },
];

/// Errors of the RPC layer that clients without proofs of identity cannot provoke by what they ask:
/// ERROR_NO_SUCH_METHOD and _SERVICE, ERROR_INVALID_REQUEST, and those of malformed messages, of rights and of tokens.
const RPC_REFUSALS: [i32; 10] = [2, 3, 5, 12, 13, 14, 15, 16, 17, 18];

impl ToldCodes {
    fn allow(&self, code: i32, status: i32, has_faults: bool) -> bool {
        let fits = |(known, statuses): &CodedStatuses| {
            *known == code && (statuses.is_empty() || statuses.contains(&status))
        };
        self.codes.iter().any(fits) || has_faults && self.after_faults.iter().any(fits)
    }
}

/// Causes of errors in a plan.
struct Causes {
    drops_columns: bool,
    adds_columns: bool,
    alters_model_tables: bool,
    /// True if ranges or tables are dropped.
    drops_tablets: bool,
    forgets_history: bool,
    has_faults: bool,
    /// True if bytes of a disk change: files that are read later are corrupt.
    rots: bool,
    /// True if the reply to a request may be lost or late: it is sent again, and may have been executed.
    loses_replies: bool,
    has_several_masters: bool,
    /// True if a disk of a client's machine fails.
    fails_stores: bool,
    /// True if a clock is wrong by more than it states.
    has_false_clocks: bool,
}

fn rots(fault: &Fault) -> bool {
    fault.kind().disk_effect() == DiskEffect::SilentCorruption
}

fn is_false_step(fault: &Fault) -> bool {
    matches!(fault, Fault::ClockStep { told: false, .. })
}

impl Causes {
    fn of(plan: &Plan) -> Causes {
        use ClientOp::{AddColumn, AddRange, DropRange, OwnRange, ShortTable, TableAlter};
        let drops = |op: &ClientOp| {
            matches!(
                op,
                AddRange { .. } | DropRange { .. } | OwnRange { .. } | ShortTable { .. } | TableAlter { .. }
            )
        };
        Causes {
            drops_columns: plan.loses_columns(),
            adds_columns: plan.any_op(|op| matches!(op, AddColumn { .. })),
            alters_model_tables: plan.alters_model_tables(),
            drops_tablets: plan.clients.iter().flat_map(|client| &client.ops).any(drops),
            forgets_history: !plan.data.history.is_zero(),
            has_faults: !plan.faults.is_empty(),
            rots: plan.faults.iter().any(|fault| rots(&fault.kind)),
            loses_replies: !plan.faults.is_empty()
                || plan.network.loss_per_mille > 0
                || plan.cluster.rpc_timeout < plan.devices.op * CREATION_DISK_OPS,
            has_several_masters: plan.cluster.masters > 1,
            fails_stores: plan.faults.iter().any(|fault| matches!(fault.target, Host::Client(_))),
            has_false_clocks: plan.faults.iter().any(|fault| is_false_step(&fault.kind)),
        }
    }

    /// Returns true if a request of this kind may end in the error.
    fn excuse(&self, what: &str, error: &CallError) -> bool {
        use ErrorKind::*;
        let Some(kind) = error.kind else { return true };
        let of_history = error.message.contains(HISTORY_GONE);
        // Some plans read before all history on purpose.
        let before_all = error.message.contains("timestamp: 0.1");
        match (what, kind) {
            (_, TimedOut | Throttled | NotReady | NotLeader) => true,
            ("backup", _) => self.excuse_backup(kind, &error.message),
            (_, Io | Aborted) => self.has_faults,
            (_, NotAuthorized | Unsupported) => false,
            (_, Corrupt) => self.rots,
            (_, Invalid) if error.message.contains(FROM_THE_FUTURE) => self.has_false_clocks,
            // Each table that is made has a name of its own. `creations` asks if too few servers may be known.
            ("make", Invalid) => error.message.contains(TOO_FEW),
            ("make", AlreadyPresent) => self.loses_replies,
            // A master that does not lead any more, and has not learned of it, does not know a new table.
            ("make", NotFound) => self.loses_replies && self.has_several_masters,
            // Changes of tables say that there is nothing to change, or that something is in their way.
            ("alter" | "drop" | "look", Invalid | NotFound | AlreadyPresent) => true,
            // `history_gc` asks how old the snapshot was.
            ("scan", Invalid) if of_history => self.forgets_history || before_all,
            // Masters report a new column before every tablet has it.
            ("write" | "scan" | "insert", Invalid) if error.message.contains(NO_COLUMN) => {
                self.adds_columns || self.drops_columns
            }
            ("write" | "scan" | "insert", Invalid) => self.drops_columns,
            // A row's error is told to all rows of its batch that have no answer.
            ("write" | "insert", NotFound | AlreadyPresent) => true,
            // A server that stops loses its scanners, and an unordered scan that has rows cannot begin again.
            ("read", NotFound) if error.message.contains(NO_SCANNER) && self.has_faults => true,
            // Its columns or its name are those of another version.
            ("read" | "put" | "ask", Invalid | NotFound) => self.alters_model_tables,
            ("scan", NotFound) => self.drops_tablets || self.has_faults,
            (_, Invalid | NotFound | AlreadyPresent) => false,
        }
    }
}

impl Causes {
    /// Returns true if a backup may end in the error.
    fn excuse_backup(&self, kind: ErrorKind, message: &str) -> bool {
        use ErrorKind::*;
        let alters =
            self.drops_columns || self.adds_columns || self.alters_model_tables || self.drops_tablets;
        match kind {
            // Its columns or tablets are others than at its beginning.
            Aborted | Invalid if message.contains("meanwhile") || message.contains("just now") => alters,
            // `availability` asks what has kept the backup from holding it.
            Invalid if message.contains(HISTORY_GONE) => self.forgets_history,
            NotFound if message.contains("no backup to build on") => true,
            NotFound if message.ends_with("was dropped") => self.drops_tablets || self.alters_model_tables,
            // A scan of the backup begins after a column was dropped.
            Invalid if message.contains(NO_SUCH_COLUMNS) => self.drops_columns || self.alters_model_tables,
            // It has another name by now, or lacks a column or a tablet.
            Invalid | NotFound => self.alters_model_tables,
            Io => self.fails_stores,
            _ => false,
        }
    }
}

/// Checks the errors of a run.
pub fn check(
    operations: &[HistoryOp],
    errors: &BTreeMap<ToldError, (u64, String)>,
    plan: &Plan,
    report: &mut OracleReport,
) {
    let causes = Causes::of(plan);
    for operation in operations {
        report.checked += 1;
        let what = word(&operation.request);
        match &operation.outcome {
            CallOutcome::Failed(error) | CallOutcome::Unknown(error)
                if !what.is_empty() && !causes.excuse(what, error) =>
            {
                report.add(violation(&format!(
                    "nothing in the plan explains this error of a {what}: {operation}"
                )));
            }
            CallOutcome::Written(rows) if rows.iter().any(is_refused) && !causes.drops_columns => {
                report.add(violation(&format!("nothing in the plan explains a refused row: {operation}")));
            }
            _ => {}
        }
    }
    let has_cause = causes.has_faults || plan.pauses_scans();
    for (error, (count, text)) in errors {
        report.checked += count;
        let fault = told_fault(error, text, has_cause, plan.security.is_some());
        fault.into_iter().for_each(|message| report.add(violation(&message)));
    }
}

/// Returns what is wrong with an error that a service, or the RPC layer before it, told a plain client.
fn told_fault(error: &ToldError, text: &str, has_cause: bool, is_secure: bool) -> Option<String> {
    let ToldError { method, code, status } = error;
    if let Some(method) = method.strip_prefix(RPC_ERROR) {
        let is_wrong = !is_secure && RPC_REFUSALS.contains(code);
        return is_wrong.then(|| format!("a call of {method} ended in the error {code} of RPC: {text}"));
    }
    // Callers of other methods decide about their errors.
    let of_method = TOLD.iter().find(|told| told.method == method)?;
    (!of_method.allow(*code, *status, has_cause))
        .then(|| format!("{method} told the code {code} with status {status}, which it must not: {text}"))
}

fn violation(message: &str) -> Violation {
    Violation::new(NAME, message)
}

/// Returns a word for the kind of request; none for what operators do.
fn word(request: &ClientRequest) -> &str {
    match request {
        ClientRequest::Write { .. } => "write",
        ClientRequest::Scan(_) => "scan",
        ClientRequest::Other(text) => text.split(' ').next().unwrap_or_default(),
        ClientRequest::Operator(_) => "",
    }
}

fn is_refused(answer: &RowResult) -> bool {
    matches!(answer, RowResult::At { outcome: RowOutcome::Refused, .. })
}

/// Counts the errors of a run by method and code, or by request and kind.
pub fn count(
    operations: &[HistoryOp],
    errors: &BTreeMap<ToldError, (u64, String)>,
    counts: &mut BTreeMap<String, u64>,
) {
    for (ToldError { method, code, status }, (count, text)) in errors {
        let text: String = text.chars().take(TEXT_MAX).filter(|letter| !letter.is_ascii_digit()).collect();
        *counts.entry(format!("{PREFIX}{method} {code}/{status} {text}")).or_default() += count;
    }
    for operation in operations {
        let what = word(&operation.request);
        let kind = match &operation.outcome {
            CallOutcome::Written(rows) if rows.iter().any(is_refused) => "row refused".to_string(),
            CallOutcome::Failed(error) | CallOutcome::Unknown(error) if !what.is_empty() => {
                error.kind.map_or("none".to_string(), |kind| format!("{kind:?}"))
            }
            _ => continue,
        };
        *counts.entry(format!("{PREFIX}{what} {kind}")).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use engine::error::Error;
    use sim_plan::faults::TimedFault;
    use sim_plan::line_format::LineRecord;
    use sim_plan::{FaultProfile, PlanSize};

    use super::*;

    fn operation(request: ClientRequest, outcome: CallOutcome) -> HistoryOp {
        HistoryOp { client: 0, invoked: 1, returned: Some(2), after: 0, request, outcome }
    }

    fn judged(operations: &[HistoryOp], told: &[(&str, i32, i32)]) -> usize {
        judged_beside(&[], operations, told)
    }

    fn judged_beside(ops: &[ClientOp], operations: &[HistoryOp], told: &[(&str, i32, i32)]) -> usize {
        let mut plan = Plan::generate(1, FaultProfile::Calm, PlanSize::Smoke);
        plan.faults.clear();
        plan.clients.iter_mut().for_each(|client| client.ops.clear());
        plan.clients[0].ops.extend_from_slice(ops);
        plan.data.history = std::time::Duration::ZERO;
        plan.security = None;
        let error = |(method, code, status): &(&str, i32, i32)| {
            (ToldError { method: method.to_string(), code: *code, status: *status }, (1, "why".to_string()))
        };
        let mut report = OracleReport::default();
        check(operations, &told.iter().map(error).collect(), &plan, &mut report);
        report.violations.len()
    }

    #[test]
    fn an_error_without_a_cause_is_reported() {
        let write = |error: Error| {
            let request = ClientRequest::Write { table: 0, rows: Vec::new() };
            operation(request, CallOutcome::Failed(error.into()))
        };
        assert_eq!(judged(&[write(Error::invalid("no such column"))], &[]), 1);
        let scan = operation(
            ClientRequest::Other("scan".to_string()),
            CallOutcome::Failed(Error::not_found("no tablet").into()),
        );
        assert_eq!(judged(&[scan], &[]), 1);
        assert_eq!(judged(&[write(Error::corrupt("rot"))], &[]), 1);
        assert_eq!(judged(&[write(Error::not_ready("no leader"))], &[]), 0);
        let alter = ClientRequest::Other("alter table 0".to_string());
        assert_eq!(
            judged(&[operation(alter, CallOutcome::Failed(Error::not_found("no column").into()))], &[]),
            0
        );
        let refused = RowResult::At { at: 5, outcome: RowOutcome::Refused };
        let request = ClientRequest::Write { table: 0, rows: Vec::new() };
        assert_eq!(judged(&[operation(request, CallOutcome::Written(vec![refused]))], &[]), 1);
    }

    #[test]
    fn only_changed_bytes_explain_corruption_and_only_lost_replies_a_table_that_is_there() {
        let write = |error: Error| {
            let request = ClientRequest::Write { table: 0, rows: Vec::new() };
            operation(request, CallOutcome::Failed(error.into()))
        };
        let make = |error: Error| {
            let request = ClientRequest::Other("make table short-1".to_string());
            operation(request, CallOutcome::Unknown(error.into()))
        };
        let judged = |fault: &str, operation: HistoryOp| {
            let mut plan = Plan::generate(1, FaultProfile::Calm, PlanSize::Smoke);
            plan.faults = vec![TimedFault::parse_line(fault).expect("a fault")];
            let mut report = OracleReport::default();
            check(&[operation], &BTreeMap::new(), &plan, &mut report);
            report.violations.len()
        };
        let (kill, rot) = ("at 1s t0 kill down=1s", "at 1s t0 bit-rot bits=1");
        let corrupt = || write(Error::corrupt("a page has another checksum"));
        assert_eq!((judged(kill, corrupt()), judged(rot, corrupt())), (1, 0));
        let present = || make(Error::already_present("it exists"));
        assert_eq!((judged(kill, present()), judged_calmly(present())), (0, 1));
        let few = "not enough live tablet servers to create a table";
        assert_eq!(judged_calmly(make(Error::invalid(few))), 0, "another oracle asks");
        assert_eq!(judged(kill, make(Error::invalid("no key column"))), 1);
        assert_eq!(judged_calmly(make(Error::not_found("no such table"))), 1);
    }

    /// Checks an operation of a run with fast devices, a network without losses and one master.
    fn judged_calmly(operation: HistoryOp) -> usize {
        let mut plan = Plan::generate(1, FaultProfile::Calm, PlanSize::Smoke);
        plan.faults.clear();
        (plan.network.loss_per_mille, plan.cluster.masters) = (0, 1);
        plan.devices.op = std::time::Duration::ZERO;
        let mut report = OracleReport::default();
        check(&[operation], &BTreeMap::new(), &plan, &mut report);
        report.violations.len()
    }

    #[test]
    fn a_new_column_may_not_be_known_to_every_tablet_yet() {
        let error = Error::invalid("Client provided column extra_3 INT64 NULLABLE not present in tablet");
        let request = ClientRequest::Write { table: 0, rows: Vec::new() };
        let write = [operation(request, CallOutcome::Failed(error.into()))];
        assert_eq!(judged(&write, &[]), 1);
        assert_eq!(judged_beside(&[ClientOp::AddColumn { table: 0, column: 3 }], &write, &[]), 0);
    }

    #[test]
    fn a_failed_backup_needs_a_cause_of_its_own() {
        let backup = |error: Error| {
            let request = ClientRequest::Other("backup of table t0, any".to_string());
            [operation(request, CallOutcome::Failed(error.into()))]
        };
        let changed = backup(Error::aborted("its columns or range partitions changed just now"));
        assert_eq!(judged(&changed, &[]), 1);
        assert_eq!(judged_beside(&[ClientOp::AddColumn { table: 0, column: 3 }], &changed, &[]), 0);
        assert_eq!(judged(&backup(Error::not_found("no backup to build on")), &[]), 0);
        assert_eq!(judged(&backup(Error::corrupt("a part has too few rows")), &[]), 1);
        let dropped = backup(Error::not_found("tablet a of table t0 was dropped"));
        assert_eq!(judged(&dropped, &[]), 1);
        assert_eq!(judged_beside(&[ClientOp::DropRange { table: 0, range: 1 }], &dropped, &[]), 0);
        let full = Error::io("write part", &std::io::ErrorKind::StorageFull.into());
        assert_eq!(judged(&backup(full), &[]), 1, "no disk of a client fails");
    }

    #[test]
    fn a_code_that_a_method_does_not_tell_is_reported() {
        assert_eq!(judged(&[], &[("Write", 1, 9), ("Scan", 12, 9), ("AlterTable", 99, 99)]), 0);
        assert_eq!(judged(&[], &[("Write", 7, 1)]), 1);
        assert_eq!(judged(&[], &[("Write", 20, 9)]), 1, "no fault of the plan fails a replica");
        assert_eq!(judged(&[], &[("Scan", 3, 9)]), 1);
    }

    #[test]
    fn a_code_with_the_status_of_another_error_is_reported() {
        let right = [("Write", 6, 1), ("Scan", 12, 13), ("GetTableLocations", 7, 9), ("ListTables", 6, 13)];
        assert_eq!(judged(&[], &right), 0);
        let wrong = [
            ("Write", 1, 13),
            ("Write", 12, 13),
            ("Scan", 13, 13),
            ("GetTableLocations", 7, 13),
            ("IsAlterTableDone", 3, 9),
        ];
        assert_eq!(judged(&[], &wrong), wrong.len());
    }

    #[test]
    fn refusals_before_the_service_need_proofs_of_identity() {
        let told = |code| {
            let (method, status) = (format!("{RPC_ERROR}Scan"), 0);
            ToldError { method, code, status }
        };
        let fault = |code: i32, is_secure: bool| told_fault(&told(code), "why", true, is_secure).is_some();
        assert!([2, 3, 5, 15, 17].into_iter().all(|code| fault(code, false)));
        assert!(!fault(15, true), "a token may have expired");
        assert!(!fault(6, false) && !fault(11, false));
    }
}
