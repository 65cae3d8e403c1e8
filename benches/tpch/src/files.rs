//! The eight tables as Parquet files, in the generator's order, which is that of the keys.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, RecordBatch};
use datafusion::arrow::datatypes::{Decimal128Type, Int64Type};
use datafusion::arrow::record_batch::RecordBatchReader;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

use super::command::CommandResult;

pub(crate) const TABLES: [&str; 8] =
    ["region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem"];

/// Tables that are updated: key, and columns to which 1 is added.
const UPDATED: [(&str, &str, &[&str]); 2] = [
    ("orders", "o_orderkey", &["o_totalprice"]),
    ("lineitem", "l_orderkey", &["l_quantity", "l_extendedprice"]),
];
/// Orders with this remainder of their key are updated: a tenth.
const UPDATED_KEYS: (i64, i64) = (10, 3);
/// 1 as DECIMAL(15, 2).
const ONE: i128 = 100;

const BATCH_ROWS: usize = 8192;
/// Level of DataFusion's own writer.
const ZSTD_LEVEL: i32 = 3;

/// Writes the tables at a scale into `dir`; if `updated`, only those that are updated.
pub(crate) fn generate(scale: f64, dir: &Path, updated: bool) -> CommandResult<()> {
    fs::create_dir_all(dir)?;
    for table in TABLES {
        let update = UPDATED.iter().find(|(name, ..)| *name == table);
        if updated && update.is_none() {
            continue;
        }
        let rows = rows(table, scale);
        write(&dir.join(format!("{table}.parquet")), rows, |batch| match update {
            Some((_, key, columns)) if updated => update_batch(&batch, key, columns),
            _ => Ok(batch),
        })?;
    }
    Ok(())
}

fn rows(table: &str, scale: f64) -> Box<dyn RecordBatchReader> {
    match table {
        "region" => Box::new(RegionArrow::new(RegionGenerator::new(scale, 1, 1)).with_batch_size(BATCH_ROWS)),
        "nation" => Box::new(NationArrow::new(NationGenerator::new(scale, 1, 1)).with_batch_size(BATCH_ROWS)),
        "supplier" => {
            Box::new(SupplierArrow::new(SupplierGenerator::new(scale, 1, 1)).with_batch_size(BATCH_ROWS))
        }
        "customer" => {
            Box::new(CustomerArrow::new(CustomerGenerator::new(scale, 1, 1)).with_batch_size(BATCH_ROWS))
        }
        "part" => Box::new(PartArrow::new(PartGenerator::new(scale, 1, 1)).with_batch_size(BATCH_ROWS)),
        "partsupp" => {
            Box::new(PartSuppArrow::new(PartSuppGenerator::new(scale, 1, 1)).with_batch_size(BATCH_ROWS))
        }
        "orders" => Box::new(OrderArrow::new(OrderGenerator::new(scale, 1, 1)).with_batch_size(BATCH_ROWS)),
        _ => Box::new(LineItemArrow::new(LineItemGenerator::new(scale, 1, 1)).with_batch_size(BATCH_ROWS)),
    }
}

fn write(
    path: &Path,
    rows: Box<dyn RecordBatchReader>,
    change: impl Fn(RecordBatch) -> CommandResult<RecordBatch>,
) -> CommandResult<()> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
        .set_statistics_enabled(EnabledStatistics::Page)
        .build();
    let mut writer = ArrowWriter::try_new(File::create(path)?, rows.schema(), Some(properties))?;
    for batch in rows {
        writer.write(&change(batch?)?)?;
    }
    writer.close()?;
    Ok(())
}

/// Adds 1 to columns of the rows whose key is to be updated.
fn update_batch(batch: &RecordBatch, key: &str, columns: &[&str]) -> CommandResult<RecordBatch> {
    let keys = batch.column_by_name(key).ok_or("a table has its key")?.as_primitive::<Int64Type>().clone();
    let (divisor, remainder) = UPDATED_KEYS;
    let is_updated = |row: usize| keys.value(row) % divisor == remainder;
    let mut arrays = batch.columns().to_vec();
    for column in columns {
        let index = batch.schema().index_of(column)?;
        let old = arrays[index].as_primitive::<Decimal128Type>();
        let value = |(row, value): (usize, &i128)| if is_updated(row) { value + ONE } else { *value };
        let new = Decimal128Array::from_iter_values(old.values().iter().enumerate().map(value));
        let new = new.with_precision_and_scale(old.precision(), old.scale())?;
        debug_assert_eq!(old.null_count(), 0);
        arrays[index] = Arc::new(new) as ArrayRef;
    }
    Ok(RecordBatch::try_new(batch.schema(), arrays)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_the_orders_is_updated() {
        let (mut rows, mut updated) = (0, 0);
        for batch in rows_of("orders") {
            let after = update_batch(&batch, "o_orderkey", &["o_totalprice"]).expect("an update");
            let price = |batch: &RecordBatch| {
                batch
                    .column_by_name("o_totalprice")
                    .expect("a price")
                    .as_primitive::<Decimal128Type>()
                    .clone()
            };
            let differences = price(&batch)
                .values()
                .iter()
                .zip(price(&after).values().iter())
                .map(|(before, after)| after - before)
                .collect::<Vec<_>>();
            assert!(differences.iter().all(|difference| [0, ONE].contains(difference)));
            updated += differences.iter().filter(|difference| **difference > 0).count();
            rows += batch.num_rows();
        }
        assert_eq!((rows, updated), (15_000, 1_500));
    }

    fn rows_of(table: &str) -> impl Iterator<Item = RecordBatch> {
        rows(table, 0.01).map(|batch| batch.expect("a generated batch"))
    }
}
