//! The oracle of model tables: replays the clients' history against the model.
//!
//! ```text
//! history ──► answers    each call: is this error, this schema, this place allowed?
//!        ├──► numbering  which numbers did inserts get, where servers number rows?
//!        ├──► metadata   is what masters and servers tell of a table that of a version in force?
//!        └──► timeline   each tablet, each key: writes and snapshot reads by timestamp, swept once over the
//!                        states that the row may have
//!                  └──► reads   does a read fit a state?
//! ```
//!
//! A tablet is a table of its own: a range that is dropped and added again, or a table that is created again, has other
//! tablets, which begin empty.

pub mod answers;
pub mod coverage;
pub mod history;
pub mod metadata;
mod numbering;
pub(crate) mod reads;
mod timeline;
mod violation;

use std::collections::BTreeMap;

pub use history::{ReadCall, ReadOutcome, TableCall, TableEvent, TableHistory, WriteOutcome};

use crate::history::Nanos;
use crate::model::Incarnation;
use crate::oracle::OracleReport;
pub use violation::{NAME, of_call, show_version};

/// Checks the calls on model tables. `apart`: the largest difference of two machines' clocks.
pub fn check(tables: &[Incarnation], events: &[TableEvent], apart: Nanos) -> OracleReport {
    let mut report = OracleReport::default();
    let events = &*numbering::resolve(tables, events, &mut report);
    let mut by_tablet: BTreeMap<(usize, &str), Vec<usize>> = BTreeMap::new();
    let mut anywhere: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (at, event) in events.iter().enumerate() {
        report.checked += 1;
        if let Some(table) = tables.get(event.table) {
            answers::check(at, event, table, apart).into_iter().for_each(|violation| report.add(violation));
            match (event.tablet.as_str(), &event.call) {
                ("", TableCall::Write { .. }) => anywhere.entry(event.table).or_default().push(at),
                (tablet, _) => by_tablet.entry((event.table, tablet)).or_default().push(at),
            }
        }
    }
    for ((table, _), mut calls) in by_tablet {
        calls.extend(anywhere.get(&table).into_iter().flatten());
        calls.sort_unstable();
        let calls: Vec<(usize, &TableEvent)> = calls.into_iter().map(|at| (at, &events[at])).collect();
        timeline::check(&tables[table], &calls, &mut report);
    }
    report
}

#[cfg(test)]
mod tests;
