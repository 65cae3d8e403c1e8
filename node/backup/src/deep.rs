//! Deep verification of a backup: all rows are decoded; keys ascend, so none occurs twice; rows are counted.

use std::cmp::Ordering;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_ord::ord::{DynComparator, make_comparator};
use arrow_schema::SortOptions;
use engine::error::{Error, Result};
use parquet::file::reader::ChunkReader;

use super::manifest::PartEntry;
use super::part_reader::open_rows;
use super::store::{BackupStore, StoredBackup};

/// Rows decoded at a time.
const BATCH_ROWS: usize = 4096;

/// Decodes all rows of a backup. The error names the file.
pub fn verify_rows(store: &BackupStore, backup: &StoredBackup) -> Result<()> {
    let keys = backup.manifest.schema()?.num_key_columns();
    for part in &backup.manifest.parts {
        let file = store.open_part(&backup.dir, &part.file)?;
        // Kudu's job reads tablets in any order.
        let keys = if backup.manifest.is_kudus() { 0 } else { keys };
        let verified = verify_part(file, part, keys);
        verified.map_err(|error| {
            error.context(format_args!("{}/{}/{}", store.location(), backup.dir, part.file))
        })?;
    }
    Ok(())
}

fn undecodable(error: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("rows that cannot be decoded: {error}"))
}

fn verify_part(file: impl ChunkReader + Clone + 'static, part: &PartEntry, keys: usize) -> Result<()> {
    let reader = open_rows(file)?;
    let reader = reader.with_batch_size(BATCH_ROWS).build().map_err(undecodable)?;
    let mut rows = 0;
    let mut last: Option<RecordBatch> = None;
    for batch in reader {
        let batch = batch.map_err(undecodable)?;
        if batch.num_columns() < keys {
            return Err(undecodable("columns of the key are missing"));
        }
        if batch.num_rows() == 0 {
            continue;
        }
        if keys == 0 {
            rows += batch.num_rows() as u64;
            continue;
        }
        if let Some(last) = &last
            && !KeyOrder::new(last, &batch, keys)?.ascends(last.num_rows() - 1, 0)
        {
            return Err(out_of_order(rows));
        }
        let order = KeyOrder::new(&batch, &batch, keys)?;
        if let Some(row) = (1..batch.num_rows()).find(|row| !order.ascends(row - 1, *row)) {
            return Err(out_of_order(rows + row as u64));
        }
        rows += batch.num_rows() as u64;
        last = Some(batch);
    }
    if rows != part.rows {
        return Err(Error::corrupt(format!("{rows} rows instead of {}", part.rows)));
    }
    Ok(())
}

fn out_of_order(row: u64) -> Error {
    Error::corrupt(format!("the key of row {row} is not above that of the row before"))
}

/// Order of the keys of two batches.
struct KeyOrder(Vec<DynComparator>);

impl KeyOrder {
    fn new(left: &RecordBatch, right: &RecordBatch, keys: usize) -> Result<KeyOrder> {
        let compare = |(left, right): (&ArrayRef, &ArrayRef)| {
            make_comparator(left, right, SortOptions::default()).map_err(undecodable)
        };
        let columns = left.columns().iter().zip(right.columns()).take(keys);
        Ok(KeyOrder(columns.map(compare).collect::<Result<_>>()?))
    }

    /// Returns true if the key of a row of the left batch is below that of a row of the right one.
    fn ascends(&self, left: usize, right: usize) -> bool {
        let order = self.0.iter().map(|compare| compare(left, right)).find(|order| order.is_ne());
        order == Some(Ordering::Less)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Int32Array, StringArray};
    use parquet::arrow::ArrowWriter;

    use super::*;

    /// Verifies a file of rows with a key of two columns; shows the error.
    fn verified(rows: &[(i32, &str)], counted: u64) -> String {
        let first: ArrayRef = Arc::new(Int32Array::from_iter_values(rows.iter().map(|row| row.0)));
        let second: ArrayRef = Arc::new(StringArray::from_iter_values(rows.iter().map(|row| row.1)));
        let batch = RecordBatch::try_from_iter([("a", first), ("b", second)]).expect("a batch");
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).expect("a schema");
        writer.write(&batch).expect("memory");
        writer.close().expect("memory");
        let (file, tablet) = ("part".to_string(), "t".to_string());
        let part = PartEntry { file, tablet, bytes: 0, rows: counted, crc32c: 0 };
        verify_part(bytes::Bytes::from(bytes), &part, 2)
            .map_or_else(|error| error.message, |()| "ok".to_string())
    }

    #[test]
    fn keys_ascend_and_rows_are_counted() {
        let rows = [(-1, "b"), (1, "a"), (1, "b"), (2, "")];
        let out = "is not above that of the row before";
        assert_eq!(verified(&rows, 4), "ok");
        assert_eq!(verified(&[], 0), "ok");
        assert_eq!(verified(&rows, 5), "4 rows instead of 5");
        assert_eq!(verified(&[rows[0], rows[1], rows[1]], 3), format!("the key of row 2 {out}"));
        assert_eq!(verified(&[rows[2], rows[1]], 2), format!("the key of row 1 {out}"));
        // The first row of the second batch.
        let mut many: Vec<(i32, &str)> = (0..=BATCH_ROWS as i32).map(|i| (i, "")).collect();
        assert_eq!(verified(&many, many.len() as u64), "ok");
        many[BATCH_ROWS].0 -= 1;
        assert_eq!(verified(&many, many.len() as u64), format!("the key of row {BATCH_ROWS} {out}"));
    }
}
