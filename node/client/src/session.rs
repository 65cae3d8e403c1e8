//! Sessions: rows are buffered per tablet and flushed per row, in the background, or on request.
//!
//! ```text
//! apply ─► buffer ──(buffer watermark, or interval)──► in flight: one Write per tablet
//!   ▲          └─────────── in total at most `buffer_bytes` ───────────┘
//!   └── failure of the row in `AutoSync` ──┴── otherwise ──► failures of all clones ─► flush
//! ```
//!
//! - Rows of one key take effect in the order in which they were applied, also over several flushes: a batch waits for
//!   the earlier ones of its tablet (`batch_order`), unless all of them only insert. Of two INSERTs of one key in
//!   different flushes, either one may be refused. In `AutoSync` a row waits for no other: the caller waits for its
//!   result before the next one, and the rows of different callers have no order.
//! - Clones share buffer, failures, receipts and counts: a flush of any clone returns the failures of all, which their
//!   tags tell apart. Tasks that must not see each other's rows open a session each; only in `AutoSync` does each
//!   caller get the result of its own row.

use engine::sync::Mutex;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use engine::error::{Error, Result};
use engine::schema::Schema;
use engine::schema::partition::{PartitionSchema, Partitioner};
use engine::schema::row_block::ColumnBlock;
use engine::schema::row_ops::{ClientCell, RowOpKind, RowOpsWriter};
use engine::time::Instant;
use futures_util::future::join_all;
use tokio::sync::{Notify, oneshot};

use super::batch_order::{BatchOrder, BatchTurn};
use super::location_cache::{LocationLookup, TabletLocation};
use super::write_batch::{BatchOutcome, WriteBatch};
use super::{Client, Table};

pub use super::session_config::{FlushMode, SessionConfig};

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

/// A buffer of rows to write. Cheap to clone; clones share the buffer and the failures. Rows still buffered when the
/// last clone is dropped are lost: flush first.
#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
    /// Held by the clones only. Flushes in flight hold `shared`, also after the last clone is dropped.
    clones: Arc<()>,
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
    /// Order of the batches in flight.
    order: BatchOrder,
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
    /// True while no row changes one that is there.
    inserts_only: bool,
    tags: Vec<u64>,
    /// Caller that waits for the result of the only row, in [`FlushMode::AutoSync`].
    waiter: Option<RowWaiter>,
}

/// Rows that are sent to a tablet in one call.
struct SessionBatch {
    table: Table,
    buffer: TabletBuffer,
    /// `None` for a row that waits for no other.
    turn: Option<BatchTurn>,
}

/// Sender of the result of a row: its failure, or `None`.
type RowWaiter = oneshot::Sender<Option<RowFailure>>;

/// Wait for the result of a row. If its caller gives up, the next flush returns the failure.
struct RowWait<'a> {
    shared: &'a Shared,
    result: oneshot::Receiver<Option<RowFailure>>,
}

impl Drop for RowWait<'_> {
    fn drop(&mut self) {
        self.result.close();
        if let Ok(Some(failure)) = self.result.try_recv() {
            self.shared.state.lock().fail(None, failure);
        }
    }
}

enum PutOutcome {
    Buffered,
    /// The row is in flight, alone in its batch; its result follows.
    Sent(oneshot::Receiver<Option<RowFailure>>),
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
        Session { shared: Arc::new(shared), clones: Arc::default() }
    }
}

impl Session {
    /// Buffers a row: its cells in the order of the table's columns, and a tag that identifies it in a [`RowFailure`].
    ///
    /// If the table was reopened with other columns, rows applied through the earlier [`Table`] are sent first.
    ///
    /// In [`FlushMode::AutoSync`] the error is the row's own. If the future is dropped before its end, the row may be
    /// written or not, and the next flush returns its failure. Otherwise an error means that the row was not buffered:
    /// `Invalid` for a row without its key, `Throttled` for a full buffer in [`FlushMode::Manual`].
    pub async fn apply(
        &self,
        table: &Table,
        kind: RowOpKind,
        cells: &[ClientCell<'_>],
        tag: u64,
    ) -> Result<()> {
        let deadline = self.shared.deadline();
        loop {
            match self.buffer_row(table, kind, cells, tag)? {
                PutOutcome::Buffered => return Ok(()),
                PutOutcome::Sent(result) => return self.wait_for_row(result).await,
                PutOutcome::Full(_) if self.shared.config.mode == FlushMode::Manual => {
                    return Err(Error::throttled("the session's buffer is full; flush it"));
                }
                PutOutcome::Full(rows_in_flight) => self.wait_for_buffer_space(rows_in_flight).await,
                PutOutcome::Locate(key) => {
                    let locations_dropped = self.shared.client.locations_dropped();
                    match self.shared.client.locate(table, &key, deadline).await? {
                        LocationLookup::Tablet(tablet) => self.open_buffer(table, tablet, locations_dropped),
                        LocationLookup::Gap { .. } | LocationLookup::Unknown => {
                            return self.reject_row(table, tag);
                        }
                    }
                }
            }
        }
    }

    async fn wait_for_row(&self, result: oneshot::Receiver<Option<RowFailure>>) -> Result<()> {
        let mut wait = RowWait { shared: &self.shared, result };
        match (&mut wait.result).await {
            Ok(None) => Ok(()),
            Ok(Some(failure)) => Err(failure.error),
            Err(_) => Err(Error::timed_out("the session's tasks have ended; the row may be written or not")),
        }
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

    /// Sends all buffered rows and waits until all flushes have ended. Returns the failures since the last call, of
    /// rows of all clones; in [`FlushMode::AutoSync`] only those whose callers no longer wait.
    #[must_use = "rows may have failed"]
    pub async fn flush(&self) -> Vec<RowFailure> {
        self.begin_flush();
        self.wait_for_flushes().await
    }

    /// Drops all buffered rows, those of all clones, and waits until all flushes have ended: from then on no row given
    /// before is written. Returns the failures since the last call.
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
            self.shared.send(state);
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
        let row_bytes = tablet.push(kind, cells, tag);
        let result = (config.mode == FlushMode::AutoSync).then(|| tablet.add_waiter());
        self.on_row_buffered(state, row_bytes);
        Ok(result.map_or(PutOutcome::Buffered, PutOutcome::Sent))
    }

    /// Counts a row that was buffered, and flushes if the mode says so. In [`FlushMode::AutoSync`] the row is sent
    /// before another one can join its batch, whose result is that of the row.
    fn on_row_buffered(&self, state: &mut State, row_bytes: usize) {
        let is_first = state.buffered == 0;
        state.buffered += row_bytes;
        let is_full = state.buffered >= self.shared.config.watermark();
        match self.shared.config.mode {
            FlushMode::AutoSync => self.shared.send(state),
            FlushMode::AutoBackground if is_full => self.shared.send(state),
            FlushMode::AutoBackground if is_first => self.start_timer(state.epoch),
            FlushMode::AutoBackground | FlushMode::Manual => {}
        }
    }

    /// Opens the buffer of a tablet. Rows that are buffered for tablets in its place, which it has replaced, are sent
    /// first: another row may belong to a tablet that begins where an open one did.
    ///
    /// A tablet that was looked up before all locations were dropped may be gone. It is not opened for rows that a
    /// clone has applied since: the caller looks it up again.
    fn open_buffer(&self, table: &Table, tablet: Arc<TabletLocation>, locations_dropped: u64) {
        let mut state = self.shared.state.lock();
        let is_newer = |buffer: &TableBuffer| buffer.locations_dropped != locations_dropped;
        if state.tables.get(table.id()).is_none_or(is_newer) {
            return;
        }
        let buffer = state.tables.get(table.id()).expect("buffer_row inserted it");
        let is_replaced =
            |open: &TabletBuffer| open.tablet.id != tablet.id && open.tablet.overlaps(&tablet.partition);
        if buffer.tablets.values().any(is_replaced) {
            self.shared.send(&mut state);
        }
        let buffer = state.tables.get_mut(table.id()).expect("sending keeps it");
        buffer.tablets.retain(|_, open| !is_replaced(open));
        let writer = RowOpsWriter::new(buffer.table.schema());
        let start = tablet.partition.start.clone();
        let opened = TabletBuffer { tablet, writer, inserts_only: true, tags: Vec::new(), waiter: None };
        buffer.tablets.entry(start).or_insert(opened);
    }

    /// Fails a row that belongs to no tablet.
    fn reject_row(&self, table: &Table, tag: u64) -> Result<()> {
        let error = Error::not_found(format!("no partition of table {} covers the row", table.name()));
        if self.shared.config.mode == FlushMode::AutoSync {
            return Err(error);
        }
        self.shared.state.lock().fail(None, RowFailure { tag, error });
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
        let (shared, clones) = (Arc::downgrade(&self.shared), Arc::downgrade(&self.clones));
        let env = self.shared.client.env().clone();
        let interval = self.shared.config.flush_interval;
        self.shared.client.env().spawn("session timer", async move {
            env.sleep(interval).await;
            let (Some(shared), Some(_clone)) = (shared.upgrade(), clones.upgrade()) else { return };
            let mut state = shared.state.lock();
            if state.epoch == epoch {
                shared.send(&mut state);
            }
        });
    }

    /// Sends all buffered rows.
    fn begin_flush(&self) {
        self.shared.send(&mut self.shared.state.lock());
    }
}

impl Shared {
    fn deadline(&self) -> Instant {
        self.client.env().now().mono.after(self.config.timeout)
    }

    /// Sends all buffered rows. The task of the flush holds no clone of the session.
    fn send(self: &Arc<Shared>, state: &mut State) {
        if state.buffered == 0 {
            return;
        }
        let bytes = std::mem::take(&mut state.buffered);
        state.in_flight += bytes;
        state.flushes += 1;
        state.epoch += 1;
        let batches = state.take_batches(self.config.mode != FlushMode::AutoSync);
        let (shared, deadline) = (self.clone(), self.deadline());
        self.client.env().spawn("session flush", async move {
            join_all(batches.into_iter().map(|batch| shared.write(batch, deadline))).await;
            let mut state = shared.state.lock();
            state.in_flight -= bytes;
            state.flushes -= 1;
            state.order.forget_ended();
            drop(state);
            shared.flush_done.notify_waiters();
        });
    }

    async fn write(&self, batch: SessionBatch, deadline: Instant) {
        let SessionBatch { table, buffer, mut turn } = batch;
        let TabletBuffer { mut tablet, writer, tags, mut waiter, .. } = buffer;
        if let Some(turn) = &mut turn
            && turn.wait().await
        {
            // The batch before may have found another leader.
            tablet = self.client.newest_location(&table, tablet);
        }
        let (rows, indirect) = writer.finish();
        let consistency = self.config.consistency;
        let batch = WriteBatch { rows: Bytes::from(rows), indirect: Bytes::from(indirect), consistency };
        let written = self.client.write_batch(&table, tablet, &batch, deadline).await;
        let mut state = self.state.lock();
        match written {
            Ok(done) => {
                if self.config.receipts {
                    state.keep_receipts(&tags, &done);
                }
                let failed = done.refused.len() as u64 + done.ignored;
                state.written += (tags.len() as u64).saturating_sub(failed);
                state.ignored += done.ignored;
                for (row, error) in done.refused {
                    let tag = tags.get(row).copied().unwrap_or(u64::MAX);
                    state.fail(waiter.take(), RowFailure { tag, error });
                }
            }
            Err(error) => {
                let failure = |tag| RowFailure { tag, error: error.clone() };
                tags.into_iter().for_each(|tag| state.fail(waiter.take(), failure(tag)));
            }
        }
        if let Some(waiter) = waiter {
            // A caller that no longer waits misses nothing: the row is written.
            let _ = waiter.send(None);
        }
    }
}

impl State {
    /// Takes the buffered rows. Batches whose order matters get their turns.
    fn take_batches(&mut self, ordered: bool) -> Vec<SessionBatch> {
        let State { tables, order, .. } = self;
        let mut batches = Vec::new();
        for TableBuffer { table, tablets, .. } in tables.values_mut() {
            for (start, buffer) in std::mem::take(tablets) {
                if buffer.tags.is_empty() {
                    continue;
                }
                let turn = ordered.then(|| order.add(table.id(), &start, buffer.inserts_only));
                batches.push(SessionBatch { table: table.clone(), buffer, turn });
            }
        }
        batches
    }

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

    /// Returns a failure to the caller that waits for the row, or else to the next flush.
    fn fail(&mut self, waiter: Option<RowWaiter>, failure: RowFailure) {
        let unclaimed = match waiter {
            Some(waiter) => waiter.send(Some(failure)).err().flatten(),
            None => Some(failure),
        };
        let Some(failure) = unclaimed else { return };
        if self.failures.len() < FAILURES_MAX {
            self.failures.push(failure);
        } else {
            self.failures_dropped += 1;
        }
    }
}

impl TabletBuffer {
    /// Adds a row, and returns its encoded bytes.
    fn push(&mut self, kind: RowOpKind, cells: &[ClientCell<'_>], tag: u64) -> usize {
        let before = self.writer.byte_size();
        self.writer.push(kind, cells);
        self.inserts_only &= kind.base() == RowOpKind::Insert;
        self.tags.push(tag);
        self.writer.byte_size() - before
    }

    /// Adds a waiter for the result of the only row.
    fn add_waiter(&mut self) -> oneshot::Receiver<Option<RowFailure>> {
        let (waiter, result) = oneshot::channel();
        self.waiter = Some(waiter);
        result
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
        check_key(self.table.schema(), self.table.partition_schema(), cells)?;
        self.key.clear();
        self.partitioner.partition_key(|i| cells[i].value().unwrap_or_default(), &mut self.key);
        let up_to = (Bound::Unbounded, Bound::Included(self.key.as_slice()));
        let found = self.tablets.range_mut::<[u8], _>(up_to).next_back();
        Ok(found.map(|(_, tablet)| tablet).filter(|tablet| tablet.tablet.partition.contains(&self.key)))
    }
}

/// Checks that the row has the values of its key. Servers assign the auto-incrementing one, so no row of a table that
/// is partitioned by it has a tablet.
fn check_key(schema: &Schema, partition: &PartitionSchema, cells: &[ClientCell<'_>]) -> Result<()> {
    for (column, cell) in schema.key_columns().iter().zip(cells) {
        if cell.value().is_some() {
            continue;
        }
        let name = &column.name;
        if !column.auto_incrementing {
            return Err(Error::invalid(format!("the row has no value for key column {name:?}")));
        }
        if partition.has_column(column.id) {
            return Err(Error::invalid(format!(
                "the table is partitioned by its auto-incrementing column {name:?}, so rows have no tablet; \
                 create a table with another partitioning"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use engine::ids::ColumnId;
    use engine::schema::partition::HashDimension;
    use engine::schema::{ColumnSchema, DataType};

    use super::*;

    #[test]
    fn a_row_needs_its_key_but_for_what_servers_assign() {
        let mut auto = ColumnSchema::new(1, "auto_incrementing_id", DataType::Int64);
        auto.auto_incrementing = true;
        let schema =
            Schema::new(vec![ColumnSchema::new(0, "k", DataType::Int32), auto], 2).expect("a schema");
        let by = |range_columns: &[u32], hashed: &[u32]| {
            let ids = |columns: &[u32]| columns.iter().map(|id| ColumnId(*id)).collect();
            let dimension = HashDimension { columns: ids(hashed), buckets: 2, seed: 0 };
            let hash = if hashed.is_empty() { Vec::new() } else { vec![dimension] };
            PartitionSchema { hash, range_columns: ids(range_columns), custom: Vec::new() }
        };
        let (unset, k) = (ClientCell::Unset, ClientCell::Value(&[1, 0, 0, 0]));
        let check = |partition: &PartitionSchema, cells: [ClientCell<'_>; 2]| {
            check_key(&schema, partition, &cells).map_err(|error| error.message)
        };
        assert_eq!(check(&by(&[0], &[]), [k, unset]), Ok(()));
        let error = check(&by(&[0], &[]), [unset, unset]).expect_err("no key");
        assert_eq!(error, "the row has no value for key column \"k\"");
        for partition in [by(&[0, 1], &[]), by(&[0], &[1])] {
            let error = check(&partition, [k, unset]).expect_err("no tablet");
            let text = "the table is partitioned by its auto-incrementing column \"auto_incrementing_id\"";
            assert!(error.starts_with(text), "{error}");
            assert_eq!(check(&partition, [k, ClientCell::Value(&[0; 8])]), Ok(()));
        }
    }
}
