//! Lookups of an audit: questions to masters that `nyala-client` does not ask, or asks in another way.

use bytes::Bytes;
use engine::time::Instant;
use nyala_client::Table;
use nyala_common::env::Env;
use nyala_proto::kudu::master::{
    GetTableLocationsRequestPb, GetTableLocationsResponsePb, GetTableSchemaRequestPb,
    GetTableSchemaResponsePb, GetTabletLocationsRequestPb, GetTabletLocationsResponsePb,
    IsAlterTableDoneRequestPb, IsAlterTableDoneResponsePb, PartitionKeyPb, TabletLocationsPb, TsInfoPb,
};
use nyala_proto::kudu::{PartitionPb, PartitionSchemaPb, SchemaPb};

use super::Workload;
use super::catalog_audit::CatalogAudit;
use super::master_changes::address;
use super::recovery_checks::RECOVERY_CLIENT;
use crate::oracle::catalog_gauges::ToldSchema;
use crate::oracle::table_lookups::{LookupPage, NO_TABLET, SoughtTablet, TableLookups};
use crate::oracle::tablet_traits::TraitTexts;
use crate::wire::client::{CallFailure, PlainClient, bounds_of, table_of};
use crate::wire::keys::Bounds;

/// Most tablets of a part of a list.
const PAGE_TABLETS: u32 = 2;
/// Bytes of a bucket's number in a partition key.
const BUCKET_BYTES: usize = 4;
/// Code of masters for a table that was dropped meanwhile.
const TABLE_NOT_FOUND: i32 = 3;

/// Names of traits.
const PARTITION: &str = "partition";
const VERSION: &str = "schema version";
const NAME: &str = "table name";
const COLUMNS: &str = "columns";

impl Workload {
    /// Returns a client for the questions of one audit. No log has the answers to it.
    pub(super) fn audit_client(&self, env: &Env) -> PlainClient {
        let cluster = &self.plan().cluster;
        let masters = (0..cluster.masters).map(address).collect();
        PlainClient::new(env.clone(), masters, RECOVERY_CLIENT, cluster.rpc_timeout)
    }
}

/// Asks masters in several ways for the tablets of a table, and for the traits that these are to have.
pub(super) async fn ask_masters(
    client: &mut PlainClient,
    table: &Table,
    deadline: Instant,
    audit: &mut CatalogAudit,
) {
    if client.is_over(deadline) {
        return;
    }
    match look_up(client, table, deadline).await {
        Ok((lookups, traits, schema)) => {
            let of_tablet = |tablet: &SoughtTablet| {
                let mut own = traits.clone();
                own.insert(PARTITION, tablet.partition.clone());
                (tablet.id.clone(), own)
            };
            audit.wanted.extend(lookups.whole.iter().map(of_tablet));
            audit.lookups.push(lookups);
            audit.schemas.extend(schema);
        }
        // A table may be dropped by an order whose reply was lost.
        Err(CallFailure::Refused { code: TABLE_NOT_FOUND, .. }) => {}
        Err(failure @ CallFailure::Refused { .. }) => {
            audit.refused.push(format!("a question about table {}: {failure}", table.name()));
        }
        Err(CallFailure::NotNow(_) | CallFailure::Unknown(_)) => {}
    }
}

async fn look_up(
    client: &mut PlainClient,
    table: &Table,
    deadline: Instant,
) -> Result<(TableLookups, TraitTexts, Option<ToldSchema>), CallFailure> {
    let whole = list(client, table, &Bounds::default(), None, deadline).await?;
    let (by_id, unknown) = locate_by_id(client, &whole, deadline).await?;
    let pages = list_in_pages(client, table, &whole, deadline).await?;
    let (traits, schema) = traits_of_table(client, table, deadline).await?;
    Ok((TableLookups { table: table.name().to_string(), whole, by_id, unknown, pages }, traits, schema))
}

/// Returns the tablets of a table from one partition key to another.
async fn list(
    client: &mut PlainClient,
    table: &Table,
    (start, end): &Bounds,
    max: Option<u32>,
    deadline: Instant,
) -> Result<Vec<SoughtTablet>, CallFailure> {
    let key = |key: &[u8]| (!key.is_empty()).then(|| Bytes::copy_from_slice(key));
    let request = GetTableLocationsRequestPb {
        partition_key_start: key(start),
        partition_key_end: key(end),
        max_returned_locations: max,
        ..Default::default()
    };
    list_by(client, table, request, deadline).await
}

/// Returns the tablets of a table whose partition key is given in two parts, as newer clients of Kudu give it: the
/// buckets, and the range.
async fn list_by_parts(
    client: &mut PlainClient,
    table: &Table,
    key: &[u8],
    deadline: Instant,
) -> Result<Vec<SoughtTablet>, CallFailure> {
    let buckets = BUCKET_BYTES * table.partition_schema().hash.len();
    let (hash, range) = key.split_at(buckets.min(key.len()));
    let part = |part: &[u8]| Some(Bytes::copy_from_slice(part));
    let key = PartitionKeyPb { hash_key: part(hash), range_key: part(range) };
    let request =
        GetTableLocationsRequestPb { key_start: Some(key.clone()), key_end: Some(key), ..Default::default() };
    list_by(client, table, request, deadline).await
}

async fn list_by(
    client: &mut PlainClient,
    table: &Table,
    keys: GetTableLocationsRequestPb,
    deadline: Instant,
) -> Result<Vec<SoughtTablet>, CallFailure> {
    let request = GetTableLocationsRequestPb {
        table: table_of(table.id()),
        intern_ts_infos_in_response: Some(true),
        ..keys
    };
    let told: GetTableLocationsResponsePb = client.ask_until("GetTableLocations", &request, deadline).await?;
    Ok(told.tablet_locations.iter().map(|tablet| sought(tablet, &told.ts_infos)).collect())
}

/// Locates tablets by their ids, in replies that name the server of each replica in full. The first id is asked for in
/// upper case, too, and the last one twice: each tablet is told once. Returns the ids that masters do not know, too.
async fn locate_by_id(
    client: &mut PlainClient,
    whole: &[SoughtTablet],
    deadline: Instant,
) -> Result<(Vec<SoughtTablet>, Vec<String>), CallFailure> {
    let upper = whole.first().map(|tablet| tablet.id.to_ascii_uppercase());
    let own = whole.iter().chain(whole.last()).map(|tablet| tablet.id.as_str());
    let ids = upper.as_deref().into_iter().chain(own).chain([NO_TABLET]);
    let request = GetTabletLocationsRequestPb {
        tablet_ids: ids.map(|id| Bytes::copy_from_slice(id.as_bytes())).collect(),
        ..Default::default()
    };
    let told: GetTabletLocationsResponsePb =
        client.ask_until("GetTabletLocations", &request, deadline).await?;
    let found = told.tablet_locations.iter().map(|tablet| sought(tablet, &told.ts_infos)).collect();
    Ok((found, told.errors.iter().map(|error| text(&error.tablet_id)).collect()))
}

/// Lists a table in parts: one after the other, and one tablet by its first key alone, whole and in two parts.
async fn list_in_pages(
    client: &mut PlainClient,
    table: &Table,
    whole: &[SoughtTablet],
    deadline: Instant,
) -> Result<Vec<LookupPage>, CallFailure> {
    let (mut pages, mut from) = (Vec::new(), Bounds::default());
    for _ in 0..=whole.len() {
        let told = list(client, table, &from, Some(PAGE_TABLETS), deadline).await?;
        let next = told.last().map(|tablet| tablet.end.clone()).unwrap_or_default();
        pages.push(page(&from, Some(PAGE_TABLETS), &told));
        if told.len() < PAGE_TABLETS as usize || next.is_empty() {
            break;
        }
        from = (next, Vec::new());
    }
    if let Some(middle) = whole.get(whole.len() / 2).filter(|tablet| !tablet.start.is_empty()) {
        let only = (middle.start.clone(), middle.start.clone());
        let told = list(client, table, &only, None, deadline).await?;
        pages.push(page(&only, None, &told));
        let told = list_by_parts(client, table, &middle.start, deadline).await?;
        pages.push(page(&only, None, &told));
    }
    Ok(pages)
}

fn page((start, end): &Bounds, max: Option<u32>, told: &[SoughtTablet]) -> LookupPage {
    let told = told.iter().map(|tablet| tablet.id.clone()).collect();
    LookupPage { start: start.clone(), end: end.clone(), max, told }
}

fn sought(tablet: &TabletLocationsPb, servers: &[TsInfoPb]) -> SoughtTablet {
    let by_index = tablet.interned_replicas.iter().map(|of| (servers.get(of.ts_info_idx as usize), of.role));
    let in_full = tablet.deprecated_replicas.iter().map(|of| (Some(&of.ts_info), of.role));
    let replicas = by_index.chain(in_full).map(|(server, role)| {
        let id = server.map(|server| text(&server.permanent_uuid)).unwrap_or_default();
        let place = server.map(|server| (&server.rpc_addresses, &server.location));
        (id, format!("role {role} at {place:?}"))
    });
    let replicas = replicas.collect();
    let (start, end) = bounds_of(tablet.partition.as_ref());
    let partition = partition_text(tablet.partition.as_ref());
    let is_stale = tablet.deprecated_stale();
    SoughtTablet { id: text(&tablet.tablet_id), start, end, partition, replicas, is_stale }
}

fn text(id: &[u8]) -> String {
    String::from_utf8_lossy(id).into_owned()
}

/// Returns the traits that the tablets of a table are to have, and its schema unless an alteration changes it.
async fn traits_of_table(
    client: &mut PlainClient,
    table: &Table,
    deadline: Instant,
) -> Result<(TraitTexts, Option<ToldSchema>), CallFailure> {
    let request = IsAlterTableDoneRequestPb { table: table_of(table.id()) };
    let altered: IsAlterTableDoneResponsePb =
        client.ask_until("IsAlterTableDone", &request, deadline).await?;
    let request = GetTableSchemaRequestPb { table: table_of(table.id()) };
    let told: GetTableSchemaResponsePb = client.ask_until("GetTableSchema", &request, deadline).await?;
    let mut traits = traits(told.table_name(), told.schema.as_ref(), told.partition_schema.as_ref());
    let newest = altered.schema_version.filter(|_| altered.done());
    match newest {
        Some(newest) => traits.extend([version(newest)]),
        // Tablets get a new version one after the other.
        None => [NAME, COLUMNS].iter().for_each(|name| drop(traits.remove(name))),
    }
    let columns = told.schema.as_ref().map_or(0, |schema| schema.columns.len());
    let schema = newest.map(|version| ToldSchema { table: told.table_name().to_string(), columns, version });
    Ok((traits, schema))
}

/// Returns the traits that all tablets of a table have. Ranges with their own hash are left out: a tablet has those of
/// its creation.
pub(super) fn traits(
    name: &str,
    schema: Option<&SchemaPb>,
    partitions: Option<&PartitionSchemaPb>,
) -> TraitTexts {
    let columns = schema.map(|schema| &schema.columns);
    let hash = partitions.map(|partitions| &partitions.hash_schema);
    let range = partitions.map(|partitions| &partitions.range_schema);
    TraitTexts::from([
        (NAME, name.to_string()),
        (COLUMNS, format!("{columns:?}")),
        ("hash dimensions", format!("{hash:?}")),
        ("range columns", format!("{range:?}")),
    ])
}

/// Returns the trait of a schema's version.
pub(super) fn version(version: u32) -> (&'static str, String) {
    (VERSION, version.to_string())
}

/// Returns the trait of a tablet's partition.
pub(super) fn partition(partition: Option<&PartitionPb>) -> (&'static str, String) {
    (PARTITION, partition_text(partition))
}

fn partition_text(partition: Option<&PartitionPb>) -> String {
    let (start, end) = bounds_of(partition);
    let buckets = partition.map(|partition| &partition.hash_buckets);
    format!("{start:02x?} to {end:02x?} in the hash buckets {buckets:?}")
}

#[cfg(test)]
mod tests {
    use nyala_proto::kudu::master::tablet_locations_pb::{DeprecatedReplicaPb, InternedReplicaPb};

    use super::*;

    #[test]
    fn replicas_are_the_same_with_and_without_a_list_of_servers() {
        let server = |id: &'static str| TsInfoPb {
            permanent_uuid: Bytes::from_static(id.as_bytes()),
            ..TsInfoPb::default()
        };
        let tablet = TabletLocationsPb { tablet_id: Bytes::from_static(b"a"), ..Default::default() };
        let of_list = InternedReplicaPb { ts_info_idx: 1, role: 1, dimension_label: None };
        let in_full = DeprecatedReplicaPb { ts_info: server("y"), role: 1, dimension_label: None };
        let by_index = TabletLocationsPb { interned_replicas: vec![of_list], ..tablet.clone() };
        let whole = TabletLocationsPb { deprecated_replicas: vec![in_full], ..tablet };
        let found = sought(&by_index, &[server("x"), server("y")]);
        assert_eq!(found, sought(&whole, &[]));
        assert_eq!((found.id.as_str(), found.replicas.len()), ("a", 1));
        assert_ne!(found, sought(&by_index, &[server("y"), server("x")]));
    }

    #[test]
    fn partitions_differ_in_keys_and_in_buckets() {
        let of = |bucket: i32, end: &'static [u8]| {
            let partition = PartitionPb {
                hash_buckets: vec![bucket],
                partition_key_start: None,
                partition_key_end: Some(Bytes::from_static(end)),
            };
            partition_text(Some(&partition))
        };
        assert_eq!(of(1, b"k"), of(1, b"k"));
        assert!(of(1, b"k") != of(2, b"k") && of(1, b"k") != of(1, b"l"));
    }
}
