//! Tables of the cluster, opened for a statement.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::{CatalogProvider, SchemaProvider, TableProvider};
use datafusion::common::{DataFusionError, Result};
use nyala_client::{Client, ErrorKind};
use nyala_common::nearest::did_you_mean;

use super::error::{SqlError, external, state};
use super::pg_catalog::{PG_CATALOG, PgCatalog};
use super::snapshot::{ReadOptions, Snapshot};
use super::table::SqlTable;

/// The only schema of the catalog, for one statement.
pub(crate) struct ClusterSchema {
    client: Client,
    /// Names for the information schema; empty if the statement does not name it.
    names: Vec<String>,
    snapshot: Arc<Snapshot>,
    fault_tolerant: bool,
}

impl std::fmt::Debug for ClusterSchema {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClusterSchema")
    }
}

impl ClusterSchema {
    /// Creates the schema of a statement that reads the tables as `read` says.
    pub(crate) fn new(client: &Client, read: ReadOptions, names: Vec<String>) -> ClusterSchema {
        let (client, snapshot) = (client.clone(), Arc::new(read.snapshot));
        ClusterSchema { client, names, snapshot, fault_tolerant: read.fault_tolerant }
    }

    /// Returns the error for a table that does not exist.
    async fn missing(&self, name: &str) -> DataFusionError {
        let tables = self.client.list_tables(None).await.unwrap_or_default();
        let hint = did_you_mean(tables.iter().map(|table| table.name.as_str()), name);
        let error = SqlError::with_state(state::NO_TABLE, format!("table {name} does not exist{hint}"));
        DataFusionError::External(Box::new(error))
    }
}

#[async_trait]
impl SchemaProvider for ClusterSchema {
    fn table_names(&self) -> Vec<String> {
        self.names.clone()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        match self.client.open_table(name).await {
            Ok(table) => Ok(Some(Arc::new(SqlTable::new(table, self.snapshot.clone(), self.fault_tolerant)))),
            Err(error) if error.kind == ErrorKind::NotFound => Err(self.missing(name).await),
            Err(error) => Err(external(name, error)),
        }
    }

    fn table_exist(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }
}

/// Catalog with one schema, and Postgres's for statements that name it.
#[derive(Debug)]
pub(crate) struct ClusterCatalog {
    pub(crate) schema: Arc<ClusterSchema>,
    pub(crate) pg_catalog: Option<Arc<PgCatalog>>,
}

/// Name of the only catalog.
pub(crate) const CATALOG: &str = "nyala";
/// Name of the only schema of tables.
pub(crate) const SCHEMA: &str = "public";

impl CatalogProvider for ClusterCatalog {
    fn schema_names(&self) -> Vec<String> {
        vec![SCHEMA.to_string()]
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        match (name, &self.pg_catalog) {
            (SCHEMA, _) => Some(self.schema.clone()),
            (PG_CATALOG, Some(pg_catalog)) => Some(pg_catalog.clone()),
            _ => None,
        }
    }
}
