//! Files that users import: CSV, JSON lines and Parquet.

use bytes::Bytes;
use engine::schema::{ColumnSchema, DataType, Schema};
use nyala_files::reader::{CsvReader, ImportTarget};
use nyala_files::{ImportInput, JsonReader, ParquetReader};

/// Rows of a file that are checked.
const ROWS_MAX: usize = 1 << 16;

/// Returns a schema with a column of every type but [`DataType::IsDeleted`], which no table has; the first is the key.
pub(super) fn import_schema() -> Schema {
    let types = DataType::ALL.into_iter().filter(|ty| *ty != DataType::IsDeleted);
    let column = |(id, ty): (u32, DataType)| {
        let mut column = ColumnSchema::new(id, &format!("{ty:?}").to_lowercase(), ty);
        column.nullable = id > 0;
        column.attributes.length = 4;
        column.attributes.precision = 9;
        column.attributes.scale = 2;
        column
    };
    Schema::new((0..).zip(types).map(column).collect(), 1).expect("a lawful schema")
}

/// Reads all rows; every column of a block has as many cells as the block has rows.
fn read<R: std::io::Read>(mut input: ImportInput<R>, table: ImportTarget<'_>) {
    let mut rows = 0;
    while let Ok(Some((block, bad))) = input.next(table) {
        for column in block.columns.iter().flatten() {
            assert_eq!(column.len(), block.tags.len());
        }
        rows += block.tags.len() + bad.len();
        if rows > ROWS_MAX {
            return;
        }
    }
}

/// Checks CSV, and JSON lines in the same bytes. First byte: the delimiter; then the file.
pub(super) fn csv(data: &[u8]) {
    let Some((&delimiter, text)) = data.split_first() else { return };
    let schema = import_schema();
    let table = ImportTarget::new(&schema, "t");
    read(ImportInput::Json(Box::new(JsonReader::open(text))), table);
    let Ok(csv) = CsvReader::open(text, table, delimiter, b"") else { return };
    read(ImportInput::Csv(Box::new(csv)), table);
}

pub(super) fn parquet(data: &[u8]) {
    let schema = import_schema();
    let table = ImportTarget::new(&schema, "t");
    let Ok((parquet, _)) = ParquetReader::open(Bytes::copy_from_slice(data), table) else { return };
    read(ImportInput::<&[u8]>::Parquet(Box::new(parquet)), table);
}
