//! Restore of a table: all files are verified, then a new table is filled under another name, then renamed.
//!
//! Columns are found by id, so that renamed ones keep their values and dropped ones stay away. Rows of tablets that
//! the last backup does not know are skipped: their range was dropped.
//!
//! Invariant: a row that may replace another one has a value for each column of the last backup. Columns that were
//! added after the row's backup have their first default, or NULL.

use arrow_array::cast::AsArray;
use arrow_array::types::Int8Type;
use arrow_array::{BooleanArray, RecordBatch};
use arrow_schema::{Field, FieldRef, Schema as ArrowSchema};
use arrow_select::filter::filter_record_batch;
use engine::error::{Error, Result};
use engine::schema::row_block::{ColumnBlock, RowBlock};
use engine::schema::row_ops::RowOpKind;
use engine::schema::{ColumnSchema, Schema};

use super::kudu_backup::KeptRows;
use super::manifest::{Manifest, PartEntry, time_text};
use super::part_reader::{open_rows, unreadable};
use super::partial_name::PartialName;
pub use super::partial_name::check_new_name;
use super::plan::{plan, state_before};
use super::restore_progress::RestoreProgress;
pub use super::restore_target::RestoreTarget;
use super::restore_target::TargetTable;
use super::store::{BackupStore, StoreListing, StoredBackup};
use nyala_client::arrow::{arrow_schema, batch_from_block};
use nyala_client::rows::TableWriter;
use nyala_client::tables::AlterStep;
use nyala_client::{Client, Table};

/// Rows read at a time.
const BATCH_ROWS: usize = 4096;

/// Restore to carry out.
#[derive(Debug, Clone)]
pub struct RestoreRequest {
    pub table: String,
    /// Newest state to restore, in milliseconds; `None` for the last.
    pub until_ms: Option<u64>,
    /// Name of the new table; `None` for the old one.
    pub name: Option<String>,
    pub replicas: Option<i32>,
    pub target: RestoreTarget,
}

/// Numbers of a restore.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RestoreOutcome {
    pub name: String,
    /// State restored, in milliseconds.
    pub to_ms: u64,
    pub backups: usize,
    pub upserts: u64,
    pub deletes: u64,
    /// Rows of dropped ranges, which were left out.
    pub skipped: u64,
    /// Files that were written before the restore was resumed.
    pub resumed: u64,
}

/// Restores a table. Until it is complete a new one is called `<name>.restoring-<T>`, where a long name is shortened.
pub async fn restore(
    client: &Client,
    store: &BackupStore,
    listing: &StoreListing,
    request: &RestoreRequest,
) -> Result<RestoreOutcome> {
    let chain = plan(listing, &request.table, request.until_ms)?;
    let last = &chain.last().expect("a chain has a full backup").manifest;
    let name = request.name.as_ref().unwrap_or(&request.table);
    // A table of the backup has a name that masters accepted.
    if request.target != RestoreTarget::Existing && request.name.is_some() {
        check_new_name(name)?;
    }
    let partial = PartialName::of(name).at(last.to_ms);
    let (kind, replicas) = (request.target, request.replicas);
    let target = TargetTable { client, kind, replicas, last, name, partial: &partial };
    target.check_names().await?;
    for backup in &chain {
        let verified = client.env().run(|| store.verify(backup)).await;
        verified.map_err(|error| with_earlier_state(error, listing, backup))?;
    }
    let table = target.open().await?;
    let failed = |error: Error| target.failed(error);
    let mut outcome = RestoreOutcome { name: name.clone(), to_ms: last.to_ms, ..Default::default() };
    let mut progress = match request.target {
        RestoreTarget::Existing => None,
        _ => Some(RestoreProgress::open(store, table.id()).map_err(failed)?),
    };
    for backup in &chain {
        let (progress, outcome) = (progress.as_mut(), &mut outcome);
        let added = added_columns(&backup.manifest, last, request.target).map_err(failed)?;
        let apply = Apply { store, backup, last, added, table: &table, request, progress, outcome };
        apply.run().await.map_err(|error| failed(error.context(&backup.dir)))?;
    }
    if request.target != RestoreTarget::Existing {
        let defaults = altered_defaults(&last.schema()?);
        client.alter_table(&table, &defaults, Some(name)).await.map_err(failed)?;
    }
    if let Some(progress) = progress {
        progress.remove();
    }
    Ok(outcome)
}

/// Adds the newest earlier state to the error of a damaged backup.
fn with_earlier_state(error: Error, listing: &StoreListing, backup: &StoredBackup) -> Error {
    let hint = match state_before(listing, backup) {
        Some(ms) => format!("; --until {} restores the state before this backup", time_text(ms)),
        None => "; no earlier state is there".to_string(),
    };
    Error { message: format!("{}{hint}", error.message), ..error }
}

/// Returns the steps that set the defaults which were altered after their columns were created.
///
/// Order: last, because rows of backups from before a column was added have its first default.
fn altered_defaults(schema: &Schema) -> Vec<AlterStep> {
    let altered = schema.columns().iter().filter(|column| column.write_default != column.read_default);
    let step = |column: &ColumnSchema| AlterStep::SetDefault {
        column: column.name.clone(),
        default: column.write_default.clone(),
    };
    altered.map(step).collect()
}

/// Returns the columns that were added after a backup, if its rows may replace rows that have them.
///
/// Fails for a column without a value for older rows. Only metadata that Kudu wrote can have one: it lacks a default
/// that was removed.
fn added_columns(backup: &Manifest, last: &Manifest, target: RestoreTarget) -> Result<Vec<ColumnSchema>> {
    if target == RestoreTarget::New {
        // Nothing but this restore writes the table: rows that a backup without the column writes have the default.
        return Ok(Vec::new());
    }
    let (theirs, ours) = (backup.schema()?, last.schema()?);
    let is_added = |column: &&ColumnSchema| theirs.by_id(column.id).is_none();
    let added: Vec<ColumnSchema> = ours.columns().iter().filter(is_added).cloned().collect();
    match added.iter().find(|column| !column.nullable && column.read_default.is_none()) {
        Some(column) => Err(Error::invalid(format!(
            "column {} was added after a backup, is NOT NULL and has no default",
            column.name
        ))),
        None => Ok(added),
    }
}

/// One backup being applied to the table.
struct Apply<'a> {
    store: &'a BackupStore,
    backup: &'a StoredBackup,
    last: &'a Manifest,
    /// Columns that the backup lacks and whose cells may have to be replaced.
    added: Vec<ColumnSchema>,
    table: &'a Table,
    request: &'a RestoreRequest,
    progress: Option<&'a mut RestoreProgress>,
    outcome: &'a mut RestoreOutcome,
}

impl Apply<'_> {
    async fn run(mut self) -> Result<()> {
        self.outcome.backups += 1;
        let mut writer = self.table.writer();
        let applied = self.parts(&mut writer).await;
        // Order: a write of a restore that failed must not arrive after those of the one that resumes it.
        let finished = writer.finish().await;
        applied?;
        finished.map(|_| ()).map_err(refused)
    }

    async fn parts(&mut self, writer: &mut TableWriter) -> Result<()> {
        let columns = self.columns()?;
        let mut kept = KeptRows::new(&self.backup.manifest, self.last)?;
        for part in &self.backup.manifest.parts {
            if !self.backup.manifest.is_kudus() && !self.last.tablets.contains(&part.tablet) {
                self.outcome.skipped += part.rows;
                continue;
            }
            if self.progress.as_mut().is_some_and(|progress| progress.skips(self.backup, part)) {
                self.outcome.resumed += 1;
                continue;
            }
            self.part(part, &columns, &mut kept, writer).await?;
            // Order: a part is done once all of its rows are in the table.
            writer.flush().await.map_err(refused)?;
            if let Some(progress) = &mut self.progress {
                progress.add(self.backup, part);
            }
        }
        Ok(())
    }

    /// Returns true if the table may have rows of these keys.
    fn may_replace(&self) -> bool {
        !self.backup.manifest.is_full() || self.request.target != RestoreTarget::New
    }

    /// Returns the operation that writes rows which the table does not have.
    ///
    /// An insert may not give the value of an auto-incrementing column. An upsert may, and raises the tablet's counter
    /// to it, so that rows inserted later get higher ones.
    fn new_rows(&self) -> RowOpKind {
        match self.table.schema().auto_incrementing() {
            Some(_) => RowOpKind::Upsert,
            None => RowOpKind::Insert,
        }
    }

    /// Returns the columns of the parts that the table has, by position, with their names in the table.
    fn columns(&self) -> Result<Vec<(usize, String)>> {
        let (theirs, ours) = (self.backup.manifest.schema()?, self.last.schema()?);
        let name = |column: &ColumnSchema| Some(ours.by_id(column.id)?.name.clone());
        let known = theirs.columns().iter().enumerate().filter_map(|(at, column)| Some((at, name(column)?)));
        Ok(known.collect())
    }

    async fn part(
        &mut self,
        part: &PartEntry,
        columns: &[(usize, String)],
        kept: &mut Option<KeptRows<'_>>,
        writer: &mut TableWriter,
    ) -> Result<()> {
        let file = self.store.open_part(&self.backup.dir, &part.file)?;
        let reader = open_rows(file).map_err(|error| error.context(&part.file))?;
        let mut reader = reader.with_batch_size(BATCH_ROWS).build().map_err(unreadable)?;
        let env = self.table.client().env().clone();
        let mut rows = 0;
        while let Some(batch) = env.run(|| reader.next()).await {
            let mut batch = batch.map_err(unreadable)?;
            let all = batch.num_rows();
            rows += all as u64;
            if let Some(kept) = kept {
                batch = select(&batch, &kept.of(&batch)?)?;
                self.outcome.skipped += (all - batch.num_rows()) as u64;
            }
            self.batch(&batch, columns, writer).await?;
        }
        if rows != part.rows {
            return Err(Error::corrupt(format!("{}: {rows} rows instead of {}", part.file, part.rows)));
        }
        Ok(())
    }

    async fn batch(
        &mut self,
        batch: &RecordBatch,
        columns: &[(usize, String)],
        writer: &mut TableWriter,
    ) -> Result<()> {
        if self.backup.manifest.is_full() {
            return self.upsert(batch, columns, writer).await;
        }
        let actions = batch.column(batch.num_columns() - 1).as_primitive_opt::<Int8Type>();
        let actions = actions.ok_or_else(|| unreadable("the last column is not the action"))?.values();
        let deleted = BooleanArray::from_iter(actions.iter().map(|action| Some(*action == 1)));
        let kept = BooleanArray::from_iter(actions.iter().map(|action| Some(*action == 0)));
        let (deleted, kept) = (select(batch, &deleted)?, select(batch, &kept)?);
        if deleted.num_rows() + kept.num_rows() != batch.num_rows() {
            return Err(unreadable("an action that is neither 0 nor 1"));
        }
        let keys = &columns[..self.table.schema().num_key_columns()];
        writer.restore_batch(RowOpKind::DeleteIgnore, &named(&deleted, keys)?).await.map_err(refused)?;
        self.outcome.deletes += deleted.num_rows() as u64;
        self.upsert(&kept, columns, writer).await
    }

    /// Writes rows, in place of those with their keys.
    async fn upsert(
        &mut self,
        batch: &RecordBatch,
        columns: &[(usize, String)],
        writer: &mut TableWriter,
    ) -> Result<()> {
        let schema: &Schema = self.table.schema();
        let mut kind = RowOpKind::Upsert;
        if !self.may_replace() {
            kind = self.new_rows();
        } else if schema.columns().iter().any(|column| column.immutable) {
            // An immutable value changes only with the row: it is deleted, and inserted after that is done.
            let keys = &columns[..schema.num_key_columns()];
            writer.restore_batch(RowOpKind::DeleteIgnore, &named(batch, keys)?).await.map_err(refused)?;
            writer.flush().await.map_err(refused)?;
            kind = self.new_rows();
        }
        let rows = with_defaults(named(batch, columns)?, &self.added)?;
        writer.restore_batch(kind, &rows).await.map_err(refused)?;
        self.outcome.upserts += batch.num_rows() as u64;
        Ok(())
    }
}

fn refused(error: nyala_client::ClientError) -> Error {
    Error::aborted(format!("write rows: {error}"))
}

fn select(batch: &RecordBatch, rows: &BooleanArray) -> Result<RecordBatch> {
    filter_record_batch(batch, rows).map_err(unreadable)
}

/// Returns these columns of a batch under the names of the table.
fn named(batch: &RecordBatch, columns: &[(usize, String)]) -> Result<RecordBatch> {
    let schema = batch.schema();
    let field = |(at, name): &(usize, String)| Field::clone(schema.field(*at)).with_name(name);
    let fields: Vec<Field> = columns.iter().map(field).collect();
    let arrays = columns.iter().map(|(at, _)| batch.column(*at).clone()).collect();
    RecordBatch::try_new(ArrowSchema::new(fields).into(), arrays).map_err(unreadable)
}

/// Returns a batch with more columns, whose cells are their first default or NULL.
fn with_defaults(batch: RecordBatch, added: &[ColumnSchema]) -> Result<RecordBatch> {
    if added.is_empty() {
        return Ok(batch);
    }
    let rows = batch.num_rows();
    let block = |column: &ColumnSchema| {
        let mut block = ColumnBlock::new(column.ty.physical(), column.nullable);
        block.push_many(column.read_default.as_deref(), rows);
        block
    };
    let defaults = RowBlock { rows, columns: added.iter().map(block).collect() };
    let defaults = batch_from_block(defaults, added, &arrow_schema(added))?;
    let schemas = [batch.schema(), defaults.schema()];
    let fields: Vec<FieldRef> = schemas.iter().flat_map(|schema| schema.fields()).cloned().collect();
    let arrays = [batch.columns(), defaults.columns()].concat();
    RecordBatch::try_new(ArrowSchema::new(fields).into(), arrays).map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int32Array};
    use engine::schema::partition::PartitionSchema;
    use engine::schema::{DataType, TypeAttributes, TypeParameters};
    use nyala_client::arrow::column_block;

    use super::*;

    fn column_of(ty: DataType) -> ColumnSchema {
        let mut column = ColumnSchema::new(1, ty.name(), ty);
        column.attributes = match ty.parameters() {
            TypeParameters::None => TypeAttributes::default(),
            TypeParameters::Digits(precision) => TypeAttributes { precision, scale: 2, length: 0 },
            TypeParameters::Length => TypeAttributes { precision: 0, scale: 0, length: 9 },
        };
        column
    }

    #[test]
    fn columns_of_all_types_are_filled_with_their_default_or_null() {
        let keys: ArrayRef = Arc::new(Int32Array::from(vec![7, 8, 9]));
        for ty in DataType::ALL {
            // As a DATE it is beyond the years that clients write.
            let cell = vec![1; ty.width().unwrap_or(5)];
            let with_default = ColumnSchema { read_default: Some(cell.clone()), ..column_of(ty) };
            let (null, both) = (column_of(ty).nullable(), with_default.clone().nullable());
            for (column, want) in [(with_default, Some(&cell)), (null, None), (both, Some(&cell))] {
                let batch = RecordBatch::try_from_iter([("k", keys.clone())]).expect("a batch");
                let batch = with_defaults(batch, std::slice::from_ref(&column)).expect("a filled column");
                assert_eq!((batch.num_columns(), batch.num_rows()), (2, 3), "{column}");
                let found = column_block(batch.column(1), &column).expect("cells of the column");
                let found: Vec<Option<&[u8]>> = (0..3).map(|row| found.cell(row)).collect();
                assert_eq!(found, [want.map(Vec::as_slice); 3], "{column}");
            }
        }
    }

    fn manifest(columns: Vec<ColumnSchema>) -> Manifest {
        let schema = Schema::new(columns, 1).expect("a schema");
        Manifest::of_schemas(("1", "t"), &schema, &PartitionSchema::default())
    }

    #[test]
    fn columns_are_added_by_id_and_need_a_value() {
        let column = |id, name| ColumnSchema::new(id, name, DataType::Int32);
        let first = manifest(vec![column(0, "k"), column(1, "v").nullable(), column(2, "w")]);
        // One was renamed, and another one dropped and added again.
        let defaulted = ColumnSchema { read_default: Some(vec![0; 4]), ..column(4, "n") };
        let last =
            vec![column(0, "k"), column(1, "renamed").nullable(), column(3, "w").nullable(), defaulted];
        let added =
            added_columns(&first, &manifest(last), RestoreTarget::Existing).expect("columns with values");
        let names: Vec<&str> = added.iter().map(|column| column.name.as_str()).collect();
        assert_eq!(names, ["w", "n"]);
        let last = manifest(vec![column(0, "k"), column(5, "x")]);
        let error = added_columns(&first, &last, RestoreTarget::Existing).expect_err("no value");
        assert_eq!(error.message, "column x was added after a backup, is NOT NULL and has no default");
    }
}
