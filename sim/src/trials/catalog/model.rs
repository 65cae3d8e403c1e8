//! The model of tables: columns, ranges, versions and tablets, as clients may rely on them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::error::ErrorKind;
use engine::ids::{PeerId, TableId, TabletId};

/// Keys and values of an extra configuration; in a request an empty value unsets its key.
pub(super) type Extra = BTreeMap<String, String>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) nullable: bool,
    /// Cell that rows from before the column have, and the one that later rows get.
    pub(super) read_default: Option<Vec<u8>>,
    pub(super) write_default: Option<Vec<u8>>,
}

/// A hash level: buckets by one key column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Level {
    pub(super) column: String,
    pub(super) buckets: i32,
}

/// A range of the first key column, the upper bound excluded; absent bounds are open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyRange {
    pub(super) low: Option<i32>,
    pub(super) high: Option<i32>,
    /// Hash levels of its own.
    pub(super) own: Option<Vec<Level>>,
}

impl KeyRange {
    pub(super) fn has_bounds_of(&self, other: &KeyRange) -> bool {
        (self.low, self.high) == (other.low, other.high)
    }

    pub(super) fn overlaps(&self, other: &KeyRange) -> bool {
        let ends_before = |one: &KeyRange, next: &KeyRange| match (one.high, next.low) {
            (Some(high), Some(low)) => high <= low,
            _ => false,
        };
        !ends_before(self, other) && !ends_before(other, self)
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!((self.low, self.high), (Some(low), Some(high)) if low >= high)
    }
}

/// A tablet that was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ModelTablet {
    pub(super) id: TabletId,
    pub(super) end: Vec<u8>,
    /// Time at which it was first seen.
    pub(super) born: Duration,
    /// True if the catalog has called it running.
    pub(super) running: bool,
    /// True if it has been placed on servers.
    pub(super) placed: bool,
    /// Index of its newest configuration that is stored.
    pub(super) config_index: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableState {
    Running,
    SoftDeleted { purge_at: Duration },
}

/// A table that is not deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ModelTable {
    pub(super) name: String,
    pub(super) owner: String,
    pub(super) comment: String,
    pub(super) extra: Extra,
    pub(super) state: TableState,
    pub(super) columns: Vec<Column>,
    /// Columns that clients are shown: all tablets have them.
    pub(super) served: Vec<Column>,
    pub(super) keys: usize,
    pub(super) version: u32,
    pub(super) next_column: u32,
    pub(super) replicas: i32,
    pub(super) levels: Vec<Level>,
    pub(super) ranges: Vec<KeyRange>,
    /// False for a table without range columns.
    pub(super) ranged: bool,
    /// Tablets by the first partition key.
    pub(super) tablets: BTreeMap<Vec<u8>, ModelTablet>,
    /// Name and columns of each version.
    pub(super) versions: Vec<(String, Vec<Column>)>,
}

impl ModelTable {
    /// Returns the partition keys of the tablets that the table must have: first one and end.
    pub(super) fn wanted_bounds(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        self.ranges.iter().flat_map(|range| self.bounds_of(range)).collect()
    }

    /// Returns the partition keys of a range's tablets, one for each combination of buckets.
    pub(super) fn bounds_of(&self, range: &KeyRange) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut prefixes: Vec<Vec<u32>> = vec![Vec::new()];
        for level in range.own.as_ref().unwrap_or(&self.levels) {
            let longer = |prefix: &Vec<u32>| -> Vec<Vec<u32>> {
                (0..level.buckets as u32).map(|bucket| [prefix.as_slice(), &[bucket]].concat()).collect()
            };
            prefixes = prefixes.iter().flat_map(longer).collect();
        }
        prefixes.iter().map(|prefix| (first_key(prefix, range), end_key(prefix, range))).collect()
    }
}

fn first_key(buckets: &[u32], range: &KeyRange) -> Vec<u8> {
    [encoded(buckets), range.low.map(bound_key).unwrap_or_default()].concat()
}

fn end_key(buckets: &[u32], range: &KeyRange) -> Vec<u8> {
    match (range.high, buckets.split_last()) {
        (Some(high), _) => [encoded(buckets), bound_key(high)].concat(),
        (None, Some((last, before))) => encoded(&[before, &[last + 1]].concat()),
        (None, None) => Vec::new(),
    }
}

fn encoded(buckets: &[u32]) -> Vec<u8> {
    buckets.iter().flat_map(|bucket| bucket.to_be_bytes()).collect()
}

/// Returns a key whose bytes have the order of the numbers.
pub(super) fn bound_key(value: i32) -> Vec<u8> {
    ((value as u32) ^ (1 << 31)).to_be_bytes().to_vec()
}

/// A table by id, by name, or by both.
#[derive(Debug, Clone, Default)]
pub(super) struct Named {
    pub(super) id: Option<TableId>,
    pub(super) name: Option<String>,
}

/// A refusal: code of the masters' errors, and kind of the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: i32,
    pub(super) kind: ErrorKind,
}

impl Refusal {
    pub(super) const fn of(code: i32, kind: ErrorKind) -> Refusal {
        Refusal { code, kind }
    }
}

pub(super) const NO_SUCH_TABLE: Refusal = Refusal::of(3, ErrorKind::NotFound);
pub(super) const NAME_TAKEN: Refusal = Refusal::of(4, ErrorKind::AlreadyPresent);
pub(super) const SOFT_DELETED: Refusal = Refusal::of(16, ErrorKind::Invalid);
pub(super) const BAD_REQUEST: Refusal = Refusal::of(1, ErrorKind::Invalid);
pub(super) const BAD_SCHEMA: Refusal = Refusal::of(2, ErrorKind::Invalid);

/// All tables, and all that ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Model {
    pub(super) tables: BTreeMap<TableId, ModelTable>,
    /// Tablets that were dropped, deleted or replaced.
    pub(super) ended: BTreeSet<TabletId>,
    /// Ended tablets for whose removal masters do not wait at these servers: they were unregistered afterwards.
    pub(super) forgotten: BTreeSet<(PeerId, TabletId)>,
    /// Servers in maintenance.
    pub(super) maintenance: BTreeSet<PeerId>,
}

impl Model {
    /// Returns the table that a request names.
    pub(super) fn find(&self, named: &Named) -> Result<TableId, Refusal> {
        let by_name = |name: &String| self.tables.iter().find(|(_, table)| table.name == *name);
        match (named.id, &named.name) {
            (None, None) => Err(BAD_REQUEST),
            (None, Some(name)) => by_name(name).map(|(id, _)| *id).ok_or(NO_SUCH_TABLE),
            (Some(id), name) => {
                let table = self.tables.get(&id).ok_or(NO_SUCH_TABLE)?;
                let agrees = name.as_ref().is_none_or(|name| table.name == *name);
                if agrees { Ok(id) } else { Err(NO_SUCH_TABLE) }
            }
        }
    }

    pub(super) fn has_name(&self, name: &str) -> bool {
        self.tables.values().any(|table| table.name == name)
    }

    /// Returns the table that has a tablet, and the tablet.
    pub(super) fn tablet(&self, id: TabletId) -> Option<(&ModelTable, &ModelTablet)> {
        let of_table = |table| -> Option<(&ModelTable, &ModelTablet)> {
            let table: &ModelTable = table;
            table.tablets.values().find(|tablet| tablet.id == id).map(|tablet| (table, tablet))
        };
        self.tables.values().find_map(of_table)
    }

    /// Ends a table with its tablets.
    pub(super) fn end_table(&mut self, id: TableId) {
        let table = self.tables.remove(&id);
        let tablets = table.into_iter().flat_map(|table| table.tablets.into_values());
        self.ended.extend(tablets.map(|tablet| tablet.id));
    }
}
