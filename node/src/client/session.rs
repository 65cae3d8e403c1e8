//! Writing rows: a buffer per tablet, flushed by hand, row by row, or in the background.
//!
//! ```text
//! apply ─► buffer ──(full enough, or old enough)─► in flight: one Write per tablet
//!              └────────── together never more than `buffer_bytes` ─────────┘
//! ```
//!
//! In the background a row may reach the server before one that was applied earlier, if they went out in
//! different flushes: who updates a row that they just inserted flushes in between.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use engine::error::{Error, Result};
use engine::schema::block::ColumnBlock;
use engine::schema::ops::{Cell, RowOpKind, RowOpsWriter};
use engine::schema::partition::Partitioner;
use engine::time::Instant;
use futures_util::future::join_all;
use tokio::sync::Notify;

use super::locations::{Lookup, TabletLocation};
use super::write::{Batch, Written};
use super::{Client, Table, lock};
use crate::proto::kudu::ExternalConsistencyMode;

/// When a session sends what is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushMode {
    /// At once; `apply` returns when the row is written or refused.
    AutoSync,
    /// When the buffer is filled up to the watermark or the flush interval is over; `apply` waits only while
    /// the buffer is full.
    AutoBackground,
    /// When [`Session::flush`] is called; `apply` fails when the buffer is full.
    Manual,
}

#[derive(Debug, Clone)]
pub struct SessionConfig {
    pub mode: FlushMode,
    /// Rows buffered and in flight, together, in encoded bytes.
    pub buffer_bytes: usize,
    /// The share of `buffer_bytes` that begins a background flush when it is buffered. The lower, the more room
    /// is left for rows while others are in flight; above 100, a full buffer is what begins one.
    pub watermark_percent: usize,
    /// How old a buffered row may get in the background.
    pub flush_interval: Duration,
    /// How long a flush may take, retries included.
    pub timeout: Duration,
    /// Whether each row that a tablet answered is kept for [`Session::take_receipts`].
    pub receipts: bool,
    /// Whether a write is answered at once, or when its time has passed on every clock (COMMIT_WAIT).
    pub consistency: ExternalConsistencyMode,
}

impl SessionConfig {
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

    /// A background flush begins when this much is buffered.
    fn watermark(&self) -> usize {
        self.buffer_bytes.saturating_mul(self.watermark_percent) / 100
    }
}

/// Failures kept for [`Session::flush`]; more are only counted.
const FAILURES_MAX: usize = 100_000;

/// A row that was not written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowFailure {
    /// What the row was applied with.
    pub tag: u64,
    pub error: Error,
}

/// A tablet's answer to one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// What the row was applied with.
    pub tag: u64,
    /// When it was written or refused, as a hybrid timestamp.
    pub timestamp: u64,
    pub refused: Option<Error>,
}

/// Rows on their way to tables. Cheap to clone; clones share the buffer. Rows that are buffered when the last
/// clone is dropped are lost: flush first.
#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    config: SessionConfig,
    state: Mutex<State>,
    /// Something in flight has landed.
    landed: Notify,
}

#[derive(Default)]
struct State {
    tables: BTreeMap<String, TableBuffer>,
    buffered: usize,
    in_flight: usize,
    flushes: usize,
    /// Counts flushes begun: tells a timer whether its rows are gone already.
    epoch: u64,
    failures: Vec<RowFailure>,
    failures_dropped: u64,
    receipts: Vec<Receipt>,
    written: u64,
    ignored: u64,
}

struct TableBuffer {
    table: Table,
    partitioner: Partitioner,
    key: Vec<u8>,
    tablets: BTreeMap<Vec<u8>, TabletBuffer>,
}

struct TabletBuffer {
    tablet: Arc<TabletLocation>,
    writer: RowOpsWriter,
    tags: Vec<u64>,
}

enum Put {
    Buffered,
    /// There is no room; true if something is in flight that makes room when it lands.
    Full(bool),
    /// Nobody knows yet who holds this partition key.
    Locate(Vec<u8>),
}

impl Client {
    pub fn session(&self, config: SessionConfig) -> Session {
        let client = self.clone();
        let shared = Shared { client, config, state: Mutex::default(), landed: Notify::new() };
        Session { shared: Arc::new(shared) }
    }
}

impl Session {
    /// Takes a row: its cells in the order of the table's columns, and a tag to recognise it by if it fails.
    ///
    /// When a table was opened anew after its columns changed, what was applied to it before is sent first.
    ///
    /// In [`FlushMode::AutoSync`] the error is the row's own. Otherwise an error means the row was not taken:
    /// `Invalid` for a row without its key, `Throttled` for a full buffer in [`FlushMode::Manual`].
    pub async fn apply(&self, table: &Table, kind: RowOpKind, cells: &[Cell<'_>], tag: u64) -> Result<()> {
        let deadline = self.deadline();
        loop {
            match self.put(table, kind, cells, tag)? {
                Put::Buffered => break,
                Put::Full(_) if self.shared.config.mode == FlushMode::Manual => {
                    return Err(Error::throttled("the session's buffer is full; flush it"));
                }
                Put::Full(landing) => self.make_room(landing).await,
                Put::Locate(key) => match self.shared.client.locate(table, &key, deadline).await? {
                    Lookup::Tablet(tablet) => self.open_buffer(table, tablet)?,
                    Lookup::Gap { .. } | Lookup::Unknown => return self.refuse(table, tag),
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

    /// Takes rows by column, in the order of the table's columns; a column that is not given is not set. One
    /// tag per row says how many there are.
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
            cells.extend(columns.iter().map(|column| column.as_ref().map_or(Cell::Unset, cell)));
            self.apply(table, kind, &cells, *tag).await?;
        }
        Ok(())
    }

    /// Sends everything and waits until it has landed. Gives the rows that failed since the last call.
    #[must_use = "rows may have failed"]
    pub async fn flush(&self) -> Vec<RowFailure> {
        self.begin_flush();
        loop {
            let landed = self.shared.landed.notified();
            {
                let mut state = lock(&self.shared.state);
                if state.flushes == 0 {
                    return std::mem::take(&mut state.failures);
                }
            }
            landed.await;
        }
    }

    /// Encoded bytes of rows that were taken and not sent yet.
    pub fn buffered_bytes(&self) -> usize {
        lock(&self.shared.state).buffered
    }

    /// Rows that were written.
    pub fn written(&self) -> u64 {
        lock(&self.shared.state).written
    }

    /// Rows that the IGNORE operations passed over.
    pub fn ignored(&self) -> u64 {
        lock(&self.shared.state).ignored
    }

    /// Failures that were too many to keep.
    pub fn failures_dropped(&self) -> u64 {
        lock(&self.shared.state).failures_dropped
    }

    /// Failures so far, without waiting.
    pub fn take_failures(&self) -> Vec<RowFailure> {
        std::mem::take(&mut lock(&self.shared.state).failures)
    }

    /// Answers since the last call, if the session keeps them, in the order of their batches. A row without one may
    /// have been written or not.
    pub fn take_receipts(&self) -> Vec<Receipt> {
        std::mem::take(&mut lock(&self.shared.state).receipts)
    }

    fn deadline(&self) -> Instant {
        self.shared.client.env().now().mono.after(self.shared.config.timeout)
    }

    fn put(&self, table: &Table, kind: RowOpKind, cells: &[Cell<'_>], tag: u64) -> Result<Put> {
        let config = &self.shared.config;
        let mut state = lock(&self.shared.state);
        let state = &mut *state;
        if state.buffered + state.in_flight >= config.buffer_bytes {
            return Ok(Put::Full(state.in_flight > 0));
        }
        if state.tables.get(table.id()).is_some_and(|buffer| !buffer.is_of(table)) {
            // What was buffered goes out as the table was when it was applied.
            self.send(state);
            state.tables.remove(table.id());
        }
        if !state.tables.contains_key(table.id()) {
            let partitioner = Partitioner::new(table.partition_schema(), table.schema())?;
            let (table, key) = (table.clone(), Vec::new());
            let id = table.id().to_string();
            state.tables.insert(id, TableBuffer { table, partitioner, key, tablets: BTreeMap::new() });
        }
        let buffer = state.tables.get_mut(table.id()).expect("just inserted");
        let Some(tablet) = buffer.tablet_of(cells)? else { return Ok(Put::Locate(buffer.key.clone())) };
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
        Ok(Put::Buffered)
    }

    fn open_buffer(&self, table: &Table, tablet: Arc<TabletLocation>) -> Result<()> {
        let mut state = lock(&self.shared.state);
        let buffer = state.tables.get_mut(table.id()).expect("put made it");
        let writer = RowOpsWriter::new(buffer.table.schema());
        let start = tablet.partition.start.clone();
        buffer.tablets.entry(start).or_insert(TabletBuffer { tablet, writer, tags: Vec::new() });
        Ok(())
    }

    /// The row belongs to no tablet.
    fn refuse(&self, table: &Table, tag: u64) -> Result<()> {
        let error = Error::not_found(format!("no partition of table {} holds the row", table.name()));
        if self.shared.config.mode == FlushMode::AutoSync {
            return Err(error);
        }
        lock(&self.shared.state).fail(tag, error);
        Ok(())
    }

    async fn make_room(&self, landing: bool) {
        let landed = self.shared.landed.notified();
        if !landing {
            self.begin_flush();
        }
        if lock(&self.shared.state).flushes > 0 {
            landed.await;
        }
    }

    fn start_timer(&self, epoch: u64) {
        let session = self.clone();
        let env = self.shared.client.env().clone();
        let interval = self.shared.config.flush_interval;
        self.shared.client.env().spawn("session timer", async move {
            env.sleep(interval).await;
            let mut state = lock(&session.shared.state);
            if state.epoch == epoch {
                session.send(&mut state);
            }
        });
    }

    /// Sends what is buffered.
    fn begin_flush(&self) {
        self.send(&mut lock(&self.shared.state));
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
            let mut state = lock(&session.shared.state);
            state.in_flight -= bytes;
            state.flushes -= 1;
            drop(state);
            session.shared.landed.notify_waiters();
        });
    }

    async fn write(&self, table: Table, buffer: TabletBuffer) {
        let TabletBuffer { tablet, writer, tags } = buffer;
        let (rows, indirect) = writer.finish();
        let consistency = self.shared.config.consistency;
        let batch = Batch { rows: Bytes::from(rows), indirect: Bytes::from(indirect), consistency };
        let written = self.shared.client.write_batch(&table, tablet, &batch, self.deadline()).await;
        let mut state = lock(&self.shared.state);
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
    fn keep_receipts(&mut self, tags: &[u64], done: &Written) {
        let Some(timestamp) = done.timestamp else { return };
        let first = self.receipts.len();
        self.receipts.extend(tags.iter().map(|&tag| Receipt { tag, timestamp, refused: None }));
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
    /// Whether rows of this table, as it was opened, can join those buffered.
    fn is_of(&self, table: &Table) -> bool {
        let (own, other) = (&self.table, table);
        Arc::ptr_eq(&own.info, &other.info)
            || own.schema() == other.schema() && own.partition_schema() == other.partition_schema()
    }

    /// The buffer of the row's tablet, if there is one; leaves the row's partition key in `key`.
    fn tablet_of(&mut self, cells: &[Cell<'_>]) -> Result<Option<&mut TabletBuffer>> {
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
