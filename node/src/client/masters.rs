//! Calls to the leader of the masters, whoever that is just now.

use std::sync::Mutex;
use std::time::Duration;

use engine::error::{Error, ErrorKind, Result};
use engine::time::Instant;
use futures_util::stream::{FuturesUnordered, StreamExt};
use prost::Message;

use super::backoff::Backoff;
use super::{ClientConfig, lock};
use crate::env::Env;
use crate::proto::kudu::consensus::raft_peer_pb::Role;
use crate::proto::kudu::master::master_error_pb::Code;
use crate::proto::kudu::master::{
    AlterTableResponsePb, ConnectToMasterRequestPb, ConnectToMasterResponsePb, CreateTableResponsePb,
    DeleteTableResponsePb, GetTableLocationsResponsePb, GetTableSchemaResponsePb,
    GetTableStatisticsResponsePb, GetTabletLocationsResponsePb, IsAlterTableDoneResponsePb,
    IsCreateTableDoneResponsePb, ListTablesResponsePb, ListTabletServersResponsePb, MasterErrorPb,
};
use crate::rpc::client::{CallOptions, Proxy, RpcError};
use crate::wire::status::error_from_status;

const MASTER_SERVICE: &str = "kudu.master.MasterService";

/// Where masters listen unless told otherwise.
const MASTER_PORT: u16 = 7051;

/// A master's response, which may be an error.
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
    ConnectToMasterResponsePb,
    CreateTableResponsePb,
    DeleteTableResponsePb,
    GetTableLocationsResponsePb,
    GetTableSchemaResponsePb,
    GetTableStatisticsResponsePb,
    GetTabletLocationsResponsePb,
    IsAlterTableDoneResponsePb,
    IsCreateTableDoneResponsePb,
    ListTablesResponsePb,
    ListTabletServersResponsePb,
);

pub(super) struct Masters {
    env: Env,
    user: String,
    rpc_timeout: Duration,
    known: Mutex<Known>,
}

struct Known {
    masters: Vec<Proxy>,
    leader: Option<Proxy>,
}

/// What to do about a call that failed.
enum Failure {
    Final(Error),
    /// Again; with `true` at whoever leads now.
    Retry(Error, bool),
}

impl Masters {
    pub(super) fn new(env: &Env, config: &ClientConfig) -> Masters {
        let proxy = |address: &String| Proxy::new(env.clone(), with_port(address), &config.user);
        let known = Known { masters: config.masters.iter().map(proxy).collect(), leader: None };
        Masters {
            env: env.clone(),
            user: config.user.clone(),
            rpc_timeout: config.rpc_timeout,
            known: Mutex::new(known),
        }
    }

    /// Calls the leader until it answers with a result or an error that repeating cannot help.
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
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Retry(error, elsewhere)) => {
                    if elsewhere {
                        lock(&self.known).leader = None;
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
    ) -> Result<Resp, Failure> {
        let until = deadline.min(self.env.now().mono.after(self.rpc_timeout));
        let options = CallOptions { features: features.to_vec(), request_id: None };
        let called = master.call::<Req, Resp>(MASTER_SERVICE, method, request, until, options).await;
        let response = called.map_err(|error| rpc_failure(master, method, error))?.message;
        match response.error() {
            None => Ok(response),
            Some(error) => Err(master_failure(error)),
        }
    }

    /// The leader, asked for at all masters at once unless it is known.
    pub(super) async fn find_leader(&self, deadline: Instant) -> Result<Proxy> {
        let mut backoff = Backoff::new(deadline);
        loop {
            let masters = {
                let known = lock(&self.known);
                if let Some(leader) = &known.leader {
                    return Ok(leader.clone());
                }
                known.masters.clone()
            };
            match self.ask_all(&masters, deadline).await {
                Ok(leader) => return Ok(leader),
                Err(error) => backoff.failed(&self.env, "looking for the leading master", error).await?,
            }
        }
    }

    /// Asks all of `masters` at once. The first that leads is taken: one that hangs holds up nobody.
    async fn ask_all(&self, masters: &[Proxy], deadline: Instant) -> Result<Proxy> {
        let mut answers: FuturesUnordered<_> = masters
            .iter()
            .map(|master| async move {
                let request = ConnectToMasterRequestPb {};
                // One that hangs must not hold up the next round: another may be elected meanwhile.
                let until = deadline.min(self.env.now().mono.after(self.rpc_timeout / 4));
                let asked = self.attempt(master, "ConnectToMaster", &request, until, &[]).await;
                (master, asked)
            })
            .collect();
        let mut last = Error::not_ready("no master leads");
        while let Some((master, answer)) = answers.next().await {
            match answer {
                Ok(answer) => {
                    self.learn(&answer);
                    if answer.role() == Role::Leader {
                        lock(&self.known).leader = Some(master.clone());
                        return Ok(master.clone());
                    }
                }
                Err(Failure::Final(error) | Failure::Retry(error, _)) => last = error,
            }
        }
        Err(last)
    }

    /// Remembers the masters that one of them names.
    fn learn(&self, answer: &ConnectToMasterResponsePb) {
        let mut known = lock(&self.known);
        for address in &answer.master_addrs {
            let target = format!("{}:{}", address.host, address.port);
            if !known.masters.iter().any(|master| master.target().to_string() == target) {
                known.masters.push(Proxy::new(self.env.clone(), target.as_str(), &self.user));
            }
        }
    }
}

fn with_port(address: &str) -> String {
    if address.contains(':') { address.to_string() } else { format!("{address}:{MASTER_PORT}") }
}

fn rpc_failure(master: &Proxy, method: &str, error: RpcError) -> Failure {
    let elsewhere = !error.is_busy();
    let retry = error.is_busy() || error.is_unreachable() || matches!(error, RpcError::TimedOut { .. });
    let error = error_from_rpc(&error).context(format!("{method} at master {}", master.target()));
    if retry { Failure::Retry(error, elsewhere) } else { Failure::Final(error) }
}

fn master_failure(error: &MasterErrorPb) -> Failure {
    let status = error_from_status(&error.status);
    let elsewhere = matches!(error.code(), Code::NotTheLeader | Code::CatalogManagerNotInitialized);
    match status.kind {
        _ if elsewhere => Failure::Retry(status, true),
        ErrorKind::NotReady => Failure::Retry(status, false),
        _ => Failure::Final(status),
    }
}

/// A call's failure as an error for the user.
pub(super) fn error_from_rpc(error: &RpcError) -> Error {
    let kind = match error {
        RpcError::Remote { .. } if error.is_busy() => ErrorKind::Throttled,
        RpcError::Remote { unsupported_features, .. } if !unsupported_features.is_empty() => {
            ErrorKind::Unsupported
        }
        RpcError::Remote { .. } | RpcError::Malformed { .. } => ErrorKind::Invalid,
        RpcError::Network { .. } => ErrorKind::Io,
        RpcError::TimedOut { .. } => ErrorKind::NotReady,
    };
    Error { kind, message: error.to_string(), errno: None }
}
