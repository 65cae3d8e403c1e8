//! Logical column types: one row each, in one table.

use serde::{Deserialize, Serialize};

use super::PhysicalType;

/// Meaning of a type's cells beyond their storage. Code that formats, parses or converts cells matches on it, so
/// that a new type of a known kind is a row of the table, and a new kind does not compile until all of them know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ValueKind {
    /// The storage's own value: a truth value, a number, bytes.
    Plain,
    /// UTF-8 text in bytes of any length.
    Text,
    /// Unscaled decimal number in an integer; the scale is the column's.
    Decimal,
    /// Days since 1970-01-01 in a 32-bit integer.
    Date,
    /// Microseconds since 1970-01-01 UTC in a 64-bit integer.
    Timestamp,
}

/// Parameters that a column of a type has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TypeParameters {
    None,
    /// Precision and scale; the precision is at most this number of digits.
    Digits(u8),
    /// Maximum number of characters.
    Length,
}

macro_rules! data_types {
    ($($ty:ident = $number:literal, $storage:ident, $kind:ident, $parameters:expr, $name:literal, $words:expr;)*) => {
        /// A column's logical type; the numbers are Kudu's.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[repr(u8)]
        pub enum DataType {
            $($ty = $number,)*
        }

        impl DataType {
            /// All types, ordered by number.
            pub const ALL: [DataType; [$($number),*].len()] = [$(DataType::$ty),*];

            pub fn physical(self) -> PhysicalType {
                match self {
                    $(DataType::$ty => PhysicalType::$storage,)*
                }
            }

            pub fn kind(self) -> ValueKind {
                match self {
                    $(DataType::$ty => ValueKind::$kind,)*
                }
            }

            pub fn parameters(self) -> TypeParameters {
                use TypeParameters::*;
                match self {
                    $(DataType::$ty => $parameters,)*
                }
            }

            /// Returns the name that Kudu's messages use, e.g. `UNIXTIME_MICROS`.
            pub fn name(self) -> &'static str {
                match self {
                    $(DataType::$ty => $name,)*
                }
            }

            /// Returns the words for the type in table definitions, in lower case; none if no table may have it.
            pub fn words(self) -> &'static [&'static str] {
                match self {
                    $(DataType::$ty => &$words,)*
                }
            }
        }
    };
}

data_types! {
//  type           number  storage  kind       parameters   Kudu's name        words in definitions
    Uint8          = 0,    Uint8,   Plain,     None,        "UINT8",           [];
    Int8           = 1,    Int8,    Plain,     None,        "INT8",            ["int8"];
    Uint16         = 2,    Uint16,  Plain,     None,        "UINT16",          [];
    Int16          = 3,    Int16,   Plain,     None,        "INT16",           ["int16"];
    Uint32         = 4,    Uint32,  Plain,     None,        "UINT32",          [];
    Int32          = 5,    Int32,   Plain,     None,        "INT32",           ["int32", "int"];
    Uint64         = 6,    Uint64,  Plain,     None,        "UINT64",          [];
    Int64          = 7,    Int64,   Plain,     None,        "INT64",           ["int64", "bigint"];
    String         = 8,    Binary,  Text,      None,        "STRING",          ["string"];
    Bool           = 9,    Bool,    Plain,     None,        "BOOL",            ["bool", "boolean"];
    Float          = 10,   Float,   Plain,     None,        "FLOAT",           ["float"];
    Double         = 11,   Double,  Plain,     None,        "DOUBLE",          ["double"];
    Binary         = 12,   Binary,  Plain,     None,        "BINARY",          ["binary"];
    UnixtimeMicros = 13,   Int64,   Timestamp, None,        "UNIXTIME_MICROS", ["timestamp", "unixtime_micros"];
    Int128         = 14,   Int128,  Plain,     None,        "INT128",          [];
    Decimal32      = 15,   Int32,   Decimal,   Digits(9),   "DECIMAL32",       ["decimal"];
    Decimal64      = 16,   Int64,   Decimal,   Digits(18),  "DECIMAL64",       ["decimal"];
    Decimal128     = 17,   Int128,  Decimal,   Digits(38),  "DECIMAL128",      ["decimal"];
    IsDeleted      = 18,   Bool,    Plain,     None,        "IS_DELETED",      [];
    Varchar        = 19,   Binary,  Text,      Length,      "VARCHAR",         ["varchar"];
    Date           = 20,   Int32,   Date,      None,        "DATE",            ["date"];
}

impl DataType {
    /// Returns the type with this number on the wire.
    pub fn from_number(number: i32) -> Option<DataType> {
        DataType::ALL.into_iter().find(|ty| *ty as i32 == number)
    }

    /// Bytes of one cell; `None` for types of any length.
    pub fn width(self) -> Option<usize> {
        self.physical().width()
    }

    /// Returns true if a primary key may contain the type.
    pub fn allowed_in_key(self) -> bool {
        !matches!(self.physical(), PhysicalType::Bool | PhysicalType::Float | PhysicalType::Double)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serialized types are positions in the table, so a row in another place would change every superblock.
    #[test]
    fn rows_stand_in_the_order_of_their_numbers() {
        for (at, ty) in DataType::ALL.into_iter().enumerate() {
            assert_eq!(ty as usize, at, "{}", ty.name());
            assert_eq!(DataType::from_number(at as i32), Some(ty));
        }
        assert_eq!(DataType::from_number(DataType::ALL.len() as i32), None);
    }

    #[test]
    fn storage_is_wide_enough_for_the_digits() {
        for ty in DataType::ALL {
            if let TypeParameters::Digits(most) = ty.parameters() {
                let bits = 8 * ty.width().expect("a decimal is an integer") as u32;
                assert!(10i128.pow(most.into()) - 1 <= i128::MAX >> (128 - bits), "{}", ty.name());
            }
        }
    }
}
