//! Errors of statements as statuses of gRPC.

use arrow_flight::error::FlightError;
use tonic::{Code, Status};

use super::super::super::error::{SqlError, state};

/// Converts the error of a statement. The message ends with the SQLSTATE code, which gRPC has no place for.
pub(super) fn status(error: impl Into<SqlError>) -> Status {
    let error = error.into();
    let sql_state = error.sql_state();
    Status::new(code(sql_state), format!("{error} (SQLSTATE {sql_state})"))
}

fn code(sql_state: &str) -> Code {
    match sql_state {
        state::NO_TABLE => Code::NotFound,
        state::TABLE_EXISTS | state::KEY_EXISTS => Code::AlreadyExists,
        state::NO_PRIVILEGE => Code::PermissionDenied,
        state::BAD_PASSWORD => Code::Unauthenticated,
        state::NOT_SUPPORTED => Code::Unimplemented,
        state::NO_MEMORY | state::OVERLOADED => Code::ResourceExhausted,
        state::TIMED_OUT => Code::DeadlineExceeded,
        state::UNAVAILABLE => Code::Unavailable,
        state::CORRUPT => Code::DataLoss,
        other if other.starts_with("42") || other.starts_with("22") => Code::InvalidArgument,
        _ => Code::Internal,
    }
}

/// Converts an error of the library's own code, which is about Arrow's data.
pub(super) fn flight_status(error: FlightError) -> Status {
    match error {
        FlightError::Arrow(error) => status(error),
        other => other.into(),
    }
}
