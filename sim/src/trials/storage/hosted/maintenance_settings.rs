//! Settings of the table for its maintenance, which alterations send now and then: the tablet has those of the last
//! one, and the server compacts nothing while they disable compactions.

use std::sync::{Arc, Weak};

use engine::tablet::Tablet;
use nyala_proto::kudu::TableExtraConfigPb;
use sim_plan::RandomStream;

/// Percentage of alterations with settings, and of these with compactions disabled.
const SENT_PERCENT: u64 = 20;
const DISABLED_PERCENT: u64 = 50;
const PRIORITIES: [Option<i32>; 4] = [None, Some(-3), Some(0), Some(5)];

/// Marks of compactions that begin.
pub(super) const COMPACTIONS: [&str; 3] = [
    "maintenance: rowset compaction",
    "maintenance: major delta compaction",
    "maintenance: minor delta compaction",
];

/// The settings that are in force, and the last look at compactions.
pub(super) struct MaintenanceSettings {
    /// A stream of their own, so that settings change no other draw.
    random: RandomStream,
    in_force: TableExtraConfigPb,
    /// The tablet at a look while compactions are disabled, and the number of compactions begun before it.
    seen: Option<(Weak<Tablet>, u64)>,
}

impl MaintenanceSettings {
    pub(super) fn new(seed: u64) -> MaintenanceSettings {
        let random = RandomStream::new(seed, "storage trial, hosted, settings");
        MaintenanceSettings { random, in_force: TableExtraConfigPb::default(), seen: None }
    }

    /// Draws the settings of an alteration. None leaves those that the table has.
    pub(super) fn draw(&mut self) -> Option<TableExtraConfigPb> {
        self.random.percent(SENT_PERCENT).then(|| TableExtraConfigPb {
            maintenance_priority: self.random.pick(&PRIORITIES),
            disable_compaction: Some(self.random.percent(DISABLED_PERCENT)),
            ..Default::default()
        })
    }

    /// Sets what an alteration has sent, which is in force.
    pub(super) fn set(&mut self, sent: TableExtraConfigPb) {
        (self.in_force, self.seen) = (sent, None);
    }

    /// Returns what is wrong with a tablet. `begun`: the compactions of all processes so far. After a restart the
    /// tablet may have the settings of an older alteration until what is in flight is applied: nothing is said then.
    pub(super) fn fault(&mut self, tablet: &Arc<Tablet>, begun: u64) -> Option<String> {
        let before = self.seen.take();
        if tablet.mvcc().in_flight() > 0 {
            return None;
        }
        let schema = tablet.table_schema();
        let own = (schema.maintenance_priority(), schema.is_compaction_disabled());
        let wanted = (self.in_force.maintenance_priority(), self.in_force.disable_compaction());
        if own != wanted {
            return Some(format!("the settings of the tablet are {own:?} instead of {wanted:?}"));
        }
        if !self.in_force.disable_compaction() {
            return None;
        }
        let now = Arc::downgrade(tablet);
        let before = before.filter(|(of, _)| of.ptr_eq(&now)).map(|(_, begun)| begun);
        self.seen = Some((now, begun));
        disobedience(tablet.choose_compaction().is_some(), before, begun)
    }
}

/// Returns what a server does although compactions are disabled. `before`: the compactions begun before the last look
/// in the same process.
fn disobedience(offers: bool, before: Option<u64>, begun: u64) -> Option<String> {
    let more = before.map_or(0, |before| begun.saturating_sub(before));
    match (offers, more) {
        (true, _) => Some("compactions are disabled, and the tablet offers one".to_string()),
        (false, 0) => None,
        (false, more) => Some(format!("compactions are disabled, and {more} begin")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compactions_that_are_disabled_are_reported() {
        assert_eq!(disobedience(false, None, 5), None, "they began before");
        assert_eq!(disobedience(false, Some(5), 5), None);
        assert!(disobedience(false, Some(5), 6).is_some());
        assert!(disobedience(true, None, 0).is_some());
    }
}
