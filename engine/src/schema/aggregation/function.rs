//! Functions of the cells of a group, and the types of their results.

use crate::schema::{DataType, PhysicalType, TypeParameters, ValueKind};

/// Function that makes one value of the cells of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AggregateFunction {
    /// Number of cells that are not NULL; of rows, without a column.
    Count,
    /// Sum as INT64, DECIMAL of 38 digits or DOUBLE, by the kind of the column.
    Sum,
    /// Sum of a column of numbers as DOUBLE.
    SumAsDouble,
    Min,
    Max,
}

impl AggregateFunction {
    pub const ALL: [AggregateFunction; 5] = [
        AggregateFunction::Count,
        AggregateFunction::Sum,
        AggregateFunction::SumAsDouble,
        AggregateFunction::Min,
        AggregateFunction::Max,
    ];

    /// Returns the name that SQL has for the function.
    pub fn name(self) -> &'static str {
        match self {
            AggregateFunction::Count => "count",
            AggregateFunction::Sum | AggregateFunction::SumAsDouble => "sum",
            AggregateFunction::Min => "min",
            AggregateFunction::Max => "max",
        }
    }

    /// Returns the type of the result and `true` if it may be NULL; `None` if the function has none for the type.
    pub fn result(self, of: Option<DataType>) -> Option<(DataType, bool)> {
        let Some(ty) = of else {
            return (self == AggregateFunction::Count).then_some((DataType::Int64, false));
        };
        let is_number = is_number(ty);
        let result = match self {
            AggregateFunction::Count => return Some((DataType::Int64, false)),
            AggregateFunction::Sum => match ty.parameters() {
                TypeParameters::Digits(_) => DataType::Decimal128,
                _ if is_float(ty) => DataType::Double,
                _ if is_number => DataType::Int64,
                _ => return None,
            },
            AggregateFunction::SumAsDouble if is_number || is_float(ty) => DataType::Double,
            AggregateFunction::Min | AggregateFunction::Max if is_ordered(ty) => ty,
            _ => return None,
        };
        Some((result, true))
    }
}

pub(super) fn is_float(ty: DataType) -> bool {
    matches!(ty, DataType::Float | DataType::Double)
}

/// Returns true for the integers that tables have.
fn is_number(ty: DataType) -> bool {
    matches!(ty, DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64)
}

/// Returns true if all SQL engines agree about order and equality of the type's cells.
pub(super) fn is_ordered(ty: DataType) -> bool {
    let of_tables = !ty.words().is_empty();
    of_tables && !is_float(ty)
}

/// Returns true if the cells of the type are numbers of an integer type, decimals, dates and times among them.
pub(super) fn is_integer(physical: PhysicalType) -> bool {
    !matches!(physical, PhysicalType::Float | PhysicalType::Double | PhysicalType::Binary)
}

/// Returns true if the type's cells are decimals.
pub(super) fn is_decimal(ty: DataType) -> bool {
    ty.kind() == ValueKind::Decimal
}
