//! Result of a command of the program.

use std::error::Error;

/// Result of a command, whose error is printed.
pub(crate) type CommandResult<T> = Result<T, Box<dyn Error + Send + Sync>>;
