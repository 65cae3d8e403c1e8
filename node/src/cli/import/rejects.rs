//! File of rejected rows: CSV with the file's own columns after the place and the error of each row.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};

use engine::error::{Error, Result};

use super::options::{ImportOptions, tag, unit};
use crate::cli::stream::{FileFormat, InputStream};
use nyala_backup::files::OutputFile;
use nyala_common::env::Env;
use nyala_files::csv_records::{CsvRecord, CsvRecords};
use nyala_files::delimited::write_record;

/// Cell of a record, and whether it must be quoted.
type Cell = (Vec<u8>, bool);

/// Writes the bad rows. Rows of CSV keep their cells, JSON lines their text; Parquet has only number and error.
///
/// An import of the corrected file leaves the first columns out by `--skip line,error`.
pub(super) fn write(
    env: &Env,
    mut out: OutputFile,
    options: &ImportOptions,
    bad: &BTreeMap<u64, String>,
) -> Result<()> {
    let mut header: Option<Vec<Cell>> = None;
    for (number, (source, format)) in options.files.iter().enumerate() {
        let mine: BTreeMap<u64, &str> = bad
            .range(tag(number, 0)..tag(number + 1, 0))
            .map(|(at, why)| (at - tag(number, 0), why.as_str()))
            .collect();
        if mine.is_empty() {
            continue;
        }
        let (names, rows) = rejected_rows(env, source, *format, options, &mine)?;
        let names = [vec![plain(unit(*format)), plain("error")], names].concat();
        if header.as_ref().is_none_or(|last| *last != names) {
            line(&mut out, &names)?;
            header = Some(names);
        }
        for row in rows {
            line(&mut out, &row)?;
        }
    }
    out.finish().map(drop)
}

fn plain(text: &str) -> Cell {
    (text.as_bytes().to_vec(), false)
}

fn line(out: &mut OutputFile, cells: &[Cell]) -> Result<()> {
    let mut text = Vec::new();
    write_record(&mut text, cells.iter().map(|(cell, quoted)| (cell.as_slice(), *quoted)));
    let written = out.write_all(&text);
    written.map_err(|error| Error::io(format_args!("write {}", out.shown_path()), &error))
}

/// Reads a file again. Returns the names of its columns and its bad rows, each with its line and error.
fn rejected_rows(
    env: &Env,
    source: &str,
    format: FileFormat,
    options: &ImportOptions,
    bad: &BTreeMap<u64, &str>,
) -> Result<(Vec<Cell>, Vec<Vec<Cell>>)> {
    let first = |line: u64, error: &str| vec![plain(&line.to_string()), plain(error)];
    let mut rows = Vec::new();
    let mut names = Vec::new();
    match format {
        FileFormat::Parquet => rows.extend(bad.iter().map(|(row, error)| first(*row, error))),
        FileFormat::JsonLines => {
            names.push(plain("json"));
            let mut lines = BufReader::new(InputStream::open(env, source)?).split(b'\n');
            for number in 1.. {
                // The file ended with an error where it did before.
                let Some(Ok(text)) = lines.next() else { break };
                if let Some(error) = bad.get(&number) {
                    rows.push([first(number, error), vec![(text, false)]].concat());
                }
            }
        }
        FileFormat::Csv => {
            let mut records = CsvRecords::new(InputStream::open(env, source)?, options.delimiter);
            let mut record = CsvRecord::default();
            let cells = |record: &CsvRecord| {
                record.iter().map(|(cell, quoted)| (cell.to_vec(), quoted)).collect::<Vec<Cell>>()
            };
            records.read(&mut record)?;
            names = cells(&record);
            while records.read(&mut record).unwrap_or(false) {
                if let Some(error) = bad.get(&record.line) {
                    rows.push([first(record.line, error), cells(&record)].concat());
                }
            }
        }
    }
    Ok((names, rows))
}
