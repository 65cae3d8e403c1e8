use super::*;
use crate::history::{
    CallOutcome, ClientRequest, RowOp, RowOpKind, RowResult, ScanMode, ScanRequest, ScannedRow,
};
use crate::projection::WHOLE;

/// Returns the oracles that report a violation of a history.
fn failed_oracles(text: &str) -> Vec<&'static str> {
    let report = check_history(&testing::history(text), 0);
    assert_eq!(report.undecided, 0);
    let mut names: Vec<&str> = report.violations.iter().map(|violation| violation.oracle).collect();
    names.dedup();
    names
}

fn assert_clean(text: &str) {
    let report = check_history(&testing::history(text), 0);
    let reported: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
    assert!(reported.is_empty(), "{}", reported.join("\n"));
    assert!(report.checked > 0);
}

#[test]
fn without_log_sync_rows_may_be_lost_but_not_invented() {
    let reported = |oracle| vec![Violation::new(oracle, "said")];
    let checked = |seen: &str, reported: &[Violation]| {
        let text = format!("0 1-2 upsert 1=5 ok @10\n1 3-4 snapshot @20 {seen}");
        let report = check_history_after_loss(&testing::history(&text), reported);
        report.violations.iter().map(|violation| violation.oracle).collect::<Vec<_>>()
    };
    assert_eq!(checked("1=5", &[]), [""; 0]);
    assert_eq!(checked("1=-", &[]), [""; 0], "it is lost");
    assert_eq!(checked("1=6", &[]), ["provenance"]);
    assert_eq!(checked("1=-", &reported("liveness")), ["liveness"], "other oracles stay valid");
    assert_eq!(checked("1=-", &reported("own columns and ranges")), [""; 0], "but not those of lost rows");
}

#[test]
fn operations_that_overlap_may_be_ordered_either_way() {
    assert_clean(
        "0 1-9 upsert 1=5 ok @10
         1 2-8 upsert 1=6 ok @11
         2 10-11 fresh 1=6
         2 12-13 snapshot @11 1=5
         2 14-15 snapshot @12 1=6",
    );
}

#[test]
fn a_read_that_goes_back_in_time_is_rejected() {
    let text = "0 1-2 upsert 1=5 ok @10
                0 3-4 upsert 1=6 ok @11
                1 5-6 fresh 1=5";
    assert_eq!(failed_oracles(text), ["linearizability"]);
    // The same reply is valid for a stale read, unless the value was never written.
    assert_clean(&text.replace("fresh", "stale"));
    assert_eq!(failed_oracles(&text.replace("fresh 1=5", "stale 1=7")), ["linearizability"]);
}

#[test]
fn a_deposed_leader_may_return_its_own_state_but_not_more() {
    let text = |last: &str| {
        format!(
            "0 1-2 upsert 1=5 ok @10
             0 3-4 after=10 upsert 1=6 ok @11
             1 5-6 {last}
             0 7-8 after=11 upsert 1=7 ok @12
             0 9-10 after=12 snapshot @20 1=7"
        )
    };
    // No row, the first, the newest: each was there once.
    for seen in ["1=-", "1=5", "1=6"] {
        assert_clean(&text(&format!("stale {seen}")));
    }
    // Values written only later, and never written.
    for seen in ["1=7", "1=9"] {
        assert_eq!(failed_oracles(&text(&format!("stale {seen}"))), ["linearizability"], "{seen}");
    }
    // A read at a snapshot must have all below it, and the snapshot what its client has seen.
    assert_eq!(failed_oracles(&text("snapshot @12 1=5")), ["versions"]);
    assert_eq!(failed_oracles(&text("after=11 stale @11 1=5")), ["hybrid time"]);
    assert_eq!(failed_oracles(&text("after=11 stale @12 1=5")), ["versions"]);
    // A stale read excuses no lost update.
    let lost = text("stale 1=5").replace("snapshot @20 1=7", "snapshot @20 1=6");
    assert_eq!(failed_oracles(&lost), ["versions", "durability"]);
}

#[test]
fn a_row_may_not_be_there_before_it_was_written() {
    assert_eq!(failed_oracles("0 1-2 fresh 1=5\n0 3-4 upsert 1=5 ok @10"), ["linearizability"]);
}

#[test]
fn outcomes_of_row_operations_must_be_in_order() {
    assert_clean(
        "0 1-2 insert 1=5 ok @10
         1 3-4 insert 1=6 present @11
         0 5-6 delete 1=0 ok @12
         1 7-8 update 1=6 missing @13
         1 9-10 delete_ignore 1=6 ok @14",
    );
    let text = "0 1-2 insert 1=5 ok @10
                1 3-4 insert 1=6 ok @11";
    assert_eq!(failed_oracles(text), ["linearizability", "versions", "exactly once"]);
}

#[test]
fn an_unknown_write_may_come_late_or_never_but_not_vanish() {
    let text = |last: &str| {
        format!(
            "0 1-2 upsert 1=5 ok @10
             1 3-4 after=10 upsert 1=6 ?
             2 5-6 snapshot @20 1=5
             2 7-8 snapshot @30 1=6
             2 9-10 snapshot @40 {last}"
        )
    };
    assert_clean(&text("1=6"));
    assert_eq!(failed_oracles(&text("1=5")), ["versions"]);
    // It cannot have happened before what its client had seen.
    let early = "1 3-4 after=10 upsert 1=6 ?
                 2 5-6 snapshot @9 1=6";
    assert_eq!(failed_oracles(early), ["versions"]);
}

#[test]
fn a_snapshot_that_does_not_repeat_is_rejected() {
    let text = "0 1-2 upsert 1=5 ok @10
                2 3-4 snapshot @20 1=5
                0 3-5 upsert 1=6 ok @15
                2 6-7 snapshot @20 1=6";
    assert_eq!(failed_oracles(text), ["versions", "RepeatableSnapshot"]);
}

#[test]
fn a_row_missing_from_a_scan_is_reported() {
    let text = "0 1-2 insert 1=5 ok @10
                0 3-4 insert 2=5 ok @11
                2 5-6 snapshot @20 1=5";
    assert_eq!(failed_oracles(text), ["versions", "durability"]);
}

#[test]
fn an_unwritten_row_is_reported() {
    assert_eq!(failed_oracles("0 1-2 insert 1=5 ok @10\n2 5-6 snapshot @20 1=5 9=9"), ["versions"]);
}

#[test]
fn diff_scans_return_the_changes() {
    let text = |seen: &str| {
        format!(
            "0 1-2 insert 1=5 ok @10
             0 3-4 insert 2=5 ok @11
             0 5-6 insert 3=5 ok @12
             0 7-8 delete 2=0 ok @22
             0 9-10 upsert 3=6 ok @23
             0 11-12 insert 4=6 ok @24
             0 13-14 insert 5=6 ok @25
             0 15-16 delete 5=6 ok @26
             1 17-18 diff 20..30 {seen}"
        )
    };
    assert_clean(&text("2=! 3=6 4=6"));
    assert_clean(&text("2=! 3=6 4=6 5=!"));
    for wrong in ["3=6 4=6", "2=! 3=5 4=6", "2=! 4=6", "1=5 2=! 3=6 4=6", "1=! 2=! 3=6 4=6"] {
        assert_eq!(failed_oracles(&text(wrong)), ["versions"], "{wrong}");
    }
}

#[test]
fn a_lost_write_is_named() {
    let text = "0 1-2 upsert 1=5 ok @10
                0 3-4 upsert 1=6 ok @11
                0 5-6 snapshot @20 1=5";
    assert_eq!(failed_oracles(text), ["versions", "durability"]);
    // A write of unknown outcome may have written that.
    assert_clean(&format!("{text}\n 1 1-9 upsert 1=5 ?"));
}

#[test]
fn a_retried_insert_must_not_meet_itself() {
    let text = "0 1-2 insert 1=5 present @10
                0 5-6 snapshot @20 1=5";
    assert!(failed_oracles(text).contains(&"exactly once"));
    let deleted = "0 1-2 insert 1=5 ok @10
                   0 3-4 delete 1=0 missing @11
                   0 5-6 snapshot @20 1=-";
    assert!(failed_oracles(deleted).contains(&"exactly once"));
}

#[test]
fn timestamps_are_above_those_that_clients_have_seen() {
    assert_clean("0 1-2 upsert 1=5 ok @10\n1 3-4 after=10 upsert 2=6 ok @11");
    let text = "0 1-2 upsert 1=5 ok @10\n1 3-4 after=10 upsert 2=6 ok @10";
    assert_eq!(failed_oracles(text), ["hybrid time"]);
    // On one row writes of unrelated clients are ordered too.
    let text = "0 1-2 upsert 1=5 ok @20\n1 3-4 upsert 1=6 ok @11\n1 5-6 fresh 1=6";
    assert_eq!(failed_oracles(text), ["hybrid time"]);
    let text = "0 1-4 upsert 1=5 ok @20\n1 3-4 upsert 1=6 ok @20";
    assert_eq!(failed_oracles(text), ["hybrid time"]);
    assert_clean(&text.replace("1 3-4", "0 3-4"));
}

/// A correct store, and clients that overlap: 8 of them, 2,000 calls.
fn long_history(keys: i64) -> Vec<HistoryOp> {
    let mut rows: BTreeMap<i64, Option<i64>> = BTreeMap::new();
    let mut busy_until = [0u64; 8];
    let mut draw = 1u64;
    let mut operations = Vec::new();
    for at in 0..2_000u64 {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let drawn = draw >> 33;
        let client = (drawn % 8) as usize;
        let key = (drawn / 8) as i64 % keys;
        // The effect is at 100 * at; the call may begin before and end after.
        let effect = 100 * at + 50_000;
        let invoked = (effect - drawn % 700).max(busy_until[client] + 1).min(effect);
        let returned = effect + draw % 700;
        busy_until[client] = returned;
        let (request, outcome) = match drawn % 10 {
            0..4 => {
                let keys = (key, key + 1);
                let scan = ScanRequest {
                    table: 0,
                    keys,
                    mode: ScanMode::Fresh,
                    diff_from: None,
                    ordered: false,
                    view: WHOLE,
                };
                let row = rows.get(&key).copied().map(|value| ScannedRow { key, row: Some(vec![value]) });
                (ClientRequest::Scan(scan), CallOutcome::Rows { at: None, rows: row.into_iter().collect() })
            }
            kind => {
                let kinds = [RowOpKind::Upsert, RowOpKind::Insert, RowOpKind::Delete];
                let op = RowOp { kind: kinds[kind as usize % 3], key, cells: vec![Some(Some(at as i64))] };
                let before = rows.get(&key).map(|value| vec![*value]);
                let effect = row_semantics::apply(&before, &op);
                match effect.change {
                    Some(Some(row)) => drop(rows.insert(key, row[0])),
                    Some(None) => drop(rows.remove(&key)),
                    None => {}
                }
                let answer = match drawn % 97 {
                    0 => RowResult::Unknown,
                    _ => RowResult::At { at: at + 1, outcome: effect.outcome },
                };
                (ClientRequest::Write { table: 0, rows: vec![op] }, CallOutcome::Written(vec![answer]))
            }
        };
        let client = client as u32;
        operations.push(HistoryOp { client, invoked, returned: Some(returned), after: 0, request, outcome });
    }
    operations
}

#[test]
fn a_long_history_is_checked() {
    for keys in [1, 10, 200] {
        let mut operations = long_history(keys);
        let report = check_history(&operations, 0);
        assert!(report.is_clean(), "{}", report.violations[0]);
        // The last read that saw a row sees a value never written.
        let read = operations.iter_mut().rev().find_map(|operation| match &mut operation.outcome {
            CallOutcome::Rows { rows, .. } if !rows.is_empty() => Some(rows),
            _ => None,
        });
        read.expect("some read saw a row")[0].row = Some(vec![Some(-7)]);
        let report = check_history(&operations, 0);
        let found = report.violations.iter().any(|violation| violation.oracle == "linearizability");
        assert!(found || report.undecided > 0, "no oracle reported it ({keys} keys)");
    }
}

#[test]
fn a_commit_wait_write_returns_after_its_timestamp() {
    use engine::time::{Instant, WallTime};
    let mut plan = sim_plan::Plan::generate(1, sim_plan::FaultProfile::Calm, sim_plan::PlanSize::Smoke);
    let now =
        engine::time::ClockReading { mono: Instant(0), wall: WallTime { micros: 1_000, error_micros: 0 } };
    let found = |plan: &sim_plan::Plan, micros: u64| {
        super::hybrid_time::check_waited(plan, micros << 12, now).is_some()
    };
    plan.clocks.clear();
    assert!(!found(&plan, 1_000));
    assert!(found(&plan, 1_001));
    let host = sim_plan::Host::Tserver(0);
    plan.clocks.push(sim_plan::ClockSkew { host, offset_us: 700, drift_ppm: 0, error_us: 500 });
    assert!(!found(&plan, 1_200), "a clock that is wrong beyond its stated error");
    assert!(found(&plan, 1_201));
}

#[test]
fn a_snapshot_of_now_is_as_old_as_clocks_differ() {
    let text = "0 1000-2000 upsert 1=5 ok @10
                1 3000-4000 upsert 1=6 ok @20
                0 5000-6000 fresh @15 1=5";
    let is_rejected = |apart| !check_history(&testing::history(text), apart).is_clean();
    assert!(is_rejected(0) && is_rejected(900));
    assert!(!is_rejected(1_100), "its server's clock may be behind the writer's");
}

#[test]
fn the_clock_difference_counts_offset_drift_jumps_and_errors() {
    let mut plan = sim_plan::Plan::generate(1, sim_plan::FaultProfile::Calm, sim_plan::PlanSize::Smoke);
    (plan.clocks, plan.faults) = (Vec::new(), Vec::new());
    assert_eq!(
        super::hybrid_time::max_clock_difference(&plan, 0),
        2_000_000,
        "each is right to a millisecond"
    );
    let host = sim_plan::Host::Tserver;
    let clock = |number, offset_us, drift_ppm| sim_plan::ClockSkew {
        host: host(number),
        offset_us,
        drift_ppm,
        error_us: 500,
    };
    plan.clocks = vec![clock(0, -3_000, 0), clock(1, 2_000, 100)];
    assert_eq!(super::hybrid_time::max_clock_difference(&plan, 10_000_000_000), 3_000_000 + 3_000_000);
    let jump = sim_plan::faults::Fault::ClockJump { micros: -500 };
    let unsure =
        sim_plan::faults::Fault::ClockError { micros: 1_000, behind: true, span: Default::default() };
    for (kind, expected) in [(jump, 6_500_000), (unsure, 7_000_000)] {
        plan.faults.push(sim_plan::TimedFault { at: Default::default(), target: host(1), kind });
        assert_eq!(super::hybrid_time::max_clock_difference(&plan, 10_000_000_000), expected);
    }
}

#[test]
fn a_scan_that_gives_a_row_twice_is_rejected() {
    let text = "0 1-2 upsert 1=5 ok @10
                0 3-4 snapshot @20 1=5 2=-";
    assert_clean(text);
    assert_eq!(failed_oracles(&text.replace("2=-", "1=5")), ["exactly once"]);
}
