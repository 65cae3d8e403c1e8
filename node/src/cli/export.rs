//! `nyala table export`: rows of one snapshot to a CSV, JSON lines or Parquet file.
//!
//! ```text
//! token (one per tablet) ─► reader task: scan, encode ─┐
//! token                  ─► reader task               ─┼─► channel ─► file
//! ```
//!
//! All tablets are read at one timestamp and in key order, so that a lost server delays the export but changes nothing.

use engine::sync::Mutex;
use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;

use arrow_array::RecordBatch;
use clap::{Arg, ArgAction, ArgMatches, Command};
use engine::error::{Error, Result};
use engine::schema::{ColumnSchema, DataType, TypeAttributes, format_cell};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use tokio::sync::mpsc;

use super::exit::ExitError;
use super::options::{connect, named, open, option, spec, text};
use super::output::{ProgressUnit, print, progress};
use super::stream::{FileCompression, FileFormat, OutputStream, STANDARD};
use nyala_client::cell_text::parse_cell;
use nyala_client::{ReadMode, ScanSpec, ScanToken, Scanner, Table};
use nyala_common::env::Env;
use nyala_common::number_text::{bytes, grouped};
use nyala_files::delimited::{csv, csv_header, json_lines};

/// Batches that wait for the writer.
const BATCHES_WAITING: usize = 8;
/// Bits of a hybrid timestamp below the microseconds.
const LOGICAL_BITS: u32 = 12;

const HELP: &str = "\
All rows are of one snapshot. Within a tablet they are in the order of the key; with --parallel 1 tablets follow each \
other. In CSV, NULL is an empty cell and the empty string is \"\".";

pub(super) fn command() -> Command {
    named("export", "Write a table's rows to a CSV, JSON lines or Parquet file")
        .after_help(HELP)
        .arg(
            Arg::new("file")
                .value_name("FILE")
                .required(true)
                .help("File to write; .gz and .zst are compressed; - is standard output"),
        )
        .arg(option("format", "FORMAT", "csv, jsonl or parquet [default: by the file's name]"))
        .arg(option("columns", "NAMES", "Only these columns, e.g. 'a,b'"))
        .arg(
            option("where", "CONDITION", "Only rows that satisfy this; may be repeated")
                .action(ArgAction::Append),
        )
        .arg(option("limit", "N", "At most this many rows").value_parser(clap::value_parser!(u64)))
        .arg(option("at", "TIME", "Rows as they were at this time, e.g. 2026-01-31T12:00:00Z [default: now]"))
        .arg(
            option("parallel", "N", "Tablets read at the same time")
                .default_value("4")
                .value_parser(clap::value_parser!(u64).range(1..=64)),
        )
        .arg(option("null", "TEXT", "Text of NULL in CSV").default_value(""))
        .arg(Arg::new("force").long("force").action(ArgAction::SetTrue).help("Replace the file if it exists"))
}

/// Converts any of the writers' errors.
pub(super) fn failed(error: impl std::fmt::Display) -> Error {
    Error::invalid(format!("export: {error}"))
}

/// Rows on their way to the file.
enum Chunk {
    Text(Vec<u8>, u64),
    Rows(RecordBatch),
}

/// Form in which readers pass rows on.
#[derive(Clone)]
enum Encoder {
    Csv { null: String },
    Json,
    Parquet,
}

impl Encoder {
    fn encode(&self, batch: RecordBatch) -> Result<Chunk> {
        let rows = batch.num_rows() as u64;
        Ok(match self {
            Encoder::Csv { null } => Chunk::Text(csv(&batch, null)?, rows),
            Encoder::Json => Chunk::Text(json_lines(&batch)?, rows),
            Encoder::Parquet => Chunk::Rows(batch),
        })
    }
}

enum Out {
    Text(Box<OutputStream>),
    Parquet(Box<ArrowWriter<OutputStream>>),
}

impl Out {
    /// Writes rows; returns their number.
    fn write(&mut self, chunk: &Chunk) -> Result<u64> {
        match (self, chunk) {
            (Out::Text(out), Chunk::Text(text, rows)) => out.write_all(text).map_err(failed).map(|()| *rows),
            (Out::Parquet(out), Chunk::Rows(batch)) => {
                out.write(batch).map_err(failed).map(|()| batch.num_rows() as u64)
            }
            _ => Err(failed("rows in another form than the file's")),
        }
    }

    fn finish(self) -> Result<u64> {
        match self {
            Out::Text(out) => out.finish(),
            Out::Parquet(out) => out.into_inner().map_err(failed)?.finish(),
        }
    }
}

/// Form of the file, by the command line.
struct FileForm {
    format: FileFormat,
    compression: FileCompression,
    /// Text of NULL in CSV.
    null: String,
}

impl FileForm {
    fn of(path: &str, matches: &ArgMatches) -> Result<FileForm> {
        let format = FileFormat::of(text(matches, "format"), path)?;
        let compression = FileCompression::strip(path).1;
        if format == FileFormat::Parquet && compression != FileCompression::None {
            let message = format!("{path}: Parquet files are compressed inside; leave the extension out");
            return Err(Error::invalid(message));
        }
        let null = text(matches, "null").unwrap_or_default().to_string();
        if null.contains([',', '"', '\r', '\n']) {
            return Err(Error::invalid(format!(
                "--null: {null:?} would need quotes; choose a text without , and \""
            )));
        }
        Ok(FileForm { format, compression, null })
    }
}

pub(super) async fn run(env: &Env, matches: &ArgMatches) -> Result<(), ExitError> {
    let path = text(matches, "file").expect("it is required");
    let FileForm { format, compression, null } = FileForm::of(path, matches).map_err(ExitError::usage)?;
    let at = text(matches, "at").map(|at| timestamp(env, "--at", at));
    let at = at.transpose().map_err(ExitError::usage)?;
    let table = open(&connect(env, matches).await?, matches).await?;
    let spec = spec(&table, matches)?;
    let spec = ScanSpec { read_mode: ReadMode::AtSnapshot(at), fault_tolerant: true, ..spec };
    let estimate = table.client().table_statistics(table.name()).await?.live_rows.unwrap_or(0);
    let schema = table.scan(spec.clone())?.schema().clone();
    let mut sink = OutputStream::create(env, path, matches.get_flag("force"), compression)?;
    let (out, encoder) = match format {
        FileFormat::Csv => {
            sink.write_all(&csv_header(&schema)).map_err(failed)?;
            (Out::Text(Box::new(sink)), Encoder::Csv { null })
        }
        FileFormat::JsonLines => (Out::Text(Box::new(sink)), Encoder::Json),
        FileFormat::Parquet => {
            let compression = Compression::ZSTD(ZstdLevel::default());
            let properties = WriterProperties::builder().set_compression(compression).build();
            let writer = ArrowWriter::try_new(sink, schema, Some(properties)).map_err(failed)?;
            (Out::Parquet(Box::new(writer)), Encoder::Parquet)
        }
    };
    let parallel = *matches.get_one::<u64>("parallel").expect("it has a default") as usize;
    let mut export = Export { env: env.clone(), out, encoder, rows: 0, estimate: estimate.max(0) as u64 };
    let snapshot = export.copy(&table, spec, parallel).await?;
    let Export { out, rows, .. } = export;
    let size = env.run(|| out.finish()).await?;
    let as_of = snapshot.map_or_else(String::new, |at| format!(", as of {}", show_timestamp(at)));
    let line = format!("exported {} rows to {path}, {}{as_of}\n", grouped(rows), bytes(size));
    // Standard output holds the rows.
    if path == STANDARD {
        eprint!("{line}")
    } else {
        print(&line)
    }
    Ok(())
}

/// Parses the time of an option to a hybrid timestamp.
pub(super) fn timestamp(env: &Env, option: &str, text: &str) -> Result<u64> {
    let column = ColumnSchema::new(0, option, DataType::UnixtimeMicros);
    let cell = parse_cell(&column, text).map_err(|error| error.context(option))?;
    let micros = u64::from_le_bytes(cell.try_into().expect("8 bytes"));
    let now = env.now().wall.micros;
    if micros > now {
        let now = show_timestamp(now << LOGICAL_BITS);
        return Err(Error::invalid(format!(
            "{option}: {text} is in the future (now {now}); give an earlier time"
        )));
    }
    Ok(micros << LOGICAL_BITS)
}

fn show_timestamp(timestamp: u64) -> String {
    let micros = (timestamp >> LOGICAL_BITS).to_le_bytes();
    format_cell(DataType::UnixtimeMicros, TypeAttributes::default(), &micros)
}

struct Export {
    env: Env,
    out: Out,
    encoder: Encoder,
    rows: u64,
    estimate: u64,
}

impl Export {
    /// Copies the rows of a scan to the file. Returns the snapshot timestamp; `None` if there is no tablet.
    async fn copy(&mut self, table: &Table, mut spec: ScanSpec, parallel: usize) -> Result<Option<u64>> {
        let bar = progress(self.estimate, ProgressUnit::Rows);
        let limit = spec.limit;
        // The first batch decides the snapshot, if the caller has not.
        let mut first = table.scan(spec.clone())?;
        let batch = first.next_batch().await?;
        let snapshot = first.snapshot();
        if parallel == 1 || limit.is_some() {
            self.write_batches(first, batch).await?;
            return Ok(snapshot);
        }
        drop((first, batch));
        let Some(timestamp) = snapshot else { return Ok(None) };
        spec.read_mode = ReadMode::AtSnapshot(Some(timestamp));
        let tokens: VecDeque<ScanToken> = table.scan_tokens(&spec).await?.into();
        let readers = parallel.min(tokens.len());
        let tokens = Arc::new(Mutex::new(tokens));
        let (to_file, mut chunks) = mpsc::channel(BATCHES_WAITING);
        for _ in 0..readers {
            let (env, table, encoder) = (self.env.clone(), table.clone(), self.encoder.clone());
            let (tokens, to_file) = (tokens.clone(), to_file.clone());
            let task = async move {
                if let Err(error) = read_tokens(&env, &table, &tokens, &encoder, &to_file).await {
                    // A closed channel means that the export has ended.
                    let _ = to_file.send(Err(error)).await;
                }
            };
            drop(self.env.spawn("export reader", task));
        }
        drop(to_file);
        while let Some(chunk) = chunks.recv().await {
            self.write(chunk?).await?;
            bar.set_length(self.rows.max(self.estimate));
            bar.set_position(self.rows);
        }
        bar.finish_and_clear();
        Ok(snapshot)
    }

    async fn write_batches(&mut self, mut scanner: Scanner, batch: Option<RecordBatch>) -> Result<()> {
        let mut next = batch;
        while let Some(batch) = next {
            let chunk = self.encoder.encode(batch)?;
            self.write(chunk).await?;
            next = scanner.next_batch().await?;
        }
        Ok(())
    }

    async fn write(&mut self, chunk: Chunk) -> Result<()> {
        let env = self.env.clone();
        let out = &mut self.out;
        self.rows += env.run(move || out.write(&chunk)).await?;
        Ok(())
    }
}

/// Reads tablets until no token is left.
async fn read_tokens(
    env: &Env,
    table: &Table,
    tokens: &Mutex<VecDeque<ScanToken>>,
    encoder: &Encoder,
    to_file: &mpsc::Sender<Result<Chunk>>,
) -> Result<()> {
    loop {
        let next = tokens.lock().pop_front();
        let Some(token) = next else { return Ok(()) };
        let mut scanner = table.scan_token(&token)?;
        while let Some(batch) = scanner.next_batch().await? {
            let chunk = env.run(|| encoder.encode(batch)).await?;
            if to_file.send(Ok(chunk)).await.is_err() {
                return Ok(());
            }
        }
    }
}
