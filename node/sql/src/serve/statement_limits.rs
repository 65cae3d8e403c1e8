//! Limits of the prepared statements of a client: of a connection of Postgres, or of a user of Flight SQL.

use std::fmt::Display;

use super::super::error::{SqlError, SqlResult, state};

/// Largest number of prepared statements.
const STATEMENTS_MAX: usize = 1000;
/// Largest size of prepared statements with their values, in messages of the largest size.
const MESSAGES_MAX: usize = 4;

/// Limits of the prepared statements of one client.
#[derive(Debug, Clone, Copy)]
pub(super) struct StatementLimits {
    pub(super) count_max: usize,
    /// Largest size of the texts and the bound values of all statements.
    pub(super) bytes_max: usize,
}

impl StatementLimits {
    /// Returns the limits of a server whose messages have this size at most.
    pub(super) fn new(message_bytes_max: usize) -> StatementLimits {
        let bytes_max = message_bytes_max.saturating_mul(MESSAGES_MAX);
        StatementLimits { count_max: STATEMENTS_MAX, bytes_max }
    }

    /// Refuses another of `what` to a client that has `count` of them.
    pub(super) fn check_count(&self, client: impl Display, what: &str, count: usize) -> SqlResult<()> {
        let count_max = self.count_max;
        match count < count_max {
            true => Ok(()),
            false => Err(exceeded(format!("{client} has {count_max} {what}; close some"))),
        }
    }

    /// Refuses statements and values of `bytes` together.
    pub(super) fn check_bytes(&self, client: impl Display, bytes: usize) -> SqlResult<()> {
        let bytes_max = self.bytes_max;
        match bytes <= bytes_max {
            true => Ok(()),
            false => Err(exceeded(format!(
                "{client}: prepared statements and their parameters of {bytes} bytes (limit {bytes_max}); close some \
                 statements"
            ))),
        }
    }
}

fn exceeded(message: String) -> SqlError {
    SqlError::with_state(state::OVERLOADED, message)
}
