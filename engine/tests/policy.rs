//! Transcripts of the maintenance policy: one tablet a line, and the chosen job.
//!
//! ```text
//! choose short                            memory pressure; also: rows, changes, age, retain, segment as limits
//! a rows=90/30s@7 3=10/5s@9 log=50        rows: bytes/age@first operation; deltas of rowset 3; retained log
//! b frozen log=1200/800/1100 merge=1,2:500/64     log: all/anchored by memory/at the last checkpoint
//! c major=4:250/32                        compactions: rowsets:lookups saved per thousand keys/bytes read and written
//! d priority=-2                           the table's priority
//! ----
//! a: flush the rows
//! ```
//!
//! With `until-idle` each chosen job is treated as done and the next one is chosen, until none is left.
//!
//! Beside the transcripts, the chosen compactions run on a tablet whose rows are updated without end.

use std::collections::BTreeMap;
use std::time::Duration;

use datadriven::TestCase;
use engine::config::TabletConfig;
use engine::replica::maintenance_policy::{DeltaInput, MaintenanceInput, choose};
use engine::replica::{JobKind, Op};
use engine::schema::row_ops::RowOpKind;
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::tablet::compaction_policy::{CompactionChoice, CompactionKind, WHOLE};
use engine::time::Timestamp;
use engine_testkit::world::{Value, World};

#[test]
fn transcripts() {
    datadriven::walk("tests/policy", |file| file.run(|case| run(case)));
}

fn run(case: &TestCase) -> String {
    let number = |name: &str, default: u64| case.args.get(name).map_or(default, |v| v[0].parse().unwrap());
    let config = TabletConfig {
        mrs_flush_bytes: number("rows", 100) as usize,
        mrs_flush_age_ms: number("age", 120) * 1000,
        dms_flush_bytes: number("changes", 50) as usize,
        dms_flush_age_ms: number("age", 120) * 1000,
        wal_retain_bytes: number("retain", 1000),
        wal_segment_bytes_max: number("segment", 100),
        ..TabletConfig::default()
    };
    let short = case.args.contains_key("short");
    let (names, mut tablets): (Vec<String>, Vec<MaintenanceInput>) = case.input.lines().map(parse).unzip();
    let mut text = String::new();
    loop {
        let Some((i, kind)) = choose(&tablets, &config, short) else { return text + "nothing\n" };
        text += &format!("{}: {}\n", names[i], words(&kind));
        if case.directive != "until-idle" {
            return text;
        }
        done(&mut tablets[i], &kind);
    }
}

fn parse(line: &str) -> (String, MaintenanceInput) {
    let mut words = line.split_whitespace();
    let name = words.next().unwrap().to_string();
    let mut view = MaintenanceInput::default();
    for word in words {
        match word.split_once('=').unwrap_or((word, "")) {
            ("frozen", _) => view.frozen = true,
            ("rows", held) => {
                let (bytes, age, from) = parse_held(held);
                (view.rows_bytes, view.rows_age, view.rows_from) = (bytes, Some(age), from);
            }
            ("log", sizes) => {
                let sizes: Vec<u64> = sizes.split('/').map(|size| size.parse().unwrap()).collect();
                view.log_bytes = sizes[0];
                view.log_held_bytes = sizes.get(1).copied().unwrap_or(sizes[0]);
                view.log_bytes_at_checkpoint = sizes.get(2).copied().unwrap_or(0);
            }
            ("priority", priority) => view.priority = priority.parse().unwrap(),
            ("merge", merge) => view.merge = Some(parse_merge(merge, CompactionKind::RowSets)),
            ("major", merge) => view.merge = Some(parse_merge(merge, CompactionKind::MajorDelta)),
            ("minor", merge) => view.merge = Some(parse_merge(merge, CompactionKind::MinorDelta)),
            (rowset, held) => {
                let (bytes, age, from) = parse_held(held);
                view.deltas.push(DeltaInput { rowset: rowset.parse().unwrap(), bytes, age, from });
            }
        }
    }
    (name, view)
}

/// Parses `bytes/age@from`.
fn parse_held(held: &str) -> (u64, Duration, u64) {
    let (held, from) = held.split_once('@').unwrap_or((held, "1"));
    let (bytes, age) = held.split_once('/').unwrap_or((held, "1s"));
    let age = Duration::from_secs(age.trim_end_matches('s').parse().unwrap());
    (bytes.parse().unwrap(), age, from.parse().unwrap())
}

/// Parses `rowsets:gain/bytes`.
fn parse_merge(merge: &str, kind: CompactionKind) -> CompactionChoice {
    let (rowsets, cost) = merge.split_once(':').unwrap();
    let (gain, bytes) = cost.split_once('/').unwrap();
    CompactionChoice {
        kind,
        rowsets: rowsets.split(',').map(|id| id.parse().unwrap()).collect(),
        gain: gain.parse::<i64>().unwrap() * WHOLE / 1000,
        bytes: bytes.parse().unwrap(),
    }
}

fn words(kind: &JobKind) -> String {
    match kind {
        JobKind::FlushRows => "flush the rows".into(),
        JobKind::FlushDeltas(rowset) => format!("flush the changes of {rowset}"),
        JobKind::Compact(rowsets) => format!("merge {rowsets:?}"),
        JobKind::MajorDeltaCompaction(rowset) => format!("fold the deltas of {rowset}"),
        JobKind::MinorDeltaCompaction(rowset) => format!("merge the delta files of {rowset}"),
        JobKind::Checkpoint => "checkpoint".into(),
    }
}

/// Updates a tablet after a job: of its log, the part that nothing in memory anchors is deleted.
fn done(view: &mut MaintenanceInput, kind: &JobKind) {
    match kind {
        JobKind::FlushRows => (view.rows_bytes, view.rows_age, view.frozen) = (0, None, false),
        JobKind::FlushDeltas(rowset) => view.deltas.retain(|deltas| deltas.rowset != *rowset),
        JobKind::Compact(_) | JobKind::MajorDeltaCompaction(_) | JobKind::MinorDeltaCompaction(_) => {
            view.merge = None;
        }
        JobKind::Checkpoint => {}
    }
    if view.rows_age.is_none() && view.deltas.is_empty() {
        view.log_bytes -= view.log_held_bytes;
        view.log_held_bytes = 0;
    }
    view.log_bytes_at_checkpoint = view.log_bytes;
}

const ROWS: i32 = 100;
const ROUNDS: i32 = 40;

/// Returns the ops of a kind on all rows of a table `k`, `a`, `b`: the cells of the first `columns` columns, which are
/// about 50 bytes long and different in each round.
fn ops(kind: RowOpKind, columns: i32, round: i32) -> Vec<(RowOpKind, Vec<Value>)> {
    let letter = |key: i32, at: i32| b'a' + (((key + 3) * (at + 7) * (round + 11)) % 977 % 26) as u8;
    let text = |key: i32| Value::Bytes((0..50).map(|at| letter(key, at)).collect());
    let row = |key| [Value::int(key), text(key), text(key)][..columns as usize].to_vec();
    (0..ROWS).map(|key| (kind, row(key))).collect()
}

/// Creates the table, with its rows on disk and without the column `b`.
fn table() -> World {
    let mut world = World::new(1, TabletConfig { merge_min: 2, ..TabletConfig::default() });
    let columns =
        vec![ColumnSchema::new(0, "k", DataType::Int32), ColumnSchema::new(1, "a", DataType::String)];
    world.create(Schema::new(columns, 1).unwrap()).unwrap();
    world.write(&ops(RowOpKind::Insert, 2, 0)).unwrap();
    assert!(world.job(JobKind::FlushRows, &mut |_| {}).unwrap());
    world
}

/// Updates all rows many times, and flushes the deltas and runs the chosen compactions each time. No history is kept.
/// Returns the most bytes on disk, and the numbers of rewrites and of major delta compactions.
fn update_without_end(world: &mut World, columns: i32) -> (u64, usize, usize) {
    let (mut most, mut rewrites, mut majors) = (0, 0, 0);
    for round in 1..=ROUNDS {
        world.write(&ops(RowOpKind::Update, columns, round)).unwrap();
        let rowset = world.replica().tablet().state().disk[0].meta().id;
        assert!(world.job(JobKind::FlushDeltas(rowset), &mut |_| {}).unwrap());
        world.replica().tablet().raise_history_mark(Timestamp::MAX);
        let mut jobs = 0;
        while let Some(choice) = world.replica().tablet().choose_compaction() {
            let job = match choice.kind {
                CompactionKind::RowSets => JobKind::Compact(choice.rowsets),
                CompactionKind::MajorDelta => JobKind::MajorDeltaCompaction(choice.rowsets[0]),
                CompactionKind::MinorDelta => JobKind::MinorDeltaCompaction(choice.rowsets[0]),
            };
            rewrites += usize::from(choice.kind == CompactionKind::RowSets);
            majors += usize::from(choice.kind == CompactionKind::MajorDelta);
            assert!(world.job(job, &mut |_| {}).unwrap());
            jobs += 1;
            assert!(jobs < 5, "compactions come to an end");
        }
        most = most.max(world.replica().tablet().stats().disk_bytes);
    }
    (most, rewrites, majors)
}

#[test]
fn updates_of_an_added_column_do_not_accumulate() {
    let mut world = table();
    let tablet = world.replica().tablet();
    let mut columns = tablet.schema().columns().to_vec();
    columns.push(ColumnSchema::new(2, "b", DataType::String).nullable());
    let schema = Box::new(Schema::new(columns, 1).unwrap());
    let version = tablet.schema_version() + 1;
    let alter = Op::AlterSchema { schema, version, table_name: "t".into(), extra: BTreeMap::new() };
    world.run(alter).result.unwrap();
    let (most, rewrites, majors) = update_without_end(&mut world, 3);
    // A version of all rows has 10 KB: the base has one, and each delta file one more.
    assert!(most < 80_000, "{most} bytes");
    assert!(rewrites == 1 && majors > 10, "{rewrites} rewrites, {majors} major delta compactions");
}

#[test]
fn updates_of_reinserted_rows_do_not_accumulate() {
    let mut world = table();
    let deletes: Vec<_> = (0..ROWS).map(|key| (RowOpKind::Delete, vec![Value::int(key)])).collect();
    world.write(&deletes).unwrap();
    world.write(&ops(RowOpKind::Insert, 2, 0)).unwrap();
    let (most, rewrites, majors) = update_without_end(&mut world, 2);
    assert!(most < 50_000, "{most} bytes");
    assert!(rewrites == 1 && majors > 10, "{rewrites} rewrites, {majors} major delta compactions");
}
