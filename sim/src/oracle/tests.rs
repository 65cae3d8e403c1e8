use super::*;
use crate::history::{Mode, Outcome, Request, RowAnswer, RowOp, RowOpKind, Scan, Seen};
use crate::view::WHOLE;

/// The judges that object to a history.
fn objections(text: &str) -> Vec<&'static str> {
    let report = judge(&testing::history(text), 0);
    assert_eq!(report.undecided, 0);
    let mut names: Vec<&str> = report.findings.iter().map(|finding| finding.oracle).collect();
    names.dedup();
    names
}

fn assert_clean(text: &str) {
    let report = judge(&testing::history(text), 0);
    let said: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(said.is_empty(), "{}", said.join("\n"));
    assert!(report.checked > 0);
}

#[test]
fn where_logs_are_not_synced_rows_may_go_but_none_comes_from_nowhere() {
    let said = |oracle| vec![Finding::new(oracle, "said")];
    let judged = |seen: &str, said: &[Finding]| {
        let text = format!("0 1-2 upsert 1=5 ok @10\n1 3-4 snapshot @20 {seen}");
        let report = judge_forgetful(&testing::history(&text), said);
        report.findings.iter().map(|finding| finding.oracle).collect::<Vec<_>>()
    };
    assert_eq!(judged("1=5", &[]), [""; 0]);
    assert_eq!(judged("1=-", &[]), [""; 0], "it is gone");
    assert_eq!(judged("1=6", &[]), ["written"]);
    assert_eq!(judged("1=-", &said("liveness")), ["liveness"], "the word of others stands");
    assert_eq!(
        judged("1=-", &said("own columns and ranges")),
        [""; 0],
        "not of those who ask for what is gone"
    );
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
    assert_eq!(objections(text), ["linearizability"]);
    // The same answer of a read that may be stale is fine, unless nobody ever wrote it.
    assert_clean(&text.replace("fresh", "stale"));
    assert_eq!(objections(&text.replace("fresh 1=5", "stale 1=7")), ["linearizability"]);
}

#[test]
fn a_replaced_leader_may_answer_with_what_it_has_but_not_with_more() {
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
    // What is written only later, and what nobody writes.
    for seen in ["1=7", "1=9"] {
        assert_eq!(objections(&text(&format!("stale {seen}"))), ["linearizability"], "{seen}");
    }
    // A read at a snapshot must have all below it, and the snapshot what its client has seen.
    assert_eq!(objections(&text("snapshot @12 1=5")), ["versions"]);
    assert_eq!(objections(&text("after=11 stale @11 1=5")), ["hybrid time"]);
    assert_eq!(objections(&text("after=11 stale @12 1=5")), ["versions"]);
    // A stale read excuses no lost update.
    let lost = text("stale 1=5").replace("snapshot @20 1=7", "snapshot @20 1=6");
    assert_eq!(objections(&lost), ["versions", "durability"]);
}

#[test]
fn a_row_may_not_be_there_before_it_was_written() {
    assert_eq!(objections("0 1-2 fresh 1=5\n0 3-4 upsert 1=5 ok @10"), ["linearizability"]);
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
    assert_eq!(objections(text), ["linearizability", "versions", "exactly once"]);
}

#[test]
fn an_unknown_write_may_come_late_or_never_but_not_go_again() {
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
    assert_eq!(objections(&text("1=5")), ["versions"]);
    // It cannot have happened before what its client had seen.
    let early = "1 3-4 after=10 upsert 1=6 ?
                 2 5-6 snapshot @9 1=6";
    assert_eq!(objections(early), ["versions"]);
}

#[test]
fn a_snapshot_that_does_not_repeat_is_rejected() {
    let text = "0 1-2 upsert 1=5 ok @10
                2 3-4 snapshot @20 1=5
                0 3-5 upsert 1=6 ok @15
                2 6-7 snapshot @20 1=6";
    assert_eq!(objections(text), ["versions", "RepeatableSnapshot"]);
}

#[test]
fn a_row_that_a_scan_misses_is_noticed() {
    let text = "0 1-2 insert 1=5 ok @10
                0 3-4 insert 2=5 ok @11
                2 5-6 snapshot @20 1=5";
    assert_eq!(objections(text), ["versions", "durability"]);
}

#[test]
fn a_row_out_of_nothing_is_noticed() {
    assert_eq!(objections("0 1-2 insert 1=5 ok @10\n2 5-6 snapshot @20 1=5 9=9"), ["versions"]);
}

#[test]
fn diff_scans_tell_what_changed() {
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
        assert_eq!(objections(&text(wrong)), ["versions"], "{wrong}");
    }
}

#[test]
fn a_lost_write_is_named() {
    let text = "0 1-2 upsert 1=5 ok @10
                0 3-4 upsert 1=6 ok @11
                0 5-6 snapshot @20 1=5";
    assert_eq!(objections(text), ["versions", "durability"]);
    // Somebody whose outcome is unknown may have written that.
    assert_clean(&format!("{text}\n 1 1-9 upsert 1=5 ?"));
}

#[test]
fn a_retried_insert_must_not_meet_itself() {
    let text = "0 1-2 insert 1=5 present @10
                0 5-6 snapshot @20 1=5";
    assert!(objections(text).contains(&"exactly once"));
    let deleted = "0 1-2 insert 1=5 ok @10
                   0 3-4 delete 1=0 missing @11
                   0 5-6 snapshot @20 1=-";
    assert!(objections(deleted).contains(&"exactly once"));
}

#[test]
fn timestamps_follow_what_clients_know() {
    assert_clean("0 1-2 upsert 1=5 ok @10\n1 3-4 after=10 upsert 2=6 ok @11");
    let text = "0 1-2 upsert 1=5 ok @10\n1 3-4 after=10 upsert 2=6 ok @10";
    assert_eq!(objections(text), ["hybrid time"]);
    // On one row even strangers are ordered.
    let text = "0 1-2 upsert 1=5 ok @20\n1 3-4 upsert 1=6 ok @11\n1 5-6 fresh 1=6";
    assert_eq!(objections(text), ["hybrid time"]);
    let text = "0 1-4 upsert 1=5 ok @20\n1 3-4 upsert 1=6 ok @20";
    assert_eq!(objections(text), ["hybrid time"]);
    assert_clean(&text.replace("1 3-4", "0 3-4"));
}

/// A store that is right, and clients that overlap: 8 of them, 2,000 calls.
fn long_history(keys: i64) -> Vec<Operation> {
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
                let scan =
                    Scan { table: 0, keys, mode: Mode::Fresh, diff_from: None, ordered: false, view: WHOLE };
                let row = rows.get(&key).copied().map(|value| Seen { key, row: Some(vec![value]) });
                (Request::Scan(scan), Outcome::Rows { at: None, rows: row.into_iter().collect() })
            }
            kind => {
                let kinds = [RowOpKind::Upsert, RowOpKind::Insert, RowOpKind::Delete];
                let op = RowOp { kind: kinds[kind as usize % 3], key, cells: vec![Some(Some(at as i64))] };
                let before = rows.get(&key).map(|value| vec![*value]);
                let effect = row::apply(&before, &op);
                match effect.change {
                    Some(Some(row)) => drop(rows.insert(key, row[0])),
                    Some(None) => drop(rows.remove(&key)),
                    None => {}
                }
                let answer = match drawn % 97 {
                    0 => RowAnswer::Unknown,
                    _ => RowAnswer::At { at: at + 1, outcome: effect.outcome },
                };
                (Request::Write { table: 0, rows: vec![op] }, Outcome::Written(vec![answer]))
            }
        };
        let client = client as u32;
        operations.push(Operation { client, invoked, returned: Some(returned), after: 0, request, outcome });
    }
    operations
}

#[test]
fn a_long_history_is_checked() {
    for keys in [1, 10, 200] {
        let mut operations = long_history(keys);
        let report = judge(&operations, 0);
        assert!(report.is_clean(), "{}", report.findings[0]);
        // The last read that saw a row sees what nobody wrote.
        let read = operations.iter_mut().rev().find_map(|operation| match &mut operation.outcome {
            Outcome::Rows { rows, .. } if !rows.is_empty() => Some(rows),
            _ => None,
        });
        read.expect("some read saw a row")[0].row = Some(vec![Some(-7)]);
        let report = judge(&operations, 0);
        let found = report.findings.iter().any(|finding| finding.oracle == "linearizability");
        assert!(found || report.undecided > 0, "with {keys} keys nobody noticed");
    }
}

#[test]
fn a_write_that_waits_is_not_answered_before_its_time() {
    use engine::time::{Instant, WallTime};
    let mut plan = crate::plan::Plan::generate(1, crate::plan::Profile::Calm, crate::plan::Size::Smoke);
    let now = engine::time::Now { mono: Instant(0), wall: WallTime { micros: 1_000, error_micros: 0 } };
    let found = |plan: &crate::plan::Plan, micros: u64| {
        super::clocks::check_waited(plan, micros << 12, now).is_some()
    };
    plan.clocks.clear();
    assert!(!found(&plan, 1_000));
    assert!(found(&plan, 1_001));
    let host = crate::plan::Host::Tserver(0);
    plan.clocks.push(crate::plan::ClockError { host, offset_us: 700, drift_ppm: 0, error_us: 500 });
    assert!(!found(&plan, 1_200), "a clock that is off by more than it says");
    assert!(found(&plan, 1_201));
}

#[test]
fn a_snapshot_of_now_is_as_old_as_clocks_differ() {
    let text = "0 1000-2000 upsert 1=5 ok @10
                1 3000-4000 upsert 1=6 ok @20
                0 5000-6000 fresh @15 1=5";
    let objected = |apart| !judge(&testing::history(text), apart).is_clean();
    assert!(objected(0) && objected(900));
    assert!(!objected(1_100), "its server's clock may be behind the writer's");
}

#[test]
fn how_far_clocks_differ_counts_all_that_moves_them() {
    let mut plan = crate::plan::Plan::generate(1, crate::plan::Profile::Calm, crate::plan::Size::Smoke);
    (plan.clocks, plan.faults) = (Vec::new(), Vec::new());
    assert_eq!(super::clocks::apart(&plan, 0), 2_000_000, "each is right to a millisecond");
    let host = crate::plan::Host::Tserver;
    let clock = |number, offset_us, drift_ppm| crate::plan::ClockError {
        host: host(number),
        offset_us,
        drift_ppm,
        error_us: 500,
    };
    plan.clocks = vec![clock(0, -3_000, 0), clock(1, 2_000, 100)];
    assert_eq!(super::clocks::apart(&plan, 10_000_000_000), 3_000_000 + 3_000_000);
    let jump = crate::plan::faults::Fault::ClockJump { micros: -500 };
    let unsure =
        crate::plan::faults::Fault::ClockError { micros: 1_000, behind: true, span: Default::default() };
    for (kind, expected) in [(jump, 6_500_000), (unsure, 7_000_000)] {
        plan.faults.push(crate::plan::TimedFault { at: Default::default(), target: host(1), kind });
        assert_eq!(super::clocks::apart(&plan, 10_000_000_000), expected);
    }
}

#[test]
fn a_scan_that_gives_a_row_twice_is_rejected() {
    let text = "0 1-2 upsert 1=5 ok @10
                0 3-4 snapshot @20 1=5 2=-";
    assert_clean(text);
    assert_eq!(objections(&text.replace("2=-", "1=5")), ["exactly once"]);
}
