//! Readers of CSV and Parquet files, which return rows as columns of the target table.
//!
//! The bytes are untrusted: any input must yield rows or an error.

use std::io::Read;

use csv::{ByteRecord, Position, Reader, ReaderBuilder};
use engine::error::{Error, Result};
use engine::schema::Schema;
use engine::schema::row_block::ColumnBlock;
use parquet::arrow::arrow_reader::{
    ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::file::reader::ChunkReader;

use crate::cli::definitions;
use nyala_client::arrow::column_to_block;
use nyala_client::cell_text::parse_cell;

/// Rows read at once.
const BLOCK_ROWS: usize = 4096;

/// Table that rows are read for.
#[derive(Clone, Copy)]
pub struct ImportTarget<'a> {
    pub schema: &'a Schema,
    pub name: &'a str,
}

/// A block of rows, by the table's columns.
pub struct ImportRows {
    pub columns: Vec<Option<ColumnBlock>>,
    /// Line (CSV) or number (Parquet) of each row, from 1.
    pub tags: Vec<u64>,
    /// Position in the file after these rows, in bytes or rows.
    pub position: u64,
}

/// Rows that were read, and bad rows with their reasons.
pub type ImportBlock = (ImportRows, Vec<(u64, String)>);

pub enum ImportInput<R> {
    Csv(Box<CsvReader<R>>),
    Parquet(Box<ParquetReader>),
}

pub struct CsvReader<R> {
    reader: Reader<R>,
    /// Index of the table's column for each column of the file.
    targets: Vec<usize>,
    null: Vec<u8>,
    record: ByteRecord,
}

pub struct ParquetReader {
    reader: ParquetRecordBatchReader,
    targets: Vec<usize>,
    rows: u64,
}

pub fn csv_reader<R: Read>(source: R, delimiter: u8) -> Reader<R> {
    ReaderBuilder::new().flexible(true).delimiter(delimiter).buffer_capacity(1 << 20).from_reader(source)
}

/// Returns the table's column for each named column of the file.
fn targets<'a>(names: impl Iterator<Item = &'a str>, table: ImportTarget<'_>) -> Result<Vec<usize>> {
    let schema = table.schema;
    let mut targets: Vec<usize> = Vec::new();
    for name in names {
        let column = definitions::find(schema, name.trim(), table.name)?;
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

impl<R: Read> ImportInput<R> {
    /// Returns the next rows; `None` at the end.
    pub fn next(&mut self, table: ImportTarget<'_>) -> Result<Option<ImportBlock>> {
        match self {
            ImportInput::Csv(csv) => csv.next(table),
            ImportInput::Parquet(parquet) => Ok(parquet.next(table)?.map(|rows| (rows, Vec::new()))),
        }
    }
}

impl<R: Read> CsvReader<R> {
    /// Opens a file and reads its header; `null` is the text of NULL.
    pub fn open(source: R, table: ImportTarget<'_>, delimiter: u8, null: &[u8]) -> Result<CsvReader<R>> {
        let mut reader = csv_reader(source, delimiter);
        let header =
            reader.headers().map_err(|error| Error::invalid(format!("the line of names: {error}")))?;
        let targets = targets(header.iter(), table)?;
        Ok(CsvReader { reader, targets, null: null.to_vec(), record: ByteRecord::new() })
    }

    fn next(&mut self, table: ImportTarget<'_>) -> Result<Option<ImportBlock>> {
        let columns = table.schema.columns();
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
                        blocks[*index].as_mut().expect("created above").push(cell.as_deref());
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
        Ok(Some((ImportRows { columns: blocks, tags, position }, bad)))
    }

    fn parse(&self, table: ImportTarget<'_>, cells: &mut Vec<Option<Vec<u8>>>) -> Result<()> {
        let (want, got) = (self.targets.len(), self.record.len());
        if want != got {
            return Err(Error::invalid(format!("{got} cells instead of {want}")));
        }
        cells.clear();
        for (index, cell) in self.targets.iter().zip(&self.record) {
            let column = &table.schema.columns()[*index];
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

impl ParquetReader {
    /// Opens a file and reads its metadata; also returns the number of rows stated there.
    pub fn open<R: ChunkReader + 'static>(
        source: R,
        table: ImportTarget<'_>,
    ) -> Result<(ParquetReader, u64)> {
        let bad = |error| Error::invalid(format!("not a Parquet file that can be read: {error}"));
        // Parquet's own types suffice. The Arrow schema that some writers embed is skipped, because its decoder panics
        // on corrupted input.
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let builder = ParquetRecordBatchReaderBuilder::try_new_with_options(source, options).map_err(bad)?;
        let targets = targets(builder.schema().fields().iter().map(|field| field.name().as_str()), table)?;
        let total = builder.metadata().file_metadata().num_rows().max(0) as u64;
        let reader = builder.with_batch_size(BLOCK_ROWS).build().map_err(bad)?;
        Ok((ParquetReader { reader, targets, rows: 0 }, total))
    }

    fn next(&mut self, table: ImportTarget<'_>) -> Result<Option<ImportRows>> {
        let Some(batch) = self.reader.next() else { return Ok(None) };
        let from = self.rows + 1;
        let near = |error: Error| error.context(format!("near row {from}"));
        let batch = batch.map_err(|error| near(Error::invalid(error.to_string())))?;
        let columns = table.schema.columns();
        let mut blocks: Vec<Option<ColumnBlock>> = vec![None; columns.len()];
        for (index, array) in self.targets.iter().zip(batch.columns()) {
            blocks[*index] = Some(column_to_block(array, &columns[*index]).map_err(near)?);
        }
        self.rows += batch.num_rows() as u64;
        Ok(Some(ImportRows { columns: blocks, tags: (from..=self.rows).collect(), position: self.rows }))
    }
}
