//! Comparisons of the replica with the model, and of what maintenance has left.

use std::time::Duration;

use super::maintenance_settings::COMPACTIONS;
use super::{HostedTrial, SERVER, TABLET};
use crate::trials::storage::upkeep::unflushed;

/// Drawn scans after each step.
const SCANS: u64 = 3;
/// Time after which nothing is left in memory, without writes: a failed job is made again after 5 s, and
/// stores are flushed after one.
const QUIET: Duration = Duration::from_secs(12);

impl HostedTrial {
    /// Compares the replica with the model and the table's settings, if it runs.
    pub(super) fn check(&mut self) {
        let Some(replica) = self.fleet.replica(SERVER, TABLET) else { return };
        let (tablet, last) = (replica.tablet(), self.last + 1);
        let oldest = self.first.max(tablet.history_mark().0).min(last);
        let span = (oldest, last);
        let found = self.table.check_all(&mut self.random, tablet, &self.rows, (span, SCANS));
        let found = found.unwrap_or_else(|error| Some(format!("a scan fails: {error}")));
        let begun: u64 = COMPACTIONS.iter().map(|mark| self.fleet.observer.mark_count(mark)).sum();
        let found = found.or_else(|| self.settings.fault(tablet, begun));
        found.into_iter().for_each(|what| self.fleet.report(what));
    }

    /// Reports what is still in memory, needs the log, or counts as running after some time without calls, and wrong
    /// sizes.
    pub(super) fn check_upkeep(&mut self) {
        self.fleet.pass(QUIET);
        let Some(replica) = self.fleet.replica(SERVER, TABLET) else {
            return self.fleet.report("the replica fails without a fault".to_string());
        };
        let left = unflushed(replica.tablet());
        left.into_iter().for_each(|what| self.fleet.report(format!("after {QUIET:?} without writes {what}")));
        self.check_idle_gauges();
        self.check_sizes();
    }
}
