//! Errors of the catalog: a code that tells clients which part of the request was wrong, and the error itself.

use std::fmt;

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
