//! Tables of `pg_catalog`, which psql's `\d` and tools ask for, filled for one statement.
//!
//! ```text
//! statement ── rewrite: functions, operators and casts of Postgres in DataFusion's terms
//!           └─ relations: rows about the tables of the cluster, opened if the statement needs their columns
//! ```
//!
//! Object ids are hashes of Kudu's table ids, so that one statement can name what another has found. Types of columns
//! are plain: ids are BIGINT, names and flags TEXT and BOOLEAN, owners are names where Postgres has ids.

mod columns;
mod relations;
mod rewrite;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::{MemTable, SchemaProvider, TableProvider};
use datafusion::common::Result;
use futures_util::{StreamExt, TryStreamExt, stream};
use nyala_client::{Client, ErrorKind, Table};

use super::error::SqlResult;
pub(crate) use columns::PG_CATALOG;
pub(crate) use rewrite::{named_relations, rewrite};

/// Tables that are opened at a time.
const OPEN_MAX: usize = 16;

/// The schema for one statement.
pub(crate) struct PgCatalog {
    relations: BTreeMap<String, Arc<MemTable>>,
}

impl std::fmt::Debug for PgCatalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PgCatalog")
    }
}

impl PgCatalog {
    /// Fills the relations that a statement names.
    pub(crate) async fn load(client: &Client, names: &BTreeSet<String>) -> SqlResult<PgCatalog> {
        let tables = match names.iter().any(|name| relations::describes_tables(name)) {
            true => open_all(client).await?,
            false => Vec::new(),
        };
        let mut relations = BTreeMap::new();
        for name in names {
            if let Some(batch) = relations::relation(name, client, &tables) {
                let batch = batch?;
                let table = MemTable::try_new(batch.schema(), vec![vec![batch]])?;
                relations.insert(name.clone(), Arc::new(table));
            }
        }
        Ok(PgCatalog { relations })
    }
}

async fn open_all(client: &Client) -> SqlResult<Vec<Table>> {
    let names = client.list_tables(None).await?.into_iter().map(|table| table.name);
    let opened = stream::iter(names).map(|name| async move {
        match client.open_table(&name).await {
            Ok(table) => Ok(Some(table)),
            // Dropped since the list was made, or not for this user.
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::NotAuthorized) => Ok(None),
            Err(error) => Err(error),
        }
    });
    let opened: Vec<Option<Table>> = opened.buffered(OPEN_MAX).try_collect().await?;
    Ok(opened.into_iter().flatten().collect())
}

#[async_trait]
impl SchemaProvider for PgCatalog {
    fn table_names(&self) -> Vec<String> {
        self.relations.keys().cloned().collect()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        Ok(self.relations.get(name).map(|table| table.clone() as Arc<dyn TableProvider>))
    }

    fn table_exist(&self, name: &str) -> bool {
        self.relations.contains_key(name)
    }
}
