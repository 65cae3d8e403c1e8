//! Two queries at one snapshot agree: a count with the rows, a limited scan with the full one.

use super::Violation;
use crate::history::{ScanRequest, ScannedRow};

const NAME: &str = "query consistency";

/// Checks a scan that counted `count` rows and then returned these.
pub fn check_count(scan: &ScanRequest, count: u64, rows: &[ScannedRow]) -> Option<Violation> {
    let given = rows.len() as u64;
    (given != count).then(|| {
        let what = format!("{scan:?} counted {count} rows and returned {given} at the same snapshot");
        Violation::new(NAME, what)
    })
}

/// Checks a scan that returned a few rows, `limit` at most, and then all of them.
pub fn check_few(
    scan: &ScanRequest,
    few: &[ScannedRow],
    all: &[ScannedRow],
    limit: u64,
) -> Option<Violation> {
    let expected = limit.min(all.len() as u64);
    let stray = few.iter().find(|seen| !all.contains(seen));
    (few.len() as u64 != expected || stray.is_some()).then(|| {
        let (given, of) = (few.len(), all.len());
        let what = format!("{scan:?} limited to {limit} returned {given} of {of} rows, foreign: {stray:?}");
        Violation::new(NAME, what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::ScanMode;
    use crate::projection::WHOLE;

    const SCAN: ScanRequest = ScanRequest {
        table: 0,
        keys: (0, 99),
        mode: ScanMode::Snapshot,
        diff_from: None,
        ordered: false,
        view: WHOLE,
    };

    fn rows(rows: &[(i64, i64)]) -> Vec<ScannedRow> {
        rows.iter().map(|(key, value)| ScannedRow { key: *key, row: Some(vec![Some(*value)]) }).collect()
    }

    #[test]
    fn a_count_that_differs_from_its_rows_is_noticed() {
        let two = rows(&[(1, 5), (2, 6)]);
        assert_eq!(check_count(&SCAN, 2, &two), None);
        assert!(check_count(&SCAN, 1, &two).is_some() && check_count(&SCAN, 3, &two).is_some());
    }

    #[test]
    fn a_few_are_as_many_as_asked_for_and_some_of_all() {
        let all = rows(&[(1, 5), (2, 6), (3, 7)]);
        let few = |given: &[(i64, i64)], limit| check_few(&SCAN, &rows(given), &all, limit).is_some();
        assert!(!few(&[(3, 7), (1, 5)], 2) && !few(&[(1, 5), (2, 6), (3, 7)], 9) && !few(&[], 0));
        assert!(few(&[(1, 5)], 2), "too few");
        assert!(few(&[(1, 5), (2, 6), (3, 7)], 2), "too many");
        assert!(few(&[(1, 6)], 1), "none of them");
    }
}
