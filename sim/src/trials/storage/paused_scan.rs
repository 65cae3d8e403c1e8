//! A scan that stays open while the tablet changes under it: it returns the rows of its snapshot
//! nevertheless.

use engine::error::Result;
use engine::tablet::Tablet;
use engine::tablet::scan::{Scan, ScanSpec};

use crate::model_oracle::ReadCall;
use crate::trials::rows::TrialRows;
use crate::trials::scans::{TrialTable, rows_of};
use crate::wire::scan::ScanRow;

pub(super) struct PausedScan {
    /// The table as it was when the scan was opened.
    table: TrialTable,
    call: ReadCall,
    scan: Scan,
    rows: Vec<ScanRow>,
    /// Number of the replica's start: its end closes the scan.
    pub opened: u64,
}

impl PausedScan {
    pub(super) fn open(
        tablet: &Tablet,
        table: &TrialTable,
        (call, spec): (ReadCall, &ScanSpec),
        opened: u64,
    ) -> Result<PausedScan> {
        Ok(PausedScan { table: table.clone(), call, scan: tablet.scan(spec)?, rows: Vec::new(), opened })
    }

    /// Reads the next block; returns false at the end.
    pub(super) fn read(&mut self) -> Result<bool> {
        let Some(block) = self.scan.next_block()? else { return Ok(false) };
        rows_of(&block, &self.table.columns(&self.call), &mut self.rows);
        Ok(true)
    }

    /// Returns the first difference of the rows from those that the model has at the snapshot.
    pub(super) fn difference(&self, rows: &TrialRows) -> Option<String> {
        let found = self.table.difference(rows, &self.call, &self.rows);
        found.map(|what| format!("a scan that was open over several steps: {what}"))
    }
}
