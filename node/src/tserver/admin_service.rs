//! `kudu.tserver.TabletServerAdminService`: calls of masters and administrators.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use engine::catalog::ATTRIBUTE_PREFIX;
use engine::error::{Error, Result};
use engine::ids::{TableId, TabletId, Term};
use engine::raft::{ConfigPosition, RaftConfig};
use engine::replica::Op;
use engine::schema::Schema;
use engine::tablet::superblock::Superblock;
use engine::time::Timestamp;
use prost::Message;

use super::server::TabletServer;
use super::tablet_service::{FEATURES, tablet_of_table};
use super::write::refused;
use crate::hosting::consensus_service::{NamedTablet, note_error};
use nyala_common::env::BoxFuture;
use nyala_common::rpc::{Call, MethodInfo, Reply, Service};
use nyala_common::security::acl::MethodRole;
use nyala_common::service_methods;
use nyala_common::wire::consensus as wire;
use nyala_common::wire::errors::{TabletError, TabletErrorCode};
use nyala_common::wire::{partition, schema};
use nyala_proto::kudu::app_status_pb::ErrorCode;
use nyala_proto::kudu::tablet::TabletDataState;
use nyala_proto::kudu::tserver::{
    AlterSchemaRequestPb, AlterSchemaResponsePb, CreateTabletRequestPb, CreateTabletResponsePb,
    DeleteTabletRequestPb, DeleteTabletResponsePb, QuiesceTabletServerRequestPb,
    QuiesceTabletServerResponsePb,
};
use nyala_proto::kudu::{PartitionPb, PartitionSchemaPb};

service_methods! {
    fn dispatch(service: AdminService, call) of METHODS;
    "CreateTablet" { role: MethodRole::Service, audited: true, tracked: false, required: &[1, 2, 5, 6, 7] } => {
        let response = create_tablet(&service.0, &call.decode()?).await;
        note_error(&call, response.error.as_ref());
        Reply::message(&response)
    },
    "DeleteTablet" { role: MethodRole::Service, audited: true, tracked: false, required: &[1] } => {
        let response = delete_tablet(&service.0, &call.decode()?).await;
        note_error(&call, response.error.as_ref());
        Reply::message(&response)
    },
    "AlterSchema" { role: MethodRole::Service, audited: true, tracked: false, required: &[1, 2, 3] } => {
        let request = call.decode()?;
        // From here on the call waits for the log.
        call.release_slot();
        let response = alter_schema(&service.0, request).await;
        note_error(&call, response.error.as_ref());
        Reply::message(&response)
    },
    "Quiesce" { role: MethodRole::SuperuserOrService, audited: true, tracked: false, required: &[] } =>
        Reply::message(&quiesce(&service.0, &call.decode()?)),
}

/// The administrative service of one server.
pub struct AdminService(pub Arc<TabletServer>);

impl Service for AdminService {
    fn name(&self) -> &'static str {
        "kudu.tserver.TabletServerAdminService"
    }

    fn features(&self) -> &'static [u32] {
        FEATURES
    }

    fn methods(&self) -> &'static [MethodInfo] {
        METHODS
    }

    fn subject(&self, method: &str, body: &Bytes) -> Option<String> {
        let request = NamedTablet::decode(body.clone()).ok()?;
        let tablet = if method == "CreateTablet" { request.second } else { request.first };
        tablet.map(|tablet| tablet_of_table(&self.0, &tablet))
    }

    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Reply> {
        dispatch(self, call)
    }
}

async fn create_tablet(server: &TabletServer, request: &CreateTabletRequestPb) -> CreateTabletResponsePb {
    let began = server.env.now().mono;
    let invalid = |error: Error| TabletError::of(TabletErrorCode::InvalidSchema, &error);
    let created = match server.check_destination(request.dest_uuid.as_ref()) {
        Ok(()) => match (new_tablet(request).map_err(invalid), members(request)) {
            (Ok(meta), Ok(members)) => server.tablets.create(meta, members).await,
            (Err(error), _) | (_, Err(error)) => Err(error),
        },
        Err(error) => Err(error),
    };
    server.metrics.create_tablet.record_micros(server.env.now().mono.since(began));
    CreateTabletResponsePb { error: created.err().map(|error| error.to_pb()) }
}

/// Returns the superblock of the tablet that a request describes.
fn new_tablet(request: &CreateTabletRequestPb) -> Result<Superblock> {
    let schema = schema::schema_from_pb(&request.schema)?;
    let no_partition_schema = PartitionSchemaPb::default();
    let partition_schema = request.partition_schema.as_ref().unwrap_or(&no_partition_schema);
    let partition_schema = partition::schema_from_pb(partition_schema, &schema)?;
    let whole = PartitionPb {
        hash_buckets: Vec::new(),
        partition_key_start: request.start_key.clone(),
        partition_key_end: request.end_key.clone(),
    };
    let partition = partition::from_pb(request.partition.as_ref().unwrap_or(&whole))?;
    let (tablet, table) = (TabletId::parse(&request.tablet_id)?, TableId::parse(&request.table_id)?);
    let mut meta =
        Superblock::new(tablet, table, &request.table_name, schema, 0, partition_schema, partition);
    meta.extra = request.extra_config.as_ref().map(schema::extra_config).unwrap_or_default();
    meta.extra.extend(attributes(&request.nyala_attributes));
    meta.peers = request.config.encode_to_vec();
    Ok(meta)
}

/// Returns the attributes that masters give a tablet to keep.
fn attributes(map: &BTreeMap<String, String>) -> impl Iterator<Item = (String, String)> {
    let kept = map.iter().filter(|(name, _)| name.starts_with(ATTRIBUTE_PREFIX));
    kept.map(|(name, value)| (name.clone(), value.clone()))
}

/// Returns the first configuration of the tablet's group. It comes from the master and need not contain this server.
fn members(request: &CreateTabletRequestPb) -> Result<RaftConfig, TabletError> {
    let members = wire::config_from_pb(&request.config).and_then(|config| match config.voter_count() {
        0 => Err(Error::invalid("the configuration has no voter; name at least one")),
        _ => Ok(config),
    });
    members.map_err(|error| TabletError::of(TabletErrorCode::InvalidConfig, &error))
}

async fn delete_tablet(server: &TabletServer, request: &DeleteTabletRequestPb) -> DeleteTabletResponsePb {
    let began = server.env.now().mono;
    let deleted = delete(server, request).await;
    server.metrics.delete_tablet.record_micros(server.env.now().mono.since(began));
    DeleteTabletResponsePb { error: deleted.err().map(|error| error.to_pb()) }
}

async fn delete(server: &TabletServer, request: &DeleteTabletRequestPb) -> Result<(), TabletError> {
    server.check_destination(request.dest_uuid.as_ref())?;
    let tombstone = match request.delete_type() {
        TabletDataState::TabletDataTombstoned => true,
        TabletDataState::TabletDataDeleted => false,
        other => {
            let message = format!("cannot delete a tablet to the state {}", other.as_str_name());
            return Err(Error::invalid(message).into());
        }
    };
    let entry = server.tablets.find(&request.tablet_id).inspect_err(|_| {
        // A leader's order to copy it may still be in flight.
        if let (false, Ok(tablet)) = (tombstone, TabletId::parse(&request.tablet_id)) {
            server.tablets.mark_deleted(tablet);
        }
    })?;
    let reason = request.reason();
    // Operators of Kudu search the logs of tablet servers and masters for this text.
    tracing::info!(tablet = %entry.id, tombstone, reason, "Deleting tablet data");
    let term = request.nyala_cas_config_opid_term.and_then(|term| Term::try_from(term).ok());
    let cas = request.cas_config_opid_index_less_or_equal.map(|index| ConfigPosition { index, term });
    server.tablets.delete(&entry, tombstone, cas).await?;
    if let Some(copies) = server.copy_service() {
        copies.end_all_of(entry.id);
    }
    // Open scanners pin what they read and run to their end.
    Ok(())
}

async fn alter_schema(server: &TabletServer, request: AlterSchemaRequestPb) -> AlterSchemaResponsePb {
    match alter(server, request).await {
        Ok(timestamp) => AlterSchemaResponsePb { error: None, timestamp: timestamp.map(|at| at.0) },
        Err(error) => AlterSchemaResponsePb { error: Some(error.to_pb()), timestamp: None },
    }
}

/// Returns the timestamp of the alteration, or `None` if it was applied before.
async fn alter(
    server: &TabletServer,
    request: AlterSchemaRequestPb,
) -> Result<Option<Timestamp>, TabletError> {
    server.check_destination(request.dest_uuid.as_ref())?;
    let entry = server.tablets.find(&request.tablet_id)?;
    let replica = entry.running()?;
    let tablet = replica.tablet();
    let schema = schema::schema_from_pb(&request.schema)
        .map_err(|error| TabletError::of(TabletErrorCode::InvalidSchema, &error))?;
    let version = request.schema_version;
    if version <= tablet.schema_version() {
        return altered_before(version, tablet.schema_version(), &schema, &tablet.schema()).map(|()| None);
    }
    let known = tablet.table_schema();
    let extra = request.new_extra_config.as_ref();
    let mut extra = extra.map_or_else(|| known.extra.clone(), schema::extra_config);
    // A request without attributes, such as Kudu's master sends, leaves them unchanged.
    let sent = if request.nyala_attributes.is_empty() { &known.extra } else { &request.nyala_attributes };
    extra.extend(attributes(sent));
    let table_name = request.new_table_name.unwrap_or_else(|| known.table_name.clone());
    let op = Op::AlterSchema { schema: Box::new(schema), version, table_name, extra };
    let applied = replica.propose(op, None).await.map_err(|error| refused(&replica, &error))?;
    Ok(Some(applied.timestamp))
}

/// Accepts a repeated request: a master retries until it receives the version. A different schema is an error.
fn altered_before(requested: u32, current: u32, schema: &Schema, known: &Schema) -> Result<(), TabletError> {
    if requested < current {
        let message = format!("the tablet has schema version {current} already, {requested} is older");
        return Err(TabletError::new(
            TabletErrorCode::TabletHasANewerSchema,
            ErrorCode::InvalidArgument,
            message,
        ));
    }
    if schema != known {
        let message = format!("the tablet has another schema of version {current}");
        return Err(TabletError::new(TabletErrorCode::MismatchedSchema, ErrorCode::InvalidArgument, message));
    }
    Ok(())
}

fn quiesce(server: &TabletServer, request: &QuiesceTabletServerRequestPb) -> QuiesceTabletServerResponsePb {
    if let Some(quiesce) = request.quiesce {
        tracing::info!(quiesce, "quiescing was switched");
        server.set_quiescing(quiesce);
    }
    let mut response =
        QuiesceTabletServerResponsePb { is_quiescing: Some(server.is_quiescing()), ..Default::default() };
    if request.return_stats() {
        response.num_leaders = Some(super::quiescing::leaders(server) as i32);
        response.num_active_scanners = Some(server.scanners().len() as i32);
    }
    response
}
