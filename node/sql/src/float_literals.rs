//! Literals with a fraction beside floating-point numbers.
//!
//! ```text
//!   0.1 beside DECIMAL ── stays DECIMAL, with all its digits
//!   0.1 beside DOUBLE  ── becomes the DOUBLE nearest to 0.1
//! ```
//!
//! The planner reads `0.1` as DECIMAL. Left to it, `d > 0.0` would turn the values of `d` into DECIMAL, too: 1e-20
//! would be 0, and NaN or 1e15 an error. Other expressions of type DECIMAL beside a floating-point number are cast to
//! DOUBLE. The plan is rewritten before its columns are described, because `coalesce(d, 0.0)` changes its type.
//! Literals of `INSERT … VALUES` get the type of their column before they are planned: rows of VALUES would share a
//! DECIMAL, which may have no digits for theirs and none for 'NaN'.

use std::cell::Cell;
use std::str::FromStr;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray};
use datafusion::arrow::datatypes::{
    ArrowPrimitiveType, DataType, Decimal128Type, Decimal256Type, DecimalType, Float32Type, Float64Type,
};
use datafusion::arrow::error::ArrowError;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::sqlparser::ast::{
    CastKind, DataType as SqlType, Expr as SqlExpr, Query, SetExpr, UnaryOperator, Value, ValueWithSpan,
};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    BinaryExpr, Cast, Expr, ExprSchemable, LogicalPlan, Operator, TryCast, Union,
};

/// Gives literals of VALUES the types of the columns that they are for, where these are floating-point numbers.
pub(crate) fn type_values(query: &mut Query, types: &[DataType]) {
    let SetExpr::Values(values) = &mut *query.body else { return };
    for row in &mut values.rows {
        for (expr, ty) in row.content.iter_mut().zip(types) {
            if let Some(cast) = typed_literal(expr, ty) {
                *expr = cast;
            }
        }
    }
}

/// Returns a cast of the literal's text, which rounds once; `None` for other expressions and types.
fn typed_literal(expr: &SqlExpr, ty: &DataType) -> Option<SqlExpr> {
    let text = match expr {
        SqlExpr::Value(value) => match &value.value {
            Value::Number(text, _) | Value::SingleQuotedString(text) => text.clone(),
            _ => return None,
        },
        SqlExpr::UnaryOp { op: UnaryOperator::Minus, expr } => match &**expr {
            SqlExpr::Value(ValueWithSpan { value: Value::Number(text, _), .. }) => format!("-{text}"),
            _ => return None,
        },
        _ => return None,
    };
    // What is out of range stays as it is, and is refused when it is written.
    let is_finite = match ty {
        DataType::Float64 => text.parse::<f64>().ok()?.is_finite(),
        DataType::Float32 => text.parse::<f32>().ok()?.is_finite(),
        _ => return None,
    };
    let is_named = !text.contains(|letter: char| letter.is_ascii_digit());
    (is_finite || is_named).then(|| SqlExpr::Cast {
        kind: CastKind::Cast,
        expr: Box::new(SqlExpr::Value(Value::SingleQuotedString(text).with_empty_span())),
        data_type: match ty {
            DataType::Float32 => SqlType::Real,
            _ => SqlType::DoublePrecision,
        },
        array: false,
        format: None,
    })
}

/// Rewrites the expressions of a plan.
pub(crate) fn rewrite(plan: LogicalPlan) -> Result<LogicalPlan> {
    let is_changed = Cell::new(false);
    Ok(plan.transform_up_with_subqueries(|node| rewrite_node(node, &is_changed))?.data)
}

/// Rewrites the expressions of a node above nodes that are rewritten. Columns keep their names.
fn rewrite_node(node: LogicalPlan, is_changed: &Cell<bool>) -> Result<Transformed<LogicalPlan>> {
    let schema = merge_schema(&node.inputs());
    let names = NamePreserver::new(&node);
    // Rows of VALUES have the types that are written in the node, and no names.
    let is_values = matches!(node, LogicalPlan::Values(_));
    let rewritten = node.map_expressions(|expr| {
        if matches!(expr, Expr::GroupingSet(_)) {
            return Ok(Transformed::no(expr));
        }
        let (name, ty) = (names.save(&expr), expr.get_type(&schema));
        let rewritten = expr.transform_up(|expr| rewrite_operands(expr, &schema))?;
        is_changed.set(is_changed.get() || rewritten.transformed);
        match (rewritten.transformed, is_values, ty) {
            (true, true, Ok(ty)) => rewritten.map_data(|expr| expr.cast_to(&ty, &schema)),
            (true, _, _) => Ok(rewritten.update_data(|expr| name.restore(expr))),
            (false, ..) => Ok(rewritten),
        }
    })?;
    match is_changed.get() {
        true => rewritten.map_data(recompute_schema),
        false => Ok(rewritten),
    }
}

/// Gives a node the types of its inputs.
fn recompute_schema(node: LogicalPlan) -> Result<LogicalPlan> {
    match node {
        // A union has the types of its first input until the optimizer unifies them.
        LogicalPlan::Union(union) => Ok(LogicalPlan::Union(Union::try_new_with_loose_types(union.inputs)?)),
        other => other.recompute_schema(),
    }
}

/// Replaces the DECIMAL operands of an expression that has floating-point operands.
fn rewrite_operands(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    if let Some(literal) = cast_literal(&expr) {
        return Ok(Transformed::yes(literal));
    }
    let mut expr = expr;
    let is_transformed = match &mut expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            let is_logical = matches!(op, Operator::And | Operator::Or);
            !is_logical && unify(&mut [&mut **left, &mut **right], schema)
        }
        Expr::Between(between) => {
            unify(&mut [&mut *between.expr, &mut *between.low, &mut *between.high], schema)
        }
        Expr::InList(list) => {
            let mut operands: Vec<&mut Expr> = list.list.iter_mut().collect();
            operands.push(&mut list.expr);
            unify(&mut operands, schema)
        }
        Expr::Case(case) => {
            let (mut whens, mut thens) = (Vec::new(), Vec::new());
            for (when, then) in &mut case.when_then_expr {
                whens.push(&mut **when);
                thens.push(&mut **then);
            }
            whens.extend(case.expr.as_deref_mut());
            thens.extend(case.else_expr.as_deref_mut());
            unify(&mut whens, schema) | unify(&mut thens, schema)
        }
        Expr::ScalarFunction(call) => unify_all(&mut call.args, schema),
        Expr::AggregateFunction(call) => unify_all(&mut call.params.args, schema),
        Expr::WindowFunction(call) => unify_all(&mut call.params.args, schema),
        _ => false,
    };
    Ok(if is_transformed { Transformed::yes(expr) } else { Transformed::no(expr) })
}

fn unify_all(operands: &mut [Expr], schema: &DFSchema) -> bool {
    unify(&mut operands.iter_mut().collect::<Vec<_>>(), schema)
}

/// Replaces DECIMAL operands if another one is a floating-point number. Returns true if there are such.
fn unify(operands: &mut [&mut Expr], schema: &DFSchema) -> bool {
    let types: Vec<Option<DataType>> = operands.iter().map(|operand| operand.get_type(schema).ok()).collect();
    if !types.iter().flatten().any(DataType::is_floating) {
        return false;
    }
    let mut is_replaced = false;
    for (operand, _) in operands.iter_mut().zip(types).filter(|(_, ty)| ty.as_ref().is_some_and(is_decimal)) {
        **operand = as_double(std::mem::take(*operand));
        is_replaced = true;
    }
    is_replaced
}

fn is_decimal(ty: &DataType) -> bool {
    matches!(ty, DataType::Decimal128(..) | DataType::Decimal256(..))
}

/// Returns a DECIMAL expression as DOUBLE.
fn as_double(expr: Expr) -> Expr {
    match expr {
        Expr::Negative(inner) => Expr::Negative(Box::new(as_double(*inner))),
        Expr::Literal(value, metadata) => match literal(&value, &DataType::Float64) {
            Some(double) => Expr::Literal(double, metadata),
            None => Expr::Cast(Cast::new(Box::new(Expr::Literal(value, metadata)), DataType::Float64)),
        },
        other => Expr::Cast(Cast::new(Box::new(other), DataType::Float64)),
    }
}

/// Returns the literal for a cast of a DECIMAL literal to a floating-point number.
fn cast_literal(expr: &Expr) -> Option<Expr> {
    let (Expr::Cast(Cast { expr, field }) | Expr::TryCast(TryCast { expr, field })) = expr else {
        return None;
    };
    let Expr::Literal(value, metadata) = &**expr else { return None };
    literal(value, field.data_type()).map(|value| Expr::Literal(value, metadata.clone()))
}

/// Returns a DECIMAL value as a floating-point number of this type; `None` if it is none, or out of range.
fn literal(value: &ScalarValue, ty: &DataType) -> Option<ScalarValue> {
    if !is_decimal(&value.data_type()) {
        return None;
    }
    let array = nearest(&value.to_array().ok()?, ty)?.ok()?;
    ScalarValue::try_from_array(&array, 0).ok()
}

/// Returns DECIMAL values as the nearest floating-point numbers of a type; `None` for other types. Arrow's cast divides
/// two rounded numbers instead, and may give a neighbour.
pub(crate) fn nearest(array: &ArrayRef, ty: &DataType) -> Option<std::result::Result<ArrayRef, ArrowError>> {
    match array.data_type() {
        DataType::Decimal128(_, scale) => nearest_of::<Decimal128Type>(array.as_primitive(), *scale, ty),
        DataType::Decimal256(_, scale) => nearest_of::<Decimal256Type>(array.as_primitive(), *scale, ty),
        _ => None,
    }
}

fn nearest_of<D: DecimalType>(
    array: &PrimitiveArray<D>,
    scale: i8,
    ty: &DataType,
) -> Option<std::result::Result<ArrayRef, ArrowError>>
where
    D::Native: std::fmt::Display,
{
    // The text has all digits, and its parser rounds once.
    let texts = array.iter().map(|value| value.map(|value| format!("{value}e{}", -i16::from(scale))));
    match ty {
        DataType::Float64 => Some(parsed::<Float64Type>(texts, f64::is_finite)),
        DataType::Float32 => Some(parsed::<Float32Type>(texts, f32::is_finite)),
        _ => None,
    }
}

fn parsed<F: ArrowPrimitiveType>(
    texts: impl Iterator<Item = Option<String>>,
    is_finite: fn(F::Native) -> bool,
) -> std::result::Result<ArrayRef, ArrowError>
where
    F::Native: FromStr,
{
    let parse = |text: String| {
        let number = text.parse().ok().filter(|number| is_finite(*number));
        number.ok_or_else(|| ArrowError::CastError(format!("{text} is out of range for {}", F::DATA_TYPE)))
    };
    let numbers = texts.map(|text| text.map(parse).transpose());
    let numbers = numbers.collect::<std::result::Result<PrimitiveArray<F>, _>>()?;
    Ok(Arc::new(numbers))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{Decimal128Array, Float32Array, Float64Array};

    use super::*;

    #[test]
    fn decimals_become_the_nearest_numbers() {
        let decimals = Decimal128Array::from(vec![Some(12_088_995_980_580_641), None, Some(-1)]);
        let decimals: ArrayRef = Arc::new(decimals.with_precision_and_scale(20, 14).expect("a type"));
        let numbers = nearest(&decimals, &DataType::Float64).expect("a float").expect("in range");
        let wanted = Float64Array::from(vec![Some(120.88995980580641), None, Some(-1e-14)]);
        assert_eq!(numbers.as_primitive(), &wanted);
        let numbers = nearest(&decimals, &DataType::Float32).expect("a float").expect("in range");
        assert_eq!(numbers.as_primitive(), &Float32Array::from(vec![Some(120.88996), None, Some(-1e-14)]));
        assert!(nearest(&decimals, &DataType::Int64).is_none());
        assert!(nearest(&numbers, &DataType::Float64).is_none());
    }
}
