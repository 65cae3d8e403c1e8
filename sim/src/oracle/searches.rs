//! One question asked twice at one snapshot has one answer: a count and the rows themselves, a few of them and all.

use super::Finding;
use crate::history::{Scan, Seen};

const NAME: &str = "searches";

/// A scan counted so many rows, and then gave these.
pub fn check_count(scan: &Scan, count: u64, rows: &[Seen]) -> Option<Finding> {
    let given = rows.len() as u64;
    (given != count).then(|| {
        let what = format!("{scan:?} counted {count} rows, and then gave {given} at the same snapshot");
        Finding::new(NAME, what)
    })
}

/// A scan gave a few rows, `limit` at most, and then all of them.
pub fn check_few(scan: &Scan, few: &[Seen], all: &[Seen], limit: u64) -> Option<Finding> {
    let expected = limit.min(all.len() as u64);
    let stray = few.iter().find(|seen| !all.contains(seen));
    (few.len() as u64 != expected || stray.is_some()).then(|| {
        let (given, of) = (few.len(), all.len());
        let what = format!("{scan:?} limited to {limit} gave {given} of {of} rows, {stray:?} among them");
        Finding::new(NAME, what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Mode;
    use crate::view::WHOLE;

    const SCAN: Scan =
        Scan { table: 0, keys: (0, 99), mode: Mode::Snapshot, diff_from: None, ordered: false, view: WHOLE };

    fn rows(rows: &[(i64, i64)]) -> Vec<Seen> {
        rows.iter().map(|(key, value)| Seen { key: *key, row: Some(vec![Some(*value)]) }).collect()
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
