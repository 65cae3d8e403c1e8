//! A tablet against a map of versions: random writes, jobs and restarts, reads at every moment; then the same with
//! power cut, operations failing and the disk full at every step.

mod support;

use std::collections::BTreeMap;

use engine::config::TabletConfig;
use engine::error::ErrorKind;
use engine::ids::ColumnId;
use engine::replica::{Effects, JobKind, JobStep, Op, OpResult, Replica};
use engine::schema::block::ProjectedColumn;
use engine::schema::ops::{RowErrorCode, RowOpKind};
use engine::schema::predicate::{Predicate, PredicateKind};
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::tablet::scan::{Scan, ScanSpec, SnapshotAt};
use engine::time::Timestamp;
use proptest::prelude::*;
use support::{Rows, Value, World, plain_schema, wire_columns};

/// What is done to a tablet.
#[derive(Debug, Clone)]
enum Step {
    Write(Vec<Change>),
    FlushRows(Vec<Change>),
    /// Of the n-th rowset, modulo how many there are.
    FlushDeltas(usize, Vec<Change>),
    Compact(usize, usize, Vec<Change>),
    Checkpoint,
    Gc,
    /// Of what is worth it, if anything is.
    CompactDue,
    Restart,
    Crash,
    AddColumn,
    DropColumn,
}

#[derive(Debug, Clone)]
struct Change {
    kind: RowOpKind,
    key: u8,
    v: Option<Option<u8>>,
    n: Option<Option<i32>>,
}

/// The columns besides the key, by id; a row that is not there is `None`.
type Row = Option<BTreeMap<u32, Option<Vec<u8>>>>;

/// Every version of every row, and which columns there are.
#[derive(Clone, Default)]
struct Model {
    rows: BTreeMap<i32, Vec<(u64, Row)>>,
    /// The column that is added and dropped, and the id the next one gets.
    extra: Option<u32>,
    next_id: u32,
}

const EXTRA_DEFAULT: i32 = 77;

impl Model {
    fn new() -> Model {
        Model { next_id: 3, ..Model::default() }
    }

    fn latest(&self, key: i32) -> Row {
        self.rows.get(&key).and_then(|versions| versions.last()).and_then(|(_, row)| row.clone())
    }

    fn at(&self, key: i32, before: u64) -> Row {
        let versions = self.rows.get(&key)?;
        versions.iter().rev().find(|(ts, _)| *ts < before).and_then(|(_, row)| row.clone())
    }

    /// Applies a change at `ts`; the error it must fail with.
    fn apply(&mut self, change: &Change, ts: u64) -> Option<RowErrorCode> {
        let (key, base) = (i32::from(change.key), change.kind.base());
        let old = self.latest(key);
        let mut set: BTreeMap<u32, Option<Vec<u8>>> = BTreeMap::new();
        if let Some(v) = change.v {
            set.insert(1, v.map(|v| vec![b'a' + v % 26; usize::from(v % 9)]));
        }
        if let Some(n) = change.n {
            set.insert(2, n.map(|n| n.to_le_bytes().to_vec()));
        }
        let inserted = || {
            let mut row = set.clone();
            row.entry(1).or_insert(None);
            row.entry(2).or_insert(None);
            if let Some(extra) = self.extra {
                row.insert(extra, Some(EXTRA_DEFAULT.to_le_bytes().to_vec()));
            }
            Some(row)
        };
        let new = match (base, old) {
            (RowOpKind::Update, _) if set.is_empty() => return Some(RowErrorCode::InvalidArgument),
            (RowOpKind::Insert, Some(_)) => return Some(RowErrorCode::AlreadyPresent),
            (RowOpKind::Insert | RowOpKind::Upsert, None) => inserted(),
            // An upsert that sets nothing leaves no trace.
            (RowOpKind::Upsert, Some(_)) if set.is_empty() => return None,
            (RowOpKind::Upsert | RowOpKind::Update, Some(mut row)) => {
                row.extend(set);
                Some(row)
            }
            (RowOpKind::Delete, Some(_)) => None,
            (_, None) => return Some(RowErrorCode::NotFound),
            _ => unreachable!(),
        };
        self.rows.entry(key).or_default().push((ts, new));
        None
    }

    fn schema(&self) -> Schema {
        let mut columns = plain_schema().columns().to_vec();
        if let Some(id) = self.extra {
            let mut column = ColumnSchema::new(id, "extra", DataType::Int32);
            column.read_default = Some(EXTRA_DEFAULT.to_le_bytes().to_vec());
            column.write_default = column.read_default.clone();
            columns.push(column);
        }
        Schema::new(columns, 1).unwrap()
    }

    /// Rows at `before` as a scan shows them.
    fn shown(&self, before: u64) -> Vec<Vec<Option<Vec<u8>>>> {
        let schema = self.schema();
        let show = |key: &i32| {
            let row = self.at(*key, before)?;
            let cells = schema.columns().iter().map(|column| match column.id.0 {
                0 => Some(key.to_le_bytes().to_vec()),
                id => row.get(&id).cloned().unwrap_or_else(|| column.read_default.clone()),
            });
            Some(cells.collect())
        };
        self.rows.keys().filter_map(show).collect()
    }

    /// What a diff scan from `from` to `before` shows: key, and whether the row is dead, with the cells of live ones.
    fn diff(&self, from: u64, before: u64) -> Vec<(i32, bool)> {
        let changed = |(key, versions): (&i32, &Vec<(u64, Row)>)| {
            let touched = versions.iter().any(|(ts, _)| (from..before).contains(ts));
            let (old, new) = (self.at(*key, from), self.at(*key, before));
            (touched && (old.is_some() || new.is_some())).then_some((*key, new.is_none()))
        };
        self.rows.iter().filter_map(changed).collect()
    }
}

fn rows_op(world: &World, changes: &[Change]) -> Op {
    let columns = wire_columns(&world.replica().tablet().schema());
    let mut rows = Rows::default();
    for change in changes {
        let v = match change.v {
            None => Value::Unset,
            Some(None) => Value::Null,
            Some(Some(v)) => Value::Bytes(vec![b'a' + v % 26; usize::from(v % 9)]),
        };
        let n = match change.n {
            None => Value::Unset,
            Some(None) => Value::Null,
            Some(Some(n)) => Value::int(n),
        };
        let cells = match change.kind.base() {
            RowOpKind::Delete => vec![Value::int(change.key.into())],
            _ => vec![Value::int(change.key.into()), v, n],
        };
        rows.add(&columns, change.kind, &cells);
    }
    rows.op(&columns)
}

/// Applies a write to both and compares what the rows came to.
fn write(world: &mut World, model: &mut Model, changes: &[Change]) -> Result<(), engine::error::Error> {
    let op = rows_op(world, changes);
    let done = world.run(op);
    let OpResult::Write { errors, counts } = done.result? else { panic!("it was a write") };
    let ts = done.timestamp.0;
    let mut expected = Vec::new();
    for (index, change) in changes.iter().enumerate() {
        match model.apply(change, ts) {
            Some(RowErrorCode::InvalidArgument) => {
                expected.push((index as u32, RowErrorCode::InvalidArgument))
            }
            Some(code) if !change.kind.ignores_errors() => expected.push((index as u32, code)),
            _ => {}
        }
    }
    let errors: Vec<_> = errors.iter().map(|(index, error)| (*index, error.code)).collect();
    assert_eq!(errors, expected, "{changes:?}");
    assert_eq!(counts.to_array().iter().sum::<u64>() as usize, changes.len() - expected.len());
    Ok(())
}

type Cells = Vec<Option<Vec<u8>>>;

fn scan_rows(world: &World, before: u64, ordered: bool) -> Vec<Cells> {
    scan_spec(world, &spec(world, before, ordered))
}

fn scan_spec(world: &World, spec: &ScanSpec) -> Vec<Cells> {
    let mut scan = world.replica().tablet().scan(spec).unwrap();
    let mut rows = Vec::new();
    while let Some(block) = scan.next_block().unwrap() {
        assert!(block.rows > 0);
        for row in 0..block.rows {
            rows.push(block.columns.iter().map(|c| c.cell(row).map(<[u8]>::to_vec)).collect());
        }
    }
    if !spec.ordered {
        rows.sort_by_key(key_of);
    }
    rows
}

fn key_of(row: &Cells) -> i32 {
    i32::from_le_bytes(row[0].as_ref().unwrap()[..].try_into().unwrap())
}

/// Scans with predicates, alone and in pairs, against the model's rows filtered one by one.
fn check_predicates(world: &World, model: &Model, before: u64) {
    let int = |n: i32| n.to_le_bytes().to_vec();
    let range = |lower, upper| PredicateKind::Range { lower, upper };
    let kinds = [
        (0, PredicateKind::Equal(int(4))),
        (0, range(Some(int(2)), Some(int(7)))),
        (0, PredicateKind::InList(vec![int(1), int(5), int(9)])),
        (1, PredicateKind::IsNull),
        (1, range(Some(b"f".to_vec()), None)),
        (2, PredicateKind::IsNotNull),
        (2, range(None, Some(int(100)))),
    ];
    let predicates: Vec<Predicate> =
        kinds.into_iter().map(|(column, kind)| Predicate::new(ColumnId(column), kind)).collect();
    let types = [DataType::Int32, DataType::String, DataType::Int32];
    for (i, first) in predicates.iter().enumerate() {
        let second = &predicates[(i * 3 + before as usize) % predicates.len()];
        let mut spec = spec(world, before, i % 2 == 0);
        spec.predicates = vec![first.clone(), second.clone()];
        // The columns of predicates need not be among those wanted.
        spec.projection.truncate(1 + i % 3);
        let columns = spec.projection.len();
        let passes = |row: &Cells| {
            spec.predicates.iter().all(|predicate| {
                let column = predicate.column.0 as usize;
                predicate.matches_cell(types[column], row[column].as_deref())
            })
        };
        let mut expected: Vec<Cells> = model.shown(before).into_iter().filter(passes).collect();
        expected.iter_mut().for_each(|row| row.truncate(columns));
        assert_eq!(scan_spec(world, &spec), expected, "at {before}: {:?}", spec.predicates);
        spec.limit = Some(2);
        expected.truncate(2);
        if spec.ordered {
            assert_eq!(scan_spec(world, &spec), expected);
        }
    }
}

/// A scan that is read a block at a time while the tablet changes.
struct OpenScan {
    scan: Scan,
    found: Vec<Cells>,
    expected: Vec<Cells>,
}

impl OpenScan {
    fn new(world: &World, model: &Model, ordered: bool) -> OpenScan {
        let now = world.clock + 1;
        let scan = world.replica().tablet().scan(&spec(world, now, ordered)).unwrap();
        OpenScan { scan, found: Vec::new(), expected: model.shown(now) }
    }

    /// Reads a block; false at the end, where everything has to be right.
    fn go_on(&mut self) -> bool {
        if let Some(block) = self.scan.next_block().unwrap() {
            for row in 0..block.rows {
                self.found.push(block.columns.iter().map(|c| c.cell(row).map(<[u8]>::to_vec)).collect());
            }
            return true;
        }
        self.found.sort_by_key(key_of);
        assert_eq!(self.found, self.expected, "a scan in progress is not disturbed");
        false
    }
}

fn spec(world: &World, before: u64, ordered: bool) -> ScanSpec {
    let schema = world.replica().tablet().schema();
    ScanSpec {
        projection: schema.columns().iter().map(Into::into).collect(),
        predicates: Vec::new(),
        lower_key: None,
        upper_key: None,
        last_key: None,
        snapshot: SnapshotAt::At(Timestamp(before)),
        diff_from: None,
        ordered,
        limit: None,
        block_rows_max: None,
    }
}

fn scan_diff(world: &World, from: u64, before: u64) -> Vec<(i32, bool)> {
    let mut spec = spec(world, before, true);
    spec.diff_from = Some(Timestamp(from));
    spec.projection.truncate(1);
    let (ty, name) = (DataType::IsDeleted, "deleted".to_string());
    spec.projection.push(ProjectedColumn { id: None, name, ty, nullable: false, read_default: None });
    let mut scan = world.replica().tablet().scan(&spec).unwrap();
    let mut rows = Vec::new();
    while let Some(block) = scan.next_block().unwrap() {
        for row in 0..block.rows {
            let key = i32::from_le_bytes(block.columns[0].raw(row).try_into().unwrap());
            rows.push((key, block.columns[1].raw(row) == [1]));
        }
    }
    rows
}

/// Compares every moment.
fn check(world: &World, model: &Model) {
    let now = world.clock + 1;
    for before in 1..=now {
        assert_eq!(scan_rows(world, before, true), model.shown(before), "at {before}");
    }
    assert_eq!(scan_rows(world, now, false), model.shown(now));
    for from in [1, now / 2, now.saturating_sub(1)].map(|from| from.max(1)) {
        for before in [from, (from + now).div_ceil(2), now] {
            assert_eq!(scan_diff(world, from, before), model.diff(from, before), "{from}..{before}");
        }
    }
    check_predicates(world, model, now);
    check_predicates(world, model, now / 2 + 1);
    let live = model.shown(now).len() as u64;
    assert_eq!(world.replica().tablet().stats().live_rows, live);
}

/// Runs a job; `during` is written after its first step.
fn job(
    world: &mut World,
    model: &mut Model,
    kind: JobKind,
    during: &[Change],
) -> Result<(), engine::error::Error> {
    let mut during = (!during.is_empty()).then_some(during);
    let mut failed = None;
    world.job(kind, &mut |world| {
        if let Some(changes) = during.take() {
            failed = write(world, model, changes).err();
        }
    })?;
    failed.map_or(Ok(()), Err)
}

fn run(world: &mut World, model: &mut Model, step: &Step) -> Result<(), engine::error::Error> {
    let ids = |world: &World| -> Vec<u64> {
        world.replica().tablet().state().disk.iter().map(|rowset| rowset.meta().id).collect()
    };
    match step {
        Step::Write(changes) => write(world, model, changes)?,
        Step::FlushRows(during) => job(world, model, JobKind::FlushRows, during)?,
        Step::FlushDeltas(n, during) => {
            let ids = ids(world);
            if !ids.is_empty() {
                job(world, model, JobKind::FlushDeltas(ids[n % ids.len()]), during)?;
            }
        }
        Step::Compact(from, count, during) => {
            let ids = ids(world);
            if !ids.is_empty() {
                let from = from % ids.len();
                let chosen = ids[from..ids.len().min(from + count)].to_vec();
                job(world, model, JobKind::Compact(chosen), during)?;
            }
        }
        Step::Checkpoint => job(world, model, JobKind::Checkpoint, &[])?,
        Step::Gc => {
            let (replica, wal) = world.open.as_mut().unwrap();
            wal.gc(replica.log_keep_from())?;
        }
        Step::CompactDue => {
            let rowsets = world.replica().tablet().worth_merging();
            if !rowsets.is_empty() {
                job(world, model, JobKind::Compact(rowsets), &[])?;
            }
        }
        Step::Restart => world.reopen()?,
        Step::Crash => {
            world.open = None;
            world.disk.crash();
            world.reopen()?;
        }
        Step::AddColumn | Step::DropColumn => alter(world, model, matches!(step, Step::AddColumn))?,
    }
    Ok(())
}

fn alter(world: &mut World, model: &mut Model, add: bool) -> Result<(), engine::error::Error> {
    let mut new = model.clone();
    match add {
        true if new.extra.is_none() => {
            new.extra = Some(new.next_id);
            new.next_id += 1;
        }
        false if new.extra.is_some() => new.extra = None,
        _ => return Ok(()),
    }
    let version = world.replica().tablet().schema_version() + 1;
    let schema = Box::new(new.schema());
    let op = Op::AlterSchema { schema, version, table_name: "t".into(), extra: BTreeMap::new() };
    world.run(op).result?;
    *model = new;
    Ok(())
}

fn change() -> impl Strategy<Value = Change> {
    let kinds = [1u8, 2, 3, 5, 10, 11, 12, 13].map(|n| RowOpKind::from_number(n).unwrap());
    let kind = prop::sample::select(kinds.to_vec());
    (kind, 0u8..12, any::<Option<Option<u8>>>(), any::<Option<Option<i32>>>())
        .prop_map(|(kind, key, v, n)| Change { kind, key, v, n })
}

fn changes(max: usize) -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec(change(), 0..max)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => changes(8).prop_map(Step::Write),
        3 => changes(4).prop_map(Step::FlushRows),
        2 => (any::<usize>(), changes(4)).prop_map(|(n, during)| Step::FlushDeltas(n, during)),
        2 => (any::<usize>(), 1usize..4, changes(4)).prop_map(|(a, n, during)| Step::Compact(a, n, during)),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Gc),
        1 => Just(Step::CompactDue),
        1 => Just(Step::Restart),
        1 => Just(Step::Crash),
        1 => Just(Step::AddColumn),
        1 => Just(Step::DropColumn),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]
    #[test]
    fn a_tablet_is_a_map_of_versions(seed: u64, steps in prop::collection::vec(step(), 1..24)) {
        let (mut world, mut model) = (World::new(seed, TabletConfig::tiny()), Model::new());
        world.create(plain_schema()).unwrap();
        let mut scans = Vec::new();
        for (i, step) in steps.iter().enumerate() {
            if matches!(step, Step::Crash) {
                // Handles of before a power failure are void.
                scans.clear();
            }
            run(&mut world, &mut model, step).unwrap();
            check(&world, &model);
            scans.retain_mut(OpenScan::go_on);
            scans.push(OpenScan::new(&world, &model, i % 2 == 0));
        }
        while !scans.is_empty() {
            scans.retain_mut(OpenScan::go_on);
        }
        world.reopen().unwrap();
        check(&world, &model);
    }
}

/// A workload that meets every job.
fn workload() -> Vec<Step> {
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
        Step::Compact(0, 9, vec![update(6, 1), delete(4)]),
        Step::Checkpoint,
        Step::Gc,
        Step::Write(vec![update(9, 3)]),
        Step::Restart,
        Step::Write(vec![delete(9)]),
    ]
}

/// Runs the workload with a fault that strikes at the `k`-th disk operation, until a step fails; gives the model of
/// what was acknowledged, and the step during which the fault struck.
fn run_until_fault(world: &mut World) -> (Model, Option<(Step, engine::error::Error)>) {
    let mut model = Model::new();
    for step in workload() {
        let mut attempt = model.clone();
        match run(world, &mut attempt, &step) {
            Ok(()) => model = attempt,
            Err(error) => {
                // `write` changes the model only after the answer: the attempt is what was acknowledged.
                return (attempt, Some((step, error)));
            }
        }
    }
    (model, None)
}

/// After a fault the tablet may hold, besides what was acknowledged, what was on its way.
fn check_after(world: &mut World, model: &Model, step: &Option<(Step, engine::error::Error)>) {
    let mut candidates = vec![model.clone()];
    if let Some((step, _)) = step {
        let changes = match step {
            Step::Write(c) | Step::FlushRows(c) | Step::FlushDeltas(_, c) | Step::Compact(_, _, c) => {
                c.clone()
            }
            _ => Vec::new(),
        };
        let ts = world.report.last_timestamp.0;
        let mut more = model.clone();
        for change in &changes {
            more.apply(change, ts);
        }
        candidates.push(more);
        if matches!(step, Step::AddColumn) {
            let mut more = model.clone();
            (more.extra, more.next_id) = (Some(more.next_id), more.next_id + 1);
            candidates.push(more);
        }
    }
    let version = world.replica().tablet().schema().columns().len();
    candidates.retain(|candidate| candidate.schema().columns().len() == version);
    let now = world.report.last_timestamp.0 + 1;
    let shown = scan_rows(world, now, true);
    let fitting = candidates.iter().find(|candidate| candidate.shown(now) == shown);
    let Some(fitting) = fitting else {
        panic!("after {step:?}: {shown:?} is neither {:?} nor what was under way", model.shown(now));
    };
    let mut fitting = fitting.clone();
    check(world, &fitting);
    // And it goes on.
    let more = [Change { kind: RowOpKind::Upsert, key: 5, v: Some(None), n: Some(Some(5)) }];
    write(world, &mut fitting, &more).unwrap();
    job(world, &mut fitting, JobKind::FlushRows, &more).unwrap();
    world.reopen().unwrap();
    check(world, &fitting);
}

/// Operations of a run without faults.
fn operations(seed: u64) -> u64 {
    let mut world = World::new(seed, TabletConfig::tiny());
    world.create(plain_schema()).unwrap();
    let before = world.disk.op_count();
    let (model, failed) = run_until_fault(&mut world);
    assert!(failed.is_none(), "{failed:?}");
    check(&world, &model);
    world.disk.op_count() - before
}

#[test]
fn power_cut_at_every_operation_loses_nothing_acknowledged() {
    let total = operations(1);
    assert!(total > 100, "the workload meets the disk often: {total}");
    for k in 1..=total {
        let mut world = World::new(k, TabletConfig::tiny());
        world.create(plain_schema()).unwrap();
        world.disk.cut_power_at(k);
        let (model, failed) = run_until_fault(&mut world);
        world.open = None;
        world.disk.crash();
        world.reopen().unwrap_or_else(|error| panic!("power cut at {k} during {failed:?}: {error}"));
        check_after(&mut world, &model, &failed);
    }
}

#[test]
fn a_crash_while_recovering_from_a_crash_loses_nothing() {
    let total = operations(1);
    for k in (1..=total).step_by(7) {
        for again in 1..12 {
            let mut world = World::new(k, TabletConfig::tiny());
            world.create(plain_schema()).unwrap();
            world.disk.cut_power_at(k);
            let (model, failed) = run_until_fault(&mut world);
            world.open = None;
            world.disk.crash();
            world.disk.cut_power_at(again);
            let _ = world.reopen();
            world.open = None;
            world.disk.crash();
            world.reopen().unwrap_or_else(|error| panic!("cuts at {k} and {again}: {error}"));
            check_after(&mut world, &model, &failed);
        }
    }
}

#[test]
fn an_operation_that_fails_is_reported_and_loses_nothing_acknowledged() {
    const EIO: i32 = 5;
    const ENOSPC: i32 = 28;
    let total = operations(1);
    for errno in [EIO, ENOSPC] {
        for k in 1..=total {
            let mut world = World::new(k, TabletConfig::tiny());
            world.create(plain_schema()).unwrap();
            world.disk.fail_op(k, errno);
            let (model, failed) = run_until_fault(&mut world);
            if let Some((step, error)) = &failed {
                let named = error.kind == ErrorKind::Io && error.errno == Some(errno);
                assert!(named, "{k}: {step:?} failed with {error:?}");
            }
            world.open = None;
            world.disk.crash();
            world.reopen().unwrap_or_else(|error| panic!("errno {errno} at {k} during {failed:?}: {error}"));
            check_after(&mut world, &model, &failed);
        }
    }
}

#[test]
fn a_job_on_a_full_disk_fails_alone_and_succeeds_later() {
    let (mut world, mut model) = (World::new(1, TabletConfig::tiny()), Model::new());
    world.create(plain_schema()).unwrap();
    for step in &workload()[..2] {
        run(&mut world, &mut model, step).unwrap();
    }
    world.disk.set_free(0);
    let error = job(&mut world, &mut model, JobKind::FlushRows, &[]).expect_err("the disk is full");
    assert_eq!(error.kind, ErrorKind::Io);
    assert!(world.replica().failure().is_none(), "nothing was lost");
    check(&world, &model);
    world.disk.set_free(1 << 30);
    run(&mut world, &mut model, &workload()[1].clone()).unwrap();
    job(&mut world, &mut model, JobKind::FlushRows, &[]).unwrap();
    check(&world, &model);
    world.reopen().unwrap();
    check(&world, &model);
}

/// Flushes three rows of each round's `keys` and merges what is worth it; how many rowsets are left of 40.
fn rowsets_after_many_flushes(config: TabletConfig, keys: impl Fn(u8) -> [u8; 3]) -> usize {
    let (mut world, mut model) = (World::new(1, config), Model::new());
    world.create(plain_schema()).unwrap();
    for round in 0..40u8 {
        let change = |key| Change { kind: RowOpKind::Upsert, key, v: Some(Some(round)), n: None };
        write(&mut world, &mut model, &keys(round).map(change)).unwrap();
        job(&mut world, &mut model, JobKind::FlushRows, &[]).unwrap();
        run(&mut world, &mut model, &Step::CompactDue).unwrap();
    }
    check(&world, &model);
    world.replica().tablet().state().disk.len()
}

#[test]
fn many_small_flushes_are_merged_by_and_by() {
    let left = rowsets_after_many_flushes(TabletConfig::tiny(), |round| [round, 60, 100 + round]);
    assert!(left < 12, "{left} rowsets that overlap");
    let roomy = TabletConfig { rowset_roll_bytes: 1 << 20, ..TabletConfig::tiny() };
    let left = rowsets_after_many_flushes(roomy, |round| [3 * round, 3 * round + 1, 3 * round + 2]);
    assert!(left < 4, "{left} rowsets side by side");
}

#[test]
fn many_files_of_changes_are_merged_into_the_base() {
    let (mut world, mut model) = (World::new(1, TabletConfig::tiny()), Model::new());
    world.create(plain_schema()).unwrap();
    let upsert = |v| [Change { kind: RowOpKind::Upsert, key: 1, v: Some(Some(v)), n: None }];
    write(&mut world, &mut model, &upsert(0)).unwrap();
    job(&mut world, &mut model, JobKind::FlushRows, &[]).unwrap();
    for round in 1..20 {
        write(&mut world, &mut model, &upsert(round)).unwrap();
        run(&mut world, &mut model, &Step::FlushDeltas(0, Vec::new())).unwrap();
        run(&mut world, &mut model, &Step::CompactDue).unwrap();
        let files = world.replica().tablet().state().disk[0].meta().delta_files.len();
        assert!(files < world.config.merge_min, "{files} files");
    }
    check(&world, &model);
}

#[test]
fn a_job_given_up_in_the_middle_leaves_no_file() {
    let mut world = World::new(1, TabletConfig::tiny());
    world.create(plain_schema()).unwrap();
    let mut model = Model::new();
    run(&mut world, &mut model, &workload()[0]).unwrap();
    let (replica, _) = world.open.as_mut().unwrap();
    let mut job = replica.start_job(JobKind::FlushRows).unwrap().unwrap();
    assert_eq!(job.step().unwrap(), JobStep::More);
    assert!(replica.start_job(JobKind::Checkpoint).is_err(), "one job at a time");
    replica.end_job(job, Some(engine::error::Error::aborted("enough")), &mut Effects::default());
    let dir = format!("data/{}", support::TABLET);
    assert!(engine::disk::Disk::list(&world.disk, &dir).unwrap().is_empty());
    check(&world, &model);
}

/// Power is cut within `work` at each of its disk operations; `after` looks at what the power failure left.
fn cut_everywhere(
    prepare: impl Fn(&mut World),
    work: impl Fn(&mut World) -> Result<(), engine::error::Error>,
    after: impl Fn(&mut World, u64),
) {
    let mut whole = World::new(1, TabletConfig::tiny());
    prepare(&mut whole);
    let before = whole.disk.op_count();
    work(&mut whole).unwrap();
    for k in 1..=whole.disk.op_count() - before {
        let mut world = World::new(k, TabletConfig::tiny());
        prepare(&mut world);
        world.disk.cut_power_at(k);
        assert!(work(&mut world).is_err(), "power is cut at {k}");
        world.open = None;
        world.disk.crash();
        after(&mut world, k);
    }
}

#[test]
fn an_interrupted_creation_happened_or_can_be_repeated() {
    let after = |world: &mut World, k| {
        match world.reopen() {
            Ok(()) => {}
            Err(error) if error.kind == ErrorKind::NotFound => world.create(plain_schema()).unwrap(),
            Err(error) => panic!("power cut at {k}: {error}"),
        }
        let mut model = Model::new();
        run(world, &mut model, &workload()[0]).unwrap();
        check(world, &model);
    };
    cut_everywhere(|_| {}, |world| world.create(plain_schema()), after);
}

#[test]
fn an_interrupted_deletion_has_not_begun_or_can_be_completed() {
    let prepare = |world: &mut World| {
        world.create(plain_schema()).unwrap();
        let mut model = Model::new();
        workload()[..3].iter().for_each(|step| run(world, &mut model, step).unwrap());
    };
    let delete = |world: &mut World| {
        world.open = None;
        Replica::delete(&world.disk, &world.disk, support::TABLET, None)
    };
    let after = |world: &mut World, k| {
        match world.reopen() {
            Ok(()) => assert_eq!(world.replica().tablet().stats().live_rows, 4, "it is all there"),
            Err(error) => assert_eq!(error.kind, ErrorKind::NotFound, "power cut at {k}: {error}"),
        }
        match delete(world) {
            Err(error) if error.kind != ErrorKind::NotFound => panic!("power cut at {k}: {error}"),
            _ => {}
        }
        world.create(plain_schema()).unwrap();
    };
    cut_everywhere(prepare, delete, after);
}

#[test]
fn a_damaged_superblock_is_noticed() {
    let path = format!("tablet-meta/{}", support::TABLET);
    let len = {
        let mut world = World::new(1, TabletConfig::tiny());
        world.create(plain_schema()).unwrap();
        engine::disk::read_file(&world.disk, &path).unwrap().len() as u64
    };
    for offset in 0..len {
        let mut world = World::new(offset, TabletConfig::tiny());
        world.create(plain_schema()).unwrap();
        world.disk.flip_bit(&path, offset).unwrap();
        let error = world.reopen().expect_err("the checksum covers every byte");
        assert_eq!(error.kind, ErrorKind::Corrupt, "{offset}: {error}");
        assert!(error.message.contains(&path), "{error}");
    }
}
