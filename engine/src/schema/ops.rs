//! A client's batch of row operations.

use serde::{Deserialize, Serialize};

use super::DataType;
use crate::ids::ColumnId;

/// One of the client's columns, bound to the tablet's column of that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireColumn {
    pub id: ColumnId,
    pub ty: DataType,
    pub nullable: bool,
}

/// Why a row was not written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowError {
    pub code: RowErrorCode,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RowErrorCode {
    AlreadyPresent,
    NotFound,
    InvalidArgument,
    Immutable,
}
