//! `kudu.tserver.TabletServerAdminService`: what masters and administrators call.

use std::sync::Arc;

use engine::error::{Error, Result};
use engine::ids::{TableId, TabletId};
use engine::raft::Config;
use engine::replica::Op;
use engine::schema::Schema;
use engine::tablet::meta::TabletMeta;
use engine::time::Timestamp;
use prost::Message;

use super::server::Server;
use super::service::FEATURES;
use super::write::refused;
use crate::env::BoxFuture;
use crate::proto::kudu::app_status_pb::ErrorCode;
use crate::proto::kudu::tablet::TabletDataState;
use crate::proto::kudu::tserver::{
    AlterSchemaRequestPb, AlterSchemaResponsePb, CreateTabletRequestPb, CreateTabletResponsePb,
    DeleteTabletRequestPb, DeleteTabletResponsePb, QuiesceTabletServerRequestPb,
    QuiesceTabletServerResponsePb,
};
use crate::proto::kudu::{PartitionPb, PartitionSchemaPb};
use crate::rpc::{Call, MethodInfo, Reply, Service};
use crate::wire::consensus as wire;
use crate::wire::status::{TabletError, TabletErrorCode};
use crate::wire::{convert, partition};

const fn method(name: &'static str, required: &'static [u32]) -> MethodInfo {
    MethodInfo { name, tracked: false, required }
}

static METHODS: [MethodInfo; 4] = [
    method("CreateTablet", &[1, 2, 5, 6, 7]),
    method("DeleteTablet", &[1]),
    method("AlterSchema", &[1, 2, 3]),
    method("Quiesce", &[]),
];

/// The service of one server.
pub struct AdminService(pub Arc<Server>);

impl Service for AdminService {
    fn name(&self) -> &'static str {
        "kudu.tserver.TabletServerAdminService"
    }

    fn features(&self) -> &'static [u32] {
        FEATURES
    }

    fn method(&self, name: &str) -> Option<&'static MethodInfo> {
        METHODS.iter().find(|method| method.name == name)
    }

    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Reply> {
        Box::pin(async move {
            match call.method {
                "CreateTablet" => create_tablet(&self.0, call).await,
                "DeleteTablet" => delete_tablet(&self.0, call).await,
                "AlterSchema" => alter_schema(&self.0, call).await,
                _ => quiesce(&self.0, &call),
            }
        })
    }
}

async fn create_tablet(server: &Server, call: Call) -> Reply {
    let request = match call.decode::<CreateTabletRequestPb>() {
        Ok(request) => request,
        Err(reply) => return reply,
    };
    let invalid = |error: Error| TabletError::of(TabletErrorCode::InvalidSchema, &error);
    let created = match server.check_destination(request.dest_uuid.as_ref()) {
        Ok(()) => match (new_tablet(&request).map_err(invalid), members(&request)) {
            (Ok(meta), Ok(members)) => server.tablets.create(meta, members).await,
            (Err(error), _) | (_, Err(error)) => Err(error),
        },
        Err(error) => Err(error),
    };
    Reply::message(&CreateTabletResponsePb { error: created.err().map(|error| error.to_pb()) })
}

/// The superblock of the tablet that a request describes.
fn new_tablet(request: &CreateTabletRequestPb) -> Result<TabletMeta> {
    let schema = convert::schema_from_pb(&request.schema)?;
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
        TabletMeta::new(tablet, table, &request.table_name, schema, 0, partition_schema, partition);
    meta.extra = request.extra_config.as_ref().map(convert::extra_config).unwrap_or_default();
    meta.peers = request.config.encode_to_vec();
    Ok(meta)
}

/// The first members of the tablet's group. The master knows them: this server need not be one.
fn members(request: &CreateTabletRequestPb) -> Result<Config, TabletError> {
    let members = wire::config_from_pb(&request.config).and_then(|config| match config.voter_count() {
        0 => Err(Error::invalid("a tablet needs a replica that votes")),
        _ => Ok(config),
    });
    members.map_err(|error| TabletError::of(TabletErrorCode::InvalidConfig, &error))
}

async fn delete_tablet(server: &Server, call: Call) -> Reply {
    let request = match call.decode::<DeleteTabletRequestPb>() {
        Ok(request) => request,
        Err(reply) => return reply,
    };
    let deleted = delete(server, &request).await;
    Reply::message(&DeleteTabletResponsePb { error: deleted.err().map(|error| error.to_pb()) })
}

async fn delete(server: &Server, request: &DeleteTabletRequestPb) -> Result<(), TabletError> {
    server.check_destination(request.dest_uuid.as_ref())?;
    let tombstone = match request.delete_type() {
        TabletDataState::TabletDataTombstoned => true,
        TabletDataState::TabletDataDeleted => false,
        other => {
            let what = format!("cannot delete a tablet to the state {}", other.as_str_name());
            return Err(Error::invalid(what).into());
        }
    };
    let entry = server.tablets.find(&request.tablet_id).inspect_err(|_| {
        // A leader's order to copy it may still be on its way.
        if let (false, Ok(tablet)) = (tombstone, TabletId::parse(&request.tablet_id)) {
            server.tablets.bury(tablet);
        }
    })?;
    let reason = request.reason();
    // The words that operators of Kudu look for, here and at the masters.
    tracing::info!(tablet = %entry.id, tombstone, reason, "Deleting tablet data");
    server.tablets.delete(&entry, tombstone, request.cas_config_opid_index_less_or_equal).await?;
    if let Some(copies) = server.copy_service() {
        copies.end_all_of(entry.id);
    }
    // Open scanners hold what they read, and go on to their end.
    Ok(())
}

async fn alter_schema(server: &Server, call: Call) -> Reply {
    let request = match call.decode::<AlterSchemaRequestPb>() {
        Ok(request) => request,
        Err(reply) => return reply,
    };
    call.release_slot();
    let response = match alter(server, request).await {
        Ok(timestamp) => AlterSchemaResponsePb { error: None, timestamp: timestamp.map(|at| at.0) },
        Err(error) => AlterSchemaResponsePb { error: Some(error.to_pb()), timestamp: None },
    };
    Reply::message(&response)
}

/// The timestamp of the change, or none if it had been made before.
async fn alter(server: &Server, request: AlterSchemaRequestPb) -> Result<Option<Timestamp>, TabletError> {
    server.check_destination(request.dest_uuid.as_ref())?;
    let entry = server.tablets.find(&request.tablet_id)?;
    let replica = entry.running()?;
    let tablet = replica.tablet();
    let schema = convert::schema_from_pb(&request.schema)
        .map_err(|error| TabletError::of(TabletErrorCode::InvalidSchema, &error))?;
    let version = request.schema_version;
    if version <= tablet.schema_version() {
        return altered_before(version, tablet.schema_version(), &schema, &tablet.schema()).map(|()| None);
    }
    let known = tablet.table_schema();
    let extra = request.new_extra_config.as_ref();
    let extra = extra.map_or_else(|| known.extra.clone(), convert::extra_config);
    let table_name = request.new_table_name.unwrap_or_else(|| known.table_name.clone());
    let op = Op::AlterSchema { schema: Box::new(schema), version, table_name, extra };
    let applied = replica.propose(op, None).await.map_err(|error| refused(&replica, &error))?;
    server.tablets.mark_changed(entry.id);
    Ok(Some(applied.timestamp))
}

/// A master repeats its request until it hears of the version; that is fine, a different schema is not.
fn altered_before(asked: u32, current: u32, schema: &Schema, known: &Schema) -> Result<(), TabletError> {
    if asked < current {
        let what = format!("the tablet has schema version {current} already, {asked} is older");
        return Err(TabletError::new(
            TabletErrorCode::TabletHasANewerSchema,
            ErrorCode::InvalidArgument,
            what,
        ));
    }
    if schema != known {
        let what = format!("the tablet has another schema of version {current}");
        return Err(TabletError::new(TabletErrorCode::MismatchedSchema, ErrorCode::InvalidArgument, what));
    }
    Ok(())
}

fn quiesce(server: &Server, call: &Call) -> Reply {
    let request = match call.decode::<QuiesceTabletServerRequestPb>() {
        Ok(request) => request,
        Err(reply) => return reply,
    };
    if let Some(quiesce) = request.quiesce {
        tracing::info!(quiesce, "quiescing was switched");
        server.set_quiescing(quiesce);
    }
    let mut response =
        QuiesceTabletServerResponsePb { is_quiescing: Some(server.is_quiescing()), ..Default::default() };
    if request.return_stats() {
        response.num_leaders = Some(super::quiesce::leaders(server) as i32);
        response.num_active_scanners = Some(server.scanners().len() as i32);
    }
    Reply::message(&response)
}
