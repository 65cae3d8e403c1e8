//! Cancellation of running statements: by another connection's request, or by the end of the connection.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use pgwire::api::cancel::CancelHandler;
use pgwire::messages::cancel::CancelRequest;
use pgwire::messages::startup::SecretKey;
use tokio_util::sync::CancellationToken;

/// Connections by process id, as clients name them in a cancel request.
#[derive(Default)]
pub(super) struct Cancels {
    connections: Mutex<BTreeMap<i32, (SecretKey, Arc<Cancellation>)>>,
    /// Cancelled when the server stops.
    stopped: CancellationToken,
}

/// Cancellation of one connection's statements.
pub(super) struct Cancellation {
    /// Cancelled when the client is gone.
    closed: CancellationToken,
    running: Mutex<Option<CancellationToken>>,
}

/// Registration of a connection, until it is dropped.
pub(super) struct Registration {
    cancels: Arc<Cancels>,
    process: i32,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.cancels.lock().remove(&self.process);
    }
}

impl Cancels {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<i32, (SecretKey, Arc<Cancellation>)>> {
        self.connections.lock().unwrap_or_else(|error| error.into_inner())
    }

    /// Creates the cancellation of a new connection.
    pub(super) fn connection(&self) -> Arc<Cancellation> {
        Arc::new(Cancellation { closed: self.stopped.child_token(), running: Mutex::default() })
    }

    /// Makes a connection known under its process id.
    pub(super) fn register(
        self: &Arc<Self>,
        process: i32,
        key: SecretKey,
        cancellation: Arc<Cancellation>,
    ) -> Registration {
        self.lock().insert(process, (key, cancellation));
        Registration { cancels: self.clone(), process }
    }

    /// Returns the token that is cancelled when the server stops.
    pub(super) fn stopped(&self) -> CancellationToken {
        self.stopped.clone()
    }

    /// Ends all connections.
    pub(super) fn close_all(&self) {
        self.stopped.cancel();
    }
}

#[async_trait]
impl CancelHandler for Cancels {
    /// Cancels what the connection runs, if the secret key is the connection's.
    async fn on_cancel_request(&self, request: CancelRequest) {
        let connections = self.lock();
        if let Some((key, cancellation)) = connections.get(&request.pid)
            && key.eq_value(&request.secret_key)
        {
            cancellation.cancel();
        }
    }
}

impl Cancellation {
    fn lock(&self) -> MutexGuard<'_, Option<CancellationToken>> {
        self.running.lock().unwrap_or_else(|error| error.into_inner())
    }

    /// Begins a message. Returns the token that cancels it.
    pub(super) fn begin(&self) -> CancellationToken {
        let token = self.closed.child_token();
        *self.lock() = Some(token.clone());
        token
    }

    /// Ends the message: a cancel request that comes now has nothing to cancel. Returns false if one came before.
    pub(super) fn end(&self) -> bool {
        self.lock().take().is_some()
    }

    fn cancel(&self) {
        if let Some(token) = self.lock().take() {
            token.cancel();
        }
    }

    /// Ends the connection and its statement.
    pub(super) fn close(&self) {
        self.closed.cancel();
    }

    pub(super) fn closed(&self) -> &CancellationToken {
        &self.closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_right_key_cancels_and_only_what_runs() {
        let cancels = Arc::new(Cancels::default());
        let connection = cancels.connection();
        let registration = cancels.register(7, SecretKey::I32(5), connection.clone());
        let request = |key| CancelRequest::new(7, SecretKey::I32(key));
        let token = connection.begin();
        cancels.on_cancel_request(request(6)).await;
        assert!(!token.is_cancelled());
        cancels.on_cancel_request(request(5)).await;
        assert!(token.is_cancelled() && !connection.end());
        let token = connection.begin();
        assert!(connection.end());
        cancels.on_cancel_request(request(5)).await;
        assert!(!token.is_cancelled());
        drop(registration);
        assert!(cancels.lock().is_empty());
    }

    #[test]
    fn the_end_of_a_connection_cancels_what_runs() {
        let cancels = Cancels::default();
        let (one, other) = (cancels.connection(), cancels.connection());
        let (token, running) = (one.begin(), other.begin());
        one.close();
        assert!(token.is_cancelled() && one.begin().is_cancelled());
        assert!(!running.is_cancelled());
        cancels.close_all();
        assert!(running.is_cancelled());
    }
}
