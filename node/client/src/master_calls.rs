//! Calls to the leader of the masters, with leader lookup and retries.

use engine::sync::Mutex;
use std::time::Duration;

use engine::error::{Error, ErrorKind, Result};
use engine::time::Instant;
use futures_util::stream::{FuturesUnordered, StreamExt};
use prost::Message;

use super::backoff::Backoff;
use super::{ClientConfig, security};
use nyala_common::env::Env;
use nyala_common::rpc::RpcErrorCodePb;
use nyala_common::rpc::client::{CallOptions, Proxy, RpcError};
use nyala_common::security::RpcCaller;
use nyala_common::spans::SpanOrigin;
use nyala_common::wire::errors::error_from_status;
use nyala_proto::kudu::consensus::raft_peer_pb::Role;
use nyala_proto::kudu::master::master_error_pb::Code;
use nyala_proto::kudu::master::{
    AlterTableResponsePb, ChangeTServerStateResponsePb, ConnectToMasterRequestPb, ConnectToMasterResponsePb,
    CreateTableResponsePb, DeleteTableResponsePb, GetTableLocationsResponsePb, GetTableSchemaResponsePb,
    GetTableStatisticsResponsePb, GetTabletLocationsResponsePb, HoldHistoryResponsePb,
    IsAlterTableDoneResponsePb, IsCreateTableDoneResponsePb, ListMastersResponsePb, ListTablesResponsePb,
    ListTabletServersResponsePb, MasterErrorPb, NyalaRaiseLevelResponsePb, RecallDeletedTableResponsePb,
    RemoveMasterResponsePb,
};

pub(super) const MASTER_SERVICE: &str = "kudu.master.MasterService";

/// Default RPC port of masters.
const MASTER_PORT: u16 = 7051;

/// Response of a master, which may carry an error.
pub(super) trait MasterReply: Message + Default {
    fn error(&self) -> Option<&MasterErrorPb>;
}

macro_rules! replies {
    ($($reply:ty),* $(,)?) => {
        $(impl MasterReply for $reply {
            fn error(&self) -> Option<&MasterErrorPb> {
                self.error.as_ref()
            }
        })*
    };
}

replies!(
    AlterTableResponsePb,
    ChangeTServerStateResponsePb,
    ConnectToMasterResponsePb,
    CreateTableResponsePb,
    DeleteTableResponsePb,
    GetTableLocationsResponsePb,
    GetTableSchemaResponsePb,
    GetTableStatisticsResponsePb,
    GetTabletLocationsResponsePb,
    HoldHistoryResponsePb,
    IsAlterTableDoneResponsePb,
    IsCreateTableDoneResponsePb,
    ListMastersResponsePb,
    ListTablesResponsePb,
    ListTabletServersResponsePb,
    NyalaRaiseLevelResponsePb,
    RecallDeletedTableResponsePb,
    RemoveMasterResponsePb,
);

/// Caller of the leader master.
pub(super) struct MasterCaller {
    env: Env,
    caller: RpcCaller,
    rpc_timeout: Duration,
    known: Mutex<Known>,
}

struct Known {
    /// Configured masters, and those that other masters reported.
    masters: Vec<Proxy>,
    leader: Option<Proxy>,
}

/// Failure of a call, by the required reaction.
enum MasterCallFailure {
    Final(Error),
    /// Retry; if true, look up the leader first.
    Retry(Error, bool),
}

impl MasterCaller {
    pub(super) fn new(env: &Env, config: &ClientConfig, caller: &RpcCaller) -> MasterCaller {
        let proxy = |address: &String| Proxy::new(env.clone(), with_port(address), caller);
        let known = Known { masters: config.masters.iter().map(proxy).collect(), leader: None };
        MasterCaller {
            env: env.clone(),
            caller: caller.clone(),
            rpc_timeout: config.rpc_timeout,
            known: Mutex::new(known),
        }
    }

    /// Calls the leader. Retries until the call succeeds, fails permanently, or the deadline passes.
    pub(super) async fn call<Req: Message, Resp: MasterReply>(
        &self,
        method: &str,
        request: &Req,
        deadline: Instant,
        features: &[u32],
    ) -> Result<Resp> {
        let mut backoff = Backoff::new(deadline);
        loop {
            let leader = self.find_leader(deadline).await?;
            match self.attempt(&leader, method, request, deadline, features).await {
                Ok(response) => return Ok(response),
                Err(MasterCallFailure::Final(error)) => return Err(error),
                Err(MasterCallFailure::Retry(error, find_leader_again)) => {
                    if find_leader_again {
                        self.known.lock().leader = None;
                    }
                    backoff.failed(&self.env, method, error).await?;
                }
            }
        }
    }

    async fn attempt<Req: Message, Resp: MasterReply>(
        &self,
        master: &Proxy,
        method: &str,
        request: &Req,
        deadline: Instant,
        features: &[u32],
    ) -> Result<Resp, MasterCallFailure> {
        let until = deadline.min(self.env.now().mono.after(self.rpc_timeout));
        let options =
            CallOptions { features: features.to_vec(), span: SpanOrigin::Root, ..CallOptions::default() };
        let called = master.call::<Req, Resp>(MASTER_SERVICE, method, request, until, options).await;
        let response = called.map_err(|error| rpc_failure(master, method, error))?.message;
        match response.error() {
            None => Ok(response),
            Some(error) => Err(master_failure(error)),
        }
    }

    /// Returns the known leader, or asks all masters at the same time.
    pub(super) async fn find_leader(&self, deadline: Instant) -> Result<Proxy> {
        let mut backoff = Backoff::new(deadline);
        loop {
            let masters = {
                let known = self.known.lock();
                if let Some(leader) = &known.leader {
                    return Ok(leader.clone());
                }
                known.masters.clone()
            };
            match self.query_all_masters(&masters, deadline).await {
                Ok(leader) => return Ok(leader),
                Err(MasterCallFailure::Final(error)) => return Err(error),
                Err(MasterCallFailure::Retry(error, _)) => {
                    backoff.failed(&self.env, "looking for the leader master", error).await?;
                }
            }
        }
    }

    /// Asks all `masters` at the same time and returns the first leader. A master that hangs delays no other. The
    /// failure is final if every master refuses: with these credentials, none will ever answer.
    async fn query_all_masters(
        &self,
        masters: &[Proxy],
        deadline: Instant,
    ) -> Result<Proxy, MasterCallFailure> {
        let mut responses: FuturesUnordered<_> = masters
            .iter()
            .map(|master| async move {
                let request = ConnectToMasterRequestPb {};
                // A master that hangs must not delay the next round: another one may be elected meanwhile.
                let until = deadline.min(self.env.now().mono.after(self.rpc_timeout / 4));
                let response = self.attempt(master, "ConnectToMaster", &request, until, &[]).await;
                (master, response)
            })
            .collect();
        let mut last = None;
        let mut all_refuse = true;
        while let Some((master, response)) = responses.next().await {
            all_refuse &= matches!(response, Err(MasterCallFailure::Final(_)));
            match response {
                Ok(response) => {
                    self.learn(&response);
                    if response.role() == Role::Leader {
                        self.known.lock().leader = Some(master.clone());
                        return Ok(master.clone());
                    }
                }
                Err(MasterCallFailure::Final(error) | MasterCallFailure::Retry(error, _)) => {
                    // A timeout of one master tells less than the answer of another.
                    if last.is_none() || error.kind != ErrorKind::TimedOut {
                        last = Some(error);
                    }
                }
            }
        }
        Err(match last {
            Some(error) if all_refuse => MasterCallFailure::Final(error),
            Some(error) => MasterCallFailure::Retry(error, true),
            None => MasterCallFailure::Retry(Error::not_ready("no master is the leader"), true),
        })
    }

    /// Adds the masters reported by one of them, and takes the leader's token and CA.
    fn learn(&self, response: &ConnectToMasterResponsePb) {
        security::learn(&self.caller, response);
        let mut known = self.known.lock();
        for address in &response.master_addrs {
            let target = format!("{}:{}", address.host, address.port);
            if !known.masters.iter().any(|master| master.target().to_string() == target) {
                known.masters.push(Proxy::new(self.env.clone(), target.as_str(), &self.caller));
            }
        }
    }
}

/// Returns the address with the default port if it has none.
pub(super) fn with_port(address: &str) -> String {
    if address.contains(':') { address.to_string() } else { format!("{address}:{MASTER_PORT}") }
}

fn rpc_failure(master: &Proxy, method: &str, error: RpcError) -> MasterCallFailure {
    let find_leader_again = !error.is_busy();
    let retry = error.is_busy() || error.is_unreachable() || matches!(error, RpcError::TimedOut { .. });
    let error = error_from_rpc(&error).context(format!("{method} at master {}", master.target()));
    if retry { MasterCallFailure::Retry(error, find_leader_again) } else { MasterCallFailure::Final(error) }
}

fn master_failure(error: &MasterErrorPb) -> MasterCallFailure {
    let status = error_from_status(&error.status);
    let find_leader_again = matches!(error.code(), Code::NotTheLeader | Code::CatalogManagerNotInitialized);
    match status.kind {
        _ if find_leader_again => MasterCallFailure::Retry(status, true),
        ErrorKind::NotReady => MasterCallFailure::Retry(status, false),
        _ => MasterCallFailure::Final(status),
    }
}

/// Returns true if the server denied the call for who makes it.
fn is_denied(code: RpcErrorCodePb) -> bool {
    use RpcErrorCodePb::{
        ErrorInvalidAuthorizationToken, FatalInvalidAuthenticationToken, FatalUnauthorized,
    };
    [FatalUnauthorized, FatalInvalidAuthenticationToken, ErrorInvalidAuthorizationToken].contains(&code)
}

/// Converts the failure of a call to an error for the caller.
pub(super) fn error_from_rpc(error: &RpcError) -> Error {
    let kind = match error {
        RpcError::Remote { .. } if error.is_busy() => ErrorKind::Throttled,
        RpcError::Remote { unsupported_features, .. } if !unsupported_features.is_empty() => {
            ErrorKind::Unsupported
        }
        RpcError::Remote { code, .. } if is_denied(*code) => ErrorKind::NotAuthorized,
        RpcError::Remote { .. } | RpcError::Malformed { .. } => ErrorKind::Invalid,
        RpcError::Network { .. } => ErrorKind::Io,
        RpcError::TimedOut { .. } => ErrorKind::TimedOut,
    };
    Error { kind, message: error.to_string(), errno: None }
}
