//! A B+tree of row ids in key order, for one writer and any number of readers that never wait.
//!
//! ```text
//!          branch   ─  │ k1 │ k2 │ ─▶             lowest key of each child but the first
//!                   ↓    ↓    ↓
//!   leaf  r7 r3 r9 ─▶ r1 r4 ─▶ r2 r8 …            rows in key order, every level linked to the right
//! ```
//!
//! Keys are stored elsewhere ([`KeySource`]). A node has each key's prefix beside the row, which decides most
//! comparisons. Rows are never removed. Ascending keys cost one comparison and a few stores: the leaf of the last
//! insert is tried first, and a full node that grows at its end keeps its entries.
//!
//! A node is split so that all rows are reachable at every step (Lehman and Yao's links):
//!
//! ```text
//!   1  a b c d ───────▶ x      upper entries are copied to a new node, whose `next` is x
//!   2  a b c d ─▶ c d ─▶ x     the full node links to it: entries exist twice, scans skip the second
//!   3                          the new node is added to its parent, by the same steps, up to the root
//!   4  a b ─────▶ c d ─▶ x     the full node drops its upper entries
//! ```
//!
//! A reader that reached the left node by an old branch or an old root finds that its key is not below the next node's
//! lowest key, and follows the link to the right.

use super::arena::Arena;
use super::node::{BranchNode, CAPACITY, KeySource, LeafEntry, LeafNode, LeafRows, NodeSearch};
use super::{NONE, prefetch};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// More levels than 2^32 rows can need when every node is as empty as a split leaves it.
const LEVELS_MAX: usize = if cfg!(loom) { 32 } else { 16 };

/// Upper bound of the bytes that one more row adds to the tree: a split of a leaf and of the branch above. More splits
/// are very rare.
pub(crate) const ENTRY_BYTES_MAX: usize = size_of::<LeafNode>() + size_of::<BranchNode>() * 5 / 4;

/// Row ids in the order of their keys.
pub(crate) struct RowTree {
    leaves: Arena<LeafNode, 1>,
    branches: Arena<BranchNode, 1>,
    /// Levels of branches above the leaves, and the number of the topmost node.
    root: AtomicU64,
    /// The leaf of the last insert; only the writer uses it.
    hint: AtomicU32,
}

/// A position between rows, for iteration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TreeCursor {
    /// The leaf's rows as of when the cursor reached it.
    leaf: LeafRows,
    at: usize,
}

/// Rows of one leaf that a cursor has passed.
pub(crate) struct RowsOfLeaf<'c> {
    pub rows: &'c [u32],
    /// Prefix of the leaf's last key, which is not below those of the rows.
    pub last_prefix: u64,
}

/// Position at which an absent key is to be inserted.
#[derive(Debug, Clone, Copy)]
pub struct InsertPosition {
    leaf: u32,
    at: usize,
}

/// The branches passed on the way down, and the index of the child taken in each.
#[derive(Default)]
struct Path {
    steps: [(u32, usize); LEVELS_MAX],
}

impl Default for RowTree {
    fn default() -> RowTree {
        let leaves = Arena::default();
        leaves.push(|_: &LeafNode| {});
        let (root, hint) = (AtomicU64::new(0), AtomicU32::new(0));
        RowTree { leaves, branches: Arena::default(), root, hint }
    }
}

/// Operations of readers.
impl RowTree {
    /// Returns the row with this key. It is found if it was inserted before the call.
    pub(crate) fn find<K: KeySource>(&self, key: &K::Key, keys: &K) -> Option<u32> {
        match self.locate(key, keys).1 {
            NodeSearch::Row(row) => Some(row),
            NodeSearch::At { .. } => None,
        }
    }

    /// Returns a cursor at the first row whose key is not below `key`. The cursor returns every row inserted before
    /// this call, and possibly later ones.
    pub(crate) fn seek<K: KeySource>(&self, key: &K::Key, keys: &K) -> TreeCursor {
        let prefix = keys.prefix(key);
        let mut number = self.descend(prefix, key, keys, &mut Path::default());
        loop {
            let leaf = self.leaves.get(number).rows();
            let at = leaf.rows[..leaf.len].partition_point(|row| keys.compare(*row, key).is_lt());
            match leaf.next {
                next if at == leaf.len && self.starts_at_or_below(next, prefix, key, keys) => number = next,
                _ => return TreeCursor { leaf, at },
            }
        }
    }

    /// Returns the row at the cursor and advances it; `None` at the end.
    pub(crate) fn next<K: KeySource>(&self, cursor: &mut TreeCursor, keys: &K) -> Option<u32> {
        self.next_of_leaf(cursor, 1, keys).rows.first().copied()
    }

    /// Returns the next rows of one leaf, at most `limit`, and advances the cursor; no rows at the end.
    #[inline]
    pub(crate) fn next_of_leaf<'c, K: KeySource>(
        &self,
        cursor: &'c mut TreeCursor,
        limit: usize,
        keys: &K,
    ) -> RowsOfLeaf<'c> {
        while cursor.at == cursor.leaf.len && cursor.leaf.next != NONE {
            *cursor = self.next_leaf(cursor, keys);
        }
        let (first, len) = (cursor.at, cursor.leaf.len);
        cursor.at = len.min(first + limit);
        RowsOfLeaf {
            rows: &cursor.leaf.rows[first..cursor.at],
            last_prefix: cursor.leaf.prefixes.map_or(0, |(_, last)| last),
        }
    }

    /// Returns a cursor in the next leaf, at the first row that the cursor has not passed.
    fn next_leaf<K: KeySource>(&self, cursor: &TreeCursor, keys: &K) -> TreeCursor {
        let leaf = self.leaves.get(cursor.leaf.next).rows();
        // Prefetched while the caller takes the rows of this leaf.
        if leaf.next != NONE {
            prefetch(self.leaves.get(leaf.next));
        }
        let at = cursor.leaf.seen_of(&leaf, keys);
        TreeCursor { leaf, at }
    }

    /// Returns the bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.leaves.bytes() + self.branches.bytes()
    }

    /// Returns the bytes that the next insert may allocate.
    pub(crate) fn next_bytes(&self) -> usize {
        self.leaves.next_bytes() + self.branches.next_bytes()
    }

    /// Returns an upper bound of the bytes of `rows` rows that are inserted in key order.
    pub(crate) fn bytes_in_order(rows: usize) -> usize {
        let leaves = rows.div_ceil(CAPACITY).max(1);
        let branches = leaves.div_ceil(CAPACITY - 1) + LEVELS_MAX;
        // The last chunk of each list may be half empty.
        2 * (leaves * size_of::<LeafNode>() + branches * size_of::<BranchNode>())
    }

    /// Returns the leaf that has `key` or where it belongs, and the result of the search in it.
    fn locate<K: KeySource>(&self, key: &K::Key, keys: &K) -> (u32, NodeSearch) {
        let prefix = keys.prefix(key);
        let mut leaf = self.descend(prefix, key, keys, &mut Path::default());
        loop {
            let node = self.leaves.get(leaf);
            let found = node.search(prefix, key, keys);
            if !matches!(found, NodeSearch::At { is_last: true, .. }) {
                return (leaf, found);
            }
            match node.next() {
                next if self.starts_at_or_below(next, prefix, key, keys) => leaf = next,
                _ => return (leaf, found),
            }
        }
    }

    /// Returns a leaf that is not to the right of the key's leaf. Without a concurrent split it is the key's leaf.
    fn descend<K: KeySource>(&self, prefix: u64, key: &K::Key, keys: &K, path: &mut Path) -> u32 {
        let (height, mut node) = split_root(self.root.load(Ordering::Acquire));
        for step in &mut path.steps[..height] {
            loop {
                let branch = self.branches.get(node);
                let (child, at, is_last) = branch.child_of(prefix, key, keys);
                let next = if is_last { branch.node().next() } else { NONE };
                if next == NONE || self.branches.get(next).node().is_above(prefix, key, keys) {
                    (*step, node) = ((node, at), child);
                    break;
                }
                node = next;
            }
        }
        node
    }

    /// Returns true if there is a leaf `next` and its lowest key is not above `key`.
    fn starts_at_or_below<K: KeySource>(&self, next: u32, prefix: u64, key: &K::Key, keys: &K) -> bool {
        next != NONE && !self.leaves.get(next).is_above(prefix, key, keys)
    }
}

/// Operations of the one writer.
impl RowTree {
    /// Returns the row with this key, or the position to pass to [`RowTree::insert`].
    pub(crate) fn slot_of<K: KeySource>(&self, key: &K::Key, keys: &K) -> Result<u32, InsertPosition> {
        let prefix = keys.prefix(key);
        let (leaf, found) = match self.hinted_leaf(prefix, key, keys) {
            Some(leaf) => (leaf, self.leaves.get(leaf).search(prefix, key, keys)),
            None => self.locate(key, keys),
        };
        match found {
            NodeSearch::Row(row) => Ok(row),
            NodeSearch::At { at, .. } => Err(InsertPosition { leaf, at }),
        }
    }

    /// Inserts `row` with key `key` at the position that [`RowTree::slot_of`] returned. Nothing may be inserted in
    /// between.
    pub(crate) fn insert<K: KeySource>(&self, slot: InsertPosition, row: u32, key: &K::Key, keys: &K) {
        let entry = LeafEntry { prefix: keys.prefix(key), row };
        let leaf = self.leaves.get(slot.leaf);
        if leaf.len() < CAPACITY {
            self.hint.store(slot.leaf, Ordering::Relaxed);
            return leaf.insert(slot.at, entry);
        }
        let mut path = Path::default();
        let found = self.descend(entry.prefix, key, keys, &mut path);
        debug_assert_eq!(found, slot.leaf, "no split is in progress for the writer");
        self.split_leaf(slot, entry, &path);
    }

    /// Returns the leaf of the last insert, if `key` belongs there.
    fn hinted_leaf<K: KeySource>(&self, prefix: u64, key: &K::Key, keys: &K) -> Option<u32> {
        let hint = self.hint.load(Ordering::Relaxed);
        let leaf = self.leaves.get(hint);
        // Leaf 0 is the leftmost one, so no key is below it.
        if hint != 0 && leaf.is_above(prefix, key, keys) {
            return None;
        }
        (!self.starts_at_or_below(leaf.next(), prefix, key, keys)).then_some(hint)
    }

    fn split_leaf(&self, slot: InsertPosition, entry: LeafEntry, path: &Path) {
        let leaf = self.leaves.get(slot.leaf);
        let split = Split::of(leaf.len(), slot.at);
        let upper = self.leaves.push(|upper| {
            (split.keep..leaf.len()).for_each(|at| upper.insert(at - split.keep, leaf.entry(at)));
            if !split.inserts_left {
                upper.insert(slot.at - split.keep, entry);
            }
            upper.set_next(leaf.next());
        });
        leaf.set_next(upper);
        let height = split_root(self.root.load(Ordering::Relaxed)).0;
        self.add_child(path, height, self.leaves.get(upper).entry(0), upper);
        if split.keep < leaf.len() {
            leaf.keep_first(split.keep);
        }
        if split.inserts_left {
            leaf.insert(slot.at, entry);
        }
        self.hint.store(if split.inserts_left { slot.leaf } else { upper }, Ordering::Relaxed);
    }

    /// Adds `child`, whose lowest key is `lowest`, to the parent, beside the node of `level` that it was split from.
    fn add_child(&self, path: &Path, level: usize, lowest: LeafEntry, child: u32) {
        if level == 0 {
            return self.grow_root(lowest, child);
        }
        let (number, taken) = path.steps[level - 1];
        let (branch, at) = (self.branches.get(number), taken + 1);
        let node = branch.node();
        if node.len() < CAPACITY {
            return branch.insert(at, lowest, child);
        }
        let split = Split::of(node.len(), at);
        let upper = self.branches.push(|upper| {
            (split.keep..node.len())
                .for_each(|at| upper.insert(at - split.keep, node.entry(at), branch.child(at)));
            if !split.inserts_left {
                upper.insert(at - split.keep, lowest, child);
            }
            upper.node().set_next(node.next());
        });
        node.set_next(upper);
        self.add_child(path, level - 1, self.branches.get(upper).node().entry(0), upper);
        if split.keep < node.len() {
            node.keep_first(split.keep);
        }
        if split.inserts_left {
            branch.insert(at, lowest, child);
        }
    }

    fn grow_root(&self, lowest: LeafEntry, right: u32) {
        let (height, left) = split_root(self.root.load(Ordering::Relaxed));
        let root = self.branches.push(|root| {
            root.insert(0, LeafEntry { prefix: 0, row: NONE }, left);
            root.insert(1, lowest, right);
        });
        self.root.store((height as u64 + 1) << 32 | u64::from(root), Ordering::Release);
    }
}

/// Split of a full node for an entry that belongs before entry `at`. A node that grows at its end keeps all entries, so
/// ascending keys leave full nodes.
struct Split {
    keep: usize,
    inserts_left: bool,
}

impl Split {
    fn of(len: usize, at: usize) -> Split {
        let keep = if at == len { len } else { len / 2 };
        // The upper node's lowest entry must be one of the lower node's entries. A new entry before it goes to the
        // left.
        Split { keep, inserts_left: at < len && at <= keep }
    }
}

/// Returns the height of the tree and its topmost node.
fn split_root(root: u64) -> (usize, u32) {
    ((root >> 32) as usize, root as u32)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cmp::Ordering as Compared;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::cfile::key_prefix::key_prefix;

    #[derive(Default)]
    struct Stored(Vec<Vec<u8>>);

    impl KeySource for Stored {
        type Key = [u8];

        fn prefix(&self, key: &[u8]) -> u64 {
            key_prefix(key)
        }

        fn compare(&self, row: u32, key: &[u8]) -> Compared {
            self.0[row as usize][..].cmp(key)
        }

        fn compare_rows(&self, row: u32, other: u32) -> Compared {
            self.0[row as usize].cmp(&self.0[other as usize])
        }
    }

    /// Inserts absent keys, and checks order, lookups and seeks against a map.
    fn check(keys: impl IntoIterator<Item = Vec<u8>>) -> RowTree {
        let (tree, mut stored, mut model) = (RowTree::default(), Stored::default(), BTreeMap::new());
        for key in keys {
            match tree.slot_of(&key[..], &stored) {
                Ok(row) => assert_eq!(model.get(&key), Some(&row)),
                Err(slot) => {
                    let row = stored.0.len() as u32;
                    stored.0.push(key.clone());
                    tree.insert(slot, row, &key[..], &stored);
                    assert_eq!(model.insert(key, row), None);
                }
            }
        }
        let mut cursor = tree.seek(&b""[..], &stored);
        for row in model.values() {
            assert_eq!(tree.next(&mut cursor, &stored), Some(*row));
        }
        assert_eq!(tree.next(&mut cursor, &stored), None);
        for (key, row) in &model {
            assert_eq!(tree.find(&key[..], &stored), Some(*row));
            let above = [key, &[0][..]].concat();
            let after = model.range(above.clone()..).next().map(|(_, row)| *row);
            let mut cursor = tree.seek(&above[..], &stored);
            assert_eq!(tree.next(&mut cursor, &stored), after);
        }
        tree
    }

    const MANY: u32 = if cfg!(miri) { 300 } else { 20_000 };

    #[test]
    fn ascending_keys_fill_their_nodes() {
        let tree = check((0..MANY).map(|i| i.to_be_bytes().to_vec()));
        let leaves = (MANY as usize).div_ceil(CAPACITY);
        assert_eq!(tree.leaves.len(), leaves);
        assert!(tree.branches.len() <= leaves.div_ceil(CAPACITY - 1) + CAPACITY);
    }

    #[test]
    fn descending_scattered_and_interleaved_keys_are_sorted() {
        check((0..MANY).rev().map(|i| i.to_be_bytes().to_vec()));
        check((0..MANY).map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes().to_vec()));
        check((0..MANY).map(|i| (((i % 2) << 16) | (i / 2)).to_be_bytes().to_vec()));
        check((0..MANY).map(|i| format!("a long common prefix {:05}", i * 7_919 % 9_001).into_bytes()));
    }

    const SOME: usize = if cfg!(miri) { 60 } else { 600 };

    proptest! {
        #![proptest_config(super::super::testing())]

        #[test]
        fn agrees_with_a_map(keys in prop::collection::vec(prop::collection::vec(0u8..3, 0..12), 0..SOME)) {
            check(keys);
        }
    }
}
