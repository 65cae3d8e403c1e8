//! Conversion of the master's messages between protobuf and the catalog's commands and replies.

use std::collections::BTreeMap;

use engine::catalog::{
    AlterStep, AlterTable, CatalogError, CatalogErrorCode, ColumnChange, ColumnRef, ConsensusState,
    CreateTable, ExtraConfig, Heartbeat, HostPort, PeerRecord, RangeOps, ReplicaState, ReplicaStats,
    ReportedDataState, ReportedHealth, ReportedTablet, RequestedColumn, RequestedHash, RequestedPartitioning,
    RequestedRange, TableRef, TabletReport, TserverRegistration,
};
use engine::error::Error;
use engine::format_level::LevelRange;
use engine::ids::{ColumnId, PeerId, Uuid};

use nyala_common::wire::errors::status_from_error;
use nyala_common::wire::schema::{column_from_pb, compression, encoding};
use nyala_proto::kudu::consensus::health_report_pb::HealthStatus;
use nyala_proto::kudu::consensus::raft_peer_pb::MemberType;
use nyala_proto::kudu::consensus::{ConsensusStatePb, RaftConfigPb, RaftPeerAttrsPb, RaftPeerPb};
use nyala_proto::kudu::master::alter_table_request_pb::{Step, StepType};
use nyala_proto::kudu::master::{
    AlterTableRequestPb, CreateTableRequestPb, MasterErrorPb, ReportedTabletPb, TableIdentifierPb,
    TabletReportPb, TsHeartbeatRequestPb,
};
use nyala_proto::kudu::partition_schema_pb::column_identifier_pb::Identifier;
use nyala_proto::kudu::partition_schema_pb::{ColumnIdentifierPb, HashBucketSchemaPb};
use nyala_proto::kudu::{
    ColumnSchemaDeltaPb, ColumnSchemaPb, HostPortPb, PartitionSchemaPb, RowOperationsPb,
    ServerRegistrationPb, TableExtraConfigPb,
};

type Result<T, E = CatalogError> = std::result::Result<T, E>;

pub fn refusal_to_pb(refusal: &CatalogError) -> MasterErrorPb {
    MasterErrorPb { code: refusal.code as i32, status: status_from_error(&refusal.error) }
}

pub fn table_ref(pb: &TableIdentifierPb) -> Result<TableRef> {
    let id = match &pb.table_id {
        None => None,
        Some(text) => Some(
            Uuid::parse(text)
                .map_err(|_| CatalogError::unknown_table(Some(text), pb.table_name.as_deref()))?,
        ),
    };
    Ok(TableRef { id, name: pb.table_name.clone() })
}

/// Parses a column of a client's request. An invalid encoding or type is an error of the schema.
fn requested_column(pb: &ColumnSchemaPb) -> Result<RequestedColumn> {
    let column = column_from_pb(pb, ColumnId(0)).map_err(schema_error)?;
    Ok(RequestedColumn { column, is_key: pb.is_key(), has_id: pb.id.is_some() })
}

fn requested_columns(pbs: &[ColumnSchemaPb]) -> Result<Vec<RequestedColumn>> {
    pbs.iter().map(requested_column).collect()
}

fn schema_error(error: Error) -> CatalogError {
    CatalogError::new(CatalogErrorCode::InvalidSchema, error)
}

fn column_ref(pb: &ColumnIdentifierPb) -> Result<ColumnRef> {
    match &pb.identifier {
        Some(Identifier::Name(name)) => Ok(ColumnRef::Name(name.clone())),
        Some(Identifier::Id(id)) => u32::try_from(*id)
            .map(ColumnRef::Id)
            .map_err(|_| CatalogError::schema(format!("{id} is no column id"))),
        None => Err(CatalogError::schema("the partition schema has a column without name or id")),
    }
}

fn column_refs(pbs: &[ColumnIdentifierPb]) -> Result<Vec<ColumnRef>> {
    pbs.iter().map(column_ref).collect()
}

fn requested_hash(pbs: &[HashBucketSchemaPb]) -> Result<Vec<RequestedHash>> {
    let dimension = |pb: &HashBucketSchemaPb| -> Result<RequestedHash> {
        Ok(RequestedHash { columns: column_refs(&pb.columns)?, buckets: pb.num_buckets, seed: pb.seed() })
    };
    pbs.iter().map(dimension).collect()
}

fn range_ops(pb: Option<&RowOperationsPb>) -> RangeOps {
    let bytes = |field: &Option<bytes::Bytes>| field.as_ref().map(|bytes| bytes.to_vec()).unwrap_or_default();
    pb.map(|pb| RangeOps { rows: bytes(&pb.rows), indirect: bytes(&pb.indirect_data) }).unwrap_or_default()
}

fn partitioning(pb: &CreateTableRequestPb) -> Result<RequestedPartitioning> {
    let none = PartitionSchemaPb::default();
    let schema = pb.partition_schema.as_ref().unwrap_or(&none);
    let mut custom = Vec::with_capacity(schema.custom_hash_schema_ranges.len());
    for range in &schema.custom_hash_schema_ranges {
        let bounds = range_ops(range.range_bounds.as_ref());
        custom.push(RequestedRange { bounds, hash: requested_hash(&range.hash_schema)? });
    }
    Ok(RequestedPartitioning {
        hash: requested_hash(&schema.hash_schema)?,
        range: schema.range_schema.as_ref().map(|range| column_refs(&range.columns)).transpose()?,
        custom,
        splits_and_bounds: range_ops(pb.split_rows_range_bounds.as_ref()),
        allow_empty: pb.allow_empty_partition(),
    })
}

pub fn create_table(pb: &CreateTableRequestPb) -> Result<CreateTable> {
    Ok(CreateTable {
        name: pb.name.clone(),
        columns: requested_columns(&pb.schema.columns)?,
        partitioning: partitioning(pb)?,
        replicas: pb.num_replicas,
        owner: pb.owner.clone(),
        comment: pb.comment.clone().unwrap_or_default(),
        extra_configs: pb.extra_configs.clone(),
        dimension_label: pb.dimension_label.clone(),
    })
}

pub fn alter_table(pb: &AlterTableRequestPb) -> Result<AlterTable> {
    let client_columns = match &pb.schema {
        Some(schema) => requested_columns(&schema.columns)?,
        None => Vec::new(),
    };
    Ok(AlterTable {
        table: table_ref(&pb.table)?,
        steps: pb.alter_schema_steps.iter().map(alter_step).collect::<Result<_>>()?,
        client_columns,
        new_name: pb.new_table_name.clone(),
        new_owner: pb.new_table_owner.clone(),
        new_comment: pb.new_table_comment.clone(),
        new_extra_configs: pb.new_extra_configs.clone(),
        replicas: pb.num_replicas,
        disk_size_limit: pb.disk_size_limit,
        row_count_limit: pb.row_count_limit,
    })
}

fn alter_step(pb: &Step) -> Result<AlterStep> {
    let without = |what: &str| CatalogError::invalid(format!("an alter step to {what} does not say what"));
    match pb.r#type() {
        StepType::AddColumn => {
            let step = pb.add_column.as_ref().ok_or_else(|| without("add a column"))?;
            Ok(AlterStep::AddColumn(requested_column(&step.schema)?))
        }
        StepType::DropColumn => {
            let step = pb.drop_column.as_ref().ok_or_else(|| without("drop a column"))?;
            Ok(AlterStep::DropColumn(step.name.clone()))
        }
        StepType::RenameColumn => {
            let step = pb.rename_column.as_ref().ok_or_else(|| without("rename a column"))?;
            Ok(AlterStep::RenameColumn { from: step.old_name.clone(), to: step.new_name.clone() })
        }
        StepType::AlterColumn => {
            let step = pb.alter_column.as_ref().and_then(|step| step.delta.as_ref());
            Ok(AlterStep::ChangeColumn(column_change(step.ok_or_else(|| without("alter a column"))?)?))
        }
        StepType::AddRangePartition => {
            let step = pb.add_range_partition.as_ref().ok_or_else(|| without("add a range"))?;
            let custom = step.custom_hash_schema.as_ref();
            Ok(AlterStep::AddRange {
                bounds: range_ops(step.range_bounds.as_ref()),
                hash: custom.map(|custom| requested_hash(&custom.hash_schema)).transpose()?,
                dimension_label: step.dimension_label.clone(),
            })
        }
        StepType::DropRangePartition => {
            let step = pb.drop_range_partition.as_ref().ok_or_else(|| without("drop a range"))?;
            Ok(AlterStep::DropRange { bounds: range_ops(step.range_bounds.as_ref()) })
        }
        StepType::Unknown => Err(CatalogError::invalid("an alter step of an unknown type")),
    }
}

fn column_change(pb: &ColumnSchemaDeltaPb) -> Result<ColumnChange> {
    let name = pb.name.clone().ok_or_else(|| CatalogError::invalid("a column to alter has no name"))?;
    Ok(ColumnChange {
        name,
        new_name: pb.new_name.clone(),
        default: pb.default_value.as_ref().map(|bytes| bytes.to_vec()),
        remove_default: pb.remove_default(),
        encoding: pb.encoding.map(encoding).transpose().map_err(schema_error)?,
        compression: pb.compression.map(compression).transpose().map_err(schema_error)?,
        block_bytes: pb.block_size,
        comment: pb.new_comment.clone(),
        immutable: pb.immutable,
    })
}

pub fn extra_to_pb(extra: &ExtraConfig) -> TableExtraConfigPb {
    TableExtraConfigPb {
        history_max_age_sec: extra.history_max_age_sec,
        maintenance_priority: extra.maintenance_priority,
        disable_compaction: extra.disable_compaction,
    }
}

pub fn host_port_to_pb(addr: &HostPort) -> HostPortPb {
    HostPortPb { host: addr.host.clone(), port: u32::from(addr.port) }
}

fn host_port(pb: &HostPortPb) -> Result<HostPort, Error> {
    let port = u16::try_from(pb.port).map_err(|_| Error::invalid(format!("{} is no port", pb.port)))?;
    Ok(HostPort { host: pb.host.clone(), port })
}

fn host_ports(pbs: &[HostPortPb]) -> Result<Vec<HostPort>, Error> {
    pbs.iter().map(host_port).collect()
}

/// Returns the levels that a nyala server registered; one of the first release names none.
pub fn registered_levels(pb: &ServerRegistrationPb) -> Result<LevelRange, Error> {
    match (pb.nyala_oldest_level, pb.nyala_newest_level) {
        (Some(oldest), Some(newest)) => LevelRange::new(oldest, newest),
        _ => Ok(LevelRange::FIRST),
    }
}

/// `of_nyala`: the heartbeat has fields of nyala's own.
fn registration(pb: &ServerRegistrationPb, of_nyala: bool) -> Result<TserverRegistration, Error> {
    if pb.rpc_addresses.is_empty() {
        return Err(Error::invalid("a tablet server cannot register without an RPC address"));
    }
    Ok(TserverRegistration {
        rpc: host_ports(&pb.rpc_addresses)?,
        http: host_ports(&pb.http_addresses)?,
        software_version: pb.software_version.clone().unwrap_or_default(),
        https_enabled: pb.https_enabled(),
        start_time: pb.start_time,
        levels: of_nyala.then(|| registered_levels(pb)).transpose()?,
    })
}

pub fn registration_to_pb(registration: &TserverRegistration) -> ServerRegistrationPb {
    let addresses = |list: &[HostPort]| list.iter().map(host_port_to_pb).collect();
    ServerRegistrationPb {
        rpc_addresses: addresses(&registration.rpc),
        http_addresses: addresses(&registration.http),
        rpc_proxy_addresses: Vec::new(),
        http_proxy_addresses: Vec::new(),
        software_version: Some(registration.software_version.clone()),
        https_enabled: Some(registration.https_enabled),
        start_time: registration.start_time,
        unix_domain_socket_path: None,
        nyala_oldest_level: registration.levels.map(|levels| levels.oldest.0.into()),
        nyala_newest_level: registration.levels.map(|levels| levels.newest.0.into()),
    }
}

pub fn heartbeat(pb: &TsHeartbeatRequestPb) -> Result<Heartbeat, Error> {
    let server = Uuid::parse(&pb.common.ts_instance.permanent_uuid)?;
    let state = pb.nyala_state.as_ref();
    let cluster = state.and_then(|state| state.cluster_id.as_ref());
    Ok(Heartbeat {
        registration: pb.registration.as_ref().map(|pb| registration(pb, state.is_some())).transpose()?,
        cluster: cluster.map(|id| Uuid::parse(id.as_bytes())).transpose()?,
        takes_replicas: !state.is_some_and(|state| state.short_of_space()),
        report: pb.tablet_report.as_ref().map(tablet_report).transpose()?,
        ..Heartbeat::of(server, pb.common.ts_instance.instance_seqno)
    })
}

fn tablet_report(pb: &TabletReportPb) -> Result<TabletReport, Error> {
    Ok(TabletReport {
        incremental: pb.is_incremental,
        number: Some(pb.sequence_number),
        updated: pb.updated_tablets.iter().map(reported_tablet).collect::<Result<_, _>>()?,
        removed: pb.removed_tablet_ids.iter().map(|id| Uuid::parse(id)).collect::<Result<_, _>>()?,
    })
}

fn reported_tablet(pb: &ReportedTabletPb) -> Result<ReportedTablet, Error> {
    use nyala_proto::kudu::tablet::{TabletDataState, TabletStatePb};
    let state = match pb.state() {
        TabletStatePb::Unknown => ReplicaState::Unknown,
        TabletStatePb::NotInitialized => ReplicaState::NotInitialized,
        TabletStatePb::Initialized => ReplicaState::Initialized,
        TabletStatePb::Bootstrapping => ReplicaState::Bootstrapping,
        TabletStatePb::Running => ReplicaState::Running,
        TabletStatePb::Failed => ReplicaState::Failed,
        TabletStatePb::Stopping => ReplicaState::Stopping,
        TabletStatePb::Stopped => ReplicaState::Stopped,
        TabletStatePb::Shutdown => ReplicaState::Shutdown,
    };
    let data = match pb.tablet_data_state() {
        TabletDataState::TabletDataUnknown => ReportedDataState::Unknown,
        TabletDataState::TabletDataCopying => ReportedDataState::Copying,
        TabletDataState::TabletDataReady => ReportedDataState::Ready,
        TabletDataState::TabletDataDeleted => ReportedDataState::Deleted,
        TabletDataState::TabletDataTombstoned => ReportedDataState::Tombstoned,
    };
    let stats = pb.stats.as_ref();
    Ok(ReportedTablet {
        tablet: Uuid::parse(&pb.tablet_id)?,
        state,
        data,
        consensus: pb.consensus_state.as_ref().map(consensus).transpose()?,
        config_term: pb.consensus_state.as_ref().and_then(|state| state.committed_config.nyala_opid_term),
        error: pb.error.as_ref().and_then(|status| status.message.clone()),
        schema_version: pb.schema_version,
        stats: stats.map(|stats| ReplicaStats {
            disk_bytes: stats.on_disk_size.unwrap_or_default(),
            live_rows: stats.live_row_count,
        }),
        health: pb.consensus_state.as_ref().map(health).transpose()?.unwrap_or_default(),
    })
}

/// Returns the members' health, which only a leader reports.
fn health(pb: &ConsensusStatePb) -> Result<BTreeMap<PeerId, ReportedHealth>, Error> {
    let mut health = BTreeMap::new();
    for peer in &pb.committed_config.peers {
        let Some(report) = &peer.health_report else { continue };
        let state = match report.overall_health() {
            HealthStatus::Unknown => ReportedHealth::Unknown,
            HealthStatus::Failed => ReportedHealth::Failed,
            HealthStatus::Healthy => ReportedHealth::Healthy,
            HealthStatus::FailedUnrecoverable => ReportedHealth::FailedUnrecoverable,
        };
        health.insert(Uuid::parse(peer.permanent_uuid.as_deref().unwrap_or_default())?, state);
    }
    Ok(health)
}

pub fn consensus(pb: &ConsensusStatePb) -> Result<ConsensusState, Error> {
    let leader = pb.leader_uuid.as_deref().filter(|uuid| !uuid.is_empty());
    Ok(ConsensusState {
        term: pb.current_term,
        leader: leader.map(|uuid| Uuid::parse(uuid.as_bytes())).transpose()?,
        config_index: pb.committed_config.opid_index.unwrap_or(-1),
        peers: pb.committed_config.peers.iter().map(peer).collect::<Result<_, _>>()?,
    })
}

fn peer(pb: &RaftPeerPb) -> Result<PeerRecord, Error> {
    let address = pb.last_known_addr.as_ref();
    let attrs = pb.attrs.unwrap_or_default();
    Ok(PeerRecord {
        server: Uuid::parse(pb.permanent_uuid.as_deref().unwrap_or_default())?,
        voter: pb.member_type() == MemberType::Voter,
        address: address.map(host_port).transpose()?.unwrap_or(HostPort { host: String::new(), port: 0 }),
        promote: attrs.promote(),
        replace: attrs.replace(),
    })
}

pub fn peer_to_pb(peer: &PeerRecord) -> RaftPeerPb {
    RaftPeerPb {
        permanent_uuid: Some(id(peer.server)),
        member_type: Some(if peer.voter { MemberType::Voter } else { MemberType::NonVoter } as i32),
        last_known_addr: Some(host_port_to_pb(&peer.address)),
        attrs: (peer.promote || peer.replace)
            .then_some(RaftPeerAttrsPb { promote: Some(peer.promote), replace: Some(peer.replace) }),
        health_report: None,
    }
}

pub fn config_to_pb(consensus: &ConsensusState) -> RaftConfigPb {
    RaftConfigPb {
        opid_index: Some(consensus.config_index),
        obsolete_local: None,
        unsafe_config_change: None,
        nyala_opid_term: None,
        peers: consensus.peers.iter().map(peer_to_pb).collect(),
    }
}

/// Converts an id to its form in messages.
pub fn id(id: PeerId) -> bytes::Bytes {
    nyala_common::wire::schema::id_bytes(&id)
}
