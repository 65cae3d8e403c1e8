//! Tables: their definition, writes and scans.

use engine::schema::row_ops::RowOpKind;
use pyo3::prelude::*;

use crate::filter::Filter;
use crate::scan::{Scan, ScanOptions};
use crate::write::{WriteResult, write};

/// An open table.
#[pyclass(module = "nyala", frozen)]
pub(crate) struct Table {
    pub(crate) inner: nyala_client::Table,
}

#[pymethods]
impl Table {
    #[getter]
    fn name(&self) -> &str {
        self.inner.name()
    }

    #[getter]
    fn id(&self) -> &str {
        self.inner.id()
    }

    #[getter]
    fn owner(&self) -> &str {
        self.inner.owner()
    }

    #[getter]
    fn comment(&self) -> &str {
        self.inner.comment()
    }

    #[getter]
    fn num_replicas(&self) -> i32 {
        self.inner.num_replicas()
    }

    /// The columns, as text: name, type and nullability.
    #[getter]
    fn columns(&self) -> Vec<String> {
        self.inner.schema().columns().iter().map(ToString::to_string).collect()
    }

    /// Names of the columns of the primary key, in order.
    #[getter]
    fn key(&self) -> Vec<String> {
        self.inner.schema().key_columns().iter().map(|column| column.name.clone()).collect()
    }

    /// Inserts rows; an existing key refuses its row.
    fn insert(&self, py: Python<'_>, rows: &Bound<'_, PyAny>) -> PyResult<WriteResult> {
        write(py, &self.inner, RowOpKind::Insert, rows)
    }

    /// Inserts rows; rows with an existing key are skipped.
    fn insert_ignore(&self, py: Python<'_>, rows: &Bound<'_, PyAny>) -> PyResult<WriteResult> {
        write(py, &self.inner, RowOpKind::InsertIgnore, rows)
    }

    /// Inserts rows, or updates the ones with their keys.
    fn upsert(&self, py: Python<'_>, rows: &Bound<'_, PyAny>) -> PyResult<WriteResult> {
        write(py, &self.inner, RowOpKind::Upsert, rows)
    }

    /// Updates the given columns of rows by key; a missing key refuses its row.
    fn update(&self, py: Python<'_>, rows: &Bound<'_, PyAny>) -> PyResult<WriteResult> {
        write(py, &self.inner, RowOpKind::Update, rows)
    }

    /// Deletes rows by key; a missing key refuses its row.
    fn delete(&self, py: Python<'_>, rows: &Bound<'_, PyAny>) -> PyResult<WriteResult> {
        write(py, &self.inner, RowOpKind::Delete, rows)
    }

    /// Describes a scan. It reads when it is used: as an Arrow stream, by iteration, or by its methods.
    #[pyo3(signature = (
        columns=None, *, filter=None, limit=None, snapshot=None, diff_from=None, your_writes=false,
        fault_tolerant=false, any_replica=false, batch_bytes=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn scan(
        &self,
        py: Python<'_>,
        columns: Option<Vec<String>>,
        filter: Option<PyRef<'_, Filter>>,
        limit: Option<u64>,
        snapshot: Option<u64>,
        diff_from: Option<u64>,
        your_writes: bool,
        fault_tolerant: bool,
        any_replica: bool,
        batch_bytes: Option<u32>,
    ) -> PyResult<Scan> {
        let options = ScanOptions {
            columns,
            filter,
            limit,
            snapshot,
            diff_from,
            your_writes,
            fault_tolerant,
            any_replica,
            batch_bytes,
        };
        Scan::new(py, &self.inner, options)
    }

    fn __repr__(&self) -> String {
        format!("<nyala.Table {:?}>", self.inner.name())
    }
}
