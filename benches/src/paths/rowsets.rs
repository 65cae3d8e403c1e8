//! A disk rowset: written, scanned, searched.

use std::hint::black_box;

use engine::tablet::diskrowset::DiskRowSet;
use engine::tablet::rowset::{ProbeStats, RowSetScanSpec};

use super::hot_path::{Run, WorkloadSize};
use crate::loadgen::{Loadgen, count, disk, key};
use crate::mix;

const COUNT: u64 = 10_000;
pub(super) const ROWS: WorkloadSize = WorkloadSize::Rows(COUNT);
const LOOKUPS: u64 = 500;
pub(super) const FINDS: WorkloadSize = WorkloadSize::Rows(LOOKUPS);

fn rowset() -> (Loadgen, DiskRowSet) {
    let (rows, disk) = (Loadgen::new(COUNT), disk());
    let meta = rows.write(&disk);
    let set = rows.open(&disk, &meta);
    (rows, set)
}

fn scanned(set: DiskRowSet, spec: RowSetScanSpec) -> Run {
    Box::new(move || {
        black_box(count(&set, &spec));
    })
}

pub(super) fn write() -> Run {
    let rows = Loadgen::new(COUNT);
    Box::new(move || {
        black_box(rows.write(&disk()));
    })
}

/// Scans; every page is read, checked, decompressed and decoded.
pub(super) fn scan_cold() -> Run {
    let (rows, set) = rowset();
    scanned(set, rows.all())
}

/// Scans decoded pages.
pub(super) fn scan() -> Run {
    let (rows, set) = rowset();
    count(&set, &rows.all());
    scanned(set, rows.all())
}

/// Scans decoded pages for one row in fifty.
pub(super) fn scan_predicate() -> Run {
    let (rows, set) = rowset();
    count(&set, &rows.all());
    scanned(set, rows.some())
}

/// Looks up existing rows by their keys, in random order.
pub(super) fn find() -> Run {
    let (_, set) = rowset();
    let find_all = move || {
        for number in 0..LOOKUPS {
            let found = set.find(&key(mix(number) % COUNT), &mut ProbeStats::default());
            black_box(found.expect("the rowset is sound").expect("the row is there"));
        }
    };
    find_all();
    Box::new(find_all)
}
