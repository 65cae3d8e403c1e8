//! Range bounds as clients request them, and range partitions as tables store them.
//!
//! A bound names values for some of the range columns. Columns not named after one that is named count as
//! their type's least value; a bound that names none is unbounded. Clients may give exclusive lower and
//! inclusive upper bounds; here they become inclusive lower and exclusive upper ones, by adding one to the
//! key.

use serde::{Deserialize, Serialize};

use super::key::{encode_cell, increment_cell, integer_range, min_cell};
use super::row_ops::ClientColumn;
use super::{ColumnSchema, DataType, Schema};
use crate::error::{Error, Result};
use crate::ids::ColumnId;

/// Range keys from `lower` (inclusive) to `upper` (exclusive); empty is unbounded.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct PartitionRange {
    pub lower: Vec<u8>,
    pub upper: Vec<u8>,
}

impl PartitionRange {
    /// Creates a range. Returns `Invalid` if it contains no key.
    pub fn new(lower: Vec<u8>, upper: Vec<u8>) -> Result<PartitionRange> {
        if !upper.is_empty() && lower >= upper {
            return Err(Error::invalid("range partition lower bound must be less than the upper bound"));
        }
        Ok(PartitionRange { lower, upper })
    }

    pub fn contains(&self, range_key: &[u8]) -> bool {
        self.lower.as_slice() <= range_key && (self.upper.is_empty() || range_key < self.upper.as_slice())
    }

    pub fn overlaps(&self, other: &PartitionRange) -> bool {
        let below = |a: &PartitionRange, b: &PartitionRange| !a.upper.is_empty() && a.upper <= b.lower;
        !below(self, other) && !below(other, self)
    }

    /// Returns the keys that both ranges have; `None` if there are none.
    pub fn intersection(&self, other: &PartitionRange) -> Option<PartitionRange> {
        let lower = self.lower.clone().max(other.lower.clone());
        let upper = match (self.upper.is_empty(), other.upper.is_empty()) {
            (true, _) => other.upper.clone(),
            (_, true) => self.upper.clone(),
            _ => self.upper.clone().min(other.upper.clone()),
        };
        PartitionRange::new(lower, upper).ok()
    }
}

/// Kind of a row of a create or alter request; the numbers are Kudu's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RangeOpKind {
    Split = 4,
    Lower = 6,
    Upper = 7,
    ExclusiveLower = 8,
    InclusiveUpper = 9,
}

/// A split row or a bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeOp {
    pub kind: RangeOpKind,
    /// The columns named and their cells.
    pub cells: Vec<(ColumnId, Vec<u8>)>,
}

impl RangeOpKind {
    fn from_number(number: u8) -> Option<RangeOpKind> {
        Some(match number {
            4 => RangeOpKind::Split,
            6 => RangeOpKind::Lower,
            7 => RangeOpKind::Upper,
            8 => RangeOpKind::ExclusiveLower,
            9 => RangeOpKind::InclusiveUpper,
            _ => return None,
        })
    }
}

/// Limits of the operations of one request. Cells of many operations may name the same bytes, so that a small request
/// could ask for gigabytes of copies.
#[derive(Debug, Clone, Copy)]
pub struct RangeOpLimits {
    pub count: usize,
    /// Bytes of all cells.
    pub cell_bytes: usize,
}

impl RangeOpLimits {
    /// Limits of one range's two bounds. A range key is no longer than a primary key by far.
    pub const ONE_RANGE: RangeOpLimits = RangeOpLimits { count: 2, cell_bytes: 4 << 20 };

    /// Returns `Invalid` for operations after these, or if these have too many bytes.
    fn check(self, count: usize, cell_bytes: usize) -> Result<()> {
        if count > self.count {
            let message = format!("more than {} split rows and range bounds in one place", self.count);
            return Err(Error::invalid(message));
        }
        if cell_bytes > self.cell_bytes {
            let message = format!("split rows and range bounds of more than {} bytes", self.cell_bytes);
            return Err(Error::invalid(message));
        }
        Ok(())
    }
}

/// Decodes the rows of a create or alter request. `client` are the columns of the request's schema, bound by name to
/// the table's. Returns `Corrupt` for bytes that don't decode, `Invalid` for other operations, for NULL, and beyond the
/// limits.
pub fn decode_range_ops(
    client: &[ClientColumn],
    rows: &[u8],
    indirect: &[u8],
    limits: RangeOpLimits,
) -> Result<Vec<RangeOp>> {
    let bitmap = client.len().div_ceil(8);
    let has_nulls = client.iter().any(|column| column.nullable);
    let mut rest = rows;
    let (mut ops, mut cell_bytes) = (Vec::new(), 0);
    while let Some(number) = take(&mut rest, 1)?.first().copied() {
        let kind = RangeOpKind::from_number(number)
            .ok_or_else(|| Error::invalid(format!("row operation type {number} is no range bound")))?;
        limits.check(ops.len() + 1, cell_bytes)?;
        let is_set = take_exactly(&mut rest, bitmap)?;
        let nulls = take_exactly(&mut rest, if has_nulls { bitmap } else { 0 })?;
        let mut cells = Vec::new();
        for (i, column) in client.iter().enumerate() {
            let bit = |bitmap: &[u8]| bitmap.get(i / 8).is_some_and(|byte| byte >> (i % 8) & 1 == 1);
            if !bit(is_set) {
                continue;
            }
            if bit(nulls) {
                return Err(Error::invalid("a range bound may not be NULL"));
            }
            let cell = take_cell(column.ty, &mut rest, indirect)?;
            cell_bytes += cell.len();
            limits.check(ops.len() + 1, cell_bytes)?;
            cells.push((column.id, cell.to_vec()));
        }
        ops.push(RangeOp { kind, cells });
    }
    Ok(ops)
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8]> {
    let len = len.min(rest.len());
    take_exactly(rest, len)
}

fn take_exactly<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8]> {
    let short = || Error::corrupt(format!("range bounds end {} bytes too early", len - rest.len()));
    let (taken, left) = rest.split_at_checked(len).ok_or_else(short)?;
    *rest = left;
    Ok(taken)
}

fn take_cell<'a>(ty: DataType, rest: &mut &'a [u8], indirect: &'a [u8]) -> Result<&'a [u8]> {
    if let Some(width) = ty.width() {
        return take_exactly(rest, width);
    }
    let slot = take_exactly(rest, 16)?;
    let number = |at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().expect("eight bytes"));
    let (offset, len) = (number(0), number(8));
    let cell = usize::try_from(offset).ok().zip(offset.checked_add(len)).and_then(|(start, end)| {
        let end = usize::try_from(end).ok()?;
        indirect.get(start..end)
    });
    let outside =
        || Error::corrupt(format!("a range bound at {offset} of {len} bytes lies outside the data"));
    cell.ok_or_else(outside)
}

/// Returns the splits and ranges of a request's rows: bounds come in pairs, lower then upper.
///
/// Returns `Invalid` for bounds out of order, columns that are not range columns, and ranges without a key.
pub fn ranges_of_ops(
    schema: &Schema,
    range_columns: &[ColumnId],
    ops: &[RangeOp],
) -> Result<(Vec<Vec<u8>>, Vec<PartitionRange>)> {
    let columns = range_schema(schema, range_columns)?;
    let mut splits = Vec::new();
    let mut ranges = Vec::new();
    let mut lower = None;
    for op in ops {
        let key = bound_key(&columns, op)?;
        match (op.kind, lower.take()) {
            (RangeOpKind::Split, None) => {
                if key.is_empty() {
                    return Err(Error::invalid(
                        "split rows must contain a value for at least one range column",
                    ));
                }
                splits.push(key);
            }
            (RangeOpKind::Lower | RangeOpKind::ExclusiveLower, None) => lower = Some(key),
            (RangeOpKind::Upper | RangeOpKind::InclusiveUpper, Some(lower)) => {
                ranges.push(PartitionRange::new(lower, key)?);
            }
            (_, None) => return Err(Error::invalid("missing lower range bound in request")),
            (_, Some(_)) => return Err(Error::invalid("missing upper range bound in request")),
        }
    }
    if lower.is_some() {
        return Err(Error::invalid("missing upper range bound in request"));
    }
    Ok((splits, ranges))
}

/// Returns the range columns, in order.
pub(super) fn range_schema(schema: &Schema, ids: &[ColumnId]) -> Result<Vec<ColumnSchema>> {
    let column = |id: &ColumnId| {
        let missing = || Error::invalid(format!("range column {} does not exist", id.0));
        schema.by_id(*id).cloned().ok_or_else(missing)
    };
    ids.iter().map(column).collect()
}

/// Returns the range key of a bound, made inclusive below and exclusive above; empty if it is unbounded.
fn bound_key(columns: &[ColumnSchema], op: &RangeOp) -> Result<Vec<u8>> {
    let stray = |(id, _): &&(ColumnId, Vec<u8>)| !columns.iter().any(|column| column.id == *id);
    if op.cells.iter().any(|cell| stray(&cell)) {
        return Err(Error::invalid("split rows and range bounds may only contain values for range columns"));
    }
    let named = |column: &ColumnSchema| op.cells.iter().find(|(id, _)| *id == column.id);
    let mut cells: Vec<Option<Vec<u8>>> =
        columns.iter().map(|column| named(column).map(|(_, cell)| cell.clone())).collect();
    let names_none = cells.iter().all(Option::is_none);
    let incremented = match op.kind {
        RangeOpKind::ExclusiveLower => true,
        RangeOpKind::InclusiveUpper => !names_none,
        _ => false,
    };
    if incremented {
        if !increment(columns, &mut cells) {
            return match op.kind {
                RangeOpKind::InclusiveUpper => Ok(Vec::new()),
                _ => Err(Error::invalid("exclusive range lower bound is the greatest key there is")),
            };
        }
    } else if names_none {
        return Ok(Vec::new());
    }
    let mut key = Vec::new();
    for (i, (column, cell)) in columns.iter().zip(cells).enumerate() {
        let cell = cell.unwrap_or_else(|| min_cell(column.ty));
        encode_cell(column.ty.physical(), &cell, i + 1 == columns.len(), &mut key);
    }
    Ok(key)
}

/// Increments a key, from its last column leftwards. Returns false if it is the greatest.
pub(super) fn increment(columns: &[ColumnSchema], cells: &mut [Option<Vec<u8>>]) -> bool {
    for (column, cell) in columns.iter().zip(cells).rev() {
        let mut next = cell.take().unwrap_or_else(|| least_value(column));
        if increment_cell(column.ty, column.attributes, &mut next) {
            *cell = Some(next);
            return true;
        }
    }
    false
}

/// Returns the least value a client may write; for DECIMAL that is not the least value of the cell.
fn least_value(column: &ColumnSchema) -> Vec<u8> {
    match (column.ty.width(), integer_range(column.ty, column.attributes)) {
        (Some(width), Some((least, _))) => least.to_le_bytes()[..width].to_vec(),
        _ => min_cell(column.ty),
    }
}

#[cfg(test)]
mod tests;
