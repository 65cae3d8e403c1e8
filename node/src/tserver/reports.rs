//! What the masters have not been told yet about this server's tablets.
//!
//! Every change gets the next number. Each master is told everything after the number it acknowledged last; one
//! that acknowledged nothing, or too little to go by, gets a full report. Pure.

use std::collections::BTreeMap;

use engine::ids::TabletId;

/// Removals remembered for masters that are away; one that misses more is sent a full report.
const REMOVALS_MAX: usize = 4096;

/// Changes of tablets, numbered.
#[derive(Debug, Default)]
pub struct ReportLog {
    last: u64,
    changed: BTreeMap<TabletId, u64>,
    removed: BTreeMap<TabletId, u64>,
    /// Removals up to here may have been forgotten.
    forgotten: u64,
}

/// What to tell a master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    /// Leaves out what the master knows already.
    pub incremental: bool,
    pub updated: Vec<TabletId>,
    pub removed: Vec<TabletId>,
    /// What the master has acknowledged when it accepts this.
    pub up_to: u64,
}

impl ReportLog {
    /// Something about a tablet is new, the tablet itself perhaps.
    pub fn changed(&mut self, tablet: TabletId) {
        self.last += 1;
        self.removed.remove(&tablet);
        self.changed.insert(tablet, self.last);
    }

    /// A tablet is gone without a trace.
    pub fn removed(&mut self, tablet: TabletId) {
        self.last += 1;
        self.changed.remove(&tablet);
        self.removed.insert(tablet, self.last);
        if self.removed.len() > REMOVALS_MAX {
            let oldest = self.removed.iter().min_by_key(|(_, number)| **number);
            if let Some((tablet, number)) = oldest.map(|(tablet, number)| (*tablet, *number)) {
                self.removed.remove(&tablet);
                self.forgotten = number;
            }
        }
    }

    /// What a master that acknowledged up to `acknowledged` does not know. `None`: it knows nothing.
    pub fn since(&self, acknowledged: Option<u64>) -> Pending {
        let known = acknowledged.filter(|number| *number >= self.forgotten);
        let after = |changes: &BTreeMap<TabletId, u64>, number: u64| {
            changes.iter().filter(|(_, at)| **at > number).map(|(tablet, _)| *tablet).collect()
        };
        Pending {
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
    fn masters_hear_what_they_missed() {
        let mut log = ReportLog::default();
        log.changed(tablet(1));
        log.changed(tablet(2));
        let full = log.since(None);
        let updated = vec![tablet(1), tablet(2)];
        assert_eq!(full, Pending { incremental: false, updated, removed: vec![], up_to: 2 });
        log.changed(tablet(1));
        log.removed(tablet(2));
        let news = log.since(Some(full.up_to));
        let (updated, removed) = (vec![tablet(1)], vec![tablet(2)]);
        assert_eq!(news, Pending { incremental: true, updated, removed, up_to: 4 });
        let nothing = Pending { incremental: true, updated: vec![], removed: vec![], up_to: 4 };
        assert_eq!(log.since(Some(4)), nothing);
    }

    #[test]
    fn a_master_that_was_away_too_long_gets_everything() {
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
