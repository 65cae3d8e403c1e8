//! Rows under few keys that need not be unique: the servers number them. See [`crate::oracle::numbered`].

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use engine::catalog::AUTO_INCREMENTING_ID;
use engine::error::Error;
use engine::ids::ColumnId;
use engine::schema::ops::Cell;
use engine::schema::{ColumnSchema, DataType, Schema};
use engine::time::Instant;
use node::client::{Client, FlushMode, ReadMode, SessionConfig, Table};
use node::env::Env;

use super::actor::{Actor, answer_of};
use super::scans::spec;
use super::{Workload, rows, tables, until};
use crate::history::{Outcome, Request, RowAnswer, RowOpKind, RowOutcome, Stamp};
use crate::oracle::numbered::{NUMBERED, Row, already_present};

/// Keys that there are: many rows have the same.
const KEYS: i64 = 4;
/// Values of the settling phase are from here on, which no client comes to.
const SETTLED: i64 = 1 << 40;

impl Actor {
    /// Inserts a row, or reads all of them and compares them with what is known.
    pub async fn numbered(&mut self, step: u8) {
        let table = self.table(NUMBERED).await;
        if step % 8 == 7 {
            let at = self.after() + 1;
            // An answer that does not come says nothing here.
            let _read = self.workload.check_numbered(&table, at).await;
            return;
        }
        let (key, value) = (i64::from(step) % KEYS, self.number());
        let call = self.invoke(Request::Other(format!("insert key {key}, value {value}, to be numbered")));
        let outcome = match self.workload.insert_numbered(&self.client, &table, key, value).await {
            Ok(answer) => Outcome::Written(vec![answer]),
            Err(error) => Outcome::Unknown(error.message),
        };
        self.answer(call, outcome);
    }
}

impl Workload {
    /// Makes the table, or finds it made.
    pub(super) async fn make_numbered(&self, env: &Env, client: &Client) -> Result<(), Error> {
        let mut create = self.table_of(&tables::name(NUMBERED), false);
        create.schema = numbered(&create.schema);
        self.made(env, client, &create).await.map(drop)
    }

    /// Inserts one row and keeps account of it.
    async fn insert_numbered(
        &self,
        client: &Client,
        table: &Table,
        key: i64,
        value: i64,
    ) -> Result<RowAnswer, Error> {
        self.state().numbered.tried(key, value);
        let mut config = SessionConfig::new(FlushMode::AutoSync);
        config.timeout = self.plan().cluster.op_timeout;
        config.receipts = true;
        let session = client.session(config);
        let op = rows::op(RowOpKind::Insert, key, value, 0, false);
        let encoded = rows::Encoded::new(&op);
        let mut cells = encoded.cells(table.schema().columns().len() - 1);
        cells.insert(1, Cell::Unset);
        let applied = session.apply(table, RowOpKind::Insert, &cells, 0).await;
        let Some(receipt) = session.take_receipts().into_iter().next() else {
            return Err(applied.err().unwrap_or_else(|| Error::aborted("no answer came")));
        };
        let answer = answer_of(&receipt);
        match answer {
            RowAnswer::At { at, outcome: RowOutcome::Done } => self.state().numbered.done(value, at),
            RowAnswer::At { outcome: RowOutcome::AlreadyPresent, .. } => {
                self.object(already_present(key, value))
            }
            _ => {}
        }
        Ok(answer)
    }

    /// Reads the whole table at a snapshot.
    async fn check_numbered(&self, table: &Table, at: Stamp) -> Result<(), Error> {
        let mut spec = spec();
        spec.columns = Some(["k", AUTO_INCREMENTING_ID, "v"].map(str::to_string).to_vec());
        spec.read_mode = ReadMode::AtSnapshot(Some(at));
        let mut seen = Vec::new();
        let mut scanner = table.scan(spec)?;
        while let Some(batch) = scanner.next_batch().await? {
            let column = |at: usize| batch.column(at).as_primitive::<Int64Type>();
            let row = |row| Row {
                key: column(0).value(row),
                number: column(1).value(row),
                value: column(2).value(row),
            };
            seen.extend((0..batch.num_rows()).map(row));
        }
        self.count(|counts| counts.rows_read += seen.len() as u64);
        let wrong = self.state().numbered.saw(at, &seen);
        wrong.into_iter().for_each(|finding| self.object(finding));
        Ok(())
    }

    /// The healed cluster numbers one more row, shows all, and its replicas agree.
    pub(super) async fn settle_numbered(
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
            let value = SETTLED + self.state().numbered.tries();
            self.insert_numbered(client, &table, 0, value).await
        })
        .await?;
        until(env, left(), async || self.check_numbered(&table, self.after_everything(env, client)).await)
            .await?;
        self.compare_replicas(env, &table, NUMBERED, deadline).await
    }
}

/// The columns of `schema`, with numbers behind the key.
fn numbered(schema: &Schema) -> Schema {
    let mut number = ColumnSchema::new(1, AUTO_INCREMENTING_ID, DataType::Int64);
    number.auto_incrementing = true;
    let mut columns = schema.columns().to_vec();
    columns.insert(1, number);
    columns.iter_mut().zip(0..).for_each(|(column, id)| column.id = ColumnId(id));
    Schema::new(columns, 2).expect("a legal schema")
}
