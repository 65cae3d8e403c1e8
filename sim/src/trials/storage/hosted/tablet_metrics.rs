//! Metrics of the tablet, as the server's registry has them.
//!
//! ```text
//!   counters of rows ──► write ──► counters of rows: more by the numbers in the reply
//!   12 s without calls ──► gauges of operations and jobs that run: 0
//! ```
//!
//! Counters begin at 0 with each process, and do not count what is replayed from the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::tablet::Tablet;
use nyala_common::metrics::table;
use nyala_proto::kudu::tserver::WriteResponsePb;

use super::{HostedTrial, SERVER, TABLET};
use crate::health_boards::integers;
use crate::model::RowAnswer;

/// One of this many writes is compared with the counters: reading all metrics takes as long as a small write.
const COMPARED_EVERY: i64 = 3;
/// More looks at gauges that are not 0, and the time before each: a job may run at one look.
const LOOKS: u32 = 3;
const LOOK: Duration = Duration::from_millis(470);
/// Ends of the names of gauges of what runs.
const RUNNING: [&str; 2] = ["_running", "_inflight"];

/// Values of integer metrics by name.
pub(super) type MetricValues = BTreeMap<&'static str, i64>;

/// The metrics of an open tablet.
pub(super) struct TabletMetrics {
    /// The tablet as this process has opened it.
    tablet: Arc<Tablet>,
    pub(super) values: MetricValues,
    /// Scanners of the server, all of which are of this tablet.
    scanners: i64,
}

impl HostedTrial {
    /// Returns the metrics of the tablet, if its replica runs.
    pub(super) fn tablet_metrics(&self) -> Option<TabletMetrics> {
        let tablet = self.fleet.replica(SERVER, TABLET)?.tablet().clone();
        let (all, id) = (self.fleet.running(SERVER)?.common.metrics.snapshot(), TABLET.to_string());
        let values = integers(all.others.iter().find(|entity| entity.id == id)?).collect();
        let scanners = integers(&all.server).find(|(name, _)| *name == table::ACTIVE_SCANNERS.name)?.1;
        Some(TabletMetrics { tablet, values, scanners })
    }

    /// Returns the metrics before a write whose effect on them is to be compared. None if an operation is in flight, as
    /// after a restart: counters may rise by its rows later.
    pub(super) fn metrics_before_write(&self) -> Option<TabletMetrics> {
        let is_compared = self.sequence % COMPARED_EVERY == 0;
        let metrics = if is_compared { self.tablet_metrics() } else { None };
        metrics.filter(|metrics| metrics.tablet.mvcc().in_flight() == 0)
    }

    /// Reports counters that rose in a write by other numbers than its reply has, if the same process has executed it.
    pub(super) fn check_counters(&mut self, before: &TabletMetrics, reply: &WriteResponsePb) {
        let Some(after) = self.tablet_metrics() else { return };
        if !Arc::ptr_eq(&before.tablet, &after.tablet) {
            return;
        }
        let wrong = wrong_rise(&before.values, &after.values, reply);
        wrong.into_iter().for_each(|what| self.fleet.report(what));
    }

    /// Reports gauges of what runs that are not 0, although the client and the maintenance have nothing to do.
    pub(super) fn check_idle_gauges(&mut self) {
        let mut left = self.busy_gauges();
        for _ in 0..LOOKS {
            if left.is_empty() {
                return;
            }
            self.fleet.pass(LOOK);
            let now = self.busy_gauges();
            left.retain(|name, _| now.contains_key(name));
        }
        if !left.is_empty() {
            self.fleet.report(format!("nothing runs, and the tablet's metrics are {left:?}"));
        }
    }

    fn busy_gauges(&self) -> MetricValues {
        self.tablet_metrics().map(|metrics| busy(metrics.values, metrics.scanners)).unwrap_or_default()
    }
}

/// Returns the gauges of what runs that are not 0. Idle scanners may be open, which their client has left: then the
/// tablet has as many of them as the server.
fn busy(values: MetricValues, scanners: i64) -> MetricValues {
    let of_ops = [table::IN_PROGRESS_OPS.name, table::MAJORITY_DONE_OPS.name];
    let of_scanners = table::TABLET_ACTIVE_SCANNERS.name;
    let is_busy = |name: &&'static str, value: &mut i64| {
        let runs = of_ops.contains(name) || RUNNING.iter().any(|end| name.ends_with(end));
        runs && *value != 0 || *name == of_scanners && *value != scanners
    };
    let mut busy = values;
    busy.retain(is_busy);
    busy
}

/// Returns what is wrong with the rise of counters in a write.
fn wrong_rise(before: &MetricValues, after: &MetricValues, reply: &WriteResponsePb) -> Option<String> {
    let value = |of: &MetricValues, name: &str| of.get(name).copied().unwrap_or_default();
    rises(reply).into_iter().find_map(|(name, rise)| {
        let found = value(after, name) - value(before, name);
        (found != rise).then(|| format!("{name} rises by {found}, and not by {rise}, in a write: {reply:?}"))
    })
}

/// Returns the counters of rows, and the numbers by which they rise in a write with this reply.
fn rises(reply: &WriteResponsePb) -> [(&'static str, i64); 10] {
    let sums = reply.resource_metrics.unwrap_or_default();
    let answers = reply.per_row_errors.iter().map(|error| RowAnswer::of_status(error.error.code));
    let present = answers.filter(|answer| *answer == Some(RowAnswer::AlreadyPresent)).count();
    [
        (table::ROWS_INSERTED.name, sums.successful_inserts()),
        (table::ROWS_UPSERTED.name, sums.successful_upserts()),
        (table::ROWS_UPDATED.name, sums.successful_updates()),
        (table::ROWS_DELETED.name, sums.successful_deletes()),
        (table::INSERT_IGNORE_ERRORS.name, sums.insert_ignore_errors()),
        (table::UPSERT_IGNORE_ERRORS.name, sums.upsert_ignore_errors()),
        (table::UPDATE_IGNORE_ERRORS.name, sums.update_ignore_errors()),
        (table::DELETE_IGNORE_ERRORS.name, sums.delete_ignore_errors()),
        (table::INSERTIONS_FAILED_DUP_KEY.name, present as i64),
        (table::ROW_ERRORS.name, reply.per_row_errors.len() as i64),
    ]
}

#[cfg(test)]
mod tests {
    use nyala_proto::kudu::AppStatusPb;
    use nyala_proto::kudu::tserver::ResourceMetricsPb;
    use nyala_proto::kudu::tserver::write_response_pb::PerRowErrorPb;

    use super::*;

    const ALREADY_PRESENT: i32 = 6;

    /// Returns true if counters rise by these numbers in a write of three upserts and an insert of a present row.
    fn fit(rise: [(&'static str, i64); 3]) -> bool {
        let before = MetricValues::from([("rows_upserted", 40), ("row_errors", 7)]);
        let mut after = before.clone();
        for (name, more) in rise {
            *after.entry(name).or_default() += more;
        }
        let error = AppStatusPb { code: ALREADY_PRESENT, ..Default::default() };
        let reply = WriteResponsePb {
            per_row_errors: vec![PerRowErrorPb { row_index: 1, error }],
            resource_metrics: Some(ResourceMetricsPb { successful_upserts: Some(3), ..Default::default() }),
            ..Default::default()
        };
        wrong_rise(&before, &after, &reply).is_none()
    }

    #[test]
    fn counters_that_rise_by_other_numbers_are_reported() {
        let failed = [("row_errors", 1), ("insertions_failed_dup_key", 1)];
        let [one, other] = failed;
        assert!(fit([("rows_upserted", 3), one, other]));
        assert!(!fit([("rows_upserted", 6), one, other]), "the rows are counted twice");
        assert!(!fit([("rows_updated", 3), one, other]), "under another name");
        assert!(!fit([("rows_upserted", 3), one, ("rows_inserted", 0)]), "a present key is not counted");
        assert!(!fit([("rows_upserted", 3), ("row_errors", 2), other]));
    }

    #[test]
    fn gauges_of_what_runs_must_be_0() {
        let found = |name, value| busy(MetricValues::from([(name, value)]), 2).len();
        assert_eq!([found("flush_mrs_running", 0), found("raft_term", 5)], [0, 0]);
        assert_eq!(found("tablet_active_scanners", 2), 0, "as many as the server has");
        let busy = ["flush_mrs_running", "write_transactions_inflight", "in_progress_ops"];
        assert_eq!(busy.map(|name| found(name, 1)), [1; 3]);
        assert_eq!([found("log_gc_running", -1), found("tablet_active_scanners", 1)], [1, 1]);
    }
}
