//! Consistency of a catalog's rows: records that do not decode, tablets without tables, overlaps and gaps.
//!
//! ```text
//!   rows of the system tablet ──► CatalogRows::decode ──► check ──► CatalogFinding, worst first
//! ```
//!
//! A gap between ranges is no fault, because ranges are added and dropped. A missing hash bucket of a range is one.

use std::collections::BTreeMap;
use std::fmt;

use super::record::{
    AuthorityRecord, ClusterRecord, ServerRecord, SystemRecord, SystemRowKey, TableLifecycle, TableRecord,
    TabletLifecycle, TabletRecord, TokenKeyRecord,
};
use crate::error::Result;
use crate::ids::{TableId, TabletId};
use crate::schema::partition::{Partition, PartitionSchema};
use crate::schema::partition_range::PartitionRange;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingSeverity {
    /// Rows are lost or unreachable, or the catalog cannot be loaded.
    Error,
    /// An operator should look at it.
    Warning,
}

/// A fault of a catalog.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CatalogFinding {
    pub severity: FindingSeverity,
    pub text: String,
}

impl CatalogFinding {
    pub(super) fn error(text: String) -> CatalogFinding {
        CatalogFinding { severity: FindingSeverity::Error, text }
    }

    pub(super) fn warning(text: String) -> CatalogFinding {
        CatalogFinding { severity: FindingSeverity::Warning, text }
    }
}

impl fmt::Display for CatalogFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.severity {
            FindingSeverity::Error => "ERROR",
            FindingSeverity::Warning => "WARNING",
        };
        write!(f, "{word}: {}", self.text)
    }
}

/// A row of the system tablet as it is stored: the key columns and the metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSystemRow {
    pub entry_type: i8,
    pub entry_id: String,
    pub metadata: Vec<u8>,
}

/// Result of a check of a catalog's rows.
#[derive(Debug, Default)]
pub struct CatalogCheck {
    pub tables: usize,
    /// Tablets that hold, or are about to hold, a part of a table.
    pub tablets: usize,
    /// Errors first.
    pub findings: Vec<CatalogFinding>,
}

#[derive(Default)]
struct CatalogRows {
    tables: BTreeMap<TableId, TableRecord>,
    tablets: BTreeMap<TabletId, TabletRecord>,
    has_cluster: bool,
}

/// Checks the rows of a system tablet.
pub fn check_catalog(rows: &[StoredSystemRow]) -> CatalogCheck {
    let mut decoded = CatalogRows::default();
    let mut findings = Vec::new();
    for row in rows {
        if let Err(error) = decoded.add(row) {
            findings.push(CatalogFinding::error(format!(
                "row of type {} and id {:?} does not decode: {error}",
                row.entry_type, row.entry_id
            )));
        }
    }
    if !decoded.has_cluster {
        findings.push(CatalogFinding::error("there is no row with the id of the cluster".to_string()));
    }
    decoded.check_names(&mut findings);
    decoded.check_tablets(&mut findings);
    for (id, table) in &decoded.tables {
        decoded.check_table(*id, table, &mut findings);
    }
    findings.sort();
    let live = |table: &&TableRecord| !matches!(table.state, TableLifecycle::Deleted { .. });
    CatalogCheck {
        tables: decoded.tables.values().filter(live).count(),
        tablets: decoded.tablets.values().filter(|tablet| tablet.state.is_live()).count(),
        findings,
    }
}

impl CatalogRows {
    fn add(&mut self, row: &StoredSystemRow) -> Result<()> {
        let bytes = row.metadata.as_slice();
        match SystemRowKey::from_columns(row.entry_type, &row.entry_id)? {
            SystemRowKey::Table(id) => drop(self.tables.insert(id, TableRecord::unseal(bytes)?)),
            SystemRowKey::Tablet(id) => drop(self.tablets.insert(id, TabletRecord::unseal(bytes)?)),
            SystemRowKey::Server(_) => {
                ServerRecord::unseal(bytes)?;
            }
            SystemRowKey::Cluster => {
                ClusterRecord::unseal(bytes)?;
                self.has_cluster = true;
            }
            SystemRowKey::Authority => drop(AuthorityRecord::unseal(bytes)?),
            SystemRowKey::TokenKey(_) => {
                TokenKeyRecord::unseal(bytes)?;
            }
        }
        Ok(())
    }

    fn check_names(&self, findings: &mut Vec<CatalogFinding>) {
        let mut names: BTreeMap<&str, TableId> = BTreeMap::new();
        for (id, table) in &self.tables {
            if matches!(table.state, TableLifecycle::Deleted { .. }) {
                continue;
            }
            if let Some(other) = names.insert(&table.name, *id) {
                let text = format!("tables {other} and {id} have one name, {:?}", table.name);
                findings.push(CatalogFinding::error(text));
            }
        }
    }

    fn check_tablets(&self, findings: &mut Vec<CatalogFinding>) {
        for (id, tablet) in &self.tablets {
            let Some(table) = self.tables.get(&tablet.table) else {
                let text = format!("tablet {id} belongs to no table: {}", tablet.table);
                findings.push(CatalogFinding::error(text));
                continue;
            };
            if !tablet.state.is_live() {
                continue;
            }
            let name = &table.name;
            if matches!(table.state, TableLifecycle::Deleted { .. }) {
                let text = format!("tablet {id} is not deleted, but its table {name:?} is");
                findings.push(CatalogFinding::error(text));
            }
            if tablet.state == TabletLifecycle::Preparing {
                let text = format!("tablet {id} of table {name:?} has no servers: {}", tablet.message);
                findings.push(CatalogFinding::warning(text));
            } else if tablet.consensus.peers.is_empty() {
                let text = format!("tablet {id} of table {name:?} names no server");
                findings.push(CatalogFinding::error(text));
            }
        }
    }

    fn check_table(&self, id: TableId, table: &TableRecord, findings: &mut Vec<CatalogFinding>) {
        if matches!(table.state, TableLifecycle::Deleted { .. }) {
            return;
        }
        let name = &table.name;
        let newest = table.schema.columns().iter().map(|column| column.id.0).max().unwrap_or_default();
        if table.next_column_id <= newest {
            findings.push(CatalogFinding::error(format!(
                "table {name:?} would give column id {} again (it has one with id {newest})",
                table.next_column_id
            )));
        }
        if let Err(error) = table.partition_schema.check(&table.schema) {
            findings.push(CatalogFinding::error(format!("table {name:?} is partitioned wrongly: {error}")));
        }
        let of_table = |(tablet, record): (&TabletId, &TabletRecord)| {
            (record.table == id && record.state.is_live()).then(|| (*tablet, record.partition.clone()))
        };
        let tablets: Vec<_> = self.tablets.iter().filter_map(of_table).collect();
        check_partitions(name, &table.partition_schema, &tablets, findings);
    }
}

/// Reports tablets whose partitions overlap, and hash buckets that no tablet holds.
pub(super) fn check_partitions(
    table: &str,
    schema: &PartitionSchema,
    tablets: &[(TabletId, Partition)],
    findings: &mut Vec<CatalogFinding>,
) {
    let mut sorted: Vec<&(TabletId, Partition)> = tablets.iter().collect();
    sorted.sort_by(|a, b| a.1.start.cmp(&b.1.start));
    for pair in sorted.windows(2) {
        let [(first, a), (second, b)] = pair else { continue };
        if a.end.is_empty() || a.end > b.start {
            let text = format!("tablets {first} and {second} of table {table:?} overlap");
            findings.push(CatalogFinding::error(text));
        }
    }
    if schema.range_columns.is_empty() && tablets.is_empty() {
        findings.push(CatalogFinding::error(format!("table {table:?} has no tablet")));
        return;
    }
    let mut ranges: BTreeMap<PartitionRange, Vec<&[u32]>> = BTreeMap::new();
    for (_, partition) in tablets {
        ranges.entry(partition.range()).or_default().push(&partition.hash_buckets);
    }
    for (range, buckets) in &ranges {
        for wanted in schema.partitions_of(range) {
            if !buckets.contains(&wanted.hash_buckets.as_slice()) {
                let (bucket, range) = (wanted.hash_buckets, shown(range));
                let text =
                    format!("table {table:?} has no tablet for hash bucket {bucket:?} of range {range}");
                findings.push(CatalogFinding::error(text));
            }
        }
    }
}

/// Returns the encoded bounds of a range in hex.
fn shown(range: &PartitionRange) -> String {
    let hex = |key: &[u8]| key.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("[{}, {})", hex(&range.lower), hex(&range.upper))
}
