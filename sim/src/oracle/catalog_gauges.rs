//! Gauges of masters in a quiet cluster: the leader counts what it lists, and no other master has counts, so that an
//! alert can see that no master leads.

use std::collections::BTreeMap;

use super::Violation;
use super::told_sizes::ToldSizes;

/// Name of this oracle.
pub const NAME: &str = "catalog gauges";

/// Beginning of the names of gauges that the leader alone has.
pub const PREFIX: &str = "catalog_";

/// Gauges of a table: its bytes on disk, its live rows, its columns and the version of its schema.
const TABLE_BYTES: &str = "on_disk_size";
const TABLE_ROWS: &str = "live_row_count";
const TABLE_COLUMNS: &str = "column_count";
const TABLE_VERSION: &str = "schema_version";

/// Gauges of a master.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MasterGauges {
    pub server: String,
    /// Counts of its catalog, by name. Empty for a master that does not lead.
    pub catalog: BTreeMap<String, i64>,
    /// Gauges of tables, by the name of the table and their own.
    pub tables: BTreeMap<(String, String), i64>,
}

/// Columns and version of a table's schema that masters tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToldSchema {
    pub table: String,
    pub columns: usize,
    pub version: u32,
}

/// The least and the most that gauges may have, by name.
pub type GaugeBounds = BTreeMap<&'static str, (i64, i64)>;

/// Reports gauges that do not agree with the lists of masters. `tables`: the sizes that masters tell. `schemas`: those
/// of tables that no alteration changes.
pub fn check(
    masters: &[MasterGauges],
    bounds: &GaugeBounds,
    tables: &[ToldSizes],
    schemas: &[ToldSchema],
) -> Vec<Violation> {
    let counting: Vec<&MasterGauges> = masters.iter().filter(|master| !master.catalog.is_empty()).collect();
    let [leader] = counting[..] else {
        let names: Vec<&String> = counting.iter().map(|master| &master.server).collect();
        return vec![Violation::new(NAME, format!("not one master, but {names:?} count the catalog"))];
    };
    let mut faults: Vec<String> = bounds.iter().filter_map(|bound| count_fault(leader, bound)).collect();
    faults.extend(tables.iter().filter_map(|told| table_fault(leader, told)));
    faults.extend(schemas.iter().filter_map(|told| schema_fault(leader, told)));
    let server = &leader.server;
    faults.into_iter().map(|what| Violation::new(NAME, format!("{server} has {what}"))).collect()
}

fn count_fault(leader: &MasterGauges, (name, (least, most)): (&&'static str, &(i64, i64))) -> Option<String> {
    let count = leader.catalog.get(*name);
    let is_right = count.is_some_and(|count| (least..=most).contains(&count));
    (!is_right).then(|| format!("the gauge {name} {count:?}, and lists have {least} to {most}"))
}

/// Returns a gauge of a table.
fn gauge(leader: &MasterGauges, table: &str, name: &str) -> Option<i64> {
    leader.tables.get(&(table.to_string(), name.to_string())).copied()
}

fn schema_fault(leader: &MasterGauges, told: &ToldSchema) -> Option<String> {
    let gauge = |name: &str| gauge(leader, &told.table, name);
    let (columns, version) = (gauge(TABLE_COLUMNS), gauge(TABLE_VERSION));
    let is_right = columns == i64::try_from(told.columns).ok() && version == Some(told.version.into());
    (!is_right).then(|| format!("gauges of {columns:?} columns in version {version:?}, and tells {told:?}"))
}

fn table_fault(leader: &MasterGauges, told: &ToldSizes) -> Option<String> {
    let gauge = |name: &str| gauge(leader, &told.table, name);
    let (bytes, rows) = (gauge(TABLE_BYTES), gauge(TABLE_ROWS));
    let is_right = bytes == Some(told.bytes) && rows == told.rows;
    (!is_right).then(|| format!("gauges of {bytes:?} bytes and {rows:?} rows, and tells {told:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(change: impl FnOnce(&mut Vec<MasterGauges>)) -> usize {
        let of_table = |name: &str| ("t".to_string(), name.to_string());
        let leader = MasterGauges {
            server: "m0".to_string(),
            catalog: BTreeMap::from([("catalog_tables".to_string(), 2), ("catalog_other".to_string(), 9)]),
            tables: BTreeMap::from([
                (of_table(TABLE_BYTES), 70),
                (of_table(TABLE_ROWS), 3),
                (of_table(TABLE_COLUMNS), 4),
                (of_table(TABLE_VERSION), 2),
            ]),
        };
        let follower = MasterGauges { server: "m1".to_string(), ..MasterGauges::default() };
        let mut masters = vec![leader, follower];
        change(&mut masters);
        let told = ToldSizes { table: "t".to_string(), tablets: Vec::new(), bytes: 70, rows: Some(3) };
        let schema = ToldSchema { table: "t".to_string(), columns: 4, version: 2 };
        check(&masters, &GaugeBounds::from([("catalog_tables", (1, 2))]), &[told], &[schema]).len()
    }

    fn set(count: i64) -> impl FnOnce(&mut Vec<MasterGauges>) {
        move |masters| {
            masters[0].catalog.insert("catalog_tables".to_string(), count);
        }
    }

    #[test]
    fn the_leader_counts_what_it_lists() {
        assert_eq!(found(|_| {}), 0);
        assert_eq!((found(set(1)), found(set(0)), found(set(3))), (0, 1, 1));
        let without = |masters: &mut Vec<MasterGauges>| {
            masters[0].catalog.remove("catalog_tables");
        };
        assert_eq!(found(without), 1);
        assert_eq!(found(|masters| masters[0].tables.clear()), 2);
        let off = |name: &'static str| {
            found(move |masters| {
                let gauges = masters[0].tables.iter_mut();
                gauges.filter(|((_, own), _)| own == name).for_each(|(_, value)| *value += 1);
            })
        };
        assert_eq!([TABLE_BYTES, TABLE_ROWS, TABLE_COLUMNS, TABLE_VERSION].map(off), [1; 4]);
    }

    #[test]
    fn one_master_has_counts() {
        assert_eq!(found(|masters| masters[0].catalog.clear()), 1);
        assert_eq!(found(|masters| masters[1].catalog = masters[0].catalog.clone()), 1);
        assert_eq!(found(|masters| drop(masters.pop())), 0);
    }
}
