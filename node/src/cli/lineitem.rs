//! TPC-H's lineitem table: its schema, its rows, and the expected results of queries.

use engine::error::Result;
use engine::schema::row_block::ColumnBlock;
use engine::schema::{ColumnSchema, DataType, Schema, TypeAttributes};
use tpchgen::generators::{LineItem, LineItemGenerator, LineItemGeneratorIterator};

use super::queries::{PricingSummary, RevenueForecast};

/// Interval in rows at which a key is kept for lookups.
const SAMPLE_EVERY: u64 = 97;

pub fn schema() -> Result<Schema> {
    let decimal = TypeAttributes { precision: 15, scale: 2, length: 0 };
    let columns = [
        ("l_orderkey", DataType::Int64),
        ("l_linenumber", DataType::Int32),
        ("l_partkey", DataType::Int64),
        ("l_suppkey", DataType::Int64),
        ("l_quantity", DataType::Decimal64),
        ("l_extendedprice", DataType::Decimal64),
        ("l_discount", DataType::Decimal64),
        ("l_tax", DataType::Decimal64),
        ("l_returnflag", DataType::String),
        ("l_linestatus", DataType::String),
        ("l_shipdate", DataType::Date),
        ("l_commitdate", DataType::Date),
        ("l_receiptdate", DataType::Date),
        ("l_shipinstruct", DataType::String),
        ("l_shipmode", DataType::String),
        ("l_comment", DataType::String),
    ];
    let column = |((name, ty), id): (&(&str, DataType), u32)| {
        let mut column = ColumnSchema::new(id, name, *ty);
        if *ty == DataType::Decimal64 {
            column.attributes = decimal;
        }
        column
    };
    Schema::new(columns.iter().zip(0..).map(column).collect(), 2)
}

/// Rows generated so far, and their totals.
#[derive(Debug, Clone, Default)]
pub struct ExpectedTotals {
    pub rows: u64,
    pub bytes: u64,
    pub pricing: PricingSummary,
    pub forecast: RevenueForecast,
    /// Keys of some rows, as cells.
    pub keys: Vec<([u8; 8], [u8; 4])>,
}

impl ExpectedTotals {
    fn see(&mut self, item: &LineItem<'_>) {
        if self.rows.is_multiple_of(SAMPLE_EVERY) {
            self.keys.push((item.l_orderkey.to_le_bytes(), item.l_linenumber.to_le_bytes()));
        }
        self.rows += 1;
        let (price, discount) = (item.l_extendedprice.0, item.l_discount.0);
        let (quantity, shipped) = (item.l_quantity * 100, item.l_shipdate.to_unix_epoch());
        self.pricing.add(
            (item.l_returnflag, item.l_linestatus),
            shipped,
            [quantity, price, discount, item.l_tax.0].map(i128::from),
        );
        self.forecast.add(shipped, [quantity, price, discount].map(i128::from));
    }

    pub fn merge(&mut self, other: ExpectedTotals) {
        self.rows += other.rows;
        self.bytes += other.bytes;
        self.pricing.merge(other.pricing);
        self.forecast.merge(other.forecast);
        self.keys.extend(other.keys);
    }
}

/// One of several equal parts of the table.
pub struct TablePart {
    schema: Schema,
    items: LineItemGeneratorIterator<'static>,
    pub truth: ExpectedTotals,
}

impl TablePart {
    /// Creates part `part` (from 1) of `parts` at this scale factor.
    pub fn new(scale: f64, part: i32, parts: i32) -> Result<TablePart> {
        let items = LineItemGenerator::new(scale, part, parts).iter();
        Ok(TablePart { schema: schema()?, items, truth: ExpectedTotals::default() })
    }

    /// Returns at most `max` rows, by column; `None` at the end.
    pub fn next(&mut self, max: usize) -> Option<Vec<Option<ColumnBlock>>> {
        let new = |column: &ColumnSchema| ColumnBlock::new(column.ty.physical(), column.nullable);
        let mut blocks: Vec<ColumnBlock> = self.schema.columns().iter().map(new).collect();
        for item in self.items.by_ref().take(max) {
            self.truth.see(&item);
            push(&mut blocks, &item);
        }
        self.truth.bytes += blocks.iter().map(|block| block.byte_size() as u64).sum::<u64>();
        (!blocks[0].is_empty()).then(|| blocks.into_iter().map(Some).collect())
    }
}

fn push(blocks: &mut [ColumnBlock], item: &LineItem<'_>) {
    let dates =
        [item.l_shipdate, item.l_commitdate, item.l_receiptdate].map(|d| d.to_unix_epoch().to_le_bytes());
    let money = [item.l_quantity * 100, item.l_extendedprice.0, item.l_discount.0, item.l_tax.0];
    let money = money.map(i64::to_le_bytes);
    let cells: [&[u8]; 16] = [
        &item.l_orderkey.to_le_bytes(),
        &item.l_linenumber.to_le_bytes(),
        &item.l_partkey.to_le_bytes(),
        &item.l_suppkey.to_le_bytes(),
        &money[0],
        &money[1],
        &money[2],
        &money[3],
        item.l_returnflag.as_bytes(),
        item.l_linestatus.as_bytes(),
        &dates[0],
        &dates[1],
        &dates[2],
        item.l_shipinstruct.as_bytes(),
        item.l_shipmode.as_bytes(),
        item.l_comment.as_bytes(),
    ];
    for (block, cell) in blocks.iter_mut().zip(cells) {
        block.push(Some(cell));
    }
}
