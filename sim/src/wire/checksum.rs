//! Checksum of rows as servers compute it: the sum of every row's CRC32C, in any order.
//!
//! A row's CRC covers, for each column, its position as u32 and then its cell. A cell of a nullable column begins with
//! one byte: 0 for NULL, with nothing after it, or 1. Source: `rows.md` §7.

use sim_plan::tables::Value;

use super::rows::Slot;

/// Polynomial of CRC32C, its bits reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Returns the sum of rows, modulo 2^64. `columns`: those of each row, in the order of the projection.
pub fn sum(columns: &[Slot], rows: &[Vec<Value>]) -> u64 {
    rows.iter().fold(0, |sum: u64, row| sum.wrapping_add(u64::from(crc(&row_bytes(columns, row)))))
}

fn row_bytes(columns: &[Slot], row: &[Value]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (position, ((kind, nullable), value)) in (0_u32..).zip(columns.iter().zip(row)) {
        let cell = kind.cell(value);
        bytes.extend(position.to_le_bytes());
        bytes.extend(nullable.then_some(u8::from(cell.is_some())));
        bytes.extend(cell.unwrap_or_default());
    }
    bytes
}

fn crc(bytes: &[u8]) -> u32 {
    let shift = |crc: u32, _| (crc >> 1) ^ (POLYNOMIAL & (crc & 1).wrapping_neg());
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), shift))
}

#[cfg(test)]
mod tests {
    use sim_plan::tables::{ColumnKind, TypeWord};

    use super::*;

    #[test]
    fn rows_are_summed_in_any_order_and_null_is_not_empty() {
        assert_eq!(crc(b"123456789"), 0xe306_9283, "the check value of CRC-32C");
        let columns =
            [(ColumnKind::plain(TypeWord::Int8), false), (ColumnKind::plain(TypeWord::String), true)];
        let row = |key, text: Option<&[u8]>| vec![Value::Int(key), text.map_or(Value::Null, Value::bytes)];
        let (a, b) = (row(1, Some(&b"x"[..])), row(2, None));
        let first = u64::from(crc(&[0, 0, 0, 0, 1, 1, 0, 0, 0, 1, b'x']));
        assert_eq!(sum(&columns, std::slice::from_ref(&a)), first);
        assert_eq!(sum(&columns, &[a.clone(), b.clone()]), sum(&columns, &[b, a]));
        assert_ne!(sum(&columns, &[row(2, None)]), sum(&columns, &[row(2, Some(&b""[..]))]));
        assert_eq!(sum(&columns, &[]), 0);
    }
}
