//! The columns of a client and those of the table: a name means the column that has it now.

use std::collections::BTreeMap;

use sim_plan::tables::{ColumnSpec, ModelTable};

use crate::model::{ColNo, RowWrite};

/// Returns the columns that a client's columns mean in a table; `None` if one is missing, or has another type
/// or nullability.
pub(super) fn meaning(view: &ModelTable, table: &ModelTable) -> Option<BTreeMap<ColNo, ColNo>> {
    let own = |column: &ColumnSpec| {
        let found = table.columns.iter().find(|own| own.name == column.name)?;
        let same = found.kind == column.kind && found.nullable == column.nullable;
        same.then_some((column.number, found.number))
    };
    view.columns.iter().map(own).collect()
}

/// Returns rows in the columns of the table; `None` if it takes no row of these columns: it also has one that
/// needs a value and is none of them.
pub(super) fn translated(view: &ModelTable, table: &ModelTable, rows: &[RowWrite]) -> Option<Vec<RowWrite>> {
    let meaning = meaning(view, table)?;
    let is_filled = |column: &ColumnSpec| {
        let is_known = meaning.values().any(|number| *number == column.number);
        column.nullable || column.write.is_some() || is_known
    };
    if !table.columns.iter().all(is_filled) {
        return None;
    }
    let row = |row: &RowWrite| {
        let cells = row.cells.iter().map(|(number, value)| (meaning[number], value.clone()));
        RowWrite { kind: row.kind, cells: cells.collect() }
    };
    Some(rows.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use sim_plan::RandomStream;
    use sim_plan::client_ops::WriteKind;
    use sim_plan::tables::Value;

    use super::*;
    use crate::trials::draw;

    /// Returns a table with a value column.
    fn table() -> ModelTable {
        let random = &mut RandomStream::new(3, "test");
        loop {
            let mut table = draw::table(random);
            if let Some(last) = table.columns.last_mut().filter(|column| column.name.starts_with('c')) {
                last.nullable = true;
                return table;
            }
        }
    }

    #[test]
    fn a_name_means_the_column_that_has_it_now() {
        let view = table();
        let last = view.columns.len() - 1;
        let number = view.columns[last].number;
        let row = RowWrite { kind: WriteKind::Upsert, cells: [(number, Value::Null)].into() };
        let mut altered = view.clone();
        altered.columns[last].number = 77;
        let rows = translated(&view, &altered, std::slice::from_ref(&row)).expect("the same names and types");
        assert_eq!(rows[0].cells.keys().copied().collect::<Vec<ColNo>>(), [77]);
        altered.columns[last].nullable = false;
        assert_eq!(translated(&view, &altered, std::slice::from_ref(&row)), None, "another nullability");
        altered.columns[last].name = "other".to_string();
        assert_eq!(meaning(&view, &altered), None, "no such name");
    }

    #[test]
    fn a_column_that_needs_a_value_must_be_known() {
        let table = table();
        let mut view = table.clone();
        let dropped = view.columns.pop().expect("a value column");
        assert!(translated(&view, &table, &[]).is_some(), "it is NULL");
        let mut altered = table;
        let last = altered.columns.last_mut().expect("a value column");
        (last.nullable, last.write) = (false, None);
        assert_eq!(translated(&view, &altered, &[]), None, "{dropped:?}");
        assert!(meaning(&view, &altered).is_some(), "rows may be read");
    }
}
