//! Rust client of nyala and Apache Kudu clusters: DDL, batched exactly-once writes, scans as Arrow record batches.
//!
//! ```text
//! Client ── master_calls     leader lookup; DDL (tables)
//!   │   ╲── location_cache   tablet and replicas by partition key (tablet_calls)
//!   └─ Table ─┬─ Session     rows buffered per tablet (batch_order) ── write_batch: one batch, exactly once
//!             ├─ Scanner     tablet after tablet (scan_keys) ── arrow: columnar responses → RecordBatch
//!             └─ rows        structs and record batches over both; builder, error
//! ```
//!
//! # Quick start
//!
//! Creates a table, writes typed rows and reads some of them: `examples/quick_start.rs`, which tests run too.
//!
//! ```no_run
//! use nyala_client::predicate::Comparison;
//! use nyala_client::rows::{FromRow, ToRow};
//! use nyala_client::{Client, ClientResult, DataType};
//!
//! #[derive(Debug, ToRow, FromRow)]
//! struct Person {
//!     id: i64,
//!     name: Option<String>,
//! }
//!
//! #[tokio::main]
//! async fn main() -> ClientResult<()> {
//!     let client = Client::builder(["127.0.0.1:7051"]).connect().await?;
//!     let people = client
//!         .new_table("people")
//!         .key("id", DataType::Int64)
//!         .nullable("name", DataType::String)
//!         .hash(["id"], 4)
//!         .create()
//!         .await?;
//!
//!     let mut writer = people.writer();
//!     for id in 0..1000 {
//!         writer.insert(&Person { id, name: Some(format!("name {id}")) }).await?;
//!     }
//!     writer.finish().await?;
//!
//!     let few = people.select().filter("id", Comparison::Less, 3i64).your_writes();
//!     for person in few.collect::<Person>().await? {
//!         println!("{person:?}");
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # Two levels
//!
//! | to do | typed | below it, for encoded cells |
//! |---|---|---|
//! | connect | [`Client::builder`] | [`Client::connect`] with a [`ClientConfig`] |
//! | create a table | [`Client::new_table`] | [`CreateTable`] |
//! | write | [`Table::writer`]: structs, record batches | [`Session`]: cells, buffers, receipts |
//! | read | [`Table::select`]: streams of batches or structs | [`Scanner`] of a [`ScanSpec`] |
//! | errors | [`ClientError`] | [`Error`] with an [`ErrorKind`] |
//!
//! A dropped stream or scanner closes the scanner on its server, also if it is dropped outside of a runtime.
//!
//! # Concepts
//!
//! - **Session** ([`Session`]): a buffer of rows to write. Its [`FlushMode`] decides when rows are sent: `AutoSync` per
//!   row, `AutoBackground` at a watermark or after an interval, `Manual` on [`Session::flush`]. One flush sends one
//!   batch per tablet. A retried batch carries the same request id, so it takes effect once. The rows of one
//!   key that a task applies take effect in this order.
//! - **Scan** ([`ScanSpec`], [`Scanner`]): reads the tablets that can hold matching rows, one after the other. The
//!   [`ReadMode`] selects the snapshot. A fault-tolerant scan returns rows in key order per tablet and resumes at
//!   another replica after a failure.
//! - **Scan token** ([`ScanToken`]): a scan of one tablet, serializable and readable by other Kudu clients. Tokens
//!   allow reading a table in parallel. See [`Table::scan_tokens`] and [`Client::scan_serialized_token`].
//! - **Aggregation** ([`aggregation`]): a scan that returns counts, sums, minima and maxima of groups of rows, which
//!   the tablet servers compute. See [`rows::ScanBuilder::aggregate`].
//! - **Administration**: [`tables`] (DDL), [`replica_admin`] (servers, replicas, moves), [`rebalance`] (placement).
//!
//! # Errors
//!
//! Functions of the typed level return [`ClientError`], one variant per reaction: a timeout, refused rows with their
//! numbers, a mismatch with the schema that names table, row and column, and so on. The level below returns [`Error`];
//! its [`ErrorKind`] tells the caller how to react. `ClientError::from` converts it.
//!
//! Temporary failures are retried with [`backoff`] until the deadline of the operation
//! ([`ClientConfig::operation_timeout`], [`SessionConfig::timeout`]); then the kind is `TimedOut`. `Throttled` from
//! [`Session::apply`] means a full buffer: flush and apply again. Failures of single rows do not fail a flush; it
//! returns them as [`RowFailure`]s. After another failure of a write it is unknown whether its rows were written.
//!
//! # Dependencies
//!
//! The dependency tree contains no server, no allocator, no command line and no web server. All access to clock,
//! network and randomness goes through [`Env`], so the client also runs in a simulator.

// The derive macros name this crate as its users do.
extern crate self as nyala_client;

use engine::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::time::Instant;

use nyala_common::env::Env;
use nyala_common::rpc::client::Proxy;
use nyala_common::security::RpcCaller;

pub mod aggregation;
pub mod arrow;
mod authz_tokens;
pub mod backoff;
mod batch_order;
pub mod builder;
pub mod cell_text;
pub mod closing;
pub mod cluster_admin;
mod config;
pub mod definitions;
pub mod error;
mod history;
pub mod local;
mod local_scan;
pub mod location_cache;
mod master_calls;
pub mod predicate;
pub mod rebalance;
pub mod replica_admin;
mod request_ids;
pub mod rows;
pub mod scan;
pub mod scan_close;
mod scan_keys;
mod scan_spec;
pub mod scan_token;
pub mod security;
pub mod session;
mod session_config;
pub mod table;
pub mod tables;
mod tablet_calls;
pub mod upgrade;
mod write_batch;

pub use aggregation::{AggregationSpec, ColumnAggregate};
pub use config::ClientConfig;
pub use engine::error::{Error, ErrorKind, Result};
pub use engine::schema::row_ops::RowOpKind;
pub use engine::schema::{ColumnSchema, DataType, Schema, TypeAttributes};
pub use error::{ClientError, ClientResult};
pub use scan::Scanner;
pub use scan_spec::{ReadMode, ScanSpec};
pub use scan_token::ScanToken;
pub use security::SecurityConfig;
pub use session::{FlushMode, RowFailure, RowReceipt, Session, SessionConfig};
pub use table::Table;
pub use tables::{CreateTable, TableInfo, TableStatistics};

use authz_tokens::AuthzTokens;
use location_cache::LocationCache;
use master_calls::MasterCaller;
use request_ids::RequestIds;

/// RPC service of tablet servers for reads and writes.
pub(crate) const TABLET_SERVICE: &str = "kudu.tserver.TabletServerService";

/// A client of one cluster. Cheap to clone; clones share connections and caches.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    env: Env,
    config: ClientConfig,
    /// Name and credentials of all calls.
    caller: RpcCaller,
    masters: MasterCaller,
    servers: Mutex<BTreeMap<String, Proxy>>,
    locations: Mutex<BTreeMap<String, LocationCache>>,
    /// Times that all locations of a table were dropped, since the client began.
    locations_dropped: AtomicU64,
    authz_tokens: AuthzTokens,
    requests: Mutex<RequestIds>,
    /// Highest timestamp received from a server, 0 for none.
    observed: AtomicU64,
}

impl Client {
    /// Connects to a cluster: looks up the leader of its masters.
    pub async fn connect(env: Env, config: ClientConfig) -> Result<Client> {
        if config.masters.is_empty() {
            return Err(Error::invalid("no master addresses given"));
        }
        let id = env.random_uuid().to_string();
        let caller = config.security.caller(&env, &config.user)?;
        let masters = MasterCaller::new(&env, &config, &caller);
        let deadline = env.now().mono.after(config.connect_timeout);
        masters.find_leader(deadline).await?;
        let shared = Shared {
            env,
            config,
            caller,
            masters,
            servers: Mutex::default(),
            locations: Mutex::default(),
            locations_dropped: AtomicU64::new(0),
            authz_tokens: AuthzTokens::default(),
            requests: Mutex::new(RequestIds::new(id)),
            observed: AtomicU64::new(0),
        };
        Ok(Client { shared: Arc::new(shared) })
    }

    pub fn env(&self) -> &Env {
        &self.shared.env
    }

    pub fn config(&self) -> &ClientConfig {
        &self.shared.config
    }

    /// Returns the highest timestamp received so far. A client that observes it sees all operations that this client
    /// has seen.
    pub fn observed_timestamp(&self) -> Option<u64> {
        Some(self.shared.observed.load(Ordering::Acquire)).filter(|seen| *seen > 0)
    }

    /// Orders later operations of this client after `timestamp`, which another client observed.
    pub fn observe_timestamp(&self, timestamp: u64) {
        self.shared.observed.fetch_max(timestamp, Ordering::AcqRel);
    }

    /// Returns the deadline of an operation that starts now.
    fn deadline(&self) -> Instant {
        self.shared.env.now().mono.after(self.shared.config.operation_timeout)
    }

    /// Returns the deadline of an attempt that starts now.
    fn attempt_deadline(&self, deadline: Instant) -> Instant {
        deadline.min(self.shared.env.now().mono.after(self.shared.config.rpc_timeout))
    }

    fn server(&self, address: &str) -> Proxy {
        let mut servers = self.shared.servers.lock();
        let new = || Proxy::new(self.shared.env.clone(), address, &self.shared.caller);
        servers.entry(address.to_string()).or_insert_with(new).clone()
    }
}
