//! Instructions of the hot paths, counted by callgrind: the same on a busy machine as on an idle one.
//!
//! Run with `cargo ci counts`, which fetches the runner and compares the counts with `COUNTS.toml`. Counting begins
//! when a path's input is ready and ends with its result; dropping them is not counted.

use benches::paths::{Run, prepare};
use gungraun::{library_benchmark, library_benchmark_group, main};

#[library_benchmark(setup = prepare)]
#[bench::cells_encode_shuffle("cells.encode_shuffle")]
#[bench::cells_decode_shuffle("cells.decode_shuffle")]
#[bench::cells_encode_runs("cells.encode_runs")]
#[bench::cells_decode_runs("cells.decode_runs")]
#[bench::cells_encode_codes("cells.encode_codes")]
#[bench::cells_decode_codes("cells.decode_codes")]
#[bench::cells_encode_prefix("cells.encode_prefix")]
#[bench::cells_decode_prefix("cells.decode_prefix")]
#[bench::rowset_write("rowset.write")]
#[bench::rowset_scan_cold("rowset.scan_cold")]
#[bench::rowset_scan("rowset.scan")]
#[bench::rowset_scan_predicate("rowset.scan_predicate")]
#[bench::rowset_find("rowset.find")]
#[bench::memrowset_insert("memrowset.insert")]
#[bench::memrowset_lookup("memrowset.lookup")]
#[bench::memrowset_scan("memrowset.scan")]
#[bench::deltas_add("deltas.add")]
#[bench::deltas_apply("deltas.apply")]
#[bench::tablet_write("tablet.write")]
#[bench::tablet_compact("tablet.compact")]
#[bench::wal_append("wal.append")]
#[bench::raft_lead("raft.lead")]
#[bench::raft_follow("raft.follow")]
#[bench::spans_off("spans.off")]
#[bench::frame_encode("frame.encode")]
#[bench::frame_decode("frame.decode")]
fn count(mut run: Run) -> Run {
    run();
    run
}

library_benchmark_group!(name = paths, benchmarks = count);
main!(library_benchmark_groups = paths);
