//! Partitions as text, in Kudu's form.

use super::key::{decode_key, encode_cell, min_cell};
use super::partition::{HashDimension, PartitionSchema};
use super::partition_range::{PartitionRange, increment, range_schema};
use super::{ColumnSchema, Schema, format_cell};
use crate::ids::ColumnId;

/// Formats a hash dimension, e.g. `HASH (a) PARTITIONS 3`.
fn show_hash(schema: &Schema, dimension: &HashDimension) -> String {
    let names = column_names(schema, &dimension.columns);
    let seed = if dimension.seed == 0 { String::new() } else { format!(" SEED {}", dimension.seed) };
    format!("HASH ({names}) PARTITIONS {}{seed}", dimension.buckets)
}

fn column_names(schema: &Schema, ids: &[ColumnId]) -> String {
    let name = |id: &ColumnId| schema.by_id(*id).map_or("?", |column| column.name.as_str());
    ids.iter().map(name).collect::<Vec<_>>().join(", ")
}

impl PartitionSchema {
    /// Formats the table's hash dimensions and range columns as Kudu does, one line each: `HASH (a) PARTITIONS 8`,
    /// `RANGE (k)`.
    pub fn show(&self, schema: &Schema) -> Vec<String> {
        let mut lines: Vec<String> = self.hash.iter().map(|dimension| show_hash(schema, dimension)).collect();
        if !self.range_columns.is_empty() {
            lines.push(format!("RANGE ({})", column_names(schema, &self.range_columns)));
        }
        lines
    }

    /// Formats a range as Kudu does, e.g. `PARTITION 0 <= VALUES < 10`, with its own hash dimensions if it has any.
    pub fn show_range(&self, schema: &Schema, range: &PartitionRange) -> String {
        let mut text = format!("PARTITION {}", self.show_bounds(schema, range));
        if let Some(custom) = self.custom.iter().find(|custom| custom.lower == range.lower) {
            for dimension in &custom.hash {
                text.push(' ');
                text.push_str(&show_hash(schema, dimension));
            }
        }
        text
    }

    /// Formats the bounds of a range as Kudu's errors do, e.g. `0 <= VALUES < 10`.
    pub fn show_bounds(&self, schema: &Schema, range: &PartitionRange) -> String {
        let columns = range_schema(schema, &self.range_columns).unwrap_or_default();
        let show = |key: &[u8]| show_key(&columns, key);
        match (range.lower.is_empty(), range.upper.is_empty()) {
            (true, true) => "UNBOUNDED".to_string(),
            (true, false) => format!("VALUES < {}", show(&range.upper)),
            (false, true) => format!("{} <= VALUES", show(&range.lower)),
            (false, false) if is_single_value(&columns, range) => format!("VALUE = {}", show(&range.lower)),
            (false, false) => format!("{} <= VALUES < {}", show(&range.lower), show(&range.upper)),
        }
    }
}

fn show_key(columns: &[ColumnSchema], key: &[u8]) -> String {
    let Ok(cells) = decode_key(columns, key) else {
        return key.iter().map(|byte| format!("{byte:02x}")).collect();
    };
    let show = |(column, cell): (&ColumnSchema, &Vec<u8>)| format_cell(column.ty, column.attributes, cell);
    let texts: Vec<String> = columns.iter().zip(&cells).map(show).collect();
    if texts.len() == 1 { texts.concat() } else { format!("({})", texts.join(", ")) }
}

fn is_single_value(columns: &[ColumnSchema], range: &PartitionRange) -> bool {
    let Ok(cells) = decode_key(columns, &range.lower) else { return false };
    let mut cells: Vec<Option<Vec<u8>>> = cells.into_iter().map(Some).collect();
    if !increment(columns, &mut cells) {
        return false;
    }
    let mut key = Vec::new();
    for (i, (column, cell)) in columns.iter().zip(cells).enumerate() {
        let cell = cell.unwrap_or_else(|| min_cell(column.ty));
        encode_cell(column.ty.physical(), &cell, i + 1 == columns.len(), &mut key);
    }
    key == range.upper
}
