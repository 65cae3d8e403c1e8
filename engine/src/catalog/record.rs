//! What the system tablet keeps: one row per table, per tablet, and per tablet server in a special state.
//!
//! ```text
//! entry_type INT8   entry_id STRING            metadata BINARY (sealed, see [`crate::codec`])
//! 1 table           32 hex digits of its id    TableRecord
//! 2 tablet          32 hex digits of its id    TabletRecord
//! 3 server state    32 hex digits of its id    ServerRecord
//! 4 cluster         the word "cluster"         ClusterRecord
//! ```
//!
//! Everything else the catalog knows (who lives where, what each replica reported) comes back with
//! heartbeats.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::codec;
use crate::error::{Error, Result};
use crate::ids::{PeerId, TableId, TabletId, Uuid};
use crate::schema::Schema;
use crate::schema::partition::{Partition, PartitionSchema};

/// A server's name and port as it registered them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HostPort {
    pub host: String,
    pub port: u16,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Settings of a table that its tablets follow; absent ones are the tablet server's.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExtraConfig {
    /// Seconds for which old versions of rows can be read (`kudu.table.history_max_age_sec`).
    pub history_max_age_sec: Option<i32>,
    /// Higher goes first in maintenance (`kudu.table.maintenance_priority`).
    pub maintenance_priority: Option<i32>,
    /// `kudu.table.disable_compaction`.
    pub disable_compaction: Option<bool>,
}

/// Where a table is in its life. Times are microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TableState {
    Running,
    /// Hidden, to be deleted at `purge_at` unless it is recalled.
    SoftDeleted {
        at: u64,
        purge_at: u64,
    },
    /// Gone; remembered so that its replicas can be told, and its id not taken for a new one.
    Deleted {
        at: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRecord {
    pub name: String,
    pub owner: String,
    pub comment: String,
    pub state: TableState,
    pub schema: Arc<Schema>,
    /// Counts the alterations that tablets have to follow, from 0.
    pub version: u32,
    /// While an alteration spreads: the last schema that every tablet has.
    pub applied_schema: Option<Arc<Schema>>,
    /// The id that the next added column gets.
    pub next_column_id: u32,
    pub partition_schema: Arc<PartitionSchema>,
    pub replicas: i32,
    pub extra: ExtraConfig,
    pub disk_size_limit: Option<i64>,
    pub row_count_limit: Option<i64>,
    /// Microseconds since 1970.
    pub created: u64,
    pub altered: u64,
}

impl TableRecord {
    /// The last schema that every tablet has: what clients are told of, and what new replicas begin with.
    pub fn served_schema(&self) -> &Arc<Schema> {
        self.applied_schema.as_ref().unwrap_or(&self.schema)
    }
}

/// Where a tablet is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TabletState {
    /// No servers chosen yet.
    Preparing,
    /// Servers chosen and told; no leader reported yet.
    Creating,
    Running,
    /// Another tablet took its place.
    Replaced,
    Deleted,
}

impl TabletState {
    /// Whether the tablet holds, or is about to hold, a part of its table.
    pub fn is_live(self) -> bool {
        matches!(self, TabletState::Preparing | TabletState::Creating | TabletState::Running)
    }
}

/// One member of a tablet's Raft configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    pub server: PeerId,
    pub voter: bool,
    pub address: HostPort,
    pub promote: bool,
    pub replace: bool,
}

/// Who replicates a tablet, as the catalog ordered or a replica last reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consensus {
    pub term: i64,
    pub leader: Option<PeerId>,
    /// Index of the operation that committed this configuration; -1 before the first.
    pub config_index: i64,
    pub peers: Vec<Peer>,
}

impl Consensus {
    /// Whether the configuration names this server.
    pub fn has(&self, server: PeerId) -> bool {
        self.peers.iter().any(|peer| peer.server == server)
    }
}

impl Default for Consensus {
    fn default() -> Consensus {
        Consensus { term: 0, leader: None, config_index: -1, peers: Vec::new() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TabletRecord {
    pub table: TableId,
    pub partition: Partition,
    pub dimension_label: Option<String>,
    pub state: TabletState,
    /// Why it is in this state.
    pub message: String,
    /// Microseconds since 1970 when the state was entered.
    pub since: u64,
    pub consensus: Consensus,
    /// Once the tablet is gone: servers that have not confirmed that their replica is.
    pub doomed: Vec<PeerId>,
}

/// A tablet server in a state that outlives masters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerRecord {
    /// The server gets no new replicas.
    pub maintenance: bool,
    /// Microseconds since 1970.
    pub since: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRecord {
    pub id: Uuid,
    /// Microseconds since 1970.
    pub created: u64,
}

/// Names a row of the system tablet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowKey {
    Table(TableId),
    Tablet(TabletId),
    Server(PeerId),
    Cluster,
}

const CLUSTER: &str = "cluster";

impl RowKey {
    /// The key columns `entry_type` and `entry_id`.
    pub fn columns(self) -> (i8, String) {
        match self {
            RowKey::Table(id) => (1, id.to_string()),
            RowKey::Tablet(id) => (2, id.to_string()),
            RowKey::Server(id) => (3, id.to_string()),
            RowKey::Cluster => (4, CLUSTER.to_string()),
        }
    }

    /// `Corrupt` for a key that this build does not write.
    pub fn from_columns(entry_type: i8, entry_id: &str) -> Result<RowKey> {
        let bad =
            || Error::corrupt(format!("system tablet has a row of type {entry_type} and id {entry_id:?}"));
        let id = || Uuid::from_str(entry_id).map_err(|_| bad());
        match entry_type {
            1 => Ok(RowKey::Table(id()?)),
            2 => Ok(RowKey::Tablet(id()?)),
            3 => Ok(RowKey::Server(id()?)),
            4 if entry_id == CLUSTER => Ok(RowKey::Cluster),
            _ => Err(bad()),
        }
    }
}

/// A row of the system tablet to be put (`Some`) or deleted (`None`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowWrite {
    pub key: RowKey,
    pub metadata: Option<Vec<u8>>,
}

/// A record that a row's metadata can hold.
pub trait Record: Serialize + DeserializeOwned {
    const MAGIC: [u8; 4];
    const VERSION: u16 = 1;

    fn seal(&self) -> Vec<u8> {
        let payload = postcard::to_stdvec(self).expect("records hold only what postcard can write");
        codec::seal(Self::MAGIC, Self::VERSION, &payload)
    }

    /// `Corrupt` if the bytes are damaged, `Unsupported` if a newer build wrote them.
    fn unseal(bytes: &[u8]) -> Result<Self> {
        let (_, payload) = codec::unseal(Self::MAGIC, Self::VERSION, bytes)?;
        postcard::from_bytes(payload).map_err(|error| Error::corrupt(format!("catalog record: {error}")))
    }
}

impl Record for TableRecord {
    const MAGIC: [u8; 4] = *b"NYct";
}

impl Record for TabletRecord {
    const MAGIC: [u8; 4] = *b"NYcp";
}

impl Record for ServerRecord {
    const MAGIC: [u8; 4] = *b"NYcs";
}

impl Record for ClusterRecord {
    const MAGIC: [u8; 4] = *b"NYcc";
}
