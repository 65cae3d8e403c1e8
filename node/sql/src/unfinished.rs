//! Table of a CREATE TABLE AS that is not finished.

use datafusion::arrow::datatypes::Schema as ArrowSchema;
use datafusion::logical_expr::sqlparser::ast::CreateTable;
use nyala_client::scan_close::CLOSE_TASK;
use nyala_client::{Client, Table};
use tokio::sync::oneshot;

use super::ddl;
use super::error::{SqlError, SqlResult, state};
use super::script::Clauses;

/// Guard of a table that gets its rows. The table is dropped unless it is kept: after an error, and when the statement
/// is cancelled, because IF NOT EXISTS would take a table with some of the rows for the whole.
pub(crate) struct UnfinishedTable {
    client: Client,
    /// `None` once the table is kept or dropped.
    name: Option<String>,
}

/// Creates a table for the rows of a query. Returns `None` if it exists and the statement says IF NOT EXISTS.
///
/// A task of its own waits until the table is there, also when the statement is cancelled: before that it is unknown
/// whether there is a table to drop.
pub(crate) async fn create(
    client: &Client,
    statement: CreateTable,
    clauses: Clauses,
    query: ArrowSchema,
) -> SqlResult<Option<(Table, UnfinishedTable)>> {
    let (sender, receiver) = oneshot::channel();
    let creator = client.clone();
    client.env().spawn(CLOSE_TASK, async move {
        let created = ddl::create_table(&creator, &statement, &clauses, Some(&query)).await;
        let guarded = created.map(|table| {
            table.map(|table| {
                let name = Some(table.name().to_string());
                (table, UnfinishedTable { client: creator, name })
            })
        });
        // A cancelled statement does not receive it; the guard is dropped then.
        drop(sender.send(guarded));
    });
    let lost = |_| SqlError::with_state(state::INTERNAL, "the task that creates the table has ended");
    receiver.await.map_err(lost)?
}

impl UnfinishedTable {
    /// Keeps the table, which is finished.
    pub(crate) fn keep(mut self) {
        self.name = None;
    }

    /// Drops the table. Returns the outcome, for the error.
    pub(crate) async fn remove(mut self) -> String {
        let name = self.name.clone().unwrap_or_default();
        let dropped = ddl::drop_tables(&self.client, std::slice::from_ref(&name), true).await;
        self.name = None;
        match dropped {
            Ok(()) => format!("table {name} is not created"),
            Err(_) => format!("table {name} exists now and has some of the rows"),
        }
    }
}

impl Drop for UnfinishedTable {
    fn drop(&mut self) {
        let Some(name) = self.name.take() else { return };
        let client = self.client.clone();
        // The program waits for tasks of this name at its end.
        client.env().clone().spawn(CLOSE_TASK, async move {
            // A failure is not reported: the statement has ended.
            let _ = ddl::drop_tables(&client, &[name], true).await;
        });
    }
}
