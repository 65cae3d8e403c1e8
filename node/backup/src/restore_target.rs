//! The table that a restore writes to: a new one, the incomplete one of a restore that failed, or any other.

use engine::error::{Error, Result};
use engine::schema::{ColumnSchema, Schema};
use nyala_client::{Client, CreateTable, Table, TableInfo};

use super::manifest::{Manifest, time_text};
use super::partial_name::PartialName;

/// Kind of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreTarget {
    /// A new table, which has another name until it is complete.
    New,
    /// The incomplete table of a restore that failed.
    Resumed,
    /// A table that exists. Its rows with other keys stay.
    Existing,
}

/// Table to write to, by the request.
pub(crate) struct TargetTable<'a> {
    pub client: &'a Client,
    pub kind: RestoreTarget,
    /// Replicas of the tablets of a new table; `None` as they were.
    pub replicas: Option<i32>,
    /// The last backup to be applied.
    pub last: &'a Manifest,
    pub name: &'a str,
    /// Name of the table while it is incomplete.
    pub partial: &'a str,
}

impl TargetTable<'_> {
    /// Refuses a request whose tables exist or are missing, or whose names dropped tables keep.
    pub(crate) async fn check_names(&self) -> Result<()> {
        self.check_tables().await?;
        match self.kind {
            RestoreTarget::Existing => Ok(()),
            _ => self.check_dropped_tables().await,
        }
    }

    /// Refuses a name that the new table could not get: a dropped table keeps its name while it can be recalled.
    async fn check_dropped_tables(&self) -> Result<()> {
        let is_new = self.kind == RestoreTarget::New;
        let has_name = |table: &&TableInfo| table.name == self.name || (is_new && table.name == self.partial);
        match self.client.deleted_tables().await?.iter().find(has_name) {
            Some(TableInfo { id, name, .. }) => Err(Error::already_present(format!(
                "table {name}: a dropped table keeps this name while it can be recalled; restore under another name \
                 with --as, or rename it: nyala table recall {id} --as OTHER"
            ))),
            None => Ok(()),
        }
    }

    async fn check_tables(&self) -> Result<()> {
        let partial_names = PartialName::of(self.name);
        let tables = self.client.list_tables(Some(partial_names.beginning)).await?;
        let has = |name: &str| tables.iter().any(|table| table.name == name);
        let (name, partial) = (self.name, self.partial);
        match self.kind {
            RestoreTarget::Existing if !has(name) => Err(Error::not_found(format!(
                "no table {name} to restore into; without --into-existing a new one is created"
            ))),
            RestoreTarget::Existing => Ok(()),
            _ if has(name) => Err(Error::already_present(format!(
                "table {name} exists; restore under another name with --as, or write to it with --into-existing"
            ))),
            RestoreTarget::Resumed if !has(partial) => {
                let others = tables.iter().filter_map(|table| partial_names.time_of(&table.name));
                let hint = match others.map(time_text).next() {
                    Some(time) => format!("; --until {time} resumes another one"),
                    None => String::new(),
                };
                Err(Error::not_found(format!("no table {partial}, so there is no restore to resume{hint}")))
            }
            RestoreTarget::New if has(partial) => {
                Err(self.failed(Error::already_present("an earlier restore did not end")))
            }
            _ => Ok(()),
        }
    }

    pub(crate) async fn open(&self) -> Result<Table> {
        match self.kind {
            RestoreTarget::New => {
                let create = definition(self.last, self.partial, self.replicas)?;
                self.client.create_table(&create).await.map_err(|error| self.failed(error))
            }
            RestoreTarget::Resumed => self.open_existing(self.partial).await,
            RestoreTarget::Existing => self.open_existing(self.name).await,
        }
    }

    /// Opens a table, whose columns must take the backup's rows.
    async fn open_existing(&self, name: &str) -> Result<Table> {
        let table = self.client.open_table(name).await?;
        check_columns(&self.last.schema()?, table.schema())
            .map_err(|error| error.context(format_args!("table {name}")))?;
        Ok(table)
    }

    /// Adds what is left to an error.
    pub(crate) fn failed(&self, error: Error) -> Error {
        match self.kind {
            RestoreTarget::Existing => error.context(format!(
                "table {}, some rows of which may be restored; run the restore again",
                self.name
            )),
            _ => error.context(format!(
                "table {}, the incomplete restore, which you can complete with --resume or drop",
                self.partial
            )),
        }
    }
}

/// Refuses a table that cannot take rows of a backup: other key columns, a column that is missing or of another type,
/// one more column that needs a value.
fn check_columns(backup: &Schema, table: &Schema) -> Result<()> {
    let (of_backup, of_table) = (backup.columns(), table.columns());
    let keys = |schema: &Schema| -> Vec<String> {
        let columns = schema.columns().iter().take(schema.num_key_columns());
        columns.map(|column| column.name.clone()).collect()
    };
    if keys(backup) != keys(table) {
        return Err(Error::invalid("its primary key is not that of the backup"));
    }
    for column in of_backup {
        let found = of_table.iter().find(|found| found.name == column.name);
        let found = found.ok_or_else(|| Error::invalid(format!("it has no column {}", column.name)))?;
        if (found.ty, found.attributes) != (column.ty, column.attributes) {
            let (is, was) = (found.type_name(), column.type_name());
            return Err(Error::invalid(format!("column {} is {is}, and {was} in the backup", column.name)));
        }
        if column.nullable && !found.nullable {
            return Err(Error::invalid(format!("column {} is NOT NULL, unlike in the backup", column.name)));
        }
    }
    let is_new = |column: &&ColumnSchema| of_backup.iter().all(|known| known.name != column.name);
    let needs_value = |column: &&ColumnSchema| !column.nullable && column.write_default.is_none();
    match of_table.iter().filter(is_new).find(needs_value) {
        Some(column) => Err(Error::invalid(format!(
            "column {} is not in the backup, NOT NULL and without a default",
            column.name
        ))),
        None => Ok(()),
    }
}

fn definition(manifest: &Manifest, name: &str, replicas: Option<i32>) -> Result<CreateTable> {
    let schema = manifest.schema()?;
    let partition = manifest.partition_schema(&schema)?;
    let ranges = if partition.range_columns.is_empty() { Vec::new() } else { manifest.ranges()? };
    let mut create = CreateTable::new(name, schema);
    create.partition = partition;
    create.ranges = ranges;
    create.replicas = Some(replicas.unwrap_or(manifest.replicas));
    create.owner = Some(manifest.owner.clone()).filter(|owner| !owner.is_empty());
    create.comment = Some(manifest.comment.clone()).filter(|comment| !comment.is_empty());
    create.extra_config = manifest.extra_config.clone();
    Ok(create)
}
