//! Column files: one column's cells as a sequence of checked, encoded, compressed pages.
//!
//! ```text
//! a file of pages (page_file.rs)
//!
//!   column 0, page 0 │ column 1, page 0 │ key index, page 0 │ column 0, page 1 │ Bloom, page 0 │ ...
//!   ... │ dictionary of 1 │ index of 0 │ index of 1 │ index of keys │ ... │ footer │ trailer
//!
//!   footer ──▶ page index of a stream ──▶ page ──▶ body (encoding.rs) ──▶ DecodedPage (cached)
//!              first row, rows, NULLs,
//!              zone map (smallest and largest cell) of each page
//! ```
//!
//! The pages of all streams of a rowset are in one file, in the order in which they filled up. The page
//! indexes tell which page belongs to which stream, and the header of each page repeats it.
//!
//! *Not here:* rows, timestamps, deltas ([`crate::tablet`]).

pub mod bitshuffle;
pub mod cache;
pub mod cached_reads;
pub mod compress;
pub mod decoded_page;
pub mod encoding;
#[cfg(test)]
mod encoding_tests;
#[cfg(test)]
mod frame_tests;
pub mod key_bloom;
pub mod key_index;
pub mod key_prefix;
pub mod narrow_ints;
pub mod page_file;
pub mod page_first_keys;
pub mod page_index;
pub mod reader;
pub mod stable_hash;
pub mod writer;
pub mod zone_map;
