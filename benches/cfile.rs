//! Disk rowsets: writing, scanning and looking up rows.
//!
//! Run with `cargo bench -p benches --bench cfile`. The rows resemble those of `kudu perf loadgen` with ten columns.
//! The disk is in memory, so the result is CPU time.

use benches::loadgen::{Loadgen, count, disk, key};
use benches::mix;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use engine::tablet::rowset::{ProbeStats, RowSetScanSpec, Snapshot};
use engine::time::Timestamp;

const ROWS: u64 = 100_000;

fn rowset(c: &mut Criterion) {
    let rows = Loadgen::new(ROWS);
    let mut group = c.benchmark_group("rowset");
    group.throughput(Throughput::Elements(ROWS));
    group.bench_function("write", |b| b.iter(|| rows.write(&disk())));
    let disk = disk();
    let meta = rows.write(&disk);
    let open = || rows.open(&disk, &meta);
    let spec = rows.all();
    group.bench_function("scan cold", |b| b.iter_with_setup(open, |set| count(&set, &spec)));
    let set = open();
    group.bench_function("scan cached", |b| b.iter(|| count(&set, &spec)));
    let old = RowSetScanSpec { snapshot: Snapshot { before: Timestamp(ROWS / 2) }, ..spec.clone() };
    group.bench_function("scan an old snapshot", |b| b.iter(|| count(&set, &old)));
    let some = rows.some();
    group.bench_function("scan one row in fifty", |b| b.iter(|| count(&set, &some)));
    group.throughput(Throughput::Elements(1));
    let mut next = 0;
    group.bench_function("find", |b| {
        b.iter(|| {
            next = mix(next + 1) >> 1;
            set.find(&key(next % ROWS), &mut ProbeStats::default()).expect("the rowset is sound")
        });
    });
    group.finish();
}

criterion_group!(benches, rowset);
criterion_main!(benches);
