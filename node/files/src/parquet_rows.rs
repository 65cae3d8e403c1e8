//! Reader of Parquet files.
//!
//! A value that the column cannot hold exactly makes its row bad: text too long, digits too many, a time finer than a
//! microsecond. Nested columns are refused before a row is read. Times of 96 bits: `parquet_times`.

use arrow_array::{Array, ArrayRef};
use engine::error::{Error, Result};
use engine::schema::row_block::{ColumnBlock, ColumnValues};
use engine::schema::{ColumnSchema, TypeParameters};
use nyala_client::arrow::{changed_value, column_to_block, needs_parsing, parsed_block};
use nyala_client::cell_text::truncate_varchar;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::file::reader::ChunkReader;

use crate::parquet_times::{WideTimes, exact_times};
use crate::reader::{BLOCK_ROWS, ImportBlock, ImportRows, ImportTarget};

pub struct ParquetReader {
    reader: ParquetRecordBatchReader,
    /// Second reader of the same rows, if the file has times of 96 bits.
    times: Option<WideTimes>,
    targets: Vec<usize>,
    rows: u64,
}

impl ParquetReader {
    /// Opens a file and reads its metadata; also returns the number of rows stated there. A file with times of 96
    /// bits is read twice.
    pub fn open<R: ChunkReader + Clone + 'static>(
        source: R,
        table: ImportTarget<'_>,
    ) -> Result<(ParquetReader, u64)> {
        let bad = |error| Error::invalid(format!("not a Parquet file that can be read: {error}"));
        // Parquet's own types suffice. The Arrow schema that some writers embed is skipped, because its decoder panics
        // on corrupted input.
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let builder = ParquetRecordBatchReaderBuilder::try_new_with_options(source.clone(), options);
        let builder = builder.map_err(bad)?;
        let fields = builder.schema().fields().clone();
        let targets = table.columns(fields.iter().map(|field| field.name().as_str()))?;
        let taken = targets.iter().enumerate().filter_map(|(at, target)| target.map(|_| at));
        let taken: Vec<usize> = taken.collect();
        if let Some(field) = taken.iter().map(|at| &fields[*at]).find(|field| field.data_type().is_nested()) {
            return Err(Error::invalid(format!(
                "column {:?}: nested ({}); there are no nested columns; leave it out by --skip",
                field.name(),
                field.data_type()
            )));
        }
        let total = builder.metadata().file_metadata().num_rows().max(0) as u64;
        let times = WideTimes::open(source, &builder, &taken).map_err(bad)?;
        let mask = ProjectionMask::roots(builder.parquet_schema(), taken);
        let reader = builder.with_projection(mask).with_batch_size(BLOCK_ROWS).build().map_err(bad)?;
        let targets = targets.into_iter().flatten().collect();
        Ok((ParquetReader { reader, times, targets, rows: 0 }, total))
    }

    pub(crate) fn next(&mut self, table: ImportTarget<'_>) -> Result<Option<ImportBlock>> {
        let Some(batch) = self.reader.next() else { return Ok(None) };
        let from = self.rows + 1;
        let near = |error: Error| error.context(format!("near row {from}"));
        let batch = batch.map_err(|error| near(Error::invalid(error.to_string())))?;
        self.rows += batch.num_rows() as u64;
        let mut arrays = batch.columns().to_vec();
        if let Some(times) = &mut self.times {
            times.append(&mut arrays).map_err(near)?;
        }
        let mut blocks = table.blocks(self.targets.iter().copied());
        if self.convert(&arrays, table, &mut blocks).is_ok() {
            let tags = (from..=self.rows).collect();
            return Ok(Some((ImportRows { columns: blocks, tags }, Vec::new())));
        }
        Ok(Some(self.row_by_row(&arrays, from, table)))
    }

    /// Converts the arrays of the columns taken, which those of [`WideTimes::append`] may follow.
    fn convert(
        &self,
        arrays: &[ArrayRef],
        table: ImportTarget<'_>,
        blocks: &mut [Option<ColumnBlock>],
    ) -> Result<()> {
        for (at, (index, array)) in self.targets.iter().zip(arrays).enumerate() {
            let column = &table.schema.columns()[*index];
            let millis = self.times.as_ref().and_then(|times| times.millis(arrays, at));
            let exact =
                millis.map(|millis| exact_times(array, millis, column, table.truncate)).transpose()?;
            blocks[*index] = Some(exact_block(exact.as_ref().unwrap_or(array), column, table)?);
        }
        Ok(())
    }

    /// Separates the rows that cannot be stored; the first one has the number `from`.
    fn row_by_row(&self, arrays: &[ArrayRef], from: u64, table: ImportTarget<'_>) -> ImportBlock {
        let mut columns = table.blocks(self.targets.iter().copied());
        let (mut tags, mut bad) = (Vec::new(), Vec::new());
        let mut row = table.blocks(self.targets.iter().copied());
        for (at, tag) in (from..=self.rows).enumerate() {
            let cells: Vec<ArrayRef> = arrays.iter().map(|array| array.slice(at, 1)).collect();
            if let Err(error) = self.convert(&cells, table, &mut row) {
                bad.push((tag, error.message));
                continue;
            }
            for (column, cell) in columns.iter_mut().zip(&row) {
                if let (Some(column), Some(cell)) = (column, cell) {
                    column.push(cell.cell(0));
                }
            }
            tags.push(tag);
        }
        (ImportRows { columns, tags }, bad)
    }
}

/// Converts an array to cells; fails if a value would change.
fn exact_block(array: &ArrayRef, column: &ColumnSchema, table: ImportTarget<'_>) -> Result<ColumnBlock> {
    if needs_parsing(array.data_type(), column) {
        return parsed_block(array, column);
    }
    // Order: a value that is out of range does not fit with --truncate either, which must not be advised then.
    let block = column_to_block(array, column)?;
    if !table.truncate
        && let Some(value) = changed_value(array, column)?
    {
        let (name, ty) = (&column.name, column.type_name());
        let what = format!("{value} does not fit {ty}; give --truncate to cut digits off");
        return Err(Error::invalid(format!("column {name:?}: {what}")));
    }
    match column.ty.parameters() {
        TypeParameters::Length => varchars(block, column, table),
        TypeParameters::None | TypeParameters::Digits(_) => Ok(block),
    }
}

/// Checks the lengths of VARCHAR cells, or shortens them.
fn varchars(block: ColumnBlock, column: &ColumnSchema, table: ImportTarget<'_>) -> Result<ColumnBlock> {
    let ColumnValues::Var { offsets, bytes } = &block.values else { return Ok(block) };
    let cells = offsets.windows(2).map(|ends| &bytes[ends[0] as usize..ends[1] as usize]);
    let most = usize::from(column.attributes.length);
    // Most cells are short enough in bytes, and characters are not more than bytes.
    if cells.clone().all(|cell| cell.len() <= most) {
        return Ok(block);
    }
    let mut shortened = ColumnBlock::new(column.ty.physical(), column.nullable);
    for (row, cell) in cells.enumerate() {
        if block.validity.as_ref().is_some_and(|valid| !valid.get(row)) {
            shortened.push(None);
            continue;
        }
        let text = std::str::from_utf8(cell).map_err(|_| Error::invalid("not UTF-8 text"))?;
        let kept = if table.truncate { truncate_varchar(column, text) } else { text };
        shortened.push(Some(&table.cell(column, kept)?));
    }
    Ok(shortened)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use arrow_array::types::Int32Type;
    use arrow_array::{
        Float64Array, Int64Array, ListArray, RecordBatch, StringArray, TimestampNanosecondArray,
    };
    use bytes::Bytes;
    use engine::schema::{DataType, Schema};
    use parquet::arrow::ArrowWriter;

    fn file(columns: Vec<(&str, ArrayRef)>) -> Bytes {
        let batch = RecordBatch::try_from_iter(columns).expect("equal lengths");
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).expect("memory");
        writer.write(&batch).expect("memory");
        writer.close().expect("memory");
        Bytes::from(bytes)
    }

    fn read(bytes: Bytes, columns: Vec<ColumnSchema>, skip: &[String], truncate: bool) -> String {
        let schema = Schema::new(columns, 1).expect("a lawful schema");
        let table = ImportTarget { skip, truncate, ..ImportTarget::new(&schema, "t") };
        let result = ParquetReader::open(bytes, table).and_then(|(mut reader, _)| reader.next(table));
        match result {
            Err(error) => error.message,
            Ok(None) => "no rows".to_string(),
            Ok(Some((rows, bad))) => {
                let bad: Vec<String> = bad.iter().map(|(row, why)| format!("\n{row}: {why}")).collect();
                format!("rows {:?}{}", rows.tags, bad.concat())
            }
        }
    }

    #[test]
    fn rows_whose_values_would_change_are_bad() {
        let mut name = ColumnSchema::new(1, "name", DataType::Varchar).nullable();
        name.attributes.length = 3;
        let columns = vec![
            ColumnSchema::new(0, "k", DataType::Int32),
            name,
            ColumnSchema::new(2, "n", DataType::Int64).nullable(),
            ColumnSchema::new(3, "at", DataType::UnixtimeMicros).nullable(),
            ColumnSchema::new(4, "day", DataType::Date).nullable(),
        ];
        let bytes = file(vec![
            ("k", Arc::new(Int64Array::from(vec![1, 2, 3, 1 << 40, 5, 6]))),
            ("name", Arc::new(StringArray::from(vec![Some("ééé"), Some("long"), None, None, None, None]))),
            ("n", Arc::new(Float64Array::from(vec![1.0, 2.0, 2.5, 4.0, 5.0, 6.0]))),
            ("at", Arc::new(TimestampNanosecondArray::from(vec![1000, 0, 0, 0, 1001, 0]))),
            ("day", Arc::new(StringArray::from(vec![Some("2020-02-29"), None, None, None, None, Some("x")]))),
        ]);
        insta::assert_snapshot!(read(bytes.clone(), columns.clone(), &[], false), @r#"
        rows [1]
        2: column "name": "long" is too long (4 characters, VARCHAR(3))
        3: column "n": 2.5 does not fit INT64; give --truncate to cut digits off
        4: column "k": Cast error: Can't cast value 1099511627776 to type Int32
        5: column "at": 1970-01-01T00:00:00.000001001 does not fit UNIXTIME_MICROS; give --truncate to cut digits off
        6: column "day": "x" is not a DATE
        "#);
        insta::assert_snapshot!(read(bytes, columns, &[], true), @r#"
        rows [1, 2, 3, 5]
        4: column "k": Cast error: Can't cast value 1099511627776 to type Int32
        6: column "day": "x" is not a DATE
        "#);
    }

    #[test]
    fn a_number_too_large_for_a_float_is_bad_whether_digits_may_be_cut_off_or_not() {
        let columns =
            vec![ColumnSchema::new(0, "k", DataType::Int64), ColumnSchema::new(1, "f", DataType::Float)];
        let bytes = file(vec![
            ("k", Arc::new(Int64Array::from(vec![1, 2, 3]))),
            ("f", Arc::new(Float64Array::from(vec![0.1, 1e300, f64::INFINITY]))),
        ]);
        insta::assert_snapshot!(read(bytes.clone(), columns.clone(), &[], false), @r#"
        rows [3]
        1: column "f": 0.1 does not fit FLOAT; give --truncate to cut digits off
        2: column "f": 1e300 does not fit FLOAT
        "#);
        insta::assert_snapshot!(read(bytes, columns, &[], true), @r#"
        rows [1, 3]
        2: column "f": 1e300 does not fit FLOAT
        "#);
    }

    #[test]
    fn nested_columns_are_refused_by_name() {
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(vec![Some(vec![Some(1)])]);
        let bytes = file(vec![("k", Arc::new(Int64Array::from(vec![1]))), ("tags", Arc::new(lists))]);
        let columns = vec![
            ColumnSchema::new(0, "k", DataType::Int64),
            ColumnSchema::new(1, "tags", DataType::String).nullable(),
        ];
        let refused = read(bytes.clone(), columns.clone(), &[], false);
        assert!(refused.starts_with("column \"tags\": nested (List("), "{refused}");
        assert_eq!(read(bytes, columns, &["tags".to_string()], false), "rows [1]");
    }
}
