//! Scans of a tablet: what to read, and reading it block by block.
//!
//! ```text
//!   unordered   [rowset 1] then [rowset 2] then [MemRowSet]
//!   ordered     k-way merge by key; where one row set is alone, its blocks pass through whole
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use super::rowset::{RowSetScan, RowSetScanSpec, ScannedBlock, Snapshot};
use crate::error::{Error, Result};
use crate::schema::Schema;
use crate::schema::block::{ColumnBlock, ProjectedColumn, RowBlock, Values};
use crate::schema::key::{encode_cell, prefix_successor};
use crate::schema::predicate::{Predicate, PredicateKind};
use crate::time::Timestamp;

/// The moment a scan reads at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotAt {
    /// Everything applied when the scan begins.
    Latest,
    /// Operations with smaller timestamps. The caller has waited until they are all applied and no more of
    /// them can come.
    At(Timestamp),
}

/// What to read of a tablet.
#[derive(Debug, Clone)]
pub struct ScanSpec {
    /// Columns of the blocks returned. At most one has no id: IS_DELETED, only in diff scans.
    pub projection: Vec<ProjectedColumn>,
    /// All must hold.
    pub predicates: Vec<Predicate>,
    /// Encoded primary key, inclusive.
    pub lower_key: Option<Vec<u8>>,
    /// Encoded primary key, exclusive.
    pub upper_key: Option<Vec<u8>>,
    /// Begin after this encoded primary key.
    pub last_key: Option<Vec<u8>>,
    pub snapshot: SnapshotAt,
    /// Only rows changed by operations at or after this timestamp; wants `ordered` and a snapshot in time.
    pub diff_from: Option<Timestamp>,
    /// Rows in primary key order.
    pub ordered: bool,
    /// Stop after so many rows.
    pub limit: Option<u64>,
    /// Blocks of at most so many rows; otherwise of the tablet's own setting.
    pub block_rows_max: Option<usize>,
}

impl ScanSpec {
    /// Everything as it is now, in no order: what is wanted less or otherwise is said with `..`.
    pub fn latest(projection: Vec<ProjectedColumn>) -> ScanSpec {
        ScanSpec {
            projection,
            predicates: Vec::new(),
            lower_key: None,
            upper_key: None,
            last_key: None,
            snapshot: SnapshotAt::Latest,
            diff_from: None,
            ordered: false,
            limit: None,
            block_rows_max: None,
        }
    }

    /// How many rows to read at a time, where a scan of everything reads `own`: not many more than are wanted, as cells
    /// of rows beyond the limit would be copied for nothing. Predicates may let few rows pass, and some may be deleted.
    pub(super) fn block_rows(&self, own: usize) -> usize {
        let least = if self.predicates.is_empty() { ROWS_MIN } else { FILTERED_ROWS_MIN };
        let wanted = self.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        own.min(self.block_rows_max.unwrap_or(usize::MAX)).min(wanted.max(least)).max(1)
    }

    /// Whether no more than a few rows of `within` need to be read: that of one key, or the first ones that are there.
    pub(super) fn reads_few(&self, within: &RowSetScanSpec) -> bool {
        let first = self.predicates.is_empty() && self.diff_from.is_none();
        within.is_one_key() || (first && self.limit.is_some_and(|limit| limit <= FILTERED_ROWS_MIN as u64))
    }

    /// The oldest moment whose history it needs.
    pub(super) fn oldest(&self, snapshot: Snapshot) -> Timestamp {
        self.diff_from.unwrap_or(snapshot.before).min(snapshot.before)
    }

    /// Whether nothing is asked of the rows but how many there are. Then rows on disk are counted from what is known of
    /// their rowsets, and only their changes are looked at.
    pub fn only_counts(&self) -> bool {
        self.projection.is_empty() && self.predicates.is_empty() && !self.ordered && self.diff_from.is_none()
    }
}

/// Rows that a scan reads at a time even if it wants fewer; and one with predicates.
const ROWS_MIN: usize = 16;
const FILTERED_ROWS_MIN: usize = 128;

/// A scan in progress: it owns what it reads and is not disturbed by writes, flushes or compactions.
pub struct Scan {
    sources: Sources,
    projection: Arc<[ProjectedColumn]>,
    snapshot: Snapshot,
    left: u64,
    last_key: Option<Vec<u8>>,
    reads_few: bool,
}

enum Sources {
    Union(VecDeque<Box<dyn RowSetScan>>),
    Merge(Merge),
}

impl Scan {
    /// A scan of these row sets, each opened for `spec`'s [`row_set_spec`].
    pub(super) fn new(
        spec: &ScanSpec,
        snapshot: Snapshot,
        row_sets: Vec<Box<dyn RowSetScan>>,
        reads_few: bool,
    ) -> Scan {
        let sources = match spec.ordered {
            true => Sources::Merge(Merge { heads: row_sets.into_iter().map(Head::new).collect() }),
            false => Sources::Union(row_sets.into()),
        };
        let (projection, left) = (spec.projection.clone().into(), spec.limit.unwrap_or(u64::MAX));
        Scan { sources, projection, snapshot, left, last_key: None, reads_few }
    }

    /// Whether all that it reads are a few rows: that of one key, or the first ones of a range.
    pub fn reads_few(&self) -> bool {
        self.reads_few
    }

    /// The next rows, never none of them; `None` at the end.
    pub fn next_block(&mut self) -> Result<Option<RowBlock>> {
        if self.left == 0 {
            return Ok(None);
        }
        let scanned = match &mut self.sources {
            Sources::Union(rest) => next_of_union(rest)?,
            Sources::Merge(merge) => merge.next()?,
        };
        let Some(mut scanned) = scanned else {
            self.left = 0;
            return Ok(None);
        };
        if scanned.block.rows as u64 > self.left {
            scanned = scanned.slice(0, self.left as usize);
        }
        self.left -= scanned.block.rows as u64;
        self.last_key = scanned.keys.pop();
        Ok(Some(self.output(scanned)))
    }

    /// Ordered scans: the encoded key of the last row returned.
    pub fn last_key(&self) -> Option<&[u8]> {
        self.last_key.as_deref()
    }

    pub fn snapshot(&self) -> Snapshot {
        self.snapshot
    }

    /// Columns of the blocks.
    pub fn projection(&self) -> &Arc<[ProjectedColumn]> {
        &self.projection
    }

    /// Drops the columns only predicates needed and puts the virtual one in its place.
    fn output(&self, scanned: ScannedBlock) -> RowBlock {
        let ScannedBlock { block, deleted, .. } = scanned;
        let mut real = block.columns.into_iter();
        let column = |projected: &ProjectedColumn| match projected.id {
            Some(_) => real.next().expect("the row sets were asked for every real column"),
            None => {
                let flag = |row| u8::from(deleted.as_ref().is_some_and(|deleted| deleted.get(row)));
                let bytes = (0..block.rows).map(flag).collect();
                ColumnBlock { values: Values::Fixed { width: 1, bytes }, validity: None }
            }
        };
        RowBlock { rows: block.rows, columns: self.projection.iter().map(column).collect() }
    }
}

fn next_of_union(rest: &mut VecDeque<Box<dyn RowSetScan>>) -> Result<Option<ScannedBlock>> {
    while let Some(scan) = rest.front_mut() {
        match scan.next()? {
            Some(scanned) => return Ok(Some(scanned)),
            None => rest.pop_front(),
        };
    }
    Ok(None)
}

/// What to ask of each row set, `None` if no row can match.
///
/// Predicates on a prefix of the key narrow the key range, so that looking up a key by its columns is a seek.
pub(super) fn row_set_spec(
    spec: &ScanSpec,
    schema: &Schema,
    snapshot: Snapshot,
    block_rows: usize,
) -> Result<Option<RowSetScanSpec>> {
    check(spec)?;
    let mut columns: Vec<ProjectedColumn> =
        spec.projection.iter().filter(|column| column.id.is_some()).cloned().collect();
    for predicate in &spec.predicates {
        if !columns.iter().any(|column| column.id == Some(predicate.column)) {
            let found = schema.by_id(predicate.column);
            let unknown = || {
                Error::invalid(format!("a predicate names column {}, which is not there", predicate.column.0))
            };
            columns.push(found.ok_or_else(unknown)?.into());
        }
    }
    let (mut lower, mut upper) = key_bounds(schema, &spec.predicates);
    let after_last = spec.last_key.as_ref().map(|key| [key.as_slice(), &[0]].concat());
    for bound in [&spec.lower_key, &after_last].into_iter().flatten() {
        if lower.as_ref().is_none_or(|lower| bound > lower) {
            lower = Some(bound.clone());
        }
    }
    if let Some(bound) = &spec.upper_key
        && upper.as_ref().is_none_or(|upper| bound < upper)
    {
        upper = Some(bound.clone());
    }
    if let (Some(lower), Some(upper)) = (&lower, &upper)
        && lower >= upper
    {
        return Ok(None);
    }
    Ok(Some(RowSetScanSpec {
        columns: columns.into(),
        predicates: spec.predicates.clone().into(),
        lower_key: lower,
        upper_key: upper,
        snapshot,
        diff_from: spec.diff_from,
        want_keys: spec.ordered,
        block_rows,
    }))
}

fn check(spec: &ScanSpec) -> Result<()> {
    let virtual_columns = spec.projection.iter().filter(|column| column.id.is_none()).count();
    if virtual_columns > 1 || (virtual_columns == 1 && spec.diff_from.is_none()) {
        return Err(Error::invalid("a virtual IS_DELETED column belongs into diff scans, once"));
    }
    let Some(from) = spec.diff_from else { return Ok(()) };
    match spec.snapshot {
        SnapshotAt::At(before) if spec.ordered && from <= before => Ok(()),
        _ => Err(Error::invalid("a diff scan is ordered and reads from one timestamp to a later one")),
    }
}

/// The narrowest range of keys that the predicates on the first key columns leave.
fn key_bounds(schema: &Schema, predicates: &[Predicate]) -> Bounds<Vec<u8>> {
    let mut prefix = Vec::new();
    for (index, column) in schema.key_columns().iter().enumerate() {
        let last = index + 1 == schema.num_key_columns();
        let extended = |cell: &[u8]| {
            let mut key = prefix.clone();
            encode_cell(column.ty.physical(), cell, last, &mut key);
            key
        };
        let mine = || predicates.iter().filter(|p| p.column == column.id);
        let equal = mine().find_map(|p| match &p.kind {
            PredicateKind::Equal(cell) => Some(extended(cell)),
            _ => None,
        });
        if let Some(equal) = equal {
            prefix = equal;
            if last {
                let above = [prefix.as_slice(), &[0]].concat();
                return (Some(prefix), Some(above));
            }
            continue;
        }
        let ranges = || mine().filter_map(|p| range_of(&p.kind));
        let lower = ranges().filter_map(|(lower, _)| lower).map(&extended).max();
        let upper = ranges().filter_map(|(_, upper)| upper).map(&extended).min();
        let whole = prefix_bounds(&prefix);
        return (lower.or(whole.0), upper.or(whole.1));
    }
    prefix_bounds(&prefix)
}

/// Lower inclusive, upper exclusive; `None` is unbounded.
type Bounds<T> = (Option<T>, Option<T>);

/// Bounds of the cells a predicate lets pass.
fn range_of(kind: &PredicateKind) -> Option<Bounds<&[u8]>> {
    match kind {
        PredicateKind::Range { lower, upper } => Some((lower.as_deref(), upper.as_deref())),
        PredicateKind::InList(cells) => Some((cells.first().map(Vec::as_slice), None)),
        _ => None,
    }
}

fn prefix_bounds(prefix: &[u8]) -> Bounds<Vec<u8>> {
    if prefix.is_empty() {
        return (None, None);
    }
    (Some(prefix.to_vec()), prefix_successor(prefix))
}

/// Row sets' scans by key.
struct Merge {
    heads: Vec<Head>,
}

struct Head {
    scan: Box<dyn RowSetScan>,
    /// What has been read and not yet handed on: rows from `at`. `None` before the first and after the last.
    current: Option<ScannedBlock>,
    at: usize,
    done: bool,
}

impl Head {
    fn new(scan: Box<dyn RowSetScan>) -> Head {
        Head { scan, current: None, at: 0, done: false }
    }

    /// Makes the next row there, if there is one.
    fn fill(&mut self) -> Result<()> {
        let used = self.current.as_ref().is_none_or(|block| self.at == block.block.rows);
        if used && !self.done {
            self.current = self.scan.next()?;
            self.at = 0;
            self.done = self.current.is_none();
        }
        Ok(())
    }

    fn key(&self) -> &[u8] {
        &self.current.as_ref().expect("finished heads are dropped").keys[self.at]
    }
}

/// A block made of several short runs has about this many rows.
const GATHER_ROWS: usize = 512;
/// A run of at least this many rows becomes a block of its own.
const LONG_RUN: usize = 128;

impl Merge {
    /// The next rows: one long run of one row set, or short runs of several put together.
    fn next(&mut self) -> Result<Option<ScannedBlock>> {
        let mut gathered: Option<ScannedBlock> = None;
        while let Some((first, end)) = self.next_run()? {
            let head = &mut self.heads[first];
            let current = head.current.as_ref().expect("it was just filled");
            let (start, rows) = (head.at, current.block.rows);
            let long = end - start >= LONG_RUN || end - start == rows;
            match &mut gathered {
                Some(_) if long => break,
                Some(out) => out.append(current, start, end),
                None if start == 0 && end == rows => {
                    head.at = 0;
                    return Ok(head.current.take());
                }
                None => gathered = Some(current.slice(start, end)),
            }
            head.at = end;
            if long || gathered.as_ref().is_some_and(|out| out.block.rows >= GATHER_ROWS) {
                break;
            }
        }
        Ok(gathered)
    }

    /// Which head comes next, and up to which of its rows nothing else comes between.
    fn next_run(&mut self) -> Result<Option<(usize, usize)>> {
        for head in &mut self.heads {
            head.fill()?;
        }
        self.heads.retain(|head| !head.done);
        let Some(first) = (0..self.heads.len()).min_by_key(|i| self.heads[*i].key()) else {
            return Ok(None);
        };
        let others = self.heads.iter().enumerate().filter(|(i, _)| *i != first);
        let bound = others.map(|(_, head)| head.key()).min();
        let head = &self.heads[first];
        let current = head.current.as_ref().expect("it was just filled");
        let end = match bound {
            Some(bound) => head.at + current.keys[head.at..].partition_point(|key| key.as_slice() < bound),
            None => current.block.rows,
        };
        Ok(Some((first, end)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ColumnId;
    use crate::schema::{ColumnSchema, DataType};

    /// `a INT8, s STRING, b INT8` are the key.
    fn schema() -> Schema {
        let columns = [(0, "a", DataType::Int8), (1, "s", DataType::String), (2, "b", DataType::Int8)];
        let columns = columns.map(|(id, name, ty)| ColumnSchema::new(id, name, ty)).to_vec();
        Schema::new(columns, 3).expect("it is a good schema")
    }

    fn equal(column: u32, cell: &[u8]) -> Predicate {
        Predicate::new(ColumnId(column), PredicateKind::Equal(cell.to_vec()))
    }

    fn range(column: u32, lower: Option<&[u8]>, upper: Option<&[u8]>) -> Predicate {
        let bound = |cell: Option<&[u8]>| cell.map(<[u8]>::to_vec);
        let kind = PredicateKind::Range { lower: bound(lower), upper: bound(upper) };
        Predicate::new(ColumnId(column), kind)
    }

    fn bounds(predicates: &[Predicate]) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
        key_bounds(&schema(), predicates)
    }

    fn some(lower: &[u8], upper: &[u8]) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
        (Some(lower.to_vec()), Some(upper.to_vec()))
    }

    #[test]
    fn not_many_more_rows_are_read_at_a_time_than_are_wanted() {
        let all = ScanSpec::latest(Vec::new());
        let few = ScanSpec { limit: Some(50), ..all.clone() };
        let filtered = ScanSpec { predicates: vec![equal(0, &[5])], ..few.clone() };
        let small = ScanSpec { block_rows_max: Some(4), ..few.clone() };
        let none = ScanSpec { limit: Some(0), ..all.clone() };
        let rows = [&all, &few, &filtered, &small, &none].map(|spec| spec.block_rows(1024));
        assert_eq!(rows, [1024, 50, FILTERED_ROWS_MIN, 4, ROWS_MIN]);
        assert_eq!(filtered.block_rows(100), 100);
    }

    fn reads_few(spec: &ScanSpec) -> bool {
        let snapshot = Snapshot { before: Timestamp(9) };
        let within = row_set_spec(spec, &schema(), snapshot, 1).expect("it is a good spec");
        spec.reads_few(&within.expect("rows can match"))
    }

    #[test]
    fn few_rows_are_read_for_one_key_and_for_the_first_ones_of_a_range() {
        let all = ScanSpec::latest(Vec::new());
        let key =
            ScanSpec { predicates: vec![equal(0, &[5]), equal(1, b"x"), equal(2, &[1])], ..all.clone() };
        let prefix = ScanSpec { predicates: vec![equal(0, &[5])], ..all.clone() };
        let first = ScanSpec { lower_key: Some(vec![0x85]), limit: Some(100), ..all.clone() };
        let searched = ScanSpec { limit: Some(1), ..prefix.clone() };
        let many = ScanSpec { limit: Some(100_000), ..all.clone() };
        assert_eq!([&key, &first].map(reads_few), [true, true]);
        assert_eq!([&all, &prefix, &searched, &many].map(reads_few), [false; 4]);
    }

    #[test]
    fn predicates_on_the_first_key_columns_narrow_the_keys() {
        assert_eq!(bounds(&[]), (None, None));
        assert_eq!(bounds(&[equal(1, b"x")]), (None, None), "not the first column");
        assert_eq!(bounds(&[equal(0, &[5])]), some(&[0x85], &[0x86]));
        assert_eq!(bounds(&[equal(0, &[127])]), (Some(vec![0xff]), None), "nothing is above");
        let a_s = [equal(0, &[5]), equal(1, b"x")];
        assert_eq!(bounds(&a_s), some(b"\x85x\0\0", b"\x85x\0\x01"));
        let all = [equal(0, &[5]), equal(1, b""), equal(2, &[1])];
        assert_eq!(bounds(&all), some(b"\x85\0\0\x81", b"\x85\0\0\x81\0"));
    }

    #[test]
    fn ranges_narrow_below_what_is_equal() {
        assert_eq!(bounds(&[range(0, Some(&[1]), None)]), (Some(vec![0x81]), None));
        let two = [range(0, Some(&[1]), Some(&[9])), range(0, Some(&[3]), None)];
        assert_eq!(bounds(&two), some(&[0x83], &[0x89]));
        let half = [equal(0, &[5]), range(1, None, Some(b"m"))];
        assert_eq!(bounds(&half), some(b"\x85", b"\x85m\0\0"));
        let list = Predicate::new(ColumnId(0), PredicateKind::InList(vec![vec![2], vec![7]]));
        assert_eq!(bounds(&[list]), (Some(vec![0x82]), None));
    }
}
