//! Table of a CREATE TABLE AS that is not finished.

use datafusion::arrow::datatypes::Schema as ArrowSchema;
use datafusion::logical_expr::sqlparser::ast::CreateTable;
use nyala_client::scan_close::CLOSE_TASK;
use nyala_client::{Client, ErrorKind, Table};
use tokio::sync::oneshot;

use super::ddl;
use super::error::{SqlError, SqlResult, state};
use super::script::Clauses;

/// Guard of a table that gets its rows. The table is dropped unless it is kept: after an error, and when the statement
/// is cancelled, because IF NOT EXISTS would take a table with some of the rows for the whole.
///
/// Invariant: only the table that was created is dropped. Another one may have its name by then.
pub(crate) struct UnfinishedTable {
    /// `None` once the table is kept or dropped.
    table: Option<Table>,
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
                let unfinished = UnfinishedTable { table: Some(table.clone()) };
                (table, unfinished)
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
        self.table = None;
    }

    /// Drops the table. Returns the outcome, for the error.
    pub(crate) async fn remove(mut self) -> String {
        let Some(table) = self.table.clone() else { return String::new() };
        let dropped = drop_table(&table).await;
        self.table = None;
        match dropped {
            Ok(()) => format!("table {} is not created", table.name()),
            Err(_) => format!("table {} exists now and has some of the rows", table.name()),
        }
    }
}

impl Drop for UnfinishedTable {
    fn drop(&mut self) {
        let Some(table) = self.table.take() else { return };
        let env = table.client().env().clone();
        // The program waits for tasks of this name at its end.
        env.spawn(CLOSE_TASK, async move {
            // A failure is not reported: the statement has ended.
            let _ = drop_table(&table).await;
        });
    }
}

/// Drops a table by its id, unless it is gone.
async fn drop_table(table: &Table) -> SqlResult<()> {
    match table.client().delete_table_by_id(table.id()).await {
        Err(error) if error.kind != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::{DataType as ArrowType, Field};
    use datafusion::logical_expr::sqlparser::ast::Statement as SqlStatement;
    use datafusion::sql::parser::Statement;
    use node::server::cluster::{Cluster, ClusterConfig};
    use node::server::flags::Flags;
    use nyala_client::{ClientConfig, closing};
    use nyala_common::env::os::{OsEnv, OsOptions};

    use super::super::script::{self, Body, Parsed};
    use super::*;

    const CREATE: &str = "CREATE TABLE t PRIMARY KEY (k) PARTITION BY HASH (k) PARTITIONS 2 AS SELECT 1 AS k";

    async fn start_cluster() -> (Cluster, tempfile::TempDir) {
        let env = OsEnv::new(&OsOptions::default()).expect("this machine");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let flags = Flags::new();
        for name in ["log_sync", "webserver_enabled"] {
            flags.set(name, "false").expect(name);
        }
        let config = ClusterConfig::on_loopback(dir.path().to_str().expect("UTF-8"), 1, flags);
        (Cluster::start(&env, &config).await.expect("free ports and a fresh directory"), dir)
    }

    /// Creates the table `t`, as a statement does that has no rows yet.
    async fn unfinished(client: &Client) -> UnfinishedTable {
        let parsed = script::parse(CREATE).expect("a statement").pop().expect("one statement");
        let Parsed { body: Body::Sql(Statement::Statement(statement)), clauses } = parsed else {
            panic!("a statement of SQL")
        };
        let SqlStatement::CreateTable(create) = *statement else { panic!("a new table") };
        let schema = ArrowSchema::new(vec![Field::new("k", ArrowType::Int64, false)]);
        let created = super::create(client, create, clauses, schema).await.expect("a free name");
        created.expect("a new table").1
    }

    /// Replaces `t` by a table of another client. Returns its id.
    async fn replace(client: &Client) -> String {
        client.delete_table("t").await.expect("it exists");
        unfinished(client).await.keep();
        client.open_table("t").await.expect("the other table").id().to_string()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn only_the_table_that_was_created_is_dropped() {
        let (mut cluster, _dir) = start_cluster().await;
        let env = OsEnv::new(&OsOptions::default()).expect("this machine");
        let (env, closes) = closing::watch(&env);
        let config =
            ClientConfig { user: "ann".to_string(), ..ClientConfig::new(cluster.master_addresses()) };
        let client = Client::connect(env.clone(), config).await.expect("a leader");

        let failed = unfinished(&client).await;
        assert_eq!(failed.remove().await, "table t is not created");
        assert_eq!(client.open_table("t").await.err().expect("dropped").kind, ErrorKind::NotFound);

        let failed = unfinished(&client).await;
        let other = replace(&client).await;
        assert_eq!(failed.remove().await, "table t is not created");
        assert_eq!(client.open_table("t").await.expect("the other table").id(), other);

        client.delete_table("t").await.expect("it exists");
        let cancelled = unfinished(&client).await;
        let other = replace(&client).await;
        drop(cancelled);
        closes.wait(&env).await;
        assert_eq!(client.open_table("t").await.expect("the other table").id(), other);
        cluster.shutdown().await;
    }
}
