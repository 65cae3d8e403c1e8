//! Errors of the typed interface: one variant per reaction of the caller.
//!
//! ```text
//!   Error { kind, message }     of sessions, scanners and DDL      ─┐
//!   conversion of a value       names row, table and column         ├──► ClientError
//!   rows that tablets refused   with their numbers and reasons     ─┘
//! ```

use std::fmt;

use engine::error::{Error, ErrorKind};

/// Error of the typed interface.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientError {
    /// The deadline passed. A write may have taken effect or not.
    Timeout(Error),
    /// Some rows were not written; all others were.
    RowsRefused(RefusedRows),
    /// A value or a type does not fit the table: the program and the table differ.
    SchemaMismatch(SchemaMismatch),
    /// The table, column, tablet or row does not exist.
    NotFound(Error),
    /// The table, column or row exists already.
    AlreadyPresent(Error),
    /// The user is not authenticated or lacks a privilege, or the connection is not secure enough.
    Security(Error),
    /// The cluster is overloaded or not ready, or cannot be reached; try again later.
    Unavailable(Error),
    /// The request contradicts itself or the limits of the cluster.
    Invalid(Error),
    /// The cluster does not have this feature.
    Unsupported(Error),
    /// Stored bytes or a reply are damaged.
    Corrupt(Error),
}

/// Result of the typed interface.
pub type ClientResult<T> = std::result::Result<T, ClientError>;

/// Rows that were not written, with the first of their reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedRows {
    pub table: String,
    /// Refused rows by number; at most 100,000 are kept.
    pub rows: Vec<RefusedRow>,
    /// Number of refused rows, of which `rows` may hold fewer.
    pub count: u64,
    /// Number of rows that were written.
    pub written: u64,
}

/// Row that was not written.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedRow {
    /// Number of the row: 0 for the first one given to the writer.
    pub index: u64,
    /// Column at fault, if the reason is in one.
    pub column: Option<String>,
    /// `AlreadyPresent` for an existing key, `NotFound` for a missing one. `TimedOut` if the outcome is unknown.
    pub error: Error,
}

/// Difference between a program's types and a table.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SchemaMismatch {
    pub table: String,
    pub column: Option<String>,
    /// Number of the row that was converted, if it was one.
    pub row: Option<u64>,
    pub reason: String,
}

impl SchemaMismatch {
    pub(crate) fn of_column(column: &str, reason: impl Into<String>) -> SchemaMismatch {
        let column = Some(column.to_string());
        SchemaMismatch { table: String::new(), column, row: None, reason: reason.into() }
    }

    pub(crate) fn in_table(mut self, table: &str, row: Option<u64>) -> SchemaMismatch {
        self.table = table.to_string();
        self.row = row;
        self
    }
}

impl ClientError {
    /// Returns true if the same request may succeed later.
    pub fn is_retriable(&self) -> bool {
        matches!(self, ClientError::Timeout(_) | ClientError::Unavailable(_))
    }

    pub(crate) fn in_table(self, table: &str, row: Option<u64>) -> ClientError {
        match self {
            ClientError::SchemaMismatch(mismatch) => {
                ClientError::SchemaMismatch(mismatch.in_table(table, row))
            }
            other => other,
        }
    }
}

impl From<Error> for ClientError {
    fn from(error: Error) -> ClientError {
        match error.kind {
            ErrorKind::TimedOut => ClientError::Timeout(error),
            ErrorKind::NotFound => ClientError::NotFound(error),
            ErrorKind::AlreadyPresent => ClientError::AlreadyPresent(error),
            ErrorKind::NotAuthorized => ClientError::Security(error),
            ErrorKind::NotReady
            | ErrorKind::NotLeader
            | ErrorKind::Throttled
            | ErrorKind::Aborted
            | ErrorKind::Io => ClientError::Unavailable(error),
            ErrorKind::Unsupported => ClientError::Unsupported(error),
            ErrorKind::Corrupt => ClientError::Corrupt(error),
            ErrorKind::Invalid => ClientError::Invalid(error),
        }
    }
}

impl From<SchemaMismatch> for ClientError {
    fn from(mismatch: SchemaMismatch) -> ClientError {
        ClientError::SchemaMismatch(mismatch)
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::RowsRefused(refused) => refused.fmt(f),
            ClientError::SchemaMismatch(mismatch) => mismatch.fmt(f),
            ClientError::Timeout(error)
            | ClientError::NotFound(error)
            | ClientError::AlreadyPresent(error)
            | ClientError::Security(error)
            | ClientError::Unavailable(error)
            | ClientError::Invalid(error)
            | ClientError::Unsupported(error)
            | ClientError::Corrupt(error) => error.fmt(f),
        }
    }
}

impl fmt::Display for RefusedRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RefusedRows { table, rows, count, written } = self;
        let plural = if *count == 1 { "" } else { "s" };
        write!(f, "table {table}: {count} row{plural} refused, {written} written")?;
        rows.first().map_or(Ok(()), |first| write!(f, "; {first}"))
    }
}

impl fmt::Display for RefusedRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "row {}", self.index)?;
        if let Some(column) = &self.column {
            write!(f, ", column {column:?}")?;
        }
        write!(f, ": {}", self.error)
    }
}

impl fmt::Display for SchemaMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {}", self.table)?;
        if let Some(row) = self.row {
            write!(f, ", row {row}")?;
        }
        if let Some(column) = &self.column {
            write!(f, ", column {column:?}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

impl std::error::Error for ClientError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ClientError::RowsRefused(refused) => {
                refused.rows.first().map(|row| &row.error as &(dyn std::error::Error + 'static))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_reaction() {
        let of = |error: Error| ClientError::from(error);
        let timeout = of(Error::timed_out("m"));
        assert!(matches!(timeout, ClientError::Timeout(_)) && timeout.is_retriable());
        assert!(matches!(of(Error::not_authorized("m")), ClientError::Security(_)));
        assert!(of(Error::throttled("m")).is_retriable());
        for permanent in [of(Error::invalid("m")), of(Error::not_found("m")), of(Error::not_authorized("m"))]
        {
            assert!(!permanent.is_retriable(), "{permanent:?}");
        }
    }

    #[test]
    fn errors_name_table_row_and_column() {
        let mismatch =
            SchemaMismatch::of_column("age", "INT32 cannot hold an i64").in_table("people", Some(7));
        assert_eq!(
            ClientError::from(mismatch).to_string(),
            r#"table people, row 7, column "age": INT32 cannot hold an i64"#
        );
        let row = RefusedRow { index: 3, column: None, error: Error::already_present("key already present") };
        let refused = RefusedRows { table: "people".to_string(), rows: vec![row], count: 1, written: 9 };
        assert_eq!(
            ClientError::RowsRefused(refused).to_string(),
            "table people: 1 row refused, 9 written; row 3: key already present"
        );
    }
}
