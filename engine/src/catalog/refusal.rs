//! Why the catalog says no: a code that tells clients which part of the request was wrong, and the error
//! itself.

use std::fmt;

use crate::error::Error;

/// Which part of a request was refused; the numbers are Kudu's `MasterErrorPB` codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
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

/// A request refused: nothing of it took effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub code: Code,
    pub error: Error,
}

pub type Result<T, E = Refusal> = std::result::Result<T, E>;

impl Refusal {
    pub fn new(code: Code, error: Error) -> Refusal {
        Refusal { code, error }
    }

    /// A mistake in the request that has no code of its own.
    pub fn invalid(message: impl Into<String>) -> Refusal {
        Refusal::new(Code::Unknown, Error::invalid(message))
    }

    /// A mistake in the requested columns, names or partitions.
    pub fn schema(message: impl Into<String>) -> Refusal {
        Refusal::new(Code::InvalidSchema, Error::invalid(message))
    }

    pub fn no_such_table(message: impl Into<String>) -> Refusal {
        Refusal::new(Code::TableNotFound, Error::not_found(message))
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal::new(Code::Unknown, error)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}+{:?} {}", self.code, self.error.kind, self.error)
    }
}

impl std::error::Error for Refusal {}
