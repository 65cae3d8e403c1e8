//! Results as text, or as a Parquet file.

use std::io::Write;
use std::sync::{Arc, Mutex};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::csv::WriterBuilder;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::json::LineDelimitedWriter;
use datafusion::arrow::util::pretty::pretty_format_batches_with_schema;
use datafusion::execution::SendableRecordBatchStream;
use futures_util::StreamExt;

use super::error::{SqlError, SqlResult};
use super::file_writer::parquet_writer;

/// Format of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Table with borders.
    Table,
    /// CSV with a line of column names.
    Csv,
    /// One JSON object per line.
    Json,
    /// Parquet file of one result.
    Parquet,
}

/// Printer of pieces of the output. An error, such as a closed pipe, ends the statement.
pub type Print<'a> = dyn FnMut(&[u8]) -> std::io::Result<()> + 'a;

/// Prints the rows of a query. A table is printed at the end, because its widths depend on all rows.
pub(crate) async fn print_stream(
    format: Format,
    mut rows: SendableRecordBatchStream,
    print: &mut Print<'_>,
) -> SqlResult<()> {
    if format == Format::Parquet {
        return print_parquet(rows, print).await;
    }
    let schema = rows.schema();
    let mut kept = Vec::new();
    let mut is_first = true;
    while let Some(batch) = rows.next().await {
        let batch = batch?;
        match format {
            Format::Table => kept.push(batch),
            _ => give(print, &text(format, &schema, &[batch], is_first)?)?,
        }
        is_first = false;
    }
    match format {
        Format::Json | Format::Parquet => Ok(()),
        Format::Csv if !is_first => Ok(()),
        _ => give(print, &text(format, &schema, &kept, true)?),
    }
}

/// Prints a Parquet file, one piece after each batch.
async fn print_parquet(mut rows: SendableRecordBatchStream, print: &mut Print<'_>) -> SqlResult<()> {
    let pieces = Pieces::default();
    let mut writer = parquet_writer(pieces.clone(), rows.schema())?;
    while let Some(batch) = rows.next().await {
        writer.write(&batch?)?;
        give(print, &pieces.take())?;
    }
    writer.close()?;
    give(print, &pieces.take())
}

/// Bytes that a writer has written and that are not printed yet.
#[derive(Clone, Default)]
struct Pieces(Arc<Mutex<Vec<u8>>>);

impl Pieces {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(|error| error.into_inner()))
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(|error| error.into_inner()).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Prints one batch.
pub(crate) fn print_batch(format: Format, batch: &RecordBatch, print: &mut Print<'_>) -> SqlResult<()> {
    give(print, &text(format, &batch.schema(), std::slice::from_ref(batch), true)?)
}

fn give(print: &mut Print<'_>, bytes: &[u8]) -> SqlResult<()> {
    print(bytes).map_err(|error| SqlError::new(format!("write the result: {error}")))
}

/// Formats batches; the first of CSV begins with the names of the columns.
fn text(format: Format, schema: &SchemaRef, batches: &[RecordBatch], is_first: bool) -> SqlResult<Vec<u8>> {
    let mut bytes = Vec::new();
    match format {
        Format::Table => {
            return Ok(
                format!("{}\n", pretty_format_batches_with_schema(schema.clone(), batches)?).into_bytes()
            );
        }
        Format::Csv => {
            let mut writer = WriterBuilder::new().with_header(is_first).build(&mut bytes);
            if batches.is_empty() {
                writer.write(&RecordBatch::new_empty(schema.clone()))?;
            }
            batches.iter().try_for_each(|batch| writer.write(batch))?;
        }
        Format::Json => {
            let mut writer = LineDelimitedWriter::new(&mut bytes);
            batches.iter().try_for_each(|batch| writer.write(batch))?;
            writer.finish()?;
        }
        Format::Parquet => {
            let mut writer = parquet_writer(&mut bytes, schema.clone())?;
            batches.iter().try_for_each(|batch| writer.write(batch))?;
            writer.close()?;
        }
    }
    Ok(bytes)
}

/// Prints to standard output.
pub fn to_stdout(bytes: &[u8]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}
