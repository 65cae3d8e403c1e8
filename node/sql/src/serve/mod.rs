//! Servers of the Postgres protocol and of Arrow Flight SQL, for psql, drivers and tools, in front of a cluster.
//!
//! ```text
//! socket ── encryption ── connection (pipe: limits, end of the client) ── pgwire: messages
//!    │        ├── startup (scram, token) ── access: whose rights
//!    │        └── query (prepared) ── commands: SET, BEGIN
//!    │              ├── parameters ── executor
//!    │              └── encode: rows ── response
//!    └── flight: gRPC ── sessions (access) ── service ── executor
//! ```
//!
//! - The statements of all clients share one limit of memory (`memory`). Prepared ones have another for each connection
//!   (`prepared`), or for each user of Flight SQL.
//! - A statement reads one snapshot. There are no transactions: a block may only read.
//! - Connections whose clients have not proved who they are take no place of others (`places`).
//! - Invariant: other hosts than this one prove who they are, over TLS. Only `allow_plaintext` lifts the second.
//! - A cancel request, or the end of a connection, drops the running statement, which closes its scanners.

mod access;
mod cancel;
mod commands;
mod config;
mod connection;
mod encode;
mod encryption;
mod flight;
mod memory;
mod numeric;
mod parameters;
mod pipe;
mod places;
mod prepared;
mod probe;
mod query;
mod response;
mod scram;
mod settings;
mod shared;
mod startup;
mod statement_limits;
mod statement_timer;
mod tickets;
mod token;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nyala_common::env::{Env, Listener, TaskHandle};

use super::error::{SqlError, state};
pub use access::ClusterAccess;
use access::{Access, Proof};
use cancel::Cancels;
pub use config::ServeConfig;
pub use encryption::Encryption;
use flight::FlightServer;
use places::Places;
pub use probe::requires_authentication;
pub use scram::Passwords;
use shared::{AcceptedConnection, Shared, accept};

/// Longest wait for connections at the end of the server: a client that does not read keeps its connection open.
const END_TIME: Duration = Duration::from_secs(2);

/// A server that accepts connections until it is stopped.
pub struct SqlServer {
    env: Env,
    address: SocketAddr,
    accepting: Box<dyn TaskHandle>,
    flight: Option<FlightServer>,
    shared: Arc<Shared>,
}

impl SqlServer {
    /// Starts a server. Fails if it would be open to other hosts without proof of who they are, or without encryption.
    pub async fn start(cluster: ClusterAccess, config: ServeConfig) -> Result<SqlServer, SqlError> {
        let access = Access::new(cluster, &config)?;
        check("--listen", config.listen, &access, &config)?;
        if let Some(flight_listen) = config.flight_listen {
            check("--flight-listen", flight_listen, &access, &config)?;
        }
        let env = access.env().clone();
        let listener = listen(&env, "--listen", config.listen).await?;
        let flight_listener = match config.flight_listen {
            Some(address) => Some(listen(&env, "--flight-listen", address).await?),
            None => None,
        };
        let address = listener.local_addr();
        let cancels = Arc::new(Cancels::default());
        let (processes, places) = (Arc::default(), Places::new(config.connections_max, cancels.stopped()));
        let shared = Arc::new(Shared { env: env.clone(), access, config, cancels, processes, places });
        let serving = shared.clone();
        let serve = move |accepted: AcceptedConnection| {
            let shared = serving.clone();
            serving.env.spawn("SQL client", async move { connection::serve(&shared, accepted).await });
        };
        let flight = flight_listener.map(|listener| FlightServer::start(&shared, listener)).transpose()?;
        let accepting = env.spawn("accept SQL clients", accept(shared.clone(), listener, serve));
        Ok(SqlServer { env, address, accepting, flight, shared })
    }

    /// Returns the address of the Postgres protocol.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address of Flight SQL, if it is served.
    pub fn flight_address(&self) -> Option<SocketAddr> {
        self.flight.as_ref().map(FlightServer::address)
    }

    /// Returns the number of connections.
    pub fn connections(&self) -> usize {
        self.shared.places.len()
    }

    /// Ends all connections and their statements, and waits until they are dropped: then the tasks run that drop their
    /// unfinished tables and close their scanners, and clients know why the connections end.
    pub async fn stop(self) {
        let mut tasks = vec![self.accepting];
        if let Some(flight) = self.flight {
            tasks.extend(flight.into_tasks());
        }
        self.env.end(&tasks).await;
        self.shared.cancels.close_all();
        self.env.timeout(END_TIME, self.shared.places.wait_until_empty()).await;
    }
}

async fn listen(env: &Env, option: &str, address: SocketAddr) -> Result<Box<dyn Listener>, SqlError> {
    let failed = |error| SqlError::with_state(state::UNAVAILABLE, format!("{option} {address}: {error}"));
    env.net.listen(address).await.map_err(failed)
}

/// Refuses an address that other hosts reach if they need prove nothing, or would send secrets without encryption.
fn check(option: &str, address: SocketAddr, access: &Access, config: &ServeConfig) -> Result<(), SqlError> {
    if address.ip().is_loopback() {
        return Ok(());
    }
    let refused =
        |what: &str| Err(SqlError::new(format!("{option} {address}: {what}, or listen at 127.0.0.1")));
    match (access.proof(), &config.encryption) {
        (Proof::None, _) => refused("other hosts could connect without a password; give --password-file"),
        (_, None) if !config.allow_plaintext => refused(
            "other hosts would connect without encryption; give --tls-cert-file and --tls-key-file, or \
             --allow-plaintext if the network encrypts",
        ),
        _ => Ok(()),
    }
}
