//! Execution of one statement against a cluster.

use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::arrow::datatypes::{DataType as ArrowType, SchemaRef};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::sqlparser::ast::{
    CreateTable, ObjectType, ShowCreateObject, Statement as SqlStatement,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::prelude::DataFrame;
use datafusion::sql::parser::Statement;
use futures_util::stream;
use nyala_client::Client;
use nyala_client::arrow::arrow_type;

use super::copy::{Copy, CopyAction};
use super::error::{SqlError, SqlResult, state};
use super::partition::table_name;
use super::pg_catalog::PgCatalog;
use super::script::{Body, Clauses, Parsed};
use super::session::{Session, result_schema, timestamp};
use super::snapshot::{PlanOptions, ReadOptions, Snapshot};
use super::{ddl, describe, dml, show_create, unfinished};

/// Result of a statement.
pub(crate) enum Answer {
    /// Rows, which are computed as they are read.
    Rows(SendableRecordBatchStream),
    /// Number of rows that a statement wrote or copied.
    Count(Command, u64),
    /// The end of a statement without a result.
    Done(Command),
}

/// Command of a statement, as the Postgres protocol names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Insert,
    Update,
    Delete,
    Copy,
    CreateTable,
    CreateTableAs,
    AlterTable,
    DropTable,
}

/// Executor of statements, with their options.
#[derive(Clone)]
pub(crate) struct Executor {
    pub(crate) client: Client,
    pub(crate) plan: PlanOptions,
    pub(crate) fault_tolerant: bool,
    /// True if statements may read and write files of this machine.
    pub(crate) files: bool,
    /// Memory of the statements.
    pub(crate) runtime: Arc<RuntimeEnv>,
    /// Longest time of a statement, where the client sets none; `None` for no limit.
    pub(crate) statement_timeout: Option<Duration>,
}

impl Executor {
    pub(crate) fn new(client: Client, runtime: Arc<RuntimeEnv>) -> Executor {
        Executor {
            client,
            plan: PlanOptions::default(),
            fault_tolerant: false,
            files: true,
            runtime,
            statement_timeout: None,
        }
    }

    pub(crate) async fn execute(&self, parsed: Parsed) -> SqlResult<Answer> {
        let Parsed { body, clauses } = parsed;
        match body {
            Body::RangeChange(change) => {
                refuse_as_of("ALTER TABLE", &clauses)?;
                ddl::change_range(&self.client, &change).await?;
                Ok(Answer::Done(Command::AlterTable))
            }
            Body::Sql(Statement::Statement(statement)) => self.execute_sql(*statement, &clauses).await,
            Body::Sql(statement @ Statement::Explain(_)) => self.query(statement, &clauses).await,
            Body::Sql(other) => Err(unsupported(&other.to_string())),
        }
    }

    async fn execute_sql(&self, statement: SqlStatement, clauses: &Clauses) -> SqlResult<Answer> {
        match statement {
            SqlStatement::Query(_) => self.query(Statement::Statement(Box::new(statement)), clauses).await,
            SqlStatement::Insert(_) => self.write(&statement, Command::Insert, clauses).await,
            SqlStatement::Update(_) => {
                refuse_as_of("UPDATE", clauses)?;
                self.write(&statement, Command::Update, clauses).await
            }
            SqlStatement::Delete(_) => {
                refuse_as_of("DELETE", clauses)?;
                self.write(&statement, Command::Delete, clauses).await
            }
            SqlStatement::CreateTable(create) => self.create(create, clauses).await,
            SqlStatement::Copy { .. } => self.copy(&statement, clauses).await,
            other => {
                refuse_as_of("this statement", clauses)?;
                self.administer(other).await
            }
        }
    }

    /// Runs a statement that reads and writes no rows.
    async fn administer(&self, statement: SqlStatement) -> SqlResult<Answer> {
        match statement {
            SqlStatement::AlterTable(alter) => {
                ddl::alter_table(&self.client, &alter).await?;
                Ok(Answer::Done(Command::AlterTable))
            }
            // Without dependent objects CASCADE, RESTRICT and PURGE change nothing.
            SqlStatement::Drop {
                object_type: ObjectType::Table,
                if_exists,
                names,
                cascade: _,
                restrict: _,
                purge: _,
                temporary,
                table,
            } => {
                if temporary || table.is_some() {
                    return Err(SqlError::new(
                        "DROP TEMPORARY TABLE is not supported; there are no temporary tables",
                    ));
                }
                let names = names.iter().map(table_name).collect::<SqlResult<Vec<_>>>()?;
                ddl::drop_tables(&self.client, &names, if_exists).await?;
                Ok(Answer::Done(Command::DropTable))
            }
            other => self.describe(other).await.map(rows_of),
        }
    }

    /// Returns the rows of a statement that describes tables.
    async fn describe(&self, statement: SqlStatement) -> SqlResult<RecordBatch> {
        match statement {
            SqlStatement::ShowTables { .. } => {
                check_show_tables(&statement)?;
                describe::tables(&self.client).await
            }
            SqlStatement::ExplainTable { table_name: name, .. } => {
                describe::columns(&dml::open(&self.client, &table_name(&name)?).await?)
            }
            SqlStatement::ShowCreate { obj_type: ShowCreateObject::Table, obj_name } => {
                let table = dml::open(&self.client, &table_name(&obj_name)?).await?;
                let statement = show_create::create_statement(&table).await?;
                let column: ArrayRef = Arc::new(StringArray::from(vec![statement]));
                Ok(RecordBatch::try_from_iter([("statement", column)])?)
            }
            other => Err(unsupported(&other.to_string())),
        }
    }

    /// Replaces a write in EXPLAIN by the query that yields its rows.
    async fn explained(&self, statement: Statement) -> SqlResult<Statement> {
        let Statement::Statement(sql) = statement else { return Ok(statement) };
        match (&*sql, dml::write_of(&self.client, &sql).await?) {
            (_, Some(write)) => Ok(write.query),
            (SqlStatement::Query(_), None) => Ok(Statement::Statement(sql)),
            (SqlStatement::CreateTable(CreateTable { query: Some(query), .. }), None) => {
                Ok(Statement::Statement(Box::new(SqlStatement::Query(query.clone()))))
            }
            (other, None) => {
                Err(SqlError::new(format!("EXPLAIN shows plans of queries and writes, not of {other}")))
            }
        }
    }

    /// Returns the columns of a statement's result; `None` if it has none.
    pub(crate) async fn result_schema(&self, parsed: &Parsed) -> SqlResult<Option<SchemaRef>> {
        let Body::Sql(statement) = &parsed.body else { return Ok(None) };
        if is_query(statement) {
            let frame = self.frame(statement.clone(), &parsed.clauses).await?;
            return result_schema(frame).map(Some);
        }
        match statement {
            Statement::Statement(sql) if is_description(sql) => {
                Ok(Some(self.describe(*sql.clone()).await?.schema()))
            }
            _ => Ok(None),
        }
    }

    /// Returns the query of a write, and the types of the columns that its columns go to; `None` for other statements.
    pub(crate) async fn written(&self, parsed: &Parsed) -> SqlResult<Option<(Statement, Vec<ArrowType>)>> {
        let Body::Sql(Statement::Statement(sql)) = &parsed.body else { return Ok(None) };
        let Some(write) = dml::write_of(&self.client, sql).await? else { return Ok(None) };
        let schema = write.table.schema();
        let column = |name: &String| schema.index_of_name(name).map(|index| &schema.columns()[index]);
        let types = write.columns.iter().filter_map(column).map(arrow_type).collect();
        Ok(Some((write.query, types)))
    }

    /// Returns the parameters of a query with the types that the planner finds for them.
    pub(crate) async fn placeholders(&self, parsed: &Parsed) -> SqlResult<Vec<(String, Option<ArrowType>)>> {
        let Body::Sql(statement) = &parsed.body else { return Ok(Vec::new()) };
        if !is_query(statement) {
            return Ok(Vec::new());
        }
        let frame = self.frame(statement.clone(), &parsed.clauses).await?;
        Ok(frame.logical_plan().get_parameter_types()?.into_iter().collect())
    }

    /// Opens the session of a statement.
    async fn session(&self, clauses: &Clauses) -> SqlResult<Session> {
        let snapshot = match &clauses.as_of {
            Some(as_of) => Snapshot::at(timestamp(&self.client, as_of)?),
            None => Snapshot::default(),
        };
        let read = ReadOptions { snapshot, fault_tolerant: self.fault_tolerant };
        let names = match clauses.needs_table_names {
            true => self.client.list_tables(None).await?.into_iter().map(|table| table.name).collect(),
            false => Vec::new(),
        };
        let pg_catalog = match clauses.pg_relations.is_empty() {
            true => None,
            false => Some(PgCatalog::load(&self.client, &clauses.pg_relations).await?),
        };
        Ok(Session::new(&self.client, self.runtime.clone(), read, self.plan, names, pg_catalog))
    }

    /// Plans a query, or EXPLAIN.
    async fn frame(&self, mut statement: Statement, clauses: &Clauses) -> SqlResult<DataFrame> {
        if let Statement::Explain(explain) = &mut statement {
            *explain.statement = self.explained(*explain.statement.clone()).await?;
        }
        self.session(clauses).await?.frame(statement).await
    }

    async fn query(&self, statement: Statement, clauses: &Clauses) -> SqlResult<Answer> {
        Ok(Answer::Rows(self.frame(statement, clauses).await?.execute_stream().await?))
    }

    async fn write(
        &self,
        statement: &SqlStatement,
        command: Command,
        clauses: &Clauses,
    ) -> SqlResult<Answer> {
        let session = self.session(clauses).await?;
        match dml::write_of(&self.client, statement).await? {
            Some(write) => Ok(Answer::Count(command, write.run(&session).await?)),
            None => Err(unsupported(&statement.to_string())),
        }
    }

    async fn copy(&self, statement: &SqlStatement, clauses: &Clauses) -> SqlResult<Answer> {
        let copy = Copy::of(statement)?;
        if !self.files {
            let what = "COPY reads and writes files of the machine that runs the SQL; use the shell for it";
            return Err(SqlError::with_state(state::NO_PRIVILEGE, what));
        }
        let count = match &copy.action {
            CopyAction::Export(query) => {
                let rows = self.frame(query.clone(), clauses).await?.execute_stream().await?;
                copy.export(self.client.env(), rows).await?
            }
            CopyAction::Import(table) => {
                refuse_as_of("COPY FROM", clauses)?;
                copy.import(&dml::open(&self.client, table).await?).await?
            }
        };
        Ok(Answer::Count(Command::Copy, count))
    }

    async fn create(&self, create: CreateTable, clauses: &Clauses) -> SqlResult<Answer> {
        let Some(query) = &create.query else {
            refuse_as_of("CREATE TABLE", clauses)?;
            ddl::create_table(&self.client, &create, clauses).await?;
            return Ok(Answer::Done(Command::CreateTable));
        };
        if !create.columns.is_empty() || !clauses.attributes.is_empty() {
            return Err(SqlError::new(
                "CREATE TABLE with definitions of columns and AS is not supported; run CREATE TABLE, then INSERT INTO \
                 … SELECT",
            ));
        }
        let session = self.session(clauses).await?;
        let query = Statement::Statement(Box::new(SqlStatement::Query(query.clone())));
        let schema = result_schema(session.frame(query.clone()).await?)?;
        let created =
            unfinished::create(&self.client, create, clauses.clone(), schema.as_ref().clone()).await?;
        let Some((table, unfinished)) = created else { return Ok(Answer::Done(Command::CreateTable)) };
        let columns = schema.fields().iter().map(|field| field.name().clone()).collect();
        let write = dml::Write { table, kind: nyala_client::RowOpKind::Insert, columns, query };
        match write.run(&session).await {
            Ok(count) => {
                unfinished.keep();
                Ok(Answer::Count(Command::CreateTableAs, count))
            }
            Err(error) => Err(error.and(unfinished.remove().await)),
        }
    }
}

/// Refuses SHOW TABLES with words that would be ignored.
fn check_show_tables(statement: &SqlStatement) -> SqlResult<()> {
    match statement.to_string().as_str() {
        "SHOW TABLES" => Ok(()),
        text => {
            let what =
                format!("{text} is not supported; SELECT table_name FROM information_schema.tables WHERE …");
            Err(SqlError::with_state(state::NOT_SUPPORTED, what))
        }
    }
}

/// Returns true for a statement that the planner turns into rows.
fn is_query(statement: &Statement) -> bool {
    match statement {
        Statement::Explain(_) => true,
        Statement::Statement(sql) => matches!(**sql, SqlStatement::Query(_)),
        _ => false,
    }
}

/// Returns true for a statement whose rows describe tables.
fn is_description(statement: &SqlStatement) -> bool {
    matches!(
        statement,
        SqlStatement::ShowTables { .. } | SqlStatement::ShowCreate { .. } | SqlStatement::ExplainTable { .. }
    )
}

/// Returns one batch as the rows of an answer.
fn rows_of(batch: RecordBatch) -> Answer {
    let schema = batch.schema();
    Answer::Rows(Box::pin(RecordBatchStreamAdapter::new(schema, stream::iter([Ok(batch)]))))
}

fn refuse_as_of(statement: &str, clauses: &Clauses) -> SqlResult<()> {
    match clauses.as_of {
        None => Ok(()),
        Some(_) => Err(SqlError::new(format!("AS OF is for queries, not for {statement}"))),
    }
}

fn unsupported(statement: &str) -> SqlError {
    let words: Vec<&str> = statement.split_whitespace().take(3).collect();
    let what = format!(
        "{} … is not supported; there are SELECT, EXPLAIN, INSERT, UPSERT, UPDATE, DELETE, COPY, CREATE TABLE, ALTER \
         TABLE, DROP TABLE, SHOW TABLES, SHOW CREATE TABLE and DESCRIBE",
        words.join(" ")
    );
    SqlError::with_state(state::NOT_SUPPORTED, what)
}
