//! Transfers between accounts whose sum never changes.
//!
//! Each client has its own accounts in one tablet. A transfer reads both, then updates both in one call, which one
//! tablet applies at one timestamp: no snapshot may see half of it. A transfer of unknown outcome may take effect at
//! any later time; its accounts are not used again, so that it does no harm.

use engine::error::Error;
use nyala_client::{Client, FlushMode, ReadMode, ScanSpec, SessionConfig};
use nyala_common::env::Env;

use super::client_actor::{ClientActor, answer_of};
use super::scans::spec;
use super::{Workload, nanos, row_encoding, tables, until};
use crate::history::{
    CallOutcome, ClientNo, ClientRequest, RowOp, RowOpKind, RowResult, ScanMode, ScanRequest, ScannedRow,
};
use crate::oracle::bank::{ACCOUNTS, BALANCE, BANK, accounts};
use crate::projection::WHOLE;

impl Workload {
    /// Creates the bank and every client's accounts.
    pub(super) async fn open_bank(&self, env: &Env, client: &Client) -> Result<(), Error> {
        let table = self.create(env, client, &tables::name(BANK), 1, false).await?;
        let clients = self.plan().clients.iter().map(|client| ClientNo::from(client.setup.number));
        let open = |key| RowOp { kind: RowOpKind::Upsert, key, cells: vec![Some(Some(BALANCE)); 3] };
        let keys = clients.flat_map(|client| accounts(client).0..accounts(client).1);
        let ops: Vec<RowOp> = keys.map(open).collect();
        let limit = self.plan().quiet;
        until(env, limit, async || {
            let mut config = SessionConfig::new(FlushMode::Manual);
            config.receipts = true;
            let session = client.session(config);
            // An attempt of unknown outcome writes what this one writes.
            let call = self.history().invoke(
                0,
                nanos(env),
                0,
                ClientRequest::Write { table: BANK, rows: ops.clone() },
            );
            for (tag, op) in ops.iter().enumerate() {
                session
                    .apply(&table, op.kind, &row_encoding::EncodedCells::new(op).cells(4), tag as u64)
                    .await?;
            }
            let failure = session.flush().await.into_iter().next().map(|failure| failure.error);
            let answers: Vec<RowResult> = session.take_receipts().iter().map(answer_of).collect();
            let whole = answers.len() == ops.len();
            let outcome = if whole {
                CallOutcome::Written(answers)
            } else {
                CallOutcome::Unknown(failure.clone().into())
            };
            self.history().answer(call, nanos(env), outcome);
            failure.map_or(Ok(()), Err)
        })
        .await
    }
}

impl ClientActor {
    pub(super) async fn transfer(&mut self, debit: u32, credit: u32, amount: u32) {
        let (first, end) = accounts(self.number);
        let from = first + i64::from(debit) % ACCOUNTS;
        let to = first + i64::from(credit) % ACCOUNTS;
        if from == to || self.retired.iter().any(|account| [from, to].contains(account)) {
            return;
        }
        let table = self.table(BANK).await;
        let keys = (first, end);
        let scan = ScanRequest {
            table: BANK,
            keys,
            mode: ScanMode::Fresh,
            diff_from: None,
            ordered: false,
            view: WHOLE,
        };
        let read_mode = ReadMode::AtSnapshot(None);
        let spec = ScanSpec { keys: row_encoding::key_range(first, end), read_mode, ..spec() };
        let Some(read) = self.read(&table, scan, spec).await else { return };
        let (Some(paid), Some(got)) = (balance(&read.rows, from), balance(&read.rows, to)) else { return };
        let update = |key, balance: i64| {
            let cells = vec![Some(Some(balance)), None, Some(Some(balance))];
            RowOp { kind: RowOpKind::Update, key, cells }
        };
        let amount = i64::from(amount);
        let ops = vec![update(from, paid - amount), update(to, got + amount)];
        self.pay(&table, ops, [from, to]).await;
    }

    async fn pay(&mut self, table: &nyala_client::Table, ops: Vec<RowOp>, between: [i64; 2]) {
        let mut config = SessionConfig::new(FlushMode::Manual);
        config.timeout = self.workload.plan().cluster.op_timeout;
        config.receipts = true;
        let session = self.client.session(config);
        let call = self.invoke(ClientRequest::Write { table: BANK, rows: ops.clone() });
        for (tag, op) in ops.iter().enumerate() {
            let encoded = row_encoding::EncodedCells::new(op);
            // A buffer of two rows is not full; a row that could not be taken has no receipt.
            let _taken = session.apply(table, op.kind, &encoded.cells(4), tag as u64).await;
        }
        let failures = session.flush().await;
        let receipts = session.take_receipts();
        if receipts.len() == ops.len() {
            self.answer(call, CallOutcome::Written(receipts.iter().map(answer_of).collect()));
            return;
        }
        self.retired.extend(between);
        let error = failures.into_iter().next().map(|failure| failure.error);
        self.answer(call, CallOutcome::Unknown(error.into()));
    }
}

fn balance(rows: &[ScannedRow], account: i64) -> Option<i64> {
    let seen = rows.iter().find(|seen| seen.key == account)?;
    seen.row.as_ref()?.first().copied().flatten()
}
