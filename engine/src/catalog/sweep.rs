//! The sweep: a check of all timeouts of the catalog, once per second.
//!
//! Each placement and each purged table is a unit of its own. A sweep that has changed many records pauses, so that
//! they are stored before there are more of them, and continues with the next step, which is due at once.

use std::collections::BTreeSet;
use std::time::Duration;

use super::record::{SystemRowKey, TableLifecycle, TabletLifecycle};
use super::{Catalog, CatalogEffects, Tablet};
use crate::ids::{TableId, TabletId};
use crate::time::ClockReading;

/// Interval between sweeps.
const INTERVAL: Duration = Duration::from_secs(1);
/// Bytes of changed records after which a sweep pauses.
const BYTES_MAX: usize = 4 << 20;

impl Catalog {
    /// Checks all timeouts. The next sweep is due after [`INTERVAL`], or at once if this one pauses.
    pub(super) fn sweep(&mut self, now: ClockReading, out: &mut CatalogEffects) {
        let mut bytes = 0;
        for id in self.overdue_tablets(now) {
            if bytes > BYTES_MAX {
                return;
            }
            self.place_overdue(now, id, out);
            bytes += self.save(out);
        }
        for id in self.tables_to_purge(now) {
            if bytes > BYTES_MAX {
                return;
            }
            self.hard_delete(now, id, out);
            bytes += self.save(out);
        }
        self.repair_all(now, out);
        self.drop_expired_records(now, out);
        self.next_sweep = now.mono.after(INTERVAL);
    }

    /// Returns the tablets that have no servers yet, or did not run in time.
    fn overdue_tablets(&self, now: ClockReading) -> Vec<TabletId> {
        let timeout = self.config.tablet_creation_timeout;
        let is_overdue = |tablet: &Tablet| match tablet.record.state {
            TabletLifecycle::Preparing => true,
            TabletLifecycle::Creating => now.mono.since(tablet.waiting_since) > timeout,
            _ => false,
        };
        self.tablets.iter().filter(|(_, tablet)| is_overdue(tablet)).map(|(id, _)| *id).collect()
    }

    fn place_overdue(&mut self, now: ClockReading, id: TabletId, out: &mut CatalogEffects) {
        match self.tablets[&id].record.state {
            TabletLifecycle::Preparing => self.place(now, id, out),
            _ => {
                let reason = format!("not up after {} s", self.config.tablet_creation_timeout.as_secs());
                self.replace_tablet(now, id, reason, out);
            }
        }
    }

    /// Returns the soft-deleted tables whose reserve time is over.
    fn tables_to_purge(&self, now: ClockReading) -> Vec<TableId> {
        let due = self.tables.iter().filter(|(_, table)| match table.record.state {
            TableLifecycle::SoftDeleted { purge_at, .. } => purge_at <= now.wall.micros,
            _ => false,
        });
        due.map(|(id, _)| *id).collect()
    }

    /// Removes the records of deleted tablets and tables whose retention time is over. Order: a table's record is
    /// removed after those of its tablets.
    fn drop_expired_records(&mut self, now: ClockReading, out: &mut CatalogEffects) {
        let retention_micros = self.config.deleted_metadata_kept.as_micros() as u64;
        let old = |since: u64| since.saturating_add(retention_micros) <= now.wall.micros;
        let deleted = |tablet: &Tablet| !tablet.record.state.is_live() && tablet.record.doomed.is_empty();
        let tablets = self.tablets.iter().filter(|(_, tablet)| deleted(tablet) && old(tablet.record.since));
        let expired: Vec<TabletId> = tablets.map(|(id, _)| *id).collect();
        for id in expired {
            self.tablets.remove(&id);
            self.dirty.insert(SystemRowKey::Tablet(id));
            self.save(out);
        }
        let deleted_tables = self.tables.iter().filter(|(_, table)| match table.record.state {
            TableLifecycle::Deleted { at } => old(at),
            _ => false,
        });
        let mut tables: Vec<TableId> = deleted_tables.map(|(id, _)| *id).collect();
        if !tables.is_empty() {
            // Collected once: tables whose tablets a lost server still has stay here, and this runs every second.
            let used: BTreeSet<TableId> = self.tablets.values().map(|tablet| tablet.record.table).collect();
            tables.retain(|id| !used.contains(id));
        }
        for id in tables {
            self.tables.remove(&id);
            self.dirty.insert(SystemRowKey::Table(id));
            self.save(out);
        }
    }
}
