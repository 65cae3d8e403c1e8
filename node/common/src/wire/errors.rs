//! Errors: the engine's kinds ↔ the protocol's `AppStatusPB`, and the tablet server's error message around it.

use engine::error::{Error, ErrorKind};

use crate::error_text;
use nyala_proto::kudu::AppStatusPb;
use nyala_proto::kudu::app_status_pb::ErrorCode;
use nyala_proto::kudu::tserver::TabletServerErrorPb;
pub use nyala_proto::kudu::tserver::tablet_server_error_pb::Code as TabletErrorCode;

/// Returns the status code that clients receive for an error kind.
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
        ErrorKind::TimedOut => ErrorCode::TimedOut,
        ErrorKind::NotAuthorized => ErrorCode::NotAuthorized,
        ErrorKind::Io => ErrorCode::IoError,
    }
}

/// Returns the error kind for a status code received from another server.
pub fn error_kind(code: ErrorCode) -> ErrorKind {
    match code {
        ErrorCode::NotFound => ErrorKind::NotFound,
        ErrorCode::AlreadyPresent => ErrorKind::AlreadyPresent,
        ErrorCode::Corruption => ErrorKind::Corrupt,
        ErrorCode::NotSupported => ErrorKind::Unsupported,
        ErrorCode::NotAuthorized => ErrorKind::NotAuthorized,
        ErrorCode::IllegalState => ErrorKind::NotLeader,
        ErrorCode::Aborted | ErrorCode::Cancelled => ErrorKind::Aborted,
        ErrorCode::ServiceUnavailable | ErrorCode::TimedOut | ErrorCode::Uninitialized => ErrorKind::NotReady,
        ErrorCode::IoError | ErrorCode::NetworkError | ErrorCode::EndOfFile => ErrorKind::Io,
        _ => ErrorKind::Invalid,
    }
}

/// Builds a status from a code and a message, which is cut at the limit of error replies.
pub fn app_status(code: ErrorCode, message: impl Into<String>) -> AppStatusPb {
    AppStatusPb { code: code as i32, message: Some(error_text::cut(message.into())), posix_code: None }
}

pub fn status_from_error(error: &Error) -> AppStatusPb {
    let posix_code = error.errno;
    AppStatusPb { posix_code, ..app_status(status_code(error.kind), error.message.as_str()) }
}

/// Converts a status received from another server. OK is not an error and becomes `Invalid`.
pub fn error_from_status(status: &AppStatusPb) -> Error {
    let code = ErrorCode::try_from(status.code).unwrap_or(ErrorCode::UnknownError);
    let message = match &status.message {
        Some(text) if !text.is_empty() => text.clone(),
        _ => code.as_str_name().to_string(),
    };
    Error { kind: error_kind(code), message, errno: status.posix_code }
}

/// Error in responses of tablet servers and of consensus: tablet server code and status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TabletError {
    pub code: TabletErrorCode,
    pub status: AppStatusPb,
}

impl TabletError {
    pub fn new(code: TabletErrorCode, status: ErrorCode, message: impl Into<String>) -> TabletError {
        TabletError { code, status: app_status(status, message) }
    }

    /// Wraps `error` with a tablet server code.
    pub fn of(code: TabletErrorCode, error: &Error) -> TabletError {
        TabletError { code, status: status_from_error(error) }
    }

    /// Builds the error of a failed replica. Clients decide by the status, not by the code, to continue at another
    /// replica: they retry requests in flight there, with the same request id.
    pub fn failed(error: &Error) -> TabletError {
        let message = format!("Tablet not RUNNING: FAILED: {}", error.message);
        TabletError::new(TabletErrorCode::TabletFailed, ErrorCode::IllegalState, message)
    }

    /// Returns true if the call must fail as ERROR_SERVER_TOO_BUSY, so that clients back off: for throttled tablets
    /// and for unavailability without a specific code.
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
    fn every_kind_of_servers_except_throttled_survives_the_wire() {
        let kinds = [
            Error::invalid("m"),
            Error::not_found("m"),
            Error::already_present("m"),
            Error::not_ready("m"),
            Error::not_leader("m"),
            Error::unsupported("m"),
            Error::aborted("m"),
            Error::corrupt("m"),
            Error::not_authorized("m"),
        ];
        for error in kinds {
            assert_eq!(error_from_status(&status_from_error(&error)), error);
        }
        // A server that timed out may be asked again, so its callers get another kind.
        for error in [Error::throttled("m"), Error::timed_out("m")] {
            assert_eq!(error_from_status(&status_from_error(&error)).kind, ErrorKind::NotReady);
        }
    }

    #[test]
    fn errno_is_kept() {
        let error = Error::io("append to wal", &std::io::Error::from_raw_os_error(28));
        assert_eq!(error_from_status(&status_from_error(&error)), error);
    }

    #[test]
    fn busy_errors_are_recognized() {
        assert!(TabletError::from(Error::throttled("memory")).is_busy());
        assert!(TabletError::from(Error::not_ready("later")).is_busy());
        assert!(!TabletError::of(TabletErrorCode::TabletNotRunning, &Error::not_ready("later")).is_busy());
        assert!(!TabletError::from(Error::not_found("row")).is_busy());
    }
}
