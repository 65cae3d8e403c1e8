//! The steps over Parquet files, read and written by the `parquet` crate with a thread for each file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use arrow_array::cast::AsArray;
use arrow_array::types::{Date32Type, Decimal128Type, Int32Type, Int64Type};
use arrow_array::{BooleanArray, RecordBatch};
use benches::lineitem::{Q1, batch};
use engine::error::{Error, Result};
use node::cli::lineitem::{TablePart, schema};
use node::cli::queries::RevenueForecast;
use nyala_client::arrow::arrow_schema;
use parquet::arrow::arrow_reader::{
    ArrowPredicateFn, ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder, RowFilter,
};
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::Compression;
use parquet::file::metadata::PageIndexPolicy;
use parquet::file::properties::WriterProperties;
use parquet::file::statistics::Statistics;

use super::{BLOCK_ROWS, Began, Did, LOOKUPS, Options, PARTS, Step, expect, some_keys, truth};

type Builder = ParquetRecordBatchReaderBuilder<File>;

const BATCH_ROWS: usize = 8192;

pub(super) fn step(options: &Options) -> Result<Did> {
    let folder = Path::new(&options.at);
    if let Step::Load = options.step {
        return load(folder, options.scale);
    }
    let truth = truth(options.scale)?;
    let began = Began::now();
    match options.step {
        Step::Load => unreachable!("it was done without looking at the truth"),
        Step::Count => {
            let rows = each(folder, |file| Ok(file.open()?.metadata().file_metadata().num_rows() as u64))?;
            expect("count", rows.iter().sum(), truth.rows)?;
            Ok(began.step_result(truth.rows))
        }
        Step::Scan => {
            let rows = each(folder, scan)?;
            expect("scan", rows.iter().sum(), truth.rows)?;
            Ok(began.step_result(truth.rows))
        }
        Step::Select => {
            let mut all = RevenueForecast::default();
            each(folder, select)?.into_iter().for_each(|part| all.merge(part));
            let done = began.step_result(truth.rows);
            if all == truth.forecast { Ok(done) } else { Err(Error::corrupt("the revenue is wrong")) }
        }
        Step::Find => {
            let files: Vec<Parquet> =
                (1..=PARTS).map(|part| Parquet::open_at(folder, part)).collect::<Result<_>>()?;
            let mut times = Vec::new();
            for (order, line) in some_keys(&truth) {
                let began = Instant::now();
                let key = (i64::from_le_bytes(*order), i32::from_le_bytes(*line));
                let rows: Vec<u64> = files.iter().map(|file| find(file, key)).collect::<Result<_>>()?;
                expect("find", rows.iter().sum(), 1)?;
                times.push(began.elapsed());
            }
            Ok(began.found(LOOKUPS as u64, times))
        }
    }
}

fn path(folder: &Path, part: i32) -> PathBuf {
    folder.join(format!("lineitem-{part}.parquet"))
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("Parquet: {error}"))
}

fn load(folder: &Path, scale: f64) -> Result<Did> {
    let began = Began::now();
    let parts: Vec<_> =
        (1..=PARTS).map(|part| (path(folder, part), TablePart::new(scale, part, PARTS))).collect();
    let writers: Vec<_> =
        parts.into_iter().map(|(path, part)| thread::spawn(move || write(&path, part?))).collect();
    let mut rows = 0;
    for writer in writers {
        rows += writer.join().expect("a writer does not panic")?;
    }
    Ok(began.step_result(rows))
}

fn write(path: &Path, mut part: TablePart) -> Result<u64> {
    let properties = WriterProperties::builder().set_compression(Compression::LZ4_RAW).build();
    let file = File::create(path).map_err(failed)?;
    let mut writer =
        ArrowWriter::try_new(file, arrow_schema(schema()?.columns()), Some(properties)).map_err(failed)?;
    while let Some(block) = part.next(BLOCK_ROWS) {
        writer.write(&batch(&block.into_iter().flatten().collect::<Vec<_>>())).map_err(failed)?;
    }
    writer.close().map_err(failed)?;
    Ok(part.truth.rows)
}

/// A file with its footer and page index read.
struct Parquet {
    path: PathBuf,
    footer: ArrowReaderMetadata,
}

impl Parquet {
    fn open_at(folder: &Path, part: i32) -> Result<Parquet> {
        let path = path(folder, part);
        let file = File::open(&path).map_err(failed)?;
        let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Required);
        Ok(Parquet { footer: ArrowReaderMetadata::load(&file, options).map_err(failed)?, path })
    }

    fn open(&self) -> Result<Builder> {
        let file = File::open(&self.path).map_err(failed)?;
        Ok(Builder::new_with_metadata(file, self.footer.clone()).with_batch_size(BATCH_ROWS))
    }
}

/// Applies `work` to every file, in parallel.
fn each<T: Send + 'static>(folder: &Path, work: fn(&Parquet) -> Result<T>) -> Result<Vec<T>> {
    let start = |part| {
        let folder = folder.to_path_buf();
        thread::spawn(move || work(&Parquet::open_at(&folder, part)?))
    };
    let running: Vec<_> = (1..=PARTS).map(start).collect();
    running.into_iter().map(|thread| thread.join().expect("a reader does not panic")).collect()
}

fn scan(file: &Parquet) -> Result<u64> {
    let builder = file.open()?;
    let mask = ProjectionMask::columns(builder.parquet_schema(), Q1);
    let mut rows = 0;
    for batch in builder.with_projection(mask).build().map_err(failed)? {
        rows += std::hint::black_box(batch.map_err(failed)?).num_rows() as u64;
    }
    Ok(rows)
}

/// Runs Q6: reads its columns and evaluates its conditions here.
fn select(file: &Parquet) -> Result<RevenueForecast> {
    let builder = file.open()?;
    let columns = ["l_quantity", "l_extendedprice", "l_discount", "l_shipdate"];
    let mask = ProjectionMask::columns(builder.parquet_schema(), columns);
    let mut forecast = RevenueForecast::default();
    for batch in builder.with_projection(mask).build().map_err(failed)? {
        let batch = batch.map_err(failed)?;
        let money = |at: usize| batch.column(at).as_primitive::<Decimal128Type>().values();
        let (quantity, price, discount) = (money(0), money(1), money(2));
        let shipped = batch.column(3).as_primitive::<Date32Type>().values();
        for row in 0..batch.num_rows() {
            forecast.add(shipped[row], [quantity[row], price[row], discount[row]]);
        }
    }
    Ok(forecast)
}

/// Reads one row by its key: skips row groups whose orders cannot contain it, reads the key of the others, then the
/// row. The files have no index by key.
fn find(file: &Parquet, (order, line): (i64, i32)) -> Result<u64> {
    let builder = file.open()?;
    let groups: Vec<usize> = (0..builder.metadata().num_row_groups())
        .filter(|group| may_hold(builder.metadata().row_group(*group).column(0).statistics(), order))
        .collect();
    if groups.is_empty() {
        return Ok(0);
    }
    let mask = ProjectionMask::columns(builder.parquet_schema(), ["l_orderkey", "l_linenumber"]);
    let same = move |batch: RecordBatch| {
        let orders = batch.column(0).as_primitive::<Int64Type>().values();
        let lines = batch.column(1).as_primitive::<Int32Type>().values();
        Ok(orders.iter().zip(lines).map(|(o, l)| Some((*o, *l) == (order, line))).collect::<BooleanArray>())
    };
    let filter = RowFilter::new(vec![Box::new(ArrowPredicateFn::new(mask, same))]);
    let mut rows = 0;
    for batch in builder.with_row_groups(groups).with_row_filter(filter).build().map_err(failed)? {
        rows += std::hint::black_box(batch.map_err(failed)?).num_rows() as u64;
    }
    Ok(rows)
}

fn may_hold(statistics: Option<&Statistics>, order: i64) -> bool {
    match statistics {
        Some(Statistics::Int64(range)) => {
            range.min_opt().is_none_or(|min| *min <= order) && range.max_opt().is_none_or(|max| order <= *max)
        }
        _ => true,
    }
}
