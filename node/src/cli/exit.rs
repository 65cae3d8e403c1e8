//! Ends of the program: errors with their exit codes, and interruption.

use std::fmt;

use engine::error::{Error, ErrorKind};

use crate::dirs::is_device_failure;
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
/// Errors of a path that a flag names wrongly, or that the server may not read.
const WRONG_PATH_ERRORS: [i32; 5] = [libc::ENOENT, libc::ENOTDIR, libc::EISDIR, libc::EACCES, libc::EPERM];
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

    /// Returns the error of flags, or files that they name, which were refused before the start. A name that cannot be
    /// looked up yet, or a file that cannot be read now, is worth another start: after a power cut the resolver may be
    /// the last to come back.
    pub fn flags(error: Error) -> ExitError {
        let wrong_path = error.errno.is_some_and(|errno| WRONG_PATH_ERRORS.contains(&errno));
        match error.kind {
            ErrorKind::Io | ErrorKind::NotReady if !wrong_path => ExitError::from(error),
            _ => ExitError::usage(error),
        }
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
            _ if is_device_failure(&error) => DEVICE_FAILED,
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

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn only_flags_that_an_operator_must_correct_have_the_code_of_usage() {
        let code = |error: Error| ExitError::flags(error).code;
        let io = |errno| Error::io("read the certificate", &io::Error::from_raw_os_error(errno));
        assert_eq!(code(Error::invalid("rpc_bind_addresses: no port")), USAGE);
        assert_eq!(code(io(libc::ENOENT)), USAGE);
        assert_eq!(code(io(libc::EACCES)), USAGE);
        assert_eq!(code(io(libc::EIO)), FAILED);
        let resolver = io::Error::other("Temporary failure in name resolution");
        assert_eq!(code(Error::io("look up m1:7051", &resolver)), FAILED);
        assert_eq!(code(Error::not_ready("m1:7051 has no address")), FAILED);
    }
}
