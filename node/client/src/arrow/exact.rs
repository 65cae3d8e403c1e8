//! Check that a cast of an array to a column's type changes no value.
//!
//! Arrow's casts cut digits off and round in silence: 2.5 becomes the integer 2, and nanoseconds become microseconds. A
//! cast is exact if the cast back gives the same values. Text is parsed instead, because equal numbers and times have
//! several spellings.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_cast::cast::cast_with_options;
use arrow_cast::display::array_value_to_string;
use arrow_schema::DataType as ArrowType;
use engine::error::{Error, Result};
use engine::schema::row_block::ColumnBlock;
use engine::schema::{ColumnSchema, PhysicalType};

use super::super::cell_text::parse_cell;
use super::casts::{STRICT, UTC, cast_to};

/// Returns true if an array of this type is text, and the column is neither text nor BINARY.
pub fn needs_parsing(ty: &ArrowType, column: &ColumnSchema) -> bool {
    let is_text = matches!(ty, ArrowType::Utf8 | ArrowType::LargeUtf8 | ArrowType::Utf8View);
    is_text && column.ty.physical() != PhysicalType::Binary
}

/// Parses an array of text to the cells of a column, each as [`parse_cell`] does.
pub fn parsed_block(array: &ArrayRef, column: &ColumnSchema) -> Result<ColumnBlock> {
    let bad = |what: String| Error::invalid(format!("column {:?}: {what}", column.name));
    parse(array, column).map_err(bad)
}

pub(super) fn parse(array: &ArrayRef, column: &ColumnSchema) -> Result<ColumnBlock, String> {
    let text = cast_with_options(array, &ArrowType::Utf8, &STRICT).map_err(|error| error.to_string())?;
    let mut block = ColumnBlock::new(column.ty.physical(), column.nullable);
    for cell in text.as_string::<i32>() {
        match cell {
            Some(text) => block.push(Some(&parse_cell(column, text).map_err(|error| error.message)?)),
            None if column.nullable => block.push(None),
            None => return Err("NULL in a column that is NOT NULL".to_string()),
        }
    }
    Ok(block)
}

/// Returns the first value that a cast to the column's type changes, as text; `None` if it changes none.
///
/// Fails with `Invalid` if the cast fails.
pub fn changed_value(array: &ArrayRef, column: &ColumnSchema) -> Result<Option<String>> {
    let changed = cast_to(array, column).and_then(|cast| first_changed(array, &cast, column));
    changed.map_err(|reason| Error::invalid(format!("column {:?}: {reason}", column.name)))
}

/// Compares an array with its cast to the column's type. The error is the reason that a value cannot be cast back.
pub(super) fn first_changed(
    array: &ArrayRef,
    cast: &ArrayRef,
    column: &ColumnSchema,
) -> Result<Option<String>, String> {
    let source = array.data_type();
    // Text holds every value, and an array of the type Null has no value.
    let holds_all = column.ty.physical() == PhysicalType::Binary || *source == ArrowType::Null;
    if source == cast.data_type() || holds_all {
        return Ok(None);
    }
    let back = cast_with_options(cast, source, &STRICT).map_err(|error| error.to_string())?;
    if back.to_data() == array.to_data() {
        return Ok(None);
    }
    let differs = |row: &usize| back.slice(*row, 1).to_data() != array.slice(*row, 1).to_data();
    let row = (0..array.len()).find(differs);
    row.map(|row| shown(&array.slice(row, 1))).transpose()
}

/// Returns true for doubles to a FLOAT column, which are rounded: there is hardly another way to give its values.
pub(super) fn is_rounded(array: &ArrayRef, column: &ColumnSchema) -> bool {
    *array.data_type() == ArrowType::Float64 && column.ty.physical() == PhysicalType::Float
}

/// Returns the first value of an array as text.
fn shown(array: &ArrayRef) -> Result<String, String> {
    // A zone's name cannot be resolved without a time zone database; the time is the same in UTC.
    let value = match array.data_type() {
        ArrowType::Timestamp(unit, Some(_)) => {
            cast_with_options(array, &ArrowType::Timestamp(*unit, Some(UTC.into())), &STRICT)
        }
        _ => Ok(array.clone()),
    };
    value.and_then(|value| array_value_to_string(&value, 0)).map_err(|error| error.to_string())
}

/// Returns the values of a dictionary-encoded array, or another array as it is.
pub(super) fn unpacked(array: &ArrayRef) -> Result<ArrayRef, String> {
    match array.data_type() {
        ArrowType::Dictionary(_, values) => {
            cast_with_options(array, values, &STRICT).map_err(|error| error.to_string())
        }
        _ => Ok(array.clone()),
    }
}
