//! Scans that must return the same rows before and after a step, whatever the model knows of them: which numbers are
//! less than NaN, or equal to zero with another sign, is documented nowhere, but no job may change it.
//!
//! ```text
//!   scan at a snapshot, conditions on floating-point columns ──► step: writes, jobs, restarts ──► the same scan
//!                  └────────────────────────── equal rows ─────────────────────────────────────────────┘
//! ```

use engine::error::Result;
use engine::tablet::scan::ScanSpec;
use sim_plan::tables::ColumnSpec;
use sim_plan::tables::value::CellForm;

use super::Trial;
use crate::history::HybridStamp;
use crate::model::draws;
use crate::model_oracle::ReadCall;
use crate::trials::scans::{self, TrialTable, rows_of};

/// Percentage of steps before which rows are read.
const READ_PERCENT: u64 = 50;
/// Scans of such a step.
const SCANS: usize = 3;
/// Drawn conditions, and most of them that a scan has: those on floating-point columns.
const DRAWN: u8 = 12;
const CONDITIONS_MAX: usize = 2;

/// A scan and the rows that it returned before a step.
pub(super) struct RepeatedScan {
    at: HybridStamp,
    call: ReadCall,
    spec: ScanSpec,
    table: TrialTable,
    rows: Vec<String>,
}

impl Trial {
    /// Reads rows that the next step may not change; none if the table has no floating-point column.
    pub(super) fn read_for_repetition(&mut self) -> Result<Vec<RepeatedScan>> {
        let is_float = |column: &ColumnSpec| matches!(column.kind.form(), CellForm::Float(_));
        if !self.table.shape.columns.iter().any(is_float) || !self.repetitions.percent(READ_PERCENT) {
            return Ok(Vec::new());
        }
        let mut read = Vec::new();
        for _ in 0..SCANS {
            read.extend(self.read_once()?);
        }
        Ok(read)
    }

    fn read_once(&mut self) -> Result<Option<RepeatedScan>> {
        let (first, last) = self.readable();
        let (random, table) = (&mut self.repetitions, self.table.clone());
        let at = if random.percent(50) { last } else { random.between(first, last) };
        let known = self.rows.live(last);
        let mut conditions = draws::conditions(random, &table.shape, DRAWN, &known);
        conditions.retain(|(number, _)| {
            let column = table.shape.column(*number);
            column.is_some_and(|column| matches!(column.kind.form(), CellForm::Float(_)))
        });
        conditions.truncate(random.between(1, CONDITIONS_MAX as u64) as usize);
        let ordered = random.percent(40);
        let call = ReadCall { conditions, ..scans::whole(&table.shape, at, ordered) };
        let Some(spec) = table.spec(random, &call)? else { return Ok(None) };
        let rows = self.rows_of_scan(&table, &call, &spec)?;
        Ok(Some(RepeatedScan { at, call, spec, table, rows }))
    }

    /// Returns the rows of a scan as text, sorted.
    fn rows_of_scan(&self, table: &TrialTable, call: &ReadCall, spec: &ScanSpec) -> Result<Vec<String>> {
        let mut scan = self.replica.tablet()?.scan(spec)?;
        let (columns, mut rows) = (table.columns(call), Vec::new());
        while let Some(block) = scan.next_block()? {
            rows_of(&block, &columns, &mut rows);
        }
        let mut shown: Vec<String> = rows.iter().map(|row| format!("{:?}", row.values)).collect();
        shown.sort();
        Ok(shown)
    }

    /// Repeats scans whose snapshots may still be read, of the table as it was; returns a difference.
    pub(super) fn repeat_scans(&self, before: &[RepeatedScan]) -> Result<Option<String>> {
        for scan in before {
            if scan.at < self.mark || scan.table.shape != self.table.shape {
                continue;
            }
            let now = self.rows_of_scan(&scan.table, &scan.call, &scan.spec)?;
            if now != scan.rows {
                let (call, before) = (&scan.call, &scan.rows);
                return Ok(Some(format!("{call}: rows before a step {before:?}, and after it {now:?}")));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEDS: u64 = 60;

    #[test]
    fn rows_that_differ_after_a_step_are_reported() {
        let mut reported = 0;
        for seed in 0..SEEDS {
            let mut trial = Trial::create(seed).expect("a new replica");
            (0..4).for_each(|_| trial.write(true).expect("a sound disk"));
            let mut before = trial.read_for_repetition().expect("a sound disk");
            trial.write(true).expect("a sound disk");
            assert_eq!(trial.repeat_scans(&before).expect("a sound disk"), None, "seed {seed}");
            before.iter_mut().for_each(|scan| scan.rows.push("another row".to_string()));
            let found = trial.repeat_scans(&before).expect("a sound disk");
            assert_eq!(found.is_some(), !before.is_empty(), "seed {seed}");
            reported += u64::from(found.is_some());
        }
        assert!(reported > 0);
    }
}
