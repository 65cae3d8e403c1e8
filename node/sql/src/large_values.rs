//! Limits of functions that make large values of small ones: `repeat('x', 1000000000)`.
//!
//! ```text
//!   repeat, lpad, rpad, replace, regexp_replace, concat, concat_ws
//!       bytes of the results, at most ── above RESULT_BYTES_MAX ──► error 54000
//!       otherwise                     ──► DataFusion's function
//!   range, generate_series (as values), array_repeat, array_resize: not there
//! ```
//!
//! DataFusion's memory pool counts sorts, joins and groups only, and an allocation that fails ends the process, with
//! the statements of all its clients. `generate_series` in FROM makes its rows one batch after the other and stays.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::compute::cast;
use datafusion::arrow::compute::kernels::length::length;
use datafusion::arrow::datatypes::{DataType, FieldRef, Int64Type};
use datafusion::common::cast::as_primitive_array;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};
use datafusion::prelude::SessionContext;

use super::error::{SqlError, state};

/// Largest size of the results of one call: for a constant, or for a batch of 8,192 rows.
const RESULT_BYTES_MAX: u64 = 256 << 20;
/// Bytes of a character, at most.
const CHARACTER_BYTES: u64 = 4;
/// Functions whose results have a limit.
const LIMITED: [(&str, ResultSize); 7] = [
    ("repeat", ResultSize::Repeated),
    ("lpad", ResultSize::Padded),
    ("rpad", ResultSize::Padded),
    ("replace", ResultSize::Replaced),
    ("regexp_replace", ResultSize::Replaced),
    ("concat", ResultSize::Joined),
    ("concat_ws", ResultSize::Joined),
];
/// Functions that make lists of any length.
const REMOVED: [&str; 4] = ["range", "generate_series", "array_repeat", "array_resize"];

/// Size of a function's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ResultSize {
    /// The first argument, as often as the second says.
    Repeated,
    /// As many characters as the second argument says.
    Padded,
    /// The first argument, with the third one at every place in it.
    Replaced,
    /// All arguments, with the first one between each two.
    Joined,
}

/// Limits the functions of a session.
pub(crate) fn limit(context: &SessionContext) {
    for (name, size) in LIMITED {
        if let Ok(inner) = context.udf(name) {
            context.register_udf(ScalarUDF::new_from_impl(LimitedFunction { inner, size }));
        }
    }
    for name in REMOVED {
        let aliases = context.udf(name).map(|function| function.aliases().to_vec()).unwrap_or_default();
        aliases.iter().for_each(|alias| context.deregister_udf(alias));
        context.deregister_udf(name);
    }
}

/// Function of DataFusion's that is not called if its results would be too large.
#[derive(Debug, PartialEq, Eq, Hash)]
struct LimitedFunction {
    inner: Arc<ScalarUDF>,
    size: ResultSize,
}

/// Answers of DataFusion's function, except for `simplify`, which would put that function itself into the plan.
impl ScalarUDFImpl for LimitedFunction {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(types)
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        self.inner.return_field_from_args(args)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let bytes = self.size.bytes(&args)?;
        if bytes > RESULT_BYTES_MAX {
            let name = self.name();
            let message = format!(
                "{name} would return up to {bytes} bytes in one batch of rows (limit {RESULT_BYTES_MAX}); ask for \
                 shorter values or fewer rows"
            );
            return Err(DataFusionError::External(Box::new(SqlError::with_state(state::TOO_LARGE, message))));
        }
        self.inner.invoke_with_args(args)
    }
}

impl ResultSize {
    /// Returns the size of all results of a call, at most.
    fn bytes(self, call: &ScalarFunctionArgs) -> Result<u64> {
        let (args, rows) = (&call.args, call.number_rows);
        let length = |at: usize| column(args, at, rows, lengths);
        let number = |at: usize| column(args, at, rows, numbers);
        let of_rows = |sizes: (Vec<u64>, Vec<u64>), size: fn(u64, u64) -> u64| {
            sizes.0.into_iter().zip(sizes.1).map(|(one, other)| size(one, other)).fold(0, u64::saturating_add)
        };
        Ok(match self {
            ResultSize::Repeated => of_rows((length(0)?, number(1)?), u64::saturating_mul),
            ResultSize::Padded => {
                of_rows((length(0)?, number(1)?), |_, count| count.saturating_mul(CHARACTER_BYTES))
            }
            ResultSize::Replaced => of_rows((length(0)?, length(2)?), |text, by| {
                text.saturating_add(1).saturating_mul(by.saturating_add(1))
            }),
            ResultSize::Joined => {
                let all = (0..args.len()).map(length).collect::<Result<Vec<_>>>()?;
                let between = all.first().map_or(0, |first| first.iter().sum());
                let sum = all.iter().flatten().fold(0, |sum: u64, length| sum.saturating_add(*length));
                sum.saturating_add(u64::saturating_mul(between, args.len() as u64))
            }
        })
    }
}

/// Returns what `of` says of an argument, for each row.
fn column(
    args: &[ColumnarValue],
    at: usize,
    rows: usize,
    of: fn(&ArrayRef) -> Result<Vec<u64>>,
) -> Result<Vec<u64>> {
    match args.get(at) {
        None => Ok(vec![0; rows]),
        Some(ColumnarValue::Array(array)) => of(array),
        Some(ColumnarValue::Scalar(value)) => {
            let one = of(&value.to_array()?)?;
            Ok(vec![one.first().copied().unwrap_or_default(); rows.max(1)])
        }
    }
}

/// Returns the lengths of texts in bytes. Only texts are long: other values count as 64 bytes.
fn lengths(array: &ArrayRef) -> Result<Vec<u64>> {
    match length(array) {
        Ok(lengths) => numbers(&lengths),
        Err(_) => Ok(vec![64; array.len()]),
    }
}

/// Returns whole numbers; 0 for NULL and below 0.
fn numbers(array: &ArrayRef) -> Result<Vec<u64>> {
    let numbers = cast(array, &DataType::Int64)?;
    let numbers = as_primitive_array::<Int64Type>(&numbers)?;
    Ok(numbers.iter().map(|number| number.and_then(|n| u64::try_from(n).ok()).unwrap_or_default()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited() -> SessionContext {
        let context = SessionContext::new();
        limit(&context);
        context
    }

    async fn run(query: &str) -> std::result::Result<String, SqlError> {
        let frame = limited().sql(query).await?;
        let batches = frame.collect().await?;
        let text = datafusion::arrow::util::pretty::pretty_format_batches(&batches);
        Ok(text.expect("rows").to_string())
    }

    #[tokio::test]
    async fn values_that_would_be_too_large_are_refused() {
        for query in [
            "SELECT repeat('x', 1000000000)",
            "SELECT repeat(arrow_cast('x', 'LargeUtf8'), 1000000000000)",
            "SELECT repeat('xxxxxxxxxx', value * 10000) FROM generate_series(1, 5000)",
            "SELECT lpad('a', 2000000000, '🦀')",
            "SELECT rpad('a', 2000000000)",
            "SELECT length(replace(repeat('a', 100000), 'a', repeat('b', 100000)))",
            "SELECT length(regexp_replace(repeat('a', 100000), 'a', repeat('b', 100000), 'g'))",
            "SELECT length(concat(a, a, a)) FROM (SELECT repeat('x', 100000000) AS a)",
            "SELECT length(concat_ws(a, 'x', 'y', 'z')) FROM (SELECT repeat('x', 100000000) AS a)",
        ] {
            let error = run(query).await.expect_err(query);
            assert_eq!(error.sql_state(), state::TOO_LARGE, "{query}: {error}");
            assert!(error.to_string().contains("in one batch of rows (limit 268435456)"), "{error}");
        }
    }

    #[tokio::test]
    async fn functions_that_make_lists_of_any_length_are_not_there() {
        for query in [
            "SELECT range(1000000000000)",
            "SELECT generate_series(1, 1000000000000)",
            "SELECT array_repeat('x', 1000000000000)",
            "SELECT list_resize([1], 1000000000000)",
        ] {
            let error = run(query).await.expect_err(query);
            assert!(error.to_string().contains("Invalid function"), "{query}: {error}");
        }
        let rows = run("SELECT count(*) AS n FROM generate_series(1, 100)").await.expect("rows");
        assert!(rows.contains("| 100 |"), "{rows}");
    }

    #[tokio::test]
    async fn other_values_are_as_before() {
        let query = "SELECT repeat('ab', 2), lpad('x', 3, '🦀'), rpad('x', 3), replace('aba', 'a', 'cc'),
            regexp_replace('aba', 'a', 'c', 'g'), concat('a', NULL, 1), concat_ws('-', 'a', 'b'), repeat('x', -1)";
        let before = SessionContext::new().sql(query).await.expect("a query").collect().await.expect("rows");
        let before = datafusion::arrow::util::pretty::pretty_format_batches(&before).expect("rows");
        assert_eq!(run(query).await.expect("rows"), before.to_string());
    }
}
