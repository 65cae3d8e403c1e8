//! Sessions: rows are buffered per tablet and flushed per row, in the background, or on request.
//!
//! ```text
//! apply ─► buffer ──(buffer watermark, or interval)──► in flight: one Write per tablet
//!              └─────────── in total at most `buffer_bytes` ───────────┘
//! ```
//!
//! Background flushes may overtake each other: a row may reach the server before a row that was applied earlier and
//! sent in another flush. A caller that updates a row just after inserting it must flush in between.

use engine::sync::Mutex;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::error::{Error, Result};
use engine::schema::partition::Partitioner;
use engine::schema::row_block::ColumnBlock;
use engine::schema::row_ops::{ClientCell, RowOpKind, RowOpsWriter};
use engine::time::Instant;
use futures_util::future::join_all;
use tokio::sync::Notify;

use super::location_cache::{LocationLookup, TabletLocation};
use super::write_batch::{BatchOutcome, WriteBatch};
use super::{Client, Table};
use nyala_proto::kudu::ExternalConsistencyMode;

/// Time at which a session sends applied rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushMode {
    /// At once: `apply` returns when the row is written or rejected.
    AutoSync,
    /// At the buffer watermark, or at the end of the flush interval. `apply` waits only while the buffer is full.
    AutoBackground,
    /// On [`Session::flush`] only. `apply` fails if the buffer is full.
    Manual,
}

/// Options of a session.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    pub mode: FlushMode,
    /// Maximum size in encoded bytes of rows buffered and in flight, together.
    pub buffer_bytes: usize,
    /// Percentage of `buffer_bytes` that starts a background flush. A lower value leaves more space for new rows while
    /// others are in flight. Above 100, a flush starts when the buffer is full.
    pub watermark_percent: usize,
    /// Maximum age of a buffered row before a background flush.
    pub flush_interval: Duration,
    /// Time limit of a flush, retries included.
    pub timeout: Duration,
    /// True if the result of each row is kept for [`Session::take_receipts`].
    pub receipts: bool,
    /// COMMIT_WAIT delays replies to writes until their timestamp has passed on the clock of every server;
    /// CLIENT_PROPAGATED does not.
    pub consistency: ExternalConsistencyMode,
}

impl SessionConfig {
    /// Returns a configuration with a 7 MiB buffer, a watermark of 50 percent and a timeout of 60 s.
    pub fn new(mode: FlushMode) -> SessionConfig {
        SessionConfig {
            mode,
            buffer_bytes: 7 << 20,
            watermark_percent: 50,
            flush_interval: Duration::from_secs(1),
            timeout: Duration::from_secs(60),
            receipts: false,
            consistency: ExternalConsistencyMode::ClientPropagated,
        }
    }

    /// Returns the number of buffered bytes that starts a background flush.
    fn watermark(&self) -> usize {
        self.buffer_bytes.saturating_mul(self.watermark_percent) / 100
    }
}

/// Maximum number of failures kept for [`Session::flush`]; further ones are only counted.
const FAILURES_MAX: usize = 100_000;

/// A row that was not written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowFailure {
    /// Tag passed to [`Session::apply`].
    pub tag: u64,
    pub error: Error,
}

/// Result of one row, as reported by its tablet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowReceipt {
    /// Tag passed to [`Session::apply`].
    pub tag: u64,
    /// Id of the tablet.
    pub tablet: String,
    /// Hybrid timestamp of the write operation.
    pub timestamp: u64,
    /// Error of the row; `None` if it was written.
    pub refused: Option<Error>,
}

/// A buffer of rows to write. Cheap to clone; clones share the buffer. Rows still buffered when the last clone is
/// dropped are lost: flush first.
#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    config: SessionConfig,
    state: Mutex<State>,
    /// Notified when a flush has ended.
    flush_done: Notify,
}

#[derive(Default)]
struct State {
    tables: BTreeMap<String, TableBuffer>,
    buffered: usize,
    in_flight: usize,
    flushes: usize,
    /// Number of flushes started. A timer uses it to detect that its rows were sent already.
    epoch: u64,
    failures: Vec<RowFailure>,
    failures_dropped: u64,
    receipts: Vec<RowReceipt>,
    written: u64,
    ignored: u64,
}

struct TableBuffer {
    table: Table,
    /// [`Client::locations_dropped`] when its tablets were located.
    locations_dropped: u64,
    partitioner: Partitioner,
    key: Vec<u8>,
    tablets: BTreeMap<Vec<u8>, TabletBuffer>,
}

struct TabletBuffer {
    tablet: Arc<TabletLocation>,
    writer: RowOpsWriter,
    tags: Vec<u64>,
}

enum PutOutcome {
    Buffered,
    /// The buffer is full; true if rows are in flight, whose end frees space.
    Full(bool),
    /// The tablet that holds this partition key must be looked up.
    Locate(Vec<u8>),
}

impl Client {
    /// Opens a session.
    pub fn session(&self, config: SessionConfig) -> Session {
        let client = self.clone();
        let shared = Shared { client, config, state: Mutex::default(), flush_done: Notify::new() };
        Session { shared: Arc::new(shared) }
    }
}

impl Session {
    /// Buffers a row: its cells in the order of the table's columns, and a tag that identifies it in a [`RowFailure`].
    ///
    /// If the table was reopened with other columns, rows applied through the earlier [`Table`] are sent first.
    ///
    /// In [`FlushMode::AutoSync`] the error is the row's own. Otherwise an error means that the row was not buffered:
    /// `Invalid` for a row without its key, `Throttled` for a full buffer in [`FlushMode::Manual`].
    pub async fn apply(
        &self,
        table: &Table,
        kind: RowOpKind,
        cells: &[ClientCell<'_>],
        tag: u64,
    ) -> Result<()> {
        let deadline = self.deadline();
        loop {
            match self.buffer_row(table, kind, cells, tag)? {
                PutOutcome::Buffered => break,
                PutOutcome::Full(_) if self.shared.config.mode == FlushMode::Manual => {
                    return Err(Error::throttled("the session's buffer is full; flush it"));
                }
                PutOutcome::Full(rows_in_flight) => self.wait_for_buffer_space(rows_in_flight).await,
                PutOutcome::Locate(key) => match self.shared.client.locate(table, &key, deadline).await? {
                    LocationLookup::Tablet(tablet) => self.open_buffer(table, tablet),
                    LocationLookup::Gap { .. } | LocationLookup::Unknown => {
                        return self.reject_row(table, tag);
                    }
                },
            }
        }
        if self.shared.config.mode == FlushMode::AutoSync {
            return match self.flush().await.pop() {
                Some(failure) => Err(failure.error),
                None => Ok(()),
            };
        }
        Ok(())
    }

    /// Buffers rows given by column, in the order of the table's columns. A column that is `None` is not set. `tags`
    /// has one tag per row.
    pub async fn apply_columns(
        &self,
        table: &Table,
        kind: RowOpKind,
        columns: &[Option<ColumnBlock>],
        tags: &[u64],
    ) -> Result<()> {
        let mut cells = Vec::with_capacity(columns.len());
        for (row, tag) in tags.iter().enumerate() {
            cells.clear();
            let cell = |column| ColumnBlock::cell(column, row).into();
            cells.extend(columns.iter().map(|column| column.as_ref().map_or(ClientCell::Unset, cell)));
            self.apply(table, kind, &cells, *tag).await?;
        }
        Ok(())
    }

    /// Sends all buffered rows and waits until all flushes have ended. Returns the failures since the last call.
    #[must_use = "rows may have failed"]
    pub async fn flush(&self) -> Vec<RowFailure> {
        self.begin_flush();
        self.wait_for_flushes().await
    }

    /// Drops all buffered rows, and waits until all flushes have ended: from then on no row given before is written.
    /// Returns the failures since the last call.
    pub async fn discard(&self) -> Vec<RowFailure> {
        {
            let mut state = self.shared.state.lock();
            state.buffered = 0;
            state.epoch += 1;
            state.tables.values_mut().for_each(|buffer| buffer.tablets.clear());
        }
        self.wait_for_flushes().await
    }

    async fn wait_for_flushes(&self) -> Vec<RowFailure> {
        loop {
            let done = self.shared.flush_done.notified();
            {
                let mut state = self.shared.state.lock();
                if state.flushes == 0 {
                    return std::mem::take(&mut state.failures);
                }
            }
            done.await;
        }
    }

    /// Returns the encoded bytes of buffered rows that are not sent yet.
    pub fn buffered_bytes(&self) -> usize {
        self.shared.state.lock().buffered
    }

    /// Returns the number of rows written.
    pub fn written(&self) -> u64 {
        self.shared.state.lock().written
    }

    /// Returns the number of rows skipped by IGNORE operations.
    pub fn ignored(&self) -> u64 {
        self.shared.state.lock().ignored
    }

    /// Returns the number of failures that were counted but not kept.
    pub fn failures_dropped(&self) -> u64 {
        self.shared.state.lock().failures_dropped
    }

    /// Returns the failures so far, without waiting.
    pub fn take_failures(&self) -> Vec<RowFailure> {
        std::mem::take(&mut self.shared.state.lock().failures)
    }

    /// Returns the receipts since the last call, if the session keeps them, in the order of their batches. A row
    /// without a receipt may have been written or not.
    pub fn take_receipts(&self) -> Vec<RowReceipt> {
        std::mem::take(&mut self.shared.state.lock().receipts)
    }

    fn deadline(&self) -> Instant {
        self.shared.client.env().now().mono.after(self.shared.config.timeout)
    }

    fn buffer_row(
        &self,
        table: &Table,
        kind: RowOpKind,
        cells: &[ClientCell<'_>],
        tag: u64,
    ) -> Result<PutOutcome> {
        let config = &self.shared.config;
        let mut state = self.shared.state.lock();
        let state = &mut *state;
        if state.buffered + state.in_flight >= config.buffer_bytes {
            return Ok(PutOutcome::Full(state.in_flight > 0));
        }
        let locations_dropped = self.shared.client.locations_dropped();
        let is_old =
            |buffer: &TableBuffer| !buffer.is_of(table) || buffer.locations_dropped != locations_dropped;
        if state.tables.get(table.id()).is_some_and(is_old) {
            // Buffered rows are encoded in the earlier schema, or for tablets that may be dropped by now. They are sent
            // first, and this row is for the tablets of today.
            self.send(state);
            state.tables.remove(table.id());
        }
        if !state.tables.contains_key(table.id()) {
            let partitioner = Partitioner::new(table.partition_schema(), table.schema())?;
            let (table, key, tablets) = (table.clone(), Vec::new(), BTreeMap::new());
            let id = table.id().to_string();
            state.tables.insert(id, TableBuffer { table, locations_dropped, partitioner, key, tablets });
        }
        let buffer = state.tables.get_mut(table.id()).expect("just inserted");
        let Some(tablet) = buffer.tablet_of(cells)? else {
            return Ok(PutOutcome::Locate(buffer.key.clone()));
        };
        let before = tablet.writer.byte_size();
        tablet.writer.push(kind, cells);
        tablet.tags.push(tag);
        let first = state.buffered == 0;
        state.buffered += tablet.writer.byte_size() - before;
        let (full, epoch) = (state.buffered >= config.watermark(), state.epoch);
        if config.mode == FlushMode::AutoBackground {
            if full {
                self.send(state);
            } else if first {
                self.start_timer(epoch);
            }
        }
        Ok(PutOutcome::Buffered)
    }

    /// Opens the buffer of a tablet. Rows that are buffered for tablets in its place, which it has replaced, are sent
    /// first: another row may belong to a tablet that begins where an open one did.
    fn open_buffer(&self, table: &Table, tablet: Arc<TabletLocation>) {
        let mut state = self.shared.state.lock();
        let buffer = state.tables.get(table.id()).expect("buffer_row inserted it");
        let is_replaced =
            |open: &TabletBuffer| open.tablet.id != tablet.id && open.tablet.overlaps(&tablet.partition);
        if buffer.tablets.values().any(is_replaced) {
            self.send(&mut state);
        }
        let buffer = state.tables.get_mut(table.id()).expect("sending keeps it");
        buffer.tablets.retain(|_, open| !is_replaced(open));
        let writer = RowOpsWriter::new(buffer.table.schema());
        let start = tablet.partition.start.clone();
        buffer.tablets.entry(start).or_insert(TabletBuffer { tablet, writer, tags: Vec::new() });
    }

    /// Fails a row that belongs to no tablet.
    fn reject_row(&self, table: &Table, tag: u64) -> Result<()> {
        let error = Error::not_found(format!("no partition of table {} covers the row", table.name()));
        if self.shared.config.mode == FlushMode::AutoSync {
            return Err(error);
        }
        self.shared.state.lock().fail(tag, error);
        Ok(())
    }

    async fn wait_for_buffer_space(&self, rows_in_flight: bool) {
        let done = self.shared.flush_done.notified();
        if !rows_in_flight {
            self.begin_flush();
        }
        if self.shared.state.lock().flushes > 0 {
            done.await;
        }
    }

    fn start_timer(&self, epoch: u64) {
        // Weak: rows of a session that is dropped must not be sent later, over what others wrote meanwhile.
        let shared = Arc::downgrade(&self.shared);
        let env = self.shared.client.env().clone();
        let interval = self.shared.config.flush_interval;
        self.shared.client.env().spawn("session timer", async move {
            env.sleep(interval).await;
            let Some(shared) = shared.upgrade() else { return };
            let session = Session { shared };
            let mut state = session.shared.state.lock();
            if state.epoch == epoch {
                session.send(&mut state);
            }
        });
    }

    /// Sends all buffered rows.
    fn begin_flush(&self) {
        self.send(&mut self.shared.state.lock());
    }

    fn send(&self, state: &mut State) {
        if state.buffered == 0 {
            return;
        }
        let bytes = std::mem::take(&mut state.buffered);
        state.in_flight += bytes;
        state.flushes += 1;
        state.epoch += 1;
        let mut batches = Vec::new();
        for buffer in state.tables.values_mut() {
            for (_, tablet) in std::mem::take(&mut buffer.tablets) {
                if !tablet.tags.is_empty() {
                    batches.push((buffer.table.clone(), tablet));
                }
            }
        }
        let session = self.clone();
        self.shared.client.env().spawn("session flush", async move {
            join_all(batches.into_iter().map(|(table, tablet)| session.write(table, tablet))).await;
            let mut state = session.shared.state.lock();
            state.in_flight -= bytes;
            state.flushes -= 1;
            drop(state);
            session.shared.flush_done.notify_waiters();
        });
    }

    async fn write(&self, table: Table, buffer: TabletBuffer) {
        let TabletBuffer { tablet, writer, tags } = buffer;
        let (rows, indirect) = writer.finish();
        let consistency = self.shared.config.consistency;
        let batch = WriteBatch { rows: Bytes::from(rows), indirect: Bytes::from(indirect), consistency };
        let written = self.shared.client.write_batch(&table, tablet, &batch, self.deadline()).await;
        let mut state = self.shared.state.lock();
        match written {
            Ok(done) => {
                if self.shared.config.receipts {
                    state.keep_receipts(&tags, &done);
                }
                let failed = done.refused.len() as u64 + done.ignored;
                state.written += (tags.len() as u64).saturating_sub(failed);
                state.ignored += done.ignored;
                for (row, error) in done.refused {
                    state.fail(tags.get(row).copied().unwrap_or(u64::MAX), error);
                }
            }
            Err(error) => tags.into_iter().for_each(|tag| state.fail(tag, error.clone())),
        }
    }
}

impl State {
    fn keep_receipts(&mut self, tags: &[u64], done: &BatchOutcome) {
        let Some(timestamp) = done.timestamp else { return };
        let first = self.receipts.len();
        let tablet = &done.tablet;
        let receipt = |&tag| RowReceipt { tag, tablet: tablet.clone(), timestamp, refused: None };
        self.receipts.extend(tags.iter().map(receipt));
        for (row, error) in &done.refused {
            if let Some(receipt) = self.receipts.get_mut(first + row) {
                receipt.refused = Some(error.clone());
            }
        }
    }

    fn fail(&mut self, tag: u64, error: Error) {
        if self.failures.len() < FAILURES_MAX {
            self.failures.push(RowFailure { tag, error });
        } else {
            self.failures_dropped += 1;
        }
    }
}

impl TableBuffer {
    /// Returns true if rows of `table` have the same schema and partitioning as the buffered ones.
    fn is_of(&self, table: &Table) -> bool {
        let (own, other) = (&self.table, table);
        Arc::ptr_eq(&own.info, &other.info)
            || own.schema() == other.schema() && own.partition_schema() == other.partition_schema()
    }

    /// Returns the buffer of the row's tablet, if one is open. Stores the row's partition key in `key`.
    fn tablet_of(&mut self, cells: &[ClientCell<'_>]) -> Result<Option<&mut TabletBuffer>> {
        let keys = self.table.schema().key_columns();
        for (column, cell) in keys.iter().zip(cells) {
            if cell.value().is_none() && !column.auto_incrementing {
                return Err(Error::invalid(format!("the row has no value for key column {:?}", column.name)));
            }
        }
        self.key.clear();
        self.partitioner.partition_key(|i| cells[i].value().unwrap_or_default(), &mut self.key);
        let up_to = (Bound::Unbounded, Bound::Included(self.key.as_slice()));
        let found = self.tablets.range_mut::<[u8], _>(up_to).next_back();
        Ok(found.map(|(_, tablet)| tablet).filter(|tablet| tablet.tablet.partition.contains(&self.key)))
    }
}
