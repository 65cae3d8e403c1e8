//! Scan of a table as a physical plan: one partition per tablet.
//!
//! A partition opens its scanner when its first batch is asked for. Predicates that other parts of the plan have found
//! until then, such as the keys of a join's smaller side, go to the server with it.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::DynamicFilterPhysicalExpr;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::filter_pushdown::{
    ChildPushdownResult, FilterPushdownPhase, FilterPushdownPropagation,
};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties};
use engine::schema::partition_range::PartitionRange;
use futures_util::stream;
use nyala_client::{ScanSpec, Scanner, Table};

use super::error::external;
use super::late::late_predicates;

/// Description of a scan that the servers evaluate.
#[derive(Clone)]
pub(crate) struct TabletScan {
    pub(crate) table: Table,
    pub(crate) spec: ScanSpec,
    /// Partition keys of each tablet that may hold matching rows.
    pub(crate) tablets: Vec<PartitionRange>,
    /// Filters that `spec` contains, as text.
    pub(crate) filters: Vec<String>,
    /// Estimated number of rows.
    pub(crate) rows: Option<usize>,
}

impl TabletScan {
    /// Writes the filters, those that are found while the plan runs too, and the limit.
    pub(crate) fn fmt_filters(
        &self,
        late: &[Arc<dyn PhysicalExpr>],
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        if !self.filters.is_empty() {
            write!(f, ", filters=[{}]", self.filters.join(", "))?;
        }
        if !late.is_empty() {
            let late: Vec<String> = late.iter().map(ToString::to_string).collect();
            write!(f, ", late filters=[{}]", late.join(", "))?;
        }
        self.spec.limit.map_or(Ok(()), |limit| write!(f, ", limit={limit}"))
    }
}

/// Physical plan of a [`TabletScan`].
#[derive(Clone)]
pub(crate) struct TabletScanExec {
    scan: TabletScan,
    /// Filters whose values are found while the plan runs.
    late: Vec<Arc<dyn PhysicalExpr>>,
    properties: Arc<PlanProperties>,
}

impl TabletScanExec {
    pub(crate) fn new(scan: TabletScan, schema: SchemaRef) -> TabletScanExec {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(scan.tablets.len().max(1)),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        TabletScanExec { scan, late: Vec::new(), properties: Arc::new(properties) }
    }

    pub(crate) fn scan(&self) -> &TabletScan {
        &self.scan
    }

    pub(crate) fn late(&self) -> &[Arc<dyn PhysicalExpr>] {
        &self.late
    }
}

/// Opens the scanner of a partition, with the predicates that are known by now. `None` if no row can satisfy them.
pub(crate) fn open(
    scan: TabletScan,
    partitions: PartitionRange,
    late: &[Arc<dyn PhysicalExpr>],
) -> engine::error::Result<Option<Box<Scanner>>> {
    let mut spec = ScanSpec { partitions, ..scan.spec };
    let Some(predicates) = late_predicates(late, scan.table.schema()) else { return Ok(None) };
    spec.predicates.extend(predicates);
    Ok(Some(Box::new(scan.table.scan(spec)?)))
}

/// Progress of a partition.
enum PartitionState {
    Unopened(Box<TabletScan>, PartitionRange, Vec<Arc<dyn PhysicalExpr>>),
    Open(Box<Scanner>),
}

impl PartitionState {
    fn open(self) -> engine::error::Result<Option<Box<Scanner>>> {
        match self {
            PartitionState::Open(scanner) => Ok(Some(scanner)),
            PartitionState::Unopened(scan, partitions, late) => open(*scan, partitions, &late),
        }
    }
}

/// Visits expressions until a visit asks to stop.
pub(crate) fn visit_all(
    expressions: &[Arc<dyn PhysicalExpr>],
    visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
) -> Result<TreeNodeRecursion> {
    for expression in expressions {
        if visit(expression)? == TreeNodeRecursion::Stop {
            return Ok(TreeNodeRecursion::Stop);
        }
    }
    Ok(TreeNodeRecursion::Continue)
}

impl fmt::Debug for TabletScanExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as(DisplayFormatType::Verbose, f)
    }
}

impl DisplayAs for TabletScanExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schema = self.schema();
        let columns: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        let (table, tablets) = (self.scan.table.name(), self.scan.tablets.len());
        write!(f, "TabletScanExec: table={table}, tablets={tablets}, columns=[{}]", columns.join(", "))?;
        self.scan.fmt_filters(&self.late, f)
    }
}

impl ExecutionPlan for TabletScanExec {
    fn name(&self) -> &str {
        "TabletScanExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn with_new_children(
        self: Arc<Self>,
        _children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        visit_all(&self.late, visit)
    }

    /// Keeps the dynamic filters. They only drop rows that the plan does not need, so that applying a part of one, or
    /// none, is right; the others are answered "no", and their owners evaluate them.
    fn handle_child_pushdown_result(
        &self,
        phase: FilterPushdownPhase,
        result: ChildPushdownResult,
        _config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        let filters = result.parent_filters.iter().map(|parent| &parent.filter);
        let is_dynamic =
            |filter: &&Arc<dyn PhysicalExpr>| filter.downcast_ref::<DynamicFilterPhysicalExpr>().is_some();
        let late: Vec<Arc<dyn PhysicalExpr>> = filters.filter(is_dynamic).cloned().collect();
        let mut answer: FilterPushdownPropagation<Arc<dyn ExecutionPlan>> =
            FilterPushdownPropagation::all_unsupported(result);
        if matches!(phase, FilterPushdownPhase::Post) && !late.is_empty() {
            let mut node = self.clone();
            node.late.extend(late);
            answer.updated_node = Some(Arc::new(node));
        }
        Ok(answer)
    }

    fn statistics_from_inputs(
        &self,
        _: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        let mut statistics = Statistics::new_unknown(&self.schema());
        if let Some(rows) = self.scan.rows {
            let rows = match args.partition() {
                None => rows,
                Some(_) => rows / self.scan.tablets.len().max(1),
            };
            statistics.num_rows = Precision::Inexact(rows);
            statistics.calculate_total_byte_size(&self.schema());
        }
        Ok(Arc::new(statistics))
    }

    fn execute(&self, partition: usize, _context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let table = self.scan.table.name().to_string();
        let tablet = self.scan.tablets.get(partition).cloned();
        let unopened =
            |tablet| PartitionState::Unopened(Box::new(self.scan.clone()), tablet, self.late.clone());
        let batches = stream::try_unfold((tablet.map(unopened), table), |(state, table)| async move {
            let scanner =
                state.map(PartitionState::open).transpose().map_err(|error| external(&table, error))?;
            let Some(mut scanner) = scanner.flatten() else { return Ok(None) };
            let batch = scanner.next_batch().await.map_err(|error| external(&table, error))?;
            Ok(batch.map(|batch| (batch, (Some(PartitionState::Open(scanner)), table))))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), batches)))
    }
}
