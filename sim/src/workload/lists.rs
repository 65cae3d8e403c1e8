//! Lists that grow, one of each client, their rows spread over all tablets of a table.
//!
//! A client appends one row at a time and waits for the answer; the next row names the last that was acknowledged. A
//! row of unknown outcome may turn up later: nothing points at it, and its key is not used again.

use std::time::Duration;

use node::client::{FlushMode, ReadMode, ScanSpec, SessionConfig};

use super::actor::{Actor, answer_of};
use super::rows;
use super::scans::spec;
use crate::history::{Mode, Outcome, Request, RowAnswer, RowOp, RowOpKind, RowOutcome, Scan};
use crate::oracle::lists::{LENGTH_MAX, LISTS, NONE_BEFORE, key, keys};
use crate::plan::ops::Replicas;
use crate::view::WHOLE;

/// How far a client's list has come.
pub(super) struct List {
    /// Rows that were tried.
    tried: i64,
    /// The key of the last one that was acknowledged.
    last: i64,
}

impl Default for List {
    fn default() -> List {
        List { tried: 0, last: NONE_BEFORE }
    }
}

impl Actor {
    /// Appends a row to this client's list.
    pub async fn link(&mut self) {
        if self.list.tried == LENGTH_MAX {
            return;
        }
        let table = self.table(LISTS).await;
        let key = key(self.number, self.list.tried);
        self.list.tried += 1;
        let cells = vec![Some(Some(self.list.last)); 3];
        let op = RowOp { kind: RowOpKind::Insert, key, cells };
        let mut config = SessionConfig::new(FlushMode::AutoSync);
        config.timeout = self.workload.plan().cluster.op_timeout;
        config.receipts = true;
        let session = self.client.session(config);
        let encoded = rows::Encoded::new(&op);
        let call = self.invoke(Request::Write { table: LISTS, rows: vec![op] });
        let applied = session.apply(&table, RowOpKind::Insert, &encoded.cells(4), 0).await;
        let Some(receipt) = session.take_receipts().into_iter().next() else {
            let why = applied.err().map_or_else(String::new, |error| error.message);
            return self.answer(call, Outcome::Unknown(why));
        };
        let answer = answer_of(&receipt);
        if matches!(answer, RowAnswer::At { outcome: RowOutcome::Done, .. }) {
            self.list.last = key;
        }
        self.answer(call, Outcome::Written(vec![answer]));
    }

    /// Reads every list at one snapshot.
    pub async fn walk(&mut self, back: Duration, from: Replicas) {
        let table = self.table(LISTS).await;
        let numbers = self.workload.plan().clients.iter().map(|client| usize::from(client.setup.number));
        let keys = keys(numbers.max().unwrap_or_default() + 1);
        let (mode, at) = match back.is_zero() {
            true => (Mode::Stale, None),
            false => (Mode::Snapshot, Some(self.ago(back))),
        };
        let scan = Scan { table: LISTS, keys, mode, diff_from: None, ordered: true, view: WHOLE };
        let spec = ScanSpec {
            keys: rows::key_range(keys.0, keys.1),
            read_mode: ReadMode::AtSnapshot(at),
            any_replica: from == Replicas::Any,
            fault_tolerant: true,
            ..spec()
        };
        self.read(&table, scan, spec).await;
    }
}
