//! State that the connections of a server share.

use std::net::SocketAddr;
use std::sync::Arc;

use nyala_common::env::{Env, Listener, Stream};
use pgwire::api::RandomPidSecretKeyGenerator;
use pgwire::error::{ErrorInfo, PgWireError};

use super::access::Access;
use super::cancel::Cancels;
use super::config::ServeConfig;
use super::places::{ConnectionPlace, Places};

/// State that all connections share.
pub(super) struct Shared {
    pub(super) env: Env,
    pub(super) access: Access,
    pub(super) config: ServeConfig,
    pub(super) cancels: Arc<Cancels>,
    /// Source of the numbers and keys that cancel requests name.
    pub(super) processes: Arc<RandomPidSecretKeyGenerator>,
    /// Places of the connections of both protocols.
    pub(super) places: Arc<Places>,
}

/// A connection that was accepted.
pub(super) struct AcceptedConnection {
    pub(super) stream: Stream,
    pub(super) peer: SocketAddr,
    pub(super) place: Arc<ConnectionPlace>,
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
        let place = shared.places.enter(peer.ip());
        serve(AcceptedConnection { stream, peer, place });
    }
}

/// Creates an error that ends the connection.
pub(super) fn fatal(state: &str, message: String) -> PgWireError {
    PgWireError::UserError(Box::new(ErrorInfo::new("FATAL".to_string(), state.to_string(), message)))
}
