//! `nyala table import`: rows from a CSV or Parquet file.
//!
//! Rows that cannot be read or that the cluster rejects end the import, with their lines and reasons. With `--rejects`
//! they are written to a file with the same columns instead, which can be corrected and imported.

pub mod reader;

use std::collections::BTreeMap;

use clap::{Arg, ArgMatches, Command};
use csv::{ByteRecord, Position};
use engine::error::{Error, Result};
use engine::schema::row_ops::RowOpKind;

use self::reader::{CsvReader, ImportInput, ImportRows, ImportTarget, ParquetReader, csv_reader};
use super::files::{FileFormat, InputFile, OutputFile};
use super::options::{connect, named, open, option, text};
use super::output::{ProgressUnit, grouped, print, progress};
use nyala_client::{FlushMode, Session, SessionConfig, Table};
use nyala_common::env::Env;

/// Bad rows printed when they end the import.
const SHOWN: usize = 10;
/// Bad rows kept for the file of rejects.
const REJECTS_MAX: usize = 1_000_000;

pub fn command() -> Command {
    named("import", "Write the rows of a CSV or Parquet file into a table")
        .arg(Arg::new("file").value_name("FILE").required(true).help("File to read; CSV needs a header line"))
        .arg(option("format", "FORMAT", "csv or parquet [default: by the file's name]"))
        .arg(
            option("mode", "MODE", "insert: fail on a duplicate key; upsert: replace; insert-ignore: skip")
                .value_parser(["insert", "upsert", "insert-ignore"])
                .default_value("insert"),
        )
        .arg(option("null", "TEXT", "Text of NULL in CSV").default_value(""))
        .arg(option("delimiter", "CHAR", "Separator of cells in CSV").default_value(","))
        .arg(option("rejects", "FILE", "Skip bad rows and write them, with errors, to this CSV file"))
}

pub async fn run(env: &Env, matches: &ArgMatches) -> Result<()> {
    let path = text(matches, "file").expect("it is required");
    let format = FileFormat::of(text(matches, "format"), path)?;
    let source = InputFile::open(env, path)?;
    let table = open(&connect(env, matches).await?, matches).await?;
    let rows_for = ImportTarget { schema: table.schema(), name: table.name() };
    let kind = match text(matches, "mode") {
        Some("upsert") => RowOpKind::Upsert,
        Some("insert-ignore") => RowOpKind::InsertIgnore,
        _ => RowOpKind::Insert,
    };
    let (total, unit) = (source.bytes(), ProgressUnit::Bytes);
    let (mut input, total, unit) = match format {
        FileFormat::Csv => {
            let null = text(matches, "null").unwrap_or_default().as_bytes();
            let csv = CsvReader::open(source.clone(), rows_for, delimiter(matches)?, null)?;
            (ImportInput::Csv(Box::new(csv)), total, unit)
        }
        FileFormat::Parquet => {
            let (parquet, rows) = ParquetReader::open(source.clone(), rows_for)?;
            (ImportInput::Parquet(Box::new(parquet)), rows, ProgressUnit::Rows)
        }
    };
    let mut import = Import {
        session: table.client().session(SessionConfig::new(FlushMode::AutoBackground)),
        table,
        kind,
        bad: BTreeMap::new(),
        bad_count: 0,
        go_on: text(matches, "rejects").is_some(),
        unit: if format == FileFormat::Csv { "line" } else { "row" },
    };
    let bar = progress(total, unit);
    loop {
        let rows_for = ImportTarget { schema: import.table.schema(), name: import.table.name() };
        let read = env.run(|| input.next(rows_for)).await?;
        let Some((rows, unreadable)) = read else { break };
        import.bad(unreadable);
        import.send(&rows).await?;
        bar.set_position(rows.position);
        if import.must_stop() {
            break;
        }
    }
    import.finish().await;
    bar.finish_and_clear();
    let read_again = (format == FileFormat::Csv).then_some(source);
    import.report(env, path, matches, read_again).await
}

struct Import {
    session: Session,
    table: Table,
    kind: RowOpKind,
    /// Bad rows by line.
    bad: BTreeMap<u64, String>,
    bad_count: u64,
    go_on: bool,
    unit: &'static str,
}

impl Import {
    fn bad(&mut self, rows: impl IntoIterator<Item = (u64, String)>) {
        for (tag, reason) in rows {
            self.bad_count += 1;
            if self.bad.len() < REJECTS_MAX {
                self.bad.insert(tag, reason);
            }
        }
    }

    async fn send(&mut self, rows: &ImportRows) -> Result<()> {
        self.session.apply_columns(&self.table, self.kind, &rows.columns, &rows.tags).await?;
        self.take_failures(self.session.take_failures());
        Ok(())
    }

    fn take_failures(&mut self, failures: Vec<nyala_client::RowFailure>) {
        self.bad(failures.into_iter().map(|failure| (failure.tag, failure.error.message)));
    }

    fn must_stop(&self) -> bool {
        !self.go_on && self.bad_count > 0
    }

    async fn finish(&mut self) {
        let failures = self.session.flush().await;
        self.take_failures(failures);
        self.bad_count += self.session.failures_dropped();
    }

    async fn report(self, env: &Env, path: &str, matches: &ArgMatches, csv: Option<InputFile>) -> Result<()> {
        let written = grouped(self.session.written());
        if self.session.ignored() > 0 {
            print(&format!("passed over {} rows whose key is taken\n", grouped(self.session.ignored())));
        }
        if self.bad_count == 0 {
            print(&format!("imported {written} rows into {}\n", self.table.name()));
            return Ok(());
        }
        let Some(rejects) = text(matches, "rejects") else {
            let mut message =
                format!("{path}: {} bad rows, {written} rows were imported", grouped(self.bad_count));
            for (tag, reason) in self.bad.iter().take(SHOWN) {
                message.push_str(&format!("\n  {} {tag}: {reason}", self.unit));
            }
            message
                .push_str("\nMend them, or give --rejects FILE to import the others and keep these apart.");
            return Err(Error::invalid(message));
        };
        env.run(|| write_rejects(env, rejects, &self.bad, self.unit, csv, delimiter(matches)?)).await?;
        let bad = grouped(self.bad_count);
        let name = self.table.name();
        print(&format!("imported {written} rows into {name}; {bad} bad rows are in {rejects}\n"));
        Ok(())
    }
}

/// Writes the bad rows of a CSV file unchanged, each with its line and error; for other formats only line and error.
fn write_rejects(
    env: &Env,
    path: &str,
    bad: &BTreeMap<u64, String>,
    unit: &str,
    source: Option<InputFile>,
    delimiter: u8,
) -> Result<()> {
    let failed = |error: csv::Error| Error::invalid(format!("write {path}: {error}"));
    let mut out = csv::WriterBuilder::new().flexible(true).from_writer(OutputFile::create(env, path, true)?);
    let mut reader = source.map(|source| csv_reader(source, delimiter));
    let mut header = ByteRecord::from(vec![unit, "error"]);
    if let Some(reader) = &mut reader {
        header.extend(reader.byte_headers().map_err(failed)?);
    }
    out.write_byte_record(&header).map_err(failed)?;
    let first = |line: &u64, error: &str| ByteRecord::from(vec![line.to_string().as_str(), error]);
    match reader {
        None => {
            for (line, error) in bad {
                out.write_byte_record(&first(line, error)).map_err(failed)?;
            }
        }
        Some(mut reader) => {
            let mut record = ByteRecord::new();
            while reader.read_byte_record(&mut record).unwrap_or(false) {
                let line = record.position().map_or(0, Position::line);
                if let Some(error) = bad.get(&line) {
                    let mut row = first(&line, error);
                    row.extend(&record);
                    out.write_byte_record(&row).map_err(failed)?;
                }
            }
        }
    }
    let sink = out.into_inner().map_err(|error| Error::invalid(format!("write {path}: {error}")))?;
    sink.finish().map(drop)
}

fn delimiter(matches: &ArgMatches) -> Result<u8> {
    match text(matches, "delimiter").unwrap_or(",").as_bytes() {
        [one] => Ok(*one),
        b"\\t" => Ok(b'\t'),
        _ => Err(Error::invalid("--delimiter is one ASCII character, or \\t")),
    }
}
