//! Ends of the program: errors with their exit codes, and interruption.

use std::fmt;

use engine::error::{Error, ErrorKind};

use nyala_common::env::BoxFuture;

/// Reason that the program ends, and its exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExitError {
    pub code: u8,
    pub message: String,
}

pub(super) const FAILED: u8 = 1;
const USAGE: u8 = 2;
const ADDRESS_TAKEN: u8 = 3;
const DIRECTORY_REFUSED: u8 = 4;
const DEVICE_FAILED: u8 = 5;
const CLOCK_REFUSED: u8 = 6;
/// Errors that a device gives when it fails.
const DEVICE_ERRORS: [i32; 2] = [libc::EIO, libc::EROFS];
/// A signal interrupted the command, by the convention of shells.
const INTERRUPTED: u8 = 130;
/// Rows of an import were rejected.
pub(super) const ROWS_REJECTED: u8 = 7;
/// The program does not support the cluster's format level.
const FORMAT_REFUSED: u8 = 8;

impl ExitError {
    /// Returns the error of a wrong command line or flag.
    pub fn usage(error: Error) -> ExitError {
        ExitError { code: USAGE, message: error.message }
    }

    /// Returns the error of a clock that is not synchronised.
    pub fn clock(error: Error) -> ExitError {
        ExitError { code: CLOCK_REFUSED, message: error.message }
    }

    /// Returns the error of a server whose program does not support the cluster's format level.
    pub fn format(error: Error) -> ExitError {
        ExitError { code: FORMAT_REFUSED, message: error.message }
    }

    /// Returns the error of a server that did not start. Flags were checked before, so `Invalid` concerns the
    /// directories.
    pub fn start(error: Error) -> ExitError {
        let taken = Some(libc::EADDRINUSE);
        let code = match error.kind {
            _ if error.errno == taken => ADDRESS_TAKEN,
            ErrorKind::Invalid | ErrorKind::Corrupt | ErrorKind::Unsupported => DIRECTORY_REFUSED,
            _ if DEVICE_ERRORS.map(Some).contains(&error.errno) => DEVICE_FAILED,
            _ => FAILED,
        };
        ExitError { code, message: error.message }
    }
}

impl From<Error> for ExitError {
    fn from(error: Error) -> ExitError {
        ExitError { code: FAILED, message: error.message }
    }
}

impl fmt::Display for ExitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Returns the work's result, unless `stop` is ready first.
pub(super) async fn until_interrupted(
    stop: BoxFuture<'static, ()>,
    work: impl Future<Output = Result<(), ExitError>>,
) -> Result<(), ExitError> {
    tokio::select! {
        biased;
        done = work => done,
        () = stop => Err(ExitError { code: INTERRUPTED, message: "interrupted".to_string() }),
    }
}
