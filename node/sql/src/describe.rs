//! SHOW TABLES and DESCRIBE: tables and columns as rows.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use engine::schema::{ColumnSchema, Compression, DataType, Encoding, format_cell};
use nyala_client::{Client, Table};

use super::error::SqlResult;

/// Returns a row for each table.
pub(crate) async fn tables(client: &Client) -> SqlResult<RecordBatch> {
    let tables = client.list_tables(None).await?;
    let names: StringArray = tables.iter().map(|table| Some(table.name.as_str())).collect();
    let tablets: Int64Array = tables.iter().map(|table| table.tablets.map(i64::from)).collect();
    let rows: Int64Array = tables.iter().map(|table| table.live_rows.map(|rows| rows as i64)).collect();
    let columns: [(&str, ArrayRef); 3] =
        [("table_name", Arc::new(names)), ("tablets", Arc::new(tablets)), ("rows", Arc::new(rows))];
    Ok(RecordBatch::try_from_iter(columns)?)
}

/// Returns a row for each column of a table.
pub(crate) fn columns(table: &Table) -> SqlResult<RecordBatch> {
    let schema = table.schema();
    let keys = schema.num_key_columns();
    let text = |of: &dyn Fn(usize, &ColumnSchema) -> Option<String>| -> ArrayRef {
        let cells = schema.columns().iter().enumerate().map(|(index, column)| of(index, column));
        Arc::new(cells.collect::<StringArray>())
    };
    let columns = [
        ("column", text(&|_, column| Some(column.name.clone()))),
        ("type", text(&|_, column| Some(type_name(column)))),
        ("nullable", text(&|_, column| Some(if column.nullable { "YES" } else { "NO" }.to_string()))),
        ("key", text(&|index, _| (index < keys).then(|| "PRIMARY KEY".to_string()))),
        ("default", text(&|_, column| default(column))),
        ("attributes", text(&|_, column| attributes(column))),
        ("comment", text(&|_, column| Some(column.comment.clone()).filter(|text| !text.is_empty()))),
    ];
    Ok(RecordBatch::try_from_iter(columns)?)
}

/// Returns the type in SQL.
pub(crate) fn type_name(column: &ColumnSchema) -> String {
    match column.ty {
        DataType::Int8 => "TINYINT".to_string(),
        DataType::Int16 => "SMALLINT".to_string(),
        DataType::Int32 => "INT".to_string(),
        DataType::Int64 => "BIGINT".to_string(),
        DataType::Bool => "BOOLEAN".to_string(),
        DataType::UnixtimeMicros => "TIMESTAMP".to_string(),
        _ => column.type_name(),
    }
}

pub(crate) fn default(column: &ColumnSchema) -> Option<String> {
    let cell = column.write_default.as_ref()?;
    let text = format_cell(column.ty, column.attributes, cell);
    // Text is formatted with double quotes, which SQL has for names.
    Some(match column.ty {
        DataType::String | DataType::Varchar => {
            format!("'{}'", String::from_utf8_lossy(cell).replace('\'', "''"))
        }
        _ => text,
    })
}

/// Returns the attributes that differ from those of a plain column.
pub(crate) fn attributes(column: &ColumnSchema) -> Option<String> {
    let mut words = Vec::new();
    if column.encoding != Encoding::Auto {
        words.push(format!("ENCODING {}", column.encoding.name()));
    }
    if column.compression != Compression::Default {
        words.push(format!("COMPRESSION {:?}", column.compression).to_uppercase());
    }
    if column.immutable {
        words.push("IMMUTABLE".to_string());
    }
    if column.auto_incrementing {
        words.push("AUTO_INCREMENT".to_string());
    }
    (!words.is_empty()).then(|| words.join(" "))
}
