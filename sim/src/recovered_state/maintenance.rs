//! Maintenance of copies of replicas: drawn flushes, compactions and restarts, and what the tablet contains after each.

use engine::error::Result;
use engine::replica::JobKind;
use engine::schema::row_block::{ProjectedColumn, RowBlock};
use engine::tablet::Tablet;
use engine::tablet::rowset::RowSetId;
use engine::tablet::scan::{ScanSpec, SnapshotChoice};
use engine::time::Timestamp;
use sim_plan::RandomStream;

use super::replica_copy::{ReplicaCopy, schema_text};
use crate::oracle::maintenance::{MaintainedReplica, RowBytes, TabletContents};

/// Steps of maintenance of one replica.
const STEPS: u64 = 7;
/// Percentage of replicas that may drop part of their history meanwhile.
const MARK_PERCENT: u64 = 40;

/// A step of maintenance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Restart,
    FlushRows,
    FlushDeltas,
    MajorDeltaCompaction,
    MinorDeltaCompaction,
    /// A compaction of some of the rowsets.
    Compact,
    Checkpoint,
}

/// Maintains a copy of a replica. Returns its contents before, and those after the first steps that changed them, or
/// after the last step.
pub(super) fn maintain(
    random: &mut RandomStream,
    server: &str,
    mut copy: ReplicaCopy<'_>,
) -> Result<MaintainedReplica> {
    let mut snapshots = snapshots(&copy);
    let mut steps = Vec::new();
    if random.percent(MARK_PERCENT) {
        let mark = random.pick(&snapshots);
        copy.tablet().raise_history_mark(mark);
        snapshots.retain(|at| *at >= mark);
        steps.push(format!("history before {mark} is not kept"));
    }
    let before = contents(copy.tablet(), &snapshots)?;
    let mut replica = MaintainedReplica {
        server: server.to_string(),
        tablet: copy.tablet().tablet.to_string(),
        steps,
        before: before.clone(),
        after: Ok(before),
    };
    for _ in 0..STEPS {
        let step = draw(random);
        replica.steps.push(format!("{step:?}"));
        let done =
            take(random, step, copy).and_then(|after| Ok((contents(after.tablet(), &snapshots)?, after)));
        copy = match done {
            Ok((found, after)) => {
                replica.after = Ok(found);
                after
            }
            Err(error) => {
                replica.after = Err(error.to_string());
                break;
            }
        };
        if replica.after.as_ref() != Ok(&replica.before) {
            break;
        }
    }
    Ok(replica)
}

fn draw(random: &mut RandomStream) -> Step {
    random.weighted(&[
        (Step::Restart, 3),
        (Step::FlushRows, 3),
        (Step::FlushDeltas, 3),
        (Step::MajorDeltaCompaction, 2),
        (Step::MinorDeltaCompaction, 2),
        (Step::Compact, 3),
        (Step::Checkpoint, 1),
    ])
}

/// Takes a step, on all rowsets that it may concern.
fn take<'a>(random: &mut RandomStream, step: Step, mut copy: ReplicaCopy<'a>) -> Result<ReplicaCopy<'a>> {
    let rowsets: Vec<RowSetId> = copy.tablet().state().disk.iter().map(|rowset| rowset.meta().id).collect();
    match step {
        Step::Restart => return copy.reopen(),
        Step::Checkpoint => drop(copy.run_job(JobKind::Checkpoint)?),
        Step::FlushRows => while copy.run_job(JobKind::FlushRows)? {},
        Step::FlushDeltas => {
            for rowset in rowsets {
                copy.run_job(JobKind::FlushDeltas(rowset))?;
            }
        }
        Step::MajorDeltaCompaction => {
            for rowset in rowsets {
                copy.run_job(JobKind::MajorDeltaCompaction(rowset))?;
            }
        }
        Step::MinorDeltaCompaction => {
            for rowset in rowsets {
                copy.run_job(JobKind::MinorDeltaCompaction(rowset))?;
            }
        }
        Step::Compact => {
            let all = random.percent(50);
            let some: Vec<RowSetId> = rowsets.into_iter().filter(|_| all || random.percent(60)).collect();
            if !some.is_empty() {
                copy.run_job(JobKind::Compact(some))?;
            }
        }
    }
    Ok(copy)
}

/// Returns timestamps within the log of a replica, and one after it, in ascending order.
fn snapshots(copy: &ReplicaCopy<'_>) -> Vec<Timestamp> {
    let (tablet, ops) = (copy.tablet(), &copy.ops.timestamps);
    let within = [1, 2].map(|third| ops.get(ops.len() * third / 3).map(|at| at.next()));
    let last = tablet.mvcc().last_applied().next();
    let mut found: Vec<Timestamp> = within.into_iter().flatten().chain([last]).collect();
    found.retain(|at| *at >= tablet.history_mark() && *at <= last);
    found.dedup();
    found
}

/// Returns what a tablet contains at some snapshots.
fn contents(tablet: &Tablet, snapshots: &[Timestamp]) -> Result<TabletContents> {
    let schema = tablet.schema();
    let projection: Vec<ProjectedColumn> = schema.columns().iter().map(ProjectedColumn::from).collect();
    let at = |before: Timestamp| ScanSpec {
        snapshot: SnapshotChoice::At(before),
        ..ScanSpec::latest(projection.clone())
    };
    let of = |before: &Timestamp| Ok((*before, rows(tablet, &at(*before))?));
    let mut changed = Vec::new();
    for last in snapshots.iter().skip(1) {
        let diff = ScanSpec { ordered: true, diff_from: Some(snapshots[0]), ..at(*last) };
        changed.extend(rows(tablet, &diff)?);
    }
    Ok(TabletContents {
        snapshots: snapshots.iter().map(of).collect::<Result<_>>()?,
        changed,
        live_rows: tablet.stats().live_rows,
        schema: schema_text(tablet),
    })
}

/// Returns all rows of a scan, sorted.
fn rows(tablet: &Tablet, spec: &ScanSpec) -> Result<Vec<RowBytes>> {
    let mut scan = tablet.scan(spec)?;
    let mut rows = Vec::new();
    while let Some(block) = scan.next_block()? {
        rows.extend((0..block.rows).map(|row| cells(&block, row)));
    }
    rows.sort_unstable();
    Ok(rows)
}

fn cells(block: &RowBlock, row: usize) -> RowBytes {
    block.columns.iter().map(|column| column.cell(row).map(<[u8]>::to_vec)).collect()
}
