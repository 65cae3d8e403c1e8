//! A tablet server of a trial of holds: the lists on their way to it, and what it has dropped.

use std::collections::BTreeMap;

use engine::ids::TableId;
use engine::time::Timestamp;
use node::tserver::held_history::HeldHistory;
use nyala_proto::kudu::master::{NyalaHistoryHoldsPb, TsHeartbeatResponsePb};

use super::settings::{AGE, TABLES, clock, table_of};

pub(super) struct Server {
    held: HeldHistory,
    error: i64,
    /// Lists by the second at which they arrive.
    coming: Vec<(u64, NyalaHistoryHoldsPb)>,
    /// The highest mark up to which each table's history is dropped.
    dropped: BTreeMap<TableId, Timestamp>,
}

impl Server {
    pub(super) fn new(error: i64) -> Server {
        Server { held: HeldHistory::default(), error, coming: Vec::new(), dropped: BTreeMap::new() }
    }

    pub(super) fn send(&mut self, at: u64, list: NyalaHistoryHoldsPb) {
        self.coming.push((at, list));
    }

    /// Forgets the lists; what is dropped stays dropped.
    pub(super) fn restart(&mut self) {
        self.held = HeldHistory::default();
        self.coming.clear();
    }

    /// Takes the lists that arrive now, and drops what they allow.
    pub(super) fn deliver(&mut self, now: u64) -> Result<(), String> {
        let (due, coming) = std::mem::take(&mut self.coming).into_iter().partition(|(at, _)| *at <= now);
        self.coming = coming;
        for (_, list) in due {
            let reply = TsHeartbeatResponsePb {
                leader_master: Some(true),
                nyala_history: Some(list),
                ..Default::default()
            };
            let taken = self.held.take(&reply, clock(now, self.error).wall.micros);
            taken.map_err(|error| error.to_string())?;
            self.drop_history(now);
        }
        self.drop_history(now);
        Ok(())
    }

    fn drop_history(&mut self, now: u64) {
        for table in (0..TABLES).map(table_of) {
            let mark = self.mark(now, table);
            let dropped = self.dropped.entry(table).or_default();
            *dropped = mark.max(*dropped);
        }
    }

    pub(super) fn mark(&self, now: u64, table: TableId) -> Timestamp {
        self.held.mark(table, clock(now, self.error).wall.micros, AGE, true)
    }

    pub(super) fn dropped(&self, table: TableId) -> Timestamp {
        self.dropped.get(&table).copied().unwrap_or_default()
    }
}
