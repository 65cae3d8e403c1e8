//! O5: at one timestamp, all replicas of a tablet hold the same rows, which are those that a scan returns.

use std::collections::BTreeMap;

use super::Violation;
use crate::history::{HybridStamp, TableNo};

const NAME: &str = "replica checksums";

/// One replica's response to a Checksum call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaChecksum {
    pub table: TableNo,
    pub tablet: String,
    pub server: String,
    pub at: HybridStamp,
    pub checksum: u64,
    pub rows: u64,
}

/// Compares the replicas of each tablet.
pub fn check(sums: &[ReplicaChecksum]) -> Vec<Violation> {
    let mut tablets: BTreeMap<(&str, HybridStamp), Vec<&ReplicaChecksum>> = BTreeMap::new();
    for sum in sums {
        tablets.entry((&sum.tablet, sum.at)).or_default().push(sum);
    }
    let differs = |sums: &&Vec<&ReplicaChecksum>| {
        sums.iter().any(|sum| (sum.checksum, sum.rows) != (sums[0].checksum, sums[0].rows))
    };
    let violation = |((tablet, at), sums): (&(&str, HybridStamp), &Vec<&ReplicaChecksum>)| {
        let message = format!("replicas of tablet {tablet} of table {} differ at {at}", sums[0].table);
        let line = |sum: &&ReplicaChecksum| {
            format!("{}: {} rows, checksum {:016x}", sum.server, sum.rows, sum.checksum)
        };
        Violation { oracle: NAME, message, story: sums.iter().map(line).collect() }
    };
    tablets.iter().filter(|(_, sums)| differs(sums)).map(violation).collect()
}

/// Compares a replica's sum with the sum and the number of the rows that a scan of its snapshot returned.
pub fn check_rows(sum: &ReplicaChecksum, (checksum, rows): (u64, u64)) -> Option<Violation> {
    ((sum.checksum, sum.rows) != (checksum, rows)).then(|| {
        let ReplicaChecksum { table, tablet, server, at, .. } = sum;
        let message = format!(
            "tablet {tablet} of table {table} at {at}: {server} sums {} rows, checksum {:016x}; a scan has {rows}, \
             checksum {checksum:016x}",
            sum.rows, sum.checksum
        );
        Violation::new(NAME, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_differs_is_named() {
        let sum = |server: &str, checksum, rows| {
            let (tablet, server) = ("a".to_string(), server.to_string());
            ReplicaChecksum { table: 0, tablet, server, at: 9, checksum, rows }
        };
        assert!(check(&[sum("x", 5, 2), sum("y", 5, 2), sum("z", 5, 2)]).is_empty());
        for odd in [sum("z", 6, 2), sum("z", 5, 3)] {
            let found = check(&[sum("x", 5, 2), sum("y", 5, 2), odd]);
            assert!(found[0].story.iter().any(|line| line.starts_with("z:")));
        }
    }

    #[test]
    fn a_sum_that_is_not_that_of_the_rows_is_reported() {
        let (tablet, server) = ("a".to_string(), "x".to_string());
        let sum = ReplicaChecksum { table: 0, tablet, server, at: 9, checksum: 5, rows: 2 };
        assert_eq!(check_rows(&sum, (5, 2)), None);
        assert!(check_rows(&sum, (6, 2)).is_some() && check_rows(&sum, (5, 3)).is_some());
    }
}
