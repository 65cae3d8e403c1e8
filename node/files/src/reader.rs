//! Readers of CSV, JSON lines and Parquet, which return rows as columns of the target table.
//!
//! The bytes are untrusted: any input must yield rows or an error. A value is stored as it is or refused: nothing is
//! shortened or rounded unless the caller allows it.

use std::io::Read;

use engine::error::{Error, Result};
use engine::schema::row_block::ColumnBlock;
use engine::schema::{ColumnSchema, Schema, TypeParameters};
use nyala_client::cell_text::{parse_cell, truncate_varchar};

use crate::csv_records::{CsvRecord, CsvRecords};
use nyala_client::definitions;

/// Rows read at once.
pub(crate) const BLOCK_ROWS: usize = 4096;

/// Table that rows are read for.
#[derive(Clone, Copy)]
pub struct ImportTarget<'a> {
    pub schema: &'a Schema,
    pub name: &'a str,
    /// Columns of the file to leave out.
    pub skip: &'a [String],
    /// True if values may be shortened: VARCHAR to its length, digits that the column's type cannot hold.
    pub truncate: bool,
}

impl<'a> ImportTarget<'a> {
    /// Returns a target that takes all columns and changes no value.
    pub fn new(schema: &'a Schema, name: &'a str) -> ImportTarget<'a> {
        ImportTarget { schema, name, skip: &[], truncate: false }
    }

    /// Parses a cell from text.
    pub(crate) fn cell(&self, column: &ColumnSchema, text: &str) -> Result<Vec<u8>> {
        let text = match column.ty.parameters() {
            TypeParameters::Length if self.truncate => truncate_varchar(column, text),
            _ => text,
        };
        parse_cell(column, text).map_err(|error| error.context(format!("column {:?}", column.name)))
    }

    /// Returns empty blocks for these columns of the table.
    pub(crate) fn blocks(&self, columns: impl Iterator<Item = usize>) -> Vec<Option<ColumnBlock>> {
        let all = self.schema.columns();
        let mut blocks: Vec<Option<ColumnBlock>> = vec![None; all.len()];
        for index in columns {
            blocks[index] = Some(ColumnBlock::new(all[index].ty.physical(), all[index].nullable));
        }
        blocks
    }

    /// Returns the table's column for each named column of the file; `None` for one to leave out.
    pub(crate) fn columns<'n>(&self, names: impl Iterator<Item = &'n str>) -> Result<Vec<Option<usize>>> {
        let mut found: Vec<Option<usize>> = Vec::new();
        for name in names {
            let name = name.trim();
            if self.skip.iter().any(|skipped| skipped == name) {
                found.push(None);
                continue;
            }
            let column = definitions::find(self.schema, name, self.name)?;
            let index = self.schema.index_of_name(&column.name);
            if found.contains(&index) {
                return Err(Error::invalid(format!("the file has two columns named {name:?}")));
            }
            found.push(index);
        }
        self.check_key(|index| found.contains(&Some(index)))?;
        Ok(found)
    }

    /// Fails if a key column is missing.
    pub(crate) fn check_key(&self, has: impl Fn(usize) -> bool) -> Result<()> {
        for (index, key) in self.schema.key_columns().iter().enumerate() {
            if !has(index) && !key.auto_incrementing {
                return Err(Error::invalid(format!(
                    "the file has no column {:?}, which is in the key",
                    key.name
                )));
            }
        }
        Ok(())
    }
}

/// A block of rows, by the table's columns.
pub struct ImportRows {
    pub columns: Vec<Option<ColumnBlock>>,
    /// Line (CSV, JSON) or number (Parquet) of each row, from 1.
    pub tags: Vec<u64>,
}

/// Rows that were read, and bad rows with their reasons.
pub type ImportBlock = (ImportRows, Vec<(u64, String)>);

pub struct CsvReader<R> {
    records: CsvRecords<R>,
    /// Index of the table's column for each column of the file.
    targets: Vec<Option<usize>>,
    null: Vec<u8>,
    record: CsvRecord,
}

impl<R: Read> CsvReader<R> {
    /// Opens a file and reads its header. A cell without quotes that is equal to `null` is NULL.
    pub fn open(source: R, table: ImportTarget<'_>, delimiter: u8, null: &[u8]) -> Result<CsvReader<R>> {
        let mut records = CsvRecords::new(source, delimiter);
        let mut record = CsvRecord::default();
        if !records.read(&mut record)? {
            return Err(Error::invalid("the file is empty; its first line must name the columns"));
        }
        let names = record.iter().map(|(name, _)| std::str::from_utf8(name));
        let names = names.collect::<Result<Vec<_>, _>>();
        let names = names.map_err(|_| Error::invalid("line 1: the names of columns are not UTF-8"))?;
        check_delimiter(&names, table, delimiter)?;
        let targets = table.columns(names.into_iter())?;
        Ok(CsvReader { records, targets, null: null.to_vec(), record })
    }

    pub(crate) fn next(&mut self, table: ImportTarget<'_>) -> Result<Option<ImportBlock>> {
        let mut blocks = table.blocks(self.targets.iter().flatten().copied());
        let (mut tags, mut bad) = (Vec::new(), Vec::new());
        let mut cells: Vec<Option<Vec<u8>>> = Vec::new();
        while tags.len() + bad.len() < BLOCK_ROWS && self.records.read(&mut self.record)? {
            let line = self.record.line;
            match self.parse(table, &mut cells) {
                Ok(()) => {
                    for (index, cell) in self.targets.iter().flatten().zip(&cells) {
                        blocks[*index].as_mut().expect("created above").push(cell.as_deref());
                    }
                    tags.push(line);
                }
                Err(error) => bad.push((line, error.message)),
            }
        }
        let any = !tags.is_empty() || !bad.is_empty();
        Ok(any.then_some((ImportRows { columns: blocks, tags }, bad)))
    }

    fn parse(&self, table: ImportTarget<'_>, cells: &mut Vec<Option<Vec<u8>>>) -> Result<()> {
        let (want, got) = (self.targets.len(), self.record.width());
        if want != got {
            return Err(Error::invalid(format!("{got} cells instead of {want}")));
        }
        cells.clear();
        for (index, (cell, quoted)) in self.targets.iter().zip(self.record.iter()) {
            let Some(index) = index else { continue };
            let column = &table.schema.columns()[*index];
            if column.nullable && !quoted && cell == self.null {
                cells.push(None);
                continue;
            }
            let not_text = |_| Error::invalid(format!("column {:?}: not UTF-8 text", column.name));
            cells.push(Some(table.cell(column, std::str::from_utf8(cell).map_err(not_text)?)?));
        }
        Ok(())
    }
}

/// Fails if the header is one name that another delimiter splits into columns of the table.
fn check_delimiter(names: &[&str], table: ImportTarget<'_>, delimiter: u8) -> Result<()> {
    let [only] = names else { return Ok(()) };
    let is_column = |name: &str| table.schema.index_of_name(name.trim().trim_matches('"')).is_some();
    let splits = |other: &char| {
        let parts: Vec<&str> = only.split(*other).collect();
        parts.len() > 1 && parts.iter().any(|part| is_column(part))
    };
    match [',', ';', '\t', '|'].into_iter().find(splits) {
        Some(other) => Err(Error::invalid(format!(
            "line 1: one column {only:?} (delimiter {:?}); give --delimiter '{}'",
            char::from(delimiter),
            other.escape_default()
        ))),
        None => Ok(()),
    }
}
