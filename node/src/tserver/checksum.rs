//! Checksum of a scan: the sum of every row's CRC32C, so that replicas can be compared in any row order.
//!
//! A row's CRC covers, for each projected column, its position as u32 and then its cell. A cell of a nullable column
//! begins with one byte: 0 for NULL, with nothing after it, or 1. The cell's bytes follow. Source: `rows.md` §7.

use engine::schema::row_block::RowBlock;

/// Adds the rows of `block`, modulo 2^64.
pub(super) fn add_block(sum: u64, block: &RowBlock) -> u64 {
    (0..block.rows).fold(sum, |sum, row| sum.wrapping_add(u64::from(row_crc(block, row))))
}

fn row_crc(block: &RowBlock, row: usize) -> u32 {
    let mut crc = 0;
    for (i, column) in block.columns.iter().enumerate() {
        crc = crc32c::crc32c_append(crc, &(i as u32).to_le_bytes());
        let cell = column.cell(row);
        if column.validity.is_some() {
            crc = crc32c::crc32c_append(crc, &[u8::from(cell.is_some())]);
        }
        crc = crc32c::crc32c_append(crc, cell.unwrap_or_default());
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::schema::row_block::ProjectedColumn;
    use engine::schema::{ColumnSchema, DataType};

    #[test]
    fn rows_are_summed_in_any_order_and_null_is_not_empty() {
        let columns = [
            ColumnSchema::new(0, "k", DataType::Int8),
            ColumnSchema::new(1, "s", DataType::String).nullable(),
        ];
        let projection: Vec<ProjectedColumn> = columns.iter().map(ProjectedColumn::from).collect();
        let block = |rows: &[(u8, Option<&[u8]>)]| {
            let mut block = RowBlock::new(&projection);
            for (key, text) in rows {
                block.columns[0].push(Some(&[*key]));
                block.columns[1].push(*text);
                block.rows += 1;
            }
            block
        };
        let (a, b) = ((1, Some(&b"x"[..])), (2, None));
        let sum = add_block(0, &block(&[a, b]));
        assert_eq!(add_block(add_block(0, &block(&[b])), &block(&[a])), sum);
        assert_ne!(add_block(0, &block(&[a, (2, Some(b""))])), sum);
        let first = crc32c::crc32c(&[0, 0, 0, 0, 1, 1, 0, 0, 0, 1, b'x']);
        assert_eq!(add_block(0, &block(&[a])), u64::from(first));
    }
}
