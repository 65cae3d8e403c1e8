//! Readers of parts: Parquet files of nyala, and of Spark with its older forms of times.

use std::io;
use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Schema, TimeUnit};
use engine::error::{Error, Result};
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::errors::ParquetError;
use parquet::file::reader::ChunkReader;

/// Keys of a footer by which Spark marks days and times of the Julian calendar.
const JULIAN_CALENDAR: [&str; 2] = ["org.apache.spark.legacyDateTime", "org.apache.spark.legacyINT96"];

pub(crate) fn unreadable(error: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("read Parquet: {error}"))
}

/// Converts an error of the Parquet reader. A file whose disk fails is not damaged.
pub(crate) fn parquet_error(error: ParquetError) -> Error {
    disk_error("read Parquet", &error).unwrap_or_else(|| unreadable(error))
}

/// Returns the error of the disk that a Parquet error is; `None` for another one.
pub(crate) fn disk_error(what: &str, error: &ParquetError) -> Option<Error> {
    let ParquetError::External(cause) = error else { return None };
    Some(Error::io(format_args!("{what}"), cause.downcast_ref::<io::Error>()?))
}

/// Opens a file of rows. Times of 96 bits, which Spark writes, are read in microseconds as columns have them.
pub(crate) fn open_rows<T: ChunkReader + Clone + 'static>(
    file: T,
) -> Result<ParquetRecordBatchReaderBuilder<T>> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(file.clone()).map_err(parquet_error)?;
    let marks = reader.metadata().file_metadata().key_value_metadata();
    if marks.is_some_and(|marks| marks.iter().any(|mark| JULIAN_CALENDAR.contains(&mark.key.as_str()))) {
        return Err(Error::unsupported(
            "Spark wrote days or times of the Julian calendar; back up with its settings \
             spark.sql.parquet.datetimeRebaseModeInWrite and int96RebaseModeInWrite as CORRECTED",
        ));
    }
    let is_96_bits =
        |field: &FieldRef| matches!(field.data_type(), DataType::Timestamp(TimeUnit::Nanosecond, _));
    if !reader.schema().fields().iter().any(is_96_bits) {
        return Ok(reader);
    }
    let field = |field: &FieldRef| match field.data_type() {
        DataType::Timestamp(TimeUnit::Nanosecond, zone) => {
            let ty = DataType::Timestamp(TimeUnit::Microsecond, zone.clone());
            Arc::new(Field::clone(field).with_data_type(ty))
        }
        _ => field.clone(),
    };
    let fields: Vec<FieldRef> = reader.schema().fields().iter().map(field).collect();
    let options = ArrowReaderOptions::new().with_schema(Arc::new(Schema::new(fields)));
    ParquetRecordBatchReaderBuilder::try_new_with_options(file, options).map_err(parquet_error)
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_array::types::TimestampMicrosecondType;
    use bytes::Bytes;
    use engine::error::ErrorKind;
    use parquet::data_type::{Int96, Int96Type};
    use parquet::file::metadata::KeyValue;
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::*;

    /// Returns a file of times of 96 bits as Spark writes them: nanoseconds of a day, and the Julian day.
    fn spark_file(times: &[(u64, u32)], mark: Option<&str>) -> Bytes {
        let schema = parse_message_type("message spark_schema { REQUIRED INT96 at; }").expect("a schema");
        let marks = mark.map(|key| vec![KeyValue::new(key.to_string(), String::new())]);
        let properties = WriterProperties::builder().set_key_value_metadata(marks).build();
        let mut bytes = Vec::new();
        let mut writer =
            SerializedFileWriter::new(&mut bytes, Arc::new(schema), Arc::new(properties)).expect("a writer");
        let values = times.iter().map(|(nanos, day)| {
            let mut value = Int96::new();
            value.set_data(*nanos as u32, (*nanos >> 32) as u32, *day);
            value
        });
        let mut group = writer.next_row_group().expect("memory");
        let mut column = group.next_column().expect("memory").expect("a column");
        column.typed::<Int96Type>().write_batch(&values.collect::<Vec<_>>(), None, None).expect("memory");
        column.close().expect("memory");
        group.close().expect("memory");
        writer.close().expect("memory");
        bytes.into()
    }

    #[test]
    fn times_of_96_bits_are_read_in_microseconds() {
        // 1970 began on Julian day 2,440,588. The first and last are out of the range of 64 bits of nanoseconds.
        let days = [1_721_426, 2_440_588, 2_440_589, 5_373_484];
        let file = spark_file(&days.map(|day| (1_001_000, day)), None);
        let mut reader = open_rows(file).expect("a file").build().expect("a file");
        let batch = reader.next().expect("a batch").expect("rows");
        let found = batch.column(0).as_primitive::<TimestampMicrosecondType>().values().to_vec();
        let micros = |day: i64| (day - 2_440_588) * 86_400_000_000 + 1001;
        assert_eq!(found, days.map(|day| micros(i64::from(day))));
    }

    #[test]
    fn a_disk_that_fails_is_no_damage() {
        let input_output_error = io::Error::from_raw_os_error(5);
        let error = parquet_error(ParquetError::from(input_output_error));
        assert_eq!((error.kind, error.errno), (ErrorKind::Io, Some(5)), "{error}");
        let error = parquet_error(ParquetError::EOF("cut off".to_string()));
        assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
    }

    #[test]
    fn the_julian_calendar_is_refused() {
        for mark in JULIAN_CALENDAR {
            let error = open_rows(spark_file(&[(0, 2_440_588)], Some(mark))).expect_err("refused");
            assert!(error.message.contains("Julian calendar"), "{error}");
        }
    }
}
