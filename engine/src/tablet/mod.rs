//! A tablet: one partition of a table, as rows with history.

pub mod delta_tracker;
pub mod deltafile;
pub mod deltamemstore;
pub mod diskrowset;
#[cfg(test)]
mod diskrowset_tests;
pub mod mvcc;
pub mod rowset;
mod rowset_scan;
mod rowset_writer;
pub mod scan;
