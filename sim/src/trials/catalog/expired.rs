//! Records of deleted tables and tablets: masters drop them once the time is over for which they keep them.
//!
//! The record of a tablet stays while a server has not confirmed that its replica is removed: that of a lost server
//! never does. A table's record stays while one of its tablets has one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use engine::catalog::{SystemRecord, SystemRowKey, TabletRecord};
use engine::ids::{TableId, TabletId};

use super::CatalogTrial;
use super::quiet::ROUND;

/// Longest time of masters to keep records that is waited for.
const KEPT_MAX: Duration = Duration::from_secs(40);

impl CatalogTrial {
    /// Lets the time pass for which masters keep records, after the quiet end. Those that have ended before must be
    /// dropped by then, unless something changes them meanwhile.
    pub(super) fn check_expired(&mut self) {
        let kept = self.config.deleted_metadata_kept;
        if kept > KEPT_MAX {
            return;
        }
        let ended = match self.ended_rows() {
            Ok(ended) => ended,
            Err(what) => return self.report(what),
        };
        if ended.is_empty() {
            return;
        }
        self.note(format!("{} records of deleted tables and tablets expire", ended.len()));
        self.pass(kept + 2 * ROUND);
        let checked = self.check_dropped(&ended);
        self.check(checked.map_err(|what| format!("{what} is kept for longer than {kept:?}")));
    }

    /// Returns the rows of tables and tablets that have ended, and wait for no server.
    fn ended_rows(&self) -> Result<BTreeMap<SystemRowKey, Vec<u8>>, String> {
        let mut waiting = BTreeSet::new();
        let mut ended = BTreeMap::new();
        for (id, record) in self.tablet_records()? {
            let key = SystemRowKey::Tablet(id);
            if self.model.tablet(id).is_none() && record.doomed.is_empty() {
                ended.extend(self.rows.get(&key).map(|row| (key, row.clone())));
            } else {
                waiting.insert(record.table);
            }
        }
        let has_ended = |id: &TableId| !self.model.tables.contains_key(id) && !waiting.contains(id);
        for (key, row) in &self.rows {
            if matches!(key, SystemRowKey::Table(id) if has_ended(id)) {
                ended.insert(*key, row.clone());
            }
        }
        Ok(ended)
    }

    fn tablet_records(&self) -> Result<Vec<(TabletId, TabletRecord)>, String> {
        let unsealed = |(key, row): (&SystemRowKey, &Vec<u8>)| match key {
            SystemRowKey::Tablet(id) => Some(TabletRecord::unseal(row).map(|record| (*id, record))),
            _ => None,
        };
        let records = self.rows.iter().filter_map(unsealed).collect::<Result<_, _>>();
        records.map_err(|error: engine::error::Error| error.to_string())
    }

    /// Returns an error for a row that is still as it was.
    fn check_dropped(&self, ended: &BTreeMap<SystemRowKey, Vec<u8>>) -> Result<(), String> {
        let used: BTreeSet<TableId> =
            self.tablet_records()?.into_iter().map(|(_, record)| record.table).collect();
        for (key, row) in ended {
            let is_used = matches!(key, SystemRowKey::Table(id) if used.contains(id));
            if self.rows.get(key) == Some(row) && !is_used {
                return Err(format!("{key:?}"));
            }
        }
        Ok(())
    }
}
