//! The tables of a run.

use engine::error::{Error, ErrorKind};
use engine::schema::range::Range;
use node::client::{Client, CreateTable, Table};
use node::env::Env;

use super::{Workload, rows, until};
use crate::history::TableNo;
use crate::oracle::lists::LISTS;

/// Keys from here on lie in ranges that come and go; nobody keeps account of the rows there.
pub const KEYS_END: i64 = 10_000;
/// Keys of each of those ranges.
const RANGE_KEYS: i64 = 100;

pub fn name(table: TableNo) -> String {
    format!("t{table}")
}

/// First key of the range partition of this number, beyond the first, and the one after its last.
pub fn range_keys(number: u8) -> (i64, i64) {
    let low = KEYS_END + i64::from(number) * RANGE_KEYS;
    (low, low + RANGE_KEYS)
}

pub fn extra_range(number: u8) -> Range {
    let (low, high) = range_keys(number);
    rows::key_range(low, high)
}

impl Workload {
    /// Makes the tables that every client begins with, the bank, and that of lists if the plan has any.
    pub async fn prepare(&self, env: &Env) -> Result<(), Error> {
        let client = self.connect(env).await;
        let cluster = &self.plan().cluster;
        for table in 0..cluster.tables {
            let tablets = u32::from(cluster.tablets);
            self.make(env, &client, &name(TableNo::from(table)), tablets, true).await?;
        }
        if self.plan().has_lists() {
            let tablets = u32::from(cluster.tablets);
            self.make(env, &client, &name(LISTS), tablets, false).await?;
        }
        if self.plan().has_numbered() {
            self.make_numbered(env, &client).await?;
        }
        self.open_bank(env, &client).await
    }

    /// A table of this name, with nothing said of its partitions; `pair`: whether its key may have a second column.
    pub(super) fn table_of(&self, name: &str, pair: bool) -> CreateTable {
        let plan = self.plan();
        let mut create = CreateTable::new(name, rows::laid_out(plan.data.encodings, name, pair));
        create.replicas = Some(i32::from(plan.cluster.replicas));
        create
    }

    /// Makes a table of this name, of so many tablets; `ranged`: whether it has ranges that come and go.
    pub(super) async fn make(
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
                _ if !rows::has_pair(&create.schema) => &["k"],
                0 => &["k"],
                1 => &[rows::PAIR],
                _ => &["k", rows::PAIR],
            };
            create = create.hash(hashed, tablets)?;
        }
        if ranged {
            create = create.range(&["k"])?;
            create.ranges = vec![rows::key_range(0, KEYS_END)];
        }
        self.made(env, client, &create).await
    }

    /// Makes this table, or finds that an attempt whose answer was lost has made it.
    pub(super) async fn made(
        &self,
        env: &Env,
        client: &Client,
        create: &CreateTable,
    ) -> Result<Table, Error> {
        until(env, self.plan().quiet, async || match client.create_table(create).await {
            Err(error) if error.kind == ErrorKind::AlreadyPresent => client.open_table(&create.name).await,
            made => made,
        })
        .await
    }
}
