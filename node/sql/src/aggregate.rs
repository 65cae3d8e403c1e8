//! Aggregation by the tablet servers as a physical plan: one partition per tablet.
//!
//! ```text
//!   AggregateExec: mode=Final           merges the states of the groups
//!     TabletAggregateExec               states as a partial AggregateExec has them, from scanners that aggregate
//! ```
//!
//! A server that cannot aggregate, such as one of Apache Kudu, refuses the scan. The partition is then read as rows,
//! and aggregated here.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Decimal128Type, SchemaRef};
use datafusion::common::Result;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties};
use engine::error::ErrorKind;
use engine::schema::partition_range::PartitionRange;
use futures_util::{StreamExt, stream};
use nyala_client::Scanner;

use super::error::external;
use super::scan::{TabletScan, open, visit_all};

/// Physical plan of an aggregation by the servers.
#[derive(Clone)]
pub(crate) struct TabletAggregateExec {
    /// Scan with the aggregation.
    scan: TabletScan,
    late: Vec<Arc<dyn PhysicalExpr>>,
    /// The partial aggregation of the rows, partition by partition.
    of_rows: Arc<AggregateExec>,
    properties: Arc<PlanProperties>,
}

impl TabletAggregateExec {
    /// Creates the plan that replaces a partial aggregation of a scan's rows.
    pub(crate) fn new(
        scan: TabletScan,
        late: Vec<Arc<dyn PhysicalExpr>>,
        of_rows: Arc<AggregateExec>,
    ) -> TabletAggregateExec {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(of_rows.schema()),
            Partitioning::UnknownPartitioning(scan.tablets.len().max(1)),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        TabletAggregateExec { scan, late, of_rows, properties: Arc::new(properties) }
    }
}

/// Returns true if the results of a server can be states of this type.
pub(crate) fn is_convertible(result: &DataType, state: &DataType) -> bool {
    match (result, state) {
        (DataType::Int64, DataType::UInt64 | DataType::Decimal128(_, 0)) => true,
        (DataType::Decimal128(_, scale), DataType::Decimal128(_, wanted)) => scale == wanted,
        _ => result == state,
    }
}

/// Converts results of a server to states. A sum of decimals keeps its digits, whatever the precision of the state.
fn convert(result: &ArrayRef, state: &DataType) -> Result<ArrayRef> {
    Ok(match (result.data_type(), state) {
        (same, wanted) if same == wanted => result.clone(),
        (DataType::Decimal128(..), wanted) => {
            Arc::new(result.as_primitive::<Decimal128Type>().clone().with_data_type(wanted.clone()))
        }
        (_, wanted) => cast(result, wanted)?,
    })
}

fn states(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let columns = batch.columns().iter().zip(schema.fields());
    let columns = columns.map(|(column, field)| convert(column, field.data_type())).collect::<Result<_>>()?;
    Ok(RecordBatch::try_new(schema.clone(), columns)?)
}

/// Source of the states of a partition.
enum StateSource {
    Unopened(PartitionRange),
    Servers { scanner: Box<Scanner>, has_states: bool },
    Rows(SendableRecordBatchStream),
    Ended,
}

/// Progress of a partition.
struct StateReader {
    plan: TabletAggregateExec,
    partition: usize,
    context: Arc<TaskContext>,
    source: StateSource,
}

impl StateReader {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let failed = |error| external(self.plan.scan.table.name(), error);
            match &mut self.source {
                StateSource::Ended => return Ok(None),
                StateSource::Rows(rows) => return rows.next().await.transpose(),
                StateSource::Unopened(tablet) => {
                    let scan = self.plan.scan.clone();
                    let opened = open(scan, tablet.clone(), &self.plan.late).map_err(failed)?;
                    let servers = |scanner| StateSource::Servers { scanner, has_states: false };
                    self.source = opened.map_or(StateSource::Ended, servers);
                }
                StateSource::Servers { scanner, has_states } => match scanner.next_batch().await {
                    Ok(None) => return Ok(None),
                    Ok(Some(batch)) => {
                        *has_states = true;
                        return states(&batch, &self.plan.of_rows.schema()).map(Some);
                    }
                    Err(error) if error.kind == ErrorKind::Unsupported && !*has_states => {
                        let rows = self.plan.of_rows.execute(self.partition, self.context.clone())?;
                        self.source = StateSource::Rows(rows);
                    }
                    Err(error) => return Err(failed(error)),
                },
            }
        }
    }
}

impl fmt::Debug for TabletAggregateExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as(DisplayFormatType::Verbose, f)
    }
}

impl DisplayAs for TabletAggregateExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (table, tablets) = (self.scan.table.name(), self.scan.tablets.len());
        write!(f, "TabletAggregateExec: table={table}, tablets={tablets}")?;
        let aggregates: Vec<&str> =
            self.of_rows.aggr_expr().iter().map(|aggregate| aggregate.name()).collect();
        if let Some(aggregation) =
            self.scan.spec.aggregation.as_ref().filter(|spec| !spec.group_by.is_empty())
        {
            write!(f, ", groups=[{}]", aggregation.group_by.join(", "))?;
        }
        write!(f, ", aggregates=[{}]", aggregates.join(", "))?;
        self.scan.fmt_filters(&self.late, f)
    }
}

impl ExecutionPlan for TabletAggregateExec {
    fn name(&self) -> &str {
        "TabletAggregateExec"
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

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let tablet = self.scan.tablets.get(partition).cloned();
        let source = tablet.map_or(StateSource::Ended, StateSource::Unopened);
        let reader = StateReader { plan: self.clone(), partition, context, source };
        let batches = stream::try_unfold(reader, |mut reader| async move {
            Ok(reader.next().await?.map(|batch| (batch, reader)))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.of_rows.schema(), batches)))
    }
}
