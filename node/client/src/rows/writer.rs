//! Writer of structs and record batches into one table.

use arrow_array::{ArrayRef, RecordBatch};
use engine::error::{Error, ErrorKind};
use engine::schema::ColumnSchema;
use engine::schema::row_block::ColumnBlock;
use engine::schema::row_ops::{ClientCell, RowOpKind};

use super::super::error::{ClientError, ClientResult, RefusedRow, RefusedRows, SchemaMismatch};
use super::super::{FlushMode, RowFailure, Session, SessionConfig, Table, arrow};
use super::{CellState, RowWriter, ToRow, client_cells, column_index};

/// Writer of rows into a table. Rows are buffered and sent in the background, in batches per tablet.
///
/// Rows are numbered from 0 in the order in which they are given; a [`RefusedRow`] has that number. Call
/// [`TableWriter::finish`] at the end: rows still buffered when the writer is dropped are lost. Rows on their way are
/// still written then; [`TableWriter::discard`] waits for them.
#[must_use = "finish it, or its last rows are lost"]
pub struct TableWriter {
    table: Table,
    session: Session,
    /// Number of the next row.
    next: u64,
    /// Columns of the last struct, and their positions in the table.
    bound: (&'static [&'static str], Vec<usize>),
    bytes: Vec<u8>,
    cells: Vec<CellState>,
}

/// Result of a [`TableWriter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteSummary {
    /// Number of rows written.
    pub written: u64,
    /// Number of rows that an IGNORE operation skipped.
    pub ignored: u64,
}

impl Table {
    /// Returns a writer with the default buffer and timeout.
    pub fn writer(&self) -> TableWriter {
        self.writer_with(SessionConfig::new(FlushMode::AutoBackground))
    }

    /// Returns a writer with these buffer sizes and times. Its mode is always [`FlushMode::AutoBackground`].
    pub fn writer_with(&self, config: SessionConfig) -> TableWriter {
        let session = self.client().session(SessionConfig { mode: FlushMode::AutoBackground, ..config });
        let cells = vec![CellState::Unset; self.schema().columns().len()];
        TableWriter {
            table: self.clone(),
            session,
            next: 0,
            bound: (&[], Vec::new()),
            bytes: Vec::new(),
            cells,
        }
    }
}

impl TableWriter {
    /// Inserts a row; an existing key refuses it.
    pub async fn insert<T: ToRow>(&mut self, row: &T) -> ClientResult<()> {
        self.apply(RowOpKind::Insert, row).await
    }

    /// Inserts a row, or updates the one with its key.
    pub async fn upsert<T: ToRow>(&mut self, row: &T) -> ClientResult<()> {
        self.apply(RowOpKind::Upsert, row).await
    }

    /// Updates the columns of `row` in the row with its key; a missing key refuses it.
    pub async fn update<T: ToRow>(&mut self, row: &T) -> ClientResult<()> {
        self.apply(RowOpKind::Update, row).await
    }

    /// Deletes the row with the key of `row`, which has the key columns only; a missing key refuses it.
    pub async fn delete<T: ToRow>(&mut self, row: &T) -> ClientResult<()> {
        self.apply(RowOpKind::Delete, row).await
    }

    /// Buffers a row for an operation of any kind. An error means that the row was not buffered.
    pub async fn apply<T: ToRow>(&mut self, kind: RowOpKind, row: &T) -> ClientResult<()> {
        let number = self.next;
        let encoded = self.encode(row);
        encoded.map_err(|error| error.in_table(self.table.name(), Some(number)))?;
        let cells = client_cells(&self.cells, &self.bytes);
        self.session.apply(&self.table, kind, &cells, number).await.map_err(|error| self.named(error))?;
        self.next += 1;
        Ok(())
    }

    /// Buffers a row of encoded cells, in the order of the table's columns. An error means that the row was not
    /// buffered.
    pub async fn apply_cells(&mut self, kind: RowOpKind, cells: &[ClientCell<'_>]) -> ClientResult<()> {
        self.session.apply(&self.table, kind, cells, self.next).await.map_err(|error| self.named(error))?;
        self.next += 1;
        Ok(())
    }

    /// Returns the number of the next row.
    pub fn next_row(&self) -> u64 {
        self.next
    }

    fn encode<T: ToRow>(&mut self, row: &T) -> ClientResult<()> {
        if !std::ptr::eq(self.bound.0, T::COLUMNS) {
            let targets = T::COLUMNS.iter().map(|name| column_index(&self.table, name));
            self.bound = (T::COLUMNS, targets.collect::<ClientResult<_>>()?);
        }
        self.bytes.clear();
        self.cells.fill(CellState::Unset);
        let schema = self.table.schema().columns();
        let (bytes, cells) = (&mut self.bytes, &mut self.cells[..]);
        row.to_row(&mut RowWriter { schema, targets: &self.bound.1, bytes, cells })
    }

    /// Buffers all rows of a record batch. Columns are found by name and cast to the table's types; columns of the
    /// table that the batch lacks are not set. A value that the cast would change, such as 2.5 for an INT64, is a
    /// [`ClientError::SchemaMismatch`], and no row of the batch was buffered. After another error some of its rows may
    /// be written; all of them are numbered.
    pub async fn write_batch(&mut self, kind: RowOpKind, batch: &RecordBatch) -> ClientResult<()> {
        self.write_arrays(kind, batch, arrow::written_block).await
    }

    /// Buffers all rows of a record batch that a table had, as [`TableWriter::write_batch`] does. A DATE outside the
    /// years 1 to 9999 is written, too: servers take any number of days, so another client may have written it.
    pub async fn restore_batch(&mut self, kind: RowOpKind, batch: &RecordBatch) -> ClientResult<()> {
        self.write_arrays(kind, batch, arrow::column_block).await
    }

    async fn write_arrays(
        &mut self,
        kind: RowOpKind,
        batch: &RecordBatch,
        to_block: fn(&ArrayRef, &ColumnSchema) -> Result<ColumnBlock, String>,
    ) -> ClientResult<()> {
        let mut columns = vec![None; self.table.schema().columns().len()];
        let schema = batch.schema();
        for (field, array) in schema.fields().iter().zip(batch.columns()) {
            let target = column_index(&self.table, field.name())?;
            let block = to_block(array, &self.table.schema().columns()[target]);
            columns[target] = Some(block.map_err(|reason| {
                SchemaMismatch::of_column(field.name(), reason).in_table(self.table.name(), None)
            })?);
        }
        let first = self.next;
        // Before the rows are buffered: rows before one that fails are sent, and no other row may have their numbers.
        self.next += batch.num_rows() as u64;
        let numbers: Vec<u64> = (first..self.next).collect();
        let applied = self.session.apply_columns(&self.table, kind, &columns, &numbers).await;
        applied.map_err(|error| self.named(error))
    }

    /// Sends all buffered rows and waits for their results. Fails with [`ClientError::RowsRefused`] if tablets refused
    /// rows since the last call.
    pub async fn flush(&mut self) -> ClientResult<()> {
        let failures = self.session.flush().await;
        if failures.is_empty() {
            return Ok(());
        }
        Err(refused(self.table.name(), failures, self.session.failures_dropped(), self.session.written()))
    }

    /// Flushes, and returns the numbers of rows.
    pub async fn finish(mut self) -> ClientResult<WriteSummary> {
        self.flush().await?;
        Ok(WriteSummary { written: self.session.written(), ignored: self.session.ignored() })
    }

    /// Drops all buffered rows, and waits for those on their way, so that no row is written after what follows. Returns
    /// the numbers of rows so far.
    pub async fn discard(self) -> WriteSummary {
        let _failures = self.session.discard().await;
        WriteSummary { written: self.session.written(), ignored: self.session.ignored() }
    }

    fn named(&self, error: Error) -> ClientError {
        error.context(format_args!("table {}", self.table.name())).into()
    }
}

/// Returns the error for failed rows. If no tablet evaluated any of them, that is the failure of the cluster.
fn refused(table: &str, mut failures: Vec<RowFailure>, dropped: u64, written: u64) -> ClientError {
    failures.sort_by_key(|failure| failure.tag);
    let count = failures.len() as u64 + dropped;
    let is_of_cluster = |failure: &RowFailure| {
        use ErrorKind::{Aborted, Io, NotAuthorized, NotLeader, NotReady, Throttled, TimedOut};
        let kinds = [Aborted, Io, NotAuthorized, NotLeader, NotReady, Throttled, TimedOut];
        kinds.contains(&failure.error.kind)
    };
    if let Some(first) = failures.first().filter(|_| failures.iter().all(is_of_cluster)) {
        let place = format!("table {table}: {count} rows from row {} on may not be written", first.tag);
        return first.error.clone().context(place).into();
    }
    let row = |failure: RowFailure| RefusedRow { index: failure.tag, column: None, error: failure.error };
    let rows = failures.into_iter().map(row).collect();
    ClientError::RowsRefused(RefusedRows { table: table.to_string(), rows, count, written })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(tag: u64, error: Error) -> RowFailure {
        RowFailure { tag, error }
    }

    #[test]
    fn refused_rows_are_told_from_a_cluster_that_failed() {
        let rows = vec![failure(4, Error::timed_out("late")), failure(2, Error::already_present("there"))];
        let ClientError::RowsRefused(refused_rows) = refused("t", rows, 1, 7) else { panic!("rows failed") };
        let numbers: Vec<u64> = refused_rows.rows.iter().map(|row| row.index).collect();
        assert_eq!((numbers, refused_rows.count, refused_rows.written), (vec![2, 4], 3, 7));
        let all = vec![failure(1, Error::timed_out("late")), failure(0, Error::timed_out("late"))];
        let error = refused("t", all, 0, 0);
        assert!(matches!(error, ClientError::Timeout(_)), "{error:?}");
        assert_eq!(error.to_string(), "table t: 2 rows from row 0 on may not be written: late");
    }
}
