//! Writes: Arrow data or dictionaries to rows of a table.

use arrow_array::RecordBatch;
use arrow_schema::DataType as ArrowType;
use engine::schema::ValueKind;
use engine::schema::row_ops::{ClientCell, RowOpKind};
use nyala_client::rows::TableWriter;
use nyala_client::{ClientError, Table, definitions};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use pyo3_arrow::input::AnyRecordBatch;

use crate::error::{NyalaError, bad_argument, mismatch, raised, raised_from};
use crate::value::encode;
use crate::wait::wait;

/// Numbers of rows of a write.
#[pyclass(module = "nyala", frozen, get_all)]
pub(crate) struct WriteResult {
    /// Rows written.
    written: u64,
    /// Rows that an IGNORE operation skipped.
    ignored: u64,
}

#[pymethods]
impl WriteResult {
    fn __repr__(&self) -> String {
        format!("WriteResult(written={}, ignored={})", self.written, self.ignored)
    }
}

/// Writes all rows and waits for their results. After an error, no row of this call is written any more.
pub(crate) fn write(
    py: Python<'_>,
    table: &Table,
    kind: RowOpKind,
    rows: &Bound<'_, PyAny>,
) -> PyResult<WriteResult> {
    let mut write = Write { py, table, kind, writer: table.writer() };
    if let Err(error) = write.rows(rows).and_then(|()| write.flush()) {
        // Rows in flight must not arrive after what the caller writes next.
        wait(py, write.writer.discard())?;
        return Err(error);
    }
    let summary = wait(py, write.writer.finish())?.map_err(raised)?;
    Ok(WriteResult { written: summary.written, ignored: summary.ignored })
}

/// A write in progress.
struct Write<'a> {
    py: Python<'a>,
    table: &'a Table,
    kind: RowOpKind,
    writer: TableWriter,
}

impl Write<'_> {
    fn rows(&mut self, rows: &Bound<'_, PyAny>) -> PyResult<()> {
        if rows.hasattr("__arrow_c_stream__")? || rows.hasattr("__arrow_c_array__")? {
            self.arrow(rows)
        } else if rows.is_instance_of::<PyDict>() {
            self.row(rows)
        } else if rows.is_instance_of::<PyString>() {
            Err(bad_argument("rows are Arrow data, a dictionary, or an iterable of dictionaries"))
        } else {
            rows.try_iter()?.try_for_each(|row| self.row(&row?))
        }
    }

    /// Sends all rows and waits for their results. The writer is still there if this is interrupted.
    fn flush(&mut self) -> PyResult<()> {
        wait(self.py, self.writer.flush())?.map_err(raised)
    }

    fn arrow(&mut self, rows: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut reader = rows.extract::<AnyRecordBatch>()?.into_reader()?;
        // The stream may need the interpreter for its next batch.
        while let Some(batch) = self.py.detach(|| reader.next()) {
            let batch =
                batch.map_err(|error| NyalaError::new_err(format!("reading the rows to write: {error}")))?;
            check_types(self.table, &batch)?;
            wait(self.py, self.writer.write_batch(self.kind, &batch))?.map_err(raised)?;
        }
        Ok(())
    }

    /// Writes a dictionary; columns that it lacks are not set.
    fn row(&mut self, row: &Bound<'_, PyAny>) -> PyResult<()> {
        let row = row.cast::<PyDict>().map_err(|_| {
            let number = self.writer.next_row();
            bad_argument(format!("row {number}: rows are dictionaries from column names to values"))
        })?;
        let schema = self.table.schema();
        let mut bytes = Vec::new();
        let mut ends = vec![None; schema.columns().len()];
        for (name, value) in row {
            let name: String = name.extract()?;
            let column = definitions::find(schema, &name, self.table.name()).map_err(raised_from)?;
            let index = schema.index_of_name(&name).expect("it was found by its name");
            let start = bytes.len();
            ends[index] = Some((start, encode(&value, column, &mut bytes)?, bytes.len()));
        }
        let cells: Vec<ClientCell<'_>> = ends
            .iter()
            .map(|cell| match cell {
                None => ClientCell::Unset,
                Some((_, false, _)) => ClientCell::Null,
                Some((start, true, end)) => ClientCell::Value(&bytes[*start..*end]),
            })
            .collect();
        let applied: Result<(), ClientError> = wait(self.py, self.writer.apply_cells(self.kind, &cells))?;
        applied.map_err(raised)
    }
}

/// Refuses columns of a type that dictionaries may not have either, whatever the values are.
fn check_types(table: &Table, batch: &RecordBatch) -> PyResult<()> {
    for field in batch.schema().fields() {
        // The writer refuses a column that the table lacks.
        let Some(index) = table.schema().index_of_name(field.name()) else { continue };
        let column = &table.schema().columns()[index];
        let ty = match field.data_type() {
            ArrowType::Dictionary(_, values) => values,
            ty => ty,
        };
        let reason = match (column.ty.kind(), ty) {
            (ValueKind::Decimal, ty) if ty.is_floating() => "float does not fit DECIMAL; give decimals",
            (ValueKind::Timestamp, ArrowType::Timestamp(_, None)) => {
                "times without a time zone; add one, for example UTC"
            }
            (ValueKind::Timestamp, ArrowType::Date32 | ArrowType::Date64) => {
                "days without a time zone; give times with one, for example UTC"
            }
            _ => continue,
        };
        return Err(mismatch(&column.name, reason));
    }
    Ok(())
}
