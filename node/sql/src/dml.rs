//! INSERT, UPSERT, UPDATE and DELETE: a query that yields rows, and a writer of them.
//!
//! ```text
//! UPDATE t SET a = e WHERE c   ── SELECT key columns, e AS a FROM t WHERE c ── rows ── update by key
//! DELETE FROM t WHERE c        ── SELECT key columns FROM t WHERE c         ── rows ── delete by key
//! ```
//!
//! The query reads one snapshot, so it does not see the writes of its own statement. A write is no transaction: rows
//! are written in batches, and those written before a failure stay.

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{Field, Schema as ArrowSchema};
use datafusion::logical_expr::sqlparser::ast::{
    AssignmentTarget, Delete, Expr, FromTable, Ident, Insert, OnConflictAction, OnInsert, Query, SelectItem,
    SetExpr, Statement as SqlStatement, TableFactor, TableObject, TableWithJoins, Update,
};
use datafusion::sql::parser::Statement;
use futures_util::StreamExt;
use nyala_client::{Client, ClientError, ColumnSchema, RowOpKind, Table, definitions};

use super::error::{SqlError, SqlResult};
use super::partition::{normal, table_name};
use super::session::Session;
use super::tokens::{parser_of, tokens};

/// A write: where the rows of a query go.
pub(crate) struct Write {
    pub(crate) table: Table,
    pub(crate) kind: RowOpKind,
    /// Column of the table for each column of the query.
    pub(crate) columns: Vec<String>,
    pub(crate) query: Statement,
}

/// Returns the write that a statement asks for; `None` if it is no write.
pub(crate) async fn write_of(client: &Client, statement: &SqlStatement) -> SqlResult<Option<Write>> {
    let write = match statement {
        SqlStatement::Insert(insert) => insert_of(client, insert).await,
        SqlStatement::Update(update) => update_of(client, update).await,
        SqlStatement::Delete(delete) => delete_of(client, delete).await,
        _ => return Ok(None),
    };
    write.map(Some)
}

/// Refuses a statement that has clauses which would be ignored otherwise.
fn refuse(statement: &str, clauses: &[(bool, &str)]) -> SqlResult<()> {
    match clauses.iter().find(|(is_used, _)| *is_used) {
        Some((_, clause)) => Err(SqlError::new(format!("{clause} is not supported in {statement}"))),
        None => Ok(()),
    }
}

async fn insert_of(client: &Client, insert: &Insert) -> SqlResult<Write> {
    let conflict_ignored = match &insert.on {
        None => false,
        Some(OnInsert::OnConflict(conflict)) if conflict.action == OnConflictAction::DoNothing => true,
        Some(_) => {
            return Err(SqlError::new(
                "ON CONFLICT DO UPDATE is not supported; UPSERT INTO sets the named columns",
            ));
        }
    };
    refuse(
        "INSERT",
        &[
            (insert.overwrite, "OVERWRITE"),
            (insert.or.is_some(), "OR"),
            (insert.returning.is_some(), "RETURNING"),
            (insert.partitioned.is_some(), "PARTITION"),
            (!insert.assignments.is_empty(), "SET"),
            (insert.table_alias.is_some() || insert.insert_alias.is_some(), "an alias"),
        ],
    )?;
    let TableObject::TableName(name) = &insert.table else {
        return Err(SqlError::new(format!("INSERT INTO {}: expected the name of a table", insert.table)));
    };
    let Some(query) = &insert.source else {
        return Err(SqlError::new("INSERT needs VALUES or a query"));
    };
    let table = open(client, &table_name(name)?).await?;
    let kind = match (insert.replace_into, insert.ignore || conflict_ignored) {
        (true, _) => RowOpKind::Upsert,
        (false, true) => RowOpKind::InsertIgnore,
        (false, false) => RowOpKind::Insert,
    };
    let mut columns = insert.columns.iter().map(table_name).collect::<SqlResult<Vec<_>>>()?;
    if columns.is_empty() {
        let is_given = |column: &&ColumnSchema| !column.auto_incrementing;
        let all = table.schema().columns().iter().filter(is_given);
        columns = all.map(|column| column.name.clone()).collect();
    }
    check_inserted(&table, &columns)?;
    let query = SqlStatement::Query(query.clone());
    Ok(Write { table, kind, columns, query: Statement::Statement(Box::new(query)) })
}

/// Opens a table that a statement names.
pub(crate) async fn open(client: &Client, name: &str) -> SqlResult<Table> {
    client.open_table(name).await.map_err(|error| SqlError::from(error).context(format_args!("table {name}")))
}

/// Checks that the columns exist, and that those which need a value get one.
fn check_inserted(table: &Table, columns: &[String]) -> SqlResult<()> {
    for (index, name) in columns.iter().enumerate() {
        definitions::find(table.schema(), name, table.name())?;
        if columns[..index].contains(name) {
            return Err(SqlError::new(format!("table {}, column {name}: named twice", table.name())));
        }
    }
    let needs_value = |column: &&ColumnSchema| {
        !column.nullable && column.write_default.is_none() && !column.auto_incrementing
    };
    let mut needed = table.schema().columns().iter().filter(needs_value);
    match needed.find(|column| !columns.contains(&column.name)) {
        None => Ok(()),
        Some(column) => Err(SqlError::new(format!(
            "table {}, column {}: NOT NULL and without a default; give it a value",
            table.name(),
            column.name
        ))),
    }
}

/// Opens the only table of UPDATE or DELETE.
async fn only_table(client: &Client, statement: &str, from: &TableWithJoins) -> SqlResult<Table> {
    refuse(statement, &[(!from.joins.is_empty(), "JOIN")])?;
    match &from.relation {
        TableFactor::Table { name, args: None, version: None, sample: None, .. } => {
            open(client, &table_name(name)?).await
        }
        other => Err(SqlError::new(format!("{statement} {other}: expected the name of a table"))),
    }
}

fn quoted(name: &str) -> Ident {
    Ident::with_quote('"', name)
}

/// Returns the query that selects the key columns, and more, of the rows that satisfy a condition.
fn query_by_key(
    table: &Table,
    from: &TableWithJoins,
    condition: Option<&Expr>,
    more: Vec<SelectItem>,
) -> SqlResult<Statement> {
    let mut query = parser_of(tokens("SELECT 1")?).parse_query()?;
    let Query { body, .. } = &mut *query;
    let SetExpr::Select(select) = &mut **body else {
        return Err(SqlError::new("the query of a write is no SELECT"));
    };
    let keys = table.schema().key_columns().iter();
    let keys = keys.map(|column| SelectItem::UnnamedExpr(Expr::Identifier(quoted(&column.name))));
    select.projection = keys.chain(more).collect();
    select.from = vec![from.clone()];
    select.selection = condition.cloned();
    Ok(Statement::Statement(Box::new(SqlStatement::Query(query))))
}

async fn update_of(client: &Client, update: &Update) -> SqlResult<Write> {
    refuse(
        "UPDATE",
        &[
            (update.from.is_some(), "FROM"),
            (update.returning.is_some(), "RETURNING"),
            (update.or.is_some(), "OR"),
            (!update.order_by.is_empty(), "ORDER BY"),
            (update.limit.is_some(), "LIMIT"),
        ],
    )?;
    let table = only_table(client, "UPDATE", &update.table).await?;
    let keys = table.schema().key_columns();
    let mut columns: Vec<String> = keys.iter().map(|column| column.name.clone()).collect();
    let mut assigned = Vec::new();
    for assignment in &update.assignments {
        let AssignmentTarget::ColumnName(name) = &assignment.target else {
            return Err(SqlError::new(format!("SET {assignment}: assign one column at a time")));
        };
        // The target may be qualified by the table's name or alias.
        let name = name.0.last().and_then(|part| part.as_ident()).map(normal).unwrap_or_default();
        let place = format!("table {}, column {name}", table.name());
        let column = definitions::find(table.schema(), &name, table.name())?;
        if keys.iter().any(|key| key.name == name) {
            let what =
                "a column of the primary key cannot change; INSERT a row with the new key and DELETE the old";
            return Err(SqlError::new(format!("{place}: {what}")));
        }
        if column.immutable {
            return Err(SqlError::new(format!("{place}: IMMUTABLE, so only INSERT sets it")));
        }
        if columns.contains(&name) {
            return Err(SqlError::new(format!("{place}: assigned twice")));
        }
        assigned.push(SelectItem::ExprWithAlias { expr: assignment.value.clone(), alias: quoted(&name) });
        columns.push(name);
    }
    let query = query_by_key(&table, &update.table, update.selection.as_ref(), assigned)?;
    Ok(Write { table, kind: RowOpKind::UpdateIgnore, columns, query })
}

async fn delete_of(client: &Client, delete: &Delete) -> SqlResult<Write> {
    refuse(
        "DELETE",
        &[
            (!delete.tables.is_empty(), "a list of tables"),
            (delete.using.is_some(), "USING"),
            (delete.returning.is_some(), "RETURNING"),
            (!delete.order_by.is_empty(), "ORDER BY"),
            (delete.limit.is_some(), "LIMIT"),
        ],
    )?;
    let (FromTable::WithFromKeyword(from) | FromTable::WithoutKeyword(from)) = &delete.from;
    let [from] = &from[..] else {
        return Err(SqlError::new(
            "DELETE takes one table; use WHERE … IN (SELECT …) for conditions on others",
        ));
    };
    let table = only_table(client, "DELETE FROM", from).await?;
    let columns = table.schema().key_columns().iter().map(|column| column.name.clone()).collect();
    let query = query_by_key(&table, from, delete.selection.as_ref(), Vec::new())?;
    Ok(Write { table, kind: RowOpKind::DeleteIgnore, columns, query })
}

impl Write {
    /// Runs the query and writes its rows. Returns the number of rows written.
    pub(crate) async fn run(self, session: &Session) -> SqlResult<u64> {
        let frame = session.frame(self.query).await?;
        let (found, want) = (frame.schema().fields().len(), self.columns.len());
        if found != want {
            let table = self.table.name();
            let columns = self.columns.join(", ");
            return Err(SqlError::new(format!(
                "table {table}: the query gives {found} columns for {want} ({columns})"
            )));
        }
        let mut rows = frame.execute_stream().await?;
        let mut writer = self.table.writer();
        while let Some(batch) = rows.next().await {
            let batch = batch.map_err(SqlError::from).and_then(|batch| renamed(&batch, &self.columns));
            let written = match batch {
                Ok(batch) => writer.write_batch(self.kind, &batch).await.map_err(SqlError::from),
                Err(error) => Err(error),
            };
            if let Err(error) = written {
                return Err(match writer.next_row() {
                    0 => error,
                    before => error.and(format_args!("of the {before} rows before it some may be written")),
                });
            }
        }
        writer.finish().await.map(|summary| summary.written).map_err(explained)
    }
}

/// Gives the columns of a batch the names of the table's.
fn renamed(batch: &RecordBatch, names: &[String]) -> SqlResult<RecordBatch> {
    let field = |(array, name): (&datafusion::arrow::array::ArrayRef, &String)| {
        Field::new(name, array.data_type().clone(), true)
    };
    let fields: Vec<Field> = batch.columns().iter().zip(names).map(field).collect();
    Ok(RecordBatch::try_new(ArrowSchema::new(fields).into(), batch.columns().to_vec())?)
}

/// Says what to do about rows that were refused.
pub(crate) fn explained(error: ClientError) -> SqlError {
    let ClientError::RowsRefused(refused) = &error else { return error.into() };
    let is_present =
        |row: &nyala_client::error::RefusedRow| row.error.kind == nyala_client::ErrorKind::AlreadyPresent;
    match refused.rows.iter().any(is_present) {
        true => {
            SqlError::from(error).and("UPSERT INTO replaces rows, INSERT … ON CONFLICT DO NOTHING skips them")
        }
        false => error.into(),
    }
}
