//! Errors of the catalog: a code that tells clients which part of the request was wrong, and the error itself.

use std::fmt;

use super::commands::TableRef;
use crate::error::Error;

/// Code of a rejected request; the numbers are Kudu's `MasterErrorPB` codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum CatalogErrorCode {
    Unknown = 1,
    InvalidSchema = 2,
    TableNotFound = 3,
    TableAlreadyPresent = 4,
    TooManyTablets = 5,
    ReplicationFactorTooHigh = 8,
    TabletNotRunning = 9,
    EvenReplicationFactor = 10,
    IllegalReplicationFactor = 11,
    TableSoftDeleted = 16,
}

/// Error of a rejected request: nothing of it took effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogError {
    pub code: CatalogErrorCode,
    pub error: Error,
}

pub type CatalogResult<T, E = CatalogError> = std::result::Result<T, E>;

impl CatalogError {
    pub fn new(code: CatalogErrorCode, error: Error) -> CatalogError {
        CatalogError { code, error }
    }

    /// Creates the error of an invalid request that has no specific code.
    pub fn invalid(message: impl Into<String>) -> CatalogError {
        CatalogError::new(CatalogErrorCode::Unknown, Error::invalid(message))
    }

    /// Creates the error of invalid columns, names or partitions.
    pub fn schema(message: impl Into<String>) -> CatalogError {
        CatalogError::new(CatalogErrorCode::InvalidSchema, Error::invalid(message))
    }

    pub fn no_such_table(message: impl Into<String>) -> CatalogError {
        CatalogError::new(CatalogErrorCode::TableNotFound, Error::not_found(message))
    }

    /// Creates the error of a table that does not exist. Names the table as the request does, in Kudu's text form.
    pub fn table_not_found(table: &TableRef) -> CatalogError {
        let id = table.id.map(|id| id.to_string());
        CatalogError::unknown_table(id.as_deref().map(str::as_bytes), table.name.as_deref())
    }

    /// Creates the error of a table with an ill-formed id, or that does not exist.
    pub fn unknown_table(id: Option<&[u8]>, name: Option<&str>) -> CatalogError {
        let id = id.map(|id| format!("table_id: {}", quoted(id)));
        let name = name.map(|name| format!("table_name: {}", quoted(name.as_bytes())));
        let shown: Vec<String> = id.into_iter().chain(name).collect();
        CatalogError::no_such_table(format!("the table does not exist: {}", shown.join(" ")))
    }
}

/// Quotes bytes as protobuf's text form does.
fn quoted(bytes: &[u8]) -> String {
    let escaped = |byte: &u8| match byte {
        b'\n' => "\\n".to_string(),
        b'\r' => "\\r".to_string(),
        b'\t' => "\\t".to_string(),
        b'"' | b'\'' | b'\\' => format!("\\{}", char::from(*byte)),
        0x20..=0x7e => char::from(*byte).to_string(),
        other => format!("\\{other:03o}"),
    };
    format!("\"{}\"", bytes.iter().map(escaped).collect::<String>())
}

impl From<Error> for CatalogError {
    fn from(error: Error) -> CatalogError {
        CatalogError::new(CatalogErrorCode::Unknown, error)
    }
}

impl fmt::Display for CatalogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}+{:?} {}", self.code, self.error.kind, self.error)
    }
}

impl std::error::Error for CatalogError {}
