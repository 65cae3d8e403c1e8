//! Errors: the engine's kinds ↔ the protocol's `AppStatusPB`, and the envelope a tablet server puts around it.

use engine::error::{Error, ErrorKind};

use crate::proto::kudu::AppStatusPb;
use crate::proto::kudu::app_status_pb::ErrorCode;
use crate::proto::kudu::tserver::TabletServerErrorPb;
pub use crate::proto::kudu::tserver::tablet_server_error_pb::Code as TabletErrorCode;

/// The status code a client sees for an error kind.
pub fn status_code(kind: ErrorKind) -> ErrorCode {
    match kind {
        ErrorKind::Invalid => ErrorCode::InvalidArgument,
        ErrorKind::NotFound => ErrorCode::NotFound,
        ErrorKind::AlreadyPresent => ErrorCode::AlreadyPresent,
        ErrorKind::NotReady | ErrorKind::Throttled => ErrorCode::ServiceUnavailable,
        ErrorKind::NotLeader => ErrorCode::IllegalState,
        ErrorKind::Unsupported => ErrorCode::NotSupported,
        ErrorKind::Aborted => ErrorCode::Aborted,
        ErrorKind::Corrupt => ErrorCode::Corruption,
        ErrorKind::Io => ErrorCode::IoError,
    }
}

/// The kind that a status code from another server stands for.
pub fn error_kind(code: ErrorCode) -> ErrorKind {
    match code {
        ErrorCode::NotFound => ErrorKind::NotFound,
        ErrorCode::AlreadyPresent => ErrorKind::AlreadyPresent,
        ErrorCode::Corruption => ErrorKind::Corrupt,
        ErrorCode::NotSupported => ErrorKind::Unsupported,
        ErrorCode::IllegalState => ErrorKind::NotLeader,
        ErrorCode::Aborted | ErrorCode::Cancelled => ErrorKind::Aborted,
        ErrorCode::ServiceUnavailable | ErrorCode::TimedOut | ErrorCode::Uninitialized => ErrorKind::NotReady,
        ErrorCode::IoError | ErrorCode::NetworkError | ErrorCode::EndOfFile => ErrorKind::Io,
        _ => ErrorKind::Invalid,
    }
}

/// A status with a message.
pub fn app_status(code: ErrorCode, message: impl Into<String>) -> AppStatusPb {
    AppStatusPb { code: code as i32, message: Some(message.into()), posix_code: None }
}

pub fn status_from_error(error: &Error) -> AppStatusPb {
    let posix_code = error.errno;
    AppStatusPb { posix_code, ..app_status(status_code(error.kind), error.message.as_str()) }
}

/// What a status from another server means here. A status of OK is not an error and gives `Invalid`.
pub fn error_from_status(status: &AppStatusPb) -> Error {
    let code = ErrorCode::try_from(status.code).unwrap_or(ErrorCode::UnknownError);
    let message = match &status.message {
        Some(text) if !text.is_empty() => text.clone(),
        _ => code.as_str_name().to_string(),
    };
    Error { kind: error_kind(code), message, errno: status.posix_code }
}

/// An error as tablet servers (and consensus) answer it: where it belongs, and the status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TabletError {
    pub code: TabletErrorCode,
    pub status: AppStatusPb,
}

impl TabletError {
    pub fn new(code: TabletErrorCode, status: ErrorCode, message: impl Into<String>) -> TabletError {
        TabletError { code, status: app_status(status, message) }
    }

    /// `error` under `code`.
    pub fn of(code: TabletErrorCode, error: &Error) -> TabletError {
        TabletError { code, status: status_from_error(error) }
    }

    /// The tablet cannot go on here, for what `error` says. Clients take the status, not the code, for a reason to
    /// go on at another replica: theirs is to retry, with the same request id, what was underway when it failed.
    pub fn failed(error: &Error) -> TabletError {
        let what = format!("Tablet not RUNNING: FAILED: {}", error.message);
        TabletError::new(TabletErrorCode::TabletFailed, ErrorCode::IllegalState, what)
    }

    /// Whether the protocol wants this turned into a call that failed as too busy, so that clients back off:
    /// throttled tablets, and anything unavailable that has no code of its own.
    pub fn is_busy(&self) -> bool {
        let general = matches!(self.code, TabletErrorCode::UnknownError | TabletErrorCode::Throttled);
        general && self.status.code == ErrorCode::ServiceUnavailable as i32
    }

    pub fn to_pb(&self) -> TabletServerErrorPb {
        TabletServerErrorPb { code: self.code as i32, status: self.status.clone() }
    }
}

impl From<Error> for TabletError {
    fn from(error: Error) -> TabletError {
        let code = match error.kind {
            ErrorKind::Throttled => TabletErrorCode::Throttled,
            _ => TabletErrorCode::UnknownError,
        };
        TabletError::of(code, &error)
    }
}

impl std::fmt::Display for TabletError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let message = self.status.message.as_deref().unwrap_or_default();
        write!(f, "{}: {message}", self.code.as_str_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_the_wire_but_throttling() {
        let kinds = [
            Error::invalid("m"),
            Error::not_found("m"),
            Error::already_present("m"),
            Error::not_ready("m"),
            Error::not_leader("m"),
            Error::unsupported("m"),
            Error::aborted("m"),
            Error::corrupt("m"),
        ];
        for error in kinds {
            assert_eq!(error_from_status(&status_from_error(&error)), error);
        }
        assert_eq!(error_from_status(&status_from_error(&Error::throttled("m"))).kind, ErrorKind::NotReady);
    }

    #[test]
    fn errno_is_kept() {
        let error = Error::io("append to wal", &std::io::Error::from_raw_os_error(28));
        assert_eq!(error_from_status(&status_from_error(&error)), error);
    }

    #[test]
    fn busy_is_told_apart() {
        assert!(TabletError::from(Error::throttled("memory")).is_busy());
        assert!(TabletError::from(Error::not_ready("later")).is_busy());
        assert!(!TabletError::of(TabletErrorCode::TabletNotRunning, &Error::not_ready("later")).is_busy());
        assert!(!TabletError::from(Error::not_found("row")).is_busy());
    }
}
