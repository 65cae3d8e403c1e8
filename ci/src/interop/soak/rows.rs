//! The rows that a table must have, by the writes that were acknowledged.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};

/// Wrong rows that an error names.
const NAMED_MAX: usize = 10;

/// Version of a row, `None` if there is no row.
pub(super) type Version = Option<u64>;

/// Model of a table: each row is as its last acknowledged write left it.
///
/// The outcome of a write that was not acknowledged is open: the row may be as before or after it. A read that sees the
/// write settles it. Invariant: such a row is not written again, because an old write could take effect late.
#[derive(Default)]
pub(super) struct AcknowledgedRows {
    settled: BTreeMap<u64, Version>,
    /// Versions that writes of unknown outcome leave.
    open: BTreeMap<u64, Version>,
}

impl AcknowledgedRows {
    pub(super) fn acknowledge(&mut self, key: u64, version: Version) {
        self.settled.insert(key, version);
    }

    /// Records a write of unknown outcome.
    pub(super) fn leave_open(&mut self, key: u64, version: Version) {
        self.open.insert(key, version);
    }

    /// Returns true if the row may be written again.
    pub(super) fn is_writable(&self, key: u64) -> bool {
        !self.open.contains_key(&key)
    }

    /// Returns true if the row is there and may be deleted.
    pub(super) fn is_deletable(&self, key: u64) -> bool {
        self.is_writable(key) && self.version(key).is_some()
    }

    /// Returns the number of rows that a write left open.
    pub(super) fn open_count(&self) -> u64 {
        self.open.len() as u64
    }

    fn version(&self, key: u64) -> Version {
        self.settled.get(&key).copied().flatten()
    }

    /// Checks all rows of one read, given as key and version; returns their number.
    pub(super) fn check(&mut self, read: &[(u64, u64)]) -> Result<u64> {
        let found: BTreeMap<u64, u64> = read.iter().copied().collect();
        let twice = read.len() - found.len();
        ensure!(twice == 0, "{twice} keys were read twice");
        let keys: BTreeSet<u64> = found.keys().chain(self.settled.keys()).copied().collect();
        let wrong: Vec<String> =
            keys.iter().filter_map(|&key| self.wrong(key, found.get(&key).copied())).collect();
        ensure!(
            wrong.is_empty(),
            "{} rows are wrong, such as\n{}",
            wrong.len(),
            wrong[..wrong.len().min(NAMED_MAX)].join("\n")
        );
        Ok(found.len() as u64)
    }

    /// Returns the fault of a row, if there is one.
    fn wrong(&mut self, key: u64, found: Version) -> Option<String> {
        if found == self.version(key) {
            return None;
        }
        if self.open.get(&key) == Some(&found) {
            self.settled.insert(key, found);
            return None;
        }
        let (settled, open) = (self.version(key), self.open.get(&key));
        Some(format!("key {key}: acknowledged version {settled:?}, unknown {open:?}, found {found:?}"))
    }
}

/// Returns key and version of each row of an export in CSV, whose text must be that of [`text`].
pub(super) fn parse(csv: &str) -> Result<Vec<(u64, u64)>> {
    let row = |line: &str| {
        let mut cells = line.splitn(3, ',');
        let mut number = || cells.next().and_then(|cell| cell.parse().ok());
        let (key, version): (u64, u64) =
            number().zip(number()).with_context(|| format!("the row {line:?}"))?;
        ensure!(cells.next() == Some(&text(key, version)), "another text than was written: {line:?}");
        Ok((key, version))
    };
    csv.lines().skip(1).map(row).collect()
}

/// Returns the text that belongs to a version of a row.
pub(super) fn text(key: u64, version: u64) -> String {
    format!("row {key} version {version}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> AcknowledgedRows {
        let mut rows = AcknowledgedRows::default();
        rows.acknowledge(1, Some(10));
        rows.acknowledge(2, Some(11));
        rows.acknowledge(3, Some(12));
        rows.acknowledge(3, None);
        rows
    }

    #[test]
    fn acknowledged_rows_are_there_in_their_last_version() {
        assert_eq!(rows().check(&[(1, 10), (2, 11)]).unwrap(), 2);
        let fault = |read: &[(u64, u64)]| rows().check(read).unwrap_err().to_string();
        assert!(fault(&[(1, 10)]).contains("key 2: acknowledged version Some(11), unknown None, found None"));
        assert!(fault(&[(1, 9), (2, 11)]).contains("key 1: acknowledged version Some(10)"));
        assert!(fault(&[(1, 10), (2, 11), (3, 12)]).contains("key 3: acknowledged version None"));
        assert!(fault(&[(1, 10), (2, 11), (4, 1)]).contains("key 4"));
        assert!(fault(&[(1, 10), (2, 11), (2, 11)]).contains("1 keys were read twice"));
    }

    #[test]
    fn an_open_write_may_be_there_or_not_until_it_is_seen() {
        let mut rows = rows();
        rows.leave_open(1, Some(20));
        rows.leave_open(2, None);
        rows.leave_open(5, Some(21));
        assert!(
            !rows.is_writable(1) && rows.is_writable(3) && !rows.is_deletable(2) && !rows.is_deletable(3)
        );
        assert_eq!(rows.check(&[(1, 10), (2, 11)]).unwrap(), 2);
        assert_eq!(rows.check(&[(1, 20), (2, 11)]).unwrap(), 2);
        assert!(rows.check(&[(1, 10), (2, 11)]).is_err(), "a write that was seen stays");
        assert_eq!(rows.check(&[(1, 20), (5, 21)]).unwrap(), 2);
        assert!(rows.check(&[(1, 20), (2, 11), (5, 21)]).is_err(), "a delete that was seen stays");
    }

    #[test]
    fn exports_are_parsed_and_their_texts_compared() {
        let csv = "key,version,text\n7,3,row 7 version 3\n8,1,row 8 version 1\n";
        assert_eq!(parse(csv).unwrap(), [(7, 3), (8, 1)]);
        assert!(parse("key,version,text\n7,3,row 7 version 2\n").is_err());
        assert!(parse("key,version,text\n7\n").is_err());
    }
}
