//! Sizes of tables that masters tell are the sums of what the leaders of their tablets have, once nothing changes any
//! more: bytes on disk and live rows. Servers look at their sizes every few seconds and report what has changed.

use std::collections::BTreeMap;

use super::Violation;

const NAME: &str = "told sizes";

/// Sizes of a table that masters tell, and its tablets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToldSizes {
    pub table: String,
    pub tablets: Vec<String>,
    pub bytes: i64,
    pub rows: Option<i64>,
}

/// Sizes of a replica that leads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaderSizes {
    pub term: u64,
    pub bytes: u64,
    pub rows: u64,
}

/// Reports tables whose sizes are not those of their leaders. `leaders`: by tablet; a tablet without one is reported
/// elsewhere.
pub fn check(tables: &[ToldSizes], leaders: &BTreeMap<String, LeaderSizes>) -> Vec<Violation> {
    tables.iter().filter_map(|told| check_one(told, leaders)).collect()
}

fn check_one(told: &ToldSizes, leaders: &BTreeMap<String, LeaderSizes>) -> Option<Violation> {
    let of_tablets = told.tablets.iter().map(|tablet| leaders.get(tablet));
    let of_tablets = of_tablets.collect::<Option<Vec<&LeaderSizes>>>()?;
    let bytes: u64 = of_tablets.iter().map(|sizes| sizes.bytes).sum();
    let rows: u64 = of_tablets.iter().map(|sizes| sizes.rows).sum();
    let has_bytes = u64::try_from(told.bytes) == Ok(bytes);
    let has_rows = u64::try_from(told.rows.unwrap_or_default()) == Ok(rows);
    (!(has_bytes && has_rows)).then(|| {
        let ToldSizes { table, bytes: told_bytes, rows: told_rows, .. } = told;
        let what = format!(
            "table {table} has {bytes} bytes and {rows} rows, and masters tell {told_bytes} and {told_rows:?}"
        );
        Violation::new(NAME, what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(tablets: &[&str], bytes: i64, rows: Option<i64>) -> usize {
        let of = |bytes, rows| LeaderSizes { term: 1, bytes, rows };
        let leaders = BTreeMap::from([("a".to_string(), of(10, 2)), ("b".to_string(), of(5, 1))]);
        let tablets = tablets.iter().map(|tablet| tablet.to_string()).collect();
        check(&[ToldSizes { table: "t".to_string(), tablets, bytes, rows }], &leaders).len()
    }

    #[test]
    fn sizes_of_tables_are_sums() {
        assert_eq!(found(&["a", "b"], 15, Some(3)), 0);
        assert_eq!(found(&[], 0, None), 0);
        assert_eq!(found(&["a", "c"], 1, None), 0, "a tablet has no leader");
        let wrong = [(10, Some(3)), (15, Some(2)), (15, None), (-1, Some(3)), (15, Some(-3))];
        for (bytes, rows) in wrong {
            assert_eq!(found(&["a", "b"], bytes, rows), 1, "{bytes} {rows:?}");
        }
    }
}
