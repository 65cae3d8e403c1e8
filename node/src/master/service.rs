//! `kudu.master.MasterService`: dispatch of methods, and the common steps of a call.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use engine::catalog::{Catalog, CatalogCommand, CatalogError, CommandReply};
use engine::error::Error;
use engine::time::ClockReading;
use prost::Message;

use super::catalog_loop::CatalogHandle;
use super::known_tservers::KnownTservers;
use super::leadership::{CatalogUnavailable, LeadershipHandle, absent};
use super::location_resolver::LocationResolver;
use super::proto::{id, refusal_to_pb, table_ref};
use crate::server::ServerStatus;
use crate::tserver::replica::ReplicaHandle;
use nyala_common::env::{BoxFuture, Env};
use nyala_common::rpc::{Call, MethodInfo, Reply, RpcErrorCodePb, Service};
use nyala_common::wire::errors::{error_from_status, status_from_error};
use nyala_proto::kudu::master::master_error_pb::Code;
use nyala_proto::kudu::master::*;

/// Configuration that calls need.
#[derive(Debug, Clone)]
pub(super) struct MasterServiceConfig {
    pub locations_ttl_ms: u32,
    pub lookup_delay: Duration,
    pub server_unresponsive_after: Duration,
    /// Configured masters; empty for a single one.
    pub masters: Vec<String>,
    pub features: &'static [u32],
}

pub(super) struct MasterService {
    pub(super) env: Env,
    pub(super) status: Arc<ServerStatus>,
    pub(super) leadership: Arc<LeadershipHandle>,
    pub(super) known_tservers: Arc<KnownTservers>,
    /// Replica of the system tablet; empty until it is open.
    pub(super) opened: Arc<OnceLock<ReplicaHandle>>,
    pub(super) locator: LocationResolver,
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
    GetTabletLocationsResponsePb, IsAlterTableDoneResponsePb,
    IsCreateTableDoneResponsePb, ListInFlightTablesResponsePb, ListMastersResponsePb, ListTablesResponsePb,
    ListTabletServersResponsePb, RecallDeletedTableResponsePb, RefreshAuthzCacheResponsePb, RemoveMasterResponsePb,
    ReplaceTabletResponsePb, TsHeartbeatResponsePb, UnregisterTServerResponsePb,
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

const fn method(name: &'static str, required: &'static [u32]) -> MethodInfo {
    MethodInfo { name, tracked: false, required }
}

static METHODS: &[MethodInfo] = &[
    method("AddMaster", &[]),
    method("AlterTable", &[1]),
    method("ChangeTServerState", &[]),
    method("ConnectToMaster", &[]),
    method("CreateTable", &[1, 2]),
    method("DeleteTable", &[1]),
    method("GetMasterRegistration", &[]),
    method("GetTableLocations", &[1]),
    method("GetTableSchema", &[1]),
    method("GetTableStatistics", &[1]),
    method("GetTabletLocations", &[]),
    method("IsAlterTableDone", &[1]),
    method("IsCreateTableDone", &[1]),
    method("ListInFlightTables", &[]),
    method("ListMasters", &[]),
    method("ListTables", &[]),
    method("ListTabletServers", &[]),
    method("Ping", &[]),
    method("RecallDeletedTable", &[1]),
    method("RefreshAuthzCache", &[]),
    method("RemoveMaster", &[]),
    method("ReplaceTablet", &[]),
    method("TSHeartbeat", &[1]),
    method("UnregisterTServer", &[]),
];

impl Service for MasterService {
    fn name(&self) -> &'static str {
        MASTER_SERVICE
    }

    fn features(&self) -> &'static [u32] {
        self.config.features
    }

    fn method(&self, name: &str) -> Option<&'static MethodInfo> {
        METHODS.iter().find(|method| method.name == name)
    }

    fn call(self: Arc<Self>, call: Call) -> BoxFuture<'static, Reply> {
        Box::pin(async move { self.dispatch(call).await.unwrap_or_else(|reply| reply) })
    }
}

impl MasterService {
    async fn dispatch(&self, call: Call) -> Result<Reply, Reply> {
        Ok(match call.method {
            "AddMaster" => reply(self.add_master(call.decode()?).await),
            "AlterTable" => self.alter_table(&call, call.decode()?).await,
            "ChangeTServerState" => reply(self.change_tserver_state(&call, call.decode()?).await),
            "ConnectToMaster" => reply(self.connect_to_master(&call).await),
            "CreateTable" => reply(self.create_table(&call, call.decode()?).await),
            "DeleteTable" => reply(self.delete_table(&call, call.decode()?).await),
            "GetMasterRegistration" => reply(self.get_master_registration().await),
            "GetTableLocations" => reply(self.get_table_locations(call.decode()?).await),
            "GetTableSchema" => reply(self.get_table_schema(call.decode()?).await),
            "GetTableStatistics" => reply(self.get_table_statistics(call.decode()?).await),
            "GetTabletLocations" => reply(self.get_tablet_locations(call.decode()?).await),
            "IsAlterTableDone" => reply(self.is_alter_table_done(call.decode()?).await),
            "IsCreateTableDone" => reply(self.is_create_table_done(call.decode()?).await),
            "ListInFlightTables" => reply(self.list_in_flight_tables().await),
            "ListMasters" => reply(self.list_masters().await),
            "ListTables" => reply(self.list_tables(call.decode()?).await),
            "ListTabletServers" => reply(self.list_tablet_servers(call.decode()?).await),
            "Ping" => Reply::message(&PingResponsePb {}),
            "RecallDeletedTable" => reply(self.recall_deleted_table(&call, call.decode()?).await),
            "RefreshAuthzCache" => reply(self.refresh_authz_cache()),
            "RemoveMaster" => reply(self.remove_master(call.decode()?).await),
            "ReplaceTablet" => reply(self.replace_tablet(&call, call.decode()?).await),
            "TSHeartbeat" => reply(self.ts_heartbeat(call.decode()?).await),
            "UnregisterTServer" => reply(self.unregister_tserver(&call, call.decode()?).await),
            name => Reply::error(RpcErrorCodePb::ErrorNoSuchMethod, format!("there is no method {name}")),
        })
    }

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
                let table = table_ref(&request.table).map_err(|refusal| refusal_to_pb(&refusal));
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

/// Returns the response, or an empty one with the error.
fn reply<R: MasterResponse>(result: Result<R>) -> Reply {
    let response = result.unwrap_or_else(|error| {
        let mut response = R::default();
        response.set_error(error);
        response
    });
    Reply::message(&response)
}
