//! State that the connections of a server share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nyala_common::env::{Env, Listener, Stream};
use pgwire::api::RandomPidSecretKeyGenerator;
use pgwire::error::{ErrorInfo, PgWireError};

use super::access::Access;
use super::cancel::Cancels;
use super::config::ServeConfig;

/// Connections above the limit that are told so at once; more are closed without a word.
const REFUSALS_MAX: usize = 32;

/// State that all connections share.
pub(super) struct Shared {
    pub(super) env: Env,
    pub(super) access: Access,
    pub(super) config: ServeConfig,
    pub(super) cancels: Arc<Cancels>,
    /// Source of the numbers and keys that cancel requests name.
    pub(super) processes: Arc<RandomPidSecretKeyGenerator>,
    /// Number of connections of both protocols.
    pub(super) connections: AtomicUsize,
}

/// Counts a connection until it is dropped.
pub(super) struct ConnectionGuard(Arc<Shared>);

impl ConnectionGuard {
    /// Counts a connection. Returns the number of connections before it, too.
    pub(super) fn new(shared: &Arc<Shared>) -> (usize, ConnectionGuard) {
        let before = shared.connections.fetch_add(1, Ordering::AcqRel);
        (before, ConnectionGuard(shared.clone()))
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A connection that was accepted.
pub(super) struct AcceptedConnection {
    pub(super) stream: Stream,
    pub(super) peer: SocketAddr,
    /// True if there are too many connections already.
    pub(super) is_refused: bool,
    pub(super) guard: ConnectionGuard,
}

/// Accepts connections until its task ends, and serves each.
pub(super) async fn accept(
    shared: Arc<Shared>,
    mut listener: Box<dyn Listener>,
    serve: impl Fn(AcceptedConnection) + Send,
) {
    /// Wait after a failed accept: the process has no file descriptors left, for example.
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(50);
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            shared.env.sleep(PAUSE).await;
            continue;
        };
        let (before, guard) = ConnectionGuard::new(&shared);
        let max = shared.config.connections_max;
        if before < max + REFUSALS_MAX {
            serve(AcceptedConnection { stream, peer, is_refused: before >= max, guard });
        }
    }
}

/// Creates an error that ends the connection.
pub(super) fn fatal(state: &str, message: String) -> PgWireError {
    PgWireError::UserError(Box::new(ErrorInfo::new("FATAL".to_string(), state.to_string(), message)))
}
