//! Zone maps: the smallest and the largest cell of a page, with which scans skip pages.

use std::cmp::Ordering;

use super::key_prefix::key_prefix;
use super::page_index::PageEntry;
use crate::schema::PhysicalType;
use crate::schema::predicate::{Predicate, PredicateKind, compare_cells};
use crate::schema::row_block::{ColumnBlock, ColumnValues};

/// Longer bounds are shortened. The first bytes nearly always suffice for a predicate to tell pages apart.
const BOUND_BYTES_MAX: usize = 64;

/// Returns a lower and an upper bound of the cells that are not NULL.
///
/// `exact` keeps bounds whole. Returns `None` if all cells are NULL, or if one is a NaN, which no order contains.
pub fn bounds(block: &ColumnBlock, physical: PhysicalType, exact: bool) -> Option<(Vec<u8>, Vec<u8>)> {
    match &block.values {
        ColumnValues::Fixed { bytes, .. } => fixed_bounds(bytes, block, physical),
        ColumnValues::Var { .. } => {
            let (low, high) = var_bounds((0..block.len()).filter_map(|row| block.cell(row)))?;
            if exact {
                return Some((low.to_vec(), high.to_vec()));
            }
            Some((low[..low.len().min(BOUND_BYTES_MAX)].to_vec(), short_upper_bound(high)?))
        }
    }
}

/// Returns the smallest and the largest of some strings. The first eight bytes as an integer decide most comparisons.
fn var_bounds<'a>(mut cells: impl Iterator<Item = &'a [u8]>) -> Option<(&'a [u8], &'a [u8])> {
    let first = cells.next()?;
    let (mut low, mut high) = ((key_prefix(first), first), (key_prefix(first), first));
    for cell in cells {
        let prefix = key_prefix(cell);
        if prefix <= low.0 && (prefix, cell) < low {
            low = (prefix, cell);
        }
        if prefix >= high.0 && (prefix, cell) > high {
            high = (prefix, cell);
        }
    }
    Some((low.1, high.1))
}

/// Returns a short bound that is not below `high`; `None` if there is none.
fn short_upper_bound(high: &[u8]) -> Option<Vec<u8>> {
    if high.len() <= BOUND_BYTES_MAX {
        return Some(high.to_vec());
    }
    let mut bound = high[..BOUND_BYTES_MAX].to_vec();
    while let Some(last) = bound.last_mut() {
        if *last < 0xff {
            *last += 1;
            return Some(bound);
        }
        bound.pop();
    }
    None
}

fn fixed_bounds(bytes: &[u8], block: &ColumnBlock, physical: PhysicalType) -> Option<(Vec<u8>, Vec<u8>)> {
    macro_rules! scan {
        ($ty:ty) => {
            scan::<$ty, { size_of::<$ty>() }>(bytes, block, <$ty>::from_le_bytes)
                .map(|(low, high)| (low.to_le_bytes().to_vec(), high.to_le_bytes().to_vec()))
        };
    }
    match physical {
        PhysicalType::Bool | PhysicalType::Uint8 => scan!(u8),
        PhysicalType::Int8 => scan!(i8),
        PhysicalType::Int16 => scan!(i16),
        PhysicalType::Int32 => scan!(i32),
        PhysicalType::Int64 => scan!(i64),
        PhysicalType::Int128 => scan!(i128),
        PhysicalType::Uint16 => scan!(u16),
        PhysicalType::Uint32 => scan!(u32),
        PhysicalType::Uint64 => scan!(u64),
        PhysicalType::Float => scan!(f32),
        PhysicalType::Double => scan!(f64),
        PhysicalType::Binary => None,
    }
}

/// Finds both bounds in one pass. The loop without NULLs has no branch in it. A NaN differs from itself and ends in
/// `None`.
fn scan<T: PartialOrd + Copy, const W: usize>(
    bytes: &[u8],
    block: &ColumnBlock,
    load: impl Fn([u8; W]) -> T,
) -> Option<(T, T)> {
    let (cells, _) = bytes.as_chunks::<W>();
    #[allow(clippy::eq_op)] // Only a NaN is not equal to itself.
    let widen = |(low, high, sound): (T, T, bool), value: T| {
        let low = if value < low { value } else { low };
        let high = if value > high { value } else { high };
        (low, high, sound & (value == value))
    };
    let (low, high, sound) = match &block.validity {
        Some(valid) if !valid.all() => {
            let first = load(cells[valid.ones().next()?]);
            valid.ones().fold((first, first, true), |seen, row| widen(seen, load(cells[row])))
        }
        _ => {
            let first = load(*cells.first()?);
            cells.iter().fold((first, first, true), |seen, cell| widen(seen, load(*cell)))
        }
    };
    sound.then_some((low, high))
}

/// Returns true if a cell of the page can satisfy the predicate, as far as the zone map tells.
pub fn may_match(predicate: &Predicate, physical: PhysicalType, page: &PageEntry) -> bool {
    let cells = page.rows - page.nulls;
    match &predicate.kind {
        PredicateKind::IsNull => return page.nulls > 0,
        _ if cells == 0 => return false,
        _ => {}
    }
    let Some((low, high)) = &page.bounds else { return true };
    let reaches = |lower: &Option<Vec<u8>>| {
        lower.as_ref().is_none_or(|lower| compare_cells(physical, high, lower) != Ordering::Less)
    };
    let starts_below = |upper: &Option<Vec<u8>>| {
        // A cell equal to the bound does not match. A NaN bound equals everything, so the page is read.
        upper.as_ref().is_none_or(|upper| compare_cells(physical, low, upper) == Ordering::Less)
    };
    let within = |value: &[u8]| {
        compare_cells(physical, low, value) != Ordering::Greater
            && compare_cells(physical, value, high) != Ordering::Greater
    };
    match &predicate.kind {
        PredicateKind::Range { lower, upper } | PredicateKind::InBloom { lower, upper, .. } => {
            reaches(lower) && starts_below(upper)
        }
        PredicateKind::Equal(value) => within(value),
        PredicateKind::InList(values) => values.iter().any(|value| within(value)),
        PredicateKind::IsNotNull | PredicateKind::IsNull => true,
    }
}
