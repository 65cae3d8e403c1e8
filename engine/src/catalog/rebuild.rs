//! A catalog rebuilt from the replicas of running tablet servers, after all masters were lost.
//!
//! ```text
//!   replicas ──► per tablet: newest schema, newest configuration ──► per table: record, attributes, ranges
//!                                                                       └──► rows of a system tablet, findings
//! ```
//!
//! Unknown to tablet servers, so not restored: soft deletion (such a table is back), servers in maintenance mode,
//! the CA and token keys (a new leader makes new ones), tablets without any replica that could be asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::consistency::{CatalogFinding, check_partitions};
use super::record::{
    ClusterRecord, ConsensusState, ExtraConfig, SystemRecord, SystemRowKey, SystemRowWrite, TableLifecycle,
    TableRecord, TabletLifecycle, TabletRecord,
};
use super::table_attributes::{ATTRIBUTE_PREFIX, TableAttributes};
use crate::ids::{PeerId, TableId, TabletId, Uuid};
use crate::schema::Schema;
use crate::schema::partition::{Partition, PartitionSchema};

/// A replica as its tablet server reports it.
#[derive(Debug, Clone)]
pub struct FoundReplica {
    pub server: PeerId,
    pub tablet: TabletId,
    pub table: TableId,
    pub table_name: String,
    pub schema: Schema,
    pub version: u32,
    pub partition_schema: PartitionSchema,
    pub partition: Partition,
    /// The extra configuration, with the table's attributes.
    pub extra: BTreeMap<String, String>,
    /// False for a tombstone.
    pub has_data: bool,
    pub consensus: ConsensusState,
}

/// Result of a rebuild.
#[derive(Debug)]
pub struct RebuiltCatalog {
    pub rows: Vec<SystemRowWrite>,
    pub tables: Vec<RebuiltTable>,
    /// Errors first.
    pub findings: Vec<CatalogFinding>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebuiltTable {
    pub id: TableId,
    pub name: String,
    pub tablets: usize,
    pub version: u32,
}

/// Rebuilds the catalog of `cluster` from `replicas`, without the tables and tablets in `left_out`. `now` is in
/// microseconds since 1970.
pub fn rebuild_catalog(
    cluster: &ClusterRecord,
    now: u64,
    left_out: &[Uuid],
    replicas: Vec<FoundReplica>,
) -> RebuiltCatalog {
    let mut findings = Vec::new();
    let mut tablets: BTreeMap<TabletId, Vec<FoundReplica>> = BTreeMap::new();
    let mut tombstones = BTreeSet::new();
    for replica in replicas {
        if left_out.contains(&replica.tablet) || left_out.contains(&replica.table) {
            continue;
        }
        if replica.has_data {
            tablets.entry(replica.tablet).or_default().push(replica);
        } else {
            tombstones.insert(replica.tablet);
        }
    }
    for tablet in tombstones.iter().filter(|tablet| !tablets.contains_key(tablet)) {
        let text = format!("tablet {tablet} has only tombstones on these servers; it is not restored");
        findings.push(CatalogFinding::warning(text));
    }
    let mut tables: BTreeMap<TableId, Vec<NewestReplica>> = BTreeMap::new();
    for replicas in tablets.into_values() {
        let newest = NewestReplica::of(replicas, &mut findings);
        tables.entry(newest.replica.table).or_default().push(newest);
    }
    let metadata = Some(cluster.seal());
    let mut rows = vec![SystemRowWrite { key: SystemRowKey::Cluster, metadata }];
    let mut rebuilt: Vec<RebuiltTable> = Vec::new();
    for (id, tablets) in tables {
        let record = table_record(now, &tablets, &mut findings);
        if let Some(other) = rebuilt.iter().find(|other| other.name == record.name) {
            findings.push(CatalogFinding::error(format!(
                "tables {} and {id} have one name, {:?}; leave one of them out",
                other.id, record.name
            )));
        }
        let (name, version) = (record.name.clone(), record.version);
        rebuilt.push(RebuiltTable { id, name, tablets: tablets.len(), version });
        rows.push(SystemRowWrite { key: SystemRowKey::Table(id), metadata: Some(record.seal()) });
        for NewestReplica { replica, .. } in tablets {
            let (key, record) = (SystemRowKey::Tablet(replica.tablet), tablet_record(now, replica));
            rows.push(SystemRowWrite { key, metadata: Some(record.seal()) });
        }
    }
    findings.sort();
    RebuiltCatalog { rows, tables: rebuilt, findings }
}

/// A tablet, as its replica with the newest schema describes it, with the newest configuration of all replicas.
struct NewestReplica {
    replica: FoundReplica,
}

impl NewestReplica {
    /// `replicas` is not empty, and all are of one tablet.
    fn of(mut replicas: Vec<FoundReplica>, findings: &mut Vec<CatalogFinding>) -> NewestReplica {
        let servers: Vec<PeerId> = replicas.iter().map(|replica| replica.server).collect();
        let states = replicas.iter().map(|replica| &replica.consensus);
        let config = states.clone().max_by_key(|state| state.config_index).expect("there is a replica");
        let led = states.max_by_key(|state| (state.term, state.leader)).expect("there is a replica");
        let (config_index, peers) = (config.config_index, config.peers.clone());
        let consensus = ConsensusState { term: led.term, leader: led.leader, config_index, peers };
        replicas.sort_by_key(|replica| replica.version);
        let mut replica = replicas.pop().expect("there is a replica");
        let differs =
            |other: &FoundReplica| other.table != replica.table || other.partition != replica.partition;
        let tablet = replica.tablet;
        if replicas.iter().any(differs) {
            let text = format!("the replicas of tablet {tablet} disagree about its table or partition");
            findings.push(CatalogFinding::error(text));
        }
        let voters = consensus.peers.iter().filter(|peer| peer.voter);
        let (count, found) =
            (voters.clone().count(), voters.filter(|peer| servers.contains(&peer.server)).count());
        if found < count / 2 + 1 {
            findings.push(CatalogFinding::warning(format!(
                "tablet {tablet} of table {:?}: only {found} of its {count} voters are on these servers; name all \
                 tablet servers, or leave it out if it was deleted while that server was down",
                replica.table_name
            )));
        }
        replica.consensus = consensus;
        NewestReplica { replica }
    }
}

/// Builds the record of a table from its tablets, of which there is at least one.
fn table_record(now: u64, tablets: &[NewestReplica], findings: &mut Vec<CatalogFinding>) -> TableRecord {
    let all = tablets.iter().map(|newest| &newest.replica);
    let newest = all.clone().max_by_key(|replica| replica.version).expect("there is a tablet");
    let oldest = all.clone().min_by_key(|replica| replica.version).expect("there is a tablet");
    let attributes = TableAttributes::parse(&newest.extra);
    let name = newest.table_name.clone();
    if attributes.owner.is_none() {
        findings.push(CatalogFinding::warning(format!(
            "table {name:?}: its tablets are of an older build, so owner and comment are unknown"
        )));
    }
    let partition_schema = partition_schema(newest, all.clone());
    let partitions: Vec<(TabletId, Partition)> =
        all.clone().map(|replica| (replica.tablet, replica.partition.clone())).collect();
    check_partitions(&name, &partition_schema, &partitions, findings);
    let voters = newest.consensus.peers.iter().filter(|peer| peer.voter).count() as i32;
    let column_ids = all.clone().flat_map(|replica| replica.schema.columns()).map(|column| column.id.0 + 1);
    let stored_ids = all.filter_map(|replica| TableAttributes::parse(&replica.extra).next_column_id);
    let settings = newest.extra.iter().filter(|(name, _)| !name.starts_with(ATTRIBUTE_PREFIX));
    let settings = settings.map(|(name, value)| (name.clone(), value.clone())).collect();
    let extra = ExtraConfig::default().changed(&settings).unwrap_or_else(|error| {
        findings.push(CatalogFinding::error(format!("table {name:?}: {error}")));
        ExtraConfig::default()
    });
    let schema = Arc::new(newest.schema.clone());
    let applied_schema = (oldest.version < newest.version && oldest.schema != newest.schema)
        .then(|| Arc::new(oldest.schema.clone()));
    TableRecord {
        name,
        owner: attributes.owner.unwrap_or_default(),
        comment: attributes.comment.unwrap_or_default(),
        state: TableLifecycle::Running,
        schema,
        version: newest.version,
        applied_schema,
        next_column_id: column_ids.chain(stored_ids).max().unwrap_or_default(),
        partition_schema: Arc::new(partition_schema),
        replicas: attributes.replicas.unwrap_or(voters.max(1)),
        extra,
        disk_size_limit: attributes.disk_size_limit,
        row_count_limit: attributes.row_count_limit,
        created: attributes.created.unwrap_or(now),
        altered: now,
    }
}

/// Returns the table's partition schema: each tablet keeps the hash dimensions of its range as they were when it was
/// created, and knows nothing of ranges that were added later.
fn partition_schema<'a>(
    newest: &FoundReplica,
    tablets: impl Iterator<Item = &'a FoundReplica>,
) -> PartitionSchema {
    let mut merged = PartitionSchema { custom: Vec::new(), ..newest.partition_schema.clone() };
    for replica in tablets {
        let range = replica.partition.range();
        merged.set_custom(&range, replica.partition_schema.hash_of(&range.lower).to_vec());
    }
    merged
}

fn tablet_record(now: u64, replica: FoundReplica) -> TabletRecord {
    TabletRecord {
        table: replica.table,
        dimension_label: TableAttributes::parse(&replica.extra).dimension_label,
        state: TabletLifecycle::Running,
        message: "Rebuilt from the tablet servers".to_string(),
        since: now,
        consensus: replica.consensus,
        doomed: Vec::new(),
        partition: replica.partition,
    }
}
