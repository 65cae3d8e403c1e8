//! Reading: gets, scans and diff scans, and what the history says of each.
//!
//! A row read at a snapshot that its tablet's leader chooses must be the newest. A snapshot of several tablets is
//! chosen by the first: with clocks that differ it may miss what another client wrote to a later tablet a moment
//! before, so real time does not judge it, its timestamp does. A scan that reads the latest is answered by whoever
//! is asked: a leader that others have replaced and that has not heard of it gives what it has. It is the newest
//! only where a tablet has one replica that stays where it is.

use std::time::Duration;

use engine::error::Error;
use engine::time::Timestamp;
use node::client::{ReadMode, ScanSpec, Table};
use node::env::Env;

use super::actor::Actor;
use super::tables::KEYS_END;
use super::{Workload, rows};
use crate::history::{Mode, Outcome, Request, Scan, Seen, Stamp, TableNo};
use crate::oracle::{Finding, ancient};
use crate::plan::Op;
use crate::plan::ops::{ReadAt, Replicas};
use crate::view::WHOLE;

/// Replies are cut this small, so that scans live through faults.
const BATCH_BYTES: u32 = 1024;

/// A row or two.
const SLOW_BATCH_BYTES: u32 = 100;

const TABLETS_OF_SHORT_TABLES: usize = 4;

/// The rows of a scan, and the snapshot that was read.
pub(super) struct Read {
    pub rows: Vec<Seen>,
    pub at: Option<Stamp>,
}

impl Actor {
    pub async fn get(&mut self, number: TableNo, key: i64, at: ReadAt, from: Replicas) {
        let table = self.table(number).await;
        let read_mode = match at {
            ReadAt::Latest => ReadMode::Latest,
            ReadAt::Snapshot => ReadMode::AtSnapshot(None),
            ReadAt::YourWrites => ReadMode::YourWrites,
        };
        let mode = match (at, from) {
            (ReadAt::Latest, Replicas::Leader) => self.workload.mode_of_latest(),
            (ReadAt::Snapshot, Replicas::Leader) => Mode::Fresh,
            _ => Mode::Stale,
        };
        let scan =
            Scan { table: number, keys: (key, key + 1), mode, diff_from: None, ordered: false, view: WHOLE };
        // Where the key has two columns, some ask for both.
        let (first, second) = (key.to_le_bytes(), rows::pair_of(key));
        let both = rows::has_pair(table.schema()) && key % 3 > 0;
        let cells: &[&[u8]] = if both { &[&first, &second] } else { &[&first] };
        let predicates = table.key_equals(cells);
        let spec = ScanSpec { predicates, read_mode, any_replica: from == Replicas::Any, ..spec() };
        self.read(&table, scan, spec).await;
    }

    pub async fn scan(
        &mut self,
        number: TableNo,
        keys: (i64, i64),
        at: ReadAt,
        back: Duration,
        ordered: bool,
        from: Replicas,
    ) {
        if keys.0 >= keys.1 {
            return;
        }
        let table = self.table(number).await;
        let (mut mode, read_mode) = match at {
            ReadAt::Snapshot if !back.is_zero() => {
                (Mode::Snapshot, ReadMode::AtSnapshot(Some(self.ago(back))))
            }
            ReadAt::YourWrites if ordered => (Mode::Snapshot, ReadMode::AtSnapshot(Some(self.after() + 1))),
            ReadAt::Latest if !ordered => (self.workload.mode_of_latest(), ReadMode::Latest),
            ReadAt::YourWrites => (Mode::Stale, ReadMode::YourWrites),
            ReadAt::Latest | ReadAt::Snapshot => (Mode::Stale, ReadMode::AtSnapshot(None)),
        };
        if from == Replicas::Any && mode == Mode::Fresh {
            mode = Mode::Stale;
        }
        let scan = Scan { table: number, keys, mode, diff_from: None, ordered, view: WHOLE };
        let any_replica = from == Replicas::Any;
        let keys = rows::keys_of(table.schema(), keys.0, keys.1);
        let spec = ScanSpec { keys, read_mode, any_replica, fault_tolerant: ordered, ..spec() };
        self.read(&table, scan, spec).await;
    }

    pub async fn slow_scan(&mut self, number: TableNo, ordered: bool, pause: Duration, from: Replicas) {
        let table = self.table(number).await;
        let keys = (0, KEYS_END);
        let scan = Scan { table: number, keys, mode: Mode::Snapshot, diff_from: None, ordered, view: WHOLE };
        let spec = ScanSpec {
            keys: rows::keys_of(table.schema(), keys.0, keys.1),
            read_mode: ReadMode::AtSnapshot(Some(self.ago(Duration::ZERO).max(self.after() + 1))),
            any_replica: from == Replicas::Any,
            fault_tolerant: ordered,
            batch_bytes: SLOW_BATCH_BYTES,
            ..spec()
        };
        self.read_with(&table, scan, spec, Some(pause)).await;
    }

    pub async fn diff(&mut self, number: TableNo, back: Duration) {
        let table = self.table(number).await;
        let (from, to) = (self.ago(back), self.ago(Duration::ZERO).max(self.after() + 1));
        let diff_from = Some(from);
        let scan = Scan {
            table: number,
            keys: (0, KEYS_END),
            mode: Mode::Snapshot,
            diff_from,
            ordered: true,
            view: WHOLE,
        };
        let spec = ScanSpec {
            keys: rows::keys_of(table.schema(), 0, KEYS_END),
            read_mode: ReadMode::AtSnapshot(Some(to)),
            diff_from,
            fault_tolerant: true,
            ..spec()
        };
        self.read(&table, scan, spec).await;
    }

    /// A timestamp some time before this client's now.
    pub fn ago(&self, back: Duration) -> Stamp {
        let now = self.env.now().wall.micros;
        Timestamp::from_micros(now.saturating_sub(back.as_micros() as u64)).0
    }

    pub async fn read(&self, table: &Table, scan: Scan, spec: ScanSpec) -> Option<Read> {
        self.read_with(table, scan, spec, None).await
    }

    /// `pause`: between two batches.
    async fn read_with(
        &self,
        table: &Table,
        scan: Scan,
        spec: ScanSpec,
        pause: Option<Duration>,
    ) -> Option<Read> {
        let call = self.invoke(Request::Scan(scan));
        let (named, begun) = (named(&spec), self.env.now().wall.micros);
        let pause = pause.map(|pause| (&self.env, pause));
        match self.workload.read(table, scan, spec, pause).await {
            Ok(read) => {
                // Ranges that no tablet holds are empty at any time: nobody was asked.
                let history = self.workload.plan().history_kept().filter(|_| !read.rows.is_empty());
                let forgotten =
                    named.zip(history).and_then(|(at, kept)| ancient::check(&scan, at, begun, kept));
                forgotten.into_iter().for_each(|finding| self.workload.object(finding));
                self.workload.count(|counts| counts.rows_read += read.rows.len() as u64);
                self.answer(call, Outcome::Rows { at: read.at, rows: read.rows.clone() });
                Some(read)
            }
            Err(error) => {
                self.answer(call, Outcome::Failed(error.message));
                None
            }
        }
    }
}

/// The oldest moment that a scan asks for by name.
fn named(spec: &ScanSpec) -> Option<Stamp> {
    let at = match spec.read_mode {
        ReadMode::AtSnapshot(at) => at,
        ReadMode::Latest | ReadMode::YourWrites => None,
    };
    spec.diff_from.or(at)
}

/// What every scan of the workload has in common.
pub(super) fn spec() -> ScanSpec {
    let columns = rows::COLUMNS.iter().map(ToString::to_string).collect();
    ScanSpec { columns: Some(columns), batch_bytes: BATCH_BYTES, ..ScanSpec::default() }
}

impl Workload {
    /// How the latest of a leader is judged.
    pub(super) fn mode_of_latest(&self) -> Mode {
        let plan = self.plan();
        let moves = |op: &Op| matches!(op, Op::Move { .. } | Op::Rebalance { .. });
        let moves = plan.clients.iter().flat_map(|client| &client.ops).any(moves);
        if plan.cluster.replicas == 1 && !moves { Mode::Fresh } else { Mode::Stale }
    }

    /// `pause`: how long to wait after each batch.
    pub(super) async fn read(
        &self,
        table: &Table,
        scan: Scan,
        spec: ScanSpec,
        pause: Option<(&Env, Duration)>,
    ) -> Result<Read, Error> {
        let mut scanner = table.scan(spec)?;
        let mut rows = Vec::new();
        while let Some(batch) = scanner.next_batch().await? {
            if let Some((env, pause)) = pause {
                env.sleep(pause).await;
            }
            match rows::decode(&batch, &scan.view, scan.diff_from.is_some()) {
                Ok(more) => rows.extend(more),
                Err(what) => self.object(Finding::new("rows", format!("{scan:?}: {what}"))),
            }
        }
        self.check_order(&scan, &rows);
        Ok(Read { rows, at: scanner.snapshot() })
    }

    /// No row comes twice; of an ordered scan, keys go back only where a tablet ends; none is out of bounds.
    fn check_order(&self, scan: &Scan, rows: &[Seen]) {
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
            self.object(Finding::new("rows", format!("{scan:?} gave key {key} twice")));
        }
        if let Some(key) = stray {
            self.object(Finding::new("rows", format!("{scan:?} gave key {key}, which it did not ask for")));
        }
        if scan.ordered && back >= usize::from(self.plan().cluster.tablets).max(TABLETS_OF_SHORT_TABLES) {
            self.object(Finding::new("rows", format!("{scan:?} went back {back} times in key order")));
        }
    }
}
