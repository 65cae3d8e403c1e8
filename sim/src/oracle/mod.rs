//! Oracles: checkers of a run, independent of the code they check.
//!
//! They read the clients' history ([`crate::history`]) and the world's measurements, and know the documented behaviour
//! only. Nothing here is taken from the engine but plain types.
//!
//! An oracle must be able to fail: each has tests with histories that it must reject.

use std::collections::BTreeMap;

use crate::history::{HistoryOp, Nanos};
pub use report::{OracleReport, Violation};
use row_history::{RowEvent, RowEventKind, RowKey};

pub mod answers;
pub mod auto_increment;
pub mod availability;
pub mod balance;
pub mod bank;
pub mod catalog_gauges;
pub mod config_cas;
pub mod connections;
pub mod control_calls;
pub mod copies;
pub mod copy_requests;
pub mod creations;
pub mod disk_sizes;
pub mod durability;
pub mod exactly_once;
pub mod group_reports;
pub mod hibernation;
pub mod history_gc;
pub mod hybrid_time;
pub mod idle_traffic;
pub mod linearizability;
pub mod lists;
pub mod log_retention;
pub mod lost_replies;
pub mod maintenance;
pub mod memory_limit;
pub mod operator_calls;
pub mod orphans;
pub mod provenance;
pub mod query_consistency;
pub mod quiescing;
pub mod quiet_scans;
pub mod readiness;
pub mod rebuild_sources;
pub mod recovered_state;
pub mod registrations;
pub mod replica_checksums;
mod report;
pub mod resources;
pub mod row_history;
pub mod row_semantics;
pub mod row_versions;
pub mod server_lists;
pub mod settled_tablets;
pub mod table_lookups;
pub mod table_settings;
pub mod tablet_gauges;
pub mod tablet_traits;
pub mod told_sizes;
pub mod uncaused_failures;
pub mod unlisted_replicas;
pub mod whole_tables;
pub mod wrong_clocks;

/// Oracles of client-visible behaviour that stay valid after acknowledged data was lost.
const VALID_AFTER_LOSS: [&str; 2] = ["liveness", "rows"];

impl std::fmt::Display for RowEvent<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let micros = |nanos: u64| nanos / 1_000;
        let settled = self.settled.map_or("never".to_string(), |at| format!("{} us", micros(at)));
        write!(f, "op {} {} us to {settled}: ", self.operation, micros(self.invoked))?;
        match &self.what {
            RowEventKind::Write { row, answer: Some((at, outcome)) } => {
                write!(f, "{row} -> {outcome:?} at {at}")
            }
            RowEventKind::Write { row, answer: None } => write!(f, "{row} -> unknown (after {})", self.after),
            RowEventKind::Read { mode, at, state, view } => {
                let at = at.map_or(String::new(), |at| format!(" at {at}"));
                let filter = view.filter.map_or(String::new(), |filter| format!(" where {filter:?}"));
                write!(f, "read {mode:?}{at}{filter} -> {}", row_semantics::show(state))
            }
            RowEventKind::Diff { from, at, seen } => {
                let seen = seen.map_or("not reported".to_string(), row_semantics::show);
                write!(f, "diff {from} to {at} -> {seen}")
            }
        }
    }
}

/// Checks everything that needs the history alone. `apart`: the largest difference of two servers' clocks.
pub fn check_history(operations: &[HistoryOp], apart: Nanos) -> OracleReport {
    let mut report = OracleReport::default();
    let rows: BTreeMap<RowKey, Vec<RowEvent<'_>>> = row_history::by_row(operations, apart);
    linearizability::check(&rows, &mut report);
    row_versions::check(&rows, &mut report);
    durability::check(&rows, &mut report);
    exactly_once::check(&rows, &mut report);
    exactly_once::check_scans(operations, &mut report);
    hybrid_time::check(operations, &rows, &mut report);
    hybrid_time::check_snapshots(operations, &mut report);
    bank::check(operations, &mut report);
    lists::check(operations, &mut report);
    crate::invariants::repeatable_snapshot::check(operations, &mut report);
    report
}

/// Checks what still holds of the history where power cuts take acknowledged data; `said`: violations of other oracles.
pub fn check_history_after_loss(operations: &[HistoryOp], reported: &[Violation]) -> OracleReport {
    let mut report = OracleReport::default();
    provenance::check(&row_history::by_row(operations, 0), &mut report);
    exactly_once::check_scans(operations, &mut report);
    let stands = |violation: &&Violation| VALID_AFTER_LOSS.contains(&violation.oracle);
    reported.iter().filter(stands).for_each(|violation| report.add(violation.clone()));
    report
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
