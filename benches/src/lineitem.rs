//! TPC-H's lineitem for the `parquet` crate: blocks of columns as Arrow's batches.

use std::sync::Arc;

use arrow_array::types::{Date32Type, Decimal128Type, Int32Type, Int64Type};
use arrow_array::{ArrayRef, PrimitiveArray, RecordBatch, StringArray};
use engine::schema::row_block::ColumnBlock;
use engine::schema::{ColumnSchema, DataType};
use node::cli::lineitem::schema;
use nyala_client::arrow::arrow_schema;

/// Columns that TPC-H's Q1 reads.
pub const Q1: [&str; 6] =
    ["l_quantity", "l_extendedprice", "l_discount", "l_tax", "l_returnflag", "l_linestatus"];

/// Converts one block, all columns, to Arrow's layout.
pub fn batch(block: &[ColumnBlock]) -> RecordBatch {
    let schema = schema().expect("the schema is sound");
    let columns = schema.columns().iter().zip(block).map(|(column, block)| array(column, block));
    RecordBatch::try_new(arrow_schema(schema.columns()), columns.collect()).expect("types agree")
}

fn array(column: &ColumnSchema, block: &ColumnBlock) -> ArrayRef {
    let cells = (0..block.len()).map(|row| block.raw(row));
    let eight = |cell: &[u8]| i64::from_le_bytes(cell.try_into().expect("eight bytes"));
    let four = |cell: &[u8]| i32::from_le_bytes(cell.try_into().expect("four bytes"));
    match column.ty {
        DataType::Int64 => Arc::new(PrimitiveArray::<Int64Type>::from_iter_values(cells.map(eight))),
        DataType::Int32 => Arc::new(PrimitiveArray::<Int32Type>::from_iter_values(cells.map(four))),
        DataType::Date => Arc::new(PrimitiveArray::<Date32Type>::from_iter_values(cells.map(four))),
        DataType::Decimal64 => {
            let values = cells.map(|cell| i128::from(eight(cell)));
            let array = PrimitiveArray::<Decimal128Type>::from_iter_values(values);
            Arc::new(array.with_precision_and_scale(15, 2).expect("as TPC-H says"))
        }
        _ => {
            let texts = cells.map(|cell| std::str::from_utf8(cell).expect("TPC-H's texts are ASCII"));
            Arc::new(StringArray::from_iter_values(texts))
        }
    }
}
