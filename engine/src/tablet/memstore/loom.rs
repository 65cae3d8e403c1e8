//! Loom models of the in-memory stores: readers run while the writer is in the middle of a step.
//!
//! Run with `cargo ci loom`. Under loom, nodes have three entries and chunks few elements, so a handful of inserts
//! splits leaves and branches and grows the root. `LOOM_MAX_PREEMPTIONS` bounds the number of preemptions of a thread.

use std::cmp::Ordering as Compared;
use std::sync::Arc;

use ::loom::thread;

use super::arena::Arena;
use super::mutations::{Mutation, MutationList, MutationStore};
use super::node::KeySource;
use super::tree::RowTree;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::tablet::mvcc::Mvcc;
use crate::time::Timestamp;

/// Rows whose keys are integers, each with its insert timestamp.
#[derive(Default)]
struct Store {
    tree: RowTree,
    rows: Arena<Row, 1>,
    mutations: MutationStore,
}

#[derive(Default)]
struct Row {
    key: AtomicU32,
    ts: AtomicU64,
    list: MutationList,
}

impl KeySource for Store {
    type Key = u32;

    /// Few prefixes, so rows are compared, too.
    fn prefix(&self, key: &u32) -> u64 {
        u64::from(key / 4)
    }

    fn compare(&self, row: u32, key: &u32) -> Compared {
        self.key(row).cmp(key)
    }

    fn compare_rows(&self, row: u32, other: u32) -> Compared {
        self.key(row).cmp(&self.key(other))
    }
}

impl Store {
    fn with(keys: &[u32]) -> Arc<Store> {
        let store = Store::default();
        keys.iter().for_each(|key| store.insert(*key, 1));
        Arc::new(store)
    }

    fn insert(&self, key: u32, ts: u64) {
        let slot = self.tree.slot_of(&key, self).expect_err("every key is inserted once");
        let row = self.rows.push(|row| {
            row.key.store(key, Ordering::Relaxed);
            row.ts.store(ts, Ordering::Relaxed);
        });
        self.tree.insert(slot, row, &key, self);
    }

    fn mutate(&self, key: u32, ts: u64, change: &[u8]) {
        let row = self.tree.slot_of(&key, self).expect("the key was inserted");
        self.mutations.add(&self.rows.get(row).list, row, Timestamp(ts), change, false);
    }

    fn key(&self, row: u32) -> u32 {
        self.rows.get(row).key.load(Ordering::Relaxed)
    }

    /// Returns the keys from `from` on.
    fn scan(&self, from: u32) -> Vec<u32> {
        let mut cursor = self.tree.seek(&from, self);
        std::iter::from_fn(|| self.tree.next(&mut cursor, self)).map(|row| self.key(row)).collect()
    }
}

/// Asserts that a reader that started with all of `before` present sees them and possibly some of `during`, in order
/// and once.
fn assert_sees(seen: &[u32], before: &[u32], during: &[u32]) {
    assert!(seen.is_sorted_by(|a, b| a < b), "in order, each once: {seen:?}");
    assert!(before.iter().all(|key| seen.contains(key)), "{seen:?} lacks some of {before:?}");
    assert!(seen.iter().all(|key| before.contains(key) || during.contains(key)), "{seen:?}");
}

/// Runs a model with loom's settings of the environment, except for the length of a run: a descent takes many steps.
fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = ::loom::model::Builder::new();
    builder.max_branches = 20_000;
    builder.check(run);
}

/// One thread inserts `during` while another reads; `before` is inserted already.
///
/// The main thread is the writer, because loom runs it ahead and then explores which older values the reader may load.
/// The other way round loom misses many executions: it orders a store after a load if the storing thread loaded last.
fn explore(before: &'static [u32], during: &'static [u32], read: fn(&Store, &[u32], &[u32])) {
    model(move || {
        let store = Store::with(before);
        let reader = {
            let store = store.clone();
            thread::spawn(move || read(&store, before, during))
        };
        during.iter().for_each(|key| store.insert(*key, 2));
        reader.join().expect("the reader does not panic");
        let mut all = [before, during].concat();
        all.sort();
        assert_eq!(store.scan(0), all);
        assert!(all.iter().all(|key| store.tree.find(key, &*store).is_some()));
    });
}

fn scan_all(store: &Store, before: &[u32], during: &[u32]) {
    assert_sees(&store.scan(0), before, during);
}

fn find_all(store: &Store, before: &[u32], during: &[u32]) {
    for key in before {
        let row = store.tree.find(key, store).expect("it was inserted before");
        assert_eq!(store.key(row), *key);
    }
    for key in during {
        assert!(store.tree.find(key, store).is_none_or(|row| store.key(row) == *key));
    }
}

#[test]
fn loom_rows_appear_whole() {
    explore(&[20], &[10, 30], scan_all);
}

#[test]
fn loom_a_scan_survives_a_leaf_split() {
    explore(&[10, 20, 30], &[15], scan_all);
}

/// Slots freed by a split are reused; a scan that read the old order must detect it.
#[test]
fn loom_a_scan_survives_reused_slots() {
    explore(&[10, 20, 30], &[15, 12], scan_all);
}

#[test]
fn loom_lookups_survive_a_leaf_split() {
    explore(&[10, 20, 30], &[5], find_all);
}

#[test]
fn loom_a_scan_survives_growth_at_the_end() {
    explore(&[10, 20, 30], &[40], scan_all);
}

/// There are four leaves; a fifth one splits the branch and grows the root.
#[test]
fn loom_lookups_survive_a_branch_split() {
    explore(&[10, 20, 30, 40, 50, 60, 70, 80, 90], &[100], |store, before, _| {
        for key in [before[0], before[8]] {
            assert_eq!(store.tree.find(&key, store).map(|row| store.key(row)), Some(key));
        }
    });
}

#[test]
fn loom_a_seek_survives_a_branch_split_in_the_middle() {
    explore(&[10, 20, 30, 40, 50, 60, 70, 80, 90], &[15], |store, before, during| {
        assert_sees(&store.scan(60), &before[5..], during);
    });
}

/// A list grows at its end and in its middle, while row changes are borrowed and others are written after them.
#[test]
fn loom_mutations_appear_whole_and_in_order() {
    model(|| {
        let store = Store::with(&[7]);
        store.mutate(7, 10, b"10");
        let reader = {
            let store = store.clone();
            thread::spawn(move || {
                let times: Vec<u64> = store.mutations.of(&store.rows.get(0).list).map(time).collect();
                assert!(matches!(times[..], [10] | [10, 30] | [10, 20, 30]), "{times:?}");
            })
        };
        store.mutate(7, 30, b"30");
        store.mutate(7, 20, b"20");
        reader.join().expect("the reader does not panic");
        assert_eq!(store.mutations.last(&store.rows.get(0).list).map(|last| last.ts.0), Some(30));
    });
}

/// The same for a reader from the newest mutation back.
#[test]
fn loom_mutations_appear_whole_from_the_newest_back() {
    model(|| {
        let store = Store::with(&[7]);
        store.mutate(7, 10, b"10");
        let reader = {
            let store = store.clone();
            thread::spawn(move || {
                let back = store.mutations.newest_first(&store.rows.get(0).list);
                let times: Vec<u64> = back.map(time).collect();
                assert!(matches!(times[..], [10] | [30, 10] | [30, 20, 10]), "{times:?}");
            })
        };
        store.mutate(7, 30, b"30");
        store.mutate(7, 20, b"20");
        reader.join().expect("the reader does not panic");
        let back = store.mutations.newest_first(&store.rows.get(0).list);
        assert_eq!(back.map(time).collect::<Vec<_>>(), [30, 20, 10]);
    });
}

/// Returns the timestamp of a mutation, which its row change repeats.
fn time(mutation: Mutation<'_>) -> u64 {
    assert_eq!(mutation.ts.0.to_string().as_bytes(), mutation.change);
    mutation.ts.0
}

/// Everything a snapshot includes is in memory for its reader: an operation is applied before it becomes visible.
#[test]
fn loom_a_snapshot_sees_all_applied_operations() {
    model(|| {
        let (store, mvcc) = (Store::with(&[]), Arc::new(Mvcc::new(Timestamp(1))));
        let reader = {
            let (store, mvcc) = (store.clone(), mvcc.clone());
            thread::spawn(move || {
                let snapshot = mvcc.latest();
                let visible = |row: &u32| store.rows.get(*row).ts.load(Ordering::Relaxed) < snapshot.before.0;
                let mut cursor = store.tree.seek(&0, &*store);
                let rows = std::iter::from_fn(|| store.tree.next(&mut cursor, &*store));
                assert_eq!(rows.filter(visible).count(), if snapshot.before.0 > 5 { 2 } else { 0 });
            })
        };
        let ts = mvcc.begin(&mut || Timestamp(5));
        store.insert(10, ts.0);
        store.insert(20, ts.0);
        mvcc.applied(ts);
        reader.join().expect("the reader does not panic");
        assert_eq!(mvcc.latest().before, Timestamp(6));
    });
}
