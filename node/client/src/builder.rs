//! Builders of clients and tables.

use std::time::Duration;

use engine::error::Error;
use engine::schema::key::encode_cell;
use engine::schema::partition_range::PartitionRange;
use engine::schema::{ColumnSchema, DataType, Schema};
use nyala_common::env::Env;
use nyala_common::env::os::{OsEnv, OsOptions};

use super::error::{ClientError, ClientResult, SchemaMismatch};
use super::rows::ToCell;
use super::{Client, ClientConfig, CreateTable, Table};

/// Builder of a [`Client`].
#[derive(Clone)]
#[must_use = "connect it"]
pub struct ClientBuilder {
    config: ClientConfig,
    env: Option<Env>,
}

impl Client {
    /// Builds a client of the cluster with these masters (`host` or `host:port`).
    pub fn builder(masters: impl IntoIterator<Item = impl Into<String>>) -> ClientBuilder {
        ClientBuilder { config: ClientConfig::new(masters), env: None }
    }
}

impl ClientBuilder {
    /// Sets the user name, which owns the tables that it creates.
    pub fn user(mut self, user: impl Into<String>) -> ClientBuilder {
        self.config.user = user.into();
        self
    }

    /// Sets the time limit of the search for the leading master.
    pub fn connect_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.config.connect_timeout = timeout;
        self
    }

    /// Sets the time limit of an operation, retries included.
    pub fn operation_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.config.operation_timeout = timeout;
        self
    }

    /// Sets the time limit of one attempt before another server is tried.
    pub fn rpc_timeout(mut self, timeout: Duration) -> ClientBuilder {
        self.config.rpc_timeout = timeout;
        self
    }

    /// Changes the configuration as a whole.
    pub fn configure(mut self, change: impl FnOnce(&mut ClientConfig)) -> ClientBuilder {
        change(&mut self.config);
        self
    }

    /// Sets the clock, network and random numbers, for example those of a simulator; by default the machine's.
    pub fn env(mut self, env: Env) -> ClientBuilder {
        self.env = Some(env);
        self
    }

    /// Connects to the cluster. Runs inside a tokio runtime with time and IO.
    pub async fn connect(self) -> ClientResult<Client> {
        let env = match self.env {
            Some(env) => env,
            None => OsEnv::new(&OsOptions::default())
                .map_err(|error| Error::io("ask this machine for its clock and memory", &error))?,
        };
        Ok(Client::connect(env, self.config).await?)
    }
}

/// Builder of a new table. Columns of the primary key come first.
#[derive(Clone)]
#[must_use = "create it"]
pub struct TableBuilder {
    client: Client,
    name: String,
    columns: Vec<ColumnSchema>,
    keys: usize,
    hash: Vec<(Vec<String>, u32)>,
    range: Vec<String>,
    ranges: Vec<PartitionRange>,
    replicas: Option<i32>,
    owner: Option<String>,
    comment: Option<String>,
    /// The first fault.
    fault: ClientResult<()>,
}

impl Client {
    /// Builds a table of this name; [`TableBuilder::create`] creates it.
    pub fn new_table(&self, name: impl Into<String>) -> TableBuilder {
        TableBuilder {
            client: self.clone(),
            name: name.into(),
            columns: Vec::new(),
            keys: 0,
            hash: Vec::new(),
            range: Vec::new(),
            ranges: Vec::new(),
            replicas: None,
            owner: None,
            comment: None,
            fault: Ok(()),
        }
    }
}

impl TableBuilder {
    /// Adds a column of the primary key.
    pub fn key(self, name: &str, ty: DataType) -> TableBuilder {
        self.key_column(ColumnSchema::new(0, name, ty))
    }

    /// Adds a column of the primary key with attributes such as an encoding.
    pub fn key_column(mut self, column: ColumnSchema) -> TableBuilder {
        if self.keys < self.columns.len() {
            let reason = "a key column comes before all other columns; declare it earlier";
            self.fail(SchemaMismatch::of_column(&column.name, reason));
        }
        self.keys += 1;
        self.column_with(column)
    }

    /// Adds a column that is NOT NULL.
    pub fn column(self, name: &str, ty: DataType) -> TableBuilder {
        self.column_with(ColumnSchema::new(0, name, ty))
    }

    /// Adds a nullable column.
    pub fn nullable(self, name: &str, ty: DataType) -> TableBuilder {
        self.column_with(ColumnSchema::new(0, name, ty).nullable())
    }

    /// Adds a column with attributes such as the precision of a decimal, a default or an encoding.
    pub fn column_with(mut self, column: ColumnSchema) -> TableBuilder {
        let id = engine::ids::ColumnId(self.columns.len() as u32);
        self.columns.push(ColumnSchema { id, ..column });
        self
    }

    /// Adds hash partitioning over `buckets` by these key columns.
    pub fn hash(
        mut self,
        columns: impl IntoIterator<Item = impl Into<String>>,
        buckets: u32,
    ) -> TableBuilder {
        self.hash.push((columns.into_iter().map(Into::into).collect(), buckets));
        self
    }

    /// Sets range partitioning by these key columns, with one unbounded range.
    pub fn range(mut self, columns: impl IntoIterator<Item = impl Into<String>>) -> TableBuilder {
        self.range = columns.into_iter().map(Into::into).collect();
        self
    }

    /// Adds a range partition by one key column: from `lower` (inclusive) to `upper` (exclusive); `None` is unbounded.
    /// The table then has no other ranges than those added.
    pub fn range_partition<T: ToCell>(
        mut self,
        column: &str,
        lower: Option<T>,
        upper: Option<T>,
    ) -> TableBuilder {
        if self.range.is_empty() {
            self.range = vec![column.to_string()];
        }
        if self.range != [column] {
            let reason = "a range with one bound needs range partitioning by this column only";
            self.fail(SchemaMismatch::of_column(column, reason));
        }
        match self.bounds(column, &lower, &upper) {
            Ok(range) => self.ranges.push(range),
            Err(error) => self.fail_with(error),
        }
        self
    }

    fn bounds<T: ToCell>(
        &self,
        column: &str,
        lower: &Option<T>,
        upper: &Option<T>,
    ) -> ClientResult<PartitionRange> {
        let found = self.columns.iter().find(|known| known.name == column);
        let unknown = || {
            SchemaMismatch::of_column(column, "the table has no such column; declare it before its ranges")
        };
        let column = found.ok_or_else(unknown)?;
        let bound = |value: &Option<T>| {
            let (mut cell, mut key) = (Vec::new(), Vec::new());
            let Some(value) = value else { return Ok(key) };
            value.to_cell(column, &mut cell)?;
            encode_cell(column.ty.physical(), &cell, true, &mut key);
            Ok::<_, ClientError>(key)
        };
        Ok(PartitionRange::new(bound(lower)?, bound(upper)?)?)
    }

    /// Sets the replication factor; by default the cluster's.
    pub fn replicas(mut self, replicas: i32) -> TableBuilder {
        self.replicas = Some(replicas);
        self
    }

    /// Sets the owner; by default the user of the client.
    pub fn owner(mut self, owner: impl Into<String>) -> TableBuilder {
        self.owner = Some(owner.into());
        self
    }

    /// Sets the comment.
    pub fn comment(mut self, comment: impl Into<String>) -> TableBuilder {
        self.comment = Some(comment.into());
        self
    }

    /// Creates the table and waits until all its tablets are running.
    pub async fn create(self) -> ClientResult<Table> {
        let name = self.name.clone();
        self.fault.map_err(|error| error.in_table(&name, None))?;
        let failed = |error: Error| ClientError::from(error.context(format_args!("creating table {name}")));
        let schema = Schema::new(self.columns, self.keys).map_err(failed)?;
        let mut create = CreateTable::new(self.name, schema);
        for (columns, buckets) in &self.hash {
            let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
            create = create.hash(&columns, *buckets).map_err(failed)?;
        }
        let range: Vec<&str> = self.range.iter().map(String::as_str).collect();
        create = create.range(&range).map_err(failed)?;
        create.ranges = self.ranges;
        (create.replicas, create.owner, create.comment) = (self.replicas, self.owner, self.comment);
        self.client.create_table(&create).await.map_err(failed)
    }

    fn fail(&mut self, mismatch: SchemaMismatch) {
        self.fail_with(mismatch.into());
    }

    fn fail_with(&mut self, error: ClientError) {
        self.fault = std::mem::replace(&mut self.fault, Ok(())).and(Err(error));
    }
}
