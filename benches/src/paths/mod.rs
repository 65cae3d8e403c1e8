//! The hot paths: each with its amount of work and its input, the same in every run.
//!
//! Two benches iterate over [`PATHS`]: `paths.rs` times them (criterion), `counts.rs` counts their instructions
//! (callgrind). Nothing here reads a clock or a file, uses randomness or starts a thread, so a path executes the same
//! instructions each time.

mod cells;
mod hot_path;
mod log;
mod rows;
mod rowsets;
mod spans;
mod wire;

pub use hot_path::{Run, WorkloadSize};

/// Kind of a prepared path: repeatable with the same result, or usable once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathRun {
    Often,
    Once,
}

pub struct HotPath {
    /// Part and path, as in `wal.append`.
    pub name: &'static str,
    pub amount: WorkloadSize,
    pub taken: PathRun,
    pub prepare: fn() -> Run,
}

const fn often(name: &'static str, amount: WorkloadSize, prepare: fn() -> Run) -> HotPath {
    HotPath { name, amount, taken: PathRun::Often, prepare }
}

const fn once(name: &'static str, amount: WorkloadSize, prepare: fn() -> Run) -> HotPath {
    HotPath { name, amount, taken: PathRun::Once, prepare }
}

/// All paths, by part.
pub const PATHS: [HotPath; 26] = [
    often("cells.encode_shuffle", cells::ROWS, cells::encode_shuffle),
    often("cells.decode_shuffle", cells::ROWS, cells::decode_shuffle),
    often("cells.encode_runs", cells::ROWS, cells::encode_runs),
    often("cells.decode_runs", cells::ROWS, cells::decode_runs),
    often("cells.encode_codes", cells::ROWS, cells::encode_codes),
    often("cells.decode_codes", cells::ROWS, cells::decode_codes),
    often("cells.encode_prefix", cells::ROWS, cells::encode_prefix),
    often("cells.decode_prefix", cells::ROWS, cells::decode_prefix),
    often("rowset.write", rowsets::ROWS, rowsets::write),
    once("rowset.scan_cold", rowsets::ROWS, rowsets::scan_cold),
    often("rowset.scan", rowsets::ROWS, rowsets::scan),
    often("rowset.scan_predicate", rowsets::ROWS, rowsets::scan_predicate),
    often("rowset.find", rowsets::FINDS, rowsets::find),
    once("memrowset.insert", rows::ROWS, rows::insert),
    often("memrowset.lookup", rows::ROWS, rows::lookup),
    often("memrowset.scan", rows::ROWS, rows::scan),
    once("deltas.add", rows::ROWS, rows::add_changes),
    often("deltas.apply", rows::ROWS, rows::apply_changes),
    once("tablet.write", rows::ROWS, rows::write),
    once("tablet.compact", rows::ROWS, rows::compact),
    once("wal.append", log::BYTES, log::append),
    once("raft.lead", log::ENTRIES, log::lead),
    often("spans.off", log::ENTRIES, spans::off),
    once("raft.follow", log::ENTRIES, log::follow),
    often("frame.encode", wire::BYTES, wire::encode),
    once("frame.decode", wire::BYTES, wire::decode),
];

/// Prepares a path by its name.
pub fn prepare(name: &str) -> Run {
    let path = PATHS.iter().find(|path| path.name == name);
    (path.unwrap_or_else(|| panic!("there is no path {name}")).prepare)()
}
