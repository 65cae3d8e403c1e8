//! Schema changes while other clients use the tables.

use std::time::Duration;

use engine::error::{Error, ErrorKind};
use engine::schema::{ColumnSchema, DataType};
use nyala_client::tables::AlterStep;
use nyala_client::{ReadMode, ScanSpec};

use super::client_actor::ClientActor;
use super::scans::spec;
use super::{row_encoding, tables};
use crate::history::{CallOutcome, ClientRequest, RowOpKind, ScanMode, ScanRequest, TableNo};
use crate::projection::WHOLE;
use sim_plan::ClientOp;

/// First number of short-lived tables.
const SHORT_TABLES: TableNo = 1_000;

impl ClientActor {
    /// Alters a table, or creates one, uses it and drops it.
    pub(super) async fn change(&mut self, op: &ClientOp, at: usize) {
        let (table, step) = match op {
            ClientOp::AddColumn { table, column } => {
                let column = ColumnSchema::new(0, &column_name(*column), DataType::Int64).nullable();
                (table, AlterStep::AddColumn(column))
            }
            ClientOp::DropColumn { table, column } => (table, AlterStep::DropColumn(column_name(*column))),
            ClientOp::AddRange { table, range } => (table, AlterStep::AddRange(tables::extra_range(*range))),
            ClientOp::DropRange { table, range } => {
                (table, AlterStep::DropRange(tables::extra_range(*range)))
            }
            ClientOp::ShortTable { number, rows } => return self.short_table(*number, *rows, at).await,
            _ => return,
        };
        self.alter(TableNo::from(*table), step).await;
    }

    async fn alter(&mut self, number: TableNo, step: AlterStep) {
        let table = self.table(number).await;
        let call = self.invoke(ClientRequest::Other(format!("alter table {number}: {step:?}")));
        let altered = self.client.alter_table(&table, &[step], None).await;
        let outcome = match altered {
            Ok(table) => {
                self.replace_table(number, table);
                self.workload.count(|counts| counts.changes += 1);
                CallOutcome::Done
            }
            Err(error) => failed(&error),
        };
        self.answer(call, outcome);
    }

    /// Creates a table for some rows; its name is unique to its client and op.
    async fn short_table(&mut self, number: u8, rows: u32, at: usize) {
        let client = self.number;
        let name = format!("short-{client}-{at}-{number}");
        let table_no = {
            let mut state = self.workload.state();
            state.short_tables += 1;
            SHORT_TABLES + state.short_tables
        };
        let call = self.invoke(ClientRequest::Other(format!("make table {name}, {table_no} from now on")));
        let workload = self.workload.clone();
        let tablets = 1 + u32::from(number % 4);
        let table = match workload.make_once(&self.client, &name, tablets).await {
            Ok(table) => {
                self.answer(call, CallOutcome::Done);
                table
            }
            Err(error) => return self.answer(call, failed(&error)),
        };
        for key in 0..i64::from(rows) {
            let number = self.number();
            let op =
                row_encoding::op(RowOpKind::Insert, key, number, key as u32, self.workload.plan().data.few);
            self.apply(table_no, &table, op).await;
        }
        self.flush().await;
        let keys = (0, tables::KEYS_END);
        let scan = ScanRequest {
            table: table_no,
            keys,
            mode: ScanMode::Stale,
            diff_from: None,
            ordered: true,
            view: WHOLE,
        };
        let read_mode = ReadMode::AtSnapshot(None);
        let spec = ScanSpec { read_mode, fault_tolerant: true, ..spec() };
        self.read(&table, scan, spec).await;
        self.drop_table(&name).await;
    }

    async fn drop_table(&mut self, name: &str) {
        for _ in 0..3 {
            let call = self.invoke(ClientRequest::Other(format!("drop table {name}")));
            match self.client.delete_table(name).await {
                Ok(()) => {
                    self.workload.count(|counts| counts.changes += 1);
                    return self.answer(call, CallOutcome::Done);
                }
                Err(error) if error.kind == ErrorKind::NotFound => return self.answer(call, failed(&error)),
                Err(error) => self.answer(call, failed(&error)),
            }
            self.env.sleep(Duration::from_millis(100)).await;
        }
    }
}

impl super::Workload {
    async fn make_once(
        &self,
        client: &nyala_client::Client,
        name: &str,
        tablets: u32,
    ) -> Result<nyala_client::Table, Error> {
        let mut create = self.table_of(name, true);
        if tablets > 1 {
            create = create.hash(&["k"], tablets)?;
        }
        client.create_table(&create).await
    }
}

fn column_name(number: u8) -> String {
    format!("extra_{number}")
}

fn failed(error: &Error) -> CallOutcome {
    CallOutcome::Unknown(error.into())
}
