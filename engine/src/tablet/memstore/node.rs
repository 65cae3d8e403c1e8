//! A node of the tree: entries in order of their keys, which readers read while the writer adds more.
//!
//! ```text
//!   order    3 │ 1 0 2 │ 3 4 …         how many entries, their slots in order of keys; then the free slots
//!   slots    0: prefix, row    1: prefix, row    2: …
//! ```
//!
//! An entry is put into a free slot, and then one store of `order` makes it part of the node. So whoever has read
//! `order` has the node as it was at that moment, and reads slots that do not change; with one exception. A node that
//! is split gives up its upper entries, and their slots are used again. Before that happens `splits` is counted up: a
//! reader that finds the same count after reading slots has read the right entries, another one reads again. It never
//! waits for the writer: whatever the writer is about, the node can be read.

use std::cmp::Ordering as Compared;

use super::NONE;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Entries of a node. With 14, a node's fields fill three cache lines, and its order fits into a word.
pub const CAPACITY: usize = if cfg!(loom) { 3 } else { 14 };

/// Where the keys of rows are.
pub trait Keys {
    type Key: ?Sized;

    /// What decides most comparisons: of two keys the lower one's is not higher.
    fn prefix(&self, key: &Self::Key) -> u64;

    /// Compares a row's key to `key`.
    fn compare(&self, row: u32, key: &Self::Key) -> Compared;

    /// Compares the keys of two rows.
    fn compare_rows(&self, row: u32, other: u32) -> Compared;
}

/// A key's prefix and the row it belongs to.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub prefix: u64,
    pub row: u32,
}

/// A leaf, or the part of a branch that is like a leaf.
#[repr(C, align(64))]
pub struct Node {
    order: AtomicU64,
    splits: AtomicU64,
    prefixes: [AtomicU64; CAPACITY],
    rows: [AtomicU32; CAPACITY],
    /// The node to the right on the same level; its lowest entry stays in its slot 0.
    next: AtomicU32,
}

/// Entry `i` is the lowest key below `children[i]`; entry 0 of the leftmost branch of a level stands for everything
/// lower and is not looked at.
#[repr(C)]
pub struct Branch {
    node: Node,
    children: [AtomicU32; CAPACITY],
}

/// How a key stands to the entries of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// An entry has it.
    Row(u32),
    /// It belongs before entry `at`, or behind the last if `is_last`: there or in a node to the right.
    At { at: usize, is_last: bool },
}

/// The rows of a leaf at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    pub rows: [u32; CAPACITY],
    pub len: usize,
    pub next: u32,
    /// Prefixes of the first and the last row's keys, if there are rows.
    pub prefixes: Option<(u64, u64)>,
}

impl Rows {
    /// How many rows of the leaf to the right are among these. Some are if this leaf was read before it gave its
    /// upper entries up. Mostly prefixes tell that none are, and no key needs to be fetched from far.
    pub fn seen_of<K: Keys>(&self, right: &Rows, keys: &K) -> usize {
        let (Some((_, ours)), Some((theirs, _))) = (self.prefixes, right.prefixes) else { return 0 };
        if ours < theirs {
            return 0;
        }
        let last = self.rows[self.len - 1];
        right.rows[..right.len].iter().take_while(|row| keys.compare_rows(**row, last).is_le()).count()
    }
}

/// How many entries a node has, and in which slots, in order; then the free slots. Four bits each.
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

    /// The first free slot becomes that of a new entry `at`.
    fn with_entry(self, at: usize) -> Order {
        let (len, slots) = (self.len(), self.0 >> 4);
        let below = |at: usize| (1 << (4 * at)) - 1;
        let moved = slots & below(len) & !below(at);
        let slots =
            slots & below(at) | (self.slot(len) as u64) << (4 * at) | moved << 4 | slots & !below(len + 1);
        Order(slots << 4 | (len as u64 + 1))
    }

    /// The first `len` entries; the slots of the others are free.
    fn first(self, len: usize) -> Order {
        Order(self.0 & !0xf | len as u64)
    }
}

impl Default for Node {
    fn default() -> Node {
        Node {
            order: AtomicU64::new(Order::EMPTY.0),
            splits: AtomicU64::new(0),
            prefixes: std::array::from_fn(|_| AtomicU64::new(0)),
            rows: std::array::from_fn(|_| AtomicU32::new(NONE)),
            next: AtomicU32::new(NONE),
        }
    }
}

impl Default for Branch {
    fn default() -> Branch {
        Branch { node: Node::default(), children: std::array::from_fn(|_| AtomicU32::new(NONE)) }
    }
}

/// What every reader may do.
impl Node {
    /// The node to the right; `NONE` if this is the last one. Readers look at it after the entries: whatever is not
    /// there any more is to the right of that node's beginning.
    pub fn next(&self) -> u32 {
        self.next.load(Ordering::Acquire)
    }

    /// Whether all of this node's keys, which is not the leftmost of its level, are above `key`.
    #[inline]
    pub fn is_above<K: Keys>(&self, prefix: u64, key: &K::Key, keys: &K) -> bool {
        self.compare(0, prefix, key, keys).is_gt()
    }

    /// Where `key` stands among the entries of a leaf.
    pub fn search<K: Keys>(&self, prefix: u64, key: &K::Key, keys: &K) -> Found {
        self.read(|order| {
            let len = order.len();
            if len > 0 && self.compare(order.slot(len - 1), prefix, key, keys).is_lt() {
                return Found::At { at: len, is_last: true };
            }
            let (mut low, mut high) = (0, len);
            while low < high {
                let middle = (low + high) / 2;
                match self.compare(order.slot(middle), prefix, key, keys) {
                    Compared::Less => low = middle + 1,
                    Compared::Greater => high = middle,
                    Compared::Equal => return Found::Row(self.row(order.slot(middle))),
                }
            }
            Found::At { at: low, is_last: low == len }
        })
    }

    /// All rows in order.
    pub fn rows(&self) -> Rows {
        self.read(|order| {
            let (mut rows, len) = ([NONE; CAPACITY], order.len());
            rows.iter_mut().take(len).enumerate().for_each(|(at, row)| *row = self.row(order.slot(at)));
            let prefix = |at: usize| self.prefixes[order.slot(at)].load(Ordering::Acquire);
            let prefixes = (len > 0).then(|| (prefix(0), prefix(len - 1)));
            Rows { rows, len, next: self.next(), prefixes }
        })
    }

    /// What `read` makes of the entries. They are those of the order it is given, once `splits` has not changed: a slot
    /// is filled again only after that was counted up, and whoever reads the new content sees that, too.
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
    fn compare<K: Keys>(&self, slot: usize, prefix: u64, key: &K::Key, keys: &K) -> Compared {
        let ours = self.prefixes[slot].load(Ordering::Acquire);
        ours.cmp(&prefix).then_with(|| keys.compare(self.row(slot), key))
    }
}

/// What only the writer may do.
impl Node {
    pub fn len(&self) -> usize {
        self.order().len()
    }

    pub fn entry(&self, at: usize) -> Entry {
        let slot = self.order().slot(at);
        Entry { prefix: self.prefixes[slot].load(Ordering::Relaxed), row: self.row(slot) }
    }

    /// Adds an entry before entry `at`. There is room.
    pub fn insert(&self, at: usize, entry: Entry) {
        let order = self.order();
        let slot = order.slot(order.len());
        self.prefixes[slot].store(entry.prefix, Ordering::Release);
        self.rows[slot].store(entry.row, Ordering::Release);
        self.order.store(order.with_entry(at).0, Ordering::Release);
    }

    pub fn set_next(&self, next: u32) {
        self.next.store(next, Ordering::Release);
    }

    /// Gives up the entries from `len` on: they are in a node to the right that readers can reach.
    pub fn keep_first(&self, len: usize) {
        self.order.store(self.order().first(len).0, Ordering::Release);
        self.splits.store(self.splits.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    fn order(&self) -> Order {
        Order(self.order.load(Ordering::Relaxed))
    }
}

impl Branch {
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The child that covers `key`, its place, and whether it is the last one: `key` may be further right then.
    pub fn child_of<K: Keys>(&self, prefix: u64, key: &K::Key, keys: &K) -> (u32, usize, bool) {
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

    /// For the writer: the child of entry `at`.
    pub fn child(&self, at: usize) -> u32 {
        self.children[self.node.order().slot(at)].load(Ordering::Relaxed)
    }

    /// For the writer: adds an entry and its child before entry `at`. There is room.
    pub fn insert(&self, at: usize, entry: Entry, child: u32) {
        let order = self.node.order();
        self.children[order.slot(order.len())].store(child, Ordering::Release);
        self.node.insert(at, entry);
    }
}

const _: () = assert!(cfg!(loom) || size_of::<Node>() == 3 * 64);
const _: () = assert!(cfg!(loom) || size_of::<Branch>() == 4 * 64);

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
