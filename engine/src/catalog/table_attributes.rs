//! A table's attributes that its tablets keep for masters: a lost catalog is rebuilt from them.
//!
//! ```text
//!   master: TableRecord ──attributes──► CreateTablet, AlterSchema ──► tablet: extra configuration, keys "nyala.…"
//!                                                                       └── rebuild.rs ──► TableRecord
//! ```
//!
//! Tablets carry them with their extra configuration: replicated with each alteration, stored in each superblock.

use std::collections::BTreeMap;

use super::record::{TableRecord, TabletRecord};

/// Prefix of the names of attributes, which no client can set.
pub const ATTRIBUTE_PREFIX: &str = "nyala.";

const OWNER: &str = "nyala.table.owner";
const COMMENT: &str = "nyala.table.comment";
const REPLICAS: &str = "nyala.table.replicas";
const NEXT_COLUMN: &str = "nyala.table.next_column_id";
const CREATED: &str = "nyala.table.created";
const DISK_LIMIT: &str = "nyala.table.disk_size_limit";
const ROW_LIMIT: &str = "nyala.table.row_count_limit";
const LABEL: &str = "nyala.tablet.dimension_label";

/// The attributes found in a tablet's extra configuration; absent for a tablet of an older build.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct TableAttributes {
    pub owner: Option<String>,
    pub comment: Option<String>,
    pub replicas: Option<i32>,
    pub next_column_id: Option<u32>,
    pub created: Option<u64>,
    pub disk_size_limit: Option<i64>,
    pub row_count_limit: Option<i64>,
    pub dimension_label: Option<String>,
}

impl TableAttributes {
    pub(super) fn parse(extra: &BTreeMap<String, String>) -> TableAttributes {
        let text = |name: &str| extra.get(name).cloned();
        TableAttributes {
            owner: text(OWNER),
            comment: text(COMMENT),
            replicas: number(extra, REPLICAS),
            next_column_id: number(extra, NEXT_COLUMN),
            created: number(extra, CREATED),
            disk_size_limit: number(extra, DISK_LIMIT),
            row_count_limit: number(extra, ROW_LIMIT),
            dimension_label: text(LABEL),
        }
    }
}

fn number<T: std::str::FromStr>(extra: &BTreeMap<String, String>, name: &str) -> Option<T> {
    extra.get(name)?.parse().ok()
}

/// Returns the attributes that a tablet of this table keeps.
pub(super) fn attributes(table: &TableRecord, tablet: &TabletRecord) -> BTreeMap<String, String> {
    let entries = [
        (OWNER, Some(table.owner.clone())),
        (COMMENT, Some(table.comment.clone())),
        (REPLICAS, Some(table.replicas.to_string())),
        (NEXT_COLUMN, Some(table.next_column_id.to_string())),
        (CREATED, Some(table.created.to_string())),
        (DISK_LIMIT, table.disk_size_limit.map(|limit| limit.to_string())),
        (ROW_LIMIT, table.row_count_limit.map(|limit| limit.to_string())),
        (LABEL, tablet.dimension_label.clone()),
    ];
    entries.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?))).collect()
}
