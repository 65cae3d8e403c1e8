//! Rows of record batches as dictionaries.

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    TimestampMicrosecondType,
};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::DataType;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::error::NyalaError;

/// Days from 0001-01-01, which Python counts as 1, to 1970-01-01.
const EPOCH_ORDINAL: i32 = 719_163;

/// Returns these rows of the batch.
pub(crate) fn dictionaries<'py>(
    py: Python<'py>,
    batch: &RecordBatch,
    rows: Range<usize>,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let dictionaries: Vec<_> = rows.clone().map(|_| PyDict::new(py)).collect();
    let schema = batch.schema();
    for (field, array) in schema.fields().iter().zip(batch.columns()) {
        let converter = Converter::new(py, field.data_type())?;
        for (dictionary, row) in dictionaries.iter().zip(rows.clone()) {
            dictionary.set_item(field.name(), converter.value(array, row)?)?;
        }
    }
    Ok(dictionaries)
}

/// Conversion of the cells of one column, with the Python objects that it needs.
struct Converter<'py> {
    py: Python<'py>,
    /// `decimal.Decimal`, `datetime.date`, or the epoch as a `datetime`.
    helper: Option<Bound<'py, PyAny>>,
    /// `datetime.timedelta`.
    delta: Option<Bound<'py, PyAny>>,
}

impl<'py> Converter<'py> {
    fn new(py: Python<'py>, ty: &DataType) -> PyResult<Converter<'py>> {
        let (mut helper, mut delta) = (None, None);
        match ty {
            DataType::Decimal128(..) => helper = Some(py.import("decimal")?.getattr("Decimal")?),
            DataType::Date32 => helper = Some(py.import("datetime")?.getattr("date")?),
            DataType::Timestamp(..) => {
                let module = py.import("datetime")?;
                let utc = module.getattr("timezone")?.getattr("utc")?;
                helper = Some(module.getattr("datetime")?.call1((1970, 1, 1, 0, 0, 0, 0, utc))?);
                delta = Some(module.getattr("timedelta")?);
            }
            _ => {}
        }
        Ok(Converter { py, helper, delta })
    }

    fn value(&self, array: &ArrayRef, row: usize) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        if array.is_null(row) {
            return Ok(py.None().into_bound(py));
        }
        let value = match array.data_type() {
            DataType::Boolean => array.as_boolean().value(row).into_pyobject(py)?.to_owned().into_any(),
            DataType::Int8 => array.as_primitive::<Int8Type>().value(row).into_pyobject(py)?.into_any(),
            DataType::Int16 => array.as_primitive::<Int16Type>().value(row).into_pyobject(py)?.into_any(),
            DataType::Int32 => array.as_primitive::<Int32Type>().value(row).into_pyobject(py)?.into_any(),
            DataType::Int64 => array.as_primitive::<Int64Type>().value(row).into_pyobject(py)?.into_any(),
            DataType::Float32 => array.as_primitive::<Float32Type>().value(row).into_pyobject(py)?.into_any(),
            DataType::Float64 => array.as_primitive::<Float64Type>().value(row).into_pyobject(py)?.into_any(),
            DataType::Utf8 => array.as_string::<i32>().value(row).into_pyobject(py)?.into_any(),
            DataType::Binary => PyBytes::new(py, array.as_binary::<i32>().value(row)).into_any(),
            DataType::Decimal128(..) => {
                let text = array.as_primitive::<Decimal128Type>().value_as_string(row);
                self.helper().call1((text,))?
            }
            DataType::Date32 => {
                let ordinal = array.as_primitive::<Date32Type>().value(row) + EPOCH_ORDINAL;
                self.helper().call_method1("fromordinal", (ordinal,))?
            }
            DataType::Timestamp(..) => {
                let micros = array.as_primitive::<TimestampMicrosecondType>().value(row);
                let delta = self.delta.as_ref().expect("a column of timestamps has it");
                self.helper().add(delta.call1((0, 0, micros))?)?
            }
            other => return Err(NyalaError::new_err(format!("values of type {other} have no Python form"))),
        };
        Ok(value)
    }

    fn helper(&self) -> &Bound<'py, PyAny> {
        self.helper.as_ref().expect("a column of this type has it")
    }
}
