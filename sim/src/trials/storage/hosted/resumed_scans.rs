//! Ordered scans that resume after the key of a row, as after a server that ended: they return the rows behind it.
//!
//! ```text
//!   all rows in order at a snapshot:  ""  "a"  "a\0"  "b"
//!   resumed after the first row:          "a"  "a\0"  "b"
//! ```
//!
//! The empty text is a key of no bytes. A request with it differs from one without a key.

use sim_plan::client_ops::WriteKind;
use sim_plan::tables::Value;

use super::{HostedTrial, text_keys};
use crate::model::draws;
use crate::trials::rows::key_of;
use crate::wire::scan::{ScanRow, TabletScan};

impl HostedTrial {
    /// Reads all rows in order, and again those after the first one and after one in the middle. Nothing is written
    /// meanwhile, and a snapshot has the same rows at any time. A scan that is refused or has no reply is not checked.
    pub(super) fn check_resumed_scans(&mut self) {
        self.view = self.table.shape.clone();
        self.write_empty_key();
        let Some(scan) = self.drawn_scan() else { return };
        let scan = TabletScan { ordered: true, ..scan };
        let Ok(rows) = self.scan_by_calls(&scan, None) else { return };
        for at in [0, rows.len() / 2] {
            let Some(row) = rows.get(at) else { return };
            let key = self.key_of_row(&scan, row);
            let is_empty = key.is_empty();
            let Ok(resumed) = self.scan_by_calls(&scan, Some(key)) else { continue };
            let (all, found) = (rows.len(), resumed.len());
            self.fleet.note(format!("{found} of {all} rows after row {at}, an empty key: {is_empty}"));
            if !is_rest(&rows, at, &resumed) {
                let what = format!("a scan of {all} rows that resumes after row {at} has {found} others");
                self.fleet.report(what);
            }
        }
    }

    /// Writes a row whose key is the empty text, if the table's key is one text.
    fn write_empty_key(&mut self) {
        let Some(column) = text_keys::text_key(&self.view) else { return };
        let mut row = draws::row(&mut self.random, &self.view, WriteKind::Upsert);
        row.cells.insert(column, Value::bytes(&[]));
        let id = self.next_request();
        self.write_rows(&[row], &id);
    }

    /// Returns the encoded key of a row of a scan.
    fn key_of_row(&self, scan: &TabletScan, row: &ScanRow) -> Vec<u8> {
        let numbers = scan.columns.iter().map(|column| column.number);
        key_of(&self.view, &numbers.zip(row.values.iter().cloned()).collect())
    }
}

/// Returns true if a resumed scan has the rows after the one at `at`.
fn is_rest(rows: &[ScanRow], at: usize, resumed: &[ScanRow]) -> bool {
    rows.get(at + 1..) == Some(resumed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_that_begins_again_or_omits_a_row_is_found() {
        let row = |text: &str| ScanRow { values: vec![Value::bytes(text.as_bytes())], deleted: false };
        let rows = ["", "a", "b"].map(row);
        assert!(is_rest(&rows, 0, &rows[1..]) && is_rest(&rows, 2, &[]));
        assert!(!is_rest(&rows, 0, &rows), "it begins again");
        assert!(!is_rest(&rows, 0, &rows[2..]) && !is_rest(&rows, 1, &[]), "a row is missing");
    }
}
