//! Writer of a query's rows to a file: CSV, JSON lines, Parquet.

use std::io::Write;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use nyala_backup::files::OutputFile;
use nyala_common::env::Env;
use nyala_files::delimited::{csv, csv_header, json_lines};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;

use super::error::{SqlError, SqlResult};

/// Format of a file of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileFormat {
    Csv,
    Json,
    Parquet,
}

impl FileFormat {
    pub(crate) fn of_word(word: &str) -> SqlResult<FileFormat> {
        match word.to_lowercase().as_str() {
            "csv" => Ok(FileFormat::Csv),
            "json" | "jsonl" => Ok(FileFormat::Json),
            "parquet" => Ok(FileFormat::Parquet),
            _ => Err(SqlError::new(format!("FORMAT {word}: unknown; there are csv, json and parquet"))),
        }
    }

    /// Returns the format that the extension of a name stands for.
    pub(crate) fn of_name(name: &str) -> SqlResult<FileFormat> {
        let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_lowercase());
        match extension.as_deref() {
            Some("csv") => Ok(FileFormat::Csv),
            Some("jsonl" | "ndjson" | "json") => Ok(FileFormat::Json),
            Some("parquet" | "pq") => Ok(FileFormat::Parquet),
            _ => Err(SqlError::new(
                "unknown format (the name ends in none of .csv, .jsonl, .parquet); add WITH (FORMAT csv)",
            )),
        }
    }
}

/// Returns a writer of Parquet into `sink`, compressed.
pub(crate) fn parquet_writer<W: Write + Send>(sink: W, schema: SchemaRef) -> SqlResult<ArrowWriter<W>> {
    let compression = Compression::ZSTD(ZstdLevel::default());
    let properties = WriterProperties::builder().set_compression(compression).build();
    Ok(ArrowWriter::try_new(sink, schema, Some(properties))?)
}

/// A file being written. Dropped unfinished, it leaves no file.
pub(crate) enum FileWriter {
    Csv { file: OutputFile, null: String },
    Json(OutputFile),
    Parquet(Box<ArrowWriter<OutputFile>>),
}

impl FileWriter {
    /// Creates the file; one that exists is replaced at the end.
    pub(crate) fn create(
        env: &Env,
        path: &str,
        format: FileFormat,
        null: &str,
        schema: SchemaRef,
    ) -> SqlResult<FileWriter> {
        let mut file = OutputFile::create(env, path, true)?;
        Ok(match format {
            FileFormat::Csv => {
                file.write_all(&csv_header(&schema)).map_err(failed)?;
                FileWriter::Csv { file, null: null.to_string() }
            }
            FileFormat::Json => FileWriter::Json(file),
            FileFormat::Parquet => FileWriter::Parquet(Box::new(parquet_writer(file, schema)?)),
        })
    }

    pub(crate) fn write(&mut self, batch: &RecordBatch) -> SqlResult<()> {
        match self {
            FileWriter::Csv { file, null } => file.write_all(&csv(batch, null)?).map_err(failed),
            FileWriter::Json(file) => file.write_all(&json_lines(batch)?).map_err(failed),
            FileWriter::Parquet(writer) => Ok(writer.write(batch)?),
        }
    }

    /// Makes the file durable and gives it its name.
    pub(crate) fn finish(self) -> SqlResult<()> {
        match self {
            FileWriter::Csv { file, .. } | FileWriter::Json(file) => file.finish()?,
            FileWriter::Parquet(writer) => writer.into_inner()?.finish()?,
        };
        Ok(())
    }
}

fn failed(error: std::io::Error) -> SqlError {
    SqlError::new(format!("write: {error}"))
}

impl From<ParquetError> for SqlError {
    fn from(error: ParquetError) -> SqlError {
        SqlError::new(format!("Parquet: {error}"))
    }
}
