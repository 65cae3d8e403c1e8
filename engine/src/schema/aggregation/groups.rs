//! Table of groups: a number for each combination of cells, in the order of their first rows.
//!
//! ```text
//!   slots   open addressing, a power of two; group number + 1, or 0
//!   hashes  by group, so that growing reads no cell
//!   keys    the cells of each group, by column
//! ```

use crate::schema::row_block::{ColumnBlock, ProjectedColumn};
use crate::schema::wire_hash::fast_hash64;

/// Slots of an empty table.
const SLOTS_MIN: usize = 64;
/// Hash of NULL among the hashes of cells, in the place of the length of a cell.
const NULL_SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Bytes of a number in a result with its part of the bitmap of NULLs, at most.
pub(super) const CELL_BYTES: usize = size_of::<i128>() + 1;

/// Groups of the rows of a block.
pub(super) enum RowGroups<'a> {
    /// All rows are of one group. Carries their number.
    One(usize),
    /// Group of each row, and the number of groups so far.
    Many(&'a [u32], usize),
}

impl RowGroups<'_> {
    /// Number of groups, those of earlier blocks too.
    pub(super) fn count(&self) -> usize {
        match self {
            RowGroups::One(_) => 1,
            RowGroups::Many(_, count) => *count,
        }
    }
}

pub(super) struct GroupTable {
    keys: Vec<ColumnBlock>,
    hashes: Vec<u64>,
    slots: Vec<u32>,
    /// Number of groups; without key columns 1 after the first row.
    count: usize,
    /// Groups and hashes of the rows of the current block.
    of_rows: Vec<u32>,
    row_hashes: Vec<u64>,
}

impl GroupTable {
    pub(super) fn new(columns: &[ProjectedColumn]) -> GroupTable {
        let key = |column: &ProjectedColumn| ColumnBlock::new(column.ty.physical(), column.nullable);
        GroupTable {
            keys: columns.iter().map(key).collect(),
            hashes: Vec::new(),
            slots: vec![0; if columns.is_empty() { 0 } else { SLOTS_MIN }],
            count: 0,
            of_rows: Vec::new(),
            row_hashes: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn byte_size(&self) -> usize {
        let keys: usize = self.keys.iter().map(ColumnBlock::byte_size).sum();
        keys + 8 * self.hashes.len() + 4 * self.slots.len()
    }

    /// Bytes of the cells of a group in a result, at most.
    pub(super) fn key_bytes(&self, group: usize) -> usize {
        let cell = |key: &ColumnBlock| key.cell(group).map_or(CELL_BYTES, |cell| cell.len() + CELL_BYTES);
        self.keys.iter().map(cell).sum()
    }

    /// Returns the cells of the groups.
    pub(super) fn into_keys(self) -> Vec<ColumnBlock> {
        self.keys
    }

    /// Finds the group of each row, and adds those that are new.
    pub(super) fn assign(&mut self, columns: &[&ColumnBlock], rows: usize) -> RowGroups<'_> {
        if columns.is_empty() {
            self.count = 1;
            return RowGroups::One(rows);
        }
        self.row_hashes.clear();
        self.row_hashes.resize(rows, 0);
        columns.iter().for_each(|column| hash_cells(column, &mut self.row_hashes));
        self.of_rows.clear();
        for row in 0..rows {
            let group = self.find_or_add(columns, row, self.row_hashes[row]);
            self.of_rows.push(group);
        }
        RowGroups::Many(&self.of_rows, self.count)
    }

    fn find_or_add(&mut self, columns: &[&ColumnBlock], row: usize, hash: u64) -> u32 {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            match self.slots[at] {
                0 => break,
                taken => {
                    let group = taken as usize - 1;
                    if self.hashes[group] == hash && self.has_cells(group, columns, row) {
                        return taken - 1;
                    }
                }
            }
            at = (at + 1) & mask;
        }
        for (key, column) in self.keys.iter_mut().zip(columns) {
            key.push(column.cell(row));
        }
        self.hashes.push(hash);
        self.count += 1;
        self.slots[at] = self.count as u32;
        if self.count * 2 > self.slots.len() {
            self.grow();
        }
        self.count as u32 - 1
    }

    fn has_cells(&self, group: usize, columns: &[&ColumnBlock], row: usize) -> bool {
        self.keys.iter().zip(columns).all(|(key, column)| key.cell(group) == column.cell(row))
    }

    fn grow(&mut self) {
        let slots = self.slots.len() * 2;
        self.slots = vec![0; slots];
        for (group, hash) in self.hashes.iter().enumerate() {
            let mut at = *hash as usize & (slots - 1);
            while self.slots[at] != 0 {
                at = (at + 1) & (slots - 1);
            }
            self.slots[at] = group as u32 + 1;
        }
    }
}

/// Adds the cells of a column to the hashes of their rows.
fn hash_cells(column: &ColumnBlock, hashes: &mut [u64]) {
    for (row, hash) in hashes.iter_mut().enumerate() {
        *hash = match column.cell(row) {
            Some(cell) => fast_hash64(cell, *hash),
            None => fast_hash64(&[], *hash ^ NULL_SEED),
        };
    }
}
