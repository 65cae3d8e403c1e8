//! A node of the tree: entries in key order, which readers read while the writer adds more.
//!
//! ```text
//!   order    3 │ 1 0 2 │ 3 4 …         number of entries, their slots in key order; then the free slots
//!   slots    0: prefix, row    1: prefix, row    2: …
//! ```
//!
//! An entry is written to a free slot, then one store of `order` makes it part of the node. So a reader of `order` has
//! a consistent version of the node, and the slots it reads do not change. There is one exception: a node that is split
//! drops its upper entries, and their slots are reused. Order: `splits` is incremented before a slot is reused. A
//! reader that finds the same count after reading slots has read the right entries; otherwise it retries. It never
//! waits for the writer: the node is readable at every step of the writer.

use std::cmp::Ordering as Compared;

use super::NONE;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Entries of a node. With 14, a node's fields fill three cache lines, and its order fits into a word.
pub(crate) const CAPACITY: usize = if cfg!(loom) { 3 } else { 14 };

/// Access to the keys of rows.
pub(crate) trait KeySource {
    type Key: ?Sized;

    /// Returns a prefix that decides most comparisons. Invariant: of two keys, the lower one's prefix is not higher.
    fn prefix(&self, key: &Self::Key) -> u64;

    /// Compares a row's key to `key`.
    fn compare(&self, row: u32, key: &Self::Key) -> Compared;

    /// Compares the keys of two rows.
    fn compare_rows(&self, row: u32, other: u32) -> Compared;
}

/// A key's prefix and the key's row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeafEntry {
    pub prefix: u64,
    pub row: u32,
}

/// A leaf, or the part of a branch that has the layout of a leaf.
#[repr(C, align(64))]
pub(crate) struct LeafNode {
    order: AtomicU64,
    splits: AtomicU64,
    prefixes: [AtomicU64; CAPACITY],
    rows: [AtomicU32; CAPACITY],
    /// The node to the right on the same level. Its lowest entry stays in its slot 0.
    next: AtomicU32,
}

/// A branch. Entry `i` is the lowest key below `children[i]`. Entry 0 of the leftmost branch of a level covers
/// everything lower and is not compared.
#[repr(C)]
pub(crate) struct BranchNode {
    node: LeafNode,
    children: [AtomicU32; CAPACITY],
}

/// Result of a search for a key in a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeSearch {
    /// The entry with the key exists.
    Row(u32),
    /// The key belongs before entry `at`, or after the last one if `is_last`: in this node or in a node to the right.
    At { at: usize, is_last: bool },
}

/// The rows of a leaf at one point in time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeafRows {
    pub rows: [u32; CAPACITY],
    pub len: usize,
    pub next: u32,
    /// Prefixes of the first and the last row's keys, if there are rows.
    pub prefixes: Option<(u64, u64)>,
}

impl LeafRows {
    /// Returns the number of rows of the leaf to the right that are among these. There are some if this leaf was read
    /// before a split dropped its upper entries. Usually the prefixes show that there are none, and no key is read from
    /// memory.
    pub(crate) fn seen_of<K: KeySource>(&self, right: &LeafRows, keys: &K) -> usize {
        let (Some((_, ours)), Some((theirs, _))) = (self.prefixes, right.prefixes) else { return 0 };
        if ours < theirs {
            return 0;
        }
        let last = self.rows[self.len - 1];
        right.rows[..right.len].iter().take_while(|row| keys.compare_rows(**row, last).is_le()).count()
    }
}

/// The number of entries of a node, and their slots in key order; then the free slots. Four bits each.
#[derive(Clone, Copy)]
struct Order(u64);

impl Order {
    /// No entry; the free slots ascend.
    const EMPTY: Order = Order(0x0dcb_a987_6543_2100);

    fn len(self) -> usize {
        (self.0 & 0xf) as usize
    }

    fn slot(self, at: usize) -> usize {
        (self.0 >> (4 + 4 * at) & 0xf) as usize
    }

    /// Returns the order with the first free slot as the new entry `at`.
    fn with_entry(self, at: usize) -> Order {
        let (len, slots) = (self.len(), self.0 >> 4);
        let below = |at: usize| (1 << (4 * at)) - 1;
        let moved = slots & below(len) & !below(at);
        let slots =
            slots & below(at) | (self.slot(len) as u64) << (4 * at) | moved << 4 | slots & !below(len + 1);
        Order(slots << 4 | (len as u64 + 1))
    }

    /// Returns the order with the first `len` entries; the slots of the others are free.
    fn first(self, len: usize) -> Order {
        Order(self.0 & !0xf | len as u64)
    }
}

impl Default for LeafNode {
    fn default() -> LeafNode {
        LeafNode {
            order: AtomicU64::new(Order::EMPTY.0),
            splits: AtomicU64::new(0),
            prefixes: std::array::from_fn(|_| AtomicU64::new(0)),
            rows: std::array::from_fn(|_| AtomicU32::new(NONE)),
            next: AtomicU32::new(NONE),
        }
    }
}

impl Default for BranchNode {
    fn default() -> BranchNode {
        BranchNode { node: LeafNode::default(), children: std::array::from_fn(|_| AtomicU32::new(NONE)) }
    }
}

/// Operations of readers.
impl LeafNode {
    /// Returns the node to the right, or `NONE` if this is the last one. Order: readers read it after the entries. An
    /// entry that has moved away is at or after the start of that node.
    pub(crate) fn next(&self) -> u32 {
        self.next.load(Ordering::Acquire)
    }

    /// Returns true if all of this node's keys are above `key`. The node must not be the leftmost of its level.
    #[inline]
    pub(crate) fn is_above<K: KeySource>(&self, prefix: u64, key: &K::Key, keys: &K) -> bool {
        self.compare(0, prefix, key, keys).is_gt()
    }

    /// Searches `key` among the entries of a leaf.
    pub(crate) fn search<K: KeySource>(&self, prefix: u64, key: &K::Key, keys: &K) -> NodeSearch {
        self.read(|order| {
            let len = order.len();
            if len > 0 && self.compare(order.slot(len - 1), prefix, key, keys).is_lt() {
                return NodeSearch::At { at: len, is_last: true };
            }
            let (mut low, mut high) = (0, len);
            while low < high {
                let middle = (low + high) / 2;
                match self.compare(order.slot(middle), prefix, key, keys) {
                    Compared::Less => low = middle + 1,
                    Compared::Greater => high = middle,
                    Compared::Equal => return NodeSearch::Row(self.row(order.slot(middle))),
                }
            }
            NodeSearch::At { at: low, is_last: low == len }
        })
    }

    /// Returns all rows in order.
    pub(crate) fn rows(&self) -> LeafRows {
        self.read(|order| {
            let (mut rows, len) = ([NONE; CAPACITY], order.len());
            rows.iter_mut().take(len).enumerate().for_each(|(at, row)| *row = self.row(order.slot(at)));
            let prefix = |at: usize| self.prefixes[order.slot(at)].load(Ordering::Acquire);
            let prefixes = (len > 0).then(|| (prefix(0), prefix(len - 1)));
            LeafRows { rows, len, next: self.next(), prefixes }
        })
    }

    /// Calls `read` on the entries until `splits` does not change during the call; then the slots are those of the
    /// given order. Order: a slot is refilled only after `splits` is incremented. A reader of the new content sees the
    /// increment, too.
    #[inline]
    fn read<R>(&self, read: impl Fn(Order) -> R) -> R {
        loop {
            let splits = self.splits.load(Ordering::Acquire);
            let result = read(Order(self.order.load(Ordering::Acquire)));
            if self.splits.load(Ordering::Relaxed) == splits {
                return result;
            }
        }
    }

    fn row(&self, slot: usize) -> u32 {
        self.rows[slot].load(Ordering::Acquire)
    }

    #[inline]
    fn compare<K: KeySource>(&self, slot: usize, prefix: u64, key: &K::Key, keys: &K) -> Compared {
        let ours = self.prefixes[slot].load(Ordering::Acquire);
        ours.cmp(&prefix).then_with(|| keys.compare(self.row(slot), key))
    }
}

/// Operations of the one writer.
impl LeafNode {
    pub(crate) fn len(&self) -> usize {
        self.order().len()
    }

    pub(crate) fn entry(&self, at: usize) -> LeafEntry {
        let slot = self.order().slot(at);
        LeafEntry { prefix: self.prefixes[slot].load(Ordering::Relaxed), row: self.row(slot) }
    }

    /// Adds an entry before entry `at`. The node must not be full.
    pub(crate) fn insert(&self, at: usize, entry: LeafEntry) {
        let order = self.order();
        let slot = order.slot(order.len());
        self.prefixes[slot].store(entry.prefix, Ordering::Release);
        self.rows[slot].store(entry.row, Ordering::Release);
        self.order.store(order.with_entry(at).0, Ordering::Release);
    }

    pub(crate) fn set_next(&self, next: u32) {
        self.next.store(next, Ordering::Release);
    }

    /// Drops the entries from `len` on, which must be in a node to the right that readers can reach.
    pub(crate) fn keep_first(&self, len: usize) {
        self.order.store(self.order().first(len).0, Ordering::Release);
        self.splits.store(self.splits.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    fn order(&self) -> Order {
        Order(self.order.load(Ordering::Relaxed))
    }
}

impl BranchNode {
    pub(crate) fn node(&self) -> &LeafNode {
        &self.node
    }

    /// Returns the child that covers `key`, its index, and true if it is the last one: then `key` may be further right.
    pub(crate) fn child_of<K: KeySource>(&self, prefix: u64, key: &K::Key, keys: &K) -> (u32, usize, bool) {
        self.node.read(|order| {
            let (mut low, mut high) = (1, order.len());
            while low < high {
                let middle = (low + high) / 2;
                match self.node.compare(order.slot(middle), prefix, key, keys) {
                    Compared::Greater => high = middle,
                    _ => low = middle + 1,
                }
            }
            (self.children[order.slot(low - 1)].load(Ordering::Acquire), low - 1, low == order.len())
        })
    }

    /// Returns the child of entry `at`. Only the writer calls this.
    pub(crate) fn child(&self, at: usize) -> u32 {
        self.children[self.node.order().slot(at)].load(Ordering::Relaxed)
    }

    /// Adds an entry and its child before entry `at`. Only the writer calls this, and the node must not be full.
    pub(crate) fn insert(&self, at: usize, entry: LeafEntry, child: u32) {
        let order = self.node.order();
        self.children[order.slot(order.len())].store(child, Ordering::Release);
        self.node.insert(at, entry);
    }
}

const _: () = assert!(cfg!(loom) || size_of::<LeafNode>() == 3 * 64);
const _: () = assert!(cfg!(loom) || size_of::<BranchNode>() == 4 * 64);

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slots(order: Order) -> Vec<usize> {
        (0..CAPACITY).map(|at| order.slot(at)).collect()
    }

    #[test]
    fn an_empty_order_has_all_slots_free() {
        assert_eq!((Order::EMPTY.len(), slots(Order::EMPTY)), (0, (0..CAPACITY).collect()));
    }

    proptest! {
        #![proptest_config(super::super::testing())]

        #[test]
        fn orders_are_permutations(steps in prop::collection::vec((any::<bool>(), 0usize..=CAPACITY), 0..60)) {
            let (mut order, mut model): (_, Vec<usize>) = (Order::EMPTY, Vec::new());
            for (splits, at) in steps {
                let at = at.min(model.len());
                if splits {
                    (order, _) = (order.first(at), model.truncate(at));
                } else if model.len() < CAPACITY {
                    model.insert(at, order.slot(model.len()));
                    order = order.with_entry(at);
                }
                prop_assert_eq!(&slots(order)[..order.len()], &model[..]);
                let mut all = slots(order);
                all.sort();
                prop_assert_eq!(all, (0..CAPACITY).collect::<Vec<_>>());
            }
        }
    }
}
