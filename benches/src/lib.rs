//! Code shared by the benchmarks.
//!
//! ```text
//!   sample_tables.rs  tables, their rows by number, and a tablet to write them to
//!   lineitem.rs       TPC-H's lineitem for the `parquet` crate
//!   loadgen.rs        the table of `kudu perf loadgen` as a disk rowset
//!   paths/            the hot paths, each with its input: criterion times them, valgrind counts their instructions
//!   cluster.rs        a master and a tablet server in this process
//!   ycsb.rs           YCSB's table and its rows
//!   process.rs  resources of a process   server_metrics.rs  a server's metrics page
//! ```

pub mod cluster;
pub mod lineitem;
pub mod loadgen;
pub mod paths;
pub mod process;
pub mod sample_tables;
pub mod server_metrics;
pub mod ycsb;

/// Returns a pseudo-random number, always the same for the same `x`.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
