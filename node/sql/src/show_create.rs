//! SHOW CREATE TABLE: the statement that creates a table.

use engine::schema::key::decode_key;
use engine::schema::partition::HashDimension;
use engine::schema::partition_range::PartitionRange;
use engine::schema::{ColumnSchema, DataType, Schema, format_cell};
use nyala_client::{ScanSpec, Table};

use super::describe::{attributes, type_name};
use super::error::{SqlError, SqlResult};
use super::tokens::is_plain_name;

/// Returns the statement. Fails if SQL cannot express the table.
pub(crate) async fn create_statement(table: &Table) -> SqlResult<String> {
    let schema = table.schema();
    let mut lines = Vec::new();
    for column in schema.columns() {
        lines.push(column_definition(column)?);
    }
    lines.push(format!("PRIMARY KEY ({})", names(schema.key_columns())));
    let mut text = format!("CREATE TABLE {} (\n  {}\n)", name(table.name()), lines.join(",\n  "));
    let dimensions = dimensions(table).await?;
    if !dimensions.is_empty() {
        text.push_str(&format!("\nPARTITION BY {}", dimensions.join(",\n  ")));
    }
    if !table.comment().is_empty() {
        text.push_str(&format!("\nCOMMENT {}", quoted(table.comment())));
    }
    text.push_str(&format!("\nWITH (replicas = {})", table.num_replicas()));
    Ok(text)
}

fn name(name: &str) -> String {
    match is_plain_name(name) {
        true => name.to_string(),
        false => format!("\"{}\"", name.replace('"', "\"\"")),
    }
}

fn names(columns: &[ColumnSchema]) -> String {
    columns.iter().map(|column| name(&column.name)).collect::<Vec<_>>().join(", ")
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Returns a cell as a constant.
fn constant(column: &ColumnSchema, cell: &[u8]) -> String {
    let text = format_cell(column.ty, column.attributes, cell);
    match column.ty {
        DataType::String | DataType::Varchar => quoted(&String::from_utf8_lossy(cell)),
        DataType::Binary => {
            let digits: String = cell.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("'0x{digits}'")
        }
        DataType::Date | DataType::UnixtimeMicros | DataType::Float | DataType::Double => quoted(&text),
        _ => text,
    }
}

fn column_definition(column: &ColumnSchema) -> SqlResult<String> {
    if column.auto_incrementing {
        return Err(SqlError::new(format!("column {}: SQL cannot express AUTO_INCREMENT", column.name)));
    }
    let mut text = format!("{} {}", name(&column.name), type_name(column));
    if !column.nullable {
        text.push_str(" NOT NULL");
    }
    if let Some(default) = &column.write_default {
        text.push_str(&format!(" DEFAULT {}", constant(column, default)));
    }
    if let Some(attributes) = attributes(column) {
        text.push_str(&format!(" {attributes}"));
    }
    if !column.comment.is_empty() {
        text.push_str(&format!(" COMMENT {}", quoted(&column.comment)));
    }
    Ok(text)
}

/// Returns the dimensions of PARTITION BY.
async fn dimensions(table: &Table) -> SqlResult<Vec<String>> {
    let (schema, partition) = (table.schema(), table.partition_schema());
    if !partition.custom.is_empty() || partition.hash.iter().any(|dimension| dimension.seed != 0) {
        let what = "SQL cannot express ranges with their own hash dimensions, and hash seeds";
        return Err(SqlError::new(format!("table {}: {what}", table.name())));
    }
    let columns = |ids: &[engine::ids::ColumnId]| -> Vec<ColumnSchema> {
        ids.iter().filter_map(|id| schema.by_id(*id).cloned()).collect()
    };
    let hash = |dimension: &HashDimension| {
        format!("HASH ({}) PARTITIONS {}", names(&columns(&dimension.columns)), dimension.buckets)
    };
    let mut dimensions: Vec<String> = partition.hash.iter().map(hash).collect();
    let range_columns = columns(&partition.range_columns);
    if !range_columns.is_empty() {
        let ranges = ranges(table, &range_columns, schema).await?;
        dimensions.push(format!("RANGE ({}){ranges}", names(&range_columns)));
    }
    Ok(dimensions)
}

/// Returns the ranges in parentheses; an empty text for a single unbounded one.
async fn ranges(table: &Table, columns: &[ColumnSchema], schema: &Schema) -> SqlResult<String> {
    let tokens = table.scan_tokens(&ScanSpec::default()).await?;
    let mut ranges: Vec<PartitionRange> =
        tokens.iter().map(|token| token.tablet().partition.range()).collect();
    ranges.sort_by(|a, b| a.lower.cmp(&b.lower));
    ranges.dedup();
    if ranges.iter().all(|range| range.lower.is_empty() && range.upper.is_empty()) {
        return Ok(String::new());
    }
    let bound = |key: &[u8]| -> SqlResult<String> {
        let cells = decode_key(columns, key)?;
        let texts: Vec<String> =
            columns.iter().zip(&cells).map(|(column, cell)| constant(column, cell)).collect();
        Ok(if texts.len() == 1 { texts.concat() } else { format!("({})", texts.join(", ")) })
    };
    let mut texts = Vec::new();
    for range in &ranges {
        let is_one_value = table.partition_schema().show_bounds(schema, range).starts_with("VALUE =");
        texts.push(match (range.lower.is_empty(), range.upper.is_empty()) {
            (false, _) if is_one_value => format!("PARTITION VALUE = {}", bound(&range.lower)?),
            (true, true) => "PARTITION VALUES".to_string(),
            (true, false) => format!("PARTITION VALUES < {}", bound(&range.upper)?),
            (false, true) => format!("PARTITION {} <= VALUES", bound(&range.lower)?),
            (false, false) => {
                format!("PARTITION {} <= VALUES < {}", bound(&range.lower)?, bound(&range.upper)?)
            }
        });
    }
    Ok(format!(" (\n    {})", texts.join(",\n    ")))
}
