//! Operations with and without excuses.

use super::*;
use crate::history::CallOutcome;
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
        is_prompt: true,
        holds_history: true,
        is_slow: false,
        attempt: Duration::from_secs(1),
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
        let conditions =
            Conditions { attempt: Duration::from_secs(2), is_replicated: true, ..conditions(disturbances) };
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
fn the_last_part_of_an_operation_must_have_a_reply() {
    // The server is down from second 10 to 20, and recovers by second 25; the last part has 9 seconds.
    assert_eq!(judged(&[write(12, 33, timeout())]), (0, 0));
    assert_eq!(judged(&[write(12, 35, timeout())]), (1, 1));
    let other = |text: &str, why: &str| {
        let outcome = CallOutcome::Unknown(Error::timed_out(why).into());
        judged(&[operation(ClientRequest::Other(text.to_string()), 12, 35, outcome)]).0
    };
    assert_eq!((other("look up a model table", "no master"), other("alter table 0", "no master")), (1, 0));
    assert_eq!(other("open table 0", "Tablet not running"), 0, "it is new");
}

#[test]
fn a_backup_must_not_lose_the_history_that_it_holds() {
    let judged = |message: &str, holds_history: bool| {
        let failed = CallOutcome::Failed(Error::invalid(message).into());
        let backup = operation(ClientRequest::Other("backup of table t0, any".into()), 1, 5, failed);
        let mut report = OracleReport::default();
        check(&[backup], &Conditions { holds_history, ..conditions(&[]) }, &mut report);
        report.violations.len()
    };
    let gone = "the snapshot at 9 is older than the ancient history mark 12";
    assert_eq!((judged(gone, true), judged(gone, false)), (1, 0));
    assert_eq!(judged(&format!("no history since the base, a backup of 7: {gone}"), true), 0);
    assert_eq!(judged("no such column", true), 0);
}

#[test]
fn a_timeout_is_excused_only_beside_a_disturbance() {
    assert_eq!(judged(&[write(0, 9, timeout())]), (1, 1));
    assert_eq!(judged(&[write(0, 10, timeout())]), (0, 0));
    assert_eq!(judged(&[write(24, 33, timeout())]), (0, 0));
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
    assert_eq!(judged(&one, &[write(14, 22, timeout())], true), 0, "it began too soon");
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
    let busy = "timed out after 11 attempts; last error: ERROR_SERVER_TOO_BUSY: Hard memory limit exceeded";
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
