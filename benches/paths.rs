//! Hot paths of engine and wire, one by one: encodings, rowsets, MemRowSet, deltas, compaction, log, Raft, frames.
//!
//! Run with `cargo bench -p benches --bench paths`; `cargo ci bench` compares with an earlier run. Everything is in
//! memory, on one core.

use benches::paths::{PATHS, PathRun, WorkloadSize};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};

fn paths(c: &mut Criterion) {
    for path in &PATHS {
        let (part, name) = path.name.split_once('.').expect("a path is named by its part first");
        let mut group = c.benchmark_group(part);
        group.sample_size(20);
        group.throughput(match path.amount {
            WorkloadSize::Rows(rows) => Throughput::Elements(rows),
            WorkloadSize::Bytes(bytes) => Throughput::Bytes(bytes),
        });
        match path.taken {
            PathRun::Often => {
                let mut run = (path.prepare)();
                group.bench_function(name, |b| b.iter(&mut run));
            }
            PathRun::Once => {
                let taken = |mut run: benches::paths::Run| {
                    run();
                    // Dropping it is not measured.
                    run
                };
                group.bench_function(name, |b| {
                    b.iter_batched(path.prepare, taken, BatchSize::PerIteration);
                });
            }
        }
        group.finish();
    }
}

criterion_group!(benches, paths);
criterion_main!(benches);
