//! YCSB's table: a string key and ten strings of 100 bytes, all derived from the row's number.

use engine::schema::row_ops::ClientCell;
use engine::schema::{ColumnSchema, DataType, Schema};

use crate::mix;

pub const FIELDS: usize = 10;
pub const FIELD_BYTES: usize = 100;

pub fn schema() -> Schema {
    let field = |id: u32| match id {
        0 => ColumnSchema::new(0, "key", DataType::String),
        id => ColumnSchema::new(id, &format!("field{}", id - 1), DataType::String).nullable(),
    };
    Schema::new((0..=FIELDS as u32).map(field).collect(), 1).expect("the schema is sound")
}

/// Returns the key at a place; keys are ordered by their places.
pub fn key_at(place: u64) -> String {
    format!("user{place:020}")
}

/// Returns a row's key.
pub fn key(number: u64) -> String {
    key_at(mix(number))
}

/// Returns the ten fields of a row, concatenated.
pub fn fields(number: u64) -> Vec<u8> {
    let words = (0..125).flat_map(|i| mix(number.wrapping_mul(125) + i).to_le_bytes());
    words.map(|byte| b' ' + byte % 94).collect()
}

/// Returns the cells of a row.
pub fn cells<'a>(key: &'a str, fields: &'a [u8]) -> Vec<ClientCell<'a>> {
    let fields = fields.chunks(FIELD_BYTES).map(ClientCell::Value);
    std::iter::once(ClientCell::Value(key.as_bytes())).chain(fields).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_a_cell_for_each_column() {
        let (key, fields) = (key(7), fields(7));
        assert_eq!(fields.len(), FIELDS * FIELD_BYTES);
        assert_eq!(cells(&key, &fields).len(), schema().columns().len());
        assert!(fields.is_ascii() && key.starts_with("user") && key.len() == 24);
    }

    #[test]
    fn every_number_has_a_separate_key() {
        let keys: std::collections::BTreeSet<String> = (0..10_000).map(key).collect();
        assert_eq!(keys.len(), 10_000);
    }
}
