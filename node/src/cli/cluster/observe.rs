//! What a check knows: the masters' view of the cluster, and the answer of every server.

use std::collections::BTreeMap;
use std::fmt;

use engine::error::{ErrorKind, Result};
use engine::ids::{OpId, PeerId, TabletId};
use futures_util::future::join_all;
use nyala_client::cluster_admin::{LocalReplica, MasterInfo, QuiescingStatus, RaftState, ServerStatus};
use nyala_client::replica_admin::{ServerInfo, TabletReplicas};
use nyala_client::{Client, TableInfo};

/// A tablet server and its answers.
pub(super) struct ObservedServer {
    pub info: ServerInfo,
    /// Identity, or the reason that there is no answer.
    pub status: Result<ServerStatus, String>,
    pub quiescing: Option<QuiescingStatus>,
    pub replicas: BTreeMap<TabletId, LocalReplica>,
    pub raft: BTreeMap<TabletId, RaftState>,
}

impl ObservedServer {
    pub(super) fn address(&self) -> String {
        address(&self.info)
    }

    /// Returns its id and its address, if known.
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.info.id, self.address()).trim_end().to_string()
    }

    /// Returns the number of replicas with data.
    pub(super) fn count_replicas(&self) -> usize {
        self.replicas.values().filter(|replica| !replica.tombstoned).count()
    }
}

pub(super) struct ObservedTable {
    pub name: String,
    /// Replicas that each tablet should have.
    pub wanted: usize,
    pub tablets: Vec<TabletReplicas>,
}

/// Voters of a tablet, as the masters know them, and those that run.
pub(super) struct VoterState {
    /// In the order of their ids, like `running`.
    pub all: Vec<PeerId>,
    pub running: Vec<PeerId>,
}

impl VoterState {
    fn majority(&self) -> usize {
        self.all.len() / 2 + 1
    }

    /// Returns true if a majority runs, which elects a leader by itself.
    pub(super) fn has_majority(&self) -> bool {
        self.running.len() >= self.majority()
    }
}

impl fmt::Display for VoterState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (running, all, majority) = (self.running.len(), self.all.len(), self.majority());
        write!(f, "{running} of {all} voters run (majority {majority})")
    }
}

#[derive(Default)]
pub(super) struct Observation {
    /// Masters with their identity, or the reason that there is no answer.
    pub masters: Vec<(MasterInfo, Result<ServerStatus, String>)>,
    /// Addresses on the command line at which none of these masters is, with the identity that replies there.
    pub unlisted_masters: Vec<(String, Result<ServerStatus, String>)>,
    pub servers: Vec<ObservedServer>,
    pub tables: Vec<ObservedTable>,
    /// Dropped tables that are kept for recall.
    pub kept: Vec<ObservedTable>,
    /// Last operations of the running voters of tablets without a majority.
    pub last_ops: BTreeMap<(TabletId, PeerId), OpId>,
}

/// Reason that a server in the masters' list has no address.
pub(super) const NOT_REGISTERED: &str = "it has not registered since the masters started";

/// Returns the address of a server; empty if it has not registered.
pub(super) fn address(server: &ServerInfo) -> String {
    if server.is_registered() { format!("{}:{}", server.host, server.port) } else { String::new() }
}

/// Returns the server's identity. One that has not registered cannot be asked.
pub(super) async fn status(client: &Client, server: &ServerInfo) -> Result<ServerStatus, String> {
    if !server.is_registered() {
        return Err(NOT_REGISTERED.to_string());
    }
    client.server_status(&address(server)).await.map_err(|error| error.message)
}

/// Asks the masters and all servers; a server that does not reply is part of the answer.
pub(super) async fn observe(client: &Client) -> Result<Observation> {
    let masters = client.masters().await?;
    let replies = join_all(masters.iter().map(async |master| match &master.error {
        Some(error) => Err(error.clone()),
        None => client.server_status(&master.address).await.map_err(|error| error.message),
    }));
    let replies = replies.await;
    let unlisted = client.unlisted_masters(&masters).await.into_iter();
    let unlisted = unlisted.map(|(address, status)| (address, status.map_err(|error| error.message)));
    let mut seen = Observation {
        unlisted_masters: unlisted.collect(),
        masters: masters.into_iter().zip(replies).collect(),
        servers: join_all(client.servers().await?.into_iter().map(|info| observe_server(client, info))).await,
        tables: observe_tables(client, client.list_tables(None).await?).await?,
        kept: observe_tables(client, client.deleted_tables().await?).await?,
        last_ops: BTreeMap::new(),
    };
    seen.last_ops = last_ops(client, &seen).await;
    Ok(seen)
}

/// Asks the running voters of tablets without a majority for their last operations. One that does not reply is left
/// out.
async fn last_ops(client: &Client, seen: &Observation) -> BTreeMap<(TabletId, PeerId), OpId> {
    let mut asked = Vec::new();
    for tablet in seen.tables.iter().flat_map(|table| &table.tablets) {
        let voters = seen.voters(tablet);
        if !voters.has_majority() {
            asked.extend(voters.running.into_iter().map(|server| (tablet.id, server)));
        }
    }
    let replies = join_all(asked.into_iter().map(|(tablet, server)| async move {
        let address = seen.server(server)?.address();
        let last = client.last_op(tablet, server, &address).await.ok()?;
        Some(((tablet, server), last))
    }));
    replies.await.into_iter().flatten().collect()
}

pub(super) async fn observe_server(client: &Client, info: ServerInfo) -> ObservedServer {
    let address = address(&info);
    let status = status(client, &info).await;
    let mut server =
        ObservedServer { info, status, quiescing: None, replicas: BTreeMap::new(), raft: BTreeMap::new() };
    if server.status.is_ok() {
        server.quiescing = client.quiesce(&address, None).await.ok();
        let answers = async {
            let replicas = client.local_replicas(&address).await?;
            server.replicas = replicas.into_iter().map(|replica| (replica.tablet, replica)).collect();
            let raft = client.raft_states(server.info.id, &address).await?;
            server.raft = raft.into_iter().map(|state| (state.tablet, state)).collect();
            Ok::<(), engine::error::Error>(())
        };
        if let Err(error) = answers.await {
            server.status = Err(error.message);
        }
    }
    server
}

async fn observe_tables(client: &Client, listed: Vec<TableInfo>) -> Result<Vec<ObservedTable>> {
    let mut tables = Vec::new();
    for table in listed {
        let wanted = table.replicas.unwrap_or_default().max(0) as usize;
        let tablets = match client.replicas(&table.name).await {
            // A table that was removed since it was listed has no replicas.
            Err(error) if error.kind == ErrorKind::NotFound => continue,
            found => found?,
        };
        tables.push(ObservedTable { name: table.name, wanted, tablets });
    }
    Ok(tables)
}

impl Observation {
    pub(super) fn server(&self, id: PeerId) -> Option<&ObservedServer> {
        self.servers.iter().find(|server| server.info.id == id)
    }

    pub(super) fn voters(&self, tablet: &TabletReplicas) -> VoterState {
        let voters = tablet.replicas.iter().filter(|replica| replica.voter);
        let mut all: Vec<PeerId> = voters.map(|replica| replica.server).collect();
        all.sort();
        let running = all.iter().copied().filter(|server| self.runs(*server, tablet.id)).collect();
        VoterState { all, running }
    }

    /// Returns true if the server replies and its replica of the tablet runs.
    pub(super) fn runs(&self, server: PeerId, tablet: TabletId) -> bool {
        let itself = |found: &&ObservedServer| found.status.as_ref().is_ok_and(|status| status.id == server);
        let replica = self.server(server).filter(itself).and_then(|found| found.replicas.get(&tablet));
        replica.is_some_and(|replica| replica.running)
    }
}
