//! Requests of the catalog to tablet servers, sent over the wire.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use engine::catalog::{CreateTabletCall, HostPort, MembershipChange, TaskKey, TserverCall, TserverRequest};
use engine::error::{Error, Result};
use engine::ids::PeerId;
use engine::time::Instant;

use super::proto::{config_to_pb, extra_to_pb, id, peer_to_pb};
use nyala_common::env::Env;
use nyala_common::rpc::client::{CallOptions, Proxy};
use nyala_common::security::RpcCaller;
use nyala_common::wire::errors::error_from_status;
use nyala_common::wire::partition;
use nyala_common::wire::schema::schema_to_pb;
use nyala_proto::kudu::consensus::{
    ChangeConfigRequestPb, ChangeConfigResponsePb, ChangeConfigType, LeaderStepDownMode,
    LeaderStepDownRequestPb, LeaderStepDownResponsePb, RaftPeerPb,
};
use nyala_proto::kudu::tablet::TabletDataState;
use nyala_proto::kudu::tserver::tablet_server_error_pb::Code;
use nyala_proto::kudu::tserver::{
    AlterSchemaRequestPb, AlterSchemaResponsePb, CreateTabletRequestPb, CreateTabletResponsePb,
    DeleteTabletRequestPb, DeleteTabletResponsePb, TabletServerErrorPb,
};

const SERVICE: &str = "kudu.tserver.TabletServerAdminService";
const CONSENSUS_SERVICE: &str = "kudu.consensus.ConsensusService";

/// User name of a master's calls to other servers in a cluster without access lists.
pub(super) const MASTER_USER: &str = "kudu";

/// Sender of requests; keeps the connections.
pub struct TserverCaller {
    env: Env,
    timeout: Duration,
    caller: RpcCaller,
    proxies: BTreeMap<HostPort, Proxy>,
}

impl TserverCaller {
    /// Creates a sender that calls as `caller`; `timeout` is the deadline of each request.
    pub fn new(env: &Env, timeout: Duration, caller: RpcCaller) -> TserverCaller {
        TserverCaller { env: env.clone(), timeout, caller, proxies: BTreeMap::new() }
    }

    /// Sends `request` in a background task; `on_result` gets its result.
    pub fn send<F, A>(&mut self, request: TserverRequest, on_result: A)
    where
        A: FnOnce(TaskKey, Result<()>) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let deadline = self.env.now().mono.after(self.timeout);
        let proxy = self.proxy(&request.address);
        self.env.spawn("master-request", async move {
            let task = request.task;
            let result = perform(&proxy, request, deadline).await;
            on_result(task, result).await;
        });
    }

    fn proxy(&mut self, address: &HostPort) -> Proxy {
        if let Some(proxy) = self.proxies.get(address) {
            return proxy.clone();
        }
        let proxy = Proxy::new(self.env.clone(), address.to_string(), &self.caller);
        self.proxies.insert(address.clone(), proxy.clone());
        proxy
    }
}

async fn perform(proxy: &Proxy, request: TserverRequest, deadline: Instant) -> Result<()> {
    let task = request.task;
    match request.call {
        TserverCall::CreateTablet(call) => {
            let response: CreateTabletResponsePb =
                call_method(proxy, "CreateTablet", &create_request(task, &call), deadline).await?;
            outcome(response.error)
        }
        TserverCall::AlterSchema { schema, version, table_name, extra, attributes } => {
            let message = AlterSchemaRequestPb {
                dest_uuid: Some(id(task.server)),
                tablet_id: id(task.tablet),
                schema: schema_to_pb(&schema),
                schema_version: version,
                new_table_name: Some(table_name),
                new_extra_config: Some(extra_to_pb(&extra)),
                nyala_attributes: attributes,
            };
            let response: AlterSchemaResponsePb =
                call_method(proxy, "AlterSchema", &message, deadline).await?;
            outcome(response.error)
        }
        TserverCall::DeleteTablet { reason, tombstone, config_index_max, config_term } => {
            let left = if tombstone {
                TabletDataState::TabletDataTombstoned
            } else {
                TabletDataState::TabletDataDeleted
            };
            let message = DeleteTabletRequestPb {
                dest_uuid: Some(id(task.server)),
                tablet_id: id(task.tablet),
                reason: Some(reason),
                delete_type: Some(left as i32),
                cas_config_opid_index_less_or_equal: config_index_max,
                nyala_cas_config_opid_term: config_term,
            };
            let response: DeleteTabletResponsePb =
                call_method(proxy, "DeleteTablet", &message, deadline).await?;
            deletion_outcome(response.error)?;
            tracing::info!(tablet = %task.tablet, server = %task.server, tombstone, "successfully deleted");
            Ok(())
        }
        TserverCall::ChangeConfig { config_index, change } => {
            change_members(proxy, task, config_index, &change, deadline).await
        }
    }
}

async fn change_members(
    proxy: &Proxy,
    task: TaskKey,
    config_index: i64,
    change: &MembershipChange,
    deadline: Instant,
) -> Result<()> {
    let (kind, peer) = match change {
        MembershipChange::Add(peer) => (ChangeConfigType::AddPeer, peer_to_pb(peer)),
        MembershipChange::Evict(server) => {
            let peer = RaftPeerPb { permanent_uuid: Some(id(*server)), ..RaftPeerPb::default() };
            (ChangeConfigType::RemovePeer, peer)
        }
        MembershipChange::HandOver(successor) => {
            return transfer_leaderships(proxy, task, *successor, deadline).await;
        }
    };
    let message = ChangeConfigRequestPb {
        dest_uuid: Some(id(task.server)),
        tablet_id: id(task.tablet),
        r#type: Some(kind as i32),
        server: Some(peer),
        cas_config_opid_index: Some(config_index),
    };
    let response: ChangeConfigResponsePb =
        call_service(proxy, CONSENSUS_SERVICE, "ChangeConfig", &message, deadline).await?;
    outcome(response.error)
}

async fn transfer_leaderships(
    proxy: &Proxy,
    task: TaskKey,
    successor: PeerId,
    deadline: Instant,
) -> Result<()> {
    let message = LeaderStepDownRequestPb {
        dest_uuid: Some(id(task.server)),
        tablet_id: id(task.tablet),
        mode: Some(LeaderStepDownMode::Graceful as i32),
        new_leader_uuid: Some(id(successor)),
    };
    let response: LeaderStepDownResponsePb =
        call_service(proxy, CONSENSUS_SERVICE, "LeaderStepDown", &message, deadline).await?;
    outcome(response.error)
}

fn create_request(task: TaskKey, call: &CreateTabletCall) -> CreateTabletRequestPb {
    CreateTabletRequestPb {
        dest_uuid: Some(id(task.server)),
        table_type: None,
        table_id: id(call.table),
        tablet_id: id(task.tablet),
        start_key: None,
        end_key: None,
        partition: Some(partition::to_pb(&call.partition)),
        table_name: call.table_name.clone(),
        schema: schema_to_pb(&call.schema),
        partition_schema: Some(partition::schema_to_pb(&call.partition_schema, &call.schema)),
        config: config_to_pb(&call.consensus),
        extra_config: Some(extra_to_pb(&call.extra)),
        dimension_label: call.dimension_label.clone(),
        nyala_attributes: call.attributes.clone(),
    }
}

async fn call_method<Q, R>(proxy: &Proxy, method: &str, message: &Q, deadline: Instant) -> Result<R>
where
    Q: prost::Message,
    R: prost::Message + Default,
{
    call_service(proxy, SERVICE, method, message, deadline).await
}

async fn call_service<Q, R>(
    proxy: &Proxy,
    service: &str,
    method: &str,
    message: &Q,
    deadline: Instant,
) -> Result<R>
where
    Q: prost::Message,
    R: prost::Message + Default,
{
    let response = proxy.call(service, method, message, deadline, CallOptions::default()).await;
    // A request may be repeated after any network error.
    response.map(|response| response.message).map_err(|error| Error::not_ready(error.to_string()))
}

/// Returns the result of a deletion. If another server replies, the addressed one was wiped or has moved: its replica
/// is gone from this address, and a server that comes back elsewhere reports it and is told again.
fn deletion_outcome(error: Option<TabletServerErrorPb>) -> Result<()> {
    match error {
        Some(error) if error.code() == Code::WrongServerUuid => {
            Err(Error::not_found(error_from_status(&error.status).message))
        }
        error => outcome(error),
    }
}

/// Returns the tablet server's result. Only a missing tablet counts as "not found".
fn outcome(error: Option<TabletServerErrorPb>) -> Result<()> {
    let Some(error) = error else { return Ok(()) };
    let status_error = error_from_status(&error.status);
    match Code::try_from(error.code) {
        Ok(Code::TabletNotFound) => Err(Error::not_found(status_error.message)),
        Ok(Code::CasFailed) => Err(Error::aborted(status_error.message)),
        Ok(Code::TabletAlreadyExists) => Err(Error::already_present(status_error.message)),
        Ok(Code::TabletHasANewerSchema) => Ok(()),
        _ => Err(Error::not_ready(status_error.message)),
    }
}

#[cfg(test)]
mod tests {
    use engine::error::ErrorKind;

    use super::*;
    use nyala_common::wire::errors::status_from_error;

    #[test]
    fn only_a_deletion_ends_at_another_server() {
        let wrong = || {
            let status = status_from_error(&Error::invalid("this is server b, not a"));
            Some(TabletServerErrorPb { code: Code::WrongServerUuid as i32, status })
        };
        assert_eq!(deletion_outcome(wrong()).unwrap_err().kind, ErrorKind::NotFound);
        assert_eq!(
            outcome(wrong()).unwrap_err().kind,
            ErrorKind::NotReady,
            "it may register at another address"
        );
        assert_eq!(deletion_outcome(None), Ok(()));
    }
}
