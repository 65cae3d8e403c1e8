//! Commands of clients and tools to the catalog, decoded but not yet checked.

use std::collections::BTreeMap;

use super::record::{AuthorityRecord, TokenKeyRecord};
use crate::format_level::FormatLevel;
use crate::ids::{PeerId, TableId, TabletId};
use crate::schema::{ColumnSchema, Compression, Encoding};

/// A table by id, by name, or by both, which must then agree.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TableRef {
    pub id: Option<TableId>,
    pub name: Option<String>,
}

impl TableRef {
    pub fn by_id(id: TableId) -> TableRef {
        TableRef { id: Some(id), name: None }
    }

    pub fn by_name(name: &str) -> TableRef {
        TableRef { id: None, name: Some(name.to_string()) }
    }
}

/// A column as a client sends it. The id inside `column` is ignored: the catalog assigns ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedColumn {
    pub column: ColumnSchema,
    pub is_key: bool,
    /// True if the request carried an id, which clients may not do.
    pub has_id: bool,
}

/// A column named in a partition schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ColumnRef {
    Name(String),
    Id(u32),
}

/// One hash dimension as a client sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedHash {
    pub columns: Vec<ColumnRef>,
    pub buckets: i32,
    pub seed: u32,
}

/// Row operations that carry range bounds or split rows (`RowOperationsPB`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RangeOps {
    pub rows: Vec<u8>,
    pub indirect: Vec<u8>,
}

/// A range with custom hash dimensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestedRange {
    /// One lower bound, one upper bound.
    pub bounds: RangeOps,
    pub hash: Vec<RequestedHash>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestedPartitioning {
    pub hash: Vec<RequestedHash>,
    /// `None`: ranges over the whole primary key. Empty: no ranges.
    pub range: Option<Vec<ColumnRef>>,
    /// If not empty, these are all the table's ranges, and `splits_and_bounds` must be empty.
    pub custom: Vec<RequestedRange>,
    pub splits_and_bounds: RangeOps,
    /// True if a table without any range has no tablet at all, rather than one unbounded range.
    pub allow_empty: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CreateTable {
    pub name: String,
    pub columns: Vec<RequestedColumn>,
    pub partitioning: RequestedPartitioning,
    /// The server's default if absent.
    pub replicas: Option<i32>,
    /// The caller if absent.
    pub owner: Option<String>,
    pub comment: String,
    pub extra_configs: BTreeMap<String, String>,
    pub dimension_label: Option<String>,
}

/// Changes of one existing column; absent parts stay.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ColumnChange {
    pub name: String,
    pub new_name: Option<String>,
    /// The new write default, as cell bytes.
    pub default: Option<Vec<u8>>,
    pub remove_default: bool,
    pub encoding: Option<Encoding>,
    pub compression: Option<Compression>,
    pub block_bytes: Option<i32>,
    pub comment: Option<String>,
    pub immutable: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AlterStep {
    AddColumn(RequestedColumn),
    DropColumn(String),
    RenameColumn { from: String, to: String },
    ChangeColumn(ColumnChange),
    AddRange { bounds: RangeOps, hash: Option<Vec<RequestedHash>>, dimension_label: Option<String> },
    DropRange { bounds: RangeOps },
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AlterTable {
    pub table: TableRef,
    pub steps: Vec<AlterStep>,
    /// The columns, in the client's order, that the range bounds are encoded with; the table's columns if empty.
    pub client_columns: Vec<RequestedColumn>,
    pub new_name: Option<String>,
    pub new_owner: Option<String>,
    pub new_comment: Option<String>,
    /// An empty value removes the key.
    pub new_extra_configs: BTreeMap<String, String>,
    pub replicas: Option<i32>,
    pub disk_size_limit: Option<i64>,
    pub row_count_limit: Option<i64>,
}

/// Change of a tablet server's state by a maintenance tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerStateChange {
    EnterMaintenance,
    ExitMaintenance,
}

/// A change of the secrets; stored as a whole or rejected as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SecretsChange {
    /// The CA of a cluster that has none.
    pub authority: Option<AuthorityRecord>,
    /// A new token key, with the next number.
    pub new_token_key: Option<(i64, TokenKeyRecord)>,
    /// Token keys to remove.
    pub removed_token_keys: Vec<i64>,
}

/// A request that may change the catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CatalogCommand {
    Create(Box<CreateTable>),
    Alter(Box<AlterTable>),
    /// `reserve_seconds`: 0 deletes permanently, more keeps the table for recall, absent is the server's default.
    Delete {
        table: TableRef,
        reserve_seconds: Option<u32>,
    },
    Recall {
        table: TableRef,
        new_name: Option<String>,
    },
    /// Delete a tablet with its rows and replace it by an empty one.
    ReplaceTablet(TabletId),
    ChangeServerState {
        server: PeerId,
        change: ServerStateChange,
        allow_missing: bool,
    },
    UnregisterServer {
        server: PeerId,
        force: bool,
    },
    /// Raise the format level of the cluster, which every registered server must support.
    RaiseLevel(FormatLevel),
    /// Store or remove secrets of the cluster; only the leading master itself sends it.
    ChangeSecrets(Box<SecretsChange>),
}

/// Reply to a command that succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandReply {
    Created(TableId),
    Altered { table: TableId, version: u32 },
    Replaced(TabletId),
    Done,
}
