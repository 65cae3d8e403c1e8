//! Restore of a table: all files are verified, then a new table is filled under another name, then renamed.
//!
//! Columns are found by id, so that renamed ones keep their values and dropped ones stay away. Rows of tablets that
//! the last backup does not know are skipped: their range was dropped.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int8Type;
use arrow_array::{BooleanArray, RecordBatch};
use arrow_schema::{DataType, Field, FieldRef, Schema as ArrowSchema, TimeUnit};
use arrow_select::filter::filter_record_batch;
use engine::error::{Error, Result};
use engine::schema::row_ops::RowOpKind;
use engine::schema::{ColumnSchema, Schema};
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};

use super::files::InputFile;
use super::kudu_backup::KeptRows;
use super::manifest::{Manifest, PartEntry, time_text};
use super::plan::{plan, state_before};
use super::restore_progress::RestoreProgress;
use super::store::{BackupStore, StoreListing, StoredBackup};
use nyala_client::rows::TableWriter;
use nyala_client::tables::AlterStep;
use nyala_client::{Client, CreateTable, Table};

/// Rows read at a time.
const BATCH_ROWS: usize = 4096;

/// Table that a restore writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreTarget {
    /// A new table, which has another name until it is complete.
    New,
    /// The incomplete table of a restore that failed.
    Resumed,
    /// A table that exists. Its rows with other keys stay.
    Existing,
}

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

/// Restores a table. Until it is complete a new one is called `<name>.restoring-<T>`.
pub async fn restore(
    client: &Client,
    store: &BackupStore,
    listing: &StoreListing,
    request: &RestoreRequest,
) -> Result<RestoreOutcome> {
    let chain = plan(listing, &request.table, request.until_ms)?;
    let last = &chain.last().expect("a chain has a full backup").manifest;
    let name = request.name.as_ref().unwrap_or(&request.table);
    let partial = format!("{name}.restoring-{}", last.to_ms);
    let target = Target { client, request, last, name, partial: &partial };
    target.check_names().await?;
    for backup in &chain {
        let verified = client.env().run(|| store.verify(backup)).await;
        verified.map_err(|error| with_earlier_state(error, listing, backup))?;
    }
    let table = target.open().await?;
    let failed = |error: Error| target.failed(error);
    let mut outcome = RestoreOutcome { name: name.clone(), to_ms: last.to_ms, ..Default::default() };
    let progress = match request.target {
        RestoreTarget::Existing => None,
        _ => Some(RestoreProgress::open(store, table.id())),
    };
    for backup in &chain {
        let progress = progress.as_ref();
        let apply = Apply { store, backup, last, table: &table, request, progress, outcome: &mut outcome };
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

/// Table to write to, by the request.
struct Target<'a> {
    client: &'a Client,
    request: &'a RestoreRequest,
    last: &'a Manifest,
    name: &'a str,
    /// Name of the table while it is incomplete.
    partial: &'a str,
}

impl Target<'_> {
    /// Refuses a request whose tables exist or are missing.
    async fn check_names(&self) -> Result<()> {
        let tables = self.client.list_tables(Some(self.name)).await?;
        let has = |name: &str| tables.iter().any(|table| table.name == name);
        let (name, partial) = (self.name, self.partial);
        match self.request.target {
            RestoreTarget::Existing if !has(name) => Err(Error::not_found(format!(
                "no table {name} to restore into; without --into-existing a new one is created"
            ))),
            RestoreTarget::Existing => Ok(()),
            _ if has(name) => Err(Error::already_present(format!(
                "table {name} exists; restore under another name with --as, or write to it with --into-existing"
            ))),
            RestoreTarget::Resumed if !has(partial) => {
                let begun = format!("{name}.restoring-");
                let others = tables.iter().filter_map(|table| table.name.strip_prefix(&begun)?.parse().ok());
                let hint = match others.map(|ms: u64| time_text(ms)).next() {
                    Some(time) => format!("; --until {time} resumes another one"),
                    None => String::new(),
                };
                Err(Error::not_found(format!("no table {partial}, so there is no restore to resume{hint}")))
            }
            RestoreTarget::New if has(partial) => {
                Err(self.failed(Error::already_present("an earlier restore did not end")))
            }
            _ => Ok(()),
        }
    }

    async fn open(&self) -> Result<Table> {
        match self.request.target {
            RestoreTarget::New => {
                let create = definition(self.last, self.partial, self.request.replicas)?;
                self.client.create_table(&create).await.map_err(|error| self.failed(error))
            }
            RestoreTarget::Resumed => self.open_existing(self.partial).await,
            RestoreTarget::Existing => self.open_existing(self.name).await,
        }
    }

    /// Opens a table, whose columns must take the backup's rows.
    async fn open_existing(&self, name: &str) -> Result<Table> {
        let table = self.client.open_table(name).await?;
        check_columns(&self.last.schema()?, table.schema())
            .map_err(|error| error.context(format_args!("table {name}")))?;
        Ok(table)
    }

    /// Adds what is left to an error.
    fn failed(&self, error: Error) -> Error {
        match self.request.target {
            RestoreTarget::Existing => error.context(format!(
                "table {}, some rows of which may be restored; run the restore again",
                self.name
            )),
            _ => error.context(format!(
                "table {}, the incomplete restore, which you can complete with --resume or drop",
                self.partial
            )),
        }
    }
}

/// Refuses a table that cannot take rows of a backup: other key columns, a column that is missing or of another type,
/// one more column that needs a value.
fn check_columns(backup: &Schema, table: &Schema) -> Result<()> {
    let (of_backup, of_table) = (backup.columns(), table.columns());
    let keys = |schema: &Schema| -> Vec<String> {
        let columns = schema.columns().iter().take(schema.num_key_columns());
        columns.map(|column| column.name.clone()).collect()
    };
    if keys(backup) != keys(table) {
        return Err(Error::invalid("its primary key is not that of the backup"));
    }
    for column in of_backup {
        let found = of_table.iter().find(|found| found.name == column.name);
        let found = found.ok_or_else(|| Error::invalid(format!("it has no column {}", column.name)))?;
        if (found.ty, found.attributes) != (column.ty, column.attributes) {
            let (is, was) = (found.type_name(), column.type_name());
            return Err(Error::invalid(format!("column {} is {is}, and {was} in the backup", column.name)));
        }
        if column.nullable && !found.nullable {
            return Err(Error::invalid(format!("column {} is NOT NULL, unlike in the backup", column.name)));
        }
    }
    let is_new = |column: &&ColumnSchema| of_backup.iter().all(|known| known.name != column.name);
    let needs_value = |column: &&ColumnSchema| !column.nullable && column.write_default.is_none();
    match of_table.iter().filter(is_new).find(needs_value) {
        Some(column) => Err(Error::invalid(format!(
            "column {} is not in the backup, NOT NULL and without a default",
            column.name
        ))),
        None => Ok(()),
    }
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

/// One backup being applied to the table.
struct Apply<'a> {
    store: &'a BackupStore,
    backup: &'a StoredBackup,
    last: &'a Manifest,
    table: &'a Table,
    request: &'a RestoreRequest,
    progress: Option<&'a RestoreProgress>,
    outcome: &'a mut RestoreOutcome,
}

impl Apply<'_> {
    async fn run(mut self) -> Result<()> {
        self.outcome.backups += 1;
        let columns = self.columns()?;
        let mut kept = KeptRows::new(&self.backup.manifest, self.last)?;
        let mut writer = self.table.writer();
        for part in &self.backup.manifest.parts {
            if !self.backup.manifest.is_kudus() && !self.last.tablets.contains(&part.tablet) {
                self.outcome.skipped += part.rows;
                continue;
            }
            if self.progress.is_some_and(|progress| progress.is_done(self.backup, part)) {
                self.outcome.resumed += 1;
                continue;
            }
            self.part(part, &columns, &mut kept, &mut writer).await?;
            // Order: a part is done once all of its rows are in the table.
            writer.flush().await.map_err(refused)?;
            if let Some(progress) = self.progress {
                progress.add(self.backup, part);
            }
        }
        writer.finish().await.map(|_| ()).map_err(refused)
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
        writer.write_batch(RowOpKind::DeleteIgnore, &named(&deleted, keys)?).await.map_err(refused)?;
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
            writer.write_batch(RowOpKind::DeleteIgnore, &named(batch, keys)?).await.map_err(refused)?;
            writer.flush().await.map_err(refused)?;
            kind = self.new_rows();
        }
        writer.write_batch(kind, &named(batch, columns)?).await.map_err(refused)?;
        self.outcome.upserts += batch.num_rows() as u64;
        Ok(())
    }
}

/// Key of a footer by which Spark marks days and times of the calendar before 1582.
const LEGACY_CALENDAR: &str = "org.apache.spark.legacyDateTime";

/// Opens a file of rows. Times of 96 bits, which Spark writes, are read in microseconds as columns have them.
fn open_rows(file: InputFile) -> Result<ParquetRecordBatchReaderBuilder<InputFile>> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(file.clone()).map_err(unreadable)?;
    let marks = reader.metadata().file_metadata().key_value_metadata();
    if marks.is_some_and(|marks| marks.iter().any(|mark| mark.key == LEGACY_CALENDAR)) {
        return Err(Error::unsupported(
            "Spark wrote days or times in the Julian calendar; back up again with spark.sql.parquet.\
             datetimeRebaseModeInWrite=CORRECTED",
        ));
    }
    let nanoseconds =
        |field: &FieldRef| matches!(field.data_type(), DataType::Timestamp(TimeUnit::Nanosecond, _));
    if !reader.schema().fields().iter().any(nanoseconds) {
        return Ok(reader);
    }
    let field = |field: &FieldRef| match field.data_type() {
        DataType::Timestamp(TimeUnit::Nanosecond, zone) => {
            let ty = DataType::Timestamp(TimeUnit::Microsecond, zone.clone());
            Arc::new(Field::clone(field).with_data_type(ty))
        }
        _ => field.clone(),
    };
    let fields: Vec<FieldRef> = reader.schema().fields().iter().map(field).collect();
    let options = ArrowReaderOptions::new().with_schema(Arc::new(ArrowSchema::new(fields)));
    ParquetRecordBatchReaderBuilder::try_new_with_options(file, options).map_err(unreadable)
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
