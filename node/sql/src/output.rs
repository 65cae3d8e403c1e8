//! Results as text.

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::csv::WriterBuilder;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::json::LineDelimitedWriter;
use datafusion::arrow::util::pretty::pretty_format_batches_with_schema;
use datafusion::execution::SendableRecordBatchStream;
use futures_util::StreamExt;

use super::error::{SqlError, SqlResult};

/// Format of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Table with borders.
    Table,
    /// CSV with a line of column names.
    Csv,
    /// One JSON object per line.
    Json,
}

/// Printer of pieces of text. An error, such as a closed pipe, ends the statement.
pub type Print<'a> = dyn FnMut(&str) -> std::io::Result<()> + 'a;

/// Prints the rows of a query. A table is printed at the end, because its widths depend on all rows.
pub(crate) async fn print_stream(
    format: Format,
    mut rows: SendableRecordBatchStream,
    print: &mut Print<'_>,
) -> SqlResult<()> {
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
        Format::Json => Ok(()),
        Format::Csv if !is_first => Ok(()),
        _ => give(print, &text(format, &schema, &kept, true)?),
    }
}

/// Prints one batch.
pub(crate) fn print_batch(format: Format, batch: &RecordBatch, print: &mut Print<'_>) -> SqlResult<()> {
    give(print, &text(format, &batch.schema(), std::slice::from_ref(batch), true)?)
}

fn give(print: &mut Print<'_>, text: &str) -> SqlResult<()> {
    print(text).map_err(|error| SqlError::new(format!("write the result: {error}")))
}

/// Formats batches; the first of CSV begins with the names of the columns.
fn text(format: Format, schema: &SchemaRef, batches: &[RecordBatch], is_first: bool) -> SqlResult<String> {
    let mut bytes = Vec::new();
    match format {
        Format::Table => {
            return Ok(format!("{}\n", pretty_format_batches_with_schema(schema.clone(), batches)?));
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
    }
    String::from_utf8(bytes).map_err(|error| SqlError::new(format!("the result is no text: {error}")))
}

/// Prints to standard output.
pub fn to_stdout(text: &str) -> std::io::Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
