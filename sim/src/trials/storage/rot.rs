//! Rot at the end of a trial: a bit of a file changes while the replica is closed.
//!
//! The replica must not open, or reads must fail, or nothing may be missing: damage of what was durable is never taken
//! for the end of a log.

use engine::error::Result;
use engine::wal::TRUNCATIONS;

use super::Trial;
use crate::trials::{rot, scans};

/// Scans of a replica of which a file of rows is damaged.
const SCANS: usize = 12;

impl Trial {
    /// Damages a file, opens the replica and reads; returns what is wrong.
    pub(super) fn rot(&mut self) -> Option<String> {
        if let Err(error) = self.replica.sync() {
            return Some(error.to_string());
        }
        let kept = self.replica.durable();
        self.replica.close();
        let in_log = self.random.percent(60);
        let file = self.damage(in_log)?;
        self.steps.push(format!("rot of {file}"));
        let last = self.replica.open_files().ok()?;
        if last < kept {
            return Some(format!("the damaged log opens and ends with operation {last} instead of {kept}"));
        }
        match self.replica.catch_up().and_then(|()| self.read_damaged()) {
            Ok(found) => found,
            Err(error) if in_log => Some(error.to_string()),
            Err(_) => None,
        }
    }

    /// Changes a bit of a file; returns its path, or `None` if there is no file to damage.
    fn damage(&mut self, in_log: bool) -> Option<String> {
        let files =
            if in_log { durable_log_files(self.replica.log_files()) } else { self.replica.row_files() };
        let disk = if in_log { &self.replica.wal_disk } else { &self.replica.data_disk };
        rot::damage(&mut self.random, disk, &files)
    }

    /// Reads rows; those that cannot be read are none that differ.
    fn read_damaged(&mut self) -> Result<Option<String>> {
        let last = self.replica.committed_at() + 1;
        let tablet = self.replica.tablet()?.clone();
        for _ in 0..SCANS {
            let call =
                scans::draw(&mut self.random, &self.table.shape, &self.rows, (self.mark.min(last), last));
            if let Some(found) = self.table.check(&mut self.random, &tablet, &self.rows, &call)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// Returns the files of a log that are durable as a whole: all but the last segment, which may end in a torn batch.
fn durable_log_files(mut files: Vec<String>) -> Vec<String> {
    files.retain(|file| file.ends_with(".wal") || file.ends_with(&format!("/{TRUNCATIONS}")));
    files.sort();
    let last = files.iter().rposition(|file| file.ends_with(".wal"));
    last.map(|last| files.remove(last));
    files
}
