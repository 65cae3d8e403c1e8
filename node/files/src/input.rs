//! An opened file of any format.

use std::io::Read;

use engine::error::Result;

use crate::json_lines::JsonReader;
use crate::parquet_rows::ParquetReader;
use crate::reader::{CsvReader, ImportBlock, ImportTarget};

pub enum ImportInput<R> {
    Csv(Box<CsvReader<R>>),
    Json(Box<JsonReader<R>>),
    Parquet(Box<ParquetReader>),
}

impl<R: Read> ImportInput<R> {
    /// Returns the next rows; `None` at the end.
    pub fn next(&mut self, table: ImportTarget<'_>) -> Result<Option<ImportBlock>> {
        match self {
            ImportInput::Csv(csv) => csv.next(table),
            ImportInput::Json(json) => json.next(table),
            ImportInput::Parquet(parquet) => parquet.next(table),
        }
    }
}
