//! Values to write: Rust types to the bytes of a cell.

use engine::schema::key::decimal_max;
use engine::schema::{ColumnSchema, DataType};

use super::super::error::SchemaMismatch;

/// Value that can be a cell of a row to write, or of a predicate.
pub trait ToCell {
    /// Appends the bytes of the cell. Returns false for NULL, and fails if the value does not fit the column.
    fn to_cell(&self, column: &ColumnSchema, out: &mut Vec<u8>) -> Result<bool, SchemaMismatch>;
}

/// Returns an error unless the column has one of these types.
fn check_type(column: &ColumnSchema, types: &[DataType], value: &str) -> Result<(), SchemaMismatch> {
    if types.contains(&column.ty) {
        return Ok(());
    }
    let names: Vec<String> = types.iter().map(|ty| ty.name().to_string()).collect();
    let reason = format!("{value} does not fit {}; it fits {}", column.type_name(), names.join(", "));
    Err(SchemaMismatch::of_column(&column.name, reason))
}

macro_rules! fixed_widths {
    ($($rust:ty => [$($ty:ident),+]),* $(,)?) => {
        $(impl ToCell for $rust {
            fn to_cell(&self, column: &ColumnSchema, out: &mut Vec<u8>) -> Result<bool, SchemaMismatch> {
                check_type(column, &[$(DataType::$ty),+], stringify!($rust))?;
                out.extend_from_slice(&self.to_le_bytes());
                Ok(true)
            }
        })*
    };
}

fixed_widths! {
    i8 => [Int8],
    i16 => [Int16],
    i32 => [Int32, Date],
    i64 => [Int64, UnixtimeMicros],
    f32 => [Float],
    f64 => [Double],
}

impl ToCell for bool {
    fn to_cell(&self, column: &ColumnSchema, out: &mut Vec<u8>) -> Result<bool, SchemaMismatch> {
        check_type(column, &[DataType::Bool], "bool")?;
        out.push(u8::from(*self));
        Ok(true)
    }
}

/// An unscaled decimal: 12.34 in DECIMAL(4, 2) is 1234.
impl ToCell for i128 {
    fn to_cell(&self, column: &ColumnSchema, out: &mut Vec<u8>) -> Result<bool, SchemaMismatch> {
        check_type(column, &[DataType::Decimal32, DataType::Decimal64, DataType::Decimal128], "i128")?;
        let most = decimal_max(column.attributes.precision);
        if !(-most..=most).contains(self) {
            let reason = format!("{self} has too many digits for {}", column.type_name());
            return Err(SchemaMismatch::of_column(&column.name, reason));
        }
        let width = column.ty.width().unwrap_or(size_of::<i128>());
        out.extend_from_slice(&self.to_le_bytes()[..width]);
        Ok(true)
    }
}

impl ToCell for str {
    fn to_cell(&self, column: &ColumnSchema, out: &mut Vec<u8>) -> Result<bool, SchemaMismatch> {
        check_type(column, &[DataType::String, DataType::Varchar], "string")?;
        let length = usize::from(column.attributes.length);
        if column.ty == DataType::Varchar && self.chars().count() > length {
            let reason = format!(
                "a string of {} characters does not fit {}",
                self.chars().count(),
                column.type_name()
            );
            return Err(SchemaMismatch::of_column(&column.name, reason));
        }
        out.extend_from_slice(self.as_bytes());
        Ok(true)
    }
}

impl ToCell for [u8] {
    fn to_cell(&self, column: &ColumnSchema, out: &mut Vec<u8>) -> Result<bool, SchemaMismatch> {
        check_type(column, &[DataType::Binary], "byte string")?;
        out.extend_from_slice(self);
        Ok(true)
    }
}

impl ToCell for String {
    fn to_cell(&self, column: &ColumnSchema, out: &mut Vec<u8>) -> Result<bool, SchemaMismatch> {
        self.as_str().to_cell(column, out)
    }
}

impl ToCell for Vec<u8> {
    fn to_cell(&self, column: &ColumnSchema, out: &mut Vec<u8>) -> Result<bool, SchemaMismatch> {
        self.as_slice().to_cell(column, out)
    }
}

impl<T: ToCell + ?Sized> ToCell for &T {
    fn to_cell(&self, column: &ColumnSchema, out: &mut Vec<u8>) -> Result<bool, SchemaMismatch> {
        (**self).to_cell(column, out)
    }
}

impl<T: ToCell> ToCell for Option<T> {
    fn to_cell(&self, column: &ColumnSchema, out: &mut Vec<u8>) -> Result<bool, SchemaMismatch> {
        self.as_ref().map_or(Ok(false), |value| value.to_cell(column, out))
    }
}
