//! RepeatableSnapshot: two scans of one snapshot see the same rows.
//!
//! The only invariant here about client-visible behaviour: it compares replies with replies and needs no model.

use std::collections::BTreeMap;

use crate::history::{CallOutcome, ClientRequest, HistoryOp, HybridStamp, ScannedRow, TableNo};
use crate::oracle::{OracleReport, Violation};
use crate::projection::Projection;

const NAME: &str = "RepeatableSnapshot";

/// Compares every scan with the first of the same snapshot and projection, on the keys that both requested.
pub fn check(operations: &[HistoryOp], report: &mut OracleReport) {
    type Scanned<'a> = (usize, (i64, i64), &'a [ScannedRow]);
    let mut first: BTreeMap<(TableNo, HybridStamp, Projection), Scanned> = BTreeMap::new();
    for (index, operation) in operations.iter().enumerate() {
        let ClientRequest::Scan(scan) = &operation.request else { continue };
        let CallOutcome::Rows { at: Some(at), rows } = &operation.outcome else { continue };
        if scan.diff_from.is_some() {
            continue;
        }
        let (other, keys, seen) =
            *first.entry((scan.table, *at, scan.view)).or_insert((index, scan.keys, rows));
        let both = scan.keys.0.max(keys.0)..scan.keys.1.min(keys.1);
        let (before, now) = (cut(seen, &both), cut(rows, &both));
        report.checked += 1;
        if before != now {
            let differ = |key: &&i64| before.get(*key) != now.get(*key);
            let keys: Vec<_> = before.keys().chain(now.keys()).filter(differ).take(5).collect();
            let message = format!(
                "ops {other} and {index} read table {} at {at} and differ in keys {keys:?}",
                scan.table
            );
            report.add(Violation::new(NAME, message));
        }
    }
}

fn cut<'a>(rows: &'a [ScannedRow], keys: &std::ops::Range<i64>) -> BTreeMap<i64, &'a ScannedRow> {
    rows.iter().filter(|seen| keys.contains(&seen.key)).map(|seen| (seen.key, seen)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::testing::history;

    fn is_clean(text: &str) -> bool {
        let mut report = OracleReport::default();
        check(&history(text), &mut report);
        report.is_clean()
    }

    #[test]
    fn differing_replies_are_reported() {
        let text = "0 1-2 snapshot @9 1=5 2=6\n1 3-4 snapshot @9 1=5 2=6\n1 5-6 snapshot @10 1=5";
        assert!(is_clean(text));
        assert!(!is_clean(&text.replace("@10", "@9")));
        assert!(!is_clean(&text.replacen("2=6", "2=7", 1)));
    }
}
