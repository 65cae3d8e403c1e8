//! Rows as text: CSV records and JSON lines.
//!
//! In CSV, NULL is written without quotes, and an empty or equal text with quotes, so that an import can tell them
//! apart. BINARY is written as `0x…`.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{DataType, Schema};
use engine::error::{Error, Result};

/// Appends a CSV record; a cell is quoted if it asks for it or must be.
pub fn write_record<'a>(out: &mut Vec<u8>, cells: impl Iterator<Item = (&'a [u8], bool)>) {
    for (at, (cell, quoted)) in cells.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        let special = |byte: &u8| matches!(byte, b',' | b'"' | b'\r' | b'\n');
        if !quoted && !cell.iter().any(special) {
            out.extend_from_slice(cell);
            continue;
        }
        out.push(b'"');
        for byte in cell {
            out.extend(std::iter::repeat_n(*byte, if *byte == b'"' { 2 } else { 1 }));
        }
        out.push(b'"');
    }
    out.push(b'\n');
}

/// Returns the header line of a CSV file.
pub fn csv_header(schema: &Schema) -> Vec<u8> {
    let mut out = Vec::new();
    write_record(
        &mut out,
        schema.fields().iter().map(|field| (field.name().as_bytes(), field.name().is_empty())),
    );
    out
}

/// Returns rows as CSV; `null` is the text of NULL.
pub fn csv(batch: &RecordBatch, null: &str) -> Result<Vec<u8>> {
    let columns = texts(batch)?;
    let mut out = Vec::new();
    let mut cells = vec![String::new(); columns.len()];
    for row in 0..batch.num_rows() {
        for (column, cell) in columns.iter().zip(&mut cells) {
            cell.clear();
            column.write(row, cell)?;
        }
        let cell = |(column, cell): (&ColumnText<'_>, &'_ String)| match column.array.is_null(row) {
            true => (null.to_string(), false),
            false => (cell.clone(), cell == null || cell.is_empty()),
        };
        let record: Vec<(String, bool)> = columns.iter().zip(&cells).map(cell).collect();
        write_record(&mut out, record.iter().map(|(cell, quoted)| (cell.as_bytes(), *quoted)));
    }
    Ok(out)
}

/// Returns rows as JSON lines. Numbers are JSON numbers, except decimals and what is not finite: those are strings.
pub fn json_lines(batch: &RecordBatch) -> Result<Vec<u8>> {
    let columns = texts(batch)?;
    let schema = batch.schema();
    let quote = |text: &str| serde_json::to_string(text).map_err(|error| Error::invalid(error.to_string()));
    let names = schema.fields().iter().map(|field| quote(field.name()));
    let names = names.collect::<Result<Vec<String>>>()?;
    let (mut out, mut cell) = (Vec::new(), String::new());
    for row in 0..batch.num_rows() {
        for (at, (name, column)) in names.iter().zip(&columns).enumerate() {
            out.extend_from_slice(if at == 0 { b"{" } else { b"," });
            out.extend_from_slice(name.as_bytes());
            out.push(b':');
            cell.clear();
            column.write(row, &mut cell)?;
            match cell.as_str() {
                _ if column.array.is_null(row) => out.extend_from_slice(b"null"),
                text if column.is_json_literal(text) => out.extend_from_slice(text.as_bytes()),
                text => out.extend_from_slice(quote(text)?.as_bytes()),
            }
        }
        out.extend_from_slice(if columns.is_empty() { b"{}\n" } else { b"}\n" });
    }
    Ok(out)
}

/// A column and the formatter of its cells.
struct ColumnText<'a> {
    array: &'a ArrayRef,
    formatter: ArrayFormatter<'a>,
}

fn texts(batch: &RecordBatch) -> Result<Vec<ColumnText<'_>>> {
    let options = FormatOptions::new();
    let column = |array| {
        let formatter = ArrayFormatter::try_new(ArrayRef::as_ref(array), &options)
            .map_err(|error| Error::invalid(error.to_string()))?;
        Ok(ColumnText { array, formatter })
    };
    batch.columns().iter().map(column).collect()
}

impl ColumnText<'_> {
    fn write(&self, row: usize, out: &mut String) -> Result<()> {
        if self.array.is_null(row) {
            return Ok(());
        }
        match self.array.data_type() {
            DataType::Binary => {
                out.push_str("0x");
                let cell = self.array.as_binary::<i32>().value(row);
                cell.iter().for_each(|byte| out.push_str(&format!("{byte:02x}")));
                Ok(())
            }
            _ => self.formatter.value(row).write(out).map_err(|error| Error::invalid(error.to_string())),
        }
    }

    /// Returns true if JSON writes this cell without quotes.
    fn is_json_literal(&self, text: &str) -> bool {
        let ty = self.array.data_type();
        let finite = || text.parse::<f64>().is_ok_and(f64::is_finite);
        matches!(ty, DataType::Boolean) || ty.is_integer() || (ty.is_floating() && finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use arrow_array::{BinaryArray, Float64Array, Int64Array, StringArray};

    fn batch() -> RecordBatch {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("k", Arc::new(Int64Array::from(vec![1, 2, 3]))),
            ("a \"b\"", Arc::new(StringArray::from(vec![Some(""), None, Some("say \"x\", y")]))),
            ("f", Arc::new(Float64Array::from(vec![Some(0.1), Some(f64::NAN), None]))),
            ("raw", Arc::new(BinaryArray::from(vec![Some(&b"\x00\xff"[..]), Some(b""), None]))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))
            .expect("equal lengths")
    }

    #[test]
    fn null_and_the_empty_string_differ_in_csv() {
        let batch = batch();
        let text = [csv_header(&batch.schema()), csv(&batch, "").expect("text")].concat();
        insta::assert_snapshot!(String::from_utf8(text).expect("UTF-8"), @r#"
        k,"a ""b""",f,raw
        1,"",0.1,0x00ff
        2,,NaN,0x
        3,"say ""x"", y",,
        "#);
        let text = csv(&batch.slice(2, 1), "say \"x\", y").expect("text");
        assert_eq!(
            String::from_utf8_lossy(&text),
            "3,\"say \"\"x\"\", y\",\"say \"\"x\"\", y\",\"say \"\"x\"\", y\"\n"
        );
    }

    #[test]
    fn json_lines_keep_types() {
        insta::assert_snapshot!(String::from_utf8(json_lines(&batch()).expect("text")).expect("UTF-8"), @r#"
        {"k":1,"a \"b\"":"","f":0.1,"raw":"0x00ff"}
        {"k":2,"a \"b\"":null,"f":"NaN","raw":"0x"}
        {"k":3,"a \"b\"":"say \"x\", y","f":null,"raw":null}
        "#);
    }
}
