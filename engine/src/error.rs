//! One error type: a kind that says what the caller should do, and a message that says what was wrong.

use std::fmt;
use std::io;

/// What the caller should do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Mend the request; repeating it as it is cannot succeed.
    Invalid,
    /// The thing named does not exist.
    NotFound,
    /// The thing to be made exists.
    AlreadyPresent,
    /// Repeat the request here, later.
    NotReady,
    /// Repeat the request at the leader.
    NotLeader,
    /// Too much is asked for now; repeat later, and less often.
    Throttled,
    /// This build cannot do it.
    Unsupported,
    /// The operation was given up before it took effect.
    Aborted,
    /// Stored bytes fail their checksum or contradict each other: repair from another replica.
    Corrupt,
    /// The device or its file system failed; what was being written may or may not be there.
    Io,
}

/// An error of the engine. `errno` is kept when an operating system gave one.
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
}

impl Error {
    /// An IO failure while doing `what` (for example `"append to wal/000001"`).
    ///
    /// A full disk and an interrupted system call stay recognisable through `errno`.
    pub fn io(what: impl fmt::Display, source: &io::Error) -> Error {
        Error { kind: ErrorKind::Io, message: format!("{what}: {source}"), errno: source.raw_os_error() }
    }

    /// The same error, with the place it happened put before the message.
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
