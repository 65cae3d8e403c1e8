//! Scans as Arrow streams and as dictionaries.

use std::sync::{Mutex, PoisonError};

use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use engine::schema::predicate::Predicate;
use nyala_client::{ReadMode, ScanSpec, Scanner};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use pyo3_arrow::PyRecordBatchReader;

use crate::error::{bad_argument, raised_from};
use crate::filter::{Filter, predicates};
use crate::row::dictionaries;
use crate::wait::{in_runtime, wait};

/// Description of a scan of a table. Each use reads the table again.
#[pyclass(module = "nyala", frozen)]
pub(crate) struct Scan {
    table: nyala_client::Table,
    spec: ScanSpec,
}

/// Arguments of `Table.scan`.
pub(crate) struct ScanOptions<'py> {
    pub columns: Option<Vec<String>>,
    pub filter: Option<PyRef<'py, Filter>>,
    pub limit: Option<u64>,
    pub snapshot: Option<u64>,
    pub diff_from: Option<u64>,
    pub your_writes: bool,
    pub fault_tolerant: bool,
    pub any_replica: bool,
    pub batch_bytes: Option<u32>,
}

impl Scan {
    pub(crate) fn new(
        py: Python<'_>,
        table: &nyala_client::Table,
        options: ScanOptions<'_>,
    ) -> PyResult<Scan> {
        let filter = match &options.filter {
            Some(filter) => predicates(py, table, filter)?,
            None => Some(Vec::<Predicate>::new()),
        };
        if options.your_writes && (options.snapshot.is_some() || options.diff_from.is_some()) {
            return Err(bad_argument(
                "your_writes chooses its own snapshot; leave out snapshot and diff_from",
            ));
        }
        let default = ScanSpec::default();
        let read_mode = match (options.your_writes, options.snapshot) {
            (true, _) => ReadMode::YourWrites,
            (false, None) if options.fault_tolerant => ReadMode::AtSnapshot(None),
            (false, None) => ReadMode::Latest,
            (false, snapshot) => ReadMode::AtSnapshot(snapshot),
        };
        let spec = ScanSpec {
            columns: options.columns,
            limit: if filter.is_none() { Some(0) } else { options.limit },
            predicates: filter.unwrap_or_default(),
            read_mode,
            diff_from: options.diff_from,
            fault_tolerant: options.fault_tolerant || options.diff_from.is_some(),
            any_replica: options.any_replica,
            batch_bytes: options.batch_bytes.unwrap_or(default.batch_bytes),
            ..default
        };
        // Wrong columns and contradictory options fail here, not at the first row.
        table.scan(spec.clone()).map_err(raised_from)?;
        Ok(Scan { table: table.clone(), spec })
    }

    fn open(&self) -> PyResult<Scanner> {
        self.table.scan(self.spec.clone()).map_err(raised_from)
    }
}

#[pymethods]
impl Scan {
    /// Opens the scan as an Arrow C stream (PyCapsule interface).
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let reader = Batches(Some(self.open()?));
        let stream = PyRecordBatchReader::new(Box::new(reader)).into_pyobject(py)?;
        stream.call_method1("__arrow_c_stream__", (requested_schema,))
    }

    /// Iterates over the rows as dictionaries.
    fn __iter__(&self) -> PyResult<Rows> {
        Ok(Rows(Mutex::new(RowsState { scanner: OpenScanner(Some(self.open()?)), batch: None, next: 0 })))
    }

    /// Reads all rows as a list of dictionaries.
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let mut scanner = OpenScanner(Some(self.open()?));
        let rows = PyList::empty(py);
        while let Some(batch) = scanner.next_batch(py)? {
            for row in dictionaries(py, &batch, 0..batch.num_rows())? {
                rows.append(row)?;
            }
        }
        Ok(rows)
    }

    /// Counts the rows without reading their columns.
    fn count(&self, py: Python<'_>) -> PyResult<u64> {
        let spec = ScanSpec { columns: Some(Vec::new()), ..self.spec.clone() };
        let mut scanner = OpenScanner(Some(self.table.scan(spec).map_err(raised_from)?));
        let mut count = 0;
        while let Some(batch) = scanner.next_batch(py)? {
            count += batch.num_rows() as u64;
        }
        Ok(count)
    }

    /// Reads all rows into a `pyarrow.Table`.
    fn to_arrow<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("pyarrow")?.call_method1("table", (self.read_all(py)?,))
    }

    /// Reads all rows into a `pandas.DataFrame`, by way of pyarrow.
    fn to_pandas<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.to_arrow(py)?.call_method0("to_pandas")
    }

    /// Reads all rows into a `polars.DataFrame`.
    fn to_polars<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("polars")?.call_method1("DataFrame", (self.read_all(py)?,))
    }
}

impl Scan {
    /// Reads all rows into memory.
    ///
    /// Libraries that read a [`Batches`] inside a call of this package would release the interpreter's lock without its
    /// knowledge.
    fn read_all(&self, py: Python<'_>) -> PyResult<PyRecordBatchReader> {
        let scanner = self.open()?;
        let schema = scanner.schema().clone();
        let mut scanner = OpenScanner(Some(scanner));
        let mut batches = Vec::new();
        while let Some(batch) = scanner.next_batch(py)? {
            batches.push(Ok(batch));
        }
        Ok(PyRecordBatchReader::new(Box::new(RecordBatchIterator::new(batches, schema))))
    }
}

/// A scanner that is dropped inside the runtime, where its closing can be spawned.
struct OpenScanner(Option<Scanner>);

impl OpenScanner {
    fn next_batch(&mut self, py: Python<'_>) -> PyResult<Option<RecordBatch>> {
        let Some(scanner) = &mut self.0 else { return Ok(None) };
        wait(py, scanner.next_batch())?.map_err(raised_from)
    }
}

impl Drop for OpenScanner {
    fn drop(&mut self) {
        in_runtime(|| drop(self.0.take()));
    }
}

/// Batches of a scan, read on demand.
struct Batches(Option<Scanner>);

impl Iterator for Batches {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let scanner = self.0.as_mut()?;
        let read = Python::attach(|py| match wait(py, scanner.next_batch()) {
            Ok(read) => read.map_err(raised_from),
            Err(interrupted) => Err(interrupted),
        });
        match read {
            Ok(batch) => batch.map(Ok),
            Err(error) => Some(Err(ArrowError::ExternalError(Box::new(error)))),
        }
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        in_runtime(|| drop(self.0.take()));
    }
}

impl RecordBatchReader for Batches {
    fn schema(&self) -> SchemaRef {
        self.0.as_ref().expect("it has its scanner until it is dropped").schema().clone()
    }
}

/// Iterator over the rows of a scan.
#[pyclass(module = "nyala", frozen)]
pub(crate) struct Rows(Mutex<RowsState>);

struct RowsState {
    scanner: OpenScanner,
    batch: Option<RecordBatch>,
    /// Row of the batch that comes next.
    next: usize,
}

#[pymethods]
impl Rows {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let state = &mut *self.0.try_lock().or_else(|error| match error {
            std::sync::TryLockError::Poisoned(poisoned) => Ok(PoisonError::into_inner(poisoned)),
            std::sync::TryLockError::WouldBlock => Err(bad_argument("another thread reads these rows")),
        })?;
        if state.batch.as_ref().is_none_or(|batch| state.next == batch.num_rows()) {
            state.batch = state.scanner.next_batch(py)?;
            state.next = 0;
        }
        let Some(batch) = &state.batch else { return Ok(None) };
        state.next += 1;
        let row = dictionaries(py, batch, state.next - 1..state.next)?;
        Ok(row.into_iter().next())
    }
}
