//! CREATE TABLE, ALTER TABLE and DROP TABLE.

use datafusion::arrow::datatypes::{DataType as ArrowType, Schema as ArrowSchema};
use datafusion::logical_expr::sqlparser::ast::{
    AlterColumnOperation, AlterTable, AlterTableOperation, ColumnDef, ColumnOption, CreateTable,
    CreateTableOptions, DataType, Expr, RenameTableNameKind, SqlOption, TableConstraint,
};
use engine::schema::partition::{HashDimension, PartitionSchema};
use engine::schema::{ColumnSchema, Schema};
use nyala_client::cell_text::parse_cell;
use nyala_client::tables::{AlterStep, StartingTable};
use nyala_client::{Client, ErrorKind, Table, definitions};

use super::error::{SqlError, SqlResult};
use super::guard::used_clause;
use super::partition::{PartitionBy, RangeChange, constant, normal, range_columns, table_name};
use super::script::{Clauses, ColumnAttribute};

/// Creates the table of a statement, unless it exists and the statement says IF NOT EXISTS. Waits until it is running.
pub(crate) async fn create_table(
    client: &Client,
    statement: &CreateTable,
    clauses: &Clauses,
) -> SqlResult<()> {
    if let Some(starting) = start_table(client, statement, clauses, None).await? {
        wait_until_running(&starting).await?;
    }
    Ok(())
}

/// Creates the table of a statement, and does not wait for its tablets. `query` is the schema of the rows of CREATE
/// TABLE AS. Returns `None` if the table exists and the statement says IF NOT EXISTS.
pub(crate) async fn start_table(
    client: &Client,
    statement: &CreateTable,
    clauses: &Clauses,
    query: Option<&ArrowSchema>,
) -> SqlResult<Option<StartingTable>> {
    let name = table_name(&statement.name)?;
    if statement.if_not_exists && exists(client, &name).await? {
        return Ok(None);
    }
    let in_table = |error: SqlError| error.context(format_args!("table {name}"));
    let request = request(&name, statement, clauses, query).map_err(in_table)?;
    let started = client.start_table(&request).await;
    started.map(Some).map_err(|error| in_table(error.into()))
}

/// Waits until the tablets of a new table are running.
pub(crate) async fn wait_until_running(starting: &StartingTable) -> SqlResult<Table> {
    let waited = starting.wait().await;
    waited.map_err(|error| SqlError::from(error).context(format_args!("table {}", starting.name())))
}

/// Returns true if the table exists.
pub(crate) async fn exists(client: &Client, name: &str) -> SqlResult<bool> {
    match client.open_table(name).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn request(
    name: &str,
    statement: &CreateTable,
    clauses: &Clauses,
    query: Option<&ArrowSchema>,
) -> SqlResult<nyala_client::CreateTable> {
    refuse_variants(statement)?;
    let keys = primary_key(statement, clauses)?;
    let mut columns = Vec::new();
    match query {
        None => {
            for definition in &statement.columns {
                columns.push(column(definition, keys.contains(&normal(&definition.name)))?);
            }
            set_attributes(&mut columns, &clauses.attributes)?;
        }
        Some(schema) => {
            for field in schema.fields() {
                let is_key = keys.contains(field.name());
                columns.push(column_of_query(
                    field.name(),
                    field.data_type(),
                    field.is_nullable() && !is_key,
                )?);
            }
        }
    }
    check_key(&columns, &keys)?;
    for (id, column) in (0..).zip(&mut columns) {
        column.id = engine::ids::ColumnId(id);
    }
    let schema = Schema::new(columns, keys.len())?;
    let mut request = nyala_client::CreateTable::new(name, schema);
    partition(&mut request, &clauses.partition_by, &keys)?;
    request.comment = clauses.comment.clone();
    set_options(&mut request, statement)?;
    Ok(request)
}

/// Refuses clauses that would be ignored otherwise.
fn refuse_variants(statement: &CreateTable) -> SqlResult<()> {
    let refused = [
        (statement.or_replace, "OR REPLACE"),
        (statement.temporary, "TEMPORARY"),
        (statement.external, "EXTERNAL"),
        (statement.like.is_some(), "LIKE"),
        (statement.clone.is_some(), "CLONE"),
        (statement.location.is_some(), "LOCATION"),
        (statement.order_by.is_some(), "ORDER BY"),
        (statement.cluster_by.is_some() || statement.clustered_by.is_some(), "CLUSTER BY"),
        (statement.partition_of.is_some(), "PARTITION OF"),
        (statement.inherits.is_some(), "INHERITS"),
        (statement.file_format.is_some(), "STORED AS"),
        (
            statement.transient || statement.volatile || statement.global.is_some(),
            "TRANSIENT, VOLATILE or GLOBAL",
        ),
        (statement.dynamic || statement.iceberg || statement.snapshot, "DYNAMIC, ICEBERG or SNAPSHOT"),
        (statement.on_commit.is_some(), "ON COMMIT"),
        (statement.on_cluster.is_some(), "ON CLUSTER"),
        (statement.version.is_some(), "a version"),
        (statement.without_rowid || statement.strict, "WITHOUT ROWID or STRICT"),
    ];
    match used_clause(&refused) {
        Some(clause) => Err(SqlError::new(format!("{clause} is not supported in CREATE TABLE"))),
        None => Ok(()),
    }
}

fn primary_key(statement: &CreateTable, clauses: &Clauses) -> SqlResult<Vec<String>> {
    let of_column = |column: &ColumnDef| {
        let is_key = column.options.iter().any(|option| matches!(option.option, ColumnOption::PrimaryKey(_)));
        is_key.then(|| normal(&column.name))
    };
    let mut keys: Vec<String> = statement.columns.iter().filter_map(of_column).collect();
    let mut clauses_found = usize::from(!keys.is_empty()) + usize::from(!clauses.primary_key.is_empty());
    keys.extend(clauses.primary_key.iter().cloned());
    for constraint in &statement.constraints {
        let TableConstraint::PrimaryKey(key) = constraint else {
            return Err(SqlError::new(format!("constraint {constraint}: only PRIMARY KEY is supported")));
        };
        clauses_found += 1;
        for column in &key.columns {
            match &column.column.expr {
                Expr::Identifier(name) => keys.push(normal(name)),
                other => return Err(SqlError::new(format!("PRIMARY KEY: {other} is not a column"))),
            }
        }
    }
    match clauses_found {
        0 => Err(SqlError::new("a table needs a primary key; add PRIMARY KEY (columns)")),
        1 => Ok(keys),
        _ => Err(SqlError::new(
            "PRIMARY KEY is given twice; list all key columns in one PRIMARY KEY (columns)",
        )),
    }
}

/// Checks that the columns begin with those of the key.
fn check_key(columns: &[ColumnSchema], keys: &[String]) -> SqlResult<()> {
    for key in keys {
        if !columns.iter().any(|column| column.name == *key) {
            return Err(SqlError::new(format!("PRIMARY KEY: there is no column {key}")));
        }
    }
    let differing = columns.iter().zip(keys).find(|(column, key)| column.name != **key);
    differing.map_or(Ok(()), |(column, key)| {
        let what = "the columns of the primary key come first, in the order of the key; put";
        Err(SqlError::new(format!("column {}: {what} {key} there", column.name)))
    })
}

/// Parses a definition in CREATE TABLE or ADD COLUMN.
fn column(definition: &ColumnDef, is_key: bool) -> SqlResult<ColumnSchema> {
    let name = normal(&definition.name);
    let in_column = |error: SqlError| error.context(format_args!("column {name}"));
    let mut column = typed_column(&name, &type_text(&definition.data_type).map_err(in_column)?)?;
    column.nullable = !is_key;
    let mut default = None;
    for option in &definition.options {
        match &option.option {
            ColumnOption::NotNull => column.nullable = false,
            ColumnOption::Null if !is_key => {}
            // ADD COLUMN never adds to the key.
            ColumnOption::PrimaryKey(_) if is_key => {}
            ColumnOption::Comment(text) => column.comment = text.clone(),
            ColumnOption::Default(expr) => default = constant(expr).map_err(in_column)?,
            other => return Err(in_column(SqlError::new(format!("{other} is not supported")))),
        }
    }
    if let Some(default) = default {
        let cell = parse_cell(&column, &default).map_err(|error| in_column(error.into()))?;
        (column.read_default, column.write_default) = (Some(cell.clone()), Some(cell));
    }
    Ok(column)
}

fn typed_column(name: &str, ty: &str) -> SqlResult<ColumnSchema> {
    let mut column = definitions::column(0, &format!("c {ty}")).map_err(|error| {
        // The message begins with the definition that was made for it.
        let reason = error.message.split_once(": ").map_or(error.message.as_str(), |(_, reason)| reason);
        SqlError::new(format!("column {name}: {reason}"))
    })?;
    column.name = name.to_string();
    Ok(column)
}

/// Returns the type in the words of the command line.
fn type_text(ty: &DataType) -> SqlResult<String> {
    let named = match ty {
        DataType::TinyInt(_) => "int8",
        DataType::SmallInt(_) => "int16",
        DataType::Int(_) | DataType::Integer(_) => "int32",
        DataType::BigInt(_) => "int64",
        DataType::Boolean | DataType::Bool => "bool",
        DataType::Real | DataType::Float(_) => "float",
        DataType::Double(_) | DataType::DoublePrecision => "double",
        DataType::Text | DataType::String(_) | DataType::Varchar(None) => "string",
        DataType::Varbinary(_) | DataType::Bytea | DataType::Binary(_) | DataType::Blob(_) => "binary",
        DataType::Timestamp(..) | DataType::Datetime(_) => "timestamp",
        DataType::Date => "date",
        DataType::Numeric(info) | DataType::Decimal(info) => {
            let text = info.to_string().replace(' ', "");
            return match text.is_empty() {
                true => Err(SqlError::new("DECIMAL needs a precision and a scale, as in DECIMAL(9, 2)")),
                false => Ok(format!("decimal{text}")),
            };
        }
        other => return Ok(other.to_string().replace(' ', "").to_lowercase()),
    };
    Ok(named.to_string())
}

fn set_attributes(columns: &mut [ColumnSchema], attributes: &[ColumnAttribute]) -> SqlResult<()> {
    for ColumnAttribute { index, text } in attributes {
        let Some(column) = columns.get_mut(*index) else {
            return Err(SqlError::new(format!("{text}: there is no column before it")));
        };
        let parsed = definitions::column(0, &format!("c int8 {text}"));
        let parsed = parsed.map_err(|error| {
            let reason = error.message.split_once(": ").map_or("", |(_, reason)| reason).to_string();
            SqlError::new(format!("column {}: {reason}", column.name))
        })?;
        match text.split('=').next() {
            Some("encoding") => column.encoding = parsed.encoding,
            Some("compression") => column.compression = parsed.compression,
            _ => column.immutable = parsed.immutable,
        }
    }
    Ok(())
}

/// Returns the column that holds values of a query.
fn column_of_query(name: &str, ty: &ArrowType, nullable: bool) -> SqlResult<ColumnSchema> {
    let text = match ty {
        ArrowType::Boolean => "bool".to_string(),
        ArrowType::Int8 => "int8".to_string(),
        ArrowType::Int16 | ArrowType::UInt8 => "int16".to_string(),
        ArrowType::Int32 | ArrowType::UInt16 => "int32".to_string(),
        ArrowType::Int64 | ArrowType::UInt32 | ArrowType::UInt64 => "int64".to_string(),
        ArrowType::Float16 | ArrowType::Float32 => "float".to_string(),
        ArrowType::Float64 => "double".to_string(),
        ArrowType::Utf8 | ArrowType::LargeUtf8 | ArrowType::Utf8View => "string".to_string(),
        ArrowType::Binary | ArrowType::LargeBinary | ArrowType::BinaryView => "binary".to_string(),
        ArrowType::Date32 | ArrowType::Date64 => "date".to_string(),
        ArrowType::Timestamp(..) => "timestamp".to_string(),
        ArrowType::Decimal128(precision, scale) if *scale >= 0 => format!("decimal({precision},{scale})"),
        other => {
            return Err(SqlError::new(format!(
                "column {name}: no type of a column holds {other}; CAST it in the query"
            )));
        }
    };
    let mut column = typed_column(name, &text)?;
    column.nullable = nullable;
    Ok(column)
}

fn partition(
    request: &mut nyala_client::CreateTable,
    partition_by: &PartitionBy,
    keys: &[String],
) -> SqlResult<()> {
    let or_key = |columns: &[String]| if columns.is_empty() { keys.to_vec() } else { columns.to_vec() };
    let mut partition = PartitionSchema::default();
    let schema = &request.schema;
    let ids = |columns: &[ColumnSchema]| columns.iter().map(|column| column.id).collect();
    for (columns, buckets) in &partition_by.hash {
        let columns = ids(&range_columns(schema, &or_key(columns)).map_err(in_partition)?);
        partition.hash.push(HashDimension { columns, buckets: *buckets, seed: 0 });
    }
    let mut ranges = Vec::new();
    if let Some(dimension) = &partition_by.range {
        let columns = range_columns(schema, &or_key(&dimension.columns)).map_err(in_partition)?;
        partition.range_columns = ids(&columns);
        for range in &dimension.ranges {
            ranges.push(range.to_range(&columns).map_err(in_partition)?);
        }
    }
    (request.partition, request.ranges) = (partition, ranges);
    Ok(())
}

fn in_partition(error: engine::error::Error) -> SqlError {
    SqlError::from(error).context("PARTITION BY")
}

/// Sets the options of WITH or TBLPROPERTIES.
fn set_options(request: &mut nyala_client::CreateTable, statement: &CreateTable) -> SqlResult<()> {
    let options = match &statement.table_options {
        CreateTableOptions::None => return Ok(()),
        CreateTableOptions::With(options)
        | CreateTableOptions::Options(options)
        | CreateTableOptions::Plain(options)
        | CreateTableOptions::TableProperties(options) => options,
    };
    for option in options {
        let bad = || SqlError::new(format!("option {option}: there are replicas, owner and comment"));
        let SqlOption::KeyValue { key, value } = option else { return Err(bad()) };
        let value = constant(value)?.ok_or_else(bad)?;
        match key.value.to_lowercase().as_str() {
            "replicas" | "kudu.num_tablet_replicas" => {
                let replicas = value.parse();
                request.replicas =
                    Some(replicas.map_err(|_| SqlError::new(format!("option {option}: not a number")))?);
            }
            "owner" => request.owner = Some(value),
            "comment" => request.comment = Some(value),
            _ => return Err(bad()),
        }
    }
    Ok(())
}

/// Drops tables.
pub(crate) async fn drop_tables(client: &Client, names: &[String], if_exists: bool) -> SqlResult<()> {
    for name in names {
        match client.delete_table(name).await {
            Err(error) if if_exists && error.kind == ErrorKind::NotFound => {}
            Err(error) => return Err(SqlError::from(error).context(format_args!("table {name}"))),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Runs the operations of ALTER TABLE, all or none.
pub(crate) async fn alter_table(client: &Client, statement: &AlterTable) -> SqlResult<()> {
    let name = table_name(&statement.name)?;
    let in_table = |error: SqlError| error.context(format_args!("table {name}"));
    let ignored = [
        (statement.only, "ONLY"),
        (statement.location.is_some(), "LOCATION"),
        (statement.on_cluster.is_some(), "ON CLUSTER"),
        (statement.table_type.is_some(), "a kind of table"),
    ];
    if let Some(clause) = used_clause(&ignored) {
        return Err(in_table(SqlError::new(format!("{clause} is not supported in ALTER TABLE"))));
    }
    if statement.if_exists && !exists(client, &name).await? {
        return Ok(());
    }
    let table = client.open_table(&name).await.map_err(|error| in_table(error.into()))?;
    let (mut steps, mut new_name) = (Vec::new(), None);
    for operation in &statement.operations {
        match operation {
            AlterTableOperation::RenameTable {
                table_name: RenameTableNameKind::To(to) | RenameTableNameKind::As(to),
            } => new_name = Some(table_name(to)?),
            operation => steps.extend(alter_steps(&table, operation).map_err(in_table)?),
        }
    }
    let altered = client.alter_table(&table, &steps, new_name.as_deref()).await;
    altered.map(drop).map_err(|error| in_table(error.into()))
}

fn alter_steps(table: &Table, operation: &AlterTableOperation) -> SqlResult<Vec<AlterStep>> {
    let find = |name: &str| definitions::find(table.schema(), name, table.name());
    Ok(match operation {
        AlterTableOperation::AddColumn { column_keyword: _, if_not_exists, column_def, column_position } => {
            if let Some(position) = column_position {
                let name = &column_def.name;
                return Err(SqlError::new(format!(
                    "column {name}: {position} is not supported; it comes last"
                )));
            }
            if *if_not_exists && find(&normal(&column_def.name)).is_ok() {
                return Ok(Vec::new());
            }
            vec![AlterStep::AddColumn(column(column_def, false)?)]
        }
        AlterTableOperation::DropColumn { column_names, if_exists, .. } => {
            let names = column_names.iter().map(normal);
            let names = names.filter(|name| !*if_exists || find(name).is_ok());
            names.map(AlterStep::DropColumn).collect()
        }
        AlterTableOperation::RenameColumn { old_column_name, new_column_name } => {
            let (from, to) = (normal(old_column_name), normal(new_column_name));
            find(&from)?;
            vec![AlterStep::RenameColumn { from, to }]
        }
        AlterTableOperation::AlterColumn { column_name, op } => {
            let column = find(&normal(column_name))?;
            let default = match op {
                AlterColumnOperation::DropDefault => None,
                AlterColumnOperation::SetDefault { value } => constant(value)?,
                other => {
                    return Err(SqlError::new(format!("column {}: {other} is not supported", column.name)));
                }
            };
            let cell = default.map(|text| parse_cell(column, &text)).transpose();
            let default = cell.map_err(|error| error.context(format_args!("column {}", column.name)))?;
            vec![AlterStep::SetDefault { column: column.name.clone(), default }]
        }
        other => return Err(SqlError::new(format!("ALTER TABLE {other} is not supported"))),
    })
}

/// Adds or drops a range partition.
pub(crate) async fn change_range(client: &Client, change: &RangeChange) -> SqlResult<()> {
    let in_table =
        |error: engine::error::Error| SqlError::from(error).context(format_args!("table {}", change.table));
    let table = client.open_table(&change.table).await.map_err(in_table)?;
    let schema = table.schema();
    let ids = &table.partition_schema().range_columns;
    let columns: Vec<ColumnSchema> = ids.iter().filter_map(|id| schema.by_id(*id).cloned()).collect();
    let range = change.range.to_range(&columns).map_err(in_table)?;
    let step = match change.is_added {
        true => AlterStep::AddRange(range),
        false => AlterStep::DropRange(range),
    };
    client.alter_table(&table, &[step], None).await.map(drop).map_err(in_table)
}
