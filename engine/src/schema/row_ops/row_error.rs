//! Errors of single rows of a write.

use serde::{Deserialize, Serialize};

/// Reason why a row was not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RowErrorCode {
    AlreadyPresent,
    NotFound,
    InvalidArgument,
    Immutable,
}

/// Error of one row of a batch; the other rows are written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowError {
    pub code: RowErrorCode,
    pub message: String,
}

impl RowError {
    pub fn new(code: RowErrorCode, message: impl Into<String>) -> RowError {
        RowError { code, message: message.into() }
    }

    pub fn invalid(message: impl Into<String>) -> RowError {
        RowError::new(RowErrorCode::InvalidArgument, message)
    }
}
