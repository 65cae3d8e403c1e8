//! Changes to a DiskRowSet's rows that are not in a file yet, by row and timestamp.
//!
//! One writer adds, many readers copy out what concerns their rows under a short lock.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{RwLock, RwLockReadGuard};

use super::deltafile::{DeltaBatch, TimeRange};
use crate::error::{Error, Result};
use crate::ids::RowId;
use crate::schema::change::Change;
use crate::time::Timestamp;

/// Bytes an entry costs besides its change: the tree's key, value and slack.
const ENTRY_BYTES: usize = 40;

/// The recent changes of one rowset.
#[derive(Default)]
pub struct DeltaMemStore {
    inner: RwLock<Inner>,
}

#[derive(Default)]
struct Inner {
    /// By row, time, and where in `arena` the change lies, which tells apart the changes that one operation makes
    /// to a row and keeps them in order; with the change's length.
    entries: BTreeMap<(RowId, Timestamp, u32), u32>,
    arena: Vec<u8>,
    /// Rows revived less rows deleted.
    net_rows: i64,
    newest: Timestamp,
}

impl DeltaMemStore {
    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().expect("no writer panics while it holds the lock")
    }

    /// Adds a change. One operation may change a row several times; the order of the calls counts then.
    pub fn insert(&self, row: RowId, ts: Timestamp, change: &[u8]) -> Result<()> {
        let parsed = Change::parse(change)?;
        let mut inner = self.inner.write().expect("no writer panics while it holds the lock");
        let Ok(at) = u32::try_from(inner.arena.len()) else {
            return Err(Error::throttled(
                "4 GiB of changes to one rowset wait to be flushed; write again later",
            ));
        };
        inner.entries.insert((row, ts, at), change.len() as u32);
        inner.arena.extend_from_slice(change);
        inner.newest = inner.newest.max(ts);
        inner.net_rows += match parsed {
            Change::Delete => -1,
            Change::Update(_) => 0,
            Change::Reinsert(_) => 1,
        };
        Ok(())
    }

    /// Adds to `out` the changes of `rows` within `times`, by row and then time.
    pub fn collect(&self, rows: Range<RowId>, times: TimeRange, out: &mut DeltaBatch) {
        let inner = self.read();
        if inner.entries.is_empty() {
            return;
        }
        let range = (rows.start, Timestamp::MIN, 0)..(rows.end, Timestamp::MIN, 0);
        for ((row, ts, at), len) in inner.entries.range(range) {
            if times.contains(*ts) {
                let (at, len) = (*at as usize, *len as usize);
                out.push(*row, *ts, &inner.arena[at..at + len]);
            }
        }
    }

    /// Whether the row is alive after its newest change here; `None` if there is no change of it.
    pub fn is_live(&self, row: RowId) -> Option<bool> {
        let inner = self.read();
        let range = (row, Timestamp::MIN, 0)..=(row, Timestamp::MAX, u32::MAX);
        let ((_, _, at), len) = inner.entries.range(range).next_back()?;
        let change = &inner.arena[*at as usize..(*at + *len) as usize];
        Some(!Change::parse(change).expect("it was parsed when it came in").deletes())
    }

    /// Calls `visit` with every change, by row and then time.
    pub fn for_each(&self, mut visit: impl FnMut(RowId, Timestamp, &[u8]) -> Result<()>) -> Result<()> {
        let inner = self.read();
        for ((row, ts, at), len) in &inner.entries {
            visit(*row, *ts, &inner.arena[*at as usize..(*at + *len) as usize])?;
        }
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.read().entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory taken.
    pub fn byte_size(&self) -> usize {
        let inner = self.read();
        inner.arena.len() + ENTRY_BYTES * inner.entries.len()
    }

    /// Rows revived less rows deleted.
    pub fn net_rows(&self) -> i64 {
        self.read().net_rows
    }

    /// The newest change's timestamp; `MIN` if there is none.
    pub fn newest(&self) -> Timestamp {
        self.read().newest
    }
}
