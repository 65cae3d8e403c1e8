//! Statements of a script, one after the other.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray, UInt64Array};
use datafusion::logical_expr::sqlparser::ast::{
    CreateTable, ObjectType, ShowCreateObject, Statement as SqlStatement,
};
use datafusion::sql::parser::Statement;
use nyala_client::Client;

use super::error::{SqlError, SqlResult};
use super::output::{self, Format, Print};
use super::partition::table_name;
use super::script::{self, Body, Clauses, Parsed};
use super::session::{Session, timestamp};
use super::snapshot::{ReadOptions, Snapshot};
use super::{ddl, describe, dml, show_create};

/// Runs SQL against a cluster.
pub struct Shell {
    pub(crate) client: Client,
    pub(crate) format: Format,
    /// Number of partitions that plans aim at.
    partitions: Option<usize>,
    fault_tolerant: bool,
}

impl Shell {
    pub fn new(client: Client, format: Format) -> Shell {
        Shell { client, format, partitions: None, fault_tolerant: false }
    }

    /// Sets the number of partitions that a plan aims at; by default the number of processors.
    pub fn target_partitions(mut self, count: usize) -> Shell {
        self.partitions = Some(count);
        self
    }

    /// Sets that scans continue at another replica when a server is lost, which makes them slower.
    pub fn fault_tolerant(mut self, fault_tolerant: bool) -> Shell {
        self.fault_tolerant = fault_tolerant;
        self
    }

    /// Runs all statements of a script and prints their results. Stops at the first failure. Nothing runs if the
    /// script has a syntax error.
    pub async fn run(&self, script: &str, print: &mut Print<'_>) -> Result<(), SqlError> {
        for parsed in script::parse(script)? {
            self.execute(parsed, print).await?;
        }
        Ok(())
    }

    async fn execute(&self, parsed: Parsed, print: &mut Print<'_>) -> SqlResult<()> {
        let Parsed { body, clauses } = parsed;
        match body {
            Body::RangeChange(change) => {
                refuse_as_of("ALTER TABLE", &clauses)?;
                ddl::change_range(&self.client, &change).await
            }
            Body::Sql(Statement::Statement(statement)) => self.execute_sql(*statement, &clauses, print).await,
            Body::Sql(Statement::Explain(mut explain)) => {
                explain.statement = Box::new(self.explained(*explain.statement).await?);
                self.query(Statement::Explain(explain), &clauses, print).await
            }
            Body::Sql(other) => Err(unsupported(&other.to_string())),
        }
    }

    async fn execute_sql(
        &self,
        statement: SqlStatement,
        clauses: &Clauses,
        print: &mut Print<'_>,
    ) -> SqlResult<()> {
        match statement {
            SqlStatement::Query(_) => {
                self.query(Statement::Statement(Box::new(statement)), clauses, print).await
            }
            SqlStatement::Insert(_) => self.write(&statement, clauses, print).await,
            SqlStatement::Update(_) | SqlStatement::Delete(_) => {
                refuse_as_of("UPDATE and DELETE", clauses)?;
                self.write(&statement, clauses, print).await
            }
            SqlStatement::CreateTable(create) => self.create(create, clauses, print).await,
            other => {
                refuse_as_of("this statement", clauses)?;
                self.administer(other, print).await
            }
        }
    }

    /// Runs a statement that reads and writes no rows.
    async fn administer(&self, statement: SqlStatement, print: &mut Print<'_>) -> SqlResult<()> {
        match statement {
            SqlStatement::AlterTable(alter) => ddl::alter_table(&self.client, &alter).await,
            SqlStatement::Drop { object_type: ObjectType::Table, if_exists, names, .. } => {
                let names = names.iter().map(table_name).collect::<SqlResult<Vec<_>>>()?;
                ddl::drop_tables(&self.client, &names, if_exists).await
            }
            SqlStatement::ShowTables { .. } => {
                output::print_batch(self.format, &describe::tables(&self.client).await?, print)
            }
            SqlStatement::ExplainTable { table_name: name, .. } => {
                let table = dml::open(&self.client, &table_name(&name)?).await?;
                output::print_batch(self.format, &describe::columns(&table)?, print)
            }
            SqlStatement::ShowCreate { obj_type: ShowCreateObject::Table, obj_name } => {
                let table = dml::open(&self.client, &table_name(&obj_name)?).await?;
                let statement = show_create::create_statement(&table).await?;
                let column: ArrayRef = Arc::new(StringArray::from(vec![statement]));
                let batch = RecordBatch::try_from_iter([("statement", column)])?;
                output::print_batch(self.format, &batch, print)
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
        Ok(Session::new(&self.client, read, self.partitions, names))
    }

    async fn query(&self, statement: Statement, clauses: &Clauses, print: &mut Print<'_>) -> SqlResult<()> {
        let frame = self.session(clauses).await?.frame(statement).await?;
        output::print_stream(self.format, frame.execute_stream().await?, print).await
    }

    async fn write(
        &self,
        statement: &SqlStatement,
        clauses: &Clauses,
        print: &mut Print<'_>,
    ) -> SqlResult<()> {
        let session = self.session(clauses).await?;
        if let Some(write) = dml::write_of(&self.client, statement).await? {
            let count = write.run(&session).await?;
            self.print_count(count, print)?;
        }
        Ok(())
    }

    fn print_count(&self, count: u64, print: &mut Print<'_>) -> SqlResult<()> {
        let count: ArrayRef = Arc::new(UInt64Array::from(vec![count]));
        output::print_batch(self.format, &RecordBatch::try_from_iter([("count", count)])?, print)
    }

    async fn create(&self, create: CreateTable, clauses: &Clauses, print: &mut Print<'_>) -> SqlResult<()> {
        let Some(query) = &create.query else {
            refuse_as_of("CREATE TABLE", clauses)?;
            return ddl::create_table(&self.client, &create, clauses, None).await.map(drop);
        };
        let session = self.session(clauses).await?;
        let query = Statement::Statement(Box::new(SqlStatement::Query(query.clone())));
        let schema = session.frame(query.clone()).await?.schema().as_arrow().clone();
        let Some(table) = ddl::create_table(&self.client, &create, clauses, Some(&schema)).await? else {
            return Ok(());
        };
        let columns = schema.fields().iter().map(|field| field.name().clone()).collect();
        let name = table.name().to_string();
        let write = dml::Write { table, kind: nyala_client::RowOpKind::Insert, columns, query };
        match write.run(&session).await {
            Ok(count) => self.print_count(count, print),
            Err(error) => {
                let dropped = ddl::drop_tables(&self.client, std::slice::from_ref(&name), true).await;
                let what = match dropped {
                    Ok(()) => format!("table {name} is not created"),
                    Err(_) => format!("table {name} exists now and has some of the rows"),
                };
                Err(error.and(what))
            }
        }
    }
}

fn refuse_as_of(statement: &str, clauses: &Clauses) -> SqlResult<()> {
    match clauses.as_of {
        None => Ok(()),
        Some(_) => Err(SqlError::new(format!("AS OF is for queries, not for {statement}"))),
    }
}

fn unsupported(statement: &str) -> SqlError {
    let words: Vec<&str> = statement.split_whitespace().take(3).collect();
    SqlError::new(format!(
        "{} … is not supported; there are SELECT, EXPLAIN, INSERT, UPSERT, UPDATE, DELETE, CREATE TABLE, ALTER TABLE, \
         DROP TABLE, SHOW TABLES, SHOW CREATE TABLE and DESCRIBE",
        words.join(" ")
    ))
}
