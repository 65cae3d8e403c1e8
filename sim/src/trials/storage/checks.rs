//! Comparisons of the tablet with the model: drawn scans, one that stays open while the tablet changes,
//! counts and schema.

use engine::error::{Error, Result};

use super::paused_scan::PausedScan;
use super::{Trial, TrialOp};
use crate::history::HybridStamp;
use crate::trials::scans;

/// Drawn scans after each step.
const SCANS: u64 = 5;
/// Percentage of looks without an open scan at which one is opened, and most blocks that are read at a look.
const OPEN_PERCENT: u64 = 25;
const BLOCKS_MAX: u64 = 3;

impl Trial {
    /// Compares the tablet with the model.
    pub(super) fn check(&mut self) -> Result<Option<String>> {
        self.read_paused_scan()?;
        let (span, tablet) = (self.readable(), self.replica.tablet()?.clone());
        let found = self.table.check_all(&mut self.random, &tablet, &self.rows, (span, SCANS))?;
        if found.is_some() {
            return Ok(found);
        }
        let (found, schema) = (tablet.schema(), &self.table.schema);
        if *found != *schema {
            return Ok(Some(format!("the schema is {found:?} instead of {schema:?}")));
        }
        let is_alter = |op: &&TrialOp| matches!(op, TrialOp::Alter(_));
        let version = self.ops[..self.applied].iter().filter(is_alter).count() as u32;
        let found = tablet.schema_version();
        Ok((found != version).then(|| format!("the schema's version is {found} instead of {version}")))
    }

    /// Returns the snapshots that may be read: the oldest and the newest one.
    pub(super) fn readable(&self) -> (HybridStamp, HybridStamp) {
        let last = self.replica.committed_at() + 1;
        (self.mark.min(last), last)
    }

    /// Reads some blocks of the scan that is open, or opens one now and then. Jobs replace and remove what it
    /// reads, and the history of its snapshot may be dropped meanwhile.
    pub(super) fn read_paused_scan(&mut self) -> Result<()> {
        let opened = self.replica.opened();
        let Some(mut paused) = self.paused.take().filter(|paused| paused.opened == opened) else {
            return self.open_paused_scan();
        };
        for _ in 0..self.random.below(BLOCKS_MAX + 1) {
            if !paused.read()? {
                let found = paused.difference(&self.rows);
                return found.map_or(Ok(()), |what| Err(Error::corrupt(what)));
            }
        }
        self.paused = Some(paused);
        Ok(())
    }

    fn open_paused_scan(&mut self) -> Result<()> {
        if !self.random.percent(OPEN_PERCENT) {
            return Ok(());
        }
        let span = self.readable();
        let call = scans::draw(&mut self.random, &self.table.shape, &self.rows, span);
        let (tablet, opened) = (self.replica.tablet()?.clone(), self.replica.opened());
        if let Some(spec) = self.table.spec(&mut self.random, &call)? {
            self.paused = Some(PausedScan::open(&tablet, &self.table, (call, &spec), opened)?);
        }
        Ok(())
    }
}
