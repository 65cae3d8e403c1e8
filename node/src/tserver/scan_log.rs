//! Open scans and the last ones that ended, for the web page. Values of predicates are not kept.

use engine::sync::{Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use engine::ids::{ColumnId, TabletId};
use engine::schema::predicate::PredicateKind;
use engine::schema::row_block::ProjectedColumn;
use engine::tablet::scan::ScanSpec;
use engine::time::Instant;
use nyala_common::env::Clock;
use nyala_common::metrics::Histogram;

use crate::hosting::tablet_entry::TabletEntry;

/// Time for which a slow scan is open: the default of Kudu's `slow_scanner_threshold_ms`.
const SLOW: Duration = Duration::from_secs(60);
/// Ended scans that are remembered.
const ENDED_MAX: usize = 10;

/// State of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanState {
    Active,
    /// It has returned all rows.
    Complete,
    Failed,
    /// Its client closed it early, or it expired.
    Closed,
}

/// A scan: its request without the values of predicates, and its progress.
#[derive(Clone)]
pub struct ScanRecord {
    pub tablet: Arc<TabletEntry>,
    pub user: Arc<str>,
    projection: Arc<[ProjectedColumn]>,
    predicates: Vec<(ColumnId, &'static str)>,
    limit: Option<u64>,
    ordered: bool,
    pub state: ScanState,
    pub opened: Instant,
    pub ended: Option<Instant>,
    pub round_trips: u64,
    pub rows: u64,
    pub bytes: u64,
}

impl ScanRecord {
    /// Returns the scan as SQL, without values.
    pub fn statement(&self) -> String {
        let columns: Vec<&str> = self.projection.iter().map(|column| column.name.as_str()).collect();
        let columns = if columns.is_empty() { "COUNT(*)".to_owned() } else { columns.join(", ") };
        let mut text = format!("SELECT {columns} FROM {}", self.tablet.table_name());
        let schema = self.tablet.tablet().map(|tablet| tablet.schema());
        for (at, (column, kind)) in self.predicates.iter().enumerate() {
            let known = schema.as_ref().and_then(|schema| schema.by_id(*column));
            let name = known.map_or_else(|| format!("column {}", column.0), |column| column.name.clone());
            text.push_str(if at == 0 { " WHERE " } else { " AND " });
            text.push_str(&format!("{name} {kind}"));
        }
        if self.ordered {
            text.push_str(" ORDER BY primary key");
        }
        if let Some(limit) = self.limit {
            text.push_str(&format!(" LIMIT {limit}"));
        }
        text
    }
}

fn predicate_text(kind: &PredicateKind) -> &'static str {
    match kind {
        PredicateKind::Range { .. } => "BETWEEN <redacted>",
        PredicateKind::Equal(_) => "= <redacted>",
        PredicateKind::InList(_) => "IN (<redacted>)",
        PredicateKind::IsNotNull => "IS NOT NULL",
        PredicateKind::IsNull => "IS NULL",
        PredicateKind::InBloom { .. } => "IN BLOOM FILTER",
    }
}

#[derive(Default)]
struct ScanRecords {
    next: u64,
    open: BTreeMap<u64, ScanRecord>,
    ended: VecDeque<ScanRecord>,
    /// Times of the scans that ended.
    durations: Arc<Histogram>,
}

/// Scans of a server.
pub struct ScanLog {
    clock: Arc<dyn Clock>,
    records: Arc<Mutex<ScanRecords>>,
}

fn lock(records: &Mutex<ScanRecords>) -> MutexGuard<'_, ScanRecords> {
    records.lock()
}

impl ScanLog {
    pub fn new(clock: Arc<dyn Clock>) -> ScanLog {
        ScanLog { clock, records: Arc::default() }
    }

    /// Records the begin of a scan at `now`. It ends when the entry is dropped, and is open for others to see from
    /// [`ScanLogEntry::list`] on.
    pub fn begin(
        &self,
        (tablet, user): (Arc<TabletEntry>, Arc<str>),
        spec: &ScanSpec,
        projection: Arc<[ProjectedColumn]>,
        now: Instant,
    ) -> ScanLogEntry {
        let predicate = |predicate: &engine::schema::predicate::Predicate| {
            (predicate.column, predicate_text(&predicate.kind))
        };
        let record = ScanRecord {
            tablet,
            user,
            projection,
            predicates: spec.predicates.iter().map(predicate).collect(),
            limit: spec.limit,
            ordered: spec.ordered,
            state: ScanState::Active,
            opened: now,
            ended: None,
            round_trips: 0,
            rows: 0,
            bytes: 0,
        };
        let state = EntryState::Unlisted(record);
        ScanLogEntry { state, clock: self.clock.clone(), records: self.records.clone() }
    }

    /// Returns the open scans, the oldest first, and the ended ones, the latest first.
    pub fn all(&self) -> Vec<ScanRecord> {
        let records = lock(&self.records);
        records.open.values().chain(&records.ended).cloned().collect()
    }
}

impl ScanLog {
    /// Returns the times of the scans that ended.
    pub fn durations(&self) -> Arc<Histogram> {
        lock(&self.records).durations.clone()
    }

    /// Returns the number of scans that are open for more than [`SLOW`].
    pub fn slow(&self) -> u64 {
        let now = self.clock.now().mono;
        let is_slow = |record: &&ScanRecord| now.since(record.opened) >= SLOW;
        lock(&self.records).open.values().filter(is_slow).count() as u64
    }

    /// Returns the number of open scans of each tablet that has some.
    pub fn open_by_tablet(&self) -> BTreeMap<TabletId, u64> {
        let mut counts = BTreeMap::new();
        for record in lock(&self.records).open.values() {
            *counts.entry(record.tablet.id).or_default() += 1;
        }
        counts
    }
}

/// Place of a scan's record.
enum EntryState {
    /// With the entry: a scan of a few rows has mostly ended before a page could show it.
    Unlisted(ScanRecord),
    /// Among the open scans, by this number.
    Listed(u64),
    Ended,
}

/// Entry of a scan. Dropping it ends the scan.
pub struct ScanLogEntry {
    state: EntryState,
    clock: Arc<dyn Clock>,
    records: Arc<Mutex<ScanRecords>>,
}

impl ScanLogEntry {
    /// Lists the scan among the open ones.
    pub fn list(&mut self) {
        let mut records = lock(&self.records);
        self.state = match std::mem::replace(&mut self.state, EntryState::Ended) {
            EntryState::Unlisted(record) => {
                let id = records.next;
                records.next += 1;
                records.open.insert(id, record);
                EntryState::Listed(id)
            }
            other => other,
        };
    }

    /// Counts a batch.
    pub fn count(&mut self, rows: usize, bytes: usize) {
        self.change(|record| {
            record.round_trips += 1;
            record.rows += rows as u64;
            record.bytes += bytes as u64;
        });
    }

    pub fn set_state(&mut self, state: ScanState) {
        self.change(|record| record.state = state);
    }

    fn change(&mut self, change: impl FnOnce(&mut ScanRecord)) {
        match &mut self.state {
            EntryState::Unlisted(record) => change(record),
            EntryState::Listed(id) => lock(&self.records).open.get_mut(id).map_or((), change),
            EntryState::Ended => {}
        }
    }
}

impl Drop for ScanLogEntry {
    fn drop(&mut self) {
        let now = self.clock.now().mono;
        let mut records = lock(&self.records);
        let record = match std::mem::replace(&mut self.state, EntryState::Ended) {
            EntryState::Unlisted(record) => Some(record),
            EntryState::Listed(id) => records.open.remove(&id),
            EntryState::Ended => None,
        };
        let Some(mut record) = record else { return };
        if record.state == ScanState::Active {
            record.state = ScanState::Closed;
        }
        record.ended = Some(now);
        let (tablet, time) = (record.tablet.clone(), now.since(record.opened));
        records.durations.record_micros(time);
        records.ended.push_front(record);
        records.ended.truncate(ENDED_MAX);
        drop(records);
        if let Ok(replica) = tablet.running() {
            replica.metrics().scan_ended(time);
        }
    }
}
