//! The reads at the end of a run of a determined plan: every table's columns and rows, and checksums of all replicas.
//!
//! Tablets are read side by side at one timestamp: a follower that hibernates learns of it with its leader's next
//! heartbeat only.

use std::collections::BTreeMap;

use engine::error::Error;
use engine::schema::DataType;
use engine::time::Instant;
use futures_util::future::join_all;
use nyala_client::{Client, Table};
use nyala_common::env::Env;
use sim_plan::tables::spec::{CompressionWord, EncodingWord};
use sim_plan::tables::{ColumnKind, ColumnSpec, ModelTable, TableSpec, TypeWord};

use super::model_client::read_tablet;
use super::{Workload, tables, until};
use crate::final_state::{FinalTable, ReplicaSum};
use crate::history::{CallOutcome, ClientRequest, HybridStamp, TableNo};
use crate::model_oracle::{TableCall, WriteOutcome};
use crate::oracle::bank::BANK;
use crate::wire::client::TabletPlace;

/// A table and its tablets, as found at the end.
struct FoundTable {
    table: Table,
    shape: ModelTable,
    columns: Vec<String>,
    id: String,
    places: Vec<TabletPlace>,
}

impl Workload {
    /// Returns the workload of a determined plan: clients use the newest version of a table only, and repeat
    /// alterations that were certainly not executed.
    pub fn determined(plan: &sim_plan::Plan) -> Workload {
        Workload::with(plan, true)
    }

    /// Returns the numbers of the tables whose cells tell numbers.
    pub fn tables_of_numbers(&self) -> Vec<TableNo> {
        (0..TableNo::from(self.plan().cluster.tables)).chain([BANK]).collect()
    }

    pub fn table_name(number: TableNo) -> String {
        tables::name(number)
    }

    /// Returns the columns of a table of numbers, without its partitions.
    pub fn shape_of_numbers(&self, number: TableNo) -> ModelTable {
        let schema = self.table_of(&tables::name(number), number != BANK).schema;
        let keys = schema.num_key_columns() as u8;
        let column = |(at, column): (usize, &engine::schema::ColumnSchema)| ColumnSpec {
            table: 0,
            number: at as u8,
            name: column.name.clone(),
            kind: ColumnKind::plain(match column.ty {
                DataType::Int32 => TypeWord::Int32,
                DataType::String => TypeWord::String,
                _ => TypeWord::Int64,
            }),
            nullable: column.nullable,
            immutable: false,
            read: None,
            write: None,
            encoding: EncodingWord::Auto,
            compression: CompressionWord::Default,
        };
        let columns = schema.columns().iter().enumerate().map(column).collect();
        let spec = TableSpec { number: 0, keys, hash: Vec::new(), range: Vec::new() };
        ModelTable { spec, columns, ranges: Vec::new() }
    }

    /// Returns the incarnations of model tables that exist at the end, by their index.
    pub fn live_model_tables(&self) -> Vec<usize> {
        let state = self.state();
        state.model.tables.iter().filter(|table| !table.dropped).map(|table| table.current).collect()
    }

    /// Returns the writes and alterations whose outcome is not known, on which the rows at the end depend.
    pub fn undetermined(&self) -> Vec<String> {
        let mut found = Vec::new();
        for operation in self.history().operations().iter() {
            let is_write = matches!(operation.request, ClientRequest::Write { table, .. } if table != BANK);
            let is_lookup =
                matches!(&operation.request, ClientRequest::Other(what) if what.starts_with("look up"));
            let is_told = matches!(operation.outcome, CallOutcome::Written(_) | CallOutcome::Done);
            if (is_write || is_lookup) && !is_told {
                found.push(format!("an operation has no reply: {operation}"));
            }
        }
        for event in self.table_history().events().iter() {
            if let TableCall::Write { outcome: WriteOutcome::Unknown(_), .. } = &event.call {
                found.push(format!("a write has no reply: {event}"));
            }
        }
        let state = self.state();
        let frozen = state.model.tables.iter().enumerate().filter(|(_, table)| table.frozen || table.dropped);
        found.extend(
            frozen.map(|(at, _)| format!("model table {at}: the outcome of an alteration is unknown")),
        );
        found
    }

    /// Reads all tables of the cluster.
    pub async fn read_final_state(&self, env: &Env) -> Result<BTreeMap<String, FinalTable>, Error> {
        let client = self.connect(env).await;
        client.observe_timestamp(self.newest().max(self.state().model.newest));
        let deadline = env.now().mono.after(self.plan().quiet);
        let left = || deadline.since(env.now().mono);
        let list = until(env, left(), async || client.list_tables(None).await).await?;
        let mut found = BTreeMap::new();
        for info in list {
            let table =
                until(env, left(), async || self.find(env, &client, &info.name, deadline).await).await?;
            found.insert(info.name, table);
        }
        let at = self.final_reads(env, &client).max(self.state().model.newest + 1);
        env.sleep(self.plan().cluster.raft_heartbeat * 2).await;
        let mut read = BTreeMap::new();
        for (name, table) in &found {
            read.insert(name.clone(), self.read_table(env, table, at, deadline).await?);
        }
        Ok(read)
    }

    /// Opens a table and finds its tablets, which must have all of their replicas.
    async fn find(
        &self,
        env: &Env,
        client: &Client,
        name: &str,
        deadline: Instant,
    ) -> Result<FoundTable, Error> {
        let table = client.open_table(name).await?;
        let (id, columns, shape, places) = read_tablet::find(self, env, name, deadline).await?;
        let want = usize::from(self.plan().cluster.replicas);
        match places.iter().find(|place| place.replicas.len() != want || !place.replicas[0].leads) {
            Some(place) => {
                Err(Error::not_ready(format!("tablet {} has no leader or too few replicas", place.id)))
            }
            None => Ok(FoundTable { table, shape, columns, id, places }),
        }
    }

    async fn read_table(
        &self,
        env: &Env,
        found: &FoundTable,
        at: HybridStamp,
        deadline: Instant,
    ) -> Result<FinalTable, Error> {
        let mut read = FinalTable { columns: found.columns.clone(), ..FinalTable::default() };
        // A follower that lags refuses columns that it does not have yet.
        let rows = found.places.iter().map(|place| {
            until(env, deadline.since(env.now().mono), async || {
                read_tablet::rows(self, env, (&found.id, &found.shape), place, at, deadline).await
            })
        });
        let rows = join_all(rows).await.into_iter().collect::<Result<Vec<_>, Error>>()?;
        for (key, cells) in rows.into_iter().flatten() {
            if let Some(twice) = read.rows.insert(key.clone(), cells) {
                return Err(Error::corrupt(format!(
                    "table {}: two rows ({key}): ({twice})",
                    found.table.name()
                )));
            }
        }
        let sums = found.places.iter().map(|place| self.sums(env, &found.table, place, at, deadline));
        for (place, sums) in found.places.iter().zip(join_all(sums).await) {
            let (low, high) = &place.bounds;
            read.tablets.insert(format!("{}..{}", hex(low), hex(high)), sums?);
        }
        Ok(read)
    }

    /// Returns the checksums of a tablet's replicas, in order.
    async fn sums(
        &self,
        env: &Env,
        table: &Table,
        place: &TabletPlace,
        at: HybridStamp,
        deadline: Instant,
    ) -> Result<Vec<ReplicaSum>, Error> {
        let of_replica = place.replicas.iter().map(|replica| {
            until(env, deadline.since(env.now().mono), async || {
                self.checksum(env, table, &place.id, &replica.address, at).await
            })
        });
        let sums = join_all(of_replica).await.into_iter().collect::<Result<Vec<_>, Error>>()?;
        let mut sums: Vec<ReplicaSum> =
            sums.into_iter().map(|(checksum, rows)| ReplicaSum { checksum, rows }).collect();
        sums.sort_unstable();
        Ok(sums)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
