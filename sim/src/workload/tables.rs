//! The tables of a run.

use engine::error::{Error, ErrorKind};
use engine::schema::partition_range::PartitionRange;
use nyala_client::{Client, CreateTable, Table};
use nyala_common::env::Env;

use super::{Workload, row_encoding, until};
use crate::history::TableNo;
use crate::oracle::lists::LISTS;

/// First key of the ranges that are added and dropped, whose rows are not checked.
pub(super) const KEYS_END: i64 = 10_000;
/// Keys of each of those ranges.
const RANGE_KEYS: i64 = 100;

pub(super) fn name(table: TableNo) -> String {
    format!("t{table}")
}

/// Returns the first key of the range partition of this number, beyond the first, and the one after its last.
pub(super) fn range_keys(number: u8) -> (i64, i64) {
    let low = KEYS_END + i64::from(number) * RANGE_KEYS;
    (low, low + RANGE_KEYS)
}

pub(super) fn extra_range(number: u8) -> PartitionRange {
    let (low, high) = range_keys(number);
    row_encoding::key_range(low, high)
}

impl Workload {
    /// Creates the initial tables, the bank, and the tables of lists and auto-increment values if the plan has any.
    pub async fn prepare(&self, env: &Env) -> Result<(), Error> {
        let client = self.connect(env).await;
        let cluster = &self.plan().cluster;
        for table in 0..cluster.tables {
            let tablets = u32::from(cluster.tablets);
            self.create(env, &client, &name(TableNo::from(table)), tablets, true).await?;
        }
        if self.plan().has_lists() {
            let tablets = u32::from(cluster.tablets);
            self.create(env, &client, &name(LISTS), tablets, false).await?;
        }
        if self.plan().has_numbered() {
            self.create_auto_increment(env, &client).await?;
        }
        self.prepare_model_tables(env).await;
        self.open_bank(env, &client).await
    }

    /// Returns a table of this name without partitions; `pair`: true if its key may have a second column.
    pub(super) fn table_of(&self, name: &str, pair: bool) -> CreateTable {
        let plan = self.plan();
        let mut create = CreateTable::new(name, row_encoding::laid_out(plan.data.encodings, name, pair));
        create.replicas = Some(i32::from(plan.cluster.replicas));
        create
    }

    /// Creates a table of this name with `tablets` tablets; `ranged`: true if it has ranges that are added and dropped.
    pub(super) async fn create(
        &self,
        env: &Env,
        client: &Client,
        name: &str,
        tablets: u32,
        ranged: bool,
    ) -> Result<Table, Error> {
        let mut create = self.table_of(name, ranged);
        if tablets > 1 {
            let hashed: &[&str] = match self.plan().data.encodings % 4 {
                _ if !row_encoding::has_pair(&create.schema) => &["k"],
                0 => &["k"],
                1 => &[row_encoding::PAIR],
                _ => &["k", row_encoding::PAIR],
            };
            create = create.hash(hashed, tablets)?;
        }
        if ranged {
            create = create.range(&["k"])?;
            create.ranges = vec![row_encoding::key_range(0, KEYS_END)];
        }
        self.create_or_open(env, client, &create).await
    }

    /// Creates this table, or finds that an attempt whose reply was lost has created it.
    pub(super) async fn create_or_open(
        &self,
        env: &Env,
        client: &Client,
        create: &CreateTable,
    ) -> Result<Table, Error> {
        until(env, self.plan().quiet, async || match client.create_table(create).await {
            Err(error) if error.kind == ErrorKind::AlreadyPresent => client.open_table(&create.name).await,
            create_or_open => create_or_open,
        })
        .await
    }
}
