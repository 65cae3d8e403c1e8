//! Times of 96 bits (INT96) in Parquet files, as Spark, Hive and Impala write them.
//!
//! ```text
//!   INT96: day, nanoseconds of it ─┬─ as nanoseconds, which wrap around at 64 bits ─┐
//!                                  └─ as milliseconds, which do not ────────────────┴─► exact time
//! ```
//!
//! Nanoseconds of 64 bits are times from 1677 to 2262; columns hold more, and 9999-12-31 is usual. The Parquet library
//! reads such a column in one unit, so a file with one is read a second time for its milliseconds.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{TimestampMillisecondType, TimestampNanosecondType};
use arrow_array::{Array, ArrayRef, TimestampMicrosecondArray};
use arrow_schema::{DataType as ArrowType, Field, FieldRef, Schema, TimeUnit};
use engine::error::{Error, Result};
use engine::schema::{ColumnSchema, DataType, TypeAttributes, ValueKind, format_cell};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::basic::Type as PhysicalType;
use parquet::errors::Result as ParquetResult;
use parquet::file::reader::ChunkReader;

use crate::reader::BLOCK_ROWS;

const NANOS: ArrowType = ArrowType::Timestamp(TimeUnit::Nanosecond, None);
const MILLIS: ArrowType = ArrowType::Timestamp(TimeUnit::Millisecond, None);

/// Reader of the milliseconds of a file's INT96 columns.
pub(crate) struct WideTimes {
    reader: ParquetRecordBatchReader,
    /// Positions of these columns among the columns taken.
    columns: Vec<usize>,
}

impl WideTimes {
    /// Opens the file of another reader, if the columns `taken` have one of INT96. None of them is nested.
    pub(crate) fn open<R: ChunkReader + 'static>(
        source: R,
        other: &ParquetRecordBatchReaderBuilder<R>,
        taken: &[usize],
    ) -> ParquetResult<Option<WideTimes>> {
        let (parquet, fields) = (other.parquet_schema(), other.schema().fields());
        let is_wide = |leaf: &usize| parquet.column(*leaf).physical_type() == PhysicalType::INT96;
        let wide = (0..parquet.num_columns()).filter(is_wide).map(|leaf| parquet.get_column_root_idx(leaf));
        let is_taken = |root: &usize| taken.contains(root) && *fields[*root].data_type() == NANOS;
        let wide: Vec<usize> = wide.filter(is_taken).collect();
        if wide.is_empty() {
            return Ok(None);
        }
        let field = |(root, field): (usize, &FieldRef)| {
            let millis = || Arc::new(Field::clone(field).with_data_type(MILLIS));
            if wide.contains(&root) { millis() } else { field.clone() }
        };
        let fields: Vec<FieldRef> = fields.iter().enumerate().map(field).collect();
        let options = ArrowReaderOptions::new().with_schema(Arc::new(Schema::new(fields)));
        let metadata = ArrowReaderMetadata::try_new(other.metadata().clone(), options)?;
        let columns = taken.iter().enumerate().filter(|(_, root)| wide.contains(root)).map(|(at, _)| at);
        let columns = columns.collect();
        let mask = ProjectionMask::roots(parquet, wide);
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(source, metadata);
        let reader = builder.with_projection(mask).with_batch_size(BLOCK_ROWS).build()?;
        Ok(Some(WideTimes { reader, columns }))
    }

    /// Appends the milliseconds of the next rows to their `columns`.
    pub(crate) fn append(&mut self, columns: &mut Vec<ArrayRef>) -> Result<()> {
        let bad = |what: String| Error::invalid(format!("times of 96 bits: {what}"));
        let batch = self.reader.next().ok_or_else(|| bad("the file ends early".to_string()))?;
        let batch = batch.map_err(|error| bad(error.to_string()))?;
        let (found, wanted) = (batch.num_rows(), columns.first().map_or(0, |column| column.len()));
        if found != wanted {
            return Err(bad(format!("{found} rows instead of {wanted}")));
        }
        columns.extend_from_slice(batch.columns());
        Ok(())
    }

    /// Returns the milliseconds of the column at a position, if it has 96 bits. `columns` are those of
    /// [`WideTimes::append`].
    pub(crate) fn millis<'a>(&self, columns: &'a [ArrayRef], at: usize) -> Option<&'a ArrayRef> {
        let wide = self.columns.iter().position(|column| *column == at)?;
        columns.get(columns.len() - self.columns.len() + wide)
    }
}

/// Returns the times of a column: in nanoseconds as they were read, or in microseconds if one is out of their range.
/// Fails for a time that would change then, unless it may be cut off.
pub(crate) fn exact_times(
    nanos: &ArrayRef,
    millis: &ArrayRef,
    column: &ColumnSchema,
    truncate: bool,
) -> Result<ArrayRef> {
    let pairs = nanos.as_primitive::<TimestampNanosecondType>().iter();
    let pairs = pairs.zip(millis.as_primitive::<TimestampMillisecondType>());
    let exact: Vec<Option<i128>> = pairs.map(|(nanos, millis)| nanos.zip(millis).map(exact_nanos)).collect();
    if exact.iter().flatten().all(|nanos| i64::try_from(*nanos).is_ok()) {
        return Ok(nanos.clone());
    }
    let micros = |nanos: i128| {
        let no = |what: &str| {
            let (time, ty) = (show(nanos), column.type_name());
            Error::invalid(format!("column {:?}: {time} does not fit {ty}{what}", column.name))
        };
        // Another type would have the number of microseconds among numbers of nanoseconds.
        if !matches!(column.ty.kind(), ValueKind::Timestamp | ValueKind::Date | ValueKind::Text) {
            return Err(no(" in nanoseconds"));
        }
        if !truncate && nanos % 1000 != 0 {
            return Err(no("; give --truncate to cut digits off"));
        }
        i64::try_from(nanos.div_euclid(1000)).map_err(|_| no(""))
    };
    let micros = exact.into_iter().map(|nanos| nanos.map(&micros).transpose());
    Ok(Arc::new(TimestampMicrosecondArray::from(micros.collect::<Result<Vec<Option<i64>>>>()?)))
}

/// Returns the nanoseconds since 1970 of a time whose nanoseconds have wrapped around.
fn exact_nanos((wrapped, millis): (i64, i64)) -> i128 {
    let rest = wrapped.wrapping_sub(millis.wrapping_mul(1_000_000));
    i128::from(millis) * 1_000_000 + i128::from(rest)
}

fn show(nanos: i128) -> String {
    let (micros, rest) = (nanos.div_euclid(1000), nanos.rem_euclid(1000));
    let Ok(micros) = i64::try_from(micros) else { return format!("the time {nanos} ns after 1970") };
    let time = format_cell(DataType::UnixtimeMicros, TypeAttributes::default(), &micros.to_le_bytes());
    if rest == 0 { time } else { format!("{time} and {rest} ns") }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use parquet::data_type::{Int64Type, Int96, Int96Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::*;
    use crate::ParquetReader;
    use crate::reader::ImportTarget;

    /// 1970-01-01, as a Julian day.
    const EPOCH: u32 = 2_440_588;
    const DAY_NANOS: u64 = 86_400_000_000_000;

    /// Returns a file of keys from 1 and of times: days since 1970, and nanoseconds of the day; `None` is NULL.
    fn file(times: &[Option<(i32, u64)>]) -> Bytes {
        let schema = parse_message_type("message spark_schema { REQUIRED INT64 k; OPTIONAL INT96 at; }");
        let (schema, properties) = (Arc::new(schema.expect("a schema")), WriterProperties::builder().build());
        let mut bytes = Vec::new();
        let writer = SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties));
        let mut writer = writer.expect("memory");
        let values = times.iter().flatten().map(|(day, nanos)| {
            let mut value = Int96::new();
            value.set_data(*nanos as u32, (*nanos >> 32) as u32, EPOCH.wrapping_add_signed(*day));
            value
        });
        let values: Vec<Int96> = values.collect();
        let levels: Vec<i16> = times.iter().map(|time| i16::from(time.is_some())).collect();
        let keys: Vec<i64> = (1..).take(times.len()).collect();
        let mut group = writer.next_row_group().expect("memory");
        let mut column = group.next_column().expect("memory").expect("a column");
        column.typed::<Int64Type>().write_batch(&keys, None, None).expect("memory");
        column.close().expect("memory");
        let mut column = group.next_column().expect("memory").expect("a column");
        column.typed::<Int96Type>().write_batch(&values, Some(&levels), None).expect("memory");
        column.close().expect("memory");
        group.close().expect("memory");
        writer.close().expect("memory");
        bytes.into()
    }

    /// Reads a file of times to a column of a type; returns the cells and the bad rows.
    fn read(times: &[Option<(i32, u64)>], ty: DataType, truncate: bool) -> String {
        let columns =
            vec![ColumnSchema::new(0, "k", DataType::Int64), ColumnSchema::new(1, "at", ty).nullable()];
        let schema = engine::schema::Schema::new(columns, 1).expect("a lawful schema");
        let table = ImportTarget { truncate, ..ImportTarget::new(&schema, "t") };
        let (mut reader, _) = ParquetReader::open(file(times), table).expect("a Parquet file");
        let (rows, bad) = reader.next(table).expect("a Parquet file").expect("rows");
        let block = rows.columns[1].as_ref().expect("a column of the file");
        let cell = |row| match block.cell(row) {
            Some(cell) => format_cell(ty, TypeAttributes::default(), cell),
            None => "NULL".to_string(),
        };
        let good = rows.tags.iter().enumerate().map(|(row, tag)| format!("{tag} {}", cell(row)));
        good.chain(bad.iter().map(|(row, why)| format!("{row} bad: {why}"))).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn times_beyond_64_bits_of_nanoseconds_are_exact() {
        // 9999-12-31, 0001-01-01, 1970-01-02.
        let times = [Some((2_932_896, DAY_NANOS - 1000)), None, Some((-719_162, 0)), Some((1, 1_000_000))];
        let whole = read(&times, DataType::UnixtimeMicros, false);
        insta::assert_snapshot!(whole, @r"
        1 9999-12-31T23:59:59.999999Z
        2 NULL
        3 0001-01-01T00:00:00.000000Z
        4 1970-01-02T00:00:00.001000Z
        ");
        assert_eq!(read(&times, DataType::UnixtimeMicros, true), whole);
    }

    #[test]
    fn digits_of_such_times_are_cut_off_only_if_they_may_be() {
        let times = [Some((2_932_896, 1)), Some((0, 1)), Some((i32::MAX - 3_000_000, 0)), Some((0, 2000))];
        insta::assert_snapshot!(read(&times, DataType::UnixtimeMicros, false), @r#"
        4 1970-01-01T00:00:00.000002Z
        1 bad: column "at": 9999-12-31T00:00:00.000000Z and 1 ns does not fit UNIXTIME_MICROS; give --truncate to cut digits off
        2 bad: column "at": 1970-01-01T00:00:00.000000001 does not fit UNIXTIME_MICROS; give --truncate to cut digits off
        3 bad: column "at": the time 185283387100800000000000 ns after 1970 does not fit UNIXTIME_MICROS
        "#);
        insta::assert_snapshot!(read(&times, DataType::UnixtimeMicros, true), @r#"
        1 9999-12-31T00:00:00.000000Z
        2 1970-01-01T00:00:00.000000Z
        4 1970-01-01T00:00:00.000002Z
        3 bad: column "at": the time 185283387100800000000000 ns after 1970 does not fit UNIXTIME_MICROS
        "#);
        insta::assert_snapshot!(read(&times[2..], DataType::Int64, true), @r#"
        2 2000
        1 bad: column "at": the time 185283387100800000000000 ns after 1970 does not fit INT64 in nanoseconds
        "#);
    }
}
