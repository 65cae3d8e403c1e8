//! Records of the system tablet: one row per table, per tablet, and per tablet server in a special state.
//!
//! ```text
//! entry_type INT8   entry_id STRING            metadata BINARY (sealed, see [`crate::codec`])
//! 1 table           32 hex digits of its id    TableRecord
//! 2 tablet          32 hex digits of its id    TabletRecord
//! 3 server state    32 hex digits of its id    ServerRecord
//! 4 cluster         the word "cluster"         ClusterRecord
//! 5 CA              the word "authority"       AuthorityRecord
//! 6 token key       19 digits of its number    TokenKeyRecord
//! ```
//!
//! All other state of the catalog (addresses of servers, reports of replicas) returns with heartbeats.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::codec;
use crate::error::{Error, Result};
use crate::format_level::{FormatLevel, StoredFormat};
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

/// Extra configuration of a table for its tablets; the tablet server's defaults replace absent values.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ExtraConfig {
    /// Seconds for which old versions of rows can be read (`kudu.table.history_max_age_sec`).
    pub history_max_age_sec: Option<i32>,
    /// Priority in maintenance, higher first (`kudu.table.maintenance_priority`).
    pub maintenance_priority: Option<i32>,
    /// True if tablets run no rowset and delta compactions (`kudu.table.disable_compaction`).
    pub disable_compaction: Option<bool>,
}

/// Lifecycle state of a table. Times are microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TableLifecycle {
    Running,
    /// Hidden, to be deleted at `purge_at` unless it is recalled.
    SoftDeleted {
        at: u64,
        purge_at: u64,
    },
    /// Deleted; kept so that its replicas can be deleted too, and its id is not reused.
    Deleted {
        at: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRecord {
    pub name: String,
    pub owner: String,
    pub comment: String,
    pub state: TableLifecycle,
    pub schema: Arc<Schema>,
    /// Number of alterations that concern tablets, from 0.
    pub version: u32,
    /// During an alteration: the last schema that every tablet has.
    pub applied_schema: Option<Arc<Schema>>,
    /// The id of the next added column.
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
    /// The last schema that every tablet has: it is served to clients, and new replicas begin with it.
    pub fn served_schema(&self) -> &Arc<Schema> {
        self.applied_schema.as_ref().unwrap_or(&self.schema)
    }
}

/// Lifecycle state of a tablet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TabletLifecycle {
    /// No servers chosen yet.
    Preparing,
    /// Servers chosen and requested to create replicas; no leader reported yet.
    Creating,
    Running,
    /// Another tablet replaced it.
    Replaced,
    Deleted,
}

impl TabletLifecycle {
    /// Returns true if the tablet holds, or is about to hold, a part of its table.
    pub fn is_live(self) -> bool {
        matches!(self, TabletLifecycle::Preparing | TabletLifecycle::Creating | TabletLifecycle::Running)
    }
}

/// One member of a tablet's Raft configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerRecord {
    pub server: PeerId,
    pub voter: bool,
    pub address: HostPort,
    pub promote: bool,
    pub replace: bool,
}

/// Raft configuration and leader of a tablet, as requested by the catalog or last reported by a replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsensusState {
    pub term: i64,
    pub leader: Option<PeerId>,
    /// Index of the operation that committed this configuration; -1 for the initial one.
    pub config_index: i64,
    pub peers: Vec<PeerRecord>,
}

impl ConsensusState {
    /// Returns true if the configuration names this server.
    pub fn has(&self, server: PeerId) -> bool {
        self.peers.iter().any(|peer| peer.server == server)
    }
}

impl Default for ConsensusState {
    fn default() -> ConsensusState {
        ConsensusState { term: 0, leader: None, config_index: -1, peers: Vec::new() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TabletRecord {
    pub table: TableId,
    pub partition: Partition,
    pub dimension_label: Option<String>,
    pub state: TabletLifecycle,
    /// Reason for the state.
    pub message: String,
    /// Time in microseconds since 1970 at which the state was entered.
    pub since: u64,
    pub consensus: ConsensusState,
    /// For a deleted tablet: servers that have not confirmed the removal of their replica.
    pub doomed: Vec<PeerId>,
}

/// A tablet server in a state that outlives masters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerRecord {
    /// True if the server gets no new replicas.
    pub maintenance: bool,
    /// Microseconds since 1970.
    pub since: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRecord {
    pub id: Uuid,
    /// Microseconds since 1970.
    pub created: u64,
    /// Level of the formats that the cluster's servers write. Stored from version 2 on.
    pub level: FormatLevel,
}

/// The CA: its private key and its certificate.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorityRecord {
    /// Secret number of the private key.
    pub secret: Vec<u8>,
    /// The self-signed certificate (X.509, DER).
    pub certificate: Vec<u8>,
}

impl fmt::Debug for AuthorityRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.certificate.len();
        write!(f, "AuthorityRecord {{ secret: <redacted>, certificate: {bytes} bytes }}")
    }
}

/// A token signing key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenKeyRecord {
    /// Secret seed of the key.
    pub seed: [u8; 32],
    /// Seconds since 1970, by the clock of the master that created the key.
    pub created_s: i64,
    /// The last second at which the key's signatures are accepted.
    pub expires_s: i64,
}

impl fmt::Debug for TokenKeyRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TokenKeyRecord { created_s, expires_s, .. } = self;
        write!(f, "TokenKeyRecord {{ seed: <redacted>, created_s: {created_s}, expires_s: {expires_s} }}")
    }
}

/// All secrets of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClusterSecrets {
    pub authority: Option<AuthorityRecord>,
    /// Token signing keys by number.
    pub token_keys: BTreeMap<i64, TokenKeyRecord>,
}

impl ClusterSecrets {
    /// Number of the next token key.
    pub fn next_token_key(&self) -> i64 {
        self.token_keys.last_key_value().map_or(0, |(number, _)| number + 1)
    }
}

/// Key of a row of the system tablet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SystemRowKey {
    Table(TableId),
    Tablet(TabletId),
    Server(PeerId),
    Cluster,
    Authority,
    TokenKey(i64),
}

const CLUSTER: &str = "cluster";
const AUTHORITY: &str = "authority";

/// The lowest `entry_type` of the cluster's secrets; every row of a higher type is one too.
pub const SECRETS_ENTRY_TYPE: i8 = 5;

impl SystemRowKey {
    /// The key columns `entry_type` and `entry_id`.
    pub fn columns(self) -> (i8, String) {
        match self {
            SystemRowKey::Table(id) => (1, id.to_string()),
            SystemRowKey::Tablet(id) => (2, id.to_string()),
            SystemRowKey::Server(id) => (3, id.to_string()),
            SystemRowKey::Cluster => (4, CLUSTER.to_string()),
            SystemRowKey::Authority => (SECRETS_ENTRY_TYPE, AUTHORITY.to_string()),
            SystemRowKey::TokenKey(number) => (6, format!("{number:019}")),
        }
    }

    /// Parses the key columns; `Corrupt` for a key that this build does not write.
    pub fn from_columns(entry_type: i8, entry_id: &str) -> Result<SystemRowKey> {
        let bad =
            || Error::corrupt(format!("system tablet has a row of type {entry_type} and id {entry_id:?}"));
        let id = || Uuid::from_str(entry_id).map_err(|_| bad());
        match entry_type {
            1 => Ok(SystemRowKey::Table(id()?)),
            2 => Ok(SystemRowKey::Tablet(id()?)),
            3 => Ok(SystemRowKey::Server(id()?)),
            4 if entry_id == CLUSTER => Ok(SystemRowKey::Cluster),
            SECRETS_ENTRY_TYPE if entry_id == AUTHORITY => Ok(SystemRowKey::Authority),
            6 => {
                let number = entry_id.parse().ok().filter(|number| *number >= 0);
                let key = SystemRowKey::TokenKey(number.ok_or_else(bad)?);
                // Another spelling of the number would be another row for the same key.
                if key.columns().1 == entry_id { Ok(key) } else { Err(bad()) }
            }
            _ => Err(bad()),
        }
    }
}

/// A row of the system tablet to be put (`Some`) or deleted (`None`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemRowWrite {
    pub key: SystemRowKey,
    pub metadata: Option<Vec<u8>>,
}

/// A record stored in a row's metadata.
pub trait SystemRecord: Serialize + DeserializeOwned {
    const MAGIC: [u8; 4];
    /// The newest version.
    const VERSION: u16 = StoredFormat::CatalogRecord.only_version();

    fn seal(&self) -> Vec<u8> {
        let payload = postcard::to_stdvec(self).expect("records hold only what postcard can write");
        codec::seal(Self::MAGIC, Self::VERSION, &payload)
    }

    /// Decodes a record; `Corrupt` if the bytes are damaged, `Unsupported` if a newer build wrote them.
    fn unseal(bytes: &[u8]) -> Result<Self> {
        let (_, payload) = codec::unseal(Self::MAGIC, Self::VERSION, bytes)?;
        postcard::from_bytes(payload).map_err(|error| Error::corrupt(format!("catalog record: {error}")))
    }
}

impl SystemRecord for TableRecord {
    const MAGIC: [u8; 4] = *b"NYct";
}

impl SystemRecord for TabletRecord {
    const MAGIC: [u8; 4] = *b"NYcp";
}

impl SystemRecord for ServerRecord {
    const MAGIC: [u8; 4] = *b"NYcs";
}

impl SystemRecord for AuthorityRecord {
    const MAGIC: [u8; 4] = *b"NYca";
}

impl SystemRecord for TokenKeyRecord {
    const MAGIC: [u8; 4] = *b"NYck";
}

impl SystemRecord for ClusterRecord {
    const MAGIC: [u8; 4] = *b"NYcc";
    const VERSION: u16 = StoredFormat::ClusterRecord.newest_version();

    /// Encodes the record as its own level has it.
    fn seal(&self) -> Vec<u8> {
        let version = StoredFormat::ClusterRecord.version_at(self.level);
        let payload = match version {
            1 => postcard::to_stdvec(&(self.id, self.created)),
            _ => postcard::to_stdvec(self),
        };
        codec::seal(Self::MAGIC, version, &payload.expect("ids and numbers can be encoded"))
    }

    fn unseal(bytes: &[u8]) -> Result<ClusterRecord> {
        let (version, payload) = codec::unseal(Self::MAGIC, Self::VERSION, bytes)?;
        let decoded = match version {
            1 => postcard::from_bytes(payload).map(|(id, created)| ClusterRecord {
                id,
                created,
                level: FormatLevel::FIRST,
            }),
            _ => postcard::from_bytes(payload),
        };
        let record: ClusterRecord =
            decoded.map_err(|error| Error::corrupt(format!("catalog record: {error}")))?;
        StoredFormat::ClusterRecord.check_version(version, record.level)?;
        Ok(record)
    }
}
