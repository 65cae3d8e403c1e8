//! A backup of one table: its tablets are read at one timestamp, several at a time, each to a Parquet file.
//!
//! ```text
//! tablets of all tables ─► T ─► T is 1 s ago ─► the same tablets? ─► scan at T, table by table ─► still there?
//! ```
//!
//! Tablets are compared before and after, because a scan passes over a range that was dropped.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::{Int8Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema as ArrowSchema, SchemaRef};
use engine::error::{Error, ErrorKind, Result};
use engine::schema::partition::Partition;
use engine::time::Timestamp;
use futures_util::future::join_all;
use futures_util::{StreamExt, TryStreamExt, stream};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;

use super::chain::next_base;
use super::kudu_metadata;
use super::manifest::{Manifest, PartEntry, time_text};
use super::part_reader::disk_error;
use super::store::{BackupStore, PartFile, StoreListing};
use nyala_client::{Client, ReadMode, ScanSpec, ScanToken, Table};
use nyala_common::env::Env;

/// Name of the last column of an incremental backup: 0 for an upsert, 1 for a delete.
const ACTION: &str = "backup_row_action";
/// Memory of a row group being written, after which it is written out.
const ROW_GROUP_BYTES: usize = 32 << 20;
/// Age of the snapshot when reading begins: a server whose clock is behind by less does not wait for it.
const SNAPSHOT_AGE: Duration = Duration::from_secs(1);
/// Time without a heartbeat after which a server is not asked for its time.
const SERVER_SILENCE_MAX: Duration = Duration::from_secs(60);

/// Kind of backup to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackupKind {
    /// Incremental if there is a base whose history servers still keep.
    Any,
    Full,
    Incremental,
}

/// Returns the hybrid timestamp of a time in milliseconds.
pub fn hybrid_timestamp(ms: u64) -> u64 {
    ms.saturating_mul(1000) << 12
}

/// A table and the tablets that it has at the snapshot.
pub struct SnapshotTable {
    table: Table,
    tablets: BTreeSet<String>,
}

/// Tables at one timestamp.
pub struct Snapshot {
    pub to_ms: u64,
    /// Each table by its name, or the reason that it has no snapshot.
    pub tables: Vec<(String, Result<SnapshotTable>)>,
}

/// Takes the timestamp of a backup, after the tables were opened and before they were changed.
pub async fn take_snapshot(client: &Client, names: &[String]) -> Snapshot {
    let mut tables = Vec::new();
    for name in names {
        tables.push((name.clone(), SnapshotTable::open(client, name).await));
    }
    let to_ms = snapshot_ms(client).await;
    client.env().sleep(SNAPSHOT_AGE + Duration::from_millis(1)).await;
    for (name, table) in &mut tables {
        let Ok(opened) = table else { continue };
        let changed = match SnapshotTable::open(client, name).await {
            Ok(now) if now.is_same(opened) => continue,
            Ok(_) => Error::aborted("its columns or range partitions changed just now; run the backup again"),
            Err(error) => error,
        };
        *table = Err(changed);
    }
    Snapshot { to_ms, tables }
}

/// Returns the next whole millisecond by the tablet servers' clocks: it includes all writes that were acknowledged
/// before. This machine's clock counts only if no server tells its time, as users may not ask it everywhere.
async fn snapshot_ms(client: &Client) -> u64 {
    let servers = client.servers().await.unwrap_or_default();
    let alive = servers.into_iter().filter(|server| server.silent_for < SERVER_SILENCE_MAX);
    let times = alive
        .map(|server| async move { client.server_time(&format!("{}:{}", server.host, server.port)).await });
    let micros = join_all(times).await.into_iter().flatten().map(|time| Timestamp(time).micros()).max();
    micros.unwrap_or_else(|| client.env().now().wall.micros) / 1000 + 1
}

impl SnapshotTable {
    async fn open(client: &Client, name: &str) -> Result<SnapshotTable> {
        let table = client.open_table(name).await?;
        let tablets = tablets(&table).await?;
        Ok(SnapshotTable { table, tablets })
    }

    fn is_same(&self, other: &SnapshotTable) -> bool {
        self.table.id() == other.table.id()
            && self.table.schema() == other.table.schema()
            && self.tablets == other.tablets
    }

    /// Returns the scans of the tablets. Ranges added after the snapshot are left out.
    async fn tokens(&self, spec: &ScanSpec) -> Result<Vec<ScanToken>> {
        let mut tokens = self.table.scan_tokens(spec).await?;
        tokens.retain(|token| self.tablets.contains(&token.tablet().id));
        if tokens.len() != self.tablets.len() {
            return Err(Error::aborted("a range partition was dropped meanwhile; run the backup again"));
        }
        Ok(tokens)
    }

    /// Checks that all columns and tablets that were read still exist, and so existed while they were read.
    async fn check_unchanged(&self) -> Result<()> {
        let now = self.table.client().open_table(self.table.name()).await?;
        let mut columns = self.table.schema().columns().iter();
        let keeps = |column: &engine::schema::ColumnSchema| {
            now.schema().by_id(column.id).is_some_and(|known| known.name == column.name)
        };
        if now.id() != self.table.id() || !columns.all(keeps) {
            return Err(Error::aborted("the table was replaced or altered meanwhile; run the backup again"));
        }
        if !self.tablets.is_subset(&tablets(&now).await?) {
            return Err(Error::aborted("a range partition was dropped meanwhile; run the backup again"));
        }
        Ok(())
    }
}

/// Returns the identifiers of a table's tablets, as the masters know them now.
async fn tablets(table: &Table) -> Result<BTreeSet<String>> {
    table.forget_locations();
    let tokens = table.scan_tokens(&ScanSpec::default()).await?;
    Ok(tokens.iter().map(|token| token.tablet().id.clone()).collect())
}

/// A backup that was written.
pub struct Created {
    pub manifest: Manifest,
    /// Reason that the backup is full although there is a base.
    pub full_because: Option<Error>,
}

/// Returns the tables of a snapshot with the oldest timestamp that a backup of this kind reads.
pub fn oldest_reads(snapshot: &Snapshot, listing: &StoreListing, kind: BackupKind) -> Vec<(Table, u64)> {
    let opened = snapshot.tables.iter().filter_map(|(_, table)| table.as_ref().ok());
    let oldest = |table: &SnapshotTable| {
        let oldest_ms = match start_of(&table.table, listing, kind).ok()? {
            0 => snapshot.to_ms,
            from_ms => from_ms,
        };
        Some((table.table.clone(), hybrid_timestamp(oldest_ms)))
    };
    opened.filter_map(oldest).collect()
}

/// Writes a backup of a table's state at `to_ms`. `listing` tells the base of an incremental one.
///
/// `BackupKind::Any` takes a full backup if servers no longer keep the history since the base.
pub async fn create(
    store: &BackupStore,
    snapshot: &SnapshotTable,
    to_ms: u64,
    listing: &StoreListing,
    kind: BackupKind,
    parallel: usize,
) -> Result<Created> {
    let from_ms = start_of(&snapshot.table, listing, kind)?;
    if from_ms >= to_ms {
        return Err(Error::invalid(
            "a backup of this time or a later one exists; check the clocks of the tablet servers",
        ));
    }
    let first = write_backup(store, snapshot, (from_ms, to_ms), parallel).await;
    match first {
        Err(error) if kind == BackupKind::Any && from_ms > 0 && is_history_gone(&error) => {
            let manifest = write_backup(store, snapshot, (0, to_ms), parallel).await?;
            Ok(Created { manifest, full_because: Some(error) })
        }
        Err(error) if from_ms > 0 && is_history_gone(&error) => Err(explain_base(error, from_ms)),
        first => Ok(Created { manifest: first?, full_because: None }),
    }
}

async fn write_backup(
    store: &BackupStore,
    snapshot: &SnapshotTable,
    (from_ms, to_ms): (u64, u64),
    parallel: usize,
) -> Result<Manifest> {
    let table = &snapshot.table;
    let spec = ScanSpec {
        read_mode: ReadMode::AtSnapshot(Some(hybrid_timestamp(to_ms))),
        diff_from: (from_ms > 0).then(|| hybrid_timestamp(from_ms)),
        fault_tolerant: true,
        any_replica: true,
        ..ScanSpec::default()
    };
    let tokens = snapshot.tokens(&spec).await?;
    let mut manifest = Manifest::new(table, (from_ms, to_ms));
    let tablets: Vec<(String, Partition)> =
        tokens.iter().map(|token| (token.tablet().id.clone(), token.tablet().partition.clone())).collect();
    tablets.iter().for_each(|(id, partition)| manifest.add_tablet(id, &partition.range()));
    let kudu_metadata = kudu_metadata::encode(&manifest, &tablets)?;
    manifest.kudu_metadata_crc32c = crc32c::crc32c(&kudu_metadata);
    let claimed = store.claim(table.id(), table.name(), to_ms)?;
    let dir = &claimed.dir;
    let write = async {
        let part = |(number, token): (usize, ScanToken)| {
            let (store, table, dir) = (store.clone(), table.clone(), dir.clone());
            async move { write_part(&store, &table, &dir, number, token, from_ms > 0).await }
        };
        let parts = stream::iter(tokens.into_iter().enumerate()).map(part).buffer_unordered(parallel);
        manifest.parts = parts.try_collect().await?;
        manifest.parts.sort_by(|a, b| a.file.cmp(&b.file));
        snapshot.check_unchanged().await?;
        store.complete(dir, &manifest, &kudu_metadata)
    };
    if let Err(error) = write.await {
        // Remains that cannot be removed now are no backup either; prune removes them.
        let _ = store.remove(dir);
        return Err(error);
    }
    Ok(manifest)
}

/// Returns the time at which a backup of this kind starts; 0 for a full one.
fn start_of(table: &Table, listing: &StoreListing, kind: BackupKind) -> Result<u64> {
    let spans: Vec<_> = listing.of_table(table.id()).iter().map(|backup| backup.manifest.span()).collect();
    match kind {
        BackupKind::Full => Ok(0),
        BackupKind::Any => Ok(next_base(&spans).unwrap_or(0)),
        BackupKind::Incremental => next_base(&spans)
            .ok_or_else(|| Error::not_found("no backup to build on; take a full one with --full")),
    }
}

/// Words of every error by which a server refuses a snapshot whose history it no longer keeps.
const HISTORY_GONE: &str = "ancient history mark";

fn is_history_gone(error: &Error) -> bool {
    error.kind == ErrorKind::Invalid && error.message.to_lowercase().contains(HISTORY_GONE)
}

/// Adds what to do about the base of an incremental backup to the error of a diff scan.
fn explain_base(error: Error, from_ms: u64) -> Error {
    let base = time_text(from_ms);
    let what = format!(
        "servers no longer keep the history since the base, a backup of the state of {base}; take a full backup \
         with --full: {}",
        error.message
    );
    Error { message: what, ..error }
}

/// Converts an error of the Parquet writer. An error of the disk keeps its number.
fn write_failed(place: &str, error: ParquetError) -> Error {
    let of_disk = disk_error(&format!("write {place}"), &error);
    of_disk.unwrap_or_else(|| Error::invalid(format!("write {place}: {error}")))
}

fn malformed(what: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("malformed diff scan: {what}"))
}

/// Returns the schema of an incremental part: the last column is the action.
fn with_action(scanned: &SchemaRef) -> SchemaRef {
    let fields = scanned.fields();
    let columns = &fields[..fields.len() - 1];
    let mut name = ACTION.to_string();
    while columns.iter().any(|field| *field.name() == name) {
        name.push('_');
    }
    let action = Arc::new(Field::new(name, DataType::Int8, false));
    Arc::new(ArrowSchema::new(columns.iter().cloned().chain([action]).collect::<Vec<_>>()))
}

fn to_actions(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let mut columns = batch.columns().to_vec();
    let deleted = columns.pop().ok_or_else(|| malformed("no last column"))?;
    let actions: Int8Array =
        deleted.as_boolean().values().iter().map(|deleted| Some(i8::from(deleted))).collect();
    columns.push(Arc::new(actions));
    RecordBatch::try_new(schema.clone(), columns).map_err(malformed)
}

async fn write_part(
    store: &BackupStore,
    table: &Table,
    dir: &str,
    number: usize,
    token: ScanToken,
    incremental: bool,
) -> Result<PartEntry> {
    let env: Env = table.client().env().clone();
    let tablet = token.tablet().id.clone();
    let file = format!("part-{number:05}-{tablet}.parquet");
    let mut scanner = table.scan_token(&token)?;
    let schema = if incremental { with_action(scanner.schema()) } else { scanner.schema().clone() };
    let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default()));
    let place = format!("{}/{dir}/{file}", store.location());
    let failed = |error: ParquetError| write_failed(&place, error);
    let out = store.create_part(dir, &file)?;
    let mut writer = ArrowWriter::try_new(out, schema.clone(), Some(properties.build())).map_err(failed)?;
    let mut rows = 0;
    while let Some(batch) = scanner.next_batch().await? {
        rows += batch.num_rows() as u64;
        let batch = if incremental { to_actions(&batch, &schema)? } else { batch };
        env.run(|| write(&mut writer, &batch)).await.map_err(failed)?;
        // The next batch may be there already. Without a pause the run could not be interrupted.
        pause().await;
    }
    let (bytes, crc32c) = env.run(|| writer.into_inner().map_err(failed)?.finish()).await?;
    check_rows(store, dir, &file, rows)?;
    Ok(PartEntry { file, tablet, bytes, rows, crc32c })
}

/// Lets other futures of the same task run.
async fn pause() {
    let mut paused = false;
    let once = |context: &mut Context<'_>| match std::mem::replace(&mut paused, true) {
        true => Poll::Ready(()),
        false => {
            context.waker().wake_by_ref();
            Poll::Pending
        }
    };
    poll_fn(once).await;
}

fn write(writer: &mut ArrowWriter<PartFile>, batch: &RecordBatch) -> Result<(), ParquetError> {
    writer.write(batch)?;
    if writer.memory_size() >= ROW_GROUP_BYTES {
        writer.flush()?;
    }
    Ok(())
}

/// Compares the rows in the file's footer with those that were read.
fn check_rows(store: &BackupStore, dir: &str, file: &str, rows: u64) -> Result<()> {
    let bad = |what: String| Error::corrupt(format!("{}/{dir}/{file}: {what}", store.location()));
    let reader = ParquetRecordBatchReaderBuilder::try_new(store.open_part(dir, file)?);
    let place = format!("read {}/{dir}/{file}", store.location());
    let reader =
        reader.map_err(|error| disk_error(&place, &error).unwrap_or_else(|| bad(error.to_string())))?;
    let found = reader.metadata().file_metadata().num_rows();
    if u64::try_from(found) != Ok(rows) {
        return Err(bad(format!("{found} rows instead of the {rows} read")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{ArrayRef, Int64Array};
    use engine::disk::mem::{DiskOpKind, MemDisk};

    /// The operating system's number of an input/output error.
    const EIO: i32 = 5;

    /// Writes a part of three rows. Returns its store and directory.
    fn part_of_three_rows(disk: &MemDisk) -> (BackupStore, String) {
        let store = BackupStore::on_disk(Arc::new(disk.clone()));
        let claimed = store.claim("1", "t", 10).expect("an empty store");
        let rows: ArrayRef = Arc::new(Int64Array::from_iter_values(0..3));
        let batch = RecordBatch::try_from_iter([("k", rows)]).expect("a batch");
        let out = store.create_part(&claimed.dir, "part").expect("a file");
        let mut writer = ArrowWriter::try_new(out, batch.schema(), None).expect("a writer");
        write(&mut writer, &batch).expect("space");
        writer.into_inner().expect("space").finish().expect("space");
        (store, claimed.dir)
    }

    #[test]
    fn rows_in_the_footer_are_compared_with_those_read() {
        let (store, dir) = part_of_three_rows(&MemDisk::new(1));
        assert_eq!(check_rows(&store, &dir, "part", 3), Ok(()));
        let error = check_rows(&store, &dir, "part", 4).expect_err("a row was lost");
        assert!(error.message.ends_with("part: 3 rows instead of the 4 read"), "{error}");
    }

    #[test]
    fn a_disk_that_fails_while_a_footer_is_read_is_no_corruption() {
        let disk = MemDisk::new(1);
        let (store, dir) = part_of_three_rows(&disk);
        disk.fail_some(DiskOpKind::Read, 1000, EIO);
        let error = check_rows(&store, &dir, "part", 3).expect_err("no read succeeds");
        assert_eq!(error.kind, ErrorKind::Io, "{error}");
    }

    #[test]
    fn a_full_disk_is_reported_as_such() {
        let disk = MemDisk::new(1);
        let store = BackupStore::on_disk(Arc::new(disk.clone()));
        let claimed = store.claim("1", "t", 10).expect("an empty store");
        disk.set_free(0);
        let rows: ArrayRef = Arc::new(Int64Array::from_iter_values((0..1 << 18).map(|i| i * 0x9e37_79b9)));
        let batch = RecordBatch::try_from_iter([("k", rows)]).expect("a batch");
        let out = store.create_part(&claimed.dir, "part").expect("a file");
        let mut writer = ArrowWriter::try_new(out, batch.schema(), None).expect("a writer");
        let written = write(&mut writer, &batch).and_then(|()| writer.flush());
        let error = write_failed("part", written.expect_err("no space"));
        assert!(error.is_no_space(), "{error}");
        assert!(!is_history_gone(&error), "{error}");
    }
}
