//! What the benchmarks share.
//!
//! ```text
//!   tables.rs   tables, their rows by number, and a tablet to write them to
//!   lineitem.rs TPC-H's lineitem for the `parquet` crate
//!   loadgen.rs  the table of `kudu perf loadgen` as a disk rowset
//!   paths/      the hot paths, each with its input: criterion times them, valgrind counts their instructions
//!   cluster.rs  a master and a tablet server in this process
//!   ycsb.rs     YCSB's table and its rows, for whoever has a cluster
//!   chart.rs    figures over time      process.rs  what a process has used      web.rs  what it says of itself
//! ```

pub mod chart;
pub mod cluster;
pub mod lineitem;
pub mod loadgen;
pub mod paths;
pub mod process;
/// The engine's replica in memory, as its tests drive it.
#[path = "../../engine/tests/support/mod.rs"]
pub mod support;
pub mod tables;
pub mod web;
pub mod ycsb;

/// A number that looks drawn, always the same for the same `x`, and another for another.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
