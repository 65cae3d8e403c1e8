//! A tablet: one partition of a table, as rows with history.

pub mod mvcc;
pub mod rowset;
pub mod scan;
