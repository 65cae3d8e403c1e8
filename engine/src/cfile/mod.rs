//! Column files: one column's cells as a sequence of checked, encoded, compressed pages.
//!
//! ```text
//! a file of pages (frame.rs)
//!
//!   column 0, page 0 │ column 1, page 0 │ key index, page 0 │ column 0, page 1 │ Bloom, page 0 │ ...
//!   ... │ dictionary of 1 │ index of 0 │ index of 1 │ index of keys │ ... │ footer │ trailer
//!
//!   footer ──▶ page index of a stream ──▶ page ──▶ body (encoding.rs) ──▶ Page (page.rs, cached)
//!              first row, rows, NULLs,
//!              smallest and largest cell of each page
//! ```
//!
//! The pages of all streams of a rowset lie in one file, in the order in which they filled up. Only their
//! indexes say which belongs where, and each page says it again itself.
//!
//! *Not here:* rows, timestamps, deltas ([`crate::tablet`]).

pub mod bitshuffle;
pub mod bloom;
pub mod cache;
pub mod compress;
pub mod encoding;
#[cfg(test)]
mod encoding_tests;
pub mod frame;
#[cfg(test)]
mod frame_tests;
pub mod hash;
pub mod index;
pub mod keys;
pub mod page;
pub mod reader;
pub mod stats;
pub mod writer;
