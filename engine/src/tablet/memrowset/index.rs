//! The rows of a MemRowSet by key.
//!
//! ```text
//!   rows 1 to 64      by the first eight bytes of a key                   user4821… ─▶ user4821
//!   64 to 4,096       by the eight that follow what 64 keys begin with    user4821… ─▶ 48217730
//!   from 4,096 on     the same, of 4,096 keys
//! ```
//!
//! A tree keeps a prefix of each key, which decides most comparisons without a look at the row, wherever that lies in
//! memory. Where all keys begin alike it would decide none: so the tree is made anew twice, when there are few rows to
//! tell by, without what they have in common. A key that begins otherwise is put below or above all that do not, and
//! compared to others of its kind as a whole.
//!
//! The tree before stays for whoever reads it: it has every row that was there when they came.

use std::cmp::Ordering as Compared;
use std::sync::OnceLock;

use super::Store;
use crate::cfile::keys::{common_prefix, key_prefix};
use crate::sync::{AtomicUsize, Ordering};
use crate::tablet::memstore::node::Keys;
use crate::tablet::memstore::tree::{Cursor, Slot, Tree};

/// So many rows tell what keys begin with.
const STEPS: [usize; 2] = [64, 4096];

/// Row numbers in the order of their keys.
#[derive(Default)]
pub struct Index {
    first: Ordered,
    later: [OnceLock<Box<Ordered>>; STEPS.len()],
    /// Steps that were looked at; the writer's.
    steps: AtomicUsize,
}

/// A tree, and what its prefixes leave out.
#[derive(Default)]
struct Ordered {
    common: Vec<u8>,
    tree: Tree,
}

/// A place between rows, for reading on.
pub struct Position<'a> {
    ordered: &'a Ordered,
    cursor: Cursor,
}

/// What every reader may do.
impl Index {
    /// The row with this key. It is found if it was inserted before the call.
    #[inline]
    pub fn find(&self, key: &[u8], store: &Store) -> Option<u32> {
        let ordered = self.newest();
        ordered.tree.find(key, &ordered.keys(store))
    }

    /// The first row whose key is not below `key`; see [`Tree::seek`].
    pub fn seek(&self, key: &[u8], store: &Store) -> Position<'_> {
        let ordered = self.newest();
        Position { ordered, cursor: ordered.tree.seek(key, &ordered.keys(store)) }
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        let later = |made: &Ordered| size_of::<Ordered>() + made.bytes();
        self.first.bytes() + self.made().map(later).sum::<usize>()
    }

    /// Bytes that may be allocated next, when there are `rows`.
    pub fn next_bytes(&self, rows: usize) -> usize {
        let anew = match self.steps.load(Ordering::Relaxed) {
            all if all == STEPS.len() => 0,
            _ => size_of::<Ordered>() + KEY_BYTES_MAX + Tree::bytes_in_order(rows),
        };
        self.newest().tree.next_bytes() + anew
    }

    fn made(&self) -> impl Iterator<Item = &Ordered> {
        self.later.iter().filter_map(|later| later.get()).map(|later| &**later)
    }

    #[inline]
    fn newest(&self) -> &Ordered {
        let [second, third] = &self.later;
        third.get().or_else(|| second.get()).map_or(&self.first, |later| later)
    }
}

/// What only the writer may do.
impl Index {
    /// The row with this key, or the slot to give to [`Index::insert`] next.
    #[inline]
    pub fn slot_of(&self, key: &[u8], store: &Store) -> Result<u32, Slot> {
        let ordered = self.newest();
        ordered.tree.slot_of(key, &ordered.keys(store))
    }

    /// Puts `row`, whose key is `key`, where [`Index::slot_of`] found no such key. Nothing else was done in between.
    #[inline]
    pub fn insert(&self, slot: Slot, row: u32, key: &[u8], store: &Store) {
        let ordered = self.newest();
        ordered.tree.insert(slot, row, key, &ordered.keys(store));
    }

    /// Makes the tree anew, if there are rows enough to tell what keys begin with, and that is something new.
    pub fn fit(&self, store: &Store) {
        let step = self.steps.load(Ordering::Relaxed);
        if STEPS.get(step).is_none_or(|rows| store.rows.len() < *rows) {
            return;
        }
        let mut position = self.seek(&[], store);
        let rows: Vec<u32> = std::iter::from_fn(|| position.next(store)).collect();
        let common = common(&rows, store);
        if common != self.newest().common {
            let made = Ordered { common: common.to_vec(), tree: Tree::default() };
            rows.iter().for_each(|row| made.append(*row, store));
            assert!(self.later[step].set(Box::new(made)).is_ok(), "one writer takes each step once");
        }
        self.steps.store(step + 1, Ordering::Relaxed);
    }
}

/// No more of a key than this is left out.
const KEY_BYTES_MAX: usize = 256;

/// What these rows' keys begin with, as far as each of them has eight bytes after it: keys that count up would have
/// more in common as long as they are few.
fn common<'a>(rows: &[u32], store: &'a Store) -> &'a [u8] {
    let key = |row: &u32| store.key(*row);
    let (Some(lowest), Some(highest)) = (rows.first().map(key), rows.last().map(key)) else { return &[] };
    let alike = common_prefix(lowest, highest).min(KEY_BYTES_MAX);
    if alike == 0 {
        return &[];
    }
    let shortest = rows.iter().map(|row| store.key(*row).len()).min().unwrap_or(0);
    &lowest[..alike.min(shortest.saturating_sub(8))]
}

impl Position<'_> {
    /// The row here; the position moves on. `None` at the end.
    pub fn next(&mut self, store: &Store) -> Option<u32> {
        self.ordered.tree.next(&mut self.cursor, &self.ordered.keys(store))
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

/// Where keys are, and what they begin with.
struct ByKey<'a> {
    store: &'a Store,
    common: &'a [u8],
}

impl Keys for ByKey<'_> {
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
    use crate::tablet::meta::TabletSchema;
    use crate::time::Timestamp;

    fn empty() -> MemRowSet {
        let key = ColumnSchema::new(0, "key", DataType::Binary);
        let schema = Schema::new(vec![key], 1).expect("the schema is sound");
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
        let mut position = set.store.seek(from);
        std::iter::from_fn(|| set.store.next(&mut position)).map(|row| set.store.key(row).to_vec()).collect()
    }

    fn common_of(set: &MemRowSet) -> &str {
        std::str::from_utf8(&set.store.index.newest().common).expect("these keys are text")
    }

    fn user(number: u32) -> Vec<u8> {
        format!("user{:010}", number.wrapping_mul(2_654_435_761)).into_bytes()
    }

    #[test]
    fn what_all_keys_begin_with_is_left_out_once_there_are_some() {
        let set = empty();
        (0..64).for_each(|number| insert(&set, &user(number)));
        assert_eq!(common_of(&set), "");
        insert(&set, &user(64));
        assert_eq!(common_of(&set), "user");
    }

    #[test]
    fn keys_that_count_up_keep_eight_bytes() {
        let set = empty();
        (0..100u32).for_each(|number| insert(&set, format!("order{number:012}").as_bytes()));
        assert_eq!(common_of(&set), "order0000");
        let numbers = empty();
        (0..100u64).for_each(|number| insert(&numbers, &number.to_be_bytes()));
        assert_eq!(common_of(&numbers), "");
    }

    #[test]
    fn more_keys_tell_better() {
        let set = empty();
        (0..5000u32).for_each(|number| insert(&set, format!("{}-{number:012}", number / 1000).as_bytes()));
        assert_eq!(common_of(&set), "");
        assert!(set.store.index.later.iter().all(|later| later.get().is_some()));
    }

    #[test]
    fn a_reader_goes_on_in_the_tree_it_came_to() {
        let set = empty();
        let before: BTreeSet<Vec<u8>> = (0..64).map(user).collect();
        before.iter().for_each(|key| insert(&set, key));
        let mut position = set.store.seek(b"");
        let first = set.store.next(&mut position);
        (64..200).for_each(|number| insert(&set, &user(number)));
        let rows = first.into_iter().chain(std::iter::from_fn(|| set.store.next(&mut position)));
        let seen: BTreeSet<Vec<u8>> = rows.map(|row| set.store.key(row).to_vec()).collect();
        assert_eq!(seen, before);
        assert_eq!(scan(&set, b"").len(), 200);
    }

    proptest! {
        #![proptest_config(crate::tablet::memstore::testing())]

        /// Keys that begin alike, others below and above, and the common beginning itself, whole and in part.
        #[test]
        fn agrees_with_a_set(
            begin in 64usize..90,
            keys in prop::collection::vec(("(|c|com|common|commoo|d)", "[a-c]{0,3}"), 0..200),
        ) {
            let set = empty();
            let alike = (0..begin).map(|number| format!("common{:09}", number * 7_919 % 1_000));
            let others = keys.into_iter().map(|(front, back)| front + &back);
            let keys: Vec<Vec<u8>> = alike.chain(others).map(String::into_bytes).collect();
            keys.iter().for_each(|key| insert(&set, key));
            let model: BTreeSet<Vec<u8>> = keys.into_iter().collect();
            prop_assert_eq!(scan(&set, b""), model.iter().cloned().collect::<Vec<_>>());
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
