//! Metadata of model tables: what masters and tablet servers tell, against the versions that may be in force.

use std::ops::RangeInclusive;

use nyala_proto::kudu::ColumnSchemaPb;

use crate::history::Nanos;
use crate::model::Incarnation;
use crate::wire::keys::{self, Bounds};
use crate::wire::schema;

/// Encoded primary keys: the first one, and the one after the last.
pub type KeyRange = (Option<Vec<u8>>, Option<Vec<u8>>);
/// Encoded primary keys of rows.
pub type EncodedKeys = Vec<Vec<u8>>;

/// A table in the list of tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedTable {
    pub name: String,
    pub tablets: i32,
}

/// Most ranges of a split, and most bytes that a tablet may have in a run.
const RANGES_MAX: usize = 4_096;
const TABLET_BYTES_MAX: u64 = 1 << 40;
/// Time by which clocks of two machines may differ over the life of a scanner, as a part of it.
const CLOCKS_DIFFER: Nanos = 10;

/// An answer about a table, or about a scanner of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Metadata {
    /// Sums over the table's tablets.
    Statistics {
        live_rows: Option<i64>,
        disk_bytes: i64,
        /// Number of rows that clients have ever asked to insert, until the answer.
        inserted: u64,
        /// Number of rows, if nothing changes any more and all servers have reported.
        exact: Option<u64>,
    },
    /// The entries of the table in the list of tables whose names have `filter`.
    Listed {
        filter: String,
        entries: Vec<ListedTable>,
        /// True if every master that may answer knows of the table.
        is_known: bool,
    },
    /// The bounds of the first tablet that masters tell for a partition key.
    Location { key: Vec<u8>, found: Option<Bounds> },
    /// A tablet as its server lists it.
    Tablet { bounds: Bounds, name: String, columns: Vec<ColumnSchemaPb> },
    /// The use of a scanner that was idle for `least` to `most`, or a call that keeps it alive.
    Scanner {
        least: Nanos,
        most: Nanos,
        /// Idle time after which servers drop it.
        ttl: Nanos,
        is_expired: bool,
        /// True if nothing else ends scanners.
        is_undisturbed: bool,
    },
    /// Ranges that split the primary keys from `lower` to `upper`.
    KeyRanges {
        within: KeyRange,
        ranges: Vec<KeyRange>,
        /// Bytes of the ranges as the server estimates them, and the least that each was to have.
        sizes: Vec<u64>,
        chunk: u64,
        /// The keys of a scan of all ranges at once, and of one scan for each range, at one snapshot.
        keys: Option<(EncodedKeys, EncodedKeys)>,
    },
}

impl Metadata {
    pub fn word(&self) -> &'static str {
        match self {
            Metadata::Statistics { exact: None, .. } => "statistics",
            Metadata::Statistics { exact: Some(_), .. } => "statistics at rest",
            Metadata::Listed { .. } => "tables",
            Metadata::Location { .. } => "location",
            Metadata::Tablet { .. } => "tablets",
            Metadata::KeyRanges { .. } => "key-ranges",
            Metadata::Scanner { is_expired: true, .. } => "scanner expired",
            Metadata::Scanner { is_expired: false, .. } => "scanner alive",
        }
    }
}

/// Returns what is wrong with an answer. `during`: time whose versions it may be of.
pub(super) fn fault(
    table: &Incarnation,
    answer: &Metadata,
    during: RangeInclusive<Nanos>,
    invoked: Nanos,
) -> Option<String> {
    match answer {
        Metadata::Statistics { live_rows, disk_bytes, inserted, exact } => {
            statistics_fault(*live_rows, *disk_bytes, *inserted, *exact)
        }
        Metadata::Listed { filter, entries, is_known } => match &entries[..] {
            [] => absence_fault(table, filter, during, *is_known, invoked),
            [entry] => entry_fault(table, filter, entry, during),
            _ => Some("it is listed twice".to_string()),
        },
        Metadata::Location { key, found } => location_fault(table, key, found.as_ref(), during),
        Metadata::Tablet { bounds, name, columns } => tablet_fault(table, bounds, name, columns, during),
        Metadata::Scanner { least, most, ttl, is_expired: true, is_undisturbed } => {
            let is_early = *is_undisturbed && most + ttl / CLOCKS_DIFFER < *ttl;
            is_early
                .then(|| format!("a scanner expired that was idle for {least} to {most} ns, not for {ttl}"))
        }
        Metadata::Scanner { least, most, ttl, is_expired: false, .. } => {
            let is_late = *least > ttl + ttl / CLOCKS_DIFFER;
            is_late
                .then(|| format!("a scanner lives that was idle for {least} to {most} ns, more than {ttl}"))
        }
        Metadata::KeyRanges { within, ranges, sizes, chunk, keys } => ranges_fault(within, ranges)
            .or_else(|| sizes_fault(sizes, *chunk))
            .or_else(|| keys_fault(keys.as_ref()?)),
    }
}

fn statistics_fault(
    live_rows: Option<i64>,
    disk_bytes: i64,
    inserted: u64,
    exact: Option<u64>,
) -> Option<String> {
    let told = u64::try_from(live_rows.unwrap_or_default());
    match (told, exact) {
        _ if disk_bytes < 0 => Some(format!("it has {disk_bytes} bytes on disks")),
        (Ok(rows), _) if rows > inserted => {
            Some(format!("it has {rows} rows, of {inserted} that were inserted"))
        }
        (Ok(rows), Some(exact)) if rows != exact => Some(format!("it has {exact} rows, and {rows} are told")),
        (Ok(_), _) => None,
        (Err(_), _) => Some(format!("it has {live_rows:?} rows")),
    }
}

fn entry_fault(
    table: &Incarnation,
    filter: &str,
    entry: &ListedTable,
    during: RangeInclusive<Nanos>,
) -> Option<String> {
    let is_of = |tablets: usize| i32::try_from(tablets) == Ok(entry.tablets);
    let mut of_name = table.possible(during.clone()).filter(|version| version.name == entry.name).peekable();
    match () {
        () if table.gone.is_some_and(|gone| gone < *during.start()) => {
            Some("it is listed after its drop".to_string())
        }
        () if !entry.name.contains(filter) => Some(format!("{} does not have {filter}", entry.name)),
        () if of_name.peek().is_none() => Some(format!("{} is the name of no version", entry.name)),
        () if !table.possible(during).any(|version| is_of(keys::tablet_bounds(&version.table).len())) => {
            Some(format!("it is listed with {} tablets, as no version has", entry.tablets))
        }
        () => None,
    }
}

/// Returns why a table must have been listed.
fn absence_fault(
    table: &Incarnation,
    filter: &str,
    during: RangeInclusive<Nanos>,
    is_known: bool,
    invoked: Nanos,
) -> Option<String> {
    let exists = is_known && table.versions[0].known.is_some_and(|known| known < invoked);
    let mut hidden = table.absent.iter();
    let is_hidden = hidden.any(|(from, to)| from <= during.end() && during.start() <= to);
    let is_named = table.possible(during).all(|version| version.name.contains(filter));
    (exists && is_named && !is_hidden).then(|| "it is not listed".to_string())
}

/// Returns true if the tablet is the one of the key. Where a version has no tablet for it, any may be told.
fn location_fault(
    table: &Incarnation,
    key: &[u8],
    found: Option<&Bounds>,
    during: RangeInclusive<Nanos>,
) -> Option<String> {
    let fits = |tablets: Vec<Bounds>| {
        let held = tablets.into_iter().find(|bounds| keys::holds(bounds, key));
        held.is_none() || held.as_ref() == found
    };
    let known = table.possible(during).any(|version| fits(keys::tablet_bounds(&version.table)));
    (!known).then(|| format!("the partition key {key:02x?} is told to be in {found:02x?}"))
}

fn tablet_fault(
    table: &Incarnation,
    bounds: &Bounds,
    name: &str,
    columns: &[ColumnSchemaPb],
    during: RangeInclusive<Nanos>,
) -> Option<String> {
    let possible = || table.possible(during.clone());
    if !possible().any(|version| keys::tablet_bounds(&version.table).contains(bounds)) {
        return Some(format!("a tablet has the partition {bounds:02x?}, as no version has"));
    }
    if !possible().any(|version| version.name == name) {
        return Some(format!("a tablet has the name {name}, as no version has"));
    }
    let keys = table.key_count();
    let fits = |version: &crate::model::TableVersion| {
        let specs = &version.table.columns;
        let mut each = specs.iter().zip(columns).enumerate();
        specs.len() == columns.len()
            && each.all(|(at, (spec, pb))| schema::differences(spec, pb, at < keys).is_empty())
    };
    (!possible().any(fits)).then(|| "a tablet has the columns of no version".to_string())
}

/// Returns a gap or an overlap of ranges, or a bound that they do not keep.
fn ranges_fault(within: &KeyRange, ranges: &[KeyRange]) -> Option<String> {
    let (Some((lower, _)), Some((_, upper))) = (ranges.first(), ranges.last()) else {
        return Some("it is split into no range".to_string());
    };
    if (lower, upper) != (&within.0, &within.1) {
        return Some(format!("ranges from {lower:02x?} to {upper:02x?} split {within:02x?}"));
    }
    let meets = |pair: &[KeyRange]| pair[0].1.is_some() && pair[0].1 == pair[1].0;
    if let Some(pair) = ranges.windows(2).find(|pair| !meets(pair)) {
        return Some(format!("the ranges {:02x?} and {:02x?} do not meet", pair[0], pair[1]));
    }
    let is_empty = |range: &&KeyRange| match *range {
        (Some(lower), Some(upper)) => lower >= upper,
        _ => false,
    };
    let empty = ranges.iter().find(is_empty).filter(|_| ranges.len() > 1);
    empty.map(|range| format!("the range {range:02x?} has no key"))
}

/// Returns sizes that a split does not have: each range but the last has the bytes that were asked for.
fn sizes_fault(sizes: &[u64], chunk: u64) -> Option<String> {
    let (_, full) = sizes.split_last()?;
    if let Some(size) = full.iter().find(|size| **size < chunk) {
        return Some(format!("a range has {size} bytes, and was to have {chunk}"));
    }
    let sum = sizes.iter().fold(0_u64, |sum, size| sum.saturating_add(*size));
    let (count, is_wrong) = (sizes.len(), sizes.len() > RANGES_MAX || sum > TABLET_BYTES_MAX);
    is_wrong.then(|| format!("its {count} ranges have {sum} bytes"))
}

fn keys_fault((whole, parts): &(EncodedKeys, EncodedKeys)) -> Option<String> {
    let differs = || format!("its ranges have {} rows, and it has {}", parts.len(), whole.len());
    (whole != parts).then(differs)
}
