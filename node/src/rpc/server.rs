//! A server: services behind a listener.
//!
//! Each connection is one task that reads calls and sends replies; each call that runs is a task of its own. A
//! connection's nonsense ends that connection and nothing else.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;

use super::connection::{self, Connection};
pub use super::dispatch::{Counters, Results};
use super::dispatch::{Queued, Shared, count};
use super::{RpcConfig, Service};
use crate::env::{Env, Listener, Stream, TaskHandle};

/// A server that is being put together.
pub struct RpcServer {
    env: Env,
    config: RpcConfig,
    services: BTreeMap<&'static str, Arc<Queued>>,
    results: Arc<Results>,
}

impl RpcServer {
    pub fn new(env: Env, config: RpcConfig) -> RpcServer {
        let results = Arc::new(Results::new(&config));
        RpcServer { env, config, services: BTreeMap::new(), results }
    }

    /// Adds a service, in the place of one of the same name.
    #[must_use]
    #[allow(clippy::should_implement_trait, reason = "a service is added to a server, nothing is summed")]
    pub fn add(mut self, service: Arc<dyn Service>) -> RpcServer {
        let name = service.name();
        self.services.insert(name, Arc::new(Queued::new(service, &self.config)));
        self
    }

    /// The remembered replies, for whoever rebuilds them from a log.
    pub fn results(&self) -> Arc<Results> {
        self.results.clone()
    }

    /// Begins to accept connections.
    pub fn serve(self, listener: Box<dyn Listener>) -> RpcHandle {
        let shared = Arc::new(Shared {
            env: self.env,
            config: self.config,
            services: self.services,
            results: self.results,
            counters: Arc::default(),
            stopping: AtomicBool::new(false),
            in_flight: AtomicU64::new(0),
            all_answered: Notify::new(),
        });
        let local_addr = listener.local_addr();
        let connections = Arc::new(Connections::default());
        let accept = accept(shared.clone(), listener, connections.clone());
        let accepting = shared.env.spawn("rpc accept", accept);
        RpcHandle { shared, local_addr, connections, accepting }
    }
}

/// A running server. Dropping the handle lets it run on.
pub struct RpcHandle {
    shared: Arc<Shared>,
    local_addr: SocketAddr,
    connections: Arc<Connections>,
    accepting: Box<dyn TaskHandle>,
}

impl RpcHandle {
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    pub fn results(&self) -> Arc<Results> {
        self.shared.results.clone()
    }

    pub fn counters(&self) -> Arc<Counters> {
        self.shared.counters.clone()
    }

    /// Stops in order: no new connection, calls that have not begun are answered FATAL_SERVER_SHUTTING_DOWN, those
    /// that run have up to `grace` to be answered. Then every connection is closed.
    pub async fn shutdown(&self, grace: Duration) {
        self.shared.stopping.store(true, Ordering::Release);
        self.accepting.abort();
        self.shared.services.values().for_each(|service| service.refuse_waiting());
        self.shared.env.timeout(grace, self.all_answered()).await;
        self.connections.finish();
        self.shared.env.timeout(CLOSING, self.connections.all_gone()).await;
        self.connections.abort();
    }

    async fn all_answered(&self) {
        loop {
            let answered = self.shared.all_answered.notified();
            if self.shared.in_flight.load(Ordering::Acquire) == 0 {
                return;
            }
            answered.await;
        }
    }
}

/// How long replies already given may take to leave when the server stops.
const CLOSING: Duration = Duration::from_secs(1);

/// The connections that are open, and those in negotiation.
#[derive(Default)]
struct Connections {
    open: Mutex<BTreeMap<u64, Open>>,
    gone: Notify,
}

#[derive(Default)]
struct Open {
    task: Option<Box<dyn TaskHandle>>,
    connection: Option<Arc<Connection>>,
}

impl Connections {
    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Open>> {
        self.open.lock().expect("no one panics holding this lock")
    }

    fn remove(&self, id: u64) {
        self.open().remove(&id);
        self.gone.notify_waiters();
    }

    /// Asks negotiated connections to end once their replies are sent, and drops the others.
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

    async fn all_gone(&self) {
        loop {
            let gone = self.gone.notified();
            if self.open().is_empty() {
                return;
            }
            gone.await;
        }
    }

    fn abort(&self) {
        let open = std::mem::take(&mut *self.open());
        open.into_values().filter_map(|open| open.task).for_each(|task| task.abort());
    }
}

/// A pause after a failed accept: what fails (no free descriptor) does not get better by trying at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

async fn accept(shared: Arc<Shared>, mut listener: Box<dyn Listener>, connections: Arc<Connections>) {
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

fn open(shared: &Arc<Shared>, connections: &Arc<Connections>, id: u64, stream: Stream, remote: SocketAddr) {
    count(&shared.counters.connections_accepted);
    count(&shared.counters.connections_open);
    connections.open().insert(id, Open::default());
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
