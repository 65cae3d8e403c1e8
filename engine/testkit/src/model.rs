//! A model of a tablet, a map of versions: steps applied to both, and their comparison.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::config::TabletConfig;
use engine::error::ErrorKind;
use engine::ids::ColumnId;
use engine::replica::maintenance_policy::compaction_job;
use engine::replica::{JobKind, Op, OpResult};
use engine::schema::aggregation::{Aggregate, AggregateFunction, Aggregation, Aggregator};
use engine::schema::predicate::{Predicate, PredicateKind};
use engine::schema::row_block::{ProjectedColumn, RowBlock};
use engine::schema::row_ops::{RowErrorCode, RowOpKind};
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::tablet::scan::{Scan, ScanSpec, SnapshotChoice};
use engine::time::Timestamp;

use crate::world::{Rows, Value, World, misplaced_files, plain_schema, wire_columns};

/// A step of a test against a tablet.
#[derive(Debug, Clone)]
pub enum Step {
    Write(Vec<Change>),
    FlushRows(Vec<Change>),
    /// The n-th rowset, modulo the number of rowsets.
    FlushDeltas(usize, Vec<Change>),
    Compact(usize, usize, Vec<Change>),
    /// The n-th rowset, as with [`Step::FlushDeltas`].
    MajorDeltaCompaction(usize, Vec<Change>),
    MinorDeltaCompaction(usize, Vec<Change>),
    Checkpoint,
    Gc,
    /// Compacts the rowsets that the policy chooses, if it chooses any.
    CompactDue,
    /// Moves the ancient history mark so that this percentage of the history remains.
    Forget(u8),
    Restart,
    Crash,
    AddColumn,
    DropColumn,
}

#[derive(Debug, Clone)]
pub struct Change {
    pub kind: RowOpKind,
    pub key: u8,
    pub v: Option<Option<u8>>,
    pub n: Option<Option<i32>>,
}

/// The columns besides the key, by id; `None` if the row does not exist.
pub type Row = Option<BTreeMap<u32, Option<Vec<u8>>>>;

/// Every version of every row, and the columns.
#[derive(Clone, Default)]
pub struct Model {
    rows: BTreeMap<i32, Vec<(u64, Row)>>,
    /// The column that is added and dropped, and the id of the next one.
    pub extra: Option<u32>,
    pub next_id: u32,
}

const EXTRA_DEFAULT: i32 = 77;

impl Model {
    pub fn new() -> Model {
        Model { next_id: 3, ..Model::default() }
    }

    fn latest(&self, key: i32) -> Row {
        self.rows.get(&key).and_then(|versions| versions.last()).and_then(|(_, row)| row.clone())
    }

    fn at(&self, key: i32, before: u64) -> Row {
        let versions = self.rows.get(&key)?;
        versions.iter().rev().find(|(ts, _)| *ts < before).and_then(|(_, row)| row.clone())
    }

    /// Applies a change at `ts`. Returns the error with which it must fail, if any.
    pub fn apply(&mut self, change: &Change, ts: u64) -> Option<RowErrorCode> {
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
            // An upsert that sets nothing creates no version.
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

    pub fn schema(&self) -> Schema {
        let mut columns = plain_schema().columns().to_vec();
        if let Some(id) = self.extra {
            let mut column = ColumnSchema::new(id, "extra", DataType::Int32);
            column.read_default = Some(EXTRA_DEFAULT.to_le_bytes().to_vec());
            column.write_default = column.read_default.clone();
            columns.push(column);
        }
        Schema::new(columns, 1).unwrap()
    }

    /// Returns the rows at `before` as a scan returns them.
    pub fn shown(&self, before: u64) -> Vec<Vec<Option<Vec<u8>>>> {
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

    /// Returns what a diff scan from `from` to `before` returns: each key, and true if the row is deleted, with the
    /// cells of live ones.
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

/// Applies a write to both and compares the results of its rows.
pub fn write(world: &mut World, model: &mut Model, changes: &[Change]) -> Result<(), engine::error::Error> {
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

pub fn scan_rows(world: &World, before: u64, ordered: bool) -> Vec<Cells> {
    scan_spec(world, &spec(world, before, ordered))
}

/// Returns the number of rows, scanned without any column.
pub fn count_rows(world: &World, before: u64) -> usize {
    let spec = ScanSpec { projection: Arc::default(), ..spec(world, before, false) };
    let mut scan = world.replica().tablet().scan(&spec).unwrap();
    let mut rows = 0;
    while let Some(block) = scan.next_block().unwrap() {
        rows += block.rows;
    }
    rows
}

fn scan_spec(world: &World, spec: &ScanSpec) -> Vec<Cells> {
    let mut scan = world.replica().tablet().scan(spec).unwrap();
    let mut block = RowBlock::new(&spec.projection);
    while let Some(next) = scan.next_block().unwrap() {
        assert!(next.rows > 0);
        block.append(next);
    }
    let mut again = world.replica().tablet().scan(spec).unwrap();
    let mut appended = RowBlock::new(&spec.projection);
    while again.append_block(&mut appended).unwrap() {}
    assert_eq!(appended, block, "rows are the same in one block and in several");
    let cells = |row| block.columns.iter().map(|c| c.cell(row).map(<[u8]>::to_vec)).collect();
    let mut rows: Vec<Cells> = (0..block.rows).map(cells).collect();
    if !spec.ordered {
        rows.sort_by_key(key_of);
    }
    rows
}

fn key_of(row: &Cells) -> i32 {
    i32::from_le_bytes(row[0].as_ref().unwrap()[..].try_into().unwrap())
}

/// Compares the read of each key, and of a few that are absent, with the model's row.
pub fn check_reads_by_key(world: &World, model: &Model, before: u64) {
    let shown = model.shown(before);
    let absent = [-1, 1 << 20];
    for key in shown.iter().map(key_of).chain(0..12).chain(absent) {
        let mut spec = spec(world, before, key % 2 == 0);
        spec.predicates = vec![Predicate::new(ColumnId(0), PredicateKind::Equal(key.to_le_bytes().to_vec()))];
        let expected: Vec<Cells> = shown.iter().filter(|row| key_of(row) == key).cloned().collect();
        assert_eq!(scan_spec(world, &spec), expected, "key {key} at {before}");
    }
}

/// Compares scans with predicates, alone and in pairs, with the model's rows filtered one by one.
pub fn check_predicates(world: &World, model: &Model, before: u64) {
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
        // The columns of predicates need not be in the projection.
        spec.projection = spec.projection[..1 + i % 3].into();
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

/// Compares rows, values and extremes of the groups by the column `v` with the model's.
pub fn check_aggregates(world: &World, model: &Model, before: u64) {
    let number = |cell: &[u8]| i32::from_le_bytes(cell.try_into().unwrap());
    let of = |function, column| Aggregate { function, column: Some(column) };
    let aggregates = vec![
        Aggregate { function: AggregateFunction::Count, column: None },
        of(AggregateFunction::Count, 2),
        of(AggregateFunction::Sum, 2),
        of(AggregateFunction::Min, 0),
        of(AggregateFunction::Max, 2),
    ];
    let aggregation = Arc::new(Aggregation { group_by: vec![1], aggregates });
    let mut scan = world.replica().tablet().scan(&spec(world, before, before.is_multiple_of(2))).unwrap();
    let mut aggregator = Aggregator::new(&aggregation, scan.projection());
    while let Some(block) = scan.next_block().unwrap() {
        aggregator.add(&block);
    }
    let found = aggregator.finish();
    let cells =
        |row: usize| found.columns.iter().map(|column| column.cell(row).map(<[u8]>::to_vec)).collect();
    let mut found: Vec<Cells> = (0..found.rows).map(cells).collect();
    found.sort();
    let mut groups: BTreeMap<Option<Vec<u8>>, Vec<Cells>> = BTreeMap::new();
    for row in model.shown(before) {
        groups.entry(row[1].clone()).or_default().push(row);
    }
    let expected = groups.into_iter().map(|(group, rows)| {
        let numbers: Vec<i32> = rows.iter().filter_map(|row| row[2].as_deref()).map(number).collect();
        let sum = numbers.iter().map(|n| i64::from(*n)).reduce(|sum, n| sum + n);
        let count = |rows: usize| Some((rows as i64).to_le_bytes().to_vec());
        let cell = |n: i32| n.to_le_bytes().to_vec();
        vec![
            group,
            count(rows.len()),
            count(numbers.len()),
            sum.map(|sum| sum.to_le_bytes().to_vec()),
            rows.iter().map(key_of).min().map(cell),
            numbers.iter().max().map(|n| cell(*n)),
        ]
    });
    assert_eq!(found, expected.collect::<Vec<Cells>>(), "at {before}");
}

/// A scan that is read block by block while the tablet changes.
pub struct OpenScan {
    scan: Scan,
    found: Vec<Cells>,
    expected: Vec<Cells>,
}

impl OpenScan {
    pub fn new(world: &World, model: &Model, ordered: bool) -> OpenScan {
        let now = world.clock + 1;
        let scan = world.replica().tablet().scan(&spec(world, now, ordered)).unwrap();
        OpenScan { scan, found: Vec::new(), expected: model.shown(now) }
    }

    /// Reads a block. Returns false at the end, after a check of the result.
    pub fn read_block(&mut self) -> bool {
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
    let projection = schema.columns().iter().map(Into::into).collect();
    ScanSpec { snapshot: SnapshotChoice::At(Timestamp(before)), ordered, ..ScanSpec::latest(projection) }
}

fn scan_diff(world: &World, from: u64, before: u64) -> Vec<(i32, bool)> {
    let mut spec = spec(world, before, true);
    spec.diff_from = Some(Timestamp(from));
    let (ty, name) = (DataType::IsDeleted, "deleted".to_string());
    let is_deleted = ProjectedColumn { id: None, name, ty, nullable: false, read_default: None };
    spec.projection = [&spec.projection[..1], &[is_deleted]].concat().into();
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

/// Compares scans at every snapshot timestamp.
pub fn check(world: &World, model: &Model) {
    let now = world.clock + 1;
    let oldest = world.replica().tablet().history_mark().0.max(1);
    for before in 1..oldest {
        let result = world.replica().tablet().scan(&spec(world, before, true));
        let error = result.err().unwrap_or_else(|| panic!("a scan at {before} is older than {oldest}"));
        assert!(
            error.kind == ErrorKind::Invalid && error.message.contains("ancient history mark"),
            "{error}"
        );
    }
    for before in oldest..=now {
        let shown = model.shown(before);
        assert_eq!(count_rows(world, before), shown.len(), "at {before}");
        assert_eq!(scan_rows(world, before, true), shown, "at {before}");
    }
    assert_eq!(scan_rows(world, now, false), model.shown(now));
    for from in [1, now / 2, now.saturating_sub(1)].map(|from| from.max(oldest)) {
        for before in [from, (from + now).div_ceil(2), now] {
            assert_eq!(scan_diff(world, from, before), model.diff(from, before), "{from}..{before}");
        }
    }
    check_reads_by_key(world, model, now);
    check_reads_by_key(world, model, (now / 2 + 1).max(oldest));
    check_predicates(world, model, now);
    check_predicates(world, model, (now / 2 + 1).max(oldest));
    for before in [now, (now / 2 + 1).max(oldest)] {
        check_aggregates(world, model, before);
    }
    let live = model.shown(now).len() as u64;
    assert_eq!(world.replica().tablet().stats().live_rows, live);
}

/// Runs a job; `during` is written after its first step.
pub fn job(
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

pub fn run(world: &mut World, model: &mut Model, step: &Step) -> Result<(), engine::error::Error> {
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
        Step::MajorDeltaCompaction(n, during) => {
            let ids = ids(world);
            if !ids.is_empty() {
                job(world, model, JobKind::MajorDeltaCompaction(ids[n % ids.len()]), during)?;
            }
        }
        Step::MinorDeltaCompaction(n, during) => {
            let ids = ids(world);
            if !ids.is_empty() {
                job(world, model, JobKind::MinorDeltaCompaction(ids[n % ids.len()]), during)?;
            }
        }
        Step::Checkpoint => job(world, model, JobKind::Checkpoint, &[])?,
        Step::Gc => {
            let (replica, wal) = world.open.as_mut().unwrap();
            wal.gc(replica.log_keep_from())?;
        }
        Step::CompactDue => {
            if let Some(choice) = world.replica().tablet().choose_compaction() {
                job(world, model, compaction_job(&choice), &[])?;
            }
        }
        Step::Forget(percent) => {
            let mark = world.clock - world.clock * u64::from(*percent) / 100;
            world.replica().tablet().raise_history_mark(Timestamp(mark));
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

/// Applies `steps` to a new tablet and to the model. Every snapshot timestamp within the history reads as in the model,
/// after every step and after a restart, also in scans that are open meanwhile, and no orphan file is left.
pub fn follow(seed: u64, steps: &[Step]) {
    let (mut world, mut model) = (World::new(seed, TabletConfig::tiny()), Model::new());
    world.create(plain_schema()).expect("an empty disk");
    let mut scans = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        if matches!(step, Step::Crash) {
            // Handles from before a power failure are invalid.
            scans.clear();
        }
        run(&mut world, &mut model, step).expect("a sound disk");
        check(&world, &model);
        scans.retain_mut(OpenScan::read_block);
        scans.push(OpenScan::new(&world, &model, i % 2 == 0));
    }
    while !scans.is_empty() {
        scans.retain_mut(OpenScan::read_block);
    }
    world.reopen().expect("a sound disk");
    check(&world, &model);
    assert_eq!(misplaced_files(&world.disk), Vec::<String>::new());
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
