//! Rows in the Postgres protocol: types of columns, cells as text and in binary form.
//!
//! ```text
//! column of a batch ── canonical(): one of 14 Arrow types ── cell ─┬─ text:   Postgres's own notation
//!                                                                  └─ binary: big-endian, times since 2000
//! ```

use std::fmt::Write;

use bytes::{BufMut, BytesMut};
use datafusion::arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{
    DataType as ArrowType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type,
    Int64Type, Schema as ArrowSchema, Time64MicrosecondType, TimeUnit, TimestampMicrosecondType,
};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use pgwire::api::Type;
use pgwire::api::portal::Format;
use pgwire::api::results::{FieldFormat, FieldInfo};
use pgwire::messages::data::DataRow;

use super::super::error::{SqlError, SqlResult, state};
use super::numeric;

/// Days from 1970 to 2000, the epoch of binary times.
const EPOCH_DAYS: i32 = 10_957;
/// Microseconds from 1970 to 2000.
const EPOCH_MICROS: i64 = EPOCH_DAYS as i64 * 86_400_000_000;

/// Format of the text of times; times with a zone are in UTC.
const TIMESTAMP: &str = "%Y-%m-%d %H:%M:%S%.f";
const TIMESTAMP_UTC: &str = "%Y-%m-%d %H:%M:%S%.f+00";
const TIME: &str = "%H:%M:%S%.f";

/// Returns the Arrow type that cells are encoded from.
fn canonical(ty: &ArrowType) -> ArrowType {
    match ty {
        ArrowType::Int8 | ArrowType::UInt8 => ArrowType::Int16,
        ArrowType::UInt16 => ArrowType::Int32,
        ArrowType::UInt32 => ArrowType::Int64,
        ArrowType::UInt64 => ArrowType::Decimal128(20, 0),
        ArrowType::Float16 => ArrowType::Float32,
        ArrowType::Null | ArrowType::LargeUtf8 | ArrowType::Utf8View => ArrowType::Utf8,
        ArrowType::LargeBinary | ArrowType::BinaryView | ArrowType::FixedSizeBinary(_) => ArrowType::Binary,
        ArrowType::Date64 => ArrowType::Date32,
        ArrowType::Time32(_) | ArrowType::Time64(_) => ArrowType::Time64(TimeUnit::Microsecond),
        ArrowType::Timestamp(_, zone) => {
            ArrowType::Timestamp(TimeUnit::Microsecond, zone.as_ref().map(|_| "+00:00".into()))
        }
        ArrowType::Decimal32(precision, scale) | ArrowType::Decimal64(precision, scale) => {
            ArrowType::Decimal128(*precision, *scale)
        }
        other => other.clone(),
    }
}

/// Returns the type of Postgres for an Arrow type. Lists, structs and intervals are text.
pub(super) fn pg_type(ty: &ArrowType) -> Type {
    match canonical(ty) {
        ArrowType::Boolean => Type::BOOL,
        ArrowType::Int16 => Type::INT2,
        ArrowType::Int32 => Type::INT4,
        ArrowType::Int64 => Type::INT8,
        ArrowType::Float32 => Type::FLOAT4,
        ArrowType::Float64 => Type::FLOAT8,
        ArrowType::Decimal128(_, scale) if scale >= 0 => Type::NUMERIC,
        ArrowType::Binary => Type::BYTEA,
        ArrowType::Date32 => Type::DATE,
        ArrowType::Time64(_) => Type::TIME,
        ArrowType::Timestamp(_, None) => Type::TIMESTAMP,
        ArrowType::Timestamp(_, Some(_)) => Type::TIMESTAMPTZ,
        _ => Type::TEXT,
    }
}

/// Returns the bytes of a type with a fixed length, -1 for others, as `pg_type.typlen` has it.
fn type_bytes(ty: &Type) -> i16 {
    match *ty {
        Type::BOOL => 1,
        Type::INT2 => 2,
        Type::INT4 | Type::FLOAT4 | Type::DATE => 4,
        Type::INT8 | Type::FLOAT8 | Type::TIME | Type::TIMESTAMP | Type::TIMESTAMPTZ => 8,
        _ => -1,
    }
}

/// Returns the modifier of a type: precision and scale of NUMERIC, as `pg_attribute.atttypmod` has it.
fn modifier(ty: &ArrowType) -> i32 {
    match canonical(ty) {
        ArrowType::Decimal128(precision, scale) if scale >= 0 => {
            (i32::from(precision) << 16 | i32::from(scale)) + 4
        }
        _ => -1,
    }
}

/// Returns the description of the columns of a result, in the formats that a client asked for.
pub(super) fn fields(schema: &ArrowSchema, format: &Format) -> SqlResult<Vec<FieldInfo>> {
    let count = schema.fields().len();
    if let Format::Individual(formats) = format
        && formats.len() != count
    {
        let message = format!("{} formats for {count} columns of the result", formats.len());
        return Err(SqlError::with_state("08P01", message));
    }
    let field = |(at, field): (usize, &datafusion::arrow::datatypes::FieldRef)| {
        let ty = pg_type(field.data_type());
        let bytes = type_bytes(&ty);
        FieldInfo::new(field.name().clone(), None, None, ty, format.format_for(at))
            .with_type_size(bytes)
            .with_type_modifier(modifier(field.data_type()))
    };
    Ok(schema.fields().iter().enumerate().map(field).collect())
}

/// Encodes the rows of a batch.
pub(super) fn rows(batch: &RecordBatch, fields: &[FieldInfo]) -> SqlResult<Vec<DataRow>> {
    let columns: Vec<ArrayRef> = batch
        .columns()
        .iter()
        .map(|column| Ok(cast(column, &canonical(column.data_type()))?))
        .collect::<SqlResult<_>>()?;
    let options: Vec<FormatOptions<'_>> = columns.iter().map(|column| text_options(column)).collect();
    let cells = columns.iter().zip(&options).zip(fields).map(|((column, options), field)| {
        let formatter = ArrayFormatter::try_new(column.as_ref(), options)?;
        Ok(ColumnCells { column, formatter, format: field.format(), text: String::new() })
    });
    let mut cells = cells.collect::<SqlResult<Vec<_>>>()?;
    let mut rows = Vec::with_capacity(batch.num_rows());
    for row in 0..batch.num_rows() {
        let mut bytes = BytesMut::new();
        for column in &mut cells {
            column.put(row, &mut bytes)?;
        }
        rows.push(DataRow::new(bytes, cells.len() as i16));
    }
    Ok(rows)
}

fn text_options(column: &ArrayRef) -> FormatOptions<'static> {
    let is_nested = column.data_type().is_nested();
    let options = FormatOptions::new().with_time_format(Some(TIME)).with_null("");
    let options = if is_nested { options.with_null("NULL") } else { options };
    options.with_timestamp_format(Some(TIMESTAMP)).with_timestamp_tz_format(Some(TIMESTAMP_UTC))
}

/// Cells of a column of a batch.
struct ColumnCells<'a> {
    column: &'a ArrayRef,
    formatter: ArrayFormatter<'a>,
    format: FieldFormat,
    text: String,
}

impl ColumnCells<'_> {
    /// Appends a cell: its length, -1 for NULL, then its bytes.
    fn put(&mut self, row: usize, out: &mut BytesMut) -> SqlResult<()> {
        if self.column.is_null(row) {
            out.put_i32(-1);
            return Ok(());
        }
        let start = out.len();
        out.put_i32(0);
        if self.format == FieldFormat::Text || !self.put_binary(row, out)? {
            self.put_text(row, out)?;
        }
        let len = i32::try_from(out.len() - start - 4);
        let len = len.map_err(|_| SqlError::with_state(state::NO_MEMORY, "a cell of more than 2 GiB"))?;
        out[start..start + 4].copy_from_slice(&len.to_be_bytes());
        Ok(())
    }

    fn put_text(&mut self, row: usize, out: &mut BytesMut) -> SqlResult<()> {
        self.text.clear();
        let column = self.column;
        match column.data_type() {
            ArrowType::Boolean => self.text.push(if column.as_boolean().value(row) { 't' } else { 'f' }),
            ArrowType::Utf8 => self.text.push_str(column.as_string::<i32>().value(row)),
            ArrowType::Float32 => {
                float_text(f64::from(column.as_primitive::<Float32Type>().value(row)), &mut self.text, || {
                    column.as_primitive::<Float32Type>().value(row).to_string()
                })
            }
            ArrowType::Float64 => {
                let value = column.as_primitive::<Float64Type>().value(row);
                float_text(value, &mut self.text, || value.to_string())
            }
            ArrowType::Binary => {
                self.text.push_str("\\x");
                for byte in column.as_binary::<i32>().value(row) {
                    // Writing to a string cannot fail.
                    let _ = write!(self.text, "{byte:02x}");
                }
            }
            _ => self.formatter.value(row).write(&mut self.text)?,
        }
        out.put_slice(self.text.as_bytes());
        Ok(())
    }

    /// Appends the binary form of a cell. Returns false if its type has none but its text.
    fn put_binary(&self, row: usize, out: &mut BytesMut) -> SqlResult<bool> {
        let column = self.column;
        match column.data_type() {
            ArrowType::Boolean => out.put_u8(u8::from(column.as_boolean().value(row))),
            ArrowType::Int16 => out.put_i16(column.as_primitive::<Int16Type>().value(row)),
            ArrowType::Int32 => out.put_i32(column.as_primitive::<Int32Type>().value(row)),
            ArrowType::Int64 => out.put_i64(column.as_primitive::<Int64Type>().value(row)),
            ArrowType::Float32 => out.put_f32(column.as_primitive::<Float32Type>().value(row)),
            ArrowType::Float64 => out.put_f64(column.as_primitive::<Float64Type>().value(row)),
            ArrowType::Binary => out.put_slice(column.as_binary::<i32>().value(row)),
            ArrowType::Decimal128(_, scale) if *scale >= 0 => {
                numeric::encode(column.as_primitive::<Decimal128Type>().value(row), *scale as usize, out);
            }
            ArrowType::Date32 => {
                let days = column.as_primitive::<Date32Type>().value(row);
                out.put_i32(days.checked_sub(EPOCH_DAYS).ok_or_else(too_early)?);
            }
            ArrowType::Time64(_) => out.put_i64(column.as_primitive::<Time64MicrosecondType>().value(row)),
            ArrowType::Timestamp(..) => {
                let micros = column.as_primitive::<TimestampMicrosecondType>().value(row);
                out.put_i64(micros.checked_sub(EPOCH_MICROS).ok_or_else(too_early)?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn too_early() -> SqlError {
    SqlError::with_state("22008", "a date or time is too early for the Postgres protocol")
}

fn float_text(value: f64, out: &mut String, finite: impl FnOnce() -> String) {
    match value {
        _ if value.is_nan() => out.push_str("NaN"),
        f64::INFINITY => out.push_str("Infinity"),
        f64::NEG_INFINITY => out.push_str("-Infinity"),
        _ => out.push_str(&finite()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use datafusion::arrow::array::{
        BinaryArray, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int8Array, StringArray,
        TimestampMicrosecondArray,
    };

    fn batch() -> RecordBatch {
        let decimals = Decimal128Array::from(vec![Some(-150), None]).with_precision_and_scale(9, 2);
        let times = TimestampMicrosecondArray::from(vec![Some(946_684_800_000_001), None]);
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("b", Arc::new(BooleanArray::from(vec![Some(true), None]))),
            ("i", Arc::new(Int8Array::from(vec![Some(-7), None]))),
            ("f", Arc::new(Float64Array::from(vec![Some(f64::NEG_INFINITY), None]))),
            ("t", Arc::new(StringArray::from(vec![Some("é"), None]))),
            ("y", Arc::new(BinaryArray::from(vec![Some(&b"\x00\xff"[..]), None]))),
            ("d", Arc::new(Date32Array::from(vec![Some(10_956), None]))),
            ("n", Arc::new(decimals.expect("a lawful scale"))),
            ("z", Arc::new(times.with_timezone("+00:00"))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))
            .expect("equal lengths")
    }

    /// Returns the cells of each row; `None` is NULL.
    fn cells(format: Format) -> Vec<Vec<Option<Vec<u8>>>> {
        let batch = batch();
        let fields = fields(&batch.schema(), &format).expect("formats fit");
        let row = |row: DataRow| {
            let mut rest = &row.data[..];
            let mut cells = Vec::new();
            while !rest.is_empty() {
                let len = i32::from_be_bytes(rest[..4].try_into().expect("4 bytes"));
                rest = &rest[4..];
                let (cell, after) = rest.split_at(len.max(0) as usize);
                cells.push((len >= 0).then(|| cell.to_vec()));
                rest = after;
            }
            cells
        };
        rows(&batch, &fields).expect("every type is encoded").into_iter().map(row).collect()
    }

    #[test]
    fn text_is_in_postgres_notation() {
        let rows = cells(Format::UnifiedText);
        let texts = rows[0].iter().flatten().map(|cell| String::from_utf8_lossy(cell).into_owned());
        assert_eq!(
            texts.collect::<Vec<_>>(),
            ["t", "-7", "-Infinity", "é", "\\x00ff", "1999-12-31", "-1.50", "2000-01-01 00:00:00.000001+00"]
        );
        assert!(rows[1].iter().all(Option::is_none));
    }

    #[test]
    fn binary_cells_are_big_endian_and_count_from_2000() {
        let rows = cells(Format::UnifiedBinary);
        let wanted: [&[u8]; 8] = [
            &[1],
            &[0xff, 0xf9],
            &[0xff, 0xf0, 0, 0, 0, 0, 0, 0],
            "é".as_bytes(),
            &[0, 0xff],
            &[0xff, 0xff, 0xff, 0xff],
            &[0, 2, 0, 0, 0x40, 0, 0, 2, 0, 1, 0x13, 0x88],
            &[0, 0, 0, 0, 0, 0, 0, 1],
        ];
        let found: Vec<&[u8]> = rows[0].iter().flatten().map(Vec::as_slice).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn formats_must_fit_the_columns() {
        let error = fields(&batch().schema(), &Format::Individual(vec![0, 1])).expect_err("8 columns");
        assert_eq!(
            (error.sql_state(), error.to_string().as_str()),
            ("08P01", "2 formats for 8 columns of the result")
        );
    }
}
