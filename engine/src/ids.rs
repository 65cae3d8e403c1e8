//! Names of things: tables, tablets, servers, columns, operations.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// 128 random bits, written as 32 lower-case hex digits wherever a person or a client sees them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// The id of the masters' own system tablet: 32 zeros.
    pub const ZERO: Uuid = Uuid([0; 16]);
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Every message between servers names several: not one byte at a time.
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 32];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
        f.write_str(std::str::from_utf8(&text).expect("digits are text"))
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Uuid {
    type Err = Error;

    fn from_str(text: &str) -> Result<Uuid, Error> {
        Uuid::parse(text.as_bytes())
    }
}

impl Uuid {
    /// Reads 32 hex digits; `Invalid` otherwise.
    pub fn parse(text: &[u8]) -> Result<Uuid, Error> {
        let bad = || {
            let shown = String::from_utf8_lossy(text);
            Error::invalid(format!("{shown:?} is not an id of 32 hex digits"))
        };
        if text.len() != 32 {
            return Err(bad());
        }
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks(2)) {
            let high = (pair[0] as char).to_digit(16).ok_or_else(bad)?;
            let low = (pair[1] as char).to_digit(16).ok_or_else(bad)?;
            *byte = (high * 16 + low) as u8;
        }
        Ok(Uuid(bytes))
    }
}

/// A table; kept through renames.
pub type TableId = Uuid;
/// A tablet: one partition of one table.
pub type TabletId = Uuid;
/// A master or tablet server; kept in its data directory for life.
pub type PeerId = Uuid;

/// A column of one table; never used again after the column is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ColumnId(pub u32);

/// A row's position inside one DiskRowSet, from 0.
pub type RowId = u32;

/// Names a DiskRowSet within its tablet; never used again.
pub type RowSetId = u64;

/// A term of Raft (Raft §5.1).
pub type Term = u64;

/// The place of an operation in a tablet's log: the term it was made in, and its index from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct OpId {
    pub term: Term,
    pub index: u64,
}

impl OpId {
    /// Before every operation.
    pub const MIN: OpId = OpId { term: 0, index: 0 };
}

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term, self.index)
    }
}
