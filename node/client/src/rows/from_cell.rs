//! Values read: cells of Arrow arrays to Rust types.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    TimestampMicrosecondType,
};
use arrow_array::{Array, ArrowPrimitiveType};

/// Value that can be read from a cell.
pub trait FromCell: Sized {
    /// Reads a row of an array. The error says why the cell is no such value.
    fn from_cell(array: &dyn Array, row: usize) -> Result<Self, String>;
}

/// Reads a cell that is not NULL from an array of primitives, if it is one.
fn primitive<T: ArrowPrimitiveType>(array: &dyn Array, row: usize) -> Option<T::Native> {
    array.as_primitive_opt::<T>().map(|array| array.value(row))
}

/// Returns a value that was read, or the reason why there is none.
fn checked<T>(
    array: &dyn Array,
    row: usize,
    name: &str,
    read: impl FnOnce() -> Option<T>,
) -> Result<T, String> {
    if array.is_null(row) {
        return Err(format!("NULL cannot be read as {name}; use Option<{name}>"));
    }
    read().ok_or_else(|| format!("{} cannot be read as {name}", array.data_type()))
}

macro_rules! primitives {
    ($($rust:ty => [$($arrow:ty),+]),* $(,)?) => {
        $(impl FromCell for $rust {
            fn from_cell(array: &dyn Array, row: usize) -> Result<Self, String> {
                let read = || None$(.or_else(|| primitive::<$arrow>(array, row)))+;
                checked(array, row, stringify!($rust), read)
            }
        })*
    };
}

primitives! {
    i8 => [Int8Type],
    i16 => [Int16Type],
    i32 => [Int32Type, Date32Type],
    i64 => [Int64Type, TimestampMicrosecondType],
    i128 => [Decimal128Type],
    f32 => [Float32Type],
    f64 => [Float64Type],
}

impl FromCell for bool {
    fn from_cell(array: &dyn Array, row: usize) -> Result<Self, String> {
        checked(array, row, "bool", || array.as_boolean_opt().map(|array| array.value(row)))
    }
}

impl FromCell for String {
    fn from_cell(array: &dyn Array, row: usize) -> Result<Self, String> {
        checked(array, row, "String", || {
            array.as_string_opt::<i32>().map(|array| array.value(row).to_string())
        })
    }
}

impl FromCell for Vec<u8> {
    fn from_cell(array: &dyn Array, row: usize) -> Result<Self, String> {
        checked(array, row, "Vec<u8>", || array.as_binary_opt::<i32>().map(|array| array.value(row).to_vec()))
    }
}

impl<T: FromCell> FromCell for Option<T> {
    fn from_cell(array: &dyn Array, row: usize) -> Result<Self, String> {
        if array.is_null(row) { Ok(None) } else { T::from_cell(array, row).map(Some) }
    }
}
