//! Reads: gets, scans and diff scans, and their records in the history.
//!
//! A row read at a snapshot that its tablet's leader chooses must be the newest. A snapshot of several tablets is
//! chosen by the first: with clocks that differ it may miss another client's recent write to a later tablet, so it is
//! checked by its timestamp, not by real time. A READ_LATEST scan is served by the server that is asked: a deposed
//! leader that has not learned of it returns its own state. The result is the newest only where a tablet has one
//! replica that is never moved.

use std::time::Duration;

use engine::error::Error;
use engine::time::Timestamp;
use nyala_client::{ReadMode, ScanSpec, Table};
use nyala_common::env::Env;

use super::client_actor::ClientActor;
use super::tables::KEYS_END;
use super::{Workload, row_encoding};
use crate::history::{CallOutcome, ClientRequest, HybridStamp, ScanMode, ScanRequest, ScannedRow, TableNo};
use crate::oracle::{Violation, history_gc};
use crate::projection::WHOLE;
use sim_plan::ClientOp;
use sim_plan::client_ops::{ReadMode as PlanReadMode, ReplicaChoice};

/// Batch size in bytes, small, so that faults hit running scans.
const BATCH_BYTES: u32 = 1024;

/// Batch size where a round trip is long: a snapshot must be read before its history is dropped.
pub(super) const LARGE_BATCH_BYTES: u32 = 64 << 10;
const LONG_WAY: Duration = Duration::from_millis(10);

/// A row or two.
const SLOW_BATCH_BYTES: u32 = 100;

const TABLETS_OF_SHORT_TABLES: usize = 4;

/// The rows of a scan, and the snapshot that was read.
pub(super) struct ScanResult {
    pub rows: Vec<ScannedRow>,
    pub at: Option<HybridStamp>,
}

impl ClientActor {
    pub(super) async fn get(&mut self, number: TableNo, key: i64, at: PlanReadMode, from: ReplicaChoice) {
        let table = self.table(number).await;
        let read_mode = match at {
            PlanReadMode::Latest => ReadMode::Latest,
            PlanReadMode::Snapshot => ReadMode::AtSnapshot(None),
            PlanReadMode::YourWrites => ReadMode::YourWrites,
        };
        let mode = match (at, from) {
            (PlanReadMode::Latest, ReplicaChoice::Leader) => self.workload.mode_of_latest(),
            (PlanReadMode::Snapshot, ReplicaChoice::Leader) => ScanMode::Fresh,
            _ => ScanMode::Stale,
        };
        let scan = ScanRequest {
            table: number,
            keys: (key, key + 1),
            mode,
            diff_from: None,
            ordered: false,
            view: WHOLE,
        };
        // If the key has two columns, some gets use both.
        let (first, second) = (key.to_le_bytes(), row_encoding::pair_of(key));
        let both = row_encoding::has_pair(table.schema()) && key % 3 > 0;
        let cells: &[&[u8]] = if both { &[&first, &second] } else { &[&first] };
        let predicates = table.key_equals(cells);
        let spec = ScanSpec { predicates, read_mode, any_replica: from == ReplicaChoice::Any, ..spec() };
        self.read(&table, scan, spec).await;
    }

    pub(super) async fn scan(
        &mut self,
        number: TableNo,
        keys: (i64, i64),
        at: PlanReadMode,
        back: Duration,
        ordered: bool,
        from: ReplicaChoice,
    ) {
        if keys.0 >= keys.1 {
            return;
        }
        let table = self.table(number).await;
        let (mut mode, read_mode) = match at {
            PlanReadMode::Snapshot if !back.is_zero() => {
                (ScanMode::Snapshot, ReadMode::AtSnapshot(Some(self.ago(back))))
            }
            PlanReadMode::YourWrites if ordered => {
                (ScanMode::Snapshot, ReadMode::AtSnapshot(Some(self.after() + 1)))
            }
            PlanReadMode::Latest if !ordered => (self.workload.mode_of_latest(), ReadMode::Latest),
            PlanReadMode::YourWrites => (ScanMode::Stale, ReadMode::YourWrites),
            PlanReadMode::Latest | PlanReadMode::Snapshot => (ScanMode::Stale, ReadMode::AtSnapshot(None)),
        };
        if from == ReplicaChoice::Any && mode == ScanMode::Fresh {
            mode = ScanMode::Stale;
        }
        let scan = ScanRequest { table: number, keys, mode, diff_from: None, ordered, view: WHOLE };
        let any_replica = from == ReplicaChoice::Any;
        let keys = row_encoding::keys_of(table.schema(), keys.0, keys.1);
        let spec = ScanSpec { keys, read_mode, any_replica, fault_tolerant: ordered, ..spec() };
        self.read(&table, scan, spec).await;
    }

    pub(super) async fn slow_scan(
        &mut self,
        number: TableNo,
        ordered: bool,
        pause: Duration,
        from: ReplicaChoice,
    ) {
        let table = self.table(number).await;
        let keys = (0, KEYS_END);
        let scan = ScanRequest {
            table: number,
            keys,
            mode: ScanMode::Snapshot,
            diff_from: None,
            ordered,
            view: WHOLE,
        };
        let spec = ScanSpec {
            keys: row_encoding::keys_of(table.schema(), keys.0, keys.1),
            read_mode: ReadMode::AtSnapshot(Some(self.ago(Duration::ZERO).max(self.after() + 1))),
            any_replica: from == ReplicaChoice::Any,
            fault_tolerant: ordered,
            batch_bytes: SLOW_BATCH_BYTES,
            ..spec()
        };
        self.read_with(&table, scan, spec, Some(pause)).await;
    }

    pub(super) async fn diff(&mut self, number: TableNo, back: Duration) {
        let table = self.table(number).await;
        let (from, to) = (self.ago(back), self.ago(Duration::ZERO).max(self.after() + 1));
        let diff_from = Some(from);
        let scan = ScanRequest {
            table: number,
            keys: (0, KEYS_END),
            mode: ScanMode::Snapshot,
            diff_from,
            ordered: true,
            view: WHOLE,
        };
        let spec = ScanSpec {
            keys: row_encoding::keys_of(table.schema(), 0, KEYS_END),
            read_mode: ReadMode::AtSnapshot(Some(to)),
            diff_from,
            fault_tolerant: true,
            ..spec()
        };
        self.read(&table, scan, spec).await;
    }

    /// Returns a timestamp some time before this client's now.
    pub(super) fn ago(&self, back: Duration) -> HybridStamp {
        let now = self.env.now().wall.micros;
        Timestamp::from_micros(now.saturating_sub(back.as_micros() as u64)).0
    }

    pub(super) async fn read(&self, table: &Table, scan: ScanRequest, spec: ScanSpec) -> Option<ScanResult> {
        self.read_with(table, scan, spec, None).await
    }

    /// `pause`: duration between two batches.
    async fn read_with(
        &self,
        table: &Table,
        scan: ScanRequest,
        spec: ScanSpec,
        pause: Option<Duration>,
    ) -> Option<ScanResult> {
        let call = self.invoke(ClientRequest::Scan(scan));
        let (named, begun) = (named(&spec), self.env.now().wall.micros);
        let pause = pause.map(|pause| (&self.env, pause));
        match self.workload.read(table, scan, spec, pause).await {
            Ok(read) => {
                // Ranges that no tablet holds are empty at any time: no server was asked.
                let history = self.workload.plan().history_kept().filter(|_| !read.rows.is_empty());
                let forgotten =
                    named.zip(history).and_then(|(at, kept)| history_gc::check(&scan, at, begun, kept));
                forgotten.into_iter().for_each(|violation| self.workload.report_violation(violation));
                self.workload.count(|counts| counts.rows_read += read.rows.len() as u64);
                self.answer(call, CallOutcome::Rows { at: read.at, rows: read.rows.clone() });
                Some(read)
            }
            Err(error) => {
                let (history, ended) = (self.workload.plan().history_kept(), self.env.now().wall.micros);
                let early = named
                    .zip(history)
                    .and_then(|(at, kept)| history_gc::check_refused(&scan, at, ended, &error.message, kept));
                early.into_iter().for_each(|violation| self.workload.report_violation(violation));
                self.answer(call, CallOutcome::Failed(error.into()));
                None
            }
        }
    }
}

/// Returns the oldest timestamp that a scan names.
fn named(spec: &ScanSpec) -> Option<HybridStamp> {
    let at = match spec.read_mode {
        ReadMode::AtSnapshot(at) => at,
        ReadMode::Latest | ReadMode::YourWrites => None,
    };
    spec.diff_from.or(at)
}

/// Returns the common options of every scan of the workload.
pub(super) fn spec() -> ScanSpec {
    let columns = row_encoding::COLUMNS.iter().map(ToString::to_string).collect();
    ScanSpec { columns: Some(columns), batch_bytes: BATCH_BYTES, ..ScanSpec::default() }
}

impl Workload {
    /// Returns settings of a scan that reads a whole table after the faults.
    pub(super) fn whole_spec(&self) -> ScanSpec {
        ScanSpec { batch_bytes: if self.is_far() { LARGE_BATCH_BYTES } else { BATCH_BYTES }, ..spec() }
    }

    /// Returns true if a round trip is long: a snapshot that is read in small batches may lose its history meanwhile.
    pub(super) fn is_far(&self) -> bool {
        let network = &self.plan().network;
        network.latency + network.jitter > LONG_WAY
    }

    /// Returns the mode in which oracles check a leader's READ_LATEST scan.
    pub(super) fn mode_of_latest(&self) -> ScanMode {
        let plan = self.plan();
        let moves = |op: &ClientOp| matches!(op, ClientOp::Move { .. } | ClientOp::Rebalance { .. });
        let moves = plan.clients.iter().flat_map(|client| &client.ops).any(moves);
        if plan.cluster.replicas == 1 && !moves { ScanMode::Fresh } else { ScanMode::Stale }
    }

    /// `pause`: duration after each batch.
    pub(super) async fn read(
        &self,
        table: &Table,
        scan: ScanRequest,
        spec: ScanSpec,
        pause: Option<(&Env, Duration)>,
    ) -> Result<ScanResult, Error> {
        let mut scanner = table.scan(spec)?;
        let mut rows = Vec::new();
        while let Some(batch) = scanner.next_batch().await? {
            if let Some((env, pause)) = pause {
                env.sleep(pause).await;
            }
            match row_encoding::decode(&batch, &scan.view, scan.diff_from.is_some()) {
                Ok(more) => rows.extend(more),
                Err(what) => self.report_violation(Violation::new("rows", format!("{scan:?}: {what}"))),
            }
        }
        self.check_order(&scan, &rows);
        Ok(ScanResult { rows, at: scanner.snapshot() })
    }

    /// Checks that no row comes twice, that keys of an ordered scan go back only between tablets, and that none is out
    /// of bounds.
    fn check_order(&self, scan: &ScanRequest, rows: &[ScannedRow]) {
        let mut keys: Vec<i64> = rows.iter().map(|seen| seen.key).collect();
        let back = keys.windows(2).filter(|pair| pair[0] >= pair[1]).count();
        let asked = |key: i64| {
            (scan.keys.0..scan.keys.1).contains(&key)
                && scan.view.filter.is_none_or(|filter| filter.may_hold(key))
        };
        let stray = keys.iter().copied().find(|key| !asked(*key));
        keys.sort_unstable();
        let twice = keys.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        if let Some(key) = twice {
            self.report_violation(Violation::new("rows", format!("{scan:?} returned key {key} twice")));
        }
        if let Some(key) = stray {
            self.report_violation(Violation::new(
                "rows",
                format!("{scan:?} returned key {key}, which it did not request"),
            ));
        }
        if scan.ordered && back >= usize::from(self.plan().cluster.tablets).max(TABLETS_OF_SHORT_TABLES) {
            self.report_violation(Violation::new(
                "rows",
                format!("{scan:?} went back {back} times in key order"),
            ));
        }
    }
}
