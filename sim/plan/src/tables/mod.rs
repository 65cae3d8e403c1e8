//! Model tables: tables of any shape, as data, and the ops on them.
//!
//! ```text
//! table number=0 keys=2 hash=0.1:3:7 range=0          [`spec::TableSpec`]
//! column table=0 number=0 name=k0 kind=int8 ...       [`spec::ColumnSpec`], key columns first
//! range table=0 low=i-5 high=- hash=-                 [`spec::RangeSpec`]
//! ```
//!
//! Ops on them are in [`crate::client_ops`] and begin with `table-`. An op has a number, `draw`, from which the client
//! draws rows, tests and steps that fit the table's schema at that time.
//!
//! Not here: what a row operation does and what a test keeps. They are in the crate `sim`, in `src/model`.

pub mod draw;
mod generate;
pub mod spec;
pub mod value;

pub(crate) use generate::{
    TableOps, base_profile, replace_with_metadata, replace_with_paused_scans, replace_with_range_changes,
    replace_with_table_ops,
};
pub use spec::{ColumnSpec, HashLevel, ModelTable, RangeSpec, TableSpec};
pub use value::{ColumnKind, TypeWord, Value};
