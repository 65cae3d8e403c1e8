//! Deleting tables for good or for now, recalling them, and replacing single tablets.

use super::columns::check_name;
use super::placement::Loads;
use super::record::{Consensus, Peer, RowKey, TableState, TabletRecord, TabletState};
use super::refusal::{Code, Refusal, Result};
use super::request::{Answer, TableRef};
use super::tasks::{TaskKey, TaskKind};
use super::{Catalog, Effects, Note, Tablet};
use crate::error::Error;
use crate::ids::{PeerId, TableId, TabletId};
use crate::time::Now;

impl Catalog {
    pub(super) fn delete_table(
        &mut self,
        now: Now,
        table: &TableRef,
        reserve_seconds: Option<u32>,
        out: &mut Effects,
    ) -> Result<Answer> {
        let id = self.find(table)?;
        let reserve = reserve_seconds.map_or(self.config.deleted_table_reserve.as_secs(), u64::from);
        if reserve == 0 {
            self.hard_delete(now, id, out);
            return Ok(Answer::Done);
        }
        let record = &mut self.tables.get_mut(&id).expect("found above").record;
        if record.state != TableState::Running {
            return Err(soft_deleted(&record.name));
        }
        let at = now.wall.micros;
        record.state =
            TableState::SoftDeleted { at, purge_at: at.saturating_add(reserve.saturating_mul(1_000_000)) };
        out.notes.push(Note::TableSoftDeleted { table: id, name: record.name.clone() });
        self.dirty.insert(RowKey::Table(id));
        Ok(Answer::Done)
    }

    fn hard_delete(&mut self, now: Now, id: TableId, out: &mut Effects) {
        let table = self.tables.get_mut(&id).expect("the caller found it");
        let tablets: Vec<TabletId> = std::mem::take(&mut table.tablets).into_values().collect();
        table.record.state = TableState::Deleted { at: now.wall.micros };
        table.record.applied_schema = None;
        let name = table.record.name.clone();
        self.names.remove(&name);
        self.dirty.insert(RowKey::Table(id));
        let reason = format!("Table deleted at {}", utc(now.wall.micros));
        for tablet in tablets {
            self.end_tablet(now, tablet, TabletState::Deleted, &reason);
        }
        out.notes.push(Note::TableDeleted { table: id, name });
    }

    /// Ends a live tablet and has its replicas removed. The caller has taken it out of its table's map.
    pub(super) fn end_tablet(&mut self, now: Now, id: TabletId, state: TabletState, reason: &str) {
        let tablet = self.tablets.get_mut(&id).expect("the caller found it");
        let record = &mut tablet.record;
        record.state = state;
        record.since = now.wall.micros;
        record.message = reason.to_string();
        let mut doomed: Vec<PeerId> = record.consensus.peers.iter().map(|peer| peer.server).collect();
        doomed.extend(tablet.replicas.keys());
        doomed.sort();
        doomed.dedup();
        record.doomed.clone_from(&doomed);
        tablet.replicas.clear();
        self.dirty.insert(RowKey::Tablet(id));
        for server in doomed {
            for kind in [TaskKind::Create, TaskKind::Alter, TaskKind::Remove, TaskKind::ChangeConfig] {
                self.tasks.remove(TaskKey { server, tablet: id, kind });
            }
            self.add_delete(now, id, server);
        }
    }

    pub(super) fn recall_table(
        &mut self,
        now: Now,
        table: &TableRef,
        new_name: Option<String>,
        out: &mut Effects,
    ) -> Result<Answer> {
        let id = self.find(table)?;
        let old_name = self.tables[&id].record.name.clone();
        if !matches!(self.tables[&id].record.state, TableState::SoftDeleted { .. }) {
            return Err(Refusal::no_such_table(format!("the table {old_name:?} is not soft-deleted")));
        }
        let name = new_name.filter(|name| !name.is_empty()).unwrap_or_else(|| old_name.clone());
        if name != old_name {
            check_name("table", &name, &self.config)?;
            self.check_name_free(&name)?;
            self.names.remove(&old_name);
            self.names.insert(name.clone(), id);
        }
        let record = &mut self.tables.get_mut(&id).expect("found above").record;
        record.state = TableState::Running;
        record.altered = now.wall.micros;
        out.notes.push(Note::TableRecalled { table: id, name: name.clone() });
        if name != old_name {
            let schema = record.schema.clone();
            record.name = name;
            record.version += 1;
            record.applied_schema.get_or_insert(schema);
            self.spread_alteration(now, id, out);
        }
        self.dirty.insert(RowKey::Table(id));
        Ok(Answer::Done)
    }

    /// Deletes the soft-deleted tables whose time is up.
    pub(super) fn purge_tables(&mut self, now: Now, out: &mut Effects) {
        let due = self.tables.iter().filter(|(_, table)| match table.record.state {
            TableState::SoftDeleted { purge_at, .. } => purge_at <= now.wall.micros,
            _ => false,
        });
        let due: Vec<TableId> = due.map(|(id, _)| *id).collect();
        for id in due {
            self.hard_delete(now, id, out);
        }
    }

    pub(super) fn replace_tablet_by_hand(
        &mut self,
        now: Now,
        id: TabletId,
        out: &mut Effects,
    ) -> Result<Answer> {
        let known = self.tablets.get(&id).filter(|tablet| tablet.record.state.is_live());
        if known.is_none() {
            return Err(Refusal::from(Error::not_found(format!("Unknown tablet {id}"))));
        }
        Ok(Answer::Replaced(self.replace_tablet(now, id, "replaced by hand".to_string(), out)))
    }

    /// Puts an empty tablet in the place of this one and has the old one's replicas removed.
    pub(super) fn replace_tablet(
        &mut self,
        now: Now,
        id: TabletId,
        reason: String,
        out: &mut Effects,
    ) -> TabletId {
        let by = self.fresh_id();
        let old = &self.tablets[&id].record;
        let (table, partition) = (old.table, old.partition.clone());
        let label = old.dimension_label.clone();
        self.end_tablet(now, id, TabletState::Replaced, &format!("replaced by {by}: {reason}"));
        let start = partition.start.clone();
        self.add_tablet(now, by, TabletRecord::new(table, partition, label, now.wall.micros));
        let entry = self.tables.get_mut(&table).expect("tablets belong to tables");
        entry.tablets.insert(start, by);
        // A new tablet starts at schema version 0 and may have to catch up.
        if entry.record.version > 0 {
            let schema = entry.record.schema.clone();
            entry.record.applied_schema.get_or_insert(schema);
            self.dirty.insert(RowKey::Table(table));
        }
        out.notes.push(Note::TabletReplaced { tablet: id, by, reason });
        self.place(now, by, out);
        by
    }

    /// Adds a tablet that has no servers yet.
    pub(super) fn add_tablet(&mut self, now: Now, id: TabletId, record: TabletRecord) {
        self.tablets.insert(id, Tablet::new(record, now.mono));
        self.dirty.insert(RowKey::Tablet(id));
    }

    /// Chooses servers for a tablet that has none, if there are enough, and has its replicas made.
    pub(super) fn place(&mut self, now: Now, id: TabletId, out: &mut Effects) {
        let mut loads = self.loads(now.mono, self.tablets[&id].record.table);
        if !self.place_with(now, id, &mut loads) {
            self.note_unplaced(id, &loads, out);
        }
    }

    /// The same with loads counted before; `false` if there are too few servers.
    pub(super) fn place_with(&mut self, now: Now, id: TabletId, loads: &mut Loads) -> bool {
        let record = &self.tablets[&id].record;
        let replicas = self.tables[&record.table].record.replicas;
        if loads.server_count() < self.replicas_needed(replicas) {
            return false;
        }
        let range = self.range_start(record);
        let chosen = loads.choose(&mut self.dice, replicas as usize, &range);
        let peers = chosen.iter().filter_map(|server| self.new_peer(*server)).collect();
        let tablet = self.tablets.get_mut(&id).expect("looked up above");
        tablet.waiting_since = now.mono;
        tablet.record.state = TabletState::Creating;
        tablet.record.since = now.wall.micros;
        tablet.record.message = "Sent to tablet servers".to_string();
        tablet.record.consensus = Consensus { peers, ..Consensus::default() };
        self.dirty.insert(RowKey::Tablet(id));
        for server in chosen {
            self.add_task(now, TaskKind::Create, id, server);
        }
        true
    }

    pub(super) fn new_peer(&self, server: PeerId) -> Option<Peer> {
        let address = self.servers.get(&server)?.registration.rpc.first()?.clone();
        Some(Peer { server, voter: true, address, promote: false, replace: false })
    }
}

pub(super) fn soft_deleted(name: &str) -> Refusal {
    let error = Error::invalid(format!("the table {name:?} is soft-deleted; recall it first"));
    Refusal::new(Code::TableSoftDeleted, error)
}

/// Microseconds since 1970 as `YYYY-MM-DD HH:MM:SS UTC`.
pub(super) fn utc(micros: u64) -> String {
    let seconds = micros / 1_000_000;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days are counted from 0000-03-01, so that the leap day is the last of its year (Howard Hinnant's
    // "chrono-compatible low-level date algorithms").
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year_of_era + carry;
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn dates() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_782_399_000_000), "2000-02-28 23:59:59 UTC");
        assert_eq!(utc(951_782_400_000_000), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(1_735_689_599_999_999), "2024-12-31 23:59:59 UTC");
    }
}
