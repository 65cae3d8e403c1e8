//! Changes of this server's tablets that the masters have not acknowledged.
//!
//! Every change gets the next number. Each master is sent all changes after the number that it acknowledged last. A
//! master that acknowledged nothing, or a number before the remembered removals, gets a full report. Pure.

use std::collections::BTreeMap;

use engine::ids::TabletId;

use super::tablet_entry::TabletSizes;

/// Removals remembered for unreachable masters; a master that misses more is sent a full report.
const REMOVALS_MAX: usize = 4096;

/// Numbered changes of tablets.
#[derive(Debug, Default)]
pub struct ReportLog {
    last: u64,
    changed: BTreeMap<TabletId, u64>,
    removed: BTreeMap<TabletId, u64>,
    /// Number up to which removals may have been dropped.
    forgotten: u64,
    /// Sizes of tablets when they were last looked at, for a report to any master or between two reports.
    sizes: BTreeMap<TabletId, TabletSizes>,
}

/// Contents of the next report to a master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingReport {
    /// True if tablets that the master knows are left out.
    pub incremental: bool,
    pub updated: Vec<TabletId>,
    pub removed: Vec<TabletId>,
    /// Number that the master acknowledges when it accepts this report.
    pub up_to: u64,
}

impl ReportLog {
    /// Records a change of a tablet, or a new tablet.
    pub fn changed(&mut self, tablet: TabletId) {
        self.last += 1;
        self.removed.remove(&tablet);
        self.changed.insert(tablet, self.last);
    }

    /// Records the removal of a tablet.
    pub fn removed(&mut self, tablet: TabletId) {
        self.last += 1;
        self.changed.remove(&tablet);
        self.sizes.remove(&tablet);
        self.removed.insert(tablet, self.last);
        if self.removed.len() > REMOVALS_MAX {
            let oldest = self.removed.iter().min_by_key(|(_, number)| **number);
            if let Some((tablet, number)) = oldest.map(|(tablet, number)| (*tablet, *number)) {
                self.removed.remove(&tablet);
                self.forgotten = number;
            }
        }
    }

    /// Records the sizes of a tablet in a report to a master. New sizes are a change, because the other masters
    /// need them, too.
    pub fn sizes_reported(&mut self, tablet: TabletId, sizes: TabletSizes) {
        if self.sizes.insert(tablet, sizes).is_some_and(|last| last != sizes) {
            self.changed(tablet);
        }
    }

    /// Records a change if a tablet's sizes are not those of the last look. So each master was told these sizes or
    /// gets them in its next report.
    pub fn sizes_are(&mut self, tablet: TabletId, sizes: TabletSizes) {
        if self.sizes.insert(tablet, sizes) != Some(sizes) {
            self.changed(tablet);
        }
    }

    /// Returns the changes after `acknowledged`; all tablets for `None`.
    pub fn since(&self, acknowledged: Option<u64>) -> PendingReport {
        let known = acknowledged.filter(|number| *number >= self.forgotten);
        let after = |changes: &BTreeMap<TabletId, u64>, number: u64| {
            changes.iter().filter(|(_, at)| **at > number).map(|(tablet, _)| *tablet).collect()
        };
        PendingReport {
            incremental: known.is_some(),
            updated: after(&self.changed, known.unwrap_or(0)),
            removed: known.map_or_else(Vec::new, |number| after(&self.removed, number)),
            up_to: self.last,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::ids::Uuid;

    fn tablet(n: u8) -> TabletId {
        Uuid([n; 16])
    }

    #[test]
    fn masters_get_the_changes_they_missed() {
        let mut log = ReportLog::default();
        log.changed(tablet(1));
        log.changed(tablet(2));
        let full = log.since(None);
        let updated = vec![tablet(1), tablet(2)];
        assert_eq!(full, PendingReport { incremental: false, updated, removed: vec![], up_to: 2 });
        log.changed(tablet(1));
        log.removed(tablet(2));
        let later = log.since(Some(full.up_to));
        let (updated, removed) = (vec![tablet(1)], vec![tablet(2)]);
        assert_eq!(later, PendingReport { incremental: true, updated, removed, up_to: 4 });
        let nothing = PendingReport { incremental: true, updated: vec![], removed: vec![], up_to: 4 };
        assert_eq!(log.since(Some(4)), nothing);
    }

    fn sizes(live_rows: u64) -> TabletSizes {
        TabletSizes { disk_bytes: 5, live_rows }
    }

    #[test]
    fn sizes_between_two_looks_are_reported_again() {
        let mut log = ReportLog::default();
        log.sizes_are(tablet(1), sizes(7));
        let first = log.since(None).up_to;
        // A row is deleted before the report is made, and inserted again after it.
        log.sizes_reported(tablet(1), sizes(6));
        let second = log.since(Some(first));
        assert_eq!(second.updated, [tablet(1)]);
        log.sizes_reported(tablet(1), sizes(7));
        let third = log.since(Some(second.up_to));
        assert_eq!(third.updated, [tablet(1)]);
        log.sizes_reported(tablet(1), sizes(7));
        log.sizes_are(tablet(1), sizes(7));
        assert!(log.since(Some(third.up_to)).updated.is_empty());
    }

    #[test]
    fn sizes_in_a_report_to_one_master_are_news_for_the_others() {
        let mut log = ReportLog::default();
        log.changed(tablet(1));
        let leader = log.since(None).up_to;
        log.sizes_reported(tablet(1), sizes(6));
        // A follower is away for a while, and its report is the first with another number of rows.
        log.since(None);
        log.sizes_reported(tablet(1), sizes(7));
        log.sizes_are(tablet(1), sizes(7));
        assert_eq!(log.since(Some(leader)).updated, [tablet(1)]);
    }

    #[test]
    fn a_master_that_missed_too_much_gets_a_full_report() {
        let mut log = ReportLog::default();
        log.changed(tablet(0));
        let acknowledged = Some(log.since(None).up_to);
        for n in 0..=REMOVALS_MAX as u128 {
            log.removed(Uuid((n + 1).to_be_bytes()));
        }
        assert!(!log.since(acknowledged).incremental);
        assert!(log.since(Some(log.last)).incremental);
    }
}
