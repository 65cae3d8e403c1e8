//! The error of a statement: one text for people.

use std::fmt;

use datafusion::arrow::error::ArrowError;
use datafusion::common::{DataFusionError, SchemaError};
use datafusion::logical_expr::sqlparser::parser::ParserError;
use datafusion::logical_expr::sqlparser::tokenizer::TokenizerError;
use engine::error::{Error, ErrorKind};
use nyala_client::ClientError;

/// SQLSTATE codes of failures.
pub(crate) mod state {
    /// A statement that contradicts itself or the tables.
    pub(crate) const BAD_STATEMENT: &str = "42000";
    pub(crate) const SYNTAX: &str = "42601";
    pub(crate) const NO_TABLE: &str = "42P01";
    pub(crate) const NO_COLUMN: &str = "42703";
    pub(crate) const NO_PRIVILEGE: &str = "42501";
    pub(crate) const BAD_PASSWORD: &str = "28P01";
    pub(crate) const TABLE_EXISTS: &str = "42P07";
    pub(crate) const KEY_EXISTS: &str = "23505";
    pub(crate) const BAD_VALUE: &str = "22000";
    /// A number that its type cannot hold.
    pub(crate) const OUT_OF_RANGE: &str = "22003";
    pub(crate) const BAD_FILE: &str = "22P04";
    pub(crate) const DIVISION_BY_ZERO: &str = "22012";
    pub(crate) const NOT_SUPPORTED: &str = "0A000";
    pub(crate) const TOO_COMPLEX: &str = "54001";
    pub(crate) const TOO_LARGE: &str = "54000";
    pub(crate) const NO_MEMORY: &str = "53200";
    pub(crate) const OVERLOADED: &str = "53000";
    pub(crate) const TIMED_OUT: &str = "57014";
    /// The cluster cannot be reached or is not ready.
    pub(crate) const UNAVAILABLE: &str = "57P03";
    pub(crate) const CORRUPT: &str = "XX001";
    pub(crate) const INTERNAL: &str = "XX000";
}

/// Parts of the messages of Arrow's casts about a number that the other type cannot hold.
const OUT_OF_RANGE_PARTS: [&str; 5] = [
    "Can't cast value",
    "Overflowing on",
    "is out of range",
    "is too large to store in a Decimal",
    "is too small to store in a Decimal",
];

/// Failure of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlError {
    message: String,
    /// SQLSTATE code.
    state: &'static str,
}

/// Result of a statement.
pub(crate) type SqlResult<T> = std::result::Result<T, SqlError>;

impl SqlError {
    /// Creates the error of a statement that cannot run as it is.
    pub(crate) fn new(message: impl Into<String>) -> SqlError {
        SqlError::with_state(state::BAD_STATEMENT, message)
    }

    pub(crate) fn with_state(state: &'static str, message: impl Into<String>) -> SqlError {
        SqlError { message: message.into(), state }
    }

    /// Returns the SQLSTATE code.
    pub fn sql_state(&self) -> &'static str {
        self.state
    }

    /// Puts the place of the failure before the message, unless the message begins with it.
    pub(crate) fn context(self, place: impl fmt::Display) -> SqlError {
        let place = place.to_string();
        match self.message.starts_with(&place) {
            true => self,
            false => SqlError { message: format!("{place}: {}", self.message), ..self },
        }
    }

    /// Appends a sentence.
    pub(crate) fn and(self, more: impl fmt::Display) -> SqlError {
        SqlError { message: format!("{}; {more}", self.message), ..self }
    }
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for SqlError {}

impl From<DataFusionError> for SqlError {
    fn from(error: DataFusionError) -> SqlError {
        let (text, state) = match error.find_root() {
            DataFusionError::External(inner) if inner.is::<SqlError>() => {
                return inner.downcast_ref::<SqlError>().cloned().unwrap_or_else(|| SqlError::new(""));
            }
            DataFusionError::Execution(message) => (message.clone(), state::BAD_VALUE),
            DataFusionError::Plan(message) => (message.clone(), state::BAD_STATEMENT),
            DataFusionError::SQL(error, _) => return SqlError::from(*error.clone()),
            DataFusionError::ResourcesExhausted(why) => {
                let why = why.split(DataFusionError::BACK_TRACE_SEP).next().unwrap_or_default().trim_end();
                let action = "read or sort fewer rows at a time, or retry later";
                (format!("the memory for statements is used up ({why}); {action}"), state::NO_MEMORY)
            }
            other => (other.strip_backtrace(), state_of(other)),
        };
        let text = text.split(DataFusionError::BACK_TRACE_SEP).next().unwrap_or_default();
        SqlError::with_state(state, text.trim_end())
    }
}

fn state_of(error: &DataFusionError) -> &'static str {
    match error {
        DataFusionError::SchemaError(inner, _) if matches!(**inner, SchemaError::FieldNotFound { .. }) => {
            state::NO_COLUMN
        }
        DataFusionError::SchemaError(..) | DataFusionError::Diagnostic(..) => state::BAD_STATEMENT,
        DataFusionError::NotImplemented(_) => state::NOT_SUPPORTED,
        DataFusionError::ArrowError(inner, _) => arrow_state(inner),
        _ => state::INTERNAL,
    }
}

fn arrow_state(error: &ArrowError) -> &'static str {
    match error {
        ArrowError::DivideByZero => state::DIVISION_BY_ZERO,
        ArrowError::NotYetImplemented(_) => state::NOT_SUPPORTED,
        ArrowError::ArithmeticOverflow(_) => state::OUT_OF_RANGE,
        ArrowError::CastError(message) | ArrowError::InvalidArgumentError(message)
            if is_out_of_range(message) =>
        {
            state::OUT_OF_RANGE
        }
        _ => state::BAD_VALUE,
    }
}

/// Returns true for a message of a cast whose type cannot hold a number.
fn is_out_of_range(message: &str) -> bool {
    OUT_OF_RANGE_PARTS.iter().any(|part| message.contains(part))
}

impl From<ParserError> for SqlError {
    fn from(error: ParserError) -> SqlError {
        let text = match error {
            ParserError::TokenizerError(text) | ParserError::ParserError(text) => text,
            ParserError::RecursionLimitExceeded => "expressions are nested too deeply".to_string(),
        };
        SqlError::with_state(state::SYNTAX, format!("syntax error: {text}"))
    }
}

impl From<TokenizerError> for SqlError {
    fn from(error: TokenizerError) -> SqlError {
        SqlError::with_state(state::SYNTAX, format!("syntax error: {error}"))
    }
}

impl From<ArrowError> for SqlError {
    fn from(error: ArrowError) -> SqlError {
        SqlError::with_state(arrow_state(&error), error.to_string())
    }
}

impl From<Error> for SqlError {
    fn from(error: Error) -> SqlError {
        let state = match error.kind {
            ErrorKind::Invalid => state::BAD_STATEMENT,
            ErrorKind::NotFound => state::NO_TABLE,
            ErrorKind::AlreadyPresent => state::TABLE_EXISTS,
            ErrorKind::Unsupported => state::NOT_SUPPORTED,
            ErrorKind::Throttled => state::OVERLOADED,
            ErrorKind::TimedOut => state::TIMED_OUT,
            ErrorKind::NotAuthorized => state::NO_PRIVILEGE,
            ErrorKind::Corrupt => state::CORRUPT,
            ErrorKind::NotReady | ErrorKind::NotLeader | ErrorKind::Aborted | ErrorKind::Io => {
                state::UNAVAILABLE
            }
        };
        SqlError::with_state(state, error.to_string())
    }
}

impl From<ClientError> for SqlError {
    fn from(error: ClientError) -> SqlError {
        let state = match &error {
            ClientError::RowsRefused(refused) => row_state(refused.rows.first().map(|row| row.error.kind)),
            ClientError::SchemaMismatch(_) => state::BAD_VALUE,
            ClientError::Timeout(error)
            | ClientError::NotFound(error)
            | ClientError::AlreadyPresent(error)
            | ClientError::Security(error)
            | ClientError::Unavailable(error)
            | ClientError::Invalid(error)
            | ClientError::Unsupported(error)
            | ClientError::Corrupt(error) => SqlError::from(error.clone()).state,
            _ => state::INTERNAL,
        };
        SqlError::with_state(state, error.to_string())
    }
}

/// Returns the state of a row that a tablet refused.
pub(crate) fn row_state(kind: Option<ErrorKind>) -> &'static str {
    match kind {
        Some(ErrorKind::AlreadyPresent) => state::KEY_EXISTS,
        _ => state::BAD_VALUE,
    }
}

/// Converts an error of the client and names the table.
pub(crate) fn external(table: &str, error: impl Into<SqlError>) -> DataFusionError {
    DataFusionError::External(Box::new(error.into().context(format_args!("table {table}"))))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{ArrayRef, Decimal128Array, Float64Array, Int64Array, StringArray};
    use datafusion::arrow::compute::{CastOptions, cast_with_options};
    use datafusion::arrow::datatypes::DataType as ArrowType;

    use super::*;

    /// Returns the state of the failure to cast an array.
    fn cast_state(array: &ArrayRef, ty: &ArrowType) -> &'static str {
        let options = CastOptions { safe: false, ..CastOptions::default() };
        let error = cast_with_options(array, ty, &options).expect_err("it does not fit");
        SqlError::from(DataFusionError::from(error)).sql_state()
    }

    #[test]
    fn a_number_that_a_type_cannot_hold_is_out_of_range() {
        let integer = |value: i64| -> ArrayRef { Arc::new(Int64Array::from(vec![value])) };
        let double = |value: f64| -> ArrayRef { Arc::new(Float64Array::from(vec![value])) };
        let decimal = Decimal128Array::from(vec![12_345]).with_precision_and_scale(5, 1).expect("a type");
        let decimal: ArrayRef = Arc::new(decimal);
        let narrow = ArrowType::Decimal128(3, 1);
        let cases = [
            (integer(300), ArrowType::Int8),
            (integer(1000), narrow.clone()),
            (integer(-1000), narrow.clone()),
            (double(1e10), ArrowType::Int32),
            (double(1e10), narrow.clone()),
            (decimal.clone(), ArrowType::Int8),
            (decimal, narrow),
        ];
        for (array, ty) in cases {
            assert_eq!(cast_state(&array, &ty), state::OUT_OF_RANGE, "{array:?} as {ty}");
        }
        let text: ArrayRef = Arc::new(StringArray::from(vec!["x"]));
        assert_eq!(cast_state(&text, &ArrowType::Int32), state::BAD_VALUE);
    }
}
