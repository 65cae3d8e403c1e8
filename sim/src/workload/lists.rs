//! Lists that grow, one for each client, their rows spread over all tablets of a table.
//!
//! A client appends one row at a time and waits for the reply; the next row names the last acknowledged one. A row of
//! unknown outcome may appear later: no row points at it, and its key is not used again.

use std::time::Duration;

use nyala_client::{FlushMode, ReadMode, ScanSpec, SessionConfig};

use super::client_actor::{ClientActor, answer_of};
use super::row_encoding;
use super::scans::spec;
use crate::history::{
    CallOutcome, ClientRequest, RowOp, RowOpKind, RowOutcome, RowResult, ScanMode, ScanRequest,
};
use crate::oracle::lists::{LENGTH_MAX, LISTS, key, keys};
use crate::projection::WHOLE;
use sim_plan::client_ops::ReplicaChoice;

impl ClientActor {
    /// Appends a row to this client's list.
    pub(super) async fn link(&mut self) {
        if self.list.sent == LENGTH_MAX {
            return;
        }
        let table = self.table(LISTS).await;
        let key = key(self.number, self.list.sent);
        self.list.sent += 1;
        let cells = vec![Some(Some(self.list.last)); 3];
        let op = RowOp { kind: RowOpKind::Insert, key, cells };
        let mut config = SessionConfig::new(FlushMode::AutoSync);
        config.timeout = self.workload.plan().cluster.op_timeout;
        config.receipts = true;
        let session = self.client.session(config);
        let encoded = row_encoding::EncodedCells::new(&op);
        let call = self.invoke(ClientRequest::Write { table: LISTS, rows: vec![op] });
        let applied = session.apply(&table, RowOpKind::Insert, &encoded.cells(4), 0).await;
        let Some(receipt) = session.take_receipts().into_iter().next() else {
            return self.answer(call, CallOutcome::Unknown(applied.err().into()));
        };
        let answer = answer_of(&receipt);
        if matches!(answer, RowResult::At { outcome: RowOutcome::Done, .. }) {
            self.list.last = key;
        }
        self.answer(call, CallOutcome::Written(vec![answer]));
    }

    /// Reads every list at one snapshot.
    pub(super) async fn walk(&mut self, back: Duration, from: ReplicaChoice) {
        let table = self.table(LISTS).await;
        let numbers = self.workload.plan().clients.iter().map(|client| usize::from(client.setup.number));
        let keys = keys(numbers.max().unwrap_or_default() + 1);
        let (mode, at) = match back.is_zero() {
            true => (ScanMode::Stale, None),
            false => (ScanMode::Snapshot, Some(self.ago(back))),
        };
        let scan = ScanRequest { table: LISTS, keys, mode, diff_from: None, ordered: true, view: WHOLE };
        let spec = ScanSpec {
            keys: row_encoding::key_range(keys.0, keys.1),
            read_mode: ReadMode::AtSnapshot(at),
            any_replica: from == ReplicaChoice::Any,
            fault_tolerant: true,
            ..spec()
        };
        self.read(&table, scan, spec).await;
    }
}
