//! RPC server: services behind a listener.
//!
//! Each connection is one task that reads calls and sends replies. Each running call is a separate task, unless it ends
//! at once on the task of its connection ([`Service::begins_on_connection`]). A protocol error on a connection closes
//! that connection only.

use engine::memory::{MemTracker, TrackedBytes};
use engine::sync::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::call_samples::SLOW_MS;
use super::connection;
pub use super::dispatch::RpcCounters;
use super::dispatch::{QueuedService, RpcShared, count};
use super::incoming_budget::IncomingBudget;
pub use super::latencies::RpcLatencies;
use super::line_limit::LineLimit;
use super::server_connection::ServerConnection;
pub use super::tracked_results::TrackedResults;
use super::{RpcConfig, Service};
use crate::env::{Env, Listener, Stream, TaskHandle};
use crate::security::ServerSecurity;

/// Builder of a server.
pub struct RpcServer {
    env: Env,
    config: RpcConfig,
    security: ServerSecurity,
    services: BTreeMap<&'static str, Arc<QueuedService>>,
    results: Arc<TrackedResults>,
    slow_call_ms: Arc<AtomicU64>,
}

impl RpcServer {
    pub fn new(env: Env, config: RpcConfig) -> RpcServer {
        let results = Arc::new(TrackedResults::new(&config, TrackedBytes::default()));
        let slow_call_ms = Arc::new(AtomicU64::new(SLOW_MS));
        let security = ServerSecurity::default();
        RpcServer { env, config, security, services: BTreeMap::new(), results, slow_call_ms }
    }

    /// Sets the server's credentials and verifiers. Without them there is neither TLS nor a proof of identity.
    #[must_use]
    pub fn with_security(mut self, security: ServerSecurity) -> RpcServer {
        self.security = security;
        self
    }

    /// Counts the memory of cached replies below this tracker. Order: before [`RpcServer::results`], which returns
    /// those that are counted.
    #[must_use]
    pub fn with_memory(mut self, memory: &Arc<MemTracker>) -> RpcServer {
        let replies = TrackedBytes::new(&memory.child("cached-replies"));
        self.results = Arc::new(TrackedResults::new(&self.config, replies));
        self
    }

    /// Sets the number that holds the time of a call in milliseconds from which it is slow; 0 makes all calls slow. The
    /// owner may change it while the server runs.
    #[must_use]
    pub fn with_slow_call_ms(mut self, slow_call_ms: Arc<AtomicU64>) -> RpcServer {
        self.slow_call_ms = slow_call_ms;
        self
    }

    /// Adds a service; replaces one of the same name.
    #[must_use]
    #[allow(clippy::should_implement_trait, reason = "a service is added to a server, nothing is summed")]
    pub fn add(mut self, service: Arc<dyn Service>) -> RpcServer {
        let name = service.name();
        self.services.insert(name, Arc::new(QueuedService::new(service, &self.config)));
        self
    }

    /// Returns the cached replies, so that bootstrap can restore them from a log.
    pub fn results(&self) -> Arc<TrackedResults> {
        self.results.clone()
    }

    /// Starts to accept connections.
    pub fn serve(self, listener: Box<dyn Listener>) -> RpcHandle {
        let shared = Arc::new(RpcShared {
            env: self.env,
            config: self.config,
            security: self.security,
            services: self.services,
            results: self.results,
            counters: Arc::default(),
            latencies: Arc::default(),
            refusal_lines: LineLimit::default(),
            slow_call_ms: self.slow_call_ms,
            stopping: AtomicBool::new(false),
            calls: Arc::default(),
            incoming: IncomingBudget::default(),
        });
        let local_addr = listener.local_addr();
        let connections = Arc::new(Connections::default());
        let accept = accept(shared.clone(), listener, connections.clone());
        let accepting = shared.env.spawn("rpc accept", accept);
        RpcHandle { shared, local_addr, connections, accepting }
    }
}

/// Handle of a running server. The server continues if the handle is dropped.
pub struct RpcHandle {
    shared: Arc<RpcShared>,
    local_addr: SocketAddr,
    connections: Arc<Connections>,
    accepting: Box<dyn TaskHandle>,
}

impl RpcHandle {
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    pub fn results(&self) -> Arc<TrackedResults> {
        self.shared.results.clone()
    }

    /// Returns a function that counts the calls in the queues of all services, and that keeps no service alive.
    pub fn queued_calls(&self) -> impl Fn() -> u64 + Send + Sync + use<> {
        let shared = Arc::downgrade(&self.shared);
        move || {
            let Some(shared) = shared.upgrade() else { return 0 };
            shared.services.values().map(|service| service.waiting() as u64).sum()
        }
    }

    /// Returns the bytes of long incomplete requests, of all connections together.
    pub fn incoming_bytes(&self) -> u64 {
        self.shared.incoming.bytes()
    }

    pub fn latencies(&self) -> Arc<RpcLatencies> {
        self.shared.latencies.clone()
    }

    pub fn counters(&self) -> Arc<RpcCounters> {
        self.shared.counters.clone()
    }

    /// Stops the server in order. No connection is accepted any more, queued calls fail with
    /// ERROR_UNAVAILABLE, and running calls have the time `grace` to end. Then all connections are closed.
    pub async fn shutdown(&self, grace: Duration) {
        self.shared.stopping.store(true, Ordering::Release);
        self.accepting.abort();
        self.shared.services.values().for_each(|service| service.reject_queued());
        self.shared.env.timeout(grace, self.all_calls_done()).await;
        self.connections.finish();
        self.shared.env.timeout(CLOSING, self.connections.all_connections_closed()).await;
        self.connections.abort();
    }

    async fn all_calls_done(&self) {
        loop {
            let replied = self.shared.calls.all_replied.notified();
            if self.shared.calls.count.load(Ordering::Acquire) == 0 {
                return;
            }
            replied.await;
        }
    }
}

/// Time for which a stopping server waits until queued replies are sent.
const CLOSING: Duration = Duration::from_secs(1);

/// Open connections, including those in negotiation.
#[derive(Default)]
struct Connections {
    open: Mutex<OpenConnections>,
    closed: Notify,
}

#[derive(Default)]
struct OpenConnections {
    by_id: BTreeMap<u64, OpenConnection>,
    /// Ids of connections in negotiation, the oldest first.
    negotiating: BTreeSet<u64>,
}

impl OpenConnections {
    fn remove(&mut self, id: u64) -> Option<OpenConnection> {
        self.negotiating.remove(&id);
        self.by_id.remove(&id)
    }
}

#[derive(Default)]
struct OpenConnection {
    task: Option<Box<dyn TaskHandle>>,
    connection: Option<Arc<ServerConnection>>,
}

impl Connections {
    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock()
    }

    fn count(&self) -> usize {
        self.open().by_id.len()
    }

    fn remove(&self, id: u64) {
        self.open().remove(id);
        self.closed.notify_waiters();
    }

    /// Registers a connection in negotiation. Returns the oldest other one if there are more than `negotiations_max`.
    fn insert(&self, id: u64, negotiations_max: usize) -> Option<OpenConnection> {
        let mut open = self.open();
        open.by_id.insert(id, OpenConnection::default());
        open.negotiating.insert(id);
        let oldest = *open.negotiating.first()?;
        if open.negotiating.len() > negotiations_max { open.remove(oldest) } else { None }
    }

    /// Closes negotiated connections once their replies are sent, and aborts the others.
    fn finish(&self) {
        self.open().by_id.retain(|_, open| {
            match (&open.connection, &open.task) {
                (Some(connection), _) => connection.finish(),
                (None, Some(task)) => task.abort(),
                (None, None) => {}
            }
            open.connection.is_some()
        });
    }

    async fn all_connections_closed(&self) {
        loop {
            let closed = self.closed.notified();
            if self.open().by_id.is_empty() {
                return;
            }
            closed.await;
        }
    }

    fn abort(&self) {
        let open = std::mem::take(&mut *self.open());
        open.by_id.into_values().filter_map(|open| open.task).for_each(|task| task.abort());
    }
}

/// Pause after a failed accept. The usual cause, no free file descriptor, does not go away at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

async fn accept(shared: Arc<RpcShared>, mut listener: Box<dyn Listener>, connections: Arc<Connections>) {
    let (mut id, mut refuses) = (0, false);
    loop {
        match listener.accept().await {
            // The stream is dropped, which closes it.
            Ok((_, remote)) if connections.count() >= shared.config.connections_max => {
                // The first of many is logged: refused clients try again at once.
                let limit = shared.config.connections_max;
                if !std::mem::replace(&mut refuses, true) {
                    tracing::warn!(%remote, limit, "too many connections, further ones are refused");
                }
            }
            Ok((stream, remote)) => {
                refuses = false;
                id += 1;
                open(&shared, &connections, id, stream, remote);
            }
            Err(error) => {
                tracing::warn!(%error, "accepting a connection failed");
                shared.env.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Removes a connection when its task ends, also when it is aborted.
struct ConnectionGuard {
    shared: Arc<RpcShared>,
    connections: Arc<Connections>,
    id: u64,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.shared.counters.connections_open.fetch_sub(1, Ordering::Relaxed);
        self.connections.remove(self.id);
    }
}

fn open(
    shared: &Arc<RpcShared>,
    connections: &Arc<Connections>,
    id: u64,
    stream: Stream,
    remote: SocketAddr,
) {
    count(&shared.counters.connections_accepted);
    count(&shared.counters.connections_open);
    if let Some(oldest) = connections.insert(id, shared.config.negotiations_max) {
        count(&shared.counters.negotiations_failed);
        shared.env.observer.mark("rpc: too many connections in negotiation");
        oldest.task.iter().for_each(|task| task.abort());
    }
    let task = shared.env.spawn("rpc connection", {
        let guard = ConnectionGuard { shared: shared.clone(), connections: connections.clone(), id };
        async move {
            let ready = |connection| {
                let mut open = guard.connections.open();
                open.negotiating.remove(&id);
                if let Some(open) = open.by_id.get_mut(&id) {
                    open.connection = Some(connection);
                }
            };
            connection::serve(guard.shared.clone(), stream, remote, ready).await;
        }
    });
    if let Some(open) = connections.open().by_id.get_mut(&id) {
        open.task = Some(task);
    }
}
