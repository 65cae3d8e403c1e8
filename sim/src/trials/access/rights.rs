//! The rights of a caller on a table, and what they allow by Kudu's documents on fine-grained authorization.

use std::collections::BTreeMap;

use nyala_proto::kudu::security::{ColumnPrivilegePb, TablePrivilegePb};
use sim_plan::RandomStream;
use sim_plan::client_ops::WriteKind;
use sim_plan::tables::ModelTable;

use crate::model::ColNo;

/// Rights on a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rights {
    pub scan: bool,
    pub insert: bool,
    pub update: bool,
    pub delete: bool,
    /// Columns that may be read although the table may not.
    pub columns: BTreeMap<ColNo, bool>,
}

/// Columns and keys on which a read depends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ReadShape {
    /// Columns whose values are returned; none for the number of rows.
    pub projected: Vec<ColNo>,
    /// Columns with conditions.
    pub filtered: Vec<ColNo>,
    /// Columns with conditions of the old form, which are not supported any more.
    pub old_form: Vec<ColNo>,
    /// True if the order of keys, or bounds on them, decide which rows are returned.
    pub uses_keys: bool,
    /// True for a diff scan, which returns every change of a row.
    pub tells_changes: bool,
}

impl Rights {
    pub(super) fn all() -> Rights {
        Rights { scan: true, insert: true, update: true, delete: true, columns: BTreeMap::new() }
    }

    pub(super) fn draw(random: &mut RandomStream, table: &ModelTable) -> Rights {
        let generous = random.percent(50);
        let columns = table.columns.iter().filter_map(|column| {
            let listed = random.percent(if generous { 95 } else { 60 });
            listed.then(|| (column.number, random.percent(90)))
        });
        let columns = columns.collect();
        let mut half = || random.percent(50);
        let (insert, update, delete) = (half(), half(), half());
        Rights { scan: random.percent(15), insert, update, delete, columns }
    }

    /// Returns the rights as a master states them in a token.
    pub(super) fn privilege(&self, table: &str) -> TablePrivilegePb {
        let of_column = |(number, scan): (&ColNo, &bool)| {
            (i32::from(*number), ColumnPrivilegePb { scan_privilege: Some(*scan) })
        };
        TablePrivilegePb {
            table_id: Some(table.to_string()),
            scan_privilege: Some(self.scan),
            insert_privilege: Some(self.insert),
            update_privilege: Some(self.update),
            delete_privilege: Some(self.delete),
            column_privileges: self.columns.iter().map(of_column).collect(),
        }
    }

    /// Returns true if rows of these kinds may be written, in one batch.
    pub(super) fn may_write(&self, kinds: &[WriteKind]) -> bool {
        use WriteKind::*;
        kinds.iter().all(|kind| match kind {
            Insert | InsertIgnore => self.insert,
            Upsert | UpsertIgnore => self.insert && self.update,
            Update | UpdateIgnore => self.update,
            Delete | DeleteIgnore => self.delete,
        })
    }

    pub(super) fn may_read(&self, table: &ModelTable, shape: &ReadShape) -> bool {
        let may = |number: &ColNo| self.columns.get(number).copied().unwrap_or(false);
        let every = || table.columns.iter().all(|column| may(&column.number));
        let tells_all = shape.projected.is_empty() || shape.tells_changes;
        let returned = if tells_all { every() } else { shape.projected.iter().all(may) };
        let keys = || table.key_columns().iter().all(|column| may(&column.number));
        let filtered = || shape.filtered.iter().chain(&shape.old_form).all(may);
        self.scan || returned && filtered() && (!shape.uses_keys || keys())
    }
}
