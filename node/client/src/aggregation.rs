//! Aggregation on the tablet servers: groups of rows with a few values of each, instead of rows.
//!
//! ```text
//!   AggregationSpec ─▶ columns to read, positions in them ─▶ servers ─▶ record batches: groups, then aggregates
//! ```
//!
//! - Results are **partial**: each batch has the groups of some rows, and other batches may have the same groups. The
//!   reader merges them: counts and sums are added, of minima and maxima the smallest and the largest counts.
//! - An empty result has no group, also without group columns.
//! - A group column or an aggregate that is named several times is asked for once, because servers refuse repeats.
//! - It is a feature of nyala's tablet servers. Others refuse the scan with `Unsupported`; read rows then.

use std::sync::Arc;

use engine::error::{Error, Result};
use engine::schema::aggregation::{Aggregate, AggregateFunction, Aggregation};
use engine::schema::{ColumnSchema, DataType, Schema};

use nyala_proto::kudu::ColumnarRowBlockPb;

/// Most digits of a DECIMAL.
const DIGITS_MAX: u8 = 38;

/// Description of an aggregation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AggregationSpec {
    /// Columns whose values make a group; none for one group of all rows. Not of type FLOAT or DOUBLE.
    pub group_by: Vec<String>,
    pub aggregates: Vec<ColumnAggregate>,
}

/// Function of the values of a column in a group. NULL is skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnAggregate {
    function: AggregateFunction,
    /// `None` only for the number of rows.
    column: Option<String>,
}

impl ColumnAggregate {
    fn of(function: AggregateFunction, column: &str) -> ColumnAggregate {
        ColumnAggregate { function, column: Some(column.to_string()) }
    }

    /// The number of rows, as INT64.
    pub fn count_rows() -> ColumnAggregate {
        ColumnAggregate { function: AggregateFunction::Count, column: None }
    }

    /// The number of values that are not NULL, as INT64.
    pub fn count(column: &str) -> ColumnAggregate {
        ColumnAggregate::of(AggregateFunction::Count, column)
    }

    /// The sum of an integer column as INT64, of a DECIMAL column as DECIMAL of 38 digits, of a FLOAT or DOUBLE column
    /// as DOUBLE. NULL without values. A sum that INT64 or DECIMAL cannot hold comes in parts, each in a row of its
    /// group: add them in a wider type.
    pub fn sum(column: &str) -> ColumnAggregate {
        ColumnAggregate::of(AggregateFunction::Sum, column)
    }

    /// The sum of an integer or floating-point column as DOUBLE, which a mean needs; NULL without values.
    pub fn sum_as_double(column: &str) -> ColumnAggregate {
        ColumnAggregate::of(AggregateFunction::SumAsDouble, column)
    }

    /// The smallest value; NULL without values. Not of FLOAT and DOUBLE columns.
    pub fn min(column: &str) -> ColumnAggregate {
        ColumnAggregate::of(AggregateFunction::Min, column)
    }

    /// The largest value; NULL without values. Not of FLOAT and DOUBLE columns.
    pub fn max(column: &str) -> ColumnAggregate {
        ColumnAggregate::of(AggregateFunction::Max, column)
    }
}

/// An aggregation bound to the columns of a table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BoundAggregation {
    /// Columns that the servers read.
    pub(crate) read: Vec<ColumnSchema>,
    /// Aggregation with each part once.
    pub(crate) aggregation: Arc<Aggregation>,
    /// Columns of the result, repeats included.
    pub(crate) output: Vec<ColumnSchema>,
    /// Positions of those columns among the columns of the servers' replies.
    positions: Vec<usize>,
}

impl BoundAggregation {
    /// Binds an aggregation. Fails with `NotFound` for an unknown column, and with `Unsupported` for a function that a
    /// column's type does not have.
    pub(crate) fn new(schema: &Schema, spec: &AggregationSpec) -> Result<BoundAggregation> {
        let mut bound = BoundAggregation {
            read: Vec::new(),
            aggregation: Arc::default(),
            output: Vec::new(),
            positions: Vec::new(),
        };
        let mut aggregation = Aggregation::default();
        for name in &spec.group_by {
            let column = bound.position(schema, name)?;
            bound.positions.push(add_once(&mut aggregation.group_by, column));
        }
        let groups = aggregation.group_by.len();
        for aggregate in &spec.aggregates {
            let column = aggregate.column.as_ref().map(|name| bound.position(schema, name)).transpose()?;
            let aggregate = Aggregate { function: aggregate.function, column };
            bound.positions.push(groups + add_once(&mut aggregation.aggregates, aggregate));
        }
        bound.bind_output(aggregation)?;
        Ok(bound)
    }

    /// Repeats the columns of a reply that the result has several times.
    pub(crate) fn repeat_columns(&self, reply: &mut ColumnarRowBlockPb) {
        // A reply with another number of columns is malformed, unless it has no rows.
        if reply.columns.len() == self.aggregation.group_by.len() + self.aggregation.aggregates.len() {
            reply.columns = self.positions.iter().map(|at| reply.columns[*at]).collect();
        }
    }

    /// Returns the position of a column among those that are read.
    fn position(&mut self, schema: &Schema, name: &str) -> Result<usize> {
        if let Some(at) = self.read.iter().position(|column| column.name == name) {
            return Ok(at);
        }
        let missing = || Error::not_found(format!("there is no column {name:?}"));
        let index = schema.index_of_name(name).ok_or_else(missing)?;
        self.read.push(schema.columns()[index].clone());
        Ok(self.read.len() - 1)
    }

    fn bind_output(&mut self, aggregation: Aggregation) -> Result<()> {
        let projection: Vec<_> = self.read.iter().map(Into::into).collect();
        let results = aggregation.output(&projection)?;
        let groups = aggregation.group_by.iter().map(|at| (Some(*at), false));
        let is_sum = |aggregate: &Aggregate| aggregate.function == AggregateFunction::Sum;
        let aggregates = aggregation.aggregates.iter().map(|one| (one.column, is_sum(one)));
        let sources = groups.chain(aggregates);
        let mut columns = Vec::with_capacity(results.len());
        for (result, (source, is_sum)) in results.into_iter().zip(sources) {
            let mut column = ColumnSchema::new(0, &result.name, result.ty);
            column.nullable = result.nullable;
            if let Some(source) = source.map(|at| &self.read[at]) {
                column.attributes = source.attributes;
                if is_sum && result.ty == DataType::Decimal128 {
                    column.attributes.precision = DIGITS_MAX;
                }
            }
            columns.push(column);
        }
        self.output = self.positions.iter().map(|at| columns[*at].clone()).collect();
        self.aggregation = Arc::new(aggregation);
        Ok(())
    }
}

/// Adds a part unless it is there; returns its position.
fn add_once<T: PartialEq>(parts: &mut Vec<T>, part: T) -> usize {
    let found = parts.iter().position(|known| *known == part);
    found.unwrap_or_else(|| {
        parts.push(part);
        parts.len() - 1
    })
}

#[cfg(test)]
mod tests {
    use nyala_proto::kudu::columnar_row_block_pb::Column;

    use super::*;
    use crate::arrow::arrow_schema;

    fn schema() -> Schema {
        let mut price = ColumnSchema::new(1, "price", DataType::Decimal32).nullable();
        (price.attributes.precision, price.attributes.scale) = (9, 2);
        let mut total = ColumnSchema::new(2, "total", DataType::Decimal128).nullable();
        (total.attributes.precision, total.attributes.scale) = (30, 4);
        let columns = vec![
            ColumnSchema::new(0, "k", DataType::Int32),
            price,
            total,
            ColumnSchema::new(3, "area", DataType::Float).nullable(),
        ];
        Schema::new(columns, 1).expect("a valid schema")
    }

    fn bind(group_by: &[&str], aggregates: Vec<ColumnAggregate>) -> Result<BoundAggregation> {
        let group_by = group_by.iter().map(ToString::to_string).collect();
        BoundAggregation::new(&schema(), &AggregationSpec { group_by, aggregates })
    }

    #[test]
    fn results_have_the_types_of_their_functions() {
        let aggregates = vec![
            ColumnAggregate::count_rows(),
            ColumnAggregate::count("price"),
            ColumnAggregate::sum("price"),
            ColumnAggregate::sum("total"),
            ColumnAggregate::max("total"),
            ColumnAggregate::min("price"),
            ColumnAggregate::sum("k"),
            ColumnAggregate::sum_as_double("k"),
            ColumnAggregate::sum("area"),
        ];
        let bound = bind(&["k", "price"], aggregates).expect("all have results");
        let read: Vec<&str> = bound.read.iter().map(|column| column.name.as_str()).collect();
        assert_eq!(read, ["k", "price", "total", "area"], "each column once");
        let shown: Vec<String> = arrow_schema(&bound.output)
            .fields()
            .iter()
            .map(|field| {
                format!(
                    "{}: {}{}",
                    field.name(),
                    field.data_type(),
                    if field.is_nullable() { "?" } else { "" }
                )
            })
            .collect();
        expect_test::expect![[r#"
            k: Int32
            price: Decimal128(9, 2)?
            count(*): Int64
            count(price): Int64
            sum(price): Decimal128(38, 2)?
            sum(total): Decimal128(38, 4)?
            max(total): Decimal128(30, 4)?
            min(price): Decimal128(9, 2)?
            sum(k): Int64?
            sum(k): Float64?
            sum(area): Float64?
        "#]]
        .assert_eq(&(shown.join("\n") + "\n"));
    }

    #[test]
    fn a_repeated_part_is_asked_for_once() {
        // As SQL's mean beside a number and a sum of values.
        let of = |column| [ColumnAggregate::count(column), ColumnAggregate::sum_as_double(column)];
        let aggregates = [&of("k")[..], &of("k"), &[ColumnAggregate::sum("k")]].concat();
        let bound = bind(&["price", "k", "price"], aggregates).expect("all have results");
        assert_eq!((bound.aggregation.group_by.len(), bound.aggregation.aggregates.len()), (2, 3));
        let names: Vec<&str> = bound.output.iter().map(|column| column.name.as_str()).collect();
        let parts = ["count(k)", "sum(k)", "count(k)", "sum(k)", "sum(k)"];
        assert_eq!(names, [&["price", "k", "price"][..], &parts].concat());
        let column = |sidecar| Column { data_sidecar: Some(sidecar), ..Column::default() };
        let mut reply = ColumnarRowBlockPb { columns: (0..5).map(column).collect(), ..Default::default() };
        bound.repeat_columns(&mut reply);
        let sidecars: Vec<i32> = reply.columns.iter().map(Column::data_sidecar).collect();
        assert_eq!(sidecars, [0, 1, 0, 2, 3, 2, 3, 4]);
    }

    #[test]
    fn what_is_not_supported_is_refused() {
        let count = || vec![ColumnAggregate::count_rows()];
        let faults =
            [bind(&["area"], count()), bind(&["no"], count()), bind(&[], vec![ColumnAggregate::min("area")])];
        let texts = faults.map(|fault| fault.expect_err("it is refused").message);
        expect_test::expect![[r#"
            aggregation: groups of column "area" of type FLOAT are not supported
            there is no column "no"
            aggregation: min(area) of type FLOAT is not supported
        "#]]
        .assert_eq(&(texts.join("\n") + "\n"));
    }
}
