//! RPC server: services behind a listener.
//!
//! Each connection is one task that reads calls and sends replies; each running call is a separate task. A protocol
//! error on a connection closes that connection only.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;

use super::connection::{self, ServerConnection};
use super::dispatch::{QueuedService, RpcShared, count};
pub use super::dispatch::{RpcCounters, TrackedResults};
pub use super::latencies::RpcLatencies;
use super::{RpcConfig, Service};
use crate::env::{Env, Listener, Stream, TaskHandle};

/// Builder of a server.
pub struct RpcServer {
    env: Env,
    config: RpcConfig,
    services: BTreeMap<&'static str, Arc<QueuedService>>,
    results: Arc<TrackedResults>,
}

impl RpcServer {
    pub fn new(env: Env, config: RpcConfig) -> RpcServer {
        let results = Arc::new(TrackedResults::new(&config));
        RpcServer { env, config, services: BTreeMap::new(), results }
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
            services: self.services,
            results: self.results,
            counters: Arc::default(),
            latencies: Arc::default(),
            stopping: AtomicBool::new(false),
            in_flight: AtomicU64::new(0),
            all_replied: Notify::new(),
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

    pub fn latencies(&self) -> Arc<RpcLatencies> {
        self.shared.latencies.clone()
    }

    pub fn counters(&self) -> Arc<RpcCounters> {
        self.shared.counters.clone()
    }

    /// Stops the server in order. No connection is accepted any more, queued calls fail with
    /// FATAL_SERVER_SHUTTING_DOWN, and running calls have the time `grace` to end. Then all connections are closed.
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
            let replied = self.shared.all_replied.notified();
            if self.shared.in_flight.load(Ordering::Acquire) == 0 {
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
    open: Mutex<BTreeMap<u64, OpenConnection>>,
    closed: Notify,
}

#[derive(Default)]
struct OpenConnection {
    task: Option<Box<dyn TaskHandle>>,
    connection: Option<Arc<ServerConnection>>,
}

impl Connections {
    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, OpenConnection>> {
        self.open.lock().expect("no thread panics while it holds this lock")
    }

    fn remove(&self, id: u64) {
        self.open().remove(&id);
        self.closed.notify_waiters();
    }

    /// Closes negotiated connections once their replies are sent, and aborts the others.
    fn finish(&self) {
        self.open().retain(|_, open| {
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
            if self.open().is_empty() {
                return;
            }
            closed.await;
        }
    }

    fn abort(&self) {
        let open = std::mem::take(&mut *self.open());
        open.into_values().filter_map(|open| open.task).for_each(|task| task.abort());
    }
}

/// Pause after a failed accept. The usual cause, no free file descriptor, does not go away at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

async fn accept(shared: Arc<RpcShared>, mut listener: Box<dyn Listener>, connections: Arc<Connections>) {
    let mut id = 0;
    loop {
        match listener.accept().await {
            Ok((stream, remote)) => {
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

fn open(
    shared: &Arc<RpcShared>,
    connections: &Arc<Connections>,
    id: u64,
    stream: Stream,
    remote: SocketAddr,
) {
    count(&shared.counters.connections_accepted);
    count(&shared.counters.connections_open);
    connections.open().insert(id, OpenConnection::default());
    let task = shared.env.spawn("rpc connection", {
        let (shared, connections) = (shared.clone(), connections.clone());
        async move {
            let ready = |connection| {
                if let Some(open) = connections.open().get_mut(&id) {
                    open.connection = Some(connection);
                }
            };
            connection::serve(shared.clone(), stream, remote, ready).await;
            shared.counters.connections_open.fetch_sub(1, Ordering::Relaxed);
            connections.remove(id);
        }
    });
    if let Some(open) = connections.open().get_mut(&id) {
        open.task = Some(task);
    }
}
