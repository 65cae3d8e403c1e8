//! SQL over nyala and Apache Kudu clusters, on DataFusion.
//!
//! ```text
//! shell, serve ── script: statements, and clauses that DataFusion's grammar lacks (partition, tokens)
//!   │               guard, depth: refusal of clauses that would be ignored, and of statements that are too deep
//!   ├── executor
//!   │     ├── ddl (unfinished): CREATE, ALTER, DROP   describe, show_create: SHOW, DESCRIBE
//!   │     ├── dml: INSERT, UPSERT, UPDATE, DELETE ──┐
//!   │     ├── copy (file_writer) ───────────────────┤
//!   │     └── SELECT, EXPLAIN ──────────────────────┴─ session ── catalog (snapshot) ── table (filter) ── scan (late)
//!   │                    aggregate_rule, aggregate: parts that the tablet servers compute ──┘
//!   └── output: table, CSV, JSON, Parquet
//! ```
//!
//! A statement has a session of its own: it opens its tables when it is planned, and reads all tablets of all tables at
//! one snapshot timestamp. Writes are planned as the query that yields their rows. DataFusion's own plans of UPDATE and
//! DELETE are not used, because they lose conditions (apache/datafusion#24654). `float_literals` makes a literal with a
//! fraction a DOUBLE where it is beside one. `checked_arithmetic` and `checked_sum` refuse results that do not fit.
//! `filter_barrier` keeps filters from columns that have the name of theirs.
//!
//! `serve` speaks the Postgres protocol and Arrow Flight SQL. `embedded` runs a cluster in a directory, by the program
//! `nyala`: this crate contains no server.

mod aggregate;
mod aggregate_rule;
mod catalog;
mod checked_arithmetic;
mod checked_sum;
mod copy;
mod ddl;
mod depth;
mod describe;
mod dml;
pub mod embedded;
mod error;
mod executor;
mod file_writer;
mod filter;
mod filter_barrier;
mod float_literals;
mod guard;
pub mod interactive;
mod large_values;
mod late;
mod output;
mod partition;
mod pg_catalog;
mod scan;
mod script;
pub mod serve;
mod session;
mod shell;
mod show_create;
mod snapshot;
mod table;
#[cfg(test)]
mod test_cluster;
mod tokens;
mod unfinished;

pub use depth::STACK_BYTES;
pub use error::SqlError;
pub use output::{Format, Print, to_stdout};
pub use shell::Shell;
