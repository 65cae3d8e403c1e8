//! Identifiers of tables, tablets, servers, columns, rows and operations.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// A 128-bit identifier. Its text form, for operators and clients, is 32 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// The nil id, which is also the id of the masters' system tablet.
    pub const ZERO: Uuid = Uuid([0; 16]);
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Messages between servers contain several ids, so digits are not written one at a time.
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 32];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
        f.write_str(std::str::from_utf8(&text).expect("hex digits are UTF-8"))
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
    /// Parses 32 hex digits; `Invalid` otherwise.
    pub fn parse(text: &[u8]) -> Result<Uuid, Error> {
        let bad = || {
            let shown = String::from_utf8_lossy(text);
            Error::invalid(format!("id {shown:?}: not 32 hex digits"))
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

/// A table's id; a rename keeps it.
pub type TableId = Uuid;
/// A tablet's id: one partition of one table.
pub type TabletId = Uuid;
/// A master's or tablet server's id; stored in its directories and never changed.
pub type PeerId = Uuid;

/// A column's id within its table; not reused after the column is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ColumnId(pub u32);

/// A row's index within one DiskRowSet, from 0.
pub type RowId = u32;

/// A DiskRowSet's id within its tablet; never reused.
pub type RowSetId = u64;

/// A Raft term (Raft §5.1).
pub type Term = u64;

/// Position of an operation in a tablet's log: the leader's term when it was appended, and its index from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct OpId {
    pub term: Term,
    pub index: u64,
}

impl OpId {
    /// Position before every operation.
    pub const MIN: OpId = OpId { term: 0, index: 0 };
}

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term, self.index)
    }
}
