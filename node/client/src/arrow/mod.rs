//! Conversion of columnar scan responses and of the engine's rows to Arrow record batches, and of Arrow arrays to
//! columns to write.
//!
//! Aligned buffers of a response are used without a copy. BOOL is a byte in the protocol and a bit in Arrow; every
//! DECIMAL becomes a Decimal128.

mod casts;
mod exact;

use std::sync::Arc;

use arrow_array::types::{
    Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    TimestampMicrosecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, BinaryArray, BooleanArray, FixedSizeBinaryArray, PrimitiveArray,
    RecordBatch, RecordBatchOptions, StringArray,
};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{Field, Schema as ArrowSchema, SchemaRef};
use bytes::Bytes;
use engine::error::{Error, Result};
use engine::schema::key::{DATE_MAX, DATE_MIN};
use engine::schema::row_block::{Bitmap, ColumnBlock, ColumnValues, RowBlock};
use engine::schema::{ColumnSchema, PhysicalType, TypeParameters, ValueKind, format_cell};

use super::cell_text::too_long;
use nyala_proto::kudu::ColumnarRowBlockPb;

use casts::{UTC, cast_to};
pub use casts::{arrow_type, first_infinite};
pub use exact::{changed_value, needs_parsing, parsed_block};

/// Returns the Arrow schema of a projection.
pub fn arrow_schema(columns: &[ColumnSchema]) -> SchemaRef {
    let field = |column: &ColumnSchema| Field::new(&column.name, arrow_type(column), column.nullable);
    Arc::new(ArrowSchema::new(columns.iter().map(field).collect::<Vec<_>>()))
}

fn malformed(what: impl std::fmt::Display) -> Error {
    Error::invalid(format!("malformed scan response: {what}"))
}

/// Converts a scan response to a record batch. `columns` is the requested projection, `schema` its Arrow schema.
pub fn batch_from_pb(
    block: &ColumnarRowBlockPb,
    sidecars: &[Bytes],
    columns: &[ColumnSchema],
    schema: &SchemaRef,
) -> Result<RecordBatch> {
    let rows = usize::try_from(block.num_rows()).map_err(|_| malformed("a negative number of rows"))?;
    let sidecar = |index: Option<i32>| match index {
        None => Ok(Bytes::new()),
        Some(index) => {
            let found = usize::try_from(index).ok().and_then(|index| sidecars.get(index));
            found.cloned().ok_or_else(|| malformed(format!("missing sidecar {index}")))
        }
    };
    if rows > 0 && block.columns.len() != columns.len() {
        return Err(malformed(format!("{} columns instead of {}", block.columns.len(), columns.len())));
    }
    let mut arrays = Vec::with_capacity(columns.len());
    for (i, column) in columns.iter().enumerate() {
        let pb = block.columns.get(i).copied().unwrap_or_default();
        let parts = ReplyColumn {
            rows,
            data: sidecar(pb.data_sidecar)?.into(),
            varlen: sidecar(pb.varlen_data_sidecar)?.into(),
            valid: pb
                .non_null_bitmap_sidecar
                .map(|index| sidecar(Some(index)).map(Buffer::from))
                .transpose()?,
        };
        let array =
            parts.array(column).map_err(|error| error.context(format!("column {:?}", column.name)))?;
        arrays.push(array);
    }
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema.clone(), arrays, &options).map_err(malformed)
}

/// Converts rows of the engine to a record batch, without copies of the cells but those of DECIMAL and BOOL. `columns`
/// is the projection, `schema` its Arrow schema.
pub fn batch_from_block(
    block: RowBlock,
    columns: &[ColumnSchema],
    schema: &SchemaRef,
) -> Result<RecordBatch> {
    let rows = block.rows;
    let array = |(column, cells): (&ColumnSchema, ColumnBlock)| {
        let (data, varlen) = match cells.values {
            ColumnValues::Fixed { bytes, .. } => (bytes.into(), Buffer::default()),
            ColumnValues::Var { offsets, bytes } => (offsets.into(), bytes.into()),
        };
        let valid = cells.validity.map(|valid| Buffer::from_slice_ref(valid.as_bytes()));
        ReplyColumn { rows, data, varlen, valid }.array(column)
    };
    let arrays = columns.iter().zip(block.columns).map(array).collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema.clone(), arrays, &options).map_err(malformed)
}

/// One column of a response, or of the engine's rows.
struct ReplyColumn {
    rows: usize,
    data: Buffer,
    varlen: Buffer,
    valid: Option<Buffer>,
}

/// Returns the bytes as numbers, copied only if they are not aligned.
fn scalars<T: arrow_buffer::ArrowNativeType>(data: &Buffer, count: usize) -> Result<ScalarBuffer<T>> {
    let width = size_of::<T>();
    let len = count.checked_mul(width).filter(|len| *len <= data.len());
    let len = len.ok_or_else(|| malformed(format!("{count} cells in {} bytes", data.len())))?;
    let data = data.slice_with_length(0, len);
    let aligned = data.as_ptr().align_offset(align_of::<T>()) == 0;
    let buffer = if aligned { data } else { Buffer::from_slice_ref(&data[..]) };
    Ok(ScalarBuffer::new(buffer, 0, count))
}

impl ReplyColumn {
    fn nulls(&self, column: &ColumnSchema) -> Result<Option<NullBuffer>> {
        let Some(valid) = &self.valid else { return Ok(None) };
        if !column.nullable {
            return Ok(None);
        }
        if valid.len() < self.rows.div_ceil(8) {
            return Err(malformed(format!("{} rows but {} bytes of bitmap", self.rows, valid.len())));
        }
        Ok(Some(NullBuffer::new(BooleanBuffer::new(valid.clone(), 0, self.rows))))
    }

    fn primitive<T: ArrowPrimitiveType>(&self, column: &ColumnSchema) -> Result<PrimitiveArray<T>> {
        let values = scalars::<T::Native>(&self.data, self.rows)?;
        PrimitiveArray::try_new(values, self.nulls(column)?).map_err(malformed)
    }

    fn array(&self, column: &ColumnSchema) -> Result<ArrayRef> {
        Ok(match column.ty.kind() {
            ValueKind::Text => self.texts(column)?,
            ValueKind::Decimal => self.decimals(column)?,
            ValueKind::Date => Arc::new(self.primitive::<Date32Type>(column)?),
            ValueKind::Timestamp => {
                Arc::new(self.primitive::<TimestampMicrosecondType>(column)?.with_timezone(UTC))
            }
            ValueKind::Plain => self.plain(column)?,
        })
    }

    fn plain(&self, column: &ColumnSchema) -> Result<ArrayRef> {
        Ok(match column.ty.physical() {
            PhysicalType::Int8 => Arc::new(self.primitive::<Int8Type>(column)?),
            PhysicalType::Int16 => Arc::new(self.primitive::<Int16Type>(column)?),
            PhysicalType::Int32 => Arc::new(self.primitive::<Int32Type>(column)?),
            PhysicalType::Int64 => Arc::new(self.primitive::<Int64Type>(column)?),
            PhysicalType::Uint8 => Arc::new(self.primitive::<UInt8Type>(column)?),
            PhysicalType::Uint16 => Arc::new(self.primitive::<UInt16Type>(column)?),
            PhysicalType::Uint32 => Arc::new(self.primitive::<UInt32Type>(column)?),
            PhysicalType::Uint64 => Arc::new(self.primitive::<UInt64Type>(column)?),
            PhysicalType::Float => Arc::new(self.primitive::<Float32Type>(column)?),
            PhysicalType::Double => Arc::new(self.primitive::<Float64Type>(column)?),
            PhysicalType::Bool => {
                let bytes = scalars::<u8>(&self.data, self.rows)?;
                let bits = BooleanBuffer::collect_bool(self.rows, |row| bytes[row] != 0);
                Arc::new(BooleanArray::new(bits, self.nulls(column)?))
            }
            PhysicalType::Int128 => {
                let bytes = scalars::<u8>(&self.data, self.rows.saturating_mul(16))?.into_inner();
                Arc::new(FixedSizeBinaryArray::try_new(16, bytes, self.nulls(column)?).map_err(malformed)?)
            }
            PhysicalType::Binary => self.texts(column)?,
        })
    }

    fn decimals(&self, column: &ColumnSchema) -> Result<ArrayRef> {
        let values: ScalarBuffer<i128> = match column.ty.physical() {
            PhysicalType::Int32 => {
                scalars::<i32>(&self.data, self.rows)?.iter().map(|value| i128::from(*value)).collect()
            }
            PhysicalType::Int64 => {
                scalars::<i64>(&self.data, self.rows)?.iter().map(|value| i128::from(*value)).collect()
            }
            _ => scalars::<i128>(&self.data, self.rows)?,
        };
        let array =
            PrimitiveArray::<Decimal128Type>::try_new(values, self.nulls(column)?).map_err(malformed)?;
        let (precision, scale) = (column.attributes.precision, column.attributes.scale as i8);
        Ok(Arc::new(array.with_precision_and_scale(precision, scale).map_err(malformed)?))
    }

    fn texts(&self, column: &ColumnSchema) -> Result<ArrayRef> {
        let offsets = match self.rows {
            0 => ScalarBuffer::from(vec![0i32]),
            rows => scalars::<i32>(&self.data, rows + 1)?,
        };
        let ordered = offsets.first().is_some_and(|first| *first >= 0) && offsets.is_sorted();
        if !ordered || offsets.last().is_some_and(|last| *last as usize > self.varlen.len()) {
            return Err(malformed("offsets outside the data"));
        }
        let offsets = OffsetBuffer::new(offsets);
        let (values, nulls) = (self.varlen.clone(), self.nulls(column)?);
        if column.ty.kind() != ValueKind::Text {
            return Ok(Arc::new(BinaryArray::try_new(offsets, values, nulls).map_err(malformed)?));
        }
        Ok(Arc::new(StringArray::try_new(offsets, values, nulls).map_err(malformed)?))
    }
}

/// Converts an array to the cells of a column. The array is cast to the column's type first; a text that is longer than
/// its VARCHAR column stays as it is.
///
/// Fails with `Invalid` if the cast fails: for a value out of range, or NULL in a NOT NULL column. A double that would
/// become infinite as a FLOAT is out of range, and so is a DATE outside the years 1 to 9999.
pub fn column_to_block(array: &ArrayRef, column: &ColumnSchema) -> Result<ColumnBlock> {
    let block = cast_to(array, column).and_then(|cast| to_block(&cast, column));
    let checked = block.and_then(|block| check_dates(&block, column).map(|()| block));
    checked.map_err(|reason| Error::invalid(format!("column {:?}: {reason}", column.name)))
}

/// Converts an array to the cells of a column to write. Fails as [`column_block`] does, and for a DATE outside the
/// years 1 to 9999. The error is the reason alone.
pub(crate) fn written_block(array: &ArrayRef, column: &ColumnSchema) -> Result<ColumnBlock, String> {
    let block = column_block(array, column)?;
    check_dates(&block, column)?;
    Ok(block)
}

/// Returns an array as a column of a table. Fails for a text that is too long and for a value that the cast would
/// change, too. The error is the reason alone.
pub fn column_block(array: &ArrayRef, column: &ColumnSchema) -> Result<ColumnBlock, String> {
    let array = &exact::unpacked(array)?;
    if needs_parsing(array.data_type(), column) {
        return exact::parse(array, column);
    }
    let cast = cast_to(array, column)?;
    if !exact::is_rounded(array, column)
        && let Some(value) = exact::first_changed(array, &cast, column)?
    {
        return Err(format!("{value} does not fit {}", column.type_name()));
    }
    check_lengths(&cast, column)?;
    to_block(&cast, column)
}

fn to_block(cast: &ArrayRef, column: &ColumnSchema) -> Result<ColumnBlock, String> {
    let values = block_values(cast, column).ok_or("a value is out of range")?;
    let validity = column.nullable.then(|| match cast.nulls() {
        None => Bitmap::new(cast.len(), true),
        Some(nulls) => {
            let mut bits = Bitmap::default();
            nulls.iter().for_each(|valid| bits.push(valid));
            bits
        }
    });
    Ok(ColumnBlock { values, validity })
}

/// Fails if a DATE is outside the years 1 to 9999. Arrow's type has more days, and so has a cell: as in Apache Kudu the
/// client checks, and the server takes what it gets.
fn check_dates(block: &ColumnBlock, column: &ColumnSchema) -> Result<(), String> {
    if column.ty.kind() != ValueKind::Date {
        return Ok(());
    }
    let day = |cell: &[u8]| i32::from_le_bytes(cell.try_into().expect("a DATE has four bytes"));
    let mut days = (0..block.len()).filter_map(|row| block.cell(row)).map(day);
    match days.find(|day| !(DATE_MIN..=DATE_MAX).contains(day)) {
        None => Ok(()),
        Some(day) => {
            let date = |day: i32| format_cell(column.ty, column.attributes, &day.to_le_bytes());
            let range = format!("{} to {}", date(DATE_MIN), date(DATE_MAX));
            Err(format!("{} does not fit {} ({range})", date(day), column.type_name()))
        }
    }
}

/// Fails if a text of a VARCHAR column has more characters than the column takes.
fn check_lengths(array: &ArrayRef, column: &ColumnSchema) -> Result<(), String> {
    use arrow_array::cast::AsArray;
    if column.ty.parameters() != TypeParameters::Length {
        return Ok(());
    }
    let mut texts = array.as_string::<i32>().iter().flatten();
    texts.find_map(|text| too_long(column, text)).map_or(Ok(()), Err)
}

fn block_values(array: &ArrayRef, column: &ColumnSchema) -> Option<ColumnValues> {
    use arrow_array::cast::AsArray;
    let data = array.to_data();
    match (column.ty.kind(), column.ty.physical()) {
        (_, PhysicalType::Bool) => {
            let bits = array.as_boolean().values();
            Some(ColumnValues::Fixed { width: 1, bytes: bits.iter().map(u8::from).collect() })
        }
        (ValueKind::Decimal, _) => {
            let width = column.ty.width()?;
            let mut bytes = Vec::with_capacity(array.len() * width);
            for value in array.as_primitive::<Decimal128Type>().values() {
                bytes.extend_from_slice(&value.to_le_bytes()[..width]);
            }
            Some(ColumnValues::Fixed { width, bytes })
        }
        (kind, PhysicalType::Binary) => {
            let (all, bytes): (&OffsetBuffer<i32>, &Buffer) = match kind {
                ValueKind::Text => (array.as_string::<i32>().offsets(), array.as_string::<i32>().values()),
                _ => (array.as_binary::<i32>().offsets(), array.as_binary::<i32>().values()),
            };
            let (first, last) = (*all.first()?, *all.last()?);
            let offsets = all.iter().map(|at| (at - first) as u32).collect();
            Some(ColumnValues::Var {
                offsets,
                bytes: bytes.as_slice()[first as usize..last as usize].to_vec(),
            })
        }
        _ => {
            let width = column.ty.width()?;
            let from = data.offset() * width;
            let bytes = data.buffers().first()?.as_slice().get(from..from + array.len() * width)?;
            Some(ColumnValues::Fixed { width, bytes: bytes.to_vec() })
        }
    }
}

#[cfg(test)]
mod tests;
