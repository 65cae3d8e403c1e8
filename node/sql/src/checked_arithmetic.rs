//! Arithmetic of integers whose result does not fit its type is an error.
//!
//! ```text
//!   a + b, a - b, a * b, -a  of integers of one type ── becomes a function that checks, named as the operator
//!   of other types                                   ── stays as it is: DECIMAL is checked, DOUBLE has infinities
//! ```
//!
//! DataFusion's operators drop the highest bits: `9223372036854775807 + 1` would be negative. The rule runs after types
//! are unified, so that both operands have the type of the result.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Datum};
use datafusion::arrow::compute::kernels::numeric::{add, mul, neg, sub};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::arrow::error::ArrowError;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, DataFusionError, Result};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, LogicalPlan, Operator, ReturnFieldArgs,
    ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::physical_expr_common::datum::apply;

use super::error::{SqlError, state};

/// Analyzer rule that checks the arithmetic of a plan. It comes after the rule that unifies types.
#[derive(Debug)]
pub(crate) struct CheckedArithmetic;

impl AnalyzerRule for CheckedArithmetic {
    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(check_node).data()
    }

    fn name(&self) -> &str {
        "checked_arithmetic"
    }
}

/// Checks the expressions of a node. Its columns keep their names: a function is named as the operator that it
/// replaces, except in the ORDER BY of a window.
fn check_node(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let schema = merge_schema(&node.inputs());
    let names = NamePreserver::new(&node);
    node.map_expressions(|expr| {
        let name = (!matches!(expr, Expr::GroupingSet(_))).then(|| names.save(&expr));
        let checked = expr.transform_up(|expr| check(expr, &schema))?;
        Ok(match name {
            Some(name) if checked.transformed => checked.update_data(|expr| name.restore(expr)),
            _ => checked,
        })
    })
}

fn check(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    Ok(match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => match Operation::of(op) {
            Some(operation) if is_integer(&left, schema)? && is_integer(&right, schema)? => {
                Transformed::yes(append(*left, operation, *right))
            }
            _ => Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })),
        },
        Expr::Negative(operand) if is_integer(&operand, schema)? => {
            Transformed::yes(CheckedFunction::of(Work::Negate).call(vec![*operand]))
        }
        other => Transformed::no(other),
    })
}

fn is_integer(expr: &Expr, schema: &DFSchema) -> Result<bool> {
    // The type of a chain would be that of its parts, and of theirs.
    Ok(work_of(expr).is_some() || expr.get_type(schema)?.is_integer())
}

/// Returns what a checked function computes; `None` for other expressions.
fn work_of(expr: &Expr) -> Option<&Work> {
    let Expr::ScalarFunction(function) = expr else { return None };
    function.func.inner().downcast_ref::<CheckedFunction>().map(|function| &function.work)
}

/// Operands of one function. All of them are computed before the first operation.
const OPERANDS_MAX: usize = 32;

/// Returns the chain with one more operation, or a new one.
fn append(left: Expr, operation: Operation, right: Expr) -> Expr {
    let (mut operations, mut operands) = match (work_of(&left).cloned(), left) {
        (Some(Work::Chain(operations)), Expr::ScalarFunction(left)) if left.args.len() < OPERANDS_MAX => {
            (operations, left.args)
        }
        (_, left) => (Vec::new(), vec![left]),
    };
    operations.push(operation);
    operands.push(right);
    CheckedFunction::of(Work::Chain(operations)).call(operands)
}

/// Operator with two operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Operation {
    Add,
    Subtract,
    Multiply,
}

impl Operation {
    fn of(operator: Operator) -> Option<Operation> {
        match operator {
            Operator::Plus => Some(Operation::Add),
            Operator::Minus => Some(Operation::Subtract),
            Operator::Multiply => Some(Operation::Multiply),
            _ => None,
        }
    }

    fn sign(self) -> &'static str {
        match self {
            Operation::Add => "+",
            Operation::Subtract => "-",
            Operation::Multiply => "*",
        }
    }

    fn apply(self, left: &ColumnarValue, right: &ColumnarValue) -> Result<ColumnarValue> {
        match self {
            Operation::Add => apply(left, right, add),
            Operation::Subtract => apply(left, right, sub),
            Operation::Multiply => apply(left, right, mul),
        }
    }
}

/// Computation of a function from its operands.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Work {
    Negate,
    /// The operations between the operands, from left to right.
    Chain(Vec<Operation>),
}

impl Work {
    /// Returns the expression of its operands, as DataFusion writes that of the operators.
    fn write<T: fmt::Display>(&self, operands: &[T]) -> Result<String> {
        match (self, operands) {
            (Work::Negate, [operand]) => Ok(format!("(- {operand})")),
            (Work::Chain(operations), [first, others @ ..]) if operations.len() == others.len() => {
                let next =
                    |(operation, operand): (&Operation, &T)| format!(" {} {operand}", operation.sign());
                let rest: String = operations.iter().zip(others).map(next).collect();
                Ok(format!("{first}{rest}"))
            }
            _ => datafusion::common::internal_err!("{} operands of {self:?}", operands.len()),
        }
    }

    fn apply(&self, operands: &[ColumnarValue]) -> Result<ColumnarValue> {
        let unary = |operand: &dyn Datum, _: &dyn Datum| -> std::result::Result<ArrayRef, ArrowError> {
            neg(operand.get().0)
        };
        match (self, operands) {
            (Work::Negate, [operand]) => apply(operand, operand, unary),
            (Work::Chain(operations), [first, others @ ..]) if operations.len() == others.len() => {
                let mut steps = operations.iter().zip(others);
                steps.try_fold(first.clone(), |left, (operation, right)| operation.apply(&left, right))
            }
            _ => datafusion::common::internal_err!("{} operands of {self:?}", operands.len()),
        }
    }
}

/// Function that fails where a result does not fit.
#[derive(Debug, PartialEq, Eq, Hash)]
struct CheckedFunction {
    work: Work,
    signature: Signature,
}

impl CheckedFunction {
    fn of(work: Work) -> Arc<ScalarUDF> {
        let operands = match &work {
            Work::Negate => 1,
            Work::Chain(operations) => operations.len() + 1,
        };
        let signature = Signature::any(operands, Volatility::Immutable);
        Arc::new(ScalarUDF::new_from_impl(CheckedFunction { work, signature }))
    }
}

impl ScalarUDFImpl for CheckedFunction {
    fn name(&self) -> &str {
        match self.work {
            Work::Negate => "checked_negate",
            Work::Chain(_) => "checked_chain",
        }
    }

    fn schema_name(&self, operands: &[Expr]) -> Result<String> {
        self.work.write(&operands.iter().map(|operand| operand.schema_name()).collect::<Vec<_>>())
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types.first().cloned().unwrap_or(DataType::Null))
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let types: Vec<DataType> = args.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        let is_nullable = args.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(Field::new(self.name(), self.return_type(&types)?, is_nullable)))
    }

    /// NULL of an operand is NULL of the result: filters on it make outer joins inner ones.
    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.work.apply(&args.args).map_err(|error| match error.find_root() {
            DataFusionError::ArrowError(inner, _) => match &**inner {
                ArrowError::ArithmeticOverflow(_) => out_of_range(args.return_field.data_type()),
                _ => error,
            },
            _ => error,
        })
    }
}

/// Returns the error of a result that a type cannot hold.
fn out_of_range(ty: &DataType) -> DataFusionError {
    let (name, wider) = match ty {
        DataType::Int8 => ("TINYINT", "BIGINT"),
        DataType::Int16 => ("SMALLINT", "BIGINT"),
        DataType::Int32 => ("INT", "BIGINT"),
        _ => ("BIGINT", "DECIMAL"),
    };
    let message = format!("the result of an operator is out of range for {name}; CAST an operand to {wider}");
    DataFusionError::External(Box::new(SqlError::with_state(state::OUT_OF_RANGE, message)))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::prelude::SessionContext;

    use super::*;

    async fn run(query: &str) -> std::result::Result<String, SqlError> {
        let context = SessionContext::new();
        context.add_analyzer_rule(Arc::new(CheckedArithmetic));
        let batches = context.sql(query).await?.collect().await?;
        Ok(pretty_format_batches(&batches).expect("rows").to_string())
    }

    /// Rows with the least and the largest number of a type.
    const LIMITS: &str = "(VALUES (arrow_cast(-128, 'Int8'), arrow_cast(-9223372036854775808, 'Int64')),
        (arrow_cast(127, 'Int8'), arrow_cast(9223372036854775807, 'Int64'))) AS t(i, l)";

    #[tokio::test]
    async fn a_result_that_does_not_fit_is_an_error() {
        for (expression, ty) in [
            ("l + 1", "BIGINT"),
            ("l - 1", "BIGINT"),
            ("l * 2", "BIGINT"),
            ("-l", "BIGINT"),
            ("i + i", "TINYINT"),
            ("i * i", "TINYINT"),
            ("-i", "TINYINT"),
            ("1 + l - 1", "BIGINT"),
            ("l - l - l + l + l - l - l", "BIGINT"),
            ("9223372036854775807 + 1", "BIGINT"),
            ("sum(l + 1)", "BIGINT"),
            ("sum(l * 2) OVER ()", "BIGINT"),
            ("(SELECT max(value + 9223372036854775807) FROM generate_series(1, 2))", "BIGINT"),
        ] {
            let error = run(&format!("SELECT {expression} FROM {LIMITS}")).await.expect_err(expression);
            assert_eq!(error.sql_state(), state::OUT_OF_RANGE, "{expression}: {error}");
            assert!(error.to_string().contains(&format!("out of range for {ty};")), "{expression}: {error}");
        }
    }

    #[tokio::test]
    async fn a_condition_of_case_keeps_it_from_the_error() {
        let query = format!("SELECT sum(CASE WHEN l < 0 THEN l + 1 ELSE 1 END) AS s FROM {LIMITS}");
        assert!(run(&query).await.expect("rows").contains("| -9223372036854775806 |"));
    }

    #[tokio::test]
    async fn other_results_and_names_are_as_before() {
        for query in [
            "SELECT a + 1, a - b, a * b, -a, -(a + b) * 2, a + NULL, a + 0.5, a / b, a % b, -1.5, a + 1e300
               FROM (VALUES (3, 2), (NULL, 4)) AS t(a, b)",
            "SELECT a + 1, count(*) FROM (VALUES (3), (3)) AS t(a) GROUP BY a + 1 HAVING a + 1 > 3 ORDER BY a + 1",
            "SELECT a + 1, b * 2, count(*) FROM (VALUES (3, 4), (3, 5)) AS t(a, b)
               GROUP BY ROLLUP (a + 1, b * 2) ORDER BY 1, 2",
            "SELECT (a + b) * a - (b - a) * b + 7 - -a, a * (b + 1), 1 - a - b FROM (VALUES (3, 2), (NULL, 4)) AS t(a, b)",
            "SELECT DATE '2024-03-01' - DATE '2024-02-01', DATE '2024-03-01' + INTERVAL '1 day'",
            "SELECT value FROM generate_series(1, 10) WHERE value * 2 = 2 + 2 LIMIT 1 + 1",
            "SELECT a.value FROM generate_series(1, 3) a JOIN generate_series(1, 3) b ON a.value + 1 = b.value * 1
               WHERE EXISTS (SELECT 1 FROM generate_series(1, 9) c WHERE c.value + 1 = a.value * 2) ORDER BY 1",
            "SELECT sum(value + 1) OVER (ORDER BY value * 2) FROM generate_series(1, 3)",
            "SELECT value + 1 FROM generate_series(1, 2) UNION ALL SELECT -value FROM generate_series(1, 2) ORDER BY 1",
        ] {
            let before = SessionContext::new().sql(query).await.expect(query).collect().await.expect(query);
            let before = pretty_format_batches(&before).expect("rows").to_string();
            assert_eq!(run(query).await.expect(query), before, "{query}");
        }
    }
}
