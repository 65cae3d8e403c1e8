//! Rows and mutations in memory, as readers and the writer share them.

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::tablet::memstore::arena::Arena;
use crate::tablet::memstore::byte_arena::ByteArena;
use crate::tablet::memstore::mutations::{Mutation, MutationList, MutationStore};
use crate::time::Timestamp;

/// Data that readers and the writer share.
#[derive(Default)]
pub(super) struct Store {
    pub(super) rows: Arena<Row>,
    /// Keys and cells of the rows.
    pub(super) bytes: ByteArena,
    pub(super) mutations: MutationStore,
}

/// One row: its insert timestamp, its key and, directly after the key, its cells as inserted.
#[derive(Default)]
pub(super) struct Row {
    pub(super) ts: AtomicU64,
    /// Position of its key in the byte arena.
    pub(super) position: AtomicU64,
    pub(super) key_len: AtomicU32,
    pub(super) row_len: AtomicU32,
    pub(super) chain: MutationList,
}

const _: () = assert!(cfg!(loom) || size_of::<Row>() == 32);

/// Insert timestamp of a row, location of its cells, and true for `changed` if it has mutations.
#[derive(Clone, Copy)]
pub(super) struct RowCells {
    pub(super) ts: Timestamp,
    pub(super) position: u64,
    pub(super) len: u32,
    pub(super) changed: bool,
}

impl Row {
    /// Returns the insert timestamp and the location of the cells.
    #[inline]
    pub(super) fn row_cells(&self) -> RowCells {
        RowCells {
            ts: Timestamp(self.ts.load(Ordering::Relaxed)),
            position: self.position.load(Ordering::Relaxed) + u64::from(self.key_len.load(Ordering::Relaxed)),
            len: self.row_len.load(Ordering::Relaxed),
            changed: !self.chain.is_empty(),
        }
    }
}

impl Store {
    /// Returns a row's insert timestamp and the location of its cells.
    #[inline]
    pub(super) fn row_cells(&self, row: u32) -> RowCells {
        self.rows.get(row).row_cells()
    }

    /// Returns the cells of a row as inserted.
    #[inline]
    pub(super) fn cells(&self, cells: RowCells) -> &[u8] {
        self.bytes.get(cells.position, cells.len as usize)
    }

    #[inline]
    pub(super) fn key(&self, row: u32) -> &[u8] {
        let row = self.rows.get(row);
        self.bytes.get(row.position.load(Ordering::Relaxed), row.key_len.load(Ordering::Relaxed) as usize)
    }

    /// Returns the mutations of a row before a timestamp, newest first.
    pub(super) fn mutations_newest_first(
        &self,
        row: u32,
        before: Timestamp,
    ) -> impl Iterator<Item = Mutation<'_>> {
        self.mutations
            .newest_first(&self.rows.get(row).chain)
            .skip_while(move |mutation| mutation.ts >= before)
    }

    /// Returns the mutations of a row before a timestamp, oldest first.
    pub(super) fn history(&self, row: u32, before: Timestamp) -> impl Iterator<Item = Mutation<'_>> {
        self.mutations.of(&self.rows.get(row).chain).take_while(move |mutation| mutation.ts < before)
    }
}
