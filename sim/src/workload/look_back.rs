//! The past of a healed cluster: snapshots and diff scans at the very moments of acknowledged writes, wherever these
//! have gone since, to files, merged, copied or replayed.

use std::time::Duration;

use engine::error::Error;
use node::client::{ReadMode, ScanSpec, Table};
use node::env::Env;

use super::scans::spec;
use super::settle::SETTLER;
use super::{Workload, nanos, rows, tables, until};
use crate::draw::Draw;
use crate::history::{Mode, Outcome, Request, RowAnswer, Scan, Stamp, TableNo};
use crate::view::WHOLE;

/// Snapshots that are read of each table, and of how many of them the changes since another one.
const MOMENTS: usize = 6;
const DIFFS: usize = 2;

impl Workload {
    /// Reads what the table was at some moments.
    pub(super) async fn look_back(
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
        let draw = &mut Draw::new(self.plan().seed, &format!("moments of {number}"));
        let mut moment = || stamps[draw.below(stamps.len() as u64) as usize] + draw.below(2);
        for turn in 0..MOMENTS {
            let (one, other) = (moment(), moment());
            let from = (turn < DIFFS).then_some(one.min(other));
            let at = if turn < DIFFS { one.max(other) } else { one };
            let any = turn % 2 == 1;
            if self.plan().data.history.is_zero() {
                until(env, within, async || self.read_then(env, table, number, from, at, any).await).await?;
            } else {
                // It may be forgotten by now.
                let _forgotten = self.read_then(env, table, number, from, at, any).await;
            }
        }
        Ok(())
    }

    /// The timestamps of writes to a table that were acknowledged, in their order.
    fn stamps(&self, number: TableNo) -> Vec<Stamp> {
        let mut stamps = Vec::new();
        for operation in self.history().operations().iter() {
            let Request::Write { table, .. } = operation.request else { continue };
            let Outcome::Written(answers) = &operation.outcome else { continue };
            let at = |answer: &RowAnswer| match answer {
                RowAnswer::At { at, .. } => Some(*at),
                RowAnswer::Unknown => None,
            };
            stamps.extend(answers.iter().filter_map(at).filter(|_| table == number));
        }
        stamps.sort_unstable();
        stamps.dedup();
        stamps
    }

    /// Reads the whole table, or what changed in it, at a moment; answered or not, it is in the history.
    pub(super) async fn read_then(
        &self,
        env: &Env,
        table: &Table,
        number: TableNo,
        diff_from: Option<Stamp>,
        at: Stamp,
        any_replica: bool,
    ) -> Result<(), Error> {
        let (keys, ordered) = ((0, tables::KEYS_END), diff_from.is_some());
        let scan = Scan { table: number, keys, mode: Mode::Snapshot, diff_from, ordered, view: WHOLE };
        let spec = ScanSpec {
            keys: rows::keys_of(table.schema(), keys.0, keys.1),
            read_mode: ReadMode::AtSnapshot(Some(at)),
            diff_from,
            fault_tolerant: ordered,
            any_replica,
            ..spec()
        };
        let after = table.client().observed_timestamp().unwrap_or_default();
        let call = self.history().invoke(SETTLER, nanos(env), after, Request::Scan(scan));
        let (outcome, result) = match self.read(table, scan, spec, None).await {
            Ok(read) => (Outcome::Rows { at: read.at, rows: read.rows }, Ok(())),
            Err(error) => (Outcome::Failed(error.message.clone()), Err(error)),
        };
        self.history().answer(call, nanos(env), outcome);
        result
    }
}
