//! A model of a whole table: what Kudu's documentation says of its rows and its schema.
//!
//! ```text
//! plan ──► [`sim_plan::tables`]  shapes and values
//!              │
//!              ├──► draws       rows and conditions that fit a version
//!              ├──► extra_draws rare parts of them, by streams of their own
//!              ├──► alter_draws alterations that fit a version; range_draws: those of ranges
//!              ├──► rows        what a row operation does to a row, and its answer
//!              ├──► condition   whether a scan's condition keeps a cell
//!              └──► versions    the schema over time: an alteration is a window
//! ```
//!
//! Invariant: nothing here uses `engine`, `node` or their client. What the documentation leaves open has several
//! answers, all of which are accepted.

pub mod alter_draws;
mod condition;
pub mod draws;
pub mod extra_draws;
pub mod invalid_draws;
mod range_draws;
pub mod rows;
mod settings;
mod versions;

pub use condition::{Condition, Truth};
pub use rows::{ModelRow, RowAnswer, RowCells, RowWrite};
pub use settings::TableSettings;
pub use versions::{Incarnation, TableVersion};

/// Number of a column of a table, never reused.
pub type ColNo = u8;

#[cfg(test)]
pub(crate) mod tests;
