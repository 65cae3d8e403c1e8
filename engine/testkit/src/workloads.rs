//! Workloads of a model: sequences of steps that run every job.

use engine::schema::row_ops::RowOpKind;

use crate::model::{Change, Step};

/// Returns a workload that runs every job.
pub fn workload() -> Vec<Step> {
    let change = |kind, key, v| Change { kind, key, v: Some(Some(v)), n: Some(Some(i32::from(v))) };
    let inserts =
        |keys: std::ops::Range<u8>| keys.map(|k| change(RowOpKind::Insert, k, k)).collect::<Vec<_>>();
    let update = |key, v| change(RowOpKind::Upsert, key, v);
    let delete = |key| Change { kind: RowOpKind::Delete, key, v: None, n: None };
    vec![
        Step::Write(inserts(0..6)),
        Step::Write(vec![update(2, 100), delete(3)]),
        Step::FlushRows(vec![update(0, 50), delete(1)]),
        Step::Write(vec![update(4, 7), change(RowOpKind::Insert, 3, 9)]),
        Step::FlushDeltas(0, vec![update(4, 8)]),
        Step::AddColumn,
        Step::Write(inserts(6..10)),
        Step::FlushRows(vec![delete(7)]),
        Step::Gc,
        Step::Forget(10),
        Step::Write(vec![change(RowOpKind::Insert, 1, 11), update(7, 70)]),
        Step::Compact(0, 9, vec![update(6, 1), delete(4)]),
        Step::Checkpoint,
        Step::Gc,
        Step::Write(vec![update(9, 3)]),
        Step::Restart,
        Step::Write(vec![delete(9)]),
    ]
}

fn change(kind: RowOpKind, key: u8, v: u8) -> Change {
    Change { kind, key, v: Some(Some(v)), n: Some(Some(i32::from(v))) }
}

/// Returns the workloads for tests with faults: together they run every job in every situation.
pub fn workloads() -> [(&'static str, Vec<Step>); 3] {
    [
        ("every job", workload()),
        ("many changes", many_deltas_workload()),
        ("many rowsets", many_rowsets_workload()),
    ]
}

/// Several delta files accumulate on one rowset, rows are deleted and reinserted, and the base absorbs all of them.
fn many_deltas_workload() -> Vec<Step> {
    let update = |key, v| change(RowOpKind::Update, key, v);
    let delete = |key| Change { kind: RowOpKind::Delete, key, v: None, n: None };
    let inserts = (0..8).map(|key| change(RowOpKind::Insert, key, key)).collect();
    let mut steps = vec![Step::AddColumn, Step::Write(inserts), Step::FlushRows(vec![delete(7)])];
    for round in 0..4 {
        steps.push(Step::Write(vec![update(round, 40 + round), delete(5), update(6, round)]));
        steps.push(Step::FlushDeltas(0, vec![change(RowOpKind::Insert, 5, round)]));
    }
    let flush = || Step::FlushDeltas(0, Vec::new());
    steps.extend([Step::MinorDeltaCompaction(0, vec![update(3, 78), delete(6)]), flush()]);
    steps.push(Step::MajorDeltaCompaction(0, vec![update(0, 77), delete(1)]));
    steps.extend([Step::Write(vec![update(2, 76)]), flush(), Step::Write(vec![update(2, 75)]), flush()]);
    steps.extend([Step::MinorDeltaCompaction(0, Vec::new()), Step::Restart]);
    steps.extend([Step::MajorDeltaCompaction(0, Vec::new()), Step::Restart]);
    steps.extend([Step::CompactDue, Step::DropColumn, Step::Write(vec![update(1, 99), delete(2)])]);
    steps.extend([flush(), Step::Forget(30), Step::Checkpoint, Step::Gc]);
    steps.extend([Step::Compact(0, 1, vec![update(3, 98)]), Step::Crash, Step::Write(vec![update(4, 97)])]);
    steps
}

/// Overlapping rowsets accumulate and are compacted when the policy chooses them.
fn many_rowsets_workload() -> Vec<Step> {
    let mut steps = Vec::new();
    for round in 0..5u8 {
        let rows = [round, 5 + round, 20 + round].map(|key| change(RowOpKind::Insert, key, round));
        steps.push(Step::Write(rows.to_vec()));
        steps.push(Step::FlushRows(vec![change(RowOpKind::Upsert, 20 + round, 90 + round)]));
        steps.push(Step::CompactDue);
        if round == 2 {
            steps.extend([Step::Checkpoint, Step::Gc, Step::Restart, Step::Forget(50)]);
        }
    }
    steps.push(Step::Write(vec![change(RowOpKind::Upsert, 0, 1)]));
    steps
}
