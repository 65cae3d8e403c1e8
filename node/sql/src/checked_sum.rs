//! `sum` whose result is exact, or an error.
//!
//! ```text
//!   sum of BIGINT, DECIMAL ── added as 128 bits; a result that its type cannot hold is an error
//!   sum of other types     ── DataFusion's function, as is sum(DISTINCT …)
//! ```
//!
//! DataFusion's function drops the highest bits of a sum. Here a sum of BIGINT has to fit only at the end: its parts,
//! those of tablet servers included, may be larger. Parts of a sum of DECIMAL must fit into 128 bits.
//!
//! The function is named `SUM`, which the planner takes for the name in a statement: DataFusion splits a function named
//! `sum` beside one DISTINCT aggregate into sums of sums, of which the inner ones would be checked, too.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, Int64Array, PrimitiveArray,
};
use datafusion::arrow::datatypes::{
    ArrowPrimitiveType, DECIMAL128_MAX_PRECISION, DataType, Decimal128Type, DecimalType, Field, FieldRef,
    Int64Type,
};
use datafusion::common::{DataFusionError, Result, ScalarValue};
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::expr::{AggregateFunctionParams, WindowFunctionParams};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::{AggregateOrderSensitivity, format_state_name};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, ReversedUDAF, Signature,
};
use datafusion::prelude::SessionContext;

use super::error::{SqlError, state};

/// Replaces the function of a session.
pub(crate) fn replace(context: &SessionContext) {
    if let Ok(inner) = context.udaf("sum") {
        let aliases = vec![inner.name().to_string()];
        context.register_udaf(AggregateUDF::new_from_impl(CheckedSum { inner, aliases }));
    }
}

/// Name of the function.
pub(crate) const CHECKED_SUM: &str = "SUM";

/// Type of the result of a sum that is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SumType {
    Bigint,
    /// Precision and scale.
    Decimal(u8, i8),
}

impl SumType {
    /// Returns the type; `None` for a sum that is DataFusion's.
    fn of(result: &DataType, is_distinct: bool) -> Option<SumType> {
        match result {
            _ if is_distinct => None,
            DataType::Int64 => Some(SumType::Bigint),
            DataType::Decimal128(precision, scale) => Some(SumType::Decimal(*precision, *scale)),
            _ => None,
        }
    }

    /// Type of partial sums.
    fn state(self) -> DataType {
        match self {
            SumType::Bigint => DataType::Decimal128(DECIMAL128_MAX_PRECISION, 0),
            SumType::Decimal(_, scale) => DataType::Decimal128(DECIMAL128_MAX_PRECISION, scale),
        }
    }

    fn out_of_range(self) -> DataFusionError {
        let message = match self {
            SumType::Bigint => {
                "a sum is out of range for BIGINT; CAST what is summed to DECIMAL(19, 0)".to_string()
            }
            SumType::Decimal(precision, scale) => {
                format!("a sum is out of range for DECIMAL({precision}, {scale}); sum fewer rows, or DOUBLE")
            }
        };
        DataFusionError::External(Box::new(SqlError::with_state(state::OUT_OF_RANGE, message)))
    }

    fn add(self, sum: i128, value: i128) -> Result<i128> {
        sum.checked_add(value).ok_or_else(|| self.out_of_range())
    }

    /// Returns sums as a column of the result.
    fn column(self, sums: impl Iterator<Item = Option<i128>>) -> Result<ArrayRef> {
        let refused = |_| self.out_of_range();
        Ok(match self {
            SumType::Bigint => {
                let sums = sums.map(|sum| sum.map(i64::try_from).transpose().map_err(refused));
                Arc::new(sums.collect::<Result<Int64Array>>()?)
            }
            SumType::Decimal(precision, scale) => {
                let check = |sum| match Decimal128Type::validate_decimal_precision(sum, precision, scale) {
                    Ok(()) => Ok(sum),
                    Err(_) => Err(self.out_of_range()),
                };
                let sums = sums.map(|sum| sum.map(check).transpose());
                let sums = sums.collect::<Result<Decimal128Array>>()?;
                Arc::new(sums.with_precision_and_scale(precision, scale)?)
            }
        })
    }

    /// Returns partial sums as a column.
    fn state_column(self, sums: impl Iterator<Item = Option<i128>>) -> ArrayRef {
        Arc::new(sums.collect::<Decimal128Array>().with_data_type(self.state()))
    }
}

/// Passes on the numbers of a column of BIGINT or DECIMAL, with their rows.
fn each_number(column: &ArrayRef, each: impl FnMut(usize, i128) -> Result<()>) -> Result<()> {
    match column.as_primitive_opt::<Int64Type>() {
        Some(numbers) => each_value(numbers, each),
        None => each_value(column.as_primitive::<Decimal128Type>(), each),
    }
}

fn each_value<T>(column: &PrimitiveArray<T>, mut each: impl FnMut(usize, i128) -> Result<()>) -> Result<()>
where
    T: ArrowPrimitiveType,
    T::Native: Into<i128>,
{
    let values = column.values();
    match column.nulls().filter(|nulls| nulls.null_count() > 0) {
        None => values.iter().enumerate().try_for_each(|(row, value)| each(row, (*value).into())),
        Some(nulls) => nulls.valid_indices().try_for_each(|row| each(row, values[row].into())),
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct CheckedSum {
    inner: Arc<AggregateUDF>,
    aliases: Vec<String>,
}

impl AggregateUDFImpl for CheckedSum {
    fn name(&self) -> &str {
        CHECKED_SUM
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn schema_name(&self, params: &AggregateFunctionParams) -> Result<String> {
        self.inner.schema_name(params)
    }

    fn human_display(&self, params: &AggregateFunctionParams) -> Result<String> {
        self.inner.human_display(params)
    }

    fn window_function_schema_name(&self, params: &WindowFunctionParams) -> Result<String> {
        self.inner.window_function_schema_name(params)
    }

    fn display_name(&self, params: &AggregateFunctionParams) -> Result<String> {
        self.inner.display_name(params)
    }

    fn window_function_display_name(&self, params: &WindowFunctionParams) -> Result<String> {
        self.inner.window_function_display_name(params)
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match SumType::of(args.return_type(), args.is_distinct) {
            Some(ty) => Ok(Box::new(Sum { ty, sum: 0, count: 0 })),
            None => self.inner.accumulator(args),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        match SumType::of(args.return_type(), args.is_distinct) {
            Some(ty) => Ok(vec![Arc::new(Field::new(format_state_name(args.name, "sum"), ty.state(), true))]),
            None => self.inner.state_fields(args),
        }
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        match SumType::of(args.return_type(), args.is_distinct) {
            Some(ty) => Ok(Box::new(GroupSums { ty, sums: Vec::new(), seen: Vec::new() })),
            None => self.inner.create_groups_accumulator(args),
        }
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match SumType::of(args.return_type(), args.is_distinct) {
            Some(_) => self.accumulator(args),
            None => self.inner.create_sliding_accumulator(args),
        }
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }
}

/// Sum of one group, or of the frame of a window.
#[derive(Debug)]
struct Sum {
    ty: SumType,
    sum: i128,
    /// Numbers in the sum: without one it is NULL.
    count: u64,
}

impl Accumulator for Sum {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        each_number(&values[0], |_, value| {
            self.sum = self.ty.add(self.sum, value)?;
            self.count += 1;
            Ok(())
        })
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        each_number(&values[0], |_, value| {
            self.sum = self.ty.add(self.sum, -value)?;
            self.count = self.count.saturating_sub(1);
            Ok(())
        })
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let column = self.ty.state_column([(self.count > 0).then_some(self.sum)].into_iter());
        Ok(vec![ScalarValue::try_from_array(&column, 0)?])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let column = self.ty.column([(self.count > 0).then_some(self.sum)].into_iter())?;
        ScalarValue::try_from_array(&column, 0)
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }
}

/// Sums of groups.
#[derive(Debug)]
struct GroupSums {
    ty: SumType,
    sums: Vec<i128>,
    /// True for groups that have a number: others are NULL.
    seen: Vec<bool>,
}

impl GroupSums {
    fn take(&mut self, emit_to: EmitTo) -> impl Iterator<Item = Option<i128>> + use<> {
        let (sums, seen) = (emit_to.take_needed(&mut self.sums), emit_to.take_needed(&mut self.seen));
        sums.into_iter().zip(seen).map(|(sum, seen)| seen.then_some(sum))
    }
}

impl GroupsAccumulator for GroupSums {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        count: usize,
    ) -> Result<()> {
        self.sums.resize(count, 0);
        self.seen.resize(count, false);
        each_number(&values[0], |row, value| {
            if passes(filter, row) {
                let group = groups[row];
                self.sums[group] = self.ty.add(self.sums[group], value)?;
                self.seen[group] = true;
            }
            Ok(())
        })
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], count: usize) -> Result<()> {
        self.update_batch(states, groups, None, count)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let sums = self.take(emit_to);
        self.ty.column(sums)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let sums = self.take(emit_to);
        Ok(vec![self.ty.state_column(sums)])
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let mut sums = vec![None; values[0].len()];
        each_number(&values[0], |row, value| {
            sums[row] = passes(filter, row).then_some(value);
            Ok(())
        })?;
        Ok(vec![self.ty.state_column(sums.into_iter())])
    }

    fn size(&self) -> usize {
        self.sums.capacity() * size_of::<i128>() + self.seen.capacity()
    }
}

/// Returns true if a filter selects a row. NULL does not.
fn passes(filter: Option<&BooleanArray>, row: usize) -> bool {
    filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::prelude::SessionConfig;

    use super::*;

    /// Runs a query in several partitions, so that it has partial sums.
    async fn run(query: &str, is_checked: bool) -> std::result::Result<String, SqlError> {
        let mut config = SessionConfig::new().with_target_partitions(3).with_batch_size(2);
        config.options_mut().sql_parser.parse_float_as_decimal = true;
        let context = SessionContext::new_with_config(config);
        if is_checked {
            replace(&context);
        }
        let batches = context.sql(query).await?.collect().await?;
        Ok(pretty_format_batches(&batches).expect("rows").to_string())
    }

    const ROWS: &str =
        "(VALUES (1, 9223372036854775807), (1, 9223372036854775807), (2, 5), (3, NULL), (1, 1), (2, -6),
        (4, -9223372036854775808), (4, -1)) AS t(k, v)";

    #[tokio::test]
    async fn a_sum_that_does_not_fit_is_an_error() {
        let (nines, fives) = ("9".repeat(37), "5".repeat(37));
        for (query, ty) in [
            (format!("SELECT sum(v) FROM {ROWS} WHERE k = 1"), "BIGINT"),
            (format!("SELECT k, sum(v) FROM {ROWS} GROUP BY k"), "BIGINT"),
            (format!("SELECT sum(v) OVER (ORDER BY k) FROM {ROWS}"), "BIGINT"),
            (format!("SELECT sum({nines}.5) FROM generate_series(1, 2)"), "DECIMAL(38, 1)"),
            (format!("SELECT sum({fives}.5) FROM generate_series(1, 2)"), "DECIMAL(38, 1)"),
        ] {
            let error = run(&query, true).await.expect_err(&query);
            assert_eq!(error.sql_state(), state::OUT_OF_RANGE, "{query}: {error}");
            assert!(error.to_string().contains(&format!("out of range for {ty}")), "{query}: {error}");
        }
    }

    #[tokio::test]
    async fn only_the_result_has_to_fit() {
        let balanced =
            "(VALUES (9223372036854775807), (9223372036854775807), (-9223372036854775807), (-9)) AS t(v)";
        let rows = run(&format!("SELECT sum(v) AS s FROM {balanced}"), true).await.expect("a row");
        assert!(rows.contains("| 9223372036854775798 |"), "{rows}");
        let parted = "(VALUES (1, 9223372036854775807), (1, 1), (2, -10)) AS t(k, v)";
        let rows =
            run(&format!("SELECT count(DISTINCT k), sum(v) AS s FROM {parted}"), true).await.expect("a row");
        assert!(rows.contains("| 9223372036854775798 |"), "{rows}");
        let query = format!("SELECT sum(CAST(v AS DECIMAL(19, 0))) AS s FROM {ROWS} WHERE k = 1");
        assert!(run(&query, true).await.expect("a row").contains("| 18446744073709551615 |"));
    }

    #[tokio::test]
    async fn other_sums_are_as_before() {
        for query in [
            format!(
                "SELECT k, sum(v), sum(v) FILTER (WHERE v > 0), count(*) FROM {ROWS} WHERE k = 2 OR k = 3
                GROUP BY k ORDER BY k"
            ),
            format!("SELECT sum(v) FROM {ROWS} WHERE k > 9"),
            format!("SELECT sum(DISTINCT k), sum(DISTINCT v), sum(k) FROM {ROWS} WHERE k = 2"),
            "SELECT value % 3 AS k, sum(value), sum(value * 1.5), sum(CAST(value AS DOUBLE)), avg(value),
               sum(arrow_cast(value, 'UInt8')) FROM generate_series(1, 100) GROUP BY 1 ORDER BY 1"
                .to_string(),
            "SELECT sum(value) OVER (ORDER BY value ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING),
               sum(NULLIF(value, 3)) OVER (ORDER BY value ROWS 0 PRECEDING) FROM generate_series(1, 6)"
                .to_string(),
            "SELECT sum(INTERVAL '1 day') FROM generate_series(1, 6)".to_string(),
            format!("SELECT count(DISTINCT k), sum(v), SUM(k) FROM {ROWS} WHERE k = 2"),
            format!(
                "SELECT k, count(DISTINCT v), sum(k) OVER (ORDER BY k) FROM {ROWS} WHERE k = 2 GROUP BY k"
            ),
        ] {
            let before = run(&query, false).await;
            assert_eq!(run(&query, true).await, before, "{query}");
        }
    }
}
