//! Model tests of a DiskRowSet; the model is each row's history as a list of states.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::diskrowset::{ColumnFileConfig, DiskRowSet, DiskRowSetWriter, RowSetMeta, RowSetTrackers};
use super::rowset::{ProbeStats, RowSetScanSpec, Snapshot};
use crate::cfile::cache::PageCache;
use crate::cfile::page_file::PageOwner;
use crate::disk::Disk;
use crate::disk::mem::MemDisk;
use crate::error::ErrorKind;
use crate::ids::{ColumnId, RowId, TabletId, Uuid};
use crate::schema::key::encode_key;
use crate::schema::predicate::{Predicate, PredicateKind};
use crate::schema::row_block::{ProjectedColumn, RowBlock};
use crate::schema::row_change::{RowChange, RowChangeBuilder, encode_delete};
use crate::schema::{ColumnSchema, Compression, DataType, Schema};
use crate::time::Timestamp;

const TABLET: TabletId = Uuid([7; 16]);

type Cell = Option<Vec<u8>>;
/// Cells of the columns outside the key.
type State = Vec<Cell>;

/// A key, three columns, and one column that was added after the rowset was written.
fn table(composite: bool) -> Schema {
    let mut columns = vec![ColumnSchema::new(0, "k", DataType::Int32)];
    if composite {
        columns.push(ColumnSchema::new(1, "k2", DataType::String));
    }
    let mut a = ColumnSchema::new(2, "a", DataType::Int64);
    a.compression = Compression::Lz4;
    columns.push(a);
    columns.push(ColumnSchema::new(3, "b", DataType::String).nullable());
    columns.push(ColumnSchema::new(4, "c", DataType::Bool).nullable());
    let mut late = ColumnSchema::new(9, "late", DataType::Int32);
    late.read_default = Some(7i32.to_le_bytes().to_vec());
    columns.push(late);
    Schema::new(columns, 1 + usize::from(composite)).unwrap()
}

/// The table before the last column was added.
fn schema_at_flush(schema: &Schema) -> Schema {
    let columns = schema.columns();
    Schema::new(columns[..columns.len() - 1].to_vec(), schema.num_key_columns()).unwrap()
}

#[derive(Debug, Clone)]
struct Op {
    row: usize,
    kind: u8,
    value: u8,
}

#[derive(Debug, Clone)]
struct Version {
    ts: Timestamp,
    change: Vec<u8>,
    /// `None` if the row is deleted.
    state: Option<State>,
}

struct Model {
    schema: Schema,
    histories: BTreeMap<usize, Vec<Version>>,
}

fn cells_of(value: u8) -> State {
    vec![
        Some((i64::from(value) * 1000 - 7).to_le_bytes().to_vec()),
        (!value.is_multiple_of(5)).then(|| vec![b'a' + value % 7; value as usize % 11]),
        (!value.is_multiple_of(3)).then(|| vec![value & 1]),
        Some(i32::from(value).to_le_bytes().to_vec()),
    ]
}

impl Model {
    fn value_ids(&self) -> Vec<ColumnId> {
        self.schema.columns()[self.schema.num_key_columns()..].iter().map(|column| column.id).collect()
    }

    fn key_cells(&self, row: usize) -> Vec<Vec<u8>> {
        let number = (row as i32 - 20).to_le_bytes().to_vec();
        if self.schema.num_key_columns() == 1 { vec![number] } else { vec![number, vec![b'x'; row % 3]] }
    }

    fn key(&self, row: usize) -> Vec<u8> {
        let cells = self.key_cells(row);
        let mut key = Vec::new();
        encode_key(self.schema.key_columns(), |i| &cells[i], &mut key);
        key
    }

    /// Applies an operation if the row's state allows it. Without `late`, the last column does not exist yet.
    fn apply(&mut self, op: &Op, ts: Timestamp, late: bool, may_insert: bool) -> Option<&Version> {
        let ids = self.value_ids();
        let known = if late { ids.len() } else { ids.len() - 1 };
        let history = self.histories.entry(op.row).or_default();
        let now = history.last().and_then(|version| version.state.clone());
        let mut change = Vec::new();
        let cells = cells_of(op.value);
        let state = match (now, op.kind % 4) {
            (None, 0) if !history.is_empty() || may_insert => {
                let mut state = cells;
                let mut builder = RowChangeBuilder::reinsert(&mut change);
                (0..known).for_each(|i| {
                    builder.set(ids[i], state[i].as_deref());
                });
                if !late {
                    state[known] = Some(7i32.to_le_bytes().to_vec());
                }
                Some(state)
            }
            (Some(mut state), 1 | 2) => {
                let column = op.value as usize % known;
                state[column] = cells[column].clone();
                RowChangeBuilder::update(&mut change).set(ids[column], cells[column].as_deref());
                Some(state)
            }
            (Some(_), 3) => {
                encode_delete(&mut change);
                None
            }
            _ => return None,
        };
        history.push(Version { ts, change, state });
        history.last()
    }

    /// Returns the state of a row after the operations before `before`.
    fn at(&self, row: usize, before: Timestamp) -> Option<&State> {
        let seen = self.histories[&row].iter().rev().find(|version| version.ts < before)?;
        seen.state.as_ref()
    }

    /// Writes the base of all rows inserted so far; returns its rows.
    fn flush(
        &mut self,
        disk: &MemDisk,
        config: &ColumnFileConfig,
        base_ts: Timestamp,
    ) -> Option<(RowSetMeta, Vec<usize>)> {
        self.histories.retain(|_, history| !history.is_empty());
        let rows: Vec<usize> = self.histories.keys().copied().collect();
        let schema = schema_at_flush(&self.schema);
        let identity = PageOwner { tablet: TABLET, rowset: 5 };
        let path = "data/5.base";
        let mut writer =
            DiskRowSetWriter::new(Arc::new(disk.clone()), path, identity, &schema, config).unwrap();
        for (id, row) in rows.iter().enumerate() {
            self.write_row(&mut writer, &schema, id as RowId, *row);
        }
        assert_eq!(writer.rows() as usize, rows.len());
        if rows.is_empty() {
            assert_eq!(writer.finish(base_ts).unwrap_err().kind, ErrorKind::Invalid);
            return None;
        }
        Some((writer.finish(base_ts).unwrap(), rows))
    }

    fn write_row(&self, writer: &mut DiskRowSetWriter, schema: &Schema, id: RowId, row: usize) {
        let history = &self.histories[&row];
        let last_live = history.iter().rposition(|version| version.state.is_some()).unwrap();
        let state = history[last_live].state.as_ref().unwrap();
        let projection: Vec<ProjectedColumn> = schema.columns().iter().map(ProjectedColumn::from).collect();
        let mut block = RowBlock::new(&projection);
        let keys = self.key_cells(row);
        let cells = keys.iter().map(|key| Some(&key[..])).chain(state.iter().map(|cell| cell.as_deref()));
        block.push_row(cells.take(schema.columns().len()));
        writer.append(&block, &[&self.key(row)]).unwrap();
        let ids = self.value_ids();
        let known = &ids[..ids.len() - 1];
        for i in (0..=last_live).rev() {
            let mut undo = Vec::new();
            match i.checked_sub(1).map(|before| &history[before].state) {
                None => encode_delete(&mut undo),
                Some(before) => {
                    // The undo of a DELETE restores the deleted cells.
                    let before = before.as_ref();
                    let cell = |id: ColumnId| {
                        let at = known.iter().position(|known| *known == id).unwrap();
                        before.and_then(|state| state[at].as_deref())
                    };
                    RowChange::parse(&history[i].change).unwrap().encode_inverse(known, cell, &mut undo);
                }
            }
            writer.undo(id, history[i].ts, &undo).unwrap();
        }
        if let Some(ghost) = history.get(last_live + 1) {
            writer.redo(id, ghost.ts, &ghost.change).unwrap();
        }
    }
}

struct Case {
    model: Model,
    set: DiskRowSet,
    disk: MemDisk,
    rows: Vec<usize>,
    last: Timestamp,
}

fn ts(i: usize) -> Timestamp {
    Timestamp(10 * (i as u64 + 1))
}

/// Applies `ops`. The rowset is flushed before op `flush_at`, and deltas are flushed before the ops in `delta_at`.
fn play(
    ops: &[Op],
    flush_at: usize,
    delta_at: &[usize],
    composite: bool,
    config: &ColumnFileConfig,
) -> Option<Case> {
    let schema = table(composite);
    let mut model = Model { schema: schema.clone(), histories: BTreeMap::new() };
    let flush_at = flush_at.min(ops.len());
    for (i, op) in ops[..flush_at].iter().enumerate() {
        model.apply(op, ts(i), false, true);
    }
    let disk = MemDisk::new(1);
    disk.create_dir("data").unwrap();
    let base_ts = Timestamp(ts(flush_at).0 - 1);
    let (meta, rows) = model.flush(&disk, config, base_ts)?;
    let cache = PageCache::new(1 << 16);
    let open = |meta| {
        DiskRowSet::open(
            Arc::new(disk.clone()),
            TABLET,
            meta,
            &schema,
            cache.clone(),
            RowSetTrackers::default(),
        )
        .unwrap()
    };
    let mut set = open(meta);
    for (i, op) in ops.iter().enumerate().skip(flush_at) {
        if delta_at.contains(&i) && set.freeze(Timestamp(ts(i).0 - 1)) {
            let meta = set.flush_frozen(&format!("data/5.delta{i}"), config).unwrap();
            if i.is_multiple_of(2) {
                // Reopened as after a restart: the DeltaMemStore contained only the deltas just written.
                set = open(meta);
            } else {
                set.install(meta).unwrap();
            }
        }
        if !rows.contains(&op.row) {
            continue;
        }
        if let Some(version) = model.apply(op, ts(i), true, false) {
            let row = rows.binary_search(&op.row).unwrap() as RowId;
            set.mutate(row, version.ts, &version.change).unwrap();
        }
    }
    Some(Case { model, set, disk, rows, last: ts(ops.len()) })
}

fn spec(columns: &[ColumnSchema], before: Timestamp) -> RowSetScanSpec {
    RowSetScanSpec {
        columns: columns.iter().map(ProjectedColumn::from).collect(),
        predicates: Arc::new([]),
        lower_key: None,
        upper_key: None,
        snapshot: Snapshot { before },
        diff_from: None,
        want_keys: true,
        block_rows: 5,
        block_bytes: usize::MAX,
    }
}

/// Returns budgets for the bytes of a block: any, a few rows with their deltas, and less than one row.
fn block_bytes() -> impl Strategy<Value = usize> {
    prop::sample::select(vec![usize::MAX, 150, 1])
}

/// Key, cells, and true if the row is returned as deleted.
type ReturnedRow = (Vec<u8>, Vec<Cell>, bool);

fn scan(set: &DiskRowSet, spec: &RowSetScanSpec) -> Vec<ReturnedRow> {
    let mut returned = Vec::new();
    let mut scan = set.scan(spec).unwrap();
    while let Some(scanned) = scan.next().unwrap() {
        assert!(scanned.block.rows > 0 && scanned.keys.len() == scanned.block.rows);
        for (i, key) in scanned.keys.iter().enumerate() {
            let cells = scanned.block.columns.iter().map(|column| column.cell(i).map(<[u8]>::to_vec));
            returned.push((key.clone(), cells.collect(), scanned.deleted.as_ref().is_some_and(|d| d.get(i))));
        }
    }
    returned
}

impl Case {
    fn row_cells(&self, row: usize, state: &State) -> Vec<Cell> {
        self.model.key_cells(row).into_iter().map(Some).chain(state.iter().cloned()).collect()
    }

    fn expected(&self, before: Timestamp, keep: impl Fn(&[u8], &[Cell]) -> bool) -> Vec<ReturnedRow> {
        let mut expected = Vec::new();
        for row in &self.rows {
            if let Some(state) = self.model.at(*row, before) {
                let (key, cells) = (self.model.key(*row), self.row_cells(*row, state));
                if keep(&key, &cells) {
                    expected.push((key, cells, false));
                }
            }
        }
        expected
    }

    fn check_lookups(&self) {
        let mut probes = ProbeStats::default();
        for (id, row) in self.rows.iter().enumerate() {
            let found = self.set.find(&self.model.key(*row), &mut probes).unwrap();
            assert_eq!(found, Some(id as RowId));
            let live = self.model.at(*row, self.last).is_some();
            assert_eq!(self.set.is_live(id as RowId).unwrap(), live, "row {row}");
            let columns = self.model.schema.columns().iter().map(ProjectedColumn::from).collect();
            assert_eq!(self.set.row_at_latest(id as RowId, columns).unwrap().is_some(), live);
        }
        for absent in (0..48).filter(|row| !self.rows.contains(row)) {
            assert_eq!(self.set.find(&self.model.key(absent), &mut probes).unwrap(), None);
        }
        let live = self.rows.iter().filter(|row| self.model.at(**row, self.last).is_some()).count();
        assert_eq!(self.set.live_rows(), live as u64);
    }
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = (0usize..40, any::<u8>(), any::<u8>()).prop_map(|(row, kind, value)| Op { row, kind, value });
    prop::collection::vec(op, 1..160)
}

fn configs() -> impl Strategy<Value = ColumnFileConfig> {
    let compression = prop::sample::select(vec![Compression::None, Compression::Lz4, Compression::Zstd]);
    (64usize..400, compression).prop_map(|(page_bytes, compression)| ColumnFileConfig {
        page_bytes,
        compression,
        ..ColumnFileConfig::tiny()
    })
}

fn predicates(value: u8, kind: u8) -> (Predicate, DataType, usize) {
    let cells = cells_of(value);
    let (column, ty, at) = match kind % 3 {
        0 => (ColumnId(2), DataType::Int64, 0),
        1 => (ColumnId(3), DataType::String, 1),
        _ => (ColumnId(9), DataType::Int32, 3),
    };
    let cell = cells[at].clone().unwrap_or_default();
    let kind = match kind / 3 % 5 {
        0 => PredicateKind::Equal(cell),
        1 => PredicateKind::Range { lower: Some(cell), upper: None },
        2 => PredicateKind::Range { lower: None, upper: Some(cell) },
        3 => PredicateKind::IsNull,
        _ => PredicateKind::IsNotNull,
    };
    (Predicate::new(column, kind), ty, at)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_snapshot_agrees_with_the_history(
        ops in ops(),
        flush_at in 1usize..120,
        delta_at in prop::collection::vec(0usize..160, 0..4),
        composite: bool,
        config in configs(),
        snapshots in prop::collection::vec(0usize..1700, 6),
        bounds in (0usize..44, 0usize..44),
        filter in (any::<u8>(), any::<u8>()),
        block_bytes in block_bytes(),
    ) {
        let Some(case) = play(&ops, flush_at, &delta_at, composite, &config) else { return Ok(()) };
        case.check_lookups();
        let columns = case.model.schema.columns().to_vec();
        for before in snapshots.iter().map(|at| Timestamp(*at as u64)).chain([Timestamp::MAX]) {
            let mut spec = RowSetScanSpec { block_bytes, ..spec(&columns, before) };
            prop_assert_eq!(scan(&case.set, &spec), case.expected(before, |_, _| true));
            let (lower, upper) = (case.model.key(bounds.0), case.model.key(bounds.1));
            (spec.lower_key, spec.upper_key) = (Some(lower.clone()), Some(upper.clone()));
            let within = |key: &[u8], _: &[Cell]| key >= &lower[..] && key < &upper[..];
            prop_assert_eq!(scan(&case.set, &spec), case.expected(before, within));
            (spec.lower_key, spec.upper_key) = (Some(lower.clone()), Some([&lower[..], &[0]].concat()));
            prop_assert_eq!(scan(&case.set, &spec), case.expected(before, |key, _| key == lower));
            (spec.lower_key, spec.upper_key) = (None, None);
            let (predicate, ty, at) = predicates(filter.0, filter.1);
            let at = at + case.model.schema.num_key_columns();
            spec.predicates = Arc::new([predicate.clone()]);
            let passes = |_: &[u8], cells: &[Cell]| predicate.matches_cell(ty, cells[at].as_deref());
            prop_assert_eq!(scan(&case.set, &spec), case.expected(before, passes));
        }
    }

    #[test]
    fn a_scan_of_some_columns_agrees_with_a_scan_of_all(
        ops in ops(),
        flush_at in 1usize..120,
        delta_at in prop::collection::vec(0usize..160, 0..4),
        config in configs(),
        snapshot in 0u64..1700,
        chosen in prop::collection::vec(any::<bool>(), 8),
    ) {
        let Some(case) = play(&ops, flush_at, &delta_at, false, &config) else { return Ok(()) };
        let columns = case.model.schema.columns();
        let is_chosen = |at: usize| chosen[at % chosen.len()];
        let some: Vec<_> = columns.iter().enumerate().filter(|(at, _)| is_chosen(*at)).map(|(_, c)| c.clone()).collect();
        for before in [Timestamp(snapshot), Timestamp::MAX] {
            let mut expected = case.expected(before, |_, _| true);
            for (_, cells, _) in &mut expected {
                let mut at = 0..;
                cells.retain(|_| is_chosen(at.next().unwrap_or_default()));
            }
            prop_assert_eq!(scan(&case.set, &spec(&some, before)), expected);
        }
    }

    #[test]
    fn a_diff_scan_returns_changed_rows_that_were_or_are_live(
        ops in ops(),
        flush_at in 1usize..120,
        delta_at in prop::collection::vec(0usize..160, 0..4),
        windows in prop::collection::vec((0u64..1700, 0u64..1700), 6),
        block_bytes in block_bytes(),
    ) {
        let Some(case) = play(&ops, flush_at, &delta_at, false, &ColumnFileConfig::tiny()) else { return Ok(()) };
        for (a, b) in windows {
            let (from, before) = (Timestamp(a.min(b)), Timestamp(a.max(b)));
            let spec = spec(case.model.schema.columns(), before);
            let spec = RowSetScanSpec { diff_from: Some(from), block_bytes, ..spec };
            let returned = scan(&case.set, &spec);
            let mut expected = Vec::new();
            for row in &case.rows {
                let changed = case.model.histories[row].iter().any(|v| v.ts >= from && v.ts < before);
                let (old, new) = (case.model.at(*row, from), case.model.at(*row, before));
                if changed && (old.is_some() || new.is_some()) {
                    // A deleted row has its last values.
                    let mut versions = case.model.histories[row].iter().rev().filter(|v| v.ts < before);
                    let last = versions.find_map(|version| version.state.as_ref()).unwrap();
                    expected.push((case.model.key(*row), case.row_cells(*row, last), new.is_none()));
                }
            }
            prop_assert_eq!(returned, expected);
        }
    }
}

/// Reopens the rowset and reads all of its pages.
fn read_everything(case: &Case, disk: &MemDisk) -> crate::error::Result<()> {
    let (schema, meta) = (&case.model.schema, RowSetMeta::clone(&case.set.meta()));
    let set = DiskRowSet::open(
        Arc::new(disk.clone()),
        TABLET,
        meta,
        schema,
        PageCache::new(1 << 20),
        RowSetTrackers::default(),
    )?;
    for row in &case.rows {
        set.find(&case.model.key(*row), &mut ProbeStats::default())?;
    }
    for before in [Timestamp::MIN, Timestamp::MAX] {
        let mut scan = set.scan(&spec(schema.columns(), before))?;
        while scan.next()?.is_some() {}
    }
    Ok(())
}

fn busy_case() -> Case {
    let ops: Vec<Op> = (0..120u8)
        .map(|i| Op { row: i as usize % 30, kind: if i < 30 { 0 } else { i % 4 }, value: i.wrapping_mul(37) })
        .collect();
    play(&ops, 50, &[100], true, &ColumnFileConfig::tiny()).unwrap()
}

#[test]
fn a_flipped_bit_anywhere_in_a_rowset_is_detected() {
    let case = busy_case();
    let meta = case.set.meta();
    assert_eq!(meta.files().count(), 2);
    assert_eq!(
        meta.files().map(|file| case.disk.open(file).unwrap().len().unwrap()).sum::<u64>(),
        meta.bytes
    );
    read_everything(&case, &case.disk).unwrap();
    for file in meta.files() {
        for at in 0..case.disk.open(file).unwrap().len().unwrap() {
            case.disk.flip_bit(file, at).unwrap();
            let error = read_everything(&case, &case.disk).expect_err("a flipped bit");
            let kinds = [ErrorKind::Corrupt, ErrorKind::Unsupported];
            assert!(
                kinds.contains(&error.kind) && error.message.contains(file),
                "byte {at} of {file}: {error}"
            );
            case.disk.flip_bit(file, at).unwrap();
        }
    }
}

/// Returns a file with some bytes of one page's body replaced and its checksum recomputed.
fn with_valid_checksum(file: &[u8], page: usize, overwrites: &[(usize, u8)]) -> Vec<u8> {
    const HEADER: usize = 48;
    let mut bytes = file.to_vec();
    let mut starts = Vec::new();
    let mut at = 0;
    while at + HEADER < bytes.len() {
        starts.push(at);
        at += HEADER + u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap()) as usize;
    }
    let start = starts[page % starts.len()];
    let len = u32::from_le_bytes(bytes[start + 4..start + 8].try_into().unwrap()) as usize;
    for (at, value) in overwrites {
        bytes[start + HEADER + at % len.max(1)] = *value;
    }
    let crc = crc32c::crc32c(&bytes[start + 4..start + HEADER + len]);
    bytes[start..start + 4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Damage with a valid checksum, as a bug of a writer would cause: any result is allowed except a panic.
    #[test]
    fn corrupt_pages_with_valid_checksums_never_panic(
        pages in prop::collection::vec((any::<usize>(), prop::collection::vec((any::<usize>(), any::<u8>()), 1..4)), 8),
    ) {
        thread_local!(static CASE: Case = busy_case());
        CASE.with(|case| {
            for (page, overwrites) in pages {
                for path in case.set.meta().files() {
                    let file = case.disk.open(path).unwrap();
                    let mut bytes = vec![0; file.len().unwrap() as usize];
                    file.read_at(0, &mut bytes).unwrap();
                    let disk = MemDisk::new(1);
                    disk.create_dir("data").unwrap();
                    for other in case.set.meta().files().filter(|other| *other != path) {
                        let file = case.disk.open(other).unwrap();
                        let mut bytes = vec![0; file.len().unwrap() as usize];
                        file.read_at(0, &mut bytes).unwrap();
                        disk.create(other).unwrap().append(&bytes).unwrap();
                    }
                    disk.create(path).unwrap().append(&with_valid_checksum(&bytes, page, &overwrites)).unwrap();
                    let _ = read_everything(case, &disk);
                }
            }
        });
    }
}

/// Every disk operation of a delta flush fails once. The deltas stay readable, and the next flush succeeds.
#[test]
fn a_delta_flush_that_fails_loses_nothing() {
    let case = busy_case();
    let before = scan(&case.set, &spec(case.model.schema.columns(), Timestamp::MAX));
    let mut change = Vec::new();
    RowChangeBuilder::update(&mut change).set(ColumnId(9), Some(&99i32.to_le_bytes()));
    case.set.mutate(0, Timestamp(5000), &change).unwrap();
    let changed = scan(&case.set, &spec(case.model.schema.columns(), Timestamp::MAX));
    assert!(case.set.freeze(Timestamp(5000)));
    let mut failures = 0;
    let meta = loop {
        case.disk.fail_op(failures, 5);
        match case.set.flush_frozen(&format!("data/5.try{failures}"), &ColumnFileConfig::tiny()) {
            Ok(meta) => break meta,
            Err(error) => assert_eq!((error.kind, error.errno), (ErrorKind::Io, Some(5))),
        }
        assert_eq!(scan(&case.set, &spec(case.model.schema.columns(), Timestamp::MAX)), changed);
        failures += 1;
    };
    assert!(failures >= 4, "create, append, sync and sync of the directory: {failures}");
    assert_eq!(scan(&case.set, &spec(case.model.schema.columns(), Timestamp::MAX)), changed);
    // The armed failure that the last flush did not reach overwrites the read of its file.
    assert_eq!(case.set.install(meta.clone()).unwrap_err().errno, Some(5));
    case.set.install(meta).unwrap();
    assert_eq!(scan(&case.set, &spec(case.model.schema.columns(), Timestamp::MAX)), changed);
    assert_eq!(scan(&case.set, &spec(case.model.schema.columns(), Timestamp(5000))), before);
    assert_eq!(case.set.dms_len(), 0);
    assert_eq!(case.set.meta().redo_ts, Timestamp(5000));
}

/// Enough rows for several pages of each stream, several Bloom chunks, and a dictionary that overflows.
#[test]
fn a_rowset_of_many_pages_returns_every_row() {
    const ROWS: i64 = 40_000;
    let columns = vec![
        ColumnSchema::new(0, "k", DataType::Int64),
        ColumnSchema::new(1, "s", DataType::String).nullable(),
        ColumnSchema::new(2, "d", DataType::Double),
    ];
    let schema = Schema::new(columns, 1).unwrap();
    let cells = |row: i64| -> Vec<Cell> {
        let text =
            if row < ROWS / 2 { format!("one of a few, {}", row % 50) } else { format!("only once: {row}") };
        let text = (row % 13 != 0).then(|| text.into_bytes());
        vec![
            Some((3 * row - 50_000).to_le_bytes().to_vec()),
            text,
            Some((row as f64).sqrt().to_le_bytes().to_vec()),
        ]
    };
    let key = |number: i64| ((number as u64) ^ 1 << 63).to_be_bytes();
    let disk = MemDisk::new(1);
    disk.create_dir("data").unwrap();
    let projection: Vec<ProjectedColumn> = schema.columns().iter().map(ProjectedColumn::from).collect();
    let identity = PageOwner { tablet: TABLET, rowset: 5 };
    let config = ColumnFileConfig::default();
    let mut writer =
        DiskRowSetWriter::new(Arc::new(disk.clone()), "data/5", identity, &schema, &config).unwrap();
    for start in (0..ROWS).step_by(777) {
        let rows = start..ROWS.min(start + 777);
        let mut block = RowBlock::new(&projection);
        rows.clone().for_each(|row| block.push_row(cells(row).iter().map(|cell| cell.as_deref())));
        let keys: Vec<[u8; 8]> = rows.map(|row| key(3 * row - 50_000)).collect();
        writer.append(&block, &keys.iter().map(|key| &key[..]).collect::<Vec<_>>()).unwrap();
    }
    let meta = writer.finish(Timestamp(9)).unwrap();
    let cache = PageCache::new(1 << 22);
    let set =
        DiskRowSet::open(Arc::new(disk), TABLET, meta, &schema, cache.clone(), RowSetTrackers::default())
            .unwrap();
    let pages: Vec<usize> = set.layout().unwrap().iter().map(|stream| stream.pages.len()).collect();
    assert!(pages.iter().all(|pages| *pages > 1), "{pages:?}");
    let mut spec = spec(schema.columns(), Timestamp::MAX);
    spec.block_rows = 1000;
    let rows = scan(&set, &spec);
    assert_eq!(rows.len() as i64, ROWS);
    for (row, (_, returned, _)) in (0..).zip(rows) {
        assert_eq!(returned, cells(row), "row {row}");
    }
    let mut probes = ProbeStats::default();
    for row in 0..ROWS {
        assert_eq!(set.find(&key(3 * row - 50_000), &mut probes).unwrap(), Some(row as RowId));
    }
    let before = probes.keys;
    for row in 0..ROWS {
        assert_eq!(set.find(&key(3 * row - 49_999), &mut probes).unwrap(), None);
    }
    assert!(
        probes.keys - before < ROWS as u64 / 50,
        "{} absent keys passed the filter",
        probes.keys - before
    );
    assert!(cache.stats().bytes <= 1 << 22);
}
