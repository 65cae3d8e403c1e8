//! Comparison of final states: what differs between worlds, and between a world and the model.

use std::collections::{BTreeMap, BTreeSet};

use crate::final_state::{FinalState, FinalTable, ReplicaSum};

/// Most characters of a value in a report.
const TEXT_MAX: usize = 300;
const MODEL: &str = "model";

/// The end of a plan's run in a world.
pub struct WorldEnd {
    pub world: String,
    pub state: FinalState,
}

/// Returns all differences, each as one line with the plan, the table, the key and the values of each world.
pub fn differences(plan: &str, ends: &[WorldEnd]) -> Vec<String> {
    let mut found = Vec::new();
    for end in ends {
        found.extend(end.state.failures.iter().map(|what| format!("{}: {what}", end.world)));
    }
    let of_world = |end: &WorldEnd| end.state.tables.keys().cloned().collect::<Vec<_>>();
    let of_model = |end: &WorldEnd| end.state.model.keys().cloned().collect::<Vec<_>>();
    let names: BTreeSet<String> =
        ends.iter().flat_map(|end| [of_world(end), of_model(end)].concat()).collect();
    for name in names {
        found.extend(of_table(&name, ends).into_iter().map(|what| format!("table {name}, {what}")));
    }
    found.into_iter().map(|what| format!("plan {plan}: {what}")).collect()
}

fn of_table(name: &str, ends: &[WorldEnd]) -> Vec<String> {
    let tables: Vec<(&str, Option<&FinalTable>)> =
        ends.iter().map(|end| (end.world.as_str(), end.state.tables.get(name))).collect();
    let columns = tables.iter().map(|(world, table)| (*world, table.map(|table| table.columns.join(", "))));
    let mut found: Vec<String> =
        unequal(columns.collect()).map(|values| format!("columns: {values}")).into_iter().collect();
    found.extend(of_rows(name, ends));
    found.extend(of_tablets(&tables));
    found
}

/// Returns the rows that differ, those of each world's model too.
fn of_rows(name: &str, ends: &[WorldEnd]) -> Vec<String> {
    let mut views: Vec<(String, Option<&BTreeMap<String, String>>)> = Vec::new();
    for end in ends {
        views.push((end.world.clone(), end.state.tables.get(name).map(|table| &table.rows)));
        views.push((format!("{MODEL} of {}", end.world), end.state.model.get(name)));
    }
    let keys: BTreeSet<&String> =
        views.iter().flat_map(|(_, rows)| rows.iter().flat_map(|rows| rows.keys())).collect();
    let differs = |key: &String| {
        let row = |rows: &Option<&BTreeMap<String, String>>| rows.and_then(|rows| rows.get(key)).cloned();
        let values = views.iter().map(|(world, rows)| (world.as_str(), row(rows))).collect();
        unequal(values).map(|values| format!("key ({}): {values}", cut(key)))
    };
    keys.into_iter().filter_map(differs).collect()
}

/// Returns the tablets whose replicas differ within a world, or between worlds.
fn of_tablets(tables: &[(&str, Option<&FinalTable>)]) -> Vec<String> {
    let sums = |table: &Option<&FinalTable>, bounds: &String| -> Option<Vec<ReplicaSum>> {
        table.and_then(|table| table.tablets.get(bounds)).cloned()
    };
    let bounds: BTreeSet<&String> =
        tables.iter().flat_map(|(_, table)| table.iter().flat_map(|table| table.tablets.keys())).collect();
    let mut found = Vec::new();
    for bounds in bounds {
        let of_world: Vec<(&str, Option<Vec<ReplicaSum>>)> =
            tables.iter().map(|(world, table)| (*world, sums(table, bounds))).collect();
        for (world, sums) in &of_world {
            let mut sums = sums.iter().flatten();
            let first = sums.next();
            if sums.any(|sum| Some(sum) != first) {
                found.push(format!("tablet {bounds}: replicas differ in {world}"));
            }
        }
        let texts = of_world.into_iter().map(|(world, sums)| (world, sums.map(|sums| format!("{sums:?}"))));
        found.extend(unequal(texts.collect()).map(|values| format!("tablet {bounds}: {values}")));
    }
    found
}

/// Returns the values by world as text if they are not all equal.
fn unequal(values: Vec<(&str, Option<String>)>) -> Option<String> {
    let mut worlds: BTreeMap<Option<&String>, Vec<&str>> = BTreeMap::new();
    for (world, value) in &values {
        worlds.entry(value.as_ref()).or_default().push(world);
    }
    let text =
        |value: &Option<&String>| value.map_or("nothing".to_string(), |value| format!("({})", cut(value)));
    let one = |(value, worlds): (&Option<&String>, &Vec<&str>)| {
        format!("{} has {}", worlds.join(", "), text(value))
    };
    (worlds.len() > 1).then(|| worlds.iter().map(one).collect::<Vec<_>>().join("; "))
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(TEXT_MAX) {
        Some((at, _)) => format!("{}... of {} bytes", &text[..at], text.len()),
        None => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[(&str, &str)], sums: &[u64]) -> FinalTable {
        let rows = rows.iter().map(|(key, cells)| (key.to_string(), cells.to_string())).collect();
        let sums = sums.iter().map(|checksum| ReplicaSum { checksum: *checksum, rows: 2 }).collect();
        FinalTable {
            columns: vec!["k int64".to_string()],
            rows,
            tablets: [("00..".to_string(), sums)].into(),
        }
    }

    /// Returns the end in a world whose model has the rows of `model`.
    fn end(world: &str, table: FinalTable, model: &[(&str, &str)]) -> WorldEnd {
        let model = self::table(model, &[]).rows;
        let state = FinalState {
            tables: [("t0".to_string(), table)].into(),
            model: [("t0".to_string(), model)].into(),
            ..FinalState::default()
        };
        WorldEnd { world: world.to_string(), state }
    }

    const ROWS: [(&str, &str); 2] = [("k=i1", "v=i5"), ("k=i2", "v=i6")];

    #[test]
    fn equal_ends_have_no_difference() {
        let ends = ["madsim", "turmoil", "machine"].map(|world| end(world, table(&ROWS, &[7, 7, 7]), &ROWS));
        assert_eq!(differences("17", &ends), Vec::<String>::new());
    }

    #[test]
    fn a_differing_row_is_named_with_plan_table_key_and_both_values() {
        let other = [ROWS[0], ("k=i2", "v=i7")];
        let ends =
            [end("madsim", table(&ROWS, &[7, 7]), &ROWS), end("machine", table(&other, &[7, 7]), &ROWS)];
        let found = differences("17", &ends);
        let want = "plan 17: table t0, key (k=i2): \
                    madsim, model of madsim, model of machine has (v=i6); machine has (v=i7)";
        assert_eq!(found, [want]);
    }

    #[test]
    fn a_row_that_all_worlds_lack_is_the_models_alone() {
        let ends = ["madsim", "machine"].map(|world| end(world, table(&ROWS[..1], &[7]), &ROWS));
        let want = "plan 17: table t0, key (k=i2): madsim, machine has nothing; \
                    model of madsim, model of machine has (v=i6)";
        assert_eq!(differences("17", &ends), [want]);
    }

    #[test]
    fn differing_replicas_columns_and_tables_are_named() {
        let mut other = table(&ROWS, &[7, 8]);
        other.columns = vec!["k int32".to_string()];
        let mut ends = [end("madsim", table(&ROWS, &[7, 7]), &ROWS), end("machine", other, &ROWS)];
        let found = differences("17", &ends);
        assert_eq!(found.len(), 3, "{found:#?}");
        assert!(
            found[0].contains("columns: madsim has (k int64); machine has (k int32)")
                || found[0].contains("columns: machine has (k int32); madsim has (k int64)")
        );
        assert!(found[1].contains("tablet 00..: replicas differ in machine"));
        assert!(found[2].contains("checksum: 8"));
        ends[1].state.tables.clear();
        assert!(differences("17", &ends).iter().any(|what| what.contains("machine has nothing")));
        ends[1].state.failures.push("t0 ended".to_string());
        assert!(differences("17", &ends).contains(&"plan 17: machine: t0 ended".to_string()));
    }
}
