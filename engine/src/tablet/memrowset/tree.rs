//! A B+-tree of row numbers in key order.
//!
//! ```text
//!          branch   ─  │ k1 │ k2 │            lowest key of each child but the first
//!                   ↓    ↓    ↓
//!   leaf  r7 r3 r9 → r1 r4 → r2 r8 …          rows in key order, leaves linked to the right
//! ```
//!
//! Keys live elsewhere ([`Keys`]); a node keeps each key's first eight bytes beside the row, which decide most
//! comparisons. Rows are never removed. Ascending keys cost one comparison and one store: the leaf of the last
//! insert is tried first, and a full leaf that grows at its end leaves its rows where they are.

/// Where the keys of rows are.
pub trait Keys {
    fn key(&self, row: u32) -> &[u8];
}

const CAPACITY: usize = 64;
const NONE: u32 = u32::MAX;
/// More levels than 2^32 rows can need.
const LEVELS_MAX: usize = 12;

/// `len` entries: a key's prefix and the row it belongs to.
struct Entries {
    len: usize,
    prefixes: [u64; CAPACITY],
    rows: [u32; CAPACITY],
}

struct Leaf {
    entries: Entries,
    next: u32,
}

/// Entry `i` is the lowest key below `children[i]`; entry 0 stands for everything lower and is not looked at.
struct Branch {
    entries: Entries,
    children: [u32; CAPACITY],
}

pub struct Tree {
    leaves: Vec<Leaf>,
    branches: Vec<Branch>,
    root: u32,
    /// Levels of branches above the leaves.
    height: usize,
    /// The leaf of the last insert.
    hint: u32,
}

/// A place between rows, for reading on.
#[derive(Debug, Clone, Copy)]
pub struct Cursor {
    leaf: u32,
    at: usize,
}

/// Where a key that is not there belongs.
#[derive(Debug, Clone, Copy)]
pub struct Slot {
    leaf: u32,
    at: usize,
}

/// The branches passed on the way down, and the child taken in each.
#[derive(Default)]
struct Path {
    steps: [(u32, usize); LEVELS_MAX],
}

impl Default for Tree {
    fn default() -> Tree {
        let root = Leaf { entries: Entries::new(), next: NONE };
        Tree { leaves: vec![root], branches: Vec::new(), root: 0, height: 0, hint: 0 }
    }
}

impl Tree {
    /// The row with this key, or the slot to give to [`Tree::insert`] next.
    pub fn find(&self, key: &[u8], keys: &impl Keys) -> Result<u32, Slot> {
        let prefix = prefix(key);
        let leaf = match self.hinted(prefix, key, keys) {
            Some(leaf) => leaf,
            None => self.descend(prefix, key, keys, &mut Path::default()),
        };
        let entries = &self.leaves[leaf as usize].entries;
        match entries.search(prefix, key, keys) {
            Ok(at) => Ok(entries.rows[at]),
            Err(at) => Err(Slot { leaf, at }),
        }
    }

    /// Puts `row` where [`Tree::find`] found no such key. Nothing was inserted in between.
    pub fn insert(&mut self, slot: Slot, row: u32, keys: &impl Keys) {
        let key = keys.key(row);
        let leaf = &mut self.leaves[slot.leaf as usize];
        self.hint = slot.leaf;
        if leaf.entries.len < CAPACITY {
            leaf.entries.insert(slot.at, prefix(key), row);
        } else {
            self.split_leaf(slot, row, keys);
        }
    }

    /// The first row whose key is not below `key`.
    pub fn seek(&self, key: &[u8], keys: &impl Keys) -> Cursor {
        let prefix = prefix(key);
        let leaf = self.descend(prefix, key, keys, &mut Path::default());
        let found = self.leaves[leaf as usize].entries.search(prefix, key, keys);
        let (Ok(at) | Err(at)) = found;
        Cursor { leaf, at }
    }

    /// The row at the cursor, which moves on; `None` at the end.
    pub fn next(&self, cursor: &mut Cursor) -> Option<u32> {
        loop {
            let leaf = &self.leaves[cursor.leaf as usize];
            if cursor.at < leaf.entries.len {
                cursor.at += 1;
                return Some(leaf.entries.rows[cursor.at - 1]);
            }
            if leaf.next == NONE {
                return None;
            }
            *cursor = Cursor { leaf: leaf.next, at: 0 };
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.leaves.capacity() * size_of::<Leaf>() + self.branches.capacity() * size_of::<Branch>()
    }

    /// The leaf of the last insert, if it is where `key` belongs.
    fn hinted(&self, prefix: u64, key: &[u8], keys: &impl Keys) -> Option<u32> {
        let leaf = &self.leaves[self.hint as usize];
        if leaf.entries.len == 0 || leaf.entries.is_above(0, prefix, key, keys) {
            return None;
        }
        let below_next =
            leaf.next == NONE || self.leaves[leaf.next as usize].entries.is_above(0, prefix, key, keys);
        below_next.then_some(self.hint)
    }

    fn descend(&self, prefix: u64, key: &[u8], keys: &impl Keys, path: &mut Path) -> u32 {
        let mut node = self.root;
        for level in 0..self.height {
            let branch = &self.branches[node as usize];
            let child = branch.entries.child_of(prefix, key, keys);
            path.steps[level] = (node, child);
            node = branch.children[child];
        }
        node
    }

    fn split_leaf(&mut self, slot: Slot, row: u32, keys: &impl Keys) {
        let key = keys.key(row);
        let mut path = Path::default();
        let found = self.descend(prefix(key), key, keys, &mut path);
        debug_assert_eq!(found, slot.leaf);
        let new = self.leaves.len() as u32;
        let leaf = &mut self.leaves[slot.leaf as usize];
        let upper = leaf.entries.split(slot.at, prefix(key), row);
        let separator = (upper.prefixes[0], upper.rows[0]);
        let next = std::mem::replace(&mut leaf.next, new);
        let went_right = upper.rows[..upper.len].contains(&row);
        self.leaves.push(Leaf { entries: upper, next });
        self.hint = if went_right { new } else { slot.leaf };
        self.add_child(&path, self.height, separator, new);
    }

    /// Puts `child`, whose lowest key is `separator`, beside the node that was split at `level`.
    fn add_child(&mut self, path: &Path, level: usize, separator: (u64, u32), child: u32) {
        if level == 0 {
            return self.grow_root(separator, child);
        }
        let (node, taken) = path.steps[level - 1];
        let at = taken + 1;
        let branch = &mut self.branches[node as usize];
        if branch.entries.len < CAPACITY {
            return branch.insert(at, separator, child);
        }
        let upper = branch.split(at, separator, child);
        let separator = (upper.entries.prefixes[0], upper.entries.rows[0]);
        let new = self.branches.len() as u32;
        self.branches.push(upper);
        self.add_child(path, level - 1, separator, new);
    }

    fn grow_root(&mut self, separator: (u64, u32), right: u32) {
        let mut root = Branch { entries: Entries::new(), children: [NONE; CAPACITY] };
        root.insert(0, (0, NONE), self.root);
        root.insert(1, separator, right);
        self.root = self.branches.len() as u32;
        self.branches.push(root);
        self.height += 1;
    }
}

impl Entries {
    fn new() -> Entries {
        Entries { len: 0, prefixes: [0; CAPACITY], rows: [NONE; CAPACITY] }
    }

    /// Whether entry `at` has a greater key.
    #[inline]
    fn is_above(&self, at: usize, prefix: u64, key: &[u8], keys: &impl Keys) -> bool {
        match self.prefixes[at].cmp(&prefix) {
            std::cmp::Ordering::Equal => keys.key(self.rows[at]) > key,
            other => other.is_gt(),
        }
    }

    /// The entry with this key, or where it belongs.
    fn search(&self, prefix: u64, key: &[u8], keys: &impl Keys) -> Result<usize, usize> {
        if self.len > 0 && self.prefixes[self.len - 1] < prefix {
            return Err(self.len);
        }
        let prefixes = &self.prefixes[..self.len];
        let low = prefixes.partition_point(|p| *p < prefix);
        let same = prefixes[low..].partition_point(|p| *p == prefix);
        let found = self.rows[low..low + same].binary_search_by(|row| keys.key(*row).cmp(key));
        found.map(|at| low + at).map_err(|at| low + at)
    }

    /// Which child of a branch covers `key`.
    fn child_of(&self, prefix: u64, key: &[u8], keys: &impl Keys) -> usize {
        let prefixes = &self.prefixes[1..self.len];
        let low = prefixes.partition_point(|p| *p < prefix);
        let same = prefixes[low..].partition_point(|p| *p == prefix);
        let rows = &self.rows[1 + low..1 + low + same];
        low + rows.partition_point(|row| keys.key(*row) <= key)
    }

    fn insert(&mut self, at: usize, prefix: u64, row: u32) {
        self.prefixes.copy_within(at..self.len, at + 1);
        self.rows.copy_within(at..self.len, at + 1);
        self.prefixes[at] = prefix;
        self.rows[at] = row;
        self.len += 1;
    }

    /// Moves the upper entries out of a full node and puts the new one where it belongs. What grows at its end
    /// keeps all it has, so that ascending keys leave full nodes behind.
    fn split(&mut self, at: usize, prefix: u64, row: u32) -> Entries {
        let keep = if at == self.len { self.len } else { self.len / 2 };
        let mut upper = Entries::new();
        upper.len = self.len - keep;
        upper.prefixes[..upper.len].copy_from_slice(&self.prefixes[keep..self.len]);
        upper.rows[..upper.len].copy_from_slice(&self.rows[keep..self.len]);
        self.len = keep;
        if at < keep || (at == keep && upper.len > 0) {
            self.insert(at, prefix, row);
        } else {
            upper.insert(at - keep, prefix, row);
        }
        upper
    }
}

impl Branch {
    fn insert(&mut self, at: usize, separator: (u64, u32), child: u32) {
        self.children.copy_within(at..self.entries.len, at + 1);
        self.children[at] = child;
        self.entries.insert(at, separator.0, separator.1);
    }

    fn split(&mut self, at: usize, separator: (u64, u32), child: u32) -> Branch {
        let before = self.entries.len;
        let entries = self.entries.split(at, separator.0, separator.1);
        let (lower_len, mut children) = (self.entries.len, [NONE; CAPACITY]);
        let mut all = [NONE; CAPACITY + 1];
        all[..at].copy_from_slice(&self.children[..at]);
        all[at] = child;
        all[at + 1..before + 1].copy_from_slice(&self.children[at..before]);
        children[..entries.len].copy_from_slice(&all[lower_len..lower_len + entries.len]);
        self.children[..lower_len].copy_from_slice(&all[..lower_len]);
        Branch { entries, children }
    }
}

/// The first eight bytes of a key as a number that compares as they do; shorter keys are padded with zeros,
/// so equal prefixes decide nothing.
fn prefix(key: &[u8]) -> u64 {
    match key.first_chunk::<8>() {
        Some(first) => u64::from_be_bytes(*first),
        None => {
            let mut padded = [0; 8];
            padded[..key.len()].copy_from_slice(key);
            u64::from_be_bytes(padded)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Default)]
    struct Stored(Vec<Vec<u8>>);

    impl Keys for Stored {
        fn key(&self, row: u32) -> &[u8] {
            &self.0[row as usize]
        }
    }

    /// Inserts what is not there and checks order, lookups and seeks against a map.
    fn check(keys: impl IntoIterator<Item = Vec<u8>>) -> Tree {
        let (mut tree, mut stored, mut model) = (Tree::default(), Stored::default(), BTreeMap::new());
        for key in keys {
            match tree.find(&key, &stored) {
                Ok(row) => assert_eq!(model.get(&key), Some(&row)),
                Err(slot) => {
                    let row = stored.0.len() as u32;
                    stored.0.push(key.clone());
                    tree.insert(slot, row, &stored);
                    assert_eq!(model.insert(key, row), None);
                }
            }
        }
        let mut cursor = tree.seek(b"", &stored);
        for row in model.values() {
            assert_eq!(tree.next(&mut cursor), Some(*row));
        }
        assert_eq!(tree.next(&mut cursor), None);
        for (key, row) in &model {
            assert_eq!(tree.find(key, &stored).ok(), Some(*row));
            let above = [key, &[0][..]].concat();
            let after = model.range(above.clone()..).next().map(|(_, row)| *row);
            let mut cursor = tree.seek(&above, &stored);
            assert_eq!(tree.next(&mut cursor), after);
        }
        tree
    }

    #[test]
    fn ascending_keys_fill_their_leaves() {
        let tree = check((0..20_000u32).map(|i| i.to_be_bytes().to_vec()));
        assert_eq!(tree.leaves.len(), 20_000usize.div_ceil(CAPACITY));
        assert_eq!(tree.height, 2);
    }

    #[test]
    fn other_orders_work_too() {
        check((0..9_000u32).rev().map(|i| i.to_be_bytes().to_vec()));
        check((0..9_000u32).map(|i| i.wrapping_mul(2_654_435_761).to_be_bytes().to_vec()));
        check((0..9_000u32).map(|i| (((i % 2) << 16) | (i / 2)).to_be_bytes().to_vec()));
        check((0..9_000u32).map(|i| format!("a long common prefix {:05}", i * 7_919 % 9_001).into_bytes()));
    }

    proptest! {
        #[test]
        fn agrees_with_a_map(keys in prop::collection::vec(prop::collection::vec(0u8..3, 0..12), 0..600)) {
            check(keys);
        }
    }
}
