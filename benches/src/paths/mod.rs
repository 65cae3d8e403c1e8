//! The hot paths: each with its input, the same in every run, and how much of it there is.
//!
//! Two benches go through [`PATHS`]: `paths.rs` times them (criterion), `counts.rs` counts their instructions
//! (callgrind). Nothing here reads a clock or a file, draws a number or starts a thread, so a path takes the same
//! instructions each time.

mod cells;
mod log;
mod rows;
mod sets;
mod wire;

/// A path ready to be taken.
pub type Run = Box<dyn FnMut()>;

/// How much a path handles each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    Rows(u64),
    Bytes(u64),
}

/// Whether what one [`Path::prepare`] gave can be taken again and again with the same result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    Often,
    Once,
}

pub struct Path {
    /// Part and path, as in `wal.append`.
    pub name: &'static str,
    pub amount: Amount,
    pub taken: Taken,
    pub prepare: fn() -> Run,
}

const fn often(name: &'static str, amount: Amount, prepare: fn() -> Run) -> Path {
    Path { name, amount, taken: Taken::Often, prepare }
}

const fn once(name: &'static str, amount: Amount, prepare: fn() -> Run) -> Path {
    Path { name, amount, taken: Taken::Once, prepare }
}

/// All of them, by part.
pub const PATHS: [Path; 25] = [
    often("cells.encode_shuffle", cells::ROWS, cells::encode_shuffle),
    often("cells.decode_shuffle", cells::ROWS, cells::decode_shuffle),
    often("cells.encode_runs", cells::ROWS, cells::encode_runs),
    often("cells.decode_runs", cells::ROWS, cells::decode_runs),
    often("cells.encode_codes", cells::ROWS, cells::encode_codes),
    often("cells.decode_codes", cells::ROWS, cells::decode_codes),
    often("cells.encode_prefix", cells::ROWS, cells::encode_prefix),
    often("cells.decode_prefix", cells::ROWS, cells::decode_prefix),
    often("rowset.write", sets::ROWS, sets::write),
    once("rowset.scan_cold", sets::ROWS, sets::scan_cold),
    often("rowset.scan", sets::ROWS, sets::scan),
    often("rowset.scan_predicate", sets::ROWS, sets::scan_predicate),
    often("rowset.find", sets::FINDS, sets::find),
    once("memrowset.insert", rows::ROWS, rows::insert),
    often("memrowset.lookup", rows::ROWS, rows::lookup),
    often("memrowset.scan", rows::ROWS, rows::scan),
    once("deltas.add", rows::ROWS, rows::add_changes),
    often("deltas.apply", rows::ROWS, rows::apply_changes),
    once("tablet.write", rows::ROWS, rows::write),
    once("tablet.compact", rows::ROWS, rows::compact),
    once("wal.append", log::BYTES, log::append),
    once("raft.lead", log::ENTRIES, log::lead),
    once("raft.follow", log::ENTRIES, log::follow),
    often("frame.encode", wire::BYTES, wire::encode),
    once("frame.decode", wire::BYTES, wire::decode),
];

/// Prepares a path by its name.
pub fn prepare(name: &str) -> Run {
    let path = PATHS.iter().find(|path| path.name == name);
    (path.unwrap_or_else(|| panic!("there is no path {name}")).prepare)()
}
