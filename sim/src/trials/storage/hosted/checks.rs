//! Comparisons of the replica with the model, and of what maintenance has left.

use std::time::Duration;

use engine::tablet::{LogAnchors, Tablet};

use super::{HostedTrial, SERVER, TABLET};
use crate::history::HybridStamp;
use crate::trials::scans;

/// Drawn scans after each step.
const SCANS: u64 = 3;
/// Time after which nothing is left in memory, without writes: a failed job is made again after 5 s, and
/// stores are flushed after one.
const QUIET: Duration = Duration::from_secs(12);

impl HostedTrial {
    /// Compares the replica with the model, if it runs.
    pub(super) fn check(&mut self) {
        let Some(replica) = self.fleet.replica(SERVER, TABLET) else { return };
        let found = self.wrong_rows(replica.tablet());
        found.into_iter().for_each(|what| self.fleet.report(what));
    }

    fn wrong_rows(&mut self, tablet: &Tablet) -> Option<String> {
        let last = self.last + 1;
        let oldest = self.first.max(tablet.history_mark().0).min(last);
        let random = &mut self.random;
        let mut calls = vec![scans::whole(&self.table.shape, last, random.percent(50))];
        calls.extend((0..SCANS).map(|_| scans::draw(random, &self.table.shape, &self.rows, (oldest, last))));
        for call in &calls {
            match self.table.check(random, tablet, &self.rows, call) {
                Ok(None) => {}
                Ok(Some(found)) => return Some(found),
                Err(error) => return Some(format!("{call}: {error}")),
            }
        }
        let (live, counted) = (self.rows.live(HybridStamp::MAX).len() as u64, tablet.stats().live_rows);
        (live != counted).then(|| format!("{counted} live rows are counted instead of {live}"))
    }

    /// Reports what is still in memory, or needs the log, after some time without writes.
    pub(super) fn check_upkeep(&mut self) {
        self.fleet.pass(QUIET);
        let Some(replica) = self.fleet.replica(SERVER, TABLET) else {
            return self.fleet.report("the replica fails without a fault".to_string());
        };
        let left = unflushed(replica.tablet());
        left.into_iter().for_each(|what| self.fleet.report(format!("after {QUIET:?} without writes {what}")));
    }
}

/// Returns what maintenance should have flushed.
fn unflushed(tablet: &Tablet) -> Option<String> {
    let state = tablet.state();
    let rows: u64 = state.frozen.iter().chain([&state.active]).map(|rows| rows.rows()).sum();
    let deltas: usize = state.disk.iter().map(|rowset| rowset.dms_len()).sum();
    if rows > 0 || deltas > 0 {
        return Some(format!("{rows} rows and {deltas} deltas are in memory alone"));
    }
    let anchors = tablet.log_anchors();
    (anchors != LogAnchors::default()).then(|| format!("the log is needed for nothing: {anchors:?}"))
}
