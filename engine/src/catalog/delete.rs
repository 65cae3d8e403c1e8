//! Deletion of tables, permanent or soft; recall; replacement of single tablets.

use super::columns::check_name;
use super::commands::{CommandReply, TableRef};
use super::error::{CatalogError, CatalogErrorCode, CatalogResult};
use super::placement::TableRange;
use super::record::{
    ConsensusState, PeerRecord, SystemRowKey, TableLifecycle, TabletLifecycle, TabletRecord,
};
use super::task_queue::{TaskKey, TaskKind};
use super::{Catalog, CatalogEffects, CatalogNote, Tablet};
use crate::error::Error;
use crate::ids::{PeerId, TableId, TabletId};
use crate::time::ClockReading;

impl Catalog {
    pub(super) fn delete_table(
        &mut self,
        now: ClockReading,
        table: &TableRef,
        reserve_seconds: Option<u32>,
        out: &mut CatalogEffects,
    ) -> CatalogResult<CommandReply> {
        let id = self.find(table)?;
        let reserve = reserve_seconds.map_or(self.config.deleted_table_reserve.as_secs(), u64::from);
        if reserve == 0 {
            self.hard_delete(now, id, out);
            return Ok(CommandReply::Done);
        }
        let record = &mut self.tables.get_mut(&id).expect("found above").record;
        if record.state != TableLifecycle::Running {
            return Err(soft_deleted(&record.name));
        }
        let at = now.wall.micros;
        record.state = TableLifecycle::SoftDeleted {
            at,
            purge_at: at.saturating_add(reserve.saturating_mul(1_000_000)),
        };
        out.notes.push(CatalogNote::TableSoftDeleted { table: id, name: record.name.clone() });
        self.dirty.insert(SystemRowKey::Table(id));
        Ok(CommandReply::Done)
    }

    pub(super) fn hard_delete(&mut self, now: ClockReading, id: TableId, out: &mut CatalogEffects) {
        let table = self.tables.get_mut(&id).expect("the caller found it");
        let tablets: Vec<TabletId> = std::mem::take(&mut table.tablets).into_values().collect();
        table.record.state = TableLifecycle::Deleted { at: now.wall.micros };
        table.record.applied_schema = None;
        let name = table.record.name.clone();
        self.names.remove(&name);
        self.dirty.insert(SystemRowKey::Table(id));
        let reason = format!("Table deleted at {}", utc(now.wall.micros));
        for tablet in tablets {
            self.end_tablet(now, tablet, TabletLifecycle::Deleted, &reason);
        }
        out.notes.push(CatalogNote::TableDeleted { table: id, name });
    }

    /// Ends a live tablet and has its replicas removed. The caller has removed it from its table's map.
    pub(super) fn end_tablet(
        &mut self,
        now: ClockReading,
        id: TabletId,
        state: TabletLifecycle,
        reason: &str,
    ) {
        self.uncount(id);
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
        self.dirty.insert(SystemRowKey::Tablet(id));
        for server in doomed {
            for kind in [TaskKind::Create, TaskKind::Alter, TaskKind::Remove, TaskKind::ChangeConfig] {
                self.tasks.remove(TaskKey { server, tablet: id, kind });
            }
            self.add_delete(now, id, server);
        }
    }

    pub(super) fn recall_table(
        &mut self,
        now: ClockReading,
        table: &TableRef,
        new_name: Option<String>,
        out: &mut CatalogEffects,
    ) -> CatalogResult<CommandReply> {
        let id = self.find(table)?;
        let old_name = self.tables[&id].record.name.clone();
        if !matches!(self.tables[&id].record.state, TableLifecycle::SoftDeleted { .. }) {
            return Err(CatalogError::no_such_table(format!("the table {old_name:?} is not soft-deleted")));
        }
        let name = new_name.filter(|name| !name.is_empty()).unwrap_or_else(|| old_name.clone());
        if name != old_name {
            check_name("table", &name, &self.config)?;
            self.check_name_free(&name)?;
            self.names.remove(&old_name);
            self.names.insert(name.clone(), id);
        }
        let record = &mut self.tables.get_mut(&id).expect("found above").record;
        record.state = TableLifecycle::Running;
        record.altered = now.wall.micros;
        out.notes.push(CatalogNote::TableRecalled { table: id, name: name.clone() });
        if name != old_name {
            let schema = record.schema.clone();
            record.name = name;
            record.version += 1;
            record.applied_schema.get_or_insert(schema);
            self.spread_alteration(now, id, out);
        }
        self.dirty.insert(SystemRowKey::Table(id));
        Ok(CommandReply::Done)
    }

    pub(super) fn replace_tablet_by_hand(
        &mut self,
        now: ClockReading,
        id: TabletId,
        out: &mut CatalogEffects,
    ) -> CatalogResult<CommandReply> {
        let known = self.tablets.get(&id).filter(|tablet| tablet.record.state.is_live());
        if known.is_none() {
            return Err(CatalogError::from(Error::not_found(format!("Unknown tablet {id}"))));
        }
        Ok(CommandReply::Replaced(self.replace_tablet(now, id, "replaced by hand".to_string(), out)))
    }

    /// Replaces a tablet by an empty one and has the old one's replicas removed.
    pub(super) fn replace_tablet(
        &mut self,
        now: ClockReading,
        id: TabletId,
        reason: String,
        out: &mut CatalogEffects,
    ) -> TabletId {
        let by = self.fresh_id();
        let old = &self.tablets[&id].record;
        let (table, partition) = (old.table, old.partition.clone());
        let label = old.dimension_label.clone();
        self.end_tablet(now, id, TabletLifecycle::Replaced, &format!("replaced by {by}: {reason}"));
        let start = partition.start.clone();
        self.add_tablet(now, by, TabletRecord::new(table, partition, label, now.wall.micros));
        let entry = self.tables.get_mut(&table).expect("tablets belong to tables");
        entry.tablets.insert(start, by);
        // A new tablet starts at schema version 0 and may have to catch up.
        if entry.record.version > 0 && entry.record.applied_schema.is_none() {
            entry.record.applied_schema = Some(entry.record.schema.clone());
            self.dirty.insert(SystemRowKey::Table(table));
        }
        out.notes.push(CatalogNote::TabletReplaced { tablet: id, by, reason });
        self.place(now, by, out);
        by
    }

    /// Adds a tablet without servers.
    pub(super) fn add_tablet(&mut self, now: ClockReading, id: TabletId, record: TabletRecord) {
        self.tablets.insert(id, Tablet::new(record, now.mono));
        self.dirty.insert(SystemRowKey::Tablet(id));
    }

    /// Chooses servers for a tablet that has none, if there are enough, and has its replicas created.
    pub(super) fn place(&mut self, now: ClockReading, id: TabletId, out: &mut CatalogEffects) {
        let record = &self.tablets[&id].record;
        let (table, range) = (record.table, TableRange::of(record));
        let replicas = self.tables[&table].record.replicas;
        // Order: the replicas are counted only if there are enough servers, because this is repeated every second.
        let can_take = |server: &&PeerId| self.can_take_replicas(now.mono, **server);
        let count = self.servers.keys().filter(can_take).count();
        if count < self.replicas_needed(replicas) {
            self.note_unplaced(id, count, out);
            return;
        }
        self.count_replicas(now.mono, table);
        self.uncount(id);
        let loads = self.loads.as_mut().expect("just counted");
        let chosen = loads.choose(&mut self.id_rng, replicas as usize, &range);
        let peers = chosen.iter().filter_map(|server| self.new_peer(*server)).collect();
        let tablet = self.tablets.get_mut(&id).expect("looked up above");
        tablet.waiting_since = now.mono;
        tablet.record.state = TabletLifecycle::Creating;
        tablet.record.since = now.wall.micros;
        tablet.record.message = "Sent to tablet servers".to_string();
        tablet.record.consensus = ConsensusState { peers, ..ConsensusState::default() };
        self.dirty.insert(SystemRowKey::Tablet(id));
        for server in chosen {
            self.add_task(now, TaskKind::Create, id, server);
        }
    }

    pub(super) fn new_peer(&self, server: PeerId) -> Option<PeerRecord> {
        let address = self.servers.get(&server)?.registration.rpc.first()?.clone();
        Some(PeerRecord { server, voter: true, address, promote: false, replace: false })
    }
}

pub(super) fn soft_deleted(name: &str) -> CatalogError {
    let error = Error::invalid(format!("the table {name:?} is soft-deleted; recall it first"));
    CatalogError::new(CatalogErrorCode::TableSoftDeleted, error)
}

/// Formats microseconds since 1970 as `YYYY-MM-DD HH:MM:SS UTC`.
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
