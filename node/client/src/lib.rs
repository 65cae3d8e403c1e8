//! The client: knows where tablets are, batches writes, retries what may be retried, hands scans on as Arrow.
//!
//! ```text
//! Client ── masters.rs    finds the leader; DDL (ddl.rs)
//!   │   ╲── locations.rs  which tablet holds a key, and who serves it
//!   └─ Table ─┬─ Session  session.rs: buffers rows per tablet ── write.rs: one batch, exactly once
//!             └─ Scanner  scan.rs: tablet after tablet ── arrow.rs: columnar replies → RecordBatch
//! ```
//!
//! Every call ends by a deadline. What failed for a passing reason is repeated after a random, growing wait
//! ([`backoff`]); a write that is repeated carries the same request id, so that it happens once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use engine::time::Instant;

use nyala_common::env::Env;
use nyala_common::rpc::client::Proxy;

pub mod arrow;
pub mod backoff;
pub mod tables;
pub mod location_cache;
mod master_calls;
pub mod predicate;
pub mod rebalance;
pub mod replica_admin;
mod request_ids;
pub mod scan;
pub mod session;
pub mod table;
mod tablet_calls;
pub mod scan_token;
pub mod cell_text;
mod write_batch;

pub use tables::{CreateTable, TableInfo, TableStatistics};
pub use engine::error::{Error, ErrorKind, Result};
pub use scan::{ReadMode, ScanSpec, Scanner};
pub use session::{FlushMode, RowReceipt, RowFailure, Session, SessionConfig};
pub use table::Table;
pub use scan_token::ScanToken;

use location_cache::LocationCache;
use master_calls::MasterCaller;
use request_ids::RequestIds;

/// The name under which tablet servers offer reads and writes.
pub(crate) const TABLET_SERVICE: &str = "kudu.tserver.TabletServerService";

/// How a client behaves.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// `host:port` of every master, or of some: the others are learnt. Without a port, Kudu's 7051.
    pub masters: Vec<String>,
    /// The name under which this client speaks; owner of the tables it creates.
    pub user: String,
    /// How long finding the leading master may take when the client connects.
    pub connect_timeout: Duration,
    /// How long an operation may take, retries included.
    pub operation_timeout: Duration,
    /// How long one attempt may take before another server is tried.
    pub rpc_timeout: Duration,
}

impl ClientConfig {
    pub fn new(masters: impl IntoIterator<Item = impl Into<String>>) -> ClientConfig {
        ClientConfig {
            masters: masters.into_iter().map(Into::into).collect(),
            user: "nyala".to_string(),
            connect_timeout: Duration::from_secs(30),
            operation_timeout: Duration::from_secs(30),
            rpc_timeout: Duration::from_secs(10),
        }
    }
}

/// A connection to a cluster. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    env: Env,
    config: ClientConfig,
    masters: MasterCaller,
    servers: Mutex<BTreeMap<String, Proxy>>,
    locations: Mutex<BTreeMap<String, LocationCache>>,
    requests: Mutex<RequestIds>,
    /// The newest timestamp seen, 0 for none.
    observed: AtomicU64,
}

impl Client {
    /// Connects to the cluster: finds the leader of its masters.
    pub async fn connect(env: Env, config: ClientConfig) -> Result<Client> {
        if config.masters.is_empty() {
            return Err(Error::invalid("no master addresses given"));
        }
        let id = env.random_uuid().to_string();
        let masters = MasterCaller::new(&env, &config);
        let deadline = env.now().mono.after(config.connect_timeout);
        masters.find_leader(deadline).await?;
        let shared = Shared {
            env,
            config,
            masters,
            servers: Mutex::default(),
            locations: Mutex::default(),
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

    /// The newest timestamp this client has seen. Whoever begins there sees everything this client has seen.
    pub fn observed_timestamp(&self) -> Option<u64> {
        Some(self.shared.observed.load(Ordering::Acquire)).filter(|seen| *seen > 0)
    }

    /// Makes later operations of this client happen after `timestamp`, seen by another client.
    pub fn observe_timestamp(&self, timestamp: u64) {
        self.shared.observed.fetch_max(timestamp, Ordering::AcqRel);
    }

    /// When an operation that begins now has to end.
    fn deadline(&self) -> Instant {
        self.shared.env.now().mono.after(self.shared.config.operation_timeout)
    }

    /// When an attempt that begins now has to end.
    fn attempt_deadline(&self, deadline: Instant) -> Instant {
        deadline.min(self.shared.env.now().mono.after(self.shared.config.rpc_timeout))
    }

    fn server(&self, address: &str) -> Proxy {
        let mut servers = lock(&self.shared.servers);
        let new = || Proxy::new(self.shared.env.clone(), address, &self.shared.config.user);
        servers.entry(address.to_string()).or_insert_with(new).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no one panics holding this lock")
}
