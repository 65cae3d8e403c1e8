//! The engine's error type: a kind that says what the caller should do, and a message that says what is wrong.

use std::fmt;
use std::io;

/// Action that an [`Error`] asks of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Fix the request; it cannot succeed unchanged.
    Invalid,
    /// The named object does not exist.
    NotFound,
    /// The thing to be created exists.
    AlreadyPresent,
    /// Retry the request here, later.
    NotReady,
    /// Retry the request at the leader.
    NotLeader,
    /// The server is overloaded; retry later, with backoff.
    Throttled,
    /// This build does not support the request or format.
    Unsupported,
    /// The operation was aborted before it took effect.
    Aborted,
    /// Stored bytes fail their checksum or contradict each other; repair from another replica.
    Corrupt,
    /// The device or its file system failed. The data being written may or may not be stored.
    Io,
    /// The deadline passed before a server gave a final reply. A write may have taken effect.
    TimedOut,
    /// The caller is not authenticated, or lacks the privilege.
    NotAuthorized,
}

/// An error of the engine. `errno` is set if an operating system returned one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    pub kind: ErrorKind,
    pub message: String,
    pub errno: Option<i32>,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! constructors {
    ($($name:ident => $kind:ident),* $(,)?) => {
        impl Error {
            $(pub fn $name(message: impl Into<String>) -> Error {
                Error { kind: ErrorKind::$kind, message: message.into(), errno: None }
            })*
        }
    };
}

constructors! {
    invalid => Invalid,
    not_found => NotFound,
    already_present => AlreadyPresent,
    not_ready => NotReady,
    not_leader => NotLeader,
    throttled => Throttled,
    unsupported => Unsupported,
    aborted => Aborted,
    corrupt => Corrupt,
    timed_out => TimedOut,
    not_authorized => NotAuthorized,
}

impl Error {
    /// Creates the error of a failed IO operation; `what` names it (for example `"append to wal/000001"`).
    ///
    /// `errno` stays available, so callers can recognise a full disk and an interrupted system call.
    pub fn io(what: impl fmt::Display, source: &io::Error) -> Error {
        Error { kind: ErrorKind::Io, message: format!("{what}: {source}"), errno: source.raw_os_error() }
    }

    /// Returns true if the device had no space, or its user no quota. A retry may succeed once there is some.
    pub fn is_no_space(&self) -> bool {
        let no_space = [rustix::io::Errno::NOSPC, rustix::io::Errno::DQUOT];
        self.errno.is_some_and(|errno| no_space.iter().any(|known| known.raw_os_error() == errno))
    }

    /// Returns the same error with the place of the failure before the message.
    pub fn context(mut self, place: impl fmt::Display) -> Error {
        self.message = format!("{place}: {}", self.message);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
