//! Reader of JSON lines: one object per line, whose names are columns.
//!
//! A name that a line lacks leaves its column unset: the default, or NULL. Rows of one block have the same names.

use std::fmt;
use std::io::{BufRead, BufReader, Read};

use engine::error::{Error, Result};
use engine::schema::ColumnSchema;
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::reader::{BLOCK_ROWS, ImportBlock, ImportRows, ImportTarget};

/// Largest line.
const LINE_BYTES_MAX: u64 = 64 << 20;

pub struct JsonReader<R> {
    source: BufReader<R>,
    line: u64,
    /// A row whose names differ from those of the block before.
    kept: Option<JsonRow>,
}

/// A parsed row: columns of the table in ascending order, with their cells.
struct JsonRow {
    line: u64,
    cells: Vec<(usize, Option<Vec<u8>>)>,
}

impl JsonRow {
    fn columns(&self) -> impl Iterator<Item = usize> {
        self.cells.iter().map(|(index, _)| *index)
    }
}

impl<R: Read> JsonReader<R> {
    pub fn open(source: R) -> JsonReader<R> {
        JsonReader { source: BufReader::with_capacity(1 << 20, source), line: 0, kept: None }
    }

    pub(crate) fn next(&mut self, table: ImportTarget<'_>) -> Result<Option<ImportBlock>> {
        let (mut rows, mut bad): (Vec<JsonRow>, Vec<(u64, String)>) = (Vec::new(), Vec::new());
        rows.extend(self.kept.take());
        while rows.len() + bad.len() < BLOCK_ROWS
            && let Some(text) = self.next_line()?
        {
            match parse(&text, self.line, table) {
                Err(error) => bad.push((self.line, error.message)),
                Ok(row) if rows.first().is_none_or(|first| first.columns().eq(row.columns())) => {
                    rows.push(row)
                }
                Ok(row) => {
                    self.kept = Some(row);
                    break;
                }
            }
        }
        if rows.is_empty() && bad.is_empty() {
            return Ok(None);
        }
        let mut columns = table.blocks(rows.iter().take(1).flat_map(JsonRow::columns));
        for (index, cell) in rows.iter().flat_map(|row| &row.cells) {
            columns[*index].as_mut().expect("all rows have these columns").push(cell.as_deref());
        }
        let tags = rows.iter().map(|row| row.line).collect();
        Ok(Some((ImportRows { columns, tags }, bad)))
    }

    /// Returns the next line that is not empty; `None` at the end.
    fn next_line(&mut self) -> Result<Option<Vec<u8>>> {
        let mut text = Vec::new();
        loop {
            text.clear();
            let read = self.source.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut text);
            if read.map_err(|error| Error::io("read JSON lines", &error))? == 0 {
                return Ok(None);
            }
            self.line += 1;
            if text.len() as u64 == LINE_BYTES_MAX {
                let limit = LINE_BYTES_MAX >> 20;
                return Err(Error::invalid(format!("line {}: too long (over {limit} MiB)", self.line)));
            }
            let line = text.trim_ascii();
            if line.starts_with(b"[") {
                let message = format!("line {}: an array; JSON lines have one object per line", self.line);
                return Err(Error::invalid(message));
            }
            if !line.is_empty() {
                return Ok(Some(line.to_vec()));
            }
        }
    }
}

/// Members of an object in their order; equal names are kept.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Members<'a>, D::Error> {
        struct OfMap;
        impl<'de> Visitor<'de> for OfMap {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry::<String, &RawValue>()? {
                    members.push(member);
                }
                Ok(members)
            }
        }
        from.deserialize_map(OfMap).map(Members)
    }
}

fn parse(text: &[u8], line: u64, table: ImportTarget<'_>) -> Result<JsonRow> {
    let members: Members<'_> = serde_json::from_slice(text)
        .map_err(|error| Error::invalid(format!("not a JSON object: {error}")))?;
    let targets = table.columns(members.0.iter().map(|(name, _)| name.as_str()))?;
    let mut cells = Vec::new();
    for (index, (_, value)) in targets.iter().zip(&members.0) {
        let Some(index) = index else { continue };
        cells.push((*index, cell(value.get(), &table.schema.columns()[*index], table)?));
    }
    cells.sort_by_key(|(index, _)| *index);
    Ok(JsonRow { line, cells })
}

/// Converts a value. Numbers are taken by their digits, so that none is rounded.
fn cell(raw: &str, column: &ColumnSchema, table: ImportTarget<'_>) -> Result<Option<Vec<u8>>> {
    let bad = |what: &str| Error::invalid(format!("column {:?}: {what}", column.name));
    match raw.as_bytes().first() {
        Some(b'n') if column.nullable => Ok(None),
        Some(b'n') => Err(bad("NULL in a column that is NOT NULL")),
        Some(b'[') => Err(bad("an array; there are no nested columns; leave it out by --skip")),
        Some(b'{') => Err(bad("an object; there are no nested columns; leave it out by --skip")),
        Some(b'"') => {
            let text: String = serde_json::from_str(raw).map_err(|error| bad(&error.to_string()))?;
            table.cell(column, &text).map(Some)
        }
        _ => table.cell(column, raw).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::schema::{DataType, Schema};

    fn schema() -> Schema {
        let columns = vec![
            ColumnSchema::new(0, "k", DataType::Int64),
            ColumnSchema::new(1, "v", DataType::String).nullable(),
            ColumnSchema::new(2, "n", DataType::Double).nullable(),
        ];
        Schema::new(columns, 1).expect("a lawful schema")
    }

    /// Returns the blocks of a file: the columns that are set, the lines, and the bad lines.
    fn shown(text: &str) -> String {
        let schema = schema();
        let target = ImportTarget::new(&schema, "t");
        let (mut reader, mut out) = (JsonReader::open(text.as_bytes()), String::new());
        loop {
            match reader.next(target) {
                Ok(None) => return out,
                Ok(Some((rows, bad))) => {
                    let set = rows.columns.iter().enumerate().filter(|(_, column)| column.is_some());
                    let set: Vec<usize> = set.map(|(index, _)| index).collect();
                    out.push_str(&format!("columns {set:?} lines {:?} bad {bad:?}\n", rows.tags));
                }
                Err(error) => return out + &error.message,
            }
        }
    }

    #[test]
    fn lines_with_the_same_names_form_a_block() {
        let file =
            "{\"k\":1,\"v\":\"a\"}\n\n{\"v\":null,\"k\":9007199254740993}\n{\"k\":3}\n{\"k\":4,\"n\":1.5}\n";
        insta::assert_snapshot!(shown(file), @r"
        columns [0, 1] lines [1, 3] bad []
        columns [0] lines [4] bad []
        columns [0, 2] lines [5] bad []
        ");
    }

    #[test]
    fn bad_lines_are_named() {
        let file = "{\"v\":\"x\"}\n{\"k\":1.5}\n{\"k\":1,\"v\":[1]}\n{\"k\":1,\"k\":2}\n{\"k\":1\n{\"k\":1,\"w\":2}\n";
        insta::assert_snapshot!(shown(file).replace("), (", "\n"), @r#"
        columns [] lines [] bad [(1, "the file has no column \"k\", which is in the key"
        2, "column \"k\": \"1.5\" is not a INT64"
        3, "column \"v\": an array; there are no nested columns; leave it out by --skip"
        4, "the file has two columns named \"k\""
        5, "not a JSON object: EOF while parsing an object at line 1 column 6"
        6, "table t has no column \"w\"; did you mean \"n\"?")]
        "#);
        assert_eq!(shown("[{\"k\":1}]"), "line 1: an array; JSON lines have one object per line");
    }
}
