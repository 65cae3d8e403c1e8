//! Predicates as Python expressions: `(col("host") == "a") & col("value").is_not_null()`.

use engine::schema::ColumnSchema;
use engine::schema::predicate::{Predicate, PredicateKind};
use nyala_client::definitions;
use nyala_client::predicate::{Comparison, SimplifiedPredicate, compare};
use pyo3::basic::CompareOp;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::error::{bad_argument, mismatch, raised_from};
use crate::value::encode;

/// A column of any table, to build filters with.
#[pyclass(module = "nyala", frozen)]
pub(crate) struct Column {
    name: String,
}

/// A conjunction of conditions, each on one column.
#[pyclass(module = "nyala", frozen)]
pub(crate) struct Filter {
    terms: Vec<Term>,
}

/// A condition on one column.
struct Term {
    column: String,
    condition: Condition,
}

enum Condition {
    Compare(Comparison, Py<PyAny>),
    In(Vec<Py<PyAny>>),
    IsNull,
    IsNotNull,
}

/// Returns the column of this name, to build filters with.
#[pyfunction]
pub(crate) fn col(name: String) -> Column {
    Column { name }
}

impl Column {
    fn filter(&self, condition: Condition) -> Filter {
        Filter { terms: vec![Term { column: self.name.clone(), condition }] }
    }
}

#[pymethods]
impl Column {
    fn __richcmp__(&self, value: Py<PyAny>, op: CompareOp) -> PyResult<Filter> {
        let comparison = match op {
            CompareOp::Lt => Comparison::Less,
            CompareOp::Le => Comparison::LessEqual,
            CompareOp::Eq => Comparison::Equal,
            CompareOp::Ge => Comparison::GreaterEqual,
            CompareOp::Gt => Comparison::Greater,
            CompareOp::Ne => {
                return Err(bad_argument("servers cannot evaluate !=; filter the rows of the scan"));
            }
        };
        Ok(self.filter(Condition::Compare(comparison, value)))
    }

    /// Rows whose column has one of these values; none at all for no values.
    fn is_in(&self, values: Vec<Py<PyAny>>) -> Filter {
        self.filter(Condition::In(values))
    }

    /// Rows whose column is NULL.
    fn is_null(&self) -> Filter {
        self.filter(Condition::IsNull)
    }

    /// Rows whose column is not NULL.
    fn is_not_null(&self) -> Filter {
        self.filter(Condition::IsNotNull)
    }

    fn __repr__(&self) -> String {
        format!("col({:?})", self.name)
    }
}

#[pymethods]
impl Filter {
    /// Rows that satisfy both filters.
    fn __and__(&self, py: Python<'_>, other: &Filter) -> Filter {
        let terms = self.terms.iter().chain(&other.terms);
        Filter { terms: terms.map(|term| term.clone_ref(py)).collect() }
    }

    fn __or__(&self, _other: &Bound<'_, PyAny>) -> PyResult<()> {
        Err(bad_argument("servers cannot evaluate |; use is_in, or filter the rows of the scan"))
    }

    fn __invert__(&self) -> PyResult<()> {
        Err(bad_argument("servers cannot evaluate ~; filter the rows of the scan"))
    }

    fn __bool__(&self) -> PyResult<bool> {
        // `a < col < b` and `x and y` would silently drop a condition.
        Err(PyTypeError::new_err("a filter has no truth value: join filters with &, each in parentheses"))
    }
}

impl Term {
    fn clone_ref(&self, py: Python<'_>) -> Term {
        let condition = match &self.condition {
            Condition::Compare(comparison, value) => Condition::Compare(*comparison, value.clone_ref(py)),
            Condition::In(values) => Condition::In(values.iter().map(|value| value.clone_ref(py)).collect()),
            Condition::IsNull => Condition::IsNull,
            Condition::IsNotNull => Condition::IsNotNull,
        };
        Term { column: self.column.clone(), condition }
    }

    fn predicate(&self, py: Python<'_>, column: &ColumnSchema) -> PyResult<SimplifiedPredicate> {
        let kind = match &self.condition {
            Condition::Compare(comparison, value) => {
                return Ok(compare(column, *comparison, cell(value.bind(py), column)?));
            }
            Condition::In(values) if values.is_empty() => return Ok(SimplifiedPredicate::Nothing),
            Condition::In(values) => {
                let cells = values.iter().map(|value| cell(value.bind(py), column));
                PredicateKind::in_list(column.ty, cells.collect::<PyResult<_>>()?)
            }
            Condition::IsNull => PredicateKind::IsNull,
            Condition::IsNotNull => PredicateKind::IsNotNull,
        };
        Ok(SimplifiedPredicate::Predicate(Predicate::new(column.id, kind)))
    }
}

fn cell(value: &Bound<'_, PyAny>, column: &ColumnSchema) -> PyResult<Vec<u8>> {
    let mut cell = Vec::new();
    match encode(value, column, &mut cell)? {
        true => Ok(cell),
        false => Err(mismatch(&column.name, "None compares with nothing; use is_null() or is_not_null()")),
    }
}

/// Returns the predicates of a filter on a table; `None` if no row can satisfy it.
pub(crate) fn predicates(
    py: Python<'_>,
    table: &nyala_client::Table,
    filter: &Filter,
) -> PyResult<Option<Vec<Predicate>>> {
    let mut predicates = Vec::new();
    for term in &filter.terms {
        let column = definitions::find(table.schema(), &term.column, table.name()).map_err(raised_from)?;
        match term.predicate(py, column)? {
            SimplifiedPredicate::Predicate(predicate) => predicates.push(predicate),
            SimplifiedPredicate::Nothing => return Ok(None),
        }
    }
    Ok(Some(predicates))
}
