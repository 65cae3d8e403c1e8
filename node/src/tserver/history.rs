//! History that tablets keep: its age, and the holds that the masters know.

use engine::error::{Error, Result};
use engine::time::Timestamp;

use super::held_history::MICROS_PER_SECOND;
use super::server::TabletServer;
use crate::hosting::tablet_entry::TabletEntry;

fn age_s(server: &TabletServer, entry: &TabletEntry) -> u64 {
    entry.history_max_age_s().unwrap_or(server.config.history_max_age_s)
}

/// Returns the ancient history mark of a tablet: history before it may be dropped.
pub(super) fn ancient_mark(server: &TabletServer, entry: &TabletEntry) -> Timestamp {
    let (now, has_masters) = (server.clock.reading().wall.micros, !server.config.masters.is_empty());
    server.held_history.mark(entry.meta.table, now, age_s(server, entry), has_masters)
}

/// Returns `Invalid` for a snapshot that is older than the table's history and that no hold keeps; `which` is the
/// start or the end of a scan. A tablet that has dropped the history of a younger one refuses it itself.
pub(super) fn check(server: &TabletServer, entry: &TabletEntry, which: &str, at: Timestamp) -> Result<()> {
    let age_s = age_s(server, entry);
    let now = server.clock.reading().wall.micros;
    let oldest = now.saturating_sub(age_s.saturating_mul(MICROS_PER_SECOND));
    let is_held = || server.held_history.oldest(entry.meta.table).is_some_and(|held| held <= at);
    if at.micros() >= oldest || is_held() {
        return Ok(());
    }
    let mark = Timestamp::from_micros(oldest);
    Err(Error::invalid(format!(
        "snapshot scan {which} timestamp is earlier than the ancient history mark. Consider increasing the value of \
         the configuration parameter --tablet_history_max_age_sec. Snapshot timestamp: {at} Ancient History Mark: \
         {mark} ({age_s} s of history are kept)"
    )))
}
