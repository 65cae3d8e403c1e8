//! Queries in the shape of TPC-H's Q1 and Q6: the scan filters, Arrow batches are summed here.

use std::collections::BTreeMap;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::{Date32Type, Decimal128Type};
use engine::error::{Error, Result};
use futures_util::future::join_all;
use tokio::sync::oneshot;

use nyala_client::predicate::Comparison::{self, GreaterEqual, Less, LessEqual};
use nyala_client::predicate::SimplifiedPredicate;
use nyala_client::{ScanSpec, Table};

/// 1998-12-01 less 90 days, the last day of Q1.
const Q1_LAST: i32 = 10_471;
/// 1994-01-01 and 1995-01-01, the year of Q6.
const Q6_FROM: i32 = 8_766;
const Q6_TO: i32 = 9_131;

/// Totals of a group of Q1. Sums are exact: of cents, and of their products.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PricingGroup {
    pub rows: u64,
    pub quantity: i128,
    pub price: i128,
    /// Sum of price × (1 - discount), in 1/10,000.
    pub discounted: i128,
    /// Sum of discounted × (1 + tax), in 1/1,000,000.
    pub charge: i128,
    pub discount: i128,
}

/// Q1, the pricing summary report: totals by return flag and line status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PricingSummary {
    pub groups: BTreeMap<(String, String), PricingGroup>,
}

impl PricingSummary {
    /// Adds a row: quantity, price, discount and tax in hundredths.
    pub fn add(&mut self, group: (&str, &str), shipped: i32, [quantity, price, discount, tax]: [i128; 4]) {
        if shipped > Q1_LAST {
            return;
        }
        // There are four groups: a linear search is cheaper than building a key.
        let known = self.groups.iter_mut().find(|((flag, status), _)| flag == group.0 && status == group.1);
        let group = match known {
            Some((_, known)) => known,
            None => self.groups.entry((group.0.to_string(), group.1.to_string())).or_default(),
        };
        group.rows += 1;
        group.quantity += quantity;
        group.price += price;
        group.discounted += price * (100 - discount);
        group.charge += price * (100 - discount) * (100 + tax);
        group.discount += discount;
    }

    pub fn merge(&mut self, other: PricingSummary) {
        for (key, theirs) in other.groups {
            let mine = self.groups.entry(key).or_default();
            mine.rows += theirs.rows;
            mine.quantity += theirs.quantity;
            mine.price += theirs.price;
            mine.discounted += theirs.discounted;
            mine.charge += theirs.charge;
            mine.discount += theirs.discount;
        }
    }

    fn add_batch(&mut self, batch: &RecordBatch) {
        let money = |at: usize| batch.column(at).as_primitive::<Decimal128Type>().values();
        let (flags, statuses) = (batch.column(4).as_string::<i32>(), batch.column(5).as_string::<i32>());
        let shipped = batch.column(6).as_primitive::<Date32Type>().values();
        let (quantity, price, discount, tax) = (money(0), money(1), money(2), money(3));
        for row in 0..batch.num_rows() {
            let numbers = [quantity[row], price[row], discount[row], tax[row]];
            self.add((flags.value(row), statuses.value(row)), shipped[row], numbers);
        }
    }
}

/// Q6, the forecast of revenue change: additional revenue without small discounts, in 1/10,000.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RevenueForecast {
    pub rows: u64,
    pub revenue: i128,
}

impl RevenueForecast {
    /// Adds a row: quantity, price and discount in hundredths.
    pub fn add(&mut self, shipped: i32, [quantity, price, discount]: [i128; 3]) {
        let counts = (Q6_FROM..Q6_TO).contains(&shipped) && (5..=7).contains(&discount) && quantity < 2400;
        if counts {
            self.rows += 1;
            self.revenue += price * discount;
        }
    }

    pub fn merge(&mut self, other: RevenueForecast) {
        self.rows += other.rows;
        self.revenue += other.revenue;
    }

    fn add_batch(&mut self, batch: &RecordBatch) {
        let money = |at: usize| batch.column(at).as_primitive::<Decimal128Type>().values();
        for (price, discount) in money(0).iter().zip(money(1)) {
            self.rows += 1;
            self.revenue += price * discount;
        }
    }
}

/// Result of a query, and the rows and bytes of the responses behind it.
pub struct QueryResult<T> {
    pub value: T,
    pub rows: u64,
    pub bytes: u64,
}

pub async fn pricing(table: &Table) -> Result<QueryResult<PricingSummary>> {
    let columns = [
        "l_quantity",
        "l_extendedprice",
        "l_discount",
        "l_tax",
        "l_returnflag",
        "l_linestatus",
        "l_shipdate",
    ];
    let spec = spec(table, &columns, &[("l_shipdate", LessEqual, "1998-09-02")])?;
    let parts = scan(table, &spec, PricingSummary::default(), PricingSummary::add_batch).await?;
    Ok(sum(parts, PricingSummary::merge))
}

pub async fn forecast(table: &Table) -> Result<QueryResult<RevenueForecast>> {
    let conditions = [
        ("l_shipdate", GreaterEqual, "1994-01-01"),
        ("l_shipdate", Less, "1995-01-01"),
        ("l_discount", GreaterEqual, "0.05"),
        ("l_discount", LessEqual, "0.07"),
        ("l_quantity", Less, "24"),
    ];
    let spec = spec(table, &["l_extendedprice", "l_discount"], &conditions)?;
    let parts = scan(table, &spec, RevenueForecast::default(), RevenueForecast::add_batch).await?;
    Ok(sum(parts, RevenueForecast::merge))
}

/// Returns the number of rows.
pub async fn count(table: &Table) -> Result<QueryResult<u64>> {
    let spec = spec(table, &[], &[])?;
    let parts = scan(table, &spec, 0, |rows, batch| *rows += batch.num_rows() as u64).await?;
    Ok(sum(parts, |all, part| *all += part))
}

fn spec(table: &Table, columns: &[&str], conditions: &[(&str, Comparison, &str)]) -> Result<ScanSpec> {
    let mut spec = ScanSpec {
        columns: Some(columns.iter().map(|name| name.to_string()).collect()),
        ..ScanSpec::default()
    };
    for (column, comparison, text) in conditions {
        match table.compare(column, *comparison, text)? {
            SimplifiedPredicate::Predicate(predicate) => spec.predicates.push(predicate),
            SimplifiedPredicate::Nothing => {
                return Err(Error::invalid(format!("no {column} can satisfy {text}")));
            }
        }
    }
    Ok(spec)
}

fn sum<T: Default>(parts: Vec<QueryResult<T>>, merge: impl Fn(&mut T, T)) -> QueryResult<T> {
    let mut all = QueryResult { value: T::default(), rows: 0, bytes: 0 };
    for part in parts {
        merge(&mut all.value, part.value);
        all.rows += part.rows;
        all.bytes += part.bytes;
    }
    all
}

/// Scans all tablets at once, each in its own task; returns their results.
async fn scan<T: Clone + Send + 'static>(
    table: &Table,
    spec: &ScanSpec,
    empty: T,
    add: fn(&mut T, &RecordBatch),
) -> Result<Vec<QueryResult<T>>> {
    let tokens = table.scan_tokens(spec).await?;
    let parts = tokens.into_iter().map(|token| {
        let (table, mut value) = (table.clone(), empty.clone());
        in_task(table.client().env().clone(), async move {
            let mut scanner = table.scan_token(&token)?;
            let mut rows = 0;
            while let Some(batch) = scanner.next_batch().await? {
                rows += batch.num_rows() as u64;
                add(&mut value, &batch);
            }
            Ok(QueryResult { value, rows, bytes: scanner.bytes() })
        })
    });
    join_all(parts).await.into_iter().collect()
}

/// Runs the future in its own task.
pub async fn in_task<T: Send + 'static>(
    env: nyala_common::env::Env,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let (done, result) = oneshot::channel();
    env.spawn("demo", async move {
        // The caller may have stopped waiting.
        let _ = done.send(work.await);
    });
    result.await.unwrap_or_else(|_| Err(Error::aborted("the program is ending")))
}
