//! Checks of what the client reports of its operations.

use nyala_client::{Error, ErrorKind};

use super::cluster::{Cluster, text_of};
use super::limits::{OP_TIMEOUT, PROPAGATION, RPC_TIMEOUT, SETTLE};
use super::rows::{Row, RowResult};

/// Longest wait between two attempts of the client, and some more.
const BACKOFF: u64 = 2_100_000_000;

/// A scan that the client was told to make.
#[derive(Debug, Clone)]
pub(super) struct ScanRequest {
    pub op: usize,
    pub lower: i64,
    pub upper: i64,
    /// Least number of the rows.
    pub least: Option<i64>,
    pub limit: Option<u64>,
    /// Read as of one timestamp, or the latest rows.
    pub is_snapshot: bool,
    pub is_fault_tolerant: bool,
    pub counts_only: bool,
}

/// The client's report of a scan.
#[derive(Debug, Default)]
pub(super) struct ScanReport {
    pub rows: Vec<(i64, Row)>,
    pub count: u64,
    pub snapshot: Option<u64>,
    /// Beginning of the wait for the last batch.
    pub waited_since: u64,
    /// The end of the scan; `None` if the client gave it up.
    pub end: Option<Result<(), Error>>,
}

impl Cluster {
    /// Checks the results of a write: each row operation, and its error.
    pub(super) fn conclude_write(&mut self, op: usize, results: &[(usize, Option<Error>)], now: u64) {
        self.end_op(op, now);
        for (number, error) in results {
            let intent = self.intents[*number].clone();
            let has = |wanted: &[RowResult]| intent.results.iter().any(|(_, result)| wanted.contains(result));
            let is_right = match error {
                None => has(&[RowResult::Written, RowResult::Ignored]),
                Some(error) if error.kind == ErrorKind::AlreadyPresent => has(&[RowResult::Present]),
                Some(error) if error.kind == ErrorKind::NotFound && has(&[RowResult::Missing]) => true,
                Some(error) => self.explains(op, error, Some(intent.key), now),
            };
            if !is_right {
                let error = error.as_ref().map(|error| format!("{:?}: {}", error.kind, error.message));
                self.report(format!("write {op}: {error:?} for {intent:?}"));
            }
        }
    }

    /// Returns true if what happened explains an error that no row has.
    fn explains(&self, op: usize, error: &Error, key: Option<i64>, now: u64) -> bool {
        let (began, known) = (self.ops[op].began, self.oldest_location(op));
        match (error.kind, key) {
            (ErrorKind::NotFound, Some(key)) => !self.covers(key) || self.tablets.changed(key, known),
            (ErrorKind::NotFound, None) => self.tablets.changes.iter().any(|change| change.at >= known),
            (ErrorKind::TimedOut, _) => self.explains_timeout(began, now),
            _ => false,
        }
    }

    /// Returns true if some leader did not serve shortly before a timeout that came at the end of the time.
    fn explains_timeout(&self, since: u64, now: u64) -> bool {
        let waited = now - since >= OP_TIMEOUT.as_nanos() as u64 - BACKOFF;
        waited && self.disturbances.unserved + SETTLE.as_nanos() as u64 >= now
    }

    /// Returns the time since which an operation knows of changes of ranges, whatever locations it uses: their time to
    /// live begins when their reply arrives.
    fn oldest_location(&self, op: usize) -> u64 {
        self.ops[op].began.saturating_sub(self.ttl + (RPC_TIMEOUT + PROPAGATION).as_nanos() as u64)
    }

    fn covers(&self, key: i64) -> bool {
        self.tablets.live().any(|(_, tablet)| tablet.lower <= key && key < tablet.upper)
    }

    /// Checks the answer to a change of ranges.
    pub(super) fn conclude_change(&mut self, op: usize, result: &Result<(), Error>, now: u64) {
        self.end_op(op, now);
        let (is_changed, began) = (self.ops[op].is_changed, self.ops[op].began);
        let is_refused = self.ops[op].is_refused;
        let is_right = match result {
            Ok(()) => is_changed,
            // A repeated request finds what the first one has done.
            Err(error) if error.kind == ErrorKind::NotFound => is_changed || is_refused,
            Err(error) => error.kind == ErrorKind::TimedOut && self.explains_timeout(began, now),
        };
        self.note(format!("change {op}: {}", text_of(result)));
        if !is_right {
            self.report(format!("change {op} of ranges: {}, made: {is_changed}", text_of(result)));
        }
    }

    /// Checks the rows of a scan, and its end.
    pub(super) fn conclude_scan(&mut self, scan: &ScanRequest, report: &ScanReport, now: u64) {
        self.end_op(scan.op, now);
        let objection = self.wrong_rows(scan, report, now).or_else(|| self.wrong_end(scan, report, now));
        if let Some(objection) = objection {
            let end = report.end.as_ref().map(text_of);
            let began = self.ops[scan.op].began;
            self.report(format!("scan from {began}: {objection}; {scan:?} ended with {end:?}"));
        }
    }

    fn wrong_end(&self, scan: &ScanRequest, report: &ScanReport, now: u64) -> Option<String> {
        let Some(Err(error)) = &report.end else { return None };
        let is_partial = !scan.is_fault_tolerant && report.count > 0;
        let is_lost = is_partial && self.disturbances.hard >= self.ops[scan.op].began;
        let is_late = error.kind == ErrorKind::TimedOut && self.explains_timeout(report.waited_since, now);
        let is_dropped = error.kind == ErrorKind::NotFound && self.explains(scan.op, error, None, now);
        let is_explained = is_lost || is_late || is_dropped;
        (!is_explained).then(|| "nothing explains its error".to_string())
    }

    fn wrong_rows(&self, scan: &ScanRequest, report: &ScanReport, now: u64) -> Option<String> {
        if scan.limit.is_some_and(|limit| report.count > limit) {
            return Some(format!("{} rows", report.count));
        }
        let is_whole =
            matches!(report.end, Some(Ok(()))) && scan.limit.is_none_or(|limit| report.count < limit);
        if scan.counts_only {
            return is_whole.then(|| self.wrong_count(scan, report, now)).flatten();
        }
        let keys: Vec<i64> = report.rows.iter().map(|(key, _)| *key).collect();
        let stale = self.changed_since(scan, report);
        let steady: Vec<i64> = keys.iter().copied().filter(|key| !stale(*key)).collect();
        if scan.is_fault_tolerant && steady.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Some(format!("keys out of order: {steady:?}"));
        }
        for (at, (key, row)) in report.rows.iter().enumerate() {
            if let Some(what) = self.wrong_row(scan, report, (*key, row), now) {
                return Some(what);
            }
            if !stale(*key) && keys[..at].contains(key) {
                return Some(format!("key {key} comes twice"));
            }
        }
        let missing =
            |key: &i64| !stale(*key) && !keys.contains(key) && self.must_exist(scan, report, *key, now);
        let missing = self.rows.keys().filter(|_| is_whole).find(missing);
        missing.map(|key| format!("key {key} is missing"))
    }

    /// Returns true of keys whose tablets have changed since locations that a scan may use, or since its snapshot.
    fn changed_since(&self, scan: &ScanRequest, report: &ScanReport) -> impl Fn(i64) -> bool {
        let known = self.oldest_location(scan.op);
        let snapshot = report.snapshot.filter(|_| scan.is_snapshot).unwrap_or(u64::MAX);
        move |key| self.tablets.changes_of(key).any(|change| change.at >= known || change.stamp >= snapshot)
    }

    /// Returns the states of a row that a scan may show, without those that it leaves out.
    fn states(&self, scan: &ScanRequest, report: &ScanReport, key: i64, now: u64) -> Vec<Option<Row>> {
        let states = match report.snapshot.filter(|_| scan.is_snapshot) {
            Some(snapshot) => self.rows.at_stamp(key, snapshot),
            None => self.rows.between(key, self.ops[scan.op].began, now),
        };
        let is_in = (scan.lower..scan.upper).contains(&key);
        let passes =
            |row: &Row| is_in && scan.least.is_none_or(|least| row.number.is_some_and(|cell| cell >= least));
        states.into_iter().map(|row| row.filter(passes)).collect()
    }

    fn must_exist(&self, scan: &ScanRequest, report: &ScanReport, key: i64, now: u64) -> bool {
        self.states(scan, report, key, now).iter().all(Option::is_some)
    }

    fn wrong_row(
        &self,
        scan: &ScanRequest,
        report: &ScanReport,
        (key, row): (i64, &Row),
        now: u64,
    ) -> Option<String> {
        let states = self.states(scan, report, key, now);
        let is_known = states.iter().flatten().any(|state| state == row);
        let is_old = self.changed_since(scan, report)(key) && self.rows.ever(key, row);
        (!is_known && !is_old).then(|| format!("row {key} {row:?} is none of {states:?}"))
    }

    fn wrong_count(&self, scan: &ScanRequest, report: &ScanReport, now: u64) -> Option<String> {
        let stale = self.changed_since(scan, report);
        if self.rows.keys().any(stale) {
            return None;
        }
        let states: Vec<_> = self.rows.keys().map(|key| self.states(scan, report, key, now)).collect();
        let count =
            |has: fn(&Vec<Option<Row>>) -> bool| states.iter().filter(|states| has(states)).count() as u64;
        let least = count(|states| states.iter().all(Option::is_some));
        let most = count(|states| states.iter().any(Option::is_some));
        let is_right = (least..=most).contains(&report.count);
        (!is_right).then(|| format!("{} rows, not {least} to {most}", report.count))
    }
}
