//! Index of the rows of a MemRowSet by key.
//!
//! ```text
//!   rows 1 to 64      by the first eight bytes of a key                   user4821… ─▶ user4821
//!   64 to 4,096       by the eight bytes after the common prefix of 64    user4821… ─▶ 48217730
//!   from 4,096 on     the same, after the common prefix of 4,096 keys
//! ```
//!
//! A tree stores an eight-byte prefix of each key. The prefix decides most comparisons without a read of the row, which
//! may be anywhere in memory. If all keys have a common prefix, the first eight bytes decide nothing. So the tree is
//! rebuilt twice, while there are few rows, without the common prefix. A key without the common prefix sorts below or
//! above all keys with it, and is compared in full with others like it.
//!
//! Readers of the previous tree keep it. It has every row that was inserted before they started.

use std::cmp::Ordering as Compared;
use std::sync::OnceLock;

use super::store::Store;
use crate::cfile::key_prefix::{common_prefix, key_prefix};
use crate::sync::{AtomicUsize, Ordering};
use crate::tablet::memstore::node::KeySource;
use crate::tablet::memstore::tree::{InsertPosition, RowTree, TreeCursor};

/// Numbers of rows at which the common prefix is computed.
const STEPS: [usize; 2] = [64, 4096];

/// Row ids in the order of their keys.
#[derive(Default)]
pub(super) struct RowIndex {
    first: Ordered,
    later: [OnceLock<Box<Ordered>>; STEPS.len()],
    /// Rebuild steps done; only the writer uses it.
    steps: AtomicUsize,
}

/// A tree, and the common prefix that its entries leave out.
#[derive(Default)]
struct Ordered {
    common: Vec<u8>,
    tree: RowTree,
}

/// A position between rows, for iteration.
pub(super) struct IndexPosition<'a> {
    ordered: &'a Ordered,
    cursor: TreeCursor,
}

/// Operations of readers.
impl RowIndex {
    /// Returns the row with this key. It is found if it was inserted before the call.
    #[inline]
    pub(super) fn find(&self, key: &[u8], store: &Store) -> Option<u32> {
        let ordered = self.newest();
        ordered.tree.find(key, &ordered.keys(store))
    }

    /// Returns the position of the first row whose key is not below `key`; see [`RowTree::seek`].
    pub(super) fn seek(&self, key: &[u8], store: &Store) -> IndexPosition<'_> {
        let ordered = self.newest();
        IndexPosition { ordered, cursor: ordered.tree.seek(key, &ordered.keys(store)) }
    }

    /// Returns the bytes allocated.
    pub(super) fn bytes(&self) -> usize {
        let later = |rebuilt: &Ordered| size_of::<Ordered>() + rebuilt.bytes();
        self.first.bytes() + self.rebuilt().map(later).sum::<usize>()
    }

    /// Returns the bytes that the next insert may allocate, if there are `rows` rows.
    pub(super) fn next_bytes(&self, rows: usize) -> usize {
        let rebuild_bytes = match self.steps.load(Ordering::Relaxed) {
            all if all == STEPS.len() => 0,
            _ => size_of::<Ordered>() + KEY_BYTES_MAX + RowTree::bytes_in_order(rows),
        };
        self.newest().tree.next_bytes() + rebuild_bytes
    }

    fn rebuilt(&self) -> impl Iterator<Item = &Ordered> {
        self.later.iter().filter_map(|later| later.get()).map(|later| &**later)
    }

    #[inline]
    fn newest(&self) -> &Ordered {
        let [second, third] = &self.later;
        third.get().or_else(|| second.get()).map_or(&self.first, |later| later)
    }
}

/// Operations of the one writer.
impl RowIndex {
    /// Returns the row with this key, or the position to pass to [`RowIndex::insert`].
    #[inline]
    pub(super) fn slot_of(&self, key: &[u8], store: &Store) -> Result<u32, InsertPosition> {
        let ordered = self.newest();
        ordered.tree.slot_of(key, &ordered.keys(store))
    }

    /// Inserts `row` with key `key` at the position that [`RowIndex::slot_of`] returned. Nothing may be done in
    /// between.
    #[inline]
    pub(super) fn insert(&self, slot: InsertPosition, row: u32, key: &[u8], store: &Store) {
        let ordered = self.newest();
        ordered.tree.insert(slot, row, key, &ordered.keys(store));
    }

    /// Rebuilds the tree if there are enough rows for the next step and their common prefix has changed.
    pub(super) fn fit(&self, store: &Store) {
        let step = self.steps.load(Ordering::Relaxed);
        if STEPS.get(step).is_none_or(|rows| store.rows.len() < *rows) {
            return;
        }
        let mut position = self.seek(&[], store);
        let rows: Vec<u32> = std::iter::from_fn(|| position.next(store)).collect();
        let common = common(&rows, store);
        if common != self.newest().common {
            let rebuilt = Ordered { common: common.to_vec(), tree: RowTree::default() };
            rows.iter().for_each(|row| rebuilt.append(*row, store));
            assert!(self.later[step].set(Box::new(rebuilt)).is_ok(), "one writer takes each step once");
        }
        self.steps.store(step + 1, Ordering::Relaxed);
    }
}

/// Most bytes of the common prefix.
const KEY_BYTES_MAX: usize = 256;

/// Returns the common prefix of these rows' keys, shortened so that each key has at least eight bytes after it.
/// Otherwise the first few of ascending integers would have too long a common prefix.
fn common<'a>(rows: &[u32], store: &'a Store) -> &'a [u8] {
    let key = |row: &u32| store.key(*row);
    let (Some(lowest), Some(highest)) = (rows.first().map(key), rows.last().map(key)) else { return &[] };
    let common_len = common_prefix(lowest, highest).min(KEY_BYTES_MAX);
    if common_len == 0 {
        return &[];
    }
    let shortest = rows.iter().map(|row| store.key(*row).len()).min().unwrap_or(0);
    &lowest[..common_len.min(shortest.saturating_sub(8))]
}

impl IndexPosition<'_> {
    /// Returns the row at the position and advances it; `None` at the end.
    pub(super) fn next(&mut self, store: &Store) -> Option<u32> {
        self.ordered.tree.next(&mut self.cursor, &self.ordered.keys(store))
    }

    /// Appends the next rows with keys below `upper`, at most `limit`, and advances the position. Returns false if
    /// there are no more of them.
    ///
    /// Only a leaf whose prefixes do not show that it is below the bound is compared with it in full: each comparison
    /// waits for the row's memory.
    pub(super) fn take(
        &mut self,
        limit: usize,
        upper: Option<&[u8]>,
        store: &Store,
        rows: &mut Vec<u32>,
    ) -> bool {
        let keys = self.ordered.keys(store);
        let upper = upper.map(|upper| (upper, keys.prefix(upper)));
        let end = rows.len() + limit;
        while rows.len() < end {
            let found = self.ordered.tree.next_of_leaf(&mut self.cursor, end - rows.len(), &keys);
            let below = match upper {
                Some((upper, prefix)) if found.last_prefix >= prefix => rows_below(found.rows, upper, store),
                _ => found.rows.len(),
            };
            rows.extend_from_slice(&found.rows[..below]);
            if below < found.rows.len() || found.rows.is_empty() {
                return false;
            }
        }
        true
    }
}

/// Returns the number of rows, in key order, whose keys are below `upper`.
fn rows_below(rows: &[u32], upper: &[u8], store: &Store) -> usize {
    match rows.last() {
        Some(last) if store.key(*last) < upper => rows.len(),
        _ => rows.partition_point(|row| store.key(*row) < upper),
    }
}

impl Ordered {
    fn keys<'a>(&'a self, store: &'a Store) -> ByKey<'a> {
        ByKey { store, common: &self.common }
    }

    fn bytes(&self) -> usize {
        self.common.capacity() + self.tree.bytes()
    }

    fn append(&self, row: u32, store: &Store) {
        let (key, keys) = (store.key(row), self.keys(store));
        let slot = self.tree.slot_of(key, &keys).expect_err("a row is in a tree once");
        self.tree.insert(slot, row, key, &keys);
    }
}

/// Keys of rows, without their common prefix.
struct ByKey<'a> {
    store: &'a Store,
    common: &'a [u8],
}

impl KeySource for ByKey<'_> {
    type Key = [u8];

    #[inline]
    fn prefix(&self, key: &[u8]) -> u64 {
        match key.strip_prefix(self.common) {
            _ if self.common.is_empty() => key_prefix(key),
            Some(rest) => key_prefix(rest),
            None if key < self.common => 0,
            None => u64::MAX,
        }
    }

    #[inline]
    fn compare(&self, row: u32, key: &[u8]) -> Compared {
        self.store.key(row).cmp(key)
    }

    fn compare_rows(&self, row: u32, other: u32) -> Compared {
        self.store.key(row).cmp(self.store.key(other))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use proptest::prelude::*;

    use crate::memory::MemTracker;
    use crate::schema::{ColumnSchema, DataType, Schema};
    use crate::tablet::memrowset::MemRowSet;
    use crate::tablet::superblock::TabletSchema;
    use crate::time::Timestamp;

    fn empty() -> MemRowSet {
        let key = ColumnSchema::new(0, "key", DataType::Binary);
        let schema = Schema::new(vec![key], 1).expect("the schema is valid");
        let schema = TabletSchema::new(schema, 0, "t".to_string(), BTreeMap::new());
        MemRowSet::new(Arc::new(schema), &MemTracker::root("test", None))
    }

    fn insert(set: &MemRowSet, key: &[u8]) {
        let mut writer = set.write();
        if let Err(slot) = writer.find(key) {
            writer.insert(slot, Timestamp(1), key, key.len() as u32);
        }
    }

    fn scan(set: &MemRowSet, from: &[u8]) -> Vec<Vec<u8>> {
        let mut position = set.index.seek(from, &set.store);
        std::iter::from_fn(|| position.next(&set.store)).map(|row| set.store.key(row).to_vec()).collect()
    }

    /// Returns the keys from `from` on and below `upper`, read a few rows at a time.
    fn taken(set: &MemRowSet, from: &[u8], upper: Option<&[u8]>, limit: usize) -> Vec<Vec<u8>> {
        let (mut position, mut rows, mut is_more) = (set.index.seek(from, &set.store), Vec::new(), true);
        while is_more {
            let before = rows.len();
            is_more = position.take(limit, upper, &set.store, &mut rows);
            assert!(rows.len() - before == limit || !is_more, "only the end cuts a batch short");
        }
        rows.iter().map(|row| set.store.key(*row).to_vec()).collect()
    }

    fn common_of(set: &MemRowSet) -> &str {
        std::str::from_utf8(&set.index.newest().common).expect("these keys are text")
    }

    fn user(number: u32) -> Vec<u8> {
        format!("user{:010}", number.wrapping_mul(2_654_435_761)).into_bytes()
    }

    #[test]
    fn the_common_prefix_is_left_out_from_64_rows_on() {
        let set = empty();
        (0..64).for_each(|number| insert(&set, &user(number)));
        assert_eq!(common_of(&set), "");
        insert(&set, &user(64));
        assert_eq!(common_of(&set), "user");
    }

    #[test]
    fn ascending_keys_keep_eight_bytes_after_the_prefix() {
        let set = empty();
        (0..100u32).for_each(|number| insert(&set, format!("order{number:012}").as_bytes()));
        assert_eq!(common_of(&set), "order0000");
        let numbers = empty();
        (0..100u64).for_each(|number| insert(&numbers, &number.to_be_bytes()));
        assert_eq!(common_of(&numbers), "");
    }

    #[test]
    fn the_prefix_is_recomputed_at_4096_rows() {
        let set = empty();
        (0..5000u32).for_each(|number| insert(&set, format!("{}-{number:012}", number / 1000).as_bytes()));
        assert_eq!(common_of(&set), "");
        assert!(set.index.later.iter().all(|later| later.get().is_some()));
    }

    #[test]
    fn a_reader_continues_in_the_tree_it_started_in() {
        let set = empty();
        let before: BTreeSet<Vec<u8>> = (0..64).map(user).collect();
        before.iter().for_each(|key| insert(&set, key));
        let mut position = set.index.seek(b"", &set.store);
        let first = position.next(&set.store);
        (64..200).for_each(|number| insert(&set, &user(number)));
        let rows = first.into_iter().chain(std::iter::from_fn(|| position.next(&set.store)));
        let seen: BTreeSet<Vec<u8>> = rows.map(|row| set.store.key(row).to_vec()).collect();
        assert_eq!(seen, before);
        assert_eq!(scan(&set, b"").len(), 200);
    }

    proptest! {
        #![proptest_config(crate::tablet::memstore::testing())]

        /// Keys with the common prefix, keys below and above it, and the prefix itself, whole and in part.
        #[test]
        fn agrees_with_a_set(
            begin in 64usize..90,
            keys in prop::collection::vec(("(|c|com|common|commoo|d)", "[a-c]{0,3}"), 0..200),
            (from, upper) in ("(|c|common[0-9]{1,9}|d)", "(|b|common|common[0-9]{0,9}|d|e)"),
            limit in 1usize..40,
        ) {
            let set = empty();
            let with_prefix = (0..begin).map(|number| format!("common{:09}", number * 7_919 % 1_000));
            let others = keys.into_iter().map(|(front, back)| front + &back);
            let keys: Vec<Vec<u8>> = with_prefix.chain(others).map(String::into_bytes).collect();
            keys.iter().for_each(|key| insert(&set, key));
            let model: BTreeSet<Vec<u8>> = keys.into_iter().collect();
            prop_assert_eq!(scan(&set, b""), model.iter().cloned().collect::<Vec<_>>());
            let (from, upper) = (from.as_bytes(), Some(upper.as_bytes()).filter(|upper| !upper.is_empty()));
            let is_within = |key: &&Vec<u8>| &key[..] >= from && upper.is_none_or(|upper| &key[..] < upper);
            let within: Vec<Vec<u8>> = model.iter().filter(is_within).cloned().collect();
            prop_assert_eq!(taken(&set, from, upper, limit), within);
            for key in &model {
                prop_assert!(set.contains(key));
                let above = [key, &[0][..]].concat();
                prop_assert_eq!(set.contains(&above), model.contains(&above));
                let after = scan(&set, &above).into_iter().next();
                prop_assert_eq!(after.as_ref(), model.range(above..).next());
            }
        }
    }
}
