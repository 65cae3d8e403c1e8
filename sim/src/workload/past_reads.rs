//! Reads of the past after the faults: snapshots and diff scans at the timestamps of acknowledged writes, which since
//! then may have been flushed, compacted, copied or replayed.

use std::time::Duration;

use engine::error::Error;
use nyala_client::{ReadMode, ScanSpec, Table};
use nyala_common::env::Env;

use super::recovery_checks::RECOVERY_CLIENT;
use super::{Workload, nanos, row_encoding, tables, until};
use crate::history::{CallOutcome, ClientRequest, HybridStamp, RowResult, ScanMode, ScanRequest, TableNo};
use crate::oracle::history_gc;
use crate::projection::WHOLE;
use sim_plan::RandomStream;

/// Snapshots to read of each table, and number of them that also get a diff scan.
const SNAPSHOTS: usize = 6;
const DIFFS: usize = 2;

impl Workload {
    /// Reads a table at some timestamps of its past.
    pub(super) async fn read_past(
        &self,
        env: &Env,
        table: &Table,
        number: TableNo,
        within: Duration,
    ) -> Result<(), Error> {
        let stamps = self.stamps(number);
        if stamps.is_empty() {
            return Ok(());
        }
        let draw = &mut RandomStream::new(self.plan().seed, &format!("moments of {number}"));
        let mut timestamp = || stamps[draw.below(stamps.len() as u64) as usize] + draw.below(2);
        for turn in 0..SNAPSHOTS {
            let (one, other) = (timestamp(), timestamp());
            let from = (turn < DIFFS).then_some(one.min(other));
            let at = if turn < DIFFS { one.max(other) } else { one };
            let any = turn % 2 == 1;
            if self.plan().data.history.is_zero() {
                until(env, within, async || self.read_then(env, table, number, from, at, any).await).await?;
            } else {
                // The history may be past the ancient history mark by now.
                let _forgotten = self.read_then(env, table, number, from, at, any).await;
            }
        }
        Ok(())
    }

    /// Returns the timestamps of acknowledged writes to a table, in order.
    fn stamps(&self, number: TableNo) -> Vec<HybridStamp> {
        let mut stamps = Vec::new();
        for operation in self.history().operations().iter() {
            let ClientRequest::Write { table, .. } = operation.request else { continue };
            let CallOutcome::Written(answers) = &operation.outcome else { continue };
            let at = |answer: &RowResult| match answer {
                RowResult::At { at, .. } => Some(*at),
                RowResult::Unknown => None,
            };
            stamps.extend(answers.iter().filter_map(at).filter(|_| table == number));
        }
        stamps.sort_unstable();
        stamps.dedup();
        stamps
    }

    /// Reads the whole table, or a diff, at a timestamp, and records the call in the history.
    pub(super) async fn read_then(
        &self,
        env: &Env,
        table: &Table,
        number: TableNo,
        diff_from: Option<HybridStamp>,
        at: HybridStamp,
        any_replica: bool,
    ) -> Result<(), Error> {
        let (keys, ordered) = ((0, tables::KEYS_END), diff_from.is_some());
        let scan =
            ScanRequest { table: number, keys, mode: ScanMode::Snapshot, diff_from, ordered, view: WHOLE };
        let spec = ScanSpec {
            keys: row_encoding::keys_of(table.schema(), keys.0, keys.1),
            read_mode: ReadMode::AtSnapshot(Some(at)),
            diff_from,
            fault_tolerant: ordered,
            any_replica,
            ..self.whole_spec()
        };
        let after = table.client().observed_timestamp().unwrap_or_default();
        let call = self.history().invoke(RECOVERY_CLIENT, nanos(env), after, ClientRequest::Scan(scan));
        let (outcome, result) = match self.read(table, scan, spec, None).await {
            Ok(read) => (CallOutcome::Rows { at: read.at, rows: read.rows }, Ok(())),
            Err(error) => {
                let (kept, ended) = (self.plan().history_kept(), env.now().wall.micros);
                let oldest = diff_from.unwrap_or(at);
                let early = kept
                    .and_then(|kept| history_gc::check_refused(&scan, oldest, ended, &error.message, kept));
                early.into_iter().for_each(|violation| self.report_violation(violation));
                (CallOutcome::Failed((&error).into()), Err(error))
            }
        };
        self.history().answer(call, nanos(env), outcome);
        result
    }
}
