//! Dynamic filters of a running plan as predicates of Kudu's protocol.
//!
//! A join's filter has the values of its smaller side, a top-K's the worst of its rows so far. The plan evaluates the
//! condition itself, so that parts which the protocol cannot express are left out.

use std::sync::Arc;

use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{
    BinaryExpr, Column, DynamicFilterPhysicalExpr, InListExpr, Literal,
};
use engine::schema::Schema;
use engine::schema::predicate::{Predicate, PredicateKind};
use nyala_client::predicate::{SimplifiedPredicate, compare};

use super::filter::{cell, operator};

/// Returns predicates that every row which the filters need satisfies; `None` if there is no such row.
pub(crate) fn late_predicates(filters: &[Arc<dyn PhysicalExpr>], schema: &Schema) -> Option<Vec<Predicate>> {
    let mut predicates = Vec::new();
    for filter in filters {
        let current =
            filter.downcast_ref::<DynamicFilterPhysicalExpr>().and_then(|filter| filter.current().ok());
        if let Some(current) = current
            && !add(&current, schema, &mut predicates)
        {
            return None;
        }
    }
    Some(predicates)
}

/// Adds the predicates of a filter. Returns false if no row can satisfy it.
fn add(filter: &Arc<dyn PhysicalExpr>, schema: &Schema, predicates: &mut Vec<Predicate>) -> bool {
    if let Some(binary) = filter.downcast_ref::<BinaryExpr>() {
        if *binary.op() == Operator::And {
            return add(binary.left(), schema, predicates) && add(binary.right(), schema, predicates);
        }
        return match comparison(binary, schema) {
            Some(SimplifiedPredicate::Predicate(predicate)) => {
                predicates.push(predicate);
                true
            }
            Some(SimplifiedPredicate::Nothing) => false,
            None => true,
        };
    }
    if let Some(list) = filter.downcast_ref::<InListExpr>() {
        predicates.extend(in_list(list, schema));
    }
    true
}

fn comparison(binary: &BinaryExpr, schema: &Schema) -> Option<SimplifiedPredicate> {
    let column = binary.left().downcast_ref::<Column>()?;
    let value = binary.right().downcast_ref::<Literal>()?;
    let column = &schema.columns()[schema.index_of_name(column.name())?];
    Some(compare(column, operator(*binary.op())?, cell(column, value.value())?))
}

fn in_list(list: &InListExpr, schema: &Schema) -> Option<Predicate> {
    let column = list.expr().downcast_ref::<Column>()?;
    let column = &schema.columns()[schema.index_of_name(column.name())?];
    // NULL equals nothing, so that a join's list may have it.
    let literals = list.list().iter().map(|item| Some(item.downcast_ref::<Literal>()?.value()));
    let values = literals.collect::<Option<Vec<_>>>()?;
    let values = values.into_iter().filter(|value| !value.is_null()).map(|value| cell(column, value));
    let cells = values.collect::<Option<Vec<_>>>()?;
    if list.negated() || cells.is_empty() {
        return None;
    }
    Some(Predicate::new(column.id, PredicateKind::in_list(column.ty, cells)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::datatypes::{DataType as ArrowType, Field, Schema as ArrowSchema};
    use datafusion::common::ScalarValue;
    use datafusion::physical_expr::expressions::{in_list, lit};
    use engine::schema::{ColumnSchema, DataType};

    fn expr(expr: impl PhysicalExpr + 'static) -> Arc<dyn PhysicalExpr> {
        Arc::new(expr)
    }

    fn compared(name: &str, index: usize, op: Operator, value: ScalarValue) -> Arc<dyn PhysicalExpr> {
        expr(BinaryExpr::new(expr(Column::new(name, index)), op, lit(value)))
    }

    /// Returns what the servers get for the current value of a dynamic filter.
    fn late(current: Arc<dyn PhysicalExpr>) -> Option<Vec<PredicateKind>> {
        let columns = vec![
            ColumnSchema::new(0, "k", DataType::Int32),
            ColumnSchema::new(1, "s", DataType::String),
            ColumnSchema::new(2, "d", DataType::Double),
        ];
        let schema = Schema::new(columns, 1).expect("a legal schema");
        let children = vec![expr(Column::new("k", 0)), expr(Column::new("s", 1)), expr(Column::new("d", 2))];
        let filter = DynamicFilterPhysicalExpr::new(children, lit(true));
        filter.update(current).expect("a filter of its columns");
        let found = late_predicates(&[expr(filter)], &schema)?;
        Some(found.into_iter().map(|predicate| predicate.kind).collect())
    }

    #[test]
    fn parts_that_the_protocol_cannot_express_are_left_out() {
        let int = |value| ScalarValue::Int32(Some(value));
        let and = |left, right| expr(BinaryExpr::new(left, Operator::And, right));
        let bounds = and(compared("k", 0, Operator::GtEq, int(3)), compared("k", 0, Operator::LtEq, int(9)));
        let cell = |value: i32| Some(value.to_le_bytes().to_vec());
        let range = |lower, upper| PredicateKind::Range { lower, upper };
        assert_eq!(late(bounds.clone()), Some(vec![range(cell(3), None), range(None, cell(10))]));

        let double = compared("d", 2, Operator::Lt, ScalarValue::Float64(Some(1.0)));
        let differs = compared("k", 0, Operator::NotEq, int(5));
        assert_eq!(
            late(and(and(double, differs), bounds)),
            Some(vec![range(cell(3), None), range(None, cell(10))])
        );
        assert_eq!(late(lit(true)), Some(Vec::new()));

        // No INT is above the greatest.
        assert_eq!(late(compared("k", 0, Operator::Gt, int(i32::MAX))), None);
    }

    #[test]
    fn a_list_of_join_keys_is_a_list_without_null() {
        let arrow = ArrowSchema::new(vec![Field::new("k", ArrowType::Int32, false)]);
        let values = [Some(7), None, Some(1)].map(|value| lit(ScalarValue::Int32(value))).to_vec();
        let list =
            |negated| in_list(expr(Column::new("k", 0)), values.clone(), &negated, &arrow).expect("one type");
        let cells = [1i32, 7].map(|value| value.to_le_bytes().to_vec()).to_vec();
        assert_eq!(late(list(false)), Some(vec![PredicateKind::InList(cells)]));
        assert_eq!(late(list(true)), Some(Vec::new()));
    }
}
