//! The catalog's tables and tablets against the model, after each change.

use std::collections::BTreeMap;

use engine::catalog::{CommandReply, TableEntry, TableLifecycle, TabletEntry, TabletLifecycle};
use engine::ids::{PeerId, TableId, TabletId};
use engine::schema::Schema;

use super::CatalogTrial;
use super::ddl::{Change, Ddl};
use super::group::short;
use super::model::{Column, ModelTable, ModelTablet, TableState};
use super::settings::EPOCH_MICROS;

impl CatalogTrial {
    /// Applies a request that has succeeded, and checks its reply.
    pub(super) fn apply_change(&mut self, ddl: &Ddl, change: Change, reply: &CommandReply) {
        self.reached.done += 1;
        let fits = match (&change, reply) {
            (Change::Create(_), CommandReply::Created(id)) => !self.old_tables.contains(id),
            (Change::Replace(_), CommandReply::Replaced(by)) => !self.groups.contains_key(by),
            (Change::Alter(id, table), CommandReply::Altered { table: altered, version }) => {
                altered == id && *version == table.version && matches!(ddl, Ddl::Alter(_))
            }
            (Change::Alter(..), CommandReply::Done) => matches!(ddl, Ddl::Recall { .. }),
            (Change::SoftDelete(..) | Change::End(_), CommandReply::Done) => true,
            (Change::Maintenance(..) | Change::Unregister(_), CommandReply::Done) => true,
            _ => false,
        };
        if !fits {
            self.report(format!("{ddl:?} has the reply {reply:?}, not that of {change:?}"));
        }
        if let Change::Unregister(server) = &change {
            self.master.registered.remove(server);
            self.master.creations.forget(*server);
            self.contacts.remove(server);
            self.last_reports.retain(|(_, of, _), _| of != server);
        }
        let created = match reply {
            CommandReply::Created(id) => Some(*id),
            _ => None,
        };
        self.old_tables.extend(created);
        self.model.apply(change, created);
    }

    /// Compares all tables of the catalog with the model.
    pub(super) fn observe(&mut self) {
        self.observe_purges();
        let names: Vec<(String, TableId)> =
            self.master.catalog.tables().map(|table| (table.record.name.clone(), table.id)).collect();
        let mut wanted: Vec<(String, TableId)> =
            self.model.tables.iter().map(|(id, table)| (table.name.clone(), *id)).collect();
        wanted.sort();
        if names != wanted {
            return self.report(format!("the tables are {names:?}, not {wanted:?}"));
        }
        let ids: Vec<TableId> = self.model.tables.keys().copied().collect();
        for id in ids {
            let checked = self.observe_table(id);
            self.check(checked.map_err(|what| format!("table {id}: {what}")));
        }
    }

    /// Ends the soft-deleted tables whose time is over, if the catalog has.
    fn observe_purges(&mut self) {
        let is_due = |table: &ModelTable| match table.state {
            TableState::SoftDeleted { purge_at } => purge_at <= self.now,
            TableState::Running => false,
        };
        let catalog = &self.master.catalog;
        let has = |id: &TableId| catalog.tables().any(|table| table.id == *id);
        let due = self.model.tables.iter().filter(|(id, table)| is_due(table) && !has(id));
        let due: Vec<TableId> = due.map(|(id, _)| *id).collect();
        due.into_iter().for_each(|id| self.model.end_table(id));
    }

    fn observe_table(&mut self, id: TableId) -> Result<(), String> {
        let found = self.master.catalog.tables().find(|table| table.id == id);
        let entry = found.ok_or("it is missing")?;
        let table = &self.model.tables[&id];
        check_attributes(&entry, table)?;
        let shown = columns(entry.schema());
        let is_new = shown != table.served;
        if is_new && shown != table.columns {
            return Err(format!("clients are shown {shown:?}, not {:?}", table.served));
        }
        let (version, done) = (table.version, entry.record.applied_schema.is_none());
        if (is_new || done) && version > 0 {
            let behind = |tablet: &TabletEntry| {
                self.groups.get(&tablet.id).is_none_or(|group| group.version() < version)
            };
            if let Some(tablet) = self.master.catalog.tablets(id).find(behind) {
                return Err(format!(
                    "version {version} counts as done, though {} lacks it",
                    short(&tablet.id)
                ));
            }
        }
        self.observe_tablets(id)?;
        let table = self.model.tables.get_mut(&id).expect("looked up above");
        table.served = shown;
        Ok(())
    }

    fn observe_tablets(&mut self, id: TableId) -> Result<(), String> {
        let bounds = |tablet: TabletEntry| {
            (tablet.record.partition.start.clone(), tablet.record.partition.end.clone())
        };
        let found: Vec<_> = self.master.catalog.tablets(id).map(bounds).collect();
        let wanted: Vec<_> = self.model.tables[&id].wanted_bounds().into_iter().collect();
        if found != wanted {
            return Err(format!("the tablets have the keys {found:?}, not {wanted:?}"));
        }
        let mut tablets = BTreeMap::new();
        let mut replaced = Vec::new();
        for tablet in self.master.catalog.tablets(id) {
            let start = &tablet.record.partition.start;
            let known = self.model.tables[&id].tablets.get(start);
            let same = known.filter(|known| known.id == tablet.id);
            if let (Some(old), None) = (known, same) {
                self.check_replaced(old)?;
                replaced.push(old.id);
            }
            let seen = self.observe_tablet(&tablet, same)?;
            tablets.insert(start.clone(), seen);
        }
        self.reached.replacements += replaced.len() as u64;
        self.model.ended.extend(replaced);
        self.model.tables.get_mut(&id).expect("looked up above").tablets = tablets;
        Ok(())
    }

    /// Checks that a tablet may have been replaced: it has not come up for too long.
    fn check_replaced(&self, old: &ModelTablet) -> Result<(), String> {
        let waited = self.now - old.born.max(self.master.since);
        if old.running || waited <= self.config.tablet_creation_timeout {
            return Err(format!("tablet {} is replaced, though it runs or may come up", short(&old.id)));
        }
        Ok(())
    }

    fn observe_tablet(
        &self,
        tablet: &TabletEntry,
        known: Option<&ModelTablet>,
    ) -> Result<ModelTablet, String> {
        let (id, record) = (tablet.id, tablet.record);
        if known.is_none() && (self.model.ended.contains(&id) || self.groups.contains_key(&id)) {
            return Err(format!("a new tablet has the id of another: {}", short(&id)));
        }
        let running = record.state == TabletLifecycle::Running;
        let mut seen = known.cloned().unwrap_or_else(|| ModelTablet {
            id,
            end: record.partition.end.clone(),
            born: self.now,
            running: false,
            placed: false,
            config_index: -1,
        });
        if seen.running && !running {
            return Err(format!("tablet {} runs no longer", short(&id)));
        }
        if record.consensus.config_index < seen.config_index {
            return Err(format!("the configuration of tablet {} goes back", short(&id)));
        }
        self.check_consensus(tablet)?;
        if record.state != TabletLifecycle::Preparing && !std::mem::replace(&mut seen.placed, true) {
            seen.born = self.now;
            let servers: Vec<PeerId> = record.consensus.peers.iter().map(|peer| peer.server).collect();
            self.check_placement(record.table, id, &servers)?;
        }
        (seen.running, seen.config_index) = (running, record.consensus.config_index);
        Ok(seen)
    }

    /// Checks that a tablet's configuration and leader are some that its group has had.
    fn check_consensus(&self, tablet: &TabletEntry) -> Result<(), String> {
        let (id, consensus) = (tablet.id, &tablet.record.consensus);
        let Some(group) = self.groups.get(&id) else { return Ok(()) };
        if let Some(leader) = consensus.leader
            && !group.has_led(consensus.term, leader)
        {
            return Err(format!("{leader} never led tablet {} in term {}", short(&id), consensus.term));
        }
        if !group.has_committed(consensus.config_index, &consensus.peers) {
            return Err(format!("tablet {} never had the configuration {consensus:?}", short(&id)));
        }
        Ok(())
    }

    /// Checks that replicas were placed on servers that can take them, evenly over locations.
    fn check_placement(&self, table: TableId, id: TabletId, servers: &[PeerId]) -> Result<(), String> {
        let wanted = self.model.tables[&table].replicas as usize;
        let twice = (1..servers.len()).any(|at| servers[..at].contains(&servers[at]));
        if servers.len() != wanted || twice {
            return Err(format!("tablet {} is placed on {servers:?}, not on {wanted}", short(&id)));
        }
        if let Some(server) = servers.iter().find(|server| !self.can_take(**server)) {
            return Err(format!("tablet {} is placed on {server}, which can take none", short(&id)));
        }
        let all: Vec<PeerId> =
            self.master.registered.keys().copied().filter(|at| self.can_take(*at)).collect();
        let in_location = |of: &[PeerId], server: PeerId| {
            of.iter().filter(|other| self.location(**other) == self.location(server)).count()
        };
        for server in &all {
            let (here, free) = (in_location(servers, *server), in_location(&all, *server));
            let fuller = servers.iter().any(|other| in_location(servers, *other) > here + 1);
            if fuller && here < free {
                return Err(format!("tablet {} is placed on {servers:?}, unevenly", short(&id)));
            }
        }
        Ok(())
    }

    pub(super) fn location(&self, server: PeerId) -> Option<&String> {
        self.master.registered.get(&server)?.location.as_ref()
    }

    /// Returns true if the leading master may have a replica created on a server.
    pub(super) fn can_take(&self, server: PeerId) -> bool {
        let willing = self.master.registered.get(&server).is_some_and(|known| known.takes_replicas);
        willing && self.is_live(server) && !self.model.maintenance.contains(&server)
    }
}

/// Returns columns of the engine as those of the model.
pub(super) fn columns(schema: &Schema) -> Vec<Column> {
    let column = |column: &engine::schema::ColumnSchema| Column {
        id: column.id.0,
        name: column.name.clone(),
        nullable: column.nullable,
        read_default: column.read_default.clone(),
        write_default: column.write_default.clone(),
    };
    schema.columns().iter().map(column).collect()
}

fn check_attributes(entry: &TableEntry, table: &ModelTable) -> Result<(), String> {
    let record = entry.record;
    let state = match record.state {
        TableLifecycle::Running => TableState::Running,
        TableLifecycle::SoftDeleted { purge_at, .. } => TableState::SoftDeleted {
            purge_at: std::time::Duration::from_micros(purge_at.saturating_sub(EPOCH_MICROS)),
        },
        TableLifecycle::Deleted { .. } => return Err("it is deleted".to_string()),
    };
    let same = (&record.name, state, record.version, record.replicas)
        == (&table.name, table.state, table.version, table.replicas);
    let settings = (&record.owner, &record.comment, &record.extra.to_map());
    if !same || settings != (&table.owner, &table.comment, &table.extra) {
        return Err(format!("it is {record:?}, not {table:?}"));
    }
    let newest = columns(&record.schema);
    if newest != table.columns || record.schema.num_key_columns() != table.keys {
        return Err(format!("its columns are {newest:?}, not {:?}", table.columns));
    }
    Ok(())
}
