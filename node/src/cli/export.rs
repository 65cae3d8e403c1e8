//! `nyala table export`: rows to a CSV or Parquet file.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray};
use arrow_csv::{Writer, WriterBuilder};
use arrow_schema::{DataType, Field, Schema};
use clap::{Arg, ArgAction, ArgMatches, Command};
use engine::error::{Error, Result};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

use super::files::{FileFormat, OutputFile};
use super::options::{connect, named, open, option, spec, text};
use super::output::{ProgressUnit, bytes, grouped, print, progress};
use nyala_client::Scanner;
use nyala_common::env::Env;

pub fn command() -> Command {
    named("export", "Write a table's rows to a CSV or Parquet file")
        .arg(Arg::new("file").value_name("FILE").required(true).help("File to write"))
        .arg(option("format", "FORMAT", "csv or parquet [default: by the file's name]"))
        .arg(option("columns", "NAMES", "Only these columns, e.g. 'a,b'"))
        .arg(
            option("where", "CONDITION", "Only rows that satisfy this; may be repeated")
                .action(ArgAction::Append),
        )
        .arg(option("limit", "N", "At most this many rows").value_parser(clap::value_parser!(u64)))
        .arg(option("null", "TEXT", "Text of NULL in CSV").default_value(""))
        .arg(Arg::new("force").long("force").action(ArgAction::SetTrue).help("Replace the file if it exists"))
}

/// Converts any of the writers' errors.
pub fn failed(error: impl std::fmt::Display) -> Error {
    Error::invalid(format!("export: {error}"))
}

enum Out {
    Csv(Box<Writer<OutputFile>>),
    Parquet(Box<ArrowWriter<OutputFile>>),
}

pub async fn run(env: &Env, matches: &ArgMatches) -> Result<()> {
    let path = text(matches, "file").expect("it is required");
    let format = FileFormat::of(text(matches, "format"), path)?;
    let table = open(&connect(env, matches).await?, matches).await?;
    let spec = spec(&table, matches)?.ok_or_else(|| Error::invalid("no row can satisfy these conditions"))?;
    let estimate = table.client().table_statistics(table.name()).await?.live_rows.unwrap_or(0);
    let mut scanner = table.scan(spec)?;
    let sink = OutputFile::create(env, path, matches.get_flag("force"))?;
    let mut out = match format {
        FileFormat::Csv => {
            Out::Csv(Box::new(csv_writer(sink, true, text(matches, "null").unwrap_or_default())))
        }
        FileFormat::Parquet => {
            let compression = Compression::ZSTD(ZstdLevel::default());
            let properties = WriterProperties::builder().set_compression(compression).build();
            let writer = ArrowWriter::try_new(sink, scanner.schema().clone(), Some(properties));
            Out::Parquet(Box::new(writer.map_err(failed)?))
        }
    };
    let rows = copy(env, &mut scanner, &mut out, estimate.max(0) as u64).await?;
    let sink = match out {
        Out::Csv(writer) => writer.into_inner(),
        Out::Parquet(writer) => writer.into_inner().map_err(failed)?,
    };
    let size = env.run(|| sink.finish()).await?;
    print(&format!("exported {} rows to {path}, {}\n", grouped(rows), bytes(size)));
    Ok(())
}

async fn copy(env: &Env, scanner: &mut Scanner, out: &mut Out, estimate: u64) -> Result<u64> {
    let bar = progress(estimate, ProgressUnit::Rows);
    let mut rows = 0;
    if let Out::Csv(writer) = out {
        // Writes the names of the columns even if there are no rows.
        writer.write(&printable(&RecordBatch::new_empty(scanner.schema().clone()))?).map_err(failed)?;
    }
    while let Some(batch) = scanner.next_batch().await? {
        env.run(|| match &mut *out {
            Out::Csv(writer) => writer.write(&printable(&batch)?).map_err(failed),
            Out::Parquet(writer) => writer.write(&batch).map_err(failed),
        })
        .await?;
        rows += batch.num_rows() as u64;
        bar.set_length(rows.max(estimate));
        bar.set_position(rows);
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// Returns a CSV writer.
pub fn csv_writer<W: std::io::Write>(to: W, header: bool, null: &str) -> Writer<W> {
    WriterBuilder::new().with_header(header).with_null(null.to_string()).build(to)
}

/// Returns the batch with BINARY as `0x…`, which CSV can hold and an import can read.
pub fn printable(batch: &RecordBatch) -> Result<RecordBatch> {
    let is_binary = |field: &Arc<Field>| *field.data_type() == DataType::Binary;
    let schema = batch.schema();
    if !schema.fields().iter().any(is_binary) {
        return Ok(batch.clone());
    }
    let field = |field: &Arc<Field>| match is_binary(field) {
        true => Field::new(field.name(), DataType::Utf8, field.is_nullable()),
        false => field.as_ref().clone(),
    };
    let fields: Vec<Field> = schema.fields().iter().map(field).collect();
    let hex = |cell: &[u8]| {
        let digits: String = cell.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("0x{digits}")
    };
    let column = |array: &ArrayRef| match array.data_type() {
        DataType::Binary => {
            let cells = array.as_binary::<i32>().iter().map(|cell| cell.map(hex));
            Arc::new(cells.collect::<StringArray>()) as ArrayRef
        }
        _ => array.clone(),
    };
    let columns = batch.columns().iter().map(column).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(failed)
}
