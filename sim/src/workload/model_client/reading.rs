//! A scan of a plain client with its options, and how far it is.

use std::time::Duration;

use engine::time::Instant;
use sim_plan::client_ops::{ReplicaChoice, RowsFormat, SCANNER_TTL, ScanPause};
use sim_plan::tables::ColumnSpec;

use super::View;
use crate::history::{HybridStamp, Nanos};
use crate::model::{ColNo, Condition};
use crate::model_oracle::{ReadCall, ReadOutcome};
use crate::wire::scan::{ScanRow, ScanTime, TabletScan};

/// Most pauses of a scan.
pub(super) const PAUSES_MAX: u8 = 2;

/// A scan and its options.
pub(super) struct Reading {
    pub columns: Vec<ColNo>,
    pub conditions: Vec<(ColNo, Condition)>,
    pub scan: TabletScan,
    pub from: ReplicaChoice,
    pub batch: u32,
    pub(super) deadline: Instant,
    /// True for a scan by `nyala-client`, and by its tokens.
    pub by_client: bool,
    pub by_token: bool,
    pub pause: Option<Pause>,
}

impl Reading {
    /// Returns an unordered scan of a whole tablet at its leader, in one batch.
    pub(super) fn whole(
        view: &View,
        columns: Vec<ColNo>,
        time: ScanTime,
        format: RowsFormat,
        deadline: Instant,
    ) -> Reading {
        let scan = whole(view, &columns, time, format);
        let (from, batch, conditions) = (ReplicaChoice::Leader, 1 << 20, Vec::new());
        let (by_client, by_token) = (false, false);
        Reading { columns, conditions, scan, from, batch, deadline, by_client, by_token, pause: None }
    }

    /// Sets the conditions that rows must meet.
    pub(super) fn set_conditions(&mut self, view: &View, conditions: Vec<(ColNo, Condition)>) {
        let spec = |number: ColNo| view.spec.column(number).cloned();
        let of_columns = conditions.iter().filter_map(|(number, of)| Some((spec(*number)?, of.clone())));
        self.scan.conditions = of_columns.collect();
        self.conditions = conditions;
    }

    /// Returns the scan of one tablet as the history has it.
    pub(super) fn call(&self) -> ReadCall {
        let scan = &self.scan;
        ReadCall {
            columns: self.columns.clone(),
            conditions: self.conditions.clone(),
            lower: scan.lower.clone(),
            upper: scan.upper.clone(),
            time: scan.time,
            since: scan.since,
            ordered: scan.ordered,
            limit: scan.limit,
            partial: false,
        }
    }
}

/// Rows of a scan so far.
#[derive(Default)]
pub(super) struct Progress {
    pub rows: Vec<ScanRow>,
    pub count: u64,
    pub at: Option<HybridStamp>,
    /// Number of pauses so far.
    pub pauses: u8,
}

/// Reason for which an attempt ended early.
pub(super) enum Stopped {
    Refused(ReadOutcome),
    Retry(String),
}

/// Pauses of a scan.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pause {
    pub kind: ScanPause,
    pub span: Duration,
    /// Number of rows before the scan continues elsewhere.
    pub rows: u64,
}

impl Pause {
    /// Returns the number of calls that keep a scanner alive for the pause.
    pub(super) fn keep_alive_calls(self) -> u32 {
        self.span.as_millis().div_ceil(SCANNER_TTL.as_millis() / 2) as u32
    }
}

/// A call that used a scanner.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScannerUse {
    pub sent: Nanos,
    pub received: Nanos,
}

impl Reading {
    /// Returns the columns that are returned, and those with conditions.
    pub(super) fn used_columns(&self) -> impl Iterator<Item = &ColumnSpec> {
        self.scan.columns.iter().chain(self.scan.conditions.iter().map(|(column, _)| column))
    }

    /// Returns true if the scan pauses after its next batch. Its scanner is opened without rows.
    pub(super) fn pauses(&self, progress: &Progress) -> bool {
        self.pause.is_some_and(|pause| pause.kind != ScanPause::Elsewhere && progress.pauses < PAUSES_MAX)
    }

    /// Returns the number of rows after which the scan continues elsewhere.
    pub(super) fn first_part(&self, progress: &Progress) -> Option<u64> {
        let pause = self.pause.filter(|pause| pause.kind == ScanPause::Elsewhere && progress.pauses == 0);
        pause.map(|pause| pause.rows)
    }
}

/// Returns an unordered scan of a whole tablet.
pub(super) fn whole(view: &View, columns: &[ColNo], time: ScanTime, format: RowsFormat) -> TabletScan {
    let columns: Vec<ColumnSpec> =
        columns.iter().filter_map(|number| view.spec.column(*number).cloned()).collect();
    TabletScan {
        columns,
        keys: view.spec.key_columns().len(),
        conditions: Vec::new(),
        lower: None,
        upper: None,
        time,
        since: None,
        ordered: false,
        limit: None,
        format,
    }
}
