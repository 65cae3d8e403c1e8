//! Refused copies are asked for with a pause: a leader whose request to copy a tablet was refused waits before the next
//! one. One that does not occupies two servers until the cause is gone (KUDU-821).
//!
//! `control_calls` looks at the calls of a whole run, and a cause is mostly gone within a second.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use engine::ids::{PeerId, TabletId};

use super::Violation;

/// Name of this oracle.
pub const NAME: &str = "copy requests";

/// Refusals that are looked at together. Messages are delayed differently, and a new leader of the same server begins
/// again, so the time between two of them tells little.
const REFUSALS: usize = 8;

/// The refused requests of a run.
#[derive(Debug, Default)]
pub struct CopyRequests {
    /// Least pause of a leader; zero if it is unknown.
    pause: Duration,
    /// Times of the last refusals, by tablet, refusing server and leader.
    refused: BTreeMap<(TabletId, PeerId, PeerId), VecDeque<Duration>>,
    found: BTreeMap<(TabletId, PeerId, PeerId), Violation>,
}

impl CopyRequests {
    /// `pause`: the time that a leader waits at least after a refusal.
    pub fn new(pause: Duration) -> CopyRequests {
        CopyRequests { pause, ..CopyRequests::default() }
    }

    /// Records a refusal.
    pub fn refused(&mut self, tablet: TabletId, server: PeerId, leader: PeerId, now: Duration) {
        let key = (tablet, server, leader);
        let times = self.refused.entry(key).or_default();
        times.push_back(now);
        if times.len() < REFUSALS {
            return;
        }
        let first = times.pop_front().expect("there are several");
        // Half of the least time: requests that were delayed arrive together.
        if now.saturating_sub(first) < self.pause * (REFUSALS as u32 - 1) / 2 {
            let message = format!(
                "{leader} asked {server} {REFUSALS} times between {first:?} and {now:?} to copy tablet {tablet}, and \
                 was refused, without a pause of {:?}",
                self.pause
            );
            self.found.entry(key).or_insert_with(|| Violation::new(NAME, message));
        }
    }

    /// Returns the first violation of each leader, tablet and server.
    pub fn violations(&self) -> Vec<Violation> {
        self.found.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use engine::ids::Uuid;

    use super::*;

    fn found(pauses_ms: &[u64]) -> usize {
        let mut requests = CopyRequests::new(Duration::from_millis(100));
        let mut now = Duration::from_secs(5);
        for pause in pauses_ms {
            requests.refused(Uuid([7; 16]), Uuid([1; 16]), Uuid([2; 16]), now);
            now += Duration::from_millis(*pause);
        }
        requests.violations().len()
    }

    #[test]
    fn only_requests_without_pauses_are_reported() {
        assert_eq!(found(&[100; 20]), 0);
        assert_eq!(found(&[2; 7]), 0, "they may have been delayed");
        assert_eq!(found(&[400, 2, 2, 2, 2, 2, 2, 400]), 0);
        assert_eq!(found(&[2; 20]), 1);
    }
}
