//! What the leading master knows of a server.

use std::collections::BTreeMap;

use nyala_proto::kudu::master::{ReportedTabletPb, TabletReportPb};

/// A server by its reports.
#[derive(Debug, Clone, Default)]
pub(super) struct KnownServer {
    /// Number of the start that registered.
    pub started: i64,
    /// Tablets by id; `None` until a full report.
    pub tablets: Option<BTreeMap<Vec<u8>, ReportedTabletPb>>,
    /// Number of tablets that are open, by the last heartbeat.
    pub live: i32,
    /// True if the last heartbeat said that no replica can be added.
    pub short_of_space: bool,
}

impl KnownServer {
    /// Takes a report. An error says what no server may report.
    pub(super) fn take(&mut self, report: &TabletReportPb) -> Result<(), String> {
        let updated = report.updated_tablets.iter().map(|tablet| (tablet.tablet_id.to_vec(), tablet.clone()));
        let updated: BTreeMap<_, _> = updated.collect();
        if updated.len() < report.updated_tablets.len() {
            return Err(format!("a report has a tablet twice: {report:?}"));
        }
        if let Some(both) = report.removed_tablet_ids.iter().find(|id| updated.contains_key(&id[..])) {
            let id = String::from_utf8_lossy(both);
            return Err(format!("a report has tablet {id} as present and as removed"));
        }
        if !report.is_incremental {
            self.tablets = Some(updated);
        } else if let Some(tablets) = &mut self.tablets {
            report.removed_tablet_ids.iter().for_each(|id| drop(tablets.remove(&id[..])));
            tablets.extend(updated);
        }
        Ok(())
    }
}
