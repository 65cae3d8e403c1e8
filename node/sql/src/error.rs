//! The error of a statement: one text for people.

use std::fmt;

use datafusion::arrow::error::ArrowError;
use datafusion::common::DataFusionError;
use datafusion::logical_expr::sqlparser::parser::ParserError;
use datafusion::logical_expr::sqlparser::tokenizer::TokenizerError;
use engine::error::Error;
use nyala_client::ClientError;

/// Failure of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlError(String);

/// Result of a statement.
pub(crate) type SqlResult<T> = std::result::Result<T, SqlError>;

impl SqlError {
    pub(crate) fn new(message: impl Into<String>) -> SqlError {
        SqlError(message.into())
    }

    /// Puts the place of the failure before the message, unless the message begins with it.
    pub(crate) fn context(self, place: impl fmt::Display) -> SqlError {
        let place = place.to_string();
        match self.0.starts_with(&place) {
            true => self,
            false => SqlError(format!("{place}: {}", self.0)),
        }
    }

    /// Appends a sentence.
    pub(crate) fn and(self, more: impl fmt::Display) -> SqlError {
        SqlError(format!("{}; {more}", self.0))
    }
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SqlError {}

impl From<DataFusionError> for SqlError {
    fn from(error: DataFusionError) -> SqlError {
        let text = match error.find_root() {
            DataFusionError::Execution(message) | DataFusionError::Plan(message) => message.clone(),
            DataFusionError::SQL(error, _) => return SqlError::from(*error.clone()),
            other => other.strip_backtrace(),
        };
        let text = text.split(DataFusionError::BACK_TRACE_SEP).next().unwrap_or_default();
        SqlError(text.trim_end().to_string())
    }
}

impl From<ParserError> for SqlError {
    fn from(error: ParserError) -> SqlError {
        let text = match error {
            ParserError::TokenizerError(text) | ParserError::ParserError(text) => text,
            ParserError::RecursionLimitExceeded => "expressions are nested too deeply".to_string(),
        };
        SqlError(format!("syntax error: {text}"))
    }
}

impl From<TokenizerError> for SqlError {
    fn from(error: TokenizerError) -> SqlError {
        SqlError(format!("syntax error: {error}"))
    }
}

impl From<ArrowError> for SqlError {
    fn from(error: ArrowError) -> SqlError {
        SqlError(error.to_string())
    }
}

impl From<Error> for SqlError {
    fn from(error: Error) -> SqlError {
        SqlError(error.to_string())
    }
}

impl From<ClientError> for SqlError {
    fn from(error: ClientError) -> SqlError {
        SqlError(error.to_string())
    }
}

/// Converts an error of the client and names the table.
pub(crate) fn external(table: &str, error: impl std::fmt::Display) -> DataFusionError {
    DataFusionError::Execution(format!("table {table}: {error}"))
}
