//! Holds on the history of tables, as the masters list them.
//!
//! ```text
//!   heartbeat reply of the leader ──▶ HeldHistory: time of the last complete list, oldest held snapshot by table
//!   maintenance: mark = min(clock, time of that list) − age, at most the oldest held snapshot ──▶ history GC
//! ```
//!
//! Without a list nothing is dropped, so a server that has just started, or that no leader answers, cannot drop history
//! that a hold needs. See `master/history_holds.rs`.

use std::collections::BTreeMap;

use engine::error::Result;
use engine::ids::{TableId, Uuid};
use engine::sync::Mutex;
use engine::time::Timestamp;

use nyala_proto::kudu::master::{NyalaHistoryHoldsPb, TsHeartbeatResponsePb};

pub(super) const MICROS_PER_SECOND: u64 = 1_000_000;

/// Holds on history that this server knows.
#[derive(Debug, Default)]
pub struct HeldHistory(Mutex<KnownHolds>);

#[derive(Debug, Default)]
struct KnownHolds {
    /// Time in microseconds since 1970 of the last complete list, by the master's clock.
    as_of: Option<u64>,
    oldest: BTreeMap<TableId, Timestamp>,
}

impl HeldHistory {
    /// Takes the list of a leading master. A master without one keeps no holds.
    pub fn take(&self, reply: &TsHeartbeatResponsePb, now_micros: u64) -> Result<()> {
        if !reply.leader_master() {
            return Ok(());
        }
        let none = || NyalaHistoryHoldsPb { as_of_micros: Some(now_micros), holds: Vec::new() };
        let list = reply.nyala_history.clone().unwrap_or_else(none);
        let hold = |hold: &nyala_proto::kudu::master::NyalaHistoryHoldPb| {
            Ok((Uuid::parse(&hold.table_id)?, Timestamp(hold.timestamp)))
        };
        let listed = list.holds.iter().map(hold).collect::<Result<BTreeMap<_, _>>>()?;
        let mut known = self.0.lock();
        if list.as_of_micros.is_some() && list.as_of_micros >= known.as_of {
            *known = KnownHolds { as_of: list.as_of_micros, oldest: listed };
            return Ok(());
        }
        // The list may lack holds, so those that are known stay.
        for (table, timestamp) in listed {
            let oldest = known.oldest.entry(table).or_insert(timestamp);
            *oldest = (*oldest).min(timestamp);
        }
        Ok(())
    }

    /// Returns the oldest snapshot of a table that is held.
    pub fn oldest(&self, table: TableId) -> Option<Timestamp> {
        self.0.lock().oldest.get(&table).copied()
    }

    /// Returns the ancient history mark of a table that keeps history of this age. `has_masters` is false for a server
    /// that gets no lists.
    pub fn mark(&self, table: TableId, now_micros: u64, age_s: u64, has_masters: bool) -> Timestamp {
        let known = self.0.lock();
        let as_of = if has_masters { known.as_of.unwrap_or(0) } else { now_micros };
        let mark = as_of.min(now_micros).saturating_sub(age_s.saturating_mul(MICROS_PER_SECOND));
        let mark = Timestamp::from_micros(mark);
        known.oldest.get(&table).map_or(mark, |held| mark.min(*held))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use nyala_proto::kudu::master::NyalaHistoryHoldPb;

    use super::*;

    fn reply(leads: bool, history: Option<(Option<u64>, &[u64])>) -> TsHeartbeatResponsePb {
        let hold = |timestamp: &u64| NyalaHistoryHoldPb {
            table_id: Bytes::from(Uuid([1; 16]).to_string()),
            timestamp: Timestamp::from_micros(*timestamp).0,
        };
        let list = |(as_of_micros, holds): (Option<u64>, &[u64])| NyalaHistoryHoldsPb {
            as_of_micros,
            holds: holds.iter().map(hold).collect(),
        };
        TsHeartbeatResponsePb {
            leader_master: Some(leads),
            nyala_history: history.map(list),
            ..TsHeartbeatResponsePb::default()
        }
    }

    #[test]
    fn the_mark_follows_complete_lists_and_stops_at_holds() {
        const S: u64 = MICROS_PER_SECOND;
        let held = HeldHistory::default();
        // In seconds, 10 seconds of history kept.
        let mark = |now: u64| held.mark(Uuid([1; 16]), now * S, 10, true).micros() / S;
        let take = |reply| held.take(&reply, 100 * S).expect("a legal list");
        assert_eq!(mark(100), 0, "no list");
        take(reply(false, Some((Some(100 * S), &[]))));
        take(reply(true, Some((None, &[70 * S]))));
        assert_eq!(mark(100), 0, "no complete list of a leader");
        take(reply(true, Some((Some(100 * S), &[70 * S]))));
        assert_eq!((mark(100), mark(200)), (70, 70));
        // A new leader does not know the holds at first, and its clock may be behind.
        take(reply(true, Some((None, &[]))));
        take(reply(true, Some((Some(99 * S), &[60 * S]))));
        assert_eq!(mark(200), 60);
        take(reply(true, Some((Some(110 * S), &[]))));
        assert_eq!((mark(200), mark(105)), (100, 95), "the lower clock counts");
        // A master of another version keeps no holds.
        take(reply(true, Some((Some(111 * S), &[50 * S]))));
        held.take(&reply(true, None), 120 * S).expect("no list");
        assert_eq!(mark(200), 110);
        assert_eq!(held.mark(Uuid([1; 16]), 200 * S, 10, false).micros() / S, 190, "no masters");
        let bad = NyalaHistoryHoldPb { table_id: Bytes::from("x"), timestamp: 1 };
        let history = NyalaHistoryHoldsPb { as_of_micros: Some(1), holds: vec![bad] };
        let bad = TsHeartbeatResponsePb { nyala_history: Some(history), ..reply(true, None) };
        assert!(held.take(&bad, 130 * S).is_err());
    }
}
