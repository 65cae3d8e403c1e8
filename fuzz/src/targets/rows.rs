//! Rows as clients send them.

use engine::ids::ColumnId;
use engine::schema::partition_range::{RangeOpLimits, decode_range_ops, ranges_of_ops};
use engine::schema::row_ops::{ClientColumn, RowOpLimits, RowOpsReader};
use engine::schema::{ColumnSchema, DataType, Schema};

/// Returns the table for rows and scans of these targets.
pub fn table() -> Schema {
    let columns = vec![
        ColumnSchema::new(0, "k", DataType::Int32),
        ColumnSchema::new(1, "s", DataType::String),
        ColumnSchema::new(2, "b", DataType::Bool).nullable(),
        ColumnSchema::new(3, "t", DataType::Binary).nullable(),
        ColumnSchema::new(4, "d", DataType::Decimal128).nullable(),
        ColumnSchema::new(5, "f", DataType::Double).nullable(),
    ];
    Schema::new(columns, 2).expect("a lawful schema")
}

fn wire_columns(schema: &Schema) -> Vec<ClientColumn> {
    let column = |c: &ColumnSchema| ClientColumn { id: c.id, ty: c.ty, nullable: c.nullable };
    schema.columns().iter().map(column).collect()
}

/// Splits the input. First byte: end of rows and start of indirect data; then both.
fn parts(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&split, bytes) = data.split_first()?;
    Some(bytes.split_at(split as usize % (bytes.len() + 1)))
}

/// Checks a client's batch.
pub(super) fn row_ops(data: &[u8]) {
    let Some((rows, indirect)) = parts(data) else { return };
    let schema = table();
    let client = wire_columns(&schema);
    let limits = RowOpLimits { cell_bytes_max: 64, key_bytes_max: 32 };
    let mut reader =
        RowOpsReader::new(&client, &schema, rows, indirect, limits).expect("the table has these columns");
    let mut seen = 0;
    while let Ok(Some(op)) = reader.next() {
        assert_eq!(op.cells.len(), schema.columns().len());
        seen += 1;
        assert!(seen <= rows.len(), "each operation takes at least a byte");
    }
}

/// Checks bounds of ranges and splits of requests to create and alter tables.
pub(super) fn range_ops(data: &[u8]) {
    let Some((rows, indirect)) = parts(data) else { return };
    let schema = table();
    let limits = RangeOpLimits { count: 1000, cell_bytes: 1 << 20 };
    let Ok(ops) = decode_range_ops(&wire_columns(&schema), rows, indirect, limits) else { return };
    assert!(ops.len() <= limits.count, "no more than the limit");
    for columns in [&[ColumnId(0)][..], &[ColumnId(1)], &[ColumnId(0), ColumnId(1)]] {
        let Ok((_, ranges)) = ranges_of_ops(&schema, columns, &ops) else { continue };
        for range in ranges {
            assert!(range.upper.is_empty() || range.lower < range.upper, "a range holds something");
        }
    }
}
