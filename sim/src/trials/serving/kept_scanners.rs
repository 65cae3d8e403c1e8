//! Scanners that live by keep-alive calls alone: one that is kept alive within its time to live is there at the next
//! call, however long nothing is read from it.

use std::time::Duration;

use bytes::Bytes;
use nyala_proto::kudu::tserver::tablet_server_error_pb::Code;
use nyala_proto::kudu::tserver::{
    ScanRequestPb, ScanResponsePb, ScannerKeepAliveRequestPb, ScannerKeepAliveResponsePb,
};

use super::ServingTrial;
use super::limits::SCANNER_TTL;
use super::tablet_case::TabletCase;
use crate::wire::client::{TSERVER, text_of};
use crate::world::World;

/// Pauses between calls, in percent of the time to live, and the number of calls: all of them together take longer than
/// a scanner lives without use.
const PAUSES: (u64, u64) = (30, 60);
const CALLS: (u64, u64) = (4, 6);

impl ServingTrial {
    /// Opens a scanner without a batch, and keeps it alive for longer than its time to live.
    ///
    /// It checks calls that had their reply within the time to live since the last one was sent. A server that restarts
    /// or is cut off gives no such reply: within this step nothing starts it again.
    pub(super) fn keep_scanner(&mut self) {
        let Some((at, leader)) = self.led_tablet() else { return };
        let case = self.tablets[at].clone();
        let mut used = self.fleet.world.now();
        let Some(scanner_id) = self.open_unread(leader, &case) else { return };
        let calls = self.random.between(CALLS.0, CALLS.1);
        for _ in 0..calls {
            let percent = self.random.between(PAUSES.0, PAUSES.1) as u32;
            self.pass(SCANNER_TTL * percent / 100);
            let asked = self.fleet.world.now();
            let request = ScannerKeepAliveRequestPb { scanner_id: scanner_id.clone() };
            let reply: Result<ScannerKeepAliveResponsePb, _> =
                self.fleet.call(leader, (TSERVER, "ScannerKeepAlive"), request);
            let Ok(reply) = reply else { return };
            if let Some(error) = reply.error {
                if is_early(self.fleet.world.now() - used, error.code()) {
                    let why = text_of(&error.status);
                    self.fleet.report(format!("a scanner that was kept alive all the time: {why}"));
                }
                return;
            }
            used = asked;
        }
        self.fleet.note(format!("a scanner of {at} at {leader} is kept alive by {calls} calls"));
    }

    /// Opens a scanner without a batch, so that it has more whatever the tablet has; `None` if that failed.
    fn open_unread(&mut self, server: usize, case: &TabletCase) -> Option<Bytes> {
        let request = ScanRequestPb {
            new_scan_request: Some(self.new_scan(case)),
            call_seq_id: Some(0),
            batch_size_bytes: Some(0),
            ..Default::default()
        };
        let reply: Result<ScanResponsePb, _> = self.fleet.call(server, (TSERVER, "Scan"), request);
        reply.ok().filter(|reply| reply.error.is_none())?.scanner_id
    }
}

/// Returns true if a scanner may not end with this error. `idle`: the longest time for which it can have been without
/// use.
fn is_early(idle: Duration, error: Code) -> bool {
    error == Code::ScannerExpired && idle <= SCANNER_TTL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scanner_expires_after_its_time_to_live_only() {
        assert!(
            is_early(SCANNER_TTL / 2, Code::ScannerExpired) && is_early(SCANNER_TTL, Code::ScannerExpired)
        );
        assert!(!is_early(SCANNER_TTL + Duration::from_millis(1), Code::ScannerExpired));
        assert!(!is_early(SCANNER_TTL / 2, Code::TabletNotRunning), "another error");
    }
}
