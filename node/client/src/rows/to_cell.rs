//! Values to write: Rust types to the bytes of a cell.

use engine::schema::key::decimal_max;
use engine::schema::{ColumnSchema, DataType, PhysicalType, TypeParameters, ValueKind};

use super::super::error::SchemaMismatch;

/// Value that can be a cell of a row to write, or of a predicate.
pub trait ToCell {
    /// Appends the bytes of the cell. Returns false for NULL, and fails if the value does not fit the column.
    fn to_cell(&self, column: &ColumnSchema, out: &mut Vec<u8>) -> Result<bool, SchemaMismatch>;
}

/// Returns an error unless the column's type is one of those that hold such values.
fn check_type(
    column: &ColumnSchema,
    value: &str,
    fits: impl Fn(ValueKind, PhysicalType) -> bool,
) -> Result<(), SchemaMismatch> {
    let fits = |ty: &DataType| fits(ty.kind(), ty.physical());
    if fits(&column.ty) {
        return Ok(());
    }
    // Types that no table has are left out.
    let names = DataType::ALL.iter().filter(|ty| fits(ty) && !ty.words().is_empty()).map(|ty| ty.name());
    let names = names.collect::<Vec<_>>().join(", ");
    let reason = format!("{value} does not fit {}; it fits {names}", column.type_name());
    Err(SchemaMismatch::of_column(&column.name, reason))
}

macro_rules! fixed_widths {
    ($($rust:ty => [$($kind:ident $physical:ident),+]),* $(,)?) => {
        $(impl ToCell for $rust {
            fn to_cell(&self, column: &ColumnSchema, out: &mut Vec<u8>) -> Result<bool, SchemaMismatch> {
                check_type(column, stringify!($rust), |kind, physical| {
                    matches!((kind, physical), $((ValueKind::$kind, PhysicalType::$physical))|+)
                })?;
                out.extend_from_slice(&self.to_le_bytes());
                Ok(true)
            }
        })*
    };
}

fixed_widths! {
    i8 => [Plain Int8],
    i16 => [Plain Int16],
    i32 => [Plain Int32, Date Int32],
    i64 => [Plain Int64, Timestamp Int64],
    f32 => [Plain Float],
    f64 => [Plain Double],
}

impl ToCell for bool {
    fn to_cell(&self, column: &ColumnSchema, out: &mut Vec<u8>) -> Result<bool, SchemaMismatch> {
        check_type(column, "bool", |_, physical| physical == PhysicalType::Bool)?;
        out.push(u8::from(*self));
        Ok(true)
    }
}

/// An unscaled decimal: 12.34 in DECIMAL(4, 2) is 1234.
impl ToCell for i128 {
    fn to_cell(&self, column: &ColumnSchema, out: &mut Vec<u8>) -> Result<bool, SchemaMismatch> {
        check_type(column, "i128", |kind, _| kind == ValueKind::Decimal)?;
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
        check_type(column, "string", |kind, _| kind == ValueKind::Text)?;
        let has_length = column.ty.parameters() == TypeParameters::Length;
        let found = || self.chars().count();
        if has_length && found() > usize::from(column.attributes.length) {
            let found = found();
            let reason = format!("a string of {found} characters does not fit {}", column.type_name());
            return Err(SchemaMismatch::of_column(&column.name, reason));
        }
        out.extend_from_slice(self.as_bytes());
        Ok(true)
    }
}

impl ToCell for [u8] {
    fn to_cell(&self, column: &ColumnSchema, out: &mut Vec<u8>) -> Result<bool, SchemaMismatch> {
        let is_bytes = |kind, physical| (kind, physical) == (ValueKind::Plain, PhysicalType::Binary);
        check_type(column, "byte string", is_bytes)?;
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
