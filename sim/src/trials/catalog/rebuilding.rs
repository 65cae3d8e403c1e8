//! A catalog that is rebuilt from the servers' replicas: it has all that tablets keep of the one that was lost.

use std::collections::BTreeMap;

use engine::catalog::{
    Catalog, ClusterRecord, FoundReplica, RebuiltCatalog, SystemRecord, SystemRowKey, TableEntry,
    TableRecord, TabletRecord, rebuild_catalog,
};
use engine::ids::{TabletId, Uuid};

use super::CatalogTrial;
use super::group::{Group, Replica, ReplicaMode, short};
use super::settings::EPOCH_MICROS;

impl CatalogTrial {
    /// Rebuilds the catalog after the quiet end, and compares it with the one that masters have.
    pub(super) fn check_rebuilt(&mut self) {
        let cluster = ClusterRecord { id: Uuid([9; 16]), created: EPOCH_MICROS, level: Default::default() };
        let ended: Vec<TabletId> =
            self.groups.keys().copied().filter(|tablet| self.model.tablet(*tablet).is_none()).collect();
        let rebuilt = rebuild_catalog(&cluster, EPOCH_MICROS, &ended, self.found_replicas());
        let compared = self.compare_rebuilt(&rebuilt);
        self.check(compared.map_err(|what| format!("the rebuilt catalog: {what}")));
        let rows = rebuilt.rows.into_iter().filter_map(|row| Some((row.key, row.metadata?)));
        let rows: Vec<_> = rows.collect();
        let loaded = Catalog::load(self.config.clone(), [1, 1], self.reading(), rows);
        self.check(
            loaded.map(|_| ()).map_err(|error| format!("the rebuilt catalog cannot be loaded: {error}")),
        );
    }

    fn found_replicas(&self) -> Vec<FoundReplica> {
        let of_server = |server: &super::server::TrialServer| {
            let found = |(tablet, replica): (&TabletId, &Replica)| {
                let group = self.groups.get(tablet)?;
                (!matches!(replica.mode, ReplicaMode::Copying(_)))
                    .then(|| found_replica(group, server.id, *tablet, replica))
            };
            server.replicas.iter().filter_map(found).collect::<Vec<_>>()
        };
        self.servers.values().flat_map(of_server).collect()
    }

    fn compare_rebuilt(&self, rebuilt: &RebuiltCatalog) -> Result<(), String> {
        let rows: BTreeMap<SystemRowKey, &Vec<u8>> =
            rebuilt.rows.iter().filter_map(|row| Some((row.key, row.metadata.as_ref()?))).collect();
        for table in self.master.catalog.tables() {
            let tablets: Vec<_> = self.master.catalog.tablets(table.id).collect();
            if tablets.is_empty() {
                continue;
            }
            let row = rows.get(&SystemRowKey::Table(table.id));
            let row = row.ok_or_else(|| format!("table {:?} is missing", table.record.name))?;
            compare_table(&table, &TableRecord::unseal(row).map_err(|error| error.to_string())?)?;
            for tablet in tablets {
                let row = rows.get(&SystemRowKey::Tablet(tablet.id));
                let row = row.ok_or_else(|| format!("tablet {} is missing", short(&tablet.id)))?;
                let found = TabletRecord::unseal(row).map_err(|error| error.to_string())?;
                let group = self.groups.get(&tablet.id).ok_or("a tablet without replicas")?;
                compare_tablet(tablet.record, &found, group)
                    .map_err(|what| format!("{}: {what}", short(&tablet.id)))?;
            }
        }
        Ok(())
    }
}

fn found_replica(group: &Group, server: Uuid, tablet: TabletId, replica: &Replica) -> FoundReplica {
    let version = group.version_at(replica.has);
    let definition = &group.definitions[&version];
    let leader = replica.leader.filter(|_| replica.runs());
    FoundReplica {
        server,
        tablet,
        table: group.table,
        table_name: definition.name.clone(),
        schema: (*definition.schema).clone(),
        version,
        partition_schema: (*group.partition_schema).clone(),
        partition: group.partition.clone(),
        extra: definition.extra.clone(),
        has_data: replica.mode != ReplicaMode::Tombstone,
        consensus: group.consensus(replica.has, replica.term, leader),
    }
}

fn compare_table(table: &TableEntry, found: &TableRecord) -> Result<(), String> {
    let lost = table.record;
    // The state is not known to tablets, and the time of the last alteration is that of the rebuild.
    let found_all = TableRecord { state: lost.state.clone(), altered: lost.altered, ..found.clone() };
    match found_all == *lost {
        true => Ok(()),
        false => Err(format!("it has {found_all:?}, and the lost one had {lost:?}")),
    }
}

/// The configuration is the newest one: masters may not have its report yet.
fn compare_tablet(lost: &TabletRecord, found: &TabletRecord, group: &Group) -> Result<(), String> {
    let shown = |record: &TabletRecord| {
        format!("{:?} {:?} {:?}", record.table, record.partition, record.dimension_label)
    };
    if shown(lost) != shown(found) {
        return Err(format!("it is {}, and was {}", shown(found), shown(lost)));
    }
    let consensus = &found.consensus;
    let is_newest = consensus.config_index == group.index()
        && group.has_committed(consensus.config_index, &consensus.peers);
    match is_newest {
        true => Ok(()),
        false => Err(format!("its configuration is {consensus:?}, not {:?}", group.members())),
    }
}
