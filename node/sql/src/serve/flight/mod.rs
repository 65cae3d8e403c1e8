//! Arrow Flight SQL: a server for ADBC and JDBC, whose results are Arrow record batches.
//!
//! ```text
//! socket ── TLS, first bytes of HTTP/2 ── connection (limits, end of the server) ── gRPC: tonic ── admission: headers
//!    Handshake ── sessions: name and secret ──► bearer token of one hour
//!    others ── token ── message ── service ─┬─ statements: a ticket is the statement ── executor ── batches
//!                                           ├─ prepared: parameters, one execution for each row
//!                                           └─ metadata: tables, keys, facts about the server
//! ```
//!
//! gRPC drops the call of a client that leaves, and with it the running statement, which closes its scanners.

mod admission;
mod connection;
mod info;
mod ingest;
mod metadata;
mod prepared;
mod service;
mod sessions;
mod statement_table;
mod statements;
mod status;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use nyala_common::env::{Listener, TaskHandle};
use tokio::sync::mpsc;
use tonic::transport::Server;

use super::super::error::SqlError;
use super::shared::{AcceptedConnection, Shared, accept};
use admission::Admission;
use connection::FlightConnection;
use service::FlightSql;

/// Time between two questions to a silent client whether it is there.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Longest wait for its answer.
const PING_TIME: Duration = Duration::from_secs(20);
/// Largest number of calls of a connection at a time.
const CALLS_MAX: u32 = 64;
/// Accepted connections that gRPC has not taken.
const ACCEPTED_MAX: usize = 16;

/// A server of Flight SQL.
pub(super) struct FlightServer {
    address: SocketAddr,
    accepting: Box<dyn TaskHandle>,
    serving: Box<dyn TaskHandle>,
}

impl FlightServer {
    pub(super) fn start(shared: &Arc<Shared>, listener: Box<dyn Listener>) -> Result<FlightServer, SqlError> {
        let address = listener.local_addr();
        let (accepted, mut waiting) = mpsc::channel::<std::io::Result<FlightConnection>>(ACCEPTED_MAX);
        let tls = shared.config.encryption.as_ref().map(super::encryption::Encryption::http2);
        let serving = shared.clone();
        let open = move |connection: AcceptedConnection| {
            let (shared, tls, accepted) = (serving.clone(), tls.clone(), accepted.clone());
            serving.env.spawn("Flight SQL client", async move {
                if let Some(connection) = connection::open(&shared.env, connection, tls.as_ref()).await {
                    // The receiver ends with the server.
                    let _ = accepted.send(Ok(connection)).await;
                }
            });
        };
        let accepting = shared.env.spawn("accept Flight SQL clients", accept(shared.clone(), listener, open));
        let service = Admission::new(FlightSql::new(shared)?, shared.config.message_bytes_max);
        let server = Server::builder()
            .http2_keepalive_interval(Some(PING_INTERVAL))
            .http2_keepalive_timeout(Some(PING_TIME))
            .max_concurrent_streams(CALLS_MAX)
            .add_service(service);
        let serving = shared.env.spawn("serve Flight SQL", async move {
            let connections = stream::poll_fn(move |context| waiting.poll_recv(context));
            // The stream of connections has no errors and no end.
            let _ = server.serve_with_incoming(connections).await;
        });
        Ok(FlightServer { address, accepting, serving })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the tasks that end with the server.
    pub(super) fn into_tasks(self) -> [Box<dyn TaskHandle>; 2] {
        [self.accepting, self.serving]
    }
}
