//! Calls that only read: schemas, locations, lists, statistics.

use std::collections::BTreeSet;

use engine::catalog::{
    Catalog, LocationsQuery, TableEntry, TableLifecycle, TableRef, TabletEntry, TabletLifecycle, TserverEntry,
};
use engine::error::Error;
use engine::ids::{PeerId, Uuid};

use super::authz::TableQuestion;
use super::locations::Locations;
use super::proto::{id, registration_to_pb};
use super::reply_size::ReplySize;
use super::service::{MasterErrorReply, MasterService};
use nyala_common::rpc::Call;
use nyala_common::wire::errors::status_from_error;
use nyala_common::wire::partition;
use nyala_common::wire::schema::schema_to_pb;
use nyala_proto::kudu::master::list_in_flight_tables_response_pb::TableInfo as InFlightInfo;
use nyala_proto::kudu::master::list_tables_response_pb::{TableInfo, TabletWithPartition};
use nyala_proto::kudu::master::*;
use nyala_proto::kudu::{NodeInstancePb, TableTypePb};

type Result<T, E = MasterErrorReply> = std::result::Result<T, E>;

impl MasterService {
    pub(super) async fn is_create_table_done(
        &self,
        call: &Call,
        request: IsCreateTableDoneRequestPb,
    ) -> Result<IsCreateTableDoneResponsePb> {
        let table = self.table(call, &request.table, TableQuestion::Metadata).await?;
        let done = self.read(move |catalog, _| catalog.is_created(&table)).await?;
        Ok(IsCreateTableDoneResponsePb { error: None, done: Some(done) })
    }

    pub(super) async fn is_alter_table_done(
        &self,
        call: &Call,
        request: IsAlterTableDoneRequestPb,
    ) -> Result<IsAlterTableDoneResponsePb> {
        let table = self.table(call, &request.table, TableQuestion::Metadata).await?;
        let (version, done) = self.read(move |catalog, _| catalog.is_altered(&table)).await?;
        Ok(IsAlterTableDoneResponsePb { error: None, schema_version: Some(version), done: Some(done) })
    }

    pub(super) async fn get_table_schema(
        &self,
        call: &Call,
        request: GetTableSchemaRequestPb,
    ) -> Result<GetTableSchemaResponsePb> {
        let table = self.table(call, &request.table, TableQuestion::Metadata).await?;
        let (authorizer, user) = (self.authorizer.clone(), call.user.clone());
        let look = move |catalog: &Catalog, _| {
            let table = catalog.table(&table)?;
            Ok((authorizer.privilege(&user, &table), table_schema(table)))
        };
        let (privilege, response) = self.read(look).await?;
        Ok(GetTableSchemaResponsePb { authz_token: self.authz_token(call, privilege)?, ..response })
    }

    pub(super) async fn get_table_statistics(
        &self,
        call: &Call,
        request: GetTableStatisticsRequestPb,
    ) -> Result<GetTableStatisticsResponsePb> {
        let table = self.table(call, &request.table, TableQuestion::Statistics).await?;
        let mut sum = self.read(move |catalog, _| catalog.statistics(&table)).await?;
        if let Some((disk_bytes, live_rows)) = self.mock_sizes() {
            (sum.disk_bytes, sum.live_rows) = (disk_bytes, Some(live_rows));
        }
        Ok(GetTableStatisticsResponsePb {
            error: None,
            on_disk_size: Some(sum.disk_bytes as i64),
            live_row_count: sum.live_rows.map(|rows| rows as i64),
            disk_size_limit: sum.disk_size_limit,
            row_count_limit: sum.row_count_limit,
        })
    }

    /// Returns the made-up bytes and rows of every table, if a test asked for them by flags.
    fn mock_sizes(&self) -> Option<(u64, u64)> {
        let flags = &self.config.flags;
        let sizes = || (flags.number("on_disk_size_for_testing"), flags.number("live_row_count_for_testing"));
        flags.bool("mock_table_metrics_for_testing").then(sizes)
    }

    pub(super) async fn get_table_locations(
        &self,
        call: &Call,
        request: GetTableLocationsRequestPb,
    ) -> Result<GetTableLocationsResponsePb> {
        if !self.config.lookup_delay.is_zero() {
            self.env.sleep(self.config.lookup_delay).await;
        }
        let table = self.table(call, &request.table, TableQuestion::Metadata).await?;
        let ttl_millis = Some(self.config.locations_ttl_ms);
        self.read(move |catalog, _| {
            let start = partition_key(&request.partition_key_start, &request.key_start);
            let end = partition_key(&request.partition_key_end, &request.key_end);
            let max = request.max_returned_locations.map(|max| max as usize);
            let tablets = catalog.locations(&table, LocationsQuery { start: &start, end: &end, max })?;
            let voters_only = request.replica_type_filter() != ReplicaTypeFilter::AnyReplica;
            let mut builder = Locations::new(catalog, voters_only, request.intern_ts_infos_in_response());
            let mut size = ReplySize::default();
            // Clients would take the tablets after the last one of a shorter list for missing.
            let locate = |tablet: TabletEntry<'_>| {
                size.add(format_args!("tablet {}", tablet.id), || builder.tablet(tablet))
            };
            let tablet_locations = tablets.into_iter().map(locate).collect::<Result<_, Error>>()?;
            Ok(GetTableLocationsResponsePb {
                error: None,
                tablet_locations,
                ts_infos: builder.infos,
                ttl_millis,
            })
        })
        .await
    }

    pub(super) async fn get_tablet_locations(
        &self,
        call: &Call,
        request: GetTabletLocationsRequestPb,
    ) -> Result<GetTabletLocationsResponsePb> {
        let (authorizer, user) = (self.authorizer.clone(), call.user.clone());
        let sees_all = self.identity.access().is_privileged(&user);
        self.read(move |catalog, _| {
            let voters_only = request.replica_type_filter() != ReplicaTypeFilter::AnyReplica;
            let mut builder = Locations::new(catalog, voters_only, request.intern_ts_infos_in_response());
            let mut response = GetTabletLocationsResponsePb::default();
            let sees = |tablet: &TabletEntry<'_>| {
                let table = catalog.table(&TableRef::by_id(tablet.record.table));
                sees_all || table.is_ok_and(|table| authorizer.lists(&user, &table))
            };
            let (mut size, mut answered) = (ReplySize::default(), BTreeSet::new());
            for tablet_id in &request.tablet_ids {
                // Each id is answered once; its digits may be upper or lower case.
                if !answered.insert(tablet_id.to_ascii_lowercase()) {
                    continue;
                }
                let found = find_tablet(catalog, tablet_id);
                let hidden = || Error::not_authorized("Unauthorized action");
                let found = found.and_then(|tablet| if sees(&tablet) { Ok(tablet) } else { Err(hidden()) });
                let located = found.and_then(|tablet| {
                    size.add(format_args!("tablet {}", tablet.id), || builder.tablet(tablet))
                });
                match located {
                    Ok(tablet) => response.tablet_locations.push(tablet),
                    Err(error) => response.errors.push(get_tablet_locations_response_pb::Error {
                        tablet_id: tablet_id.clone(),
                        status: status_from_error(&error),
                    }),
                }
            }
            response.ts_infos = builder.infos;
            Ok(response)
        })
        .await
    }

    pub(super) async fn list_tables(
        &self,
        call: &Call,
        request: ListTablesRequestPb,
    ) -> Result<ListTablesResponsePb> {
        // All tables are ordinary ones: there is no transaction status table.
        let ordinary = TableTypePb::DefaultTable as i32;
        if !request.type_filter.is_empty() && !request.type_filter.contains(&ordinary) {
            return Ok(ListTablesResponsePb::default());
        }
        let mock_rows = self.mock_sizes().map(|(_, rows)| rows);
        let (authorizer, user) = (self.authorizer.clone(), call.user.clone());
        let sees_all = self.identity.access().is_privileged(&user);
        self.read(move |catalog, _| {
            let soft_deleted = request.show_soft_deleted();
            let with_partitions = request.list_tablet_with_partition();
            let wanted = |table: &TableEntry<'_>| {
                let hidden = matches!(table.record.state, TableLifecycle::SoftDeleted { .. });
                let named = table.record.name.contains(request.name_filter());
                hidden == soft_deleted && named && (sees_all || authorizer.lists(&user, table))
            };
            let tables = catalog.tables().filter(wanted);
            let info = |table: TableEntry<'_>| {
                let counts = authorizer.allows(&user, &table, TableQuestion::Statistics);
                let info = table_info(catalog, table, with_partitions);
                let rows = mock_rows.or(info.live_row_count).filter(|_| counts);
                TableInfo { live_row_count: rows, ..info }
            };
            let mut size = ReplySize::default();
            let listed =
                |table: TableEntry<'_>| size.add(format_args!("table {}", table.record.name), || info(table));
            let tables = tables.map(listed).collect::<Result<_, Error>>()?;
            Ok(ListTablesResponsePb { error: None, tables })
        })
        .await
    }

    pub(super) async fn list_in_flight_tables(&self, call: &Call) -> Result<ListInFlightTablesResponsePb> {
        let (authorizer, user) = (self.authorizer.clone(), call.user.clone());
        let sees_all = self.identity.access().is_privileged(&user);
        self.read(move |catalog, _| {
            let seen = catalog.tables().filter(|table| sees_all || authorizer.lists(&user, table));
            let tables = seen.filter_map(|table| in_flight(catalog, table)).collect();
            Ok(ListInFlightTablesResponsePb { error: None, tables })
        })
        .await
    }

    pub(super) async fn list_tablet_servers(
        &self,
        request: ListTabletServersRequestPb,
    ) -> Result<ListTabletServersResponsePb> {
        let states = request.include_states();
        self.read(move |catalog, now| {
            let mut servers: Vec<_> =
                catalog.servers(now.mono).map(|server| server_entry(server, states)).collect();
            if states {
                servers.extend(catalog.absent_in_maintenance().map(absent_entry));
            }
            Ok(ListTabletServersResponsePb { error: None, servers })
        })
        .await
    }
}

/// Returns a partition key, which a request gives whole or in two parts.
fn partition_key(whole: &Option<bytes::Bytes>, parts: &Option<PartitionKeyPb>) -> Vec<u8> {
    match (whole, parts) {
        (_, Some(parts)) => [parts.hash_key(), parts.range_key()].concat(),
        (Some(whole), None) => whole.to_vec(),
        (None, None) => Vec::new(),
    }
}

fn find_tablet<'a>(catalog: &'a Catalog, text: &[u8]) -> Result<TabletEntry<'a>, Error> {
    let found = Uuid::parse(text).ok().and_then(|id| catalog.tablet(id));
    let shown = String::from_utf8_lossy(text);
    let tablet = found.ok_or_else(|| Error::not_found(format!("Unknown tablet {shown}")))?;
    match tablet.record.state {
        TabletLifecycle::Running => Ok(tablet),
        _ => Err(Error::not_ready(format!("Tablet not running: {shown}"))),
    }
}

fn table_schema(table: TableEntry<'_>) -> GetTableSchemaResponsePb {
    let record = table.record;
    GetTableSchemaResponsePb {
        error: None,
        schema: Some(schema_to_pb(table.schema())),
        partition_schema: Some(partition::schema_to_pb(&record.partition_schema, table.schema())),
        num_replicas: Some(record.replicas),
        table_id: Some(id(table.id)),
        table_name: Some(record.name.clone()),
        authz_token: None,
        extra_configs: record.extra.to_map(),
        owner: Some(record.owner.clone()),
        comment: Some(record.comment.clone()),
    }
}

fn table_info(catalog: &Catalog, table: TableEntry<'_>, with_partitions: bool) -> TableInfo {
    let statistics = catalog.statistics(&TableRef::by_id(table.id)).unwrap_or_default();
    let tablet = |tablet: TabletEntry<'_>| TabletWithPartition {
        tablet_id: Some(tablet.id.to_string()),
        partition: Some(partition::to_pb(&tablet.record.partition)),
    };
    let partitions = with_partitions.then(|| catalog.tablets(table.id).map(tablet).collect());
    TableInfo {
        id: id(table.id),
        name: table.record.name.clone(),
        live_row_count: statistics.live_rows,
        num_tablets: Some(catalog.tablets(table.id).count() as i32),
        num_replicas: Some(table.record.replicas),
        tablet_with_partition: partitions.unwrap_or_default(),
    }
}

/// Returns the progress of a table that is being created or altered.
fn in_flight(catalog: &Catalog, table: TableEntry<'_>) -> Option<InFlightInfo> {
    use nyala_proto::kudu::master::sys_tables_entry_pb::State;
    let tablets = catalog.tablets(table.id).count();
    let coming =
        catalog.tablets(table.id).filter(|tablet| tablet.record.state != TabletLifecycle::Running).count();
    let altering = table.record.applied_schema.is_some();
    if coming == 0 && !altering {
        return None;
    }
    Some(InFlightInfo {
        id: id(table.id),
        name: table.record.name.clone(),
        num_tablets: Some(tablets as u32),
        num_tablets_in_flight: Some(coming as u32),
        state: Some(if altering { State::Altering } else { State::Running } as i32),
    })
}

fn server_entry(server: TserverEntry<'_>, states: bool) -> list_tablet_servers_response_pb::Entry {
    let state = if server.maintenance { TServerStatePb::MaintenanceMode } else { TServerStatePb::None };
    list_tablet_servers_response_pb::Entry {
        instance_id: NodeInstancePb { permanent_uuid: id(server.id), instance_seqno: server.instance },
        registration: Some(registration_to_pb(server.registration)),
        millis_since_heartbeat: Some(i32::try_from(server.millis_since_heartbeat).unwrap_or(i32::MAX)),
        location: server.location.map(str::to_string),
        state: states.then_some(state as i32),
    }
}

/// Returns the entry of a server in maintenance mode that has not registered since this master started.
fn absent_entry(server: PeerId) -> list_tablet_servers_response_pb::Entry {
    list_tablet_servers_response_pb::Entry {
        instance_id: NodeInstancePb { permanent_uuid: id(server), instance_seqno: 0 },
        registration: None,
        millis_since_heartbeat: None,
        location: None,
        state: Some(TServerStatePb::MaintenanceMode as i32),
    }
}
