//! Holds on the history of tables: the reader of an old snapshot keeps it readable for as long as it reads.
//!
//! ```text
//!   backup ── HoldHistory: table, T ──▶ leading master ── heartbeat reply: the oldest T by table ──▶ tablet server
//!          ── again within the lease ─▶   in memory                          its history GC stops at T ◀──┘
//! ```
//!
//! - Invariant: a complete list names every hold that was accepted before its time. A tablet server counts the age of
//!   history from the time of the last complete list, so it drops nothing that a hold accepted in time needs.
//! - A new leader sends no complete list for one lease: then each holder that still runs has asked it again.
//! - A hold ends by itself: with its lease, or when its snapshot is older than `history_hold_max_sec`.
//!
//! Not here: the check that history is still there. The tablet that drops history refuses older snapshots itself, so a
//! lost hold fails a scan and never leaves out rows.

use engine::sync::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use engine::error::{Error, Result};
use engine::ids::TableId;
use engine::time::{ClockReading, Instant, Timestamp};
use nyala_proto::kudu::master::{NyalaHistoryHoldPb, NyalaHistoryHoldsPb};

/// Number of holds above which more are refused.
const HOLDS_MAX: usize = 100_000;
/// Number of holds of one user on one table above which more are refused: a backup has one, however often it renews it.
const HOLDS_OF_USER_MAX: usize = 100;

/// Returns the user of a holder, whose name follows after a colon.
fn user_of(holder: &str) -> &str {
    holder.split_once(": ").map_or("", |(user, _)| user)
}

/// Limits of holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldLimits {
    /// Time after which a hold ends, unless it is requested again (`history_hold_lease_ms`).
    pub lease: Duration,
    /// Age of the oldest snapshot that can be held (`history_hold_max_sec`).
    pub max_age: Duration,
}

impl Default for HoldLimits {
    fn default() -> HoldLimits {
        HoldLimits { lease: Duration::from_secs(60), max_age: Duration::from_secs(14 * 24 * 3600) }
    }
}

/// A hold, as pages show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HistoryHold {
    pub table: TableId,
    pub holder: String,
    pub timestamp: Timestamp,
    pub expires: Instant,
}

/// All holds of the leading master.
#[derive(Debug)]
pub struct HistoryHolds {
    limits: HoldLimits,
    state: Mutex<HoldState>,
}

#[derive(Debug, Default)]
struct HoldState {
    /// Time since which this master leads, if it does.
    leads_since: Option<Instant>,
    /// Snapshot and end of each hold, by table and holder.
    holds: BTreeMap<(TableId, String), (Timestamp, Instant)>,
}

impl HoldState {
    fn expire(&mut self, now: Instant) {
        self.holds.retain(|_, (_, expires)| now < *expires);
    }

    /// Returns an error if there is no place for a hold. One that is there keeps its place.
    fn check_place(&self, key: &(TableId, String)) -> Result<()> {
        if self.holds.contains_key(key) {
            return Ok(());
        }
        if self.holds.len() >= HOLDS_MAX {
            return Err(Error::throttled(format!(
                "too many holds on history ({HOLDS_MAX}); wait until one ends"
            )));
        }
        let (table, user) = (key.0, user_of(&key.1));
        let of_table = self.holds.keys().filter(|(held, _)| *held == table);
        if of_table.filter(|(_, holder)| user_of(holder) == user).count() >= HOLDS_OF_USER_MAX {
            return Err(Error::throttled(format!(
                "too many holds of {user} on the history of table {table} ({HOLDS_OF_USER_MAX}); wait until one ends"
            )));
        }
        Ok(())
    }
}

impl HistoryHolds {
    /// Creates the holds of a master that does not lead: there are none.
    pub fn new(limits: HoldLimits) -> HistoryHolds {
        HistoryHolds { limits, state: Mutex::default() }
    }

    pub(super) fn limits(&self) -> HoldLimits {
        self.limits
    }

    /// Takes holds from now on. None is known, so lists are incomplete for one lease.
    pub fn begin_leadership(&self, now: Instant) {
        *self.state.lock() = HoldState { leads_since: Some(now), ..HoldState::default() };
    }

    /// Forgets all holds, and refuses further ones.
    pub fn end_leadership(&self) {
        *self.state.lock() = HoldState::default();
    }

    /// Holds the history of a table from `timestamp` on, for one lease. Replaces the holder's last hold on it.
    ///
    /// # Errors
    /// `Invalid` if the snapshot is too old to be held, `NotReady` if this master does not lead, `Throttled` if there
    /// are too many holds.
    pub fn hold(&self, now: ClockReading, table: TableId, holder: &str, timestamp: Timestamp) -> Result<()> {
        let age = Duration::from_micros(now.wall.micros.saturating_sub(timestamp.micros()));
        if age > self.limits.max_age {
            return Err(Error::invalid(format!(
                "the snapshot at {timestamp} is too old to hold its history ({} s, {} s allowed by \
                 --history_hold_max_sec); read a newer one",
                age.as_secs(),
                self.limits.max_age.as_secs()
            )));
        }
        let mut state = self.state.lock();
        if state.leads_since.is_none() {
            return Err(Error::not_ready("this master does not lead"));
        }
        state.expire(now.mono);
        let key = (table, holder.to_string());
        state.check_place(&key)?;
        state.holds.insert(key, (timestamp, now.mono.after(self.limits.lease)));
        Ok(())
    }

    /// Ends a hold, if it exists.
    pub fn release(&self, table: TableId, holder: &str) {
        self.state.lock().holds.remove(&(table, holder.to_string()));
    }

    /// Returns all holds.
    pub(super) fn all(&self, now: Instant) -> Vec<HistoryHold> {
        let mut state = self.state.lock();
        state.expire(now);
        let hold = |((table, holder), (timestamp, expires)): (&(TableId, String), &(Timestamp, Instant))| {
            HistoryHold { table: *table, holder: holder.clone(), timestamp: *timestamp, expires: *expires }
        };
        state.holds.iter().map(hold).collect()
    }

    /// Returns the list for tablet servers; `None` if this master does not lead. It is complete, and so has a time,
    /// once the master has led for a lease. `is_sole_leader` is true if no other master can have been elected.
    pub fn list(&self, now: ClockReading, is_sole_leader: bool) -> Option<NyalaHistoryHoldsPb> {
        let mut state = self.state.lock();
        state.expire(now.mono);
        let is_complete = is_sole_leader && now.mono.since(state.leads_since?) >= self.limits.lease;
        let mut oldest: BTreeMap<TableId, Timestamp> = BTreeMap::new();
        for ((table, _), (timestamp, _)) in &state.holds {
            let known = oldest.entry(*table).or_insert(*timestamp);
            *known = (*known).min(*timestamp);
        }
        let hold = |(table, timestamp): (TableId, Timestamp)| NyalaHistoryHoldPb {
            table_id: Bytes::from(table.to_string()),
            timestamp: timestamp.0,
        };
        let holds = oldest.into_iter().map(hold).collect();
        Some(NyalaHistoryHoldsPb { as_of_micros: is_complete.then_some(now.wall.micros), holds })
    }
}

#[cfg(test)]
mod tests {
    use engine::ids::Uuid;
    use engine::time::WallTime;

    use super::*;

    const LIMITS: HoldLimits = HoldLimits { lease: Duration::from_secs(3), max_age: Duration::from_secs(50) };

    /// Returns the clock `seconds` after the first leadership began.
    fn at(seconds: u64) -> ClockReading {
        ClockReading {
            mono: Instant(seconds * 1_000_000_000),
            wall: WallTime { micros: (100 + seconds) * 1_000_000, error_micros: 0 },
        }
    }

    fn timestamp(seconds: u64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    /// Shows a list: its time if it is complete, and the oldest snapshots, in seconds.
    fn shown(list: Option<NyalaHistoryHoldsPb>) -> String {
        let Some(list) = list else { return "not leading".to_string() };
        let as_of = list.as_of_micros.map_or("partial".to_string(), |at| format!("{}", at / 1_000_000));
        let holds = list.holds.iter().map(|hold| Timestamp(hold.timestamp).micros() / 1_000_000);
        format!("{as_of}: {:?}", holds.collect::<Vec<_>>())
    }

    #[test]
    fn a_list_is_complete_one_lease_after_the_election() {
        let holds = HistoryHolds::new(LIMITS);
        let (table, other) = (Uuid([1; 16]), Uuid([2; 16]));
        assert!(holds.hold(at(0), table, "a", timestamp(99)).is_err(), "it does not lead");
        assert_eq!(shown(holds.list(at(0), true)), "not leading");
        holds.begin_leadership(at(0).mono);
        holds.hold(at(1), table, "a", timestamp(90)).expect("a young snapshot");
        holds.hold(at(1), table, "b", timestamp(95)).expect("a young snapshot");
        holds.hold(at(2), other, "a", timestamp(80)).expect("a young snapshot");
        assert_eq!(shown(holds.list(at(2), true)), "partial: [90, 80]");
        assert_eq!(shown(holds.list(at(3), false)), "partial: [90, 80]");
        assert_eq!(shown(holds.list(at(3), true)), "103: [90, 80]");
        // Renewed, released, expired.
        holds.hold(at(3), table, "b", timestamp(95)).expect("a young snapshot");
        holds.release(table, "a");
        assert_eq!(shown(holds.list(at(4), true)), "104: [95, 80]");
        assert_eq!(shown(holds.list(at(5), true)), "105: [95]");
        assert_eq!(shown(holds.list(at(6), true)), "106: []");
        assert!(holds.all(at(6).mono).is_empty());
        // Another term knows nothing, and says so.
        holds.hold(at(6), table, "a", timestamp(90)).expect("a young snapshot");
        holds.end_leadership();
        assert_eq!(shown(holds.list(at(6), true)), "not leading");
        holds.begin_leadership(at(7).mono);
        assert_eq!(shown(holds.list(at(7), true)), "partial: []");
    }

    #[test]
    fn a_user_takes_no_places_of_others() {
        let holds = HistoryHolds::new(LIMITS);
        holds.begin_leadership(at(0).mono);
        let (table, other) = (Uuid([1; 16]), Uuid([2; 16]));
        let hold = |table, holder: &str| holds.hold(at(1), table, holder, timestamp(90));
        for number in 0..HOLDS_OF_USER_MAX {
            hold(table, &format!("ann: {number}")).expect("a place");
        }
        let error = hold(table, "ann: one more").expect_err("too many");
        assert!(error.message.contains("too many holds of ann on the history of table"), "{error}");
        hold(table, "ann: 7").expect("a renewal");
        hold(table, "bob: 7").expect("a place of another user");
        hold(other, "ann: 7").expect("a place of another table");
    }

    #[test]
    fn a_snapshot_that_is_too_old_is_not_held() {
        let holds = HistoryHolds::new(LIMITS);
        holds.begin_leadership(at(0).mono);
        let table = Uuid([1; 16]);
        holds.hold(at(0), table, "a", timestamp(50)).expect("just young enough");
        let error = holds.hold(at(1), table, "a", timestamp(50)).expect_err("too old");
        assert!(error.message.contains("51 s, 50 s allowed by --history_hold_max_sec"), "{error}");
        assert_eq!(shown(holds.list(at(4), true)), "104: []", "so the hold ends with its lease");
    }
}
