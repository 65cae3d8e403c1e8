//! Shapes of model tables: columns, key, hash levels and ranges.

use super::value::{ColumnKind, Value};
use crate::line_format::{LineField, records, words};

words! {
    /// Encoding of a column. Each type has some of them.
    pub enum EncodingWord {
        Auto = "auto",
        Plain = "plain",
        Prefix = "prefix",
        Rle = "rle",
        Dict = "dict",
        BitShuffle = "bitshuffle",
    }
}

words! {
    /// Compression of a column.
    pub enum CompressionWord {
        Default = "default",
        No = "no",
        Snappy = "snappy",
        Lz4 = "lz4",
        Zlib = "zlib",
    }
}

/// One hash level of a table: numbers of columns, buckets and seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashLevel {
    pub columns: Vec<u8>,
    pub buckets: u8,
    pub seed: u32,
}

/// `COLUMN.COLUMN:BUCKETS:SEED`.
impl LineField for HashLevel {
    fn text(&self) -> String {
        let columns: Vec<String> = self.columns.iter().map(u8::to_string).collect();
        format!("{}:{}:{}", columns.join("."), self.buckets, self.seed)
    }

    fn parse(text: &str) -> Option<HashLevel> {
        let mut parts = text.split(':');
        let columns = parts.next()?.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
        let level =
            HashLevel { columns, buckets: parts.next()?.parse().ok()?, seed: parts.next()?.parse().ok()? };
        parts.next().is_none().then_some(level)
    }
}

records! {
    /// A model table. Its columns and ranges follow on lines of their own.
    pub struct TableSpec = "table" {
        pub number: u8,
        /// Number of key columns, which are the first ones.
        pub keys: u8,
        pub hash: Vec<HashLevel>,
        /// Numbers of the range columns. Without any the table has no ranges.
        pub range: Vec<u8>,
    }
}

records! {
    /// A column of a model table.
    pub struct ColumnSpec = "column" {
        pub table: u8,
        /// Number of the column, from 0, never reused.
        pub number: u8,
        pub name: String,
        pub kind: ColumnKind,
        pub nullable: bool,
        pub immutable: bool,
        /// Value that rows have which were written without the column.
        pub read: Option<Value>,
        /// Value that an insert without the column writes.
        pub write: Option<Value>,
        pub encoding: EncodingWord,
        pub compression: CompressionWord,
    }
}

records! {
    /// A range partition: from `low` to below `high`, each a prefix of the range columns. Empty means unbounded.
    pub struct RangeSpec = "range" {
        pub table: u8,
        pub low: Vec<Value>,
        pub high: Vec<Value>,
        /// Hash levels of its own, as many as the table has. Empty for those of the table.
        pub hash: Vec<HashLevel>,
    }
}

/// Name of the last key column of a table whose rows servers number (Kudu's name of it).
pub const AUTO_INCREMENT: &str = "auto_incrementing_id";
/// Name of the column by which the inserts of such a table are told apart: each of them writes another value.
pub const ORIGIN: &str = "origin";

/// A model table with its columns and ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelTable {
    pub spec: TableSpec,
    pub columns: Vec<ColumnSpec>,
    /// The ranges of a table with range columns. A table without ranges has none, and one tablet per bucket.
    pub ranges: Vec<RangeSpec>,
}

impl ModelTable {
    pub fn key_columns(&self) -> &[ColumnSpec] {
        &self.columns[..usize::from(self.spec.keys).min(self.columns.len())]
    }

    /// Returns the number of the auto-increment column, if there is one.
    pub fn auto_increment(&self) -> Option<u8> {
        let last = self.key_columns().last()?;
        (last.name == AUTO_INCREMENT).then_some(last.number)
    }

    /// Returns the number of the column that tells inserts apart, if rows are numbered.
    pub fn origin(&self) -> Option<u8> {
        self.auto_increment()?;
        self.columns.iter().find(|column| column.name == ORIGIN).map(|column| column.number)
    }

    /// Returns the hash levels of a range.
    pub fn levels<'a>(&'a self, range: Option<&'a RangeSpec>) -> &'a [HashLevel] {
        range.map(|range| range.hash.as_slice()).filter(|own| !own.is_empty()).unwrap_or(&self.spec.hash)
    }

    /// Returns the column of this number.
    pub fn column(&self, number: u8) -> Option<&ColumnSpec> {
        self.columns.iter().find(|column| column.number == number)
    }
}

/// Text without spaces.
impl LineField for String {
    fn text(&self) -> String {
        self.clone()
    }

    fn parse(text: &str) -> Option<String> {
        Some(text.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_level_is_parsed_from_its_own_text() {
        let level = HashLevel { columns: vec![0, 2], buckets: 3, seed: 7 };
        assert_eq!(level.text(), "0.2:3:7");
        assert_eq!(HashLevel::parse("0.2:3:7"), Some(level));
        for text in ["0:3", ":3:7", "0:3:7:1"] {
            assert_eq!(HashLevel::parse(text), None, "{text}");
        }
    }
}
