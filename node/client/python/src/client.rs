//! Connection to a cluster, and its tables.

use std::time::Duration;

use engine::schema::Schema;
use nyala_client::tables::AlterStep;
use nyala_client::{CreateTable, definitions};
use pyo3::prelude::*;

use crate::error::{bad_argument, raised, raised_from};
use crate::table::Table;
use crate::wait::wait;

/// A client of one cluster. All its methods may be called from several threads.
#[pyclass(module = "nyala", frozen)]
pub(crate) struct Client {
    inner: nyala_client::Client,
}

/// Connects to the cluster with these masters.
#[pyfunction]
#[pyo3(signature = (masters, *, user=None, timeout=30.0))]
pub(crate) fn connect(
    py: Python<'_>,
    masters: &Bound<'_, PyAny>,
    user: Option<String>,
    timeout: f64,
) -> PyResult<Client> {
    let masters = match masters.extract::<String>() {
        Ok(text) => definitions::names(&text),
        Err(_) => masters.extract::<Vec<String>>()?,
    };
    let timeout = Duration::try_from_secs_f64(timeout)
        .map_err(|_| bad_argument(format!("timeout={timeout} is not a number of seconds")))?;
    let mut builder =
        nyala_client::Client::builder(masters).connect_timeout(timeout).operation_timeout(timeout);
    if let Some(user) = user {
        builder = builder.user(user);
    }
    let inner = wait(py, builder.connect())?.map_err(raised)?;
    Ok(Client { inner })
}

#[pymethods]
impl Client {
    /// Returns the names of all tables, sorted.
    fn tables(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let tables = wait(py, self.inner.list_tables(None))?.map_err(raised_from)?;
        Ok(tables.into_iter().map(|table| table.name).collect())
    }

    /// Opens a table.
    fn table(&self, py: Python<'_>, name: &str) -> PyResult<Table> {
        let inner = wait(py, self.inner.open_table(name))?.map_err(raised_from)?;
        Ok(Table { inner })
    }

    /// Creates a table and waits until it can be used.
    #[pyo3(signature = (
        name, columns, *, key=None, hash=vec![], range=None, ranges=vec![], replicas=None, owner=None, comment=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn create_table(
        &self,
        py: Python<'_>,
        name: &str,
        columns: Vec<String>,
        key: Option<Vec<String>>,
        hash: Vec<String>,
        range: Option<Vec<String>>,
        ranges: Vec<String>,
        replicas: Option<i32>,
        owner: Option<String>,
        comment: Option<String>,
    ) -> PyResult<Table> {
        let mut create = definition(name, &columns, key, &hash).map_err(raised_from)?;
        match range {
            Some(range) => set_ranges(&mut create, &range, &ranges).map_err(raised_from)?,
            None if !ranges.is_empty() => return Err(bad_argument("ranges needs range, its columns")),
            None => {}
        }
        (create.replicas, create.owner, create.comment) = (replicas, owner, comment);
        let inner = wait(py, self.inner.create_table(&create))?.map_err(raised_from)?;
        Ok(Table { inner })
    }

    /// Drops a table. With `keep_seconds` it can be recalled for that time.
    #[pyo3(signature = (name, *, keep_seconds=0))]
    fn drop_table(&self, py: Python<'_>, name: &str, keep_seconds: u32) -> PyResult<()> {
        wait(py, self.inner.delete_table_later(name, keep_seconds))?.map_err(raised_from)
    }

    /// Alters a table, all changes or none, and returns it as it is then.
    #[pyo3(signature = (
        name, *, add=vec![], drop=vec![], rename=vec![], add_ranges=vec![], drop_ranges=vec![], new_name=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn alter_table(
        &self,
        py: Python<'_>,
        name: &str,
        add: Vec<String>,
        drop: Vec<String>,
        rename: Vec<(String, String)>,
        add_ranges: Vec<String>,
        drop_ranges: Vec<String>,
        new_name: Option<&str>,
    ) -> PyResult<Table> {
        let table = wait(py, self.inner.open_table(name))?.map_err(raised_from)?;
        let steps = columns_changed(&table, &add, drop, rename)
            .and_then(|steps| Ok([steps, ranges_changed(&table, &add_ranges, &drop_ranges)?].concat()))
            .map_err(raised_from)?;
        if steps.is_empty() && new_name.is_none() {
            return Err(bad_argument("no change is given"));
        }
        let inner = wait(py, self.inner.alter_table(&table, &steps, new_name))?.map_err(raised_from)?;
        Ok(Table { inner })
    }
}

fn definition(
    name: &str,
    columns: &[String],
    key: Option<Vec<String>>,
    hash: &[String],
) -> nyala_client::Result<CreateTable> {
    let columns = columns.iter().zip(0..).map(|(text, id)| definitions::column(id, text));
    let columns = columns.collect::<nyala_client::Result<Vec<_>>>()?;
    let first = || columns.first().map(|column| column.name.clone()).into_iter().collect();
    let key: Vec<String> = key.unwrap_or_else(first);
    let leads =
        key.len() <= columns.len() && key.iter().zip(&columns).all(|(key, column)| *key == column.name);
    if !leads {
        return Err(nyala_client::Error::invalid("the columns of the key come first, in the same order"));
    }
    let mut create = CreateTable::new(name, Schema::new(columns, key.len())?);
    for text in hash {
        let (columns, buckets) = definitions::hash(text)?;
        create = create.hash(&columns.iter().map(String::as_str).collect::<Vec<_>>(), buckets)?;
    }
    Ok(create)
}

fn set_ranges(create: &mut CreateTable, range: &[String], ranges: &[String]) -> nyala_client::Result<()> {
    let names: Vec<&str> = range.iter().map(String::as_str).collect();
    *create = create.clone().range(&names)?;
    let find = |name: &&str| definitions::find(&create.schema, name, &create.name).cloned();
    let columns = names.iter().map(find).collect::<nyala_client::Result<Vec<_>>>()?;
    let bounds = ranges.iter().map(|text| definitions::range(text, &columns));
    create.ranges = bounds.collect::<nyala_client::Result<_>>()?;
    Ok(())
}

fn columns_changed(
    table: &nyala_client::Table,
    add: &[String],
    drop: Vec<String>,
    rename: Vec<(String, String)>,
) -> nyala_client::Result<Vec<AlterStep>> {
    let known = |name: &String| definitions::find(table.schema(), name, table.name());
    let mut steps = Vec::new();
    for text in add {
        // The master gives the id.
        steps.push(AlterStep::AddColumn(definitions::column(0, text)?));
    }
    for name in drop {
        known(&name)?;
        steps.push(AlterStep::DropColumn(name));
    }
    for (from, to) in rename {
        known(&from)?;
        steps.push(AlterStep::RenameColumn { from, to });
    }
    Ok(steps)
}

fn ranges_changed(
    table: &nyala_client::Table,
    add: &[String],
    drop: &[String],
) -> nyala_client::Result<Vec<AlterStep>> {
    let ids = &table.partition_schema().range_columns;
    let columns: Vec<_> = ids.iter().filter_map(|id| table.schema().by_id(*id).cloned()).collect();
    if columns.is_empty() && !(add.is_empty() && drop.is_empty()) {
        return Err(nyala_client::Error::invalid(format!("table {} has no range partitions", table.name())));
    }
    let dropped = drop.iter().map(|text| Ok(AlterStep::DropRange(definitions::range(text, &columns)?)));
    let added = add.iter().map(|text| Ok(AlterStep::AddRange(definitions::range(text, &columns)?)));
    dropped.chain(added).collect()
}
