//! Scans of a tablet: the scan's spec, and reading block by block.
//!
//! ```text
//!   unordered   [rowset 1] then [rowset 2] then [MemRowSet]
//!   ordered     k-way merge by key; where one rowset is alone, its blocks pass through whole
//! ```
//!
//! [`Scan::read_block`] and [`Scan::append_block`] examine a bounded number of rows ([`ReadBudget`]), perhaps without
//! finding one, so that a server can look at its clock. [`Scan::next_block`] reads until it finds rows.

use std::collections::VecDeque;
use std::sync::Arc;

use super::merge_scan::{MergeLimits, MergeScan, ScanInput};
use super::rowset::{ReadBudget, RowSetScanSpec, ScannedBlock, Snapshot};
use crate::cfile::reader::PageBytes;
use crate::error::{Error, Result};
use crate::schema::Schema;
use crate::schema::key::{encode_cell, prefix_successor};
use crate::schema::predicate::{Predicate, PredicateKind};
use crate::schema::row_block::{ColumnBlock, ColumnValues, ProjectedColumn, RowBlock};
use crate::time::Timestamp;

/// Snapshot that a scan reads at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotChoice {
    /// Everything applied when the scan starts.
    Latest,
    /// Operations with smaller timestamps. The caller has waited until they are all applied and no more of them can
    /// begin.
    At(Timestamp),
}

/// Specification of a scan of a tablet.
#[derive(Debug, Clone)]
pub struct ScanSpec {
    /// Columns of the returned blocks. At most one has no id: IS_DELETED, only in diff scans. Shared with the scan,
    /// since a copy of the names costs more than a read by key.
    pub projection: Arc<[ProjectedColumn]>,
    /// Predicates that must all hold.
    pub predicates: Vec<Predicate>,
    /// Encoded primary key, inclusive.
    pub lower_key: Option<Vec<u8>>,
    /// Encoded primary key, exclusive.
    pub upper_key: Option<Vec<u8>>,
    /// Encoded primary key after which the scan starts.
    pub last_key: Option<Vec<u8>>,
    pub snapshot: SnapshotChoice,
    /// Only rows changed by operations at or after this timestamp. Requires `ordered` and [`SnapshotChoice::At`].
    pub diff_from: Option<Timestamp>,
    /// True if rows are returned in primary key order.
    pub ordered: bool,
    /// Rows after which the scan stops.
    pub limit: Option<u64>,
    /// Most rows of a block; by default the tablet's configuration decides.
    pub block_rows_max: Option<usize>,
}

impl ScanSpec {
    /// Returns a spec that scans all rows at the latest snapshot, unordered. Callers override fields with `..`.
    pub fn latest(projection: Vec<ProjectedColumn>) -> ScanSpec {
        ScanSpec {
            projection: projection.into(),
            predicates: Vec::new(),
            lower_key: None,
            upper_key: None,
            last_key: None,
            snapshot: SnapshotChoice::Latest,
            diff_from: None,
            ordered: false,
            limit: None,
            block_rows_max: None,
        }
    }

    /// Returns the rows of a block, where an unlimited scan reads `own`. The result is close to the limit, because
    /// copying cells of rows beyond it is wasted. Predicates and deletions may drop rows, so there is a minimum.
    pub(super) fn block_rows(&self, own: usize) -> usize {
        let least = if self.predicates.is_empty() { ROWS_MIN } else { FILTERED_ROWS_MIN };
        let limit = self.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        own.min(self.block_rows_max.unwrap_or(usize::MAX)).min(limit.max(least)).max(1)
    }

    /// Returns true if the scan reads only a few rows of `within`: those of one key, or the first rows of a range.
    pub(super) fn is_point_read(&self, within: &RowSetScanSpec) -> bool {
        let first = self.predicates.is_empty() && self.diff_from.is_none();
        within.is_one_key() || (first && self.limit.is_some_and(|limit| limit <= FILTERED_ROWS_MIN as u64))
    }

    /// Returns true if predicates give every key column of `schema` a value. Such a scan returns at most one row.
    pub fn names_one_key(&self, schema: &Schema) -> bool {
        let is_given = |id| {
            let of_column = |predicate: &&Predicate| predicate.column == id;
            let mut given = self.predicates.iter().filter(of_column);
            given.any(|predicate| matches!(predicate.kind, PredicateKind::Equal(_)))
        };
        self.diff_from.is_none() && schema.key_columns().iter().all(|column| is_given(column.id))
    }

    /// Returns the oldest timestamp whose history the scan needs.
    pub(super) fn oldest(&self, snapshot: Snapshot) -> Timestamp {
        self.diff_from.unwrap_or(snapshot.before).min(snapshot.before)
    }

    /// Returns true if only the number of rows is requested. Rows on disk are then counted from rowset metadata, and
    /// only their deltas are read.
    pub fn only_counts(&self) -> bool {
        self.projection.is_empty() && self.predicates.is_empty() && !self.ordered && self.diff_from.is_none()
    }
}

/// Minimum rows of a block, for scans without and with predicates.
const ROWS_MIN: usize = 16;
const FILTERED_ROWS_MIN: usize = 128;

/// A scan in progress. It owns what it reads; writes, flushes and compactions do not affect it.
pub struct Scan {
    sources: Sources,
    projection: Arc<[ProjectedColumn]>,
    snapshot: Snapshot,
    left: u64,
    last_key: Option<Vec<u8>>,
    is_point_read: bool,
    /// True if the rowset scans return just the columns of the projection, in any order of rows, and all rows count.
    is_plain: bool,
    /// First block, or the end, if it was read before it was asked for.
    ahead: Option<Option<RowBlock>>,
    /// Pages got since [`Scan::take_page_bytes`].
    page_bytes: PageBytes,
}

enum Sources {
    Union(VecDeque<ScanInput>),
    Merge(MergeScan),
}

impl Scan {
    /// Creates a scan over the scans of rowsets with `within`, which is `None` if no row can match. `limits`: of the
    /// blocks of an ordered scan.
    pub(super) fn new(
        spec: &ScanSpec,
        snapshot: Snapshot,
        inputs: Vec<ScanInput>,
        within: Option<&RowSetScanSpec>,
        limits: MergeLimits,
    ) -> Scan {
        let sources = match spec.ordered {
            true => Sources::Merge(MergeScan::new(inputs, limits)),
            false => Sources::Union(inputs.into()),
        };
        let projection = spec.projection.clone();
        let is_projected = |id| projection.iter().any(|column| column.id == Some(id));
        let is_plain = !spec.ordered
            && spec.limit.is_none()
            && projection.iter().all(|column| column.id.is_some())
            && spec.predicates.iter().all(|predicate| is_projected(predicate.column));
        // A key is in one rowset at a time, so the other ones are not searched after its row.
        let rows_max = if within.is_some_and(RowSetScanSpec::is_one_key) { 1 } else { u64::MAX };
        Scan {
            sources,
            projection,
            snapshot,
            left: spec.limit.unwrap_or(u64::MAX).min(rows_max),
            last_key: None,
            is_point_read: within.is_none_or(|within| spec.is_point_read(within)),
            is_plain,
            ahead: None,
            page_bytes: PageBytes::default(),
        }
    }

    /// Returns true if the scan reads only a few rows: those of one key, or the first rows of a range.
    pub fn reads_few(&self) -> bool {
        self.is_point_read
    }

    /// Returns true if the scan returns no more rows; false at the end of its range until a read finds that end.
    pub fn is_finished(&self) -> bool {
        self.left == 0 && self.ahead.is_none()
    }

    /// Reads the block that [`Scan::read_block`] returns next.
    pub(super) fn read_ahead(&mut self) -> Result<()> {
        self.ahead = Some(self.read_block()?);
        Ok(())
    }

    /// Returns the next block, never empty; `None` at the end.
    pub fn next_block(&mut self) -> Result<Option<RowBlock>> {
        loop {
            match self.read_block()? {
                Some(block) if block.rows == 0 => {}
                read => return Ok(read),
            }
        }
    }

    /// Returns the next block; `None` at the end. The block is empty if none of the rows that one read may examine
    /// passed.
    pub fn read_block(&mut self) -> Result<Option<RowBlock>> {
        if let Some(block) = self.ahead.take() {
            return Ok(block);
        }
        if self.left == 0 {
            return Ok(None);
        }
        let (sources, budget) = (&mut self.sources, &mut ReadBudget::of_one_read());
        let (scanned, page_bytes) = PageBytes::count(|| match sources {
            Sources::Union(rest) => read_union(rest, budget),
            Sources::Merge(merge) => merge.read(budget),
        });
        self.count_pages(page_bytes);
        let Some(mut scanned) = scanned? else {
            self.left = 0;
            return Ok(None);
        };
        if scanned.block.rows == 0 {
            return Ok(Some(RowBlock::new(&self.projection)));
        }
        if scanned.block.rows as u64 > self.left {
            scanned = scanned.slice(0, self.left as usize);
        }
        self.left -= scanned.block.rows as u64;
        self.last_key = scanned.keys.pop();
        Ok(Some(self.output(scanned)))
    }

    /// Appends the rows of the next block to `out`, a block of the projection. Returns false at the end. As in
    /// [`Scan::read_block`], there may be none.
    ///
    /// Cells of a scan without order and limit are copied once, from their page or row to `out`.
    pub fn append_block(&mut self, out: &mut RowBlock) -> Result<bool> {
        let is_direct = self.is_plain && self.ahead.is_none() && self.left > 0;
        let Sources::Union(rest) = &mut self.sources else { return self.append_next(out) };
        if !is_direct {
            return self.append_next(out);
        }
        let before = out.rows;
        let (appended, page_bytes) =
            PageBytes::count(|| append_of_union(rest, out, &mut ReadBudget::of_one_read()));
        self.count_pages(page_bytes);
        self.left -= (out.rows - before) as u64;
        appended
    }

    fn append_next(&mut self, out: &mut RowBlock) -> Result<bool> {
        let Some(block) = self.read_block()? else { return Ok(false) };
        out.append(block);
        Ok(true)
    }

    /// Adds pages that were got for this scan.
    pub(super) fn count_pages(&mut self, page_bytes: PageBytes) {
        self.page_bytes.add(page_bytes);
    }

    /// Returns the pages got since the last call.
    pub fn take_page_bytes(&mut self) -> PageBytes {
        std::mem::take(&mut self.page_bytes)
    }

    /// Returns the encoded key of the last row returned; ordered scans only.
    pub fn last_key(&self) -> Option<&[u8]> {
        self.last_key.as_deref()
    }

    pub fn snapshot(&self) -> Snapshot {
        self.snapshot
    }

    /// Returns the columns of the blocks.
    pub fn projection(&self) -> &Arc<[ProjectedColumn]> {
        &self.projection
    }

    /// Drops the columns that only predicates needed, and inserts the virtual column.
    fn output(&self, scanned: ScannedBlock) -> RowBlock {
        let ScannedBlock { block, deleted, .. } = scanned;
        if self.is_plain {
            return block;
        }
        let mut real = block.columns.into_iter();
        let column = |projected: &ProjectedColumn| match projected.id {
            Some(_) => real.next().expect("the rowset scans return every real column"),
            None => {
                let flag = |row| u8::from(deleted.as_ref().is_some_and(|deleted| deleted.get(row)));
                let bytes = (0..block.rows).map(flag).collect();
                ColumnBlock { values: ColumnValues::Fixed { width: 1, bytes }, validity: None }
            }
        };
        RowBlock { rows: block.rows, columns: self.projection.iter().map(column).collect() }
    }
}

fn read_union(rest: &mut VecDeque<ScanInput>, budget: &mut ReadBudget) -> Result<Option<ScannedBlock>> {
    while let Some(input) = rest.front_mut() {
        match input.scan.read(budget)? {
            Some(scanned) => return Ok(Some(scanned)),
            None => rest.pop_front(),
        };
    }
    Ok(None)
}

fn append_of_union(
    rest: &mut VecDeque<ScanInput>,
    out: &mut RowBlock,
    budget: &mut ReadBudget,
) -> Result<bool> {
    while let Some(input) = rest.front_mut() {
        if input.scan.append(out, budget)? {
            return Ok(true);
        }
        rest.pop_front();
    }
    Ok(false)
}

/// Returns the spec for each rowset's scan, with these rows and bytes of a block; `None` if no row can match.
///
/// Predicates on a prefix of the key narrow the key range, so a lookup of a key by its columns is a seek.
pub(super) fn rowset_scan_spec(
    spec: &ScanSpec,
    schema: &Schema,
    snapshot: Snapshot,
    (block_rows, block_bytes): (usize, usize),
) -> Result<Option<RowSetScanSpec>> {
    check(spec)?;
    let columns = scanned_columns(spec, schema)?;
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
    let within = RowSetScanSpec {
        columns,
        predicates: Arc::default(),
        lower_key: lower,
        upper_key: upper,
        snapshot,
        diff_from: spec.diff_from,
        want_keys: spec.ordered,
        block_rows,
        block_bytes,
    };
    let is_implied = within.is_one_key() && is_key_alone(spec, schema);
    let predicates = if is_implied { Arc::default() } else { spec.predicates.clone().into() };
    Ok(Some(RowSetScanSpec { predicates, ..within }))
}

/// Returns the columns that rowsets read: those of the projection, then others that predicates need.
fn scanned_columns(spec: &ScanSpec, schema: &Schema) -> Result<Arc<[ProjectedColumn]>> {
    let in_projection = |id| spec.projection.iter().any(|column| column.id == Some(id));
    if spec.projection.iter().all(|column| column.id.is_some())
        && spec.predicates.iter().all(|predicate| in_projection(predicate.column))
    {
        return Ok(spec.projection.clone());
    }
    let mut columns: Vec<ProjectedColumn> =
        spec.projection.iter().filter(|column| column.id.is_some()).cloned().collect();
    for predicate in &spec.predicates {
        if !columns.iter().any(|column| column.id == Some(predicate.column)) {
            let found = schema.by_id(predicate.column);
            let unknown =
                || Error::invalid(format!("predicate: column {} does not exist", predicate.column.0));
            columns.push(found.ok_or_else(unknown)?.into());
        }
    }
    Ok(columns.into())
}

/// Returns true if the predicates say no more than one key: the range of that key implies them, and no row needs them
/// evaluated.
fn is_key_alone(spec: &ScanSpec, schema: &Schema) -> bool {
    spec.predicates.len() == schema.num_key_columns() && spec.names_one_key(schema)
}

fn check(spec: &ScanSpec) -> Result<()> {
    let virtual_columns = spec.projection.iter().filter(|column| column.id.is_none()).count();
    if virtual_columns > 1 || (virtual_columns == 1 && spec.diff_from.is_none()) {
        return Err(refused_virtual_column());
    }
    let Some(from) = spec.diff_from else { return Ok(()) };
    match spec.snapshot {
        SnapshotChoice::At(before) if spec.ordered && from <= before => Ok(()),
        _ => Err(Error::invalid("diff scan: needs an ordered scan from one timestamp to a later one")),
    }
}

/// Returns the error of a projection with a virtual column too many.
pub fn refused_virtual_column() -> Error {
    Error::invalid("scan: a virtual IS_DELETED column is allowed once, in a diff scan")
}

/// Returns the narrowest key range that the predicates on the first key columns allow.
fn key_bounds(schema: &Schema, predicates: &[Predicate]) -> Bounds<Vec<u8>> {
    let mut prefix = Vec::new();
    for (index, column) in schema.key_columns().iter().enumerate() {
        let last = index + 1 == schema.num_key_columns();
        let extended = |cell: &[u8]| {
            let mut key = prefix.clone();
            encode_cell(column.ty.physical(), cell, last, &mut key);
            key
        };
        let of_column = || predicates.iter().filter(|p| p.column == column.id);
        let equal = of_column().find_map(|p| match &p.kind {
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
        let ranges = || of_column().filter_map(|p| range_of(&p.kind));
        let lower = ranges().filter_map(|(lower, _)| lower).map(&extended).max();
        let upper = ranges().filter_map(|(_, upper)| upper).map(&extended).min();
        let whole = prefix_bounds(&prefix);
        return (lower.or(whole.0), upper.or(whole.1));
    }
    prefix_bounds(&prefix)
}

/// Lower inclusive, upper exclusive; `None` is unbounded.
type Bounds<T> = (Option<T>, Option<T>);

/// Returns the bounds of the cells that satisfy a predicate.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ColumnId;
    use crate::schema::{ColumnSchema, DataType};

    /// `a INT8, s STRING, b INT8` are the key.
    fn schema() -> Schema {
        let columns = [(0, "a", DataType::Int8), (1, "s", DataType::String), (2, "b", DataType::Int8)];
        let columns = columns.map(|(id, name, ty)| ColumnSchema::new(id, name, ty)).to_vec();
        Schema::new(columns, 3).expect("the schema is valid")
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
    fn blocks_are_not_much_larger_than_the_limit() {
        let all = ScanSpec::latest(Vec::new());
        let few = ScanSpec { limit: Some(50), ..all.clone() };
        let filtered = ScanSpec { predicates: vec![equal(0, &[5])], ..few.clone() };
        let small = ScanSpec { block_rows_max: Some(4), ..few.clone() };
        let none = ScanSpec { limit: Some(0), ..all.clone() };
        let rows = [&all, &few, &filtered, &small, &none].map(|spec| spec.block_rows(1024));
        assert_eq!(rows, [1024, 50, FILTERED_ROWS_MIN, 4, ROWS_MIN]);
        assert_eq!(filtered.block_rows(100), 100);
    }

    fn is_point_read(spec: &ScanSpec) -> bool {
        let snapshot = Snapshot { before: Timestamp(9) };
        let within = rowset_scan_spec(spec, &schema(), snapshot, (1, usize::MAX)).expect("the spec is valid");
        spec.is_point_read(&within.expect("rows can match"))
    }

    #[test]
    fn a_single_key_and_a_small_limit_are_point_reads() {
        let all = ScanSpec::latest(Vec::new());
        let key =
            ScanSpec { predicates: vec![equal(0, &[5]), equal(1, b"x"), equal(2, &[1])], ..all.clone() };
        let prefix = ScanSpec { predicates: vec![equal(0, &[5])], ..all.clone() };
        let first = ScanSpec { lower_key: Some(vec![0x85]), limit: Some(100), ..all.clone() };
        let searched = ScanSpec { limit: Some(1), ..prefix.clone() };
        let many = ScanSpec { limit: Some(100_000), ..all.clone() };
        assert_eq!([&key, &first].map(is_point_read), [true, true]);
        assert_eq!([&all, &prefix, &searched, &many].map(is_point_read), [false; 4]);
    }

    #[test]
    fn predicates_on_a_key_prefix_narrow_the_key_range() {
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
    fn ranges_narrow_the_key_range_after_equal_columns() {
        assert_eq!(bounds(&[range(0, Some(&[1]), None)]), (Some(vec![0x81]), None));
        let two = [range(0, Some(&[1]), Some(&[9])), range(0, Some(&[3]), None)];
        assert_eq!(bounds(&two), some(&[0x83], &[0x89]));
        let half = [equal(0, &[5]), range(1, None, Some(b"m"))];
        assert_eq!(bounds(&half), some(b"\x85", b"\x85m\0\0"));
        let list = Predicate::new(ColumnId(0), PredicateKind::InList(vec![vec![2], vec![7]]));
        assert_eq!(bounds(&[list]), (Some(vec![0x82]), None));
    }
}
