//! Limits on the bytes of a table's records. Every change of a table then fits into one write of the system tablet,
//! which would refuse a larger one after the catalog has made it.

use serde::Serialize;

use super::error::{CatalogError, CatalogResult};
use super::record::{SystemRecord, TableRecord};
use super::tablet_budget::{KEY_BYTES_MAX, TABLETS_MAX};
use crate::schema::partition::Partition;

/// Largest record of a table, in bytes. While a table is altered its record has both schemas.
const TABLE_BYTES_MAX: usize = 8 << 20;
/// Largest sum of the records of a table's tablets, in bytes: deleting the table changes all of them at once. What one
/// request adds is bounded by the tablet budget.
const TABLETS_BYTES_MAX: usize = 24 << 20;
/// Bytes that a tablet's record has besides its partition: replicas, state, message.
const TABLET_BYTES: usize = 1024;

// The tablets that a new table may have by the budget of its request.
const _: () = assert!(TABLETS_MAX as usize * TABLET_BYTES + KEY_BYTES_MAX as usize <= TABLETS_BYTES_MAX);

/// Refuses a table whose definition is too large to be stored.
pub(super) fn check_table(record: &TableRecord) -> CatalogResult<()> {
    let alone = TableRecord { applied_schema: None, ..record.clone() };
    let bytes = alone.seal().len();
    if bytes > TABLE_BYTES_MAX {
        return Err(CatalogError::invalid(format!(
            "the definition of table {} has {bytes} bytes, at most {TABLE_BYTES_MAX} can be stored; shorten the \
             defaults of its columns",
            record.name
        )));
    }
    Ok(())
}

/// Refuses a table to which partitions are added if its tablets are too large to be stored. `partitions`: all that it
/// would have, with their dimension labels.
pub(super) fn check_tablets<'a>(
    table: &str,
    partitions: impl Iterator<Item = (&'a Partition, Option<&'a str>)>,
) -> CatalogResult<()> {
    let bytes: usize = partitions.map(|partition| TABLET_BYTES + encoded_bytes(&partition)).sum();
    if bytes > TABLETS_BYTES_MAX {
        return Err(CatalogError::invalid(format!(
            "the tablets of table {table} have records of {bytes} bytes, at most {TABLETS_BYTES_MAX} can be stored; \
             create fewer partitions, or shorten their bounds and labels"
        )));
    }
    Ok(())
}

fn encoded_bytes(value: &impl Serialize) -> usize {
    postcard::to_stdvec(value).expect("partitions and labels can be encoded").len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(bound_bytes: usize) -> Partition {
        Partition { start: vec![1; bound_bytes], ..Partition::default() }
    }

    #[test]
    fn many_tablets_or_long_bounds_are_refused() {
        let check = |count: usize, bound_bytes: usize| {
            let partition = partition(bound_bytes);
            check_tablets("t", (0..count).map(|_| (&partition, None)))
        };
        assert_eq!(check(10_000, 100), Ok(()));
        assert!(check(100_000, 100).unwrap_err().to_string().contains("create fewer partitions"));
        assert!(check(2, 16 << 20).is_err());
        let label = "l".repeat(25 << 20);
        assert!(check_tablets("t", [(&partition(1), Some(label.as_str()))].into_iter()).is_err());
    }
}
