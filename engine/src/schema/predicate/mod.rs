//! Predicates on one column, evaluated over blocks.
//!
//! A scan returns the rows that satisfy all of its predicates. Comparisons never hold for NULL.
//! Floating-point numbers compare as Kudu compares them: neither less nor greater means equal, so -0.0 = 0.0,
//! and NaN equals everything.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::predicate_bloom::PredicateBloom;
use super::row_block::{Bitmap, ColumnBlock, ColumnValues};
use super::{DataType, PhysicalType};
use crate::error::{Error, Result};
use crate::ids::ColumnId;

/// Bytes of the smallest allocation.
const ALLOCATION_MIN: usize = 16;

/// A predicate on a column. Cells are little-endian for fixed widths, the bytes themselves for the rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Predicate {
    pub column: ColumnId,
    pub kind: PredicateKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PredicateKind {
    /// `lower <= cell < upper`
    Range {
        lower: Option<Vec<u8>>,
        upper: Option<Vec<u8>>,
    },
    Equal(Vec<u8>),
    /// Sorted as [`compare_cells`] sorts, without duplicates.
    InList(Vec<Vec<u8>>),
    IsNotNull,
    IsNull,
    /// In all of the filters and within the bounds.
    InBloom {
        filters: Vec<PredicateBloom>,
        lower: Option<Vec<u8>>,
        upper: Option<Vec<u8>>,
    },
}

/// Orders two cells of a type as numbers or bytes are ordered; not a total order for NaN.
///
/// Panics if a fixed-width cell has another width.
#[inline]
pub fn compare_cells(physical: PhysicalType, a: &[u8], b: &[u8]) -> Ordering {
    match physical {
        PhysicalType::Bool | PhysicalType::Uint8 => u8::read(a).order(u8::read(b)),
        PhysicalType::Int8 => i8::read(a).order(i8::read(b)),
        PhysicalType::Int16 => i16::read(a).order(i16::read(b)),
        PhysicalType::Int32 => i32::read(a).order(i32::read(b)),
        PhysicalType::Int64 => i64::read(a).order(i64::read(b)),
        PhysicalType::Int128 => i128::read(a).order(i128::read(b)),
        PhysicalType::Uint16 => u16::read(a).order(u16::read(b)),
        PhysicalType::Uint32 => u32::read(a).order(u32::read(b)),
        PhysicalType::Uint64 => u64::read(a).order(u64::read(b)),
        PhysicalType::Float => f32::read(a).order(f32::read(b)),
        PhysicalType::Double => f64::read(a).order(f64::read(b)),
        PhysicalType::Binary => a.cmp(b),
    }
}

fn is_nan(physical: PhysicalType, cell: &[u8]) -> bool {
    match physical {
        PhysicalType::Float => f32::read(cell).is_nan(),
        PhysicalType::Double => f64::read(cell).is_nan(),
        _ => false,
    }
}

/// A numeric cell type.
trait Number: Copy {
    const WIDTH: usize;
    fn read(cell: &[u8]) -> Self;
    fn less(self, other: Self) -> bool;

    #[inline]
    fn order(self, other: Self) -> Ordering {
        if self.less(other) {
            Ordering::Less
        } else if other.less(self) {
            Ordering::Greater
        } else {
            Ordering::Equal
        }
    }

    #[inline]
    fn same(self, other: Self) -> bool {
        !self.less(other) & !other.less(self)
    }
}

macro_rules! numbers {
    ($($ty:ty),*) => {
        $(impl Number for $ty {
            const WIDTH: usize = size_of::<$ty>();

            #[inline]
            fn read(cell: &[u8]) -> $ty {
                <$ty>::from_le_bytes(cell.try_into().expect("a fixed-width cell has its type's width"))
            }

            #[inline]
            fn less(self, other: $ty) -> bool {
                self < other
            }
        })*
    };
}

numbers!(i8, i16, i32, i64, i128, u8, u16, u32, u64, f32, f64);

impl Predicate {
    pub fn new(column: ColumnId, kind: PredicateKind) -> Predicate {
        Predicate { column, kind }
    }

    /// Returns `Invalid` unless every value has the width of the type.
    pub fn check(&self, ty: DataType) -> Result<()> {
        self.kind.check(ty)
    }

    /// Returns the memory that the predicate holds, about.
    pub fn byte_size(&self) -> usize {
        self.kind.byte_size()
    }

    /// Clears the bits of `selection` whose rows don't satisfy the predicate. `block` holds the predicate's
    /// column.
    pub fn evaluate(&self, ty: DataType, block: &ColumnBlock, selection: &mut Bitmap) {
        self.kind.evaluate(ty.physical(), block, selection);
    }

    /// Returns true if one cell satisfies the predicate; `None` is NULL.
    pub fn matches_cell(&self, ty: DataType, cell: Option<&[u8]>) -> bool {
        self.kind.matches_cell(ty.physical(), cell)
    }
}

impl PredicateKind {
    /// Creates an IN list with its values in the order that evaluation relies on.
    ///
    /// A NaN equals everything: it has no place in an order, and with it every cell is in the list.
    pub fn in_list(ty: DataType, mut values: Vec<Vec<u8>>) -> PredicateKind {
        let physical = ty.physical();
        if let Some(nan) = values.iter().position(|value| is_nan(physical, value)) {
            return PredicateKind::InList(vec![values.swap_remove(nan)]);
        }
        values.sort_by(|a, b| compare_cells(physical, a, b));
        values.dedup_by(|a, b| compare_cells(physical, a, b).is_eq());
        PredicateKind::InList(values)
    }

    fn check(&self, ty: DataType) -> Result<()> {
        let Some(width) = ty.width() else { return Ok(()) };
        let bad = self.values().find(|value| value.len() != width);
        bad.map_or(Ok(()), |value| {
            let (name, len) = (ty.name(), value.len());
            Err(Error::invalid(format!("a predicate's {name} value has {width} bytes, not {len}")))
        })
    }

    fn values(&self) -> impl Iterator<Item = &Vec<u8>> {
        let (lower, upper, list): (_, _, &[Vec<u8>]) = match self {
            PredicateKind::Range { lower, upper } | PredicateKind::InBloom { lower, upper, .. } => {
                (lower.as_ref(), upper.as_ref(), &[])
            }
            PredicateKind::Equal(value) => (Some(value), None, &[]),
            PredicateKind::InList(values) => (None, None, values),
            PredicateKind::IsNotNull | PredicateKind::IsNull => (None, None, &[]),
        };
        lower.into_iter().chain(upper).chain(list)
    }

    pub fn matches_cell(&self, physical: PhysicalType, cell: Option<&[u8]>) -> bool {
        let Some(cell) = cell else { return matches!(self, PredicateKind::IsNull) };
        match self {
            PredicateKind::Range { lower, upper } => within(physical, cell, lower, upper),
            PredicateKind::Equal(value) => compare_cells(physical, cell, value).is_eq(),
            PredicateKind::InList(values) => {
                values.binary_search_by(|value| compare_cells(physical, value, cell)).is_ok()
            }
            PredicateKind::IsNotNull => true,
            PredicateKind::IsNull => false,
            PredicateKind::InBloom { filters, lower, upper } => {
                within(physical, cell, lower, upper)
                    && filters.iter().all(|filter| filter.contains(Some(cell)))
            }
        }
    }

    fn evaluate(&self, physical: PhysicalType, block: &ColumnBlock, selection: &mut Bitmap) {
        if let PredicateKind::IsNull = self {
            match &block.validity {
                Some(valid) => selection.and_not(valid),
                None => selection.clear(),
            }
            return;
        }
        if let Some(valid) = &block.validity {
            selection.and(valid);
        }
        match (self, &block.values) {
            (PredicateKind::IsNotNull, _) => {}
            (_, ColumnValues::Fixed { bytes, .. }) => self.evaluate_fixed(physical, bytes, selection),
            (_, ColumnValues::Var { offsets, bytes }) => self.evaluate_var(offsets, bytes, selection),
        }
    }

    fn evaluate_fixed(&self, physical: PhysicalType, bytes: &[u8], selection: &mut Bitmap) {
        match physical {
            PhysicalType::Bool | PhysicalType::Uint8 => self.evaluate_numbers::<u8>(bytes, selection),
            PhysicalType::Int8 => self.evaluate_numbers::<i8>(bytes, selection),
            PhysicalType::Int16 => self.evaluate_numbers::<i16>(bytes, selection),
            PhysicalType::Int32 => self.evaluate_numbers::<i32>(bytes, selection),
            PhysicalType::Int64 => self.evaluate_numbers::<i64>(bytes, selection),
            PhysicalType::Int128 => self.evaluate_numbers::<i128>(bytes, selection),
            PhysicalType::Uint16 => self.evaluate_numbers::<u16>(bytes, selection),
            PhysicalType::Uint32 => self.evaluate_numbers::<u32>(bytes, selection),
            PhysicalType::Uint64 => self.evaluate_numbers::<u64>(bytes, selection),
            PhysicalType::Float => self.evaluate_numbers::<f32>(bytes, selection),
            PhysicalType::Double => self.evaluate_numbers::<f64>(bytes, selection),
            PhysicalType::Binary => unreachable!("cells of any length are not of fixed width"),
        }
    }

    fn evaluate_numbers<N: Number>(&self, bytes: &[u8], selection: &mut Bitmap) {
        let at = |i: usize| N::read(&bytes[i * N::WIDTH..(i + 1) * N::WIDTH]);
        let bound = |bound: &Option<Vec<u8>>| bound.as_deref().map(N::read);
        match self {
            PredicateKind::Range { lower, upper } => match (bound(lower), bound(upper)) {
                (Some(low), Some(high)) => selection.retain(|i| !at(i).less(low) & at(i).less(high)),
                (Some(low), None) => selection.retain(|i| !at(i).less(low)),
                (None, Some(high)) => selection.retain(|i| at(i).less(high)),
                (None, None) => {}
            },
            PredicateKind::Equal(value) => {
                let value = N::read(value);
                selection.retain(|i| at(i).same(value));
            }
            PredicateKind::InList(values) => {
                let values: Vec<N> = values.iter().map(|value| N::read(value)).collect();
                selection.retain_some(|i| values.binary_search_by(|value| value.order(at(i))).is_ok());
            }
            PredicateKind::InBloom { filters, lower, upper } => {
                let (low, high) = (bound(lower), bound(upper));
                selection.retain_some(|i| {
                    let cell = &bytes[i * N::WIDTH..(i + 1) * N::WIDTH];
                    !low.is_some_and(|low| at(i).less(low))
                        && high.is_none_or(|high| at(i).less(high))
                        && filters.iter().all(|filter| filter.contains(Some(cell)))
                });
            }
            PredicateKind::IsNotNull | PredicateKind::IsNull => {}
        }
    }

    fn byte_size(&self) -> usize {
        // A value of a few bytes takes the least allocation beside its pointers.
        let value = |value: &Vec<u8>| size_of::<Vec<u8>>() + value.len().max(ALLOCATION_MIN);
        let bounds = |lower: &Option<Vec<u8>>, upper: &Option<Vec<u8>>| {
            lower.iter().chain(upper).map(value).sum::<usize>()
        };
        match self {
            PredicateKind::Range { lower, upper } => bounds(lower, upper),
            PredicateKind::Equal(equal) => value(equal),
            PredicateKind::InList(values) => values.iter().map(value).sum(),
            PredicateKind::IsNotNull | PredicateKind::IsNull => 0,
            PredicateKind::InBloom { filters, lower, upper } => {
                filters.iter().map(PredicateBloom::byte_size).sum::<usize>() + bounds(lower, upper)
            }
        }
    }

    fn evaluate_var(&self, offsets: &[u32], bytes: &[u8], selection: &mut Bitmap) {
        let at = |i: usize| &bytes[offsets[i] as usize..offsets[i + 1] as usize];
        if let PredicateKind::Equal(value) = self {
            return selection.retain_some(|i| at(i) == value);
        }
        selection.retain_some(|i| self.matches_cell(PhysicalType::Binary, Some(at(i))));
    }
}

fn within(physical: PhysicalType, cell: &[u8], lower: &Option<Vec<u8>>, upper: &Option<Vec<u8>>) -> bool {
    let above = lower.as_ref().is_none_or(|lower| compare_cells(physical, cell, lower).is_ge());
    above && upper.as_ref().is_none_or(|upper| compare_cells(physical, cell, upper).is_lt())
}

#[cfg(test)]
mod tests;
