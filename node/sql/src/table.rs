//! A table as DataFusion's planner sees it.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::Result;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use engine::schema::partition_range::PartitionRange;
use nyala_client::{ReadMode, ScanSpec, ScanToken, Table};

use super::error::{SqlError, external};
use super::filter::{Translated, translate};
use super::scan::{TabletScan, TabletScanExec};
use super::snapshot::Snapshot;

/// Estimated number of rows for each that satisfies a predicate, as DataFusion has it for its filters.
const PREDICATE_SELECTS_ONE_OF: usize = 5;

/// A table opened for one statement.
pub(crate) struct SqlTable {
    table: Table,
    schema: SchemaRef,
    snapshot: Arc<Snapshot>,
    fault_tolerant: bool,
}

impl std::fmt::Debug for SqlTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SqlTable({})", self.table.name())
    }
}

impl SqlTable {
    pub(crate) fn new(table: Table, snapshot: Arc<Snapshot>, fault_tolerant: bool) -> SqlTable {
        let schema = nyala_client::arrow::arrow_schema(table.schema().columns());
        SqlTable { table, schema, snapshot, fault_tolerant }
    }

    /// Estimates the rows of a scan from the master's count, which is some seconds old. `None` if there is none: the
    /// count of a table that was just loaded is 0.
    async fn estimate(&self, predicates: usize, limit: Option<usize>) -> Option<usize> {
        let statistics = self.table.client().table_statistics(self.table.name()).await.ok()?;
        let rows = usize::try_from(statistics.live_rows?).ok().filter(|rows| *rows > 0)?;
        let selected = (0..predicates).fold(rows, |rows, _| rows.div_ceil(PREDICATE_SELECTS_ONE_OF));
        Some(limit.map_or(selected, |limit| limit.min(selected)))
    }
}

#[async_trait]
impl TableProvider for SqlTable {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let support = |filter: &&Expr| match translate(filter, self.table.schema()) {
            Some(_) => TableProviderFilterPushDown::Exact,
            None => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(support).collect())
    }

    async fn scan(
        &self,
        _state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let failed = |error| external(self.table.name(), error);
        let schema = match projection {
            None => self.schema.clone(),
            Some(indices) => Arc::new(self.schema.project(indices)?),
        };
        let timestamp = self.snapshot.timestamp(&self.table).await?;
        let mut spec = ScanSpec {
            columns: Some(schema.fields().iter().map(|field| field.name().clone()).collect()),
            limit: limit.map(|rows| rows as u64),
            read_mode: ReadMode::AtSnapshot(timestamp),
            fault_tolerant: self.fault_tolerant,
            ..ScanSpec::default()
        };
        let mut is_empty = timestamp.is_none();
        for filter in filters {
            match translate(filter, self.table.schema()) {
                Some(Translated::Predicates(predicates)) => spec.predicates.extend(predicates),
                Some(Translated::Nothing) => is_empty = true,
                None => {
                    return Err(external(
                        self.table.name(),
                        SqlError::new(format!("cannot push down {filter}")),
                    ));
                }
            }
        }
        let tokens = match is_empty {
            true => Vec::new(),
            false => self.table.scan_tokens(&spec).await.map_err(failed)?,
        };
        let range = |token: &ScanToken| {
            let partition = &token.tablet().partition;
            PartitionRange { lower: partition.start.clone(), upper: partition.end.clone() }
        };
        let scan = TabletScan {
            table: self.table.clone(),
            tablets: tokens.iter().map(range).collect(),
            filters: filters.iter().map(ToString::to_string).collect(),
            rows: self.estimate(spec.predicates.len(), limit).await,
            spec,
        };
        Ok(Arc::new(TabletScanExec::new(scan, schema)))
    }
}
