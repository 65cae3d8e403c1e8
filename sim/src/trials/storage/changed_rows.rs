//! Flushes of deltas alone: no row in memory has an older place in the log, so what a restart must read from it is
//! known by the flush and the changes beside it.

use engine::error::Result;
use engine::replica::JobKind;

use super::Trial;

impl Trial {
    pub(super) fn flush_changes(&mut self) -> Result<()> {
        self.changes_only = true;
        let done = self.flush_and_restart();
        self.changes_only = false;
        done
    }

    fn flush_and_restart(&mut self) -> Result<()> {
        self.job(JobKind::FlushRows)?;
        self.write(true)?;
        self.jobs(JobKind::FlushDeltas)?;
        self.restart()
    }
}
