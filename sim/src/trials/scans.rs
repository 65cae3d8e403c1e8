//! Drawn scans of the trial's tablet, compared with the model's rows.

use std::collections::BTreeMap;

use engine::error::Result;
use engine::schema::partition::PartitionSchema;
use engine::schema::partition_range::PartitionRange;
use engine::schema::predicate::Predicate;
use engine::schema::row_block::{ProjectedColumn, RowBlock};
use engine::schema::{DataType, Schema};
use engine::tablet::Tablet;
use engine::tablet::scan::{ScanSpec, SnapshotChoice};
use engine::time::Timestamp;
use nyala_client::predicate::{Comparison, SimplifiedPredicate, compare};
use nyala_common::wire::predicates;
use sim_plan::RandomStream;
use sim_plan::tables::{ColumnSpec, ModelTable, Value};

use super::aggregates::Totals;
use super::rows::{TrialRows, key_of};
use super::shape;
use crate::history::HybridStamp;
use crate::model::{Incarnation, ModelRow, draws};
use crate::model_oracle::ReadCall;
use crate::model_oracle::reads::{self, Meaning};
use crate::wire::scan::{ScanRow, ScanTime};
use crate::wire::{keys, schema};
use crate::workload::comparison;

/// The tablet's table as the model and as the engine have it.
#[derive(Clone)]
pub(super) struct TrialTable {
    pub model: Incarnation,
    pub shape: ModelTable,
    pub schema: Schema,
    pub partition: PartitionSchema,
}

/// Draws a scan of a span of timestamps: its snapshot is one of them.
pub(super) fn draw(
    random: &mut RandomStream,
    table: &ModelTable,
    rows: &TrialRows,
    span: (HybridStamp, HybridStamp),
) -> ReadCall {
    let at = if random.percent(30) { span.1 } else { random.between(span.0, span.1) };
    let known = rows.live(if random.percent(50) { at } else { span.1 });
    let count = random.pick(&[0, 0, 1, 1, 2, 3]);
    let conditions = draws::conditions(random, table, count, &known);
    let since = random.percent(35).then(|| random.between(span.0, at));
    let ordered = since.is_some() || random.percent(40);
    let (mut lower, mut upper) = (None, None);
    if random.percent(25) {
        let bound = |random: &mut RandomStream| {
            let known = rows.key_cells();
            let cells = match random.percent(70) && !known.is_empty() {
                true => known[random.below(known.len() as u64) as usize].clone(),
                false => draws::key_bounds(random, table).0,
            };
            Some(key_of(table, &cells)).filter(|key| !key.is_empty())
        };
        (lower, upper) = (bound(random), bound(random));
        if random.percent(30) {
            lower = None;
        }
    }
    ReadCall {
        columns: draws::projection(random, table),
        conditions,
        lower,
        upper,
        time: ScanTime::Named(at),
        since,
        ordered,
        limit: (ordered && random.percent(15)).then(|| random.between(1, 6) as u32),
        partial: false,
    }
}

/// Returns a scan of all columns of all rows at a timestamp.
pub(super) fn whole(table: &ModelTable, at: HybridStamp, ordered: bool) -> ReadCall {
    ReadCall {
        columns: table.columns.iter().map(|column| column.number).collect(),
        conditions: Vec::new(),
        lower: None,
        upper: None,
        time: ScanTime::Named(at),
        since: None,
        ordered,
        limit: None,
        partial: false,
    }
}

/// Returns the difference of the tablet's count of live rows from the model's.
pub(super) fn wrong_count(tablet: &Tablet, rows: &TrialRows) -> Option<String> {
    let (live, counted) = (rows.live(HybridStamp::MAX).len() as u64, tablet.stats().live_rows);
    (live != counted).then(|| format!("{counted} live rows are counted instead of {live}"))
}

/// Returns the timestamp of a scan of the trial.
fn stamp(call: &ReadCall) -> HybridStamp {
    match call.time {
        ScanTime::Named(at) => at,
        ScanTime::Latest | ScanTime::Chosen | ScanTime::YourWrites => HybridStamp::MAX,
    }
}

impl TrialTable {
    /// Returns a table as the model and as the engine have it.
    pub(super) fn of(shape: ModelTable) -> Result<TrialTable> {
        let schema = shape::schema_of(&shape)?;
        let partition = shape::partition_of(&shape, &schema)?;
        let model = Incarnation::new(shape.clone(), String::new(), String::new(), 0, 0);
        Ok(TrialTable { model, shape, schema, partition })
    }

    /// Compares a tablet with the model: by a scan of all its rows at the newest timestamp of a span, by
    /// drawn scans, and by its count of live rows.
    pub(super) fn check_all(
        &self,
        random: &mut RandomStream,
        tablet: &Tablet,
        rows: &TrialRows,
        (span, scans): ((HybridStamp, HybridStamp), u64),
    ) -> Result<Option<String>> {
        let mut calls = vec![whole(&self.shape, span.1, random.percent(50))];
        calls.extend((0..scans).map(|_| draw(random, &self.shape, rows, span)));
        for call in &calls {
            if let Some(found) = self.check(random, tablet, rows, call)? {
                return Ok(Some(found));
            }
        }
        Ok(wrong_count(tablet, rows))
    }

    /// Scans the tablet and returns the first difference from the model's rows.
    pub(super) fn check(
        &self,
        random: &mut RandomStream,
        tablet: &Tablet,
        rows: &TrialRows,
        call: &ReadCall,
    ) -> Result<Option<String>> {
        let Some(spec) = self.spec(random, call)? else { return Ok(self.difference(rows, call, &[])) };
        let (found, wrong_totals) = self.read(random, tablet, call, &spec)?;
        let pruned = Some(&spec.predicates).filter(|_| call.since.is_none());
        let differs = self.difference(rows, call, &found).or_else(|| self.pruned_row(rows, call, pruned?));
        Ok(differs.or_else(|| Some(format!("{call}: {}", wrong_totals?))))
    }

    /// Returns the conditions as predicates, some as a client builds them; `None` if no value fulfils one of them.
    fn predicates(&self, random: &mut RandomStream, call: &ReadCall) -> Result<Option<Vec<Predicate>>> {
        let mut all = Vec::new();
        for (number, condition) in &call.conditions {
            let Some(column) = self.shape.column(*number) else { continue };
            match comparison(condition).filter(|_| random.percent(70)) {
                Some((comparison, value)) => match self.compare(column, comparison, value) {
                    SimplifiedPredicate::Predicate(predicate) => all.push(predicate),
                    SimplifiedPredicate::Nothing => return Ok(None),
                },
                None => all.push(predicates::from_pb(&schema::predicate(column, condition), &self.schema)?),
            }
        }
        Ok(Some(all))
    }

    fn compare(&self, column: &ColumnSpec, comparison: Comparison, value: &Value) -> SimplifiedPredicate {
        let own = self.schema.columns().iter().find(|own| own.name == column.name);
        match own.zip(column.kind.cell(value)) {
            Some((own, cell)) => compare(own, comparison, cell),
            None => SimplifiedPredicate::Nothing,
        }
    }

    /// Returns a scan as the engine has it; `None` if no value fulfils one of its conditions.
    pub(super) fn spec(&self, random: &mut RandomStream, call: &ReadCall) -> Result<Option<ScanSpec>> {
        let Some(predicates) = self.predicates(random, call)? else { return Ok(None) };
        let own = |column: &ColumnSpec| self.schema.columns().iter().find(|own| own.name == column.name);
        let columns = self.columns(call).into_iter().filter_map(own);
        let mut projection: Vec<ProjectedColumn> = columns.map(ProjectedColumn::from).collect();
        projection.extend(call.since.map(|_| ProjectedColumn {
            id: None,
            name: "is gone".to_string(),
            ty: DataType::IsDeleted,
            nullable: false,
            read_default: None,
        }));
        Ok(Some(ScanSpec {
            predicates,
            lower_key: call.lower.clone(),
            upper_key: call.upper.clone(),
            snapshot: SnapshotChoice::At(Timestamp(stamp(call))),
            diff_from: call.since.map(Timestamp),
            ordered: call.ordered,
            limit: call.limit.map(u64::from),
            block_rows_max: random.pick(&[None, Some(1), Some(3)]),
            ..ScanSpec::latest(projection)
        }))
    }

    /// Returns the columns of a scan, which its rows have first.
    pub(super) fn columns(&self, call: &ReadCall) -> Vec<&ColumnSpec> {
        call.columns.iter().filter_map(|number| self.shape.column(*number)).collect()
    }

    /// Reads the rows of a scan. Also returns what is wrong with an aggregation of them.
    fn read(
        &self,
        random: &mut RandomStream,
        tablet: &Tablet,
        call: &ReadCall,
        spec: &ScanSpec,
    ) -> Result<(Vec<ScanRow>, Option<String>)> {
        let columns = self.columns(call);
        let mut totals = Totals::draw(stamp(call), &columns, &spec.projection);
        let (mut scan, mut rows, by_block) = (tablet.scan(spec)?, Vec::new(), totals.by_block);
        let mut take = |block: &RowBlock| {
            totals.add(block);
            rows_of(block, &columns, &mut rows);
        };
        if random.percent(50) {
            let mut block = RowBlock::new(&spec.projection);
            while scan.append_block(&mut block)? {
                if by_block {
                    take(&block);
                    block.clear();
                }
            }
            take(&block);
        } else {
            while let Some(block) = scan.next_block()? {
                take(&block);
            }
        }
        // Servers refuse aggregations of diff scans.
        let wrong_totals = totals.difference(&rows).filter(|_| call.since.is_none());
        Ok((rows, wrong_totals))
    }

    /// Returns the first difference of a scan's rows from those of the model.
    pub(super) fn difference(&self, rows: &TrialRows, call: &ReadCall, found: &[ScanRow]) -> Option<String> {
        self.wrong_rows(rows, call, found).map(|what| format!("{call}: {what}"))
    }

    fn wrong_rows(&self, rows: &TrialRows, call: &ReadCall, found: &[ScanRow]) -> Option<String> {
        let meaning = self.meaning();
        let key = |row: &ScanRow| {
            key_of(&self.shape, &call.columns.iter().copied().zip(row.values.iter().cloned()).collect())
        };
        let keys: Vec<Vec<u8>> = found.iter().map(key).collect();
        if call.ordered && !keys.is_sorted_by(|one, next| one < next) {
            return Some("keys out of order".to_string());
        }
        let seen: BTreeMap<&Vec<u8>, &ScanRow> = keys.iter().zip(found).collect();
        if seen.len() != found.len() {
            return Some(format!("{} rows of {} keys", found.len(), seen.len()));
        }
        let is_full = call.limit.is_some_and(|limit| found.len() >= limit as usize);
        let last = keys.last().filter(|_| is_full);
        let known = rows.keys().filter(|key| is_within(call, key));
        let all = known.chain(keys.iter());
        let wrong = all.into_iter().find(|key| {
            let complete = last.is_none_or(|last| *key <= last);
            !self.fits(rows, call, &meaning, key, seen.get(key).copied(), complete)
        })?;
        let at = rows.at(wrong, stamp(call));
        let seen = seen.get(wrong);
        Some(format!("key {wrong:02x?} is {seen:?}, the model has {at:?}"))
    }

    fn fits(
        &self,
        rows: &TrialRows,
        call: &ReadCall,
        meaning: &Meaning,
        key: &[u8],
        seen: Option<&ScanRow>,
        complete: bool,
    ) -> bool {
        let after = rows.at(key, stamp(call));
        match call.since {
            _ if !is_within(call, key) => false,
            None => reads::fits(&self.model, call, meaning, &after, seen, complete),
            // Rows behind the limit are not looked at.
            Some(_) if seen.is_none() && !complete => true,
            Some(since) => {
                let touched = rows.is_touched(key, since, stamp(call));
                let change = (&rows.at(key, since), &after, touched);
                let last = rows.last(key, stamp(call));
                // A deleted row has its last values, also if it was inserted again since.
                let is_last = |seen: &ScanRow| {
                    last.as_ref().is_some_and(|row| reads::has_values(&self.model, call, meaning, row, seen))
                };
                let gone = seen.filter(|seen| seen.deleted && after.is_none());
                reads::fits_diff(&self.model, call, meaning, change, seen) && gone.is_none_or(is_last)
            }
        }
    }

    /// Returns a row that the scan must return and whose partition key is in none of the scan's partitions.
    fn pruned_row(&self, rows: &TrialRows, call: &ReadCall, predicates: &[Predicate]) -> Option<String> {
        let bound = |bound: &Option<Vec<u8>>| bound.clone().unwrap_or_default();
        let bounds = PartitionRange { lower: bound(&call.lower), upper: bound(&call.upper) };
        let parts = self.partition.prune(&self.schema, predicates, &bounds);
        let holds = |part: &PartitionRange, key: &[u8]| {
            part.lower.as_slice() <= key && (part.upper.is_empty() || key < part.upper.as_slice())
        };
        let meaning = self.meaning();
        let is_pruned = |row: &ModelRow| {
            let cells = row.as_ref()?;
            let cell = |number: u8| cells.get(&number).cloned().unwrap_or(Value::Null);
            let key = keys::partition_key(&self.shape, &cell)?;
            let is_wanted = !reads::fits(&self.model, call, &meaning, row, None, true);
            (is_wanted && !parts.iter().any(|part| holds(part, &key))).then_some(key)
        };
        let within = rows.keys().filter(|key| is_within(call, key));
        let pruned = within.map(|key| rows.at(key, stamp(call))).find_map(|row| is_pruned(&row))?;
        Some(format!("{call}: the partition of key {pruned:02x?} is pruned"))
    }

    fn meaning(&self) -> Meaning {
        self.shape.columns.iter().map(|column| (column.number, column.number)).collect()
    }
}

fn is_within(call: &ReadCall, key: &[u8]) -> bool {
    call.lower.as_ref().is_none_or(|lower| lower.as_slice() <= key)
        && call.upper.as_ref().is_none_or(|upper| key < upper.as_slice())
}

/// Appends the rows of a block. The column behind those of a diff scan tells which rows are gone.
pub(super) fn rows_of(block: &RowBlock, columns: &[&ColumnSpec], rows: &mut Vec<ScanRow>) {
    for at in 0..block.rows {
        let value = |(number, column): (usize, &&ColumnSpec)| {
            let cell = block.columns[number].cell(at);
            // A cell of another width than its type has is no value of the model.
            cell.map_or(Some(Value::Null), |cell| column.kind.value(cell)).unwrap_or(Value::Null)
        };
        let values: Vec<Value> = columns.iter().enumerate().map(value).collect();
        let deleted = block.columns.get(columns.len()).is_some_and(|gone| gone.raw(at) == [1]);
        rows.push(ScanRow { values, deleted });
    }
}
