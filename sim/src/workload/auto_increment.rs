//! Rows under few keys that need not be unique, with auto-increment values. See [`crate::oracle::auto_increment`].

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use engine::catalog::AUTO_INCREMENTING_ID;
use engine::error::Error;
use engine::ids::ColumnId;
use engine::schema::row_ops::ClientCell;
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::time::Instant;
use nyala_client::{Client, FlushMode, ReadMode, SessionConfig, Table};
use nyala_common::env::Env;

use super::client_actor::{ClientActor, answer_of};
use super::scans::spec;
use super::{Workload, row_encoding, tables, until};
use crate::history::{CallOutcome, ClientRequest, HybridStamp, RowOpKind, RowOutcome, RowResult};
use crate::oracle::auto_increment::{AutoIncrementRow, NUMBERED, already_present};

/// Number of keys: many rows share one.
const KEYS: i64 = 4;
/// First value of the recovery phase, which no client reaches.
const RECOVERY_FROM: i64 = 1 << 40;

impl ClientActor {
    /// Inserts a row, or reads all of them and checks them against the model.
    pub(super) async fn numbered(&mut self, step: u8) {
        let table = self.table(NUMBERED).await;
        if step % 8 == 7 {
            let at = self.after() + 1;
            // A missing reply says nothing here.
            let _read = self.workload.check_auto_increment(&table, at).await;
            return;
        }
        let (key, value) = (i64::from(step) % KEYS, self.number());
        let call =
            self.invoke(ClientRequest::Other(format!("insert key {key}, value {value}, to be numbered")));
        let outcome = match self.workload.insert_auto_increment(&self.client, &table, key, value).await {
            Ok(answer) => CallOutcome::Written(vec![answer]),
            Err(error) => CallOutcome::Unknown(error.into()),
        };
        self.answer(call, outcome);
    }
}

impl Workload {
    /// Creates the table, or finds it.
    pub(super) async fn create_auto_increment(&self, env: &Env, client: &Client) -> Result<(), Error> {
        let mut create = self.table_of(&tables::name(NUMBERED), false);
        create.schema = numbered(&create.schema);
        self.create_or_open(env, client, &create).await.map(drop)
    }

    /// Inserts one row and records it in the model.
    async fn insert_auto_increment(
        &self,
        client: &Client,
        table: &Table,
        key: i64,
        value: i64,
    ) -> Result<RowResult, Error> {
        self.state().numbered.sent(key, value);
        let mut config = SessionConfig::new(FlushMode::AutoSync);
        config.timeout = self.plan().cluster.op_timeout;
        config.receipts = true;
        let session = client.session(config);
        let op = row_encoding::op(RowOpKind::Insert, key, value, 0, false);
        let encoded = row_encoding::EncodedCells::new(&op);
        let mut cells = encoded.cells(table.schema().columns().len() - 1);
        cells.insert(1, ClientCell::Unset);
        let applied = session.apply(table, RowOpKind::Insert, &cells, 0).await;
        let Some(receipt) = session.take_receipts().into_iter().next() else {
            return Err(applied.err().unwrap_or_else(|| Error::aborted("no answer came")));
        };
        let answer = answer_of(&receipt);
        match answer {
            RowResult::At { at, outcome: RowOutcome::Done } => self.state().numbered.done(value, at),
            RowResult::At { outcome: RowOutcome::AlreadyPresent, .. } => {
                self.report_violation(already_present(key, value))
            }
            _ => {}
        }
        Ok(answer)
    }

    /// Reads the whole table at a snapshot.
    async fn check_auto_increment(&self, table: &Table, at: HybridStamp) -> Result<(), Error> {
        let mut spec = spec();
        spec.columns = Some(["k", AUTO_INCREMENTING_ID, "v"].map(str::to_string).to_vec());
        spec.read_mode = ReadMode::AtSnapshot(Some(at));
        let mut seen = Vec::new();
        let mut scanner = table.scan(spec)?;
        while let Some(batch) = scanner.next_batch().await? {
            let column = |at: usize| batch.column(at).as_primitive::<Int64Type>();
            let row = |row| AutoIncrementRow {
                key: column(0).value(row),
                number: column(1).value(row),
                value: column(2).value(row),
            };
            seen.extend((0..batch.num_rows()).map(row));
        }
        self.count(|counts| counts.rows_read += seen.len() as u64);
        let wrong = self.state().numbered.check_snapshot(at, &seen);
        wrong.into_iter().for_each(|violation| self.report_violation(violation));
        Ok(())
    }

    /// After the faults: inserts one more row, reads all, and compares the replicas.
    pub(super) async fn recover_auto_increment(
        &self,
        env: &Env,
        client: &Client,
        deadline: Instant,
    ) -> Result<(), Error> {
        if !self.plan().has_numbered() {
            return Ok(());
        }
        let left = || deadline.since(env.now().mono);
        let name = tables::name(NUMBERED);
        let table = until(env, left(), async || client.open_table(&name).await).await?;
        until(env, left(), async || {
            let value = RECOVERY_FROM + self.state().numbered.insert_count();
            self.insert_auto_increment(client, &table, 0, value).await
        })
        .await?;
        until(env, left(), async || self.check_auto_increment(&table, self.final_reads(env, client)).await)
            .await?;
        self.compare_replicas(env, &table, NUMBERED, deadline).await
    }
}

/// Returns the columns of `schema`, with an auto-increment column after the key.
fn numbered(schema: &Schema) -> Schema {
    let mut number = ColumnSchema::new(1, AUTO_INCREMENTING_ID, DataType::Int64);
    number.auto_incrementing = true;
    let mut columns = schema.columns().to_vec();
    columns.insert(1, number);
    columns.iter_mut().zip(0..).for_each(|(column, id)| column.id = ColumnId(id));
    Schema::new(columns, 2).expect("a legal schema")
}
