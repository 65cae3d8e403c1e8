//! Readings of a server's clock: each is above all timestamps that the server gave out before, and below later ones.
//!
//! ```text
//!   write, ahead of all clocks ──► ServerClock ──► ServerClock ──► write      each timestamp is above the last one
//! ```
//!
//! The first write brings a timestamp that is ahead of every server's clock. Until that time a server tells its
//! timestamps apart by their logical part alone, so that one which is shown and not taken comes twice.

use std::time::Duration;

use nyala_proto::kudu::server::{ServerClockRequestPb, ServerClockResponsePb};
use nyala_proto::kudu::tserver::{WriteRequestPb, WriteResponsePb};

use super::ServingTrial;
use super::limits::LOGICAL_BITS;
use crate::server_limits::CLOCK_ERROR_MAX_MICROS;
use crate::wire::client::{GENERIC, TSERVER};
use crate::world::World;

/// Time by which the first write's timestamp is ahead of the true time: less than the 10 s that servers accept, and
/// more than a clock that errs, to which a new leader adds its error once more.
const AHEAD: Duration = Duration::from_secs(2);

impl ServingTrial {
    /// Reads the clock of a leader twice between two writes. Only steps restart servers, so one process gives out all
    /// timestamps. Those of calls that fail are missing.
    pub(super) fn read_clock(&mut self) {
        let Some((at, leader)) = self.led_tablet() else { return };
        let case = self.tablets[at].clone();
        let ahead = (self.fleet.world.true_micros() + AHEAD.as_micros() as u64) << LOGICAL_BITS;
        let first = WriteRequestPb { propagated_timestamp: Some(ahead), ..self.rows(&case) };
        let first = self.write_stamp(leader, first);
        let asked = self.fleet.world.true_micros();
        let (one, two) = (self.clock_of(leader), self.clock_of(leader));
        let answered = self.fleet.world.true_micros();
        let last = self.rows(&case);
        let last = self.write_stamp(leader, last);
        self.record_timestamps(at, first.into_iter());
        self.record_timestamps(at, last.into_iter());
        let stamps = [first.map(|_| ahead), first, one, two, last];
        let stamps: Vec<u64> = stamps.into_iter().flatten().collect();
        self.fleet.note(format!("clock of {leader}, {} timestamps: {stamps:?}", stamps.len()));
        if let Some([before, after]) = disorder(&stamps) {
            self.fleet.report(format!("server {leader} gives out {after} after {before}"));
        }
        if let Some(far) = [one, two].into_iter().flatten().find(|stamp| !is_near(*stamp, asked, answered)) {
            let what = format!("the clock of {leader} is {far} between {asked} and {answered} us");
            self.fleet.report(what);
        }
    }

    /// Writes rows; returns their timestamp.
    fn write_stamp(&mut self, server: usize, request: WriteRequestPb) -> Option<u64> {
        let reply: Result<WriteResponsePb, _> = self.fleet.call(server, (TSERVER, "Write"), request);
        reply.ok().filter(|reply| reply.error.is_none())?.timestamp
    }

    fn clock_of(&mut self, server: usize) -> Option<u64> {
        let asked = ServerClockRequestPb {};
        let reply: Result<ServerClockResponsePb, _> =
            self.fleet.call(server, (GENERIC, "ServerClock"), asked);
        reply.ok()?.timestamp
    }
}

/// Returns the first timestamp that is not above the one before it, and that one.
fn disorder(stamps: &[u64]) -> Option<[u64; 2]> {
    stamps.windows(2).map(|pair| [pair[0], pair[1]]).find(|[before, after]| before >= after)
}

/// Returns true if a clock may have had this timestamp between two true times in microseconds: no earlier than a clock
/// that errs, and no later than a timestamp that is ahead.
fn is_near(stamp: u64, from: u64, to: u64) -> bool {
    let earliest = from.saturating_sub(CLOCK_ERROR_MAX_MICROS);
    let latest = to + AHEAD.as_micros() as u64 + CLOCK_ERROR_MAX_MICROS;
    (earliest..=latest).contains(&(stamp >> LOGICAL_BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_that_comes_twice_or_goes_back_is_found() {
        assert_eq!(disorder(&[1, 2, 5]), None);
        assert_eq!(disorder(&[7]), None);
        assert_eq!(disorder(&[1, 3, 3, 4]), Some([3, 3]));
        assert_eq!(disorder(&[5, 2]), Some([5, 2]));
    }

    #[test]
    fn a_clock_that_is_far_from_the_true_time_is_found() {
        const NOW: u64 = 1_767_225_600_000_000;
        let near = |micros: u64| is_near(micros << LOGICAL_BITS, NOW, NOW + 1_000);
        assert!(near(NOW) && near(NOW - CLOCK_ERROR_MAX_MICROS) && near(NOW + 2_400_000));
        assert!(!near(NOW - CLOCK_ERROR_MAX_MICROS - 1) && !near(NOW + 3_000_000));
        assert!(!is_near(NOW, NOW, NOW), "microseconds without a logical part");
    }
}
