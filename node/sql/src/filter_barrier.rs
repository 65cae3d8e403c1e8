//! Barriers against filters that DataFusion would pass on to the wrong column.
//!
//! ```text
//!   HashJoinExec: order_id = o.id      its filter on o.id …
//!     FilterBarrierExec                … ends here; one on o.customer_id passes
//!       HashJoinExec                   looks for "id" in its input
//!         HashJoinExec                 has c.id and o.id, and the filter would be on c.id
//! ```
//!
//! A plan that passes a filter on to its input looks the columns up by name (`FilterRemapper` of DataFusion 55). Where
//! a name is not enough, the filter of one column reaches another, and the servers leave out rows of the result.
//! While filters are pushed down, such plans are below a barrier, which is removed after it. A barrier stops filters of
//! ambiguous names. A filter that such a plan makes itself is passed on as it is, and stays.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::Schema as ArrowSchema;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinType, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::filter_pushdown::{
    ChildFilterDescription, FilterDescription, FilterPushdownPhase,
};
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

/// Beginning of the names of DataFusion's rules that push filters down.
const PUSHDOWN: &str = "FilterPushdown";

/// Rule of the optimizer of physical plans.
pub(crate) type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// Returns DataFusion's rules, with barriers in those that push filters down.
pub(crate) fn rules() -> Vec<Rule> {
    let guarded = |rule: Rule| -> Rule {
        match rule.name().starts_with(PUSHDOWN) {
            true => Arc::new(GuardedPushdown(rule)),
            false => rule,
        }
    };
    PhysicalOptimizer::new().rules.into_iter().map(guarded).collect()
}

/// Rule that pushes filters down, with barriers.
#[derive(Debug)]
struct GuardedPushdown(Rule);

impl PhysicalOptimizerRule for GuardedPushdown {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let pushed = self.0.optimize(with_barriers(plan)?, config)?;
        without_barriers(pushed)
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }
}

fn with_barriers(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let guard = |node: Arc<dyn ExecutionPlan>| {
        let ambiguous = ambiguous_names(&node);
        Ok(match ambiguous.is_empty() {
            true => Transformed::no(node),
            false => {
                let barrier = FilterBarrierExec { input: node, ambiguous };
                Transformed::yes(Arc::new(barrier) as Arc<dyn ExecutionPlan>)
            }
        })
    };
    plan.transform_up(guard).data()
}

fn without_barriers(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let remove = |node: Arc<dyn ExecutionPlan>| {
        let input = node.downcast_ref::<FilterBarrierExec>().map(|barrier| barrier.input.clone());
        Ok(input.map_or_else(|| Transformed::no(node), Transformed::yes))
    };
    plan.transform_up(remove).data()
}

/// Returns the names of columns by which a plan may pass a filter of one column on as that of another.
fn ambiguous_names(plan: &Arc<dyn ExecutionPlan>) -> BTreeSet<String> {
    if plan.downcast_ref::<ProjectionExec>().is_some() {
        // It looks for names in its own columns.
        return equal_names(&plan.schema());
    }
    let mut names: BTreeSet<String> =
        plan.children().into_iter().flat_map(|input| equal_names(&input.schema())).collect();
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        names.extend(names_of_groups(aggregate));
    } else if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        names.extend(names_of_keys(join));
    }
    names
}

/// Returns the names that several columns have.
fn equal_names(schema: &ArrowSchema) -> BTreeSet<String> {
    let mut counts: BTreeMap<&String, usize> = BTreeMap::new();
    for field in schema.fields() {
        *counts.entry(field.name()).or_default() += 1;
    }
    counts.into_iter().filter(|(_, count)| *count > 1).map(|(name, _)| name.clone()).collect()
}

/// Returns true if `schema` has a column of this name, and `expr` is not that column.
fn is_other_column(schema: &ArrowSchema, name: &str, expr: &Arc<dyn PhysicalExpr>) -> bool {
    let column = expr.downcast_ref::<Column>();
    schema
        .column_with_name(name)
        .is_some_and(|(index, _)| column.is_none_or(|column| column.index() != index))
}

/// Returns the names of groups that are names of columns of the input, too, which the groups are not.
fn names_of_groups(aggregate: &AggregateExec) -> Vec<String> {
    let input = aggregate.input().schema();
    let groups = aggregate.group_expr().expr().iter();
    groups
        .filter(|(group, name)| is_other_column(&input, name, group))
        .map(|(_, name)| name.clone())
        .collect()
}

/// Returns the names of the keys of a semi join that other columns of the other side have. Such a join passes a filter
/// on its key on to both sides.
fn names_of_keys(join: &HashJoinExec) -> Vec<String> {
    let ambiguous = |key: &Arc<dyn PhysicalExpr>, other: &Arc<dyn PhysicalExpr>, side: &ArrowSchema| {
        let name = key.downcast_ref::<Column>()?.name();
        is_other_column(side, name, other).then(|| name.to_string())
    };
    let name = |(left, right): &(Arc<dyn PhysicalExpr>, Arc<dyn PhysicalExpr>)| match join.join_type() {
        JoinType::LeftSemi => ambiguous(left, right, &join.right().schema()),
        JoinType::RightSemi => ambiguous(right, left, &join.left().schema()),
        _ => None,
    };
    join.on().iter().filter_map(name).collect()
}

/// Plan that passes on rows, and filters of columns whose names are clear.
#[derive(Debug)]
struct FilterBarrierExec {
    input: Arc<dyn ExecutionPlan>,
    /// Names of columns whose filters end here.
    ambiguous: BTreeSet<String>,
}

impl DisplayAs for FilterBarrierExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FilterBarrierExec")
    }
}

impl ExecutionPlan for FilterBarrierExec {
    fn name(&self) -> &str {
        "FilterBarrierExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match children.pop() {
            Some(input) => Ok(Arc::new(FilterBarrierExec { input, ambiguous: self.ambiguous.clone() })),
            None => Ok(self),
        }
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn gather_filters_for_pushdown(
        &self,
        _: FilterPushdownPhase,
        filters: Vec<Arc<dyn PhysicalExpr>>,
        _: &ConfigOptions,
    ) -> Result<FilterDescription> {
        let schema = self.input.schema();
        // The names of the input's own columns are looked up, too.
        let equal = equal_names(&schema);
        let is_clear = |name: &String| !self.ambiguous.contains(name) && !equal.contains(name);
        let columns = schema.fields().iter().enumerate();
        let clear = columns.filter(|(_, field)| is_clear(field.name())).map(|(at, _)| at).collect();
        let passed = ChildFilterDescription::from_child_with_allowed_indices(&filters, clear, &self.input)?;
        Ok(FilterDescription::new().with_child(passed))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use datafusion::arrow::datatypes::{DataType as ArrowType, Field};
    use datafusion::common::NullEquality;
    use datafusion::physical_expr::EquivalenceProperties;
    use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
    use datafusion::physical_plan::filter_pushdown::{ChildPushdownResult, FilterPushdownPropagation};
    use datafusion::physical_plan::joins::PartitionMode;
    use datafusion::physical_plan::{Partitioning, displayable};

    use super::*;

    type Plan = Arc<dyn ExecutionPlan>;

    /// Tables of a test, with the filters that reached them.
    #[derive(Debug, Clone, Default)]
    struct Tables(Arc<Mutex<Vec<String>>>);

    impl Tables {
        fn scan(&self, name: &'static str, columns: &[&str]) -> Plan {
            let fields: Vec<Field> =
                columns.iter().map(|column| Field::new(*column, ArrowType::Int64, false)).collect();
            let properties = PlanProperties::new(
                EquivalenceProperties::new(Arc::new(ArrowSchema::new(fields))),
                Partitioning::UnknownPartitioning(1),
                EmissionType::Incremental,
                Boundedness::Bounded,
            );
            Arc::new(ScanExec { name, tables: self.clone(), properties: Arc::new(properties) })
        }

        /// Pushes the filters of joins down. Returns the columns of those that reached each table.
        fn pushed(&self, rules: Vec<Rule>, plan: &Plan) -> Vec<String> {
            self.0.lock().expect("no panic").clear();
            let post = rules.into_iter().find(|rule| rule.name() == "FilterPushdown(Post)");
            let post = post.expect("DataFusion's rule for dynamic filters");
            let plan = post.optimize(plan.clone(), &ConfigOptions::new()).expect("a plan");
            assert!(!displayable(plan.as_ref()).indent(true).to_string().contains("FilterBarrierExec"));
            std::mem::take(&mut *self.0.lock().expect("no panic"))
        }
    }

    #[derive(Debug)]
    struct ScanExec {
        name: &'static str,
        tables: Tables,
        properties: Arc<PlanProperties>,
    }

    impl DisplayAs for ScanExec {
        fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.name)
        }
    }

    impl ExecutionPlan for ScanExec {
        fn name(&self) -> &str {
            self.name
        }

        fn properties(&self) -> &Arc<PlanProperties> {
            &self.properties
        }

        fn children(&self) -> Vec<&Plan> {
            Vec::new()
        }

        fn with_new_children(self: Arc<Self>, _: Vec<Plan>) -> Result<Plan> {
            Ok(self)
        }

        fn apply_expressions(
            &self,
            _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
        ) -> Result<TreeNodeRecursion> {
            Ok(TreeNodeRecursion::Continue)
        }

        fn handle_child_pushdown_result(
            &self,
            _: FilterPushdownPhase,
            result: ChildPushdownResult,
            _: &ConfigOptions,
        ) -> Result<FilterPushdownPropagation<Plan>> {
            let columns = result.parent_filters.iter().flat_map(|parent| parent.filter.children());
            let columns: Vec<String> = columns.map(ToString::to_string).collect();
            let found = format!("{}: {}", self.name, columns.join(", "));
            self.tables.0.lock().expect("no panic").push(found);
            Ok(FilterPushdownPropagation::all_unsupported(result))
        }

        fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
            panic!("the plans of these tests do not run")
        }
    }

    fn column(plan: &Plan, index: usize) -> Arc<dyn PhysicalExpr> {
        Arc::new(Column::new(plan.schema().field(index).name(), index))
    }

    /// Joins two plans on a column of each, as `FROM left JOIN right`.
    fn join(left: &Plan, right: &Plan, keys: (usize, usize), ty: JoinType) -> Plan {
        let on = vec![(column(left, keys.0), column(right, keys.1))];
        let (mode, nulls) = (PartitionMode::CollectLeft, NullEquality::NullEqualsNothing);
        let joined =
            HashJoinExec::try_new(left.clone(), right.clone(), on, None, &ty, None, mode, nulls, false);
        Arc::new(joined.expect("keys of one type"))
    }

    #[test]
    fn all_rules_that_push_filters_down_have_barriers() {
        let guarded = rules().into_iter().filter(|rule| format!("{rule:?}").starts_with("GuardedPushdown"));
        let names: Vec<String> = guarded.map(|rule| rule.name().to_string()).collect();
        assert_eq!(names, ["FilterPushdown", "FilterPushdown(Post)"]);
    }

    #[test]
    fn a_filter_of_one_id_does_not_reach_the_other() {
        let tables = Tables::default();
        let (customers, orders) = (tables.scan("c", &["id"]), tables.scan("o", &["id", "customer_id"]));
        let (payments, vips) = (tables.scan("p", &["order_id"]), tables.scan("v", &["order_id"]));
        let ordered = join(&customers, &orders, (0, 1), JoinType::Inner);
        let paid = join(&payments, &ordered, (0, 1), JoinType::Inner);
        let plan = join(&vips, &paid, (0, 2), JoinType::Inner);
        assert_eq!(tables.pushed(rules(), &plan), ["v: ", "p: ", "c: ", "o: customer_id@1, id@0"]);
        // DataFusion's own rule passes the ids of orders on to the customers. If not, the barriers can go.
        let alone = PhysicalOptimizer::new().rules;
        assert_eq!(tables.pushed(alone, &plan), ["v: ", "p: ", "c: id@0", "o: customer_id@1, id@0"]);
        // The name of another column is clear.
        let plan = join(&vips, &paid, (0, 3), JoinType::Inner);
        let found = tables.pushed(rules(), &plan);
        assert_eq!(found, ["v: ", "p: ", "c: ", "o: customer_id@1, id@0, customer_id@1"]);
    }

    #[test]
    fn a_filter_reaches_its_column_where_the_names_are_clear() {
        let tables = Tables::default();
        let (customers, orders) = (tables.scan("c", &["id"]), tables.scan("o", &["id", "customer_id"]));
        let vips = tables.scan("v", &["order_id"]);
        let two = join(&customers, &orders, (0, 1), JoinType::Inner);
        assert_eq!(tables.pushed(rules(), &two), ["c: ", "o: customer_id@1"]);
        // The names of the inner join's own inputs are clear.
        let three = join(&vips, &two, (0, 1), JoinType::Inner);
        assert_eq!(tables.pushed(rules(), &three), ["v: ", "c: ", "o: customer_id@1, id@0"]);
    }

    #[test]
    fn a_semi_join_passes_filters_on_to_its_keys_only() {
        let tables = Tables::default();
        let (orders, payments) = (tables.scan("o", &["id"]), tables.scan("p", &["order_id", "id"]));
        let vips = tables.scan("v", &["order_id"]);
        let paid = join(&orders, &payments, (0, 0), JoinType::LeftSemi);
        let plan = join(&vips, &paid, (0, 0), JoinType::Inner);
        assert_eq!(tables.pushed(rules(), &plan), ["v: ", "o: ", "p: order_id@0"]);
        let keys = tables.scan("k", &["id"]);
        let paid = join(&orders, &keys, (0, 0), JoinType::LeftSemi);
        let plan = join(&vips, &paid, (0, 0), JoinType::Inner);
        assert_eq!(tables.pushed(rules(), &plan), ["v: ", "o: id@0", "k: id@0, id@0"]);
    }

    #[test]
    fn a_projection_with_a_name_twice_gets_no_filter() {
        let tables = Tables::default();
        let (orders, vips) = (tables.scan("o", &["id", "customer_id"]), tables.scan("v", &["order_id"]));
        let named = |second: &str| -> Plan {
            let columns = [(column(&orders, 0), "id".to_string()), (column(&orders, 1), second.to_string())];
            Arc::new(ProjectionExec::try_new(columns, orders.clone()).expect("columns of the input"))
        };
        let plan = join(&vips, &named("customer"), (0, 1), JoinType::Inner);
        assert_eq!(tables.pushed(rules(), &plan), ["v: ", "o: customer_id@1"]);
        let plan = join(&vips, &named("id"), (0, 0), JoinType::Inner);
        assert_eq!(tables.pushed(rules(), &plan), ["v: ", "o: "]);
    }
}
