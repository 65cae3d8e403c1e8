//! Builder of scans, and their streams of record batches and of structs.

use arrow_array::RecordBatch;
use engine::schema::ColumnSchema;
use engine::schema::predicate::{Predicate, PredicateKind};
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};

use super::super::aggregation::{AggregationSpec, ColumnAggregate};
use super::super::error::{ClientError, ClientResult, SchemaMismatch};
use super::super::predicate::{Comparison, SimplifiedPredicate, compare};
use super::super::{ReadMode, ScanSpec, Scanner, Table};
use super::{FromRow, ToCell, column_index, rows_of_batch};

/// Stream of the record batches of a scan. Dropping it closes the scanner on the server.
pub type BatchStream = BoxStream<'static, ClientResult<RecordBatch>>;

/// Stream of the rows of a scan. Dropping it closes the scanner on the server.
pub type RowStream<T> = BoxStream<'static, ClientResult<T>>;

/// Builder of a scan. A fault in a predicate is returned when the scan is opened.
#[must_use = "open it, or read its batches or rows"]
pub struct ScanBuilder {
    table: Table,
    spec: ScanSpec,
    /// The first fault.
    fault: ClientResult<()>,
}

impl Table {
    /// Builds a scan of all columns and rows at the latest state of each tablet; the methods of the builder narrow it.
    pub fn select(&self) -> ScanBuilder {
        ScanBuilder { table: self.clone(), spec: ScanSpec::default(), fault: Ok(()) }
    }
}

impl ScanBuilder {
    /// Reads these columns only. An empty list returns batches with a row count only.
    pub fn columns(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> ScanBuilder {
        self.spec.columns = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Returns rows whose column compares so with `value`.
    pub fn filter(self, column: &str, comparison: Comparison, value: impl ToCell) -> ScanBuilder {
        self.with_column(column, |builder, column| {
            match compare(column, comparison, cell(column, &value)?) {
                SimplifiedPredicate::Predicate(predicate) => builder.spec.predicates.push(predicate),
                SimplifiedPredicate::Nothing => builder.spec.limit = Some(0),
            }
            Ok(())
        })
    }

    /// Returns rows whose column has one of these values; none at all for no values.
    pub fn filter_in(self, column: &str, values: impl IntoIterator<Item = impl ToCell>) -> ScanBuilder {
        self.with_column(column, |builder, column| {
            let cells = values.into_iter().map(|value| cell(column, &value));
            let cells = cells.collect::<Result<Vec<_>, SchemaMismatch>>()?;
            if cells.is_empty() {
                builder.spec.limit = Some(0);
            }
            let kind = PredicateKind::in_list(column.ty, cells);
            builder.spec.predicates.push(Predicate::new(column.id, kind));
            Ok(())
        })
    }

    /// Returns rows whose column is NULL.
    pub fn filter_null(self, column: &str) -> ScanBuilder {
        self.with_kind(column, PredicateKind::IsNull)
    }

    /// Returns rows whose column is not NULL.
    pub fn filter_not_null(self, column: &str) -> ScanBuilder {
        self.with_kind(column, PredicateKind::IsNotNull)
    }

    /// Returns aggregates of groups of rows instead of rows; without group columns, of all rows. The servers compute
    /// partial results: a group may be in several batches, and the caller merges them. See
    /// [`aggregation`](crate::aggregation).
    pub fn aggregate(
        mut self,
        group_by: impl IntoIterator<Item = impl Into<String>>,
        aggregates: impl IntoIterator<Item = ColumnAggregate>,
    ) -> ScanBuilder {
        let group_by = group_by.into_iter().map(Into::into).collect();
        let aggregates = aggregates.into_iter().collect();
        self.spec.aggregation = Some(AggregationSpec { group_by, aggregates });
        self
    }

    /// Reads all tablets at one snapshot: the state before this timestamp, or the current one.
    pub fn at_snapshot(mut self, timestamp: Option<u64>) -> ScanBuilder {
        self.spec.read_mode = ReadMode::AtSnapshot(timestamp);
        self
    }

    /// Reads a recent state that includes all writes of this client.
    pub fn your_writes(mut self) -> ScanBuilder {
        self.spec.read_mode = ReadMode::YourWrites;
        self
    }

    /// Reads in key order within each tablet, so that the scan can resume at another replica after a failure. Without
    /// [`ScanBuilder::at_snapshot`] it reads all tablets at the current snapshot, which includes all writes of this
    /// client.
    pub fn fault_tolerant(mut self) -> ScanBuilder {
        self.spec.fault_tolerant = true;
        self
    }

    /// Returns at most this many rows.
    pub fn limit(mut self, rows: u64) -> ScanBuilder {
        let limit = self.spec.limit.map_or(rows, |limit| limit.min(rows));
        self.spec.limit = Some(limit);
        self
    }

    /// Sets the target size of a batch in bytes.
    pub fn batch_bytes(mut self, bytes: u32) -> ScanBuilder {
        self.spec.batch_bytes = bytes;
        self
    }

    /// Reads from followers too.
    pub fn any_replica(mut self) -> ScanBuilder {
        self.spec.any_replica = true;
        self
    }

    /// Opens the scan.
    pub fn open(self) -> ClientResult<Scanner> {
        self.fault?;
        Ok(self.table.scan(self.spec)?)
    }

    /// Opens the scan as a stream of record batches, none of which is empty.
    pub fn batches(self) -> ClientResult<BatchStream> {
        let batches = stream::try_unfold(self.open()?, |mut scanner| async move {
            Ok(scanner.next_batch().await?.map(|batch| (batch, scanner)))
        });
        Ok(batches.boxed())
    }

    /// Opens the scan as a stream of structs; reads their columns only.
    pub fn rows<T: FromRow + Send + 'static>(self) -> ClientResult<RowStream<T>> {
        let name = self.table.name().to_string();
        for column in T::COLUMNS {
            column_index(&self.table, column)?;
        }
        let batches = self.columns(T::COLUMNS.iter().copied()).batches()?;
        let rows = batches.and_then(move |batch| {
            let rows = rows_of_batch::<T>(&batch).map_err(|error| error.in_table(&name, None));
            std::future::ready(rows.map(|rows| stream::iter(rows.into_iter().map(Ok::<T, ClientError>))))
        });
        Ok(rows.try_flatten().boxed())
    }

    /// Reads all rows as structs.
    pub async fn collect<T: FromRow + Send + 'static>(self) -> ClientResult<Vec<T>> {
        self.rows()?.try_collect().await
    }

    /// Counts the rows.
    pub async fn count(self) -> ClientResult<u64> {
        let count = |sum, batch: RecordBatch| std::future::ready(Ok(sum + batch.num_rows() as u64));
        self.columns(Vec::<String>::new()).batches()?.try_fold(0, count).await
    }

    fn with_kind(self, column: &str, kind: PredicateKind) -> ScanBuilder {
        self.with_column(column, |builder, column| {
            builder.spec.predicates.push(Predicate::new(column.id, kind));
            Ok(())
        })
    }

    fn with_column(
        mut self,
        name: &str,
        add: impl FnOnce(&mut ScanBuilder, &ColumnSchema) -> Result<(), SchemaMismatch>,
    ) -> ScanBuilder {
        let table = self.table.clone();
        let added = column_index(&table, name).and_then(|index| {
            let added = add(&mut self, &table.schema().columns()[index]);
            added.map_err(|mismatch| mismatch.in_table(table.name(), None).into())
        });
        self.fault = std::mem::replace(&mut self.fault, Ok(())).and(added);
        self
    }
}

/// Returns the cell of a value to compare with.
fn cell(column: &ColumnSchema, value: &impl ToCell) -> Result<Vec<u8>, SchemaMismatch> {
    let mut bytes = Vec::new();
    if !value.to_cell(column, &mut bytes)? {
        let reason = "a predicate cannot compare with NULL; use filter_null or filter_not_null";
        return Err(SchemaMismatch::of_column(&column.name, reason));
    }
    Ok(bytes)
}
