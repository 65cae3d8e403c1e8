//! What a restore must bring back besides rows: columns with all their attributes, partitions and settings.

use std::collections::BTreeMap;

use engine::ids::ColumnId;
use engine::schema::ColumnSchema;
use engine::schema::partition::PartitionSchema;
use nyala_client::Table;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TableFacts {
    /// Columns without their ids, which each table has of its own.
    columns: Vec<ColumnSchema>,
    partition: PartitionSchema,
    replicas: i32,
    owner: String,
    comment: String,
    settings: BTreeMap<String, String>,
}

impl TableFacts {
    pub(super) fn of(table: &Table) -> TableFacts {
        let column = |column: &ColumnSchema| ColumnSchema { id: ColumnId(0), ..column.clone() };
        TableFacts {
            columns: table.schema().columns().iter().map(column).collect(),
            partition: table.partition_schema().clone(),
            replicas: table.num_replicas(),
            owner: table.owner().to_string(),
            comment: table.comment().to_string(),
            settings: table.extra_config().clone(),
        }
    }

    /// Returns the first difference of another table from this one.
    pub(super) fn difference(&self, other: &TableFacts) -> Option<String> {
        let columns = self.columns.iter().zip(&other.columns).find(|(one, other)| one != other);
        let column = columns.map(|(one, other)| format!("column {other:?} instead of {one:?}"));
        let settings = (&self.owner, &self.comment, &self.settings, self.replicas);
        let others = (&other.owner, &other.comment, &other.settings, other.replicas);
        column
            .or_else(|| {
                let (has, wanted) = (other.columns.len(), self.columns.len());
                (has != wanted).then(|| format!("{has} columns instead of {wanted}"))
            })
            .or_else(|| {
                let (has, wanted) = (&other.partition, &self.partition);
                (has != wanted).then(|| format!("the partitions {has:?} instead of {wanted:?}"))
            })
            .or_else(|| (others != settings).then(|| format!("{others:?} instead of {settings:?}")))
    }
}

#[cfg(test)]
mod tests {
    use engine::schema::DataType;

    use super::*;

    #[test]
    fn a_default_a_comment_or_a_setting_that_differs_is_found() {
        let default = Some(vec![5, 0, 0, 0, 0, 0, 0, 0]);
        let column = ColumnSchema {
            read_default: default.clone(),
            write_default: None,
            ..ColumnSchema::new(0, "c", DataType::Int64)
        };
        let facts = TableFacts {
            columns: vec![column],
            partition: PartitionSchema::default(),
            replicas: 1,
            owner: "owner".to_string(),
            comment: String::new(),
            settings: BTreeMap::new(),
        };
        assert_eq!(facts.difference(&facts.clone()), None);
        let mut other = facts.clone();
        other.columns[0].write_default = default;
        let found = facts.difference(&other).expect("a default that was removed");
        assert!(found.starts_with("column ColumnSchema"), "{found}");
        let other = TableFacts { comment: "x".to_string(), ..facts.clone() };
        assert!(facts.difference(&other).is_some());
        let other = TableFacts { columns: Vec::new(), ..facts.clone() };
        assert_eq!(facts.difference(&other), Some("0 columns instead of 1".to_string()));
    }
}
