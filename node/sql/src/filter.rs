//! Filters of DataFusion as predicates of Kudu's protocol.
//!
//! A filter is translated only if the servers evaluate it exactly as DataFusion does. Floating-point columns are left
//! to DataFusion, which orders NaN and the zeros differently.

use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::expr::{InList, Like};
use datafusion::logical_expr::{BinaryExpr, Expr, Operator};
use engine::schema::predicate::{Predicate, PredicateKind};
use engine::schema::row_block::ColumnValues;
use engine::schema::{ColumnSchema, DataType, Schema};
use nyala_client::arrow::{arrow_type, column_to_block};
use nyala_client::predicate::{Comparison, SimplifiedPredicate, compare};

/// Predicates of the servers that replace a filter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Translated {
    /// Rows that satisfy all of these.
    Predicates(Vec<Predicate>),
    /// No row.
    Nothing,
}

/// Returns what the servers can evaluate instead of the filter; `None` if they cannot.
pub(crate) fn translate(filter: &Expr, schema: &Schema) -> Option<Translated> {
    match filter {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) => {
            both(translate(left, schema)?, translate(right, schema)?)
        }
        Expr::BinaryExpr(BinaryExpr { op: Operator::Or, .. }) | Expr::InList(_) => one_of(filter, schema),
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => match (&**left, &**right) {
            (Expr::Column(name), Expr::Literal(value, _)) => {
                comparison(column(name, schema)?, operator(*op)?, value)
            }
            (Expr::Literal(value, _), Expr::Column(name)) => {
                comparison(column(name, schema)?, operator(op.swap()?)?, value)
            }
            _ => None,
        },
        Expr::IsNull(inner) => null_check(inner, schema, PredicateKind::IsNull),
        Expr::IsNotNull(inner) => null_check(inner, schema, PredicateKind::IsNotNull),
        Expr::Like(like) => prefix(like, schema),
        Expr::Column(name) => truth(column(name, schema)?, true),
        Expr::Not(inner) => match &**inner {
            Expr::Column(name) => truth(column(name, schema)?, false),
            _ => None,
        },
        _ => None,
    }
}

fn both(left: Translated, right: Translated) -> Option<Translated> {
    match (left, right) {
        (Translated::Predicates(mut left), Translated::Predicates(right)) => {
            left.extend(right);
            Some(Translated::Predicates(left))
        }
        _ => Some(Translated::Nothing),
    }
}

fn column<'a>(name: &Column, schema: &'a Schema) -> Option<&'a ColumnSchema> {
    schema.index_of_name(&name.name).map(|index| &schema.columns()[index])
}

pub(crate) fn operator(op: Operator) -> Option<Comparison> {
    Some(match op {
        Operator::Eq => Comparison::Equal,
        Operator::Lt => Comparison::Less,
        Operator::LtEq => Comparison::LessEqual,
        Operator::Gt => Comparison::Greater,
        Operator::GtEq => Comparison::GreaterEqual,
        _ => return None,
    })
}

fn simplified(predicate: SimplifiedPredicate) -> Translated {
    match predicate {
        SimplifiedPredicate::Predicate(predicate) => Translated::Predicates(vec![predicate]),
        SimplifiedPredicate::Nothing => Translated::Nothing,
    }
}

fn comparison(column: &ColumnSchema, op: Comparison, value: &ScalarValue) -> Option<Translated> {
    Some(simplified(compare(column, op, cell(column, value)?)))
}

fn null_check(inner: &Expr, schema: &Schema, kind: PredicateKind) -> Option<Translated> {
    let Expr::Column(name) = inner else { return None };
    Some(Translated::Predicates(vec![Predicate::new(column(name, schema)?.id, kind)]))
}

/// Translates `a IN (1, 2)`, and `a = 1 OR a = 2`, into which DataFusion rewrites a short list.
fn one_of(filter: &Expr, schema: &Schema) -> Option<Translated> {
    let mut found = None;
    let mut cells = Vec::new();
    collect_values(filter, schema, &mut found, &mut cells)?;
    let column = found?;
    if cells.is_empty() {
        return Some(Translated::Nothing);
    }
    Some(Translated::Predicates(vec![Predicate::new(column.id, PredicateKind::in_list(column.ty, cells))]))
}

/// Adds the values that a filter compares one column with. `None` if the filter is not of this form.
fn collect_values<'a>(
    filter: &Expr,
    schema: &'a Schema,
    found: &mut Option<&'a ColumnSchema>,
    cells: &mut Vec<Vec<u8>>,
) -> Option<()> {
    let mut add = |name: &Column, value: &ScalarValue| {
        let column = *found.get_or_insert(column(name, schema)?);
        if column.name != name.name {
            return None;
        }
        cells.push(cell(column, value)?);
        Some(())
    };
    match filter {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => {
            collect_values(left, schema, found, cells)?;
            collect_values(right, schema, found, cells)
        }
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) => match (&**left, &**right) {
            (Expr::Column(name), Expr::Literal(value, _)) => add(name, value),
            (Expr::Literal(value, _), Expr::Column(name)) => add(name, value),
            _ => None,
        },
        Expr::InList(InList { expr, list, negated: false }) => {
            let Expr::Column(name) = &**expr else { return None };
            let value = |item: &Expr| match item {
                Expr::Literal(value, _) => add(name, value),
                _ => None,
            };
            list.iter().try_for_each(value)
        }
        _ => None,
    }
}

/// Translates `a LIKE 'abc%'` to the range of texts with that prefix.
fn prefix(like: &Like, schema: &Schema) -> Option<Translated> {
    let (Expr::Column(name), Expr::Literal(pattern, _)) = (&*like.expr, &*like.pattern) else { return None };
    let column = column(name, schema)?;
    let pattern = pattern.try_as_str()??;
    let prefix = pattern.strip_suffix('%')?;
    let is_plain = !like.negated
        && !like.case_insensitive
        && like.escape_char.is_none()
        && !prefix.is_empty()
        && !prefix.contains(['%', '_', '\\'])
        && matches!(column.ty, DataType::String | DataType::Varchar);
    if !is_plain {
        return None;
    }
    // The last byte of UTF-8 text is never the greatest byte.
    let mut upper = prefix.as_bytes().to_vec();
    *upper.last_mut()? += 1;
    let kind = PredicateKind::Range { lower: Some(prefix.as_bytes().to_vec()), upper: Some(upper) };
    Some(Translated::Predicates(vec![Predicate::new(column.id, kind)]))
}

fn truth(column: &ColumnSchema, wanted: bool) -> Option<Translated> {
    if column.ty != DataType::Bool {
        return None;
    }
    comparison(column, Comparison::Equal, &ScalarValue::Boolean(Some(wanted)))
}

/// Returns the cell of a literal that has exactly the column's type.
pub(crate) fn cell(column: &ColumnSchema, value: &ScalarValue) -> Option<Vec<u8>> {
    let is_pushed =
        !matches!(column.ty, DataType::Float | DataType::Double | DataType::Int128 | DataType::IsDeleted);
    if !is_pushed || value.is_null() || value.data_type() != arrow_type(column) {
        return None;
    }
    let block = column_to_block(&value.to_array().ok()?, column).ok()?;
    Some(match block.values {
        ColumnValues::Fixed { bytes, .. } | ColumnValues::Var { bytes, .. } => bytes,
    })
}
