//! The Postgres protocol: a server for psql, drivers and tools, in front of a cluster.
//!
//! ```text
//! socket ── connection (pipe: limits, end of the client) ── pgwire: messages ──┬─ startup (scram)
//!                                                                              └─ query ── commands: SET, BEGIN
//!                                                                                   ├── parameters ── executor
//!                                                                                   └── encode: rows
//! ```
//!
//! - A statement reads one snapshot. There are no transactions: a block may only read.
//! - Invariant: without passwords the server listens at loopback addresses only.
//! - A cancel request, or the end of a connection, drops the running statement, which closes its scanners.
//!
//! All clients act as the user of this program towards the cluster. Not here: TLS; a proxy or a tunnel adds it.

mod cancel;
mod commands;
mod connection;
mod encode;
mod numeric;
mod parameters;
mod pipe;
mod query;
mod scram;
mod shared;
mod startup;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nyala_client::Client;
use nyala_common::env::{Env, Listener, TaskHandle};

use super::error::{SqlError, state};
use super::executor::Executor;
use cancel::Cancels;
pub use scram::Passwords;
pub use shared::ServeConfig;
use shared::Shared;

/// Connections above the limit that are told so at once; more are closed without a word.
const REFUSALS_MAX: usize = 32;

/// A server that accepts connections until it is stopped.
pub struct SqlServer {
    env: Env,
    address: SocketAddr,
    accepting: Box<dyn TaskHandle>,
    shared: Arc<Shared>,
}

impl SqlServer {
    /// Starts a server. Fails if it would be open to other hosts without passwords.
    pub async fn start(client: Client, config: ServeConfig) -> Result<SqlServer, SqlError> {
        if !config.listen.ip().is_loopback() && config.passwords.is_none() {
            let listen = config.listen;
            return Err(SqlError::new(format!(
                "--listen {listen}: other hosts could connect without a password; give --password-file, or listen at \
                 127.0.0.1"
            )));
        }
        let env = client.env().clone();
        let mut executor = Executor::new(client);
        executor.fault_tolerant = config.fault_tolerant;
        executor.files = false;
        let listener = env.net.listen(config.listen).await.map_err(|error| {
            let message = format!("--listen {}: {error}", config.listen);
            SqlError::with_state(state::UNAVAILABLE, message)
        })?;
        let address = listener.local_addr();
        let cancels = Arc::new(Cancels::default());
        let (processes, connections) = (Arc::default(), AtomicUsize::new(0));
        let shared = Arc::new(Shared { env: env.clone(), executor, config, cancels, processes, connections });
        let accepting = env.spawn("accept SQL clients", accept(shared.clone(), listener));
        Ok(SqlServer { env, address, accepting, shared })
    }

    /// Returns the address that the server listens at.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of connections.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Acquire)
    }

    /// Ends all connections and their statements.
    pub async fn stop(self) {
        self.env.end(&[self.accepting]).await;
        self.shared.cancels.close_all();
    }
}

async fn accept(shared: Arc<Shared>, mut listener: Box<dyn Listener>) {
    /// Wait after a failed accept: the process has no file descriptors left, for example.
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(50);
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            shared.env.sleep(PAUSE).await;
            continue;
        };
        let before = shared.connections.fetch_add(1, Ordering::AcqRel);
        let guard = ConnectionGuard(shared.clone());
        let max = shared.config.connections_max;
        if before >= max + REFUSALS_MAX {
            continue;
        }
        let is_refused = before >= max;
        shared.env.spawn("SQL client", async move {
            let guard = guard;
            connection::serve(&guard.0, stream, peer, is_refused).await;
        });
    }
}

/// Counts a connection until it is dropped.
struct ConnectionGuard(Arc<Shared>);

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}
