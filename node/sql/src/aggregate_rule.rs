//! Optimizer rule that gives partial aggregations to the tablet servers.
//!
//! ```text
//!   AggregateExec: mode=Final              AggregateExec: mode=Final
//!     AggregateExec: mode=Partial    ─▶      TabletAggregateExec
//!       TabletScanExec
//! ```
//!
//! An aggregation of one tablet may be one `AggregateExec: mode=Single`, and becomes the same two.
//!
//! - All filters are in the scan: a filter that DataFusion evaluates is a plan between the two.
//! - Groups are columns; aggregates are functions of columns that the client has, without DISTINCT, FILTER and
//!   ORDER BY. A cast that SUM and AVG put around an integer is part of the function.
//! - A key makes a group of each row. Groups that contain it stay here: they would be more bytes than the rows.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{CastExpr, Column, Literal};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, Partitioning};
use nyala_client::{AggregationSpec, ColumnAggregate, ScanSpec};

use super::aggregate::{TabletAggregateExec, is_convertible};
use super::checked_sum::CHECKED_SUM;
use super::filter_barrier::Rule;
use super::scan::{TabletScan, TabletScanExec};

/// The rule after which the last plan is checked.
const LAST_RULE: &str = "SanityCheckPlan";

#[derive(Debug)]
struct AggregateOnServers;

/// Adds this rule to the others.
pub(crate) fn add(rules: &mut Vec<Rule>) {
    let at = rules.iter().position(|rule| rule.name() == LAST_RULE).unwrap_or(rules.len());
    rules.insert(at, Arc::new(AggregateOnServers));
}

impl PhysicalOptimizerRule for AggregateOnServers {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let replace = |node: Arc<dyn ExecutionPlan>| {
            let replaced = node.downcast_ref::<AggregateExec>().map(replacement).transpose()?.flatten();
            Ok(replaced.map_or_else(|| Transformed::no(node), Transformed::yes))
        };
        plan.transform_up(replace).data()
    }

    fn name(&self) -> &str {
        "AggregateOnServers"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Returns the plan that replaces an aggregation; `None` if it stays.
fn replacement(aggregate: &AggregateExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(exec) = scan_below(aggregate.input()) else { return Ok(None) };
    let Some(scan) = aggregating(aggregate, exec.scan()) else { return Ok(None) };
    // Without groups, a filter that is found while the plan runs is the aggregation's own.
    let late = match aggregate.group_expr().is_empty() {
        true => Vec::new(),
        false => exec.late().to_vec(),
    };
    let of_rows = Arc::new(with_mode(aggregate, AggregateMode::Partial, Arc::new(exec.clone()))?);
    if !has_states(&scan, of_rows.schema()) {
        return Ok(None);
    }
    let partial = Arc::new(TabletAggregateExec::new(scan, late, of_rows));
    Ok(match aggregate.mode() {
        AggregateMode::Partial => Some(partial),
        AggregateMode::Single | AggregateMode::SinglePartitioned => {
            Some(Arc::new(with_mode(aggregate, AggregateMode::Final, partial)?))
        }
        _ => None,
    })
}

/// Returns the same aggregation in another mode.
fn with_mode(
    aggregate: &AggregateExec,
    mode: AggregateMode,
    input: Arc<dyn ExecutionPlan>,
) -> Result<AggregateExec> {
    let groups = match mode {
        AggregateMode::Final => aggregate.group_expr().as_final(),
        _ => aggregate.group_expr().clone(),
    };
    let (aggregates, filters) = (aggregate.aggr_expr().to_vec(), aggregate.filter_expr().to_vec());
    AggregateExec::try_new(mode, groups, aggregates, filters, input, aggregate.input_schema())
}

/// Returns the scan whose rows a plan passes on.
fn scan_below(plan: &Arc<dyn ExecutionPlan>) -> Option<&TabletScanExec> {
    if let Some(cooperative) = plan.downcast_ref::<CooperativeExec>() {
        return scan_below(cooperative.input());
    }
    match plan.downcast_ref::<RepartitionExec>() {
        Some(spread) if matches!(spread.partitioning(), Partitioning::RoundRobinBatch(_)) => {
            scan_below(spread.input())
        }
        _ => plan.downcast_ref::<TabletScanExec>(),
    }
}

/// Returns the scan with the aggregation; `None` if a part of it is not for the servers.
fn aggregating(aggregate: &AggregateExec, scan: &TabletScan) -> Option<TabletScan> {
    let is_merged_here = match aggregate.mode() {
        AggregateMode::Partial => true,
        AggregateMode::Single | AggregateMode::SinglePartitioned => {
            scan.tablets.len() <= 1 && aggregate.limit_options().is_none()
        }
        _ => false,
    };
    let groups = aggregate.group_expr();
    let has_filter = aggregate.filter_expr().iter().any(Option::is_some);
    if !is_merged_here || groups.has_grouping_set() || has_filter || scan.spec.limit.is_some() {
        return None;
    }
    let group_by = groups.expr().iter().map(|(group, _)| column_name(group));
    let group_by = group_by.collect::<Option<Vec<String>>>()?;
    let keys = scan.table.schema().key_columns();
    if keys.iter().all(|key| group_by.contains(&key.name)) {
        return None;
    }
    let mut aggregates = Vec::new();
    for function in aggregate.aggr_expr() {
        aggregates.extend(states_of(function, &aggregate.input_schema())?);
    }
    let aggregation = Some(AggregationSpec { group_by, aggregates });
    let spec = ScanSpec { columns: None, aggregation, ..scan.spec.clone() };
    Some(TabletScan { spec, ..scan.clone() })
}

/// Returns true if the servers' results can be the states of a partial aggregation. The client knows their types, and
/// refuses what no server has.
fn has_states(scan: &TabletScan, states: SchemaRef) -> bool {
    let Ok(scanner) = scan.table.scan(scan.spec.clone()) else { return false };
    let results = scanner.schema().fields();
    let pairs = results.iter().zip(states.fields());
    results.len() == states.fields().len()
        && pairs.into_iter().all(|(result, state)| is_convertible(result.data_type(), state.data_type()))
}

fn column_name(expr: &Arc<dyn PhysicalExpr>) -> Option<String> {
    expr.downcast_ref::<Column>().map(|column| column.name().to_string())
}

/// Returns what servers compute for the states of a function, in their order; `None` if they cannot.
fn states_of(function: &AggregateFunctionExpr, input: &SchemaRef) -> Option<Vec<ColumnAggregate>> {
    let is_plain = !function.is_distinct() && function.order_bys().is_empty() && !function.ignore_nulls();
    let arguments = function.expressions();
    let [argument] = &arguments[..] else { return None };
    if !is_plain {
        return None;
    }
    let name = function.fun().name();
    if let Some(literal) = argument.downcast_ref::<Literal>() {
        let counts_rows = name == "count" && !literal.value().is_null();
        return counts_rows.then(|| vec![ColumnAggregate::count_rows()]);
    }
    Some(match name {
        "count" => vec![ColumnAggregate::count(&column_name(argument)?)],
        "min" => vec![ColumnAggregate::min(&column_name(argument)?)],
        "max" => vec![ColumnAggregate::max(&column_name(argument)?)],
        "sum" | CHECKED_SUM => vec![sum(argument, input)?.1],
        "avg" => {
            let (column, sum) = sum(argument, input)?;
            vec![ColumnAggregate::count(&column), sum]
        }
        _ => return None,
    })
}

/// Returns the column of a sum and the sum, of the column itself or of its cast to the type of the sum.
fn sum(argument: &Arc<dyn PhysicalExpr>, input: &SchemaRef) -> Option<(String, ColumnAggregate)> {
    let Some(cast) = argument.downcast_ref::<CastExpr>() else {
        let column = column_name(argument)?;
        let sum = ColumnAggregate::sum(&column);
        return Some((column, sum));
    };
    let column = column_name(cast.expr())?;
    let from = input.field_with_name(&column).ok()?.data_type();
    let sum = match cast.cast_type() {
        DataType::Int64 if from.is_signed_integer() => ColumnAggregate::sum(&column),
        DataType::Float64 if from.is_signed_integer() || matches!(from, DataType::Float32) => {
            ColumnAggregate::sum_as_double(&column)
        }
        _ => return None,
    };
    Some((column, sum))
}
