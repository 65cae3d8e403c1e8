//! INSERT, UPSERT, UPDATE and DELETE: a query that yields rows, and a writer of them.
//!
//! ```text
//! UPDATE t SET a = e WHERE c   ── SELECT key columns, e AS a FROM t WHERE c ── rows ── update by key
//! DELETE FROM t WHERE c        ── SELECT key columns FROM t WHERE c         ── rows ── delete by key
//! ```
//!
//! The query reads one snapshot, so it does not see the writes of its own statement. A write is no transaction: rows
//! are written in batches, and those written before a failure stay.

use std::collections::BTreeSet;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use datafusion::arrow::compute::{CastOptions, cast, cast_with_options};
use datafusion::arrow::datatypes::{DataType as ArrowType, Field, Float64Type, Schema as ArrowSchema};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::logical_expr::sqlparser::ast::{
    AssignmentTarget, ConflictTarget, Delete, Expr, FromTable, Ident, Insert, OnConflictAction, OnInsert,
    Query, SelectItem, SetExpr, Statement as SqlStatement, TableFactor, TableObject, TableWithJoins, Update,
};
use datafusion::sql::parser::Statement;
use futures_util::StreamExt;
use nyala_client::arrow::{arrow_type, first_infinite};
use nyala_client::rows::TableWriter;
use nyala_client::{Client, ClientError, ColumnSchema, RowOpKind, Table, definitions};

use super::error::{SqlError, SqlResult, state};
use super::float_literals;
use super::guard;
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
    match guard::used_clause(clauses) {
        Some(clause) => Err(SqlError::new(format!("{clause} is not supported in {statement}"))),
        None => Ok(()),
    }
}

async fn insert_of(client: &Client, insert: &Insert) -> SqlResult<Write> {
    let conflict = match &insert.on {
        None => None,
        Some(OnInsert::OnConflict(conflict)) if conflict.action == OnConflictAction::DoNothing => {
            Some(conflict)
        }
        Some(_) => {
            return Err(SqlError::new(
                "ON CONFLICT DO UPDATE is not supported; UPSERT INTO sets the named columns",
            ));
        }
    };
    let is_ignoring = insert.ignore || conflict.is_some();
    refuse("UPSERT", &[(insert.replace_into && is_ignoring, "ON CONFLICT DO NOTHING or IGNORE")])?;
    refuse(
        "INSERT",
        &[
            (insert.output.is_some(), "OUTPUT"),
            (insert.priority.is_some(), "a priority"),
            (!insert.after_columns.is_empty(), "a list of columns after PARTITION"),
            (insert.settings.is_some() || insert.format_clause.is_some(), "SETTINGS or FORMAT"),
            (insert.multi_table_insert_type.is_some(), "ALL or FIRST"),
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
    if let Some(target) = conflict.and_then(|conflict| conflict.conflict_target.as_ref()) {
        check_conflict_target(&table, target)?;
    }
    let kind = match (insert.replace_into, is_ignoring) {
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
    let column =
        |name: &String| table.schema().index_of_name(name).map(|index| &table.schema().columns()[index]);
    let types: Vec<_> = columns.iter().filter_map(column).map(arrow_type).collect();
    let mut query = query.clone();
    float_literals::type_values(&mut query, &types);
    let query = SqlStatement::Query(query);
    Ok(Write { table, kind, columns, query: Statement::Statement(Box::new(query)) })
}

/// Checks that rows of equal keys are what a conflict is about, because nothing else can conflict.
fn check_conflict_target(table: &Table, target: &ConflictTarget) -> SqlResult<()> {
    let keys: BTreeSet<&str> = table.schema().key_columns().iter().map(|key| key.name.as_str()).collect();
    if let ConflictTarget::Columns(names) = target {
        let names: Vec<String> = names.iter().map(normal).collect();
        if names.iter().map(String::as_str).collect::<BTreeSet<_>>() == keys {
            return Ok(());
        }
    }
    let keys = keys.into_iter().collect::<Vec<_>>().join(", ");
    let what =
        format!("ON CONFLICT names other columns than those of the primary key ({keys}); leave them out");
    Err(SqlError::new(what).context(format_args!("table {}", table.name())))
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
    let ignored = guard::ignored_of_table(&from.relation);
    refuse(statement, &[(ignored.is_some(), ignored.unwrap_or_default())])?;
    match &from.relation {
        TableFactor::Table { name, args: None, .. } => open(client, &table_name(name)?).await,
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
            (update.output.is_some(), "OUTPUT"),
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
            (delete.output.is_some(), "OUTPUT"),
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
        let Write { table, kind, columns, query } = self;
        let frame = session.frame(query).await?;
        let (found, want) = (frame.schema().fields().len(), columns.len());
        if found != want {
            let (table, columns) = (table.name(), columns.join(", "));
            return Err(SqlError::new(format!(
                "table {table}: the query gives {found} columns for {want} ({columns})"
            )));
        }
        let mut rows = frame.execute_stream().await?;
        let mut writer = table.writer();
        let write_rows = async {
            while let Some(batch) = rows.next().await {
                writer.write_batch(kind, &assigned(&batch?, &table, &columns)?).await?;
            }
            Ok(())
        };
        match write_rows.await {
            Ok(()) => writer.finish().await.map(|summary| summary.written).map_err(explained),
            Err(error) => Err(discarded(writer, error).await),
        }
    }
}

/// Ends a write that failed: none of its rows is written after this. Returns the error, with the rows that may be.
async fn discarded(writer: TableWriter, error: SqlError) -> SqlError {
    let before = writer.next_row();
    writer.discard().await;
    match before {
        0 => error,
        before => error.and(format_args!("of the {before} rows before it some may be written")),
    }
}

/// Gives the columns of a batch the names and types of the table's columns. An assignment of SQL rounds a value to the
/// column's digits, where the writer of batches would refuse it.
fn assigned(batch: &RecordBatch, table: &Table, names: &[String]) -> SqlResult<RecordBatch> {
    let mut fields = Vec::with_capacity(names.len());
    let mut arrays = Vec::with_capacity(names.len());
    for (array, name) in batch.columns().iter().zip(names) {
        let column = definitions::find(table.schema(), name, table.name())?;
        let place = |error: SqlError| error.context(format_args!("table {}, column {name:?}", table.name()));
        let assigned = assigned_column(array, column).map_err(place)?;
        fields.push(Field::new(name, assigned.data_type().clone(), true));
        arrays.push(assigned);
    }
    Ok(RecordBatch::try_new(ArrowSchema::new(fields).into(), arrays)?)
}

/// Casts an array to the type of a column. The error is the reason alone.
fn assigned_column(array: &ArrayRef, column: &ColumnSchema) -> SqlResult<ArrayRef> {
    let assigned = cast_strictly(array, &arrow_type(column));
    let assigned = assigned.map_err(|error| cast_error(array, column, error))?;
    if let Some(value) = first_infinite(array, &assigned) {
        return Err(out_of_range(&value, column));
    }
    match first_fraction(array, &assigned)? {
        Some(value) => {
            let what = format!("{value} does not fit {}; ROUND or CAST it in the query", column.type_name());
            Err(SqlError::with_state(state::BAD_VALUE, what))
        }
        None => Ok(assigned),
    }
}

/// Casts an array. A value that the type cannot hold is an error, not NULL.
fn cast_strictly(array: &ArrayRef, wanted: &ArrowType) -> Result<ArrayRef, ArrowError> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let nearest = float_literals::nearest(array, wanted);
    nearest.unwrap_or_else(|| cast_with_options(array, wanted, &options))
}

/// Returns the error of an array that is not cast to the type of a column. A number is named as it is in the query.
fn cast_error(array: &ArrayRef, column: &ColumnSchema, error: ArrowError) -> SqlError {
    let wanted = arrow_type(column);
    let are_numbers = array.data_type().is_numeric() && wanted.is_numeric();
    if !are_numbers || wanted.is_floating() {
        return error.into();
    }
    let fails = |row: &usize| cast_strictly(&array.slice(*row, 1), &wanted).is_err();
    let value = (0..array.len()).find(fails).and_then(|row| array_value_to_string(array, row).ok());
    value.map_or_else(|| error.into(), |value| out_of_range(&value, column))
}

fn out_of_range(value: &str, column: &ColumnSchema) -> SqlError {
    let what = format!("{value} is out of range for {}", column.type_name());
    SqlError::with_state(state::OUT_OF_RANGE, what)
}

/// Returns the first number with a fraction, as text, if integers are assigned. Arrow's cast cuts the fraction off.
fn first_fraction(array: &ArrayRef, assigned: &ArrayRef) -> Result<Option<String>, ArrowError> {
    let is_decimal = matches!(array.data_type(), ArrowType::Decimal128(..) | ArrowType::Decimal256(..));
    let row = if !assigned.data_type().is_integer() {
        None
    } else if is_decimal {
        let whole = cast(assigned, array.data_type())?;
        let differs = |row: &usize| whole.slice(*row, 1).as_ref() != array.slice(*row, 1).as_ref();
        (whole.as_ref() != array.as_ref()).then(|| (0..array.len()).find(differs)).flatten()
    } else if array.data_type().is_floating() {
        let doubles = cast(array, &ArrowType::Float64)?;
        let mut doubles = doubles.as_primitive::<Float64Type>().iter();
        doubles.position(|double| double.is_some_and(|double| double.fract() != 0.0))
    } else {
        None
    };
    row.map(|row| array_value_to_string(array, row)).transpose()
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{Decimal128Array, Float64Array, Int32Array, Int64Array};
    use engine::schema::DataType;
    use nyala_client::ClientConfig;

    use super::super::output::Format;
    use super::super::shell::Shell;
    use super::super::test_cluster;
    use super::*;

    const CREATE: &str = "CREATE TABLE t (k INT PRIMARY KEY)
                          PARTITION BY RANGE (k) (PARTITION VALUES < 10, PARTITION 10 <= VALUES < 20)";

    fn batch(keys: Vec<i32>) -> RecordBatch {
        let schema = ArrowSchema::new(vec![Field::new("k", ArrowType::Int32, false)]);
        RecordBatch::try_new(schema.into(), vec![Arc::new(Int32Array::from(keys))]).expect("one column")
    }

    /// Returns what a column gets for an array.
    fn cells(array: impl Array + 'static, ty: DataType) -> Result<String, String> {
        let array: ArrayRef = Arc::new(array);
        let assigned = assigned_column(&array, &ColumnSchema::new(0, "c", ty).nullable());
        let assigned = assigned.map_err(|error| format!("{}: {error}", error.sql_state()))?;
        let cell = |row| array_value_to_string(&assigned, row).expect("a printable type");
        Ok((0..assigned.len()).map(cell).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_number_that_would_become_another_is_not_assigned() {
        let decimals = |values: Vec<i128>| {
            Decimal128Array::from(values).with_precision_and_scale(9, 2).expect("a type of decimals")
        };
        let ok = |cells: &str| Ok(cells.to_string());
        assert_eq!(cells(Float64Array::from(vec![Some(2.0), Some(-0.0), None]), DataType::Int64), ok("2 0 "));
        assert_eq!(cells(decimals(vec![1200, -700]), DataType::Int32), ok("12 -7"));
        assert_eq!(cells(Float64Array::from(vec![0.1, f64::INFINITY]), DataType::Float), ok("0.1 inf"));
        assert_eq!(cells(Int64Array::from(vec![7]), DataType::Double), ok("7.0"));

        let refused = |cells: Result<String, String>| cells.expect_err("another number");
        let fraction = |value| format!("22000: {value} does not fit INT32; ROUND or CAST it in the query");
        assert_eq!(refused(cells(Float64Array::from(vec![2.0, 2.5]), DataType::Int32)), fraction("2.5"));
        assert_eq!(refused(cells(decimals(vec![1200, 1275]), DataType::Int32)), fraction("12.75"));
        let large = Float64Array::from(vec![0.5, 1e300]);
        assert_eq!(refused(cells(large, DataType::Float)), "22003: 1e300 is out of range for FLOAT");
        let large = Int64Array::from(vec![Some(127), None, Some(300)]);
        assert_eq!(refused(cells(large, DataType::Int8)), "22003: 300 is out of range for INT8");
        let large = Int32Array::from(vec![-32_769]);
        assert_eq!(refused(cells(large, DataType::Int16)), "22003: -32769 is out of range for INT16");
        assert_eq!(
            refused(cells(decimals(vec![1200, 12_800]), DataType::Int8)),
            "22003: 128.00 is out of range for INT8"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_error_of_a_write_counts_rows_of_the_batch_that_fails() {
        let (env, mut cluster) = test_cluster::start().await;
        let client = Client::connect(env, ClientConfig::new(cluster.master_addresses())).await;
        let client = client.expect("a leader");
        let shell = Shell::new(client.clone(), Format::Csv);
        shell.run(CREATE, &mut |_: &[u8]| Ok(())).await.expect("a new table");
        let table = open(&client, "t").await.expect("it exists");
        let mut writer = table.writer();
        // Locates the tablets from that of 15 on, and not the one before it.
        writer.write_batch(RowOpKind::Insert, &batch(vec![15])).await.expect("a running cluster");
        cluster.shutdown().await;
        let failed = writer.write_batch(RowOpKind::Insert, &batch(vec![16, 5])).await;
        let failed = failed.expect_err("no master knows the tablet of 5");
        let error = discarded(writer, failed.into()).await.to_string();
        assert!(error.ends_with("; of the 3 rows before it some may be written"), "{error}");
    }
}
