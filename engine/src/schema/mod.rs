//! Table schemas: typed columns, the first of which form the primary key.
//!
//! A column is identified by its [`ColumnId`] for its lifetime. Names change and may be reused; ids never are.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::ids::ColumnId;

pub mod aggregation;
mod data_type;
mod display;
pub mod key;
pub mod partition;
mod partition_display;
pub mod partition_range;
pub mod predicate;
pub mod predicate_bloom;
pub mod pruning;
pub mod row_block;
pub mod row_change;
pub mod row_layout;
pub mod row_ops;
pub mod table_settings;
pub mod wire_hash;

pub use data_type::{DataType, TypeParameters, ValueKind};
pub use display::format_cell;

/// Storage type of a logical type's cells; the engine's loops are written for these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PhysicalType {
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Int128,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Float,
    Double,
    /// Bytes of any length.
    Binary,
}

impl PhysicalType {
    pub const ALL: [PhysicalType; 13] = [
        PhysicalType::Bool,
        PhysicalType::Int8,
        PhysicalType::Int16,
        PhysicalType::Int32,
        PhysicalType::Int64,
        PhysicalType::Int128,
        PhysicalType::Uint8,
        PhysicalType::Uint16,
        PhysicalType::Uint32,
        PhysicalType::Uint64,
        PhysicalType::Float,
        PhysicalType::Double,
        PhysicalType::Binary,
    ];

    /// Bytes of one cell, little-endian; `None` for [`PhysicalType::Binary`].
    pub fn width(self) -> Option<usize> {
        match self {
            PhysicalType::Bool | PhysicalType::Int8 | PhysicalType::Uint8 => Some(1),
            PhysicalType::Int16 | PhysicalType::Uint16 => Some(2),
            PhysicalType::Int32 | PhysicalType::Uint32 | PhysicalType::Float => Some(4),
            PhysicalType::Int64 | PhysicalType::Uint64 | PhysicalType::Double => Some(8),
            PhysicalType::Int128 => Some(16),
            PhysicalType::Binary => None,
        }
    }
}

/// Parameters of DECIMAL (precision, scale) and VARCHAR (length); zero where the type has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct TypeAttributes {
    pub precision: u8,
    pub scale: u8,
    pub length: u16,
}

/// Encoding of a column's values on disk; the numbers are Kudu's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[repr(u8)]
pub enum Encoding {
    /// The type's own default.
    #[default]
    Auto = 0,
    Plain = 1,
    Prefix = 2,
    Rle = 4,
    Dict = 5,
    BitShuffle = 6,
}

impl Encoding {
    pub const ALL: [Encoding; 6] = [
        Encoding::Auto,
        Encoding::Plain,
        Encoding::Prefix,
        Encoding::Rle,
        Encoding::Dict,
        Encoding::BitShuffle,
    ];

    /// Returns Kudu's name of the encoding.
    pub fn name(self) -> &'static str {
        match self {
            Encoding::Auto => "AUTO_ENCODING",
            Encoding::Plain => "PLAIN_ENCODING",
            Encoding::Prefix => "PREFIX_ENCODING",
            Encoding::Rle => "RLE",
            Encoding::Dict => "DICT_ENCODING",
            Encoding::BitShuffle => "BIT_SHUFFLE",
        }
    }
}

/// Compression of a column's encoded blocks; the numbers are Kudu's, ZSTD is ours and not offered on the
/// wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[repr(u8)]
pub enum Compression {
    /// The server's configured default.
    #[default]
    Default = 0,
    None = 1,
    Snappy = 2,
    Lz4 = 3,
    Zlib = 4,
    Zstd = 100,
}

impl Compression {
    /// The codecs that compress.
    pub const CODECS: [Compression; 4] =
        [Compression::Snappy, Compression::Lz4, Compression::Zlib, Compression::Zstd];
}

/// One column.
///
/// Defaults are cell bytes: little-endian for fixed widths, the bytes themselves for the rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnSchema {
    pub id: ColumnId,
    pub name: String,
    pub ty: DataType,
    pub attributes: TypeAttributes,
    pub nullable: bool,
    /// Cell that rows written before the column existed have.
    pub read_default: Option<Vec<u8>>,
    /// Cell that rows written without the column get.
    pub write_default: Option<Vec<u8>>,
    pub encoding: Encoding,
    pub compression: Compression,
    /// Target size of an encoded block in bytes; 0 for the default.
    pub block_bytes: i32,
    pub comment: String,
    /// True if only the insert may set the column.
    pub immutable: bool,
    /// True if the server fills the column with auto-increment values, counted per tablet.
    pub auto_incrementing: bool,
}

impl ColumnSchema {
    /// Creates a plain column: not nullable, no defaults, everything else automatic.
    pub fn new(id: u32, name: &str, ty: DataType) -> ColumnSchema {
        ColumnSchema {
            id: ColumnId(id),
            name: name.to_string(),
            ty,
            attributes: TypeAttributes::default(),
            nullable: false,
            read_default: None,
            write_default: None,
            encoding: Encoding::Auto,
            compression: Compression::Default,
            block_bytes: 0,
            comment: String::new(),
            immutable: false,
            auto_incrementing: false,
        }
    }

    pub fn nullable(mut self) -> ColumnSchema {
        self.nullable = true;
        self
    }
}

/// A table's columns. The first `key_columns` of them are the primary key, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schema {
    columns: Vec<ColumnSchema>,
    key_columns: usize,
}

impl Schema {
    /// Creates a schema. Returns `Invalid` unless there is a key, the key is not nullable and of key types, and names
    /// and ids are unique.
    pub fn new(columns: Vec<ColumnSchema>, key_columns: usize) -> Result<Schema> {
        if key_columns == 0 || key_columns > columns.len() {
            return Err(Error::invalid("a table needs at least one primary key column"));
        }
        for column in &columns[..key_columns] {
            if column.nullable {
                let message = format!("key column {:?} may not be nullable", column.name);
                return Err(Error::invalid(message));
            }
            if !column.ty.allowed_in_key() {
                return Err(Error::invalid(format!(
                    "key column {:?} may not be of type {}",
                    column.name,
                    column.ty.name()
                )));
            }
        }
        for (i, column) in columns.iter().enumerate() {
            let clash = columns[..i].iter().any(|c| c.name == column.name || c.id == column.id);
            if clash {
                return Err(Error::invalid(format!("duplicate column name {:?}", column.name)));
            }
        }
        Ok(Schema { columns, key_columns })
    }

    pub fn columns(&self) -> &[ColumnSchema] {
        &self.columns
    }

    pub fn key_columns(&self) -> &[ColumnSchema] {
        &self.columns[..self.key_columns]
    }

    pub fn num_key_columns(&self) -> usize {
        self.key_columns
    }

    pub fn has_nullable(&self) -> bool {
        self.columns.iter().any(|column| column.nullable)
    }

    pub fn index_of_id(&self, id: ColumnId) -> Option<usize> {
        // Ids are mostly positions: those of a new table are, and of most altered ones.
        let guess = id.0 as usize;
        if self.columns.get(guess).is_some_and(|column| column.id == id) {
            return Some(guess);
        }
        self.columns.iter().position(|column| column.id == id)
    }

    pub fn index_of_name(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    pub fn by_id(&self, id: ColumnId) -> Option<&ColumnSchema> {
        self.columns.iter().find(|column| column.id == id)
    }

    pub fn auto_incrementing(&self) -> Option<usize> {
        self.columns.iter().position(|column| column.auto_incrementing)
    }
}
