//! Rows of tables in files: CSV, JSON lines, Parquet.
//!
//! ```text
//!   file ── csv_records ─► reader (CsvReader) ──┐
//!        ── json_lines (JsonReader) ────────────┼─ input ─► blocks of cells by the table's columns, bad rows by line
//!        ── parquet_rows (ParquetReader) ───────┘    (parquet_times: its times of 96 bits)
//!   record batch ── delimited ─► CSV, JSON lines
//! ```
//!
//! A value is stored as it is or refused. The bytes of files are untrusted.
//!
//! Not here: the commands `nyala table import` and `export` (`node`), SQL's COPY (`nyala-sql`).

pub mod csv_records;
pub mod delimited;
mod input;
mod json_lines;
mod parquet_rows;
mod parquet_times;
pub mod reader;

pub use input::ImportInput;
pub use json_lines::JsonReader;
pub use parquet_rows::ParquetReader;
