//! `nyala table import`: rows from a CSV or Parquet file.
//!
//! Rows that cannot be read or that the cluster refuses either end the import with their lines and reasons,
//! or go to a file of rejects (`--rejects`) that has the same columns and can be mended and imported.

use std::collections::BTreeMap;

use clap::{Arg, ArgMatches, Command};
use csv::{ByteRecord, Position, Reader, ReaderBuilder};
use engine::error::{Error, Result};
use engine::schema::block::ColumnBlock;
use engine::schema::ops::RowOpKind;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};

use super::files::{Format, Sink, Source};
use super::out::{Unit, grouped, print, progress};
use super::table::{connect, named, open, option, text};
use super::words;
use crate::client::arrow::column_to_block;
use crate::client::value::parse_cell;
use crate::client::{FlushMode, Session, SessionConfig, Table};
use crate::env::Env;

/// Rows read at once.
const BLOCK_ROWS: usize = 4096;
/// Bad rows shown when an import ends because of them.
const SHOWN: usize = 10;
/// Bad rows kept for the file of rejects.
const REJECTS_MAX: usize = 1_000_000;

pub fn command() -> Command {
    named("import", "Write the rows of a CSV or Parquet file into a table")
        .arg(
            Arg::new("file").value_name("FILE").required(true).help("File to read; CSV with a line of names"),
        )
        .arg(option("format", "FORMAT", "csv or parquet [default: by the file's name]"))
        .arg(
            option(
                "mode",
                "MODE",
                "What to do with a row whose key is taken: refuse it, replace it, pass over it",
            )
            .value_parser(["insert", "upsert", "insert-ignore"])
            .default_value("insert"),
        )
        .arg(option("null", "TEXT", "What stands for NULL in CSV").default_value(""))
        .arg(option("delimiter", "CHAR", "What separates cells in CSV").default_value(","))
        .arg(option(
            "rejects",
            "FILE",
            "Go on after bad rows, and write them with their errors to this CSV file",
        ))
}

/// Some rows, by the table's columns.
struct Rows {
    columns: Vec<Option<ColumnBlock>>,
    /// The line (CSV) or number (Parquet) of each row, from 1.
    tags: Vec<u64>,
    /// How far into the file they reach: bytes or rows.
    position: u64,
}

/// What was read, and the rows that cannot be, with the reason.
type Block = (Rows, Vec<(u64, String)>);

enum Input {
    Csv(Box<Csv>),
    Parquet(Box<Parquet>),
}

struct Csv {
    reader: Reader<Source>,
    /// By the file's columns: the table's.
    targets: Vec<usize>,
    null: Vec<u8>,
    record: ByteRecord,
}

struct Parquet {
    reader: ParquetRecordBatchReader,
    targets: Vec<usize>,
    rows: u64,
}

pub async fn run(env: &Env, matches: &ArgMatches) -> Result<()> {
    let path = text(matches, "file").expect("it is required");
    let format = Format::of(text(matches, "format"), path)?;
    let source = Source::open(env, path)?;
    let table = open(&connect(env, matches).await?, matches).await?;
    let kind = match text(matches, "mode") {
        Some("upsert") => RowOpKind::Upsert,
        Some("insert-ignore") => RowOpKind::InsertIgnore,
        _ => RowOpKind::Insert,
    };
    let (total, unit) = (source.bytes(), Unit::Bytes);
    let (mut input, total, unit) = match format {
        Format::Csv => (Input::Csv(Box::new(Csv::open(source.clone(), &table, matches)?)), total, unit),
        Format::Parquet => {
            let (parquet, rows) = Parquet::open(source.clone(), &table)?;
            (Input::Parquet(Box::new(parquet)), rows, Unit::Rows)
        }
    };
    let mut import = Import {
        session: table.client().session(SessionConfig::new(FlushMode::AutoBackground)),
        table,
        kind,
        bad: BTreeMap::new(),
        bad_count: 0,
        go_on: text(matches, "rejects").is_some(),
        unit: if format == Format::Csv { "line" } else { "row" },
    };
    let bar = progress(total, unit);
    loop {
        let read = env.run(|| input.next(&import.table)).await?;
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
    let read_again = (format == Format::Csv).then_some(source);
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

    async fn send(&mut self, rows: &Rows) -> Result<()> {
        self.session.apply_columns(&self.table, self.kind, &rows.columns, &rows.tags).await?;
        self.take_failures(self.session.take_failures());
        Ok(())
    }

    fn take_failures(&mut self, failures: Vec<crate::client::RowFailure>) {
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

    async fn report(self, env: &Env, path: &str, matches: &ArgMatches, csv: Option<Source>) -> Result<()> {
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

/// The bad rows of a CSV file as they were, behind their line and error; of other files just those.
fn write_rejects(
    env: &Env,
    path: &str,
    bad: &BTreeMap<u64, String>,
    unit: &str,
    source: Option<Source>,
    delimiter: u8,
) -> Result<()> {
    let failed = |error: csv::Error| Error::invalid(format!("write {path}: {error}"));
    let mut out = csv::WriterBuilder::new().flexible(true).from_writer(Sink::create(env, path, true)?);
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

fn csv_reader(source: Source, delimiter: u8) -> Reader<Source> {
    ReaderBuilder::new().flexible(true).delimiter(delimiter).buffer_capacity(1 << 20).from_reader(source)
}

fn delimiter(matches: &ArgMatches) -> Result<u8> {
    match text(matches, "delimiter").unwrap_or(",").as_bytes() {
        [one] => Ok(*one),
        b"\\t" => Ok(b'\t'),
        _ => Err(Error::invalid("--delimiter is one ASCII character, or \\t")),
    }
}

/// The table's columns that the file's columns of these names go to.
fn targets<'a>(names: impl Iterator<Item = &'a str>, table: &Table) -> Result<Vec<usize>> {
    let schema = table.schema();
    let mut targets: Vec<usize> = Vec::new();
    for name in names {
        let column = words::find(schema, name.trim(), table.name())?;
        let index = schema.index_of_name(&column.name).expect("just found");
        if targets.contains(&index) {
            return Err(Error::invalid(format!("the file has two columns named {name:?}")));
        }
        targets.push(index);
    }
    for (index, key) in schema.key_columns().iter().enumerate() {
        if !targets.contains(&index) && !key.auto_incrementing {
            return Err(Error::invalid(format!(
                "the file has no column {:?}, which is in the key",
                key.name
            )));
        }
    }
    Ok(targets)
}

impl Input {
    /// The next rows; `None` at the end.
    fn next(&mut self, table: &Table) -> Result<Option<Block>> {
        match self {
            Input::Csv(csv) => csv.next(table),
            Input::Parquet(parquet) => Ok(parquet.next(table)?.map(|rows| (rows, Vec::new()))),
        }
    }
}

impl Csv {
    fn open(source: Source, table: &Table, matches: &ArgMatches) -> Result<Csv> {
        let mut reader = csv_reader(source, delimiter(matches)?);
        let header =
            reader.headers().map_err(|error| Error::invalid(format!("the line of names: {error}")))?;
        let targets = targets(header.iter(), table)?;
        let null = text(matches, "null").unwrap_or_default().as_bytes().to_vec();
        Ok(Csv { reader, targets, null, record: ByteRecord::new() })
    }

    fn next(&mut self, table: &Table) -> Result<Option<Block>> {
        let columns = table.schema().columns();
        let mut blocks: Vec<Option<ColumnBlock>> = vec![None; columns.len()];
        for index in &self.targets {
            let column = &columns[*index];
            blocks[*index] = Some(ColumnBlock::new(column.ty.physical(), column.nullable));
        }
        let (mut tags, mut bad) = (Vec::new(), Vec::new());
        let mut cells: Vec<Option<Vec<u8>>> = Vec::new();
        while tags.len() + bad.len() < BLOCK_ROWS {
            let more = self.reader.read_byte_record(&mut self.record);
            if !more.map_err(|error| Error::invalid(error.to_string()))? {
                break;
            }
            let line = self.record.position().map_or(0, Position::line);
            match self.parse(table, &mut cells) {
                Ok(()) => {
                    for (index, cell) in self.targets.iter().zip(&cells) {
                        blocks[*index].as_mut().expect("made above").push(cell.as_deref());
                    }
                    tags.push(line);
                }
                Err(error) => bad.push((line, error.message)),
            }
        }
        if tags.is_empty() && bad.is_empty() {
            return Ok(None);
        }
        let position = self.reader.position().byte();
        Ok(Some((Rows { columns: blocks, tags, position }, bad)))
    }

    fn parse(&self, table: &Table, cells: &mut Vec<Option<Vec<u8>>>) -> Result<()> {
        let (want, got) = (self.targets.len(), self.record.len());
        if want != got {
            return Err(Error::invalid(format!("{got} cells instead of {want}")));
        }
        cells.clear();
        for (index, cell) in self.targets.iter().zip(&self.record) {
            let column = &table.schema().columns()[*index];
            if column.nullable && cell == self.null {
                cells.push(None);
                continue;
            }
            let in_column = |error: Error| error.context(format!("column {:?}", column.name));
            let text = std::str::from_utf8(cell).map_err(|_| in_column(Error::invalid("not UTF-8 text")))?;
            cells.push(Some(parse_cell(column, text).map_err(in_column)?));
        }
        Ok(())
    }
}

impl Parquet {
    fn open(source: Source, table: &Table) -> Result<(Parquet, u64)> {
        let bad = |error| Error::invalid(format!("not a Parquet file that can be read: {error}"));
        let builder = ParquetRecordBatchReaderBuilder::try_new(source).map_err(bad)?;
        let targets = targets(builder.schema().fields().iter().map(|field| field.name().as_str()), table)?;
        let total = builder.metadata().file_metadata().num_rows().max(0) as u64;
        let reader = builder.with_batch_size(BLOCK_ROWS).build().map_err(bad)?;
        Ok((Parquet { reader, targets, rows: 0 }, total))
    }

    fn next(&mut self, table: &Table) -> Result<Option<Rows>> {
        let Some(batch) = self.reader.next() else { return Ok(None) };
        let from = self.rows + 1;
        let near = |error: Error| error.context(format!("near row {from}"));
        let batch = batch.map_err(|error| near(Error::invalid(error.to_string())))?;
        let columns = table.schema().columns();
        let mut blocks: Vec<Option<ColumnBlock>> = vec![None; columns.len()];
        for (index, array) in self.targets.iter().zip(batch.columns()) {
            blocks[*index] = Some(column_to_block(array, &columns[*index]).map_err(near)?);
        }
        self.rows += batch.num_rows() as u64;
        Ok(Some(Rows { columns: blocks, tags: (from..=self.rows).collect(), position: self.rows }))
    }
}
