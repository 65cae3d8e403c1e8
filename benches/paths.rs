//! The hot paths of engine and wire, one by one: encodings, rowsets, MemRowSet, changes, compaction, log, Raft, frames.
//!
//! Run with `cargo bench -p benches --bench paths`; `cargo ci bench` compares with an earlier run. Everything is in
//! memory, on one core.

use benches::paths::{Amount, PATHS, Taken};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};

fn paths(c: &mut Criterion) {
    for path in &PATHS {
        let (part, name) = path.name.split_once('.').expect("a path is named by its part first");
        let mut group = c.benchmark_group(part);
        group.sample_size(20);
        group.throughput(match path.amount {
            Amount::Rows(rows) => Throughput::Elements(rows),
            Amount::Bytes(bytes) => Throughput::Bytes(bytes),
        });
        match path.taken {
            Taken::Often => {
                let mut run = (path.prepare)();
                group.bench_function(name, |b| b.iter(&mut run));
            }
            Taken::Once => {
                let taken = |mut run: benches::paths::Run| {
                    run();
                    // Its end is not measured.
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
