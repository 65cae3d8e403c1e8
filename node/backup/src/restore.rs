//! Restore of a table: all files are verified, then a new table is filled under another name, then renamed.
//!
//! Columns are found by id, so that renamed ones keep their values and dropped ones stay away. Rows of tablets that
//! the last backup does not know are skipped: their range was dropped.

use arrow_array::cast::AsArray;
use arrow_array::types::Int8Type;
use arrow_array::{BooleanArray, RecordBatch};
use arrow_schema::{Field, Schema as ArrowSchema};
use arrow_select::filter::filter_record_batch;
use engine::error::{Error, Result};
use engine::schema::Schema;
use engine::schema::row_ops::RowOpKind;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::manifest::{Manifest, PartEntry, time_text};
use super::plan::{plan, state_before};
use super::store::{BackupStore, StoreListing, StoredBackup};
use nyala_client::rows::TableWriter;
use nyala_client::tables::AlterStep;
use nyala_client::{Client, CreateTable, Table};

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
}

/// Restores a table. Until it is complete it is called `<name>.restoring-<T>`.
pub async fn restore(
    client: &Client,
    store: &BackupStore,
    listing: &StoreListing,
    request: &RestoreRequest,
) -> Result<RestoreOutcome> {
    let chain = plan(listing, &request.table, request.until_ms)?;
    let last = &chain.last().expect("a chain has a full backup").manifest;
    let name = request.name.as_ref().unwrap_or(&request.table);
    let existing = client.list_tables(Some(name)).await?;
    if existing.iter().any(|table| table.name == *name) {
        return Err(Error::already_present(format!(
            "table {name} exists; restore under another name with --as"
        )));
    }
    for backup in &chain {
        let verified = client.env().run(|| store.verify(backup)).await;
        verified.map_err(|error| with_earlier_state(error, listing, backup))?;
    }
    let partial = format!("{name}.restoring-{}", last.to_ms);
    let create = definition(last, &partial, request.replicas)?;
    let failed =
        |error: Error| error.context(format!("table {partial}, the incomplete restore, which you can drop"));
    let table = client.create_table(&create).await.map_err(failed)?;
    let mut outcome = RestoreOutcome { name: name.clone(), to_ms: last.to_ms, ..Default::default() };
    for backup in &chain {
        let apply = Apply { store, backup, last, table: &table, outcome: &mut outcome };
        apply.run().await.map_err(|error| failed(error.context(&backup.dir)))?;
    }
    client.alter_table(&table, &altered_defaults(&create.schema), Some(name)).await.map_err(failed)?;
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
    let step = |column: &engine::schema::ColumnSchema| AlterStep::SetDefault {
        column: column.name.clone(),
        default: column.write_default.clone(),
    };
    altered.map(step).collect()
}

fn definition(manifest: &Manifest, name: &str, replicas: Option<i32>) -> Result<CreateTable> {
    let schema = manifest.schema()?;
    let partition = manifest.partition_schema(&schema)?;
    let ranges = if partition.range_columns.is_empty() { Vec::new() } else { manifest.ranges()? };
    let mut create = CreateTable::new(name, schema);
    create.partition = partition;
    create.ranges = ranges;
    create.replicas = Some(replicas.unwrap_or(manifest.replicas));
    create.owner = Some(manifest.owner.clone()).filter(|owner| !owner.is_empty());
    create.comment = Some(manifest.comment.clone()).filter(|comment| !comment.is_empty());
    create.extra_config = manifest.extra_config.clone();
    Ok(create)
}

/// One backup being applied to the new table.
struct Apply<'a> {
    store: &'a BackupStore,
    backup: &'a StoredBackup,
    last: &'a Manifest,
    table: &'a Table,
    outcome: &'a mut RestoreOutcome,
}

impl Apply<'_> {
    async fn run(mut self) -> Result<()> {
        self.outcome.backups += 1;
        let columns = self.columns()?;
        let mut writer = self.table.writer();
        for part in &self.backup.manifest.parts {
            if !self.last.tablets.contains(&part.tablet) {
                self.outcome.skipped += part.rows;
                continue;
            }
            self.part(part, &columns, &mut writer).await?;
        }
        writer.finish().await.map(|_| ()).map_err(refused)
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
        let name = |column: &engine::schema::ColumnSchema| Some(ours.by_id(column.id)?.name.clone());
        let known = theirs.columns().iter().enumerate().filter_map(|(at, column)| Some((at, name(column)?)));
        Ok(known.collect())
    }

    async fn part(
        &mut self,
        part: &PartEntry,
        columns: &[(usize, String)],
        writer: &mut TableWriter,
    ) -> Result<()> {
        let file = self.store.open_part(&self.backup.dir, &part.file)?;
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).map_err(unreadable)?;
        let mut reader = reader.with_batch_size(BATCH_ROWS).build().map_err(unreadable)?;
        let env = self.table.client().env().clone();
        let mut rows = 0;
        while let Some(batch) = env.run(|| reader.next()).await {
            let batch = batch.map_err(unreadable)?;
            rows += batch.num_rows() as u64;
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
            self.outcome.upserts += batch.num_rows() as u64;
            return writer.write_batch(self.new_rows(), &named(batch, columns)?).await.map_err(refused);
        }
        let actions = batch.column(batch.num_columns() - 1).as_primitive_opt::<Int8Type>();
        let actions = actions.ok_or_else(|| unreadable("the last column is not the action"))?.values();
        let deleted = BooleanArray::from_iter(actions.iter().map(|action| Some(*action == 1)));
        let kept = BooleanArray::from_iter(actions.iter().map(|action| Some(*action == 0)));
        let (deleted, kept) = (select(batch, &deleted)?, select(batch, &kept)?);
        if deleted.num_rows() + kept.num_rows() != batch.num_rows() {
            return Err(unreadable("an action that is neither 0 nor 1"));
        }
        let schema: &Schema = self.table.schema();
        let keys = &columns[..schema.num_key_columns()];
        let mut kind = RowOpKind::Upsert;
        if schema.columns().iter().any(|column| column.immutable) {
            // An immutable value changes only with the row: it is deleted, and inserted after that is done.
            writer.write_batch(RowOpKind::DeleteIgnore, &named(&kept, keys)?).await.map_err(refused)?;
            writer.flush().await.map_err(refused)?;
            kind = self.new_rows();
        }
        writer.write_batch(RowOpKind::DeleteIgnore, &named(&deleted, keys)?).await.map_err(refused)?;
        writer.write_batch(kind, &named(&kept, columns)?).await.map_err(refused)?;
        self.outcome.deletes += deleted.num_rows() as u64;
        self.outcome.upserts += kept.num_rows() as u64;
        Ok(())
    }
}

fn refused(error: nyala_client::ClientError) -> Error {
    Error::aborted(format!("write rows: {error}"))
}

fn unreadable(error: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("read Parquet: {error}"))
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
