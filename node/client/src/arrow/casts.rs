//! Arrow types of columns, and casts to them.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef};
use arrow_cast::cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType as ArrowType, TimeUnit};
use engine::schema::{ColumnSchema, PhysicalType, ValueKind};

/// Casts in which a value out of range is an error, not NULL.
pub(super) const STRICT: CastOptions<'static> =
    CastOptions { safe: false, format_options: arrow_cast::display::FormatOptions::new() };

/// Time zone UTC as an offset: zone names would need a time zone database.
pub(super) const UTC: &str = "+00:00";

/// Returns the Arrow type of a column.
pub fn arrow_type(column: &ColumnSchema) -> ArrowType {
    match column.ty.kind() {
        ValueKind::Text => ArrowType::Utf8,
        ValueKind::Decimal => {
            ArrowType::Decimal128(column.attributes.precision, column.attributes.scale as i8)
        }
        ValueKind::Date => ArrowType::Date32,
        ValueKind::Timestamp => ArrowType::Timestamp(TimeUnit::Microsecond, Some(UTC.into())),
        ValueKind::Plain => match column.ty.physical() {
            PhysicalType::Bool => ArrowType::Boolean,
            PhysicalType::Int8 => ArrowType::Int8,
            PhysicalType::Int16 => ArrowType::Int16,
            PhysicalType::Int32 => ArrowType::Int32,
            PhysicalType::Int64 => ArrowType::Int64,
            PhysicalType::Int128 => ArrowType::FixedSizeBinary(16),
            PhysicalType::Uint8 => ArrowType::UInt8,
            PhysicalType::Uint16 => ArrowType::UInt16,
            PhysicalType::Uint32 => ArrowType::UInt32,
            PhysicalType::Uint64 => ArrowType::UInt64,
            PhysicalType::Float => ArrowType::Float32,
            PhysicalType::Double => ArrowType::Float64,
            PhysicalType::Binary => ArrowType::Binary,
        },
    }
}

/// Casts an array to the type of a column. A double that would become infinite as a FLOAT is out of range. The
/// error is the reason alone.
pub(super) fn cast_to(array: &ArrayRef, column: &ColumnSchema) -> Result<ArrayRef, String> {
    let wanted = arrow_type(column);
    let cast = if *array.data_type() == wanted {
        array.clone()
    } else {
        cast_with_options(array, &wanted, &STRICT).map_err(|error| error.to_string())?
    };
    if !column.nullable && cast.null_count() > 0 {
        return Err("NULL in a column that is NOT NULL".to_string());
    }
    match first_infinite(array, &cast) {
        Some(value) => Err(format!("{value} does not fit {}", column.type_name())),
        None => Ok(cast),
    }
}

/// Returns the first double that Arrow's cast to floats has made infinite, as text; `None` for other arrays.
pub fn first_infinite(array: &ArrayRef, cast: &ArrayRef) -> Option<String> {
    let doubles = array.as_primitive_opt::<Float64Type>()?;
    let floats = cast.as_primitive_opt::<Float32Type>()?;
    let mut pairs = doubles.iter().zip(floats).filter_map(|(double, float)| double.zip(float));
    let found = pairs.find(|(double, float)| double.is_finite() && float.is_infinite());
    found.map(|(double, _)| format!("{double:e}"))
}
