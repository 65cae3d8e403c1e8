//! The order-preserving encoding of keys: encoded keys compare as the rows do.
//!
//! ```text
//! signed integers    big-endian, sign bit flipped
//! unsigned integers  big-endian
//! bytes, last        as they are
//! bytes, not last    every 00 becomes 00 01, then the terminator 00 00
//! ```
//!
//! "Last" is relative to the list of columns encoded: the primary key, the range columns, or the columns of
//! one hash dimension. Primary keys, range keys and hash inputs all use this encoding, on the wire too.

use super::{ColumnSchema, DataType, PhysicalType, TypeAttributes, ValueKind};
use crate::error::{Error, Result};

fn array<const N: usize>(cell: &[u8]) -> [u8; N] {
    cell.try_into().expect("a fixed-width cell has its type's width")
}

/// Appends one cell of a key; `last` is defined in the module header.
///
/// Panics if a fixed-width cell has another width, or the type may not be in a key.
#[inline]
pub fn encode_cell(physical: PhysicalType, cell: &[u8], last: bool, out: &mut Vec<u8>) {
    match physical {
        PhysicalType::Int8 => out.push(cell[0] ^ 0x80),
        PhysicalType::Uint8 | PhysicalType::Bool => out.push(cell[0]),
        PhysicalType::Int16 => {
            out.extend_from_slice(&(u16::from_le_bytes(array(cell)) ^ 1 << 15).to_be_bytes())
        }
        PhysicalType::Uint16 => out.extend_from_slice(&u16::from_le_bytes(array(cell)).to_be_bytes()),
        PhysicalType::Int32 => {
            out.extend_from_slice(&(u32::from_le_bytes(array(cell)) ^ 1 << 31).to_be_bytes())
        }
        PhysicalType::Uint32 => out.extend_from_slice(&u32::from_le_bytes(array(cell)).to_be_bytes()),
        PhysicalType::Int64 => {
            out.extend_from_slice(&(u64::from_le_bytes(array(cell)) ^ 1 << 63).to_be_bytes())
        }
        PhysicalType::Uint64 => out.extend_from_slice(&u64::from_le_bytes(array(cell)).to_be_bytes()),
        PhysicalType::Int128 => {
            out.extend_from_slice(&(u128::from_le_bytes(array(cell)) ^ 1 << 127).to_be_bytes());
        }
        PhysicalType::Binary if last => out.extend_from_slice(cell),
        PhysicalType::Binary => encode_terminated(cell, out),
        PhysicalType::Float | PhysicalType::Double => {
            unreachable!("no schema has a FLOAT or DOUBLE in a key")
        }
    }
}

fn encode_terminated(cell: &[u8], out: &mut Vec<u8>) {
    for (i, run) in cell.split(|byte| *byte == 0).enumerate() {
        if i > 0 {
            out.extend_from_slice(&[0, 1]);
        }
        out.extend_from_slice(run);
    }
    out.extend_from_slice(&[0, 0]);
}

/// Appends the key made of `columns`; `cell(i)` returns the bytes of the `i`-th of them.
#[inline]
pub fn encode_key<'a>(columns: &[ColumnSchema], cell: impl Fn(usize) -> &'a [u8], out: &mut Vec<u8>) {
    for (i, column) in columns.iter().enumerate() {
        encode_cell(column.ty.physical(), cell(i), i + 1 == columns.len(), out);
    }
}

/// Decodes the cells of an encoded key. Returns `Invalid` unless `bytes` is exactly one key of these columns.
pub fn decode_key(columns: &[ColumnSchema], bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
    let (cells, rest) = decode_key_prefix(columns, bytes)?;
    if cells.len() != columns.len() || !rest.is_empty() {
        let (want, got) = (columns.len(), cells.len());
        return Err(Error::invalid(format!(
            "not an encoded key: {got} of {want} columns and {} bytes left over",
            rest.len()
        )));
    }
    Ok(cells)
}

/// Decodes as many whole cells as `bytes` holds, and returns them with the rest: bounds of scans may be truncated.
pub fn decode_key_prefix<'a>(
    columns: &[ColumnSchema],
    mut bytes: &'a [u8],
) -> Result<(Vec<Vec<u8>>, &'a [u8])> {
    let mut cells = Vec::with_capacity(columns.len());
    for (i, column) in columns.iter().enumerate() {
        let last = i + 1 == columns.len();
        match decode_cell(column.ty.physical(), last, bytes)? {
            Some((cell, rest)) => {
                cells.push(cell);
                bytes = rest;
            }
            None => break,
        }
    }
    Ok((cells, bytes))
}

/// Decodes one cell and returns it with the bytes after it; `None` if the bytes end first.
fn decode_cell(physical: PhysicalType, last: bool, bytes: &[u8]) -> Result<Option<(Vec<u8>, &[u8])>> {
    let Some(width) = physical.width() else {
        if last {
            return Ok(Some((bytes.to_vec(), &[])));
        }
        return decode_terminated(bytes);
    };
    let Some((cell, rest)) = bytes.split_at_checked(width) else { return Ok(None) };
    let mut cell = cell.to_vec();
    match physical {
        PhysicalType::Float | PhysicalType::Double => {
            return Err(Error::invalid("a key has no FLOAT or DOUBLE"));
        }
        PhysicalType::Uint8
        | PhysicalType::Uint16
        | PhysicalType::Uint32
        | PhysicalType::Uint64
        | PhysicalType::Bool => {}
        _ => cell[0] ^= 0x80,
    }
    cell.reverse();
    Ok(Some((cell, rest)))
}

fn decode_terminated(bytes: &[u8]) -> Result<Option<(Vec<u8>, &[u8])>> {
    let mut cell = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        match (bytes[at], bytes.get(at + 1)) {
            (0, Some(0)) => return Ok(Some((cell, &bytes[at + 2..]))),
            (0, Some(1)) => {
                cell.push(0);
                at += 2;
            }
            (0, Some(other)) => {
                let message = format!("not an encoded key: byte 00 is followed by {other:02x}");
                return Err(Error::invalid(message));
            }
            (0, None) => return Ok(None),
            (byte, _) => {
                cell.push(byte);
                at += 1;
            }
        }
    }
    Ok(None)
}

/// Returns the first key after `key` and all keys that begin with it; `None` if there is none.
pub fn prefix_successor(key: &[u8]) -> Option<Vec<u8>> {
    let mut key = key.to_vec();
    while let Some(last) = key.pop() {
        if last < 0xff {
            key.push(last + 1);
            return Some(key);
        }
    }
    None
}

/// Returns the value of a range key's column that is not given: the smallest of its type.
pub fn min_cell(ty: DataType) -> Vec<u8> {
    match ty.kind() {
        ValueKind::Date => DATE_MIN.to_le_bytes().to_vec(),
        ValueKind::Plain | ValueKind::Text | ValueKind::Decimal | ValueKind::Timestamp => match ty.physical()
        {
            PhysicalType::Int8 => i8::MIN.to_le_bytes().to_vec(),
            PhysicalType::Int16 => i16::MIN.to_le_bytes().to_vec(),
            PhysicalType::Int32 => i32::MIN.to_le_bytes().to_vec(),
            PhysicalType::Int64 => i64::MIN.to_le_bytes().to_vec(),
            PhysicalType::Int128 => i128::MIN.to_le_bytes().to_vec(),
            physical => vec![0; physical.width().unwrap_or(0)],
        },
    }
}

/// Days from 1970-01-01 to 0001-01-01, the first DATE.
pub const DATE_MIN: i32 = -719_162;
/// Days from 1970-01-01 to 9999-12-31, the last DATE.
pub const DATE_MAX: i32 = 2_932_896;

/// Returns the greatest unscaled value of a DECIMAL of this precision (1 to 38 digits).
pub fn decimal_max(precision: u8) -> i128 {
    10i128.pow(precision.clamp(1, 38) as u32) - 1
}

/// Returns the value of a cell of an integer type; `None` for other types or a wrong width.
pub fn cell_to_i128(physical: PhysicalType, cell: &[u8]) -> Option<i128> {
    if physical.width() != Some(cell.len()) {
        return None;
    }
    Some(match physical {
        PhysicalType::Int8 => i8::from_le_bytes(array(cell)) as i128,
        PhysicalType::Int16 => i16::from_le_bytes(array(cell)) as i128,
        PhysicalType::Int32 => i32::from_le_bytes(array(cell)) as i128,
        PhysicalType::Int64 => i64::from_le_bytes(array(cell)) as i128,
        PhysicalType::Int128 => i128::from_le_bytes(array(cell)),
        PhysicalType::Uint8 | PhysicalType::Bool => cell[0] as i128,
        PhysicalType::Uint16 => u16::from_le_bytes(array(cell)) as i128,
        PhysicalType::Uint32 => u32::from_le_bytes(array(cell)) as i128,
        PhysicalType::Uint64 => u64::from_le_bytes(array(cell)) as i128,
        PhysicalType::Float | PhysicalType::Double | PhysicalType::Binary => return None,
    })
}

/// Returns the least and the greatest value of an integer-like type; `None` for the others.
pub fn integer_range(ty: DataType, attributes: TypeAttributes) -> Option<(i128, i128)> {
    let physical = ty.physical();
    Some(match ty.kind() {
        ValueKind::Date => (DATE_MIN as i128, DATE_MAX as i128),
        ValueKind::Decimal if attributes.precision > 0 => {
            let max = decimal_max(attributes.precision);
            (-max, max)
        }
        ValueKind::Plain | ValueKind::Text | ValueKind::Decimal | ValueKind::Timestamp => match physical {
            PhysicalType::Bool => (0, 1),
            PhysicalType::Int128 => (i128::MIN, i128::MAX),
            PhysicalType::Uint8 | PhysicalType::Uint16 | PhysicalType::Uint32 | PhysicalType::Uint64 => {
                (0, (1i128 << (8 * physical.width()?)) - 1)
            }
            PhysicalType::Int8 | PhysicalType::Int16 | PhysicalType::Int32 | PhysicalType::Int64 => {
                let half = 1i128 << (8 * physical.width()? - 1);
                (-half, half - 1)
            }
            PhysicalType::Float | PhysicalType::Double | PhysicalType::Binary => return None,
        },
    })
}

/// Increments a cell to the next greater value of its type. Returns false and changes nothing if it is the greatest.
///
/// FLOAT and DOUBLE become the next representable number; infinity is the greatest.
pub fn increment_cell(ty: DataType, attributes: TypeAttributes, cell: &mut Vec<u8>) -> bool {
    match ty.physical() {
        PhysicalType::Binary => cell.push(0),
        PhysicalType::Float => {
            let value = f32::from_le_bytes(array(cell));
            if value.is_nan() || value == f32::INFINITY {
                return false;
            }
            *cell = value.next_up().to_le_bytes().to_vec();
        }
        PhysicalType::Double => {
            let value = f64::from_le_bytes(array(cell));
            if value.is_nan() || value == f64::INFINITY {
                return false;
            }
            *cell = value.next_up().to_le_bytes().to_vec();
        }
        physical => {
            let value = cell_to_i128(physical, cell).expect("a fixed-width cell has its type's width");
            let (_, max) = integer_range(ty, attributes).expect("every other type is an integer");
            if value >= max {
                return false;
            }
            let width = cell.len();
            cell.copy_from_slice(&(value + 1).to_le_bytes()[..width]);
        }
    }
    true
}

#[cfg(test)]
mod tests;
