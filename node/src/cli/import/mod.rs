//! `nyala table import`: rows from CSV, JSON lines and Parquet.
//!
//! Rows that cannot be read or that the cluster rejects end the import, with their lines and reasons. With `--rejects`
//! they are written to a file instead, which can be corrected and imported. Whatever happens, the number of imported
//! rows is reported, and the exit code is 0 only if all rows were imported.

mod options;
mod rejects;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use engine::error::{Error, ErrorKind, Result};
use engine::schema::row_ops::RowOpKind;

use self::options::{ImportOptions, LINE_BITS, tag, unit};
use super::exit::{ExitError, FAILED, ROWS_REJECTED};
use super::options::{connect_patiently, named, open, option, text};
use super::output::{ProgressUnit, print, progress};
use super::stream::{FileFormat, InputStream, STANDARD, open_file};
use nyala_backup::files::{InputFile, OutputFile};
use nyala_client::{FlushMode, RowFailure, Session, SessionConfig, Table};
use nyala_common::env::Env;
use nyala_common::number_text::grouped;
use nyala_files::reader::{CsvReader, ImportRows, ImportTarget};
use nyala_files::{ImportInput, JsonReader, ParquetReader};

/// Bad rows printed when they end the import.
const SHOWN: usize = 10;
/// Bad rows kept for the file of rejects.
const REJECTS_MAX: usize = 1_000_000;

const HELP: &str = "\
CSV: the first line names the columns. An empty cell is NULL, a quoted empty cell (\"\") is the empty string; in a \
NOT NULL column both are the empty string.

JSON lines: one object per line. A name that is missing leaves its column unset.

Files may be compressed with gzip or zstd. Values are stored unchanged or rejected.

Exit codes: 0 all rows were imported; 1 failed, the message says how many rows were imported before; 7 the rows in \
the file of --rejects were rejected, all others were imported.";

pub fn command() -> Command {
    named("import", "Write the rows of CSV, JSON lines or Parquet files into a table")
        .after_help(HELP)
        .arg(
            Arg::new("file")
                .value_name("FILE")
                .required(true)
                .num_args(1..)
                .help("Files to read; '*' and '?' stand for any characters of a name; - is standard input"),
        )
        .arg(option("format", "FORMAT", "csv, jsonl or parquet [default: by the file's name]"))
        .arg(
            option("mode", "MODE", "insert: fail on a duplicate key; upsert: replace; insert-ignore: skip")
                .value_parser(["insert", "upsert", "insert-ignore"])
                .default_value("insert"),
        )
        .arg(option("null", "TEXT", "Unquoted text of NULL in CSV").default_value(""))
        .arg(option("delimiter", "CHAR", "Separator of cells in CSV").default_value(","))
        .arg(option("skip", "NAMES", "Columns of the file to leave out, e.g. 'a,b'"))
        .arg(Arg::new("truncate").long("truncate").action(ArgAction::SetTrue).help(
            "Shorten what does not fit: VARCHAR to its length; in Parquet also digits of numbers and times",
        ))
        .arg(
            option(
                "timeout",
                "SECONDS",
                "Longest wait for the cluster, at the start and for each batch of rows",
            )
            .value_parser(value_parser!(u64).range(1..=86_400))
            .default_value("60"),
        )
        .arg(option("rejects", "FILE", "Skip bad rows and write them, with errors, to this CSV file"))
        .arg(
            Arg::new("force")
                .long("force")
                .action(ArgAction::SetTrue)
                .requires("rejects")
                .help("Replace the file of --rejects if it exists"),
        )
}

pub async fn run(env: &Env, matches: &ArgMatches) -> Result<(), ExitError> {
    let options = ImportOptions::of(env, matches).map_err(ExitError::usage)?;
    for (path, format) in options.files.iter().filter(|(path, _)| path != STANDARD) {
        check_input(env, path, *format)?;
    }
    // Order: the file is created before a row is read, because no row may be rejected without it.
    let create = |path: &String| OutputFile::create(env, path, options.replace_rejects);
    let rejects = options.rejects.as_ref().map(create).transpose()?;
    let timeout = Duration::from_secs(*matches.get_one::<u64>("timeout").expect("it has a default"));
    let table = open(&connect_patiently(env, matches, timeout).await?, matches).await?;
    let kind = match text(matches, "mode") {
        Some("upsert") => RowOpKind::Upsert,
        Some("insert-ignore") => RowOpKind::InsertIgnore,
        _ => RowOpKind::Insert,
    };
    let mut import = Import {
        session: table
            .client()
            .session(SessionConfig { timeout, ..SessionConfig::new(FlushMode::AutoBackground) }),
        table,
        kind,
        options,
        rejects,
        bad: BTreeMap::new(),
        bad_count: 0,
        unknown: 0,
        failure: None,
    };
    let outcome = import.files(env).await;
    // What was read before a failure is written and counted.
    import.finish(outcome).await;
    import.report(env).await
}

/// Fails if a file cannot be opened. Only Parquet may not come from standard input instead.
fn check_input(env: &Env, path: &str, format: FileFormat) -> Result<()> {
    match format {
        FileFormat::Parquet => InputFile::open(env, path).map(drop),
        _ => open_file(env, path).map(drop),
    }
}

struct Import {
    session: Session,
    table: Table,
    kind: RowOpKind,
    options: ImportOptions,
    /// File for the bad rows; dropped if there are none.
    rejects: Option<OutputFile>,
    /// Bad rows by file and line.
    bad: BTreeMap<u64, String>,
    bad_count: u64,
    /// Rows whose batch failed; they may be written or not.
    unknown: u64,
    /// Failure that is not a row's own.
    failure: Option<Error>,
}

impl Import {
    async fn files(&mut self, env: &Env) -> Result<()> {
        for number in 0..self.options.files.len() {
            let path = self.options.files[number].0.clone();
            self.file(env, number).await.map_err(|error| error.context(&path))?;
            if self.must_stop() {
                break;
            }
        }
        Ok(())
    }

    async fn file(&mut self, env: &Env, number: usize) -> Result<()> {
        let (path, format) = self.options.files[number].clone();
        let table = self.table.clone();
        let (mut input, read, total, unit) = env.run(|| self.open(env, &path, format, &table)).await?;
        let bar = progress(total, unit);
        let mut rows_read = 0;
        while !self.must_stop() {
            let next = env.run(|| input.next(self.target(&table))).await?;
            let Some((rows, unreadable)) = next else { break };
            rows_read += (rows.tags.len() + unreadable.len()) as u64;
            self.bad(unreadable.into_iter().map(|(line, reason)| (tag(number, line), reason)));
            self.send(number, &rows).await?;
            bar.set_position(read.as_ref().map_or(rows_read, |read| read.load(Ordering::Relaxed)));
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn target<'a>(&'a self, table: &'a Table) -> ImportTarget<'a> {
        let (skip, truncate) = (self.options.skip.as_slice(), self.options.truncate);
        ImportTarget { skip, truncate, ..ImportTarget::new(table.schema(), table.name()) }
    }

    /// Opens a file. Also returns its counter of bytes read, the length of its progress bar and the unit.
    fn open(&self, env: &Env, path: &str, format: FileFormat, table: &Table) -> Result<OpenedInput> {
        let target = self.target(table);
        if format == FileFormat::Parquet {
            if path == STANDARD {
                let message =
                    "a Parquet file is read from its end, which - cannot do; give the name of a file";
                return Err(Error::invalid(message));
            }
            let (parquet, rows) = ParquetReader::open(InputFile::open(env, path)?, target)?;
            return Ok((ImportInput::Parquet(Box::new(parquet)), None, rows, ProgressUnit::Rows));
        }
        let total = if path == STANDARD { 0 } else { open_file(env, path)?.size_bytes() };
        let stream = InputStream::open(env, path)?;
        let read = Some(stream.progress());
        let input = if format == FileFormat::JsonLines {
            ImportInput::Json(Box::new(JsonReader::open(stream)))
        } else {
            let (delimiter, null) = (self.options.delimiter, &self.options.null);
            ImportInput::Csv(Box::new(CsvReader::open(stream, target, delimiter, null)?))
        };
        Ok((input, read, total, ProgressUnit::Bytes))
    }

    fn bad(&mut self, rows: impl IntoIterator<Item = (u64, String)>) {
        for (tag, reason) in rows {
            self.bad_count += 1;
            if self.bad.len() < REJECTS_MAX {
                self.bad.insert(tag, reason);
            }
        }
    }

    async fn send(&mut self, number: usize, rows: &ImportRows) -> Result<()> {
        let tags: Vec<u64> = rows.tags.iter().map(|line| tag(number, *line)).collect();
        self.session.apply_columns(&self.table, self.kind, &rows.columns, &tags).await?;
        self.take_failures(self.session.take_failures());
        Ok(())
    }

    /// Separates rows that were rejected from rows whose batch failed: the latter are good rows.
    fn take_failures(&mut self, failures: Vec<RowFailure>) {
        for RowFailure { tag, error } in failures {
            match error.kind {
                ErrorKind::Invalid | ErrorKind::NotFound | ErrorKind::AlreadyPresent => {
                    self.bad([(tag, error.message)]);
                }
                _ => {
                    self.unknown += 1;
                    self.failure.get_or_insert(error);
                }
            }
        }
    }

    fn must_stop(&self) -> bool {
        self.failure.is_some() || (self.options.rejects.is_none() && self.bad_count > 0)
    }

    /// Sends what is buffered.
    async fn finish(&mut self, outcome: Result<()>) {
        let failures = self.session.flush().await;
        self.take_failures(failures);
        self.bad_count += self.session.failures_dropped();
        if let Err(error) = outcome {
            self.failure = Some(error);
        }
    }

    /// Writes the bad rows to their file, if there are any.
    async fn write_rejects(&mut self, env: &Env) -> Result<()> {
        let Some(file) = self.rejects.take().filter(|_| self.bad_count > 0) else { return Ok(()) };
        env.run(|| rejects::write(env, file, &self.options, &self.bad)).await
    }

    async fn report(mut self, env: &Env) -> Result<(), ExitError> {
        let written = format!("{} rows were imported", grouped(self.session.written()));
        let failed = |message| Err(ExitError { code: FAILED, message });
        if self.session.ignored() > 0 {
            let ignored = grouped(self.session.ignored());
            print(&format!("passed over {ignored} rows whose key is taken\n"));
        }
        // The rows are in the table even if this file cannot be written, so its error is reported with their number.
        let unwritten = self.write_rejects(env).await.err();
        if let Some(error) = &self.failure {
            let also = unwritten.map_or_else(String::new, |error| format!("; {}", error.message));
            return failed(format!("{}; {written}{}{also}", error.message, self.doubts()));
        }
        if self.bad_count == 0 {
            let (rows, name) = (grouped(self.session.written()), self.table.name());
            print(&format!("imported {rows} rows into {name}\n"));
            return Ok(());
        }
        let bad = grouped(self.bad_count);
        let counts = format!("{bad} bad rows, {written}{}", self.first_bad());
        match (&self.options.rejects, unwritten) {
            (Some(rejects), None) => {
                let message =
                    format!("{bad} rows were rejected and are in {rejects}, {written}{}", self.unlisted());
                Err(ExitError { code: ROWS_REJECTED, message })
            }
            (Some(_), Some(error)) => failed(format!("{}; {counts}", error.message)),
            (None, _) => failed(format!(
                "{counts}\nMend them, or give --rejects FILE to import the others and keep these apart."
            )),
        }
    }

    /// Returns a line for each of the first bad rows.
    fn first_bad(&self) -> String {
        let line = |(tag, reason): (&u64, &String)| format!("\n  {}: {reason}", self.place(*tag));
        self.bad.iter().take(SHOWN).map(line).collect()
    }

    /// Returns what is not known after a failure, and how to go on.
    fn doubts(&self) -> String {
        let mut text = String::new();
        if self.unknown > 0 {
            text.push_str(&format!(", {} more may be", grouped(self.unknown)));
        }
        if self.bad_count > 0 {
            text.push_str(&format!(", {} were rejected", grouped(self.bad_count)));
        }
        if self.session.written() + self.unknown > 0 && self.kind == RowOpKind::Insert {
            text.push_str("; import the file again with --mode insert-ignore to add the others");
        }
        text
    }

    fn unlisted(&self) -> String {
        match self.bad_count - self.bad.len() as u64 {
            0 => String::new(),
            more => format!("; {} rejected rows are not in the file (limit {REJECTS_MAX})", grouped(more)),
        }
    }

    fn place(&self, tag: u64) -> String {
        let (path, format) = &self.options.files[(tag >> LINE_BITS) as usize];
        let (unit, line) = (unit(*format), tag & ((1 << LINE_BITS) - 1));
        if self.options.files.len() == 1 {
            format!("{unit} {line}")
        } else {
            format!("{path}, {unit} {line}")
        }
    }
}

/// An opened file, its counter of bytes read, the length of its progress bar and the unit.
type OpenedInput =
    (ImportInput<InputStream>, Option<std::sync::Arc<std::sync::atomic::AtomicU64>>, u64, ProgressUnit);
