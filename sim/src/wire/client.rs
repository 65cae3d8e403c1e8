//! A plain client: finds the leading master, looks tablets up for every operation, and keeps no cache.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::sync::Mutex;
use engine::time::Instant;
use nyala_common::env::Env;
use nyala_common::rpc::RequestIdPb;
use nyala_common::rpc::client::{CallOptions, Proxy, RpcError, RpcResponse};
use nyala_common::security::RpcCaller;
use nyala_proto::kudu::master::{
    ConnectToMasterRequestPb, ConnectToMasterResponsePb, GetTableLocationsRequestPb,
    GetTableLocationsResponsePb, MasterErrorPb, TableIdentifierPb, TabletLocationsPb, TsInfoPb,
};
use nyala_proto::kudu::{AppStatusPb, PartitionPb};
use prost::Message;

use super::connections::{ConnectionLog, MasterAnswer};
use super::keys::Bounds;
use crate::history::HybridStamp;
use crate::security::caller;

pub const MASTER: &str = "kudu.master.MasterService";
pub const TSERVER: &str = "kudu.tserver.TabletServerService";
pub const ADMIN: &str = "kudu.tserver.TabletServerAdminService";
pub const CONSENSUS: &str = "kudu.consensus.ConsensusService";
pub const COPY: &str = "kudu.tserver.TabletCopyService";
pub const GENERIC: &str = "kudu.server.GenericService";

/// Role of a leader.
const LEADER: i32 = 1;
/// Feature of masters that ConnectToMaster needs.
const CONNECT_TO_MASTER: u32 = 3;
/// Pause before a call is tried again.
pub const PAUSE: Duration = Duration::from_millis(50);

/// Codes of masters that say: ask the leader, or later.
const NOT_NOW: [i32; 3] = [6, 7, 9];

/// Failure of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallFailure {
    /// The server refused it: the service's code, the status code and the message. It had no effect.
    Refused { code: i32, status: i32, message: String },
    /// It was not executed; it may succeed later or elsewhere.
    NotNow(String),
    /// It may have been executed.
    Unknown(String),
}

impl std::fmt::Display for CallFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CallFailure::Refused { code, status, message } => {
                write!(f, "refused ({code}, {status}): {message}")
            }
            CallFailure::NotNow(why) => write!(f, "not executed: {why}"),
            CallFailure::Unknown(why) => write!(f, "unknown: {why}"),
        }
    }
}

/// A tablet and the addresses of its replicas, the leader's first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TabletPlace {
    pub id: String,
    pub bounds: Bounds,
    pub replicas: Vec<ReplicaPlace>,
}

/// A replica of a tablet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaPlace {
    pub server_id: Bytes,
    pub address: String,
    pub leads: bool,
}

/// A reply of masters, which may be an error.
pub trait MasterReply: Message + Default {
    fn error(&self) -> Option<&MasterErrorPb>;
}

macro_rules! master_replies {
    ($($reply:ident),* $(,)?) => {$(
        impl MasterReply for nyala_proto::kudu::master::$reply {
            fn error(&self) -> Option<&MasterErrorPb> {
                self.error.as_ref()
            }
        }
    )*};
}
master_replies!(
    AlterTableResponsePb,
    ChangeTServerStateResponsePb,
    CreateTableResponsePb,
    DeleteTableResponsePb,
    GetTableLocationsResponsePb,
    GetTableSchemaResponsePb,
    GetTableStatisticsResponsePb,
    GetTabletLocationsResponsePb,
    IsAlterTableDoneResponsePb,
    IsCreateTableDoneResponsePb,
    ListMastersResponsePb,
    ListTablesResponsePb,
    ListTabletServersResponsePb,
    RecallDeletedTableResponsePb,
);

/// An error that a service told: the method, the service's code and the status code.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ToldError {
    pub method: String,
    pub code: i32,
    pub status: i32,
}

/// Beginning of the method of an error that is of the RPC layer. Its code is that layer's.
pub const RPC_ERROR: &str = "rpc of ";

/// The errors that services told plain clients: their number and the first message of each. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ToldErrors {
    errors: Arc<Mutex<BTreeMap<ToldError, (u64, String)>>>,
}

impl ToldErrors {
    pub fn add(&self, method: &str, code: i32, status: &AppStatusPb) {
        let error = ToldError { method: method.to_string(), code, status: status.code };
        let mut errors = self.errors.lock();
        errors.entry(error).or_insert_with(|| (0, text_of(status))).0 += 1;
    }

    /// Adds an error of the RPC layer: the call ended without a message of its method.
    fn add_rpc(&self, method: &str, code: i32, message: &str) {
        let error = ToldError { method: format!("{RPC_ERROR}{method}"), code, status: 0 };
        let mut errors = self.errors.lock();
        errors.entry(error).or_insert_with(|| (0, message.to_string())).0 += 1;
    }

    pub fn all(&self) -> BTreeMap<ToldError, (u64, String)> {
        self.errors.lock().clone()
    }
}

/// Attempt number of a request that is repeated although it has a reply: above those of its own retries.
const REPEATED_ATTEMPT: i64 = 1_000;

/// A client of the cluster.
pub struct PlainClient {
    pub env: Env,
    caller: RpcCaller,
    masters: Vec<String>,
    leader: Option<String>,
    proxies: BTreeMap<String, Proxy>,
    id: String,
    sequence: i64,
    /// A request that counts as incomplete although it may have a reply.
    held: Option<i64>,
    attempt: Duration,
    /// The newest timestamp that it has seen.
    pub seen: HybridStamp,
    pub errors: ToldErrors,
    pub connections: ConnectionLog,
}

impl PlainClient {
    /// `number`: its own among the plan's clients. `attempt`: timeout of one call.
    pub fn new(env: Env, masters: Vec<String>, number: u32, attempt: Duration) -> PlainClient {
        let (leader, proxies) = (None, BTreeMap::new());
        let id = format!("{:032x}", 0x51b0_0000_u64 + u64::from(number));
        let (errors, connections) = (ToldErrors::default(), ConnectionLog::default());
        let caller = caller(&env, "model");
        PlainClient {
            env,
            caller,
            masters,
            leader,
            proxies,
            id,
            sequence: 0,
            held: None,
            attempt,
            seen: 0,
            errors,
            connections,
        }
    }

    /// Changes the timeout of one call.
    pub fn set_attempt(&mut self, attempt: Duration) {
        self.attempt = attempt;
    }

    pub fn observe(&mut self, stamp: HybridStamp) {
        self.seen = self.seen.max(stamp);
    }

    /// Returns the request id of a new write.
    pub fn next_request(&mut self) -> RequestIdPb {
        self.sequence += 1;
        RequestIdPb {
            client_id: self.id.clone(),
            seq_no: self.sequence,
            first_incomplete_seq_no: self.held.unwrap_or(self.sequence),
            attempt_no: 0,
        }
    }

    /// Lets the next request count as incomplete, as if its reply had been lost, until another one or none is held.
    pub fn hold_next_request(&mut self) {
        self.held = Some(self.sequence + 1);
    }

    /// Lets the last request count as incomplete, and all before it as complete.
    pub fn hold_last_request(&mut self) {
        self.held = Some(self.sequence);
    }

    /// Returns the id of the held request, to send it once more; from now on it counts as complete.
    pub fn release(&mut self) -> Option<RequestIdPb> {
        let held = self.held.take()?;
        let client_id = self.id.clone();
        Some(RequestIdPb {
            client_id,
            seq_no: held,
            first_incomplete_seq_no: held,
            attempt_no: REPEATED_ATTEMPT,
        })
    }

    pub fn deadline(&self, within: Duration) -> Instant {
        self.env.now().mono.after(within)
    }

    pub fn is_over(&self, deadline: Instant) -> bool {
        self.env.now().mono >= deadline
    }

    /// Makes one call to a server.
    pub async fn call<Q: Message, R: Message + Default>(
        &mut self,
        address: &str,
        service: &str,
        method: &str,
        request: &Q,
        options: CallOptions,
    ) -> Result<RpcResponse<R>, CallFailure> {
        let env = self.env.clone();
        let caller = &self.caller;
        let proxy = || Proxy::new(env, address, caller);
        let proxy = self.proxies.entry(address.to_string()).or_insert_with(proxy);
        let deadline = self.env.now().mono.after(self.attempt);
        let called = proxy.call(service, method, request, deadline, options).await;
        if let Err(error @ RpcError::Remote { code, message, .. }) = &called
            && !error.is_busy()
        {
            self.errors.add_rpc(method, *code as i32, message);
        }
        called.map_err(|error| match error {
            RpcError::Remote { .. } if error.is_busy() => CallFailure::NotNow(error.to_string()),
            RpcError::Network { sent: false, .. } | RpcError::TimedOut { sent: false, .. } => {
                CallFailure::NotNow(error.to_string())
            }
            _ => CallFailure::Unknown(error.to_string()),
        })
    }

    /// Returns the address of the leading master.
    async fn leading_master(&mut self) -> Result<String, CallFailure> {
        if let Some(leader) = &self.leader {
            return Ok(leader.clone());
        }
        for address in self.masters.clone() {
            if self.ask_role(&address).await.is_ok_and(|answer| answer.leads) {
                self.leader = Some(address.clone());
                return Ok(address);
            }
        }
        Err(CallFailure::NotNow("no master leads".to_string()))
    }

    /// Asks a master for its role. A leader that tells no cluster is asked once more.
    pub async fn ask_role(&mut self, address: &str) -> Result<MasterAnswer, CallFailure> {
        let answer = self.connect_to(address).await?;
        if answer.leads {
            let again = match answer.cluster {
                Some(_) => None,
                None => self.connect_to(address).await.ok(),
            };
            let is_secure = self.env.net.kerberos().is_some();
            self.connections.add(address, is_secure, &answer, again);
        }
        Ok(answer)
    }

    async fn connect_to(&mut self, address: &str) -> Result<MasterAnswer, CallFailure> {
        let asked = self.env.now().mono.0;
        let options = CallOptions { features: vec![CONNECT_TO_MASTER], ..CallOptions::default() };
        let request = ConnectToMasterRequestPb {};
        let reply: RpcResponse<ConnectToMasterResponsePb> =
            self.call(address, MASTER, "ConnectToMaster", &request, options).await?;
        let reply = reply.message;
        if let Some(error) = reply.error {
            return Err(CallFailure::NotNow(text_of(&error.status)));
        }
        Ok(MasterAnswer {
            asked,
            told: self.env.now().mono.0,
            leads: reply.role == Some(LEADER),
            cluster: reply.cluster_id,
            has_token: reply.authn_token.is_some(),
            has_authority: !reply.ca_cert_der.is_empty(),
        })
    }

    /// Makes one call to the leading master.
    pub async fn ask_master<Q: Message, R: MasterReply>(
        &mut self,
        method: &str,
        request: &Q,
        features: Vec<u32>,
    ) -> Result<R, CallFailure> {
        let leader = self.leading_master().await?;
        let options = CallOptions { features, ..CallOptions::default() };
        let reply: RpcResponse<R> = match self.call(&leader, MASTER, method, request, options).await {
            Ok(reply) => reply,
            Err(failure) => {
                self.leader = None;
                return Err(failure);
            }
        };
        let Some(of) = reply.message.error() else { return Ok(reply.message) };
        self.errors.add(method, of.code, &of.status);
        if NOT_NOW.contains(&of.code) {
            self.leader = None;
            return Err(CallFailure::NotNow(text_of(&of.status)));
        }
        Err(CallFailure::Refused { code: of.code, status: of.status.code, message: text_of(&of.status) })
    }

    /// As [`PlainClient::ask_master`], until there is a reply or a refusal: for requests without effects.
    pub async fn ask_until<Q: Message, R: MasterReply>(
        &mut self,
        method: &str,
        request: &Q,
        deadline: Instant,
    ) -> Result<R, CallFailure> {
        loop {
            match self.ask_master(method, request, Vec::new()).await {
                Err(CallFailure::NotNow(_) | CallFailure::Unknown(_)) if !self.is_over(deadline) => {
                    self.env.sleep(PAUSE).await;
                }
                other => return other,
            }
        }
    }

    /// Returns all tablets of a table, in order.
    pub async fn locate(&mut self, table: &str, deadline: Instant) -> Result<Vec<TabletPlace>, CallFailure> {
        let request = GetTableLocationsRequestPb {
            table: table_of(table),
            intern_ts_infos_in_response: Some(true),
            max_returned_locations: Some(1_000),
            ..Default::default()
        };
        let reply: GetTableLocationsResponsePb =
            self.ask_until("GetTableLocations", &request, deadline).await?;
        let place = |tablet: &TabletLocationsPb| place_of(tablet, &reply.ts_infos);
        Ok(reply.tablet_locations.iter().map(place).collect())
    }
}

/// Returns the identifier of a table.
pub fn table_of(id: &str) -> TableIdentifierPb {
    TableIdentifierPb { table_id: Some(Bytes::copy_from_slice(id.as_bytes())), table_name: None }
}

/// Returns the text of a status.
pub fn text_of(status: &AppStatusPb) -> String {
    status.message.clone().unwrap_or_default()
}

fn place_of(tablet: &TabletLocationsPb, servers: &[TsInfoPb]) -> TabletPlace {
    let mut replicas: Vec<ReplicaPlace> = Vec::new();
    for replica in &tablet.interned_replicas {
        let Some(server) = servers.get(replica.ts_info_idx as usize) else { continue };
        let Some(address) = server.rpc_addresses.first() else { continue };
        replicas.push(ReplicaPlace {
            server_id: server.permanent_uuid.clone(),
            address: format!("{}:{}", address.host, address.port),
            leads: replica.role == LEADER,
        });
    }
    replicas.sort_by_key(|replica| !replica.leads);
    TabletPlace {
        id: String::from_utf8_lossy(&tablet.tablet_id).into_owned(),
        bounds: bounds_of(tablet.partition.as_ref()),
        replicas,
    }
}

/// Returns the bounds of a partition.
pub fn bounds_of(partition: Option<&PartitionPb>) -> Bounds {
    let bytes = |bytes: &Option<Bytes>| bytes.as_ref().map(|bytes| bytes.to_vec()).unwrap_or_default();
    partition.map_or_else(Bounds::default, |partition| {
        (bytes(&partition.partition_key_start), bytes(&partition.partition_key_end))
    })
}
