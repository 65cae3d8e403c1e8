//! Exceptions: one class per reaction of the caller, all of them subclasses of `NyalaError`.

use nyala_client::{ClientError, Error};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;

create_exception!(nyala, NyalaError, PyException, "Base class of all errors of this package.");
create_exception!(nyala, DeadlineExceeded, NyalaError, "The deadline passed. A write may have taken effect.");
create_exception!(
    nyala,
    RowsRefused,
    NyalaError,
    "Some rows were not written; all others were. `rows` is a list of (number of the row, reason); `count` is the \
     number of refused rows, `written` that of rows written."
);
create_exception!(nyala, SchemaMismatch, NyalaError, "A value or a type does not fit the table.");
create_exception!(nyala, NotFound, NyalaError, "The table, column or row does not exist.");
create_exception!(nyala, AlreadyPresent, NyalaError, "The table, column or row exists already.");
create_exception!(
    nyala,
    SecurityError,
    NyalaError,
    "Not authenticated, not authorized, or not encrypted enough."
);
create_exception!(
    nyala,
    Unavailable,
    NyalaError,
    "The cluster is overloaded or not reachable; try again later."
);
create_exception!(
    nyala,
    InvalidRequest,
    NyalaError,
    "The request contradicts itself or the cluster's limits."
);
create_exception!(nyala, Unsupported, NyalaError, "The cluster does not have this feature.");
create_exception!(nyala, CorruptData, NyalaError, "Stored bytes or a reply are damaged.");

/// Adds the exceptions to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let classes = [
        ("NyalaError", py.get_type::<NyalaError>()),
        ("DeadlineExceeded", py.get_type::<DeadlineExceeded>()),
        ("RowsRefused", py.get_type::<RowsRefused>()),
        ("SchemaMismatch", py.get_type::<SchemaMismatch>()),
        ("NotFound", py.get_type::<NotFound>()),
        ("AlreadyPresent", py.get_type::<AlreadyPresent>()),
        ("SecurityError", py.get_type::<SecurityError>()),
        ("Unavailable", py.get_type::<Unavailable>()),
        ("InvalidRequest", py.get_type::<InvalidRequest>()),
        ("Unsupported", py.get_type::<Unsupported>()),
        ("CorruptData", py.get_type::<CorruptData>()),
    ];
    classes.into_iter().try_for_each(|(name, class)| module.add(name, class))
}

/// Returns the exception for an error of the client.
pub(crate) fn raised(error: ClientError) -> PyErr {
    let text = error.to_string();
    match error {
        ClientError::RowsRefused(refused) => {
            let rows: Vec<(u64, String)> =
                refused.rows.iter().map(|row| (row.index, row.error.message.clone())).collect();
            let exception = RowsRefused::new_err(text);
            let attributes = Python::attach(|py| {
                let value = exception.value(py);
                value.setattr("rows", rows)?;
                value.setattr("count", refused.count)?;
                value.setattr("written", refused.written)
            });
            attributes.err().unwrap_or(exception)
        }
        ClientError::Timeout(_) => DeadlineExceeded::new_err(text),
        ClientError::SchemaMismatch(_) => SchemaMismatch::new_err(text),
        ClientError::NotFound(_) => NotFound::new_err(text),
        ClientError::AlreadyPresent(_) => AlreadyPresent::new_err(text),
        ClientError::Security(_) => SecurityError::new_err(text),
        ClientError::Unavailable(_) => Unavailable::new_err(text),
        ClientError::Invalid(_) => InvalidRequest::new_err(text),
        ClientError::Unsupported(_) => Unsupported::new_err(text),
        ClientError::Corrupt(_) => CorruptData::new_err(text),
        _ => NyalaError::new_err(text),
    }
}

/// Returns the exception for an error of the client's lower level.
pub(crate) fn raised_from(error: Error) -> PyErr {
    raised(error.into())
}

/// Returns the error of a value that does not fit a column.
pub(crate) fn mismatch(column: &str, reason: impl std::fmt::Display) -> PyErr {
    SchemaMismatch::new_err(format!("column {column:?}: {reason}"))
}

/// Returns the error of an argument that is wrong whatever the cluster holds.
pub(crate) fn bad_argument(reason: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(reason.to_string())
}
