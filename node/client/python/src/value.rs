//! Python values as cells of a column.
//!
//! Nothing is converted that could lose or change a value: an integer outside the column's range, an integer that a
//! FLOAT or DOUBLE cannot hold exactly, a float for a DECIMAL, a `datetime` without a time zone, a time with
//! nanoseconds and text for a number are errors. Only floats for a FLOAT are rounded, unless they would become
//! infinite.

use engine::schema::{ColumnSchema, PhysicalType, ValueKind};
use nyala_client::cell_text::parse_cell;
use nyala_client::rows::ToCell;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyFloat, PyInt, PyString};

use crate::error::mismatch;

/// Days from 0001-01-01, which Python counts as 1, to 1970-01-01.
const EPOCH_ORDINAL: i64 = 719_163;

/// Appends the cell of a value. Returns false for `None`.
pub(crate) fn encode(value: &Bound<'_, PyAny>, column: &ColumnSchema, out: &mut Vec<u8>) -> PyResult<bool> {
    if value.is_none() {
        return Ok(false);
    }
    match column.ty.kind() {
        ValueKind::Text => {
            let text = value.cast::<PyString>().map_err(|_| unfit(value, column))?;
            put(&text.extract::<String>()?, column, out)
        }
        ValueKind::Timestamp => put(&micros(value, column)?, column, out),
        ValueKind::Date => put(&days(value, column)?, column, out),
        ValueKind::Decimal => decimal(value, column, out),
        ValueKind::Plain => plain(value, column, out),
    }
}

fn plain(value: &Bound<'_, PyAny>, column: &ColumnSchema, out: &mut Vec<u8>) -> PyResult<bool> {
    match column.ty.physical() {
        PhysicalType::Int8 => put(&integer::<i8>(value, column)?, column, out),
        PhysicalType::Int16 => put(&integer::<i16>(value, column)?, column, out),
        PhysicalType::Int32 => put(&integer::<i32>(value, column)?, column, out),
        PhysicalType::Int64 => put(&integer::<i64>(value, column)?, column, out),
        PhysicalType::Bool => {
            put(&value.cast::<PyBool>().map_err(|_| unfit(value, column))?.is_true(), column, out)
        }
        PhysicalType::Float => put(&float(value, column, |number| number as f32)?, column, out),
        PhysicalType::Double => put(&float(value, column, |number| number)?, column, out),
        PhysicalType::Binary => put(&bytes(value, column)?, column, out),
        PhysicalType::Uint8
        | PhysicalType::Uint16
        | PhysicalType::Uint32
        | PhysicalType::Uint64
        | PhysicalType::Int128 => {
            Err(mismatch(&column.name, format!("values of {} cannot be written", column.type_name())))
        }
    }
}

fn put(value: &impl ToCell, column: &ColumnSchema, out: &mut Vec<u8>) -> PyResult<bool> {
    value.to_cell(column, out).map_err(|error| mismatch(&column.name, error.reason))
}

fn unfit(value: &Bound<'_, PyAny>, column: &ColumnSchema) -> PyErr {
    let ty = value.get_type().name().map_or_else(|_| "a value".to_string(), |name| name.to_string());
    mismatch(&column.name, format!("{ty} does not fit {}", column.type_name()))
}

/// Extracts an integer; `True` and `False` are none.
fn integer<'py, T>(value: &Bound<'py, PyAny>, column: &ColumnSchema) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py>,
{
    let is_integer = value.is_instance_of::<PyInt>() && !value.is_instance_of::<PyBool>();
    // NumPy's integers are no subclasses of int.
    if !is_integer && (value.is_instance_of::<PyBool>() || !value.hasattr("__index__")?) {
        return Err(unfit(value, column));
    }
    value
        .extract::<T>()
        .map_err(|_| mismatch(&column.name, format!("{value} does not fit {}", column.type_name())))
}

/// Extracts a number and rounds it to the column's type. An integer must stay the same, and a finite number finite.
fn float<T>(value: &Bound<'_, PyAny>, column: &ColumnSchema, round: impl Fn(f64) -> T) -> PyResult<T>
where
    T: Copy + Into<f64>,
{
    let is_number = value.is_instance_of::<PyFloat>() || value.is_instance_of::<PyInt>();
    if value.is_instance_of::<PyBool>() || (!is_number && !value.hasattr("__float__")?) {
        return Err(unfit(value, column));
    }
    let number: f64 = value.extract().map_err(|_| unfit(value, column))?;
    let rounded = round(number);
    let stored: f64 = rounded.into();
    let is_kept = match exact_integer(value)? {
        Some(integer) => integer.eq(stored)?,
        None => stored.is_finite() || !number.is_finite(),
    };
    if is_kept {
        return Ok(rounded);
    }
    Err(mismatch(&column.name, format!("{value} does not fit {}", column.type_name())))
}

/// Returns an integer of Python or NumPy as one of Python, which compares exactly with floats; `None` for a float.
fn exact_integer<'py>(value: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    if value.is_instance_of::<PyFloat>() || !value.hasattr("__index__")? {
        return Ok(None);
    }
    // Arrays of NumPy have the method, and fail if they are no integers.
    Ok(value.call_method0("__index__").ok())
}

fn bytes(value: &Bound<'_, PyAny>, column: &ColumnSchema) -> PyResult<Vec<u8>> {
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    value.cast::<PyByteArray>().map(|bytes| bytes.to_vec()).map_err(|_| unfit(value, column))
}

/// Returns microseconds since 1970 of an aware `datetime`, or an integer as it is.
fn micros(value: &Bound<'_, PyAny>, column: &ColumnSchema) -> PyResult<i64> {
    let py = value.py();
    let module = py.import("datetime")?;
    if !value.is_instance(&module.getattr("datetime")?)? {
        return integer(value, column);
    }
    if value.call_method0("utcoffset")?.is_none() {
        let reason = "a datetime without a time zone; add one, for example tzinfo=datetime.timezone.utc";
        return Err(mismatch(&column.name, reason));
    }
    if nanoseconds(value)? != 0 {
        let reason = format!("{value} has nanoseconds and does not fit {}; round it", column.type_name());
        return Err(mismatch(&column.name, reason));
    }
    let utc = module.getattr("timezone")?.getattr("utc")?;
    let epoch = module.getattr("datetime")?.call1((1970, 1, 1, 0, 0, 0, 0, utc))?;
    let since = value.sub(epoch)?;
    let part = |name: &str| since.getattr(name)?.extract::<i64>();
    Ok((part("days")? * 86_400 + part("seconds")?) * 1_000_000 + part("microseconds")?)
}

/// Returns the nanoseconds below the microsecond of a `datetime`: only the subclass `pandas.Timestamp` has some.
fn nanoseconds(value: &Bound<'_, PyAny>) -> PyResult<i64> {
    match value.hasattr("nanosecond")? {
        true => value.getattr("nanosecond")?.extract::<i64>(),
        false => Ok(0),
    }
}

/// Returns days since 1970 of a `date`; a `datetime` is none.
fn days(value: &Bound<'_, PyAny>, column: &ColumnSchema) -> PyResult<i32> {
    let module = value.py().import("datetime")?;
    let is_date = value.is_instance(&module.getattr("date")?)?;
    if !is_date || value.is_instance(&module.getattr("datetime")?)? {
        return Err(unfit(value, column));
    }
    let ordinal: i64 = value.call_method0("toordinal")?.extract()?;
    i32::try_from(ordinal - EPOCH_ORDINAL).map_err(|_| unfit(value, column))
}

/// Encodes a `decimal.Decimal` or an integer with all of its digits.
fn decimal(value: &Bound<'_, PyAny>, column: &ColumnSchema, out: &mut Vec<u8>) -> PyResult<bool> {
    let class = value.py().import("decimal")?.getattr("Decimal")?;
    let is_integer = value.is_instance_of::<PyInt>() && !value.is_instance_of::<PyBool>();
    if !is_integer && !value.is_instance(&class)? {
        return Err(unfit(value, column));
    }
    // Without an exponent.
    let text: String = class.call1((value,))?.call_method1("__format__", ("f",))?.extract()?;
    let cell = parse_cell(column, &text).map_err(|error| mismatch(&column.name, error.message))?;
    out.extend_from_slice(&cell);
    Ok(true)
}
