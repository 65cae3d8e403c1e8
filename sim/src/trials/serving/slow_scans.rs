//! Scanners of slow scans: one lives however long its batches take, and for its time to live between them. Each reply
//! states how long its batch took.

use std::time::Duration;

use bytes::Bytes;
use nyala_proto::kudu::tserver::{NewScanRequestPb, ResourceMetricsPb, ScanRequestPb, ScanResponsePb};

use super::ServingTrial;
use super::flag_values::BATCH_DELAY;
use super::limits::SCANNER_TTL;
use super::tablet_case::TabletCase;
use crate::wire::client::{CallFailure, TSERVER, text_of};
use crate::wire::schema;
use crate::world::World;

/// Time that each batch takes: more than the time to live.
const BATCH: Duration = Duration::from_millis(1_300);
/// Time after which an unused scanner is gone.
const GONE: Duration = Duration::from_secs(3);
/// Percentage of batches before which the server has no memory for a reply, and most replies that take it.
const SHORT_PERCENT: u64 = 30;
const RESERVATIONS_MAX: usize = 1_000_000;
/// Most batches of a scan.
const BATCHES_MAX: u32 = 3;

/// A scan in progress.
struct OpenScan {
    server: usize,
    id: Bytes,
    /// Number of the next call.
    next: u32,
    /// The earliest time at which its last batch can have ended.
    used: Duration,
}

impl ServingTrial {
    /// Reads some batches of a tablet, each of which takes longer than scanners live without use, and at last leaves
    /// the scanner alone.
    pub(super) fn scan_slowly(&mut self) {
        let Some((at, leader)) = self.led_tablet() else { return };
        let case = self.tablets[at].clone();
        if !self.set_batch_delay(leader, BATCH) {
            return;
        }
        let opened = self.open_scan(leader, &case);
        self.fleet.note(format!("slow scan of {at} at {leader}: {}", opened.is_some()));
        let left = opened.and_then(|scan| self.read_slowly(scan));
        self.set_batch_delay(leader, Duration::ZERO);
        let Some(mut scan) = left else { return };
        self.pass(GONE);
        if self.next_batch(&mut scan).is_ok() {
            let what = "a scanner lives although it was not used for longer than its time to live";
            self.fleet.report(what.to_string());
        }
    }

    /// Opens a scan; `None` if it failed or has no more than one batch.
    fn open_scan(&mut self, server: usize, case: &TabletCase) -> Option<OpenScan> {
        let request = ScanRequestPb {
            new_scan_request: Some(self.new_scan(case)),
            call_seq_id: Some(0),
            batch_size_bytes: Some(1),
            ..Default::default()
        };
        let asked = self.fleet.world.now();
        let used = asked + BATCH;
        let reply: Result<ScanResponsePb, _> = self.fleet.call(server, (TSERVER, "Scan"), request);
        let reply = reply.ok().filter(|reply| reply.error.is_none())?;
        self.check_cost(server, reply.resource_metrics, asked);
        if !reply.has_more_results() {
            return None;
        }
        Some(OpenScan { server, id: reply.scanner_id?, next: 1, used })
    }

    /// Returns a scan of all rows of a tablet.
    pub(super) fn new_scan(&self, case: &TabletCase) -> NewScanRequestPb {
        NewScanRequestPb {
            tablet_id: Bytes::from(case.id.to_string()),
            projected_columns: schema::columns(&self.table.columns, self.table.key_columns().len()).columns,
            ..Default::default()
        }
    }

    /// Reads batches. Returns the scan if it has more.
    fn read_slowly(&mut self, mut scan: OpenScan) -> Option<OpenScan> {
        for _ in 0..BATCHES_MAX {
            if self.random.percent(SHORT_PERCENT) {
                self.ask_without_memory(&mut scan);
            }
            let used = std::mem::replace(&mut scan.used, self.fleet.world.now() + BATCH);
            match self.next_batch(&mut scan) {
                Ok(true) => {}
                Ok(false) | Err(CallFailure::NotNow(_) | CallFailure::Unknown(_)) => return None,
                Err(CallFailure::Refused { message, .. }) => {
                    // Replies and calls may have been long under way.
                    if self.fleet.world.now() <= used + SCANNER_TTL {
                        self.fleet.report(format!("a scanner that was used all the time: {message}"));
                    }
                    return None;
                }
            }
        }
        Some(scan)
    }

    /// Asks for a batch while the server has no memory for its reply. The scanner stays where it is.
    fn ask_without_memory(&mut self, scan: &mut OpenScan) {
        let Some(running) = self.fleet.running(scan.server) else { return };
        let reserve = || running.memory.reserve_reply().ok();
        let held: Vec<_> = std::iter::from_fn(reserve).take(RESERVATIONS_MAX).collect();
        let next = scan.next;
        let reply = self.next_batch(scan);
        self.fleet.note(format!("a batch with {} replies reserved: {reply:?}", held.len()));
        if matches!(reply, Err(CallFailure::NotNow(_))) {
            scan.next = next;
        }
    }

    /// Returns true if there are more batches.
    fn next_batch(&mut self, scan: &mut OpenScan) -> Result<bool, CallFailure> {
        let request = ScanRequestPb {
            scanner_id: Some(scan.id.clone()),
            call_seq_id: Some(scan.next),
            batch_size_bytes: Some(1),
            ..Default::default()
        };
        scan.next += 1;
        let asked = self.fleet.world.now();
        let reply: ScanResponsePb = self.fleet.call(scan.server, (TSERVER, "Scan"), request)?;
        match &reply.error {
            Some(error) => {
                let (code, status, message) = (error.code, error.status.code, text_of(&error.status));
                Err(CallFailure::Refused { code, status, message })
            }
            None => {
                self.check_cost(scan.server, reply.resource_metrics, asked);
                Ok(reply.has_more_results())
            }
        }
    }

    /// Compares the cost that a server states for a batch with the delay of its batches, if that is known, and with the
    /// time since it was asked for. Clocks of machines err in wall time only.
    fn check_cost(&mut self, server: usize, cost: Option<ResourceMetricsPb>, asked: Duration) {
        let Some(delay) = self.flag_value(server, BATCH_DELAY) else { return };
        let took = self.fleet.world.now() - asked;
        if !is_cost_right(cost.unwrap_or_default(), Duration::from_millis(delay), took) {
            let what = format!("a batch that was delayed by {delay} ms, within {took:?}, states {cost:?}");
            self.fleet.report(what);
        }
    }

    /// Returns true if the server has taken the delay, and no earlier request can change it again.
    fn set_batch_delay(&mut self, server: usize, delay: Duration) -> bool {
        let millis = delay.as_millis() as u64;
        self.set_flag(server, BATCH_DELAY, millis) && self.flag_value(server, BATCH_DELAY) == Some(millis)
    }
}

/// Returns true if a call of this cost may have had a batch with this delay, and may have taken this time.
fn is_cost_right(cost: ResourceMetricsPb, delay: Duration, took: Duration) -> bool {
    let nanos = |nanos: i64| u64::try_from(nanos).ok().map(Duration::from_nanos);
    let times = nanos(cost.queue_duration_nanos()).zip(nanos(cost.total_duration_nanos()));
    times.is_some_and(|(queued, total)| total >= delay && queued + total <= took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_without_the_delay_or_beyond_the_call_is_found() {
        let (delay, took) = (Duration::from_millis(1_300), Duration::from_millis(1_310));
        let is_right = |queued: i64, total: i64| {
            let (queue_duration_nanos, total_duration_nanos) = (Some(queued), Some(total));
            let cost = ResourceMetricsPb { queue_duration_nanos, total_duration_nanos, ..Default::default() };
            is_cost_right(cost, delay, took)
        };
        assert!(is_right(0, 1_300_000_000) && is_right(4_000_000, 1_305_000_000));
        assert!(!is_right(0, 1_299_999_999), "without the delay, or a part of it");
        assert!(!is_right(0, 1_300_000), "microseconds");
        assert!(!is_right(0, 1_311_000_000) && !is_right(10_000_000, 1_305_000_000));
        assert!(!is_right(-1, 1_300_000_000));
        assert!(!is_cost_right(ResourceMetricsPb::default(), delay, took));
    }
}
