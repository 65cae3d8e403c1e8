//! `kudu.master.MasterService`: dispatch of methods, and the common steps of a call.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use engine::catalog::{Catalog, CatalogCommand, CatalogError, CommandReply, TableRef};
use engine::error::Error;
use engine::time::ClockReading;
use prost::Message;

use super::admission::TserverAdmission;
use super::audit_subject;
use super::authz::{Authorizer, TableQuestion};
use super::catalog_loop::CatalogHandle;
use super::history_holds::HistoryHolds;
use super::known_masters::KnownMasters;
use super::known_tservers::KnownTservers;
use super::leadership::{CatalogUnavailable, LeadershipHandle, absent};
use super::location_resolver::LocationResolver;
use super::proto::{id, refusal_to_pb, table_ref};
use super::request_limits;
use super::secrets::MasterSecrets;
use crate::hosting::replica::ReplicaHandle;
use crate::server::ServerStatus;
use crate::server::flags::Flags;
use crate::server::security::ServerIdentity;
use nyala_common::env::{BoxFuture, Env};
use nyala_common::rpc::request_limits::RequestLimits;
use nyala_common::rpc::{Call, MethodInfo, Reply, Service};
use nyala_common::security::RpcCaller;
use nyala_common::security::acl::MethodRole;
use nyala_common::service_methods;
use nyala_common::wire::errors::{error_from_status, status_from_error};
use nyala_proto::kudu::master::master_error_pb::Code;
use nyala_proto::kudu::master::*;

/// Configuration that calls need.
#[derive(Clone)]
pub(super) struct MasterServiceConfig {
    pub locations_ttl_ms: u32,
    pub lookup_delay: Duration,
    pub server_unresponsive_after: Duration,
    /// Largest difference of a tablet server's clock.
    pub max_clock_ahead_us: u64,
    /// Configured masters; empty for a single one.
    pub masters: Vec<String>,
    pub features: &'static [u32],
    /// Flags that change at run time.
    pub flags: Arc<Flags>,
}

pub(super) struct MasterService {
    pub(super) env: Env,
    pub(super) status: Arc<ServerStatus>,
    pub(super) leadership: Arc<LeadershipHandle>,
    pub(super) known_tservers: Arc<KnownTservers>,
    pub(super) known_masters: KnownMasters,
    pub(super) admission: Arc<TserverAdmission>,
    /// Replica of the system tablet; empty until it is open.
    pub(super) opened: Arc<OnceLock<ReplicaHandle>>,
    pub(super) locator: LocationResolver,
    pub(super) identity: Arc<ServerIdentity>,
    pub(super) secrets: Arc<MasterSecrets>,
    pub(super) history_holds: Arc<HistoryHolds>,
    pub(super) authorizer: Arc<Authorizer>,
    /// Name and credentials of calls to other servers.
    pub(super) caller: RpcCaller,
    pub(super) config: MasterServiceConfig,
}

/// Name of the masters' service.
pub(super) const MASTER_SERVICE: &str = "kudu.master.MasterService";

/// An error in its wire form, to be put into a response.
pub(super) type MasterErrorReply = MasterErrorPb;
type Result<T, E = MasterErrorReply> = std::result::Result<T, E>;

/// A response that can carry an error.
pub(super) trait MasterResponse: Message + Default {
    fn set_error(&mut self, error: MasterErrorPb);
}

macro_rules! responses {
    ($($name:ident),* $(,)?) => {
        $(impl MasterResponse for $name {
            fn set_error(&mut self, error: MasterErrorPb) {
                self.error = Some(error);
            }
        })*
    };
}

responses! {
    AddMasterResponsePb, AlterTableResponsePb, ChangeTServerStateResponsePb, ConnectToMasterResponsePb,
    CreateTableResponsePb, DeleteTableResponsePb, GetMasterRegistrationResponsePb,
    GetTableLocationsResponsePb, GetTableSchemaResponsePb, GetTableStatisticsResponsePb,
    GetTabletLocationsResponsePb, HoldHistoryResponsePb, IsAlterTableDoneResponsePb,
    IsCreateTableDoneResponsePb, ListInFlightTablesResponsePb, ListMastersResponsePb, ListTablesResponsePb,
    ListTabletServersResponsePb, NyalaRaiseLevelResponsePb, RecallDeletedTableResponsePb,
    RefreshAuthzCacheResponsePb, RemoveMasterResponsePb, ReplaceTabletResponsePb, TsHeartbeatResponsePb,
    UnregisterTServerResponsePb,
}

pub(super) fn master_error(code: Code, error: &Error) -> MasterErrorReply {
    MasterErrorPb { code: code as i32, status: status_from_error(error) }
}

/// Returns the error inside an error reply.
pub(super) fn error_of(refused: &MasterErrorReply) -> Error {
    error_from_status(&refused.status)
}

/// Returns the reply for any failure of the catalog: clients see a master that is still loading.
pub(super) fn unavailable(error: &Error) -> MasterErrorReply {
    master_error(Code::CatalogManagerNotInitialized, error)
}

service_methods! {
    fn dispatch(service: MasterService, call) of METHODS;
    // Kudu lets every user call it. But a new master gets the cluster's keys.
    "AddMaster" { role: MethodRole::SuperuserOrService, audited: true, tracked: false, required: &[] } =>
        reply(&call, service.add_master(call.decode()?).await),
    "AlterTable" { role: MethodRole::ClientOrService, audited: true, tracked: false, required: &[1] } =>
        service.alter_table(&call, call.decode()?).await,
    "ChangeTServerState" { role: MethodRole::Superuser, audited: true, tracked: false, required: &[] } =>
        reply(&call, service.change_tserver_state(&call, call.decode()?).await),
    "ConnectToMaster" { role: MethodRole::ClientOrService, audited: false, tracked: false, required: &[] } =>
        reply(&call, service.connect_to_master(&call).await),
    "CreateTable" { role: MethodRole::ClientOrService, audited: true, tracked: false, required: &[1, 2] } =>
        reply(&call, service.create_table(&call, call.decode()?).await),
    "DeleteTable" { role: MethodRole::Client, audited: true, tracked: false, required: &[1] } =>
        reply(&call, service.delete_table(&call, call.decode()?).await),
    "GetMasterRegistration" { role: MethodRole::ClientOrService, audited: false, tracked: false, required: &[] } =>
        reply(&call, service.get_master_registration().await),
    "GetTableLocations" { role: MethodRole::ClientOrService, audited: false, tracked: false, required: &[1] } =>
        reply(&call, service.get_table_locations(&call, call.decode()?).await),
    "GetTableSchema" { role: MethodRole::ClientOrService, audited: false, tracked: false, required: &[1] } =>
        reply(&call, service.get_table_schema(&call, call.decode()?).await),
    "GetTableStatistics" { role: MethodRole::ClientOrService, audited: false, tracked: false, required: &[1] } =>
        reply(&call, service.get_table_statistics(&call, call.decode()?).await),
    "GetTabletLocations" { role: MethodRole::ClientOrService, audited: false, tracked: false, required: &[] } =>
        reply(&call, service.get_tablet_locations(&call, call.decode()?).await),
    "HoldHistory" { role: MethodRole::ClientOrService, audited: false, tracked: false, required: &[1, 2, 3] } =>
        reply(&call, service.hold_history(&call, call.decode()?).await),
    "IsAlterTableDone" { role: MethodRole::ClientOrService, audited: false, tracked: false, required: &[1] } =>
        reply(&call, service.is_alter_table_done(&call, call.decode()?).await),
    "IsCreateTableDone" { role: MethodRole::ClientOrService, audited: false, tracked: false, required: &[1] } =>
        reply(&call, service.is_create_table_done(&call, call.decode()?).await),
    "ListInFlightTables" { role: MethodRole::ClientOrService, audited: false, tracked: false, required: &[] } =>
        reply(&call, service.list_in_flight_tables(&call).await),
    "ListMasters" { role: MethodRole::Client, audited: false, tracked: false, required: &[] } =>
        reply(&call, service.list_masters().await),
    "ListTables" { role: MethodRole::ClientOrService, audited: false, tracked: false, required: &[] } =>
        reply(&call, service.list_tables(&call, call.decode()?).await),
    "ListTabletServers" { role: MethodRole::Client, audited: false, tracked: false, required: &[] } =>
        reply(&call, service.list_tablet_servers(call.decode()?).await),
    "NyalaRaiseLevel" { role: MethodRole::Superuser, audited: true, tracked: false, required: &[] } =>
        reply(&call, service.raise_level(&call, call.decode()?).await),
    "Ping" { role: MethodRole::ClientOrService, audited: false, tracked: false, required: &[] } =>
        Reply::message(&PingResponsePb {}),
    "RecallDeletedTable" { role: MethodRole::Client, audited: true, tracked: false, required: &[1] } =>
        reply(&call, service.recall_deleted_table(&call, call.decode()?).await),
    "RefreshAuthzCache" { role: MethodRole::Superuser, audited: true, tracked: false, required: &[] } =>
        reply(&call, service.refresh_authz_cache().await),
    "RemoveMaster" { role: MethodRole::Superuser, audited: true, tracked: false, required: &[] } =>
        reply(&call, service.remove_master(call.decode()?).await),
    "ReplaceTablet" { role: MethodRole::Superuser, audited: true, tracked: false, required: &[] } =>
        reply(&call, service.replace_tablet(&call, call.decode()?).await),
    "TSHeartbeat" { role: MethodRole::ServiceOnly, audited: false, tracked: false, required: &[1] } =>
        reply(&call, service.ts_heartbeat(&call, call.decode()?).await),
    "UnregisterTServer" { role: MethodRole::Superuser, audited: true, tracked: false, required: &[] } =>
        reply(&call, service.unregister_tserver(&call, call.decode()?).await),
}

impl Service for MasterService {
    fn name(&self) -> &'static str {
        MASTER_SERVICE
    }

    fn features(&self) -> &'static [u32] {
        self.config.features
    }

    fn methods(&self) -> &'static [MethodInfo] {
        METHODS
    }

    fn request_limits(&self, method: &str) -> RequestLimits {
        request_limits::of(method)
    }

    fn subject(&self, method: &str, body: &Bytes) -> Option<String> {
        audit_subject::subject(method, body)
    }

    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Reply> {
        dispatch(self, call)
    }
}

impl MasterService {
    /// Returns the catalog, or the error that sends clients to the leader.
    pub(super) fn loaded(&self) -> Result<CatalogHandle> {
        self.leadership.catalog().map_err(|why| {
            let code = match why {
                CatalogUnavailable::NotLeader => Code::NotTheLeader,
                CatalogUnavailable::NotOpen | CatalogUnavailable::Loading => {
                    Code::CatalogManagerNotInitialized
                }
            };
            master_error(code, &absent(why))
        })
    }

    /// Runs a command for the caller.
    pub(super) async fn run(&self, call: &Call, command: CatalogCommand) -> Result<CommandReply> {
        let result = self.loaded()?.command(&call.user, command).await;
        result.map_err(|error| unavailable(&error))?.map_err(|refusal| refusal_to_pb(&refusal))
    }

    /// Returns the table that a request names, if the caller may do this with it.
    pub(super) async fn table(
        &self,
        call: &Call,
        table: &TableIdentifierPb,
        question: TableQuestion<'_>,
    ) -> Result<TableRef> {
        let table = table_ref(table).map_err(|refusal| refusal_to_pb(&refusal))?;
        self.authorize(call, table, question).await
    }

    /// Reads the catalog; `look` runs in its loop.
    pub(super) async fn read<R: Send + 'static>(
        &self,
        look: impl FnOnce(&Catalog, ClockReading) -> Result<R, CatalogError> + Send + 'static,
    ) -> Result<R> {
        let result = self.loaded()?.read(look).await;
        result.map_err(|error| unavailable(&error))?.map_err(|refusal| refusal_to_pb(&refusal))
    }

    /// An error reply also names the table, if it exists.
    async fn alter_table(&self, call: &Call, request: AlterTableRequestPb) -> Reply {
        let result = self.try_alter_table(call, &request).await;
        let mut response = AlterTableResponsePb::default();
        match result {
            Ok((table, version)) => {
                response.table_id = Some(id(table));
                response.schema_version = Some(version);
            }
            Err(error) => {
                call.note_failed(error.status.message());
                let table = self.table(call, &request.table, TableQuestion::Metadata).await;
                if let Ok(table) = table {
                    let found =
                        self.read(move |catalog, _| catalog.table(&table).map(|found| found.id)).await;
                    response.table_id = found.ok().map(id);
                }
                response.error = Some(error);
            }
        }
        Reply::message(&response)
    }
}

/// Returns the response, or an empty one with the error, which the audit log gets.
fn reply<R: MasterResponse>(call: &Call, result: Result<R>) -> Reply {
    let response = result.unwrap_or_else(|error| {
        call.note_failed(error.status.message());
        let mut response = R::default();
        response.set_error(error);
        response
    });
    Reply::message(&response)
}
